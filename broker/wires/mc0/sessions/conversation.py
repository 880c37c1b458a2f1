"""mc0: a conversation for each identity, all of them through one ROUTER.

Rules (mc0 0.3; the real client, MCollective's connector, cannot do without the marked ones):
- Any message begins a session; CONNECT gives it a TTL. Without one it lasts as long as its connection: with
  subscriptions for `LOOK_AFTER` longer, since ZeroMQ peers connect again by themselves and do not subscribe again.
- (!) The OK to CONNECT, SUB and UNSUB goes out at once, before anything else on that session. Answers and MESSAGEs wait
  for a peer in one queue, in the order in which they were sent. A MESSAGE or a NOOP is dropped while ``high_water``
  messages wait; an answer may wait behind those, and is dropped only when that room is full as well.
- The MESSAGEs of a PUT go out before its OK.
- A session from which nothing comes for 1.05 TTL, and up to a sixty-fourth more, ends without a word.
- (!) A session with a TTL is sent a NOOP after half a TTL in which it was sent nothing else.
- Sessions outlast a restart: what CONNECT, SUB and UNSUB made of them is recorded, and taken up at the next start for
  one TTL. The peers' sockets connect again by themselves, and say nothing of their own accord for up to a heartbeat.
- (!) A peer that has no session any more, after a silence or without the record, is not told: its NOOPs begin a new
  session, which has no TTL and so is sent no NOOP. That is how its connector notices. So refusals that are no answer to
  an ID are kept from peers that have not sent CONNECT.
- (!) A SUB that is refused is answered with ERROR; but the connector ends when it reads that. It says VERSION 0.2:
  there the answer is OK, and what was refused is only counted, logged and shown.
- While a connection has an identity, the ROUTER refuses every other key that asks for it. Afterwards `Mc0.claim`
  decides: an identity belongs to the first client key that used it. Where any key is allowed it is free: another key
  ends the session, which has no connection, and begins its own.
- What is refused otherwise is answered with ERROR; what is too short to be a message is not answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases, ITopics
from broker.core.model import KnownSession
from broker.net.interfaces.router import Complaints, Part, Router, Sender, Sent
from broker.wires.mc0.codec import messages as wire
from broker.wires.mc0.sessions.admission import Admission
from broker.wires.mc0.sessions.session import Session, shown

EXPIRES = 1.05
"""TTLs of silence after which a session ends: the tolerance that both original brokers have."""

NOOP_AFTER = 0.5
"""TTLs in which nothing was sent, after which a NOOP is. The originals' 0.95 comes too late for the connector, which
waits for 1.0 at most."""

NOOPS_TOGETHER = 64
"""Moments of a TTL at which sessions are checked, for NOOPs and for silence: 2,000 sessions with a TTL of 30 s wake the
broker at two moments a second instead of a hundred, and nothing is later by more than a sixty-fourth of the TTL."""

MIN_TTL = 0.2
"""Seconds. Shorter ones are taken for this: leases are checked every 50 ms, and a shorter one would end in between."""

LOOK_AFTER = 60.0
"""Seconds for which a session without a TTL waits, after its connection closed, for its peer to connect again. A peer
that did so and only listens is found by a NOOP then, and after each further such time."""

MAX_IDENTITY = 255
"""Bytes: the most that ZeroMQ's document allows. The ROUTER lets in no peer with a longer one."""

MAX_REFUSED = 100
"""Refused topics that are remembered of a session, to be shown, and to be taken when the rules change."""

MAX_VERSION = 16
"""Bytes of a VERSION that are kept: it is only compared."""

CONNECTOR = b"0.2"
"""The VERSION that the real connector says. It speaks 0.3 for all that; nobody else is known to say so."""


class Record(Protocol):
    """The record of sessions that outlasts the broker."""

    def remember_session(self, identity: bytes, describe: Callable[[], KnownSession | None]) -> None:
        """The session of that identity changed: it is described when it is written."""

    def forget_session(self, identity: bytes) -> None:
        """The session of that identity is over."""


