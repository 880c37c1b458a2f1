"""Runs and pairs: two tables beside bronze, about all records of a date.

Runs: the numbers and times of records, as far as they follow each other.

- A run is of one broker's start and one date. From each of its records to the next one the number grows by one, and the
  time by no more than a broker may be silent; it does not fall by as much as a clock is set back. A drop record, which
  has the time at which it was written, is a run of its own.
- So runs tell which numbers are missing, when the records beside missing ones were, in which times the broker gave
  signs, and where its clock was set back. Within a run times may fall a little, as they do in journals of real brokers.
- A drop record has a second row, in which `dropped` is its count, 0 if it has none.

Pairs: the registrations of records, each with an instance that it is of, and the last that the records tell of it.

- A pair is of one date. Its last record is the one with the highest number; so are the last of its records that tell
  an interval, a load or a full load. The state at the end of a date is made of these (`rollup/end_state.py`), so that
  dates can be counted at the same time.
- Only records of providers are of pairs.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.tables.column_reader import OPEN, codes, ends, latest, of_providers, real, together, whole
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import BRONZE_PAIRS, BRONZE_RUNS
from spark.capacity.tables.time_windows import BROKER_SILENCE, DAY, SET_BACK, Flags, Floats, Ints

RUNS = arrow_schema(BRONZE_RUNS.schema)


def runs_of(records: pa.Table) -> pa.Table:
    """Find the runs of records, whatever their order: rows of the table of runs."""
    (broker, brokers), (boot, boots) = _names(records["broker"]), _names(records["boot"])
    start = broker * len(boots) + boot
    at, seq = whole(records["ts"].cast(pa.int64()), 0), whole(records["seq"], 0)
    drop = pc.equal(records["event"], "drop").to_numpy()
    dropped = whole(records["dropped"], 0)
    if not _in_order(start, at // DAY, seq):
        order = np.lexsort((seq, at // DAY, start))
        start, at, seq, drop, dropped = start[order], at[order], seq[order], drop[order], dropped[order]
    follows = _follows(start, at, seq, drop)
    first = np.flatnonzero(~np.append(False, follows)[: len(seq)])
    last = np.append(first[1:], len(seq))[: len(first)] - 1
    alone = np.flatnonzero(drop)
    row, end = np.append(first, alone), np.append(last, alone)
    none = np.append(np.ones(len(first), bool), np.zeros(len(alone), bool))
    made = {
        "date": pa.array((at[row] // DAY).astype(np.int32)).cast(pa.date32()),
        "broker": pa.array(brokers, pa.string()).take(pa.array(start[row] // max(1, len(boots)))),
        "boot": pa.array(boots, pa.string()).take(pa.array(start[row] % max(1, len(boots)))),
        "seq_from": seq[row],
        "seq_to": seq[end],
        "ts_from": at[row],
        "ts_to": at[end],
        "earliest": np.append(_each(np.minimum, at, first), at[alone]),
        "latest": np.append(_each(np.maximum, at, first), at[alone]),
        "dropped": pa.array(np.maximum(dropped[row], 0), mask=none),
    }
    return pa.table({name: made[name] for name in RUNS.names}, RUNS)


def _each(best: np.ufunc, at: Ints, first: Ints) -> Ints:
    """Return the best time of each run, which begin at `first`."""
    return best.reduceat(at, first) if len(first) else at


def _in_order(start: Ints, day: Ints, seq: Ints) -> bool:
    up = (start[1:] == start[:-1]) & ((day[1:] > day[:-1]) | ((day[1:] == day[:-1]) & (seq[1:] >= seq[:-1])))
    return bool(np.all(up | (start[1:] > start[:-1])))


def _follows(start: Ints, at: Ints, seq: Ints, drop: Flags) -> Flags:
    """Return of each record but the first whether it is of the run of the one before it."""
    step = at[1:] - at[:-1]
    near = (step > -SET_BACK) & (step <= BROKER_SILENCE) & (at[1:] // DAY == at[:-1] // DAY)
    made: Flags = (start[1:] == start[:-1]) & (seq[1:] == seq[:-1] + 1) & near & ~drop[1:] & ~drop[:-1]
    return made


def _names(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Return the number of each row's name, and the names."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return codes(column.unify_dictionaries().combine_chunks())


PAIRS = arrow_schema(BRONZE_PAIRS.schema)

NAMES = ("broker", "boot", "service", "instance")

COLUMNS = (*NAMES, "date", "provider", "event", "why", "seq", "ts", "interval_ms", "load", "full_load")


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
            values: Ints | Floats = np.maximum(whole(column("interval_ms"), 0), 0) * 1000
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
