"""Authentication of control sessions: SASL exchanges, one at a time for each session.

Rules:
- An Authorize with the mechanism of the exchange in progress is its next response. Another mechanism begins another
  exchange. So does a response that cannot be the next one: a client may begin again without announcing it.
- An exchange has a limited time, from its first response on. Beyond it, the exchange has failed.
- When any user loses access while an answer waits, that answer gives no access: it may concern the same user.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import CancelledError

from broker.core.interfaces import ILeases
from broker.wires.mtl.sessions.control_sessions import ControlSession, Pipeline, RunningExchange, SessionEvent
from broker.wires.mtl.sessions.sasl import (
    EXCHANGE_SECONDS,
    FailureReason,
    LoginChallenge,
    LoginDone,
    LoginFailed,
    LoginOutcome,
    Mechanisms,
)

TOO_LATE = LoginFailed(FailureReason.LATE, "the exchange took too long")

CHANGED = LoginFailed(FailureReason.CREDENTIALS, "the users have changed meanwhile")


@attrs.frozen(eq=False)
class AuthenticationContext:
    """Means of authentication: the mechanisms of SASL, and CURVE keys.

    - ``name_of`` returns the user of a key (Z85), empty for the anonymous one; None if the key is not admitted: keys
      are revoked while peers are connected.
    - ``anonymous`` returns True for a virtual host that serves the anonymous user.
    """

    mechanisms: Mechanisms
    name_of: Callable[[str], str | None] = lambda key: ""
    anonymous: Callable[[str], bool] = lambda host: False


class Authentication:
    """SASL exchanges of all sessions.

    ``plain`` offers PLAIN on connections that third parties can read, too. ``late`` is called with a session whose
    exchange took too long while no answer waited.
    """

    def __init__(
        self,
        context: AuthenticationContext,
        leases: ILeases,
        plain: bool,
        late: Callable[[ControlSession], object],
    ) -> None:
        self._context = context
        self._leases = leases
        self.plain = plain
        self._late = late

    def names(self, session: ControlSession) -> tuple[str, ...]:
        """Return the mechanisms that are offered to a session."""
        if session.curve and self._context.name_of(session.curve) is None:
            return ()
        anonymous = self._context.anonymous(session.host)
        return self._context.mechanisms.names(self.plain or session.secure, session.curve, anonymous)

    async def take(
        self, session: ControlSession, turn: Pipeline, mechanism: str, response: bytes | None
    ) -> LoginOutcome | None:
        """Process an Authorize. Returns None if the mechanism is not offered. Raises `Refusal`, as exchanges do."""
        if mechanism not in self.names(session):
            self.forget(session)
            return None
        running = session.running
        outcome: LoginOutcome | None = None
        if running is not None and running.exchange.mechanism == mechanism:
            outcome = await self._step(session, turn, running, response)
        # RFC 11 does not distinguish a first response from a later one: one that is invalid as the latter is tried as
        # the former.
        if running is None or outcome is None or _out_of_order(outcome):
            running = self._begin(session, mechanism)
            outcome = await self._step(session, turn, running, response)
        if not isinstance(outcome, LoginChallenge):
            self.forget(session)
        # The session lost the exchange during the wait: the challenge belongs to nothing any more.
        if isinstance(outcome, LoginChallenge) and session.running is not running:
            return TOO_LATE
        return CHANGED if isinstance(outcome, LoginDone) and turn.stale else outcome

    def forget(self, session: ControlSession) -> None:
        """End the exchange of a session. No-op if none is in progress."""
        if session.running is not None:
            session.running.deadline.cancel()
            self._end(session)

    def _begin(self, session: ControlSession, mechanism: str) -> RunningExchange:
        self.forget(session)
        exchange = self._context.mechanisms.begin(mechanism, session.curve, session.address)
        session.on(SessionEvent.BEGUN)
        session.running = running = RunningExchange(exchange, session, self._give_up)
        running.deadline = self._leases.hold(running, self._leases.moment() + EXCHANGE_SECONDS)
        return running

    def _end(self, session: ControlSession) -> None:
        session.running = None
        session.on(SessionEvent.ENDED)

    def _give_up(self, session: ControlSession) -> None:
        # Before the cancellation, which resumes `take` at once: it must not find the exchange in progress.
        self._end(session)
        if session.turn is not None and session.turn.pending is not None:
            session.turn.pending.cancel()  # its answer reports the failure
        else:
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


def _out_of_order(outcome: LoginOutcome) -> bool:
    return isinstance(outcome, LoginFailed) and outcome.why is FailureReason.MALFORMED
