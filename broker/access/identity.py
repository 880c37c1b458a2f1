"""Identity of peers: the host and the network of an address, and the owner of entries that a peer registers.

Rules, for all wires:
- The owner of a registration, an mc0 identity or an MTL name is its user. Without a user, and for the user
  `ANONYMOUS`, it is the CURVE key, which only its holder can prove; without a key, the host.
- All loopback addresses, the name ``localhost`` and unix sockets are one host. An IPv4-mapped IPv6 address is the IPv4
  address. The IPv4 and the IPv6 address of another machine are two hosts: addresses do not show that they are one, and
  the owner token of HTTP (docs/protocols/http.md) serves there.
- Rates and shares count by network: an IPv6 /64, of which one machine has all addresses, and a single IPv4 address.
  Those of 127/8 count apart, since a local proxy can bind one for each of its clients.

The functions are pure, and this module imports the standard library only: the network, the core, the wires and the
configuration import it, below all their contracts.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

ANONYMOUS = "anonymous"
"""The user that stands for peers without a credential: it owns nothing, its peers' hosts do."""

LOCAL = "127.0.0.1"
"""The host of peers on this machine, whichever of its local addresses they use."""

SITE = 64
"""Length in bits of the IPv6 prefix that is one network: a site has at least that, and all addresses in it."""

KEPT = 4_096
"""Addresses whose result is cached: parsing one costs more than all the rest of a message."""

_UNIX = ("uid ", "/")
"""Prefixes of the addresses of peers at unix sockets: the user of the process, or the path."""


@lru_cache(KEPT)
def host_of(address: str) -> str:
    """Return the host of an address, of a ``host:port``, or of a peer at a unix socket, in its one spelling."""
    ip = _ip(address)
    if ip is not None:
        return LOCAL if ip.is_loopback else str(ip)
    host = _host(address)
    return LOCAL if host in ("unix", "localhost") or is_unix(host) else host


def is_unix(address: str) -> bool:
    """Return True for the address of a peer at a unix socket."""
    return address.startswith(_UNIX)


@lru_cache(KEPT)
def network_of(address: str) -> str:
    """Return the network of an address or of a ``host:port``, as the key of a rate or a share.

    A text that has no address, such as that of a peer at a unix socket, is its own network.
    """
    ip = _ip(address)
    if ip is None:
        return _host(address)
    return str(IPv6Network((int(ip), SITE), strict=False)) if isinstance(ip, IPv6Address) else str(ip)


@lru_cache(KEPT)
def plain(host: str) -> str:
    """Return the address of a peer as it is shown: an IPv4-mapped one as the IPv4 address, any other text unchanged."""
    return str(address_of(host)) if host[:2] == "::" and "." in host else host


def joined(host: str, port: int) -> str:
    """Return host and port as one text, an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def with_port(host: str, port: int) -> str:
    """Return the address of a peer with its port, if it has one."""
    return joined(host, port) if port else host


def is_address(text: str) -> bool:
    """Return True for an IPv4 or IPv6 address, without port and brackets."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_local(address: str) -> bool:
    """Return True for an address, with or without a port, of this machine that no other one can use."""
    return host_of(address) == LOCAL


def same_host(one: str, other: str) -> bool:
    """Return True if two addresses, with or without ports, are those of one machine, as far as addresses show."""
    return one == other or host_of(one) == host_of(other)


def owner_of(user: str, address: str, key: str = "") -> str:
    """Return the owner of entries that a peer registers, as text for comparison and for operators.

    ``user`` is empty without one, ``key`` is a CURVE public key in Z85, empty without one.
    """
    if user and user != ANONYMOUS:
        return f"user {user}"
    return f"key {key}" if key else f"address {host_of(address)}"


def address_of(text: str) -> IPv4Address | IPv6Address:
    """Parse an address; an IPv4-mapped one becomes an IPv4 address. Raises ValueError."""
    ip = ip_address(text)
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip


def _ip(address: str) -> IPv4Address | IPv6Address | None:
    # The whole text first: the last group of an IPv6 address is no port.
    for text in (address, _host(address)):
        try:
            return address_of(text)
        except ValueError:
            continue
    return None


def _host(address: str) -> str:
    """Return the text without its port and brackets."""
    host, colon, port = address.rpartition(":")
    host = host if colon and port.isdecimal() else address
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host
