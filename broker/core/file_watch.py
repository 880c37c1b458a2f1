"""Periodic checks of files that may change at any time: the one mechanism behind keys and users on disk.

Rules:
- A check runs in a thread, one at a time; its owner hands a finished value to the reactor thread.
- A check follows the end of the one before after a pause. `FileWatch.refresh` asks for one at once; a caller that comes
  while a check runs is served by the next one, since the running one may have read the file already.
- After `FileWatch.stop` no check begins, and all callers of `refresh` are served.

Notification by the kernel (inotify) is not used: it sees nothing of changes on network file systems, and does not
replace a check at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime


class FileWatch:
    """Periodic checks every ``pause`` seconds.

    ``check`` begins a check and returns a Deferred that fires with any result when it has ended; it must not fail. Its
    argument is True if callers of `refresh` wait for it. While ``resting`` returns True, periodic checks are skipped.
    """

    def __init__(
        self,
        clock: IReactorTime,
        pause: float,
        check: Callable[[bool], Deferred[Any]],
        resting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._check = check
        self._resting = resting
        self._waiting: list[Deferred[None]] = []
        """Callers of `refresh` that the next check serves."""
        self._served: list[Deferred[None]] = []
        """Callers of `refresh` that the check in progress serves."""
        self._checking = False
        self._timer: IDelayedCall | None = None
        self.stopped = False
        self._schedule()

    def refresh(self) -> Deferred[None]:
        """Check now. Fires when that has ended."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        if self.stopped:
            _fire(self._waiting)
        elif not self._checking:
            self._begin()
        return done

    def stop(self) -> None:
        """End all checks. Fires all Deferreds of `refresh`."""
        self.stopped = True
        self._unschedule()
        _fire(self._served)
        _fire(self._waiting)

    def _due(self) -> None:
        self._timer = None
        if self._resting():
            self._schedule()
        else:
            self._begin()

    def _begin(self) -> None:
        self._unschedule()
        self._checking = True
        self._served, self._waiting = self._waiting, []
        self._check(bool(self._served)).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._checking = False
        # A callback may ask for the next check, which then runs already.
        _fire(self._served)
        if self.stopped or self._checking:
            return
        if self._waiting:
            self._begin()
        else:
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(self._pause, self._due)

    def _unschedule(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


def _fire(waiting: list[Deferred[None]]) -> None:
    """Fire all of them, each once. A callback may add or remove others."""
    while waiting:
        waiting.pop(0).callback(None)
