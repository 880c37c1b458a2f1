"""A simulated broker: the real `Registry` and `Cluster` over the fake etcd, and its life."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.cluster import watch_feed
from broker.cluster.cluster import Cluster
from broker.cluster.links.link_messages import ALIVE
from broker.cluster.member_sessions import State
from broker.cluster.settings import ClusterFailed, ClusterSettings, Environment, Memory
from broker.core import turns
from broker.core.cluster.cluster_interfaces import QueueClaim
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import Change, Kind, Provider, Service
from broker.core.registered_services import Restored
from broker.core.turns import Turns
from tests.cluster.simulation.fake_client import Chances, FakeClient
from tests.cluster.simulation.fake_etcd import FakeEtcd
from tests.cluster.simulation.timeline import SimulatedClock, Timeline

STEP = 3
"""Keys that are handled in one step: the members of a history have few, and other things are to happen between two."""

OVER = 0.3
"""Chance that a turn of the reactor ends after a step of background work."""

SAVING = 0.05
"""Seconds, at most, until the memory is durable."""

GRACE = 8.0
"""Seconds for which services from before a restart are restored."""

LAG = 0.5
"""Seconds, at most, by which the store is behind at a kill."""

CREEP = 0.004
"""Seconds, at most, by which a reading of a slow broker's clock advances it."""


@contextmanager
def short_steps() -> Iterator[None]:
    """Handle `STEP` keys in one step within the block; other tests of the process have the broker's own number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "PIECE", STEP)
        patch.setattr(watch_feed, "PIECE", STEP)
        yield


class ShortTurns(Turns):
    """Turns that may end after each step."""

    def __init__(self, clock: SimulatedClock, rng: random.Random) -> None:
        super().__init__(clock)
        self._rng = rng

    def over(self) -> bool:
        return super().over() or self._rng.random() < OVER


class Disk:
    """`ClusterMemory` that a killed broker loses the newest part of."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self._clock = timeline.clock()
        self._rng = rng
        self._durable = Memory()
        self._saving: list[Any] = []
        self._record: dict[str, str] | None = None

    def load(self) -> Memory:
        return self._durable

    def save(self, memory: Memory) -> Deferred[None]:
        saved: Deferred[None] = Deferred()

        def durable() -> None:
            self._durable = memory
            self._saving.remove(saving)
            saved.callback(None)

        # One after the other.
        least = max([0.0, *(each.getTime() - self._clock.seconds() for each in self._saving)])
        saving = self._clock.callLater(least + self._rng.uniform(0, SAVING), durable)
        self._saving.append(saving)
        return saved

    def load_record(self) -> tuple[float, dict[str, str]] | None:
        return None if self._record is None else (1.0, dict(self._record))

    def save_record(self, changes: Mapping[str, str | None]) -> None:
        self._record = {
            name: value for name, value in ((self._record or {}) | dict(changes)).items() if value is not None
        }

    def kill(self) -> None:
        """Lose what is not durable."""
        for each in self._saving:
            each.cancel()
        self._saving = []

    def settle(self) -> None:
        """Write all at once, as an orderly stop does."""
        for each in list(self._saving):
            each.cancel()
            each.function()


