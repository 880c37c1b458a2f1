"""The place of a service, and the addresses that may speak for it.

Rules:
- A service says itself where it is. Hermes' always say 127.0.0.1, which is another machine to everybody elsewhere: a
  loopback address, or one that stands for all, means the address that the registration came from.
- So does a missing address. A missing port is 0, to which nobody can connect.
- Loopback addresses are one and the same peer.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from broker.net.interfaces.addresses import is_loopback
from broker.wires.dbp.codec.details import Details


def hostport(details: Details, address: str) -> str:
    """Where others find a service that ``address`` has registered."""
    host = host_of(details, address)
    return f"[{host}]:{details.port or 0}" if ":" in host else f"{host}:{details.port or 0}"


def host_of(details: Details, address: str) -> str:
    """The host of that."""
    host = details.host
    if host is None or _is_wildcard(host) or (is_loopback(host) and not is_loopback(address)):
        return address
    return host


def probed(details: Details, address: str) -> tuple[str, int] | None:
    """The IPv4 address and port at which such a service can be asked; None if it said no port.

    A name is not looked up: that would hold up all ZeroMQ traffic. The service is asked where it registered from.
    """
    if details.port is None:
        return None
    host = host_of(details, address)
    return (host if _version(host) == 4 else address), details.port


def same(one: str, other: str) -> bool:
    """Whether two addresses of peers are those of one machine."""
    return one == other or (is_loopback(one) and is_loopback(other))


KEPT = 4_096
"""Addresses of which it is remembered what they are: to find out takes longer than all the rest."""


@lru_cache(KEPT)
def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == "*"


@lru_cache(KEPT)
def _version(host: str) -> int:
    try:
        return ip_address(host).version
    except ValueError:
        return 0
