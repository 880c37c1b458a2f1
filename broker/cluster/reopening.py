"""Reopening of the watch while etcd has no space: then no beat can be written, and nothing else proves a watch alive.

Rules:
- A session reads all keys without space. So the watch is opened again within the session, or between two of them, at
  the next revision.
- A watch without any event for a pause may be dead. It is replaced by one at another endpoint, since a live one loses
  nothing by that. The pauses grow, because a farm without changes has no events.
- A watch that has ended is replaced soon.
- It ends when etcd has space again: from then on the beats prove the watch alive.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster.beats import SILENCE
from broker.core.backoff import Backoff

SILENT = Backoff(first=SILENCE, most=60.0, factor=2.0, jitter=0.2)
"""Pause in seconds without an event until a watch is replaced. The first is that of a missing beat; a watch in a minute
is no load of etcd, and an alarm lasts until an operator acts."""

ENDED = Backoff(first=0.1, most=5.0, factor=2.0, jitter=0.5)
"""Pause in seconds after the end of a watch, for watches that end one after the other without an event."""


class Reopening:
    """Reopening of a watch. ``needed`` returns whether etcd has no space, ``open`` whether a watch is open;
    ``reopen`` replaces it."""

    def __init__(
        self,
        clock: IReactorTime,
        rng: random.Random,
        needed: Callable[[], bool],
        open: Callable[[], bool],
        reopen: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._needed = needed
        self._open = open
        self._reopen = reopen
        self._timer: IDelayedCall | None = None
        self._heard = False
        """True after an event since the last look."""
        self._silent = 0
        """Consecutive pauses without an event."""
        self._ended = 0
        """Consecutive ends without an event."""

    def begin(self) -> None:
        """Etcd has no space. Idempotent."""
        if self._timer is None:
            self._heard, self._silent, self._ended = False, 0, 0
            self._wait(SILENT, 1)

    def heard(self) -> None:
        """The watch has brought an event."""
        self._heard, self._ended = True, 0

    def ended(self) -> None:
        """The watch has ended, while etcd has no space."""
        self._ended += 1
        self._wait(ENDED, self._ended)

    def stop(self) -> None:
        """Reopen no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _wait(self, pause: Backoff, failures: int) -> None:
        self.stop()
        self._timer = self._clock.callLater(pause.after(failures, self._rng.random()), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._open() and not self._needed():
            return
        if self._heard and self._open():
            self._silent = 0
        else:
            self._silent += self._open()
            self._reopen()
        self._heard = False
        self._wait(SILENT, self._silent + 1)
