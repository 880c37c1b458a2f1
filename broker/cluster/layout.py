"""Layout of the keys in etcd, version 2: names of keys, and values in JSON.

Rules:
- Values are whole and say the newest state, so that a repeated write does no harm.
- Readers ignore unknown members of a value: a newer program may add some without a new version of the layout. Each
  value is written whole, so ``ids``, which all brokers write, loses them at the next block that an older one takes.
- Each value is decoded by itself. `Foreign` says that a value is not one of this layout; it is then left out.
- Each registration has a key of its own, whose value is whole, and which its value repeats.
- An isolated surrogate in a text of a registration, which UTF-8 cannot represent, is an escape of JSON, and read as a
  question mark. Other values have none.

The file is longer than others: it has all values of one version of the layout, each with its limits.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta as Limits

from broker.core.cluster.cluster_interfaces import Key, Member, Registration, key_of
from broker.core.model import (
    DESCRIPTIONS,
    MAX_COUNT,
    MAX_LABELS,
    MAX_NAME,
    MAX_TEXT,
    NO_DETAILS,
    OWN_PREFIX,
    Auth,
    FailingService,
    LoadDetails,
    Owner,
    Policy,
    Provider,
    Service,
)
from broker.core.service_info import MAX_INFO, info_fault

LAYOUT = 2
"""Version of the layout. It rises with changes that an older program would misunderstand."""

MAX_LISTENERS = 64
"""Limit of the listeners of a member: a broker has about ten."""

LOADS_PER_KEY = 256
"""Limit of the providers in one value of loads: 1,000 loaded providers are four keys, each of some 10 KB."""

ID_DIGITS = 16
"""Digits of the greatest provider id, and of a number of loads."""

_POLICIES = frozenset(each.value for each in Policy)

_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of members, as the configuration permits them."""

