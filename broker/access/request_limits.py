"""Rates of requests by address and by user, which HTTP, the console and Elko listeners share."""

from __future__ import annotations

import attrs

from broker.access.identity import network_of
from broker.core.errors import Reason, Refusal
from broker.core.limits import Rates


@attrs.define(eq=False)
class RequestLimits:
    """The limits, and the requests of late. A rate is in requests a second; 0 is no limit."""

    addresses: Rates[str]
    users: Rates[str]
    per_address: float = 0.0
    per_user: float = 0.0
    burst: float = 1_000
    on: bool = False
    """True if there is any limit: callers on a hot path look at it first."""

    def use(self, per_address: float, per_user: float, burst: float) -> None:
        """Apply other limits."""
        self.per_address, self.per_user, self.burst = per_address, per_user, burst
        self.on = bool(per_address or per_user)

    def take(self, user: str, address: str) -> None:
        """Count a request of a user, "" for the anonymous one. Raises `Refusal` LIMIT beyond a rate."""
        if self.per_address and not self.addresses.take(network_of(address), self.per_address, self.burst):
            raise Refusal(Reason.LIMIT, f"this address may make {self.per_address:g} requests a second")
        if self.per_user and user and not self.users.take(user, self.per_user, self.burst):
            raise Refusal(Reason.LIMIT, f"the user {user} may make {self.per_user:g} requests a second")


def unlimited() -> RequestLimits:
    """Return limits that are off, for tests and tools."""
    return RequestLimits(Rates(float), Rates(float))
