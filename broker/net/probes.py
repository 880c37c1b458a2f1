"""Asks peers whether they live, each through a ZeroMQ socket of its own.

Rules:
- A question is one message to one address. Whatever comes back whole on its connection is life, whatever it says.
- It ends with the answer, or when its time is over, which counts from when it was asked.
- It makes one connection. If that is refused or ends, nothing is tried again, and its time runs out: whoever names an
  address does not get it knocked at ten times a second, and the next question comes soon enough.
- `MOST` questions are open at a time, the others wait in order. One that waited until its time was over was put off:
  that says nothing about the peer, and is told and counted apart.
- No socket is opened in ``ask``, and `AT_ONCE` in one turn of the reactor. If there are no descriptors for one, the
  question waits on.

How many questions wait is up to the caller: one for each peer at most.
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

from broker.net.turns import Turns
from broker.net.zcontext import Options, ZContext
from broker.net.zsocket import ZSocket

MOST = 200
"""Questions that are open at a time. Each takes two descriptors; a peer that lives answers within milliseconds, so that
only those that do not live wait here."""

AT_ONCE = 10
"""Sockets opened in one turn of the reactor: two or three milliseconds."""

HIGH_WATER = 10
"""Messages that may come in before the first is seen; one is enough."""

MAX_ANSWER = 64 * 1024
"""Bytes of one frame of an answer, which nobody reads. A longer one is no answer."""

NEVER = 24 * 60 * 60 * 1000
"""Milliseconds until a connection that ended is made again: longer than any question is open. To forbid it to libzmq
altogether would not do: it then drops what came just before the end."""

RETRY = 1.0
"""Seconds until a socket is tried again that could not be opened."""

PORTS = range(1, 65_536)


@attrs.define(eq=False)
class _Question:
    address: str
    frames: Sequence[bytes]
    answered: Callable[[bool | None], object]
    timer: IDelayedCall | None = None
    socket: ZSocket | None = None
    """None while it waits."""


class Probes:
    """Asks peers by ZeroMQ whether they live: one message to an address, and whatever comes back is life."""

    log = Logger()

    def __init__(self, context: ZContext, turns: Turns, clock: IReactorTime, name: str) -> None:
        self._context = context
        self._turns = turns
        self._clock = clock
        self._name = name
        self._options = Options(zmq.DEALER, HIGH_WATER, MAX_ANSWER, linger=0)
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
        """Ask nothing any more. Nobody hears of what is open."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        for question in [*self._waiting, *self._open]:
            _stop(question)
        self._waiting.clear()
        self._open.clear()

    def counts(self) -> Mapping[str, int]:
        """How many questions were asked, and how those ended that are not open any more."""
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
        """Open the sockets of those that waited longest."""
        self._opening = None
        left = AT_ONCE
        while left and self._has_room():
            left -= 1
            question = next(iter(self._waiting))
            try:
                self._connect(question)
            except zmq.ZMQError as error:
                if not self._failing:
                    self.log.error("no socket for a probe of {name}: {error}", name=self._name, error=str(error))
                self._failing = True
                self._open_soon(RETRY)
                return
            self._failing = False
        self._open_soon()

    def _connect(self, question: _Question) -> None:
        """Open its socket, and send. It waits no more, unless this raises `zmq.ZMQError`."""
        socket = ZSocket(self._context, self._options, self._turns, f"{self._name} probe")
        try:
            socket.socket.set(zmq.RECONNECT_IVL, NEVER)
            socket.connect(question.address, partial(self._came, question))
        except zmq.ZMQError:
            socket.shutdown()
            raise
        question.socket = socket
        del self._waiting[question]
        self._open.add(question)
        socket.send(b"", question.frames)

    # ending

    def _came(self, question: _Question, identity: bytes, frames: Sequence[object], source: int) -> None:
        """Something came back."""
        self._end(question, True)

    def _over(self, question: _Question) -> None:
        """Its time is over. What came meanwhile, while the broker was busy, counts."""
        question.timer = None
        if question.socket is None or question.socket.socket is None:
            self._end(question, None)
        else:
            self._end(question, bool(question.socket.socket.get(zmq.EVENTS) & zmq.POLLIN))

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
        question.answered(alive)


def _stop(question: _Question) -> None:
    """Leave nothing of it in the reactor, or open."""
    if question.timer is not None:
        question.timer.cancel()
        question.timer = None
    if question.socket is not None:
        question.socket.shutdown()
        question.socket = None  # they refer to each other, and would be left to the garbage collector
