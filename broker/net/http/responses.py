"""The answers of a listener: whole ones, those in pieces, those that wait for a result, and streams.

Rules:
- The result is discarded, and a Deferred cancelled, when the peer has gone.
- A stream is in chunks (server-sent events), or a WebSocket where it has one and the request asks for it.
- The producer of a stream sees ``behind`` while the peer does not read. Beyond ``write_buffer`` of output meanwhile,
  the peer is disconnected.
- An exception of a producer is logged, and ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal, at_limit
from broker.net.http.request import HttpRequest, date
from broker.net.http.websocket import StreamOutlet, Upgrade, WebSocket
from broker.rest.messages import REQUEST_ID, Request, Response, Stream, asks_for_websocket
from broker.rest.problem import Problem

if TYPE_CHECKING:
    from broker.net.http.http_listener import Channel, HttpFactory

HEADERS = (
    # A script or a style sheet is taken for one only if it is declared to be one.
    ("X-Content-Type-Options", "nosniff"),
    # No page of another site embeds an answer.
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Header fields of each answer."""

NO_STORE = ("Cache-Control", "no-store")
"""The header of answers without a Cache-Control of their own: they show state that may change, or is secret."""

UNBUFFERED = ("X-Accel-Buffering", "no")
"""The header of streams: nginx passes each piece on as it arrives, where it would else fill a buffer first."""

NO_ROOM = at_limit("try again later: too many answers wait already", "http.waiting, http.waiting_per_address")
CLOSES = Refusal(Reason.UNAVAILABLE, "try again later: the listener closes")


def respond(channel: Channel, request: HttpRequest, response: Response) -> bool:
    """Send an answer, or its head: then its body follows in steps. Returns True if the answer is whole.

    After too many answers with an error status the connection closes.
    """
    if response.status >= 400 and not channel.patient():
        request.last()
    if channel.seen is not None:
        channel.report("out", b"%d %b" % (response.status, response.content_type.encode("latin-1")))
    headers = [*HEADERS, (REQUEST_ID, channel.request_id), *response.headers, ("Date", date())]
    for name, _ in response.headers:
        if name.lower() == "cache-control":
            break
    else:
        headers.append(NO_STORE)
    body = response.body
    if isinstance(body, bytes):
        request.reply(response.status, body, response.content_type, headers)
        return True
    request.head(response.status, response.content_type, headers)
    channel.go_on_writing(iter(()) if request.method == "HEAD" else body)
    return False


