"""Layout of the keys in etcd, version 1: names of keys, and values in JSON.

Rules:
- Values are whole and say the newest state, so that a repeated write does no harm.
- Readers ignore unknown members of a value: a newer program may add some without a new version of the layout. Each
  value is written whole, so ``ids``, which all brokers write, loses them at the next block that an older one takes.
- Each value is decoded by itself. `Foreign` says that a value is not one of this layout; it is then left out.
- An isolated surrogate in a text of a provider, which UTF-8 cannot represent, is an escape of JSON, and read as a
  question mark. Other values have none.

The file is longer than others: it has all values of one version of the layout, each with its limits.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta as Limits

from broker.core.cluster.cluster_interfaces import Member
from broker.core.model import (
    DESCRIPTIONS,
    MAX_COUNT,
    MAX_INFO,
    MAX_NAME,
    MAX_TEXT,
    NO_DETAILS,
    OWN_PREFIX,
    Auth,
    FailingService,
    LoadDetails,
    Policy,
    Provider,
    Service,
)

LAYOUT = 1
"""Version of the layout. It rises with changes that an older program would misunderstand."""

MAX_LISTENERS = 64
"""Limit of the listeners of a member: a broker has about ten."""

MAX_REPLACED = 16
"""Limit of the predecessors that a provider names, the newest ones. More moves than that within the lifetime of a
half-open connection do not happen."""

MAX_SERVICES_OF_PROVIDER = 200_000
"""Limit of the services of one provider of another member: that of the whole registry."""

LOADS_PER_KEY = 256
"""Limit of the providers in one value of loads: 1,000 loaded providers are four keys, each of some 10 KB."""

PROVIDER_DIGITS = 16
"""Digits of a provider id in its key, so that keys are in the order of the ids."""

_POLICIES = frozenset(each.value for each in Policy)

_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of members, as the configuration permits them."""

_PROVIDER = re.compile(rb"(\d{%d})(?:/(\d{1,12})\.(\d{1,6}))?" % PROVIDER_DIGITS)

