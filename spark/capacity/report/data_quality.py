"""The quality of the data: read, quarantined and lost records, and the times of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from spark.capacity.report.row_values import Row, Tables, number_of, time_of, total_of, yes
from spark.capacity.report.service_rows import in_time

EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""


@attrs.frozen
class Quarantined:
    """Entries of one reason; the first segments by name, and the number of `more` ones."""

    reason: str
    entries: int
    segments: Sequence[str]
    more: int


@attrs.frozen
class Lost:
    """Lost records of one start of a broker, from one number to another."""

    start: str
    first: int
    last: int
    records: float | None
    known: bool
    """True where the broker told of the loss."""


@attrs.frozen
class Absence:
    """A time in which a broker was not there."""

    broker: str
    begin: datetime | None
    end: datetime | None
    seconds: float | None


@attrs.frozen
class SetBack:
    """A clock that was set back, by the number of the record that shows it."""

    start: str
    record: float | None
    before: datetime
    after: datetime
    seconds: float


@attrs.frozen
class Quality:
    """The quality of the data. Absences and clocks are None where nothing is known of them."""

    segments: int
    records: float
    quarantined: Sequence[Quarantined]
    lost: Sequence[Lost]
    absences: Sequence[Absence] | None
    set_back: Sequence[SetBack] | None
    unknown_members: Sequence[tuple[str, float | None]]


def quality(tables: Tables) -> Quality:
    ledger = tables.get("ledger", ())
    members = _by("member", tables.get("unknown_members", ()))
    return Quality(
        len(ledger),
        total_of(number_of(row, "records") for row in ledger) or 0,
        _quarantined(tables.get("quarantine", ())),
        [_lost(row) for row in tables.get("loss", ())],
        [_absence(row) for row in in_time(tables["broker_down"], "start")] if "broker_down" in tables else None,
        None if (told := tables.get("set_back")) is None else _set_back(told),
        [(name, total_of(number_of(row, "records") for row in own)) for name, own in members.items()],
    )


def _quarantined(rows: Sequence[Row]) -> list[Quarantined]:
    found = []
    for reason, own in sorted(_by("reason", rows).items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({str(row.get("segment")) for row in own})
        found.append(Quarantined(reason, len(own), names[:EXAMPLES], max(0, len(names) - EXAMPLES)))
    return found


def _lost(row: Row) -> Lost:
    first, last = (int(number_of(row, name) or 0) for name in ("seq_from", "seq_to"))
    return Lost(_start(row), first, last, number_of(row, "records"), yes(row, "known"))


def _absence(row: Row) -> Absence:
    begin, end = time_of(row, "start"), time_of(row, "end")
    return Absence(str(row.get("broker")), begin, end, (end - begin).total_seconds() if begin and end else None)


def _set_back(rows: Sequence[Row]) -> list[SetBack]:
    return [
        SetBack(_start(row), number_of(row, "seq"), before, after, (before - after).total_seconds())
        for row in sorted(rows, key=lambda row: (str(row.get("broker")), str(row.get("boot")), row["seq"]))
        if (before := time_of(row, "before")) and (after := time_of(row, "after"))
    ]


def _start(row: Row) -> str:
    """Return the name of a start of a broker."""
    return f"{row.get('broker')} {row.get('boot')}"


def _by(name: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: str(row.get(name))):
        found.setdefault(str(row.get(name)), []).append(row)
    return found
