"""Checks against requests that a web page of another site causes, as pure functions.

A browser lets any page send requests to any address that it reaches, this machine included. A page cannot read answers
of another origin, since the API sends no CORS headers. Two attacks remain:

- *Cross-site requests* that change something, and WebSockets, whose messages a page may read. Browsers send ``Origin``
  or ``Sec-Fetch-Site`` with both: they must name the listener's own site.
- *DNS rebinding*: a name of the attacker that resolves to the listener's address makes the page's own origin equal to
  the listener's. The name is in ``Host``, which must therefore be a known one.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from broker.web.messages import Request

OWN = ("none", "same-origin")
"""Values of Sec-Fetch-Site without another page as the cause: a typed address, or a page of the listener itself."""

LOCAL_NAMES = ("localhost", "ip6-localhost")
"""Names that resolve to this machine without DNS. A name below ``localhost.`` may be resolved by DNS."""


def known_host(request: Request, hosts: Collection[str]) -> bool:
    """Return True if the request names the listener: by an IP literal, ``localhost`` or a name of ``hosts``.

    ``hosts`` are names in lower case, without port; ``*`` allows each name. A request without Host is of no browser.
    """
    host = request.headers.get("host")
    if host is None or "*" in hosts:
        return True
    name = host_name(host)
    if name is None:
        return False
    return name in LOCAL_NAMES or name in hosts or is_literal(name)


def same_site(request: Request) -> bool:
    """Return True if no page of another site caused the request, as far as its headers tell."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site.strip().lower() not in OWN:
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return _authority(origin) == (request.headers.get("host") or "").strip().lower() != ""


def host_name(host: str) -> str | None:
    """Return the name or address of a Host field in lower case, without port and brackets; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.path or parts.query or parts.fragment or "@" in host:
        return None
    return name.rstrip(".")


def is_literal(name: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _authority(origin: str) -> str | None:
    """Return the host and port of an origin in lower case; None for ``null`` and anything malformed."""
    scheme, separator, authority = origin.strip().lower().partition("://")
    return authority if separator and scheme in ("http", "https") else None
