"""The exception of the codec, and its kinds."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """The kinds of invalid input. Each ends the connection."""

    GREETING = "greeting"
    """The first octets are not a greeting of a supported version."""
    MECHANISM = "mechanism"
    """The peer uses another security mechanism."""
    HANDSHAKE = "handshake"
    """A command of the handshake is malformed, out of order, or fails to verify."""
    REFUSED = "refused"
    """The other side refused the handshake, by ERROR."""
    FRAME = "frame"
    """A frame or command is malformed, or a box does not open."""
    TOO_LARGE = "too-large"
    """A frame, a message or its number of frames is beyond the limits."""


class ZmtpError(Exception):
    """Invalid input of a connection, or input beyond the limits. The connection must be closed.

    ``reply`` has the octets of an ERROR with the reason for the peer; empty outside the handshake.
    """

    def __init__(self, fault: Fault, text: str, reply: bytes = b"") -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text
        self.reply = reply
