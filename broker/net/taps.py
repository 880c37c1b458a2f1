"""Taps: copies of the messages of one connection, for a trace.

A tap replaces the reader and the output list of a connection by ones that report what passes. For a connection without
a tap there is neither a check nor a call, so that it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from broker.net.interfaces.peer import MessageReader

Direction = Literal["in", "out"]

Seen = Callable[[Direction, Any], object]
"""Called with each item: one that the reader decoded, or the octets of one message that is sent."""


class TappedReader:
    """A reader that reports each item of ``inner`` before it is handled."""

    def __init__(self, inner: MessageReader, seen: Seen) -> None:
        self.inner = inner
        self._seen = seen

    @property
    def pending(self) -> int:
        """See `MessageReader`."""
        return self.inner.pending

    def feed(self, data: bytes) -> Iterator[Any]:
        """See `MessageReader`."""
        for item in self.inner.feed(data):
            if item is not None:
                self._seen("in", item)
            yield item


class TappedOutput(list[bytes]):
    """A list of output that reports each message that is appended."""

    def __init__(self, output: Iterable[bytes], seen: Seen) -> None:
        super().__init__(output)
        self._seen = seen

    def append(self, data: bytes) -> None:
        """Append a message."""
        self._seen("out", data)
        super().append(data)
