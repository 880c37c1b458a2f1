"""Outlets of streams, and WebSockets (RFC 6455) as streams: the upgrade of a request, and the connection afterwards;
wsproto has the frames.

Rules:
- The listener has checked the request as any other: host, origin, rights.
- Each piece of a stream is a text message in one frame. A text message of the peer goes to ``Stream.received``; it has
  a maximum size, and a binary one closes the connection.
- The frames of the peer are handled within the scheduler, and not while the peer does not read.
- Pings are answered, within the refusal limit of the connection, and one is sent after `PING_EVERY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import H11Handshake
from wsproto.utilities import ProtocolError, RemoteProtocolError

from broker.core.errors import Reason, Refusal
from broker.net.http.request import HttpRequest
from broker.rest.messages import Stream
from broker.rest.problem import Problem

if TYPE_CHECKING:
    from broker.net.http.http_listener import Channel, HttpFactory

# Pings, closing and refused frames of all WebSockets; wsproto implements handshake and frames.
#
# The size of a message is limited where it is read: `WebSocket` below, and `broker.wires.elko.codec.blocks`.

PING_EVERY = 30.0
"""Seconds between pings: half of what common proxies allow a silent connection."""

MAX_REPORTED, MAX_CLOSE_TEXT = 200, 100
"""Characters of the description of a breach: in the log, and in the close frame, which has room for 123 bytes."""


def breach(text: str) -> Refusal:
    """Return the refusal of frames that break RFC 6455, or that the listener does not take."""
    return Refusal(Reason.HANDSHAKE, f"no frame of the protocol: {text[:MAX_REPORTED]}")


def close_frame(ws: WSConnection | Connection, code: int, text: str = "") -> bytes:
    """Return the close frame of a connection; empty if one was sent, or the peer's was answered."""
    if ws.state not in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
        return b""
    return ws.send(CloseConnection(code, text[:MAX_CLOSE_TEXT] or None))


def end(ws: WSConnection | Connection) -> None:
    """Free the parser of a connection that has ended, which takes no more input.

    It is a generator that refers to its own object: without its end, the connection would wait for a full garbage
    collection, of which there are few.
    """
    connection = ws.connection if isinstance(ws, WSConnection) else ws
    if connection is not None:
        connection._proto._parse_more.close()


def ping_frame(ws: WSConnection | Connection) -> bytes:
    """Return a ping frame; empty unless the connection is open."""
    return ws.send(Ping()) if ws.state is ConnectionState.OPEN else b""


MAX_MESSAGE = 65_536
"""Bytes of a message of the peer: streams are for output, and messages of clients are short."""


