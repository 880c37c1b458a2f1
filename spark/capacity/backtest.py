"""How good the forecasts are on recorded series: walk through each as if it were lived, and compare.

Rules:
- A file is CSV, plain or gzipped, with a timestamp (ISO 8601, or seconds or milliseconds since 1970) and a value. A
  line that lacks one is passed over; the columns are those named in `TIMES` and `VALUES`, else the first two.
- Series are made into hourly means. One whose own step is longer than an hour keeps its step; above `LONGEST_STEP` it
  is left out. Hours of which nothing is known stay unknown.
- The horizon is a week where there are `WEEKLY_FROM` weeks at least, else a day. The first forecast is made after four
  weeks, or four days (three, if there is no more); the next ones a horizon later each.
- At each of these moments the model is chosen anew, by what was known then. What it says is never fitted to what came.
- The group of a series is its file's name up to the first part, between underscores, that has a digit or is upper case
  (a ticker); the first part always belongs to it. "ec2_cpu_utilization_24ae8d" is of "ec2_cpu_utilization".
- Within a group the mean is over series, and over all groups it is over groups.
- The bound is missed if the true peak of a horizon is above the highest value of the bound: that is what a plan is made
  on. `at its hour` is stricter: the bound of the very hour of the peak was lower.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import numpy as np

from spark.capacity import models
from spark.capacity.models import DAY, WEEK_DAYS, Floats

HOUR = 3600.0
LONGEST_STEP = 6 * HOUR
"""Seconds. A day of fewer than four steps has no shape that a season could be seen in."""

WEEKLY_FROM = 6
"""Weeks: four to learn from, and two to be judged by."""

FIRST = 4
"""Seasons before the first forecast."""

LONGEST_SERIES = 200_000
"""Steps. 23 years of hours; a series that is longer has a timestamp that is wrong."""

TIMES = ("timestamp", "time", "ts", "date", "datetime")
VALUES = ("value", "values", "y", "load", "demand")

MOST_RATIO = 1.05
"""What is promised of any group: the mean MASE beside that of the seasonal naive model."""

MOST_MISSED = 0.15
"""What is promised of all peaks: the share that is above the bound."""


class TraceError(Exception):
    """A file is no series that can be walked through."""


@attrs.frozen(eq=False)
class Trace:
    """A recorded series: one value for each step, of which ``day`` make a day."""

    name: str
    group: str
    values: Floats
    day: int


@attrs.frozen
class Step:
    """One forecast and what came of it."""

    mase: float
    mase_naive: float
    mase_day: float
    replaced: bool
    missed: bool
    missed_at_hour: bool
    over_provision: float
    covered: float


@attrs.frozen
class Group:
    """What was achieved in a group of series."""

    name: str
    series: int
    forecasts: int
    mase: float
    mase_naive: float
    mase_day: float
    replaced: float
    missed: float
    missed_at_hour: float
    over_provision: float
    covered: float

    @property
    def ratio(self) -> float:
        """The error beside that of the seasonal naive model."""
        return self.mase / self.mase_naive if self.mase_naive > 0.0 else 1.0


@attrs.frozen
class Result:
    """What was achieved on a folder of series; ``left_out`` says which files were not used, and why."""

    groups: tuple[Group, ...]
    total: Group
    left_out: tuple[tuple[str, str], ...]

    @property
    def goals(self) -> tuple[tuple[str, bool], ...]:
        """What is promised, and whether it was kept."""
        worst = max(self.groups, key=lambda group: group.ratio)
        return (
            (
                f"mean MASE {self.total.mase:.3f} below that of seasonal naive, {self.total.mase_naive:.3f}",
                self.total.mase < self.total.mase_naive,
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
        """Whether all promises were kept."""
        return all(kept for _, kept in self.goals)


def group_of(name: str) -> str:
    """Return the group of a series by the name of its file."""
    parts = name.split("_")
    kept = parts[:1]
    for part in parts[1:]:
        if any(letter.isdigit() for letter in part) or part.isupper():
            break
        kept.append(part)
    return "_".join(kept)


def _moment(text: str) -> float:
    """Return the seconds since 1970 of a timestamp."""
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    # Seconds of the year 5138 are milliseconds of the year 1973.
    return number / 1000.0 if abs(number) > 1e11 else number


def _points(path: Path) -> Iterator[tuple[float, float]]:
    """Return the timestamps and values of a file."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        columns = (0, 1)
        for row in csv.reader(lines):
            names = [cell.strip().lower() for cell in row]
            when = next((names.index(name) for name in TIMES if name in names), None)
            what = next((names.index(name) for name in VALUES if name in names), None)
            if when is not None or what is not None:
                columns = (when or 0, (1 if when != 1 else 0) if what is None else what)
                continue
            try:
                moment, value = _moment(row[columns[0]]), float(row[columns[1]])
            except (ValueError, IndexError, OverflowError):
                continue
            if np.isfinite(moment):
                yield moment, value


