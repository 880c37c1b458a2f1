"""Pairs: the registrations of records, each with an instance that it is of, and the last that the records tell of it.

Rules:
- A pair is of one date. Its last record is the one with the highest number; so are the last of its records that tell
  an interval, a load or a full load. The state at the end of a date is made of these (`rollup/end_state.py`), so that
  dates can be counted at the same time.
- Only records of providers are of pairs.
"""

import numpy as np
import pyarrow as pa

from spark.capacity.tables.column_reader import codes, latest, of_providers, real, together, whole
from spark.capacity.tables.registration_ends import OPEN, ends
from spark.capacity.tables.schema import BRONZE_PAIRS, arrow_schema
from spark.capacity.tables.time_windows import Flags, Floats, Ints

PAIRS = arrow_schema(BRONZE_PAIRS.schema)

NAMES = ("broker", "boot", "service", "instance")

COLUMNS = (*NAMES, "date", "provider", "event", "why", "seq", "ts", "interval_ms", "load", "full_load")

MILLISECOND = 1000
"""Microseconds."""


def pairs_of(records: pa.Table) -> pa.Table:
    """Find the pairs of records, whatever their order: rows of the table of pairs.

    Names of the records are dictionaries, and each column is of one piece.
    """
    [batch] = records.select(COLUMNS).to_batches()
    of_them = pa.array(of_providers(batch))

    def column(name: str) -> pa.Array:
        # One by one: all of them for a moment would be most of what a task holds.
        return batch[name].filter(of_them)

    day, provider = column("date").cast(pa.int32()).to_numpy().astype(np.int64), whole(column("provider"), 0)
    pair = together(day, *(codes(column(name))[0] for name in NAMES), provider)
    number, seq = int(pair.max(initial=-1)) + 1, whole(column("seq"), 0)
    last = latest(pair, seq, np.ones(len(seq), bool), number)
    ends_of = pa.array(last)
    made: dict[str, pa.Array] = {name: column(name).take(ends_of).cast(pa.string()) for name in NAMES}
    ended = ends(batch.select(["event", "why"]).filter(of_them).take(ends_of))
    made |= {
        "date": column("date").take(ends_of),
        "provider": pa.array(provider[last]),
        "records": pa.array(np.bincount(pair, minlength=number)),
        "seq": pa.array(seq[last]),
        "at": column("ts").cast(pa.int64()).take(ends_of),
        "ended": _or_null(ended, ended != OPEN),
    }
    for name in ("interval", "load", "full_load"):
        if name == "interval":
            values: Ints | Floats = np.maximum(whole(column("interval_ms"), 0), 0) * MILLISECOND
            told: Flags = values > 0
        else:
            values = real(column(name))
            told = ~np.isnan(values)
        row = latest(pair, seq, told, number)
        made[name] = _or_null(values[row], row >= 0)
        made[f"{name}_seq"] = _or_null(seq[row], row >= 0)
    return pa.table({name: made[name] for name in PAIRS.names}, PAIRS)


def _or_null(values: Ints | Floats, told: Flags) -> pa.Array:
    return pa.array(values, mask=~told)
