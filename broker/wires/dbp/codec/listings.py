"""Listings, the answers to requests, and infos, by which services describe themselves. Both are JSON objects.

Rules of listings, which have a member for each service, and others after them:
- An answer is always an object. If it has the key "Error", Hermes ignores all other members.
- A service of another wire has no info, and is listed by a mapping (`ListedOffer`).
- A listing that would be too long is replaced by an error (`TOO_LONG`).

Rules of infos, which are stored and forwarded unchanged:
- An *info* is the object of a registration or an update without its ``name``. The values keep their bytes; the members
  are formatted like Hermes', with ", " and ": " between, and keys in ASCII.
- Of a repeated member, the last value counts, in the position of the first.
- An update replaces whole members, also by null, and never parts of them.
- A listing contains the infos of all services, and each client must be able to parse all of it. So an info on which a
  common JSON parser fails is refused.

Members of an info that the broker evaluates. The document names their values but not their keys, and Hermes has a
structure of its own, so these are heuristics. An invalid value counts as missing; no info is refused for it:
- Address: ``ip``, ``ip_addr`` or ``ip_address``, and ``port``. A missing one is taken from ``interfaces``: from its
  member ``router``, else from the first that has both. Hermes' address is always 127.0.0.1, on whatever machine.
- Interval: the first of `_INTERVALS` that is a number above 0. ``liveliness`` and keys with ``_ms`` are in
  milliseconds; any other number is in seconds if it has a fraction or is below 50, and else in milliseconds.
- Intervals that may be missed: ``liveness`` or, as in Hermes, ``retry``; a whole number from 1.
- Load: ``load``, a number that is not negative. Its details: ``requests``, ``errors`` and ``in_flight``, whole
  numbers, and ``latency_ms``, a number that is not negative.
- Numbers may also be text, such as "6000".

See docs/protocols/dbp.md, "Registration", "Denied", "Requests" and "Out of the registry".
`broker.wires.dbp.sessions.listing` selects the services of a listing, and caches their encoded form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from broker.core.errors import Malformed, Reason
from broker.core.service_info import MAX_INFO, info_fault

MAX_NAME = 255
"""Bytes of a service's name: a heartbeat with it must fit in a datagram. The registry permits as many characters."""

KEYS = 1_000
"""Keys of infos that are cached in encoded form. All services of a farm have the same few keys; the cache takes at most
16 MB, usually next to none."""

ERROR = "Error"
"""The key that Hermes takes as the sign of a failed listing."""

MMI = "mmi."
"""Prefix of the names that are questions to the broker (8/MMI)."""

LVC = "lvc:"
"""Prefix of the names of topics in requests of last values."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class BadInfo(Malformed):
    """An invalid info; ``text`` is the reason. ``hermes`` is true if it has members that only Hermes' infos have."""

    def __init__(self, text: str, hermes: bool = False) -> None:
        super().__init__(Reason.PARAMETER, text)
        self.hermes = hermes


def take_name(data: bytes, registering: bool) -> tuple[str | None, bytes, bool]:
    """Parse the object of a registration, or of an update, which may have no name.

    Returns the name, the info, and True if the object is Hermes'. Raises `BadInfo`.
    """
    members = _members(data)
    hermes = is_hermes(members)
    raw = members.pop("name", None)
    if raw is None:
        if registering:
            raise BadInfo("the service information has no name", hermes)
        return None, _object(members, hermes), hermes
    try:
        name = _TEXT.decode(raw)
    except msgspec.DecodeError:
        raise BadInfo("the name of the service is no text", hermes) from None
    if not name:
        raise BadInfo("the name of the service is empty", hermes)
    if len(name.encode()) > MAX_NAME:
        raise BadInfo(f"the name of the service has more than {MAX_NAME} bytes", hermes)
    if registering and (name == ERROR or name.startswith((MMI, LVC))):
        raise BadInfo(f"no service may be called {ERROR}, nor {MMI} or {LVC} and more", hermes)
    return name, _object(members, hermes), hermes


_LABELS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "zone": _TEXT,
    "tags": msgspec.json.Decoder(tuple[str, ...]),
    "meta": msgspec.json.Decoder(dict[str, str]),
}


def labels(info: bytes) -> Mapping[str, Any]:
    """Return zone, tags and meta in an info. An info is free: a member of another type counts as missing."""
    if b'"tags"' not in info and b'"meta"' not in info and b'"zone"' not in info:
        return {}
    members, found = _detail_object(info), {}
    for name in _LABELS.keys() & members.keys():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found[name] = _LABELS[name].decode(members[name])
    return found


def merge_infos(info: bytes, changes: bytes) -> bytes:
    """Return an info with the changes of an update; both are from `take_name`. Raises `BadInfo` if it is too long."""
    return _object({**_MEMBERS.decode(info), **_MEMBERS.decode(changes)}, False)


