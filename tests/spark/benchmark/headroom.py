"""The peak bound beside the highest peak of eight weeks times one factor.

Run by ``python -m tests.spark.benchmark.headroom DIR``.

DIR has series as `tests.spark.benchmark` reads them. Each is cut into services of at most `WEEKS` weeks, up
to `PIECES` of them, and each day of a service is a moment: the bound made of the days before, and the peak of the next
day and, each seventh day, of the next week.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import numpy as np

from spark.capacity.planning.models import Floats
from spark.capacity.planning.peak_bound import SPAN_DAYS, headroom_of
from tests.spark.benchmark.traces import Trace, TraceError, files, read_trace

WEEKS, PIECES = 14, 12
"""A service has one history of more than the span of the bound; more pieces of one series tell little more."""

FEWEST_DAYS = 3
LENGTHS = (7, 14, 28, 56)
"""Days of history at which the rows of the table are divided."""

MOST_COST = 10.0
"""A larger ratio of bound and peak, as of a series of little but one spike, counts as this."""


@attrs.frozen
class Moment:
    """A moment of a series: the days of history and ahead, the peak that came by the highest one before, and that of
    the last week by the same."""

    series: str
    days: int
    ahead: int
    ratio: float
    last: float


Rule = Callable[[Moment], float]
"""The bound at a moment, by the highest peak before."""


def _always(factor: float) -> Rule:
    return lambda moment: factor


RULES: Mapping[str, Rule] = {
    "the last week by the history, at least eight weeks (ours)": lambda moment: max(
        1.0, moment.last * headroom_of(moment.days, 1, moment.ahead)
    ),
    "eight weeks by the history": lambda moment: headroom_of(moment.days, 1, moment.ahead),
    **{f"x {factor}": _always(factor) for factor in (1.2, 1.3, 1.6, 1.75)},
}


def pieces(trace: Trace) -> Iterator[Floats]:
    """Yield the peaks of up to `PIECES` pieces of `WEEKS` of a trace, each from its first known peak on."""
    length = WEEKS * 7 * trace.day
    count = max(1, len(trace.peaks) // length)
    for piece in np.linspace(0, count - 1, min(count, PIECES)).round().astype(int):
        peaks = trace.peaks[piece * length : (piece + 1) * length]
        known = np.flatnonzero(~np.isnan(peaks))
        yield peaks[known[0] :] if len(known) else peaks[:0]


def moments(path: Path) -> Iterator[Moment]:
    """Yield the moments of a series."""
    trace = read_trace(path)
    day = trace.day
    for peaks in pieces(trace):
        for days in range(FEWEST_DAYS, len(peaks) // day):
            before = peaks[max(0, days - SPAN_DAYS) * day : days * day]
            week = before[-7 * day :]
            for ahead in (1, 7) if days % 7 == 0 else (1,):
                came = peaks[days * day : (days + ahead) * day]
                known_before = not np.isnan(before).all() and np.nanmax(before) > 0.0
                if known_before and len(came) == ahead * day and not np.isnan(came).all():
                    top = np.nanmax(before)
                    last = 1.0 if np.isnan(week).all() else float(np.nanmax(week) / top)
                    yield Moment(path.name, days, ahead, float(np.nanmax(came) / top), last)


def table(found: list[Moment]) -> str:
    """Return the misses and costs of the rules, by the horizon and the length of the history."""
    heads = ["under 1 week", *(f"from {days // 7}" for days in LENGTHS), "all", "cost / that of x 1.3"]
    lines = [f"| ahead | rule | {' | '.join(heads)} |", "|---|---|" + "--:|" * len(heads)]
    for ahead in (1, 7):
        mine = [one for one in found if one.ahead == ahead]
        ratios, days = np.array([one.ratio for one in mine]), np.array([one.days for one in mine])
        lengths = np.digitize(days, LENGTHS)
        usual = np.minimum(1.3 / np.maximum(ratios, 1e-9), MOST_COST).mean()
        for name, rule in RULES.items():
            said = np.array([rule(one) for one in mine])
            missed = ratios > said
            cells = [
                f"{missed[lengths == at].sum()} of {(lengths == at).sum()}" if (lengths == at).any() else ""
                for at in range(len(LENGTHS) + 1)
            ]
            cost = np.minimum(said / np.maximum(ratios, 1e-9), MOST_COST).mean() / usual
            cells += [f"{missed.mean():.2%}", f"{cost:.2f}"]
            lines.append(f"| {'a day' if ahead == 1 else 'a week'} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    found: list[Moment] = []
    for folder in sys.argv[1:]:
        for path in files(Path(folder)):
            try:
                found += moments(path)
            except TraceError as error:
                print(f"{path.name} {error}", file=sys.stderr)
    print(f"{len({one.series for one in found})} series\n\n{table(found)}")


if __name__ == "__main__":
    main()
