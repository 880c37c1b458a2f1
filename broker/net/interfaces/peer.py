"""What a session asks of the connection that it serves, and what that asks of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from broker.core.errors import Malformed, Refusal


class Peer(Protocol):
    """One connected peer."""

    @property
    def address(self) -> str:
        """Where it comes from, for people."""

    @property
    def local(self) -> bool:
        """Whether it is on this machine: over loopback or a unix socket."""

    @property
    def behind(self) -> bool:
        """Whether it has still to read of what it was sent: a long answer should wait."""

    def write(self, data: bytes) -> None:
        """Send one encoded message. Never raises; what a closed connection is sent is lost."""

    def write_first(self, data: bytes) -> None:
        """The same, before all that any other peer is sent from now on, unless this one does not read."""

    def close(self) -> None:
        """Send what is still to be sent, then close. Calls `Session.lost` first."""

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns False when there were too many: the connection is to be closed."""

    def debug(self, label: str, text: str) -> None:
        """Log a line that the peer sent for the log."""

    def authenticated(self) -> None:
        """It said who it is: it may stay."""


class Reader(Protocol):
    """Bytes to messages."""

    @property
    def pending(self) -> int:
        """Bytes held of what is not complete."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that ``data`` completes, a `Malformed` for each that could not be read.

        `None` stands for a step of work that completes no message."""


class Session(Protocol):
    """One peer's conversation."""

    def receive(self, message: Any) -> None:
        """Take one message."""

    def malformed(self, malformed: Malformed) -> None:
        """Take what could not be read as a message."""

    def refuse(self, refusal: Refusal) -> None:
        """Tell the peer what is refused, and close if that is fatal."""

    def input_ended(self) -> bool:
        """The peer will send no more. Returns whether answers are still to come, for which it may be listening."""

    def lost(self) -> None:
        """The connection is gone, or about to be closed: forget the peer. May be called more than once."""