class Upgrade:
    """A valid request for an upgrade. Raises `Problem` 400 or 426."""

    def __init__(self, request: HttpRequest) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.fields.items()]
        self._handshake = H11Handshake(ConnectionType.SERVER)
        try:
            if request.method != "GET" or not request.minor:
                raise RemoteProtocolError("a WebSocket begins with GET and HTTP/1.1")
            self._handshake.initiate_upgrade_connection(headers, request.target)
        except (ProtocolError, UnicodeError, ValueError) as error:
            status = getattr(getattr(error, "event_hint", None), "status_code", 400)
            extra = [("Sec-WebSocket-Version", "13")] if status == 426 else []
            raise Problem(status, f"no WebSocket: {error}", Reason.HANDSHAKE, extra) from None
        self.connection: Connection

    def accept(self, channel: Channel, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Answer the request, with these header fields."""
        channel.transport.write(self._handshake.send(AcceptConnection(extra_headers=[*headers])))
        assert self._handshake.connection is not None
        self.connection = self._handshake.connection


class StreamOutlet:
    """The writing end of a stream on ``channel``, with the limits of ``factory``.

    ``over`` is called when the outlet closes the stream, not when the connection is lost.
    """

    log = Logger()

    def __init__(self, channel: Any, factory: Any, stream: Stream, over: Callable[[], None]) -> None:
        self._channel = channel
        self._factory = factory
        self._stream = stream
        self._over = over
        self._ended: Callable[[], None] | None = None
        self._closed = False
        self._held = 0
        """Bytes written since the peer began to lag behind."""

    def start(self) -> bool:
        """Begin the stream. Returns False if it failed, or ended already."""
        try:
            # A subclass is a whole `broker.rest.messages.Outlet`.
            ended = self._stream.begin(self)  # type: ignore[arg-type]
        except Exception:
            self._failed()
            return False
        if self._closed:
            ended()
            return False
        self._ended = ended
        return True

    @property
    def behind(self) -> bool:
        """See `broker.rest.messages.Outlet`."""
        behind: bool = self._channel.behind
        return behind

    def write_in_steps(self, pieces: Iterator[bytes], size: int) -> None:
        """See `broker.rest.messages.Outlet`."""
        if not self._closed:
            self._channel.go_on_writing(self._framed(pieces), size)

    def room(self) -> None:
        """Output is no longer pending."""
        self._held = 0
        if not self._closed:
            try:
                self._stream.room()
            except Exception:
                self._failed()

    def lost(self) -> None:
        """The connection is lost, or the stream ends."""
        self._closed = True
        self._channel.unwritten = None
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def _fits(self, size: int) -> bool:
        """Account for ``size`` bytes of output. Returns False for a peer over its limit, whose connection ends."""
        if self._channel.behind:
            self._held += size
            if self._held > self._factory.limits.write_buffer:
                self._channel.not_reading()
                return False
            self._channel.hold_output()
        return True

    def _framed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return pieces

    def _failed(self) -> None:
        self.log.failure("a stream of HTTP failed")
        self._channel.abort()


class WebSocket(StreamOutlet):
    """The connection after the upgrade: the outlet of a stream, and the reader of the peer's frames."""

    ws: Connection

    def __init__(self, channel: Channel, factory: HttpFactory, stream: Stream, over: Callable[[], None]) -> None:
        super().__init__(channel, factory, stream, over)
        self._text = ""
        """The beginning of an incomplete message. One text: a list would grow with each frame, also an empty one."""

    def start(self) -> bool:
        """Begin the stream. Returns False if it failed, or ended already."""
        begun = super().start()
        if begun:
            self._factory.pings.add(self, PING_EVERY)
        return begun

    # to the producer: the outlet

    def write(self, data: bytes) -> None:
        """Send one text message."""
        if self._closed or self.ws.state is not ConnectionState.OPEN:
            return
        self._send(TextMessage(data=data.decode()))

    def write_part(self, data: bytes) -> None:
        """See `broker.net.http.channel.Producing`."""
        self._channel.transport.write(data)

    def _framed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield self.ws.send(TextMessage(data=piece.decode(), message_finished=False))
        yield self.ws.send(TextMessage(data=""))

    def close(self) -> None:
        """Close in order."""
        if not self._closed:
            code = CloseReason.GOING_AWAY if self._factory.stopping else CloseReason.NORMAL_CLOSURE
            self._close(code)

    # from the channel

    def feed(self, data: bytes) -> Iterator[None]:
        """Handle frames, one event in each step."""
        if self._closed:
            return
        try:
            self.ws.receive_data(data)
            for event in self.ws.events():
                self._event(event)
                yield
                if self._closed:
                    return
        except (RemoteProtocolError, UnicodeError) as error:
            self._breach(CloseReason.PROTOCOL_ERROR, str(error))
            yield

    def lost(self) -> None:
        """The connection is lost, or the stream ends."""
        self._factory.pings.discard(self)
        super().lost()
        end(self.ws)

    def ping(self) -> None:
        """Send a ping, and the next one after `PING_EVERY`."""
        if not self._closed and self.ws.state is ConnectionState.OPEN:
            if not self.behind:
                self._write(ping_frame(self.ws))
            self._factory.pings.add(self, PING_EVERY)

    # inside

    def _send(self, event: Any) -> None:
        self._write(self.ws.send(event))

    def _write(self, data: bytes) -> None:
        if data and self._fits(len(data)):
            self._channel.transport.write(data)

    def _event(self, event: Event) -> None:
        if isinstance(event, TextMessage):
            self._receive(event)
        elif isinstance(event, Ping):
            if self.ws.state is ConnectionState.OPEN:
                self._send(event.response())
                if not self._channel.patient():
                    self._breach(CloseReason.POLICY_VIOLATION, "too many pings")
        elif isinstance(event, BytesMessage):
            self._breach(CloseReason.UNSUPPORTED_DATA, "a binary message")
        elif isinstance(event, CloseConnection):
            if self.ws.state is ConnectionState.REMOTE_CLOSING:
                self._send(event.response())
                self._hang_up()
            else:  # wsproto reports a breach of the protocol so
                self._breach(event.code, event.reason or "a breach of RFC 6455")

    def _receive(self, event: TextMessage) -> None:
        text = self._text + event.data
        if len(text) > MAX_MESSAGE:
            self._breach(CloseReason.MESSAGE_TOO_BIG, "a message is too large")
        elif event.message_finished:
            self._text = ""
            self._stream.received(text)
        else:
            self._text = text

    def _breach(self, code: int, text: str) -> None:
        self._factory.refusal_log.add(self._factory.wire, self._channel.host, breach(text))
        self._close(code, text)

    def _close(self, code: int, text: str = "") -> None:
        self._write(close_frame(self.ws, code, text))
        self._hang_up()

    def _hang_up(self) -> None:
        if not self._closed:
            self.lost()
            self._over()
            self._channel.hang_up()
