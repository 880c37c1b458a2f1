"""The state at the end of a date, from which the next one goes on: the last record of each registration.

It is computed from the previous state and from the pairs of the date (`ingest/runs.py`): no record is read for it, so
that dates can be counted at the same time.

Rules:
- The last record of a registration is the one with the highest number, whatever the clock said. An interval, a load and
  a full load hold until another one is reported.
- A lifetime continues from the point that it would have reached without hidden time (`lost_time`).
- A registration that ended longer ago than an absence lasts has no more effect.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.rollup.broker_presence import Span
from spark.capacity.rollup.date_survey import Pair
from spark.capacity.rollup.lost_time import Gap, Hidden, Start
from spark.capacity.tables.column_reader import latest, together, whole
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import BRONZE_PAIRS, SILVER_CARRY
from spark.capacity.tables.time_windows import ABSENCE, DAY, FAR, Flags, Ints, midnight

STATE = arrow_schema(SILVER_CARRY.schema)

PAIRS = arrow_schema(BRONZE_PAIRS.schema)

HELD = ("interval", "load", "full_load")
"""Values that hold until another one is reported."""


def in_order(state: pa.Table) -> pa.Table:
    """Sort the rows of a state by their pairs."""
    return state.sort_by([(name, "ascending") for name in Pair._fields]).combine_chunks()


def state_after(day: date, before: pa.Table, pairs: pa.Table, spans: Iterable[Span], gaps: Iterable[Gap]) -> pa.Table:
    """Return the state at the end of a date.

    ``before`` is the state at its beginning, ``pairs`` are the rows of its files, ``spans`` the up-spans of the starts,
    and ``gaps`` the hidden times.
    """
    # Of rows with the same number the last one counts, and those of the date are.
    rows = pa.concat_tables([_as_pairs(before), pairs.select(PAIRS.names)]).combine_chunks()
    if not len(rows):
        return STATE.empty_table()
    registration = together(*(_codes(rows[name]) for name in Pair._fields[:4]))
    number, seq = int(registration.max()) + 1, rows["seq"].to_numpy()
    last = latest(registration, seq, np.ones(len(rows), bool), number)
    made = rows.take(pa.array(last)).select([*Pair._fields, "seq", "at", "ended"])
    for name in HELD:
        row = latest(registration, whole(rows[f"{name}_seq"], 0), _told(rows[f"{name}_seq"]), number)
        made = made.append_column(name, rows[name].take(pa.array(row, mask=row < 0)))
    made = in_order(made)
    starts = list(zip(made["broker"].to_pylist(), made["boot"].to_pylist(), strict=True))
    open_, at, sign = ~_told(made["ended"]), made["at"].to_numpy(), _last_signs(spans, starts)
    kept = np.where(open_, sign, at) > midnight(day) + DAY - ABSENCE
    at = at + np.where(open_, _hidden_after(at, starts, gaps), 0)
    columns = {
        **dict(zip(made.column_names, made.columns, strict=True)),
        "date": pa.repeat(day, len(made)),
        "at": pa.array(at),
        "last_sign": pa.array(sign),
    }
    return pa.table({name: columns[name] for name in STATE.names}, STATE).filter(pa.array(kept)).combine_chunks()


def _as_pairs(state: pa.Table) -> pa.Table:
    """Return a state as if its last records had reported all values that hold."""
    told = {name: state[name] for name in state.column_names}
    told |= {f"{name}_seq": pc.if_else(pc.is_valid(state[name]), state["seq"], None) for name in HELD}
    told["records"] = pa.nulls(len(state), pa.int64())
    return pa.table({name: told[name] for name in PAIRS.names}, PAIRS)


def _last_signs(spans: Iterable[Span], starts: Iterable[Start]) -> Ints:
    """Return the last sign of each start, 0 where there is none."""
    found: dict[Start, int] = {}
    for span in spans:
        found[span[:2]] = max(found.get(span[:2], 0), span.span_to)
    return np.array([found.get(start, 0) for start in starts], np.int64)


def _hidden_after(at: Ints, starts: Sequence[Start], gaps: Iterable[Gap]) -> Ints:
    """Return the hidden time of the date after each time, which is one of a start; the starts are in order."""
    hidden = Hidden(gaps, distinct := sorted(set(starts)))
    start = np.array([bisect_left(distinct, one) for one in starts], np.int64)
    return hidden.lost(start, np.full_like(at, FAR)) - hidden.lost(start, at)


def _codes(column: pa.ChunkedArray) -> Ints:
    """Return a column of names or numbers as numbers that are the same for the same values."""
    if pa.types.is_string(column.type):
        column = column.dictionary_encode().combine_chunks().indices
    made: Ints = column.to_numpy().astype(np.int64)
    return made


def _told(column: pa.ChunkedArray) -> Flags:
    made: Flags = pc.is_valid(column).to_numpy()
    return made
