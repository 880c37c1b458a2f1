"""The control flow of MTL: requests, each a command and a JSON object, and replies, each a code and a JSON object.

Rules:
- Commands are case-insensitive. A body that is not JSON is ill-formed and dropped (`IllFormed`), whatever the command.
- Everything else is answered: `InvalidRequest` has the reply to an invalid request.
- Unknown members are ignored. The last value of a repeated member counts. null has the wrong type, except for
  ``response`` and ``window``, where it equals a missing member.
- Names of mechanisms and profiles are case-insensitive. Decoded values have mechanisms in capitals, profiles in small
  letters.
- A body over its limit is answered without being decoded.

Rules of JSON. RFC 11 answers valid JSON, and drops invalid: so both are recognized exactly:
- All that the grammar allows is JSON: numbers of any length, any escapes, repeated members (the last counts). Lone
  surrogates are JSON, too: users of the value have to expect them.
- A byte order mark, NaN and Infinity are not in the grammar.
- JSON that is nested beyond the limit is answered as too deep, so it still has to be valid. Python's decoder recurses
  and would fail: `is_json` checks it without recursion.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, TypeVar

import msgspec

from broker.core.errors import Malformed, Reason
from broker.wires.mtl.codec.data_messages import MAX_STRING, is_name
from broker.wires.mtl.codec.field_table import Fault, IllFormed

MAX_DEPTH = 32
"""Nesting of a body: real ones have two levels. Decoders recurse."""

MAX_DIGITS = 20
"""Characters of a whole number that are read: no valid number of a request has as many."""


class TooDeep(Exception):
    """Valid JSON, but nested beyond `MAX_DEPTH`."""


def read_json(data: bytes) -> object:
    """Decode a body. Raises `IllFormed`, or `TooDeep`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise IllFormed(Fault.ENCODING, "the body is not UTF-8") from None
    if _depth(text) > MAX_DEPTH:
        if is_json(text):
            raise TooDeep
        raise _no_json()
    try:
        return _DECODER.decode(text)
    except ValueError:
        raise _no_json() from None


def _no_json() -> IllFormed:
    return IllFormed(Fault.JSON, "the body is not JSON")


def _number(text: str) -> int:
    """Return a whole number, cut to `MAX_DIGITS`. Python refuses those of over 4,300 digits, which are JSON too."""
    return int(text[:MAX_DIGITS])


def _constant(text: str) -> object:
    raise ValueError(text)  # NaN and Infinity, which Python accepts


_DECODER = json.JSONDecoder(parse_int=_number, parse_constant=_constant)

_ANY_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^][{}]++")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def _depth(text: str) -> int:
    """Return the nesting of a text if it is JSON; if not, at least the nesting before the mistake."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    brackets = _NO_BRACKET.sub("", _ANY_STRING.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


# The grammar, without recursion. The text is reduced to one character for each token; control characters stand for
# strings, other scalars and keys, since there are none in JSON but white space.

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_WHITE = str.maketrans("", "", " \t\n\r")

_NEIGHBOURS = re.compile(
    r"(?=[\x02[{])(?:"
    r"[\x02\]}](?=[,\]}]|\Z)"  # a value ends
    r"|\x03(?=[\x02[{])"  # a key
    r"|\[(?=[\x02[{\]])"
    r"|\{(?=[\x03}])"
    r"|,(?=[\x02\x03[{])"
    r")*+"
)
"""Sequences of tokens that may follow each other, whatever bracket they are in."""

_SCALARS = re.compile(r"[\x02\x03]++")
_COMMAS = re.compile(r",++|;++")
_OPEN = {"]": "[", "}": "{", ",": "[", ";": "{"}


def is_json(text: str) -> bool:
    """Return True if a text is JSON, at any depth. Takes linear time."""
    if _CONTROL.search(text):
        return False
    tokens = _SCALAR.sub("\2", _STRING.sub("\1", text)).translate(_WHITE)
    tokens = tokens.replace("\1:", "\3").replace("\1", "\2")
    if _NEIGHBOURS.fullmatch(tokens) is None:
        return False
    # Left to check: brackets match, and each comma is in a bracket of its kind. ";" is a comma before a key.
    opened = ["."]
    for token in _COMMAS.sub(lambda commas: commas[0][0], _SCALARS.sub("", tokens.replace(",\3", ";"))):
        if token in "[{":
            opened.append(token)
        elif opened[-1] != _OPEN[token]:
            return False
        elif token in "]}":
            opened.pop()
    return len(opened) == 1


PROTOCOL = {"name": "MTL", "version": 1}
"""The protocol, as Connection.Open names it."""

MAX_COMMAND = 64
"""Bytes of a command: the longest has 20."""

MAX_REQUEST = 65_536
"""Bytes of a request's body: that many are read at once, and `MAX_RESOURCES` names of usual length fit."""

