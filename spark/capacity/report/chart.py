"""Charts over time: the places of lines, ticks and labels, which the template ``chart.html`` makes SVG of.

Rules:
- Colours are classes, which the page's style sheet gives meaning; so a chart is light or dark as its page is.
- A value that is missing breaks its line. Nothing is drawn that was not measured or forecast.
- A chart is as wide as its page. Only lines and areas are stretched; texts keep their size, and stand at a share of the
  width. On a narrow page every second tick of the time axis is left out, or four of five where they have hours.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

import attrs

from spark.capacity.planning.needs import needs_of
from spark.capacity.planning.plan import FEWEST, WEEK, WEEKS, Growth
from spark.capacity.report.service_rows import UNCLAIMED, Shortage, short_from
from spark.capacity.tables.row_values import Row, number_of

WIDTH, HEIGHT = 1000, 222
"""Of the plane of lines and areas: a stretched unit, and pixels."""

TICKS = 9
"""At most so many days are named on the axis; more would touch each other."""

EDGE = 8
"""Percent of the width: nearer to the end the name of a time stands before its tick, for want of room after it."""

BESIDE = 4
"""Pixels between a mark or the edge of the plane and a text beside it."""

LONE = 0.012
"""Length of a line of one point, as a share of the time axis: three pixels of a phone, so that it is seen."""

ROW = 14
"""Height of a line of text; the labels of several marks stand below each other."""

HEADROOM = 1.02
"""The highest line does not lie on the frame."""

HOUR = 3600
DAY = 24 * HOUR


@attrs.frozen
class Line:
    """Points of (seconds since 1970, value)."""

    label: str
    kind: str
    points: Sequence[tuple[float, float | None]]


@attrs.frozen
class Mark:
    """A time that matters; without one there is no mark."""

    label: str
    kind: str
    at: datetime | None


@attrs.frozen
class Path:
    """A line or an area of the drawing; `kind` is its class, `d` its course in the notation of SVG."""

    kind: str
    d: str


@attrs.frozen
class Label:
    """A text of the drawing, at `x` percent of the width and so many pixels (`dx`) beside it.

    A `minor` one is left out on a narrow page.
    """

    text: str
    x: float
    y: float
    anchor: str
    dx: int = 0
    minor: bool = False


@attrs.frozen
class Drawing:
    """A chart: paths on a plane of `width` and `height`, texts around it, and a legend with a swatch for each line."""

    grid: Sequence[str]
    values: Sequence[Label]
    times: Sequence[Label]
    lines: Sequence[Path]
    marks: Sequence[tuple[Path, Label]]
    legend: Sequence[tuple[Path, str]]
    width: int = WIDTH
    height: int = HEIGHT


def chart(lines: Sequence[Line], marks: Sequence[Mark] = ()) -> Drawing | None:
    """Return the drawing; None where there is nothing to draw."""
    lines = [line for line in lines if any(value is not None for _, value in line.points)]
    times = [at for line in lines for at, _ in line.points]
    values = [value for line in lines for _, value in line.points if value is not None]
    if not times or not values:
        return None
    first, last = min(times), max(times)
    if last <= first:
        last = first + HOUR
    top, step = _scale(max(values) * HEADROOM)
    frame = _Frame(first, last, top)
    values_grid, value_names = _value_axis(frame, step)
    times_grid, time_names = _time_axis(frame)
    return Drawing(
        [*values_grid, *times_grid],
        value_names,
        time_names,
        [_line(frame, line) for line in lines],
        list(_marks(frame, marks)),
        [(Path(line.kind, "M0 5h22"), line.label) for line in lines],
    )


@attrs.frozen
class _Frame:
    """The ranges of time and value, and the position of each on the drawing."""

    first: float
    last: float
    top: float

    def x(self, at: float) -> float:
        return (at - self.first) / (self.last - self.first) * WIDTH

    def y(self, value: float) -> float:
        return HEIGHT - value / self.top * HEIGHT

    def share(self, at: float) -> float:
        """Return the place of a time in percent of the width."""
        return round(self.x(at) * 100 / WIDTH, 2)


def _scale(highest: float) -> tuple[float, float]:
    """A round number at or over the highest value, and the step between ticks: 1, 2 or 5 of some power of ten."""
    if not math.isfinite(highest) or highest <= 0:
        return 1.0, 0.5
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return math.ceil(highest / step * 0.999999) * step, step


def _value_axis(frame: _Frame, step: float) -> tuple[list[str], list[Label]]:
    """Return the lines of the grid, and the values beside them."""
    grid, names = [], []
    for number in range(round(frame.top / step) + 1):
        y = frame.y(number * step)
        grid.append(f"M0 {y:.1f}H{WIDTH}")
        names.append(Label(f"{number * step:g}", 0, round(y + 4, 1), "end", -BESIDE))
    return grid, names


def _time_axis(frame: _Frame) -> tuple[list[str], list[Label]]:
    """Return the lines of the grid, and the times below them."""
    grid: list[str] = []
    names: list[Label] = []
    span = frame.last - frame.first
    steps = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY)
    between = next((size for size in steps if span / size <= TICKS), math.ceil(span / TICKS / DAY) * DAY)
    form, major = ("%d %b", 2) if between >= DAY else ("%d %b %H:%M", 5)
    at = math.ceil(frame.first / between) * between
    while at <= frame.last:
        share = frame.share(at)
        grid.append(f"M{frame.x(at):.1f} 0V{HEIGHT + BESIDE}")
        anchor = "end" if share > 100 - EDGE else "middle"
        name = datetime.fromtimestamp(at, UTC).strftime(form)
        names.append(Label(name, share, HEIGHT + 20, anchor, minor=len(names) % major > 0))
        at += between
    return grid, names


def _path(frame: _Frame, points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{frame.x(at):.1f} {frame.y(value):.1f}" for at, value in points)


def _line(frame: _Frame, line: Line) -> Path:
    runs = [
        [(at, value) for at, value in run if value is not None]
        for there, run in groupby(line.points, lambda point: point[1] is not None)
        if there
    ]
    return Path(line.kind, "".join(_path(frame, run if len(run) > 1 else _dash(frame, *run[0])) for run in runs))


def _dash(frame: _Frame, at: float, value: float) -> list[tuple[float, float]]:
    """Return the line of one point: from it on, or up to the end of the axis."""
    length = LONE * (frame.last - frame.first)
    begin = min(at, frame.last - length)
    return [(begin, value), (begin + length, value)]


def _marks(frame: _Frame, marks: Sequence[Mark]) -> Iterator[tuple[Path, Label]]:
    times = sorted(((mark.at.timestamp(), mark) for mark in marks if mark.at), key=lambda of: of[0])
    for row, (at, mark) in enumerate((at, mark) for at, mark in times if frame.first <= at <= frame.last):
        share = frame.share(at)
        # Towards the wider side: there is room for a label on half of any page.
        anchor, dx = ("start", BESIDE) if share <= 50 else ("end", -BESIDE)
        yield (
            Path(mark.kind, f"M{frame.x(at):.1f} 0V{HEIGHT}"),
            Label(mark.label, share, 11 + row * ROW, anchor, dx),
        )


@attrs.frozen
class Trend:
    """The weekly growth as a share of the level, with its drawing; None for both where too few weeks are known."""

    growth: float | None
    drawing: Drawing | None
    outlook: Shortage
    fewest: int = FEWEST
    """Weeks with a known load that a trend needs."""


def trend_of(plan: Row) -> Trend:
    """Return the trend of 13 weeks from a row of gold_plan.

    The line that meets the limit is the trend with the headroom of the plan on top, so that the drawing and the date of
    the plan agree. A week is drawn at its start.
    """
    issued: datetime = plan["issued"]
    level, share = number_of(plan, "trend_level"), number_of(plan, "growth_per_week")
    if level is None or share is None:
        return Trend(None, None, outlook(plan))

    def begin(week: int) -> float:
        return (issued + week * WEEK).timestamp()

    trend = Growth(level, share * level)
    peaks = list(enumerate(plan["weekly_peaks"], -WEEKS))
    began = next(week for week, peak in peaks if peak is not None)
    # Week 0 is the first of the coming ones; the level of the trend is that of the week before it.
    headroom = plan["headroom"]
    drawn = [(begin(week), trend.in_weeks(week + 1)) for week in range(began, WEEKS)]
    lines = [
        Line("weekly peak", "demand", [(begin(week), peak) for week, peak in peaks if week >= began]),
        Line("trend", "p50", drawn),
        Line(f"trend x {headroom:g}", "bound", [(at, headroom * value) for at, value in drawn if at >= begin(0)]),
    ]
    if limit := limit_of(plan):
        lines.append(Line("limit of the providers now", "capacity", [(drawn[0][0], limit), (drawn[-1][0], limit)]))
    marks = [Mark("now", "now", issued), Mark("too few by the trend", "crossed", plan["exhaust_trend"])]
    return Trend(share, chart(lines, marks=marks), outlook(plan))


def limit_of(plan: Row, providers: float | None = None) -> float | None:
    """Return the load up to which so many providers, or those of now, are enough by the policy; None where there is no
    such load."""
    if not plan:
        return None
    limit = needs_of(plan).carried(plan["providers_now"] if providers is None else int(providers))
    return None if limit is None or math.isinf(limit) else limit


def outlook(plan: Row) -> Shortage:
    """Return the shortage by the trend: of services without one, or without a full load, nothing is claimed."""
    unclaimed = number_of(plan, "growth_per_week") is None or limit_of(plan) is None
    return UNCLAIMED if unclaimed else short_from(plan, "exhaust_trend")
