"""Aggregation: from the records of a part of a date (`date_rollup`) to its five-minute windows."""

import uuid
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark.capacity.rollup.broker_presence import Span, Stay
from spark.capacity.rollup.date_survey import Pair
from spark.capacity.rollup.downtime import Stretches, absences, together
from spark.capacity.rollup.lost_time import Gap, Hidden
from spark.capacity.rollup.registrations import Lived, Names, Records, lived, of_state, read
from spark.capacity.rollup.up_intervals import Pieces, add_pieces, minutes_of, pieces_of
from spark.capacity.rollup.window_sums import FiveMinutes
from spark.capacity.tables.column_reader import BROKER, CLOSED, OPEN, SILENT, WITHDRAWN, whole
from spark.capacity.tables.columns import FORMAT
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, LIVENESS, Ints, window_of


@attrs.frozen
class Day:
    """Input that all parts of a date share."""

    begin: int
    files: tuple[str, ...]
    """The records."""
    spans: tuple[Span, ...]
    """The up-spans of each start; before them, the last sign of the day before."""
    brokers: tuple[Span, ...]
    """The up-spans of brokers, all their starts together."""
    stays: Mapping[str, Sequence[Stay]]
    broker_up: Mapping[tuple[str, int], int]
    """For how long each broker was up in each five minutes."""
    gaps: tuple[Gap, ...]


def count(day: Day, pairs: Sequence[Pair], before: pa.Table) -> pa.Table:
    """Count the records of some pairs; `before` is their state at the end of the day before."""
    names = Names(pairs)
    hidden, carried = Hidden(day.gaps, names.starts), of_state(before, names)
    lives = lived(read(day.files, names, carried), hidden)
    rows = FiveMinutes(day.begin)
    _add_records(lives, rows)
    pieces = pieces_of(lives, names, day.spans, hidden)
    add_pieces(pieces, lives, hidden, rows)
    brokers = [site[0] for site in names.sites]
    up = together(*_stretches(lives, pieces, names), _before(carried, whole(before["last_sign"], 0), names))
    absences(up, brokers, day.brokers, day.stays, day.begin + DAY, rows)
    return rows.rows(names, day.broker_up, minutes_of(lives, pieces, names, day.begin))


def write(day: Day, pairs: Sequence[Pair], before: pa.Table, place: str) -> str | None:
    """Count the records of some pairs, and write the rows into a folder; a task of Spark.

    Returns the path of the file, if there are rows.
    """
    rows = count(day, pairs, before)
    if not len(rows):
        return None
    path = f"{place}/{uuid.uuid4()}.parquet"
    pyarrow.parquet.write_table(rows, path, **FORMAT)
    return path


def _add_records(lives: Lived, rows: FiveMinutes) -> None:
    """Add the records, and the time from each short one to the next, which may reach into the next window."""
    records, short = lives.records, lives.short
    w = window_of(records.at)
    length = np.where(short, lives.next - records.at, 0)
    over = np.maximum(records.at + length - w - FIVE_MINUTES, 0)
    # Its hidden time is taken to lie evenly in both.
    share = np.divide(lives.known, length, out=np.zeros(len(w)), where=length > 0)
    beats = np.divide(share, records.interval, out=np.zeros(len(w)), where=records.interval > 0)
    loaded, load = ~np.isnan(records.load), np.nan_to_num(records.load)
    for spent, window, which, told in (
        (length - over, w, None, True),
        (over, w + FIVE_MINUTES, np.flatnonzero(over), False),
    ):
        columns = {
            "connected": spent,
            "up": spent,
            "loaded": np.where(loaded, spent, 0),
            "load": spent * load,
            "expected": spent * beats,
            "load_max": np.where(spent > 0, records.load, np.nan),
            "full_load": records.full_load,
            "beats": records.interval > 0,
        }
        if told:
            gap = np.where(short, lives.known, 0).astype(np.float64)
            columns |= {
                "hb": records.hb,
                "requests": records.requests,
                "errors": records.errors,
                "busy": records.requests * records.latency / 1000,
                "timed": np.where(np.isnan(records.latency), np.nan, records.requests),
                "in_flight": records.in_flight,
                "in_flight_reports": np.where(np.isnan(records.in_flight), np.nan, 1.0),
                "rtt_max": records.rtt,
                "gap": gap,
            }
        if which is None:
            rows.add(records.site, window, **columns)
        else:
            rows.add(records.site[which], window[which], **{name: column[which] for name, column in columns.items()})


def _stretches(lives: Lived, pieces: Pieces, names: Names) -> tuple[Stretches, Stretches]:
    """Return the times of being up on the date: the islands, and those that are longer."""
    records = lives.records
    # An island begins after the break before it.
    breaks = np.flatnonzero(~lives.short)
    another = np.append(False, records.registration[breaks][1:] == records.registration[breaks][:-1])[: len(breaks)]
    begin = np.where(another, np.append(0, breaks[:-1] + 1)[: len(breaks)], lives.first[breaks])
    began, withdrawn = records.at[begin], records.ended[breaks] == WITHDRAWN
    # An end of which nothing before it is known says nothing of being up; a withdrawal says that no provider is down.
    says = withdrawn | (records.ended[breaks] == OPEN) | (begin < breaks)
    # If the clock was set back, the same time is there twice, and no provider is down in it.
    open_ = (records.ended[breaks] == OPEN) & ~lives.last[breaks]
    began = np.where(open_, np.minimum(began, lives.next[breaks]), began)
    site = records.site[breaks]
    islands = Stretches(
        names.instance_of[site],
        site,
        records.interval[breaks] > 0,
        began,
        records.at[breaks],
        np.where(withdrawn, WITHDRAWN, CLOSED),
    ).take(says)
    site = records.site[pieces.row]
    longer = Stretches(
        names.instance_of[site], site, records.interval[pieces.row] > 0, pieces.from_, pieces.up_to, pieces.how
    ).take(pieces.up_to >= pieces.from_)
    return islands, longer


def _before(carried: Records, last_sign: Ints, names: Names) -> Stretches:
    """Return the stretches of the registrations of the day before, by their last records."""
    at, beats, open_ = carried.at, carried.interval > 0, carried.ended == OPEN
    alive = np.where(beats, at + carried.interval * LIVENESS, last_sign)
    to = np.where(open_, np.maximum(at, np.minimum(last_sign, alive)), at)
    how = np.where(open_, np.where(alive < last_sign, SILENT, BROKER), carried.ended)
    return Stretches(names.instance_of[carried.site], carried.site, beats, at, to, how)
