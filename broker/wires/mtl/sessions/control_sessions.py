"""Sessions of the control flow: the state of each peer, and the table of all sessions.

States of a session, and the events that change them. An event that is not in the row of a state is a defect, and raises
`IllegalTransition`.

    state             meaning                                       event: state that follows
    NEW               not in the table yet                          opened: OPENED
    REFUSED           opened a virtual host that it may not use     opened: OPENED; lost: REFUSED
    OPENED            has to authenticate                           opened, lost: OPENED; refused: REFUSED;
                                                                    begun: AUTHENTICATING; admitted: AUTHORIZED
    AUTHENTICATING    a SASL exchange is in progress                ended, lost: OPENED
    AUTHORIZED        may choose profiles and ask for leases        opened, lost: OPENED; admitted: AUTHORIZED;
                                                                    begun: REAUTHENTICATING
    REAUTHENTICATING  as AUTHORIZED, with an exchange in progress   ended: AUTHORIZED; lost: OPENED

Invariants:
- The key of a session is the number of its connection with the route of the request
  (`broker.net.peer_interfaces`), so that each client behind a proxy has a session.
- A session ends with its connection. Connection numbers are never reused, so no peer can take over a session by its
  identity.
- RFC 11 has no request that ends a session, and a proxy does not report which of its clients left. So the number of
  sessions is bounded, not their age: the least recently used session makes room. Sessions without access make room
  first, so that peers that fail to authenticate end no other sessions. Each connection has a limited share of the
  table, so that a peer that invents routing frames ends its own sessions.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.access.identity import is_local
from broker.core.errors import Elsewhere, Reason, Refusal
from broker.core.interfaces import ILease
from broker.net.peer_interfaces import Envelope, Sender, envelope_key, route_of
from broker.wires.mtl.codec import control_messages as wire
from broker.wires.mtl.codec.control_messages import EncodedReply, ReplyStatus
from broker.wires.mtl.sessions.access_policy import Principal
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.sasl import SaslExchange

SHARE = 10
"""Divisor of all sessions: the most that one connection may have. A proxy carries many clients, but not all of them."""

MAX_KEY = 128
"""Bytes of a key that is stored as it is; a longer key is stored as its digest. Real keys have 8 to 40 bytes. The
longest that a peer may send have over 1,000, and would double the size of its session."""


def key_of(connection: int, envelope: Envelope, sender: Sender) -> bytes:
    """Return the key of the session of that connection, for a request with these routing frames."""
    key = connection.to_bytes(8) + envelope_key(route_of(envelope, sender.socket_type))
    # No plain key begins with this byte: it would belong to a connection number above 2^63.
    return key if len(key) <= MAX_KEY else b"\xff" + blake2b(key, digest_size=32).digest()


def is_secure(sender: Sender) -> bool:
    """Return True if no third party can read the messages of that peer: it is on this machine, or uses CURVE."""
    return bool(sender.key) or is_local(sender.address)


class SessionState(enum.Enum):
    """State of a session; see the table at the head of this module."""

    NEW = "new"
    REFUSED = "refused"
    OPENED = "opened"
    AUTHENTICATING = "authenticating"
    AUTHORIZED = "authorized"
    REAUTHENTICATING = "reauthenticating"


class SessionEvent(enum.Enum):
    """Event that may change the state of a session."""

    OPENED = "opened"
    """A well-formed Connection.Open came. Exchanges in progress were ended before."""
    REFUSED = "refused"
    """The virtual host does not exist, or the user may not open it."""
    BEGUN = "begun"
    """A SASL exchange began."""
    ENDED = "ended"
    """The exchange ended. Its outcome is a further event, if it has one: a broker that is too busy gives none."""
    ADMITTED = "admitted"
    """The session has access: by SASL, by its CURVE key, or since no authentication is needed."""
    LOST = "lost"
    """The session lost its access, or failed to get it."""


class IllegalTransition(RuntimeError):
    """An event that cannot happen in the state of the session: a defect of the broker."""


_TRANSITIONS: Mapping[SessionState, Mapping[SessionEvent, SessionState]] = {
    SessionState.NEW: {
        SessionEvent.OPENED: SessionState.OPENED,
    },
    SessionState.REFUSED: {
        SessionEvent.OPENED: SessionState.OPENED,
        # A change of the rules may revoke the leases that an earlier Open gave.
        SessionEvent.LOST: SessionState.REFUSED,
    },
    SessionState.OPENED: {
        SessionEvent.OPENED: SessionState.OPENED,
        SessionEvent.REFUSED: SessionState.REFUSED,
        SessionEvent.BEGUN: SessionState.AUTHENTICATING,
        SessionEvent.ADMITTED: SessionState.AUTHORIZED,
        SessionEvent.LOST: SessionState.OPENED,
    },
    SessionState.AUTHENTICATING: {
        SessionEvent.ENDED: SessionState.OPENED,
        SessionEvent.LOST: SessionState.OPENED,
    },
    SessionState.AUTHORIZED: {
        SessionEvent.OPENED: SessionState.OPENED,
        SessionEvent.BEGUN: SessionState.REAUTHENTICATING,
        SessionEvent.ADMITTED: SessionState.AUTHORIZED,
        SessionEvent.LOST: SessionState.OPENED,
    },
    SessionState.REAUTHENTICATING: {
        SessionEvent.ENDED: SessionState.AUTHORIZED,
        SessionEvent.LOST: SessionState.OPENED,
    },
}

_READY = (SessionState.AUTHORIZED, SessionState.REAUTHENTICATING)


@attrs.frozen(eq=False)
class ReplyPath:
    """Return path of a reply: the identity of the peer, and the routing frames of the request."""

    identity: bytes
    envelope: Envelope


@attrs.define(eq=False)
class Pipeline:
    """A request that waits for its answer, and the requests of the same session behind it.

    - ``back`` is the return path of the request; ``behind`` has path, request and size of the following ones.
    - ``pending`` is the operation that the answer waits for.
    - ``over``: the session ended, and all requests were answered by the code that ended it.
    - ``stale``: some user lost access meanwhile, perhaps the one that is being authenticated.
    """

    back: ReplyPath
    behind: deque[tuple[ReplyPath, wire.ControlRequest | wire.EncodedReply, int]] = attrs.field(factory=deque)
    pending: Deferred[Any] | None = None
    over: bool = False
    stale: bool = False


@attrs.define(eq=False)
class RunningExchange:
    """A SASL exchange in progress. ``late`` is called with the session when the ``deadline`` passes."""

    exchange: SaslExchange
    session: ControlSession
    late: Callable[[ControlSession], object]
    deadline: ILease = attrs.field(init=False)

    def check(self, now: float) -> float | None:
        """End the exchange at its deadline."""
        self.late(self.session)
        return None


class ControlSession:
    """One peer, from its first valid Connection.Open on.

    - ``connection`` is the number of its connection.
    - ``host`` is the virtual host that it opened; in the state REFUSED it has no meaning.
    - ``principal`` is the user with their permissions. It owns the leases of the session, and outlasts a further Open:
      data flows go on until another user is admitted.
    - ``running`` is the SASL exchange in the states AUTHENTICATING and REAUTHENTICATING, None in all others.
    - ``turn`` is the request that waits for an answer, if there is one.
    """

    __slots__ = (
        "address", "connection", "curve", "host", "key", "principal", "profile", "running", "secure", "state", "turn",
    )  # fmt: skip

    def __init__(self, key: bytes, connection: int, sender: Sender) -> None:
        self.key = key
        self.connection = connection
        self.address = sender.address
        self.curve = sender.key
        self.secure = is_secure(sender)
        self.state = SessionState.NEW
        self.host = ""
        self.principal: Principal | None = None
        self.profile: Profile | None = None
        self.running: RunningExchange | None = None
        self.turn: Pipeline | None = None

    @property
    def ready(self) -> bool:
        """True if the session has access; requests are still refused while an exchange is in progress."""
        return self.state in _READY

    def on(self, event: SessionEvent) -> None:
        """Change the state. Raises `IllegalTransition`."""
        following = _TRANSITIONS[self.state].get(event)
        if following is None:
            raise IllegalTransition(f"{event.value} in the state {self.state.value}")
        self.state = following


class ControlSessionTable:
    """All sessions, at most ``most``.

    ``ended`` is called with each session that was evicted or has ended, and True if its peer is still connected.
    """

    def __init__(self, most: int, ended: Callable[[ControlSession, bool], None]) -> None:
        self.most = most
        self._ended = ended
        # Least recently used sessions first, in all three.
        self._strangers: OrderedDict[bytes, ControlSession] = OrderedDict()
        self._ready: OrderedDict[bytes, ControlSession] = OrderedDict()
        self._of_connection: dict[int, dict[bytes, ControlSession]] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._ready)

    def __iter__(self) -> Iterator[ControlSession]:
        # A copy: sessions end while the caller walks over them.
        return iter([*self._ready.values(), *self._strangers.values()])

    def __contains__(self, session: ControlSession) -> bool:
        return self._tier(session).get(session.key) is session

    def find(self, key: bytes) -> ControlSession | None:
        """Return the session of that key, and mark it as used now; None if there is none."""
        session = self._ready.get(key) or self._strangers.get(key)
        if session is None:
            return None
        self._tier(session).move_to_end(key)
        own = self._of_connection[session.connection]
        if len(own) > 1:
            own[key] = own.pop(key)
        return session

    def add(self, session: ControlSession) -> None:
        """Add a session, which may take the place of another."""
        own = self._of_connection.get(session.connection, {})
        # The share of the connection comes first: it must not end a session of another connection instead.
        if len(own) >= max(1, self.most // SHARE):
            self._remove(next(iter(own.values())), there=True)
        while len(self) >= max(1, self.most):
            self._remove(next(iter((self._strangers or self._ready).values())), there=True)
        self._tier(session)[session.key] = session
        self._of_connection.setdefault(session.connection, {})[session.key] = session

    def on(self, session: ControlSession, event: SessionEvent) -> None:
        """Change the state of a session, which may not be in the table yet, and mark it as used now."""
        there = self._tier(session).pop(session.key, None) is not None
        try:
            session.on(event)
        finally:
            if there:
                self._tier(session)[session.key] = session

    def of(self, connection: int) -> Collection[ControlSession]:
        """Return the sessions of a connection."""
        return self._of_connection.get(connection, {}).values()

    def closed(self, connection: int) -> None:
        """End all sessions of a connection that closed."""
        for session in list(self._of_connection.get(connection, {}).values()):
            self._remove(session, there=False)

    def _tier(self, session: ControlSession) -> OrderedDict[bytes, ControlSession]:
        return self._ready if session.ready else self._strangers

    def _remove(self, session: ControlSession, there: bool) -> None:
        del self._tier(session)[session.key]
        own = self._of_connection[session.connection]
        del own[session.key]
        if not own:
            del self._of_connection[session.connection]
        self._ended(session, there)


# Replies of the control flow with a fixed content, and the statuses of refusals.

NOT_OPEN = wire.error(ReplyStatus.BAD_REQUEST, "open")
NO_PROFILE = wire.error(ReplyStatus.BAD_REQUEST, "no profile is chosen")
NO_SUCH_PROFILE = wire.error(ReplyStatus.BAD_REQUEST, "there is no such profile")
NOT_ASKED = wire.error(ReplyStatus.BAD_REQUEST, "the broker needs no authentication")
NOT_IMPLEMENTED = wire.error(ReplyStatus.NOT_IMPLEMENTED)
STOPPING = wire.error(ReplyStatus.UNAVAILABLE, "the broker is stopping")
DRAINING = wire.error(ReplyStatus.UNAVAILABLE, "the broker is draining: connect to another one")
DEFECT = wire.error(ReplyStatus.INTERNAL_ERROR, "a defect of the broker, which was logged")

_STATUS = {
    Reason.LIMIT: ReplyStatus.TOO_MANY,
    Reason.TOO_MANY_GUESSES: ReplyStatus.TOO_MANY,
    Reason.FORBIDDEN: ReplyStatus.FORBIDDEN,
    Reason.UNAVAILABLE: ReplyStatus.UNAVAILABLE,
}
"""Statuses of refusals by their reason; all others are answered with 400."""


def refused(refusal: Refusal) -> EncodedReply:
    """Return the reply to a refused request. For a resource of another broker, it names that and its endpoint."""
    if isinstance(refusal, Elsewhere):
        place = {"owner": refusal.owner, "endpoint": refusal.endpoint}
        return wire.error(ReplyStatus.MISDIRECTED, refusal.text, place)
    return wire.error(_STATUS.get(refusal.reason, ReplyStatus.BAD_REQUEST), refusal.text)
