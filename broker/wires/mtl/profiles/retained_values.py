"""Retained values: the last Content of topics, for later readers. Their number and size are bounded.

A value that finds no room is refused. None is evicted for another, since no client would notice the loss.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from broker.core.interfaces import StoredMemory


@attrs.frozen
class RetainedValue:
    """A Content as it is sent: tail and body. ``payer`` is that of its writer: see `StoredMemory`."""

    tail: bytes
    body: bytes
    payer: str

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.tail) + len(self.body)


@attrs.frozen
class RetainedBounds:
    """Bounds of the last values of all virtual hosts together."""

    values: int = 10_000
    """Topics of which the last value is kept: a few for each of a thousand servers."""

    bytes: int = 64 * 1024 * 1024
    """Bytes of all those values: 6 KiB each, where last values are a line of JSON."""


class RetainedValues:
    """Retained values, by topic."""

    def __init__(self, bounds: RetainedBounds, memory: StoredMemory) -> None:
        self._bounds = bounds
        self._memory = memory
        self._values: dict[Hashable, RetainedValue] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, topic: Hashable) -> RetainedValue | None:
        """Return the retained value of a topic, or None."""
        return self._values.get(topic)

    def fits(self, topic: Hashable, size: int, payer: str) -> bool:
        """Return True if a value of that size can replace the former one of the topic."""
        bounds = self._bounds
        old = self._values.get(topic)
        grown = size - old.size if old is not None and old.payer == payer else size
        if grown > 0 and not self._memory.may_store(payer, grown):
            return False
        if old is None:
            return len(self._values) < bounds.values and self.bytes + size <= bounds.bytes
        return self.bytes - old.size + size <= bounds.bytes

    def put(self, topic: Hashable, value: RetainedValue) -> None:
        """Store a value in place of the former one. It must fit (`fits`)."""
        self.drop(topic)
        self._values[topic] = value
        self.bytes += value.size
        self._memory.store(value.payer, value.size)

    def drop(self, topic: Hashable) -> None:
        """Remove the value of a topic. No-op if it has none."""
        old = self._values.pop(topic, None)
        if old is not None:
            self.bytes -= old.size
            self._memory.store(old.payer, -old.size)
