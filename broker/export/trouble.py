"""What is logged when the journal has trouble: that it begins, that it ends, and not much in between."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure

RETRY_SECONDS = 1.0
"""The wait after a first failure of the disk; it doubles with each further one."""

RETRY_SECONDS_MOST = 30.0
"""The longest wait after a failure: a disk may be full for hours, and is written soon after it is not."""

COMPLAINT_SECONDS = 60.0
"""The time between two log lines about something that happens often."""


_log = Logger()


class Trouble:
    """Failures of one kind of work: they are counted, and logged when they begin and when they end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.failures = 0
        """One after the other, up to now."""
        self.errors = 0

    def add(self, failure: Failure) -> float:
        """One more. Returns how long to wait before the next try."""
        self.failures += 1
        self.errors += 1
        if self.failures == 1:
            tell(failure, "{what}: {why}. It is tried again, and the log says when that succeeds", what=self._text)
        return min(RETRY_SECONDS * 2.0 ** min(self.failures - 1, 10), RETRY_SECONDS_MOST)

    def over(self) -> None:
        """It succeeded."""
        if self.failures:
            _log.info("no longer, after {failures} failures: {what}", failures=self.failures, what=self._text)
            self.failures = 0


class Seldom:
    """When a log line about something that happens often is due again."""

    def __init__(self) -> None:
        self._last: float | None = None

    def is_time(self, now: float) -> bool:
        """Whether to log it now. Then the next line is not due for a while."""
        due = self._last is None or not 0 <= now - self._last < COMPLAINT_SECONDS
        if due:
            self._last = now
        return due


def tell(failure: Failure, text: str, **values: Any) -> None:
    """Log a failure: the disk's in a sentence, in which ``{why}`` is what the system says, any other as a defect."""
    if failure.check(OSError):
        _log.error(text, why=failure.value, **values)
    else:
        _log.failure("a defect in the metrics journal", failure)
