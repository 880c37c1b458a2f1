"""The messages that the Elko Broker and Director protocols have in common, and what answers them.

Each class says the section of the documents that it comes from; "(peers)" marks what only real peers know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from broker.wires.elko.codec.vocabulary import Message


class AuthDesc(msgspec.Struct, frozen=True, gc=False):
    """AUTHDESC as peers send it: "Authorization information". Its ``type`` is not looked at."""

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
    """The answer to a ping; from a peer it means nothing."""

    tag: str | None = None


class Debug(Message, frozen=True, gc=False, tag="debug"):
    """ "debug": a line for the log."""

    msg: str


COMMON: tuple[type[Message], ...] = (Auth, Disconnect, Ping, Pong, Debug)
"""What every object takes."""


# What is sent

Absent = msgspec.UnsetType
"""The type of an optional member that is left out."""


class PongOut(msgspec.Struct, frozen=True, gc=False):
    """The answer to "ping"."""

    to: str
    op: Literal["pong"] = "pong"
    tag: str | Absent = msgspec.UNSET


class Diagnostic(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What was wrong with what a peer sent, in the original's form (peers)."""

    to: Literal["error"] = "error"
    op: Literal["debug"] = "debug"
    msg: str
