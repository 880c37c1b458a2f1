"""Failures of a disk: the pause before the next attempt, and their log lines. For the stores and the journal.

Rules:
- The wait doubles with each failure in a row.
- The log has a line when failures begin and one when they end. A disk that is nearly full fails and succeeds by turns,
  so there is one such pair of lines in `QUIET_SECONDS` at most. Failures that last longer than that are logged even so.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.backoff import Backoff

RETRY_SECONDS = 1.0
"""The wait after a first failure; it doubles with each further one."""

RETRY_SECONDS_MOST = 30.0
"""The longest wait after a failure: a disk may be full for hours, and is written soon after it is not."""

_BACKOFF = Backoff(RETRY_SECONDS, RETRY_SECONDS_MOST)

QUIET_SECONDS = 60.0
"""The time after failures have ended in which no new ones are logged."""


class DiskErrors:
    """Failures of one kind of work, over ``clock``.

    ``begins`` and ``ends`` are formats of log lines, with ``{why}`` and ``{most}``, and with ``{failures}``. Failures
    other than ``expected`` ones are defects, which are logged with their traceback.
    """

    def __init__(self, log: Logger, clock: IReactorTime, expected: type[BaseException], begins: str, ends: str) -> None:
        self._log = log
        self._clock = clock
        self._expected = expected
        self._begins = begins
        self._ends = ends
        self._told = False
        self._ended: float | None = None
        self.failures = 0
        """Those in a row, up to now."""
        self.errors = 0
        """All of them."""

    @property
    def wait(self) -> float:
        """Seconds before the next try, after a failure."""
        return _BACKOFF.after(self.failures)

    def add(self, failure: Failure) -> float:
        """One more. Returns `wait`."""
        self.failures += 1
        self.errors += 1
        if not self._told and self._is_time():
            self._told = True
            if failure.check(self._expected):
                self._log.error(self._begins, why=failure.value, most=RETRY_SECONDS_MOST)
            else:
                self._log.failure("a defect in what is written to the disk", failure)
        return self.wait

    def over(self) -> None:
        """The work has succeeded."""
        if self._told:
            self._told = False
            self._ended = self._clock.seconds()
            self._log.info(self._ends, failures=self.failures)
        self.failures = 0

    def _is_time(self) -> bool:
        return self._ended is None or not 0 <= self._clock.seconds() - self._ended < QUIET_SECONDS


class LogLimit:
    """Rate limit for a log line about something that happens often: one in `QUIET_SECONDS`."""

    def __init__(self) -> None:
        self._last: float | None = None

    def allows(self, now: float) -> bool:
        """Return whether to log now. Then the next line is not due for a while."""
        due = self._last is None or not 0 <= now - self._last < QUIET_SECONDS
        if due:
            self._last = now
        return due
