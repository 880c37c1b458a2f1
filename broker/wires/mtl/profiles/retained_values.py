"""The last values of topics, for whoever comes later: a bounded number of them, and of bytes.

A value for which there is no room is refused: none goes to make room for another, since nobody would notice.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs


@attrs.frozen
class RetainedValue:
    """A Content as it is sent: its tail and its body."""

    tail: bytes
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.tail) + len(self.body)


@attrs.frozen
class RetainedBounds:
    """Bounds of the last values of all virtual hosts together."""

    values: int = 10_000
    """Topics of which the last value is kept: a few for each of a thousand servers."""

    bytes: int = 64 * 1024 * 1024
    """Bytes of all those values: 6 KiB each, where last values are a line of JSON."""


class RetainedValues:
    """The values, by topic."""

    def __init__(self, bounds: RetainedBounds) -> None:
        self._bounds = bounds
        self._values: dict[Hashable, RetainedValue] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, topic: Hashable) -> RetainedValue | None:
        """The last value of a topic, if it has one."""
        return self._values.get(topic)

    def fits(self, topic: Hashable, size: int) -> bool:
        """Whether there is room for a value of so many bytes, in the place of the last one."""
        bounds = self._bounds
        old = self._values.get(topic)
        if old is None:
            return len(self._values) < bounds.values and self.bytes + size <= bounds.bytes
        return self.bytes - old.size + size <= bounds.bytes

    def put(self, topic: Hashable, value: RetainedValue) -> None:
        """Keep a value, in the place of the last one. There must be room for it."""
        self.drop(topic)
        self._values[topic] = value
        self.bytes += value.size

    def drop(self, topic: Hashable) -> None:
        """The topic has no last value any more. Harmless if it had none."""
        old = self._values.pop(topic, None)
        if old is not None:
            self.bytes -= old.size
