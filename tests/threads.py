"""Worker threads for tests: one whose progress the test decides, and one that is done at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock


class Thread:
    """A worker thread: what it was given runs when `work` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        self.jobs.append((result, function, arguments))
        return result

    def work(self) -> None:
        """Do the oldest job."""
        result, function, arguments = self.jobs.pop(0)
        execute(function, *arguments).chainDeferred(result)

    def do(self) -> Callable[[], None]:
        """Do the oldest job. Returns what tells of it: until then only the job itself has been done."""
        result, function, arguments = self.jobs.pop(0)
        value = function(*arguments)
        return lambda: result.callback(value)

    def work_all(self) -> None:
        """Do all that there is, and what comes of it."""
        while self.jobs:
            self.work()

    def fail(self, error: Exception) -> None:
        """The oldest job fails without having done anything."""
        self.jobs.pop(0)[0].errback(error)

    def doubt(self, error: Exception) -> None:
        """The oldest job is done, and fails nevertheless."""
        result, function, arguments = self.jobs.pop(0)
        function(*arguments)
        result.errback(error)


class TimedThread:
    """As `broker.core.worker.TimedThread`: calls that are due by the clock are jobs of ``thread``, whose progress the
    test decides. With ``late``, reports wait until the reactor's turn comes: `turn`."""

    def __init__(self, clock: Clock, thread: Callable[..., Deferred[Any]]) -> None:
        self._clock = clock
        self._thread = thread
        self._reports: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.late = False

    def now(self) -> float:
        return self._clock.seconds()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        if seconds:
            self._clock.callLater(seconds, self._thread, function)
        else:
            self._thread(function)

    def report(self, function: Callable[..., object], *arguments: object) -> None:
        self._reports.append((function, arguments))
        if not self.late:
            self.turn()

    def turn(self) -> None:
        """The reactor does what was reported to it."""
        reports, self._reports = self._reports, []
        for function, arguments in reports:
            function(*arguments)


def immediately(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """A thread that is done at once."""
    return execute(function, *arguments)