class Mc0:
    """All sessions of the wire. The transport calls `claim`, `receive`, `closed` and `room`, the topics call `deliver`,
    leases call `check`.

    ``sessions`` and ``subscriptions`` are how many there may be, and how many topics each may have.
    """

    log = Logger()

    def __init__(
        self,
        router: Router,
        topics: ITopics,
        leases: ILeases,
        admission: Admission,
        complaints: Complaints,
        record: Record,
        sessions: int,
        subscriptions: int,
    ) -> None:
        self._router = router
        self._topics = topics
        self._leases = leases
        self._admission = admission
        self._complaints = complaints
        self._record = record
        self.most_sessions = sessions
        self.most_subscriptions = subscriptions
        self.published = 0
        self.delivered = 0
        self.full = 0
        """Messages and answers that were refused since their peers do not read."""
        self._sessions: dict[bytes, Session] = {}
        self._connections: dict[int, Session] = {}
        self._verbs: dict[type, Callable[[Session, Any], None]] = {
            wire.Put: self._put,
            wire.Noop: self._noop,
            wire.Sub: self._sub,
            wire.Unsub: self._unsub,
            wire.Connect: self._connect,
            wire.Disconnect: self._disconnect,
        }

    # from the transport

    def claim(self, identity: bytes, key: str) -> bool:
        """True if a peer with that key may have an identity that no connection has. For the ROUTER, in a handshake.

        The session of the identity waits for its peer to connect again. What it would be sent must not reach another.
        """
        session = self._sessions.get(identity)
        if session is not None and session.key != key:
            if self._admission.binds:
                return False
            self._end(session, "taken")
        return self._admission.may_use(identity, key)

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take one message: the frames after the identity, and the number of its connection."""
        session = self._sessions.get(identity)
        if session is None or session.connection != connection:
            try:
                session = self._admit(session, identity, connection)
            except Refusal as refusal:
                self._turn_away(identity, frames, refusal)
                return
        session.heard = self._leases.now
        try:
            message = wire.parse(frames)
        except wire.BadMessage as malformed:
            self._malformed(session, malformed)
        else:
            self._verbs[type(message)](session, message)

    def closed(self, connection: int) -> None:
        """A connection ended. Its session waits for the next one of that identity, unless there is nothing to keep."""
        session = self._connections.pop(connection, None)
        if session is None:
            return  # nothing came through it, or the session is over
        session.connection = 0
        session.slow = False
        if not session.ttl:
            if session.asked:
                self._wake_for(session)
            else:
                self._end(session, "gone")

    def room(self, identity: bytes) -> None:
        """A peer that did not read has room again."""
        session = self._sessions.get(identity)
        if session is not None:
            session.slow = False

    # from the topics

    def deliver(
        self, subscribers: Collection[Session], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
    ) -> None:
        """Send a MESSAGE to all of them."""
        failed = self._router.send_all(subscribers, wire.message(topic, headers, body), self._leases.now)
        self.delivered += len(subscribers) - len(failed)
        for session, why in failed:
            # A peer that does not read fails each message: it costs the others as little as may be.
            if why is Sent.FULL and session.slow:
                session.dropped += 1
                self.full += 1
            else:
                self._dropped(session, why)

    # from the leases

    def check(self, session: Session, now: float) -> float | None:
        """Do what is due for a session. Returns the time of the next check, or None when it has ended."""
        if not session.ttl:
            # Its connection is gone. Its peer may have connected again and only listen.
            if self._router.send(session.identity, wire.NOOP) is not Sent.GONE:
                return now + LOOK_AFTER
            self._end(session, "gone")
            return None
        expires = session.heard + EXPIRES * session.ttl + self._leases.slack
        if now >= expires:
            self._end(session, "expired")
            return None
        beat = session.sent + NOOP_AFTER * session.ttl
        if now >= beat:
            if self._router.send(session.identity, wire.NOOP) is not Sent.SENT:
                self._complaints.count("mc0_dropped", "noop")
            session.sent = now
            beat = now + NOOP_AFTER * session.ttl
        return _together(min(expires, beat), session.ttl)

    # from the operator

    def use(self, sessions: int, subscriptions: int) -> None:
        """Take new limits, and what the admission allows now.

        Subscriptions that are not allowed any more end; those that were refused before and are not now, begin.
        """
        self.most_sessions = sessions
        self.most_subscriptions = subscriptions
        for session in self._sessions.values():
            session.rights = self._admission.rights(session.key_name)
            lost = [topic for topic in session.topics if not session.rights.may_subscribe(topic)]
            again = [topic for topic in session.refused if session.rights.may_subscribe(topic)]
            if lost or again:
                self._unsubscribe(session, [*lost, *again])
                self._subscribe_as_may_be(session, [*again, *lost])
                self._keep(session)

    def revoke(self, keys: Collection[str]) -> None:
        """These client keys are not allowed any more: their sessions end. The ROUTER closes their connections."""
        self._admission.release(keys)
        for session in [each for each in self._sessions.values() if each.key in keys]:
            self._end(session, "revoked")

    def counts(self) -> dict[str, int]:
        """What is too frequent to be counted elsewhere."""
        counts = {"mc0.published": self.published, "mc0.delivered": self.delivered}
        if self.full:
            counts["mc0_dropped.full"] = self.full
        return counts

    def sessions(self) -> Iterable[Session]:
        """All sessions, the oldest first."""
        return self._sessions.values()

    # from before a restart

    def restore(self, known: Iterable[KnownSession], keyed: bool) -> None:
        """Take up these sessions for one TTL from now, or `LOOK_AFTER` without one.

        ``keyed`` says that all peers have keys; else none has. Sessions that may not be taken up are forgotten.
        """
        taken = dropped = 0
        for each in known:
            try:
                self._restore(each, keyed)
                taken += 1
            except Refusal as refusal:
                dropped += 1
                self._record.forget_session(each.identity)
                self.log.debug("mc0 session of {peer}: {why}", peer=shown(each.identity), why=refusal.text)
        if taken or dropped:
            self.log.info(
                "{taken} mc0 sessions from before the restart go on, {dropped} may not", taken=taken, dropped=dropped
            )

    def _restore(self, known: KnownSession, keyed: bool) -> None:
        """Take up one session. Raises `Refusal`."""
        identity = known.identity
        if not 0 < len(identity) <= MAX_IDENTITY or identity.startswith(b"\0"):
            raise Refusal(Reason.PARAMETER, "no peer has this identity again")
        if bool(known.key) is not keyed:
            raise Refusal(Reason.KEY_NOT_ALLOWED, "peers had keys, or none, before the restart")
        key_name = self._admission.admit(identity, known.key)
        session = self._begin(identity, Sender(known.address, known.key), key_name, "restored")
        session.version = known.version
        session.ttl = min(max(MIN_TTL, known.ttl), wire.MAX_TTL / 1000) if known.ttl else 0.0
        session.heard = self._leases.now
        self._subscribe_as_may_be(session, known.topics)
        self._wake_for(session)

    # beginning and end

    def _admit(self, session: Session | None, identity: bytes, connection: int) -> Session:
        """The session of an identity that is new, or that comes through another connection. Raises `Refusal`."""
        sender = self._router.sender()
        if session is not None and sender.key != session.key:
            self._end(session, "taken")
            session = None
        key_name = self._admission.admit(identity, sender.key)
        if session is None:
            session = self._begin(identity, sender, key_name, "begun")
        self._connections.pop(session.connection, None)
        session.address = sender.address
        session.connection = connection
        self._connections[connection] = session
        if not session.ttl:
            self._wake_for(session)
        return session

    def _begin(self, identity: bytes, sender: Sender, key_name: str, how: str) -> Session:
        """A new session. Raises `Refusal` where there are too many."""
        if len(self._sessions) >= self.most_sessions:
            raise Refusal(Reason.LIMIT, f"there are {self.most_sessions} sessions already")
        session = Session(self, identity, sender, key_name, self._admission.rights(key_name))
        session.sent = self._leases.now
        self._sessions[identity] = session
        self._complaints.count("mc0_sessions", how)
        return session

    def _wake_for(self, session: Session) -> None:
        """Have a session checked when its next NOOP is due, or when its peer should have connected again."""
        if session.lease is not None:
            session.lease.cancel()
            session.lease = None
        now = self._leases.moment()
        if session.ttl:
            session.lease = self._leases.hold(session, _together(now + NOOP_AFTER * session.ttl, session.ttl))
        elif not session.connection:
            session.lease = self._leases.hold(session, now + LOOK_AFTER)

    def _keep(self, session: Session) -> None:
        """A session changed: have it outlast a restart, or not any more."""
        if session.lasting:
            self._record.remember_session(session.identity, session.known)
        else:
            self._record.forget_session(session.identity)

    def _turn_away(self, identity: bytes, frames: list[Part], refusal: Refusal) -> None:
        address = self._router.sender().address
        refusal.summary = f"{shown(identity)}: {refusal.text}"
        self._complaints.add("mc0", address, refusal)
        if refusal.reason is Reason.LIMIT:
            try:
                id = wire.parse(frames).id
            except wire.BadMessage as malformed:
                id = malformed.id
            if id is not None:
                self._router.reply(identity, wire.error(refusal.text.encode(), id))

    def _end(self, session: Session, why: str) -> None:
        del self._sessions[session.identity]
        self._connections.pop(session.connection, None)
        self._unsubscribe(session, list(session.topics))
        if session.lease is not None:
            session.lease.cancel()
        self._record.forget_session(session.identity)
        self._complaints.count("mc0_sessions", why)
        self.log.debug("mc0 session of {peer} ended: {why}", peer=session, why=why)

    # the verbs

    def _connect(self, session: Session, message: wire.Connect) -> None:
        before = session.version, session.ttl
        session.version = (message.version or b"")[:MAX_VERSION]
        if message.ttl is not None:
            session.ttl = max(MIN_TTL, message.ttl / 1000) if message.ttl else 0.0
        if before != (session.version, session.ttl):
            self._keep(session)
        self._reply(session, message.id)
        session.sent = self._leases.now
        self._wake_for(session)

    def _disconnect(self, session: Session, message: wire.Disconnect) -> None:
        self._end(session, "disconnected")
        if message.id is not None and self._router.reply(session.identity, wire.ok(message.id)) is not Sent.SENT:
            self._complaints.count("mc0_dropped", "ok")

    def _sub(self, session: Session, message: wire.Sub) -> None:
        before = session.asked
        if session.version == CONNECTOR:
            self._subscribe_as_may_be(session, message.topics)
        else:
            try:
                self._subscribe(session, message.topics)
            except Refusal as refusal:
                self._refuse(session, refusal, message.id)
                return
        if session.asked != before:
            self._keep(session)
        self._reply(session, message.id)

    def _unsub(self, session: Session, message: wire.Unsub) -> None:
        before = session.asked
        self._unsubscribe(session, message.topics)
        if session.asked != before:
            self._keep(session)
        self._reply(session, message.id)

    def _put(self, session: Session, message: wire.Put) -> None:
        topic = message.topic
        if not session.rights.may_publish(topic):
            refusal = Refusal(Reason.TOPIC_NOT_ALLOWED, f"may not publish on {_listed([topic])}")
            self._refuse(session, refusal, message.id)
            return
        self._topics.publish(topic, message.headers, message.body)
        self.published += 1
        if message.id is not None:
            self._answer(session, wire.ok(message.id))

    def _noop(self, session: Session, message: wire.Noop) -> None:
        self._reply(session, message.id)

    def _subscribe(self, session: Session, topics: Iterable[bytes]) -> None:
        """Subscribe to all of them, or raise `Refusal` and subscribe to none."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in session.topics]
        refused = [topic for topic in new if not session.rights.may_subscribe(topic)]
        if refused:
            raise Refusal(Reason.TOPIC_NOT_ALLOWED, f"may not subscribe to {_listed(refused)}")
        if len(session.topics) + len(new) > self.most_subscriptions:
            raise Refusal(Reason.LIMIT, f"may have {self.most_subscriptions} subscriptions, and no more")
        for number, topic in enumerate(new):
            try:
                session.topics[self._topics.subscribe(topic, self, session)] = None
            except Refusal:
                self._unsubscribe(session, new[:number])
                raise

    def _subscribe_as_may_be(self, session: Session, topics: Iterable[bytes]) -> None:
        """Subscribe to those that can be had, and remember the others."""
        refused: dict[Reason, Refusal] = {}
        for topic in topics:
            try:
                self._subscribe(session, (topic,))
            except Refusal as refusal:
                refused.setdefault(refusal.reason, refusal)
                if len(session.refused) < MAX_REFUSED:
                    session.refused[topic] = None
        for first in refused.values():
            self._complain(session, first)

    def _unsubscribe(self, session: Session, topics: Iterable[bytes]) -> None:
        for topic in topics:
            session.refused.pop(topic, None)
            if topic in session.topics:
                del session.topics[topic]
                self._topics.unsubscribe(topic, self, session)

    # answers

    def _reply(self, session: Session, id: bytes | None) -> None:
        """OK, where it was asked for."""
        if id is not None:
            self._answer(session, wire.ok(id))

    def _answer(self, session: Session, frames: Sequence[Part]) -> None:
        sent = self._router.reply(session.identity, frames)
        if sent is Sent.SENT:
            session.sent = self._leases.now
        else:
            self._dropped(session, sent)

    def _malformed(self, session: Session, malformed: wire.BadMessage) -> None:
        self._complain(session, malformed)
        if not isinstance(malformed, wire.TooShort):
            self._answer(session, wire.error(malformed.reply, malformed.id))

    def _refuse(self, session: Session, refusal: Refusal, id: bytes | None) -> None:
        self._complain(session, refusal)
        if id is not None or session.version not in (None, CONNECTOR):
            self._answer(session, wire.error(refusal.text.encode(), id))

    def _complain(self, session: Session, refusal: Refusal) -> None:
        refusal.summary = f"{session}: {refusal.summary}"
        self._complaints.add("mc0", session.address, refusal)

    def _dropped(self, session: Session, why: Sent) -> None:
        session.dropped += 1
        if why is Sent.FULL:
            self.full += 1
        else:
            self._complaints.count("mc0_dropped", why.value)
        if why is not Sent.GONE and not session.slow:
            session.slow = True
            self._complain(session, Refusal(Reason.NOT_READING, "reads too slowly: messages for it are dropped"))


def _together(due: float, ttl: float) -> float:
    """That time or a little later: sessions with the same TTL are due at the same moments, for one wake-up of all."""
    grain = ttl / NOOPS_TOGETHER
    return math.ceil(due / grain) * grain


def _listed(topics: Sequence[bytes]) -> str:
    """Some topics, for people."""
    names = ", ".join(repr(shown(topic)) for topic in topics[:3])
    return names if len(topics) <= 3 else f"{names} and {len(topics) - 3} others"
