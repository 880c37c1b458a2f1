"""How a session comes to act for a user: the exchanges of SASL, one at a time for each session.

Rules:
- An Authorize with the mechanism of the exchange that goes on is the next response of it; with another one it begins
  anew. So does a response that cannot be the next one: a client may begin again without having to say so.
- An exchange has a limited time, from its first response on. Then it has failed.
- Who is told whether credentials were right waits for it, if there were failures before.
- When anybody has lost access while an answer waited, nobody is let in by that answer: it might be the same one.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from broker.core.interfaces import ILeases
from broker.wires.common.password_backoff import Delays
from broker.wires.mtl.sessions.control_sessions import ControlSession, Pipeline, RunningExchange
from broker.wires.mtl.sessions.sasl import (
    EXCHANGE_SECONDS,
    FailureReason,
    LoginChallenge,
    LoginDone,
    LoginFailed,
    LoginOutcome,
    Mechanisms,
)

TOO_LATE = LoginFailed(FailureReason.MALFORMED, "the exchange took too long", verdict=None)

CHANGED = LoginFailed(FailureReason.CREDENTIALS, "the users have changed meanwhile", verdict=None)


class Authentication:
    """The exchanges of all sessions. ``late`` is called with a session whose exchange took too long.

    ``plain`` says that passwords may come in the clear from everywhere. ``allowed`` says of a CURVE key whether who has
    it may still come in.
    """

    def __init__(
        self,
        mechanisms: Mechanisms,
        delays: Delays,
        leases: ILeases,
        clock: IReactorTime,
        plain: bool,
        allowed: Callable[[str], bool],
        late: Callable[[ControlSession], object],
    ) -> None:
        self._mechanisms = mechanisms
        self._delays = delays
        self._leases = leases
        self._clock = clock
        self.plain = plain
        self._allowed = allowed
        self._late = late

    def names(self, session: ControlSession) -> tuple[str, ...]:
        """The mechanisms that are offered."""
        if session.curve and not self._allowed(session.curve):
            return ()
        return self._mechanisms.names(self.plain or session.secure, session.curve)

    async def take(
        self, session: ControlSession, turn: Pipeline, mechanism: str, response: bytes | None
    ) -> LoginOutcome | None:
        """What becomes of an Authorize; None if the mechanism is not offered. Raises `Refusal`, as exchanges do."""
        if mechanism not in self.names(session):
            self.forget(session)
            return None
        running = session.running
        outcome: LoginOutcome | None = None
        if running is not None and running.exchange.mechanism == mechanism:
            outcome = await self._step(session, turn, running, response)
        if running is None or outcome is None or _out_of_order(outcome):
            running = self._begin(session, mechanism)
            outcome = await self._step(session, turn, running, response)
        if not isinstance(outcome, LoginChallenge):
            self.forget(session)
        user, now = running.exchange.user, self._clock.seconds()
        delay = self._delays.reply(user, session.address, outcome.verdict, now)
        if delay:
            await self._pause(turn, delay)
        if isinstance(outcome, LoginChallenge) and session.running is not running:
            return TOO_LATE
        return CHANGED if isinstance(outcome, LoginDone) and turn.stale else outcome

    def forget(self, session: ControlSession) -> None:
        """Whatever exchange goes on is over."""
        if session.running is not None:
            session.running.deadline.cancel()
            session.running = None

    def _begin(self, session: ControlSession, mechanism: str) -> RunningExchange:
        self.forget(session)
        exchange = self._mechanisms.begin(mechanism, self.plain or session.secure, session.curve)
        assert exchange is not None, "it was offered"
        session.running = running = RunningExchange(exchange, session, self._give_up)
        running.deadline = self._leases.hold(running, self._leases.moment() + EXCHANGE_SECONDS)
        return running

    def _give_up(self, session: ControlSession) -> None:
        session.running = None
        if session.turn is not None and session.turn.pending is not None:
            session.turn.pending.cancel()
        self._late(session)

    async def _step(
        self, session: ControlSession, turn: Pipeline, running: RunningExchange, response: bytes | None
    ) -> LoginOutcome:
        turn.pending = pending = running.exchange.step(response)
        try:
            outcome = await pending
        except CancelledError:
            return TOO_LATE
        except BaseException:
            self.forget(session)
            raise
        finally:
            turn.pending = None
        return outcome if session.running is running else TOO_LATE

    async def _pause(self, turn: Pipeline, seconds: float) -> None:
        """Wait, or until the turn is over."""
        turn.pending = done = Deferred[None]()
        # A password was checked in a thread: no quantum has begun since.
        held = self._leases.hold(_At(lambda now: done.callback(None)), self._leases.moment() + seconds)
        try:
            await done
        except CancelledError:
            held.cancel()
        finally:
            turn.pending = None


class _At:
    """Something to be done once, on a lease."""

    def __init__(self, check: Callable[[float], None]) -> None:
        self.check = check


def _out_of_order(outcome: LoginOutcome) -> bool:
    return isinstance(outcome, LoginFailed) and outcome.why is FailureReason.MALFORMED and outcome is not TOO_LATE
