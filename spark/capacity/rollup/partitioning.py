"""Parts: the records of a date, divided so that each part can be counted by itself, and fits into memory.

Rules:
- Registrations of one instance are in one part, and so are the instances of one registration: the work on one part
  says nothing about another.
- A part has services and instances that follow each other in their order, in which the records are stored.
- Parts that are too small for a task of their own, as those of small dates are, share one.
- The results do not depend on the number of parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TypeVar

import attrs

from spark.capacity.rollup.date_survey import Pair
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES

Item = TypeVar("Item")

ROWS = DAY // FIVE_MINUTES
"""An instance has as many rows in the end, whatever the number of its records."""

LARGE = 1_000_000
"""Records and rows of a part: some 500 MB in the memory of a worker."""

SMALL = 50_000
"""Records and rows that are not worth a task of their own."""


@attrs.frozen
class Part:
    """A part of a date: pairs, and the number of records and rows."""

    pairs: Sequence[Pair]
    size: int


def divide(pairs: Mapping[Pair, int], cores: int) -> list[Part]:
    """Divide the pairs, whose numbers of records are given, into parts of about the same size."""
    groups = _joined(pairs)
    sizes = [sum(pairs[pair] + ROWS for pair in group) for group in groups]
    total = sum(sizes)
    wanted = max(ceil(total / LARGE), min(cores, ceil(total / SMALL)))
    parts: list[list[Pair]] = [[] for _ in range(wanted)]
    so_far = 0
    for size, group in sorted(zip(sizes, groups, strict=True), key=lambda one: _first(one[1])):
        # A group is in the part in which its middle is.
        parts[(2 * so_far + size) * wanted // (2 * total)] += group
        so_far += size
    return [Part(sorted(part), sum(pairs[pair] + ROWS for pair in part)) for part in parts if part]


def tasks_of(parts: Iterable[Part]) -> float:
    """Tell how many tasks parts are worth; a small one is worth a share of a task."""
    return sum(min(1.0, part.size / SMALL) for part in parts)


def in_tasks(items: Iterable[tuple[int, Item]]) -> list[list[Item]]:
    """Put items, given with their sizes, into tasks: those that are too small for a task share one with the next."""
    made: list[list[Item]] = []
    held = SMALL
    for size, item in items:
        if held >= SMALL:
            made.append([])
            held = 0
        made[-1].append(item)
        held += size
    return made


def _first(group: Iterable[Pair]) -> tuple[str, str]:
    return min((pair.service, pair.instance) for pair in group)


def _joined(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Put the pairs together that share a registration or an instance."""
    leads: dict[object, object] = {}

    def lead(key: object) -> object:
        while (above := leads.setdefault(key, key)) != key:
            # Half of the way is cut each time: no way gets long.
            leads[key] = leads[above]
            key = leads[key]
        return key

    keys = [((*pair[:4],), (pair.service, pair.instance), pair) for pair in pairs]
    for registration, instance, _ in keys:
        leads[lead(registration)] = lead(instance)
    groups: dict[object, list[Pair]] = {}
    for registration, _, pair in keys:
        groups.setdefault(lead(registration), []).append(pair)
    return list(groups.values())