def read_trace(path: Path) -> Trace:
    """Read a file, and make it a series of hours, or of its own longer step."""
    try:
        points = np.array(list(_points(path)), dtype=np.float64).reshape(-1, 2)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot be read: {error}") from error
    moments = np.unique(points[:, 0])
    if len(moments) < 2:
        raise TraceError("has no two moments")
    step = max(HOUR, float(np.median(np.diff(moments))))
    if step > LONGEST_STEP:
        raise TraceError(f"has a step of {step / HOUR:.0f} hours, more than {LONGEST_STEP / HOUR:.0f}")
    day = max(1, round(DAY * HOUR / step))
    slots = np.floor((points[:, 0] - moments[0]) / (DAY * HOUR / day)).astype(np.int64)
    if slots.max() >= LONGEST_SERIES:
        raise TraceError(f"spans {slots.max()} steps, more than {LONGEST_SERIES}")
    known = np.isfinite(points[:, 1])
    length = int(slots.max()) + 1
    counts = np.bincount(slots[known], minlength=length)
    sums = np.bincount(slots[known], weights=points[known, 1], minlength=length)
    values = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, group_of(name), values, day)


def walk(values: Floats, day: int = DAY) -> list[Step]:
    """Forecast a series again and again, as if it were lived."""
    week = WEEK_DAYS * day
    horizon = week if len(values) >= WEEKLY_FROM * week else day
    first = FIRST * horizon if len(values) >= (FIRST + 1) * horizon else models.SEASONS * horizon
    steps = []
    for origin in range(first, len(values) - horizon + 1, horizon):
        actual, before = values[origin : origin + horizon], values[:origin]
        if np.isnan(actual).all() or np.isnan(before).all():
            continue
        steps.append(_judge(models.forecast(before, horizon, day), actual, before, day))
    return steps


def _judge(told: models.Forecast, actual: Floats, before: Floats, day: int) -> Step:
    """Compare a forecast with what came."""
    full = models.filled(before, day)
    scale = models.naive_scale(before, told.season)
    floor = models.naive(full, told.season, len(actual))
    by_day = models.naive(full, day, len(actual))
    hour = int(np.nanargmax(actual))
    peak = float(actual[hour])
    bound = float(told.peak_bound.max())
    known = ~np.isnan(actual)
    return Step(
        mase=float(np.nanmean(np.abs(actual - told.p50))) / scale,
        mase_naive=float(np.nanmean(np.abs(actual - floor))) / scale,
        mase_day=float(np.nanmean(np.abs(actual - by_day))) / scale,
        replaced=not told.model.startswith("naive"),
        missed=bound < peak,
        missed_at_hour=float(told.peak_bound[hour]) < peak,
        over_provision=bound / peak if peak > 0.0 else np.nan,
        covered=float((actual[known] <= told.p95[known]).mean()),
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
        replaced=float(np.mean([step.replaced for step in every])),
        missed=float(np.mean([step.missed for step in every])),
        missed_at_hour=float(np.mean([step.missed_at_hour for step in every])),
        over_provision=float(np.median(ratios)) if ratios else np.nan,
        covered=float(np.mean([step.covered for step in every])),
    )


def backtest(folder: Path) -> Result:
    """Walk through all series of a folder."""
    walks: dict[str, list[list[Step]]] = defaultdict(list)
    left_out: list[tuple[str, str]] = []
    for path in sorted(folder.rglob("*")):
        if not path.name.endswith((".csv", ".csv.gz")):
            continue
        try:
            trace = read_trace(path)
            steps = walk(trace.values, trace.day)
            if not steps:
                raise TraceError("is too short: less than four days")
        except TraceError as error:
            left_out.append((path.name, str(error)))
        else:
            walks[trace.group].append(steps)
    if not walks:
        raise TraceError(f"{folder} has no series that is long enough (*.csv, *.csv.gz with timestamp,value)")
    groups = tuple(_group(name, walks[name]) for name in sorted(walks))
    total = _group("all", [steps for name in sorted(walks) for steps in walks[name]])
    total = attrs.evolve(
        total,
        mase=float(np.mean([group.mase for group in groups])),
        mase_naive=float(np.mean([group.mase_naive for group in groups])),
        mase_day=float(np.mean([group.mase_day for group in groups])),
    )
    return Result(groups, total, tuple(left_out))


def markdown(result: Result) -> str:
    """Return the table of what was achieved, and whether what is promised was kept."""
    lines = [
        "| group | series | forecasts | MASE | MASE of naive | ratio | naive, a day ago | replaced | p95 covers |"
        " peaks above the bound | at its hour | bound / peak |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {group.name} | {group.series} | {group.forecasts} | {group.mase:.2f} | {group.mase_naive:.2f} |"
        f" {group.ratio:.2f} | {group.mase_day:.2f} | {group.replaced:.0%} | {group.covered:.0%} |"
        f" {group.missed:.0%} | {group.missed_at_hour:.0%} | {group.over_provision:.2f} |"
        for group in (*result.groups, result.total)
    ]
    lines.append("")
    lines += [f"- {'kept' if kept else 'MISSED'}: {goal}" for goal, kept in result.goals]
    lines += [f"- left out: {name} {reason}" for name, reason in result.left_out]
    return "\n".join(lines) + "\n"
