"""Vocabulary of one Elko protocol: converts JSON objects to typed messages, or explains why an object is invalid.

A message is a JSON object with ``to`` (the object addressed) and ``op`` (the operation); all other members are
parameters, matched by name. Unknown parameters are ignored, ``null`` is the same as absent.

`broker_messages` and `director_messages` define the messages of one protocol; those that both share, and their
answers, are here. Each class names its section of the documents; "(peers)" marks those that only real peers use.
`blocks` calls the conversion.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import msgspec

from broker.core.errors import Malformed, Reason


# gc=False, here and in all messages: they hold no reference cycles, and the garbage collector need not track them.
class Message(msgspec.Struct, frozen=True, gc=False, tag_field="op"):
    """Base of all messages: ``to`` is the object addressed."""

    to: str


class Vocabulary:
    """The messages of one protocol, each a subclass of `Message` with its op as tag."""

    def __init__(self, messages: Sequence[type[Message]]) -> None:
        self.messages = tuple(messages)
        union: Any = reduce(operator.or_, messages)
        self._union = union
        self._ops = {str(m.__struct_config__.tag) for m in messages}
        self.decode = msgspec.json.Decoder(union).decode
        """Convert strict JSON to a message. Raises one of `NOT_STRICT` if the bytes are not exactly one."""

    def message(self, members: dict[str, object]) -> Message:
        """Convert a JSON object to a message. Raises `Malformed`."""
        try:
            return msgspec.convert(members, self._union)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise self._explained(members, str(error)) from None

    def _explained(self, members: dict[str, object], error: str) -> Malformed:
        op = members.get("op")
        if not isinstance(op, str):
            return Malformed(Reason.UNKNOWN_OP, "the message has no op (a string)")
        if not isinstance(members.get("to"), str):
            return Malformed(
                Reason.UNKNOWN_TARGET, f"the message {op[:40]!r} has no target: to (a string) is missing", op
            )
        if op not in self._ops:
            return Malformed(Reason.UNKNOWN_OP, f"there is no op {op[:40]!r}", op)
        text, _, place = error.partition(" - at ")
        where = f" at {place}" if place else ""
        return Malformed(Reason.PARAMETER, f"{op}: {text[:1].lower()}{text[1:]}{where}", op)


NOT_STRICT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All exceptions of `Vocabulary.decode` for bytes that are not one strict, valid message."""


class AuthDesc(msgspec.Struct, frozen=True, gc=False):
    """AUTHDESC as peers send it: "Authorization information". Its ``type`` is ignored."""

    mode: str
    code: str | None = None
    id: str | None = None


class Auth(Message, frozen=True, gc=False, tag="auth"):
    """ "Common Protocols: auth"."""

    auth: AuthDesc | None = None
    label: str | None = None


class Disconnect(Message, frozen=True, gc=False, tag="disconnect"):
    """ "disconnect"."""


class Ping(Message, frozen=True, gc=False, tag="ping"):
    """ "ping"."""

    tag: str | None = None


class Pong(Message, frozen=True, gc=False, tag="pong"):
    """The answer to a ping of the broker; any other one is ignored."""

    tag: str | None = None


class Debug(Message, frozen=True, gc=False, tag="debug"):
    """ "debug": a line for the log."""

    msg: str


COMMON: tuple[type[Message], ...] = (Auth, Disconnect, Ping, Pong, Debug)
"""Messages that every object accepts."""


# Replies

Absent = msgspec.UnsetType
"""The type of an optional member that is omitted."""


class PongOut(msgspec.Struct, frozen=True, gc=False):
    """The answer to "ping"."""

    to: str
    op: Literal["pong"] = "pong"
    tag: str | Absent = msgspec.UNSET


class PingOut(msgspec.Struct, frozen=True, gc=False):
    """A ping of the broker, by which it checks a server."""

    to: str
    op: Literal["ping"] = "ping"
    tag: str | Absent = msgspec.UNSET


class Diagnostic(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The reason why a message was refused, in the original's form (peers)."""

    to: Literal["error"] = "error"
    op: Literal["debug"] = "debug"
    msg: str
