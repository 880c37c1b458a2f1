"""Host addresses of peers: a pure function, without Twisted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

KEPT = 4_096
"""Hosts whose result is cached: parsing one costs more than all the rest of a message."""


@lru_cache(KEPT)
def is_loopback(host: str) -> bool:
    """Return True for an address, or the name ``localhost``, that only the machine itself can reach.

    Peers at unix sockets have no such address.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
