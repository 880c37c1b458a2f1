"""Messages of the Elko Director protocol: requests, as values of `VOCABULARY`, and replies and notices.

Each class names its section of the Director document; "(peers)" marks messages and members that only real peers use.
The members of replies are in the order in which they are sent; absent optional ones are omitted. See
docs/protocols/elko-director.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from broker.wires.elko.codec.blocks import COMMON, Absent, Message, Vocabulary

# Requests to `director`, and from (peers) to `provider`


class Reserve(Message, frozen=True, gc=False, tag="reserve"):
    """ "User Protocol: reserve". ``tag`` (peers) is returned in the answer."""

    protocol: str
    context: str
    user: str | None = None
    tag: str | None = None


# Requests to `provider`, which (peers) may call `session`


class Address(Message, frozen=True, gc=False, tag="address"):
    """ "address"."""

    protocol: str
    hostport: str


class ContextReport(Message, frozen=True, gc=False, tag="context"):
    """ "context": a context was opened or closed. ``maxcap`` and ``basecap`` are in users, -1 is unlimited."""

    context: str
    open: bool
    yours: bool
    maxcap: int | float | None = None
    basecap: int | float | None = None
    restricted: bool | None = None


class Gate(Message, frozen=True, gc=False, tag="gate"):
    """(peers) Close an open context to new entries, or open it again."""

    context: str
    open: bool
    reason: str | None = None


class LoadReport(Message, frozen=True, gc=False, tag="load"):
    """ "load"."""

    factor: float


class Relay(Message, frozen=True, gc=False, tag="relay"):
    """ "relay", from a provider or an administrator: a message for the servers of a context or a user."""

    msg: dict[str, object]
    context: str | None = None
    user: str | None = None


class UserReport(Message, frozen=True, gc=False, tag="user"):
    """ "user": a user entered a context, or left it."""

    context: str
    user: str
    on: bool


class WillServe(Message, frozen=True, gc=False, tag="willserve"):
    """ "willserve": a family of contexts. ``restricted`` (peers): not for users."""

    context: str
    capacity: int | float | None = None
    restricted: bool | None = None


# Requests to `admin`


class Close(Message, frozen=True, gc=False, tag="close"):
    """ "Admin Protocol: close"."""

    context: str | None = None
    user: str | None = None


class DumpRequest(Message, frozen=True, gc=False, tag="dump"):
    """ "dump": the state of the farm, with the detail of ``depth`` (0 to 3)."""

    depth: int | float
    provider: str | None = None
    context: str | None = None


class Find(Message, frozen=True, gc=False, tag="find"):
    """ "find": the place of a context or a user."""

    context: str | None = None
    user: str | None = None


class ListContexts(Message, frozen=True, gc=False, tag="listcontexts"):
    """ "listcontexts": all open contexts."""


class ListProviders(Message, frozen=True, gc=False, tag="listproviders"):
    """ "listproviders": the labels of all Context Servers."""


class ListUsers(Message, frozen=True, gc=False, tag="listusers"):
    """ "listusers": all users that are in a context."""


class Reinit(Message, frozen=True, gc=False, tag="reinit"):
    """ "reinit": of the providers that a label, a hostport or ``all`` names, or of the director itself."""

    provider: str | None = None
    director: bool | None = None


class Say(Message, frozen=True, gc=False, tag="say"):
    """ "say": send a text to a context or a user."""

    text: str
    context: str | None = None
    user: str | None = None


class Shutdown(Message, frozen=True, gc=False, tag="shutdown"):
    """ "shutdown": of the providers that a label, a hostport or ``all`` names, or of the director itself."""

    provider: str | None = None
    director: bool | None = None
    kill: bool | None = None


class Watch(Message, frozen=True, gc=False, tag="watch"):
    """ "watch": send the place of a context or a user, now and after each change."""

    context: str | None = None
    user: str | None = None


class Unwatch(Message, frozen=True, gc=False, tag="unwatch"):
    """ "unwatch": undo one watch."""

    context: str | None = None
    user: str | None = None


PROVIDER: tuple[type[Message], ...] = (Address, ContextReport, Gate, LoadReport, UserReport, WillServe)
"""Messages of providers only."""

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
"""Messages of administrators only."""

VOCABULARY = Vocabulary((*COMMON, Reserve, Relay, *PROVIDER, *ADMIN))
"""All messages that a director accepts."""


# Replies to requests for a reservation


class Reserved(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "reserve" if it is granted. ``tag`` is from peers."""

    to: str
    op: Literal["reserve"] = "reserve"
    context: str
    user: str | Absent = msgspec.UNSET
    hostport: str
    reservation: str
    tag: str | Absent = msgspec.UNSET


class Denied(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "reserve" if it is denied, with the reason in ``deny``."""

    to: str
    op: Literal["reserve"] = "reserve"
    context: str
    user: str | Absent = msgspec.UNSET
    deny: str
    tag: str | Absent = msgspec.UNSET


# Messages to providers


class DoReserve(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """(peers) A reservation was granted: admit the user who presents it."""

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
    """ "close". ``dup``: the context is open on another server, too."""

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


# Messages to administrators


class ContextFound(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "find" of a context, and the notice of a watch."""

    to: Literal["admin"] = "admin"
    op: Literal["context"] = "context"
    context: str
    open: bool
    provider: str | Absent = msgspec.UNSET
    clones: Sequence[str] | Absent = msgspec.UNSET


class UserFound(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "find" of a user, and the notice of a watch."""

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
