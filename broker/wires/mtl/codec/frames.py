"""Framing: requests of the control flow, commands of the data flow, and the distinction between them.

Rules:
- A request is an envelope (`broker.net.interfaces.envelopes`), a command and a body. The envelope is sent back
  unchanged before the reply.
- A data command is a header, which is not empty, and a body. It has no empty frame that would delimit routing frames:
  so a data flow cannot pass a proxy.
- So one socket can carry both: two frames, the first of them not empty, are data; everything else is control.

The identity of the peer, which a ROUTER prepends, is not among the frames here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from broker.wires.mtl.codec.faults import Fault, IllFormed


class RequestFrames(msgspec.Struct, frozen=True, gc=False):
    """The frames of a request. ``envelope`` is sent back before the reply; it ends with an empty frame."""

    envelope: tuple[bytes, ...]
    command: bytes
    body: bytes


def is_data(frames: Sequence[bytes]) -> bool:
    """Return True if these frames, at a socket that carries both flows, belong to the data flow."""
    return len(frames) == 2 and bool(frames[0])


def split(frames: Sequence[bytes], size: int | None) -> RequestFrames:
    """Split a request into its parts. ``size`` is the number of frames of its envelope, 0 without one and None for one
    beyond the limits. Raises `IllFormed`."""
    if size is None:
        raise IllFormed(Fault.ENVELOPE, "the envelope of the request is too long")
    if not size:
        raise IllFormed(Fault.DELIMITER, "the request has no empty frame before the command")
    if len(frames) != size + 2:
        raise IllFormed(Fault.FRAMES, "the empty frame is not followed by exactly a command and a body")
    return RequestFrames(tuple(frames[:size]), frames[size], frames[size + 1])
