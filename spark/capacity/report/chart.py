"""Charts over time as SVG text, to stand in an HTML page.

Rules:
- The text is well-formed XML, and all that comes from outside goes through `escape`.
- Colours are classes, which the page's style sheet gives meaning; so a chart is light or dark as its page is.
- Each chart has a title and a description for those who do not see it, and its axes say their units.
- A value that is missing breaks its line. Nothing is drawn that was not measured or forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from xml.sax.saxutils import escape as _escape

import attrs

WIDTH, HEIGHT = 900, 300
"""Of the drawing; the page scales it."""

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
"""Margins: room for the axes, and above for the legend."""

TICKS = 9
"""At most so many days are named on the axis; more would touch each other."""

LABEL = 110
"""Room that a label beside a mark needs; nearer to the edge it stands on the other side."""

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


def escape(text: object) -> str:
    """Make text harmless in elements and attributes. A character that XML does not allow becomes a replacement
    character."""
    kept = "".join(character if _allowed(character) else "\ufffd" for character in str(text))
    return _escape(kept, {'"': "&quot;", "'": "&#39;"})


def _allowed(character: str) -> bool:
    code = ord(character)
    return code in (9, 10, 13) or 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code not in (0xFFFE, 0xFFFF)


def chart(
    ident: str,
    title: str,
    description: str,
    unit: str,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Draw the chart. ``ident`` is unique in the page and our own; texts may be anything."""
    lines = [line for line in lines if any(value is not None for _, value in line.points)]
    bands = [band for band in bands if band.points]
    times = [at for line in lines for at, _ in line.points] + [point[0] for band in bands for point in band.points]
    values = [value for line in lines for _, value in line.points if value is not None]
    values += [point[2] for band in bands for point in band.points]
    if not times or not values:
        return ""
    first, last = min(times), max(times)
    if last <= first:
        last = first + HOUR
    top, step = _scale(max(values) * HEADROOM)
    frame = _Frame(first, last, top)
    parts = [
        f'<svg role="img" aria-labelledby="{ident}-t {ident}-d" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<title id="{ident}-t">{escape(title)}</title><desc id="{ident}-d">{escape(description)}</desc>',
        *_axes(frame, step, unit),
        *(_band(frame, band) for band in bands),
        *(_line(frame, line) for line in lines),
        *_marks(frame, marks),
        *_legend([*bands, *lines]),
        "</svg>",
    ]
    return "\n".join(parts)


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


def _axes(frame: _Frame, step: float, unit: str) -> Iterable[str]:
    bottom = HEIGHT - BOTTOM
    for number in range(round(frame.top / step) + 1):
        y = frame.y(number * step)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>'
    span = frame.last - frame.first
    steps = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY)
    between = next((size for size in steps if span / size <= TICKS), math.ceil(span / TICKS / DAY) * DAY)
    at = math.ceil(frame.first / between) * between
    while at <= frame.last:
        x = frame.x(at)
        form = "%d %b" if between >= DAY else "%d %b %H:%M"
        name = datetime.fromtimestamp(at, UTC).strftime(form)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom + 4}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{name}</text>'
        at += between
    middle = (TOP + bottom) / 2
    yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>'
    yield (
        f'<text class="unit" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(unit)}</text>"
    )
    yield f'<text class="unit" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">time (UTC)</text>'


def _path(frame: _Frame, points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{frame.x(at):.1f} {frame.y(value):.1f}" for at, value in points)


def _line(frame: _Frame, line: Line) -> str:
    runs = [
        [(at, value) for at, value in run if value is not None]
        for there, run in groupby(line.points, lambda point: point[1] is not None)
        if there
    ]
    # A lone point would be invisible as a line.
    runs = [run if len(run) > 1 else [run[0], (run[0][0] + HOUR / 2, run[0][1])] for run in runs]
    return f'<path class="{line.kind}" d="{"".join(_path(frame, run) for run in runs)}"/>'


def _band(frame: _Frame, band: Band) -> str:
    upper = [(at, high) for at, _, high in band.points]
    lower = [(at, low) for at, low, _ in reversed(band.points)]
    return f'<path class="{band.kind}" d="{_path(frame, upper + lower)}Z"/>'


def _marks(frame: _Frame, marks: Sequence[Mark]) -> Iterable[str]:
    inside = sorted((mark for mark in marks if frame.first <= mark.at <= frame.last), key=lambda mark: mark.at)
    for row, mark in enumerate(inside):
        x = frame.x(mark.at)
        fits = x + LABEL < WIDTH - RIGHT
        place, anchor = (x + 4, "start") if fits else (x - 4, "end")
        yield f'<path class="{mark.kind}" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield (
            f'<text class="label" x="{place:.1f}" y="{TOP + 11 + row * ROW}" text-anchor="{anchor}">'
            f"{escape(mark.label)}</text>"
        )


def _legend(shown: Sequence[Line | Band]) -> Iterable[str]:
    x = LEFT
    for one in shown:
        shape = f"M{x} 9h22v8h-22Z" if isinstance(one, Band) else f"M{x} 13h22"
        yield f'<path class="{one.kind}" d="{shape}"/>'
        yield f'<text class="tick" x="{x + 27}" y="17">{escape(one.label)}</text>'
        # Wide enough for any of our own labels: no font is known here.
        x += 27 + 14 + round(6.4 * len(one.label))
