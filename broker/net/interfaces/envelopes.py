"""Envelopes: the routing frames before a message, which REQ sockets and ROUTER-DEALER proxies add (28/REQREP).

Rules, for all wires:
- The envelope is everything up to the first empty frame. A DEALER sends that frame alone, and so does a REQ; a REQ with
  ``ZMQ_REQ_CORRELATE`` puts the number of the request before it, and each proxy the identity of its client.
- It is sent back unchanged before each answer.
- The routing frames of a *route* identify one client behind proxies. Those of a REQ socket do not: it connects
  directly, and its routing frame is the number of its request.

The identity of the peer, which a ROUTER prepends, is not among the frames here. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_HOPS = 16
"""Routing frames of one message, without the empty one: a REQ socket puts one there, and so does each proxy."""

MAX_ENVELOPE = 1_024
"""Bytes of an envelope. Routes are stored, thousands of them; real frames have 4 or 5 bytes."""

REQ = "REQ"
"""The Socket-Type of a REQ in the metadata of a connection."""

Envelope = tuple[bytes, ...]
"""The frames of an envelope, the last of which is empty."""

TOO_LONG = f"the envelope has more than {MAX_HOPS} routing frames or {MAX_ENVELOPE} bytes"
"""The text of a refusal."""


def size(frames: Sequence[bytes]) -> int | None:
    """Return the number of frames of the envelope, the empty one included: 0 if there is no empty frame, None if the
    envelope is longer than permitted."""
    for at in range(min(len(frames), MAX_HOPS + 1)):
        if not frames[at]:
            return at + 1 if sum(map(len, frames[:at])) <= MAX_ENVELOPE else None
    return 0 if len(frames) <= MAX_HOPS else None


def route(envelope: Envelope, socket_type: str) -> Envelope:
    """Return the routing frames that identify a client of the connection of such a socket; none for its own peer."""
    return () if socket_type == REQ else envelope[:-1]


def joined(routing: Envelope) -> bytes:
    """Return routing frames as one key: each with its length, or "ab", "c" and "a", "bc" would be one."""
    return b"".join([len(part).to_bytes(4) + part for part in routing])
