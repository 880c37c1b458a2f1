"""Logins: the limits on passwords that all listeners share, so that guesses at one listener count at the others."""

from __future__ import annotations

import attrs

from broker.access.password_backoff import GuessLimit, ReplyDelays
from broker.access.password_checks import PasswordChecks
from broker.access.request_limits import RequestLimits, unlimited


@attrs.frozen(eq=False)
class Logins:
    """One instance of each limit.

    - ``checks``: password checks in threads.
    - ``guesses``: wrong passwords by address; further ones are refused for a time.
    - ``requests``: rates of requests, by address and user.
    - ``delays``: wrong passwords by user and address; the replies to further ones are delayed.
    """

    checks: PasswordChecks
    guesses: GuessLimit
    requests: RequestLimits = attrs.field(factory=unlimited)
    delays: ReplyDelays = attrs.field(factory=ReplyDelays)
