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

Rules of its file:
- Reading and parsing run in the thread of the disk, one reading at a time (`broker.core.file_watch`). A file whose
  stamp is that of the last reading is not read again.
- A bad or missing file leaves the last valid plan in place. Its problem is logged once, and shown until a reading
  succeeds.
- Watchers are called after the new plan is in place, in the order of the plan.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from broker import small_file
from broker.blocking import blocking
from broker.core.file_watch import FileWatch
from broker.core.interfaces import IWait
from broker.wall_clock import wall

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
    """The plan of one service. Numbers of providers are those of its policy; None is unknown.

    ``has`` is the number of providers at the time of the plan; ``need_now`` are needed for the bound of the hour that
    begins then, ``need`` for that of the horizon, of which ``add`` are missing, or ``free`` too many. From
    ``short_at`` on there are too few, in seconds since the epoch; None if that is not foreseen. The bound behind
    ``need`` would have been missed at ``missed`` of ``trials`` past moments; with 95 % confidence its rate of misses
    is at most ``miss_at_most``, a share. ``note`` is a sentence. ``report`` is the path of its section or page in the
    report, relative to the file of the plan; empty if the plan names none. ``schedule`` has the providers that are
    needed in each hour of the week, from Monday 00:00 UTC on, `UNKNOWN` beyond the horizon; empty if the plan has
    none. ``record`` is the record of its bounds. ``pool`` names the services that share servers, with one need for
    all of them; it is empty if the service shares none.
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
    record: ScheduleRecord = ScheduleRecord()
    pool: str = ""

    def wanted(self, at: float) -> int | None:
        """Return the providers that the schedule needs in the hour of a moment and in the next one, which a start
        takes time for; the need of the horizon where there is no schedule. None if unknown."""
        if not self.schedule:
            return self.need
        slot = (int(at // HOUR) + EPOCH_SLOT) % WEEK
        numbers = [self.schedule[slot], self.schedule[(slot + 1) % WEEK]]
        return self.need if UNKNOWN in numbers else max(numbers)

    def days_until_short(self, now: float) -> float | None:
        """Return the days from ``now``, in seconds since the epoch, until there are too few providers: 0 if there are
        too few already, None if that is not foreseen."""
        return None if self.short_at is None else max(0.0, (self.short_at - now) / DAY)


@attrs.frozen
class Plan:
    """A capacity plan. ``made`` is its moment in seconds since the epoch; ``services`` are by name, the worst first."""

    made: float
    services: Mapping[str, PlannedService]

    def sharing(self, name: str) -> list[str]:
        """Return the services whose providers the plan of the service ``name`` counts: those of its pool, or itself."""
        planned = self.services.get(name)
        if planned is None or not planned.pool:
            return [name]
        return [each.name for each in self.services.values() if each.pool == planned.pool]


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


PAUSE = 30.0
"""Seconds between checks of the file: the jobs write it once an hour at most, and a check costs one system call."""

MAX_SIZE = 64 * 1024 * 1024
"""Limit of the file in bytes: five times the plan of 10,000 services, whose reading takes some 300 ms of the thread."""


class Stamp(NamedTuple):
    """Identity of a file's content: device, inode, size in bytes, and time of change in nanoseconds."""

    device: int
    inode: int
    size: int
    changed: int


@attrs.frozen
class Reading:
    """Result of a reading. ``plan`` is None and ``problem`` a sentence if the file cannot be read or is no plan."""

    stamp: Stamp | None
    plan: Plan | None = None
    problem: str | None = None