class Answering:
    """A response that is sent in several steps. ``state`` names its present phase, for operators."""

    log = Logger()

    def __init__(self, factory: HttpFactory, channel: Channel, request: HttpRequest, asked: Request) -> None:
        self.state = "answering"
        self._factory = factory
        self._channel: Channel | None = channel
        self._request = request
        self._asked = asked
        self._id = channel.request_id
        self._result: Deferred[Any] | None = None
        self._waits = False
        self._outlet: _Events | WebSocket | None = None
        request.when_lost(self._lost)

    def wait(self, result: Deferred[Any]) -> None:
        """Wait for a result. It is cancelled if the peer goes, or if too many wait already."""
        self._result = result
        result.addCallbacks(self._arrived, self._failed)
        if self._result is not None and not self._begin_to_wait("waiting"):
            self._cancel(NO_ROOM)

    def send(self, answer: object) -> None:
        """Send the answer."""
        if self._channel is None:
            return
        if isinstance(answer, Stream):
            self._stream(answer)
        elif isinstance(answer, Response):
            self._respond(answer)
        else:
            raise TypeError(f"no answer: {type(answer).__name__}")

    def close(self) -> None:
        """End the answer: the listener closes."""
        channel = self._channel
        if channel is None:
            return
        self._request.last()
        if self._result is not None:
            self._cancel(CLOSES)
        elif self._outlet is not None:
            self._outlet.close()
        else:
            channel.hang_up()

    # inside

    def _begin_to_wait(self, state: str) -> bool:
        assert self._channel is not None
        if self._waits:
            self.state = state
            return True
        host = self._channel.host
        if not self._factory.room_to_wait(host):
            self._factory.refusal_log.count(f"{self._factory.wire}_waiting", "refused")
            return False
        self._factory.waits(host, 1)
        self._waits = True
        self.state = state
        return True

    def _cancel(self, refusal: Refusal) -> None:
        """Cancel the result, and answer by 503 if the peer is there."""
        result, self._result = self._result, None
        if result is not None:
            result.cancel()
        if self._channel is not None:
            self._refuse_to_wait(refusal)

    def _arrived(self, answer: object) -> None:
        if self._result is not None:
            self._result = None
            self.send(answer)

    def _failed(self, failure: Failure) -> None:
        if self._result is None:
            failure.trap(CancelledError, Exception)
            return  # cancelled by this object, or too late
        self._result = None
        self.log.failure("an answer of HTTP failed", failure=failure, request_id=self._id)
        self._respond(Problem(500, "the broker failed; its log has the reason", Reason.INTERNAL).response(self._id))

    def _refuse_to_wait(self, refusal: Refusal) -> None:
        problem = Problem(503, refusal.text, refusal.reason, [("Retry-After", "5")])
        self.send(self._factory.refusal(self._asked, problem))

    def _respond(self, response: Response) -> None:
        channel, request = self._channel, self._request
        if channel is None or request.over:
            return
        if respond(channel, request, response):
            self._over()
        else:
            self.state = "answering"
            request.when_over(self._over)

    def _stream(self, stream: Stream) -> None:
        channel, request = self._channel, self._request
        assert channel is not None
        if not self._begin_to_wait("stream"):
            self._refuse_to_wait(NO_ROOM)
            return
        outlet: _Events | WebSocket
        # Another upgrade than those on offer is ignored (RFC 9110, 7.8).
        if stream.upgrades and asks_for_websocket(request.fields):
            try:
                upgrade = Upgrade(request)
            except Problem as problem:
                self._respond(problem.response(self._id))
                return
            self.state = "websocket"
            outlet = WebSocket(channel, self._factory, stream, self._over)
            self._outlet = channel.producing = outlet
            upgrade.accept(channel, [(REQUEST_ID.encode(), self._id.encode())])
            outlet.ws = upgrade.connection
            if not outlet.start():
                return
            channel.upgrade(outlet)
        else:
            fixed = [NO_STORE, UNBUFFERED, ("Date", date())]
            request.head(200, stream.content_type, [*HEADERS, (REQUEST_ID, self._id), *stream.headers, *fixed])
            if request.method == "HEAD":
                self._over()
                request.end()
                return
            self._outlet = outlet = _Events(channel, self._factory, request, stream, self._over)
            channel.producing = outlet
            outlet.start()

    def _lost(self) -> None:
        result, self._result = self._result, None
        outlet = self._outlet
        self._over()
        if result is not None:
            result.cancel()
        if outlet is not None:
            outlet.lost()

    def _over(self) -> None:
        channel, self._channel = self._channel, None
        self._outlet = None
        if channel is not None:
            channel.answering = None
            channel.producing = None
            if self._waits:
                self._waits = False
                self._factory.waits(channel.host, -1)


class _Events(StreamOutlet):
    """The outlet of a stream in chunks."""

    def __init__(
        self, channel: Channel, factory: HttpFactory, request: HttpRequest, stream: Stream, over: Callable[[], None]
    ) -> None:
        super().__init__(channel, factory, stream, over)
        self._request = request

    def write(self, data: bytes) -> None:
        """See `broker.rest.messages.Outlet`."""
        if not self._closed and data and self._fits(len(data)):
            self._request.write(data)

    def write_part(self, data: bytes) -> None:
        """See `broker.net.http.channel.Producing`."""
        self._request.write(data)

    def close(self) -> None:
        """See `broker.rest.messages.Outlet`."""
        if not self._closed:
            self.lost()
            self._over()
            if not self._request.over:
                self._request.end()
