"""Domain values of the broker: services, providers, loads, changes and rights. All are immutable.

The file is longer than others: it has the values that all layers share.
"""

from __future__ import annotations

import enum
import hmac
import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import attrs

from broker.core.errors import Reason, Refusal

BROKER = 0
"""Provider id of the broker itself. Peers get ids from 1 upwards."""

OWN_PREFIX = "elkobroker."
"""Prefix of the broker's own service names and topics. No peer may offer or publish under it."""

_OWN_TOPICS = OWN_PREFIX.encode()

MAX_NAME = 255
"""Limit of a service name or protocol, in characters. Names in real farms have fewer than 40."""

MAX_TOPIC = 4_096
"""Bytes of the name of a topic, on each wire and between brokers: the limit of mc0, whose codec states it for itself.
MTL's are shorter, since one octet has their length."""

MAX_TEXT = 1_024
"""Limit of a label, a host:port, a tag that must be kept, or a secret, in characters. A host name has at most 253."""

INFO_COPIES = 3
"""Copies of an info in memory: at its wire, in the registry, and in encoded answers."""

ANONYMOUS = "<anonymous>"
"""Label of a provider that sent none, in the spelling of the original Elko broker."""


@attrs.frozen
class Auth:
    """Credentials that a service requires: the Elko AUTHDESC.

    ``mode`` is ``open``, ``password`` or ``reservation`` (others may come); ``code`` is the secret that goes with it.
    """

    mode: str
    code: str | None = attrs.field(default=None, repr=False)
    id: str | None = None


def _described(meaning: str) -> Any:
    """Return an optional member of `Service` that describes it, and on which nothing in the broker depends."""
    # Without a hash, as a mapping has none: services of equal descriptions are few.
    return attrs.field(default=None, hash=False, metadata={"meaning": meaning})


@attrs.frozen
class Service:
    """Service that one provider offers at one endpoint.

    The store, the values in etcd, the journal, the answers of HTTP and the tables of operators are made of this list of
    fields: those that are declared with their meaning (`DESCRIPTIONS`) need no code there.

    ``hostport`` is the endpoint, ``host:port`` by convention (`broker.core.hostports`). ``auth`` describes the
    authentication at that endpoint and is shown to trusted peers only. ``restored`` marks a service known from before a
    restart whose provider has not returned yet. ``info`` is a JSON object with additional data from the wire, kept
    unchanged. ``lasting`` means that the provider will not offer the service again by itself after a restart of the
    broker, so the broker keeps and restores it. ``interval`` is the agreed time between heartbeats of the provider, in
    seconds; None if the service ends with its connection or when it is withdrawn.
    """

    name: str
    hostport: str
    provider: int
    protocol: str = "tcp"
    label: str | None = _described("Label of the service")
    auth: Auth | None = None
    restored: bool = False
    info: str | None = None
    lasting: bool = False
    interval: float | None = None
    zone: str | None = _described("Zone in which the service runs: a data centre, a region, a rack")
    tags: tuple[str, ...] | None = _described("Tags of the service")
    meta: Mapping[str, str] | None = _described("Further texts about the service, by their names")

    @property
    def descriptions(self) -> dict[str, Any]:
        """The texts of `DESCRIPTIONS` that it has, by name."""
        return {name: text for name in DESCRIPTIONS if (text := getattr(self, name)) is not None}


DESCRIPTIONS: Mapping[str, str] = {
    field.name: field.metadata["meaning"] for field in attrs.fields(Service) if "meaning" in field.metadata
}
"""Meanings of the optional members that describe a service, by the name of the field, and of the member in JSON."""

AMENDABLE = ("info", "lasting", "interval", *(name for name in DESCRIPTIONS if name != "label"))
"""Fields of a service that may change while it stays registered."""


def is_amended(old: Service, new: Service) -> bool:
    """Return True if a service differs from another one only as `IRegistry.amend` permits, or not at all."""
    return old == new or attrs.evolve(old, **{name: getattr(new, name) for name in AMENDABLE}) == new


