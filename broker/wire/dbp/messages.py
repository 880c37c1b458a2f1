"""The commands of DBP that a ROUTER receives: frames to frozen messages.

Rules:
- A message is an empty frame, a command, a time, and what follows: ``"" COMMAND TIME FRAME...``. The empty frame must
  be there. Commands are exact bytes. Frames behind those that a command has are ignored.
- `Invalid` is what has not this shape. The document: drop it, and treat the peer as invalid.
- `Denied` is a registration or an update of good shape whose object is not taken: it is answered, since Hermes would
  wait for ever.
- `BadRequest` is a request of good shape for names that no service can have: it is answered for the same reason.
- A request names services in as many frames as it likes, up to the first empty one; if that is the first, it asks for
  all. (The document and Hermes have one name. When Hermes' nodes repeat a request they put an empty frame behind it.)
- Replies are read so far that one can tell them from nonsense: to send one to a broker is unexpected, not invalid.
- A frame of any kind may come as a blob; a command is never one. What a message keeps is bytes or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wire.dbp.info import MAX_INFO, MAX_NAME, MMI, BadInfo, take_name
from broker.wire.dbp.listings import unknown
from broker.wire.dbp.times import MAX_TIME, BadTime, Form, read_time

MAX_NAMES = 1_000
"""Names in one request: with infos of the largest kind the reply is as long as a listing may be."""

MAX_SHOWN = 100
"""Bytes of what the peer wrote that an error shows: a command may be a whole body."""


class Blob(Protocol):
    """A long frame: its bytes stay where the transport has them."""

    def __len__(self) -> int: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


Frame = bytes | Blob


class Request(msgspec.Struct, frozen=True, gc=False):
    """ "u_U", answered by "o_O". No names: all active services."""

    form: Form
    sent: float | None
    names: tuple[str, ...]


class Question(msgspec.Struct, frozen=True, gc=False):
    """ "u_U" for a name in "mmi.", answered by "o_O" as 8/MMI would: ``{question: "200"}``. ``name`` may be empty."""

    form: Form
    sent: float | None
    question: str
    name: str


class Registration(msgspec.Struct, frozen=True, gc=False):
    """ "UwU", answered by "OwO" or denied. ``hermes`` tells that it has what only Hermes' registrations have."""

    form: Form
    sent: float | None
    name: str
    info: bytes
    hermes: bool


class Update(msgspec.Struct, frozen=True, gc=False):
    """ "UoU", answered by "u.u" or denied. Without a name it can only mean the service of this connection."""

    form: Form
    sent: float | None
    name: str | None
    info: bytes


class Beat(msgspec.Struct, frozen=True, gc=False):
    """ "<3". It is answered (by "u.u") only where it comes from a REQ socket. Without a name it is the connection's."""

    form: Form
    sent: float | None
    name: str | None


class Bye(msgspec.Struct, frozen=True, gc=False):
    """ "</3". It is never answered."""

    form: Form
    sent: float | None
    name: str | None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """ "u.u". It is a sign of life and no more."""

    form: Form
    sent: float | None


class Ping(msgspec.Struct, frozen=True, gc=False):
    """ "ping", answered by "pong". Hermes' clients send it to services, and by accident to a broker."""

    form: Form
    sent: float | None


class Unexpected(msgspec.Struct, frozen=True, gc=False):
    """A command that only a broker sends: answered by "</3", and silence."""

    form: Form
    sent: float | None
    command: bytes


Message = Request | Question | Registration | Update | Beat | Bye | Ack | Ping | Unexpected


class Invalid(Malformed):
    """Frames that are no message: dropped without an answer, and the connection is not listened to any more."""


class Denied(Malformed):
    """A registration or an update to deny: ``text`` is the reason to send, with a time in ``form``."""

    def __init__(self, text: str, op: str, form: Form, hermes: bool) -> None:
        super().__init__(Reason.PARAMETER, text, op)
        self.form = form
        self.hermes = hermes


class BadRequest(Malformed):
    """A request to answer with a listing that has nothing but ``error``, with a time in ``form``."""

    def __init__(self, text: str, form: Form) -> None:
        super().__init__(Reason.PARAMETER, text, "u_U")
        self.form = form
        self.error: dict[str, str | float] = {"Error": text}


