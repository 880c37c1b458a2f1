"""Peers that speak ZMTP 3.0 by hand over TCP, and the bytes that they send."""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.net.waiting import until
from tests.patience import PATIENCE

LARGE_WRITE = 1_000_000
"""Bytes given to the kernel in one go."""

GREETING = 64
"""Bytes of a ZMTP greeting."""

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
"""The beginning of a greeting."""


class RawPeer:
    """A TCP connection that sends given bytes, and keeps the bytes that come. It is made to a port, or was accepted."""

    def __init__(self, port: int | socket.socket) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port)) if isinstance(port, int) else port
        self.socket.setblocking(False)
        self.data = bytearray()
        self.closed = False
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        """Send this, as far as the kernel takes it now; the rest goes with `look`."""
        self._unsent += data
        self.look()

    def look(self) -> bytearray:
        """Send what is left, and return all that came."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent[:LARGE_WRITE])]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
        try:
            while not self.closed:
                piece = self.socket.recv(LARGE_WRITE)
                self.data += piece
                self.closed = not piece
        except BlockingIOError:
            pass
        except ConnectionError:
            self.closed = True
        return self.data

    @property
    def unsent(self) -> int:
        """The number of bytes that the kernel did not take yet."""
        self.look()
        return len(self._unsent)

    async def wait_closed(self, patience: float = PATIENCE) -> None:
        """Wait until the other side closed the connection."""

        def closed() -> bool:
            self.look()
            return self.closed

        await until(closed, patience)

    async def greet(self) -> None:
        """Exchange greetings."""
        self.send(greeting())
        await until(lambda: len(self.look()) >= GREETING)

    async def handshake(self, identity: bytes = b"", kind: bytes = b"DEALER", **properties: bytes) -> None:
        """Shake hands without keys, as a DEALER by default; ``_`` in names of properties is replaced by ``-``."""
        await self.greet()
        named = {name.replace("_", "-").encode(): value for name, value in properties.items()}
        self.send(ready({b"Socket-Type": kind, b"Identity": identity, **named}))
        await until(lambda: b"READY" in self.look()[GREETING:] or self.closed)

    def close(self) -> None:
        self.socket.close()


class RawListener:
    """A TCP port that accepts connections, and leaves them alone."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port = int(self.socket.getsockname()[1])
        self.accepted: list[RawPeer] = []

    def look(self) -> list[RawPeer]:
        """All connections that came."""
        with suppress(BlockingIOError):
            while True:
                self.accepted.append(RawPeer(self.socket.accept()[0]))
        return self.accepted

    async def accept(self) -> RawPeer:
        """Wait for the next connection."""
        count = len(self.accepted)
        await until(lambda: len(self.look()) > count)
        return self.accepted[count]

    def close(self) -> None:
        self.socket.close()
        for raw in self.accepted:
            raw.close()


def greeting(mechanism: bytes = b"NULL") -> bytes:
    """The greeting of a client of ZMTP 3.0."""
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def ready(properties: dict[bytes, bytes]) -> bytes:
    """The command with which a handshake without keys ends."""
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value for name, value in properties.items()
    )
    return command(body)


def command(body: bytes) -> bytes:
    """A command, of which ``body`` begins with the length of the name."""
    return _piece(body, 4)


def message(*frames: bytes) -> bytes:
    """A message in its wire format."""
    return b"".join(map(part, frames[:-1])) + _piece(frames[-1], 0)


def part(frame: bytes) -> bytes:
    """A frame that another one follows."""
    return _piece(frame, 1)


def _piece(body: bytes, flags: int) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body


def message_1(*frames: bytes) -> bytes:
    """The bytes of a message of ZMTP 1.0, whose sizes count the octet of flags."""
    parts = []
    for number, frame in enumerate(frames, 1):
        size = len(frame) + 1
        parts.append(bytes((size,)) if size < 255 else b"\xff" + size.to_bytes(8, "big"))
        parts.append(bytes((number < len(frames),)) + frame)
    return b"".join(parts)
