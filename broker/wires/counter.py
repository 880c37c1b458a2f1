"""The documentation of counters: what each counts, in which unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs


@attrs.frozen
class Counter:
    """A counter ``NAME.REASON``, or where ``name`` has no dot, the family of all counters ``NAME.ANYTHING``.

    ``help`` says what is counted; ``unit`` is its unit in the plural. A ``gauge`` is the number of what there is now,
    other counters only grow.
    """

    name: str
    help: str
    unit: str = ""
    gauge: bool = False


class Documentation:
    """The documentation of all counters of a daemon."""

    def __init__(self, counters: Iterable[Counter]) -> None:
        self._counters: Mapping[str, Counter] = {each.name: each for each in counters}

    def __iter__(self) -> Iterator[Counter]:
        return iter(self._counters.values())

    def of(self, name: str) -> Counter | None:
        """Return the documentation of a counter: its own, or else that of its family."""
        return self._counters.get(name) or self._counters.get(name.partition(".")[0])
