"""The file of the capacity plan, watched for changes.

Rules:
- Reading and parsing run in the thread of the disk, one reading at a time (`broker.core.file_watch`). A file whose
  stamp is that of the last reading is not read again.
- A bad or missing file leaves the last valid plan in place. Its problem is logged once, and shown until a reading
  succeeds.
- Watchers are called after the new plan is in place, in the order of the plan.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.blocking import blocking
from broker.core.file_watch import FileWatch
from broker.core.interfaces import IWait
from broker.core.plan import BadPlan, IPlan, Plan, PlanChange, Verdict, changes
from broker.wall_clock import wall

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
def read(path: str, known: Stamp | None, parse: Callable[[bytes], Plan]) -> Reading | None:
    """Read the plan at ``path``; None if the file has the stamp ``known``. Blocks on the disk; raises nothing."""
    stamp = None
    try:
        # A pipe or a device at this path would block the thread, or never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            stamp = Stamp(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if stamp == known:
                return None
            if not stat.S_ISREG(about.st_mode):
                return Reading(stamp, problem="it is no regular file")
            text = file.read(MAX_SIZE + 1)
    except OSError as error:
        return Reading(stamp, problem=error.strerror or str(error))
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

        return self._in_thread(read, path, self._stamp, self._parse).addCallback(checked).addErrback(failed)

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
                self._tell(watcher, change)

    def _tell(self, watcher: _Watcher, change: PlanChange) -> None:
        if watcher not in self._watchers:
            return
        try:
            watcher.changed(change)
        except Exception:
            self.log.failure("a watcher of the capacity plan raised an exception")
