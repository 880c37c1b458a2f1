"""The core of a farm without sockets: the parts that the sessions of every wire stand on, and a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from twisted.internet.task import Clock

from broker.core.interfaces import ILeases, IRegistry
from broker.core.liveness import Leases
from broker.core.model import Provider
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.silent_peers import EndAtOnce, Silence
from broker.net.refusal_log import Counters, RefusalLog

START = 1_795_246_600.0
"""Seconds of the epoch at which the clocks begin: the reactor's clock is the time of day, too."""

GRACE = 60.0
"""Seconds for which restored entries last."""

STEP = 0.05
"""Seconds that the clock advances at a time: the turns of a busy broker are shorter."""


def clock_at(seconds: float = START) -> Clock:
    """A clock that shows that time."""
    clock = Clock()
    clock.advance(seconds)
    return clock


def registry_at(clock: Clock, restored: Iterable[Provider] = (), grace: float = GRACE) -> Registry:
    """A registry whose ids begin with 1, and that stores nothing."""
    return Registry(clock, count(1).__next__, Restored(restored, grace, clock, lambda ids: None))


MakeSilence = Callable[[IRegistry, ILeases, Clock], Silence]
"""Makes the rule for silent peers of a farm."""


class CoreFarm:
    """The clock, counters, refusal_log, and leases of a farm. Each wire adds its sessions to them."""

    step = STEP
    """Seconds by which `wait` advances the clock at a time."""

    make_silence: MakeSilence = staticmethod(lambda registry, leases, clock: EndAtOnce())
    """Tests of many silent peers make another one, in a class of their own."""

    def __init__(self, clock: Clock | None = None, leases: Leases | None = None) -> None:
        self.clock = clock_at() if clock is None else clock
        self.counters = Counters()
        self.refusal_log = RefusalLog(self.counters, self.clock)
        self.leases = Leases(self.clock) if leases is None else leases

    def restart_core(self) -> None:
        """Begin as after a restart of the broker: with the same clock, and without any lease or timer."""
        for call in self.clock.getDelayedCalls():
            call.cancel()
        self.leases = Leases(self.clock)

    def counts(self) -> Mapping[str, int]:
        """The counters of the wire's own parts."""
        return {}

    def counted(self, name: str) -> int:
        """The counter NAME.REASON."""
        return {**self.counters.all(), **self.counts()}.get(name, 0)

    def wait(self, seconds: float, step: float | None = None) -> None:
        """Let the time pass as it does for a loop that is never busy for longer than ``step``."""
        step = step or self.step
        self.clock.pump([step] * round(seconds / step))
