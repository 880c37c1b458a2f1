"""The rule by which requests of web pages are told from those of programs, and which pages may connect.

A browser lets any page that somebody looks at connect to any address that the browser reaches, this machine's own
included, and tells the server only which page it was. Without a check, every page could steer an open broker behind
its visitor's back.

Rules:
- A request with an ``Origin`` comes from that page, which must be listed. Browsers send it with every WebSocket
  handshake, and with every request of HTTP of which a page of another origin may read the answer.
- A request without ``Origin`` comes from a program, unless it has ``Sec-Fetch-Site`` (Fetch Metadata): a browser sends
  that with what a page loads blindly, as an image for instance. Then the value must be one of `OWN`. ``same-site`` is
  not: a page of another port of this machine is of the same site.
- Browsers leave ``Sec-Fetch-Site`` out where the address is neither HTTPS nor loopback, and old ones always do. A
  request without either header may so still be a page's, which cannot read the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.errors import Reason, Refusal

ALL = "*"
"""The entry that stands for every page."""

OWN = ("none", "same-origin")
"""Values of Sec-Fetch-Site that no other page causes: a person typed the address, or the page is the listener's own."""

FROM_ELSEWHERE = ("Origin", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "X-Real-IP")
"""Headers with which a request was not made by a program on the machine that it comes from, but by a browser there, or
by a client of the proxy there. A peer with one of them is not trusted for being local."""

MAX_SHOWN = 200
"""Characters of a header that a refusal shows."""


class Origins:
    """The pages that may connect."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(each.lower() for each in allowed)

    def allow(self, origin: str | None, site: str | None = None) -> bool:
        """True if a request may be served. ``origin`` and ``site`` are its Origin and Sec-Fetch-Site, None without one.

        Any text may be given, surrogates of undecodable bytes included. An origin that is not ASCII is never listed:
        browsers write such hosts in Punycode.
        """
        if ALL in self._allowed:
            return True
        if origin is None:
            return site is None or site.strip().lower() in OWN
        return origin.isascii() and origin.lower() in self._allowed

    def shared_with(self, origin: str | None) -> str | None:
        """The value of Access-Control-Allow-Origin in the answer, None for no such header."""
        if ALL in self._allowed:
            return ALL
        return origin if origin is not None and self.allow(origin) else None


def not_allowed(origin: str | None, site: str | None = None) -> Refusal:
    """The refusal of a page that may not connect. Its text is printable, whatever the headers hold."""
    if origin is None and site is not None:
        text = f"a request of a browser without an origin (Sec-Fetch-Site: {site[:MAX_SHOWN]!r}) may not connect"
        return Refusal(Reason.HANDSHAKE, text)
    return Refusal(Reason.HANDSHAKE, f"the origin {str(origin)[:MAX_SHOWN]!r} is not among those that may connect")
