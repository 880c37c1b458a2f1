"""Resource records: values, and their bytes.

A name in a record is text with dots, in lower case, without the dot at its end. `twisted.names.dns` encodes the
records.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address

import attrs
from twisted.names import dns

from broker.wires.dns.codec.query import IN

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


_Fixed = struct.Struct("!HHIH")

Data = Address | Srv | Txt | Ns | HInfo | Soa


@attrs.frozen
class Record:
    """A record: its owner, the seconds for which it may be kept, and its data."""

    owner: bytes
    ttl: int
    data: Data


def write(record: Record, body: BytesIO, offsets: dict[bytes, int]) -> None:
    """Append a record to a message. ``body`` is the message without its header, ``offsets`` has the places of names
    that are in the message already, to which names of owners are compressed."""
    data = rdata(record.data)
    at = offsets.get(record.owner)
    if at is None:
        dns.Name(record.owner).encode(body, offsets)
    else:
        body.write((0xC000 | at).to_bytes(2, "big"))  # a compression pointer
    body.write(_Fixed.pack(record.data.type, IN, record.ttl, len(data)) + data)


@lru_cache(maxsize=KEPT)
def rdata(data: Data) -> bytes:
    """Return the bytes of a record's data. Names in it are not compressed."""
    body = BytesIO()
    _payload(data).encode(body)
    return body.getvalue()


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
