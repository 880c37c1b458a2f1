"""The mc0 codec (Marionette Collective 0MQ, version 0.3): frames to frozen messages, and replies to frames.

Rules (from the original broker and the real connector, MCollective's ZeroMQ plugin; mc0 0.3 leaves them open):
- A message is a delimiter, a verb, headers, and a body: ``"" VERB [KEY VALUE]... ["" FRAME...]``. The delimiter is
  skipped whatever its content (`begins`). Verbs and keys are exact bytes.
- Headers come in pairs. The first empty key ends them; an empty frame in the position of a value is a value.
- Of a repeated key, the last value counts, in the position of the first. A verb ignores keys unknown to it, but PUT
  forwards them.
- No message that is sent has an empty key or value: the connector takes the first empty frame for the end of the
  headers, in whatever position. So an empty value in a PUT, and an empty ID in any message, is refused.
- An error carries the ID, if that was parsed before the error. An unknown verb takes precedence over other errors.
- Header values and bodies are forwarded unchanged: the same objects, without a copy.

See docs/protocols/mc0.md, "Messages" and "Decisions". `broker.wires.mc0.sessions.conversation` executes the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NoReturn

import msgspec

from broker.core.errors import Malformed, Reason

MAX_TOPIC = 4_096
"""Bytes of a topic. Topics are stored as long as they have subscribers; real ones have about a hundred bytes."""

MAX_ID = 65_536
"""Bytes of an ID. A thousand answers, each with an ID, may be queued for a peer that does not read; real ones have 36
bytes."""

MAX_HEADERS = 1_000
"""Header pairs of one message. Each pair takes time for each receiver; real peers send three."""

MAX_FRAMES = 4_096
"""Frames of one message. Even empty ones take memory for each receiver; real messages have up to 2,000."""

MAX_TTL = 86_400_000
"""Milliseconds: one day. A longer TTL detects no dead peer in useful time, and huge numbers would overflow clocks."""

MAX_SHOWN = 100
"""Bytes of the peer's input that an error text quotes: the verb may be a whole body."""


class Connect(msgspec.Struct, frozen=True, gc=False):
    """ "CONNECT". ``ttl`` is in ms, 0 for no heartbeats; None keeps the previous one. No version is invalid."""

    id: bytes | None = None
    ttl: int | None = None
    version: bytes | None = None


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """ "DISCONNECT"."""

    id: bytes | None = None


class Sub(msgspec.Struct, frozen=True, gc=False):
    """ "SUB". Topics may be empty or repeated; there may be none."""

    id: bytes | None
    topics: Sequence[bytes]


class Unsub(msgspec.Struct, frozen=True, gc=False):
    """ "UNSUB", with topics as in SUB."""

    id: bytes | None
    topics: Sequence[bytes]


class Put(msgspec.Struct, frozen=True, gc=False):
    """ "PUT". ``headers`` has keys and values alternately, without ID and TOPIC; ``body`` has any number of frames."""

    id: bytes | None
    topic: bytes
    headers: Sequence[bytes]
    body: Sequence[bytes]


class Noop(msgspec.Struct, frozen=True, gc=False):
    """ "NOOP"."""

    id: bytes | None = None


Message = Connect | Disconnect | Sub | Unsub | Put | Noop


class BadMessage(Malformed):
    """An invalid message. ``reply`` is the text for `error`: it has the peer's own bytes where ``text`` has escapes, so
    that it equals the original broker's."""

    def __init__(
        self, reason: Reason, text: str, op: str | None = None, id: bytes | None = None, reply: bytes | None = None
    ) -> None:
        super().__init__(reason, text, op, id=id)
        self.reply = text.encode() if reply is None else reply


class TooShort(BadMessage):
    """A message without a verb. It is not answered, as by the original broker."""

    def __init__(self) -> None:
        super().__init__(Reason.SYNTAX, "the message has no verb")


def begins(frames: Sequence[bytes]) -> bool:
    """Return True if these frames are a message with a delimiter, and not one behind an envelope."""
    return len(frames) > 1 and frames[1] in _READERS


