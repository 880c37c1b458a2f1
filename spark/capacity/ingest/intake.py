"""Ingest: new segments of the journal become bronze records, once each; other lines are put aside with their reason.

Rules:
- A segment is new when the ledger does not have its name, or has another digest of its file. A file of the same size
  and ctime is taken for the same, unless something of it is in quarantine: then its bytes are compared again in each
  run, and it counts as new once a record of it is no longer in the future (`future_dates`). The lines that a segment
  had in quarantine are removed when it is read again.
- Folders of the journal that cannot have new segments are not listed again (`journal_folders`).
- Tasks read the segments where they are (`record_reader`), and write their records to a staging folder, in the order
  of bronze (`sorted_files`).
- The staged files then move into bronze by renames. If numbers of records overlap (a segment came twice, or a run
  was cut off while it moved files) the dates in question are written again, each record once by (broker, boot, seq).
- Before files move, the state notes the dates; the ledger is written last. So after a crash the next run
  reads the same segments again, and takes out records that it finds twice.
- Losses are recognised by the numbers (`loss`).
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from math import ceil
from pathlib import Path

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from spark.capacity.ingest.future_dates import arrived
from spark.capacity.ingest.journal_folders import known_folders, note_folders
from spark.capacity.ingest.loss import doubled, exact, find_loss, framed, joined
from spark.capacity.ingest.record_reader import EARLIEST, FUTURE, NAMED, Seen, micros, take
from spark.capacity.ingest.retention import KEEP, first_kept, forget, many_small, shortened
from spark.capacity.ingest.runs import RUNS
from spark.capacity.ingest.segments import Reach, Segment, batches, digest, find_segments
from spark.capacity.ingest.sorted_files import write_again
from spark.capacity.tables.object_store import Place
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    LEDGER,
    LOSS,
    QUARANTINE,
    UNKNOWN_MEMBERS,
)
from spark.capacity.tables.store import State, Tables, readable, sync, url

SHARE = 10 << 20
"""Compressed bytes of segments that a task reads: about 400,000 records, so that dates have few and large files."""

ROUND = 4
"""Shares of each core in one batch. Progress is reported between batches."""

TASKS = 4
"""Parts for each core of a look at the bytes of segments: these differ in size."""


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


STAGED, HEALED = ".staging", ".healed"
"""Folders below the output directory for files of bronze: of new records, and of those that are written again."""


def heal(tables: Tables, dates: set[date]) -> pa.Table:
    """Write the records of some dates again, each once; return their runs."""
    once = tables.out / HEALED / "once"
    rows = tables.read(BRONZE_RECORDS, dates).dropDuplicates(["broker", "boot", "seq"])
    # In the order of the numbers, so that a file has few runs.
    rows.repartitionByRange("date", "broker", "boot", "seq").write.partitionBy("date").parquet(url(once))
    files = sorted(str(file) for file in once.glob("date=*/*.parquet"))
    cores = tables.spark.sparkContext.defaultParallelism
    return replace(tables, [mine for number in range(cores) if (mine := files[number::cores])], dates)


def replace(tables: Tables, parts: Sequence[Sequence[str]], dates: Iterable[date]) -> pa.Table:
    """Write files of bronze again, those of a part together, in the place of all of some dates; return their runs.

    A run that is cut off between the new files and the old ones leaves records twice, in dates that the state notes.
    """
    state, context, attempted = tables.state(), tables.spark.sparkContext, tables.out / HEALED / "attempted"
    old = [path for table in (BRONZE_RECORDS, BRONZE_PAIRS) for day in dates for path in tables.files(table, day)]
    place, work = str(attempted), context.parallelize(parts, max(1, len(parts)))
    made = work.map(lambda part: write_again(part, place)).collect()
    tables.keep(State(state.moving | {str(day) for day in dates}, state.changed))
    move(tables, attempted, [name for _, names in made for name in names])
    for path in old:
        path.unlink()
    for folder in {path.parent for path in old}:
        sync(folder)
    tables.keep(state)
    shutil.rmtree(tables.out / HEALED, ignore_errors=True)
    return pa.concat_tables([RUNS.empty_table(), *(runs for runs, _ in made)])


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

    def __init__(self, tables: Tables, *, run: str, started: datetime, first: date | None = None) -> None:
        self._tables = tables
        self._spark = tables.spark
        self._run = run
        self._started = started
        self._latest = started + FUTURE
        self._first = first
        """The first date whose records are kept."""
        self._forgotten = RUNS.empty_table()
        """Runs of the records of earlier dates."""
        self._staging = tables.out / STAGED
        self._seen: dict[str, Seen] = {}
        self._aside: list[Path] = []
        self._sorted = self._staging / "sorted"
        self._runs: list[pa.Table] = [RUNS.empty_table()]
        self._files: list[str] = []
        self._again: set[str] = set()
        self._reach: list[Reach] = []
        self.told = Ingested()

    def load(self, segments: Sequence[Segment], tell: Callable[[float], None]) -> None:
        """Bring new segments into the tables."""
        tables, state = self._tables, self._tables.state()
        for folder in (self._staging, tables.out / HEALED):
            if folder.exists():
                shutil.rmtree(folder)
        dirty = {date.fromisoformat(day) for day in state.moving}
        ledger = tables.rows(LEDGER)
        new, ledger = self._new(segments, ledger)
        if not new and not dirty:
            return
        self._take(new, tell)
        # The others were deleted after they were listed.
        new = [segment for segment in new if segment.name in self._seen]
        self.told.segments = len(new)
        names = {segment.name for segment in new}
        self._again = set(ledger.loc[ledger["quarantined"] > 0, "segment"]) & names
        left = ledger[~ledger["segment"].isin(names) & ledger["reach"].notna()]
        self._reach = [Reach(row.broker, row.boot, int(row.reach)) for row in left.itertuples()]
        runs = self._of_kept_dates(pa.concat_tables(self._runs))
        touched = {*runs["date"].unique().to_pylist(), *dirty}
        # The state of dates that an earlier run did not finish stays valid until they are computed.
        state = State({str(day) for day in touched}, state.changed | {str(day) for day in touched})
        tables.keep(state)
        self._quarantine()
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
            elif row.quarantined or row.size != segment.size or row.changed != segment.changed:
                doubted.append(segment)
        if not doubted:
            return new, ledger
        context = self._spark.sparkContext
        paths = [segment.path for segment in doubted]
        parts = context.parallelize(paths, min(len(paths), TASKS * context.defaultParallelism))
        same, again = {}, arrived(self._tables, self._started)
        for segment, its in zip(doubted, parts.map(digest).collect(), strict=True):
            if its == known[segment.name].digest and segment.name not in again:
                same[segment.name] = segment.changed
            elif its is not None:
                new.append(segment)
        changed = pd.Series([same.get(row.segment, row.changed) for row in ledger.itertuples()], dtype="Int64")
        if not changed.equals(ledger["changed"]):
            ledger["changed"] = changed
            self._tables.put(LEDGER, ledger)
        return sorted(new, key=lambda segment: segment.name), ledger

    def _take(self, new: Sequence[Segment], tell: Callable[[float], None]) -> None:
        """Read segments, batch by batch."""
        context = self._spark.sparkContext
        place, earliest, latest, run = str(self._sorted), micros(EARLIEST), micros(self._latest), self._run
        total, done, cores = sum(segment.size for segment in new) or 1, 0, context.defaultParallelism
        for batch in batches(new, SHARE * ROUND * cores):
            size = sum(segment.size for segment in batch)
            # As many for each core, so that all cores end at about the same time.
            shares = batches(batch, ceil(size / (cores * ceil(size / (cores * SHARE)))))
            tasks = [[(segment.name, segment.path) for segment in share] for share in shares]
            parts = context.parallelize(tasks, len(tasks))
            for taken in parts.map(lambda share: take(share, place, earliest, latest, run)).collect():
                self._files += taken.files
                self._runs.append(taken.runs)
                self._seen |= {seen.name: seen for seen in taken.seen}
                self._aside += [Path(taken.aside)] if taken.aside else []
            done += size
            tell(done / total)

    def _of_kept_dates(self, runs: pa.Table) -> pa.Table:
        """Leave out what a late segment has of dates that are not kept; return the runs of the others.

        The hours of services of such a date stay: they cannot be made again of a part of its records.
        """
        if self._first is None:
            return runs
        begin = f"date={self._first}"
        self._files = [name for name in self._files if name.split("/")[1] >= begin]
        kept = pc.greater_equal(runs["date"], self._first)
        self._forgotten = runs.filter(pc.invert(kept))
        return runs.filter(kept)

    def _settle(self, new: pa.Table, dirty: set[date]) -> None:
        """Make each record be there once, and tell which numbers are there and which are lost."""
        tables = self._tables
        runs = exact(pd.concat([exact(tables.rows(BRONZE_RUNS)), framed(new)], ignore_index=True))
        twice = doubled(runs) | dirty
        if twice:
            runs = exact(pd.concat([runs[~runs["date"].isin(twice)], framed(heal(tables, twice))], ignore_index=True))
        if self._first is not None and len(self._forgotten):
            runs = shortened(pd.concat([runs, framed(self._forgotten)], ignore_index=True), self._first)
        tables.put(BRONZE_RUNS, joined(runs))
        reach: dict[tuple[str, str], int] = {}
        for one in [*self._reach, *(seen.reach for seen in self._seen.values() if seen.reach)]:
            reach[one.broker, one.boot] = max(one.seq, reach.get((one.broker, one.boot), 0))
        tables.put(LOSS, find_loss(runs, reach))

    def _quarantine(self) -> None:
        """Write bad lines and unreadable segments to the quarantine, in place of those of a segment that is read
        again."""
        told, old = self.told, self._tables.read(QUARANTINE)
        new = self._spark.read.schema(QUARANTINE.schema).parquet(*map(readable, self._aside)) if self._aside else None
        if new is not None:
            told.reasons = {row["reason"]: row["count"] for row in new.groupBy("reason").count().collect()}
        if new is not None or self._again:
            again = self._spark.createDataFrame([(name,) for name in sorted(self._seen)], "segment string")
            rest = old.join(F.broadcast(again), "segment", "left_anti").select(*QUARANTINE.schema.names)
            self._tables.write(QUARANTINE, rest if new is None else rest.union(new))
        unknown = sum((Counter(seen.unknown) for seen in self._seen.values()), Counter[str]())
        told.unknown = dict(unknown.most_common(NAMED))
        if unknown:
            names, old_names = UNKNOWN_MEMBERS.schema.names, self._tables.rows(UNKNOWN_MEMBERS)
            rows = [(self._run, member, number) for member, number in sorted(told.unknown.items())]
            kept = old_names[old_names["run"] != self._run].astype(object)
            self._tables.put(UNKNOWN_MEMBERS, pd.concat([kept, pd.DataFrame(rows, columns=names, dtype=object)]))

    def _note(self, new: Sequence[Segment], ledger: pd.DataFrame) -> None:
        """Add the segments to the ledger; one that came again with other bytes replaces its row."""
        rows = []
        for one in new:
            seen = self._seen[one.name]
            whose = (None, None, None) if seen.reach is None else attrs.astuple(seen.reach)
            read = (seen.digest, seen.records, seen.bad, *whose)
            rows.append((one.name, one.size, one.changed, *read, self._run, self._started))
            self.told.records += seen.records
            self.told.quarantined += seen.bad
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
    intake = Intake(tables, run=run, started=started, first=first)
    intake.told.strange = found.strange
    intake.load(found.segments, tell)
    note_folders(tables, found.folders)
    if small := many_small(tables):
        replace(tables, list(small.values()), small)
    lost, aside = tables.rows(LOSS), tables.rows(LEDGER)
    intake.told.damaged = int(((aside["records"] == 0) & (aside["quarantined"] > 0)).sum())
    intake.told.lost = int(lost["records"].sum())
    intake.told.lost_known = int(lost.loc[lost["known"], "records"].sum())
    intake.told.dates = {date.fromisoformat(day) for day in tables.state().changed}
    return intake.told
