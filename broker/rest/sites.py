"""The sites of HTTP: checks against requests that a web page of another site causes, as pure functions, and the URLs of
the other brokers of a cluster.

A browser lets any page send requests to any address that it reaches, this machine included. A page cannot read answers
of another origin, since the API sends no CORS headers. Two attacks remain:

- *Cross-site requests* that change something, and WebSockets, whose messages a page may read. Browsers send ``Origin``
  or ``Sec-Fetch-Site`` with both: they must name the listener's own site. A proxy may send another ``Host`` than the
  browser: then ``Sec-Fetch-Site`` and a known name in ``Origin`` stand for it.
- *DNS rebinding*: a name of the attacker that resolves to the listener's address makes the page's own origin equal to
  the listener's. The name is in ``Host``, which must therefore be a known one.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from broker.access.identity import is_address
from broker.core.cluster.cluster_interfaces import IMembers, Member
from broker.rest.messages import Request

OWN = ("none", "same-origin")
"""Values of Sec-Fetch-Site without another page as the cause: a typed address, or a page of the listener itself."""

PORTS = {"http": 80, "https": 443}
"""The default ports of the schemes of origins."""

LOCAL_NAMES = ("localhost", "ip6-localhost")
"""Names that resolve to this machine without DNS. A name below ``localhost.`` may be resolved by DNS."""


def same_site(request: Request, hosts: Collection[str] = ()) -> bool:
    """Return True if no page of another site caused the request, by its headers. ``hosts`` are
    names of the listener."""
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


MOST, LONGEST = 512, 256
"""Values of Host whose parts are kept, and the characters of the longest one: 200 kB at most. Browsers and programs
name a listener by a few names."""


@lru_cache(MOST)
def _named(host: str) -> tuple[str, bool]:
    """Return the name in a Host, in lower case and without port, empty for a malformed one; and True if it is an IP
    literal or ``localhost``, which names each listener."""
    parts = _split(host.strip())
    return ("", False) if parts is None else (parts[0], _known(parts[0], ()))


def known_host(request: Request, hosts: Collection[str]) -> bool:
    """Return True if the request names the listener: by an IP literal, ``localhost`` or a name of ``hosts``.

    ``hosts`` are names in lower case, without port; ``*`` allows each name. A request without Host is of no browser.
    """
    host = request.headers.get("host")
    if host is None or "*" in hosts:
        return True
    if len(host) > LONGEST:  # longer than a name can be, and not worth its place
        return False
    name, own = _named(host)
    return own or name in hosts


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


# The HTTP listeners of the brokers of a cluster, for clients: their URLs, and the header ``Link`` of answers.

MAX_LINKS = 8
"""Other brokers in a ``Link`` header: more than one that is lost needs, in some 300 bytes."""


class OtherBrokers:
    """The listeners of the title ``listener`` of all ``members``. All brokers of a cluster have TLS, or none has: the
    members publish addresses only."""

    def __init__(self, members: IMembers, listener: str) -> None:
        self._members = members
        self._listener = listener
        self._links: dict[bool, list[tuple[str, str]]] = {}
        """The headers by scheme, until a member changes."""
        members.watch_members(lambda name, member: self._links.clear())

    def urls(self, secure: bool) -> list[str]:
        """Return the URLs of all brokers that other machines reach, this one first; none without a cluster."""
        scheme = "https" if secure else "http"
        present = sorted(self._members.members(), key=lambda each: each.name != self._members.name)
        return [f"{scheme}://{place}" for place in map(self._place, present) if place]

    def links(self, secure: bool) -> list[tuple[str, str]]:
        """Return the header with the URLs of the other brokers (RFC 8288); none without any."""
        known = self._links.get(secure)
        if known is None:
            here = self._members.member(self._members.name)
            own = f"{'https' if secure else 'http'}://{self._place(here)}" if here is not None else ""
            others = [f'<{url}/>; rel="alternate"' for url in self.urls(secure) if url != own][:MAX_LINKS]
            known = self._links[secure] = [("Link", ", ".join(others))] if others else []
        return known

    def _place(self, member: Member) -> str:
        return member.listeners.get(self._listener, "").removeprefix("tcp://")
