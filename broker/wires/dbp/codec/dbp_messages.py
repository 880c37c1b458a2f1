"""Codec of the messages of DBP over a ROUTER: the commands of peers, the messages of the broker, and the time in both.

Rules of commands:
- A message is an empty frame, a command, a time, and further frames: ``"" COMMAND TIME FRAME...``. The empty frame is
  required. Commands are exact bytes. Frames after those of the command are ignored.
- `Invalid` is raised for any other form. The document requires to drop it, and to treat the peer as invalid.
- `Denied` is raised for a well-formed registration or update with an invalid object. It is answered, since Hermes waits
  for an answer without a time limit.
- `BadRequest` is raised for a well-formed request for names that no service can have. It is answered for the same
  reason.
- A request names services in any number of frames, up to the first empty one; if that is the first, it requests all.
  (The document and Hermes have one name. Hermes' nodes append an empty frame when they repeat a request.)
- Replies are recognised by command and time only: a reply that is sent to a broker is unexpected, not invalid.

Rules of the broker's messages, which are frames after the peer's identity:
- ``form`` is the form of the peer's last time. A Hermes node fails on any time but a `Form.FLOAT32`.
- ``hermes`` is true if the peer is a Hermes node (a REQ socket that writes its times as `Form.FLOAT32`). It needs a
  frame after the time: without one it repeats its request. Other peers get the frames of the document.
- A REQ socket may be sent one reply for each request only: it takes the first message for the reply.
- ``now`` is in seconds since the epoch.

Rules of times, which the document defines as "current epoch time" only, so that peers have several forms:
- Four bytes are a float32, little-endian: the form that Hermes sends, and the only one that it can parse. Its error is
  up to a minute, so that no conclusion may be drawn from it.
- Eight bytes that are no text are a float64, little-endian; big-endian if only that gives a plausible time.
- All other frames are a decimal number in ASCII.
- A peer is answered in the form that it used last.

See docs/protocols/dbp.md, "Messages", "Hermes' nodes get other frames" and "Time". `broker.wires.dbp.sessions.commands`
executes the commands.
"""

from __future__ import annotations

import enum
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from broker.core.errors import Malformed, Reason
from broker.core.service_info import MAX_INFO
from broker.wires.dbp.codec.listings import MAX_NAME, MMI, BadInfo, take_name, unknown

MAX_TIME = 32
"""Bytes of a time in text. Seconds with all the digits of a float64 have about twenty."""

_OUR_DAYS = (1e9, 1e10)
"""Plausible times in seconds, from the year 2001 to 2286. A float64 in the wrong byte order is hardly ever between."""


class Form(enum.Enum):
    """Encoding of a time."""

    FLOAT32 = "<f"
    FLOAT64 = "<d"
    FLOAT64_BIG = ">d"
    TEXT = "text"


_FLOAT32 = struct.Struct("<f")
_FLOAT64 = struct.Struct("<d")
_FLOAT64_BIG = struct.Struct(">d")

_is_decimal = re.compile(rb"[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?").fullmatch


class BadTime(Malformed):
    """Bytes that are no time."""

    def __init__(self) -> None:
        super().__init__(Reason.SYNTAX, "the time is neither a float nor a decimal number")


def read_time(data: bytes) -> tuple[Form, float | None]:
    """Return the form of a time frame, and its seconds since the epoch: None for NaN or infinity. Raises `BadTime`."""
    size = len(data)
    if size == 4:
        return Form.FLOAT32, _finite(_FLOAT32.unpack(data)[0])
    if size == 8 and not _is_text(data):
        little, big = _FLOAT64.unpack(data)[0], _FLOAT64_BIG.unpack(data)[0]
        if _is_of_our_days(big) and not _is_of_our_days(little):
            return Form.FLOAT64_BIG, big
        return Form.FLOAT64, _finite(little)
    return Form.TEXT, read_text(data)


def read_text(data: bytes) -> float:
    """Return the seconds of a time in text. Raises `BadTime`."""
    if len(data) > MAX_TIME or not _is_decimal(data):
        raise BadTime
    seconds = float(data)
    if seconds == math.inf:
        raise BadTime
    return seconds


def _is_text(data: bytes) -> bool:
    return data.isascii() and data.decode("ascii").isprintable()


def _is_of_our_days(seconds: float) -> bool:
    return _OUR_DAYS[0] <= seconds < _OUR_DAYS[1]


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def write_time(form: Form, now: float) -> bytes:
    """Encode a time frame for ``now``, in seconds since the epoch."""
    if form is Form.TEXT:
        return b"%.6f" % now
    if form is Form.FLOAT32:
        return _FLOAT32.pack(now)
    return (_FLOAT64 if form is Form.FLOAT64 else _FLOAT64_BIG).pack(now)


MAX_NAMES = 1_000
"""Names in one request. With the largest infos, the reply is as long as a listing may be."""

TOO_MUCH = MAX_INFO + 1
"""Bytes of an info that are examined: enough to refuse it, however long the frame is."""

