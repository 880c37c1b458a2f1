"""Resource records: values, and their bytes.

A name in a record is text with dots, in lower case, without the dot at its end. `twisted.names.dns` encodes the
records.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import attrs
from twisted.names import dns

from broker.wires.dns.codec.query import IN

A, NS, SOA, HINFO, TXT, AAAA, SRV = dns.A, dns.NS, dns.SOA, dns.HINFO, dns.TXT, dns.AAAA, dns.SRV
IXFR, AXFR, ANY = 251, 252, 255
"""Types of records, and of questions."""

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
    """A place of a service (RFC 2782). The priority is always 0: clients choose by the weight."""

    weight: int
    port: int
    target: bytes
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


Data = Address | Srv | Txt | Ns | HInfo | Soa


@attrs.frozen
class Record:
    """A record: its owner, the seconds for which it may be kept, and its data."""

    owner: bytes
    ttl: int
    data: Data


def header(record: Record) -> dns.RRHeader:
    """Return the record as `twisted.names` encodes it."""
    data = record.data
    payload = _payload(data)
    return dns.RRHeader(record.owner, data.type, IN, record.ttl, payload)


def _payload(data: Data) -> dns.IEncodableRecord:
    match data:
        case Address(ip):
            return dns.Record_A(str(ip)) if ip.version == 4 else dns.Record_AAAA(str(ip))
        case Srv(weight, port, target):
            return dns.Record_SRV(0, weight, port, target)
        case Txt(strings):
            return dns.Record_TXT(*strings)
        case Ns(target):
            return dns.Record_NS(target)
        case HInfo(cpu):
            return dns.Record_HINFO(cpu, b"")
        case Soa(server, mailbox, serial, refresh, retry, expire, minimum):
            return dns.Record_SOA(server, mailbox, serial, refresh, retry, expire, minimum)