class Node:
    """One broker. ``running`` from `start` to `crash` or `stop`; ``serving`` once it is a member and peers may come."""

    def __init__(
        self, name: str, timeline: Timeline, etcd: FakeEtcd, seed: str, settings: ClusterSettings, slow: bool
    ) -> None:
        self.name = name
        self.settings = settings
        self.running = self.serving = self.stopping = False
        self.failure: ClusterFailed | None = None
        self.sessions: dict[int, Any] = {}
        """Servers that are registered here, by provider id."""
        self.owned: set[tuple[str, str]] = set()
        """Queues that this broker takes for its own."""
        self.trouble_since: float | None = None
        """Time of the last fault of this broker, or of its connection; None without."""
        self.chances = Chances()
        self.cut: tuple[int, ...] | None = None
        self._timeline = timeline
        self._etcd = etcd
        self._seed = seed
        self._slow = slow
        self._runs = 0
        self.seen: list[tuple[bool, str]] = []
        """Services that a watcher of this run saw begin and end."""
        self._kept: list[Provider] = []
        self.alive: Callable[[], list[str]] = list
        """Returns the names of the brokers with a link."""
        self.disk = Disk(timeline, random.Random(f"{seed}/{name}/disk"))
        self._lag = random.Random(f"{seed}/{name}/lag")
        self.clock: SimulatedClock
        self.client: FakeClient
        self.registry: Any
        self.cluster: Cluster

    @property
    def paused(self) -> bool:
        """True while the process stands still."""
        return self.running and self.clock.paused

    @property
    def alive_at_links(self) -> bool:
        """True while the links show its life, or have shown it a moment ago."""
        return self.running and not (self.paused and self._timeline.now - self.clock.paused_at > ALIVE)

    @property
    def is_member(self) -> bool:
        """True while the broker is a member."""
        return self.running and not self.paused and self.cluster.state is State.MEMBER

    def start(self, after: Callable[[], object] = lambda: None) -> None:
        """Start the process."""
        assert not self.running
        self._runs += 1
        rng = random.Random(f"{self._seed}/{self.name}/{self._runs}")
        creep = (lambda: rng.random() * CREEP) if self._slow else None
        self.clock = self._timeline.clock(rng.uniform(0, 1e6), creep)
        self.client = FakeClient(self._etcd, self.clock, random.Random(rng.random()), self.name)
        self.client.chances = self.chances
        if self.cut is not None:
            self.client.cut = set(self.cut)
        restored = Restored(self._kept, GRACE, self.clock, lambda ids: None)
        self.registry = ClusterRegistry(self.clock, lambda: self.cluster.next_id(), restored)
        self.seen = []
        self.registry.watch(self._saw, (Kind.OFFERED, Kind.WITHDRAWN))
        short = ShortTurns(self.clock, random.Random(rng.random()))
        environment = Environment(
            self.client, self.registry, self.clock, self.disk, self.settings, random.Random(rng.random()), short
        )
        self.cluster = Cluster(environment, self._failed)
        self.cluster.follow_links(self.alive, self.alive)
        self.running, self.serving, self.failure = True, False, None
        self.cluster.watch_claims(self._claim_changed)
        number = self._runs

        def started(result: object) -> None:
            if number != self._runs or not self.running:
                return
            if isinstance(result, Failure) and result.check(CancelledError):
                return  # it stops
            if isinstance(result, Failure):
                assert isinstance(result.value, ClusterFailed), result
                self._failed(result.value)
            else:
                self.serving = True
                self._etcd.trace("serving", self.name)
            after()

        self._etcd.trace("broker starts", self.name)
        self.cluster.start(5.0).addBoth(started)

    def crash(self, forget: bool = False) -> list[Any]:
        """Kill the process. ``forget`` loses its disk. Returns the servers that lost their session."""
        self._etcd.trace("broker killed", self.name, forget)
        self.disk.kill()
        written = self.clock.seconds() - self._lag.uniform(0, LAG)
        self._kept = [each for each in self._own() if each.since <= written]
        if forget:
            self.disk = Disk(self._timeline, random.Random(f"{self._seed}/{self.name}/disk/{self._runs}"))
            self._kept = []
        return self._end()

    def stop(self, keep: bool, stopped: Callable[[], object] = lambda: None) -> list[Any]:
        """Stop the process in order. Returns the servers that lost their session."""
        self._etcd.trace("broker stops", self.name, keep)
        self._kept = self._own() if keep else []
        servers = list(self.sessions.values())
        self.sessions = {}
        self.serving, self.stopping = False, True

        def done(_: object) -> None:
            if self.running:
                self.disk.settle()
                self._end()
                stopped()

        self.cluster.stop(keep).addBoth(done)
        return servers

    def _end(self) -> list[Any]:
        self.clock.end()
        self.client.abandon()
        self.running = self.serving = self.stopping = False
        self.owned = set()
        servers, self.sessions = list(self.sessions.values()), {}
        return servers

    def _own(self) -> list[Provider]:
        return [each for each in self.registry.providers() if each.id in self.sessions]

    def listed(self) -> list[str]:
        """Return what is found, as `seen` has it."""
        return [_text(each) for each in self.registry.services()]

    def _saw(self, change: Change) -> None:
        assert isinstance(change.subject, Service)
        self.seen.append((change.kind is Kind.OFFERED, _text(change.subject)))

    def _failed(self, failure: ClusterFailed) -> None:
        self._etcd.trace("broker fails", self.name, str(failure))
        self.failure = failure

    def _claim_changed(self, space: str, name: str, claim: QueueClaim | None) -> None:
        if claim is not None and claim.owner == self.name:
            self.owned.add((space, name))
        else:
            self.owned.discard((space, name))


def _text(service: Service) -> str:
    return f"{service.provider} {service.name} {service.protocol} {service.hostport}"
