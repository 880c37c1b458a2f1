"""What is left of servers that are gone, put away a part in each turn of the reactor.

Rules:
- What is small is put away at once. Of what is large, `STEPS` are done in a turn, in the order in which they came; the
  steps of one turn count together, so that a thousand small servers that go at once do not hold up anybody either.
- Whoever must know that a part is done earlier does it himself: a step that finds nothing left to do does nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.notifier import Telling

STEPS_PER_TURN = 1_500
"""Users, contexts and reservations that are put away in one turn: 3 to 8 ms, with their notices some more."""


class Cleanup:
    """The work that is still to be done."""

    log = Logger()

    def __init__(self, clock: IReactorTime, telling: Telling) -> None:
        self._clock = clock
        self._telling = telling
        self._work: deque[Iterator[None]] = deque()
        self._left = STEPS_PER_TURN
        """Steps that this turn may still do."""
        self._due = False

    def add(self, work: Iterator[None]) -> None:
        """Each step of it ends one user, context or reservation. The caller tells what the first steps have to tell."""
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
                # A defect of ours: it costs the rest of this server, and not that of all after it.
                self.log.failure("a server that is gone was not put away")
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
