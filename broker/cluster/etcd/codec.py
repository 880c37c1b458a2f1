"""Codec of etcd's HTTP/JSON gateway: requests to bytes, answers to values. Pure: it opens nothing.

- Keys and values are base64 in JSON: fields of type bytes, for msgspec.
- int64 are texts in answers and may be numbers in requests; the decoders convert. Zero, false and empty fields are left
  out by etcd, so each field has that default.
- etcd ignores unknown fields, as these decoders do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import msgspec

from broker.cluster.etcd.etcd_interface import (
    Compare,
    Delete,
    Event,
    Get,
    Granted,
    KeyValue,
    Nested,
    Operation,
    Put,
    RangeResult,
    Status,
    TxnResult,
)


class Unintelligible(Exception):
    """An answer that is not one of etcd's gateway."""


@attrs.frozen
class Request:
    """A request: the path below ``/v3/``, the JSON body, and True if it may change etcd's data or leases.

    ``repeatable`` is True if a second execution does no harm: such a request is repeated at another endpoint although
    its result is unknown. ``quorum`` is True if a member without a quorum refuses it at once.
    """

    path: str
    body: bytes
    writes: bool = False
    repeatable: bool = True
    quorum: bool = True


class _KeyRange(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0


class _PutRequest(msgspec.Struct, omit_defaults=True):
    key: bytes
    value: bytes = b""
    lease: int = 0


class _CreateWatch(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes = b""
    start_revision: int = 0


_encode = msgspec.json.Encoder().encode

_TARGETS = {"CREATE": "create_revision", "MOD": "mod_revision", "LEASE": "lease"}


def range_request(key: bytes, end: bytes | None, limit: int, revision: int) -> Request:
    """Return the request for a linearizable read."""
    return Request("kv/range", _encode(_KeyRange(key, end or b"", limit, revision)))


def txn_request(compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> Request:
    """Return the request for a transaction."""
    body = {
        "compare": [_comparison(each) for each in compare],
        "success": [_operation(each) for each in success],
        "failure": [_operation(each) for each in failure],
    }
    writes = any(not isinstance(each, Get) for each in (*success, *failure))
    return Request("kv/txn", _encode(body), writes=writes, repeatable=not writes)


def grant_request(ttl: int) -> Request:
    """Return the request for a lease. Its repetition would leave a second lease behind, until that one's TTL."""
    return Request("lease/grant", _encode({"TTL": ttl}), writes=True, repeatable=False)


def keep_alive_request(lease: int) -> Request:
    """Return the request for one renewal of a lease."""
    return Request("lease/keepalive", _encode({"ID": lease}), writes=True)


def revoke_request(lease: int) -> Request:
    """Return the request that ends a lease."""
    return Request("lease/revoke", _encode({"ID": lease}), writes=True)


def time_to_live_request(lease: int) -> Request:
    """Return the request for the remaining time of a lease."""
    return Request("lease/timetolive", _encode({"ID": lease}))


def status_request() -> Request:
    """Return the request for the state of a member."""
    return Request("maintenance/status", b"{}", quorum=False)


def leases_request() -> Request:
    """Return the request for all leases."""
    return Request("lease/leases", b"{}", quorum=False)


def compact_request(revision: int) -> Request:
    """Return the request that discards history."""
    return Request("kv/compaction", _encode({"revision": revision}), writes=True)


def authenticate_request(user: str, password: str) -> Request:
    """Return the request for a token."""
    return Request("auth/authenticate", _encode({"name": user, "password": password}))


def watch_request(key: bytes, end: bytes, revision: int) -> Request:
    """Return the request for a watch.

    Etcd would divide long messages into fragments of 2 MiB, in a time that grows with the square of their events: 15 s
    for the end of a lease of 50,000 keys, in which the watch is silent, and 1 s without them.
    """
    return Request("watch", _encode({"create_request": _CreateWatch(key, end, revision)}))


def _operation(operation: Operation) -> dict[str, Any]:
    match operation:
        case Put(key, value, lease):
            return {"request_put": _PutRequest(key, value, lease)}
        case Delete(key, end):
            return {"request_delete_range": _KeyRange(key, end or b"")}
        case Get(key, end):
            return {"request_range": _KeyRange(key, end or b"")}
        case Nested(compare, nested):
            return {"request_txn": {"compare": [_comparison(compare)], "success": [_operation(nested)]}}


def _comparison(compare: Compare) -> dict[str, Any]:
    return {
        "target": compare.target,
        "result": "EQUAL",
        "key": compare.key,
        _TARGETS[compare.target]: compare.value,
    }


class _Header(msgspec.Struct, frozen=True):
    revision: int = 0


class _KeyValue(msgspec.Struct):
    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class _Range(msgspec.Struct):
    header: _Header = _Header()
    kvs: list[_KeyValue] = []
    more: bool = False
    count: int = 0


class _Inner(msgspec.Struct):
    succeeded: bool = False


class _Response(msgspec.Struct):
    response_range: _Range | None = None
    response_txn: _Inner | None = None


class _Txn(msgspec.Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Grant(msgspec.Struct):
    header: _Header
    ID: int = 0
    TTL: int = 0


class _Renewal(msgspec.Struct):
    header: _Header
    ID: int = 0
    TTL: int = 0


class _KeepAlive(msgspec.Struct):
    result: _Renewal


class _TimeToLive(msgspec.Struct):
    header: _Header
    TTL: int = 0


class _Plain(msgspec.Struct):
    header: _Header


class _Status(msgspec.Struct):
    header: _Header
    version: str = ""
    dbSize: int = 0
    dbSizeInUse: int = 0
    errors: list[str] = []


class _Leases(msgspec.Struct):
    leases: list[msgspec.Raw] = []


class _Token(msgspec.Struct):
    token: str


class _Event(msgspec.Struct):
    kv: _KeyValue
    type: str = "PUT"


class _WatchResult(msgspec.Struct):
    header: _Header = _Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False
    events: list[msgspec.Raw] = []


class _StreamError(msgspec.Struct):
    grpc_code: int = 0
    http_code: int = 0
    message: str = ""


class _WatchLine(msgspec.Struct):
    result: _WatchResult | None = None
    error: _StreamError | None = None


class _Problem(msgspec.Struct):
    error: str | _StreamError = ""
    message: str = ""
    code: int = 0


T = TypeVar("T")


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, strict=False)


_range = _decoder(_Range)
_txn = _decoder(_Txn)
_grant = _decoder(_Grant)
_keep_alive = _decoder(_KeepAlive)
_time_to_live = _decoder(_TimeToLive)
_plain = _decoder(_Plain)
_status = _decoder(_Status)
_leases = _decoder(_Leases)
_token = _decoder(_Token)
_line = _decoder(_WatchLine)
_one_event = _decoder(_Event)
_problem = _decoder(_Problem)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unintelligible(str(error)) from None


def _key_value(kv: _KeyValue) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def range_result(body: bytes) -> RangeResult:
    """Decode the answer to a read. Raises `Unintelligible`, as all decoders here."""
    found = _decoded(_range, body)
    if found.header.revision <= 0:
        raise Unintelligible("a read without a revision")
    return RangeResult(tuple(map(_key_value, found.kvs)), found.header.revision, found.more, found.count)


def txn_result(body: bytes) -> TxnResult:
    """Decode the answer to a transaction."""
    found = _decoded(_txn, body)
    ranges = [each.response_range for each in found.responses if each.response_range is not None]
    return TxnResult(
        found.succeeded,
        found.header.revision,
        tuple(tuple(map(_key_value, each.kvs)) for each in ranges),
        tuple(each.response_txn.succeeded for each in found.responses if each.response_txn is not None),
    )


def granted(body: bytes) -> Granted:
    """Decode the answer to a grant. A lease without an id is unintelligible."""
    found = _decoded(_grant, body)
    if found.ID <= 0 or found.TTL <= 0:
        raise Unintelligible("a lease without an id or a TTL")
    return Granted(found.ID, found.TTL)


def renewed(body: bytes) -> int:
    """Decode the answer to a renewal: the TTL in seconds; 0 for a lease that is gone."""
    return max(0, _decoded(_keep_alive, body).result.TTL)


def time_to_live(body: bytes) -> int:
    """Decode the remaining seconds of a lease; -1 for a lease that is gone."""
    return _decoded(_time_to_live, body).TTL


def nothing(body: bytes) -> None:
    """Check an answer that has a header only."""
    _decoded(_plain, body)


def status(body: bytes) -> Status:
    """Decode the state of a member."""
    found = _decoded(_status, body)
    return Status(found.version, found.dbSize, found.dbSizeInUse, tuple(found.errors))


def lease_count(body: bytes) -> int:
    """Decode the number of leases."""
    return len(_decoded(_leases, body).leases)


def token(body: bytes) -> str:
    """Decode the token of a user. One that would not fit into a header is unintelligible."""
    found = _decoded(_token, body).token
    if not found or not found.isascii() or not found.isprintable():
        raise Unintelligible("a token that is no text for a header")
    return found


@attrs.frozen
class Message:
    """Message of a watch. ``revision`` is that of its header, 0 if it has none.

    ``fragment`` is True if the next message continues this one. ``canceled`` is True at the end of the watch, with
    ``compacted``, the first revision that is still there, or else a ``reason``. ``events`` are for `event`: there may
    be tens of thousands.
    """

    revision: int
    created: bool = False
    canceled: bool = False
    compacted: int = 0
    reason: str = ""
    fragment: bool = False
    events: Sequence[msgspec.Raw] = ()


def message(line: bytes) -> Message:
    """Decode one line of a watch."""
    found = _decoded(_line, line)
    result = found.result
    if found.error is not None:
        return Message(0, canceled=True, reason=found.error.message or "without a reason")
    if result is None:
        raise Unintelligible("a line with neither a result nor an error")
    return Message(
        result.header.revision,
        result.created,
        result.canceled,
        result.compact_revision,
        result.cancel_reason,
        result.fragment,
        result.events,
    )


def event(raw: msgspec.Raw) -> Event:
    """Decode an event of a message."""
    event = _decoded(_one_event, raw)
    if event.type == "PUT":
        return Event(event.kv.key, _key_value(event.kv), event.kv.mod_revision)
    if event.type == "DELETE":
        return Event(event.kv.key, None, event.kv.mod_revision)
    raise Unintelligible("an event of an unknown type")


@attrs.frozen
class Problem:
    """Error of the gateway: ``code`` of gRPC, 0 if the answer has none, and the text."""

    code: int
    text: str


TEXT = 300
"""Longest text of an error that is shown, in characters: etcd's are shorter than half of that."""


def problem(body: bytes) -> Problem:
    """Decode the body of an error: JSON, or plain text in some cases. Never fails."""
    try:
        found = _problem.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Problem(0, _printable(body[: 4 * TEXT].decode("utf-8", "replace")))
    if isinstance(found.error, _StreamError):
        return Problem(found.error.grpc_code, _printable(found.error.message))
    return Problem(found.code, _printable(found.message or found.error))


def _printable(text: str) -> str:
    """Return a text as one line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in text[:TEXT]).strip()
