"""Interfaces between a connection of a byte stream and its session.

A connection (`Peer`) feeds received bytes to a `MessageReader`, and passes each message to the `PeerSession`. The
session sends its answers through the connection. `broker.net.connection` implements `Peer`; the sessions of the wires
implement `PeerSession`, and their codecs `MessageReader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from broker.core.errors import Malformed, Refusal


class Peer(Protocol):
    """One connected peer."""

    @property
    def address(self) -> str:
        """Remote address of the peer, for display."""

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
