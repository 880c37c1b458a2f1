"""The sessions of the control flow, one for each peer, and the table of them.

Rules:
- A session is known by the number of its connection and the routing frames before the request, so that clients behind a
  proxy have one each. Those of a REQ socket do not count: it connects directly, and what it may put there is the number
  of its request.
- A session ends with its connection. The number of a connection never comes again, so a session cannot be taken over
  with an identity.
- RFC 11 has no end of a session, and a proxy does not tell which of its clients left. So sessions are bounded in
  number, not in time: the one that was silent for longest makes room. Those that have no access yet do so first, so
  that peers that cannot log in end no other's; and one connection has a limited part of the table, so that a peer that
  makes up routing frames ends its own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.core.interfaces import ILease
from broker.net.interfaces.addresses import is_loopback
from broker.net.interfaces.router import Sender
from broker.wires.mtl.codec import control as wire
from broker.wires.mtl.sessions.grants import Principal
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.sasl import Exchange

SHARE = 10
"""A connection may have one in so many of all sessions: a proxy stands for many clients, but not for the whole farm."""

MAX_KEY = 128
"""Bytes of a key that is kept as it is; of a longer one a digest is. Real ones have 8 to 40; the longest that a peer
may send have over 1,000, and would make its session twice as large as it may be."""

_REQ = "REQ"

_UNIX = "uid "
"""How the addresses of peers at a unix socket begin."""


def key_of(connection: int, envelope: Sequence[bytes], sender: Sender) -> bytes:
    """The key of the session of that connection, for a request with these routing frames."""
    routing = () if sender.socket_type == _REQ else envelope
    key = connection.to_bytes(8) + b"".join([len(part).to_bytes(4) + part for part in routing if part])
    # No key that is not a digest begins so: that would be the number of a connection above 2^63.
    return key if len(key) <= MAX_KEY else b"\xff" + blake2b(key, digest_size=32).digest()


def is_secure(sender: Sender) -> bool:
    """Whether nobody else can read the messages of that peer: it is on this machine, or uses CURVE."""
    if sender.key or sender.address.startswith(_UNIX):
        return True
    return is_loopback(sender.address)


@attrs.frozen(eq=False)
class Back:
    """The way back of a reply: to a peer, behind the routing frames of the request."""

    identity: bytes
    envelope: tuple[bytes, ...]


@attrs.define(eq=False)
class Turn:
    """A request of one session that waits for its answer, and those behind it.

    ``pending`` is what the answer waits for. Whoever ends the session answers all of them, and says that it is
    ``over``. ``stale`` says that somebody has lost access meanwhile, perhaps the one who is being let in.
    """

    back: Back
    behind: deque[tuple[Back, wire.Request | wire.Sent, int]] = attrs.field(factory=deque)
    pending: Deferred[Any] | None = None
    over: bool = False
    stale: bool = False


@attrs.define(eq=False)
class Running:
    """An exchange that goes on. ``late`` is called with the session when the ``deadline`` comes."""

    exchange: Exchange
    session: Session
    late: Callable[[Session], object]
    deadline: ILease = attrs.field(init=False)

    def check(self, now: float) -> float | None:
        """It took too long."""
        self.late(self.session)
        return None


class Session:
    """One peer, from a good Connection.Open on.

    ``connection`` is the number of its connection. ``host`` is the virtual host that it asked for, None when it asked
    for one that it may not be in. ``ready`` says that it has access. ``principal`` is the one that it acts for, or did,
    and that has its leases.
    """

    __slots__ = (
        "address", "connection", "curve", "host", "key", "principal", "profile", "ready", "running", "secure", "turn",
    )  # fmt: skip

    def __init__(self, key: bytes, connection: int, sender: Sender) -> None:
        self.key = key
        self.connection = connection
        self.address = sender.address
        self.curve = sender.key
        self.secure = is_secure(sender)
        self.host: str | None = None
        self.ready = False
        self.principal: Principal | None = None
        self.profile: Profile | None = None
        self.running: Running | None = None
        """How it is asked who it is, while it is."""
        self.turn: Turn | None = None
        """What waits for an answer, while anything does."""


class Sessions:
    """The table of all sessions, ``most`` at once.

    ``ended`` is called with each session that made room or is over, and with whether its peer is still there.
    """

    def __init__(self, most: int, ended: Callable[[Session, bool], None]) -> None:
        self.most = most
        self._ended = ended
        # In all three, those that were silent for longest come first.
        self._strangers: OrderedDict[bytes, Session] = OrderedDict()
        self._ready: OrderedDict[bytes, Session] = OrderedDict()
        self._of_connection: dict[int, dict[bytes, Session]] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._ready)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._ready.values(), *self._strangers.values()])

    def __contains__(self, session: Session) -> bool:
        return self._tier(session).get(session.key) is session

    def find(self, key: bytes) -> Session | None:
        """The session of that key, which is used now, if there is one."""
        session = self._ready.get(key) or self._strangers.get(key)
        if session is None:
            return None
        self._tier(session).move_to_end(key)
        own = self._of_connection[session.connection]
        if len(own) > 1:
            own[key] = own.pop(key)
        return session

    def add(self, session: Session) -> None:
        """A new session, which may take the place of another."""
        own = self._of_connection.get(session.connection, {})
        if len(own) >= max(1, self.most // SHARE):
            self._remove(next(iter(own.values())), there=True)
        while len(self) >= max(1, self.most):
            self._remove(next(iter((self._strangers or self._ready).values())), there=True)
        self._tier(session)[session.key] = session
        self._of_connection.setdefault(session.connection, {})[session.key] = session

    def admit(self, session: Session, ready: bool) -> None:
        """From now on a session has access, or has none."""
        there = self._tier(session).pop(session.key, None) is not None
        session.ready = ready
        if there:
            self._tier(session)[session.key] = session

    def closed(self, connection: int) -> None:
        """A connection ended, and all its sessions."""
        for session in list(self._of_connection.get(connection, {}).values()):
            self._remove(session, there=False)

    def _tier(self, session: Session) -> OrderedDict[bytes, Session]:
        return self._ready if session.ready else self._strangers

    def _remove(self, session: Session, there: bool) -> None:
        del self._tier(session)[session.key]
        own = self._of_connection[session.connection]
        del own[session.key]
        if not own:
            del self._of_connection[session.connection]
        self._ended(session, there)
