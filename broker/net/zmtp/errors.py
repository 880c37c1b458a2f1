"""The one exception of the codec."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """The kinds of wrong input. Each ends the connection."""

    GREETING = "greeting"
    """The first octets are no greeting of a version that is spoken."""
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
    """The input of a connection is not ZMTP, or beyond the limits: the connection is to be closed.

    ``reply`` has the octets that tell the peer why, where the protocol has any (ERROR, in the handshake).
    """

    def __init__(self, fault: Fault, text: str, reply: bytes = b"") -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text
        self.reply = reply