BRIDGE_PATH = OWN_PREFIX + "path"
"""Name in the meta of a service that came over a bridge, with its path (`broker.bridge.paths`). It counts towards no
limit of tags and meta: a service that one site takes crosses to the others."""

MAX_LABELS = 64
"""Limit of the tags of a service, and of the names in its meta. Services of other registries have fewer than 20."""

MAX_LABEL_TEXT = 8_192
"""Limit of the characters of all its tags and its meta together."""


def description(name: str, value: Any) -> Any:
    """Return the value of a member of `DESCRIPTIONS` from JSON. Raises TypeError for one of another type.

    No tags and no meta are None. A tag or a name that is given twice counts once.
    """
    if value is None:
        return None
    if name == "tags":
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return tuple(dict.fromkeys(value)) or None
        raise TypeError("tags are a list of texts")
    if name == "meta":
        if isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair):
            return dict(value) or None
        raise TypeError("meta is an object of texts")
    if isinstance(value, str):
        return value
    raise TypeError(f"{name} is a text")


def check_labels(service: Service) -> None:
    """Raise `Refusal` PARAMETER for too many or too long tags and meta."""
    if not service.tags and not service.meta:
        return
    meta = dict(service.meta or {})
    path = meta.pop(BRIDGE_PATH, "")
    texts = [*(service.tags or ()), *(each for pair in meta.items() for each in pair)]
    if len(service.tags or ()) > MAX_LABELS or len(meta) > MAX_LABELS:
        raise Refusal(Reason.PARAMETER, f"service {service.name!r} has more than {MAX_LABELS} tags or names of meta")
    if any(len(each) > MAX_TEXT for each in (path, *texts)):
        raise Refusal(
            Reason.PARAMETER, f"service {service.name!r} has a tag or meta of more than {MAX_TEXT} characters"
        )
    if sum(map(len, texts)) > MAX_LABEL_TEXT:
        raise Refusal(
            Reason.PARAMETER, f"service {service.name!r} has tags and meta of more than {MAX_LABEL_TEXT} characters"
        )


def check_name(what: str, name: str) -> None:
    """Raise `Refusal` PARAMETER if a name is empty or too long. ``what`` is the kind of the name in the text."""
    if not 0 < len(name) <= MAX_NAME:
        problem = "is empty" if not name else f"has more than {MAX_NAME} characters"
        raise Refusal(Reason.PARAMETER, f"the name of a {what} {problem}")


def check_text(what: str, text: str) -> None:
    """Raise `Refusal` PARAMETER if a text is too long. ``what`` is its subject in the text."""
    if len(text) > MAX_TEXT:
        raise Refusal(Reason.PARAMETER, f"{what} has more than {MAX_TEXT} characters")


def check_service_name(what: str, name: str) -> None:
    """Raise `Refusal` PARAMETER for a name of a service, or of its protocol, that some wire or view could not show.

    In MTL, names are printable, and views in lines show no other ones as they are; in HTTP, they are parts of a path.
    """
    check_name(what, name)
    check_printable(what, name)
    check_segment(what, name)


def check_printable(what: str, name: str) -> None:
    """Raise `Refusal` PARAMETER for a name that cannot be shown as it is."""
    if not name.isprintable():
        raise Refusal(Reason.PARAMETER, f"the name of a {what} is not printable: {name!a}")


def check_segment(what: str, name: str) -> None:
    """Raise `Refusal` PARAMETER for a name that clients of HTTP do not send as a segment of a path: they resolve ``.``
    and ``..``, browsers also where these are percent-encoded."""
    if name in (".", ".."):
        raise Refusal(Reason.PARAMETER, f"the name of a {what} is a step in a path of HTTP: {name!a}")


@attrs.frozen
class Owner:
    """Owner of a provider that is changed from any connection, not by a session of its own.

    ``name`` is that of `broker.access.identity.owner_of`, ``entry`` the name under which the wire of the provider knows
    it, ``proof`` the SHA-256 of the owner token in hex. All are empty for the provider of a session.
    """

    name: str = ""
    entry: str = ""
    proof: str = attrs.field(default="", repr=False)

    def admits(self, claim: Owner) -> bool:
        """Return True if a claim has the same name or the same proof. Brokers of older versions name no owner."""
        same = bool(self.proof) and hmac.compare_digest(self.proof, claim.proof)
        return self.name in ("", claim.name) or same


