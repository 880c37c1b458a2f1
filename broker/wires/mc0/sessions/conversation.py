"""The mc0 conversation: executes the commands of all peers, which share one ROUTER.

Rules (mc0 0.3; `!` marks what the real client, MCollective's connector, requires):
- (!) The OK to CONNECT, SUB and UNSUB is sent at once, before any other message on that session.
- The MESSAGEs of a PUT are sent before its OK.
- (!) The broker sends no report to a peer whose session has ended, after a silence or without the record: the peer's
  NOOPs begin a new session, which has no TTL and so gets no NOOP. By that silence the connector detects the loss. So
  refusals that answer no ID are not sent to peers without a CONNECT.
- (!) A refused SUB is answered with ERROR; but the connector exits when it reads that. Its VERSION is 0.2: such a peer
  gets OK, and the refused topics are only counted, logged and shown.
- Other refusals are answered with ERROR. A message without a verb is not answered.

See docs/protocols/mc0.md. `broker.wires.mc0.sessions.session_table` has the lifecycle of sessions,
`broker.wires.mc0.sessions.mc0_session` their topics, and `broker.wires.mc0.sessions.mc0_session` the sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.core.errors import Reason, Refusal, no_right
from broker.core.interfaces import ILeases, ITopics
from broker.core.silent_peers import Silence
from broker.core.turns import for_each
from broker.net.peer_interfaces import Part, RefusalLog, Router
from broker.wires.mc0.codec import mc0_messages as wire
from broker.wires.mc0.sessions.mc0_session import Mc0Outbound, Mc0Session, Mc0Subscriptions, shown
from broker.wires.mc0.sessions.session_table import MIN_TTL, Admission, Mc0SessionTable, SessionRecord

MAX_VERSION = 16
"""Bytes of a VERSION that are stored: it is only compared."""

CONNECTOR = b"0.2"
"""VERSION of the real connector. It speaks 0.3 all the same; no other client is known to send it."""


class Mc0Conversation:
    """All conversations of the wire: a `broker.net.peer_interfaces.Conversation`.

    ``most_sessions`` is the limit on sessions, ``most_subscriptions`` the limit on topics of each.
    """

    def __init__(
        self,
        router: Router,
        topics: ITopics,
        leases: ILeases,
        admission: Admission,
        refusal_log: RefusalLog,
        record: SessionRecord,
        most_sessions: int,
        most_subscriptions: int,
        silence: Silence,
    ) -> None:
        self._router = router
        self._topics = topics
        self._leases = leases
        self._admission = admission
        self._refusal_log = refusal_log
        self._outbound = Mc0Outbound(router, leases, refusal_log)
        self._subscriptions = Mc0Subscriptions(topics, self._outbound, most_subscriptions)
        self.table = Mc0SessionTable(
            router, self._outbound, self._subscriptions, leases, admission, refusal_log, record, most_sessions, silence
        )
        self._published = 0
        self._verbs: dict[type, Callable[[Mc0Session, Any], None]] = {
            wire.Put: self._put,
            wire.Noop: self._noop,
            wire.Sub: self._sub,
            wire.Unsub: self._unsub,
            wire.Connect: self._connect,
            wire.Disconnect: self._disconnect,
        }

    # calls of the ROUTER

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""
        session = self.table.get(identity)
        if session is None or session.connection != connection:
            try:
                session = self.table.attach(identity, connection)
            except Refusal as refusal:
                self._refuse_unadmitted(identity, frames, refusal)
                return
        # Invalid messages count as signs of life too: the peer is there.
        session.heard = self._leases.now
        if self.table.silence.suspects:
            self.table.silence.heard(session)
        try:
            message = wire.parse(frames)
        except wire.BadMessage as malformed:
            self._malformed(session, malformed)
        else:
            self._verbs[type(message)](session, message)

    def closed(self, connection: int) -> None:
        """Process the end of a connection."""
        self.table.detach(connection)

    def needs(self, connection: int) -> bool:
        """Return True while the session of a connection has subscriptions."""
        session = self.table.of(connection)
        return session is not None and bool(session.requested)

    def room(self, identity: bytes) -> None:
        """Process the end of backpressure: the peer with that identity reads again."""
        session = self.table.get(identity)
        if session is not None:
            session.slow = False

    # administration

    def use(self, most_sessions: int, most_subscriptions: int) -> Iterator[None]:
        """Apply new limits. Returns the steps by which topics begin that were refused for a lower limit of
        subscriptions."""
        self.table.most = most_sessions
        before, self._subscriptions.most = self._subscriptions.most, most_subscriptions
        return self.review() if most_subscriptions > before else iter(())

    def review(self) -> Iterator[None]:
        """Return the steps that apply the current grants to all sessions: 20,000 take 60 ms.

        Subscriptions that are no longer permitted end; refused ones that are permitted now begin.
        """
        return for_each(list(self.table), self._review)

    def _review(self, session: Mc0Session) -> None:
        if self.table.get(session.identity) is session:
            session.rights = self._admission.rights(session.key_name)
            if self._subscriptions.apply_rights(session):
                self.table.record(session)

    def drain(self) -> None:
        """Keep the sessions of peers that the ROUTER sends away and refuses, until `undrain`."""
        self.table.drain()

    def undrain(self) -> None:
        """Let peers come back to their sessions. No-op without a drain."""
        self.table.undrain()

    def disconnect(self, shown: str) -> int | None:
        """End the session with that identity, as it is shown. Returns the number of its connection, 0 without one;
        None if there is no such session."""
        for session in self.table:
            if str(session) == shown:
                number = session.connection
                self.table.end(session, "disconnected")
                return number
        return None

    def counts(self) -> dict[str, int]:
        """Return the counters that are kept here, because they change too often for a call each."""
        counts = {"mc0.published": self._published, "mc0.delivered": self._outbound.delivered}
        if self._outbound.full:
            counts["mc0_dropped.full"] = self._outbound.full
        return counts

    # verbs

    def _connect(self, session: Mc0Session, message: wire.Connect) -> None:
        before = session.version, session.ttl
        session.version = (message.version or b"")[:MAX_VERSION]
        if message.ttl is not None:
            session.ttl = max(MIN_TTL, message.ttl / 1000) if message.ttl else 0.0
        if before != (session.version, session.ttl):
            self.table.record(session)
        self._outbound.acknowledge(session, message.id)
        # The first NOOP is due half a TTL from now, also without an OK.
        session.sent = self._leases.now
        self.table.schedule(session)

    def _disconnect(self, session: Mc0Session, message: wire.Disconnect) -> None:
        self.table.end(session, "disconnected")
        self._outbound.acknowledge_end(session, message.id)

    def _sub(self, session: Mc0Session, message: wire.Sub) -> None:
        before = session.requested
        if session.version == CONNECTOR:
            new = self._subscriptions.subscribe_permitted(session, message.topics)
        else:
            try:
                new = self._subscriptions.subscribe(session, message.topics)
            except Refusal as refusal:
                self._refuse(session, refusal, message.id)
                return
        if session.requested != before:
            self.table.record(session)
        self._outbound.acknowledge(session, message.id)
        self._subscriptions.send_last(session, new)

    def _unsub(self, session: Mc0Session, message: wire.Unsub) -> None:
        before = session.requested
        self._subscriptions.unsubscribe(session, message.topics)
        if session.requested != before:
            self.table.record(session)
        self._outbound.acknowledge(session, message.id)

    def _put(self, session: Mc0Session, message: wire.Put) -> None:
        topic = message.topic
        if not session.rights.may_publish(topic):
            self._refuse(session, no_right("publish", shown(topic), session.key_name), message.id)
            return
        self._topics.publish(topic, message.headers, message.body, wire="mc0", payer=session.payer)
        self._published += 1
        self._outbound.acknowledge(session, message.id)

    def _noop(self, session: Mc0Session, message: wire.Noop) -> None:
        self._outbound.acknowledge(session, message.id)

    # refusals

    def _refuse_unadmitted(self, identity: bytes, frames: list[Part], refusal: Refusal) -> None:
        address = self._router.sender().address
        refusal.summary = f"{shown(identity)}: {refusal.text}"
        self._refusal_log.add("mc0", address, refusal)
        # At the limit of sessions the connector needs an answer: without one it would wait indefinitely, while an ERROR
        # makes it exit, and its supervisor start it again. A peer with the wrong key gets no answer.
        if refusal.reason is Reason.LIMIT:
            try:
                id = wire.parse(frames).id
            except wire.BadMessage as malformed:
                id = malformed.id
            if id is not None:
                self._outbound.refuse_unadmitted(identity, id, refusal)

    def _malformed(self, session: Mc0Session, malformed: wire.BadMessage) -> None:
        self._outbound.complain(session, malformed)
        if not isinstance(malformed, wire.TooShort):
            self._outbound.reply(session, wire.error(malformed.reply, malformed.id))

    def _refuse(self, session: Mc0Session, refusal: Refusal, id: bytes | None) -> None:
        self._outbound.complain(session, refusal)
        # Without an ID, the connector would read the ERROR as the answer to another message; and to a peer without a
        # CONNECT, which may have lost its session, it would be a sign of life.
        if id is not None or session.version not in (None, CONNECTOR):
            self._outbound.reply(session, wire.error(refusal.text.encode(), id))
