"""WebSocket transport (RFC 6455) on the connections of a `LineFactory`; wsproto implements frames and handshake.

`WebSockets.converse` sits between a `LineProtocol` and the session: it is the reader and the session of the former, and
the peer of the latter. So the scheduler handles frames as it handles lines, and all limits of a connection apply.

Rules:
- The handshake comes first: the path must be the listener's, the Origin an allowed one. Errors get an HTTP status, with
  a sentence.
- A text message is one or more whole objects, as the block of a TCP connection is: an object left open is discarded
  with it. It may be fragmented. A binary message closes the connection, and so does a protocol error.
- Each sent message is a text message of its own, in one frame, without a newline.
- Close frames are handled in order, after the answers to earlier messages. The broker's own is its last output.
- Frames may arrive in the packet of the handshake.
- A ping is answered, and one is sent after `PING_EVERY`, so that proxies do not close a quiet connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.interfaces import IReactorTime
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection import NO_READER
from broker.net.http.websocket import PING_EVERY, breach, close_frame, end, ping_frame
from broker.net.line_protocol import LineProtocol
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.proxies import PROXY_FIELDS
from broker.net.refusal_log import Deadlines
from broker.net.web_origins import FROM_ELSEWHERE, Origins, not_allowed
from broker.wires.elko.codec.blocks import END

_END_OF_HEAD = re.compile(rb"\n\r?\n")

_STATUS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    426: "Upgrade Required",
    503: "Service Unavailable",
}


_FROM_ELSEWHERE = {header.lower() for header in FROM_ELSEWHERE}


class WebSockets:
    """The WebSockets of one listener, at ``path``. ``converse`` creates the reader and the session of a new peer."""

    def __init__(
        self,
        converse: Callable[[Peer], tuple[MessageReader, PeerSession]],
        path: str,
        origins: Origins,
        clock: IReactorTime,
    ) -> None:
        self.make = converse
        self.path = path
        self.origins = origins
        self.pings: Deadlines[WebSocket] = Deadlines(clock, WebSocket.ping)
        self._last = b""
        self._framed = b""

    def converse(self, line: LineProtocol) -> tuple[MessageReader, PeerSession]:
        """Create the reader and the session of a new connection."""
        socket = WebSocket(self, line)
        return _Frames(socket), socket

    def framed(self, data: bytes, ws: WSConnection | Connection) -> bytes:
        """Return encoded messages as frames. The last result is cached, since a notice goes to many connections."""
        if data is not self._last:
            messages = data.decode().split("\n\n")
            self._framed = b"".join(ws.send(TextMessage(data=message)) for message in messages if message)
            self._last = data
        return self._framed


class WebSocket:
    """One connection: the session of its line protocol, and the peer of the actual session."""

    __slots__ = ("_code", "_elsewhere", "_line", "_session", "_shared", "_why", "reader", "ws")

    def __init__(self, shared: WebSockets, line: LineProtocol) -> None:
        self.ws: WSConnection | Connection = WSConnection(ConnectionType.SERVER)
        self._shared = shared
        self._line = line
        self._code = CloseReason.NORMAL_CLOSURE
        self._elsewhere = False
        self._why = "not now"
        """The text of the last refusal."""
        self._session: PeerSession | None
        self.reader, self._session = shared.make(self)

    # to the real session: the peer

    @property
    def address(self) -> str:
        """The address of the peer."""
        return self._line.address

    @property
    def host(self) -> str:
        """The address of the peer without its port."""
        return self._line.host

    @property
    def local(self) -> bool:
        """True if the peer is on this machine, and is neither a web page nor behind a proxy."""
        return self._line.local and not self._elsewhere

    @property
    def certificate(self) -> tuple[str, ...]:
        """The names of the peer's verified client certificate."""
        return self._line.certificate

    @property
    def unacknowledged(self) -> bool:
        """Return True if the host of the peer has not acknowledged all output."""
        return self._line.unacknowledged

    @property
    def vanished(self) -> bool:
        """Return True if the connection failed."""
        return self._line.vanished

    @property
    def request_id(self) -> str:
        """The id of the request of HTTP; "" here, since messages follow their handshake."""
        return self._line.request_id

    @property
    def behind(self) -> bool:
        """Return True if much output is still unread by the peer."""
        return self._line.behind

    def write(self, data: bytes) -> None:
        """Send one encoded message. No-op before the handshake and after a close."""
        if self.ws.state is ConnectionState.OPEN:
            self._line.write(self._shared.framed(data, self.ws))

    def write_first(self, data: bytes) -> None:
        """Send one encoded message before all later writes of any connection."""
        if self.ws.state is ConnectionState.OPEN:
            self._line.write_first(self._shared.framed(data, self.ws))

    def close(self) -> None:
        """Write pending output, and close in order."""
        if self.ws.state is ConnectionState.CONNECTING:
            self._line.write(_answer(503, self._why))
        self._line.close()

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal, and select the code of a close frame that may follow."""
        self._why = refusal.text
        if refusal.reason is Reason.TOO_LARGE:
            self._code = CloseReason.MESSAGE_TOO_BIG
        else:
            self._code = CloseReason.POLICY_VIOLATION if refusal.reason.fatal else CloseReason.NORMAL_CLOSURE
        return self._line.refused(refusal)

    def debug(self, label: str, text: str) -> None:
        """Log a line that the peer sent for the log."""
        self._line.debug(label, text)

    def hold(self, size: int) -> bool:
        """See `broker.net.peer_interfaces.Peer`."""
        return self._line.hold(size)

    def go_on_with(self, steps: Iterator[None]) -> None:
        """See `broker.net.peer_interfaces.Peer`."""
        self._line.go_on_with(steps)

    def authenticated(self) -> None:
        """Mark the peer as authenticated."""
        self._line.authenticated()

    # to the line: the session

    def begin(self) -> None:
        """Nothing is sent before the request of the WebSocket."""

    def receive(self, message: Any) -> None:
        """Handle a message."""
        if self._session is not None:
            self._session.receive(message)

    def malformed(self, malformed: Malformed) -> None:
        """Handle input that the reader could not decode."""
        if self._session is not None:
            self._session.malformed(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Report a refusal to the peer, and close if it is fatal."""
        if self._session is not None:
            self._session.refuse(refusal)

    def input_ended(self) -> bool:
        """Handle an end of input without a close frame."""
        return self._session is not None and self._session.input_ended()

    @property
    def needed(self) -> bool:
        """See `PeerSession`."""
        return self._session is not None and self._session.needed

    def lost(self) -> None:
        """Connection lost or about to close. The close frame is the last output."""
        self._shared.pings.discard(self)
        self.reader = NO_READER
        # it refers to this object: without the cycle, no garbage collection is needed
        session, self._session = self._session, None
        if session is not None:
            session.lost()
        if self.ws.state is ConnectionState.OPEN:
            code = CloseReason.GOING_AWAY if self._line.factory.stopping else self._code
            self._line.transport.write(close_frame(self.ws, code))
        end(self.ws)

    # events

    def ping(self) -> None:
        """Send a ping, and the next one after `PING_EVERY`."""
        if self.ws.state is ConnectionState.OPEN:
            self._line.write(ping_frame(self.ws))
            self._shared.pings.add(self, PING_EVERY)

    def _requested(self, event: Request) -> None:
        origin, site = _header(event, b"origin"), _header(event, b"sec-fetch-site")
        line = self._line
        named = [[_header(event, name) or ""] for name in PROXY_FIELDS]
        client = line.factory.turns.proxies.client(line.host, *named)
        refusal = None if client is None else line.factory.count_for_client(line, client)
        if refusal is not None:
            self._reject(503, refusal)
            return
        if event.target.partition("?")[0] != self._shared.path:
            self._reject(404, Refusal(Reason.HANDSHAKE, f"there is no WebSocket at {event.target[:200]!r}"))
        elif not self._shared.origins.allow(origin, site):
            self._reject(403, not_allowed(origin, site))
        else:
            self._elsewhere = any(name.decode("latin-1") in _FROM_ELSEWHERE for name, _ in event.extra_headers)
            self._line.write(self.ws.send(AcceptConnection()))
            assert isinstance(self.ws, WSConnection)
            assert self.ws.connection is not None
            # the handshake part is not needed any more, and takes most of a connection's memory
            self.ws = self.ws.connection
            self._shared.pings.add(self, PING_EVERY)

    def rejected(self, status: int, text: str) -> None:
        """Refuse a request other than a WebSocket handshake."""
        self._reject(status, Refusal(Reason.HANDSHAKE, f"no WebSocket: {text}"))

    def _reject(self, status: int, refusal: Refusal) -> None:
        self._line.refused(refusal)
        self._line.write(_answer(status, refusal.text))
        self._line.close()

    def _pinged(self, event: Ping) -> None:
        if self.ws.state is ConnectionState.OPEN:
            self._line.write(self.ws.send(event.response()))

    def _binary(self, event: BytesMessage) -> None:
        self._breach(CloseReason.UNSUPPORTED_DATA, "a binary message")

    def _closed(self, event: CloseConnection) -> None:
        if self.ws.state is ConnectionState.REMOTE_CLOSING:
            self._line.write(self.ws.send(event.response()))
            self._line.close()
        elif self.ws.state is ConnectionState.OPEN:
            self._breach(event.code, event.reason or "a breach of RFC 6455")

    def _breach(self, code: int, text: str) -> None:
        self._line.refused(breach(text))
        self._line.write(close_frame(self.ws, code, text))
        self._line.close()

    def _nothing(self, event: object) -> None:
        pass


