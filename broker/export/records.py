"""The records of the metrics journal, and their lines. docs/export.md says what each member means.

What is the same in every record of a run (version, broker, boot) and its number are not in `Record`: they are added
when its line is made, so that a record is small, and is made by the reactor in a fraction of a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

VERSION = 1
"""The version of the records, ``v`` in each."""

BROKER_WIRE = "elkobroker"
"""The ``wire`` of records of the broker itself."""

BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of brokers and boots: they become parts of file names, where others cut them out again."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# gc=False: records hold texts and numbers only, so the collector need not look at a full queue of them.
class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that happened. None: there is nothing to say, and the member is left out."""

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
    in_flight: int | None = None
    requests: int | None = None
    errors: int | None = None
    rtt_ms: float | None = None
    sent_ts: int | None = None
    dropped: int | None = None
    coalesced: int | None = None
    why: str | None = None


def microseconds(seconds: float) -> int:
    """The ``ts`` of a moment of the broker's clock."""
    return int(seconds * 1_000_000)


def boot_name(seconds: float, salt: bytes) -> str:
    """A name for the start of a broker at that moment. Names sort by time.

    ``salt``, some random bytes, keeps apart two starts at the same moment, as there are when a clock was set back.
    """
    moment = _EPOCH + timedelta(milliseconds=int(seconds * 1_000))
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1_000:03d}Z{salt.hex()}"


def common(broker: str, boot: str) -> bytes:
    """Return the members with which each line of this start of this broker begins."""
    named = msgspec.json.encode({"v": VERSION, "broker": broker, "boot": boot})
    return named[:-1] + b',"seq":'


_encode = msgspec.json.Encoder().encode


def encode(record: Record, common: bytes, seq: int) -> bytes:
    """The line of a record, its newline included. ``common`` is what the function of that name gave.

    A number that is not finite is written as null. Raises UnicodeEncodeError for a text that UTF-8 cannot say.
    """
    return b"%b%d,%b\n" % (common, seq, _encode(record)[1:])


def encode_all(records: Sequence[Record], common: bytes, first: int) -> tuple[list[bytes], int]:
    """The lines of some records, numbered from ``first``; and of how many a text had to be changed to be written."""
    try:
        return [b"%b%d,%b\n" % (common, seq, _encode(record)[1:]) for seq, record in enumerate(records, first)], 0
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
    """The record without what UTF-8 cannot say: it came from a peer, and must not stop the rest."""
    return Record(**{name: _cleaned(getattr(record, name)) for name in Record.__struct_fields__})


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):  # a lone surrogate, from an escape in a peer's JSON
        return value.encode("utf-8", "replace").decode()
    return value
