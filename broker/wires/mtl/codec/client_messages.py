"""Client side of the control flow: encodes requests, decodes replies.

Rules:
- A reply is a code from 200 to 599 and a JSON object with a text ``status``. Anything else is a `BadReply`.
- The codes that RFC 11 defines have mandatory members. Any other code is an `Error`.
- Unknown members are ignored. Extensions of RFC 11 are used only if they have the expected type: another broker may
  use the same names for something else.
- Names of mechanisms and profiles are case-insensitive. Decoded values have mechanisms in capitals, profiles in small
  letters.
- A request that no broker would accept raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wires.mtl.codec import control_messages
from broker.wires.mtl.codec.control_messages import DEFAULT_HOST, MAX_REQUEST, MAX_RESOURCES, PROTOCOL, Confirm
from broker.wires.mtl.codec.data_messages import MAX_STRING, is_name
from broker.wires.mtl.codec.field_table import IllFormed

MAX_REPLY = 65_536
"""Bytes of the body of a reply: real ones have under a thousand."""

NOT_OPEN = "open"
"""Reason of a 400 to a client without session: it has to send a Connection.Open."""


class BadReply(Malformed):
    """Frames that are not a valid reply."""

    def __init__(self, text: str) -> None:
        super().__init__(Reason.SYNTAX, text)


# Requests

Request = tuple[bytes, bytes]
"""Command and body. They are sent after an empty frame."""

_encode = msgspec.json.Encoder().encode


def opening(virtual_host: str = DEFAULT_HOST) -> Request:
    """Encode Connection.Open."""
    return _request(b"Connection.Open", {"protocol": PROTOCOL, "virtual-host": virtual_host})


def authorization(mechanism: str, response: bytes | None) -> Request:
    """Encode Connection.Authorize. None is no response, which differs from an empty one."""
    members: dict[str, object] = {"mechanism": mechanism}
    if response is not None:
        members["response"] = response
    return _request(b"Connection.Authorize", members)


def profile(name: str) -> Request:
    """Encode Connection.Profile: it applies to the requests that follow."""
    return _request(b"Connection.Profile", {"profile": name})


def reader(resources: Sequence[str], confirm: Confirm | None = None, window: int | None = None) -> Request:
    """Encode Connection.Reader. Without resources it reads all of them; without ``confirm`` it uses the profile's
    default.

    ``window`` (an extension of RFC 11) limits the number of unconfirmed Contents.
    """
    members = _lease(resources, confirm)
    if window is not None:
        if window < 1:
            raise ValueError("a window has room for one Content at least")
        members["window"] = window
    return _request(b"Connection.Reader", members)


def writer(resources: Sequence[str], confirm: Confirm | None = None) -> Request:
    """Encode Connection.Writer."""
    return _request(b"Connection.Writer", _lease(resources, confirm))


def _lease(resources: Sequence[str], confirm: Confirm | None) -> dict[str, object]:
    if isinstance(resources, str) or not all(map(is_name, resources)):
        raise ValueError(f"the names of resources have 1 to {MAX_STRING} bytes, all of them printable")
    if len(resources) > MAX_RESOURCES:
        raise ValueError(f"a lease names at most {MAX_RESOURCES} resources; without any it is for all")
    members: dict[str, object] = {"resources": resources}
    if confirm is not None:
        members["confirm"] = confirm
    return members


def _request(command: bytes, members: Mapping[str, object]) -> Request:
    body = _encode(members)
    if len(body) > MAX_REQUEST:
        raise ValueError(f"a request has at most {MAX_REQUEST} bytes")
    return command, body


# Replies


class Ok(msgspec.Struct, frozen=True):
    """200: the profile is chosen."""


class Ready(msgspec.Struct, frozen=True):
    """201: the session has access. ``profiles`` are in small letters; ``limits`` is an extension."""

    profiles: tuple[str, ...]
    limits: Mapping[str, int]


class DataLease(msgspec.Struct, frozen=True):
    """202. The data flow is at ``port`` of the host that the client is connected to; 0 is the same endpoint.

    Extensions of RFC 11: ``window`` of a reader, ``endpoint`` to connect to instead; ``more`` has all other members
    that are texts.
    """

    port: int
    lease: str
    window: int | None
    endpoint: str | None
    more: Mapping[str, str]


class Unauthorized(msgspec.Struct, frozen=True):
    """401: the client has to authenticate by one of the mechanisms, in capitals. ``reason`` is for people."""

    mechanisms: tuple[str, ...]
    reason: str


class Challenged(msgspec.Struct, frozen=True):
    """402: the client has to answer the challenge. ``mechanism`` is in capitals."""

    mechanism: str
    challenge: bytes


class Misdirected(msgspec.Struct, frozen=True):
    """421: a resource belongs to another broker, ``owner``, whose control flow is at ``endpoint``. ``reason`` is for
    people."""

    owner: str
    endpoint: str
    reason: str


class Error(msgspec.Struct, frozen=True):
    """Any other code. ``reason`` is for people, except that of `not_open`; "" if there is none."""

    code: int
    status: str
    reason: str

    @property
    def not_open(self) -> bool:
        """True if the client has no session: it never had one, or the broker ended it."""
        return self.code == 400 and self.reason == NOT_OPEN


Reply = Ok | Ready | DataLease | Unauthorized | Challenged | Misdirected | Error


class _Status(msgspec.Struct, frozen=True):
    status: str


class _Ready(_Status, frozen=True):
    profiles: list[str]


class _DataLease(_Status, frozen=True):
    port: int
    lease: str


class _Unauthorized(_Status, frozen=True):
    mechanisms: list[str]


class _Challenged(_Status, frozen=True):
    mechanism: str
    challenge: bytes


Members = TypeVar("Members", bound=msgspec.Struct)

_OWN = frozenset(("status", "port", "lease", "window", "endpoint"))
"""The members of a 202 that are not in ``more``."""

MOST_PORT = 65_535


def decode(code: bytes, body: bytes) -> Reply:
    """Decode a code and a body. Raises `BadReply`."""
    digits = code if len(code) == 3 else b""
    if not digits.isdigit() or not 200 <= int(digits) < 600:
        raise BadReply("the code is not three digits from 200 to 599")
    if len(body) > MAX_REPLY:
        raise BadReply(f"the body has more than {MAX_REPLY} bytes")
    try:
        value = control_messages.read_json(body)
    except IllFormed as fault:
        raise BadReply(fault.text) from None
    except control_messages.TooDeep:
        raise BadReply("the body is nested too deep") from None
    if not isinstance(value, dict):
        raise BadReply("the body is not an object")
    status = _text(_members(value, _Status).status)
    if digits == b"200":
        return Ok()
    if digits == b"201":
        return Ready(tuple(map(_small, _members(value, _Ready).profiles)), _numbers(value.get("limits")))
    if digits == b"202":
        return _data_lease(value)
    if digits == b"401":
        mechanisms = tuple(name.upper() for name in _members(value, _Unauthorized).mechanisms)
        return Unauthorized(mechanisms, _text(value.get("reason")))
    if digits == b"402":
        challenged = _members(value, _Challenged)
        return Challenged(challenged.mechanism.upper(), challenged.challenge)
    endpoint = value.get("endpoint")
    if digits == b"421" and isinstance(endpoint, str) and is_name(endpoint):
        return Misdirected(_text(value.get("owner")), endpoint, _text(value.get("reason")))
    return Error(int(digits), status, _text(value.get("reason")))


def _data_lease(value: dict[str, object]) -> DataLease:
    members = _members(value, _DataLease)
    if not 0 <= members.port <= MOST_PORT:
        raise BadReply("port: it is no port")
    if not is_name(members.lease):
        raise BadReply(f"lease: it has not 1 to {MAX_STRING} bytes, all of them printable")
    window = value.get("window")
    if type(window) is not int or window < 1:
        window = None
    endpoint = value.get("endpoint")
    if not isinstance(endpoint, str) or not is_name(endpoint):
        endpoint = None
    more = {name: text for name, text in value.items() if name not in _OWN and isinstance(text, str)}
    return DataLease(members.port, members.lease, window, endpoint, more)


def _members(value: dict[str, object], kind: type[Members]) -> Members:
    try:
        return msgspec.convert(value, kind)
    except UnicodeEncodeError:
        raise BadReply("a key has a surrogate that stands alone") from None
    except msgspec.ValidationError as invalid:
        raise BadReply(f"a member is not as it must be: {invalid}") from None


def _small(name: str) -> str:
    return name.lower()


def _numbers(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {name: number for name, number in value.items() if type(number) is int}


def _text(value: object) -> str:
    """Return a text for people, with lone surrogates replaced; "" for anything else."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
