"""Messages on a byte stream: each with its length before it, in two bytes (RFC 1035, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Iterator

from broker.core.errors import Malformed, Reason
from broker.wires.dns.codec.query import HEADER, MAX_QUERY

_LENGTH = 2


class Frames:
    """The reader of one connection. It holds at most one unfinished message, of `MAX_QUERY` bytes."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def pending(self) -> int:
        """The bytes of the message that is not complete."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes | Malformed]:
        """Yield the messages that ``data`` completes.

        A length that no query has ends the stream by one fatal `Malformed`: nothing behind it is read.
        """
        data = self._held + data
        self._held = b""
        at = 0
        while at + _LENGTH <= len(data):
            length = int.from_bytes(data[at : at + _LENGTH], "big")
            if not HEADER <= length <= MAX_QUERY:
                yield Malformed(Reason.TOO_LARGE, f"a message of {length} bytes: a query has {HEADER} to {MAX_QUERY}")
                return
            end = at + _LENGTH + length
            if end > len(data):
                break
            yield data[at + _LENGTH : end]
            at = end
        self._held = data[at:]


def framed(message: bytes) -> bytes:
    """Return the message with its length before it."""
    return len(message).to_bytes(_LENGTH, "big") + message
