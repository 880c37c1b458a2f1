"""Connections below WebSockets, RTCP and HTTP in memory, and the words that `tests.net.words` speaks over them.

Output ends as Elko's messages do: the end separates them.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Pong, Request, TextMessage

from broker.core.errors import Malformed
from broker.net.line_protocol import LineProtocol
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.web_origins import Origins
from broker.wires.elko.transports.elko_websocket import WebSockets
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.garbage import no_collection, set_aside
from tests.net.words import Hub, Link, Wire, WordReader, WordSession

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
"""The request of a WebSocket."""


def masked(first: int, payload: bytes) -> bytes:
    """One frame of a client, whose first byte may be anything; the mask is all zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return bytes([first]) + length + bytes(4) + payload


class _Ended:
    """The peer, with the end of a message behind everything that it is sent."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def write(self, data: bytes) -> None:
        self._peer.write(data + b"\n\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


class _AnyWords(WordReader):
    """Words, whatever the bytes are."""

    def feed(self, data: bytes) -> Iterator[str | Malformed]:
        return super().feed(data.decode(errors="replace").encode())


class WordHub(Hub):
    """A hub whose sessions' words end as messages do; empty lines are no words."""

    def __init__(self, limits: TransportLimits | None = None, half_close: bool = True) -> None:
        self.limits = TransportLimits(authenticate_within=0) if limits is None else limits
        super().__init__(self.limits, half_close, self.speak)

    def speak(self, peer: Peer) -> tuple[MessageReader, PeerSession]:
        """The reader and the session of a new peer."""
        ended: Any = _Ended(peer)
        return _AnyWords(), WordSession(ended, self.heard)

    def words(self) -> list[str]:
        return [word for word in super().words() if word]


def web_hub(path: str = "/", origins: Iterable[str] = (), half_close: bool = True) -> WordHub:
    """A hub of WebSockets."""
    hub = WordHub(half_close=half_close)
    sockets = WebSockets(hub.speak, path, Origins(origins), hub.clock)

    def converse(line: LineProtocol) -> tuple[MessageReader, PeerSession]:
        reader, session = sockets.converse(line)
        hub.sessions.append(session)
        return reader, session

    hub.factory.converse = converse
    hub.factory.guarded = False
    return hub


class WebLink:
    """A WebSocket's client on a connection of a hub."""

    def __init__(self, hub: Hub, target: str = "/", host: str = "192.0.2.1", **headers: str) -> None:
        self.link = hub.connect(host)
        self.ws = WSConnection(ConnectionType.CLIENT)
        extra = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.send(Request(host="broker", target=target, extra_headers=extra))

    def send(self, *events: Event) -> None:
        """Events go to the broker, all in one read."""
        self.link.protocol.dataReceived(b"".join(self.ws.send(event) for event in events))

    def say(self, *words: str) -> None:
        """Each word in a message of its own."""
        self.send(*(TextMessage(data=word) for word in words))

    def events(self) -> list[Event]:
        """The commands that came since the last call."""
        found: list[Event] = []
        for data in self.link.take():
            self.ws.receive_data(data)
            found += self.ws.events()
        return found

    def take(self) -> list[str]:
        """The same, shown: text, ``accepted``, ``closed CODE``, ``ping`` and ``pong PAYLOAD``."""
        return [_shown(event) for event in self.events()]


def _shown(event: Event) -> str:
    if isinstance(event, TextMessage):
        assert event.message_finished
        return event.data
    if isinstance(event, CloseConnection):
        return f"closed {int(event.code)}"
    if isinstance(event, Pong):
        return f"pong {bytes(event.payload).decode()}"
    assert isinstance(event, AcceptConnection | Ping)
    return "accepted" if isinstance(event, AcceptConnection) else "ping"


class CarriedLink(Link):
    """One connection to a carrier of sessions."""

    def __init__(self, factory: Any, host: str = "192.0.2.1", port: int = 4000) -> None:
        self.address = IPv4Address("TCP", host, port)
        self._clock = factory.lines.clock
        self.protocol: Any = factory.buildProtocol(self.address)
        self.wire = Wire()
        self.wire.peerAddr = self.address
        self.protocol.makeConnection(self.wire)

    def lose(self, why: Failure = connectionDone) -> None:
        super().lose(why)
        self.wire.producer = None  # a socket that is gone knows nobody

    def send(self, *data: str) -> None:
        """Text arrives, all in one read."""
        self.protocol.dataReceived("".join(data).encode())

    def said(self) -> str:
        """The output since the last call."""
        data: bytes = self.wire.value()
        self.wire.clear()
        self.wire.writes.clear()
        return data.decode()

    def ask(self, *data: str) -> str:
        """The answer to text, at once, or in the next turn where something was refused before."""
        self.send(*data)
        self.next_turn()
        return self.said()

    def next_turn(self) -> None:
        """Wait for the connection's turn, if it waits for one."""
        if self.protocol._queued:
            (self._clock.turn if hasattr(self._clock, "turn") else partial(self._clock.advance, 0))()

    def request(self, path: str, body: str | None = None, *headers: str, method: str | None = None) -> None:
        """A request of HTTP arrives."""
        lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1", "Host: x", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body.encode())}")
        self.send("\r\n".join(lines), "\r\n\r\n", body or "")

    def responses(self) -> list[tuple[int, str]]:
        """The responses that were written since the last call: statuses and bodies."""
        found = []
        self.next_turn()
        text = self.said()
        while text:
            head, _, rest = text.partition("\r\n\r\n")
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
            found.append((int(head.split()[1]), rest[:length]))
            text = rest[length:]
        return found

    def get(self, path: str, body: str | None = None, *headers: str) -> Any:
        """The immediate answer to a request of the protocol."""
        self.request(path, body, *headers)
        [(status, text)] = self.responses()
        assert status == 200
        return json.loads(text)


class Carrier:
    """A listener of a carrier of sessions, with its links."""

    quiet_after = 60
    """Seconds after the loss of all connections at which nothing is left."""

    def __init__(self, hub: WordHub, factory: Any) -> None:
        self.hub = hub
        self.factory = factory
        self._ports = count(4000)
        self._links: list[CarriedLink] = []

    def connect(self) -> CarriedLink:
        link = CarriedLink(self.factory, port=next(self._ports))
        self._links.append(link)
        return link

    def quiet(self) -> None:
        """Let all that is left end, and assert that nothing is."""
        for link in self._links:
            if link.protocol in self.factory.sockets.open:
                link.lose()
        self.hub.pass_seconds(self.quiet_after)
        assert (self.factory.sessions, self.factory.sockets.open) == ({}, set())
        assert (self.hub.factory.connections, self.hub.factory.memory.held) == (set(), 0)
        assert self.hub.clock.getDelayedCalls() == []


def garbage(run: Callable[[], object], *types: type) -> list[type]:
    """The types of the objects made by ``run`` that only the garbage collector can free."""
    set_aside()
    with no_collection():
        try:
            run()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return [type(each) for each in gc.garbage if isinstance(each, types)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
