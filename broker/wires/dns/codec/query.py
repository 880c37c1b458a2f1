"""Queries: bytes to a `Query`.

The reader is strict and cheap, since any program can send any bytes. It keeps the bytes of the question, which a
response repeats exactly (the case of letters is a client's protection against forged responses), follows no compression
pointers, and looks into no record but OPT. `twisted.names` cannot take its place: its names lose the borders of labels
that contain dots, and its messages decode all records and follow pointers.
"""

from __future__ import annotations

import struct

import attrs

from broker.core.errors import Malformed, Reason
from broker.wires.dns.codec.hosts import Labels
from broker.wires.dns.codec.names import read, skip

HEADER = 12
"""Bytes of the header."""

MAX_QUERY = 4_096
"""Bytes of a query: one question takes at most 271, EDNS padding (RFC 8467) makes 128 or 468 of them."""

MAX_RECORDS = 16
"""Records behind the question: a query has an OPT, and may have a signature."""

QUERY, IN, OPT = 0, 1, 41
"""The opcode of queries, the class of the Internet, the type of the EDNS record."""

MIN_PAYLOAD = 512
"""Bytes of a response by UDP that every client takes (RFC 1035); a smaller EDNS payload size means this."""

_RESPONSE, _RECURSE = 0x8000, 0x0100
_DO = 0x8000
_Fixed = struct.Struct("!6H")
_Record = struct.Struct("!HHIH")
_Kind = struct.Struct("!HH")


@attrs.frozen
class Question:
    """The question: ``raw`` are its bytes, which are repeated. ``labels`` have the case that was asked for."""

    raw: bytes
    labels: Labels
    type: int
    cls: int = IN


@attrs.frozen
class Edns:
    """EDNS(0), RFC 6891: the bytes of a response by UDP that the client takes, the version, and the DO bit, which a
    response repeats (RFC 3225)."""

    payload: int
    version: int = 0
    do: bool = False


@attrs.frozen
class Query:
    """A query. It has no question where its opcode is not QUERY: such messages are not read any further."""

    id: int
    opcode: int
    recurse: bool
    question: Question | None
    edns: Edns | None = None


def answerable(data: bytes) -> bool:
    """Return True for a message that may be answered: it has a whole header, and is no response."""
    return len(data) >= HEADER and not data[2] & 0x80


def decode(data: bytes) -> Query:
    """Return the query.

    Raises `Malformed`: UNEXPECTED for a response, which must not be answered, or two servers could answer each other
    without end; SYNTAX for all else. ``near`` is never given: the bytes may come from anywhere.
    """
    if len(data) < HEADER:
        raise Malformed(Reason.SYNTAX, "a message of less than 12 bytes")
    id, flags, questions, answers, authorities, additional = _Fixed.unpack_from(data)
    if flags & _RESPONSE:
        raise Malformed(Reason.UNEXPECTED, "a response, where queries are answered")
    opcode = flags >> 11 & 0xF
    recurse = bool(flags & _RECURSE)
    if opcode != QUERY:
        return Query(id, opcode, recurse, None)
    if len(data) > MAX_QUERY:
        raise Malformed(Reason.SYNTAX, f"a query of more than {MAX_QUERY} bytes")
    if questions != 1:
        raise Malformed(Reason.SYNTAX, f"{questions} questions in a query")
    if answers + authorities + additional > MAX_RECORDS:
        raise Malformed(Reason.SYNTAX, f"more than {MAX_RECORDS} records in a query")
    labels, at = read(data, HEADER)
    try:
        type, cls = _Kind.unpack_from(data, at)
    except struct.error:
        raise Malformed(Reason.SYNTAX, "the message ends within the question") from None
    at += _Kind.size
    question = Question(data[HEADER:at], labels, type, cls)
    edns = None
    for number in range(answers + authorities + additional):
        owner = at
        at = skip(data, at)
        try:
            kind, payload, ttl, length = _Record.unpack_from(data, at)
        except struct.error:
            raise Malformed(Reason.SYNTAX, "the message ends within a record") from None
        if kind == OPT:
            if edns is not None or number < answers + authorities or data[owner]:
                raise Malformed(Reason.SYNTAX, "an OPT record that is a second one, or misplaced")
            edns = Edns(max(payload, MIN_PAYLOAD), ttl >> 16 & 0xFF, bool(ttl & _DO))
        at += _Record.size + length
    if at > len(data):
        raise Malformed(Reason.SYNTAX, "the message ends within a record")
    if at < len(data):
        raise Malformed(Reason.SYNTAX, "bytes behind the last record")
    return Query(id, opcode, recurse, question, edns)
