"""The interface between a session and its connection: the calls in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from broker.core.errors import Malformed, Refusal


class Peer(Protocol):
    """One connected peer."""

    @property
    def address(self) -> str:
        """The address of the peer, as text for the log and the console."""

    @property
    def local(self) -> bool:
        """True if the peer is on this machine: over loopback or a unix socket."""

    @property
    def behind(self) -> bool:
        """True if the peer has still to read much of its output: a long answer should wait."""

    def write(self, data: bytes) -> None:
        """Send one encoded message. Never raises; output of a closed connection is lost."""

    def write_first(self, data: bytes) -> None:
        """The same, before all that any other peer is sent from now on, unless this one does not read."""

    def close(self) -> None:
        """Send the output that waits, then close. Calls `Session.lost` first."""

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns False if there were too many: the caller closes the connection."""

    def debug(self, label: str, text: str) -> None:
        """Log a line that the peer sent for the log."""

    def authenticated(self) -> None:
        """The peer has authenticated: its deadline ends."""


class Reader(Protocol):
    """Bytes to messages."""

    @property
    def pending(self) -> int:
        """Bytes that are held of an incomplete message."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that ``data`` completes, a `Malformed` for each that could not be read.

        `None` stands for a step of work that completes no message."""


class Session(Protocol):
    """One peer's conversation."""

    def receive(self, message: Any) -> None:
        """Take one message."""

    def malformed(self, malformed: Malformed) -> None:
        """Take input that could not be read as a message."""

    def refuse(self, refusal: Refusal) -> None:
        """Report a refusal to the peer, and close if it is fatal."""

    def input_ended(self) -> bool:
        """The peer sends no more. Returns True if answers are still to come, which it may wait for."""

    def lost(self) -> None:
        """The connection is gone, or about to be closed: free the state of the peer. May be called more than once."""
