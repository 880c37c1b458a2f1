"""Parser of the members of an info that the broker evaluates: address, heartbeat interval, load.

The document names these values but not their keys, and Hermes has a structure of its own, so this is a table of
heuristics. An invalid value counts as missing; no info is ever refused here.

Rules:
- Address: ``ip``, ``ip_addr`` or ``ip_address``, and ``port``. A missing one is taken from ``interfaces``: from its
  member ``router``, else from the first that has both. Hermes' address is always 127.0.0.1, on whatever machine.
- Interval: the first of `_INTERVALS` that is a number above 0. ``liveliness`` and keys with ``_ms`` are in
  milliseconds; any other number is in seconds if it has a fraction or is below 50, and else in milliseconds.
- Intervals that may be missed: ``liveness`` or, as in Hermes, ``retry``; a whole number from 1.
- Load: ``load``, a number that is not negative. Its details: ``requests``, ``errors`` and ``in_flight``, whole
  numbers, and ``latency_ms``, a number that is not negative.
- Numbers may also be text, such as "6000".

See docs/protocols/dbp.md, "Registration".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from broker.wires.dbp.codec.info import is_hermes

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

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
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
    members = _object(info)
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
    interfaces = _object(members.get("interfaces"))
    # The sort is stable: "router" first, the others in their order in the object.
    for key in sorted(interfaces, key=lambda key: key != "router"):
        interface = _object(interfaces[key])
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


def _object(raw: bytes | msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, undecoded; no members for any other input."""
    if raw is None:
        return {}
    try:
        return _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)
