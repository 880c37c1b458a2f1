"""Records of the future that have become records of the past.

Records with a date in the future are put aside by the wall clock of the run (`record_reader.FUTURE`). If that clock was
behind, as after a machine was restored from a snapshot, or a broker's clock is ahead by some days, their time comes:
then their segments are read again, though their bytes are the same.
"""

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from spark.capacity.ingest.record_reader import FUTURE, IN_FUTURE, micros
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import LEDGER, QUARANTINE
from spark.capacity.tables.store import Tables

TIME = r'"ts" *: *(?P<ts>[0-9]{1,18})'
"""The time of a record, in the beginning of its line."""


def arrived(tables: Tables, started: datetime) -> set[str]:
    """Return the segments with a record in quarantine whose time was in the future when they were read, and is not in a
    run that ``started`` then."""
    latest = micros(started + FUTURE)
    ledger = tables.rows_of(LEDGER)
    aside = ledger.filter(pc.greater(ledger["quarantined"], 0))
    files = [str(path) for path in tables.files(QUARANTINE)]
    if not len(aside) or not files:
        return set()
    was_latest = {
        name: micros(read + FUTURE)
        for name, read in zip(aside["segment"].to_pylist(), aside["ingested_at"].to_pylist(), strict=True)
    }
    found = set[str]()
    # Piece by piece: a journal of nothing but garbage must not fill the memory.
    rows = pyarrow.dataset.dataset(files, arrow_schema(QUARANTINE.schema))
    for batch in rows.to_batches(["segment", "raw"], pc.field("reason") == IN_FUTURE, use_threads=False):
        times = pc.struct_field(pc.extract_regex(batch["raw"], TIME), "ts").cast(pa.int64())
        come = pa.table({"segment": batch["segment"], "ts": times}).filter(pc.less_equal(times, latest))
        last = come.group_by("segment").aggregate([("ts", "max")])
        for name, at in zip(last["segment"].to_pylist(), last["ts_max"].to_pylist(), strict=True):
            if at > was_latest.get(name, at):
                found.add(name)
    return found
