"""Values as texts for people: durations, sizes, numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from broker.brokerctl.output.clean import clean

NOTHING = "-"
"""The text of a value that is absent."""

_STEPS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Return a duration with its two greatest units: ``3d 4h``; below a minute with a decimal."""
    if not math.isfinite(seconds):
        return str(seconds)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 59.95:
        return f"{sign}{seconds:.1f}s"
    rest = round(seconds)
    for position, (unit, step) in enumerate(_STEPS):
        if rest >= step:
            count, rest = divmod(rest, step)
            if position + 1 == len(_STEPS) or not rest // _STEPS[position + 1][1]:
                return f"{sign}{count}{unit}"
            below, size = _STEPS[position + 1]
            return f"{sign}{count}{unit} {rest // size}{below}"
    return f"{sign}0s"


def size(count: float) -> str:
    """Return a number of bytes: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: float) -> str:
    """Return a number: integers with thin groups of thousands, others with at most four significant digits."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.4g}"


def text(value: object, unit: str = "", name: str = "") -> str:
    """Return any JSON value as a clean text of one line. Ids, ports and revisions are not grouped."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if unit == "seconds":
            return duration(value)
        if unit == "bytes":
            return size(value)
        plain = isinstance(value, int) and (unit == "id" or name in ("provider", "revision", "epoch", "port", "id"))
        return str(value) if plain else number(value)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return " ".join(f"{clean(str(key))}={text(each)}" for key, each in value.items()) or NOTHING
    if isinstance(value, Sequence):
        return ", ".join(text(each) for each in value) or NOTHING
    return clean(str(value))


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[object]) -> str:
    """Return a line of bars, from 0 to the highest value; a gap for a value that is no number."""
    numbers = [float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
    top = max((n for n in numbers if n is not None), default=0.0)
    return "".join(
        " " if n is None else BARS[0] if top <= 0 else BARS[max(0, min(len(BARS) - 1, int(n / top * len(BARS))))]
        for n in numbers
    )
