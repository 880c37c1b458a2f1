"""The odds of the peak bound, judged on series that had no part in their numbers.

Run by ``python -m tests.spark.benchmark.odds_left_out DIR...``: DIR has series as `headroom` reads them. For each
series, and then for each set of series, the rates and their weight are chosen on all others: the rates are those of the
others' days or weeks, and the weight is that of `WEIGHTS` with the least log loss there. With these numbers odds are
said for the series that was left out, one moment after the other. `as shipped` are the numbers of `peak_bound`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

from spark.capacity.planning.peak_bound import ODDS_FROM_DAYS, past_bounds, past_odds
from spark.capacity.report.rendering import chance
from tests.spark.benchmark.headroom import pieces
from tests.spark.benchmark.traces import TraceError, files, read_trace

WEIGHTS = (300, 1_000, 3_000)
"""Days that a rate may count for."""

FEWEST = 30
"""Cases of a band that is judged."""

MOST_RATIO = 2.0
"""Goal: what came beside what was said, either way."""

KINDS = (("a day ahead, bound of a week", 1, 7), ("a day ahead, bound of a day", 1, 1), ("a week ahead", 7, 7))
"""Names of odds, each with the days that they are of and the horizon of the bound in days."""

LONG = 56
"""Days of history that divide the rates of a day ahead, for the bound of a day."""


@attrs.frozen
class Service:
    """A piece of a series: its moments, by the days of history, each with whether the peak was above the bound; and the
    odds that the jobs would have said."""

    series: str
    group: str
    moments: Sequence[tuple[float, bool]]
    shipped: Sequence[float]


Rates = Callable[[float], float]


def services(path: Path, days: int, horizon: int) -> Iterator[Service]:
    """Yield the services of a series, cut as those of `headroom`."""
    trace = read_trace(path)
    day = trace.day
    for peaks in pieces(trace):
        past = past_bounds(peaks, days * day, ODDS_FROM_DAYS * day, day, None, horizon * day)
        moments = [(origin / day, said < peak) for origin, said, peak in past]
        shipped = [odds for odds, _ in past_odds(peaks, day, None, days, horizon * day)]
        yield Service(path.name, trace.group, moments, shipped)


def rates(of: Iterable[Service], divided: bool) -> Rates:
    """Return the rate of misses by the days of history."""
    trials, missed = [1e-9, 1e-9], [0, 0]
    for service in of:
        for history, miss in service.moments:
            late = int(divided and history >= LONG)
            trials[late] += 1
            missed[late] += miss
    found = [number / of_them for number, of_them in zip(missed, trials, strict=True)]
    return lambda history: found[int(divided and history >= LONG)]


def said(service: Service, rate: Rates, weight: float) -> list[tuple[float, bool]]:
    """Return the odds of each moment, with the outcome."""
    made, missed = [], 0
    for trials, (history, miss) in enumerate(service.moments):
        made.append(((rate(history) * weight + missed) / (weight + trials), miss))
        missed += miss
    return made


def loss(pairs: Iterable[tuple[float, bool]]) -> float:
    odds, missed = np.array(list(pairs)).T
    odds = np.clip(odds, 1e-6, 1.0 - 1e-6)
    return float(-np.where(missed > 0, np.log(odds), np.log1p(-odds)).mean())


def left_out(found: Sequence[Service], by: str, days: int, divided: bool) -> list[tuple[float, bool]]:
    """Return the odds of all services, with numbers that were chosen without their series or set."""
    parts = defaultdict[str, list[Service]](list)
    for service in found:
        parts[getattr(service, by)].append(service)
    made: list[tuple[float, bool]] = []
    for name, mine in parts.items():
        others = [service for service in found if getattr(service, by) != name]
        rate = rates(others, divided)
        weight = min(WEIGHTS, key=lambda one: loss(p for other in others for p in said(other, rate, one / days)))
        made += [pair for service in mine for pair in said(service, rate, weight / days)]
    return made


def table(name: str, how: str, pairs: Sequence[tuple[float, bool]]) -> Iterator[str]:
    """Yield a line for each way in which the report prints odds, if it has enough cases."""
    printed = defaultdict[str, list[tuple[float, bool]]](list)
    for pair in pairs:
        printed[chance(pair[0])].append(pair)
    for band, mine in printed.items():
        if len(mine) >= FEWEST:
            odds, missed = float(np.mean([one for one, _ in mine])), sum(miss for _, miss in mine)
            ratio = missed / len(mine) / odds
            verdict = "met" if 1.0 / MOST_RATIO <= ratio <= MOST_RATIO else "MISSED"
            yield (
                f"| {name} | {how} | {band} | {len(mine):,} | {odds:.2%} |"
                f" {missed / len(mine):.2%} | {ratio:.2f}: {verdict} |"
            )


def main() -> None:
    print("| odds | numbers of | printed | cases | said | came | came / said |\n|---|---|---|--:|--:|--:|--:|")
    paths = [path for folder in sys.argv[1:] for path in files(Path(folder))]
    for name, days, horizon in KINDS:
        found: list[Service] = []
        for path in paths:
            try:
                found += services(path, days, horizon)
            except TraceError as error:
                print(f"{path.name} {error}", file=sys.stderr)
        divided = (days, horizon) == (1, 1)
        ways = {
            f"all but the {by}": left_out(found, of, days, divided)
            for by, of in (("series", "series"), ("set", "group"))
        }
        shipped = [pair for one in found for pair in zip(one.shipped, (miss for _, miss in one.moments), strict=True)]
        for how, pairs in {**ways, "as shipped": shipped}.items():
            print("\n".join(table(name, how, pairs)), flush=True)
        groups = defaultdict[str, list[tuple[float, bool]]](list)
        for one in found:
            groups[one.group] += zip(one.shipped, (miss for _, miss in one.moments), strict=True)
        for group, pairs in sorted(groups.items()):
            if len(pairs) >= FEWEST:
                odds, missed = float(np.mean([one for one, _ in pairs])), sum(miss for _, miss in pairs)
                print(f"{name}; {group}: said {odds:.2%}, came {missed} of {len(pairs)}", file=sys.stderr)


if __name__ == "__main__":
    main()
