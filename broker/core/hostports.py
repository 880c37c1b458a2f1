"""Addresses of services: what every wire refuses, and what it accepts with a remark.

An address is ``host:port`` by convention; a service may have another one, such as the path of a socket. Refused is what
cannot be meant: a URL, white space, a port out of range. Remarks are about addresses that work for some clients only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

from broker.core.errors import Reason, Refusal

MAX_PORT = 65_535
"""Highest port of TCP and UDP."""

MAX_SHOWN = 80
"""Characters of an address in a refusal."""

BRIDGES = IPv4Network("172.17.0.0/16")
"""Addresses of containers on Docker's default bridge."""

_COMMON = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,4}")
"""What nearly every address is, and needs no further look."""

_SPACE = re.compile(r"[\s\x00-\x1f\x7f]")
_PORT = re.compile(r":([0-9]+)\Z", re.ASCII)


def check_hostport(hostport: str) -> None:
    """Raise `Refusal` PARAMETER with the reason for an address that no client can use."""
    if _COMMON.fullmatch(hostport):
        return
    shown = f"hostport {hostport[:MAX_SHOWN]!r}"
    if "://" in hostport:
        raise Refusal(Reason.PARAMETER, f"{shown} is a URL; an address is host:port, and the protocol is a field apart")
    if _SPACE.search(hostport):
        raise Refusal(Reason.PARAMETER, f"{shown} has white space or a control character")
    port = _PORT.search(hostport)
    # Port 0 stands for none in DBP. A long number is not converted.
    if port is not None and (len(port[1]) > 5 or int(port[1]) > MAX_PORT):
        raise Refusal(Reason.PARAMETER, f"{shown} has a port above {MAX_PORT}")


@lru_cache(4_096)
def hostport_remark(hostport: str) -> str:
    """Return a remark on an address that does not serve every client, as a sentence; empty without one."""
    host, colon, port = hostport.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        return "it is no host:port, so that DNS and Prometheus leave it out"
    if int(port) == 0:
        return "it has no port"
    if host in ("localhost", "localhost.localdomain"):
        return _LOOPBACK
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ""
    return _remark(address)


_LOOPBACK = "it is a loopback address: clients on other hosts reach themselves there"


def _remark(address: IPv4Address | IPv6Address) -> str:
    if address.is_loopback:
        return _LOOPBACK
    if address.is_unspecified:
        return "it is the address of a listener on all interfaces, and no address to connect to"
    if address.is_link_local:
        return "it is a link-local address: clients behind a router do not reach it"
    if address.is_multicast:
        return "it is a multicast address"
    if isinstance(address, IPv4Address) and address in BRIDGES:
        return "it is an address of Docker's default bridge: clients on other hosts do not reach it"
    return ""
