"""What is logged when the journal has trouble: that it begins, that it ends, and not much in between."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.disk_errors import Trouble

COMPLAINT_SECONDS = 60.0
"""The time between two log lines about something that happens often."""


_log = Logger()


def trouble(clock: IReactorTime, text: str) -> Trouble:
    """Failures of the disk at one kind of work; ``text`` says what fails."""
    return Trouble(
        _log,
        clock,
        OSError,
        f"{text}: {{why}}. It is tried again, and the log says when that succeeds",
        f"no longer, after {{failures}} failures: {text}",
    )


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
