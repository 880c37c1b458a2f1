"""Rollup: from records to five minutes of each provider, and the state from which the next date goes on.

The tables beside bronze tell what concerns all records of a date (`date_survey`), and the state at its end
(`end_state`). The records are then aggregated by partition (`partitioning`, `aggregation`): each partition is a Spark
task, and reads the row groups of its instances. Tasks of several dates run at the same time.

Rules:
- From a record to one that is earlier by the clock no time passes. No five minutes have more than 300 s, and no more
  than the broker was up, whatever the clock did.
- A date is counted from the broker's first sign on it to its last. So a date is a function of its own records, of
  losses, and of the state before it. Of the minute or less that this leaves out nothing is expected either.
- A registration is open from its first record (a beat proves one that was lost) until it is withdrawn, left or expired,
  or its broker's start ends. It is connected while it is open and the broker is up.
- It is up while it is connected and gives signs of life: a provider with an interval for 3 intervals after its last
  record, any other all the time. After more than 90 s without a broker, life is counted from the broker's return.
- Beats are expected of those with an interval, one for each interval of the connected time; after such a return,
  from its next record or after 60 s.
- Records that the journal lost hide a part of the time (`lost_time`): no beat is expected in it, and no life runs out.
- An instance has rows while it is down (`downtime`): `down_s` is that time, `outages` how many began.
- Loads are weighted by time, not by reports: a provider that reports often, or changes only, is not counted more or
  less for it. A load holds until the next report while the provider is up.
- An instance with two brokers is one: its times are added up and capped.
- A task may run twice, after a failure or by speculation. Each attempt writes files of its own, and the files of those
  attempts whose results Spark returns are moved into the table.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from math import ceil
from pathlib import Path

import attrs
import pyarrow as pa

from spark.capacity.rollup import clock_jumps
from spark.capacity.rollup.aggregation import Day, write
from spark.capacity.rollup.broker_presence import Signs, Span, in_windows, of_brokers, stays, up_spans
from spark.capacity.rollup.date_survey import Pair, pairs_in, survey
from spark.capacity.rollup.end_state import in_order, state_after
from spark.capacity.rollup.lost_time import Missing, find_gaps, joined
from spark.capacity.rollup.partitioning import Part, divide, divide_records, in_ranges, in_tasks
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    SILVER_CARRY,
    SILVER_PROVIDER_5M,
    SILVER_SET_BACK,
    SILVER_SIGNS,
)
from spark.capacity.tables.store import State, Tables
from spark.capacity.tables.time_windows import DAY, midnight

ONE_DAY = timedelta(days=1)

MOST_PARTS = 20
"""Parts of a date that read the row groups of their instances: groups on the border of two parts are read by both, and
the footers of files by all. 20 parts read 1.4 times the bytes of a date, and 42 parts 2.2 times. With more parts the
records are divided first (`divide_records`): 42 parts read 1.5 times then, in the same time."""

BATCH = 4
"""Tasks for each core that run together, of as many dates as that takes. The driver holds the registrations of these
dates; a run that is killed makes them again."""

PARTED, ATTEMPTED = ".parted", ".attempted"
"""Paths below the output directory: divided records, and the files of all attempts of tasks."""


Share = tuple[Day, Sequence[Pair], pa.Table, str]
"""Arguments of a count: a date, and of one of its parts the registrations, their states before it, and a folder."""


@attrs.frozen
class Work:
    """A date that is to be made: its parts, what they share, and what is known without its records."""

    day: date
    common: Day
    parts: Sequence[Part]
    before: pa.Table
    """The state at its beginning."""
    after: pa.Table
    """The state at its end."""
    signs: pa.Table
    set_back: pa.Table


def rollup(tables: Tables, days: Iterable[date], loss: Iterable[Missing] = ()) -> Iterator[tuple[date, int]]:
    """Make the tables of dates; yield each that was made, with the number of those that are known to be left.

    `loss` is that of all dates. The state at the end of the day before is read from its table; where there is none,
    nothing was before. Of a date whose state at the end becomes another one, the next date is made as well. It is noted
    before the new state is kept, so that a run which is cut off does not forget it.
    """
    runs, loss, held = tables.rows_of(BRONZE_RUNS), joined(loss), set(tables.dates(BRONZE_RECORDS))
    cores = tables.spark.sparkContext.defaultParallelism
    todo, last = sorted(days), None
    while todo:
        batch: list[Work] = []
        # Of fewer dates than cores each has some cores.
        cores_of_date = ceil(cores / min(len(todo), cores))
        after_them = set[date]()
        while todo and len(in_tasks((part.size, part) for work in batch for part in work.parts)) < BATCH * cores:
            day = todo.pop(0)
            goes_on = last is not None and last.day + ONE_DAY == day
            before = last.after if last is not None and goes_on else _state(tables, day - ONE_DAY)
            last = _work(tables, day, before, runs, loss, cores_of_date)
            batch.append(last)
            after = day + ONE_DAY
            if after in held and not last.after.equals(_state(tables, day)):
                # The next date begins with another state than it was made from.
                after_them.add(after)
                todo = sorted({after, *todo})
        if after_them:
            state = tables.state()
            tables.keep(State(state.moving, state.changed | {str(day) for day in after_them}))
        _make(tables, batch)
        yield from ((work.day, len(todo) + len(batch) - number) for number, work in enumerate(batch, 1))


def _work(tables: Tables, day: date, state: pa.Table, runs: pa.Table, loss: Sequence[Missing], cores: int) -> Work:
    """Find all that can be derived for a date without its records; `loss` is joined."""
    begin, pairs = midnight(day), tables.rows_of(BRONZE_PAIRS, day)
    seen, before = survey(day, runs, pairs, loss), pairs_in(state)
    last_signs = dict(zip((pair[:2] for pair in before), state["last_sign"].to_pylist(), strict=True))
    gaps = find_gaps(loss, seen.times, last_signs)
    up = up_spans([*seen.signs, *(Signs(*start, sign, sign) for start, sign in last_signs.items())])
    brokers = of_brokers(up)
    files = tuple(str(path) for path in tables.files(BRONZE_RECORDS, day))
    return Work(
        day,
        Day(begin, files, tuple(up), tuple(brokers), stays(up), in_windows(brokers), tuple(gaps)),
        divide({**dict.fromkeys(before, 0), **seen.pairs}, cores),
        state,
        state_after(day, state, pairs, up, gaps),
        _signs(day, brokers),
        clock_jumps.rows(day, seen.set_back),
    )


def _make(tables: Tables, batch: Sequence[Work]) -> None:
    """Aggregate the parts of some dates, and write all their tables."""
    context, attempted = tables.spark.sparkContext, tables.out / ATTEMPTED
    for folder in (tables.out / PARTED, attempted):
        shutil.rmtree(folder, ignore_errors=True)
    tasks = in_tasks([one for work in batch for one in _share(tables, work)])
    parts = context.parallelize(tasks, max(1, len(tasks)))
    written = parts.flatMap(lambda shares: [write(*share) for share in shares]).collect()
    staged = tables.stage(SILVER_PROVIDER_5M)
    for work in batch:
        _place(staged, work.day).mkdir()
    for path in map(Path, filter(None, written)):
        path.rename(staged / path.relative_to(attempted))
    for folder in (tables.out / PARTED, attempted):
        shutil.rmtree(folder, ignore_errors=True)
    for work in batch:
        tables.replace(SILVER_PROVIDER_5M, work.day, _place(staged, work.day))
        tables.put_date(SILVER_SIGNS, work.signs, work.day)
        tables.put_date(SILVER_SET_BACK, work.set_back, work.day)
        tables.put_date(SILVER_CARRY, work.after, work.day)
    staged.rmdir()


def _share(tables: Tables, work: Work) -> list[tuple[int, Share]]:
    """Return the arguments of the count of each part of a date, with the size of the part."""
    place, parts = _place(tables.out / ATTEMPTED, work.day), work.parts
    place.mkdir(parents=True)
    part_of = {pair: number for number, part in enumerate(parts) for pair in part.pairs}
    before: list[list[int]] = [[] for _ in parts]
    for row, pair in enumerate(pairs_in(work.before)):
        before[part_of[pair]].append(row)
    states = [work.before.take(pa.array(rows, pa.int64())) for rows in before]
    return [
        (part.size, (attrs.evolve(work.common, files=its), part.pairs, state, str(place)))
        for part, its, state in zip(parts, _files(tables, work), states, strict=True)
    ]


def _place(staged: Path, day: date) -> Path:
    return staged / str(day)


def _files(tables: Tables, work: Work) -> list[tuple[str, ...]]:
    """Return the files that each part has to read: those of the date or, with many parts, files of its own."""
    files = work.common.files
    if len(work.parts) <= MOST_PARTS:
        return [files] * len(work.parts)
    context, place = tables.spark.sparkContext, _place(tables.out / PARTED, work.day)
    place.mkdir(parents=True)
    instances = [sorted({(pair.service, pair.instance) for pair in part.pairs}) for part in work.parts]
    ranges, target = in_ranges(instances, context.defaultParallelism), str(place)
    divided = context.parallelize(ranges, len(ranges)).flatMap(lambda one: divide_records(files, one, target))
    found = dict(divided.collect())
    return [(found[number],) if number in found else () for number in range(len(work.parts))]


def _state(tables: Tables, day: date) -> pa.Table:
    return in_order(tables.rows_of(SILVER_CARRY, day))


def _signs(day: date, brokers: Iterable[Span]) -> pa.Table:
    """Return the up-spans of brokers that begin on a date, as rows of the table."""
    begin = midnight(day)
    mine = [one for one in brokers if begin <= one.span_from < begin + DAY]
    rows = [{"date": day, "broker": one.broker, "first": one.span_from, "last": one.span_to} for one in mine]
    return pa.Table.from_pylist(rows, arrow_schema(SILVER_SIGNS.schema))