def parse(frames: Sequence[Frame]) -> Message:
    """The message of the frames that follow the peer's identity. Raises `Invalid`, `Denied` or `BadRequest`."""
    if len(frames) < 3:
        raise Invalid(Reason.SYNTAX, "the message has fewer than three frames")
    if len(frames[0]):
        raise Invalid(Reason.SYNTAX, "the message does not begin with an empty frame")
    command = frames[1]
    # A long frame may have no hash, or one that says nothing about its bytes.
    reader = _READERS.get(command) if type(command) is bytes else None
    if reader is None:
        shown = _escaped(command)
        raise Invalid(Reason.UNKNOWN_OP, f"unknown command '{shown}'", shown)
    time = frames[2]
    try:
        form, sent = read_time(time if type(time) is bytes else _bytes(time, MAX_TIME))
    except BadTime as bad:
        raise Invalid(bad.reason, bad.text, _escaped(command)) from None
    return reader(form, sent, frames)


def _request(form: Form, sent: float | None, frames: Sequence[Frame]) -> Request | Question:
    if not len(_body(frames)):
        return Request(form, sent, ())
    names: list[str] = []
    for frame in frames[3:]:
        if not len(frame):
            break
        if len(names) == MAX_NAMES:
            raise BadRequest(f"More Than {MAX_NAMES} Names in One Request", form)
        name = read_name(frame)
        if name is None:
            raise BadRequest(str(unknown(_escaped(frame))["Error"]), form)
        names.append(name)
    if names[0].startswith(MMI):
        return Question(form, sent, names[0], names[1] if len(names) > 1 else "")
    return Request(form, sent, tuple(dict.fromkeys(names)))


def _registration(form: Form, sent: float | None, frames: Sequence[Frame]) -> Registration:
    try:
        name, info, hermes = take_name(_bytes(_body(frames), MAX_INFO), registering=True)
    except BadInfo as bad:
        raise Denied(bad.text, "UwU", form, bad.hermes) from None
    assert name is not None, "a registration without a name was refused"
    return Registration(form, sent, name, info, hermes)


def _update(form: Form, sent: float | None, frames: Sequence[Frame]) -> Update:
    try:
        name, info, _ = take_name(_bytes(_body(frames), MAX_INFO), registering=False)
    except BadInfo as bad:
        raise Denied(bad.text, "UoU", form, bad.hermes) from None
    return Update(form, sent, name, info)


def _beat(form: Form, sent: float | None, frames: Sequence[Frame]) -> Beat:
    if len(frames) < 4 or not len(frames[3]):
        return Beat(form, sent, None)
    name = read_name(frames[3])
    if name is None:
        raise Invalid(Reason.PARAMETER, "the name in the heartbeat is none that a service can have", "<3")
    return Beat(form, sent, name)


def _bye(form: Form, sent: float | None, frames: Sequence[Frame]) -> Bye:
    # Who says good-bye is gone, whatever stands behind it.
    return Bye(form, sent, read_name(frames[3]) if len(frames) > 3 else None)


def _ack(form: Form, sent: float | None, frames: Sequence[Frame]) -> Ack:
    return Ack(form, sent)


def _ping(form: Form, sent: float | None, frames: Sequence[Frame]) -> Ping:
    return Ping(form, sent)


def _unexpected(form: Form, sent: float | None, frames: Sequence[Frame]) -> Unexpected:
    return Unexpected(form, sent, bytes(frames[1]))


_READERS: dict[Frame, Callable[[Form, float | None, Sequence[Frame]], Message]] = {
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


def _body(frames: Sequence[Frame]) -> Frame:
    if len(frames) < 4:
        raise Invalid(Reason.SYNTAX, "the message has no body", _escaped(frames[1]))
    return frames[3]


def read_name(frame: Frame) -> str | None:
    """The name that a frame has; None if no service can be called so."""
    if not 0 < len(frame) <= MAX_NAME:
        return None
    try:
        return bytes(frame).decode()
    except UnicodeDecodeError:
        return None


def _bytes(frame: Frame, most: int) -> bytes:
    """The bytes of a frame; of one that is too long, one more than it may have."""
    return frame if type(frame) is bytes else bytes(memoryview(frame)[: most + 1])


def _escaped(frame: Frame) -> str:
    """The start of a frame as printable ASCII."""
    return bytes(memoryview(frame)[:MAX_SHOWN]).decode("latin-1").encode("unicode_escape").decode("ascii")
