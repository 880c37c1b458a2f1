"""Records of the metrics journal, and their encoding as lines of JSON.

The constant members of a start (version, broker, boot) and the number of a record are not in `Record`: the encoding
adds them, so that a record is small, and the reactor creates it in a fraction of a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import asdict

from broker.core.model import LoadDetails

BROKER_WIRE = "elkobroker"
"""The ``wire`` of records of the broker itself."""

BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of brokers and boots. They become parts of file names, from which readers parse them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# gc=False: records contain texts and numbers only, so the collector can skip a full queue of them.
class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One event. Members that are None are omitted."""

    ts: int
    event: str
    wire: str
    service: str | None = None
    provider: int | None = None
    label: str | None = None
    endpoint: str | None = None
    protocol: str | None = None
    interval_ms: int | None = None
    hb_seq: int | None = None
    load: float | None = None
    full_load: float | None = None
    rtt_ms: float | None = None
    sent_ts: int | None = None
    dropped: int | None = None
    coalesced: int | None = None
    why: str | None = None


class DetailedRecord(Record, frozen=True, gc=False, omit_defaults=True):
    """Record of version 2, which adds the members of a detailed load report, and the zone."""

    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None
    zone: str | None = None


MEMBERS: Mapping[str, tuple[str, str]] = {
    "v": ("", "version of the record: 1 or 2"),
    "ts": ("microseconds since 1970, UTC", "time of the event, by the broker's clock"),
    "broker": ("", "the broker's name in the journal"),
    "boot": ("", "this start of the broker"),
    "seq": (
        "",
        "number of the record since that start, from 1. `(broker, boot, seq)` is its key; a gap proves a loss",
    ),
    "event": ("", "see below"),
    "wire": ("", "`elko`, `dbp`, ...; `elkobroker` for records of the broker itself"),
    "service": ("", "name of the service"),
    "provider": ("", "the registry's id of the provider: a new one for each registration"),
    "label": ("", "the provider's label, where it has one of its own"),
    "endpoint": ("host:port", "address of the service"),
    "protocol": ("", "of the service"),
    "interval_ms": (
        "milliseconds",
        "the agreed time between heartbeats. Without one, the connection decides whether the provider is alive",
    ),
    "hb_seq": ("", "number of the heartbeat since the provider registered, from 1"),
    "load": ("as reported", "any measure that the farm's servers share, not negative"),
    "full_load": ("the same", "the load at which a provider of this service is full, from the configuration"),
    "rtt_ms": ("milliseconds", "round trip of a probe of the provider; no wire reports it"),
    "sent_ts": ("microseconds since 1970", "the provider's own clock, where its message had one"),
    "dropped": ("records", "of `drop`: the number of lost records before this one"),
    "coalesced": (
        "reports",
        "of `load` and `hb`: the number of other reports of the provider that this one replaces; omitted where "
        "there are none",
    ),
    "why": ("", "of `alive`, `drop`, `expire`, `unregister`"),
    "requests": ("requests", "version 2, of `load`: completed since the previous record of the provider that had it"),
    "errors": ("requests", "version 2, of `load`: those of them that failed"),
    "in_flight": ("requests", "version 2, of `load`: being handled now"),
    "zone": ("", "version 2, of `register`: the zone in which the service runs, where its provider gave one"),
    "latency_ms": ("milliseconds", "version 2, of `load`: mean time for which one of `requests` was handled"),
}
"""Unit and meaning of each member of a line, in the order of docs/export.md."""

VERSIONS: Mapping[type[Record], int] = {Record: 1, DetailedRecord: 2}
"""Version of each class of records, its ``v``. Records without these members remain records of version 1."""

Common = Mapping[type[Record], bytes]
"""Members with which each line begins, by the class of its record."""


def with_details(record: Record, details: LoadDetails) -> DetailedRecord:
    """Return the record of a load with these details."""
    return DetailedRecord(
        **asdict(record),
        requests=details.requests,
        errors=details.errors,
        in_flight=details.in_flight,
        latency_ms=details.latency_ms,
    )


def with_zone(record: Record, zone: str) -> DetailedRecord:
    """Return the record of a registration in this zone."""
    return DetailedRecord(**asdict(record), zone=zone)


def microseconds(seconds: float) -> int:
    """Return the ``ts`` of a time of the broker's clock."""
    return int(seconds * 1_000_000)


def boot_name(seconds: float, salt: bytes) -> str:
    """Return a name for the start of a broker at that time. Names sort by time.

    ``salt``, some random bytes, distinguishes two starts at the same time, which occur after a clock was set back.
    """
    moment = _EPOCH + timedelta(milliseconds=int(seconds * 1_000))
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1_000:03d}Z{salt.hex()}"


def common(broker: str, boot: str) -> Common:
    """Return the members with which each line of this start of this broker begins."""
    return {
        kind: msgspec.json.encode({"v": version, "broker": broker, "boot": boot})[:-1] + b',"seq":'
        for kind, version in VERSIONS.items()
    }


_encode = msgspec.json.Encoder().encode


def encode(record: Record, common: Common, seq: int) -> bytes:
    """Encode a record as a line with its newline. ``common`` is the result of that function.

    A number that is not finite becomes null. Raises UnicodeEncodeError for a text that UTF-8 cannot represent.
    """
    return b"%b%d,%b\n" % (common[type(record)], seq, _encode(record)[1:])


def encode_all(records: Sequence[Record], common: Common, first: int) -> tuple[list[bytes], int]:
    """Encode records, numbered from ``first``. Returns the lines, and the number of records whose texts had to be
    changed."""
    # The usual case, all at once. A surrogate in any record costs a second pass, record by record.
    try:
        return [
            b"%b%d,%b\n" % (common[type(record)], seq, _encode(record)[1:]) for seq, record in enumerate(records, first)
        ], 0
    except UnicodeEncodeError:
        pass
    mended = 0
    lines = []
    for seq, record in enumerate(records, first):
        try:
            lines.append(encode(record, common, seq))
        except UnicodeEncodeError:
            lines.append(encode(_writable(record), common, seq))
            mended += 1
    return lines, mended


def _writable(record: Record) -> Record:
    """Return a copy of the record without surrogates, which come from a peer and must not stop the other records."""
    return type(record)(**{name: _cleaned(getattr(record, name)) for name in record.__struct_fields__})


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):  # a lone surrogate, from an escape in a peer's JSON
        return value.encode("utf-8", "replace").decode()
    return value
