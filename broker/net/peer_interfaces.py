"""Interfaces between transports and sessions: peers, ROUTER sockets, envelopes.

Interfaces between a connection of a byte stream and its session.

A connection (`Peer`) feeds received bytes to a `MessageReader`, and passes each message to the `PeerSession`. The
session sends its answers through the connection. `broker.net.connection` implements `Peer`; the sessions of the wires
implement `PeerSession`, and their codecs `MessageReader`.

Interfaces between the sessions of a wire and a ROUTER (ZeroMQ's socket type for servers).

One ROUTER carries all peers of a wire. A peer is addressed by its *identity*, bytes that it chose or that the ROUTER
generated. Each connection has a number, which is never used again; an identity belongs to one connection at a time.
`broker.net.router.router` implements the ROUTER. The sessions implement `Conversation`.

Envelopes: the routing frames before a message, which REQ sockets and ROUTER-DEALER proxies add (28/REQREP).

Rules, for all wires:
- The envelope is everything up to the first empty frame. A DEALER sends that frame alone, and so does a REQ; a REQ with
  ``ZMQ_REQ_CORRELATE`` puts the number of the request before it, and each proxy the identity of its client.
- It is sent back unchanged before each answer.
- The routing frames of a *route* identify one client behind proxies. Those of a REQ socket do not: it connects
  directly, and its routing frame is the number of its request.

The identity of the peer, which a ROUTER prepends, is not among the frames here. The functions are pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from broker.core.errors import Malformed, Refusal


class Peer(Protocol):
    """One connected peer."""

    @property
    def address(self) -> str:
        """Remote address of the peer, for display."""

    @property
    def host(self) -> str:
        """Remote address of the peer without its port."""

    @property
    def local(self) -> bool:
        """True if the peer is on this machine: over loopback or a unix socket."""

    @property
    def certificate(self) -> tuple[str, ...]:
        """The names of the peer's verified client certificate, common name and DNS names; empty without one."""

    @property
    def behind(self) -> bool:
        """True while output is pending: the session should delay long answers."""

    @property
    def unacknowledged(self) -> bool:
        """True if the host of the peer has not acknowledged all output; False if that is unknown."""

    @property
    def vanished(self) -> bool:
        """True in `PeerSession.lost` if neither side closed the connection: it failed, or its time was over."""

    @property
    def request_id(self) -> str:
        """The id of the request of HTTP that brought the present message; "" on a transport without requests."""

    def write(self, data: bytes) -> None:
        """Send one encoded message. Never raises; output for a closed connection is discarded."""

    def write_first(self, data: bytes) -> None:
        """Send one encoded message ahead of all later output to other peers, unless this peer does not read."""

    def close(self) -> None:
        """Flush pending output, then close. Calls `PeerSession.lost` first."""

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns False if there were too many, and the connection is to be closed."""

    def debug(self, label: str, text: str) -> None:
        """Log a line that the peer sent for the log."""

    def hold(self, size: int) -> bool:
        """Set the bytes that the state of the session takes beyond the usual, such as its waiting finds.

        Returns False, and changes nothing, if the memory of the peer's address is full.
        """

    def go_on_with(self, steps: Iterator[None]) -> None:
        """Handle the present message in steps, before the next message of the peer. After each step its turn may end.

        The steps that are left are discarded when the connection ends. Outside of a turn all are made at once.
        """

    def authenticated(self) -> None:
        """Cancel the time limit for authentication: the peer has authenticated."""


class MessageReader(Protocol):
    """Incremental decoder: bytes to messages."""

    @property
    def pending(self) -> int:
        """Buffered bytes of an incomplete message."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that ``data`` completes, and a `Malformed` for each invalid one.

        `None` stands for a unit of work that completes no message, so that the scheduler can interleave connections."""


class PeerSession(Protocol):
    """State of one peer's conversation."""

    @property
    def needed(self) -> bool:
        """True while the peer offers something, or waits for something: then it gives way to no newcomer."""

    def begin(self) -> None:
        """The connection is set up, over TLS with the handshake, and nothing was read yet."""

    def receive(self, message: Any) -> None:
        """Process one message."""

    def malformed(self, malformed: Malformed) -> None:
        """Process input that is not a valid message."""

    def refuse(self, refusal: Refusal) -> None:
        """Send the peer the reason of a refusal, and close the connection if the refusal is fatal."""

    def input_ended(self) -> bool:
        """Process the end of input. Returns True if answers are pending, which the peer may still read."""

    def lost(self) -> None:
        """Release the state of the peer: the connection is closed, or about to be. Idempotent."""


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
        """Process the end of backpressure: a peer for which a send returned `Sent.FULL` has room again. Never called
        within a send."""


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

        The first frame is ``before``, the number in `NUMBER` bytes, and ``after``. The number is consumed even if the
        message is refused, so that the receiver detects the loss. Sets ``sent`` of the receivers, and returns the
        failed receivers, each with its outcome.
        """


class RefusalLog(Protocol):
    """Counters, and a bounded log of refusals."""

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Count an event that needs no log line."""

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """Record a refusal of a peer of that wire, at that address."""


MAX_HOPS = 16
"""Routing frames of one message, without the empty one: a REQ socket puts one there, and so does each proxy."""

MAX_ENVELOPE = 1_024
"""Bytes of an envelope. Routes are stored, thousands of them; real frames have 4 or 5 bytes."""

REQ = "REQ"
"""The Socket-Type of a REQ in the metadata of a connection."""

Envelope = tuple[bytes, ...]
"""The frames of an envelope, the last of which is empty."""

ENVELOPE_TOO_LONG = f"the envelope has more than {MAX_HOPS} routing frames or {MAX_ENVELOPE} bytes"
"""The text of a refusal."""


def envelope_size(frames: Sequence[bytes]) -> int | None:
    """Return the number of frames of the envelope, the empty one included: 0 if there is no empty frame, None if the
    envelope is longer than permitted."""
    for at in range(min(len(frames), MAX_HOPS + 1)):
        if not frames[at]:
            return at + 1 if sum(map(len, frames[:at])) <= MAX_ENVELOPE else None
    return 0 if len(frames) <= MAX_HOPS else None


def route_of(envelope: Envelope, socket_type: str) -> Envelope:
    """Return the routing frames that identify a client of the connection of such a socket; none for its own peer."""
    return () if socket_type == REQ else envelope[:-1]


def envelope_key(routing: Envelope) -> bytes:
    """Return routing frames as one key: each with its length, or "ab", "c" and "a", "bc" would be one."""
    return b"".join([len(part).to_bytes(4) + part for part in routing])