MAX_SHOWN = 100
"""Bytes of the peer's input that an error text quotes: a command may be a whole body."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """ "u_U", answered by "o_O". Without names it requests all active services."""

    form: Form
    sent: float | None
    names: tuple[str, ...]


class Question(msgspec.Struct, frozen=True, gc=False):
    """ "u_U" for a name in "mmi.", answered by "o_O" as in 8/MMI: ``{question: "200"}``. ``name`` may be empty."""

    form: Form
    sent: float | None
    question: str
    name: str


class Registration(msgspec.Struct, frozen=True, gc=False):
    """ "UwU", answered by "OwO" or denied. ``hermes`` is true if it has members that only Hermes registers."""

    form: Form
    sent: float | None
    name: str
    info: bytes
    hermes: bool


class Update(msgspec.Struct, frozen=True, gc=False):
    """ "UoU", answered by "u.u" or denied. Without a name it applies to the service of its connection."""

    form: Form
    sent: float | None
    name: str | None
    info: bytes


class Beat(msgspec.Struct, frozen=True, gc=False):
    """ "<3", answered (by "u.u") only to a REQ socket. Without a name it applies to the service of its connection."""

    form: Form
    sent: float | None
    name: str | None


class Bye(msgspec.Struct, frozen=True, gc=False):
    """ "</3", never answered."""

    form: Form
    sent: float | None
    name: str | None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """ "u.u": a sign of life, with no other effect."""

    form: Form
    sent: float | None


class Ping(msgspec.Struct, frozen=True, gc=False):
    """ "ping", answered by "pong". Hermes' clients send it to services, and by accident to a broker."""

    form: Form
    sent: float | None


class Unexpected(msgspec.Struct, frozen=True, gc=False):
    """A command that only a broker sends. It is answered by "</3", and the connection is closed."""

    form: Form
    sent: float | None
    command: bytes


Message = Request | Question | Registration | Update | Beat | Bye | Ack | Ping | Unexpected


class Invalid(Malformed):
    """An invalid message. It is dropped without an answer, and its connection is closed."""


class Denied(Malformed):
    """A registration or an update to deny. ``text`` is the reason to send, with a time in ``form``.

    ``hermes`` is true for a registration of Hermes', and None for an update: its connection decides.
    """

    def __init__(self, text: str, op: str, form: Form, hermes: bool | None) -> None:
        super().__init__(Reason.PARAMETER, text, op)
        self.form = form
        self.hermes = hermes


class BadRequest(Malformed):
    """A request to answer with a listing of ``error`` alone, with a time in ``form``."""

    def __init__(self, text: str, form: Form) -> None:
        super().__init__(Reason.PARAMETER, text, "u_U")
        self.form = form
        self.error: dict[str, str | float] = {"Error": text}


def begins(frames: Sequence[bytes]) -> bool:
    """Return True if these frames are a message, valid or not, and not one behind an envelope."""
    return not _READERS.keys().isdisjoint(frames[:2])


def parse(frames: Sequence[bytes]) -> Message:
    """Parse the frames that follow the peer's identity. Raises `Invalid`, `Denied` or `BadRequest`."""
    if len(frames) < 3:
        raise Invalid(Reason.SYNTAX, "the message has fewer than three frames")
    if frames[0]:
        raise Invalid(Reason.SYNTAX, "the message does not begin with an empty frame")
    command = frames[1]
    reader = _READERS.get(command)
    if reader is None:
        shown = _escaped(command)
        raise Invalid(Reason.UNKNOWN_OP, f"unknown command '{shown}'", shown)
    try:
        form, sent = read_time(frames[2])
    except BadTime as bad:
        raise Invalid(bad.reason, bad.text, _escaped(command)) from None
    return reader(form, sent, frames)


def _request(form: Form, sent: float | None, frames: Sequence[bytes]) -> Request | Question:
    body = _body(frames)
    if not body:
        return Request(form, sent, ())
    if len(frames) == 4 or not frames[4]:  # fast path: one name, as in nearly all requests
        name = _requested(body, form)
        return Question(form, sent, name, "") if name.startswith(MMI) else Request(form, sent, (name,))
    names: list[str] = []
    for frame in takewhile(len, frames[3:]):
        if len(names) == MAX_NAMES:
            raise BadRequest(f"More Than {MAX_NAMES} Names in One Request", form)
        names.append(_requested(frame, form))
    if names[0].startswith(MMI):
        return Question(form, sent, names[0], names[1])
    return Request(form, sent, tuple(dict.fromkeys(names)))


def _requested(frame: bytes, form: Form) -> str:
    """Return the name in one frame of a request. Raises `BadRequest`."""
    name = read_name(frame)
    if name is None:
        raise BadRequest(str(unknown(_escaped(frame))["Error"]), form)
    return name


def _registration(form: Form, sent: float | None, frames: Sequence[bytes]) -> Registration:
    try:
        name, info, hermes = take_name(_body(frames)[:TOO_MUCH], registering=True)
    except BadInfo as bad:
        raise Denied(bad.text, "UwU", form, bad.hermes) from None
    assert name is not None, "a registration without a name was refused"
    return Registration(form, sent, name, info, hermes)


