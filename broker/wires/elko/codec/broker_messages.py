"""Messages of the Elko Broker protocol: requests, as values of `VOCABULARY`, and replies and notices.

Each class names its section of the Broker document; "(peers)" marks messages and members that only real peers use. The
members of replies are in the order in which they are sent; absent optional ones are omitted. See
docs/protocols/elko-broker.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from broker.wires.elko.codec.blocks import COMMON, END, Absent, AuthDesc, Message, Vocabulary, encode_part


class ServiceDesc(msgspec.Struct, frozen=True, gc=False):
    """SERVICEDESC as peers send it: "find". ``protocol`` (peers) is ``tcp`` if absent; ``zone``, ``tags`` and
    ``meta`` are extensions."""

    service: str
    hostport: str | None = None
    protocol: str | None = None
    label: str | None = None
    auth: AuthDesc | None = None
    failure: str | None = None
    provider: int | float | None = None
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: dict[str, str] | None = None


# Requests to `client`, which real peers call `broker`


class Find(Message, frozen=True, gc=False, tag="find"):
    """ "find". ``protocol`` is from peers.

    ``wait`` is in seconds; its fraction is ignored, and a negative value has no limit.
    """

    service: str
    protocol: str | None = None
    wait: int | float | None = None
    monitor: bool | None = None
    tag: str | None = None


class WillServe(Message, frozen=True, gc=False, tag="willserve"):
    """ "willserve". An absent ``services`` is an error; null and [] offer nothing."""

    # Absent is distinguished from null: it is probably a mistake, and `BrokerSession` refuses it.
    services: list[ServiceDesc] | Absent | None = msgspec.UNSET


class WontServe(Message, frozen=True, gc=False, tag="wontserve"):
    """ "wontserve": names of services."""

    services: list[str] | None = None


class LoadReport(Message, frozen=True, gc=False, tag="load"):
    """ "load": a number in a measure that the farm's servers share, and the optional details of an extension.

    The details may have any type: a peer without the extension may use these names for something else.
    """

    factor: float
    requests: Any = None
    errors: Any = None
    in_flight: Any = None
    latency_ms: Any = None


# Requests to `admin`


class LoadDescRequest(Message, frozen=True, gc=False, tag="loaddesc"):
    """ "loaddesc": by ``service`` (document) or by ``server`` (peers: a label, hostport or provider id)."""

    service: str | None = None
    server: str | None = None


class Reinit(Message, frozen=True, gc=False, tag="reinit", rename={"self_": "self"}):
    """ "reinit": of the servers that ``server`` names, or of the broker itself (``self``)."""

    server: str | None = None
    self_: bool | None = None


class ServiceDescRequest(Message, frozen=True, gc=False, tag="servicedesc"):
    """ "servicedesc". ``protocol``, which real peers send, is ignored without ``service``, and defaults to ``tcp``."""

    service: str | None = None
    protocol: str | None = None


class Shutdown(Message, frozen=True, gc=False, tag="shutdown", rename={"self_": "self"}):
    """ "shutdown". With ``cluster`` (peers) the launchers of the servers stay switched on."""

    server: str | None = None
    self_: bool | None = None
    kill: bool | None = None
    cluster: bool | None = None


class Watch(Message, frozen=True, gc=False, tag="watch"):
    """ "watch": an absent member leaves that watch as it is."""

    services: bool | None = None
    load: bool | None = None


class Launch(Message, frozen=True, gc=False, tag="launch"):
    """(peers) Start a program of the launcher table."""

    name: str


class LauncherDescRequest(Message, frozen=True, gc=False, tag="launcherdesc"):
    """(peers) List the launcher table."""


CLIENT: tuple[type[Message], ...] = (Find, WillServe, WontServe, LoadReport)
ADMIN: tuple[type[Message], ...] = (
    LoadDescRequest,
    Reinit,
    ServiceDescRequest,
    Shutdown,
    Watch,
    Launch,
    LauncherDescRequest,
)

VOCABULARY = Vocabulary((*COMMON, *CLIENT, *ADMIN))
"""All messages that a broker accepts."""


# Replies and notices


class AuthDescOut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="auth"):
    """AUTHDESC as it is sent: ``id`` before ``code``, as in the original's output."""

    mode: str
    id: str | None = None
    code: str | None = None


class ServiceDescOut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="servicedesc"):
    """SERVICEDESC as it is sent.

    ``restored``, ``zone``, ``tags`` and ``meta`` are extensions: the service is known from before a restart of the
    broker, and what its provider says about it.
    """

    service: str
    hostport: str | None = None
    protocol: str | None = None
    label: str | None = None
    auth: AuthDescOut | None = None
    failure: str | None = None
    provider: int | None = None
    restored: bool = False
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: dict[str, str] | None = None


class LoadDescOut(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="loaddesc"):
    """LOADDESC: "loaddesc"."""

    label: str
    load: float
    provider: int


class LauncherOut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="launcher"):
    """One row of the launcher table (peers)."""

    name: str
    script: str
    on: bool | None = None
    initial: bool = False


class Found(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "find"."""

    to: str
    op: Literal["find"] = "find"
    desc: list[ServiceDescOut]
    tag: str | Absent = msgspec.UNSET


_FOUND = {to: f'{{"to":"{to}","op":"find","desc":'.encode() for to in ("client", "broker")}


def encode_found(to: str, desc: bytes, tag: str | None) -> bytes:
    """Encode a `Found` from descriptors that are encoded already.

    This is by far the most frequent answer: the encoded descriptors are cached, and no `Found` is built.
    """
    if tag is None:
        return _FOUND[to] + desc + b"}" + END
    return b"".join((_FOUND[to], desc, b',"tag":', encode_part(tag), b"}", END))


def encode_not_found(name: str) -> bytes:
    """Encode the array of one failure descriptor, for `encode_found`."""
    return b'[{"type":"servicedesc","service":' + encode_part(name) + b',"failure":"no such service"}]'


class LoadDescs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "loaddesc", and the notice of a load."""

    to: Literal["admin"] = "admin"
    op: Literal["loaddesc"] = "loaddesc"
    desc: list[LoadDescOut]


class ServiceDescs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to "servicedesc", and the notice of offered (``on``) or withdrawn services."""

    to: Literal["admin"] = "admin"
    op: Literal["servicedesc"] = "servicedesc"
    desc: list[ServiceDescOut]
    on: bool


class ReinitOut(msgspec.Struct, frozen=True, gc=False):
    """ "reinit", to a provider."""

    to: str
    op: Literal["reinit"] = "reinit"


class ShutdownOut(msgspec.Struct, frozen=True, gc=False):
    """ "shutdown", to a provider."""

    to: str
    op: Literal["shutdown"] = "shutdown"
    kill: bool | Absent = msgspec.UNSET


class LaunchStatus(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """(peers) The result of a launch."""

    to: Literal["admin"] = "admin"
    op: Literal["launch"] = "launch"
    status: str


class LauncherDescs(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """(peers) The launcher table."""

    to: Literal["admin"] = "admin"
    op: Literal["launcherdesc"] = "launcherdesc"
    launchers: list[LauncherOut]
