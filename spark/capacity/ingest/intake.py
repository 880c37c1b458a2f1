"""Ingest: new segments of the journal become bronze records, once each; other lines are put aside with their reason.

Rules:
- A segment is new when the ledger does not have its name, or has another digest of its file. A file of the same size
  and ctime is taken for the same, unless something of it is in quarantine: then its bytes are compared again in each
  run. The lines that a segment had in quarantine are removed when it is read again.
- Folders of the journal that cannot have new segments are not listed again (`journal_folders`).
- If all of a segment is records, its rows are written at once (`fast_reader`); else Spark reads it line by line
  (`line_reader`); both to a staging folder.
- Both are written in the order of bronze (`sorted_files`): what Spark has written is read and written again by tasks.
- The staged files then move into bronze by renames. If numbers of records overlap (a segment came twice, or a run
  was cut off while it moved files) the dates in question are written again, each record once by (broker, boot, seq).
- Tasks read segments of an object store where they are. Those that Spark reads are fetched to the staging folder.
- A segment that cannot be decompressed is put aside whole, and the rest goes on.
- Before files move, the state notes the dates; the ledger is written last. So after a crash the next run
  reads the same segments again, and takes out records that it finds twice.
- Losses are recognised by the numbers (`loss`).
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from math import ceil
from pathlib import Path

import attrs
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.capacity.ingest.fast_reader import Seen, take
from spark.capacity.ingest.journal_folders import known_folders, note_folders
from spark.capacity.ingest.line_reader import EARLIEST, FUTURE, NOTHING, STAGED, micros, stage
from spark.capacity.ingest.loss import doubled, exact, find_loss, framed, joined
from spark.capacity.ingest.retention import KEEP, first_kept, forget, many_small
from spark.capacity.ingest.runs import RUNS
from spark.capacity.ingest.segments import Reach, Segment, batches, digest, find_segments
from spark.capacity.ingest.sorted_files import Again, write_again
from spark.capacity.tables.object_store import Place, all_at_once, fetch, is_object
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    LEDGER,
    LOSS,
    QUARANTINE,
    RECORD,
    UNKNOWN_MEMBERS,
)
from spark.capacity.tables.store import State, Tables, readable, sync, url

SHARE = 10 << 20
"""Compressed bytes of segments that a task reads: about 400,000 records, so that dates have few and large files."""

ROUND = 4
"""Shares of each core in one batch. Progress is reported between batches."""

TASKS = 4
"""Parts for each core of a look at the bytes of segments: these differ in size."""

NAMED = 1000
"""Unknown members that are named: bad input could have any number of names."""


@attrs.define
class Ingested:
    """Result of an ingest."""

    segments: int = 0
    records: int = 0
    quarantined: int = 0
    lost: int = 0
    lost_known: int = 0
    damaged: int = 0
    """Segments of which nothing can be read, and whose losses are counted as far as they show."""
    reasons: dict[str, int] = attrs.field(factory=dict)
    unknown: dict[str, int] = attrs.field(factory=dict)
    strange: list[str] = attrs.field(factory=list)
    dates: set[date] = attrs.field(factory=set)


@attrs.define
class Counts:
    """Content of a segment: good and bad lines; of one that was read line by line also how many members were understood
    and how many it seemed to have, and the first of the numbers of its rows; and how far unreadable parts reach."""

    digest: str
    good: int = 0
    bad: int = 0
    members: int = 0
    names: int = 0
    first: int = 0
    reach: Reach | None = None


HELD = (BRONZE_RECORDS, BRONZE_PAIRS)
"""Tables of which each file of bronze has one."""


def finish_healing(tables: Tables) -> None:
    """Replace dates by the files that were written again; a run that was cut off here is continued."""
    healed = tables.out / ".healed"
    if (healed / "_SUCCESS").exists():
        for table in HELD:
            for new in (healed / table.name).glob("date=*"):
                old = tables.path(table) / new.name
                old.parent.mkdir(exist_ok=True)
                if old.exists():
                    shutil.rmtree(old)
                new.rename(old)
            if tables.exists(table):
                sync(tables.path(table))
    if healed.exists():
        shutil.rmtree(healed)


def heal(tables: Tables, dates: set[date]) -> pa.Table:
    """Write the records of some dates again, each once; return their runs."""
    healed = tables.out / ".healed"
    once = tables.read(BRONZE_RECORDS, dates).dropDuplicates(["broker", "boot", "seq"])
    # In the order of the numbers, so that a file has few runs.
    once.repartitionByRange("date", "broker", "boot", "seq").write.partitionBy("date").parquet(url(healed / "once"))
    made = again(tables, healed / "once", healed)
    _replace(tables, healed, dates)
    return made.runs


def compact(tables: Tables, files: Mapping[date, Sequence[str]]) -> None:
    """Write the files of some dates again, as few."""
    healed = tables.out / ".healed"
    target, parts = str(healed), tables.spark.sparkContext.parallelize(list(files.values()), len(files))
    parts.map(lambda paths: write_again(paths, target).files).collect()
    _replace(tables, healed, files)


def _replace(tables: Tables, healed: Path, dates: Iterable[date]) -> None:
    """Replace dates by the files that were written again, so that a crash leaves the old or the new ones."""
    for table in HELD:
        for day in dates:
            # All records of a date may be there on another one: then an empty folder takes its place.
            (healed / table.name / f"date={day}").mkdir(parents=True, exist_ok=True)
    mark = healed / "_SUCCESS"
    mark.touch()
    sync(healed)
    finish_healing(tables)


def again(tables: Tables, staged: Path, place: Path) -> Again:
    """Write the records of staged files in the order of bronze, below some folder."""
    files = [str(file) for file in staged.glob("date=*/*.parquet") if file.parent.name != f"date={NOTHING}"]
    if not files:
        return Again(RUNS.empty_table(), ())
    context, target = tables.spark.sparkContext, str(place)
    parts = context.parallelize(sorted(files), min(len(files), context.defaultParallelism))
    made = parts.mapPartitions(lambda part: [write_again(part, target)]).collect()
    return Again(pa.concat_tables(one.runs for one in made), tuple(name for one in made for name in one.files))


def move(tables: Tables, staged: Path, files: Iterable[str]) -> None:
    """Move staged files, named "table/date=.../name", into their tables."""
    folders = set()
    for name in sorted(files):
        place = tables.out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (staged / name).rename(place)
        folders |= {place.parent, place.parent.parent}
    for folder in sorted(folders):
        sync(folder)


class Intake:
    """One run of ingest."""

    def __init__(self, tables: Tables, *, run: str, started: datetime) -> None:
        self._tables = tables
        self._spark = tables.spark
        self._run = run
        self._started = started
        self._latest = started + FUTURE
        self._staging = tables.out / ".staging"
        self._damaged: dict[str, str] = {}
        self._counts: dict[str, Counts] = {}
        self._paths: dict[str, str] = {}
        """Paths or URIs of the new segments by name."""
        self._sorted = self._staging / "sorted"
        self._runs: list[pa.Table] = [RUNS.empty_table()]
        self._files: list[str] = []
        self._again: set[str] = set()
        self._reach: list[Reach] = []
        self.told = Ingested()

    def load(self, segments: Sequence[Segment], tell: Callable[[float], None]) -> None:
        """Bring new segments into the tables."""
        tables, state = self._tables, self._tables.state()
        if self._staging.exists():
            shutil.rmtree(self._staging)
        finish_healing(tables)
        dirty = {date.fromisoformat(day) for day in state.moving}
        ledger = tables.rows(LEDGER)
        new, ledger = self._new(segments, ledger)
        self.told.segments = len(new)
        self._paths = {segment.name: segment.path for segment in new}
        if not new and not dirty:
            return
        names = {segment.name for segment in new}
        self._again = set(ledger.loc[ledger["quarantined"] > 0, "segment"]) & names
        left = ledger[~ledger["segment"].isin(names) & ledger["reach"].notna()]
        self._reach = [Reach(row.broker, row.boot, int(row.reach)) for row in left.itertuples()]
        lines = self._take(new, tell)
        bad = self._read_lines(lines)
        runs = pa.concat_tables(self._runs)
        touched = {*runs["date"].unique().to_pylist(), *dirty}
        # The state of dates that an earlier run did not finish stays valid until they are computed.
        state = State({str(day) for day in touched}, state.changed | {str(day) for day in touched})
        tables.keep(state)
        if bad is not None or self._damaged or self._again:
            self._quarantine(bad)
            self._unknown()
        move(tables, self._sorted, self._files)
        self._settle(runs, dirty)
        self._note(new, ledger)
        tables.keep(State(set(), state.changed))
        shutil.rmtree(self._staging, ignore_errors=True)

    def _new(self, segments: Sequence[Segment], ledger: pd.DataFrame) -> tuple[list[Segment], pd.DataFrame]:
        """Return the segments to read, and the ledger, which records the unchanged ones."""
        known = {row.segment: row for row in ledger.itertuples()}
        new, doubted = [], []
        for segment in segments:
            row = known.get(segment.name)
            if row is None:
                new.append(segment)
            elif row.quarantined or row.size != segment.size or row.changed is pd.NA or row.changed != segment.changed:
                doubted.append(segment)
        if not doubted:
            return new, ledger
        context = self._spark.sparkContext
        paths = [segment.path for segment in doubted]
        parts = context.parallelize(paths, min(len(paths), TASKS * context.defaultParallelism))
        same = {}
        for segment, its in zip(doubted, parts.map(digest).collect(), strict=True):
            row = known[segment.name]
            # A ledger of an older version has no digests.
            if its == row.digest or (row.digest is None and not row.quarantined and row.size == segment.size):
                same[segment.name] = (segment.changed, its)
            else:
                new.append(segment)
        if same:
            ledger = ledger.copy()
            mine = ledger["segment"].isin(same)
            moved = mine & (ledger["changed"].fillna(-1) != ledger["segment"].map(lambda name: same.get(name, (0,))[0]))
            ledger.loc[mine, "changed"] = [same[name][0] for name in ledger.loc[mine, "segment"]]
            ledger.loc[mine, "digest"] = [same[name][1] for name in ledger.loc[mine, "segment"]]
            if moved.any():
                self._tables.put(LEDGER, ledger)
        return sorted(new, key=lambda segment: segment.name), ledger

    def _take(self, new: Sequence[Segment], tell: Callable[[float], None]) -> list[str]:
        """Read whole segments, batch by batch; return the names of those that are to be read line by line."""
        context = self._spark.sparkContext
        place, earliest, latest = str(self._sorted), micros(EARLIEST), micros(self._latest)
        total, done, cores = sum(segment.size for segment in new) or 1, 0, context.defaultParallelism
        lines = []
        for batch in batches(new, SHARE * ROUND * cores):
            size = sum(segment.size for segment in batch)
            # As many for each core, so that all cores end at about the same time.
            shares = batches(batch, ceil(size / (cores * ceil(size / (cores * SHARE)))))
            tasks = [[(segment.name, segment.path) for segment in share] for share in shares]
            parts = context.parallelize(tasks, len(tasks))
            for taken in parts.map(lambda share: take(share, place, earliest, latest)).collect():
                self._files += taken.files
                self._runs.append(taken.runs)
                lines += [seen.name for seen in taken.seen if self._see(seen)]
            done += size
            tell(done / total)
        return lines

    def _see(self, seen: Seen) -> bool:
        """Count a segment; return True if it is to be read line by line."""
        if seen.look is None:
            self._counts[seen.name] = Counts(seen.digest, good=seen.records)
            return False
        if seen.look.damage is not None:
            self._damaged[seen.name] = seen.look.damage
            self._counts[seen.name] = Counts(seen.digest, bad=1, reach=seen.look.reach)
            return False
        self._counts[seen.name] = Counts(seen.digest, names=seen.look.names)
        return True

    def _read_lines(self, names: Sequence[str]) -> DataFrame | None:
        """Read segments line by line; return the lines that are no records."""
        if not names:
            return None
        place = self._staging / "lines"
        all_at_once(self._fetch, names)
        stage(self._spark, [self._fetched(name) for name in names], self._latest, place)
        made = again(self._tables, place, self._sorted)
        self._files += made.files
        self._runs.append(made.runs)
        staged = self._spark.read.schema(STAGED).parquet(readable(place))
        bad = F.col("reason").isNotNull()
        for row in (
            staged.groupBy("segment")
            .agg(
                F.count_if(~bad).alias("good"),
                F.count_if(bad).alias("bad"),
                F.min("row").alias("first"),
                F.sum("members").alias("members"),
                F.max("row").alias("last"),
                F.max(F.when(~bad, F.struct("row", "broker", "boot", "seq"))).alias("last_good"),
            )
            .collect()
        ):
            counts = self._counts[row["segment"]]
            counts.good, counts.bad, counts.first, counts.members = (
                row["good"], row["bad"], row["first"], row["members"],
            )  # fmt: skip
            if (good := row["last_good"]) is not None and (after := row["last"] - good["row"]):
                # Bad lines at the end were records as well.
                counts.reach = Reach(good["broker"], good["boot"], good["seq"] + after)
        return staged.where(bad)

    def _fetched(self, name: str) -> Path:
        """Return the path of a segment for Spark, which reads no object stores."""
        path = self._paths[name]
        return self._staging / "fetched" / name if is_object(path) else Path(path)

    def _fetch(self, name: str) -> None:
        if is_object(self._paths[name]):
            fetch(self._paths[name], self._fetched(name))

    def _settle(self, new: pa.Table, dirty: set[date]) -> None:
        """Make each record be there once, and tell which numbers are there and which are lost."""
        tables = self._tables
        runs = exact(pd.concat([exact(tables.rows(BRONZE_RUNS)), framed(new)], ignore_index=True))
        twice = doubled(runs) | dirty
        if twice:
            runs = exact(pd.concat([runs[~runs["date"].isin(twice)], framed(heal(tables, twice))], ignore_index=True))
        tables.put(BRONZE_RUNS, joined(runs))
        reach: dict[tuple[str, str], int] = {}
        for one in [*self._reach, *(counts.reach for counts in self._counts.values() if counts.reach is not None)]:
            reach[one.broker, one.boot] = max(one.seq, reach.get((one.broker, one.boot), 0))
        tables.put(LOSS, find_loss(runs, reach))

    def _quarantine(self, bad: DataFrame | None) -> None:
        """Write bad lines and unreadable segments to the quarantine, in place of the lines of a segment that is read
        again."""
        rows = [(name, 0, why, None, self._run) for name, why in self._damaged.items()]
        whole = self._spark.createDataFrame(rows, QUARANTINE.schema)
        firsts = [(name, counts.first) for name, counts in self._counts.items() if counts.bad]
        if bad is not None and firsts:
            starts = self._spark.createDataFrame(firsts, "segment string, first long")
            line = (F.col("row") - F.col("first") + 1).alias("line")
            lines = bad.join(F.broadcast(starts), "segment").select(
                "segment", line, "reason", "raw", F.lit(self._run).alias("run")
            )
            whole = whole.union(lines)
        whole = whole.persist()
        self.told.reasons = {row["reason"]: row["count"] for row in whole.groupBy("reason").count().collect()}
        if self.told.reasons or self._again:
            again = self._spark.createDataFrame([(name,) for name in sorted({*self._counts})], "segment string")
            old = self._tables.read(QUARANTINE).join(F.broadcast(again), "segment", "left_anti")
            self._tables.write(QUARANTINE, old.select(*QUARANTINE.schema.names).union(whole))
        whole.unpersist()

    def _unknown(self) -> None:
        """Count the members that this version does not have.

        To list the names of each line costs as much as to parse it. So the names are counted as bytes first, and listed
        only for segments in which that is not the number of members that were understood.
        """
        odd = [name for name, counts in self._counts.items() if counts.members != counts.names]
        if not odd:
            return
        texts = self._spark.read.text([readable(self._fetched(name)) for name in odd])
        names = F.array_except(F.json_object_keys("value"), F.array(*(F.lit(name) for name in RECORD.names)))
        found = texts.select(F.explode(names).alias("member")).groupBy("member").count().orderBy(F.desc("count"))
        self.told.unknown = {row["member"]: row["count"] for row in found.limit(NAMED).collect()}
        if not self.told.unknown:
            return
        rows = [(self._run, member, number) for member, number in sorted(self.told.unknown.items())]
        new = self._spark.createDataFrame(rows, UNKNOWN_MEMBERS.schema)
        old = self._tables.read(UNKNOWN_MEMBERS).where(F.col("run") != self._run)
        self._tables.write(UNKNOWN_MEMBERS, old.union(new))

    def _note(self, new: Sequence[Segment], ledger: pd.DataFrame) -> None:
        """Add the segments to the ledger; one that came again with other bytes replaces its row."""
        rows = []
        for one in new:
            counts = self._counts[one.name]
            reach = counts.reach
            whose = (None, None, None) if reach is None else (reach.broker, reach.boot, reach.seq)
            read = (counts.digest, counts.good, counts.bad, *whose)
            rows.append((one.name, one.size, one.changed, *read, self._run, self._started))
            self.told.records += counts.good
            self.told.quarantined += counts.bad
        added = pd.DataFrame(rows, columns=LEDGER.schema.names)
        kept = ledger[~ledger["segment"].isin(added["segment"])]
        self._tables.put(LEDGER, pd.concat([kept.astype(object), added.astype(object)], ignore_index=True))


def ingest(
    tables: Tables,
    journals: Sequence[Place],
    *,
    run: str,
    started: datetime,
    keep: int = KEEP,
    tell: Callable[[float], None] = lambda done: None,
) -> Ingested:
    """Bring new segments of the journals into the tables; `started` judges which dates are in the future, and ``keep``
    is a number of days (`retention`)."""
    first = first_kept(tables, keep)
    if first is not None:
        forget(tables, first, started, keep)
    aside = tables.rows(LEDGER)
    doubted = {name.rpartition("/")[0] for name in aside.loc[aside["quarantined"] > 0, "segment"]}
    found = find_segments(journals, started.date(), known_folders(tables), doubted, first)
    intake = Intake(tables, run=run, started=started)
    intake.told.strange = found.strange
    intake.load(found.segments, tell)
    note_folders(tables, found.folders)
    if small := many_small(tables):
        compact(tables, small)
    lost, aside = tables.rows(LOSS), tables.rows(LEDGER)
    intake.told.damaged = int(((aside["records"] == 0) & (aside["quarantined"] > 0)).sum())
    intake.told.lost = int(lost["records"].sum())
    intake.told.lost_known = int(lost.loc[lost["known"], "records"].sum())
    intake.told.dates = {date.fromisoformat(day) for day in tables.state().changed}
    return intake.told
