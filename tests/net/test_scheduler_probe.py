"""The probe of the scheduler's delay."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.net.scheduler import Scheduler, SchedulerProbe
from tests.net.test_scheduler import Work


def test_the_delay_is_the_time_until_the_probe_is_served() -> None:
    clock, delays = Clock(), list[float]()
    scheduler = Scheduler(clock)
    probe = SchedulerProbe(clock, scheduler, delays.append)
    scheduler.serve_later(Work("input", 1, []))
    probe.queue()
    assert delays == []
    clock.advance(0.25)
    assert delays == [0.25]
    clock.advance(1)
    assert (delays, clock.getDelayedCalls()) == ([0.25], []), "it costs nothing between two probes"


def test_a_probe_that_waits_is_queued_once() -> None:
    clock, delays = Clock(), list[float]()
    scheduler = Scheduler(clock)
    probe = SchedulerProbe(clock, scheduler, delays.append)
    scheduler.serve_later(Work("input", 1, []))
    for _ in range(3):
        probe.queue()
    clock.advance(0.5)
    assert delays == [0.5]


def test_an_idle_scheduler_is_measured_without_a_turn() -> None:
    clock, delays = Clock(), list[float]()
    SchedulerProbe(clock, Scheduler(clock), delays.append).queue()
    assert (delays, clock.getDelayedCalls()) == ([0.0], [])
