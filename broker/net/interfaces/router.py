"""Interfaces between the sessions of a wire and a ROUTER (ZeroMQ's socket type for servers).

One ROUTER carries all peers of a wire. A peer is addressed by its *identity*, bytes that it chose or that the ROUTER
generated. Each connection has a number, which is never used again; an identity belongs to one connection at a time.
`broker.net.router.router` implements the ROUTER. The sessions implement `Conversation`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

import attrs

from broker.core.errors import Refusal

Part = bytes
"""One frame of a message."""


class Sent(enum.Enum):
    """The outcome of sending a message."""

    SENT = "sent"
    """The message is written, or waits for the peer to read."""
    FULL = "full"
    """The peer's outbound queue is at its limit of messages or bytes: the message is dropped."""
    GONE = "gone"
    """No connection has that identity."""


class Receiver(Protocol):
    """A peer to which messages are sent."""

    identity: bytes
    sent: float
    """The time of the last message to it, on the clock of the leases."""


class NumberedReceiver(Receiver, Protocol):
    """A receiver whose messages are numbered."""

    sequence: int
    """The number of the last message."""


R = TypeVar("R", bound=Receiver)
N = TypeVar("N", bound=NumberedReceiver)

NUMBER = 8
"""Bytes of a number in a frame, which is unsigned and in network order."""


@attrs.frozen
class Sender:
    """The origin of a message: host of the peer, and its CURVE public key in Z85 (empty without CURVE).

    ``socket_type`` is the Socket-Type of the peer's metadata, such as "REQ" or "DEALER". ``address`` is an IP address,
    or ``uid `` and a number for a peer at a unix socket.
    """

    address: str
    key: str = ""
    socket_type: str = ""


class Conversation(Protocol):
    """Session side of the interface: the calls that a ROUTER makes."""

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""

    def closed(self, connection: int) -> None:
        """Process the end of a connection. Called once for each connection, after its last message.

        When another connection takes over an identity, this is called before the first message of the new one.
        """

    def needs(self, connection: int) -> bool:
        """Return True while the peer of a connection offers something, or waits for something: then it gives way to no
        newcomer."""

    def room(self, identity: bytes) -> None:
        """Process the end of backpressure: a peer for which a send returned `Sent.FULL` has room again."""


class Router(Protocol):
    """A ROUTER socket."""

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """Send one message, whole or not at all."""

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        """Send the answer to a request. A bounded number of answers is queued beyond the limit on messages.

        Messages and answers leave in the order of the calls.
        """

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """Fan out one message, and set ``sent`` of its receivers. Returns the failed ones, each with its outcome."""

    def end(self, identity: bytes, number: int) -> None:
        """Close the connection of that identity and number in order, after its queued output. No-op if it is gone."""

    def sender(self) -> Sender:
        """Return the origin of the message that is being received. Raises AssertionError at any other time."""

    def key(self) -> str:
        """Return the key of that origin."""


class NumberingRouter(Router, Protocol):
    """A ROUTER socket that numbers fanned-out messages for each receiver."""

    def send_each(
        self, receivers: Collection[N], before: bytes, after: bytes, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """Fan out two frames, with each receiver's own next ``sequence`` as a number in the first.

        The first frame is ``before``, the number in `NUMBER` bytes, and ``after``. The number is consumed also if the
        message is refused, so that the receiver detects the loss. Sets ``sent`` of the receivers, and returns the
        failed receivers, each with its outcome.
        """


class Complaints(Protocol):
    """Counters, and a bounded log of refusals."""

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Count an event that needs no log line."""

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """Record a refusal of a peer of that wire, at that address."""
