"""A bare Twisted protocol that takes and sends what many silent mc0 sessions do: what the broker is compared with.

    python -m bench.references.bare_mc0 NOOP-EVERY

It listens on a free port of 127.0.0.1, and prints its number. It speaks ZMTP 3.0 with the NULL mechanism in as few
lines as that takes: frames of up to 255 bytes. It answers every message that has an ID, and sends each connection a
NOOP so many seconds after it was opened, and again and again. It checks nothing, and keeps no deadlines.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from twisted.internet.protocol import Factory, Protocol

from bench.processes import own_reactor
from bench.references.elko import serve
from bench.zmtp import COMMAND, GREETING, MORE, frame, opening

NOOP = frame(MORE, b"") + frame(0, b"NOOP")


class Bare(Protocol):
    """One connection."""

    transport: Any

    def __init__(self, noops: Noops) -> None:
        self._noops = noops
        self._data = b""
        self._greeted = False
        self._frames: list[bytes] = []

    def connectionMade(self) -> None:
        """Say what a ROUTER says first."""
        self.transport.write(opening(b"ROUTER"))
        self._noops.add(self)

    def dataReceived(self, data: bytes) -> None:
        """Take what has come."""
        data = self._data + data
        at = 0
        if not self._greeted:
            if len(data) < GREETING:
                self._data = data
                return
            self._greeted, at = True, GREETING
        while len(data) >= at + 2 and len(data) >= (end := at + 2 + data[at + 1]):
            flags = data[at]
            if not flags & COMMAND:
                self._frames.append(data[at + 2 : end])
                if not flags & MORE:
                    self._take(self._frames)
                    self._frames = []
            at = end
        self._data = data[at:]

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) > 3 and frames[2] == b"ID":
            number = frames[3]
            self.transport.write(frame(MORE, b"") + frame(MORE, b"OK") + frame(MORE, b"ID") + frame(0, number))


class Noops:
    """The NOOPs that are due, all after the same time: one timer for the next of them."""

    def __init__(self, reactor: Any, every: float) -> None:
        self._reactor = reactor
        self._every = every
        self._due: deque[tuple[float, Bare]] = deque()

    def add(self, connection: Bare) -> None:
        """It gets its first one after that time."""
        self._due.append((self._reactor.seconds() + self._every, connection))
        if len(self._due) == 1:
            self._reactor.callLater(self._every, self._send)

    def _send(self) -> None:
        now, due = self._reactor.seconds(), self._due
        while due[0][0] <= now:
            _, connection = due.popleft()
            connection.transport.write(NOOP)
            due.append((now + self._every, connection))
        self._reactor.callLater(due[0][0] - now, self._send)


if __name__ == "__main__":
    noops = Noops(own_reactor(), float(sys.argv[1]))
    serve(Factory.forProtocol(lambda: Bare(noops)))
