"""Responses: values to bytes, within a limit of size.

Records are written one by one, whole or not at all. If the next one of the answer or of the authority does not fit,
TC is set and the client asks again by TCP; a client that cannot has the part that fits. Additional records that do not
fit are left out without TC (RFC 2181, section 9).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO

import attrs

from broker.wires.dns.codec.hosts import Labels
from broker.wires.dns.codec.names import dotted, fold
from broker.wires.dns.codec.query import HEADER, OPT, Edns, Query, answerable
from broker.wires.dns.codec.records import Record, write

NOERROR, FORMERR, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 3, 4, 5, 16
"""Response codes."""

MAX_PAYLOAD = 1_232
"""Bytes of a response by UDP, whatever the client takes: what passes every network without fragments (1,280 bytes of
IPv6, less its header and that of UDP). Fragments can be forged, and are lost more often."""

MAX_STREAMED = 65_535
"""Bytes of a response by TCP: the length has two bytes."""

_QR, _AA, _TC = 0x8000, 0x0400, 0x0200
_Fixed = struct.Struct("!6H")
_Opt = struct.Struct("!BHHIH")


@attrs.frozen
class Response:
    """The response to a query, without what it repeats of the query."""

    code: int = NOERROR
    authoritative: bool = False
    answers: Sequence[Record] = ()
    authority: Sequence[Record] = ()
    additional: Sequence[Record] = ()


@attrs.frozen
class Encoded:
    """The bytes of a response. ``truncated``: records are missing, and TC is set."""

    data: bytes
    truncated: bool


def encode(query: Query, response: Response, limit: int) -> Encoded:
    """Return a response to ``query`` of at most ``limit`` bytes, which is at least 512."""
    body = BytesIO()
    offsets: dict[bytes, int] = {}
    question = query.question
    if question is not None:
        body.write(question.raw)
        offsets = _offsets(question.labels)
    room = limit - HEADER - (0 if query.edns is None else _Opt.size)
    counts = [0, 0, 0]
    truncated = full = False
    for section, records in enumerate((response.answers, response.authority, response.additional)):
        for record in records:
            if full:
                break
            before = body.tell()
            write(record, body, offsets)
            if body.tell() > room:
                body.seek(before)
                body.truncate()
                full = True
                truncated = section < 2
                break
            counts[section] += 1
    if query.edns is not None:
        body.write(_opt(query.edns, response.code))
        counts[2] += 1
    flags = _flags(query.opcode, query.recurse, response.code)
    flags |= (_AA if response.authoritative else 0) | (_TC if truncated else 0)
    data = _Fixed.pack(query.id, flags, int(question is not None), *counts) + body.getvalue()
    return Encoded(data, truncated)


def truncated(query: Query) -> bytes:
    """Return a response without records that has the client ask again by TCP. It is not longer than a query."""
    raw = b"" if query.question is None else query.question.raw
    extra = b"" if query.edns is None else _opt(query.edns, NOERROR)
    flags = _flags(query.opcode, query.recurse, NOERROR) | _TC
    return _Fixed.pack(query.id, flags, int(bool(raw)), 0, 0, int(bool(extra))) + raw + extra


def failed(data: bytes, code: int = FORMERR) -> bytes | None:
    """Return a response that has nothing but a code, to a message that could not be read. None where the message must
    not be answered: it is a response, or has no whole header."""
    if not answerable(data):
        return None
    id, flags, *_ = _Fixed.unpack_from(data)
    return _Fixed.pack(id, _flags(flags >> 11 & 0xF, bool(flags & 0x0100), code), 0, 0, 0, 0)


def limit_of(edns: Edns | None) -> int:
    """Return the bytes that a response by UDP may have."""
    return 512 if edns is None else min(edns.payload, MAX_PAYLOAD)


def _flags(opcode: int, recurse: bool, code: int) -> int:
    return _QR | opcode << 11 | (0x0100 if recurse else 0) | code & 0xF


def _opt(edns: Edns, code: int) -> bytes:
    """The OPT record: our own payload size, the upper bits of the code, version 0, and the DO bit as it came."""
    return _Opt.pack(0, OPT, MAX_PAYLOAD, (code >> 4) << 24 | (0x8000 if edns.do else 0), 0)


def _offsets(labels: Labels) -> dict[bytes, int]:
    """The names that a compression pointer may name: those in the question, by their folded text, at the offsets that
    they have behind the header. A record of the asked name so repeats the case that it was asked in."""
    folded = fold(labels)
    offsets: dict[bytes, int] = {}
    at = HEADER
    for number, label in enumerate(folded):
        offsets.setdefault(dotted(folded[number:]), at)
        at += len(label) + 1
    return offsets
