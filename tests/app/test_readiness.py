"""The reasons for which the daemon is not ready, and the recent lag of the reactor."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.app import readiness
from broker.app.readiness import STALLED, Readiness
from broker.app.recent_lag import WINDOW, RecentLag
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


def test_the_largest_recent_lag_counts() -> None:
    clock = Clock()
    lag = RecentLag(clock)
    assert lag.largest == 0.0
    for each in (0.0, 1.5, 0.25):
        lag.add(each)
        clock.advance(0.1)
    assert lag.largest == 1.5


def test_a_lag_is_forgotten_after_the_window() -> None:
    clock = Clock()
    lag = RecentLag(clock)
    lag.add(1.5)
    clock.advance(1)
    lag.add(0.5)
    clock.advance(WINDOW - 0.5)
    assert lag.largest == 0.5
    clock.advance(1)
    assert lag.largest == 0.0


def test_a_clock_that_is_set_back_forgets_the_lags_of_the_future() -> None:
    clock = Clock()
    clock.advance(100)
    lag = RecentLag(clock)
    lag.add(1.5)
    clock.rightNow = 50.0
    assert lag.largest == 0.0
