"""Messages from the broker to mc0 sessions: replies, MESSAGEs and NOOPs, with the accounting of what was dropped.

Invariants:
- Replies and MESSAGEs share one queue of the ROUTER for each peer, in the order of the calls. A MESSAGE or a NOOP is
  dropped while ``high_water`` messages are queued. A reply may be queued beyond those, and is dropped only when that
  room is full as well.
- Each drop is counted. The log has one line for each time that a session begins to lose messages.

The ROUTER's queues are in `broker.net.router`; `broker.wires.mc0.sessions.conversation` has the rules of the protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases
from broker.net.interfaces.router import Complaints, Part, Router, Sent
from broker.wires.mc0.codec import messages as wire
from broker.wires.mc0.sessions.session import Session


class Mc0Outbound:
    """Outbound side of all sessions. ``delivered`` counts copies of MESSAGEs that were sent."""

    def __init__(self, router: Router, leases: ILeases, complaints: Complaints) -> None:
        self._router = router
        self._leases = leases
        self._complaints = complaints
        self.delivered = 0
        self.full = 0
        """Messages and replies that were dropped since their peers do not read."""

    def acknowledge(self, session: Session, id: bytes | None) -> None:
        """Send OK if the command had an ID, and so requested an answer."""
        if id is not None:
            self.reply(session, wire.ok(id))

    def reply(self, session: Session, frames: Sequence[Part]) -> None:
        """Send the answer to a command."""
        sent = self._router.reply(session.identity, frames)
        if sent is Sent.SENT:
            session.sent = self._leases.now
        else:
            self._dropped(session, sent)

    def acknowledge_end(self, session: Session, id: bytes | None) -> None:
        """Send OK to the DISCONNECT of a session that has ended, and so has no state to account a drop in."""
        if id is not None and self._router.reply(session.identity, wire.ok(id)) is not Sent.SENT:
            self._complaints.count("mc0_dropped", "ok")

    def fan_out(
        self, sessions: Collection[Session], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
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

    def noop(self, session: Session) -> Sent:
        """Send a NOOP. Returns the outcome; a dropped one is not counted here, since it needs no repetition."""
        return self._router.send(session.identity, wire.NOOP)

    def refuse_unadmitted(self, identity: bytes, id: bytes, refusal: Refusal) -> None:
        """Send ERROR to a peer that got no session."""
        self._router.reply(identity, wire.error(refusal.text.encode(), id))

    def complain(self, session: Session, refusal: Refusal) -> None:
        """Count and log a refusal, with the identity of the session."""
        refusal.summary = f"{session}: {refusal.summary}"
        self._complaints.add("mc0", session.address, refusal)

    def _dropped(self, session: Session, outcome: Sent) -> None:
        session.dropped += 1
        if outcome is Sent.FULL:
            self.full += 1
        else:
            self._complaints.count("mc0_dropped", outcome.value)
        # A peer without a connection is no slow reader. `slow` is reset when the ROUTER reports room again.
        if outcome is not Sent.GONE and not session.slow:
            session.slow = True
            self.complain(session, Refusal(Reason.NOT_READING, "reads too slowly: messages for it are dropped"))