Name = Annotated[str, Limits(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Limits(max_length=MAX_TEXT)]
MemberName = Annotated[str, Limits(pattern=rf"^{_MEMBER.pattern}\Z")]
Count = Annotated[int, Limits(ge=0, le=MAX_COUNT)]
Number = Annotated[float, Limits(ge=0)]
Id = Annotated[int, Limits(ge=1, lt=10**PROVIDER_DIGITS)]

T = TypeVar("T")


class Foreign(Exception):
    """A value that is not one of this layout. The message says why."""


class OtherLayout(Foreign):
    """A value of ``meta`` that is of another version of the layout, ``version``."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the layout has version {version}")
        self.version = version


class MetaValue(msgspec.Struct):
    """Value of ``meta``: version of the layout, and a random text, the epoch, that identifies these data of etcd."""

    layout: int
    epoch: Name


class MemberValue(msgspec.Struct, omit_defaults=True):
    """Value of ``b/<name>``; see `broker.core.cluster.cluster_interfaces.Member`."""

    instance: Name
    link: Text = ""
    key: Text = ""
    listeners: Annotated[dict[Name, Text], Limits(max_length=MAX_LISTENERS)] = {}
    version: Text = ""
    draining: bool = False


class IdsValue(msgspec.Struct):
    """Value of ``ids``: the first provider id that belongs to no block yet."""

    next: Id


class AuthValue(msgspec.Struct, omit_defaults=True):
    """Credentials of a service; see `broker.core.model.Auth`."""

    mode: Text
    code: Text | None = None
    id: Text | None = None


class ServiceValue(msgspec.Struct, omit_defaults=True):
    """Service of a provider. ``failing`` is the reason for which its health check fails at the holder, None if it does
    not; ``policy`` is that of the check, a `broker.core.model.Policy`; with ``doubtful`` it does not fail yet. Both
    count only with a reason."""

    name: Name
    hostport: Annotated[str, Limits(min_length=1, max_length=MAX_TEXT)]
    protocol: Annotated[str, Limits(max_length=MAX_NAME)] = "tcp"
    label: Text | None = None
    auth: AuthValue | None = None
    info: Annotated[str, Limits(max_length=MAX_INFO)] | None = None
    lasting: bool = False
    interval: Number | None = None
    failing: Text | None = None
    policy: Annotated[str, Limits(max_length=MAX_NAME)] = Policy.LAST.value
    doubtful: bool = False
    zone: Text | None = None


class ProviderValue(msgspec.Struct, omit_defaults=True):
    """Value of ``p/<id>``: a provider with all its services. ``broker`` holds it; ``replaces`` are the ids of its
    predecessors at other members; ``standby`` marks one that has a successor, and counts when that is gone;
    ``owner``, ``entry`` and ``proof`` are those of `broker.core.model.Owner`."""

    broker: Name
    label: Text
    wire: Name
    address: Text = ""
    services: Annotated[list[ServiceValue], Limits(max_length=MAX_SERVICES_OF_PROVIDER)] = []
    replaces: Annotated[list[Id], Limits(max_length=MAX_REPLACED)] = []
    owner: Text = ""
    standby: bool = False
    entry: Text = ""
    proof: Text = ""


class HeadValue(msgspec.Struct):
    """Value of ``p/<id>`` if its `ProviderValue` is large: it is the concatenation of the keys
    ``p/<id>/<generation>.<n>``, n from 0 up to ``parts``."""

    broker: Name
    generation: Count
    parts: Annotated[int, Limits(ge=1, le=999_999)]


class LoadsValue(msgspec.Struct):
    """Value of ``l/<name>/<n>``: a load with its details by provider id, None for a member without a value."""

    loads: Annotated[
        list[tuple[Id, Number, Count | None, Count | None, Count | None, Number | None]],
        Limits(max_length=LOADS_PER_KEY),
    ]


class BeatValue(msgspec.Struct):
    """Value of ``beat/<name>``: a counter, the lag of that member's watch in seconds, the numbers of its own providers
    and services."""

    counter: Count
    lag: Number | None = None
    providers: Count = 0
    services: Count = 0


class ClaimValue(msgspec.Struct):
    """Value of ``q/<space>/<name>``: the member that owns the durable queue."""

    owner: MemberName


class Keys:
    """Names of the keys of a farm."""

    def __init__(self, farm: str) -> None:
        self.prefix = b"/elkobroker/" + farm.encode() + b"/"
        self.end = self.prefix[:-1] + b"0"
        """First key after all of the farm: "0" follows "/"."""
        self.meta = self.prefix + b"meta"
        self.ids = self.prefix + b"ids"

    def member(self, name: str) -> bytes:
        """Return the key of a member."""
        return self.prefix + b"b/" + name.encode()

    def provider(self, id: int) -> bytes:
        """Return the key of a provider."""
        return self.prefix + b"p/%0*d" % (PROVIDER_DIGITS, id)

    def part(self, id: int, generation: int, number: int) -> bytes:
        """Return the key of a part of a large provider."""
        return self.provider(id) + b"/%06d.%d" % (generation, number)

    def loads(self, name: str, number: int) -> bytes:
        """Return the key of some loads of a member."""
        return self.prefix + b"l/" + name.encode() + b"/%d" % number

    def beat(self, name: str) -> bytes:
        """Return the key of a member's beat."""
        return self.prefix + b"beat/" + name.encode()

    def claim(self, space: str, name: str) -> bytes:
        """Return the key of the owner of a durable queue."""
        return self.prefix + b"q/" + _url(space) + b"/" + _url(name)


def provider_of(rest: bytes) -> tuple[int, tuple[int, int] | None]:
    """Return the id in a key, without the prefix and ``p/``, and the generation and number of a part, None for the
    provider itself. Raises `Foreign`."""
    found = _PROVIDER.fullmatch(rest)
    if found is None or int(found[1]) == 0:
        raise Foreign("the key is not that of a provider")
    return int(found[1]), (int(found[2]), int(found[3])) if found[2] is not None else None


def name_of(rest: bytes) -> str:
    """Return the name of a member in a key. Raises `Foreign`."""
    name = rest.decode("ascii", "replace")
    if _MEMBER.fullmatch(name) is None:
        raise Foreign("the key is not that of a member")
    return name


def loads_of(rest: bytes) -> tuple[str, int]:
    """Return the member and the number in a key of loads. Raises `Foreign`."""
    name, _, number = rest.rpartition(b"/")
    if not number.isdigit() or len(number) > PROVIDER_DIGITS:
        raise Foreign("the key is not that of loads")
    return name_of(name), int(number)


def claim_of(rest: bytes) -> tuple[str, str]:
    """Return the space and the name of the queue in a key. Raises `Foreign`."""
    try:
        space, name = rest.split(b"/")
        return _text(space), _text(name)
    except ValueError:
        raise Foreign("the key is not that of a queue") from None


def encode(value: msgspec.Struct) -> bytes:
    """Return the JSON of a value."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def decode(text: bytes, kind: type[T]) -> T:
    """Return the value in a text. Raises `Foreign`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise Foreign(str(error)) from None


def meta_value(epoch: str) -> bytes:
    """Return the value of ``meta`` for data of that epoch."""
    return encode(MetaValue(LAYOUT, epoch))


def epoch_of(value: bytes) -> str:
    """Return the epoch in a value of ``meta``. Raises `OtherLayout`, and `Foreign` for a value of another program."""
    meta = decode(value, MetaValue)
    if meta.layout != LAYOUT:
        raise OtherLayout(meta.layout)
    return meta.epoch


def member_value(member: Member) -> bytes:
    """Return the value of a member."""
    return encode(
        MemberValue(member.instance, member.link, member.key, dict(member.listeners), member.version, member.draining)
    )


def member(name: str, value: bytes) -> Member:
    """Return the member in a value. Raises `Foreign`."""
    found = decode(value, MemberValue)
    return Member(name, found.instance, found.link, found.key, found.listeners, found.version, found.draining)


def provider_value(
    provider: Provider,
    broker: str,
    replaces: list[int],
    failing: Sequence[FailingService] = (),
    standby: bool = False,
) -> bytes:
    """Return the value of an own provider of the member ``broker``, with its ``failing`` services."""
    reports: dict[int, dict[str, Any]] = {
        each.place: {"failing": each.reason[:MAX_TEXT], "policy": each.policy.value, "doubtful": each.doubtful}
        for each in failing
    }
    services = [
        ServiceValue(
            service.name,
            service.hostport,
            service.protocol,
            auth=None if service.auth is None else AuthValue(service.auth.mode, service.auth.code, service.auth.id),
            info=service.info,
            lasting=service.lasting,
            interval=service.interval,
            **service.descriptions,
            **reports.get(place, {}),
        )
        for place, service in enumerate(provider.services)
    ]
    labels, owner = (provider.label, provider.wire, provider.address), provider.owner
    return encode(ProviderValue(broker, *labels, services, replaces, owner.name, standby, owner.entry, owner.proof))


def head_or_provider(value: bytes) -> HeadValue | ProviderValue:
    """Return the value of a key ``p/<id>``. Raises `Foreign`."""
    if value.startswith(_HEAD):
        return decode(value, HeadValue)
    return assembled(value)


def parts(value: bytes, size: int) -> list[bytes]:
    """Return a value in parts of at most ``size`` bytes."""
    return [value[start : start + size] for start in range(0, len(value), size)]


def head_value(broker: str, generation: int, count: int) -> bytes:
    """Return the value of the key of a provider with that many parts."""
    return _HEAD + encode(HeadValue(broker, generation, count))[1:]


def assembled(text: bytes) -> ProviderValue:
    """Return the provider in a value, or in the concatenated parts of one. Raises `Foreign`."""
    try:
        value = decode(text, ProviderValue)
    except Foreign:
        if b"\\u" not in text:
            raise
        value = decode(_without_surrogates(text), ProviderValue)
    return _checked(value)


def services(id: int, value: ProviderValue) -> tuple[Service, ...]:
    """Return the services in the value of a provider."""
    return tuple(
        Service(
            name=each.name,
            hostport=each.hostport,
            provider=id,
            protocol=each.protocol,
            auth=None if each.auth is None else Auth(each.auth.mode, each.auth.code, each.auth.id),
            info=each.info,
            lasting=each.lasting,
            interval=each.interval,
            **{name: getattr(each, name) for name in DESCRIPTIONS},
        )
        for each in value.services
    )


def failing(value: ProviderValue) -> tuple[FailingService, ...]:
    """Return the failing services in the value of a provider. A policy that this program does not know counts as the
    default one, LAST."""
    return tuple(
        FailingService(
            place, each.failing, Policy(each.policy) if each.policy in _POLICIES else Policy.LAST, each.doubtful
        )
        for place, each in enumerate(value.services)
        if each.failing is not None
    )


Loads = dict[int, tuple[float, LoadDetails | None]]
"""Loads with their details, by provider id."""


def loads_value(loads: Loads) -> bytes:
    """Return the value of some loads."""
    rows = []
    for id, (load, details) in loads.items():
        some = (
            (None, None, None, None)
            if details is None
            else (details.requests, details.errors, details.in_flight, details.latency_ms)
        )
        rows.append((id, load, *some))
    return encode(LoadsValue(rows))


def loads(value: bytes) -> Loads:
    """Return the loads in a value. Raises `Foreign`."""
    found: Loads = {}
    for id, load, requests, errors, in_flight, latency in decode(value, LoadsValue).loads:
        details = LoadDetails(requests, errors, in_flight, latency)
        found[id] = (load, None if details == NO_DETAILS else details)
    return found


_HEAD = b'{"split":true,'
"""Beginning of the value of a provider in parts, which tells it from the others without a second decoding."""


def _without_surrogates(text: bytes) -> bytes:
    """Return a text of JSON with question marks in place of isolated surrogates. Raises `Foreign`."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError) as error:
        raise Foreign(str(error)) from None


def _checked(value: ProviderValue) -> ProviderValue:
    for service in value.services:
        if service.name.startswith(OWN_PREFIX):
            raise Foreign(f"the name {service.name!r} is one of the broker's own")
        if service.info is not None and not _is_object(service.info):
            raise Foreign(f"the info of {service.name!r} is no object of JSON")
    return value


def _is_object(info: str) -> bool:
    try:
        return isinstance(json.loads(info), dict)
    except (ValueError, RecursionError):
        return False


def _url(text: str) -> bytes:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass"))


def _text(part: bytes) -> str:
    text = base64.b64decode(part, b"-_", validate=True).decode()
    if len(text) > MAX_TEXT:
        raise ValueError(part)
    return text