NOBODY = Owner()
"""The owner of providers that have a session."""


@attrs.frozen
class Provider:
    """Snapshot of a registered peer.

    ``load`` is 0.0 until the first report, and never negative. ``heard`` is the time of the last sign of life, in
    seconds of the registry's clock; ``since`` is the time of the registration, 0.0 if it is unknown; it is not stored
    and not compared. ``details`` are those of the last report of a load, None if it had none; they are not compared.
    ``broker`` is the holder, empty for this broker. ``owner`` may change it from any connection; it is not compared.
    """

    id: int
    label: str
    wire: str
    address: str
    load: float
    heard: float
    services: tuple[Service, ...]
    since: float = attrs.field(default=0.0, eq=False)
    details: LoadDetails | None = attrs.field(default=None, eq=False)
    broker: str = ""
    owner: Owner = attrs.field(default=NOBODY, eq=False)


@attrs.frozen
class FailingService:
    """Failing health check of a service: the ``reason`` as a sentence, and the ``policy`` of its rule. ``doubtful``: it
    does not fail yet, see `CheckState`."""

    reason: str
    policy: Policy
    doubtful: bool = False


@attrs.frozen
class LoadDetails:
    """Optional part of a load report; None for a member that the provider does not report. No member is negative.

    ``requests`` and ``errors`` are the numbers of requests completed, and of those that failed, since the provider's
    report before; ``in_flight`` is the number of requests being handled now; ``latency_ms`` is the mean time, in
    milliseconds, for which one of ``requests`` was handled.
    """

    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


NO_DETAILS = LoadDetails()
"""Details of a report that has none."""


@attrs.frozen
class Load:
    """Load of one provider: a non-negative number, in a measure that the farm's servers share.

    ``details`` are those of the same report, None if it had none.
    """

    provider: int
    label: str
    load: float
    details: LoadDetails | None = None


class CheckState(enum.StrEnum):
    """State of a health check. A service that is not checked, or not yet often enough, is untested. A doubtful one has
    just missed a sign of life: it comes last in finds."""

    UNTESTED = "untested"
    PASSING = "passing"
    DOUBTFUL = "doubtful"
    FAILING = "failing"


BAD_STATES = frozenset({CheckState.DOUBTFUL, CheckState.FAILING})
"""States of a service that has missed a sign of life. Descriptors show them, and members of a cluster report them."""


@attrs.frozen
class Check:
    """Result of the health checks of a service: its state, the ``reason`` as a sentence, and the time ``since`` which
    it has this state, in seconds of the clock."""

    state: CheckState
    reason: str
    since: float


class Policy(enum.StrEnum):
    """Place of a failing service in finds and choices: unchanged, after all others, or left out."""

    SHOW = "show"
    LAST = "last"
    HIDE = "hide"


class Kind(enum.StrEnum):
    """Kind of a `Change`. The members are strings because strings are hashed fast."""

    JOINED = "joined"
    LEFT = "left"
    RELABELLED = "relabelled"
    OFFERED = "offered"
    WITHDRAWN = "withdrawn"
    AMENDED = "amended"
    LOAD = "load"
    CHECKED = "checked"
    HIDDEN = "hidden"
    SHOWN = "shown"


class Change(NamedTuple):
    """One change of the registry. Each change raises the revision by one.

    ``subject`` is the `Service` for OFFERED and WITHDRAWN, the new `Service` for AMENDED, the `Load` for LOAD, the
    label of the provider for JOINED and LEFT, and its new one for RELABELLED. AMENDED never changes the endpoint of a
    service. CHECKED, HIDDEN and SHOWN have the `Service` too: the state of its health check has changed, or whether it
    comes last in finds; finds leave it out from now on; finds include it again. A hidden service may be withdrawn
    without being shown again.

    ``why`` is set for WITHDRAWN and LEFT: "withdrawn" if the provider did so on purpose, "left" if its connection
    ended, "expired" if it was silent for too long. For CHECKED it is the new `CheckState`.

    ``at`` is the time at which this broker recorded the change, in seconds since the epoch.
    """

    revision: int
    kind: Kind
    provider: int
    subject: Service | Load | str = ""
    why: str = ""
    at: float = 0.0


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(p) for p in patterns) if patterns else r"(?!)")


