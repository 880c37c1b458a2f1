"""Charts over time: the places of lines, ticks and labels, which the template ``chart.html`` makes SVG of.

Rules:
- Colours are classes, which the page's style sheet gives meaning; so a chart is light or dark as its page is.
- A value that is missing breaks its line. Nothing is drawn that was not measured or forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

import attrs

WIDTH, HEIGHT = 900, 300
"""Of the drawing; the page scales it."""

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
"""Margins: room for the axes, and above for the legend."""

TICKS = 9
"""At most so many days are named on the axis; more would touch each other."""

LABEL = 110
"""Room that a label beside a mark needs; nearer to the edge it stands on the other side."""

LONE = 0.003
"""Length of a line of one point, as a share of the time axis: shorter, it would be invisible."""

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
class Band:
    """Points of (seconds since 1970, lower, upper)."""

    label: str
    kind: str
    points: Sequence[tuple[float, float, float]]


@attrs.frozen
class Mark:
    """A time that matters."""

    label: str
    kind: str
    at: float


@attrs.frozen
class Path:
    """A line or an area of the drawing; `kind` is its class, `d` what SVG calls so."""

    kind: str
    d: str


@attrs.frozen
class Label:
    """A text of the drawing."""

    text: str
    x: float
    y: float
    anchor: str = "start"


@attrs.frozen
class Drawing:
    """A chart as places on a plane of `width` and `height`."""

    grid: Sequence[str]
    ticks: Sequence[Label]
    bands: Sequence[Path]
    lines: Sequence[Path]
    marks: Sequence[tuple[Path, Label]]
    legend: Sequence[tuple[Path, Label]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def chart(lines: Sequence[Line], bands: Sequence[Band] = (), marks: Sequence[Mark] = ()) -> Drawing | None:
    """Return the drawing; None where there is nothing to draw."""
    lines = [line for line in lines if any(value is not None for _, value in line.points)]
    bands = [band for band in bands if band.points]
    times = [at for line in lines for at, _ in line.points] + [point[0] for band in bands for point in band.points]
    values = [value for line in lines for _, value in line.points if value is not None]
    values += [point[2] for band in bands for point in band.points]
    if not times or not values:
        return None
    first, last = min(times), max(times)
    if last <= first:
        last = first + HOUR
    top, step = _scale(max(values) * HEADROOM)
    frame = _Frame(first, last, top)
    grid, ticks = _axes(frame, step)
    return Drawing(
        grid,
        ticks,
        [_band(frame, band) for band in bands],
        [_line(frame, line) for line in lines],
        list(_marks(frame, marks)),
        list(_legend([*bands, *lines])),
    )


@attrs.frozen
class _Frame:
    """Return the position of a time and a value on the drawing."""

    first: float
    last: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (at - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def _scale(highest: float) -> tuple[float, float]:
    """A round number at or over the highest value, and the step between ticks: 1, 2 or 5 of some power of ten."""
    if not math.isfinite(highest) or highest <= 0:
        return 1.0, 0.5
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return math.ceil(highest / step * 0.999999) * step, step


def _axes(frame: _Frame, step: float) -> tuple[list[str], list[Label]]:
    """Return the lines of the grid, and the values and times beside them."""
    bottom = HEIGHT - BOTTOM
    grid, ticks = [], []
    for number in range(round(frame.top / step) + 1):
        y = frame.y(number * step)
        grid.append(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}")
        ticks.append(Label(f"{number * step:g}", LEFT - 6, round(y + 4, 1), "end"))
    span = frame.last - frame.first
    steps = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY)
    between = next((size for size in steps if span / size <= TICKS), math.ceil(span / TICKS / DAY) * DAY)
    at = math.ceil(frame.first / between) * between
    while at <= frame.last:
        x = frame.x(at)
        form = "%d %b" if between >= DAY else "%d %b %H:%M"
        grid.append(f"M{x:.1f} {TOP}V{bottom + 4}")
        ticks.append(Label(datetime.fromtimestamp(at, UTC).strftime(form), round(x, 1), bottom + 17, "middle"))
        at += between
    return grid, ticks


def _path(frame: _Frame, points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{frame.x(at):.1f} {frame.y(value):.1f}" for at, value in points)


def _line(frame: _Frame, line: Line) -> Path:
    runs = [
        [(at, value) for at, value in run if value is not None]
        for there, run in groupby(line.points, lambda point: point[1] is not None)
        if there
    ]
    length = LONE * (frame.last - frame.first)
    runs = [run if len(run) > 1 else [run[0], (run[0][0] + length, run[0][1])] for run in runs]
    return Path(line.kind, "".join(_path(frame, run) for run in runs))


def _band(frame: _Frame, band: Band) -> Path:
    upper = [(at, high) for at, _, high in band.points]
    lower = [(at, low) for at, low, _ in reversed(band.points)]
    return Path(band.kind, f"{_path(frame, upper + lower)}Z")


def _marks(frame: _Frame, marks: Sequence[Mark]) -> Iterator[tuple[Path, Label]]:
    inside = sorted((mark for mark in marks if frame.first <= mark.at <= frame.last), key=lambda mark: mark.at)
    for row, mark in enumerate(inside):
        x = frame.x(mark.at)
        fits = x + LABEL < WIDTH - RIGHT
        place, anchor = (x + 4, "start") if fits else (x - 4, "end")
        yield (
            Path(mark.kind, f"M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"),
            Label(mark.label, round(place, 1), TOP + 11 + row * ROW, anchor),
        )


def _legend(shown: Sequence[Line | Band]) -> Iterator[tuple[Path, Label]]:
    x = LEFT
    for one in shown:
        shape = f"M{x} 9h22v8h-22Z" if isinstance(one, Band) else f"M{x} 13h22"
        yield Path(one.kind, shape), Label(one.label, x + 27, 17)
        # Wide enough for any of our own labels: no font is known here.
        x += 27 + 14 + round(6.4 * len(one.label))
