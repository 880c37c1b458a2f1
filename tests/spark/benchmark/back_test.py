"""Back-test of the forecasts: walk forward through known series, and compare.

Rules:
- The horizon is a week where there are `WEEKLY_FROM` weeks at least, else a day. The first forecast is made after four
  weeks, or four days (three, if there is no more); the next ones a horizon later each.
- At each of these moments the forecast is made of the data known then. If nothing was known, there is none to judge.
- Errors are divided by the seasonal naive model's within the history (MASE), so that series of any size can be
  averaged: within a group over series, and in all over groups.
- The bound is missed if the true peak of a horizon, of the finest data that the series has, is above the peak bound:
  a plan is made on that. `at its hour` is stricter: the bound of the hour of the peak was lower.
- Rules were chosen on the first `CHOSEN_ON` of each series. A horizon that ends before that is of the part that was
  seen; one that begins after it is held out. One between the two counts in all, and in neither.
- Each horizon is given to the rules of others as well (`rival_rules`), and the promise of the bound's record is
  kept beside the outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from spark.capacity.planning import models
from spark.capacity.planning.models import DAY, WEEK_DAYS, Floats
from spark.capacity.planning.peak_bound import bound, by_hour, past_odds, record
from tests.spark.benchmark.rival_rules import RULES, Known
from tests.spark.benchmark.traces import Trace, TraceError, files, read_trace

SEEN, HELD_OUT = "seen", "held out"

WEEKLY_FROM = 6
"""Weeks: four to learn from, and two to be judged by."""

FIRST = 4
"""Seasons before the first forecast."""

ROUNDING = 1e-9
"""Of the size of a series: changes that are smaller are rounding, and nothing that an error could be compared with."""

SHOWN = 5
"""Files of which is said why they are no series, where there is none."""

CHOSEN_ON = 0.6
"""The share of each series on which rules were chosen."""

MOST_RATIO = 1.15
"""Goal of any group: the mean MASE beside that of the seasonal naive model. A median of four seasons costs where the
load moves to another level now and then."""

MOST_MISSED = 0.15
"""Goal of all peaks: the share that is above the bound."""


@attrs.frozen
class Step:
    """One forecast and its outcome."""

    mase: float
    mase_naive: float
    mase_day: float
    missed: bool
    missed_at_hour: bool
    over_provision: float
    promised: float = 1.0
    """The rate of misses that the record of the bound left possible."""
    tried: int = 0
    """Past moments in that record."""
    part: str = ""
    """`SEEN`, `HELD_OUT`, or neither."""
    rivals: Mapping[str, float] = attrs.field(factory=dict)
    """Bound by peak of each rule, also of our own."""


@attrs.frozen(eq=False)
class Bounds:
    """The bound of the horizon, and of each hour."""

    peak: float
    by_hour: Floats


@attrs.frozen
class Group:
    """Results of a group of series."""

    name: str
    series: int
    forecasts: int
    mase: float
    mase_naive: float
    mase_day: float
    missed: float
    missed_at_hour: float
    over_provision: float

    @property
    def ratio(self) -> float:
        """The error beside that of the seasonal naive model."""
        if self.mase_naive > 0.0:
            return self.mase / self.mase_naive
        return 1.0 if self.mase == 0.0 else np.inf


Walks = dict[str, list[list[Step]]]
"""Results of each series, by group."""


@attrs.frozen
class Walked:
    """A folder of series, walked through."""

    walks: Walks
    left_out: tuple[tuple[str, str], ...]
    """The files that were not used, each with the reason."""
    strange: tuple[tuple[str, str], ...]
    """The files that were used, each with what is odd about it."""
    odds: tuple[tuple[float, bool], ...] = ()
    """The odds of a day ahead on each past day of all series, and whether its peak was above the bound."""


@attrs.frozen
class Result:
    """Results, by group and in all."""

    groups: tuple[Group, ...]
    total: Group

    @property
    def goals(self) -> tuple[tuple[str, bool], ...]:
        """Return the goals, each with its result."""
        worst = max(self.groups, key=lambda group: group.ratio)
        return (
            (
                f"mean MASE {self.total.mase:.3f} below that of seasonal naive, {self.total.mase_naive:.3f}",
                self.total.mase < self.total.mase_naive or self.total.mase == 0.0,
            ),
            (
                f"worst group {worst.name} at {worst.ratio:.3f} times seasonal naive, at most {MOST_RATIO}",
                worst.ratio <= MOST_RATIO,
            ),
            (
                f"bound missed at {self.total.missed:.1%} of {self.total.forecasts} peaks, at most {MOST_MISSED:.0%}",
                self.total.missed <= MOST_MISSED,
            ),
        )

    @property
    def kept(self) -> bool:
        """True if all goals were met."""
        return all(kept for _, kept in self.goals)


def walk(values: Floats, day: int = DAY, peaks: Floats | None = None, half_hours: Floats | None = None) -> list[Step]:
    """Forecast a series again and again, as if it were lived."""
    peaks = values if peaks is None else peaks
    half_hours = values if half_hours is None else half_hours
    week = WEEK_DAYS * day
    horizon = week if len(values) >= WEEKLY_FROM * week else day
    first = FIRST * horizon if len(values) >= (FIRST + 1) * horizon else models.SEASONS * horizon
    steps = []
    for origin in range(first, len(values) - horizon + 1, horizon):
        actual, before = values[origin : origin + horizon], values[:origin]
        if np.isnan(actual).all() or np.isnan(models.recent(before, day)).all():
            continue
        seen = models.recent(peaks[:origin], day)
        told = models.forecast(before, horizon, day)
        bounds = Bounds(bound(seen, day, horizon=horizon), by_hour(seen, horizon, day))
        came = peaks[origin : origin + horizon]
        step = judge(told, bounds, actual, before, day, came)
        past, peak = record(seen, horizon, day), float(np.nanmax(came))
        known = Known(seen, half_hours[:origin][-len(seen) :], values[:origin][-len(seen) :], day, horizon)
        rules = {name: rule(known) for name, rule in RULES.items()}
        seen_until = CHOSEN_ON * len(values)
        steps.append(
            attrs.evolve(
                step,
                promised=past.at_most,
                tried=past.trials,
                part=SEEN if origin + horizon <= seen_until else HELD_OUT if origin >= seen_until else "",
                rivals={name: said / peak for name, said in rules.items()} if peak > 0.0 else {},
            )
        )
    return steps


def naive_scale(series: Floats, season: int) -> float:
    """Return the divisor of errors: the seasonal naive model's mean error within the series, and never 0."""
    known = np.abs(series[~np.isnan(series)])
    size = float(known.mean()) if len(known) else 0.0
    for lag in (season, 1):
        if len(series) > lag:
            changes = np.abs(series[lag:] - series[:-lag])
            changes = changes[~np.isnan(changes)]
            if len(changes) and changes.mean() > ROUNDING * size:
                return float(changes.mean())
    return size if size > 0.0 else 1.0


