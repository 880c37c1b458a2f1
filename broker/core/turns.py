"""Turns of the reactor that background work shares: work for thousands of services, and not for the input of one peer.

Rules:
- All background work together has `SHARE` seconds in one turn of the reactor. Work for which no time is left makes one
  step, of a millisecond or less, so that no kind of work waits for another; it goes on in the next turn.
- The trim of the heap (`broker.app.process_start`) is background work, too: other work makes room for it in its turn.
- Work within other work, such as the mirror of a cluster within its watch, has the time of the outer one.
- Young garbage is collected after each turn in which the share was used up. Such work discards as many old objects as
  it makes new ones: then the thresholds of the garbage collector are not reached for long, and in the end one turn has
  all of them, 240 ms with 50,000 services.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

T = TypeVar("T")

_log = Logger()

SHARE = 0.005
"""Seconds: peers do not notice less than 10 ms, and the input of others comes on top."""

PIECE = 50
"""Items of one step whose work takes some 20 µs each."""


def pieces(items: Iterable[T], size: int | None = None) -> Iterator[list[T]]:
    """Divide items into pieces of `PIECE` or another size, each for one step."""
    rest = iter(items)
    while piece := list(islice(rest, size or PIECE)):
        yield piece


def removed(items: list[T]) -> Iterator[list[T]]:
    """Divide a list into such pieces, from its end, and remove them: the last references to many objects are not
    dropped all at once, which would take up to a microsecond for each."""
    while items:
        piece = items[-PIECE:]
        del items[-PIECE:]
        yield piece


def for_each(items: Iterable[T], act: Callable[[T], object]) -> Iterator[None]:
    """Yield a step for each item: a call of ``act``. An exception is logged, and the steps of other items follow."""
    for item in items:
        try:
            act(item)
        except Exception:
            _log.failure("background work failed for one of many")
        yield


def all_at_once(steps: Iterable[object]) -> None:
    """Make all steps of a work in this turn."""
    for _ in steps:
        pass


class Turns:
    """The account of the time of background work on ``clock``: one for a process.

    As a context manager it counts the time of the block. Within it, `over` returns whether the work is to stop.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._spent = 0.0
        self._depth = 0
        self._start = self._end = 0.0
        self._resetting = False
        self.worked = 0.0
        """Seconds of all background work since the start."""

    def __enter__(self) -> None:
        if not self._depth:
            self._start = self._clock.seconds()
            self._end = self._start + SHARE - self._spent
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth:
            return
        took = self._clock.seconds() - self._start
        self._spent += took
        self.worked += took
        # Turns with little work share a timer.
        if self._spent > SHARE / 4:
            self._reset_soon()

    def over(self) -> bool:
        """Return True if the share of this turn is used up: what is left of the work is for the next one."""
        if self._clock.seconds() < self._end:
            return False
        self._reset_soon()  # before the work is scheduled
        return True

    def run(self, steps: Iterator[object]) -> Deferred[None]:
        """Make all steps, as many in each turn as there is time for, beginning now.

        Fires after the last one, or with the failure of a step: in the next turn if the share of this one is used up. A
        cancellation ends the work.
        """
        return _Work(self, self._clock, steps).done

    def _reset_soon(self) -> None:
        if not self._resetting:
            self._resetting = True
            self._clock.callLater(0, self._reset)

    def _reset(self) -> None:
        self._resetting = False
        if self._spent >= SHARE:
            gc.collect(1)
        self._spent = 0.0


class _Work:
    """Steps that are being made."""

    def __init__(self, turns: Turns, clock: IReactorTime, steps: Iterator[object]) -> None:
        self._turns = turns
        self._clock = clock
        self._steps = steps
        self._call: IDelayedCall | None = None
        self.done: Deferred[None] = Deferred(self._cancel)
        self._go_on()

    def _go_on(self) -> None:
        self._call = None
        try:
            with self._turns:
                for _ in self._steps:
                    if self.done.called:
                        return  # a step has cancelled the work
                    if self._turns.over():
                        self._call = self._clock.callLater(0, self._go_on)
                        return
                if self._turns.over():
                    self._call = self._clock.callLater(0, self._finish)
                    return
        except Exception:
            if not self.done.called:
                self.done.errback(Failure())
        else:
            self._finish()

    def _finish(self) -> None:
        self._call = None
        if not self.done.called:
            self.done.callback(None)

    def _cancel(self, done: Deferred[None]) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
        done.errback(CancelledError())
