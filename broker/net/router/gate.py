"""Admission to a ROUTER: the decision on the claim that a peer makes at the end of its handshake.

Rules:
- A key that is not allowed is refused *for now*: an operator may add it. The peer is told nothing, its handshake runs
  out of time, and libzmq tries again by itself; to close at once would make it try ten times a second.
- A refused key is logged once a minute, so that a farm behind one address can be enrolled from the log; of one address
  `KEYS_LOGGED` are, so that endless new keys cannot fill it.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Reason, Refusal
from broker.net.rate_limits import COMPLAIN_EVERY, Complaints, Rates

KEYS_LOGGED = 20
"""Refused keys of one address that are logged in a minute."""


class Keys(Protocol):
    """The client keys that are allowed."""

    def name_of(self, key: str) -> str | None:
        """The name of a key (Z85), or None if it is not allowed."""


class Gate:
    """The rule of one wire: the allowed ``keys``, or None where any key, or none, is asked for."""

    def __init__(self, wire: str, keys: Keys | None, complaints: Complaints, clock: IReactorTime) -> None:
        self._wire = wire
        self._keys = keys
        self._complaints = complaints
        self._due: Rates[tuple[str, str]] = Rates(clock)
        self._shown: Rates[str] = Rates(clock)

    def admits(self, key: str, address: str) -> bool:
        """Return True if a peer with that key (Z85) may come in. A refusal is counted, and logged within bounds."""
        if self._keys is None or self._keys.name_of(key) is not None:
            return True
        # No token of the address is spent on a key that was logged in the last minute.
        if self._due.take((address, key), 1 / COMPLAIN_EVERY, 1) and self._shown.take(
            address, KEYS_LOGGED / COMPLAIN_EVERY, KEYS_LOGGED
        ):
            refusal = Refusal(Reason.KEY_NOT_ALLOWED, "this client key is not allowed")
            self._complaints.add(self._wire, f"{address} with key {key}", refusal)
        else:
            self._complaints.count(f"{self._wire}_refused", Reason.KEY_NOT_ALLOWED.code)
        return False