def judge(
    told: models.Forecast,
    bounds: Bounds,
    actual: Floats,
    before: Floats,
    day: int = DAY,
    peaks: Floats | None = None,
) -> Step:
    """Compare a forecast with the outcome. Both the history and the outcome have a known value.

    ``actual`` are means, ``peaks`` the highest values of the same hours where they are known.
    """
    peaks = actual if peaks is None else peaks
    full = models.filled(models.recent(before, day), day)
    scale = naive_scale(before, told.season)
    floor = models.naive(full, told.season, len(actual))
    by_day = models.naive(full, day, len(actual))
    hour = int(np.nanargmax(peaks))
    peak = float(peaks[hour])
    return Step(
        mase=float(np.nanmean(np.abs(actual - told.p50))) / scale,
        mase_naive=float(np.nanmean(np.abs(actual - floor))) / scale,
        mase_day=float(np.nanmean(np.abs(actual - by_day))) / scale,
        missed=bounds.peak < peak,
        missed_at_hour=float(bounds.by_hour[hour]) < peak,
        over_provision=bounds.peak / peak if peak > 0.0 else np.nan,
    )


def _group(name: str, walks: Sequence[Sequence[Step]]) -> Group:
    """Summarise the series of a group: errors by series, peaks all together."""

    def by_series(member: str) -> float:
        return float(np.mean([np.mean([getattr(step, member) for step in steps]) for steps in walks]))

    every = [step for steps in walks for step in steps]
    ratios = [step.over_provision for step in every if not np.isnan(step.over_provision)]
    return Group(
        name=name,
        series=len(walks),
        forecasts=len(every),
        mase=by_series("mase"),
        mase_naive=by_series("mase_naive"),
        mase_day=by_series("mase_day"),
        missed=float(np.mean([step.missed for step in every])),
        missed_at_hour=float(np.mean([step.missed_at_hour for step in every])),
        over_provision=float(np.median(ratios)) if ratios else np.nan,
    )


