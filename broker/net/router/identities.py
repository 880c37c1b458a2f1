"""Identity table of a ROUTER: connections by identity, and the takeover rule.

Rules:
- An identity belongs to one connection at a time. A peer without one gets five octets with a leading zero. Such
  identities are reserved (RFC 28): one that a peer chooses is replaced.
- A new connection takes an identity over if it has the same owner (`broker.access.identity`): the user or name of its
  CURVE key, the key itself if it has none, the host without keys. The older connection is closed.
- Any other new connection is refused until the owner is gone: otherwise a stranger would receive its messages.
"""

from __future__ import annotations

import secrets
from typing import Generic, Protocol, TypeVar

GENERATED = b"\0"
"""The first octet of a generated identity."""


class Owner(Protocol):
    """A connection that may have an identity, with its owner."""

    owner: str


O = TypeVar("O", bound=Owner)  # noqa: E741


class Identities(dict[bytes, O], Generic[O]):
    """Connections by identity."""

    def __init__(self) -> None:
        super().__init__()
        # A random start: after a restart, a peer must not get an identity that another peer had before.
        self._next = secrets.randbits(32)

    def generate(self) -> bytes:
        """Return an identity without an owner."""
        while True:
            self._next = (self._next + 1) & 0xFFFFFFFF
            identity = GENERATED + self._next.to_bytes(4, "big")
            if identity not in self:
                return identity

    def may_take(self, identity: bytes, newcomer: O) -> bool:
        """Return True if a new connection may have that identity: it is free, or may be taken over."""
        older = self.get(identity)
        return older is None or older.owner == newcomer.owner
