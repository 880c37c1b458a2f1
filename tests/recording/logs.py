"""Checks of the log: no part of the broker may fail while a test runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import provider

from tests.garbage import set_aside


@contextmanager
def nothing_fails(collect: bool = False) -> Iterator[list[str]]:
    """Assert that nothing logs a failure in the meantime: parts of the broker log their failures, and go on.

    Gives the texts of the warnings. With ``collect``, failures of Deferreds that nothing handles are found as well.
    """
    failures: list[Failure] = []
    warnings: list[str] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            failures.append(event["log_failure"])
        elif event["log_level"] >= LogLevel.warn:
            warnings.append(formatEvent(event))

    if collect:
        set_aside()
    globalLogPublisher.addObserver(observe)
    try:
        yield warnings
        if collect:
            gc.collect()  # which logs the failures of Deferreds that nothing handled
    finally:
        globalLogPublisher.removeObserver(observe)
    assert failures == []
