"""Addresses of services: the hostport for the registry, and the address for probes.

Rules:
- A service registers its own address. Hermes' services always register 127.0.0.1, which is wrong for clients on other
  machines: a loopback or wildcard address stands for the address from which the service was registered.
- So does a missing address. A missing port becomes 0, to which no client can connect.

See docs/protocols/dbp.md, "Into the registry".
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from broker.access.identity import KEPT, is_local
from broker.wires.dbp.codec.details import Details


def hostport(details: Details, address: str) -> str:
    """Return the hostport of a service that was registered from ``address``."""
    host = host_of(details, address)
    return f"[{host}]:{details.port or 0}" if ":" in host else f"{host}:{details.port or 0}"


def host_of(details: Details, address: str) -> str:
    """Return the host of a service that was registered from ``address``."""
    host = details.host
    # A peer that is on loopback itself means this machine by a loopback address, so that it is right as it stands.
    if host is None or _is_wildcard(host) or (is_local(host) and not is_local(address)):
        return address
    return host


def probed(details: Details, address: str) -> tuple[str, int] | None:
    """Return the IPv4 address and port for probes of a service; None if it registered no port.

    A host name is not resolved, since that would block all ZeroMQ traffic. Such a service is probed at the address from
    which it was registered.
    """
    if details.port is None:
        return None
    host = host_of(details, address)
    return (host if _version(host) == 4 else address), details.port


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
