"""The order in which a ROUTER writes the output of its connections.

Rules:
- Output is gathered for a turn of the reactor, and written at its end: a connection is written once, whatever the
  number of its messages.
- The messages before the first answer of each connection are written first. The rest of the connections with answers
  follows, in the order of their first answers.
- A connection is written before its input is handled again, so that a message is not later than the answer to the
  request that caused it.
- A flush ends with the quantum of a turn, and goes on in the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from broker.net.router.peer import RouterPeer
from broker.net.scheduler import TURN, Turns

BETWEEN = 16
"""Connections that are written between two looks at the clock: some 50 µs."""


class FlushOrder:
    """The connections with output that waits for the end of the turn. For the scheduler, it is one `Gathering`.

    The attributes are public since the ROUTER adds to them inline, for each message.
    """

    def __init__(self, turns: Turns, clock: IReactorTime) -> None:
        self._turns = turns
        self._clock = clock
        self.fanned: deque[RouterPeer] = deque()
        """Connections with something to be written."""
        self.answered: deque[RouterPeer] = deque()
        """Those of them that are written last."""
        self.scheduled = False
        self.at_end: Callable[[Callable[[], object]], bool] = lambda call: False
        """Makes a call at the end of a round of reads, or returns False; see `Streams.at_end`."""

    def soon(self) -> None:
        """Flush at the end of the round of reads where the reactor has such, or else in the next turn."""
        self.scheduled = True
        if not self.at_end(self.flush):
            self._turns.flush_later(self)

    def flush(self) -> None:
        """Write the output of this turn of the reactor, within the quantum of a turn."""
        self.scheduled = False
        if self._turns.first:
            self._turns.flush_first()
        end = self._clock.seconds() + TURN
        fanned, answered = self.fanned, self.answered
        count = BETWEEN
        try:
            while fanned or answered:
                if fanned:
                    self._flush_next()
                else:
                    answered.popleft().flush()
                count -= 1
                if not count:
                    count = BETWEEN
                    if self._clock.seconds() >= end:
                        return
        finally:
            # The time is over, or a defect was met, which is not to cost the other connections anything.
            if (fanned or answered) and not self.scheduled:
                self.soon()

    def flush_one(self, peer: RouterPeer) -> None:
        """Write the output of one peer now, and before it the messages that must not be later than an answer to it."""
        while peer.replied and (self.fanned or self.answered):
            self._flush_next()
        peer.flush()

    def abort(self) -> None:
        """See `broker.net.scheduler.Gathering`: a defect met in a flush costs no connection."""

    def _flush_next(self) -> None:
        if not self.fanned:
            self.answered.popleft().flush()
            return
        peer = self.fanned.popleft()
        if not peer.replied:
            peer.flush()
        elif peer.ahead:
            # Its answers keep their place among those of the other connections.
            peer.flush_ahead()