@blocking
def read_plan(path: str, known: Stamp | None, parse: Callable[[bytes], Plan]) -> Reading | None:
    """Read the plan at ``path``; None if the file has the stamp ``known``. Blocks on the disk; raises nothing."""
    stamp = None
    try:
        with small_file.opened(path) as file:
            about = os.fstat(file.fileno())
            stamp = Stamp(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if stamp == known:
                return None
            text = file.read(MAX_SIZE + 1)
    except OSError as error:
        return Reading(stamp, problem=error.strerror or str(error))
    except ValueError as error:
        return Reading(stamp, problem=f"it {error}")
    if len(text) > MAX_SIZE:
        return Reading(stamp, problem=f"it has more than {MAX_SIZE} bytes")
    try:
        return Reading(stamp, parse(text))
    except BadPlan as error:
        return Reading(stamp, problem=str(error))


@implementer(IWait)
class _Watcher:
    def __init__(self, watchers: dict[_Watcher, None], changed: Callable[[PlanChange], None]) -> None:
        self._watchers = watchers
        self.changed = changed

    def cancel(self) -> None:
        self._watchers.pop(self, None)


@implementer(IPlan)
class PlanFile:
    """The plan in the file at ``path``; None: there is no plan.

    ``in_thread`` runs a function with arguments in the thread of the disk and returns a Deferred of its result;
    ``parse`` decodes the text of a plan there, or raises `BadPlan`.
    """

    log = Logger()

    def __init__(
        self,
        path: str | None,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        parse: Callable[[bytes], Plan],
    ) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._parse = parse
        self._watchers: dict[_Watcher, None] = {}
        self._plan: Plan | None = None
        self._verdicts: Mapping[str, int] = {}
        """Number of services by verdict, as counters."""
        self._counts = {"plan_readings.read": 0, "plan_readings.failed": 0}
        self._watch: FileWatch | None = None
        self._stamp: Stamp | None = None
        self._problem: str | None = None
        self.path: str | None = None
        self.use(path)

    def use(self, path: str | None) -> None:
        """Read the file at ``path`` now, and from now on.

        The plan of another file before it stays until a reading succeeds; with None there is no plan any more.
        """
        if self._watch is not None and path == self.path:
            self._watch.refresh()
            return
        self.stop()
        self.path, self._stamp, self._problem = path, None, None
        if path is None:
            self._plan, self._verdicts = None, {}
        else:
            self._watch = FileWatch(self._clock, PAUSE, self._check)
            self._watch.refresh()

    def refresh(self) -> Deferred[None] | None:
        """Check the file now. The Deferred fires at the end of the check; None without a file."""
        return None if self._watch is None else self._watch.refresh()

    def stop(self) -> None:
        """Stop watching the file. The plan stays."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    # the plan

    def current(self) -> Plan | None:
        return self._plan

    def problem(self) -> str | None:
        return self._problem

    def age(self) -> float | None:
        return None if self._plan is None else wall(self._clock) - self._plan.made

    def days_until_short(self) -> Mapping[str, float]:
        now = wall(self._clock)
        services = () if self._plan is None else self._plan.services.values()
        days = ((service.name, service.days_until_short(now)) for service in services)
        return {name: left for name, left in days if left is not None}

    def watch(self, changed: Callable[[PlanChange], None]) -> IWait:
        watcher = _Watcher(self._watchers, changed)
        self._watchers[watcher] = None
        return watcher

    def counts(self) -> Mapping[str, int]:
        """Return the counters: services by verdict, and readings of the file by outcome; none without a file."""
        return {} if self.path is None else {**self._counts, **self._verdicts}

    # reading

    def _check(self, now: bool) -> Deferred[Any]:
        watch, path = self._watch, self.path

        def checked(reading: Reading | None) -> None:
            # A reading of a file that is not configured any more counts for nothing.
            if reading is not None and watch is self._watch and path == self.path:
                self._take(reading)

        def failed(failure: Failure) -> None:
            self.log.failure("reading the capacity plan raised an unexpected exception", failure)

        return self._in_thread(read_plan, path, self._stamp, self._parse).addCallback(checked).addErrback(failed)

    def _take(self, reading: Reading) -> None:
        self._stamp = reading.stamp
        if reading.plan is None:
            self._counts["plan_readings.failed"] += 1
            if reading.problem != self._problem:
                self.log.warn("the capacity plan {path} is not used: {why}", path=self.path, why=reading.problem)
            self._problem = reading.problem
            return
        self._counts["plan_readings.read"] += 1
        self._problem = None
        before, self._plan = self._plan, reading.plan
        verdicts = Counter(service.verdict for service in reading.plan.services.values())
        self._verdicts = {f"plan_services.{verdict.name.lower()}": verdicts[verdict] for verdict in Verdict}
        changed = changes(before, reading.plan)
        short = sum(count for verdict, count in verdicts.items() if verdict.is_short)
        self.log.info(
            "the capacity plan {path} was read: {short} of {count} services are short",
            path=self.path,
            short=short,
            count=len(reading.plan.services),
        )
        for watcher in tuple(self._watchers):
            for change in changed:
                self._notify(watcher, change)

    def _notify(self, watcher: _Watcher, change: PlanChange) -> None:
        if watcher not in self._watchers:
            return
        try:
            watcher.changed(change)
        except Exception:
            self.log.failure("a watcher of the capacity plan raised an exception")
