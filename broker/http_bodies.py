"""Bodies of requests and answers for clients of HTTP on Twisted, with a bound on memory, without the global reactor.

treq imports the global reactor and sends bodies with it; the clients here take their reactor as an argument.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer


@implementer(IAgent)
class Uncompressed:
    """An agent that requests no compressed answers, and leaves bodies as they came.

    treq requests gzip and unpacks it, with no limit on the size of the result, and with a traceback in the log if the
    end of the data is damaged.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[IResponse]:
        """Send a request; see `IAgent`."""
        headers = Headers() if headers is None else headers.copy()
        headers.removeHeader(b"Accept-Encoding")
        sent: Deferred[IResponse] = self._agent.request(method, uri, headers, bodyProducer)
        return sent.addCallback(_as_it_came)


def _as_it_came(response: IResponse) -> IResponse:
    response.headers.removeHeader(b"Content-Encoding")
    return response


class TooLong(Exception):
    """A body over its limit. The message has the limit."""


@implementer(IBodyProducer)
class Body:
    """The body of a request, sent at once: it is short. treq's own is sent in turns of the global reactor."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Send it."""
        consumer.write(self._data)
        return defer.succeed(None)

    def pauseProducing(self) -> None:
        """Part of the interface of producers."""

    resumeProducing = stopProducing = pauseProducing


async def collect(response: Any, limit: int) -> bytes:
    """Return the body of a response, of at most ``limit`` bytes. Raises `TooLong`, with the connection aborted.

    A cancellation aborts the connection, too.
    """
    collected = _Collected(limit)
    response.deliverBody(collected)
    return await collected.done


def late(_result: Any, seconds: float) -> Any:
    """Replace the outcome of a cancelled request, in which Twisted hides the cancellation: for ``Deferred.addTimeout``.

    Raises `twisted.internet.defer.TimeoutError`.
    """
    raise defer.TimeoutError(seconds)


class _Collected(Protocol):
    """A body that is collected up to a limit. ``done`` fires with it, and aborts the connection when cancelled."""

    def __init__(self, limit: int) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._limit:
            self._pieces.append(data)
        elif not self.done.called:
            self._pieces = []
            self.done.errback(TooLong(f"more than {self._limit} bytes"))
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            self.done.callback(b"".join(self._pieces))
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.stopProducing()  # type: ignore[attr-defined]
