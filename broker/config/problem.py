"""A problem of a configuration, and checks of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs


@attrs.frozen
class Problem:
    """A problem at ``key``. ``other`` is the key that it disagrees with, if there is one."""

    key: str
    text: str
    other: str = ""


def in_ranges(here: str, value: attrs.AttrsInstance, ranges: Mapping[str, tuple[float, float]]) -> Iterator[Problem]:
    """Yield a problem for each field of ``value`` outside of its range; ``ranges`` are by the names of fields.

    None is a field that is not set.
    """
    for name, (least, most) in ranges.items():
        if (number := getattr(value, name)) is not None:
            yield from in_range(f"{here}.{name}", number, least, most)


def in_range(key: str, value: float, least: float, most: float) -> Iterator[Problem]:
    """Yield a problem if ``value`` is not between the two."""
    # False for a NaN as well.
    if not least <= value <= most:
        yield Problem(key, f"must be between {least:.15g} and {most:.15g}, not {value:.15g}")
