"""Decoder of plan.json: the document in which the capacity jobs write their plan. docs/plan.schema.json defines it.

It takes what operators need. Unknown members are ignored, since a later version may add some.
"""

from __future__ import annotations

import re
from array import array
from datetime import datetime

import msgspec

from broker.core.plan import UNKNOWN, WEEK, BadPlan, Plan, PlannedService, ScheduleRecord, Verdict

VERSION = 1
"""Version of plan.json that is read."""

MAX_SERVICES = 100_000
"""Limit of services in a plan: half of those that a broker may know, and some 60 MB in memory."""

MAX_PROVIDERS = 1_000_000
"""Limit of the providers of a service in a schedule: that of the policies of the jobs."""

MAX_TEXT = 1_024
"""Limit of a text, in characters: that of the registry."""


_REPORT = re.compile(r"report\.html#[A-Za-z0-9_-]{1,100}|services/[A-Za-z0-9_-]{1,100}\.html")
"""A section of the report, or a page of one service: the form of the jobs. Another path is ignored."""


class _Bound(msgspec.Struct, frozen=True):
    trials: int | None = None
    missed: int | None = None
    miss_at_most: float | None = None


class _Service(msgspec.Struct, frozen=True):
    service: str
    providers_now: int
    need_now: int | None
    need_horizon: int | None
    add: int | None
    short_from: datetime | None
    state: str | None = None
    """None in a plan of an older version of the jobs."""
    free: int | None = None
    short_by_trend: datetime | None = None
    bound: _Bound = _Bound()
    note: str | None = None
    report: str | None = None
    schedule: list[int | None] = []
    schedule_record: ScheduleRecord = ScheduleRecord()
    pool: str | None = None


class _Document(msgspec.Struct, frozen=True):
    version: int
    issued: datetime | None
    services: list[_Service]


class _Version(msgspec.Struct, frozen=True):
    version: int


_INVALID = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All exceptions of a decoder."""

_read_service = msgspec.json.Decoder(_Service).decode
_read = msgspec.json.Decoder(_Document).decode
_read_version = msgspec.json.Decoder(_Version).decode


def parse(text: bytes) -> Plan:
    """Return the plan in the text of a plan.json. Raises `BadPlan` for any other bytes."""
    try:
        document = _read_lines(text) or _read(text)
    except _INVALID as error:
        _check_version(text)
        raise BadPlan(f"the file is no plan: {error}") from None
    if document.version != VERSION:
        _check_version(text)
    if document.issued is None:
        raise BadPlan("the plan is empty: it has no time for which it was issued")
    if len(document.services) > MAX_SERVICES:
        raise BadPlan(f"the plan has more than {MAX_SERVICES} services")
    made = _seconds(document.issued)
    services = sorted((_planned(each, made) for each in document.services), key=_urgency)
    return Plan(made, {service.name: service for service in services})


def _read_lines(text: bytes) -> _Document | None:
    """Decode a document that has a line for each service, as the jobs write it; None for any other layout.

    A large plan takes a decoder some 200 ms, in which no other thread has the interpreter; a line takes microseconds.
    """
    head, *lines = text.rstrip().split(b"\n")
    if not lines or not head.endswith(b"[") or lines.pop() != b"]}":
        return None
    if not all(line.endswith(b",") for line in lines[:-1]) or lines[-1:] == [b""]:
        return None
    document = _read(head + b"]}")
    services = [_read_service(line[:-1]) for line in lines[:-1]]
    services += [_read_service(line) for line in lines[-1:]]
    return msgspec.structs.replace(document, services=services)


def _check_version(text: bytes) -> None:
    """Raise `BadPlan` if the text is a plan of another version, which may lack members of this one."""
    try:
        version = _read_version(text).version
    except _INVALID:
        return
    if version != VERSION:
        raise BadPlan(f"the plan has version {version}, and version {VERSION} is read")


def _planned(row: _Service, made: float) -> PlannedService:
    if any(len(text) > MAX_TEXT for text in (row.service, row.note or "", row.pool or "")):
        raise BadPlan(f"the plan has a text of more than {MAX_TEXT} characters")
    numbers = (row.providers_now, row.need_now, row.need_horizon, row.add, row.free)
    if any(number is not None and number < 0 for number in numbers):
        raise BadPlan(f"the plan of {row.service!r} has a negative number of providers")
    if row.schedule and (len(row.schedule) != WEEK or any(not 0 <= (n or 0) <= MAX_PROVIDERS for n in row.schedule)):
        raise BadPlan(f"the schedule of {row.service!r} has no number of providers for each hour of a week")
    verdict, short_at = _judged(row, made)
    return PlannedService(
        row.service,
        verdict,
        row.providers_now,
        row.need_now,
        row.need_horizon,
        row.add,
        short_at,
        row.bound.missed,
        row.bound.trials,
        row.bound.miss_at_most,
        row.note or "",
        row.report if row.report is not None and _REPORT.fullmatch(row.report) else "",
        row.free or 0,
        array("i", (UNKNOWN if number is None else number for number in row.schedule)),
        row.schedule_record,
        row.pool or "",
    )


def _judged(row: _Service, made: float) -> tuple[Verdict, float | None]:
    """Return the verdict on a service, and the time from which it is short."""
    verdict = _STATES.get(row.state) if row.state is not None else _derived(row)
    if verdict is None:
        return Verdict.UNKNOWN, None  # a state of a later version
    if verdict.is_urgent:
        return verdict, made
    if verdict is Verdict.BELOW:
        return verdict, made if row.short_from is None else _seconds(row.short_from)
    if verdict in (Verdict.ENOUGH, Verdict.FREE) and row.short_by_trend is not None:
        return Verdict.LATER, _seconds(row.short_by_trend)
    return verdict, None


_STATES = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.LATER}
"""States of the document by name."""


def _derived(row: _Service) -> Verdict:
    """Return the verdict of a plan without states."""
    if row.add is None:
        return Verdict.UNKNOWN
    short = row.add > 0 or (row.need_now is not None and row.need_now > row.providers_now)
    return Verdict.BELOW if short or row.short_from is not None else Verdict.ENOUGH


_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def _urgency(service: PlannedService) -> tuple[int, float, int, str]:
    return _ORDER[service.verdict], service.short_at or 0.0, -(service.add or 0), service.name


def _seconds(moment: datetime) -> float:
    if moment.tzinfo is None:
        raise BadPlan("the plan has a time without a time zone")
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        raise BadPlan("the plan has a time that no clock shows") from None
