"""Cache of verified passwords: a request with the credentials of an earlier one is not checked again.

A check costs some 30 ms of a thread (scrypt or PBKDF2), and HTTP has credentials in every request. Rules:
- Only verified credentials are kept, as a keyed BLAKE2 digest: neither a password nor a digest that another process
  could compare is in memory.
- An entry counts while its user's credential is valid (`Access.stands`), and no longer than `LIFETIME`.
- Wrong credentials always reach the check, and with it the back-off of their address.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from hashlib import blake2b

from twisted.internet.interfaces import IReactorTime

from broker.access.principal import Access, Principal

MOST = 1_000
"""Entries: clients with a password of their own, at some 200 bytes each. Beyond it the one unused for longest goes."""

LIFETIME = 300.0
"""Seconds after which credentials are checked again: a bound for whatever `Access.stands` cannot see."""


class VerifiedCredentials:
    """Principals of verified Basic credentials. ``clock`` gives the time."""

    def __init__(self, access: Access, clock: IReactorTime) -> None:
        self._access = access
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, credentials: str) -> Principal | None:
        """Return the user of credentials that were verified before; None if they have to be checked."""
        digest = self._digest(credentials)
        entry = self._known.get(digest)
        if entry is None:
            return None
        principal, until = entry
        if self._clock.seconds() >= until or not self._access.stands(principal):
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return principal

    def add(self, credentials: str, principal: Principal) -> Principal:
        """Keep verified credentials. Returns the principal."""
        self._known[self._digest(credentials)] = (principal, self._clock.seconds() + LIFETIME)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return principal

    def _digest(self, credentials: str) -> bytes:
        return blake2b(credentials.encode("utf-8", "surrogatepass"), key=self._key, digest_size=32).digest()
