"""The ``hostport`` of a service as DNS can express it.

A hostport is free text, ``host:port`` by convention. DNS expresses an IP address or a host name, with a port or
without; an IPv6 address with a port stands in brackets. Names are passed on and never resolved.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs

from broker.wires.dns.codec.hosts import host_labels
from broker.wires.dns.codec.names import dotted

KEPT = 16_384
"""Hostports whose parts are kept: those of a farm of thousands. About 300 bytes each."""

_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?")
_PLAIN = re.compile(r"([^\[\]:]+)(?::([0-9]{1,5}))?")

IP = IPv4Address | IPv6Address


@attrs.frozen
class HostPort:
    """A host with a port, None where there is none. ``host`` is an address, or a name in lower case. ``label`` is the
    label of an address: its bytes in hexadecimal."""

    host: IP | bytes
    port: int | None
    label: bytes = b""


@lru_cache(maxsize=KEPT)
def place(hostport: str) -> HostPort | None:
    """Return the place, or None where DNS cannot express it.

    An unspecified address (``0.0.0.0``, ``::``) is where a server listens, not where a client connects: None.
    """
    match = _BRACKETS.fullmatch(hostport) or _PLAIN.fullmatch(hostport)
    if match is None:
        ip = _ip(hostport)  # an IPv6 address without brackets has no port
        return None if ip is None or ip.is_unspecified else HostPort(ip, None, _label(ip))
    host, port = match[1], None if match[2] is None else int(match[2])
    if port is not None and not 0 < port < 65_536:
        return None
    ip = _ip(host)
    if ip is not None:
        return None if ip.is_unspecified else HostPort(ip, port, _label(ip))
    labels = host_labels(host)
    # A last label of digits alone is an address with a typing error: no top-level domain is one (RFC 3696).
    if labels is None or labels[-1].isdigit():
        return None
    return HostPort(dotted(labels), port)


def labelled_address(label: bytes) -> IP | None:
    """Return the address of a label, or None if it is the label of none."""
    try:
        packed = bytes.fromhex(label.decode("ascii"))
    except ValueError:
        return None
    if len(packed) * 2 != len(label):  # blanks between digits
        return None
    if len(packed) == 4:
        return IPv4Address(packed)
    return IPv6Address(packed) if len(packed) == 16 else None


def _label(ip: IP) -> bytes:
    return ip.packed.hex().encode("ascii")


def _ip(host: str) -> IP | None:
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        return None if ip.scope_id is not None else ip.ipv4_mapped or ip
    return ip