MAX_RESOURCES = 1_000
"""Resources of one request: each is stored as long as the flow. Clients with more ask for all."""

DEFAULT_HOST = "/"
"""The virtual host of an Open that names none."""

Confirm = Literal["none", "full"]
"""Confirmation of Contents."""


class OpenRequest(msgspec.Struct, frozen=True):
    """ "Connection.Open": the protocol is MTL; ``virtual_host`` is any text."""

    virtual_host: str


class AuthorizeRequest(msgspec.Struct, frozen=True):
    """ "Connection.Authorize". ``mechanism`` is in capitals. ``response`` is decoded; b"" is not the same as none."""

    mechanism: str
    response: bytes | None


class ProfileRequest(msgspec.Struct, frozen=True):
    """ "Connection.Profile". ``profile`` is in small letters."""

    profile: str


class ReaderRequest(msgspec.Struct, frozen=True):
    """ "Connection.Reader". Without resources it reads all of them; without ``confirm`` it uses the profile's default.

    ``window`` (an extension of RFC 11) limits the number of unconfirmed Contents, at least 1. The session limits it.
    """

    resources: tuple[str, ...]
    confirm: Confirm | None
    window: int | None


class WriterRequest(msgspec.Struct, frozen=True):
    """ "Connection.Writer". Its members are as those of a `ReaderRequest`."""

    resources: tuple[str, ...]
    confirm: Confirm | None


ControlRequest = OpenRequest | AuthorizeRequest | ProfileRequest | ReaderRequest | WriterRequest


# Replies

EncodedReply = tuple[bytes, bytes]
"""The code and the body. They go out behind the envelope of the request."""


class ReplyStatus(enum.Enum):
    """Status of a reply: ``(code, text)``. Codes that RFC 11 does not define have texts of this broker."""

    OK = (b"200", "OK")
    READY = (b"201", "Ready")
    DATA_LEASE = (b"202", "Data Lease")
    BAD_REQUEST = (b"400", "Bad Request")
    UNAUTHORIZED = (b"401", "Unauthorized")
    CHALLENGED = (b"402", "Challenged")
    FORBIDDEN = (b"403", "Forbidden")
    TOO_LARGE = (b"413", "Payload Too Large")
    MISDIRECTED = (b"421", "Misdirected Request")
    TOO_MANY = (b"429", "Too Many Requests")
    INTERNAL_ERROR = (b"500", "Internal Error")
    NOT_IMPLEMENTED = (b"501", "Not implemented")
    UNAVAILABLE = (b"503", "Unavailable")

    def __init__(self, code: bytes, text: str) -> None:
        self.code = code
        self.text = text


_encode = msgspec.json.Encoder().encode


def _reply(status: ReplyStatus, more: Mapping[str, object]) -> EncodedReply:
    return status.code, _encode({"status": status.text, **more})


OK: EncodedReply = _reply(ReplyStatus.OK, {})
"""200: the profile is chosen."""


