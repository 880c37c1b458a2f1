"""Problem details of HTTP (RFC 9457): the one form of errors in the API.

Checks against requests that a web page of another site causes, as pure functions.

A browser lets any page send requests to any address that it reaches, this machine included. A page cannot read answers
of another origin, since the API sends no CORS headers. Two attacks remain:

- *Cross-site requests* that change something, and WebSockets, whose messages a page may read. Browsers send ``Origin``
  or ``Sec-Fetch-Site`` with both: they must name the listener's own site. A proxy may send another ``Host`` than the
  browser: then ``Sec-Fetch-Site`` and a known name in ``Origin`` stand for it.
- *DNS rebinding*: a name of the attacker that resolves to the listener's address makes the page's own origin equal to
  the listener's. The name is in ``Host``, which must therefore be a known one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

import attrs
import msgspec

from broker.access.identity import is_address
from broker.access.login_gate import GUESS_EVERY
from broker.core.errors import Reason, Refusal
from broker.web.messages import Request, Response

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An error answer. ``status`` is that of HTTP, ``detail`` a sentence for people, ``reason`` the machine's code."""

    def __init__(
        self,
        status: int,
        detail: str,
        reason: Reason = Reason.PARAMETER,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.reason = reason
        self.headers = tuple(headers)

    def response(self, request_id: str) -> Response:
        """Return the answer to the request of that id."""
        details = ProblemDetails(HTTPStatus(self.status).phrase, self.status, self.detail, self.reason.code, request_id)
        return Response(self.status, msgspec.json.encode(details), MEDIA_TYPE, self.headers)


@attrs.frozen
class ProblemDetails:
    """The body of an error answer: ``type`` is always about:blank (RFC 9457, 4.2.1), ``code`` the machine's code.

    ``request_id`` is the value of ``X-Request-ID`` of the answer: log lines about the request have it as well.
    """

    title: str
    status: int
    detail: str
    code: str
    request_id: str
    type: str = "about:blank"


STATUS = {
    Reason.NO_SUCH_SERVICE: 404,
    Reason.UNKNOWN_TARGET: 404,
    Reason.FORBIDDEN: 403,
    Reason.NAME_NOT_ALLOWED: 403,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.WRONG_CREDENTIALS: 401,
    Reason.TOO_MANY_GUESSES: 429,
    Reason.LIMIT: 429,
    Reason.NAME_TAKEN: 409,
    Reason.TOO_LARGE: 413,
    Reason.DRAINING: 503,
}
"""The status for a refusal of the core; 400 for all others."""


RETRY = ("Retry-After", f"{GUESS_EVERY:.0f}")
"""The header of a refused guess: the next one may be compared then."""


def problem_of(refusal: Refusal) -> Problem:
    """Return a refusal of the core as a problem."""
    headers = [RETRY] if refusal.reason is Reason.TOO_MANY_GUESSES else []
    return Problem(STATUS.get(refusal.reason, 400), refusal.text, refusal.reason, headers)


OWN = ("none", "same-origin")
"""Values of Sec-Fetch-Site without another page as the cause: a typed address, or a page of the listener itself."""

PORTS = {"http": 80, "https": 443}
"""The default ports of the schemes of origins."""

LOCAL_NAMES = ("localhost", "ip6-localhost")
"""Names that resolve to this machine without DNS. A name below ``localhost.`` may be resolved by DNS."""


def known_host(request: Request, hosts: Collection[str]) -> bool:
    """Return True if the request names the listener: by an IP literal, ``localhost`` or a name of ``hosts``.

    ``hosts`` are names in lower case, without port; ``*`` allows each name. A request without Host is of no browser.
    """
    host = request.headers.get("host")
    if host is None or "*" in hosts:
        return True
    parts = _split(host.strip())
    return parts is not None and _known(parts[0], hosts)


def same_site(request: Request, hosts: Collection[str] = ()) -> bool:
    """Return True if no page of another site caused the request, as far as its headers tell. ``hosts`` as for
    `known_host`."""
    site = request.headers.get("sec-fetch-site", "none").strip().lower()
    if site not in OWN:
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    own = canonical(origin)
    if own is None:
        return False
    host = canonical(f"{own[0]}://{request.headers.get('host', '').strip()}")
    return own == host or (site == "same-origin" and _known(own[1], hosts))


def canonical(origin: str) -> tuple[str, str, int] | None:
    """Return an origin as its scheme, its host and its port, so that origins that are equal as URLs are equal values:
    in lower case, without a dot at the end of the host, addresses in their one spelling, with the port of the scheme.

    None for ``null``, for another scheme than http and https, and for anything malformed.
    """
    scheme, separator, authority = origin.strip().partition("://")
    parts = _split(authority) if separator else None
    default = PORTS.get(scheme.lower())
    if parts is None or default is None:
        return None
    name, port = parts
    return scheme.lower(), name, default if port is None else port


def _known(name: str, hosts: Collection[str]) -> bool:
    return name in LOCAL_NAMES or name in hosts or is_address(name)


def _split(authority: str) -> tuple[str, int | None] | None:
    """Return the host of an authority, in lower case and without brackets, and its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{authority}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.path or parts.query or parts.fragment or "@" in authority:
        return None
    name = name.removesuffix(".")
    try:
        return str(ip_address(name)), port
    except ValueError:
        return (name, port) if name else None
