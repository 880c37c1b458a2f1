"""The reasons for which the daemon is not ready, and the lag of the reactor."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.app import readiness
from broker.app.process import INTERVAL, WINDOW, LoopLag
from broker.app.readiness import STALLED, Readiness
from broker.core.model import Listening, NotReady


def test_a_daemon_without_obstacles_is_ready() -> None:
    ready = Readiness()
    ready.add(lambda: readiness.listeners(lambda: [Listening("mtl", "tcp", 0.0)]))
    ready.add(lambda: readiness.written("store", ""), lambda: readiness.loop(STALLED / 2))
    ready.add(lambda: readiness.certificates([("main", None), ("lan", 11.0)], 10.0), lambda: readiness.draining("off"))
    assert ready.reasons() == []


def test_each_obstacle_is_named_with_its_reason() -> None:
    ready = Readiness()
    ready.add(lambda: readiness.listeners(lambda: [Listening("mtl", "tcp", 0.0, "Address already in use")]))
    ready.add(lambda: readiness.written("store", "database or disk is full"), lambda: readiness.loop(STALLED))
    ready.add(lambda: readiness.certificates([("main", 10.0)], 10.0), lambda: readiness.draining("overdue"))
    assert ready.reasons() == [
        NotReady("listener mtl", "Address already in use"),
        NotReady("store", "database or disk is full"),
        NotReady("reactor", "the loop stalled for 1.0 s within the last ten seconds"),
        NotReady("certificate main", "it has expired"),
        NotReady("drain", "the broker sends its peers away, and is overdue"),
    ]


class Loop:
    """A reactor whose timers may be late: a clock for timers, and a monotonic one that a test sets."""

    def __init__(self) -> None:
        self.timers = Clock()
        self.now = 100.0
        self.lag = LoopLag(self.timers, lambda: self.now)
        self.measured: list[float] = []
        self.lag.measured.append(self.measured.append)

    def tick(self, late: float = 0.0) -> None:
        self.now += INTERVAL + late
        self.timers.advance(INTERVAL)


def test_the_lag_is_the_lateness_of_a_timer() -> None:
    loop = Loop()
    loop.lag.start()
    for late in (0.0, 1.5, 0.25):
        loop.tick(late)
    assert [round(each, 6) for each in loop.measured] == [0.0, 1.5, 0.25]
    assert round(loop.lag.recent, 6) == 1.5
    loop.lag.stop()
    assert not loop.timers.getDelayedCalls()


def test_a_lag_is_forgotten_after_the_window() -> None:
    loop = Loop()
    loop.lag.start()
    loop.tick(1.5)
    loop.tick(0.5)
    for _ in range(round(WINDOW / INTERVAL) - 1):
        loop.tick()
    assert round(loop.lag.recent, 6) == 0.5
    loop.tick()
    loop.tick()
    assert round(loop.lag.recent, 6) == 0.0


def test_a_timer_that_is_early_is_no_lag() -> None:
    loop = Loop()
    loop.lag.start()
    loop.tick(-INTERVAL / 2)
    assert loop.measured == [0.0]
