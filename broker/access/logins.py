"""Logins: the limits on passwords that all listeners share, so that guesses at one listener count at the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.access.login_gate import LoginGate
from broker.access.password_checks import PasswordChecks
from broker.access.password_logins import PasswordLogins
from broker.access.request_limits import RequestLimits, unlimited


@attrs.frozen(eq=False)
class Logins:
    """One instance of each limit.

    - ``gate``: guesses of passwords, by address and name.
    - ``passwords``: checks of passwords, behind the gate.
    - ``requests``: rates of requests, by address and user.
    """

    gate: LoginGate
    passwords: PasswordLogins
    requests: RequestLimits

    @classmethod
    def open(
        cls,
        seconds: Callable[[], float],
        in_thread: Callable[..., Deferred[Any]],
        requests: RequestLimits | None = None,
    ) -> Logins:
        """Return new limits. ``seconds`` is the time of a clock; ``in_thread`` is as in `PasswordChecks`."""
        gate = LoginGate(seconds)
        passwords = PasswordLogins(gate, PasswordChecks(in_thread), seconds)
        return cls(gate, passwords, unlimited() if requests is None else requests)
