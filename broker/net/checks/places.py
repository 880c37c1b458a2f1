"""Places of checks: the host and port of a service, and the addresses that may be connected to.

Peers choose the hostports of their services, and a check makes the broker connect there. Therefore:

- An address must be in one of the configured networks. It is checked after the lookup of a name, and the connection is
  made to that very address, so that a name cannot change its address in between.
- A loopback address counts only for a peer of this machine: for any other peer the name of the broker's own ports would
  be an order to connect to them.
- IPv4 addresses within IPv6 ones are checked as IPv4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from broker.access.identity import address_of
from broker.net.checks.refusals import NotChecked

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

_HOSTPORT = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?"
    # A resolver fails on labels of more than 63 characters, instead of answering that there is no such name.
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>(?=.{1,253}:[0-9]+(?:/|$))[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*))"
    r":(?P<port>[0-9]{1,5})(?:/[^\s]*)?"
)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of texts like ``10.0.0.0/8``. Raises ValueError."""
    return tuple(ip_network(text) for text in texts)


def split(hostport: str) -> tuple[str, int]:
    """Return the host and port of a hostport, with or without a scheme and a path. Raises `NotChecked`."""
    match = _HOSTPORT.fullmatch(hostport)
    if match is None or not 1 <= int(match["port"]) <= 65_535 or (match["six"] and not numeric(match["six"])):
        raise NotChecked("its hostport has no valid host and port")
    return match["six"] or match["host"], int(match["port"])


def permitted(addresses: Sequence[str], allowed: Sequence[Network], local: bool) -> Address:
    """Return the first of ``addresses`` that may be connected to. Raises `NotChecked`.

    ``local`` is True if the peer that gave the hostport is on this machine.
    """
    reason = "its host has no address"
    for text in addresses:
        try:
            inner = address_of(text)
        except ValueError:
            continue
        if not any(inner in network for network in allowed):
            reason = f"{inner} is in none of the networks of checks.networks"
        elif inner.is_loopback and not local:
            reason = f"{inner} is an address of this machine, and its provider is on another one"
        else:
            return inner
    raise NotChecked(reason)


def numeric(host: str) -> bool:
    """Return True for an address, which needs no lookup."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
