"""Responses and their resource records: values to bytes, within a limit of size.

Records are written one by one, whole or not at all. If the next one of the answer or of the authority does not fit,
TC is set and the client asks again by TCP; a client that cannot has the part that fits. Additional records that do not
fit are left out without TC (RFC 2181, section 9).

A name in a record is text with dots, in lower case, without the dot at its end. `twisted.names.dns` encodes the
records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address

import attrs
from twisted.names import dns

from broker.wires.dns.codec.dns_query import HEADER, IN, OPT, Edns, Labels, Query, answerable, dotted, fold

A, NS, SOA, HINFO, TXT, AAAA, SRV = dns.A, dns.NS, dns.SOA, dns.HINFO, dns.TXT, dns.AAAA, dns.SRV
IXFR, AXFR, ANY = 251, 252, 255
"""Types of records, and of questions."""

KEPT = 8_192
"""Data of records that are kept encoded, some 300 bytes each: those of a large farm. Encoding takes some 20 µs."""

MAX_STRING = 255
"""Bytes of one string of a TXT record."""


@attrs.frozen
class Address:
    """A or AAAA."""

    ip: IPv4Address | IPv6Address

    @property
    def type(self) -> int:
        """A, or AAAA for IPv6."""
        return A if self.ip.version == 4 else AAAA


@attrs.frozen
class Srv:
    """A place of a service (RFC 2782). Clients choose by the weight, among those of the least priority."""

    weight: int
    port: int
    target: bytes
    priority: int = 0
    type = SRV


@attrs.frozen
class Txt:
    """Strings of at most 255 bytes each."""

    strings: tuple[bytes, ...]
    type = TXT


@attrs.frozen
class Ns:
    """The name server of the zone."""

    target: bytes
    type = NS


@attrs.frozen
class HInfo:
    """The answer to a question for all types (RFC 8482)."""

    cpu: bytes = b"RFC8482"
    type = HINFO


@attrs.frozen
class Soa:
    """The start of the zone. Times in seconds; ``minimum`` is how long a negative answer may be kept (RFC 2308)."""

    server: bytes
    mailbox: bytes
    serial: int
    refresh: int
    retry: int
    expire: int
    minimum: int
    type = SOA


_FixedPart = struct.Struct("!HHIH")

Data = Address | Srv | Txt | Ns | HInfo | Soa


@attrs.frozen
class Record:
    """A record: its owner, the seconds for which it may be kept, and its data."""

    owner: bytes
    ttl: int
    data: Data


def write_record(record: Record, body: BytesIO, offsets: dict[bytes, int]) -> None:
    """Append a record to a message. ``body`` is the message without its header, ``offsets`` has the places of names
    that are in the message already, to which names of owners are compressed."""
    data = _last_soa(record.data) if record.data.type == SOA else rdata(record.data)
    at = offsets.get(record.owner)
    if at is None:
        dns.Name(record.owner).encode(body, offsets)
    else:
        body.write((0xC000 | at).to_bytes(2, "big"))  # a compression pointer
    body.write(_FixedPart.pack(record.data.type, IN, record.ttl, len(data)) + data)


@lru_cache(maxsize=KEPT)
def rdata(data: Data) -> bytes:
    """Return the bytes of a record's data. Names in it are not compressed."""
    body = BytesIO()
    _payload(data).encode(body)
    return body.getvalue()


_last_soa = lru_cache(maxsize=1)(rdata.__wrapped__)
"""The same for a SOA: its serial changes with the registry, so that older ones are not asked for again."""


def _payload(data: Data) -> dns.IEncodableRecord:
    match data:
        case Address(ip):
            return dns.Record_A(str(ip)) if ip.version == 4 else dns.Record_AAAA(str(ip))
        case Srv(weight, port, target, priority):
            return dns.Record_SRV(priority, weight, port, target)
        case Txt(strings):
            return dns.Record_TXT(*strings)
        case Ns(target):
            return dns.Record_NS(target)
        case HInfo(cpu):
            return dns.Record_HINFO(cpu, b"")
        case Soa(server, mailbox, serial, refresh, retry, expire, minimum):
            return dns.Record_SOA(server, mailbox, serial, refresh, retry, expire, minimum)


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
    """The response to a query, without the parts that it repeats from the query."""

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
            write_record(record, body, offsets)
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
    """The OPT record: the size of payloads, the upper bits of the code, version 0, and the DO bit as it came."""
    return _Opt.pack(0, OPT, MAX_PAYLOAD, (code >> 4) << 24 | (0x8000 if edns.do else 0), 0)


def _offsets(labels: Labels) -> dict[bytes, int]:
    """The names to which a compression pointer may refer: those in the question, by their folded text, with their
    offsets behind the header. So a record of the queried name repeats the case of the query."""
    folded = fold(labels)
    offsets: dict[bytes, int] = {}
    at = HEADER
    for number, label in enumerate(folded):
        offsets.setdefault(dotted(folded[number:]), at)
        at += len(label) + 1
    return offsets
