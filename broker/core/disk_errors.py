"""Disk failures of the stores and the journal: back-off before the next attempt, and log lines.

Rules:
- The back-off doubles with each consecutive failure.
- The log has one line when failures begin and one when they end. A nearly full disk fails and succeeds by turns, so
  there is at most one such pair of lines in `QUIET_SECONDS`. Failures that last longer than that are logged even so.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.backoff import Backoff

RETRY_SECONDS = 1.0
"""Back-off after the first failure, in seconds. It doubles with each further one."""

RETRY_SECONDS_MOST = 30.0
"""Longest back-off, in seconds. A disk may be full for hours; writing resumes soon after there is room."""

_BACKOFF = Backoff(RETRY_SECONDS, RETRY_SECONDS_MOST)

QUIET_SECONDS = 60.0
"""Seconds after the end of failures in which new ones are not logged."""


class DiskErrors:
    """Consecutive failures of one kind of work, on ``clock``.

    ``begins`` and ``ends`` are formats of log lines, with ``{why}`` and ``{most}``, and with ``{failures}``. Failures
    other than ``expected`` ones are defects, and are logged with their traceback.
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
        """Consecutive failures up to now."""
        self.errors = 0
        """Failures in all."""
        self.why = ""
        """Text of the last failure; empty while there are none."""

    @property
    def wait(self) -> float:
        """Seconds before the next attempt, after a failure."""
        return _BACKOFF.after(self.failures)

    def add(self, failure: Failure) -> float:
        """Record a failure. Returns `wait`."""
        self.failures += 1
        self.errors += 1
        self.why = str(failure.value)
        if not self._told and self._is_time():
            self._told = True
            if failure.check(self._expected):
                self._log.error(self._begins, why=failure.value, most=RETRY_SECONDS_MOST)
            else:
                self._log.failure("a defect in what is written to the disk", failure)
        return self.wait

    def over(self) -> None:
        """Record a success: the failures are over."""
        if self._told:
            self._told = False
            self._ended = self._clock.seconds()
            self._log.info(self._ends, failures=self.failures)
        self.failures = 0
        self.why = ""

    def _is_time(self) -> bool:
        # A negative time means that the clock was set back: then the quiet period is over.
        return self._ended is None or not 0 <= self._clock.seconds() - self._ended < QUIET_SECONDS
