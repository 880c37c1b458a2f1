"""Table of mc0 sessions by identity: claim, begin, attach to a connection, keep-alive, restore and end.

Rules (docs/protocols/mc0.md, "Life of a session"; `!` marks what the real client, MCollective's connector, requires):
- Any message begins a session; CONNECT gives it a TTL. Without a TTL it lasts as long as its connection; with
  subscriptions for `RECONNECT_WITHIN` longer, since ZeroMQ sockets reconnect by themselves and do not subscribe again.
- The session of a peer without an identity of its own ends with its connection: nobody could come back to it.
- A session from which no message arrives for 1.05 TTL, and up to a sixty-fourth more, ends without a notice. If many
  peers are silent at once, it is kept for longer (`broker.core.silence`): its subscriptions would not come back.
- (!) A session with a TTL is sent a NOOP after half a TTL in which it was sent no other message.
- Sessions survive a restart: the state that CONNECT, SUB and UNSUB made is recorded, and restored at the next start for
  one TTL. The peers' sockets reconnect by themselves, and send nothing of their own accord for up to a heartbeat.
- A drain, in which no peer can reconnect, does not count for sessions without a connection: they end neither in it nor
  in the restart that it is for, and have a whole TTL again when it is undone.
- While a connection has an identity, the ROUTER refuses any other owner that requests it. Afterwards `claim` decides:
  an identity belongs to its owner (`admission`), without keys as long as its session lasts. That of a key without a
  user is free: another key ends the session, which has no connection, and begins its own.

A session has exactly one lease while it has a TTL or no connection, and otherwise none.

Admission of mc0 sessions: admitted client keys, the identities bound to them, topic rights.

A client chooses its identity, and the peer with that identity receives its messages. So an identity has an owner, as
`broker.access.identity` defines it: the user, the key or the host of the first peer that used it. That of a user
belongs to the user also after the end of its session, until the key that used it last is revoked or `MAX_BOUND` other
identities were used since.

A key without a user proves nothing about its holder and costs nothing to make: the binding lasts as long as the
session. A longer one would only let strangers reserve names, and lock out clients with a new key. See
docs/protocols/mc0.md, "Security".
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from twisted.logger import Logger

from broker.access.identity import owner_of
from broker.access.rights import EVERYTHING, Grants
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.interfaces import ILeases
from broker.core.model import KnownSession
from broker.core.silent_peers import Silence
from broker.core.turns import for_each
from broker.net.peer_interfaces import RefusalLog, Router, Sender, Sent
from broker.wires.common.registry_topics import TopicRights, rights_of
from broker.wires.mc0.codec import mc0_messages as wire
from broker.wires.mc0.sessions.mc0_session import Mc0Outbound, Mc0Session, Mc0Subscriptions, shown

MAX_BOUND = 100_000
"""Identities bound to users: several for each node of the largest farm, since the real connector uses a new one for
each of its processes and threads. The least recently used one is evicted."""


class Admission:
    """Admission rules of the wire.

    ``name_of`` returns the user of a client key, empty for the anonymous one, None if the key is not admitted.
    ``max_bound`` is the maximal number of identities bound to users. ``grants`` returns the grants of a user.
    """

    def __init__(
        self,
        name_of: Callable[[str], str | None],
        grants: Callable[[str], Grants] = lambda user: EVERYTHING,
        max_bound: int = MAX_BOUND,
    ) -> None:
        self._max_bound = max_bound
        self._name_of = name_of
        self._grants = grants
        self._bound: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        """Owner and last key of each identity."""

    def owner(self, sender: Sender) -> str:
        """Return the owner of the session of a peer."""
        name = self._name_of(sender.key) if sender.key else None
        return owner_of(name or "", sender.address, sender.key)

    def keeps(self, sender: Sender) -> bool:
        """Return True if the identity of a peer without a connection stays its own: it has a user, or no key."""
        return not sender.key or bool(self._name_of(sender.key))

    def may_use(self, identity: bytes, owner: str) -> bool:
        """Return True if the identity is bound to that owner, or to none."""
        return self._bound.get(identity, (owner, ""))[0] == owner

    def admit(self, identity: bytes, sender: Sender) -> str:
        """Bind an identity to the user of its peer. Returns the user, empty for the anonymous one.

        Raises `Refusal` if the key is not admitted, or the identity is bound to another owner.
        """
        key = sender.key
        name = self._name_of(key) if key else ""
        if name is None:
            raise Refusal(Reason.KEY_NOT_ALLOWED, f"the client key {key} is not allowed any more")
        owner = self.owner(sender)
        if not self.may_use(identity, owner):
            before, old = self._bound[identity]
            text = f"the client key {key} ({name}) uses an identity of the key {old} ({before})"
            raise Refusal(Reason.IDENTITY_TAKEN, text)
        if name:
            self._bound[identity] = owner, key
            self._bound.move_to_end(identity)
            if len(self._bound) > self._max_bound:
                self._bound.popitem(last=False)
        return name

    def release(self, keys: Collection[str]) -> None:
        """Release the identities that are bound to these revoked keys."""
        for identity in [identity for identity, (_, key) in self._bound.items() if key in keys]:
            del self._bound[identity]

    def rights(self, user: str) -> TopicRights:
        """Return the topic rights of a user."""
        return rights_of(self._grants(user))


NOOP_AFTER = 0.5
"""TTLs without an outbound message after which a NOOP is sent. The originals' 0.95 is too late for the connector, which
waits for 1.0 at most."""

CHECKS_PER_TTL = 64
"""Moments of a TTL at which sessions are checked, for NOOPs and for silence. 2,000 sessions with a TTL of 30 s wake the
broker at two moments a second instead of a hundred, and nothing is late by more than a sixty-fourth of the TTL."""

MIN_TTL = 0.2
"""Seconds. Shorter TTLs are raised to this: leases are checked every 50 ms, and a shorter one would end in between."""

RECONNECT_WITHIN = 60.0
"""Seconds for which a session without a TTL waits, after its connection closed, for its peer to reconnect."""

MAX_IDENTITY = 255
"""Bytes: the maximum in ZeroMQ's document. The ROUTER refuses peers with a longer one."""


