"""Admission by client key: the decision on a peer's claim at the end of its handshake.

Rules:
- A key that is not allowed is refused *for now*, since an operator may add it. The peer gets no reply, its handshake
  times out, and libzmq retries by itself; an immediate close would make it retry ten times a second.
- A refused key is logged once a minute, so that a farm behind one address can be enrolled from the log. At most
  `KEYS_LOGGED` keys of one address are logged, so that endless new keys cannot flood it.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from broker.access.identity import network_of, owner_of
from broker.core.errors import Reason, Refusal
from broker.core.log_limit import LINE_EVERY
from broker.core.token_buckets import Rates
from broker.net.rate_limits import Complaints

KEYS_LOGGED = 20
"""Refused keys of one address logged per minute."""


class AllowList(Protocol):
    """The allow-list of client keys."""

    def name_of(self, key: str) -> str | None:
        """The name of a key (Z85), or None if it is not allowed."""


class KeyGate:
    """The admission rule of one wire. ``keys`` is the allow-list; None admits any key, and peers without one."""

    def __init__(self, wire: str, keys: AllowList | None, complaints: Complaints, clock: IReactorTime) -> None:
        self._wire = wire
        self._keys = keys
        self._complaints = complaints
        self._due: Rates[tuple[str, str]] = Rates(clock.seconds)
        self._shown: Rates[str] = Rates(clock.seconds)

    def owner(self, key: str, address: str) -> str:
        """Return the owner of the identities of a peer with that key (Z85, or empty): see `broker.access.identity`."""
        name = None if self._keys is None else self._keys.name_of(key)
        return owner_of(name or "", address, key)

    def admits(self, key: str, address: str) -> bool:
        """Return True if a peer with that key (Z85) is admitted. A refusal is counted, and logged within the rate
        limit."""
        if self._keys is None or self._keys.name_of(key) is not None:
            return True
        # A key logged in the last minute costs no token of the address.
        if self._due.take((address, key), 1 / LINE_EVERY, 1) and self._shown.take(
            network_of(address), KEYS_LOGGED / LINE_EVERY, KEYS_LOGGED
        ):
            refusal = Refusal(Reason.KEY_NOT_ALLOWED, "this client key is not allowed")
            self._complaints.add(self._wire, f"{address} with key {key}", refusal)
        else:
            self._complaints.count(f"{self._wire}_refused", Reason.KEY_NOT_ALLOWED.code)
        return False