def ready(profiles: Sequence[str], limits: Mapping[str, int] | None = None) -> EncodedReply:
    """201: the session has access. Names the profiles, and (an extension of RFC 11) the limits of the broker."""
    return _reply(ReplyStatus.READY, {"profiles": profiles} | ({} if limits is None else {"limits": limits}))


def unauthorized(mechanisms: Sequence[str], reason: str | None = None) -> EncodedReply:
    """401: the session has to authenticate, or failed to."""
    return _reply(ReplyStatus.UNAUTHORIZED, _reason(reason) | {"mechanisms": mechanisms})


def challenged(mechanism: str, challenge: bytes) -> EncodedReply:
    """402: the client has to answer the challenge by another Authorize."""
    return _reply(ReplyStatus.CHALLENGED, {"mechanism": mechanism, "challenge": challenge})


def data_lease(
    port: int,
    lease: str,
    window: int | None = None,
    endpoint: str | None = None,
    more: Mapping[str, object] | None = None,
) -> EncodedReply:
    """202: the client may open a data flow at that port of the same host; 0 is the same endpoint.

    Extensions of RFC 11: the window of a reader, the endpoint to connect to instead, and ``more`` members of the
    profile, which cannot replace others.
    """
    members: dict[str, object] = {"status": ReplyStatus.DATA_LEASE.text, "port": port, "lease": lease}
    if window is not None:
        members["window"] = window
    if endpoint is not None:
        members["endpoint"] = endpoint
    return _reply(ReplyStatus.DATA_LEASE, {**members, **(more or {}), **members})


def error(status: ReplyStatus, reason: str | None = None, more: Mapping[str, object] | None = None) -> EncodedReply:
    """Any other code. ``reason`` is for people."""
    return _reply(status, _reason(reason) | dict(more or {}))


def _reason(text: str | None) -> dict[str, object]:
    """Return the member ``reason``. It may have input of the peer, whose lone surrogates cannot be encoded."""
    return {} if text is None else {"reason": text.encode("utf-8", "replace").decode()}


# Requests


class InvalidRequest(Malformed):
    """A well-formed but invalid request, to be answered by ``reply``."""

    def __init__(
        self,
        status: ReplyStatus,
        text: str,
        op: str | None = None,
        reason: Reason = Reason.PARAMETER,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(reason, text, op)
        self.status = status
        self.reply = error(status, text, more)


# Members as received

Members = TypeVar("Members", bound=msgspec.Struct)


class _Protocol(msgspec.Struct, frozen=True):
    name: str
    version: int


class _Open(msgspec.Struct, frozen=True, rename="kebab"):
    protocol: _Protocol
    virtual_host: str = DEFAULT_HOST


class _Authorize(msgspec.Struct, frozen=True):
    mechanism: str
    response: bytes | None = None


class _Profile(msgspec.Struct, frozen=True):
    profile: str


class _Writer(msgspec.Struct, frozen=True):
    resources: list[str]
    confirm: str | msgspec.UnsetType = msgspec.UNSET


class _Reader(_Writer, frozen=True):
    window: int | None = None


def decode(command: bytes, body: bytes) -> ControlRequest:
    """Decode a command and its body. Raises `broker.wires.mtl.codec.field_table.IllFormed` or `InvalidRequest`."""
    if len(body) > MAX_REQUEST:
        raise InvalidRequest(ReplyStatus.TOO_LARGE, f"the body has more than {MAX_REQUEST} bytes")
    try:
        value = read_json(body)
    except TooDeep:
        raise InvalidRequest(ReplyStatus.TOO_LARGE, f"the body is nested deeper than {MAX_DEPTH}") from None
    if len(command) > MAX_COMMAND:
        raise InvalidRequest(ReplyStatus.TOO_LARGE, f"the command has more than {MAX_COMMAND} bytes")
    known = _COMMANDS.get(command.lower())
    if known is None:
        raise InvalidRequest(ReplyStatus.NOT_IMPLEMENTED, "there is no such command", reason=Reason.UNKNOWN_OP)
    name, read = known
    return read(name, value)


def _open(name: str, value: object) -> OpenRequest:
    members = _members(name, value, _Open)
    if members.protocol.name != PROTOCOL["name"]:
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, "protocol: its name is not MTL", name)
    if members.protocol.version != PROTOCOL["version"]:
        text = f"protocol: its version is not {PROTOCOL['version']}"
        raise InvalidRequest(ReplyStatus.NOT_IMPLEMENTED, text, name, more={"protocol": PROTOCOL})
    return OpenRequest(_in_case(name, members.virtual_host, bytes))


