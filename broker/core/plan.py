"""The capacity plan as values: the jobs in spark/ write it as plan.json, and the broker shows it to operators.

docs/plan.schema.json defines the file. `parse` takes from it what operators need; unknown members are ignored, since a
later version may add some.

Rules:
- The plan is made for a moment, ``made``: the end of the last full hour that the jobs knew. A service is short from the
  first hour on that needs more providers than there are now. Where only the highest peak of the horizon does, at no
  certain hour, that may be any hour, and so the first one. Beyond the horizon, the trend of the weekly peaks counts.
- Nothing is claimed of a service without a full load.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime

import attrs
import msgspec

VERSION = 1
"""Version of plan.json that is read."""

MAX_SERVICES = 100_000
"""Limit of services in a plan: half of those that a broker may know, and some 60 MB in memory."""

MAX_TEXT = 1_024
"""Limit of a text, in characters: that of the registry."""

DAY = 86_400.0


class BadPlan(ValueError):
    """A text that is no plan; the message gives the reason."""


class Verdict(enum.StrEnum):
    """State of a service in the plan, the worst first."""

    SHORT = "short now"
    SOON = "short in the horizon"
    LATER = "short by the trend"
    ENOUGH = "enough"
    UNKNOWN = "unknown"

    @property
    def is_short(self) -> bool:
        """True if providers are missing now or in the horizon."""
        return self in (Verdict.SHORT, Verdict.SOON)


@attrs.frozen
class PlannedService:
    """The plan of one service. Numbers of providers include the spare ones; None is unknown.

    ``has`` is the number of providers at the time of the plan; ``need_now`` are needed then, ``need`` in the horizon,
    ``add`` are missing, now or in the horizon. From ``short_at`` on there are too few, in seconds of the epoch; None if
    that is not foreseen. The bound behind ``need`` would have been missed at ``missed`` of ``trials`` past moments;
    with 95 % confidence its rate of misses is at most ``miss_at_most``, a share. ``note`` is a sentence.
    """

    name: str
    verdict: Verdict
    has: int
    need_now: int | None
    need: int | None
    add: int | None
    short_at: float | None
    missed: int | None = None
    trials: int | None = None
    miss_at_most: float | None = None
    note: str = ""

    def days_until_short(self, now: float) -> float | None:
        """Return the days from ``now``, in seconds of the epoch, until there are too few providers: 0 if there are too
        few already, None if that is not foreseen."""
        return None if self.short_at is None else max(0.0, (self.short_at - now) / DAY)


@attrs.frozen
class Plan:
    """A capacity plan. ``made`` is its moment in seconds of the epoch; ``services`` are by name, the worst first."""

    made: float
    services: Mapping[str, PlannedService]


@attrs.frozen
class PlanChange:
    """A service has another verdict than in the plan before; ``before`` is None if it was in no plan before."""

    service: PlannedService
    before: Verdict | None


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
    short_by_trend: datetime | None = None
    bound: _Bound = _Bound()
    note: str | None = None


class _Document(msgspec.Struct, frozen=True):
    version: int
    issued: datetime | None
    services: list[_Service]


class _Version(msgspec.Struct, frozen=True):
    version: int


_read = msgspec.json.Decoder(_Document).decode
_read_version = msgspec.json.Decoder(_Version).decode


def parse(text: bytes) -> Plan:
    """Return the plan in the text of a plan.json. Raises `BadPlan` for any other bytes."""
    try:
        version = _read_version(text).version
        if version != VERSION:
            raise BadPlan(f"the plan has version {version}, and version {VERSION} is read")
        document = _read(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPlan(f"the file is no plan: {error}") from None
    if document.issued is None:
        raise BadPlan("the plan is empty: it has no time for which it was issued")
    if len(document.services) > MAX_SERVICES:
        raise BadPlan(f"the plan has more than {MAX_SERVICES} services")
    made = _seconds(document.issued)
    services = sorted((_planned(each, made) for each in document.services), key=_urgency)
    return Plan(made, {service.name: service for service in services})


def changes(before: Plan | None, now: Plan) -> list[PlanChange]:
    """Return the services of ``now`` whose verdict differs from that in the plan before, in the order of the plan.

    Services that were in no plan before are among them only if they are short.
    """
    known = {} if before is None else before.services
    found = []
    for service in now.services.values():
        old = known.get(service.name)
        if service.verdict.is_short if old is None else service.verdict is not old.verdict:
            found.append(PlanChange(service, None if old is None else old.verdict))
    return found


def _planned(row: _Service, made: float) -> PlannedService:
    if len(row.service) > MAX_TEXT or len(row.note or "") > MAX_TEXT:
        raise BadPlan(f"the plan has a text of more than {MAX_TEXT} characters")
    numbers = (row.providers_now, row.need_now, row.need_horizon, row.add)
    if any(number is not None and number < 0 for number in numbers):
        raise BadPlan(f"the plan of {row.service!r} has a negative number of providers")
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
    )


def _judged(row: _Service, made: float) -> tuple[Verdict, float | None]:
    """Return the verdict on a service, and the time from which it is short."""
    if row.add is None:
        return Verdict.UNKNOWN, None
    if row.need_now is not None and row.need_now > row.providers_now:
        return Verdict.SHORT, made
    if row.short_from is not None:
        return Verdict.SOON, _seconds(row.short_from)
    if row.add > 0:
        return Verdict.SOON, made
    if row.short_by_trend is not None:
        return Verdict.LATER, _seconds(row.short_by_trend)
    return Verdict.ENOUGH, None


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
