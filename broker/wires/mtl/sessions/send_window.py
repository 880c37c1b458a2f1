"""Send window: Contents that a reader was sent and has not answered yet.

Rules:
- A Content is outstanding from the time it is sent until its first answer. Further answers are ignored, as are answers
  to sequences that were never sent.
- An answer with ``multiple`` covers all outstanding Contents up to its sequence, even if that one was answered before.
  Its sequence must be one that was sent.
- The window has room while fewer Contents of fewer bytes are outstanding than it allows. So one Content may exceed the
  bytes: otherwise the largest could never be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Anything with a constant size in bytes."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class SendWindow(Generic[T]):
    """Outstanding Contents of one reader, by sequence: at most ``most``, and about ``most_bytes``."""

    __slots__ = ("_last", "_most", "_most_bytes", "_outstanding", "bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._outstanding: dict[int, T] = {}
        self._last = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    def __iter__(self) -> Iterator[T]:
        return iter(self._outstanding.values())

    @property
    def room(self) -> bool:
        """True if another Content may be sent."""
        return len(self._outstanding) < self._most and self.bytes < self._most_bytes

    def add(self, sequence: int, thing: T) -> bool:
        """Add a Content with a sequence above all before. Returns True if there is still room."""
        outstanding = self._outstanding
        outstanding[sequence] = thing
        self._last = sequence
        self.bytes = size = self.bytes + thing.size
        return len(outstanding) < self._most and size < self._most_bytes

    def answered(self, sequence: int, multiple: bool) -> list[T]:
        """Process an answer. Returns the Contents that it is the first answer to, in the order of sending."""
        outstanding = self._outstanding
        if multiple:
            if sequence > self._last:
                return []
            covered = []
            # The dictionary is in the order of sending, which is that of sequences: stop at the first one above.
            for each in outstanding:
                if each > sequence:
                    break
                covered.append(each)
            things = [outstanding.pop(each) for each in covered]
        else:
            thing = outstanding.pop(sequence, None)
            if thing is None:
                return []
            things = [thing]
        for thing in things:
            self.bytes -= thing.size
        return things

    def clear(self) -> list[T]:
        """Empty the window. Returns the outstanding Contents, in the order of sending."""
        things = list(self._outstanding.values())
        self._outstanding.clear()
        self.bytes = 0
        return things


# A function that a lease calls when it is due.


class LeasedCall:
    """The `broker.core.interfaces.Leased` of a function.

    ``check`` is called with the time. It returns the time of the next call, None for no further one.
    """

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self.check = check
