"""Response rate limiting: a forged source address must not turn the broker into an amplifier.

A datagram's source can be forged, and a response may be twenty times as long as its query. So responses by UDP are
limited for each address and for each network, since a sender that forges one address can forge its neighbours. Of the
queries over the limit most are dropped, and each `SLIP`-th is answered by a short response with TC: a real client asks
again by TCP, where a source cannot be forged.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from broker.access.identity import address_of, is_local, network_of
from broker.wires.dns.dns_settings import Dns

SLIP = 2
"""Of so many queries over the limit one is answered by TC. A client that asks three times, as resolvers do, then gets
at least one; and what a victim is sent is at most half of what the attacker sends."""

NETWORK_SHARE = 4
"""Times the rate of one address that its network (/24, for IPv6 /56) gets: less than the number of its addresses, so
that varying the forged address gains little, and more than one, since a farm is often one network."""

IPV4_NETWORK, IPV6_NETWORK = 3, 7
"""Bytes of an address that are its network: for IPv6, 56 bits are what a site is usually given."""


class LimitVerdict(enum.Enum):
    """Decision about one response."""

    SEND = "send"
    SLIP = "slipped"
    DROP = "dropped"


class Rates(Protocol):
    """A token bucket for each key."""

    def take(self, key: str, rate: float, burst: float) -> bool:
        """Return True if one more of this key is within the rate."""


class ResponseLimit:
    """The limit, over two tables of token buckets: one of addresses and one of networks."""

    def __init__(self, addresses: Rates, networks: Rates, dns: Dns) -> None:
        self.dns = dns
        self._addresses = addresses
        self._networks = networks
        self._over = 0
        self._slipped = self._dropped = 0

    def verdict(self, host: str) -> LimitVerdict:
        """Return whether the next response to an address may be sent; it is taken to be."""
        rate, burst = self.dns.response_rate, self.dns.response_burst
        if not rate or (not self.dns.limit_loopback and is_local(host)):
            return LimitVerdict.SEND
        within = self._addresses.take(network_of(host), rate, burst) and self._networks.take(
            network(host), rate * NETWORK_SHARE, burst * NETWORK_SHARE
        )
        if within:
            return LimitVerdict.SEND
        self._over += 1
        if self._over % SLIP:
            self._dropped += 1
            return LimitVerdict.DROP
        self._slipped += 1
        return LimitVerdict.SLIP

    def counts(self) -> Mapping[str, int]:
        """Return the queries over the limit, by what became of them."""
        return {"dns_limited.dropped": self._dropped, "dns_limited.slipped": self._slipped}


def network(host: str) -> str:
    """Return the network of an address, in text that no address has."""
    ip = address_of(host)
    size = IPV4_NETWORK if ip.version == 4 else IPV6_NETWORK
    return ip.packed[:size].hex() + ":*"
