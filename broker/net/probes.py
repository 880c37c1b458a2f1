"""Asks peers whether they live, each over a ZMTP connection of its own (`probe_connection.py`).

Rules:
- A question is one message to one address. Any whole message that comes back on its connection is life.
- It ends with the answer, or when its time is over, which counts from when it was asked.
- A reactor that is late for that moment stood still, and could not read: the question gets as much time more, once, and
  at most as much again as it had. So an answer that lies in the kernel counts. A punctual reactor adds one turn.
- It makes one connection. If that is refused or ends, nothing is tried again, and its time runs out: a peer that names
  the address of another one does not have it called ten times a second, and the next question comes soon enough.
- `MOST` questions are open at a time, the others wait in order. One that waited until its time was over was put off:
  that says nothing about the peer, and is reported and counted apart.
- No connection is begun in ``ask``, and `AT_ONCE` in one turn of the reactor. If there is no descriptor for one, the
  question waits on.

The caller bounds the number of questions that wait: one for each peer at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTCP, IReactorTime
from twisted.logger import Logger

from broker.net.probe_connection import ProbeConnection
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns

MOST = 200
"""Questions that are open at a time. Each takes a descriptor, and at most 576 KiB of an answer that is not complete; a
peer that lives answers within milliseconds, so that only those that do not live wait here."""

AT_ONCE = 10
"""Connections begun in one turn of the reactor: about a millisecond."""

RETRY = 1.0
"""Seconds until a connection is tried again for which there was no descriptor."""

PORTS = range(1, 65_536)


@attrs.define(eq=False)
class _Question:
    host: str
    port: int
    frames: Sequence[bytes]
    answered: Callable[[bool | None], object]
    seconds: float
    due: float
    """The moment at which its time is over."""
    timer: IDelayedCall | None = None
    connection: ProbeConnection | None = None
    """None while it waits."""
    extended: bool = False
    """It got the time by which the reactor was late."""


class Probes:
    """Asks peers by ZeroMQ whether they live. ``wire`` names them in the counters and the log.

    The connections are those of ``reactor``, in the time of ``clock``, which are one object in the broker.
    """

    log = Logger()

    def __init__(
        self, reactor: IReactorTCP, clock: IReactorTime, turns: Turns, complaints: Complaints, wire: str
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self.turns = turns
        self.complaints = complaints
        self.wire = wire
        self._waiting: OrderedDict[_Question, None] = OrderedDict()
        self._open: set[_Question] = set()
        self._opening: IDelayedCall | None = None
        self._failing = False
        self._closed = False
        self._asked = 0
        self._answered = 0
        self._unanswered = 0
        self._put_off = 0

    def ask(
        self, host: str, port: int, frames: Sequence[bytes], seconds: float, answered: Callable[[bool | None], object]
    ) -> None:
        """Send these frames there, and call ``answered`` once: True as soon as anything comes back, False if nothing
        does in so many seconds, None if they could not be sent in that time.

        Raises ValueError unless ``host`` is a numeric IPv4 address: looking a name up may take longer than the question
        has. After `close` nothing is asked.
        """
        address = str(IPv4Address(host))
        if port not in PORTS or not frames:
            raise ValueError("a question needs a port and a frame")
        if self._closed:
            return
        question = _Question(address, port, tuple(frames), answered, seconds, self._clock.seconds() + seconds)
        question.timer = self._clock.callLater(seconds, self._over, question)
        self._asked += 1
        self._waiting[question] = None
        self._open_soon()

    def close(self) -> None:
        """Ask nothing any more, and close all connections. Questions that are open are never answered."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        for question in [*self._waiting, *self._open]:
            _stop(question)
        self._waiting.clear()
        self._open.clear()

    def counts(self) -> Mapping[str, int]:
        """Counters, by name: the questions that were asked, and the outcomes of those that are not open any more."""
        return {
            f"{self.wire}_probes.asked": self._asked,
            f"{self.wire}_probes.answered": self._answered,
            f"{self.wire}_probes.unanswered": self._unanswered,
            f"{self.wire}_probes.put_off": self._put_off,
        }

    # opening

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._open) < MOST

    def _open_soon(self, seconds: float = 0) -> None:
        if self._opening is None and self._has_room():
            self._opening = self._clock.callLater(seconds, self._open_some)

    def _open_some(self) -> None:
        """Begin the connections of the questions that waited longest."""
        self._opening = None
        left = AT_ONCE
        while left and self._has_room():
            left -= 1
            question = next(iter(self._waiting))
            came = partial(self._end, question, True)
            connection = ProbeConnection(self, question.host, question.frames, came)
            if not connection.open(self._reactor, question.port):
                if not self._failing:
                    self.log.error("no descriptor is left for a probe of {wire}: it waits", wire=self.wire)
                self._failing = True
                self._open_soon(RETRY)
                return
            question.connection = connection
            self._failing = False
            del self._waiting[question]
            self._open.add(question)
        self._open_soon()

    # ending

    def _over(self, question: _Question) -> None:
        """End a question whose time is over, unless the reactor is late for that: see the head of this module."""
        question.timer = None
        if question.connection is None:
            self._end(question, None)
        elif question.extended:
            self._end(question, False)
        else:
            question.extended = True
            late = self._clock.seconds() - question.due
            # The clock may be set: back, which is no lateness, or forward, which looks like any.
            more = min(max(0.0, late), question.seconds)
            question.timer = self._clock.callLater(more, self._over, question)

    def _end(self, question: _Question, alive: bool | None) -> None:
        if alive is None:
            del self._waiting[question]
            self._put_off += 1
        else:
            self._open.remove(question)
            if alive:
                self._answered += 1
            else:
                self._unanswered += 1
        _stop(question)
        self._open_soon()
        with self.log.failureHandler("the outcome of a probe made the broker fail"):
            question.answered(alive)


def _stop(question: _Question) -> None:
    """Leave nothing of a question in the reactor, or open."""
    if question.timer is not None:
        question.timer.cancel()
        question.timer = None
    if question.connection is not None:
        question.connection.close()
        question.connection = None  # they refer to each other, and would be left to the garbage collector
