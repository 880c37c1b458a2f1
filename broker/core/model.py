"""The frozen values that the whole broker speaks of: services, providers, loads, changes, rights."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple

import attrs

from broker.core.errors import Reason, Refusal

BROKER = 0
"""The provider id of the broker itself. Peers get ids from 1 upwards."""

OWN_PREFIX = "elkobroker."
"""Names that begin so are the broker's own: no peer may offer them."""

_OWN_TOPICS = OWN_PREFIX.encode()

MAX_NAME = 255
"""Characters of a service name or protocol: real ones have under 40."""

MAX_TEXT = 1_024
"""Characters of a label, a host:port, a tag that must be kept, or a secret: a host name has at most 253."""

MAX_INFO = 16_384
"""Characters of what a wire gave besides: real services give under 500, and 10,000 with so much take some 160 MB."""

ANONYMOUS = "<anonymous>"
"""The label of a provider that gave none, in the original's spelling."""


@attrs.frozen
class Auth:
    """Credentials that a service asks for: the Elko AUTHDESC.

    ``mode`` is ``open``, ``password`` or ``reservation`` (others may come); ``code`` is the secret that goes with it.
    """

    mode: str
    code: str | None = attrs.field(default=None, repr=False)
    id: str | None = None


@attrs.frozen
class Service:
    """One service, offered at one place by one provider.

    ``hostport`` is where it is offered, ``host:port`` by convention and never checked; ``auth`` tells how to
    authenticate there and is shown to trusted peers only. ``restored`` marks a service known from before a restart,
    whose provider has not come back yet. ``info`` is what the wire gave besides, a JSON object, kept unchanged.
    ``lasting`` says that its provider will not offer it again by itself after a restart of the broker: it is kept, and
    restored. ``interval`` is the time between signs of life that its provider has agreed to, in seconds; None where it
    lives with its connection, or until it is withdrawn.
    """

    name: str
    hostport: str
    provider: int
    protocol: str = "tcp"
    label: str | None = None
    auth: Auth | None = None
    restored: bool = False
    info: str | None = None
    lasting: bool = False
    interval: float | None = None


@attrs.frozen
class Provider:
    """One registered peer, as it is at one moment.

    ``load`` is 0.0 until it reports, and never negative. ``heard`` is when the broker last heard of it, in seconds of
    the registry's clock.
    """

    id: int
    label: str
    wire: str
    address: str
    load: float
    heard: float
    services: tuple[Service, ...]


@attrs.frozen
class Load:
    """The load of one provider: any non-negative number, in a measure that the farm's servers share."""

    provider: int
    label: str
    load: float


class Kind(enum.StrEnum):
    """Kind of a `Change`. (Strings, because those are hashed fast.)"""

    JOINED = "joined"
    LEFT = "left"
    OFFERED = "offered"
    WITHDRAWN = "withdrawn"
    AMENDED = "amended"
    LOAD = "load"


class Change(NamedTuple):
    """One change of the registry. Revisions rise by one from change to change.

    ``subject`` is the `Service` for OFFERED and WITHDRAWN, the new `Service` for AMENDED, the `Load` for LOAD, and None
    for JOINED and LEFT. AMENDED says that something of a service changed, and nothing that tells where it is.

    ``why`` is for WITHDRAWN and LEFT: "withdrawn" by its provider, on purpose; "left" with its connection; "expired",
    when the provider was silent for too long.
    """

    revision: int
    kind: Kind
    provider: int
    subject: Service | Load | None = None
    why: str = ""


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(p) for p in patterns) if patterns else r"(?!)")


@attrs.frozen
class Rights:
    """Rights to offer: names, by shell patterns (``*``, ``?``, ``[...]``) with case, and a number of services."""

    offer: tuple[str, ...] = ("*",)
    services: int = 1_000

    def permits(self, name: str) -> bool:
        """Return whether a service of this name may be offered. The broker's own names never are."""
        if name.startswith(OWN_PREFIX):
            return False
        return self.offer == ("*",) or _compiled(self.offer).match(name) is not None


@attrs.frozen
class Launcher:
    """A program that an administrator may start through the broker.

    ``script`` is its command line, split as a shell splits words, without a shell; ``initial`` starts it with the
    broker; ``on`` says that it is wanted.
    """

    name: str
    script: str
    initial: bool = False
    on: bool = False


@attrs.frozen
class KnownSession:
    """A subscriber's session as it outlasts a restart.

    ``identity`` is unique among them; ``key`` is the peer's public key in Z85, empty without one; ``ttl`` is in
    seconds, 0 for none; ``version`` is the peer's own word for its protocol, None if it gave none. ``topics`` are all
    that it asked for.
    """

    identity: bytes
    key: str
    address: str
    ttl: float
    version: bytes | None
    topics: tuple[bytes, ...]


@attrs.frozen
class Snapshot:
    """The state that the store gives back at start: the next provider id, the last known providers, the launchers'
    switches, and the last known sessions of subscribers."""

    next_provider: int
    providers: Sequence[Provider]
    launchers_on: dict[str, bool]
    sessions: tuple[KnownSession, ...] = ()


@attrs.frozen
class TopicInfo:
    """A topic that has subscribers: how many, and how many messages came since the first of them did."""

    name: bytes
    subscribers: int
    published: int


def checked_load(load: float) -> float:
    """That load, in whatever measure the farm's servers share. Raises `Refusal` PARAMETER for one that is none: a
    negative number, an infinite one, or a NaN."""
    if not (math.isfinite(load) and load >= 0):
        raise Refusal(Reason.PARAMETER, "a load is a finite number that is not negative")
    return load


def is_own(topic: bytes) -> bool:
    """Return whether a topic is one of the broker's own: no peer may publish to it."""
    return topic.startswith(_OWN_TOPICS)


@attrs.frozen
class Listening:
    """State of one listener of the daemon.

    ``name`` is what the log calls it, ``where`` the address it is bound to, or that it shall be bound to. The state
    lasts since ``since``, in seconds of the daemon's clock. ``reason`` is the obstacle, None where it is open.
    """

    name: str
    where: str
    since: float
    reason: str | None = None

    @property
    def ready(self) -> bool:
        """True if it is open."""
        return self.reason is None
