"""Codec of the messages about services between the DBP wires of a cluster: one frame, a JSON array.

Pure: bytes and values. Any other input is `Malformed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec

from broker.core.errors import Malformed, Reason


class Forwarded(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message of a service at ``host``. ``port`` is the source port of its datagram, 0 over the ROUTER."""

    name: str
    host: str
    port: int


class Beat(Forwarded, frozen=True, gc=False, tag="beat"):
    """A heartbeat. ``form`` is that of its time, ``sent`` the time if it is known."""

    form: str
    sent: float | None = None


class Bye(Forwarded, frozen=True, gc=False, tag="bye"):
    """A DISCONNECT."""


class Moved(Forwarded, frozen=True, gc=False, tag="moved"):
    """The service has registered at the broker that sends this."""


Message = Beat | Bye | Moved

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Union[Beat, Bye, Moved]).decode  # noqa: UP007 - msgspec needs the type itself


def encode(message: Message) -> list[bytes]:
    """Return the frames of a message."""
    return [_encode(message)]


def decode(frames: Sequence[bytes]) -> Message:
    """Return the message. Raises `Malformed`."""
    try:
        [frame] = frames
        message: Message = _decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(Reason.SYNTAX, f"not a message of another broker: {error}") from None
    return message
