"""Answers to mc0 peers: an OK that finds no room waits, since the real connector ends without it.

While one waits, its session is *held*: MESSAGEs and NOOPs for that peer are dropped, so that nothing overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.interfaces import ILeases
from broker.session.mc0_session import Session
from broker.session.router import Part, Router, Sent

ANSWER_AGAIN = 0.25
"""Seconds after which answers that found no room are tried again."""

MAX_ANSWERS = 100
"""Answers that may wait for a peer that does not read: behind the thousand messages that libzmq holds for it."""


class Answers:
    """Sends answers, now or when there is room. ``dropped`` is called for each that never goes out."""

    def __init__(self, router: Router, leases: ILeases, dropped: Callable[[Session, Sent], None]) -> None:
        self._router = router
        self._leases = leases
        self._dropped = dropped
        self._waiting: dict[Session, None] = {}
        self._leased = False

    def send(self, session: Session, frames: Sequence[Part]) -> None:
        """Send an answer, or let it wait for room."""
        if session.answers:
            if len(session.answers) < MAX_ANSWERS:
                session.answers.append(frames)
            else:
                self._dropped(session, Sent.FULL)
            return
        sent = self._router.send(session.identity, frames)
        if sent is Sent.SENT:
            session.sent = self._leases.now
        elif sent is Sent.FULL:
            session.answers.append(frames)
            session.held = True
            self._waiting[session] = None
            if not self._leased:
                self._leased = True
                self._leases.hold(self, self._leases.now + ANSWER_AGAIN)
        else:
            self._dropped(session, sent)

    def resume(self, session: Session) -> None:
        """Send the answers of a session that wait, as far as there is room."""
        while session.answers:
            sent = self._router.send(session.identity, session.answers[0])
            if sent is Sent.FULL:
                return
            session.answers.popleft()
            if sent is Sent.GONE:
                self._dropped(session, sent)
        session.held = False
        session.sent = self._leases.now
        del self._waiting[session]

    def forget(self, session: Session) -> None:
        """That session is over, and its answers with it."""
        self._waiting.pop(session, None)

    def check(self, now: float) -> float | None:
        """From the leases: try all that wait again."""
        for session in list(self._waiting):
            self.resume(session)
        self._leased = bool(self._waiting)
        return now + ANSWER_AGAIN if self._leased else None
