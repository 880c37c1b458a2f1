"""Addresses of services: what every wire refuses, and what it accepts with a remark.

An address is ``host:port`` by convention; a service may have another one, such as the path of a socket. Refused is what
cannot be meant: a URL, white space, a port out of range. Remarks are about addresses that work for some clients only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

from broker.core.errors import Reason, Refusal

MAX_PORT = 65_535
"""Highest port number of TCP and UDP."""

MAX_SHOWN = 80
"""Characters of an address in a refusal."""

MAX_REMARKS = 5
"""Remarks on one offer that its peer is sent: the first ones show the mistake."""

BRIDGES = IPv4Network("172.17.0.0/16")
"""Addresses of containers on Docker's default bridge."""

_COMMON = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,4}")
"""The form of nearly every address, which needs no further check."""

_SPACE = re.compile(r"[\s\x00-\x1f\x7f]")
_PORT = re.compile(r":([0-9]+)\Z", re.ASCII)


def check_hostport(hostport: str) -> None:
    """Raise `Refusal` PARAMETER with the reason for an address that no client can use."""
    if not _COMMON.fullmatch(hostport) and (objection := _objection(hostport)):
        raise Refusal(Reason.PARAMETER, objection)


def _objection(hostport: str) -> str:
    """Return the reason for which no client can use an address; empty if one may."""
    shown = f"hostport {hostport[:MAX_SHOWN]!r}"
    if "://" in hostport:
        return f"{shown} is a URL; an address is host:port, and the protocol is a field apart"
    if _SPACE.search(hostport):
        return f"{shown} has white space or a control character"
    port = _PORT.search(hostport)
    # Port 0 stands for none in DBP. A long number is not converted.
    if port is not None and (len(port[1]) > 5 or int(port[1]) > MAX_PORT):
        return f"{shown} has a port above {MAX_PORT}"
    return ""


@lru_cache(4_096)
def hostport_remark(hostport: str) -> str:
    """Return a remark on an address that does not serve every client, as a sentence; empty without one."""
    host, colon, port = hostport.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or not host:
        return "it is no host:port, so that DNS and Prometheus leave it out"
    if not port.strip("0"):  # a long number is not converted, as it may be one that is refused
        return "it has no port"
    if host in ("localhost", "localhost.localdomain"):
        return _LOOPBACK
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ""
    return _remark(address)


def remarks_for(hostports: Iterable[str], host: str = "") -> list[str]:
    """Return the remarks on the hostports that a peer registers, for that peer: `MAX_REMARKS` at most, and the number
    of the others. Addresses that are refused have none, nor have loopback ones if the peer's own ``host`` is this one:
    so may those of its clients be."""
    remarks = {each: remark for each in hostports if (remark := hostport_remark(each))}
    if not remarks:
        return []  # the usual case, on the path of each offer
    local = bool(host) and _is_here(host)
    found = [
        f"hostport {each[:MAX_SHOWN]!r}: {remark}"
        for each, remark in remarks.items()
        if not (local and remark == _LOOPBACK) and not _objection(each)
    ]
    more = len(found) - MAX_REMARKS
    return found[:MAX_REMARKS] + ([f"and {more} more"] if more > 0 else [])


@lru_cache(1_024)
def _is_here(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return True  # a socket with a path


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