class SessionRecord(Protocol):
    """Persistent record of sessions."""

    def remember_session(self, session: KnownSession) -> None:
        """Record a new or changed session."""

    def forget_session(self, identity: bytes) -> None:
        """Delete the session of that identity from the record."""


class Mc0SessionTable:
    """All sessions of the wire, in the order in which they began. Leases call `check`.

    ``most`` is the limit on sessions.
    """

    log = Logger()

    def __init__(
        self,
        router: Router,
        outbound: Mc0Outbound,
        subscriptions: Mc0Subscriptions,
        leases: ILeases,
        admission: Admission,
        refusal_log: RefusalLog,
        record: SessionRecord,
        most: int,
        silence: Silence,
    ) -> None:
        self.silence = silence
        self.silence.follow(self._with_ttl)
        self._router = router
        self._outbound = outbound
        self._subscriptions = subscriptions
        self._leases = leases
        self._admission = admission
        self._refusal_log = refusal_log
        self._record = record
        self.most = most
        self._sessions: dict[bytes, Mc0Session] = {}
        self._connections: dict[int, Mc0Session] = {}
        """Sessions with a connection, by its number."""
        self._routed: dict[int, Mc0Session] = {}
        """Those of clients behind proxies, the oldest first."""
        self._draining = False

    def __iter__(self) -> Iterator[Mc0Session]:
        return iter(self._sessions.values())

    def get(self, identity: bytes) -> Mc0Session | None:
        """Return the session of an identity."""
        return self._sessions.get(identity)

    def of(self, connection: int) -> Mc0Session | None:
        """Return the session of a connection."""
        return self._connections.get(connection)

    # identities and connections

    def claim(self, identity: bytes, sender: Sender) -> bool:
        """Return True if that peer may have an identity that no connection has.

        The ROUTER calls this in a handshake. The session of the identity waits for its peer to reconnect, and its
        messages must not reach another peer.
        """
        session, owner = self._sessions.get(identity), self._admission.owner(sender)
        if session is not None and self._admission.owner(session.sender) != owner:
            if self._admission.keeps(session.sender):
                return False
            self.end(session, "taken")
        return self._admission.may_use(identity, owner)

    def opened(self, identity: bytes, connection: int) -> None:
        """Attach the session of an identity to a new connection of its owner, whose peer may only receive from now on.

        The ROUTER calls this at the end of a handshake.
        """
        session = self._sessions.get(identity)
        if session is None or self._admission.owner(session.sender) != self._admission.owner(self._router.sender()):
            return  # the first message decides on the session: see `attach`
        self.attach(identity, connection)

    def attach(self, identity: bytes, connection: int) -> Mc0Session:
        """Return the session of an identity, which is new or arrives through another connection.

        To be called while the ROUTER receives a message, or opens the connection. Raises `Refusal`.
        """
        sender = self._router.sender()
        session = self._sessions.get(identity)
        # If the owner changed without a claim, the old session must not pass to the new one.
        if session is not None and self._admission.owner(session.sender) != self._admission.owner(sender):
            self.end(session, "taken")
            session = None
        # A known session is admitted again too: its key may have been revoked since.
        key_name = self._admission.admit(identity, sender)
        if session is None:
            session = self._begin(identity, sender, key_name, "begun")
        self._connections.pop(session.connection, None)
        session.sender = sender
        session.connection = connection
        self._connections[connection] = session
        if connection < 0:
            self._routed[connection] = session
        if not session.ttl:
            self.schedule(session)
        return session

    def detach(self, connection: int) -> None:
        """Process the end of a connection. Its session waits for the next one, unless it has no state to keep."""
        session = self._connections.pop(connection, None)
        self._routed.pop(connection, None)
        if session is None:
            return  # no message arrived through it, or the session has ended
        session.connection = 0
        session.slow = False
        if connection < 0 or session.identity.startswith(b"\0"):
            # A client behind a proxy (`broker.wires.common.routes`), or one without an identity of its own: no later
            # connection has this one, so that nobody could come back to the session.
            self.end(session, "gone")
        elif not session.ttl:
            if session.requested:
                self.schedule(session)
            else:
                self.end(session, "gone")

    # lifecycle

    def _begin(self, identity: bytes, sender: Sender, key_name: str, event: str) -> Mc0Session:
        """Return a new session. Raises `Refusal` at the limit."""
        if len(self._sessions) >= self.most:
            # One connection of a proxy has hundreds of clients, and would else keep out those of hundreds of others.
            behind = next(iter(self._routed.values()), None)
            if behind is None:
                raise at_limit(f"there are {self.most} sessions already", "mc0.sessions")
            self.end(behind, "displaced")
        session = Mc0Session(self, identity, sender, key_name, self._admission.rights(key_name))
        session.sent = self._leases.now
        self._sessions[identity] = session
        self._refusal_log.count("mc0_sessions", event)
        return session

    def end(self, session: Mc0Session, reason: str) -> None:
        """End a session with its subscriptions. ``reason`` is the event in the counter ``mc0_sessions``."""
        del self._sessions[session.identity]
        self.silence.ended(session)
        self._connections.pop(session.connection, None)
        self._routed.pop(session.connection, None)
        self._subscriptions.unsubscribe(session, list(session.topics))
        if session.lease is not None:
            session.lease.cancel()
        self._record.forget_session(session.identity)
        self._refusal_log.count("mc0_sessions", reason)
        self.log.debug("mc0 session of {peer} ended: {why}", peer=session, why=reason)

    def record(self, session: Mc0Session) -> None:
        """Record a changed session for a restart, or delete it from the record if it is not to survive one."""
        known = session.known() if session.lasting else None
        if known is None:
            self._record.forget_session(session.identity)
        else:
            self._record.remember_session(known)

    def revoke(self, keys: Collection[str]) -> Iterator[None]:
        """Return the steps that end the sessions of these revoked client keys: 20,000 take 0.5 s.

        The ROUTER has ended their service, and closes their connections.
        """
        self._admission.release(keys)
        return for_each([session for session in self._sessions.values() if session.key in keys], self._revoke)

    def _revoke(self, session: Mc0Session) -> None:
        if self._sessions.get(session.identity) is session:
            self.end(session, "revoked")

    # periodic checks

    def schedule(self, session: Mc0Session) -> None:
        """Schedule the next check of a session: for its next NOOP, or for the end of its time to reconnect."""
        if session.lease is not None:
            session.lease.cancel()
            session.lease = None
        now = self._leases.moment()
        if session.ttl:
            session.lease = self._leases.hold(session, _aligned(now + NOOP_AFTER * session.ttl, session.ttl))
        elif not session.connection:
            session.lease = self._leases.hold(session, now + RECONNECT_WITHIN)

    def check(self, session: Mc0Session, now: float) -> float | None:
        """Send a NOOP or end the session, if that is due. Returns the time of the next check, None after the end."""
        if self._waits(session):
            return now + RECONNECT_WITHIN
        if not session.ttl:
            self.end(session, "gone")
            return None
        # The slack of the leases covers messages that were received but are not processed yet.
        again = self.silence.review(session, now, self._leases.slack)
        if again is None:
            self.end(session, "expired")
            return None
        beat = session.sent + NOOP_AFTER * session.ttl
        if now >= beat:
            if self._outbound.noop(session) is not Sent.SENT:
                self._refusal_log.count("mc0_dropped", "noop")
            # Also after a failure: else the NOOP would be due again at each tick of the leases.
            session.sent = now
            beat = now + NOOP_AFTER * session.ttl
        return _aligned(min(again, beat), session.ttl)

    def _with_ttl(self) -> Iterator[Mc0Session]:
        return (session for session in self._sessions.values() if session.ttl and not self._waits(session))

    # drain

    def drain(self) -> None:
        """Keep all sessions without a connection until `undrain`: their peers are refused."""
        self._draining = True

    def undrain(self) -> None:
        """Let the peers of sessions without a connection reconnect, for a TTL or `RECONNECT_WITHIN`. No-op without a
        drain."""
        if self._draining:
            self._draining = False
            for session in self._sessions.values():
                if not session.connection:
                    session.heard = self._leases.moment()
                    self.schedule(session)

    def _waits(self, session: Mc0Session) -> bool:
        return self._draining and not session.connection

    # restart

    def restore(self, known: Iterable[KnownSession], keyed: bool) -> None:
        """Restore these sessions for one TTL from now, or `RECONNECT_WITHIN` without one.

        ``keyed`` is true if all peers have keys, and false if none has. Sessions that may not be restored are deleted
        from the record.
        """
        restored = discarded = 0
        for each in known:
            try:
                self._restore(each, keyed)
                restored += 1
            except Refusal as refusal:
                discarded += 1
                self._record.forget_session(each.identity)
                self.log.debug("mc0 session of {peer} not restored: {why}", peer=shown(each.identity), why=refusal.text)
        if restored or discarded:
            self.log.info(
                "mc0 sessions restored after the restart: {restored}; discarded: {discarded}",
                restored=restored,
                discarded=discarded,
            )

    def _restore(self, known: KnownSession, keyed: bool) -> None:
        """Restore one session. Raises `Refusal`."""
        identity = known.identity
        # The record is a file: its content is validated like input, since no peer could ever reach such a session.
        if not 0 < len(identity) <= MAX_IDENTITY or identity.startswith(b"\0"):
            raise Refusal(Reason.PARAMETER, "no peer can have this identity")
        if bool(known.key) is not keyed:
            raise Refusal(Reason.KEY_NOT_ALLOWED, "authentication changed between keys and none")
        sender = Sender(known.address, known.key)
        key_name = self._admission.admit(identity, sender)
        session = self._begin(identity, sender, key_name, "restored")
        session.version = known.version
        session.ttl = min(max(MIN_TTL, known.ttl), wire.MAX_TTL / 1000) if known.ttl else 0.0
        session.heard = self._leases.now
        self._subscriptions.subscribe_permitted(session, known.topics)
        self.schedule(session)


def _aligned(due: float, ttl: float) -> float:
    """Round a time up to a multiple of ``ttl / CHECKS_PER_TTL``: sessions with the same TTL share one wake-up."""
    grain = ttl / CHECKS_PER_TTL
    return math.ceil(due / grain) * grain
