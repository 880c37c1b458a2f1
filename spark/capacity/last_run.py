"""The last run: a run without news since then, and with the same inputs of the plan, ends before Spark is started.

Rules:
- The mark of a finished run has its inputs: all that the plan depends on but the records, the programs of the jobs
  among them. It goes when a run begins, and comes when all is published: a run that was cut off leaves none.
- The time of the plan depends on the records, or is a given one: without new records and another given one it is
  the same. So the wall clock is none of the inputs, unless records are ahead of it: then the plan lasts for an hour.
- News is a segment of another name, size or time of change than the ledger has, or one in quarantine with other bytes,
  or with a record whose date is no longer in the future; a date that an earlier run has not finished; a report that is
  not there.
- Without news, the states of the folders that were looked at are noted, so that the next run passes them over.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.ingest.future_dates import arrived
from spark.capacity.ingest.journal_folders import known_folders, note_folders
from spark.capacity.ingest.retention import KEEP, first_kept
from spark.capacity.ingest.segments import Found, digest, find_segments
from spark.capacity.tables.object_store import Place
from spark.capacity.tables.schema import LEDGER
from spark.capacity.tables.store import OutError, Tables, put_text, sync

MARK = ".finished.json"

NEEDED = ("report.html", "plan.json", "plan_schedule.csv")
"""Files without which a run makes the report again."""

PROGRAM = (".py", ".html", ".css")
"""Endings of the names of files that decide on plan and report."""

Inputs = Mapping[str, str | None]


@cache
def jobs_digest() -> str:
    """Return the digest of the jobs' own files: another version of them may make another plan."""
    made = blake2b(digest_size=16)
    folder = Path(__file__).parent
    for file in sorted(path for path in folder.rglob("*") if path.suffix in PROGRAM):
        made.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return made.hexdigest()


def note_begin(tables: Tables) -> None:
    """Remove the mark of the last run."""
    (tables.out / MARK).unlink(missing_ok=True)
    sync(tables.out)


def note_end(tables: Tables, inputs: Inputs, issued: datetime, until: datetime | None) -> None:
    """Mark a run as finished, with the time of its plan, and the one from which on a run makes another plan of the same
    records; None if there is none."""
    told = {"inputs": dict(inputs), "issued": issued.isoformat(), "until": until and until.isoformat()}
    put_text(tables.out / MARK, json.dumps(told))


def same_plan(
    out: Path, inputs: Inputs, journals: Sequence[Place], started: datetime, since: date | None, keep: int = KEEP
) -> datetime | None:
    """Return the time of the last plan if a run would make it again, or None. Dates before ``since`` are left out, and
    ``keep`` is the retention in days.

    ``started`` is the time of the wall clock.
    """
    try:
        told = json.loads((out / MARK).read_text())
    except FileNotFoundError:
        return None
    tables = Tables(None, out)
    state = tables.state()
    unfinished = state.moving or any(since is None or date.fromisoformat(day) >= since for day in state.changed)
    there = all((out / name).exists() for name in NEEDED)
    until = told.get("until")  # absent in the mark of an older version
    over = until is not None and started >= datetime.fromisoformat(until)
    if told["inputs"] != inputs or unfinished or not there or over:
        return None
    known, ledger = known_folders(tables), tables.rows_of(LEDGER)
    aside = ledger.filter(pc.greater(ledger["quarantined"], 0))["segment"].to_pylist()
    doubted = {name.rpartition("/")[0] for name in aside}
    found = find_segments(journals, started.date(), known, doubted, first_kept(tables, keep))
    if _news(found, ledger) or not arrived(tables, started).isdisjoint(_names(found)):
        return None
    if found.folders.items() - known.items():
        _note(tables, found)
    return datetime.fromisoformat(told["issued"])


def _note(tables: Tables, found: Found) -> None:
    """Store the states of folders without news, unless another run is at work: that one lists them itself."""
    try:
        tables.open()
    except OutError:
        return
    note_folders(tables, found.folders)
    tables.close()


def _names(found: Found) -> Iterable[str]:
    return (segment.name for segment in found.segments)


def _news(found: Found, ledger: pa.Table) -> bool:
    """Return True if a segment is to be read."""
    rows = {row["segment"]: row for row in ledger.to_pylist()} if found.segments else {}
    for segment in found.segments:
        row = rows.get(segment.name)
        if row is None or (row["size"], row["changed"]) != (segment.size, segment.changed):
            return True
        if row["quarantined"] and digest(segment.path) not in (row["digest"], None):
            return True
    return False