@attrs.frozen
class Rights:
    """Rights to offer services: patterns of names (shell patterns ``*``, ``?``, ``[...]``, case-sensitive), and the
    number of services, with the name of its ``key`` in the configuration if it has one."""

    offer: tuple[str, ...] = ("*",)
    services: int = 1_000
    key: str = ""

    def permits(self, name: str) -> bool:
        """Return True if a service of this name may be offered. The broker's own names never may."""
        if name.startswith(OWN_PREFIX):
            return False
        return self.offer == ("*",) or _compiled(self.offer).match(name) is not None


@attrs.frozen
class Launcher:
    """Program that an administrator may start through the broker.

    ``script`` is its command line, split into words by the rules of a shell and run without one. ``initial``: the
    program starts with the broker. ``on``: the program is wanted.
    """

    name: str
    script: str
    initial: bool = False
    on: bool = False


@attrs.frozen
class KnownSession:
    """Session of a subscriber in the form in which it survives a restart.

    ``identity`` is unique among sessions; ``key`` is the peer's public key in Z85, empty without one; ``ttl`` is in
    seconds, 0 for none; ``version`` is the peer's name of its protocol version, None if it sent none. ``topics`` are
    all its subscriptions.
    """

    identity: bytes
    key: str
    address: str
    ttl: float
    version: bytes | None
    topics: tuple[bytes, ...]


@attrs.frozen
class Snapshot:
    """State that the store returns at start: the next provider id, the last known providers, the switches of launchers,
    the last known sessions of subscribers, the memories of memberships in clusters by their identities, and the last
    values of topics by the names of their namespace and topic."""

    next_provider: int
    providers: Sequence[Provider]
    launchers_on: dict[str, bool]
    sessions: tuple[KnownSession, ...] = ()
    cluster: Mapping[str, str] = attrs.field(factory=dict)
    last_values: Mapping[tuple[str, bytes], LastValue] = attrs.field(factory=dict)


@attrs.frozen
class TopicInfo:
    """Topic with subscribers: their number, and the number of messages published since the topic got its first one.

    ``brokers`` is the number of other brokers that have subscribers of it, which are not counted in ``subscribers``.
    Messages that other brokers published count here as well.
    """

    name: bytes
    subscribers: int
    published: int
    brokers: int = 0


PIECE_BYTES = 60
"""Bytes that a header of a message, or a piece of its body, takes beside its length."""


class PublishedHeaders(tuple[bytes, ...]):
    """Headers of a message of a topic, names and values alternating, with a second form of them.

    ``retain`` makes the message the last value of its topic, which counts as memory of ``payer``: see
    `broker.core.last_values`. ``tail`` is the form for subscribers of the publisher's own wire, which may say more;
    empty without one. The core does not interpret it, and passes it on to other brokers. ``about`` are the services
    that a message of the broker itself concerns: it is for subscribers who may find one of them; None for messages that
    are for all.
    """

    tail: bytes = b""
    about: Sequence[Service] | None = None
    retain: bool = False
    payer: str = ""

    @cached_property
    def size(self) -> int:
        """Bytes of memory of both forms, counted once they are complete. A last value has the tail twice."""
        return sum(map(len, self)) + PIECE_BYTES * len(self) + 2 * len(self.tail)


@attrs.frozen
class LastValue:
    """The newest message of a topic: see `broker.core.last_values`.

    ``stamp`` is the time at which it was published, in seconds since the epoch. ``payer`` is the address that its
    ``size`` in bytes counts for. ``retained`` is True if the publisher requested it.
    """

    headers: PublishedHeaders
    body: tuple[bytes, ...]
    stamp: float
    payer: str
    retained: bool
    size: int


def checked_load(load: float) -> float:
    """Return the load if it is valid. Raises `Refusal` PARAMETER for a negative or infinite number or a NaN."""
    if not (math.isfinite(load) and load >= 0):
        raise Refusal(Reason.PARAMETER, "a load is a finite number that is not negative")
    return load


