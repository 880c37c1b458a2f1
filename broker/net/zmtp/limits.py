"""Limits on the input of one ZMTP connection. All of them apply while bytes arrive."""

from __future__ import annotations

import attrs

FRAME_COST = 64
"""Accounted bytes of a frame besides its content: the object, its list entry, and the rounding of the allocator.
Without them, two bytes of a peer (an empty frame) would take that much unaccounted memory."""

ENVELOPE = 512 * 1024
"""Bytes by which a message may exceed its longest frame: headers, routing frames, and some thousand short frames."""

MAX_FRAMES = 8_192
"""Frames of one message. Messages of 2,000 occur in practice."""

MAX_HANDSHAKE = 2_048
"""Bytes of a command in the handshake. The largest is CURVE's INITIATE: 257 bytes and the metadata, of which libzmq
sends a Socket-Type and an Identity of up to 255 bytes."""

MAX_PROPERTIES = 32
"""Properties in the metadata of a peer. libzmq sends two, and applications a few of their own."""

MAX_COMMAND = 512
"""Bytes of a command between messages. PING has 23 at most; a subscription of SUB sockets would have its prefix."""


@attrs.frozen
class FrameLimits:
    """Limits on one connection.

    ``frame`` is in bytes, and at least 255: shorter frames are not compared with it. ``message`` is in bytes, plus
    `FRAME_COST` for each frame. ``frames`` is the number of frames in a message.
    """

    frame: int = 16 * 1024 * 1024
    message: int = 16 * 1024 * 1024 + ENVELOPE
    frames: int = MAX_FRAMES

    @classmethod
    def of_frame(cls, size: int) -> FrameLimits:
        """Return the limits for frames of at most ``size`` bytes."""
        return cls(frame=size, message=size + ENVELOPE)
