"""The identities of a ROUTER: which connection has which, and the rule of takeover.

Rules:
- An identity belongs to one connection at a time. A peer without one is given five octets, of which the first is zero;
  no peer may choose one that begins so (`broker.net.zmtp.machine`).
- A newcomer takes an identity over where it has the same CURVE key as the connection that has it; without keys, where
  it comes from the same host. Loopback addresses are one host. The older connection is closed.
- Any other newcomer is refused until the older connection is gone: otherwise a stranger would receive its messages.
"""

from __future__ import annotations

import secrets
from typing import Generic, Protocol, TypeVar

from broker.net.interfaces.addresses import is_loopback

GENERATED = b"\0"
"""The beginning of an identity that the ROUTER gives."""


class Owner(Protocol):
    """A connection that may have an identity."""

    host: str
    key: str


O = TypeVar("O", bound=Owner)  # noqa: E741


class Identities(dict[bytes, O], Generic[O]):
    """Connections by identity."""

    def __init__(self) -> None:
        super().__init__()
        # A restarted broker begins elsewhere: a peer shall not be given the name that another one had.
        self._next = secrets.randbits(32)

    def generate(self) -> bytes:
        """An identity that no connection has."""
        while True:
            self._next = (self._next + 1) & 0xFFFFFFFF
            identity = GENERATED + self._next.to_bytes(4, "big")
            if identity not in self:
                return identity

    def may_take(self, identity: bytes, newcomer: O) -> bool:
        """Return True if a newcomer may have that identity: it is free, or the newcomer takes it over."""
        owner = self.get(identity)
        if owner is None:
            return True
        if owner.key or newcomer.key:
            return owner.key == newcomer.key
        return owner.host == newcomer.host or (is_loopback(owner.host) and is_loopback(newcomer.host))
