"""The state of one mc0 session. `broker.wires.mc0.sessions.session_table` has the lifecycle.

Messages from the broker to mc0 sessions: replies, MESSAGEs and NOOPs, with the counts of dropped ones.

Invariants:
- Replies and MESSAGEs share one queue of the ROUTER for each peer, in the order of the calls. A MESSAGE or a NOOP is
  dropped while ``high_water`` messages are queued. A reply may be queued beyond those, and is dropped only when that
  room is full as well.
- Each drop is counted. The log has one line for each time that a session begins to lose messages.

The ROUTER's queues are in `broker.net.router`; `broker.wires.mc0.sessions.conversation` has the rules of the protocol.

Subscriptions of mc0 sessions to the topics of the core: the limits and rights that apply, and the delivery.

Invariants:
- A session's ``topics`` are exactly its subscriptions in the core. Its ``refused`` are topics that it requested and may
  not have; no topic is in both.
- A SUB subscribes to all of its topics or to none, except for the real connector and after a restart or a reload, where
  it subscribes to those that are permitted (`Mc0Subscriptions.subscribe_permitted`).

`broker.core.topics` has the topics, and `broker.wires.common.registry_topics` the rights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from broker.access.rights import RegistryReading
from broker.core.errors import Reason, Refusal, at_limit, no_right
from broker.core.interfaces import ILease, ILeases, ITopics
from broker.core.model import KnownSession
from broker.net.peer_interfaces import Part, RefusalLog, Router, Sender, Sent
from broker.wires.common.registry_topics import TopicRights, readers
from broker.wires.mc0.codec import mc0_messages as wire

MAX_SHOWN = 120
"""Characters of an identity in logs, and of a topic: identities of the real connector have about 100."""

MAX_KNOWN_TOPICS = 200
"""Topics, the refused ones included, of a session that is recorded for a restart: ten times those of a real node. It
bounds the disk writes that one SUB causes."""

MAX_KNOWN_BYTES = 32_768
"""Bytes of the names of these topics; a real node's have some 2,000."""

EXPIRES = 1.05
"""TTLs of silence after which a session ends: the tolerance of both original brokers."""

NOOP_OF_PEERS = 0.95
"""TTLs after its last message at which a peer sends a NOOP: the original clients' interval, so that all of a farm may
have been silent for so long."""


class SessionOwner(Protocol):
    """Owner of a session: the table that does its periodic work."""

    def check(self, session: Mc0Session, now: float) -> float | None:
        """Do the work that is due. Returns the time of the next check; None ends the lease."""


class Mc0Session:
    """State of one peer. It is a receiver of messages (`broker.net.peer_interfaces`), and the subject of a lease."""

    __slots__ = (
        "connection",
        "dropped",
        "heard",
        "identity",
        "key_name",
        "lease",
        "owner",
        "refused",
        "rights",
        "sender",
        "sent",
        "slow",
        "topics",
        "ttl",
        "version",
    )

    def __init__(
        self, owner: SessionOwner, identity: bytes, sender: Sender, key_name: str, rights: TopicRights
    ) -> None:
        self.owner = owner
        self.identity = identity
        self.sender = sender
        self.key_name = key_name
        self.rights = rights
        self.connection = 0
        """Number of the current connection; 0 while there is none."""
        self.lease: ILease | None = None
        """Lease for the periodic check. None for a session without a TTL while it has a connection."""
        self.version: bytes | None = None
        """VERSION of the last CONNECT, empty if it had none; None before the first CONNECT."""
        self.ttl = 0.0
        """Seconds; 0 for none."""
        self.heard = 0.0
        """Time of the last message from the peer, on the clock of the leases."""
        self.sent = 0.0
        """Time of the last message to the peer, on the same clock."""
        self.topics: dict[bytes, None] = {}
        """Topics to which the session is subscribed, in order."""
        self.refused: dict[bytes, None] = {}
        """Topics whose subscription was refused, in order. A reload may allow them later."""
        self.dropped = 0
        """Messages and answers dropped for this session."""
        self.slow = False
        """True while messages for it are dropped. The log has one line for each time that this begins."""

    def check(self, now: float) -> float | None:
        """Do the work that is due. Returns the time of the next check; None ends the lease."""
        return self.owner.check(self, now)

    @property
    def address(self) -> str:
        """The host of the peer."""
        return self.sender.address

    @property
    def payer(self) -> str:
        """The address that its topics count for; empty for a known key: see `StoredMemory`."""
        return "" if self.key_name else self.sender.address

    @property
    def key(self) -> str:
        """The CURVE key of the peer (Z85), empty without one."""
        return self.sender.key

    @property
    def pace(self) -> float:
        """The interval of the peer's NOOPs; see `broker.core.silent_peers.Silent`, as for the members below."""
        return NOOP_OF_PEERS * self.ttl

    @property
    def patience(self) -> float:
        """The silence after which the session ends."""
        return EXPIRES * self.ttl

    @property
    def providers(self) -> tuple[int, ...]:
        """Empty: a session offers no services, and is not checked."""
        return ()

    def confirm(self) -> None:
        """No-op: see `providers`."""

    def discard(self) -> None:
        """No-op: see `providers`."""

    @property
    def requested(self) -> int:
        """The number of topics that the peer requested, subscribed or refused."""
        return len(self.topics) + len(self.refused)

    @property
    def lasting(self) -> bool:
        """True if the peer can resume the session after a restart of the broker.

        An identity that begins with a zero byte was generated by the ROUTER. After a restart, another peer gets it.
        """
        if self.identity.startswith(b"\0") or self.requested > MAX_KNOWN_TOPICS:
            return False
        return bool(self.ttl or self.requested)

    def known(self) -> KnownSession | None:
        """Return the recorded state of the session; None if it is not to be recorded."""
        topics = (*self.topics, *self.refused)
        if not self.lasting or sum(map(len, topics)) > MAX_KNOWN_BYTES:
            return None
        return KnownSession(self.identity, self.key, self.address, self.ttl, self.version, topics)

    def __str__(self) -> str:
        return named(self.identity)