MAX_COUNT = 2**53 - 1
"""Limit of the counts of `LoadDetails`: the largest integer that every JSON reader represents exactly."""


def load_details(requests: object, errors: object, in_flight: object, latency_ms: object) -> LoadDetails | None:
    """Return the details in these JSON values; None if all four are None.

    A count is a whole number from 0 to `MAX_COUNT`, an integral float included; the latency is a finite number that is
    not negative. Raises `Refusal` PARAMETER for any other value.
    """
    if requests is None and errors is None and in_flight is None and latency_ms is None:
        return None
    return LoadDetails(
        _count("requests", requests), _count("errors", errors), _count("in_flight", in_flight), _latency(latency_ms)
    )


def _count(name: str, value: object) -> int | None:
    if value is None:
        return None
    # A bool is an int in Python, but no number in JSON.
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if whole and 0 <= value <= MAX_COUNT:  # type: ignore[operator]
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise Refusal(Reason.PARAMETER, f"{name} is a whole number from 0 to {MAX_COUNT}")


def _latency(value: object) -> float | None:
    if value is None:
        return None
    if type(value) in (int, float) and 0 <= value <= MAX_COUNT:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise Refusal(Reason.PARAMETER, f"latency_ms is a number from 0 to {MAX_COUNT}")


def is_own(topic: bytes) -> bool:
    """Return True if a topic is one of the broker's own, to which no peer may publish."""
    return topic.startswith(_OWN_TOPICS)


@attrs.frozen
class Listening:
    """State of one listener of the daemon.

    ``name`` is its name in the log, ``where`` the address to which it is bound or will be bound. The state began at
    ``since``, in seconds of the daemon's clock. ``reason`` is the obstacle, None if the listener is open.
    """

    name: str
    where: str
    since: float
    reason: str | None = None

    @property
    def ready(self) -> bool:
        """True if the listener is open."""
        return self.reason is None


@attrs.frozen
class NotReady:
    """Reason for which the daemon is not ready: ``what`` names a part, such as ``listener mtl``; ``reason`` the
    obstacle."""

    what: str
    reason: str


MAX_NAMED = 100
"""Damaged rows of one store that a verification names, one line each."""


@attrs.frozen
class Verified:
    """Result of comparing stored rows with their checksums: their number, a line for each of the first
    `MAX_NAMED` that do not match, the number of all of those, and that of rows set aside by then."""

    rows: int = 0
    damaged: int = 0
    named: Sequence[str] = ()
    aside: int = 0

    def joined(self, piece: Verified) -> Verified:
        """Return the result of this and of a further piece."""
        return Verified(
            self.rows + piece.rows,
            self.damaged + piece.damaged,
            [*self.named, *piece.named][:MAX_NAMED],
            self.aside + piece.aside,
        )


EVENTS = {
    "service-gone": "the last service of a name has left the registry",
    "service-back": "a service of a name that was gone is offered again",
    "service-failing": "a health check finds that a service fails",
    "service-doubtful": "a service has just missed a sign of life",
    "service-passing": "a service that failed or was doubtful has given a sign of life again",
    "short-of-capacity": "a plan finds that a service has, or soon will have, too little capacity",
    "listener-not-ready": "a listener cannot be opened",
    "listener-ready": "a listener that could not be opened is open",
    "listener-full": "all places of a listener are taken: idle peers give way to new ones, or these are refused",
    "listener-has-room": "a listener that was full takes new peers again",
    "store-degraded": "the state or the journal cannot be written",
    "store-restored": "the state or the journal is written again",
    "state-damaged": "a part of the state was changed on the disk, and is kept aside or as dead letters",
    "member-gone": "a broker of the cluster has left, or its lease has ended",
    "member-back": "a broker of the cluster that was gone is a member again",
    "cluster-degraded": "an expected broker, a member of etcd, or a link of the cluster is missing or faulty",
    "cluster-restored": "a part of the cluster that was missing or faulty is back",
}
"""Events that rules of ``[notify]`` name, with their meaning."""