def _authorize(name: str, value: object) -> AuthorizeRequest:
    members = _members(name, value, _Authorize)
    return AuthorizeRequest(_in_case(name, members.mechanism, bytes.upper), members.response)


def _profile(name: str, value: object) -> ProfileRequest:
    members = _members(name, value, _Profile)
    return ProfileRequest(_in_case(name, members.profile, bytes.lower))


def _reader(name: str, value: object) -> ReaderRequest:
    members = _members(name, value, _Reader)
    if members.window is not None and members.window < 1:
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, "window: there must be room for one Content at least", name)
    return ReaderRequest(_resources(name, members), _confirm(name, members), members.window)


def _writer(name: str, value: object) -> WriterRequest:
    members = _members(name, value, _Writer)
    return WriterRequest(_resources(name, members), _confirm(name, members))


_READERS: dict[str, Callable[[str, object], ControlRequest]] = {
    "Connection.Open": _open,
    "Connection.Authorize": _authorize,
    "Connection.Profile": _profile,
    "Connection.Reader": _reader,
    "Connection.Writer": _writer,
}

_COMMANDS = {name.lower().encode(): (name, read) for name, read in _READERS.items()}


def _members(name: str, value: object, kind: type[Members]) -> Members:
    if not isinstance(value, dict):
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, "the body is not an object", name)
    try:
        return msgspec.convert(value, kind)
    except UnicodeEncodeError:
        # msgspec encodes keys and texts, and fails at lone surrogates.
        text = _NOT_ENCODABLE
    except msgspec.ValidationError as invalid:
        wrong, _, place = str(invalid).partition(" - at `$.")
        where = f"{place.rstrip('`')}: " if place else ""
        text = f"{where}{wrong[:1].lower()}{wrong[1:]}"
    raise InvalidRequest(ReplyStatus.BAD_REQUEST, text, name)


_NOT_ENCODABLE = "a key or a text has a surrogate that stands alone"


def _in_case(name: str, text: str, case: Callable[[bytes], bytes]) -> str:
    """Return the text with its ASCII letters in that case. Others stay: case folding depends on the Unicode version."""
    try:
        return case(text.encode()).decode()
    except UnicodeEncodeError:
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, _NOT_ENCODABLE, name) from None


def _resources(name: str, members: _Writer) -> tuple[str, ...]:
    """Return the resources without repetitions."""
    if len(members.resources) > MAX_RESOURCES:
        raise InvalidRequest(ReplyStatus.TOO_LARGE, f"resources: there are more than {MAX_RESOURCES}", name)
    if not all(map(is_name, members.resources)):
        text = f"resources: a name must have 1 to {MAX_STRING} bytes, all of them printable"
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, text, name)
    return tuple(dict.fromkeys(members.resources))


_CONFIRM: dict[str | msgspec.UnsetType, Confirm | None] = {"none": "none", "full": "full", msgspec.UNSET: None}


def _confirm(name: str, members: _Writer) -> Confirm | None:
    try:
        return _CONFIRM[members.confirm]
    except KeyError:
        raise InvalidRequest(ReplyStatus.BAD_REQUEST, "confirm: it is neither none nor full", name) from None
