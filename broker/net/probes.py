"""Asks peers whether they live, each through a ZeroMQ socket of its own.

Rules:
- A question is one message to one address. Any whole message that comes back on its connection is life.
- It ends with the answer, or when its time is over, which counts from when it was asked.
- It makes one connection. If that is refused or ends, nothing is tried again, and its time runs out: a peer that names
  the address of another one does not have it called ten times a second, and the next question comes soon enough.
- `MOST` questions are open at a time, the others wait in order. One that waited until its time was over was put off:
  that says nothing about the peer, and is reported and counted apart.
- No socket is opened in ``ask``, and `AT_ONCE` in one turn of the reactor. If there are no descriptors for one, the
  question waits on.

The caller bounds the number of questions that wait: one for each peer at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address

import attrs
import zmq
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.net.zclient import Dealer, Dealers

MOST = 200
"""Questions that are open at a time. Each takes two descriptors; a peer that lives answers within milliseconds, so that
only those that do not live wait here."""

AT_ONCE = 10
"""Sockets opened in one turn of the reactor: two or three milliseconds."""

RETRY = 1.0
"""Seconds until a socket is tried again that could not be opened."""

PORTS = range(1, 65_536)


@attrs.define(eq=False)
class _Question:
    address: str
    frames: Sequence[bytes]
    answered: Callable[[bool | None], object]
    timer: IDelayedCall | None = None
    dealer: Dealer | None = None
    """None while it waits."""


class Probes:
    """Asks peers by ZeroMQ whether they live. ``dealers`` are for it alone, and are closed with it."""

    log = Logger()

    def __init__(self, dealers: Dealers, clock: IReactorTime, name: str) -> None:
        self._dealers = dealers
        self._clock = clock
        self._name = name
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

        Raises ValueError unless ``host`` is a numeric IPv4 address: libzmq looks names up in the thread that does all
        of its input and output. After `close` nothing is asked.
        """
        address = f"tcp://{IPv4Address(host)}:{port}"
        if port not in PORTS or not frames:
            raise ValueError("a question needs a port and a frame")
        if self._closed:
            return
        question = _Question(address, tuple(frames), answered)
        question.timer = self._clock.callLater(seconds, self._over, question)
        self._asked += 1
        self._waiting[question] = None
        self._open_soon()

    def close(self) -> None:
        """Ask nothing any more, and close all sockets. Questions that are open are never answered."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        for question in [*self._waiting, *self._open]:
            _stop(question)
        self._waiting.clear()
        self._open.clear()
        self._dealers.close()

    def counts(self) -> Mapping[str, int]:
        """Counters, by name: the questions that were asked, and the outcomes of those that are not open any more."""
        return {
            f"{self._name}_probes.asked": self._asked,
            f"{self._name}_probes.answered": self._answered,
            f"{self._name}_probes.unanswered": self._unanswered,
            f"{self._name}_probes.put_off": self._put_off,
        }

    # opening

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._open) < MOST

    def _open_soon(self, seconds: float = 0) -> None:
        if self._opening is None and self._has_room():
            self._opening = self._clock.callLater(seconds, self._open_some)

    def _open_some(self) -> None:
        """Open the sockets of the questions that waited longest."""
        self._opening = None
        left = AT_ONCE
        while left and self._has_room():
            left -= 1
            question = next(iter(self._waiting))
            try:
                question.dealer = self._dealers.open(
                    question.address, question.frames, partial(self._end, question, True)
                )
            except zmq.ZMQError as error:
                if not self._failing:
                    self.log.error("no socket for a probe of {name}: {error}", name=self._name, error=str(error))
                self._failing = True
                self._open_soon(RETRY)
                return
            self._failing = False
            del self._waiting[question]
            self._open.add(question)
        self._open_soon()

    # ending

    def _over(self, question: _Question) -> None:
        """End a question whose time is over. A message that came while the reactor was busy counts."""
        question.timer = None
        self._end(question, None if question.dealer is None else question.dealer.answered())

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
    if question.dealer is not None:
        question.dealer.shutdown()
        question.dealer = None  # they refer to each other, and would be left to the garbage collector
