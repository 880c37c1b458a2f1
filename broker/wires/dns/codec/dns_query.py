"""Queries: bytes to a `Query`, and domain names.

The reader is strict and cheap, since any program can send any bytes. It keeps the bytes of the question, which a
response repeats exactly (the case of letters is a client's protection against forged responses), follows no compression
pointers, and looks into no record but OPT. `twisted.names` cannot take its place: its names lose the borders of labels
that contain dots, and its messages decode all records and follow pointers.

A domain name is a tuple of labels without the empty one of the root. Labels are bytes and may contain dots. DNS
compares names without the case of ASCII letters (RFC 4343); `fold` returns the form that is compared.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import attrs

from broker.core.errors import Malformed, Reason

# Host names: text to labels. The configuration is checked by it, too.

Labels = tuple[bytes, ...]
"""The labels of a name, without the empty one of the root."""

MAX_LABEL = 63
"""Bytes of a label (RFC 1035)."""

MAX_NAME = 255
"""Bytes of a name in wire format, the lengths of its labels and the root included (RFC 1035)."""

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
"""A label of a host name. By RFC 952 it has no underscore, but names of containers do."""


def host_labels(text: str) -> Labels | None:
    """Return the labels of a host name in lower case, or None if the text is none. A dot at its end is ignored."""
    parts = text.removesuffix(".").split(".")
    if not all(_HOST.fullmatch(part) for part in parts):
        return None
    labels = tuple(part.lower().encode("ascii") for part in parts)
    return labels if wire_length(labels) <= MAX_NAME else None


def wire_length(labels: Labels) -> int:
    """Return the bytes of a name in wire format, without compression."""
    return sum(len(label) + 1 for label in labels) + 1


_POINTER = 0xC0
"""The bits that mark a compression pointer; a label has none of them."""


def read_name(data: bytes, at: int) -> tuple[Labels, int]:
    """Return the name at an offset, and the offset behind it. Raises `Malformed`.

    A compression pointer is refused: in a question there is no name that it could point to.
    """
    labels: list[bytes] = []
    start = at
    while True:
        length = _byte(data, at)
        at += 1
        if not length:
            return tuple(labels), at
        if length > MAX_LABEL:
            raise Malformed(Reason.SYNTAX, "the name in the question has a compressed or unknown label")
        if at + length - start >= MAX_NAME:
            raise Malformed(Reason.SYNTAX, f"the name in the question has more than {MAX_NAME} bytes")
        label = data[at : at + length]
        if len(label) < length:
            raise Malformed(Reason.SYNTAX, "the message ends within a name")
        labels.append(label)
        at += length


def skip_name(data: bytes, at: int) -> int:
    """Return the offset behind the name at an offset. Raises `Malformed`. Pointers are not followed: that costs time,
    and nothing is done with the name."""
    while True:
        length = _byte(data, at)
        at += 1
        if not length:
            return at
        if length & _POINTER == _POINTER:
            _byte(data, at)
            return at + 1
        if length > MAX_LABEL:
            raise Malformed(Reason.SYNTAX, "a name has an unknown kind of label")
        at += length


def fold(labels: Labels) -> Labels:
    """Return the labels in lower case, of ASCII letters only."""
    return tuple(label.lower() for label in labels)


def dotted(labels: Labels) -> bytes:
    """Return the labels with dots between them."""
    return b".".join(labels)


def _byte(data: bytes, at: int) -> int:
    try:
        return data[at]
    except IndexError:
        raise Malformed(Reason.SYNTAX, "the message ends within a name") from None


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
    labels, at = read_name(data, HEADER)
    try:
        type, cls = _Kind.unpack_from(data, at)
    except struct.error:
        raise Malformed(Reason.SYNTAX, "the message ends within the question") from None
    at += _Kind.size
    question = Question(data[HEADER:at], labels, type, cls)
    edns = None
    for number in range(answers + authorities + additional):
        owner = at
        at = skip_name(data, at)
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


def is_plain(data: bytes, query: Query) -> bool:
    """Return True for a query of a question and an OPT record without options at most. Others hardly ever come twice:
    an option may be a cookie."""
    question = b"" if query.question is None else query.question.raw
    return len(data) == HEADER + len(question) + (0 if query.edns is None else 1 + _Record.size)


# Messages on a byte stream: each with its length before it, in two bytes (RFC 1035, section 4.2.2).

_LENGTH = 2


class Frames:
    """The reader of one connection. It holds at most one unfinished message, of `MAX_QUERY` bytes."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def pending(self) -> int:
        """The bytes of the message that is not complete."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes | Malformed]:
        """Yield the messages that ``data`` completes.

        A length that no query has ends the stream by one fatal `Malformed`: nothing behind it is read.
        """
        data = self._held + data
        self._held = b""
        at = 0
        while at + _LENGTH <= len(data):
            length = int.from_bytes(data[at : at + _LENGTH], "big")
            if not HEADER <= length <= MAX_QUERY:
                few = length < HEADER
                text = f"a query has fewer than {HEADER} bytes" if few else f"a query has more than {MAX_QUERY} bytes"
                yield Malformed(Reason.TOO_LARGE, text)
                return
            end = at + _LENGTH + length
            if end > len(data):
                break
            yield data[at + _LENGTH : end]
            at = end
        self._held = data[at:]


def framed(message: bytes) -> bytes:
    """Return the message with its length before it."""
    return len(message).to_bytes(_LENGTH, "big") + message
