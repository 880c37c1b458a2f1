"""Ingest: new segments of the journal become bronze records, once each; what is no record is put aside with its reason.

Rules:
- A segment is new when the ledger does not have its name and size. It is first decompressed as bytes, which tells
  whether it is whole, and then parsed once: by the fixed schema, good and bad records to a staging folder in one pass.
- Empty lines are passed over, and not counted in the numbers of lines.
- The staged files then move into bronze by renames. Where numbers of records overlap (a segment came twice, or a run
  was cut off while it moved files) the dates in question are written again, each record once by (broker, boot, seq).
- A segment that cannot be decompressed is put aside whole, and the rest goes on.
- Before files move, the state notes the dates; the ledger is written last. So whatever a crash leaves, the next run
  reads the same segments again, and takes out what it finds twice.
- Loss is a gap in the numbers of one start of a broker, over all dates: a late segment fills its gap. What was lost
  after a broker's last record cannot be known from numbers.
"""

import gzip
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from spark.capacity.schema import (
    BRONZE_RECORDS,
    BRONZE_RUNS,
    EVENTS,
    LEDGER,
    LOSS,
    QUARANTINE,
    RECORD,
    TYPES,
    UNKNOWN_MEMBERS,
    VERSION,
)
from spark.capacity.tables import State, Tables, sync, url

SEGMENT = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/[A-Za-z0-9][A-Za-z0-9._-]*\.jsonl\.gz")
"""Names of sealed segments under `segments`; other names are not ours, and are told about."""

EARLIEST = datetime(2001, 1, 1, tzinfo=UTC)
"""No broker is older; a clock that says so was never set."""

FUTURE = timedelta(days=1)
"""How far a broker's clock may be ahead: more than this is a wrong clock, and would move every forecast."""

LATEST_SENT = datetime(2200, 1, 1, tzinfo=UTC)
"""A provider's own clock may be wrong, but not so that later readers cannot show the date."""

RAW_LIMIT = 2000
"""Letters of a bad line that are kept: enough to see what it is."""

LINE_LIMIT = 1 << 20
"""Bytes of a line that are read at all: a record has some hundred. A longer one is passed over, which shows as loss."""

BATCH = 24 << 20
"""Compressed bytes of segments that each core gets in one batch: about a million records. Progress is told between
batches, and a bad segment makes one batch be read again, not all."""

SMALLEST_GZIP = 18
"""Bytes of the header and trailer of gzip: a smaller file holds nothing, not even nothing."""

CHUNK = 1 << 20
"""Bytes that a check of a segment decompresses at a time."""

CUT_OFF = "the file is cut off"

NAMED = 1000
"""Unknown members that are named: bad input could have any number of names."""

LOOKERS = 4
"""Parts of a batch for each core when its segments are looked at: segments differ in size."""

DISTINCT = ("ts", "seq", "hb_seq", "sent_ts", "row")
"""Columns that have another value in each record: Parquet would make a dictionary of them first, and throw it away."""

CORRUPT = "_corrupt"
"""Where Spark puts a line that does not parse."""

NOTHING = date(1970, 1, 1)
"""The folder of staged lines that are no records; no real date, as EARLIEST shows."""


class JournalError(Exception):
    """There is no journal to read."""


@dataclass(frozen=True)
class Segment:
    """A sealed segment: its name under `segments`, and its size in bytes."""

    name: str
    size: int


@dataclass
class Ingested:
    """What ingest did."""

    segments: int = 0
    records: int = 0
    quarantined: int = 0
    lost: int = 0
    lost_known: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    dates: set[date] = field(default_factory=set)


def find_segments(journal: Path) -> tuple[list[Segment], list[str]]:
    """List the sealed segments, in the order of their names, and the names that are none."""
    root = journal / "segments"
    if not root.is_dir():
        raise JournalError(f"{journal} is no journal: it has no folder named segments")
    segments, strange = [], []
    for path in sorted(root.glob("*/*/*")):
        name = path.relative_to(root).as_posix()
        if path.name.startswith((".", "_")):
            continue
        if SEGMENT.fullmatch(name) and path.is_file():
            segments.append(Segment(name, path.stat().st_size))
        else:
            strange.append(name)
    return segments, strange


