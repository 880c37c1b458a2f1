"""Same-origin check: the rule that separates requests of web pages from those of programs, and the allowed origins.

A browser lets any page connect to any address that the browser can reach, including this machine, and sends only the
page's origin to the server. Without a check, every page could control an open broker behind its visitor's back.

Rules:
- A request with an ``Origin`` comes from that page, which must be listed. Browsers send it with every WebSocket
  handshake, and with every HTTP request whose answer a page of another origin may read.
- A request without ``Origin`` comes from a program, unless it has ``Sec-Fetch-Site`` (Fetch Metadata): a browser sends
  that with subresources of a page, such as an image. Then the value must be one of `OWN`. ``same-site`` is not: a page
  of another port of this machine is of the same site.
- Browsers omit ``Sec-Fetch-Site`` if the address is neither HTTPS nor loopback, and old ones always do. A request
  without either header may thus still come from a page, which cannot read the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.errors import Reason, Refusal
from broker.rest.sites import canonical

ALL = "*"
"""The entry that allows every page."""

OWN = ("none", "same-origin")
"""Values of Sec-Fetch-Site without another page as the cause: a typed address, or a page of the listener itself."""

FROM_ELSEWHERE = ("Origin", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "X-Real-IP")
"""Headers that indicate a browser, or a client of a proxy, instead of a program on the peer's machine. A local peer
with one of them is not trusted as local."""

MAX_SHOWN = 200
"""Characters of a header in a refusal."""


class Origins:
    """The allow-list of origins."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.use(allowed)

    def use(self, allowed: Iterable[str]) -> None:
        """Allow these origins from now on. Connections of others stay."""
        self._allowed = frozenset(map(_compared, allowed))

    def allow(self, origin: str | None, site: str | None = None) -> bool:
        """Return True if a request is allowed. ``origin`` and ``site`` are its Origin and Sec-Fetch-Site, or None.

        Origins are compared as URLs. Any text is accepted, including surrogates of undecodable bytes. A non-ASCII
        origin is never listed: browsers write such hosts in Punycode.
        """
        if ALL in self._allowed:
            return True
        if origin is None:
            return site is None or site.strip().lower() in OWN
        return origin.isascii() and _compared(origin) in self._allowed

    def shared_with(self, origin: str | None) -> str | None:
        """Return the value of Access-Control-Allow-Origin in the answer, or None to omit the header."""
        if ALL in self._allowed:
            return ALL
        return origin if origin is not None and self.allow(origin) else None


def not_allowed(origin: str | None, site: str | None = None) -> Refusal:
    """Return the refusal for a disallowed page. Its text is printable for any headers."""
    if origin is None and site is not None:
        text = f"a request of a browser without an origin (Sec-Fetch-Site: {site[:MAX_SHOWN]!r}) may not connect"
        return Refusal(Reason.HANDSHAKE, text)
    return Refusal(Reason.HANDSHAKE, f"the origin {str(origin)[:MAX_SHOWN]!r} is not among those that may connect")


def _compared(origin: str) -> object:
    """Return an origin as it is compared: as a URL, or as text if it is ``null`` or of another scheme."""
    return canonical(origin) or origin.lower()
