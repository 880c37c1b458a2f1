"""What a reader has been sent and has not answered yet.

Rules:
- A Content is outstanding from when it is sent until its first answer. Later answers are ignored, as are those to what
  was never sent.
- An answer to many covers all that is outstanding up to its sequence, also if that one was answered before; but its
  sequence must be one that was sent.
- There is room as long as fewer are outstanding than the window allows, of fewer bytes than it allows. So one Content
  may go beyond the bytes: the largest can be sent, too.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """What is counted in bytes, and keeps its size."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class SendWindow(Generic[T]):
    """What is outstanding at one reader, by sequence: at most ``most``, and about ``most_bytes``."""

    __slots__ = ("_last", "_most", "_most_bytes", "_outstanding", "bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._outstanding: dict[int, T] = {}
        self._last = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def room(self) -> bool:
        """Whether another one may be sent."""
        return len(self._outstanding) < self._most and self.bytes < self._most_bytes

    def add(self, sequence: int, thing: T) -> bool:
        """Something was sent with that sequence, which is above those before. Returns whether there still is room."""
        outstanding = self._outstanding
        outstanding[sequence] = thing
        self._last = sequence
        self.bytes = size = self.bytes + thing.size
        return len(outstanding) < self._most and size < self._most_bytes

    def answered(self, sequence: int, multiple: bool) -> list[T]:
        """An answer came. Returns what it is the first one for, in the order of sending."""
        outstanding = self._outstanding
        if multiple:
            if sequence > self._last:
                return []
            covered = []
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
        """No answers will come. Returns what is outstanding, in the order of sending."""
        things = list(self._outstanding.values())
        self._outstanding.clear()
        self.bytes = 0
        return things
