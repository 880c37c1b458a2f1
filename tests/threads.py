"""Worker threads for tests: one whose progress the test decides, and one that is done at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, execute


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


def immediately(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """A thread that is done at once."""
    return execute(function, *arguments)
