"""What sessions behind a ZeroMQ ROUTER ask of it.

One socket carries all peers of a wire. A peer is known by its *identity*, the bytes that it chose (or that the ROUTER
gave it); the connection that a message came through is known by its descriptor, which is used again after a while.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from broker.core.errors import Refusal

Part = Any
"""One frame: bytes, or what the transport uses for long ones, which has a length and can be turned into bytes."""


class Sent(enum.Enum):
    """What became of a message."""

    SENT = "sent"
    """It waits for the peer to read it, or was read."""
    FULL = "full"
    """The peer reads too slowly: as much as may wait for it waits already."""
    GONE = "gone"
    """No connection has that identity."""
    HELD = "held"
    """Something else must be sent to that peer before."""


class Receiver(Protocol):
    """A peer that messages are sent to."""

    identity: bytes
    held: bool
    """Nothing may be sent to it now."""
    sent: float
    """When something was last sent to it."""


class Numbered(Receiver, Protocol):
    """A receiver whose messages are numbered."""

    sequence: int
    """The number of the last one."""


R = TypeVar("R", bound=Receiver)
N = TypeVar("N", bound=Numbered)

NUMBER = 8
"""Bytes of a number in a frame, which is unsigned and in network order."""


@attrs.frozen
class Sender:
    """Where a message came from: the peer's address, and its CURVE public key in Z85 (empty without CURVE).

    ``socket_type`` is the kind of socket that the peer says it has, such as "REQ" or "DEALER". Of a peer that speaks a
    version of ZMTP before 3 nothing is known: all is empty, the address too.
    """

    address: str
    key: str = ""
    socket_type: str = ""


class Router(Protocol):
    """A ROUTER socket."""

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """Send one message, whole or not at all."""

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """Send the same message to many, and stamp their ``sent``. Returns those who did not get it, and why."""

    def sender(self) -> Sender:
        """Who sent the message that is being received. Only to be asked while it is."""

    def key(self) -> str:
        """The key of that sender."""

    def forget(self, identity: bytes) -> None:
        """That identity is not used any more."""


class NumberingRouter(Router, Protocol):
    """A ROUTER socket that numbers what it sends to many."""

    def send_each(
        self, receivers: Collection[N], frame: bytes, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """Send the same two frames to many, but for a number in the first: each receiver's own next ``sequence``.

        It is put over the `NUMBER` bytes of ``frame`` from ``at`` on. Who does not get the message has used its number
        up too. Stamps the ``sent`` of the others, and returns those who did not get it, and why.
        """

    def breathe(self, wait: bool) -> None:
        """Notice for whom there is room again. With ``wait`` what was sent has a moment to go out before."""


class Complaints(Protocol):
    """Where what peers did wrong is counted and logged."""

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Count what needs no log line."""

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """A peer of that wire, at that address, was refused something."""
