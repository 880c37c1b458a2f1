"""Which web pages may connect.

A browser lets any page that somebody looks at connect to any address that he reaches, this machine's own included, and
tells the server only which page it was: the Origin of the request. Programs send none. So what comes with an origin
that is not listed is refused, or every page could steer an open broker behind its visitor's back.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.errors import Reason, Refusal

ALL = "*"
"""The entry that stands for every page."""


FROM_ELSEWHERE = ("Origin", "Forwarded", "X-Forwarded-For", "X-Real-IP")
"""Headers with which a request was not made by a program on the machine that it comes from, but by a page that is
looked at there, or by whoever uses the proxy there. A peer with one of them is not trusted for being local."""


class Origins:
    """The pages that may connect."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(each.lower() for each in allowed)

    def allow(self, origin: str | None) -> bool:
        """Whether what comes with this origin may connect; None is what comes with none."""
        return origin is None or ALL in self._allowed or origin.lower() in self._allowed

    def shared_with(self, origin: str | None) -> str | None:
        """What Access-Control-Allow-Origin says in the answer, None for no such header."""
        if ALL in self._allowed:
            return ALL
        return origin if origin is not None and self.allow(origin) else None


def not_allowed(origin: str | None) -> Refusal:
    """The refusal of a page that may not connect."""
    return Refusal(Reason.HANDSHAKE, f"the origin {str(origin)[:200]!r} is not among those that may connect")