def named(identity: bytes) -> str:
    """Return a whole identity as printable text that no other identity has: an operator selects a session by it."""
    return _printable(identity.replace(b"\\", b"\\\\"))


def shown(name: bytes) -> str:
    """Return an identity or topic, which may be any bytes, as printable text for display and logs, cut at a limit."""
    text = _printable(name)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _printable(data: bytes) -> str:
    return "".join(c if c.isprintable() else _escaped(c) for c in data.decode("utf-8", "backslashreplace"))


def _escaped(character: str) -> str:
    r"""Return the escape of a character that is not printable. One of two bytes is no ``\x85``: that is a byte."""
    code = ord(character)
    return f"\\u{code:04x}" if 0x80 <= code <= 0xFF else character.encode("unicode_escape").decode()


class Mc0Outbound:
    """Outbound side of all sessions. ``delivered`` counts copies of MESSAGEs that were sent."""

    def __init__(self, router: Router, leases: ILeases, refusal_log: RefusalLog) -> None:
        self._router = router
        self._leases = leases
        self._refusal_log = refusal_log
        self.delivered = 0
        self.full = 0
        """Messages and replies that were dropped since their peers do not read."""

    def acknowledge(self, session: Mc0Session, id: bytes | None) -> None:
        """Send OK if the command had an ID, and so requested an answer."""
        if id is not None:
            self.reply(session, wire.ok(id))

    def reply(self, session: Mc0Session, frames: Sequence[Part]) -> None:
        """Send the answer to a command."""
        sent = self._router.reply(session.identity, frames)
        if sent is Sent.SENT:
            session.sent = self._leases.now
        else:
            self._dropped(session, sent)

    def acknowledge_end(self, session: Mc0Session, id: bytes | None) -> None:
        """Send OK to the DISCONNECT of a session that has ended, and so has no state to account a drop in."""
        if id is not None and self._router.reply(session.identity, wire.ok(id)) is not Sent.SENT:
            self._refusal_log.count("mc0_dropped", "ok")

    def fan_out(
        self, sessions: Collection[Mc0Session], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
    ) -> None:
        """Send a MESSAGE, which is encoded once, to all of these sessions."""
        failed = self._router.send_all(sessions, wire.message(topic, headers, body), self._leases.now)
        self.delivered += len(sessions) - len(failed)
        for session, outcome in failed:
            # A peer that does not read fails at each MESSAGE: this path is kept short, for the sake of the others.
            if outcome is Sent.FULL and session.slow:
                session.dropped += 1
                self.full += 1
            else:
                self._dropped(session, outcome)

    def noop(self, session: Mc0Session) -> Sent:
        """Send a NOOP. Returns the outcome; a dropped one is not counted here, since it needs no repetition."""
        return self._router.send(session.identity, wire.NOOP)

    def refuse_unadmitted(self, identity: bytes, id: bytes, refusal: Refusal) -> None:
        """Send ERROR to a peer that got no session."""
        self._router.reply(identity, wire.error(refusal.text.encode(), id))

    def complain(self, session: Mc0Session, refusal: Refusal) -> None:
        """Count and log a refusal, with the identity of the session."""
        refusal.summary = f"{shown(session.identity)}: {refusal.summary}"
        self._refusal_log.add("mc0", session.address, refusal)

    def _dropped(self, session: Mc0Session, outcome: Sent) -> None:
        session.dropped += 1
        if outcome is Sent.FULL:
            self.full += 1
        else:
            self._refusal_log.count("mc0_dropped", outcome.value)
        # A peer without a connection is no slow reader. `slow` is reset when the ROUTER reports room again.
        if outcome is not Sent.GONE and not session.slow:
            session.slow = True
            self.complain(session, Refusal(Reason.NOT_READING, "reads too slowly: messages for it are dropped"))


