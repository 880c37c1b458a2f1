"""A buffer for long input that arrives in many reads: pieces of memory, in place of one that grows.

A single one is moved as it grows, and the heap keeps the places that it leaves behind: the frames and bodies of 250
peers, 36 MiB in all, made the process grow by 70 to 115 MiB.
"""

from __future__ import annotations

from io import BytesIO

PIECE = 16_384
"""Bytes after which a new piece is begun."""

LONG = 1024 * 1024
"""Bytes beyond which all is in one growing piece again, so that the longest messages are in memory once. Few are as
long, within the limits of memory."""


class Pieces:
    """The buffer."""

    __slots__ = ("_last", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._last = BytesIO()
        self._size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append a copy of the data. Returns its length."""
        written = self._last.write(data)
        self._size += written
        if self._size > LONG:
            if self._pieces:
                self._last = self.buffer()
        elif self._last.tell() >= PIECE:
            self._pieces.append(self._last.getvalue())
            self._last = BytesIO()
        return written

    def tell(self) -> int:
        """Return the length."""
        return self._size

    def getvalue(self) -> bytes:
        """Return the content, which is freed here."""
        return self.buffer().getvalue()

    def buffer(self) -> BytesIO:
        """Return the content in a new buffer, and leave this one empty."""
        last, pieces = self._last, self._pieces
        if pieces:
            last = BytesIO()
            last.writelines(pieces)
            last.write(self._last.getvalue())
            self._pieces = []
        self._last = BytesIO()
        return last

    def close(self) -> None:
        """Free the content."""
        self._pieces.clear()
        self._last = BytesIO()
        self._size = 0
