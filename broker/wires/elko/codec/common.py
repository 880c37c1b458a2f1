"""Messages that the Elko Broker and Director protocols share, and their answers.

Each class names its section of the documents; "(peers)" marks those that only real peers use.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from broker.wires.elko.codec.vocabulary import Message


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
