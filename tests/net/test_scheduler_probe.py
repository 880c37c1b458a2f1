"""The probe of the scheduler's delay."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.net.scheduler import Scheduler, SchedulerProbe


def test_the_delay_is_the_time_until_the_probe_is_served() -> None:
    clock, delays = Clock(), list[float]()
    probe = SchedulerProbe(clock, Scheduler(clock), delays.append)
    probe.queue()
    assert delays == []
    clock.advance(0.25)
    assert delays == [0.25]
    clock.advance(1)
    assert (delays, clock.getDelayedCalls()) == ([0.25], []), "it costs nothing between two probes"


def test_a_probe_that_waits_is_queued_once() -> None:
    clock, delays = Clock(), list[float]()
    probe = SchedulerProbe(clock, Scheduler(clock), delays.append)
    for _ in range(3):
        probe.queue()
    clock.advance(0.5)
    probe.queue()
    clock.advance(0)
    assert delays == [0.5, 0.0]