MAX_REFUSED = 100
"""Refused topics stored with a session: they are shown to operators, and subscribed when a reload allows them."""

MAX_REFUSED_BYTES = 8_192
"""Bytes of their names: four times those of a real node. No account has these bytes, which each session may take."""


class Mc0Subscriptions:
    """Subscriptions of all sessions: an outlet of the core's topics. ``most`` is the limit for one session."""

    def __init__(self, topics: ITopics, outbound: Mc0Outbound, most: int) -> None:
        self._topics = topics
        self._outbound = outbound
        self.most = most

    def deliver(
        self, subscribers: Collection[Mc0Session], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
    ) -> None:
        """Send a published message to these sessions. Called by the core's topics."""
        allowed = readers(subscribers, headers, _reading)
        if allowed:
            self._outbound.fan_out(allowed, topic, headers, body)

    def subscribe(self, session: Mc0Session, topics: Iterable[bytes]) -> list[bytes]:
        """Subscribe to all of these topics, or raise `Refusal` and subscribe to none.

        Returns the new ones, for `send_last`.
        """
        new = [topic for topic in dict.fromkeys(topics) if topic not in session.topics]
        refused = [topic for topic in new if not session.rights.may_subscribe(topic)]
        if refused:
            raise no_right("subscribe", shown(refused[0]), session.key_name)
        if len(session.topics) + len(new) > self.most:
            raise at_limit(f"may have {self.most} subscriptions, and no more", "mc0.subscriptions")
        for number, topic in enumerate(new):
            try:
                # The core's own copy of the name is stored, so that all subscribers share one.
                session.topics[self._topics.subscribe(topic, self, session, session.payer)] = None
            except Refusal:
                self.unsubscribe(session, new[:number])
                raise
        for topic in new:
            session.refused.pop(topic, None)
        return new

    def send_last(self, session: Mc0Session, topics: Iterable[bytes]) -> None:
        """Send the last values of new topics."""
        for topic in topics:
            value = self._topics.last(topic)
            if value is not None:
                self._outbound.fan_out((session,), topic, value.headers, value.body)

    def subscribe_permitted(self, session: Mc0Session, topics: Iterable[bytes]) -> list[bytes]:
        """Subscribe to those topics that are permitted, and store the others as refused. Returns the new ones."""
        refused: dict[Reason, Refusal] = {}
        new: list[bytes] = []
        for topic in topics:
            try:
                new += self.subscribe(session, (topic,))
            except Refusal as refusal:
                refused.setdefault(refusal.reason, refusal)
                if len(session.refused) < MAX_REFUSED:
                    names = sum(map(len, session.refused)) + len(topic)
                    if names <= MAX_REFUSED_BYTES:
                        session.refused[topic] = None
        # One line for each reason: the log has no use for a line for each of a thousand topics.
        for first in refused.values():
            self._outbound.complain(session, first)
        return new

    def unsubscribe(self, session: Mc0Session, topics: Iterable[bytes]) -> None:
        """End the subscriptions to these topics, and discard them from the refused ones. Idempotent."""
        for topic in topics:
            session.refused.pop(topic, None)
            if topic in session.topics:
                del session.topics[topic]
                self._topics.unsubscribe(topic, self, session)

    def apply_rights(self, session: Mc0Session) -> bool:
        """Apply changed rights of a session to its subscriptions. Returns True if these changed.

        Subscriptions that are no longer permitted end; refused ones that are permitted now begin, with last values.
        """
        ended = [topic for topic in session.topics if not session.rights.may_subscribe(topic)]
        permitted = [topic for topic in session.refused if session.rights.may_subscribe(topic)]
        if not ended and not permitted:
            return False
        self.unsubscribe(session, [*ended, *permitted])
        # The ended ones are requested again, only to be stored as refused: a later reload may permit them.
        self.send_last(session, self.subscribe_permitted(session, [*permitted, *ended]))
        return True


def _reading(session: Mc0Session) -> RegistryReading:
    return session.rights.reading