Name = Annotated[str, Limits(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Limits(max_length=MAX_TEXT)]
MemberName = Annotated[str, Limits(pattern=rf"^{_MEMBER.pattern}\Z")]
Count = Annotated[int, Limits(ge=0, le=MAX_COUNT)]
Number = Annotated[float, Limits(ge=0)]
Id = Annotated[int, Limits(ge=1, lt=10**ID_DIGITS)]

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
    """Value of ``b/<name>``; see `broker.core.cluster.cluster_interfaces.Member`. ``restored`` is True once the member
    has written all its registrations under its present lease."""

    instance: Name
    link: Text = ""
    key: Text = ""
    listeners: Annotated[dict[Name, Text], Limits(max_length=MAX_LISTENERS)] = {}
    version: Text = ""
    draining: bool = False
    restored: bool = False


class IdsValue(msgspec.Struct):
    """Value of ``ids``: the first provider id that belongs to no block yet."""

    next: Id


class AuthValue(msgspec.Struct, omit_defaults=True):
    """Credentials of a service; see `broker.core.model.Auth`."""

    mode: Text
    code: Text | None = None
    id: Text | None = None


class ServiceValue(msgspec.Struct, omit_defaults=True):
    """Service of a registration. ``failing`` is the reason for which its health check fails at the holder, None if it
    does not; ``policy`` is that of the check, a `broker.core.model.Policy`; with ``doubtful`` it does not fail yet.
    Both count only with a reason."""

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
    tags: Annotated[tuple[Text, ...], Limits(max_length=MAX_LABELS)] | None = None
    meta: Annotated[dict[Text, Text], Limits(max_length=MAX_LABELS + 1)] | None = None  # with `BRIDGE_PATH`


class RegistrationValue(msgspec.Struct, omit_defaults=True):
    """Value of ``s/...`` and ``t/...``: a registration. ``broker`` holds it; ``provider``, ``label`` and ``address``
    are those of its provider, ``order`` is that of `broker.core.cluster.cluster_interfaces.Registration`; ``owner``,
    ``entry`` and ``proof`` are those of `broker.core.model.Owner`."""

    broker: MemberName
    provider: Id
    service: ServiceValue
    label: Text = ""
    address: Text = ""
    order: Count = 0
    owner: Text = ""
    entry: Text = ""
    proof: Text = ""


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

    def registration(self, key: Key) -> bytes:
        """Return the key of a registration."""
        return self.prefix + b"s/" + _escaped(key)

    def standby(self, key: Key, name: str) -> bytes:
        """Return the key of the superseded registration of a member."""
        return self.prefix + b"t/" + _escaped(key) + b"/" + name.encode()

    def loads(self, name: str, number: int) -> bytes:
        """Return the key of some loads of a member."""
        return self.prefix + b"l/" + name.encode() + b"/%d" % number

    def beat(self, name: str) -> bytes:
        """Return the key of a member's beat."""
        return self.prefix + b"beat/" + name.encode()

    def claim(self, space: str, name: str) -> bytes:
        """Return the key of the owner of a durable queue."""
        return self.prefix + b"q/" + _url(space) + b"/" + _url(name)


def registration_of(rest: bytes) -> Key:
    """Return the registration of a key, given without the prefix and ``s/``. Raises `Foreign`."""
    segments = rest.split(b"/")
    if len(segments) != 4 or not segments[0] or not segments[1]:
        raise Foreign("the key is not that of a registration")
    try:
        wire, name, protocol, place = (unquote(each.decode("ascii"), errors="strict") for each in segments)
    except ValueError:
        raise Foreign("the key is not that of a registration") from None
    key = wire, name, protocol, place
    if _escaped(key) != rest:
        raise Foreign("the key is not that of a registration")
    return key


def standby_of(rest: bytes) -> tuple[Key, str]:
    """Return the registration of a key and its member, given without the prefix and ``t/``. Raises `Foreign`."""
    head, _, name = rest.rpartition(b"/")
    return registration_of(head), name_of(name)


def name_of(rest: bytes) -> str:
    """Return the name of a member in a key. Raises `Foreign`."""
    name = rest.decode("ascii", "replace")
    if _MEMBER.fullmatch(name) is None:
        raise Foreign("the key is not that of a member")
    return name


def loads_of(rest: bytes) -> tuple[str, int]:
    """Return the member and the number in a key of loads. Raises `Foreign`."""
    name, _, number = rest.rpartition(b"/")
    if not number.isdigit() or len(number) > ID_DIGITS:
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


def member_value(member: Member, restored: bool = False) -> bytes:
    """Return the value of a member. ``restored`` is that of `MemberValue`."""
    listeners = dict(member.listeners)
    values = member.instance, member.link, member.key, listeners, member.version, member.draining, restored
    return encode(MemberValue(*values))


def member(name: str, value: bytes) -> tuple[Member, bool]:
    """Return the member in a value, and whether it has restored its registrations. Raises `Foreign`."""
    found = decode(value, MemberValue)
    known = Member(name, found.instance, found.link, found.key, found.listeners, found.version, found.draining)
    return known, found.restored


def registration_value(registration: Registration, broker: str) -> bytes:
    """Return the value of an own registration of the member ``broker``."""
    provider, service, failing = registration.provider, registration.service, registration.failing
    report: dict[str, Any] = {}
    if failing is not None:
        report = {
            "failing": failing.reason[:MAX_TEXT],
            "policy": failing.policy.value,
            "doubtful": failing.doubtful,
        }
    value = ServiceValue(
        service.name,
        service.hostport,
        service.protocol,
        auth=None if service.auth is None else AuthValue(service.auth.mode, service.auth.code, service.auth.id),
        info=service.info,
        lasting=service.lasting,
        interval=service.interval,
        **service.descriptions,
        **report,
    )
    owner = provider.owner
    label, address = provider.label, provider.address
    return encode(
        RegistrationValue(
            broker, provider.id, value, label, address, registration.order, owner.name, owner.entry, owner.proof
        )
    )


def registration(key: Key, text: bytes) -> Registration:
    """Return the registration in the value of a key. Raises `Foreign`."""
    try:
        value = decode(text, RegistrationValue)
    except Foreign:
        if b"\\u" not in text:
            raise
        value = decode(_without_surrogates(text), RegistrationValue)
    each = value.service
    if each.name.startswith(OWN_PREFIX):
        raise Foreign(f"the name {each.name!r} is one of the broker's own")
    if each.info is not None and (fault := _info_fault(each.info)):
        raise Foreign(f"the info of {each.name!r} {fault}")
    service = Service(
        name=each.name,
        hostport=each.hostport,
        provider=value.provider,
        protocol=each.protocol,
        auth=None if each.auth is None else Auth(each.auth.mode, each.auth.code, each.auth.id),
        info=each.info,
        lasting=each.lasting,
        interval=each.interval,
        **{name: getattr(each, name) for name in DESCRIPTIONS},
    )
    owner = Owner(value.owner, value.entry, value.proof)
    if key_of(key[0], service, owner) != key:
        raise Foreign("the value is that of another key")
    failing = None
    if each.failing is not None:
        # A policy that this program does not know counts as the default one.
        policy = Policy(each.policy) if each.policy in _POLICIES else Policy.LAST
        failing = FailingService(each.failing, policy, each.doubtful)
    provider = Provider(
        value.provider, value.label, key[0], value.address, 0.0, 0.0, (), broker=value.broker, owner=owner
    )
    return Registration(key, provider, service, value.order, failing)


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


def registration_name(key: Key) -> str:
    """Return the text from which `registration_of` has a key."""
    return _escaped(key).decode()


def _escaped(key: Key) -> bytes:
    return "/".join(quote(each, safe=":") for each in key).encode()


def _without_surrogates(text: bytes) -> bytes:
    """Return a text of JSON with question marks in place of isolated surrogates. Raises `Foreign`."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError) as error:
        raise Foreign(str(error)) from None


def _info_fault(info: str) -> str:
    """Return why parsers may refuse an info, as the rest of a sentence; empty for one that all parse."""
    if fault := info_fault(info):
        return fault  # first: beyond the limits the parser fails
    try:
        value = json.loads(info, parse_constant=_no_constant)
    except ValueError:
        value = None
    return "" if isinstance(value, dict) else "is no object of JSON"


def _no_constant(name: str) -> None:
    """Refuse NaN and the infinities, which Python's parser adds to JSON."""
    raise ValueError(name)


def _url(text: str) -> bytes:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass"))


def _text(part: bytes) -> str:
    text = base64.b64decode(part, b"-_", validate=True).decode()
    if len(text) > MAX_TEXT:
        raise ValueError(part)
    return text