def batches(segments: Sequence[Segment], size: int) -> Iterator[list[Segment]]:
    """Cut the segments into batches of about so many bytes."""
    batch: list[Segment] = []
    for segment in segments:
        batch.append(segment)
        if sum(one.size for one in batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class Look:
    """What a segment is as bytes: what is wrong with it, and how many names of members it seems to have."""

    damage: str | None
    names: int


def look(path: str) -> Look:
    """Decompress a segment. A name is counted by the quote and the colon behind it."""
    names, last = 0, b""
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                names += chunk.count(b'":') + (last == b'"' and chunk.startswith(b":"))
                last = chunk[-1:]
    except EOFError:
        return Look(CUT_OFF, names)
    except (OSError, zlib.error) as error:
        return Look(f"the file cannot be read: {error}", names)
    return Look(None, names)


def micros(when: datetime) -> int:
    """Tell a time as the journal does."""
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def why_bad(latest: datetime) -> Column:
    """Tell what is wrong with a parsed line, or null."""
    reason = F.when(F.col("v") != VERSION, F.concat(F.lit("unknown version "), F.col("v")))
    reason = reason.when(F.col(CORRUPT).isNotNull(), "no JSON object, or a member of a wrong type")
    for member in ("v", "ts", "broker", "boot", "seq", "event"):
        reason = reason.when(F.col(member).isNull(), f"{member} is missing")
    reason = reason.when(~F.col("event").isin(*EVENTS), F.concat(F.lit("unknown event "), F.left("event", F.lit(40))))
    reason = reason.when(F.col("seq") < 1, "seq is less than 1")
    reason = reason.when(F.col("ts") < micros(EARLIEST), "a date before 2001")
    reason = reason.when(F.col("ts") > micros(latest), "a date in the future")
    of_provider = ~F.col("event").isin("alive", "drop")
    for member in ("service", "provider"):
        reason = reason.when(of_provider & F.col(member).isNull(), f"{member} is missing")
    reason = reason.when((F.col("event") == "load") & F.col("load").isNull(), "load is missing")
    for member in ("load", "full_load", "rtt_ms"):
        reason = reason.when((F.col(member) < 0) | (F.col(member) == float("inf")), f"{member} is no measure")
    return reason


def parse(lines: DataFrame, latest: datetime) -> DataFrame:
    """Make staged rows of parsed lines: the columns of bronze, and what tells about bad lines.

    `row` grows along each segment, so that `seq - row` is the same in an unbroken run of records. `members` is how many
    members were understood.
    """
    parsed = lines.select("*", why_bad(latest).alias("reason"), F.monotonically_increasing_id().alias("row"))
    good = F.col("reason").isNull()

    def positive(name: str) -> Column:
        return F.when(F.col(name) > 0, F.col(name))

    sent = F.col("sent_ts").between(micros(EARLIEST), micros(LATEST_SENT))
    made = {
        "date": F.when(good, F.to_date(F.timestamp_micros("ts"))).otherwise(F.lit(NOTHING)),
        "ts": F.timestamp_micros("ts"),
        "sent_ts": F.when(sent, F.timestamp_micros("sent_ts")),
        "interval_ms": positive("interval_ms"),
        "full_load": positive("full_load"),
        "dropped": positive("dropped"),
        "instance": F.coalesce("endpoint", "label", F.concat(F.lit("provider-"), F.col("provider"))),
    }
    columns = [made.get(name, F.col(name)).alias(name) for name in BRONZE_RECORDS.schema.names]
    # The line itself is there only where it did not parse; else what was understood of it is shown.
    line = F.coalesce(CORRUPT, F.to_json(F.struct(*RECORD.names)))
    raw = F.when(~good, F.left(line, F.lit(RAW_LIMIT))).alias("raw")
    members = sum((F.col(name).isNotNull().cast("int") for name in RECORD.names), F.lit(0)).alias("members")
    return parsed.select(*columns, "reason", raw, "row", members)


STAGED = StructType(
    [
        *(column for column in BRONZE_RECORDS.schema if column.name != "date"),
        StructField("reason", TYPES["string"]),
        StructField("raw", TYPES["string"]),
        StructField("row", TYPES["long"]),
        StructField("members", IntegerType()),
        StructField("date", TYPES["date"]),
    ]
)
"""What staged files hold; bronze readers see the first columns of it only."""


def segment_of() -> Column:
    """Tell the name of the segment that a row is read from."""
    return F.substring_index("_metadata.file_path", "/", -3).alias("segment")


def stage(spark: SparkSession, root: Path, segments: Sequence[Segment], latest: datetime, place: Path) -> None:
    """Read segments, and write what they hold to a folder."""
    files = [url(root / segment.name) for segment in segments]
    total = sum(segment.size for segment in segments)
    # Without these, Spark counts each small file as 4 MB, and packs so that one core waits for the other.
    share = max(1, total // (2 * spark.sparkContext.defaultParallelism))
    spark.conf.set("spark.sql.files.openCostInBytes", "65536")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(share))
    schema = StructType([*RECORD.fields, StructField(CORRUPT, TYPES["string"])])
    try:
        lines = (
            spark.read.schema(schema)
            .options(
                mode="PERMISSIVE",
                columnNameOfCorruptRecord=CORRUPT,
                allowNonNumericNumbers="false",
                allowSingleQuotes="false",
            )
            .option("mapreduce.input.linerecordreader.line.maxlength", str(LINE_LIMIT))
            .json(files)
            .select("*", segment_of())
        )
        writer = parse(lines, latest).write.mode("append").partitionBy("date")
        writer.options(**{f"parquet.enable.dictionary#{name}": "false" for name in DISTINCT}).parquet(url(place))
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def exact_runs(keys: DataFrame) -> DataFrame:
    """Make unbroken runs of the numbers (date, broker, boot, seq), whatever their order; each number counts once."""
    window = Window.partitionBy("date", "broker", "boot").orderBy("seq")
    keys = keys.select("date", "broker", "boot", "seq").distinct()
    return (
        keys.withColumn("base", F.col("seq") - F.row_number().over(window))
        .groupBy("date", "broker", "boot", "base")
        .agg(F.min("seq").alias("seq_from"), F.max("seq").alias("seq_to"))
        .select("date", "broker", "boot", "seq_from", "seq_to", F.lit(None).cast("long").alias("dropped"))
    )


def drops(records: DataFrame) -> DataFrame:
    """Tell what drop records say, in the form of runs."""
    return records.where((F.col("event") == "drop") & F.col("dropped").isNotNull()).select(
        "date", "broker", "boot", F.col("seq").alias("seq_from"), F.col("seq").alias("seq_to"), "dropped"
    )


def find_loss(runs: DataFrame) -> DataFrame:
    """Tell the gaps between runs, from number 1 on; the part that a drop record tells of is known, and apart."""
    window = Window.partitionBy("broker", "boot").orderBy("seq_from", "seq_to")
    before = F.max("seq_to").over(window.rowsBetween(Window.unboundedPreceding, -1))
    gaps = (
        runs.where("dropped is null")
        .select("broker", "boot", (F.coalesce(before, F.lit(0)) + 1).alias("a"), (F.col("seq_from") - 1).alias("b"))
        .where("a <= b")
    )
    told = (
        runs.where("dropped is not null")
        .groupBy("broker", "boot", (F.col("seq_from") - 1).alias("b"))
        .agg(F.max("dropped").alias("dropped"))
    )
    gaps = gaps.join(told, ["broker", "boot", "b"], "left").withColumn(
        "split", F.greatest("a", F.col("b") - F.coalesce("dropped", F.lit(0)) + 1)
    )
    unknown = gaps.select(
        "broker",
        "boot",
        F.col("a").alias("seq_from"),
        (F.col("split") - 1).alias("seq_to"),
        F.lit(False).alias("known"),
    )
    known = gaps.select(
        "broker", "boot", F.col("split").alias("seq_from"), F.col("b").alias("seq_to"), F.lit(True).alias("known")
    )
    return (
        unknown.union(known)
        .where("seq_from <= seq_to")
        .select(
            "broker", "boot", "seq_from", "seq_to", (F.col("seq_to") - F.col("seq_from") + 1).alias("records"), "known"
        )
    )


def doubled(runs: DataFrame) -> DataFrame:
    """Tell the dates on which a number may be held twice: those of starts of a broker whose runs overlap."""
    window = Window.partitionBy("broker", "boot").orderBy("seq_from", "seq_to")
    before = F.max("seq_to").over(window.rowsBetween(Window.unboundedPreceding, -1))
    held = runs.where("dropped is null")
    boots = (
        held.select("broker", "boot", (before >= F.col("seq_from")).alias("twice"))
        .where("twice")
        .drop("twice")
        .distinct()
    )
    return held.join(boots, ["broker", "boot"], "left_semi").select("date").distinct()


def finish_healing(tables: Tables) -> None:
    """Put dates that were written again in the place of the old ones; a run that was cut off here is continued."""
    healed = tables.out / ".healed"
    if (healed / "_SUCCESS").exists():
        for new in healed.glob("date=*"):
            old = tables.path(BRONZE_RECORDS) / new.name
            if old.exists():
                shutil.rmtree(old)
            new.rename(old)
        sync(tables.path(BRONZE_RECORDS))
    if healed.exists():
        shutil.rmtree(healed)


def heal(tables: Tables, dates: set[date]) -> None:
    """Write the records of some dates again, each once."""
    if not dates:
        return
    records = tables.read(BRONZE_RECORDS, dates).dropDuplicates(["broker", "boot", "seq"])
    # Not an overwrite: only a plain write leaves the mark of success that finish_healing looks for.
    records.write.partitionBy("date").parquet(url(tables.out / ".healed"))
    finish_healing(tables)


def move(tables: Tables, staging: Path) -> None:
    """Move staged files into bronze."""
    bronze = tables.path(BRONZE_RECORDS)
    bronze.mkdir(exist_ok=True)
    for folder in sorted(staging.glob("date=*")):
        if folder.name == f"date={NOTHING}":
            continue
        place = bronze / folder.name
        place.mkdir(exist_ok=True)
        for file in folder.glob("*.parquet"):
            file.rename(place / file.name)
        sync(place)
    sync(bronze)


class Intake:
    """One run of ingest."""

    def __init__(self, tables: Tables, journal: Path, *, run: str, started: datetime) -> None:
        self._tables = tables
        self._spark = tables.spark
        self._root = journal.absolute() / "segments"
        self._run = run
        self._started = started
        self._latest = started + FUTURE
        self._staging = tables.out / ".staging"
        self._damaged: dict[Segment, str] = {}
        self._names: dict[str, int] = {}
        self.told = Ingested()

    def new_segments(self, segments: Sequence[Segment]) -> list[Segment]:
        """Tell which segments the ledger does not have."""
        read = {(row["segment"], row["size"]) for row in self._tables.read(LEDGER).select("segment", "size").collect()}
        return [segment for segment in segments if (segment.name, segment.size) not in read]

    def stage(self, segments: Sequence[Segment], tell: Callable[[float], None]) -> None:
        """Read the segments batch by batch; those that cannot be read are put aside whole."""
        context = self._spark.sparkContext
        total, done = sum(segment.size for segment in segments) or 1, 0
        for batch in batches(segments, BATCH * context.defaultParallelism):
            paths = [str(self._root / segment.name) for segment in batch]
            looks = (
                context.parallelize(paths, min(len(paths), LOOKERS * context.defaultParallelism)).map(look).collect()
            )
            readable = []
            for segment, seen in zip(batch, looks, strict=True):
                if segment.size < SMALLEST_GZIP:
                    self._damaged[segment] = CUT_OFF
                elif seen.damage is not None:
                    self._damaged[segment] = seen.damage
                else:
                    readable.append(segment)
                    self._names[segment.name] = seen.names
            if readable:
                stage(self._spark, self._root, readable, self._latest, self._staging)
            done += sum(segment.size for segment in batch)
            tell(done / total)

    def load(self, segments: Sequence[Segment], tell: Callable[[float], None]) -> None:
        """Bring new segments into the tables."""
        tables, state = self._tables, self._tables.state()
        if self._staging.exists():
            shutil.rmtree(self._staging)
        finish_healing(tables)
        dirty = {date.fromisoformat(day) for day in state.moving}
        new = self.new_segments(segments)
        self.told.segments = len(new)
        if not new and not dirty:
            return
        self.stage(new, tell)
        if self._staging.exists():
            staged = self._spark.read.schema(STAGED).parquet(url(self._staging))
        else:
            staged = self._spark.createDataFrame([], STAGED)
        groups = (
            staged.groupBy("segment", "date", "broker", "boot", (F.col("seq") - F.col("row")).alias("base"))
            .agg(
                F.min("seq").alias("seq_from"),
                F.max("seq").alias("seq_to"),
                F.count("*").alias("records"),
                F.min("row").alias("row"),
                F.sum("members").alias("members"),
            )
            .persist()
        )
        try:
            self._settle(new, dirty, state, staged, groups)
        finally:
            groups.unpersist()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _settle(
        self,
        new: Sequence[Segment],
        dirty: set[date],
        state: State,
        staged: DataFrame,
        groups: DataFrame,
    ) -> None:
        tables = self._tables
        bad = F.col("date") == F.lit(NOTHING)
        counts = {
            row["segment"]: row
            for row in groups.groupBy("segment")
            .agg(
                F.sum(F.when(~bad, F.col("records")).otherwise(0)).alias("good"),
                F.sum(F.when(bad, F.col("records")).otherwise(0)).alias("bad"),
                F.min("row").alias("first"),
                F.sum("members").alias("members"),
            )
            .collect()
        }
        days = groups.where(~bad).groupBy("date")
        unbroken = F.min((F.col("seq_to") - F.col("seq_from") + 1 == F.col("records")).cast("int"))
        whole = {row["date"]: bool(row["whole"]) for row in days.agg(unbroken.alias("whole")).collect()}
        touched = set(whole) | dirty
        # What the state says of dates that an earlier run did not finish stays true until they are computed.
        state = State({str(day) for day in touched}, state.changed | {str(day) for day in touched})
        tables.keep(state)
        fresh = staged.where(~bad)
        runs = groups.where(~bad).withColumn("dropped", F.lit(None).cast("long")).select(*BRONZE_RUNS.schema.names)
        runs = runs.union(drops(fresh)).union(tables.read(BRONZE_RUNS, touched)).persist()
        # A group with holes is rare (a writer that was not in order): its runs are made from its numbers, one by one.
        twice = {row["date"] for row in doubled(runs).collect()} | dirty | {day for day, ok in whole.items() if not ok}
        self._quarantine(staged.where(bad), counts)
        self._unknown(counts)
        move(tables, self._staging)
        heal(tables, twice)
        clean = runs.where(~F.col("date").isin(sorted(twice))) if twice else runs
        if twice:
            again = tables.read(BRONZE_RECORDS, twice)
            clean = clean.union(exact_runs(again)).union(drops(again))
        tables.write(BRONZE_RUNS, clean)
        runs.unpersist()
        tables.write(LOSS, find_loss(tables.read(BRONZE_RUNS)))
        self._ledger(new, counts)
        tables.keep(State(set(), state.changed))

    def _quarantine(self, bad: DataFrame, counts: dict[str, Row]) -> None:
        """Put bad lines aside, and whole segments; a segment that is read again replaces what it had there."""
        rows = [(one.name, 0, why, None, self._run) for one, why in self._damaged.items()]
        whole = self._spark.createDataFrame(rows, QUARANTINE.schema)
        firsts = {name: row["first"] for name, row in counts.items() if row["bad"]}
        if not rows and not firsts:
            return
        if firsts:
            starts = self._spark.createDataFrame(list(firsts.items()), "segment string, first long")
            line = (F.col("row") - F.col("first") + 1).alias("line")
            lines = bad.join(F.broadcast(starts), "segment").select(
                "segment", line, "reason", "raw", F.lit(self._run).alias("run")
            )
            whole = whole.union(lines)
        whole = whole.persist()
        self.told.reasons = {row["reason"]: row["count"] for row in whole.groupBy("reason").count().collect()}
        again = whole.select("segment").distinct()
        old = self._tables.read(QUARANTINE).join(F.broadcast(again), "segment", "left_anti")
        self._tables.write(QUARANTINE, old.select(*QUARANTINE.schema.names).union(whole))
        whole.unpersist()

    def _unknown(self, counts: dict[str, Row]) -> None:
        """Count the members that this version does not have.

        To list the names of each line costs as much as to parse it. So the names are counted as bytes first, and listed
        only for segments in which that is not the number of members that were understood.
        """
        odd = [name for name, row in counts.items() if row["members"] != self._names[name]]
        if not odd:
            return
        texts = self._spark.read.text([url(self._root / name) for name in odd])
        names = F.array_except(F.json_object_keys("value"), F.array(*(F.lit(name) for name in RECORD.names)))
        found = texts.select(F.explode(names).alias("member")).groupBy("member").count().orderBy(F.desc("count"))
        self.told.unknown = {row["member"]: row["count"] for row in found.limit(NAMED).collect()}
        if not self.told.unknown:
            return
        rows = [(self._run, member, number) for member, number in sorted(self.told.unknown.items())]
        new = self._spark.createDataFrame(rows, UNKNOWN_MEMBERS.schema)
        old = self._tables.read(UNKNOWN_MEMBERS).where(F.col("run") != self._run)
        self._tables.write(UNKNOWN_MEMBERS, old.union(new))

    def _ledger(self, new: Sequence[Segment], counts: dict[str, Row]) -> None:
        rows = []
        for one in new:
            row = counts.get(one.name)
            good, bad = (row["good"], row["bad"]) if row else (0, 1 if one in self._damaged else 0)
            rows.append((one.name, one.size, good, bad, self._run, self._started))
            self.told.records += good
            self.told.quarantined += bad
        added = self._spark.createDataFrame(rows, LEDGER.schema)
        names = added.select("segment")
        old = self._tables.read(LEDGER).join(F.broadcast(names), "segment", "left_anti").select(*LEDGER.schema.names)
        self._tables.write(LEDGER, old.union(added))


def ingest(
    tables: Tables, journal: Path, *, run: str, started: datetime, tell: Callable[[float], None] = lambda done: None
) -> Ingested:
    """Bring the journal's new segments into the tables; `started` judges which dates are in the future."""
    segments, strange = find_segments(journal)
    intake = Intake(tables, journal, run=run, started=started)
    intake.told.strange = strange
    intake.load(segments, tell)
    if tables.exists(LOSS):
        sums = {
            row["known"]: row["n"]
            for row in tables.read(LOSS).groupBy("known").agg(F.sum("records").alias("n")).collect()
        }
        intake.told.lost, intake.told.lost_known = sum(sums.values()), sums.get(True, 0)
    intake.told.dates = {date.fromisoformat(day) for day in tables.state().changed}
    return intake.told
