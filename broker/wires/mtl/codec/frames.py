"""Framing: requests of the control flow, commands of the data flow, and the distinction between them.

Rules:
- A request is an envelope, a command and a body. The envelope has the routing frames that proxies and REQ sockets
  prepend, up to and including the first empty frame. It is sent back unchanged before the reply.
- A data command is a header, which is not empty, and a body. It has no empty frame that would delimit routing frames:
  so a data flow cannot pass a proxy.
- So one socket can carry both: two frames, the first of them not empty, are data; everything else is control.

The identity of the peer, which a ROUTER prepends, is not among the frames here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from broker.wires.mtl.codec.faults import Fault, IllFormed

MAX_HOPS = 16
"""Routing frames of one request, without the empty one: a REQ socket puts one there, and so does each proxy."""

MAX_ENVELOPE = 1_024
"""Bytes of an envelope. It is the key of a session, so thousands are stored; real frames have 5 bytes."""


class RequestFrames(msgspec.Struct, frozen=True, gc=False):
    """The frames of a request. ``envelope`` is sent back before the reply; it ends with an empty frame."""

    envelope: tuple[bytes, ...]
    command: bytes
    body: bytes


def is_data(frames: Sequence[bytes]) -> bool:
    """Return True if these frames, at a socket that carries both flows, belong to the data flow."""
    return len(frames) == 2 and bool(frames[0])


def split(frames: Sequence[bytes]) -> RequestFrames:
    """Split a request into its parts. Raises `IllFormed`."""
    for at in range(min(len(frames), MAX_HOPS + 1)):
        if not frames[at]:
            break
    else:
        if len(frames) > MAX_HOPS:
            raise IllFormed(Fault.ENVELOPE, f"the request has more than {MAX_HOPS} routing frames, or no empty frame")
        raise IllFormed(Fault.DELIMITER, "the request has no empty frame before the command")
    if len(frames) != at + 3:
        raise IllFormed(Fault.FRAMES, "the empty frame is not followed by exactly a command and a body")
    if at and sum(map(len, frames[:at])) > MAX_ENVELOPE:
        raise IllFormed(Fault.ENVELOPE, f"the routing frames have more than {MAX_ENVELOPE} bytes")
    return RequestFrames(tuple(frames[: at + 1]), frames[at + 1], frames[at + 2])