class _Frames:
    """Decoder from bytes to messages. It handles other WebSocket events in their order."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._reader = socket.reader
        self._tail = b""

    @property
    def pending(self) -> int:
        """Bytes held of an incomplete message. Incomplete frames and handshakes are too small to count."""
        return self._reader.pending

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages in ``data``, and `None` for each other event, which is handled here."""
        while data:
            piece, data = self._head(data) if isinstance(self._socket.ws, WSConnection) else (data, b"")
            yield from self._events(piece)

    def _head(self, data: bytes) -> tuple[bytes, bytes]:
        """Split ``data`` after the handshake's head: wsproto would lose frames behind it."""
        before = len(self._tail)
        end = _END_OF_HEAD.search(self._tail + data)
        if end is None:
            self._tail = (self._tail + data)[-3:]
            return data, b""
        at = end.end() - before
        self._tail = b""
        return data[:at], data[at:]

    def _events(self, data: bytes) -> Iterator[Any]:
        ws = self._socket.ws
        try:
            ws.receive_data(data)
        except RemoteProtocolError as error:
            self._socket.rejected(getattr(error.event_hint, "status_code", 400), str(error))
            yield None
            return
        except UnicodeError:
            self._socket.rejected(400, "a header is no text")
            yield None
            return
        for event in ws.events():
            if isinstance(event, TextMessage):
                text = event.data.encode()
                yield None  # a frame costs one step, as a message does
                yield from self._reader.feed(text + END if event.message_finished else text)
            else:
                _EVENTS[event.__class__](self._socket, event)
                yield None


def _header(request: Request, name: bytes) -> str | None:
    """Return a header of a handshake in ISO 8859-1, with all its values joined. ``name`` is in lower case."""
    values = [value.decode("latin-1") for key, value in request.extra_headers if key == name]
    return ", ".join(values) if values else None


def _answer(status: int, text: str) -> bytes:
    """Return an HTTP response before a close."""
    body = f"{text}\n".encode(errors="replace")
    version = "Sec-WebSocket-Version: 13\r\n" if status == 426 else ""
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: text/plain; charset=UTF-8\r\n"
        f"Content-Length: {len(body)}\r\n{version}Connection: close\r\n\r\n"
    )
    return head.encode() + body


_EVENTS: dict[type[object], Callable[[WebSocket, Any], None]] = {
    Request: WebSocket._requested,
    Ping: WebSocket._pinged,
    Pong: WebSocket._nothing,
    BytesMessage: WebSocket._binary,
    CloseConnection: WebSocket._closed,
}
