"""Codec of UDP datagrams: heartbeats, DISCONNECTs, acknowledgements and the beacon.

The document defines a datagram as "a multipart message", without an encoding of its frames; Hermes sends beacons only.
So heartbeats are encoded in the style of the beacon, and parsed in each known style.

Rules:
- Frames are joined by one space, with the time as a decimal number: ``" <3 1795246621.350000 Rohan"``. The name is the
  rest, and may have spaces; it may be missing. The first space, of the empty frame, may be missing too.
- ``"NAME <3"`` and ``"NAME <3 TIME"`` are the heartbeats of Hermes' old beacon.
- Binary: frames as in ZMTP, short ones only, with any form of time.
- All other datagrams are `Ignored`, and never answered. They include the beacons of other brokers.
- The broker sends these messages to its own port number only, never to the beacon's: Hermes' nodes fail on them.

See docs/protocols/dbp.md, "By UDP". `broker.wires.dbp.sessions.commands` processes the messages.

Codec of the messages about services between the DBP wires of a cluster: one frame, a JSON array.

Pure: bytes and values. Any other input is `Malformed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Union

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wires.dbp.codec.dbp_messages import (
    MAX_SHOWN,
    Ack,
    BadTime,
    Beat,
    Bye,
    Form,
    parse,
    read_name,
    read_text,
    write_time,
)

MAX_DATAGRAM = 1_024
"""Bytes, as many as Hermes reads. A heartbeat with the longest name has under 300."""

Datagram = Beat | Bye | Ack

_BEACONS = (b"SHALOM ", b"GONDOR_CALLS_FOR_AID")

_OLD = re.compile(rb"([^ ].*) <3(?: ([^ ]+))?", re.DOTALL)


class Ignored(Malformed):
    """A datagram that is no message of a service, and is not answered. ``beacon`` is true for a broker's beacon."""

    def __init__(self, text: str, beacon: bool = False) -> None:
        super().__init__(Reason.SYNTAX, text)
        self.beacon = beacon


def read(data: bytes) -> Datagram:
    """Parse a datagram. Raises `Ignored`."""
    if len(data) > MAX_DATAGRAM:
        raise Ignored(f"the datagram has more than {MAX_DATAGRAM} bytes")
    if data.startswith(_BEACONS):
        raise Ignored("a beacon", beacon=True)
    if data.startswith(b"\x01\x00"):
        return _message(_frames(data))
    parts = data.removeprefix(b" ").split(b" ", 2)
    if parts[0] in (b"<3", b"</3", b"u.u"):
        return _text(parts)
    old = _OLD.fullmatch(data)
    if old is None:
        shown = data[:MAX_SHOWN].decode("latin-1").encode("unicode_escape").decode("ascii")
        raise Ignored(f"unknown datagram '{shown}'")
    return Beat(Form.TEXT, _time(old[2]) if old[2] else None, _name(old[1]))


def _text(parts: list[bytes]) -> Datagram:
    """Parse a command, a time in text, and an optional name."""
    if len(parts) < 2:
        raise Ignored("the datagram has no time")
    sent, rest = _time(parts[1]), parts[2] if len(parts) > 2 else b""
    if parts[0] == b"<3":
        return Beat(Form.TEXT, sent, _name(rest) if rest else None)
    return Bye(Form.TEXT, sent, read_name(rest)) if parts[0] == b"</3" else Ack(Form.TEXT, sent)


def _time(text: bytes) -> float:
    try:
        return read_text(text)
    except BadTime as bad:
        raise Ignored(bad.text) from None


def _name(data: bytes) -> str:
    name = read_name(data)
    if name is None:
        raise Ignored("the name in the heartbeat is none that a service can have")
    return name


def _message(frames: list[bytes]) -> Datagram:
    try:
        message = parse(frames)
    except Malformed as malformed:
        raise Ignored(malformed.text) from None
    if isinstance(message, Beat | Bye | Ack):
        return message
    raise Ignored("the command is none for a datagram")


def _frames(data: bytes) -> list[bytes]:
    """Parse the frames of a binary datagram: each a flag (1, or 0 for the last), a length, and its bytes."""
    frames: list[bytes] = []
    at = 0
    while True:
        if len(data) < at + 2:
            raise Ignored("the datagram ends in a frame")
        more, length = data[at], data[at + 1]
        frame = data[at + 2 : at + 2 + length]
        if len(frame) < length:
            raise Ignored("the datagram ends in a frame")
        frames.append(frame)
        at += 2 + length
        if more == 0 and at == len(data):
            return frames
        if more != 1:
            raise Ignored("the datagram does not end with its last frame")


# datagrams that the broker sends


def beacon(port: int) -> bytes:
    """Return the beacon with the port of the broker's ROUTER. Nodes use the source of the datagram as its host."""
    # Hermes splits at the one space, ignores the first part, and parses all of the second as the port. So there may be
    # no further space or newline.
    return b"SHALOM %d" % port


def heartbeat(now: float, name: str) -> bytes:
    """Return the broker's heartbeat, with its name."""
    return b" <3 %b %b" % (write_time(Form.TEXT, now), name.encode("utf-8", "backslashreplace"))


def disconnect(now: float) -> bytes:
    """Return the broker's DISCONNECT: it does not know the service, or has ended the conversation."""
    return b" </3 %b" % write_time(Form.TEXT, now)


def ack(now: float) -> bytes:
    """Return an acknowledgement."""
    return b" u.u %b" % write_time(Form.TEXT, now)


class Forwarded(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message of a service at ``host``. ``port`` is the source port of its datagram, 0 over the ROUTER."""

    name: str
    host: str
    port: int


class ForwardedBeat(Forwarded, frozen=True, gc=False, tag="beat"):
    """A heartbeat. ``form`` is that of its time, ``sent`` the time if it is known."""

    form: str
    sent: float | None = None


class ForwardedBye(Forwarded, frozen=True, gc=False, tag="bye"):
    """A DISCONNECT."""


class Moved(Forwarded, frozen=True, gc=False, tag="moved"):
    """The service has registered at the broker that sends this."""


Message = ForwardedBeat | ForwardedBye | Moved

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Union[ForwardedBeat, ForwardedBye, Moved]).decode  # noqa: UP007 - msgspec needs the type itself


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
