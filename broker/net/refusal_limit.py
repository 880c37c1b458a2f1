"""Rate limit for the refusals of one connection."""

from __future__ import annotations

from collections.abc import Callable

from broker.core.limits import Bucket
from broker.net.connection import REFUSALS_A_SECOND, REFUSALS_AT_ONCE


class RefusalLimit:
    """Rate limit for refusals of a connection that is no `StreamConnection`, which counts its own."""

    __slots__ = ("_bucket", "_seconds")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._bucket = Bucket(REFUSALS_AT_ONCE, seconds())

    def admit(self) -> bool:
        """Count a refusal. Returns False if the rate limit is exceeded."""
        return self._bucket.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())

    def untouched(self) -> bool:
        """Return True if the connection has no recent refusals."""
        return self._bucket.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())
