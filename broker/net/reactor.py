"""The reactor of the broker: Twisted's for epoll, which calls ports and accepted connections directly.

Its clock is monotonic: a step of the time of day delays no timer, and calls none early.

All other descriptors (clients, processes, UDP, wake-ups) are served by Twisted's own method, in a context for the log.
Every outgoing connection gets the options of `broker.net.silent_hosts`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from twisted.internet.main import installReactor
from twisted.python import log

from broker.net.epoll_streams import Streams
from broker.net.silent_hosts import end_with_host

try:
    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # epoll exists on Linux only
    EPollReactor = None  # type: ignore[assignment, misc]

EVENTS = 512
"""Descriptors served in one turn: at some 40 µs each, less than the 50 ms within which every peer is to be answered.
The kernel queues a served descriptor behind the waiting ones, so that all of them have turns."""


def install() -> bool:
    """Install the reactor, unless one is installed (by ``twistd --reactor``), or the system has no epoll.

    Returns True if it was installed.
    """
    if "twisted.internet.reactor" in sys.modules or EPollReactor is None:
        return False
    installReactor(Reactor())
    return True


if EPollReactor is not None:

    class Reactor(EPollReactor):
        """`EPollReactor` with `Streams` in its epoll set."""

        wall = staticmethod(time.time)
        """The time of day: see `broker.wall_clock`."""

        def __init__(self) -> None:
            self._origin = time.time() - time.monotonic()
            super().__init__()  # type: ignore[no-untyped-call]
            self.streams = Streams(self._poller, self.callLater)

        def seconds(self) -> float:
            """Return the time of day at the start of the process, and the monotonic time since then."""
            return self._origin + time.monotonic()

        def connectTCP(self, *args: Any, **kwargs: Any) -> Any:
            """Begin to connect. All clients pass here: Twisted's endpoints and agents, links, probes and checks."""
            connector: Any = super().connectTCP(*args, **kwargs)
            opened = getattr(connector.transport, "socket", None)
            if opened is not None:  # None without a free descriptor: the failure follows in the next turn
                end_with_host(opened)
            return connector

        def doIteration(self, timeout: float | None) -> None:
            """Wait for events for ``timeout`` seconds at most, and serve them."""
            wait = 0 if self.streams.ends_wait else -1 if timeout is None else timeout
            self.streams.dispatch(self._poller.poll(wait, EVENTS), self._serve)

        def removeAll(self) -> list[Any]:
            return [*super().removeAll(), *self.streams.removeAll()]  # type: ignore[no-untyped-call]

        def getReaders(self) -> list[Any]:
            return [*super().getReaders(), *self.streams.getReaders()]  # type: ignore[no-untyped-call]

        def getWriters(self) -> list[Any]:
            return [*super().getWriters(), *self.streams.getWriters()]  # type: ignore[no-untyped-call]

        def _serve(self, fd: int, event: int) -> bool:
            selectable = self._selectables.get(fd)
            if selectable is None:
                return False
            if selectable is self.waker:
                selectable.doRead()  # after each call of a thread; it logs nothing, and needs no context for that
                return True
            log.callWithLogger(selectable, self._doReadOrWrite, selectable, fd, event)
            return True
