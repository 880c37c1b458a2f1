"""Field tables: the properties of a Content. RFC 11 leaves them open; this is AMQP 0-9-1's, as RabbitMQ reads it.

    table = length of the entries (32 bits), entries         entry = length of the key (8 bits), key, tag, value

Rules:
- All 18 types are read. Each Python type is written as one of them: see `Value`.
- `check` validates without decoding, so tables are forwarded unchanged. `decode` accepts exactly the same tables.
- A table fills its bytes. Keys are UTF-8, not empty, and unique within a table.
- Each part ends within its container. A Boolean is 0 or 1. Text (``S``) is UTF-8.
- Nesting is limited. So no input exhausts the stack, and each byte is read a fixed number of times.

An ill-formed table, as any other ill-formed message of RFC 11, is dropped without an answer (`IllFormed`). So the fault
is for counters and the log only. Its text never has input of the peer.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

import attrs

from broker.core.errors import Malformed, Reason


class Fault(enum.Enum):
    """Reason for dropping a message. The value names the counter; it is stable."""

    FRAMES = "frames"
    """Wrong number of frames."""
    DELIMITER = "delimiter"
    """A request without the empty frame before it."""
    ENVELOPE = "envelope"
    """Too many routing frames, or too long ones."""
    ENCODING = "encoding"
    """A request's body that is not UTF-8."""
    JSON = "json"
    """A request's body that is not JSON."""
    EMPTY = "empty-header"
    """A data command without a type."""
    TYPE = "type"
    """An unknown type of data command."""
    TOO_LARGE = "too-large"
    """A header, or the table in it, over its limit."""
    CUT = "cut"
    """A header that ends before its last field does."""
    LEFT_OVER = "left-over"
    """Bytes after the last field of a header."""
    STRING = "string"
    """A short string that is not printable, or not UTF-8."""
    BOOLEAN = "boolean"
    """A Boolean that is neither 0 nor 1."""
    CODE = "code"
    """A Response whose body is not three digits."""
    TABLE_LENGTH = "table-length"
    """A table whose length field is wrong."""
    TABLE_CUT = "table-cut"
    """A part of a table that exceeds its container."""
    TABLE_TAG = "table-tag"
    """A value of an unknown type in a table."""
    TABLE_BOOLEAN = "table-boolean"
    """A Boolean in a table that is neither 0 nor 1."""
    TABLE_KEY = "table-key"
    """An empty or repeated key."""
    TABLE_TEXT = "table-text"
    """A key or a text in a table that is not UTF-8."""
    TABLE_DEPTH = "table-depth"
    """Tables and lists nested beyond the limit."""


