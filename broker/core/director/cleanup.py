"""Incremental cleanup of departed servers: a bounded part in each turn of the reactor.

Rules:
- Small servers are cleaned up at once. For large ones, one turn executes `STEPS_PER_TURN` steps, in the order in which
  the servers left. All servers share the steps of one turn, so that a thousand small servers that leave together do not
  stall the reactor either.
- Code that needs a part cleaned up earlier does that part itself. A step that finds nothing to do is a no-op.

`farm` supplies the steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.notifier import Telling

STEPS_PER_TURN = 1_500
"""Users, contexts and reservations that are removed in one turn: 3 to 8 ms, and some more for their notices."""


class Cleanup:
    """Queue of pending cleanup work."""

    log = Logger()

    def __init__(self, clock: IReactorTime, telling: Telling) -> None:
        self._clock = clock
        self._telling = telling
        self._work: deque[Iterator[None]] = deque()
        self._left = STEPS_PER_TURN
        """Steps that the present turn may still execute."""
        self._due = False

    def add(self, work: Iterator[None]) -> None:
        """Queue work of which each step removes one user, context or reservation.

        As many steps as this turn has left are executed at once; the caller then delivers their notices.
        """
        self._work.append(work)
        self._go_on()
        if not self._due:
            self._due = True
            self._clock.callLater(0, self._turn)

    def _go_on(self) -> None:
        while self._work and self._left > 0:
            try:
                self._left -= sum(1 for _ in islice(self._work[0], self._left))
            except Exception:
                # A defect in one server's cleanup ends that cleanup only; the next servers are still cleaned up.
                self.log.failure("the cleanup of a departed server failed")
                self._work.popleft()
            else:
                if self._left > 0:
                    self._work.popleft()

    def _turn(self) -> None:
        self._left = STEPS_PER_TURN
        self._due = bool(self._work)
        if self._due:
            self._clock.callLater(0, self._turn)
            self._go_on()
            self._telling.tell()