def _update(form: Form, sent: float | None, frames: Sequence[bytes]) -> Update:
    try:
        name, info, _ = take_name(_body(frames)[:TOO_MUCH], registering=False)
    except BadInfo as bad:
        raise Denied(bad.text, "UoU", form, None) from None
    return Update(form, sent, name, info)


def _beat(form: Form, sent: float | None, frames: Sequence[bytes]) -> Beat:
    if len(frames) < 4 or not frames[3]:
        return Beat(form, sent, None)
    name = read_name(frames[3])
    if name is None:
        raise Invalid(Reason.PARAMETER, "the name in the heartbeat is none that a service can have", "<3")
    return Beat(form, sent, name)


def _bye(form: Form, sent: float | None, frames: Sequence[bytes]) -> Bye:
    # An invalid name counts as missing: a peer that disconnects must not be refused.
    return Bye(form, sent, read_name(frames[3]) if len(frames) > 3 else None)


def _ack(form: Form, sent: float | None, frames: Sequence[bytes]) -> Ack:
    return Ack(form, sent)


def _ping(form: Form, sent: float | None, frames: Sequence[bytes]) -> Ping:
    return Ping(form, sent)


def _unexpected(form: Form, sent: float | None, frames: Sequence[bytes]) -> Unexpected:
    return Unexpected(form, sent, frames[1])


_READERS: dict[bytes, Callable[[Form, float | None, Sequence[bytes]], Message]] = {
    b"u_U": _request,
    b"UwU": _registration,
    b"UoU": _update,
    b"<3": _beat,
    b"</3": _bye,
    b"u.u": _ack,
    b"ping": _ping,
    b"o_O": _unexpected,
    b"OwO": _unexpected,
    b"(O_O)": _unexpected,
    b"OmO": _unexpected,
}


def _body(frames: Sequence[bytes]) -> bytes:
    if len(frames) < 4:
        raise Invalid(Reason.SYNTAX, "the message has no body", _escaped(frames[1]))
    return frames[3]


def read_name(frame: bytes) -> str | None:
    """Return the name in a frame; None if no service can have it."""
    if not 0 < len(frame) <= MAX_NAME:
        return None
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return None


def _escaped(frame: bytes) -> str:
    """Return the start of a frame as printable ASCII."""
    return frame[:MAX_SHOWN].decode("latin-1").encode("unicode_escape").decode("ascii")


Sent = tuple[bytes, ...]


def reply(form: Form, now: float, body: bytes) -> Sent:
    """Return the answer to a request: a listing."""
    return (b"", b"o_O", write_time(form, now), body)


def approved(form: Form, now: float, hermes: bool, configuration: bytes = b"{}") -> Sent:
    """Return the approval of a registration. ``configuration`` is the agreement, as "configuration changes"."""
    # The document has six frames or more; Hermes needs four.
    if hermes:
        return (b"", b"OwO", write_time(form, now), b"")
    return (b"", b"OwO", write_time(form, now), configuration, b"", b"")


def agreement(milliseconds: int, liveness: int, warnings: Sequence[str] = ()) -> bytes:
    """Return the agreement as configuration: the heartbeat interval, and the intervals that may be missed; with
    ``warnings`` about the registration, if there are any."""
    agreed = {"heartbeat": milliseconds, "liveness": liveness}
    return json.dumps({**agreed, "warnings": warnings} if warnings else agreed).encode()


def denied(form: Form, now: float, reason: str, hermes: bool) -> Sent:
    """Return the denial of a registration or an update. Hermes uses another command for it than the document.

    ``hermes`` is that of the registration, where a service that follows the document may use a REQ too, or that of the
    connection for an update.
    """
    return (b"", b"OmO" if hermes else b"(O_O)", write_time(form, now), _text(reason))


def ack(form: Form, now: float, hermes: bool) -> Sent:
    """Return the acknowledgement of an update, or of a heartbeat from a REQ socket."""
    return _bare(b"u.u", form, now, hermes)


def disconnect(form: Form, now: float, hermes: bool) -> Sent:
    """Return the broker's DISCONNECT: it sends no more on this connection. The peer may open a new one."""
    return _bare(b"</3", form, now, hermes)


def heartbeat(form: Form, now: float, name: str) -> Sent:
    """Return the broker's heartbeat, which is also the probe of a silent service that follows the document."""
    return (b"", b"<3", write_time(form, now), _text(name))


def ping(form: Form, now: float) -> Sent:
    """Return the probe of a silent Hermes service, which does not know heartbeats. Any answer is a sign of life."""
    return (b"", b"ping", write_time(form, now), b"")


def pong(form: Form, now: float, name: str) -> Sent:
    """Return the answer to a ping."""
    return (b"", b"pong", write_time(form, now), _text(name))


def _bare(command: bytes, form: Form, now: float, hermes: bool) -> Sent:
    frames = (b"", command, write_time(form, now))
    return (*frames, b"") if hermes else frames


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
