"""What a configuration has wrong, and checks that several of its parts need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs


@attrs.frozen
class Problem:
    """Something wrong at ``key``. ``other`` is the key that it disagrees with, where there is one."""

    key: str
    text: str
    other: str = ""


def in_ranges(here: str, value: attrs.AttrsInstance, ranges: Mapping[str, tuple[float, float]]) -> Iterator[Problem]:
    """What of ``value`` is outside of ``ranges``, which are by the names of its fields."""
    for name, (least, most) in ranges.items():
        yield from in_range(f"{here}.{name}", getattr(value, name), least, most)


def in_range(key: str, value: float, least: float, most: float) -> Iterator[Problem]:
    """A problem where ``value`` is not between the two, or is no number."""
    # a NaN is in no range
    if not least <= value <= most:
        yield Problem(key, f"must be between {least:.15g} and {most:.15g}, not {value:.15g}")
