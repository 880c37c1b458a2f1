"""Reactors of a test's own, beside the one of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.pollreactor import PollReactor


def close(reactor: Any) -> None:
    """Close all that a reactor has open. By itself it keeps its waker's sockets: it is made to outlast the process."""
    reactor.iterate(0)  # ports that stopped listening close in the next turn
    reactor.disconnectAll()
    reactor.fireSystemEvent("shutdown")
    reactor.waker.connectionLost(None)
    if isinstance(reactor, EPollReactor):
        reactor._poller.close()


@contextmanager
def poll_reactor() -> Iterator[Any]:
    """A reactor for a test, closed after it."""
    reactor: Any = PollReactor()
    try:
        yield reactor
    finally:
        close(reactor)