def walk_all(folder: Path, tell: Callable[[int, int], None] = lambda done, total: None) -> Walked:
    """Walk through all series of a folder; ``tell`` is called with the files that are done, and with all of them."""
    walks: Walks = defaultdict(list)
    left_out: list[tuple[str, str]] = []
    strange: list[tuple[str, str]] = []
    odds: list[tuple[float, bool]] = []
    paths = files(folder)
    for done, path in enumerate(paths):
        tell(done, len(paths))
        name = str(path.relative_to(folder)) if folder.is_dir() else path.name
        try:
            trace = read_trace(path)
            steps = walk(trace.values, trace.day, trace.peaks, trace.half_hours)
            if not steps:
                raise TraceError(_why_no_steps(trace))
        except TraceError as error:
            left_out.append((name, str(error)))
            continue
        walks[trace.group].append(steps)
        odds += past_odds(trace.peaks, trace.day)
        if trace.passed_over:
            strange.append((name, f"but for lines without a time or a value: {trace.passed_over:,}"))
        unknown = float(np.isnan(trace.values).mean())
        if unknown > models.GAPS:
            strange.append((name, f"though nothing is known of {unknown:.0%} of its hours"))
    if not walks:
        why = "".join(f"; {name} {reason}" for name, reason in left_out[:SHOWN])
        raise TraceError(f"{folder} has no series that is long enough (*.csv, *.csv.gz with timestamp,value){why}")
    return Walked(walks, tuple(left_out), tuple(strange), tuple(odds))


def _why_no_steps(trace: Trace) -> str:
    """Return the reason for which a series cannot be walked through."""
    days = len(trace.values) / trace.day
    if days >= models.SEASONS + 1:
        return f"has too few hours of which anything is known, in {days:.0f} days"
    return f"is too short: {days:.1f} days, where a forecast and its proof need {models.SEASONS + 1}"


def summary(walks: Mapping[str, Sequence[Sequence[Step]]]) -> Result:
    """Sum up the results, group by group and in all."""
    groups = tuple(_group(name, walks[name]) for name in sorted(walks))
    total = _group("all", [steps for name in sorted(walks) for steps in walks[name]])
    total = attrs.evolve(
        total,
        mase=float(np.mean([group.mase for group in groups])),
        mase_naive=float(np.mean([group.mase_naive for group in groups])),
        mase_day=float(np.mean([group.mase_day for group in groups])),
    )
    return Result(groups, total)


def markdown(result: Result) -> str:
    """Return the table of the results."""
    lines = [
        "| group | series | forecasts | MASE | MASE of naive | ratio | naive, a day ago |"
        " peaks above the bound | at its hour | bound / peak |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {group.name} | {group.series} | {group.forecasts} | {group.mase:.2f} | {group.mase_naive:.2f} |"
        f" {group.ratio:.2f} | {group.mase_day:.2f} |"
        f" {group.missed:.0%} | {group.missed_at_hour:.0%} |"
        f" {'' if np.isnan(group.over_provision) else format(group.over_provision, '.2f')} |"
        for group in (*result.groups, result.total)
    ]
    return "\n".join(lines) + "\n"
