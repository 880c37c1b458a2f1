"""The messages of the Elko Director protocol: those it takes, as values of `VOCABULARY`, and those it sends.

Each class says the section of the Director document that it comes from; "(peers)" marks what only real peers know. The
members of what is sent stand in the order in which they go out; absent optional ones are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from broker.wires.elko.codec.common import COMMON, Absent
from broker.wires.elko.codec.vocabulary import Message, Vocabulary

# To `director`, and as (peers) do it, to `provider` too


class Reserve(Message, frozen=True, gc=False, tag="reserve"):
    """ "User Protocol: reserve". ``tag`` (peers) comes back in the answer."""

    protocol: str
    context: str
    user: str | None = None
    tag: str | None = None


# To `provider`, which (peers) may call `session`


class Address(Message, frozen=True, gc=False, tag="address"):
    """ "address"."""

    protocol: str
    hostport: str


class ContextReport(Message, frozen=True, gc=False, tag="context"):
    """ "context": one was opened or closed."""

    context: str
    open: bool
    yours: bool
    maxcap: int | float | None = None
    basecap: int | float | None = None
    restricted: bool | None = None


class Gate(Message, frozen=True, gc=False, tag="gate"):
    """(peers) Close an open context to new entries, or open it to them again."""

    context: str
    open: bool
    reason: str | None = None


class LoadReport(Message, frozen=True, gc=False, tag="load"):
    """ "load"."""

    factor: float


class Relay(Message, frozen=True, gc=False, tag="relay"):
    """ "relay", of a provider or an administrator: a message for whoever serves a context or a user."""

    msg: dict[str, object]
    context: str | None = None
    user: str | None = None


class UserReport(Message, frozen=True, gc=False, tag="user"):
    """ "user": one entered a context, or left it."""

    context: str
    user: str
    on: bool


class WillServe(Message, frozen=True, gc=False, tag="willserve"):
    """ "willserve": a family of contexts. ``restricted`` (peers): not for users."""

    context: str
    capacity: int | float | None = None
    restricted: bool | None = None


# To `admin`


class Close(Message, frozen=True, gc=False, tag="close"):
    """ "Admin Protocol: close"."""

    context: str | None = None
    user: str | None = None


class DumpRequest(Message, frozen=True, gc=False, tag="dump"):
    """ "dump": everything that is known, as deep as ``depth`` says (0 to 3)."""

    depth: int | float
    provider: str | None = None
    context: str | None = None


class Find(Message, frozen=True, gc=False, tag="find"):
    """ "find": where a context or a user is."""

    context: str | None = None
    user: str | None = None


class ListContexts(Message, frozen=True, gc=False, tag="listcontexts"):
    """ "listcontexts": all that are open."""


class ListProviders(Message, frozen=True, gc=False, tag="listproviders"):
    """ "listproviders": the labels of all."""


class ListUsers(Message, frozen=True, gc=False, tag="listusers"):
    """ "listusers": all that are in some context."""


class Reinit(Message, frozen=True, gc=False, tag="reinit"):
    """ "reinit": of the providers that a label, a hostport or ``all`` names, or of the director itself."""

    provider: str | None = None
    director: bool | None = None


class Say(Message, frozen=True, gc=False, tag="say"):
    """ "say": speak to a context, or to a user."""

    text: str
    context: str | None = None
    user: str | None = None


class Shutdown(Message, frozen=True, gc=False, tag="shutdown"):
    """ "shutdown": of the providers that a label, a hostport or ``all`` names, or of the director itself."""

    provider: str | None = None
    director: bool | None = None
    kill: bool | None = None


class Watch(Message, frozen=True, gc=False, tag="watch"):
    """ "watch": tell where a context or a user is, now and at each change."""

    context: str | None = None
    user: str | None = None


class Unwatch(Message, frozen=True, gc=False, tag="unwatch"):
    """ "unwatch": undo one watch."""

    context: str | None = None
    user: str | None = None


PROVIDER: tuple[type[Message], ...] = (Address, ContextReport, Gate, LoadReport, UserReport, WillServe)
"""What only providers say."""

ADMIN: tuple[type[Message], ...] = (
    Close,
    DumpRequest,
    Find,
    ListContexts,
    ListProviders,
    ListUsers,
    Reinit,
    Say,
    Shutdown,
    Unwatch,
    Watch,
)
"""What only administrators say."""

VOCABULARY = Vocabulary((*COMMON, Reserve, Relay, *PROVIDER, *ADMIN))
"""All messages that a director takes."""


# What is sent to who asked for a reservation


class Reserved(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "reserve". ``tag`` is from peers."""

    to: str
    op: Literal["reserve"] = "reserve"
    context: str
    user: str | Absent = msgspec.UNSET
    hostport: str
    reservation: str
    tag: str | Absent = msgspec.UNSET


class Denied(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The other answer to "reserve"."""

    to: str
    op: Literal["reserve"] = "reserve"
    context: str
    user: str | Absent = msgspec.UNSET
    deny: str
    tag: str | Absent = msgspec.UNSET


# What is sent to providers


class DoReserve(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """(peers) A reservation that somebody was given: let him in who brings it."""

    to: Literal["provider"] = "provider"
    op: Literal["doreserve"] = "doreserve"
    context: str
    user: str | Absent = msgspec.UNSET
    reservation: str


class RelayOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ "relay"."""

    to: Literal["provider"] = "provider"
    op: Literal["relay"] = "relay"
    context: str | Absent = msgspec.UNSET
    user: str | Absent = msgspec.UNSET
    msg: dict[str, object]


class SayOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ "say"."""

    to: Literal["provider"] = "provider"
    op: Literal["say"] = "say"
    context: str | Absent = msgspec.UNSET
    user: str | Absent = msgspec.UNSET
    text: str


class CloseOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ "close". ``dup``: the context is open elsewhere, too."""

    to: Literal["provider"] = "provider"
    op: Literal["close"] = "close"
    context: str | Absent = msgspec.UNSET
    user: str | Absent = msgspec.UNSET
    dup: bool | Absent = msgspec.UNSET


class ReinitOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ "reinit"."""

    to: Literal["provider"] = "provider"
    op: Literal["reinit"] = "reinit"


class ShutdownOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """ "shutdown"."""

    to: Literal["provider"] = "provider"
    op: Literal["shutdown"] = "shutdown"
    kill: bool | Absent = msgspec.UNSET


# What is sent to administrators


class ContextFound(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "find" of a context, and what a watch of it tells."""

    to: Literal["admin"] = "admin"
    op: Literal["context"] = "context"
    context: str
    open: bool
    provider: str | Absent = msgspec.UNSET
    clones: Sequence[str] | Absent = msgspec.UNSET


class UserFound(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "find" of a user, and what a watch of him tells."""

    to: Literal["admin"] = "admin"
    op: Literal["user"] = "user"
    user: str
    on: bool
    contexts: Sequence[str] | Absent = msgspec.UNSET


class ContextDesc(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="contextdesc"):
    """OPENCONTEXTDUMP: "dump"."""

    context: str
    numusers: int
    users: Sequence[str] | Absent = msgspec.UNSET


class ProviderDesc(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="providerdesc"):
    """PROVIDERDUMP without its ``contexts``: "dump"."""

    provider: str
    numcontexts: int
    numusers: int
    load: float
    capacity: int
    hostports: Sequence[str]
    protocols: Sequence[str]
    serving: Sequence[str]


class DumpHead(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "dump" without its ``providers``."""

    to: Literal["admin"] = "admin"
    op: Literal["dump"] = "dump"
    numproviders: int
    numcontexts: int
    numusers: int