def parse(frames: Sequence[bytes]) -> Message:
    """Parse the frames that follow the peer's identity. Raises `BadMessage`."""
    if len(frames) < 2:
        raise TooShort
    if len(frames) > MAX_FRAMES:
        raise BadMessage(Reason.PARAMETER, f"the message has more than {MAX_FRAMES} frames", id=_id_of(frames))
    reader = _READERS.get(frames[1])
    if reader is None:
        _refuse_verb(frames)
    return reader(frames)


def _refuse_verb(frames: Sequence[bytes]) -> NoReturn:
    shown = frames[1][:MAX_SHOWN]
    raise BadMessage(
        Reason.UNKNOWN_OP,
        f"Unknown command verb '{_escaped(shown)}'",
        _escaped(shown),
        _id_of(frames),
        b"Unknown command verb '%b'" % shown,
    )


def _connect(frames: Sequence[bytes]) -> Connect:
    headers, _ = _headers(frames)
    id = _take_id(headers, "CONNECT")
    ttl, version = headers.get(b"TTL"), headers.get(b"VERSION")
    # An empty TTL or VERSION counts as missing.
    return Connect(id, _ttl(ttl, id) if ttl else None, version or None)


def _disconnect(frames: Sequence[bytes]) -> Disconnect:
    headers, _ = _headers(frames)
    return Disconnect(_take_id(headers, "DISCONNECT"))


def _sub(frames: Sequence[bytes]) -> Sub:
    headers, end = _headers(frames)
    id = _take_id(headers, "SUB")
    return Sub(id, _topics(frames[end + 1 :], "SUB", id))


def _unsub(frames: Sequence[bytes]) -> Unsub:
    headers, end = _headers(frames)
    id = _take_id(headers, "UNSUB")
    return Unsub(id, _topics(frames[end + 1 :], "UNSUB", id))


def _put(frames: Sequence[bytes]) -> Put:
    # Fast path for nearly all PUTs: a topic and no other header, or an ID before it. The general code below gives the
    # same result.
    if len(frames) > 4 and not frames[4] and frames[2] == b"TOPIC":
        name = frames[3]
        if 0 < len(name) <= MAX_TOPIC:
            return Put(None, name, [], frames[5:])
    elif len(frames) > 6 and not frames[6] and frames[2] == b"ID" and frames[4] == b"TOPIC":
        number, name = frames[3], frames[5]
        if 0 < len(number) <= MAX_ID and 0 < len(name) <= MAX_TOPIC:
            return Put(number, name, [], frames[7:])
    headers, end = _headers(frames)
    id = _take_id(headers, "PUT") if b"ID" in headers else None
    # An empty topic is refused: the original delivers to its subscribers, but no real peer can read the MESSAGE, which
    # would have an empty value.
    topic = headers.pop(b"TOPIC", None)
    if not topic:
        raise BadMessage(Reason.PARAMETER, "PUT needs a TOPIC that is not empty", "PUT", id)
    if len(topic) > MAX_TOPIC:
        _refuse_topic("PUT", id)
    if not headers:
        return Put(id, topic, [], frames[end + 1 :])
    if not all(headers.values()):
        key = next(key for key, value in headers.items() if not value)
        raise BadMessage(Reason.PARAMETER, f"PUT has an empty header: '{_escaped(key[:MAX_SHOWN])}'", "PUT", id)
    return Put(id, topic, list(chain.from_iterable(headers.items())), frames[end + 1 :])


def _noop(frames: Sequence[bytes]) -> Noop:
    if len(frames) == 2:
        return Noop()
    headers, _ = _headers(frames)
    return Noop(_take_id(headers, "NOOP"))


_READERS: dict[bytes, Callable[[Sequence[bytes]], Message]] = {
    b"PUT": _put,
    b"NOOP": _noop,
    b"SUB": _sub,
    b"UNSUB": _unsub,
    b"CONNECT": _connect,
    b"DISCONNECT": _disconnect,
}


