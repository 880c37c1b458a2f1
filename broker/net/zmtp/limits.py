"""Bounds on the input of one ZMTP connection. All of them apply while bytes arrive."""

from __future__ import annotations

import attrs

FRAME_COST = 64
"""Bytes that a frame counts for beside its content: the object, its place in a list, and the rounding of the allocator.
An empty frame counts for them as well; otherwise two bytes of a peer would take that much memory."""

ENVELOPE = 512 * 1024
"""Bytes by which a message may exceed its longest frame: headers, routing frames, and some thousand short frames."""

MAX_FRAMES = 8_192
"""Frames of one message. Messages of 2,000 are known to be sent."""

MAX_HANDSHAKE = 2_048
"""Bytes of a command in the handshake. The largest is CURVE's INITIATE: 257 bytes and the metadata, of which libzmq
sends a Socket-Type and an Identity of up to 255 bytes."""

MAX_PROPERTIES = 32
"""Properties in the metadata of a peer. libzmq sends two, and applications a few of their own."""

MAX_COMMAND = 512
"""Bytes of a command between messages. PING has 23 at most; a subscription of SUB sockets would have its prefix."""


@attrs.frozen
class FrameLimits:
    """Bounds on one connection.

    ``frame`` is in bytes, and at least 255: shorter frames are not compared with it. ``message`` is in bytes, each
    frame counting for `FRAME_COST` more. ``frames`` is the number of frames in a message.
    """

    frame: int = 16 * 1024 * 1024
    message: int = 16 * 1024 * 1024 + ENVELOPE
    frames: int = MAX_FRAMES

    @classmethod
    def of_frame(cls, size: int) -> FrameLimits:
        """The limits where the longest frame may have ``size`` bytes."""
        return cls(frame=size, message=size + ENVELOPE)
