"""Routes: the clients behind proxies as peers of their own, for wires that know connections only.

They stand between a ROUTER and the sessions of a wire. The sessions get each message with one empty frame in front,
whatever its envelope was (`broker.net.peer_interfaces`), and send theirs so; the envelope is kept here, and put
before each answer.

Rules:
- A client behind a proxy is a *route* of the proxy's connection. It has an identity and a connection number of its own:
  the identity is derived from the connection and the envelope, and begins with a zero octet, as those that the ROUTER
  generates; the number is negative.
- It passes for a REQ socket: it is answered at each request, and whether it could take anything else is unknown. A
  message to it is sent all the same where the protocol of the wire has it subscribe to messages.
- A route ends with its connection, by `Routes.end`, or if its connection has `MAX_ROUTES` others that were used since:
  a proxy does not report that one of its clients has left.
- All connections together have `MAX_ALL_ROUTES`: each client may make routes, and no account of memory has them. Then
  the least recently used one of the address with the most routes makes room, by the rule of places
  (`broker.core.place_table`). A newcomer whose address has more replaces a route of its own address.
- Of a REQ socket that numbers its requests, the number goes back with the answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from typing import Protocol

import attrs

from broker.access.identity import network_of
from broker.core.errors import Reason, Refusal
from broker.core.place_table import both_ends
from broker.net.peer_interfaces import (
    ENVELOPE_TOO_LONG,
    REQ,
    Conversation,
    Envelope,
    Part,
    R,
    RefusalLog,
    Router,
    Sender,
    Sent,
    envelope_key,
    envelope_size,
    route_of,
)

MAX_ROUTES = 500
"""Routes of one connection: the clients of one proxy. Each takes about a kilobyte here, or three with the longest
envelope, and a session of the wire."""

MAX_ALL_ROUTES = 20_000
"""Routes of all connections of a ROUTER: 60 MB, and twice as many as there are sessions by default."""


@attrs.frozen(eq=False)
class Route:
    """One client behind a proxy: ``peer`` is the identity of the proxy's connection, ``envelope`` has the routing
    frames, and ``source`` is the network for which it counts."""

    identity: bytes
    number: int
    peer: bytes
    envelope: Envelope
    source: str


class Socket(Router, Protocol):
    """The ROUTER."""

    def serve(
        self,
        conversation: Conversation,
        claim: Callable[[bytes, Sender], bool] = ...,
        opened: Callable[[bytes, int], object] = ...,
    ) -> None:
        """Pass messages to ``conversation`` from now on; ``claim`` decides on identities without a connection, and
        ``opened`` gets the identity and the number of each new one."""


class Routes:
    """The routes of a ROUTER: a `Router` for the sessions, and the `Conversation` of the ROUTER.

    ``begins`` returns True for a message that has no envelope although its first frame is not empty, as some wires
    permit. ``wire`` names the wire in counters and logs.
    """

    def __init__(
        self, router: Socket, wire: str, begins: Callable[[Sequence[Part]], bool], refusal_log: RefusalLog
    ) -> None:
        self._router = router
        self._wire = wire
        self._begins = begins
        self._refusal_log = refusal_log
        self._inner: Conversation
        self._of_connection: dict[int, OrderedDict[Envelope, Route]] = {}
        """By the number of the connection, then by envelope; the least recently used one first."""
        self._connections: dict[bytes, int] = {}
        """The numbers of these connections, by identity."""
        self._routes: OrderedDict[bytes, Route] = OrderedDict()
        """By identity; the least recently used one first."""
        self._of_source: dict[str, OrderedDict[bytes, Route]] = {}
        """By network, then by identity; the least recently used one first."""
        self._numbers = count(-1, -1)
        self._current: Route | None = None
        """The route of the message in progress."""
        self._correlated: tuple[bytes, Envelope] = (b"", ())
        """The peer of the request in progress, and its number, of a REQ socket that numbers them."""

    def __len__(self) -> int:
        return len(self._routes)

    def serve(
        self,
        conversation: Conversation,
        claim: Callable[[bytes, Sender], bool] = lambda identity, sender: True,
        opened: Callable[[bytes, int], object] = lambda identity, connection: None,
    ) -> None:
        """Pass messages to ``conversation`` from now on; ``claim`` and ``opened`` as in the ROUTER."""
        self._inner = conversation
        self._router.serve(self, claim, opened)

    # calls of the ROUTER

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""
        if not frames or not frames[0] or self._begins(frames):
            self._inner.receive(identity, frames, connection)
            return
        length = envelope_size(frames)
        if length is None:
            self._refusal_log.add(self._wire, self.sender().address, Refusal(Reason.PARAMETER, ENVELOPE_TOO_LONG))
            return
        if not length:
            self._inner.receive(identity, frames, connection)
            return
        envelope, rest = tuple(frames[:length]), frames[length - 1 :]
        routing = route_of(envelope, self._router.sender().socket_type)
        if routing:
            self._current = self._route(identity, connection, routing)
            identity, connection = self._current.identity, self._current.number
        else:
            self._correlated = identity, envelope[:-1]
        try:
            self._inner.receive(identity, rest, connection)
        finally:
            self._current, self._correlated = None, (b"", ())

    def closed(self, connection: int) -> None:
        """Process the end of a connection, and of all its routes."""
        for route in list(self._of_connection.get(connection, {}).values()):
            self._close(connection, route)
        self._inner.closed(connection)

    def needs(self, connection: int) -> bool:
        """Return True while the peer of a connection, or a client behind it, offers or waits for something."""
        routes: Mapping[Envelope, Route] = self._of_connection.get(connection, {})
        return self._inner.needs(connection) or any(self._inner.needs(route.number) for route in routes.values())

    def room(self, identity: bytes) -> None:
        """Handle the end of backpressure on a connection, and so on all its routes."""
        self._inner.room(identity)
        for route in list(self._of_connection.get(self._connections.get(identity, 0), {}).values()):
            self._inner.room(route.identity)

    # calls of the sessions

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.peer_interfaces.Router`."""
        route = self._routes.get(identity)
        if route is None:
            return self._router.send(identity, frames)
        return self._router.send(route.peer, (*route.envelope, *frames))

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """See `broker.net.peer_interfaces.Router`."""
        route = self._routes.get(identity)
        if route is not None:
            return self._router.reply(route.peer, (*route.envelope, *frames))
        peer, number = self._correlated
        return self._router.reply(identity, (*number, *frames) if peer == identity else frames)

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `broker.net.peer_interfaces.Router`."""
        routes = self._routes
        if not routes:
            return self._router.send_all(receivers, frames, now)
        failed = self._router.send_all([each for each in receivers if each.identity not in routes], frames, now)
        for receiver in receivers:
            if receiver.identity in routes:
                sent = self.send(receiver.identity, frames)
                if sent is Sent.SENT:
                    receiver.sent = now
                else:
                    failed.append((receiver, sent))
        return failed

    def sender(self) -> Sender:
        """See `broker.net.peer_interfaces.Router`."""
        sender = self._router.sender()
        return sender if self._current is None else attrs.evolve(sender, socket_type=REQ)

    def key(self) -> str:
        """See `broker.net.peer_interfaces.Router`."""
        return self._router.key()

    def end(self, identity: bytes, number: int) -> None:
        """See `broker.net.peer_interfaces.Router`: of a route, only that."""
        route = self._routes.get(identity)
        if route is None:
            self._router.end(identity, number)
        elif route.number == number:
            self._close(self._connections[route.peer], route)

    # routes

    def _route(self, peer: bytes, connection: int, envelope: Envelope) -> Route:
        """Return the route of an envelope, which may be new, and mark it as used now."""
        routes = self._of_connection.get(connection, OrderedDict())
        route = routes.get(envelope)
        if route is not None:
            routes.move_to_end(envelope)
            self._routes.move_to_end(route.identity)
            self._of_source[route.source].move_to_end(route.identity)
            return route
        source = network_of(self._router.sender().address)
        if len(routes) >= MAX_ROUTES:
            self._close(connection, next(iter(routes.values())))
        elif len(self._routes) >= MAX_ALL_ROUTES:
            unused = self._to_displace(source)
            self._close(self._connections[unused.peer], unused)
        routes = self._of_connection.setdefault(connection, OrderedDict())  # its last one may have ended
        about = connection.to_bytes(8) + envelope_key(envelope)
        route = Route(b"\0" + blake2b(about, digest_size=16).digest(), next(self._numbers), peer, envelope, source)
        routes[envelope] = route
        self._connections[peer] = connection
        self._routes[route.identity] = route
        self._of_source.setdefault(source, OrderedDict())[route.identity] = route
        return route

    def _to_displace(self, source: str) -> Route:
        """Return the route that makes room for one of that network. Examines a bounded number: a crowd that has just
        arrived has the routes that were used last."""
        most = max((self._routes[each].source for each in both_ends(self._routes)), key=self._count)
        return next(iter(self._of_source[most if self._count(most) >= self._count(source) else source].values()))

    def _count(self, source: str) -> int:
        return len(self._of_source.get(source, ()))

    def _close(self, connection: int, route: Route) -> None:
        routes = self._of_connection[connection]
        of_source = self._of_source[route.source]
        del routes[route.envelope], self._routes[route.identity], of_source[route.identity]
        if not of_source:
            del self._of_source[route.source]
        if not routes:
            del self._of_connection[connection]
            self._connections.pop(route.peer, None)
        self._inner.closed(route.number)