def is_hermes(members: Mapping[str, object]) -> bool:
    """Return True if these are members that Hermes registers, and that no service of the document has."""
    return "interfaces" in members and "reg_time" in members


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an object that every JSON parser can parse, undecoded. Raises `BadInfo`."""
    if len(data) > MAX_INFO:
        hermes = b'"interfaces"' in data and b'"reg_time"' in data  # a guess: too long to be parsed
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    try:
        text = data.decode()  # the decoder below skips values, and so does not check their UTF-8
        members = _MEMBERS.decode(data)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise BadInfo("the service information is no JSON object") from None
    if fault := info_fault(text):
        raise BadInfo(f"the service information {fault}", is_hermes(members))
    return members


def _object(members: Mapping[str, msgspec.Raw], hermes: bool) -> bytes:
    info = b"{%b}" % b", ".join([b"%b: %b" % (_key(key), bytes(raw)) for key, raw in members.items()])
    if len(info) > MAX_INFO:
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    return info


@lru_cache(KEYS)
def _key(key: str) -> bytes:
    return json.dumps(key).encode("ascii")


MAX_BODY = 16 * 1024 * 1024
"""Bytes of a listing: a hundred thousand services of real size, or a thousand of the largest."""

ROOM = MAX_BODY - 2
"""Bytes for the entries of a body, without its braces. Each entry counts with `SEPARATOR` bytes more."""

SEPARATOR = 2
"""Bytes between two entries, counted for each of them."""


def _json(value: str | float) -> bytes:
    return json.dumps(value).encode("ascii")


def entry(name: str, info: bytes) -> bytes:
    """Encode a service as a member of a listing. The name may be any text."""
    return b"%b: %b" % (_json(harmless(name)), info)


def body(entries: Iterable[bytes], more: Mapping[str, str | float] | None = None) -> bytes:
    """Return the body of a reply: services, each by its `entry`, in this order, and other members after them."""
    members = [*entries]
    if more:
        members += [b"%b: %b" % (_json(key), _json(value)) for key, value in more.items()]
    if not members:
        return b"{}"
    # One copy of up to 16 MiB: a format with the braces would make more of them, in 9 ms.
    members[0] = b"{" + members[0]
    members[-1] += b"}"
    return b", ".join(members)


TOO_LONG = body((), {ERROR: f"The Services Listed Have More Than {MAX_BODY} Bytes; Ask for Them by Name"})
"""The body that replaces one that would be too long: a part of a list would look like all of it."""


def listing(entries: Iterable[tuple[str, bytes]], more: Mapping[str, str | float] | None = None) -> bytes:
    """Return the body of a reply, or `TOO_LONG`: services, each with its info, in this order, and other members."""
    parts: list[bytes] = []
    length = 0
    for name, info in entries:
        part = entry(name, info)
        length += len(part) + SEPARATOR
        if length > ROOM:
            return TOO_LONG
        parts.append(part)
    return body(parts, more)


def harmless(text: str) -> str:
    """Return the text with lone surrogates replaced: strict parsers would refuse the whole listing with one of them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unknown(*names: str) -> dict[str, str | float]:
    """Return the error for names that were never registered, in Hermes' words."""
    return {ERROR: "; ".join(f"No Registered Service With the Name {name}" for name in names)}


def inactive(name: str, last_seen: float) -> dict[str, str | float]:
    """Return the document's inactive warning, for a name that was registered. ``last_seen`` is the time of its end, in
    seconds since the epoch."""
    text = f"The Registered Service With the Name {name} Is Inactive"
    return {ERROR: text, "status": "inactive", "last_seen": last_seen}


def unlistable() -> dict[str, str | float]:
    """Return the error for a service whose name is `ERROR`, which other wires permit."""
    return {ERROR: f"No Service With the Name {ERROR} Can Be Listed"}


# services of other wires, which have no info


class ListedAddress(msgspec.Struct, frozen=True, gc=False):
    """Address of a service."""

    ip: str
    port: int


class ListedOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One service of another wire, in place of an info. It has the address twice, under the keys of the document and
    under those of Hermes.

    If several providers offer the name, ``providers`` has all of them, and ``omitted`` the number of further ones.
    """

    ip: str | None = None
    port: int | None = None
    interfaces: dict[str, ListedAddress] | None = None
    hostport: str
    protocol: str
    label: str | None = None
    wire: str | None = None
    provider: int
    load: float | None = None
    restored: bool = False
    zone: str | None = None
    tags: tuple[str, ...] | None = None
    meta: Mapping[str, str] | None = None
    providers: Sequence[ListedOffer] | None = None
    omitted: int = 0


_HOSTPORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\]]+)?)\]|([^:\[\]]+)):([0-9]{1,5})", re.ASCII)
_OFFER = msgspec.json.Encoder()


def place(hostport: str) -> ListedAddress | None:
    """Parse a hostport. The host of an IPv6 address has no brackets. Returns None for any other text."""
    match = _HOSTPORT.fullmatch(hostport)
    if match is None or not 0 < int(match[3]) <= 65_535:
        return None
    return ListedAddress(match[1] or match[2], int(match[3]))


def mapping(offers: Sequence[ListedOffer], omitted: int = 0) -> bytes:
    """Encode the replacement of an info: the first offer, and all of them if there are several."""
    first = offers[0]
    if first.ip is not None and first.port is not None:
        first = msgspec.structs.replace(first, interfaces={first.protocol: ListedAddress(first.ip, first.port)})
    if len(offers) > 1:
        first = msgspec.structs.replace(first, providers=offers, omitted=omitted)
    return _OFFER.encode(first)


MAX_HOST = 255
"""Characters of an address or a host name; DNS names have at most 253."""

MAX_COUNT = 2**53 - 1
"""Limit of a number of requests, or of milliseconds: the largest integer that every JSON reader represents exactly."""

SECONDS_BELOW = 50.0
"""Numbers without a unit below this are seconds: no service sends 20 heartbeats a second, nor one in 50 seconds."""

_INTERVALS = (
    "heartbeat_ms", "heartbeat_interval_ms", "interval_ms", "liveliness_ms",
    "heartbeat", "heartbeat_interval", "heartbeat_timing", "interval",
    "liveliness",
)  # fmt: skip

_VALUE = msgspec.json.Decoder(bool | int | float | str)

_T = TypeVar("_T")


class Details(msgspec.Struct, frozen=True, gc=False):
    """Parsed members; None for missing ones. ``interval`` is in seconds. ``hermes`` is true if Hermes' own members are
    there."""

    host: str | None = None
    port: int | None = None
    interval: float | None = None
    liveness: int | None = None
    load: float | None = None
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None
    hermes: bool = False


def details(info: bytes) -> Details:
    """Parse an info. Any bytes are permitted; bytes that are no info have no details."""
    members = _detail_object(info)
    host, port = _place(members)
    return Details(
        host,
        port,
        _interval(members),
        _first(_whole(members, key, 1) for key in ("liveness", "retry")),
        _number(members, "load"),
        _whole(members, "requests", 0, MAX_COUNT),
        _whole(members, "errors", 0, MAX_COUNT),
        _whole(members, "in_flight", 0, MAX_COUNT),
        _latency(members),
        is_hermes(members),
    )


def _place(members: Mapping[str, msgspec.Raw]) -> tuple[str | None, int | None]:
    host, port = _host(members), _whole(members, "port", 1, 65_535)
    if host is not None and port is not None:
        return host, port
    interfaces = _detail_object(members.get("interfaces"))
    # The sort is stable: "router" first, the others in their order in the object.
    for key in sorted(interfaces, key=lambda key: key != "router"):
        interface = _detail_object(interfaces[key])
        other_host, other_port = _host(interface), _whole(interface, "port", 1, 65_535)
        if other_host is not None and other_port is not None:
            return host or other_host, port or other_port
    return host, port


def _host(members: Mapping[str, msgspec.Raw]) -> str | None:
    values = (_value(members, key) for key in ("ip", "ip_addr", "ip_address"))
    return _first(value if isinstance(value, str) and 0 < len(value) <= MAX_HOST else None for value in values)


def _interval(members: Mapping[str, msgspec.Raw]) -> float | None:
    for key in _INTERVALS:
        number = _number(members, key) if key in members else None
        if number:
            in_seconds = number < SECONDS_BELOW or not number.is_integer()
            in_seconds = in_seconds and key != "liveliness" and not key.endswith("_ms")
            # "or None": the smallest floats become zero when they are divided.
            return number if in_seconds else number / 1000 or None
    return None


def _whole(members: Mapping[str, msgspec.Raw], key: str, least: int, most: int = 2**31) -> int | None:
    number = _number(members, key)
    return int(number) if number is not None and number.is_integer() and least <= number <= most else None


def _latency(members: Mapping[str, msgspec.Raw]) -> float | None:
    number = _number(members, "latency_ms")
    return number if number is not None and number <= MAX_COUNT else None


def _number(members: Mapping[str, msgspec.Raw], key: str) -> float | None:
    """Return the value of a member as a finite number that is not negative; None if it is none."""
    value = _value(members, key)
    # A bool is an int in Python, but no number in JSON.
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _value(members: Mapping[str, msgspec.Raw], key: str) -> bool | float | str | None:
    raw = members.get(key)
    if raw is None:
        return None
    try:
        value: bool | float | str = _VALUE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value


def _detail_object(raw: bytes | msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, undecoded; no members for any other input."""
    if raw is None:
        return {}
    try:
        return _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)