class IllFormed(Malformed):
    """A message to be dropped without an answer."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(Reason.SYNTAX, text)
        self.fault = fault


MAX_TABLE = 65_536
"""Bytes of the entries of a table that a peer sends. Properties describe a body; real ones have some hundred bytes."""

MAX_EXTENDED = MAX_TABLE + 4_096
"""Bytes of the entries of a table that a peer is sent: the broker adds properties to those of the writer."""

MAX_DEPTH = 8
"""Nesting of tables and lists within a table: each level is a recursive call, here and in clients."""

MAX_KEY = 128
"""Bytes of a key that is written, as in AMQP. Keys of up to 255 bytes are read, the maximum of a length byte."""

EMPTY = bytes(4)
"""The table without entries."""


@attrs.frozen
class Timestamp:
    """A time, as the number in the table. Properties of the broker have milliseconds since 1970."""

    milliseconds: int


Value: TypeAlias = "bool | int | float | str | bytes | Timestamp | Decimal | list[Value] | dict[str, Value] | None"
"""Value of a property: written as t, l, d, S, x, T, D, A, F and V. All other types that are read are numbers."""

_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from

_FIXED: dict[int, tuple[int, Callable[[bytes, int], tuple[int | float]]]] = {
    ord(tag): (struct.calcsize(form), struct.Struct(form).unpack_from)
    for tag, form in {
        "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
"""Numbers: their size in bytes, and the function that reads them."""

_BOOLEAN, _DECIMAL, _TIME, _TEXT, _BYTES, _VOID, _TABLE, _LIST = b"tDTSxVFA"

_KNOWN = {_DECIMAL: 6, _TIME: 9, _VOID: 1} | {tag: 1 + size for tag, (size, _) in _FIXED.items()}

_SIZES = [_KNOWN.get(tag, 0) for tag in range(256)]
"""Bytes of tag and value, by tag, for values of fixed size that are always valid; else 0."""


def check(data: bytes, most: int = MAX_TABLE) -> None:
    """Raise `IllFormed` if this is not exactly one table, or its entries have more than ``most`` bytes."""
    if data == EMPTY:
        return
    end = _end(data, most)
    try:
        _check_entries(data, 4, end, 0, data.isascii())
    except (IndexError, struct.error):
        raise _cut() from None
    except UnicodeDecodeError:
        raise _no_text() from None


def decode(data: bytes, most: int = MAX_TABLE) -> dict[str, Value]:
    """Decode a table. Raises `IllFormed` like `check`."""
    end = _end(data, most)
    try:
        return _entries(data, 4, end, 0)
    except (IndexError, struct.error):
        raise _cut() from None
    except UnicodeDecodeError:
        raise _no_text() from None


def _end(data: bytes, most: int) -> int:
    """Return the end of the entries, which is that of the bytes."""
    end = len(data)
    if end < 4 or _U32(data)[0] != end - 4:
        raise IllFormed(Fault.TABLE_LENGTH, "the table does not have the length that it begins with")
    if end - 4 > most:
        raise IllFormed(Fault.TOO_LARGE, f"the table has more than {most} bytes")
    return end


def _cut() -> IllFormed:
    return IllFormed(Fault.TABLE_CUT, "a part of the table ends behind what it is in")


def _no_text() -> IllFormed:
    return IllFormed(Fault.TABLE_TEXT, "a key or a text in the table is not UTF-8")


def _twice() -> IllFormed:
    return IllFormed(Fault.TABLE_KEY, "a key in the table comes twice")


def _no_key() -> IllFormed:
    return IllFormed(Fault.TABLE_KEY, "a key in the table is empty")


def _no_type() -> IllFormed:
    return IllFormed(Fault.TABLE_TAG, "a value in the table is of no known type")


def _no_boolean() -> IllFormed:
    return IllFormed(Fault.TABLE_BOOLEAN, "a Boolean in the table is neither 0 nor 1")


def _deeper(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise IllFormed(Fault.TABLE_DEPTH, f"the table is nested deeper than {MAX_DEPTH}")
    return depth + 1


# Checking. ``plain``: all bytes of the table are ASCII, so that no part needs a check for UTF-8.


def _check_entries(data: bytes, at: int, end: int, depth: int, plain: bool) -> None:
    keys: list[bytes] = []
    while at < end:
        start = at + 1
        at = start + data[at]
        if not start < at < end:
            raise _no_key() if at == start else _cut()
        key = data[start:at]
        if not plain:
            key.decode()
        keys.append(key)
        tag = data[at]
        if tag == _TEXT:
            start = at + 5
            at = start + _U32(data, at + 1)[0]
            if at > end:
                raise _cut()
            if not plain:
                data[start:at].decode()
        elif size := _SIZES[tag]:
            at += size
        else:
            at = _after(data, at, end, depth, plain)
    if at != end:
        raise _cut()
    if len(keys) > 1 and len(set(keys)) != len(keys):
        raise _twice()


def _check_items(data: bytes, at: int, end: int, depth: int, plain: bool) -> None:
    while at < end:
        at += _SIZES[data[at]] or _after(data, at, end, depth, plain) - at
    if at != end:
        raise _cut()


def _after(data: bytes, at: int, end: int, depth: int, plain: bool) -> int:
    """Return the end of the value whose tag is at ``at``, for tags that are 0 in `_SIZES`."""
    tag = data[at]
    if tag == _BOOLEAN:
        if data[at + 1] > 1:
            raise _no_boolean()
        return at + 2
    if tag not in (_TEXT, _BYTES, _TABLE, _LIST):
        raise _no_type()
    start = at + 5
    stop: int = start + _U32(data, at + 1)[0]
    if stop > end:
        raise _cut()
    if tag == _TABLE:
        _check_entries(data, start, stop, _deeper(depth), plain)
    elif tag == _LIST:
        _check_items(data, start, stop, _deeper(depth), plain)
    elif tag == _TEXT and not plain:
        data[start:stop].decode()
    return stop


# Decoding


def _entries(data: bytes, at: int, end: int, depth: int) -> dict[str, Value]:
    members: dict[str, Value] = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        if not start < at < end:
            raise _no_key() if at == start else _cut()
        key = data[start:at].decode()
        if key in members:
            raise _twice()
        if data[at] == _TEXT:
            start = at + 5
            at = start + _U32(data, at + 1)[0]
            if at > end:
                raise _cut()
            members[key] = data[start:at].decode()
        else:
            members[key], at = _value(data, at, end, depth)
    if at != end:
        raise _cut()
    return members


def _items(data: bytes, at: int, end: int, depth: int) -> list[Value]:
    items: list[Value] = []
    while at < end:
        value, at = _value(data, at, end, depth)
        items.append(value)
    if at != end:
        raise _cut()
    return items


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    """Return the value whose tag is at ``at``, and its end."""
    tag = data[at]
    fixed = _FIXED.get(tag)
    if fixed is not None:
        size, read = fixed
        return read(data, at + 1)[0], at + 1 + size
    if tag == _BOOLEAN:
        if data[at + 1] > 1:
            raise _no_boolean()
        return data[at + 1] == 1, at + 2
    if tag == _VOID:
        return None, at + 1
    if tag == _TIME:
        return Timestamp(_U64(data, at + 1)[0]), at + 9
    if tag == _DECIMAL:
        return Decimal(f"{_U32(data, at + 2)[0]}E-{data[at + 1]}"), at + 6
    if tag not in (_TEXT, _BYTES, _TABLE, _LIST):
        raise _no_type()
    start = at + 5
    stop = start + _U32(data, at + 1)[0]
    if stop > end:
        raise _cut()
    if tag == _TABLE:
        return _entries(data, start, stop, _deeper(depth)), stop
    if tag == _LIST:
        return _items(data, start, stop, _deeper(depth)), stop
    return data[start:stop].decode() if tag == _TEXT else data[start:stop], stop


# Writing


def encode(members: Mapping[str, Value], most: int = MAX_TABLE) -> bytes:
    """Encode properties, in this order. Raises ValueError for values that a table cannot hold."""
    return _sized(_written(members, 0), most)


def _sized(entries: bytes, most: int) -> bytes:
    if len(entries) > most:
        raise ValueError(f"the properties have more than {most} bytes")
    return len(entries).to_bytes(4) + entries


def _written(members: Mapping[str, Value], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise ValueError(f"the properties are nested deeper than {MAX_DEPTH}")
    return b"".join([_key(key) + _tagged(value, depth) for key, value in members.items()])


@lru_cache(256)
def _key(key: str) -> bytes:
    """Encode a key. Cached: few keys are in use."""
    data = key.encode()
    if not 0 < len(data) <= MAX_KEY:
        raise ValueError(f"the key of a property must have 1 to {MAX_KEY} bytes")
    return len(data).to_bytes(1) + data


def _tagged(value: Value, depth: int) -> bytes:
    if isinstance(value, str):
        text = value.encode()
        return b"S" + len(text).to_bytes(4) + text
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if value is None:
        return b"V"
    try:
        if isinstance(value, int):
            return b"l" + _I64(value)
        if isinstance(value, float):
            return b"d" + _F64(value)
        if isinstance(value, Timestamp):
            return b"T" + _PACK_U64(value.milliseconds)
        if isinstance(value, Decimal):
            return b"D" + _decimal(value)
    except struct.error:
        raise ValueError("a number of the properties is out of the range of its type") from None
    if isinstance(value, bytes):
        return b"x" + len(value).to_bytes(4) + value
    if isinstance(value, dict):
        entries = _written(value, depth + 1)
        return b"F" + len(entries).to_bytes(4) + entries
    if isinstance(value, list):
        if depth == MAX_DEPTH:
            raise ValueError(f"the properties are nested deeper than {MAX_DEPTH}")
        items = b"".join([_tagged(item, depth + 1) for item in value])
        return b"A" + len(items).to_bytes(4) + items
    raise ValueError(f"a property cannot be of the type {type(value).__name__}")


_I64 = struct.Struct(">q").pack
_F64 = struct.Struct(">d").pack
_PACK_U64 = struct.Struct(">Q").pack
_SCALED = struct.Struct(">BI").pack


def _decimal(value: Decimal) -> bytes:
    """Encode as an unsigned number below 2^32 with the number of its decimal places."""
    sign, digits, exponent = value.as_tuple()
    if sign or not isinstance(exponent, int) or len(digits) + max(exponent, 0) > 10:
        raise ValueError("a decimal number of the properties cannot be written as scale and unsigned number")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return _SCALED(max(-exponent, 0), number)


# Single properties of a table that passed `check`. Others are skipped without decoding.


def members(table: bytes, *names: str) -> dict[str, Value]:
    """Return those of the named properties that the table has."""
    wanted = [key for key in map(_key, names) if key in table]
    found: dict[str, Value] = {}
    if wanted:
        for start, tag, end in _places(table):
            if table[start:tag] in wanted:
                found[table[start + 1 : tag].decode()] = _value(table, tag, end, 0)[0]
    return found


def with_members(table: bytes, more: Mapping[str, Value] | None = None, /, **others: Value) -> bytes:
    """Return the table with these properties at its end. They replace those with the same key.

    They are given in a mapping, or by keyword. Raises ValueError for values that a table cannot hold, and if the table
    would be longer than `MAX_EXTENDED`.
    """
    added = {**more, **others} if more else others
    return _sized(_without(table, map(_key, added)) + _written(added, 0), MAX_EXTENDED)


def without_members(table: bytes, *names: str) -> bytes:
    """Return the table without these properties."""
    entries = _without(table, map(_key, names))
    return table if len(entries) == len(table) - 4 else len(entries).to_bytes(4) + entries


def _without(table: bytes, keys: Iterator[bytes]) -> bytes:
    """Return the entries of the table except those with one of the keys."""
    # A substring search in C first: most tables have none of the keys, and need no walk through their entries.
    unwanted = [key for key in keys if key in table]
    if not unwanted:
        return table[4:]
    return b"".join([table[start:end] for start, tag, end in _places(table) if table[start:tag] not in unwanted])


def _places(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield begin, place of the tag, and end of each entry."""
    at, end = 4, len(table)
    while at < end:
        start = at
        tag = at + 1 + table[at]
        kind = table[tag]
        size = _SIZES[kind]
        if size:
            at = tag + size
        elif kind == _BOOLEAN:
            at = tag + 2
        else:
            at = tag + 5 + _U32(table, tag + 1)[0]
        yield start, tag, at
