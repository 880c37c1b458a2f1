"""The survey: facts about all records of a date that the count of any of them needs, from the tables beside bronze.

Every record is a sign of its broker's boot (`broker_presence`). The records beside lost ones give the lost time
(`lost_time`), and records with times out of the order of their numbers show a clock that was set back (`clock_jumps`):
the ends of runs tell all of these. Registrations that share an instance stay in one partition (`partitioning`): the
pairs tell which.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.rollup.broker_presence import Signs
from spark.capacity.rollup.clock_jumps import Run, SetBack, set_back
from spark.capacity.rollup.lost_time import Missing, Start, beside


class Pair(NamedTuple):
    """A registration, a provider of a service as a broker's start knows it, and an instance that it is of.

    Nearly all registrations are of one instance all the time.
    """

    broker: str
    boot: str
    service: str
    provider: int
    instance: str


@attrs.frozen
class Survey:
    """Survey of a date."""

    signs: Sequence[Signs] = ()
    """The times in which starts gave signs."""
    pairs: Mapping[Pair, int] = attrs.field(factory=dict)
    """Number of records of each."""
    times: Mapping[tuple[str, str, int], int] = attrs.field(factory=dict)
    """Times of the records beside lost ones, by start and number."""
    set_back: Sequence[SetBack] = ()
    """Clock jumps."""


def survey(day: date, runs: pa.Table, pairs: pa.Table, loss: Iterable[Missing]) -> Survey:
    """Make the survey of a date, of the runs and the loss of all dates and the pairs of this one; `loss` is joined."""
    runs = runs.filter(pc.equal(runs["date"], day))
    alone = {run[:3] for run in _runs(runs.filter(pc.is_valid(runs["dropped"])))}
    held = _runs(runs.filter(pc.is_null(runs["dropped"])))
    return Survey(
        [Signs(run.broker, run.boot, run.earliest, run.latest) for run in held],
        _pairs(pairs),
        _times(held, beside(loss)),
        set_back(run for run in held if run[:3] not in alone),
    )


def _runs(rows: pa.Table) -> list[Run]:
    return [Run(*row) for row in zip(*(rows[name].to_pylist() for name in Run._fields), strict=True)]


def _pairs(rows: pa.Table) -> dict[Pair, int]:
    """Add up the records of the pairs of all files."""
    found = rows.group_by(list(Pair._fields)).aggregate([("records", "sum")])
    return dict(zip(pairs_in(found), found["records_sum"].to_pylist(), strict=True))


def pairs_in(rows: pa.Table) -> list[Pair]:
    """Return the pair of each row of a table that has their columns."""
    return [Pair(*row) for row in zip(*(rows[name].to_pylist() for name in Pair._fields), strict=True)]


def _times(runs: Sequence[Run], wanted: Mapping[Start, Sequence[int]]) -> dict[tuple[str, str, int], int]:
    """Return the times of wanted records: those beside lost ones are at the ends of runs."""
    numbers = {start: set(seqs) for start, seqs in wanted.items()}
    ends = [(run, seq, at) for run in runs for seq, at in ((run.seq_from, run.ts_from), (run.seq_to, run.ts_to))]
    return {(*run[:2], seq): at for run, seq, at in ends if seq in numbers.get(run[:2], ())}
