"""The load of pings over the Elko Broker protocol: one that waits for its answer on each connection."""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure as TwistedFailure

from broker.brokerctl.failures import Exit, Failure

AUTH = b'{"to":"client","op":"auth","label":"brokerctl"}\n\n'
PING = b'{"to":"client","op":"ping"}\n\n'
END = b"\n\n"

MAX_ANSWER = 64 * 1024
"""Bytes of an answer to a ping: it has forty."""


class Pinger(Protocol):
    """A connection that pings."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: Deferred[None] | None = None
        self._over = ""

    def ping(self) -> Deferred[None]:
        """Send a ping. Returns a Deferred that fires with the answer, or fails with `Failure`."""
        answer: Deferred[None] = Deferred()
        if self._over or self.transport is None:
            answer.errback(Failure(self._over, Exit.UNREACHABLE))
            return answer
        self._answer = answer
        self.transport.write(PING)
        return answer

    def connectionMade(self) -> None:
        """Authenticate, which an open listener wants as the first message too."""
        assert self.transport is not None
        self.transport.write(AUTH)

    def dataReceived(self, data: bytes) -> None:
        """Take output of the broker."""
        self._buffer += data
        while END in self._buffer:
            message, _, self._buffer = self._buffer.partition(END)
            answer, self._answer = self._answer, None
            if answer is not None and b'"pong"' in message:
                answer.callback(None)
            elif answer is not None:
                answer.errback(Failure("the server does not answer a ping: it wants a password, or is no Elko Broker"))
        if len(self._buffer) > MAX_ANSWER:
            self._end("the server sends too much")

    def connectionLost(self, reason: TwistedFailure = connectionDone) -> None:
        """Fail the pending ping."""
        self._end("the server closes the connection")

    def close(self) -> None:
        """Close the connection."""
        self._over = "closed"
        if self.transport is not None:
            self.transport.loseConnection()

    def _end(self, why: str) -> None:
        self._over = self._over or why
        answer, self._answer = self._answer, None
        if self.transport is not None:
            self.transport.loseConnection()
        if answer is not None:
            answer.errback(Failure(why, Exit.UNREACHABLE))


async def connected(reactor: Any, host: str, port: int, timeout: float) -> Pinger:
    """Return a connection to an Elko listener. Raises `Failure`."""
    endpoint = HostnameEndpoint(reactor, host, port, timeout=timeout)
    try:
        found: Pinger = await connectProtocol(endpoint, Pinger())
    except (error.ConnectError, error.DNSLookupError) as problem:
        reason = problem.args[-1] if problem.args else problem
        raise Failure(f"{host}:{port} cannot be reached: {reason}", Exit.UNREACHABLE) from None
    return found