def _headers(frames: Sequence[bytes]) -> tuple[dict[bytes, bytes], int]:
    """Return the headers, and the index of the empty frame that ends them, or the number of frames if there is none."""
    headers: dict[bytes, bytes] = {}
    count = len(frames)
    at = 2
    last = 2 + 2 * MAX_HEADERS
    while at < count:
        key = frames[at]
        if not key:
            break
        if at == last:
            raise _misshapen(frames, headers, Reason.PARAMETER, f"the message has more than {MAX_HEADERS} headers")
        if at + 1 == count:
            raise _misshapen(frames, headers, Reason.SYNTAX, "the last header has no value")
        headers[key] = frames[at + 1]
        at += 2
    return headers, at


def _misshapen(frames: Sequence[bytes], headers: dict[bytes, bytes], reason: Reason, text: str) -> BadMessage:
    return BadMessage(reason, text, _escaped(frames[1][:MAX_SHOWN]), _id(headers))


def _id_of(frames: Sequence[bytes]) -> bytes | None:
    """Return the ID of a message that is refused for another reason."""
    try:
        return _id(_headers(frames)[0])
    except BadMessage as malformed:
        return malformed.id


def _id(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the ID, if there is one that can be sent back."""
    id = headers.get(b"ID")
    return id if id and len(id) <= MAX_ID else None


def _take_id(headers: dict[bytes, bytes], verb: str) -> bytes | None:
    """Remove the ID from the headers, and return it. Raises `BadMessage` if it is empty or too long."""
    if b"ID" not in headers:
        return None
    id = headers.pop(b"ID")
    if not id:
        raise BadMessage(Reason.PARAMETER, f"the ID of {verb} is empty", verb)
    if len(id) > MAX_ID:
        raise BadMessage(Reason.PARAMETER, f"the ID of {verb} has more than {MAX_ID} bytes", verb)
    return id


def _topics(topics: Sequence[bytes], verb: str, id: bytes | None) -> Sequence[bytes]:
    for topic in topics:
        if len(topic) > MAX_TOPIC:
            _refuse_topic(verb, id)
    return topics


def _refuse_topic(verb: str, id: bytes | None) -> NoReturn:
    raise BadMessage(Reason.PARAMETER, f"a topic of {verb} has more than {MAX_TOPIC} bytes", verb, id)


_TTL = re.compile(rb"[ \t\n\v\f\r]*+([+-]?)0*+([0-9]{0,9})")
"""A number as the original broker parses it: a suffix after the digits is ignored. Nine digits are one more than
`MAX_TTL` has."""


def _ttl(value: bytes, id: bytes | None) -> int:
    match = _TTL.match(value)
    assert match is not None, "each of its parts may be empty"
    sign, digits = match.groups()
    if match.end() == match.end(1):  # neither a zero nor another digit
        raise BadMessage(Reason.PARAMETER, "the TTL of CONNECT is no number", "CONNECT", id)
    ttl = int(digits or b"0")
    if ttl and sign == b"-":
        raise BadMessage(Reason.PARAMETER, "the TTL of CONNECT is negative", "CONNECT", id)
    return min(ttl, MAX_TTL)


def _escaped(data: bytes) -> str:
    """Return bytes as printable ASCII."""
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")


# messages that the broker sends

NOOP = (b"", b"NOOP")
"""The broker's heartbeat. It never has an ID."""


def ok(id: bytes) -> tuple[bytes, ...]:
    """Return the acknowledgement of the message with that ID. Real clients read these frames by position."""
    return (b"", b"OK", b"ID", id)


def error(text: bytes, id: bytes | None) -> tuple[bytes, ...]:
    """Return the refusal of a message; ``id`` is that of the message, if it had one."""
    # Not an empty text: no value that is sent may be empty.
    frames = (b"", b"ERROR", b"MESSAGE", text or b"refused")
    return (*frames, b"ID", id) if id else frames


def message(topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> list[bytes]:
    """Return the MESSAGE for the subscribers of a topic. The empty frame ends the headers, also without a body."""
    return [b"", b"MESSAGE", b"TOPIC", topic, *headers, b"", *body]
