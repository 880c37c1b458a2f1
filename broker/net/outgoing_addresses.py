"""The rule on outgoing connections to addresses that peers chose: those of health checks and of DBP's probes.

Peers choose the hostports of their services, and a check makes the broker connect there. Therefore:

- An address must be in one of the networks of ``checks.networks``. It is checked after the lookup of a name, and the
  connection is made to that very address, so that a name cannot change its address in between.
- Link-local, multicast, broadcast, unspecified and reserved addresses are never permitted, whatever the networks are:
  they reach the metadata service of a cloud, or no service at all.
- The broker's own listeners are not permitted: a connection to one would come from this machine, which has more rights
  there.
- A loopback address is permitted only if a peer of this machine gave it: from any other peer it would be an order to
  connect to programs of the broker's machine.
- IPv4 addresses within IPv6 ones are judged as IPv4.

Each refusal is counted as ``checks_refused.KIND``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_network

from broker.access.identity import address_of, is_address
from broker.core.errors import Reason, Refusal

Address = IPv4Address | IPv6Address

NO_ADDRESS, NETWORK, SPECIAL, LOOPBACK, OWN = "no-address", "network", "special", "loopback", "own-listener"
"""Kinds of refusals, as they are counted."""

_HOSTPORT = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?"
    # A resolver fails on labels of more than 63 characters, instead of answering that there is no such name.
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>(?=.{1,253}:[0-9]+(?:/|$))[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*))"
    r":(?P<port>[0-9]{1,5})(?:/[^\s]*)?"
)


class Outgoing:
    """The rule. ``networks`` are those of ``checks.networks``; ``own`` returns the addresses of the open listeners, as
    ``HOST:PORT`` or paths; ``count`` counts a refusal of a kind."""

    def __init__(
        self, networks: Iterable[str], own: Callable[[], Iterable[str]], count: Callable[[str], object]
    ) -> None:
        self._own = own
        self._count = count
        self.use(networks)

    def use(self, networks: Iterable[str]) -> None:
        """Apply other networks, which are texts like ``10.0.0.0/8``. Raises ValueError."""
        self._networks = tuple(map(ip_network, networks))

    def permitted(self, addresses: Sequence[str], port: int, local: bool) -> Address:
        """Return the first of ``addresses`` that may be connected to at ``port``. Raises `Refusal`.

        ``local`` is True if the peer that gave the address is on this machine.
        """
        why = NO_ADDRESS, "its host has no address"
        for text in addresses:
            try:
                address = address_of(text)
            except ValueError:
                continue
            found = self._not_permitted(address, port, local)
            if found is None:
                return address
            why = found
        kind, reason = why
        self._count(kind)
        raise Refusal(Reason.ADDRESS_NOT_ALLOWED, reason)

    def _not_permitted(self, address: Address, port: int, local: bool) -> tuple[str, str] | None:
        """Return the kind and reason of the refusal of an address; None if it is permitted."""
        if (special := _special(address)) is not None:
            return SPECIAL, f"{address} is {special} address"
        if not any(address in network for network in self._networks):
            return NETWORK, f"{address} is in none of the networks of checks.networks"
        if address.is_loopback and not local:
            return LOOPBACK, f"{address} is an address of this machine, and its provider is on another one"
        if any(_listens(where, address, port) for where in self._own()):
            return OWN, f"{address} port {port} is a listener of this broker"
        return None


def split(hostport: str) -> tuple[str, int]:
    """Return the host and port of a hostport, with or without a scheme and a path. Raises `Refusal`."""
    match = _HOSTPORT.fullmatch(hostport)
    if match is None or not 1 <= int(match["port"]) <= 65_535 or (match["six"] and not is_address(match["six"])):
        raise Refusal(Reason.PARAMETER, "its hostport has no valid host and port")
    return match["six"] or match["host"], int(match["port"])


def _special(address: Address) -> str | None:
    """Return the name, with its article, of a kind of addresses that are never connected to; None for others."""
    embedded = address.sixtofour if isinstance(address, IPv6Address) else None
    for each in (address, embedded):
        if each is None or each.is_loopback:
            continue
        if each.is_unspecified:
            return "an unspecified"
        if each.is_link_local:
            return "a link-local"
        if each.is_multicast:
            return "a multicast"
        if each.is_reserved:  # the broadcast address, and addresses that translate to IPv4 ones (64:ff9b::/96), too
            return "a reserved or broadcast"
    return None


def _listens(where: str, address: Address, port: int) -> bool:
    """Return True if a connection to an address and port reaches the listener ``where``."""
    host, _, own_port = where.rpartition(":")
    if own_port != str(port):
        return False
    try:
        bound = address_of(host.strip("[]"))
    except ValueError:
        return False
    if bound.is_unspecified:
        return is_here(address)
    return bound == address


def is_here(address: Address) -> bool:
    """Return True for an address of this machine, by its routing table."""
    if address.is_loopback:
        return True
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False
        # The source of a datagram to an address of the machine is that address.
        return str(probe.getsockname()[0]) == str(address)
