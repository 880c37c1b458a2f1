"""The capacity plan as values: the jobs in spark/ write it as plan.json, and the broker shows it to operators.

docs/plan.schema.json defines the file, and `broker.export.plan_document` decodes it.

Rules:
- The plan is made for a moment, ``made``: the end of the last full hour that the jobs knew. Measured states come
  before foreseen ones: a service that is overloaded, or that one failure overloads, is short now. By its policy a
  service is short from the first hour on that needs more providers than there are now. If only the highest peak of
  the horizon does, at no certain hour, that may be any hour, and so the first one. Beyond the horizon, the trend of
  the weekly peaks counts.
- Nothing is claimed of a service without a full load, and of one with less than a day of history only what was
  measured.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs
from zope.interface import Attribute, Interface

from broker.core.interfaces import IWait

DAY = 86_400.0
"""Seconds of a day."""

HOUR = 3_600.0

WEEK = 168
"""Hours of a week, as many as a schedule has."""

EPOCH_SLOT = 72
"""The hour of the week, from Monday 00:00 UTC on, with which the epoch began: a Thursday."""

UNKNOWN = -1
"""Number of providers in a schedule where the need is not known."""


class BadPlan(ValueError):
    """A text that is no plan; the message gives the reason."""


class Verdict(enum.StrEnum):
    """State of a service in the plan, the worst first."""

    OVERLOADED = "overloaded"
    NO_SPARE = "no N+1"
    BELOW = "below policy"
    LATER = "short by the trend"
    FREE = "can free"
    ENOUGH = "enough"
    TOO_LITTLE = "too little history"
    UNKNOWN = "unknown"

    @property
    def is_short(self) -> bool:
        """True if providers are missing now or in the horizon."""
        return self.is_urgent or self is Verdict.BELOW

    @property
    def is_urgent(self) -> bool:
        """True if the measured load overloads the providers, or does so after one failure."""
        return self in (Verdict.OVERLOADED, Verdict.NO_SPARE)


@attrs.frozen
class ScheduleRecord:
    """Past weeks at which the schedule's rule was tried: ``missed`` of ``hours`` had a load above the bound of the
    hour, in ``weeks_missed`` of ``weeks``. ``saved`` is the part of the provider-hours of the horizon's need that the
    schedule does without."""

    hours: int | None = None
    missed: int | None = None
    weeks: int | None = None
    weeks_missed: int | None = None
    saved: float | None = None


@attrs.frozen
class PlannedService:
    """The plan of one service. Numbers of providers are those that its policy wants; None is unknown.

    ``has`` is the number of providers at the time of the plan; ``need_now`` are needed for the bound of the hour that
    begins then, ``need`` for that of the horizon, of which ``add`` are missing, or ``free`` too many. From
    ``short_at`` on there are too few, in seconds of the epoch; None if that is not foreseen. The bound behind
    ``need`` would have been missed at ``missed`` of ``trials`` past moments; with 95 % confidence its rate of misses
    is at most ``miss_at_most``, a share. ``note`` is a sentence. ``report`` is the path of its section or page in the
    report, relative to the file of the plan; empty if the plan names none. ``schedule`` has the providers that are
    needed in each hour of the week, from Monday 00:00 UTC on, `UNKNOWN` beyond the horizon; empty if the plan has
    none. ``record`` is the record of its bounds.
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
    report: str = ""
    free: int = 0
    schedule: Sequence[int] = ()
    record: ScheduleRecord | None = None

    def wanted(self, at: float) -> int | None:
        """Return the providers that the schedule needs in the hour of a moment and in the next one, which a start
        takes time for; the need of the horizon where the schedule does not tell. None where nothing is known."""
        if not self.schedule:
            return self.need
        slot = (int(at // HOUR) + EPOCH_SLOT) % WEEK
        numbers = [self.schedule[slot], self.schedule[(slot + 1) % WEEK]]
        return self.need if UNKNOWN in numbers else max(numbers)

    def days_until_short(self, now: float) -> float | None:
        """Return the days from ``now``, in seconds of the epoch, until there are too few providers: 0 if there are
        too few already, None if that is not foreseen."""
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

    @property
    def is_alarm(self) -> bool:
        """True if the service is overloaded, or one failure overloads it, and the plan before had no such verdict.

        A service below its policy is no alarm: nothing has happened yet.
        """
        now = self.service.verdict
        return now.is_urgent and (self.before is None or not self.before.is_urgent or now is Verdict.OVERLOADED)


class IPlan(Interface):
    """The capacity plan as it was last read from its file. All methods are for the reactor thread."""

    path: str | None = Attribute("Path of the file; None if none is configured. The report of the jobs is beside it.")

    def current() -> Plan | None:
        """Return the last valid plan; None if there was none yet, or no file is configured."""

    def problem() -> str | None:
        """Return a sentence on the file if its last reading failed; `current` is then an older plan, or None."""

    def age() -> float | None:
        """Return the age of the current plan in seconds: the time since the moment for which it was made."""

    def days_until_short() -> Mapping[str, float]:
        """Return the days until each service has too few providers, by its name; 0 if it has too few already.

        Services that are not foreseen to be short are left out.
        """

    def watch(changed: Callable[[PlanChange], None]) -> IWait:
        """Call ``changed`` for each service whose verdict is another one in a new plan, until cancelled.

        For the first plan that is read, it is called for each service that is short, with ``before`` None.
        """


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
