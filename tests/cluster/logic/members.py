"""Members of a farm in one process: `Cluster` and `ClusterRegistry` over a fake etcd, with one hand clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.cluster.cluster import Cluster
from broker.cluster.member_sessions import State
from broker.cluster.settings import ClusterFailed, ClusterSettings, Environment, Memory
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import Owner, Provider, Rights, Service
from broker.core.registered_services import Restored
from tests.cluster.simulation.fake_client import FakeClient
from tests.cluster.simulation.fake_etcd import FakeEtcd
from tests.ticking_clock import TickingClock

STEP = 0.01
"""Seconds by which the clock advances at a time."""


class KeptMemory:
    """`ClusterMemory` that outlives its member, durable at once."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.record: dict[str, str] | None = None

    def load(self) -> Memory:
        return self.memory

    def save(self, memory: Memory) -> None:
        self.memory = memory

    def load_record(self) -> tuple[float, dict[str, str]] | None:
        return None if self.record is None else (1.0, dict(self.record))

    def save_record(self, changes: Mapping[str, str | None]) -> Deferred[None] | None:
        self.record = {
            name: value for name, value in ((self.record or {}) | dict(changes)).items() if value is not None
        }
        return None


class Farm:
    """A fake etcd and the members that `member` starts."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = TickingClock()
        self.etcd = FakeEtcd(self.clock, random.Random(seed))

    def member(
        self,
        name: str,
        memory: KeptMemory | None = None,
        kept: Sequence[Provider] = (),
        grace: float = 30.0,
        **settings: Any,
    ) -> Member:
        """Start a member, which has ``kept`` providers from before its start."""
        return Member(self, name, memory or KeptMemory(), kept, grace, ClusterSettings(name, **settings))

    def joined(self, *names: str) -> list[Member]:
        """Return members that have joined."""
        members = [self.member(name) for name in names]
        self.until(lambda: all(each.started for each in members), "the join")
        # The first beats arrive.
        self.run(0.1)
        return members

    def run(self, seconds: float) -> None:
        """Advance the clock."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(STEP)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> float:
        """Advance the clock until a condition holds. Returns the seconds that took."""
        begin = self.clock.seconds()
        while not condition():
            assert self.clock.seconds() < begin + seconds, f"waited in vain for {what}"
            self.clock.advance(STEP)
        return self.clock.seconds() - begin

    def key(self, rest: str) -> bytes:
        """Return a key of the farm."""
        return b"/elkobroker/default/" + rest.encode()

    def values(self, kind: str) -> list[str]:
        """Return the keys of a kind, without their prefix."""
        prefix = self.key(kind + "/")
        return sorted(each[len(prefix) :].decode() for each in self.etcd.keys if each.startswith(prefix))

    def registrations(self, kind: str = "s") -> dict[str, int]:
        """Return the providers of the registrations in etcd, or with "t" of the standbys, by the ends of their keys."""
        keys = {rest: self.etcd.keys[self.key(f"{kind}/{rest}")] for rest in self.values(kind)}
        return {rest: msgspec.json.decode(kv.value)["provider"] for rest, kv in keys.items()}

    def providers(self) -> tuple[list[int], list[int]]:
        """Return the ids of the providers that have registrations in etcd, and of those that have standbys."""
        return sorted(set(self.registrations().values())), sorted(set(self.registrations("t").values()))


class Member:
    """A broker of the farm. ``started`` once its start has ended; ``error`` is the failure of the start, or the one
    that fenced it later."""

    def __init__(
        self,
        farm: Farm,
        name: str,
        memory: KeptMemory,
        kept: Sequence[Provider],
        grace: float,
        settings: ClusterSettings,
    ) -> None:
        self.farm = farm
        self.name = name
        self.memory = memory
        self.client = FakeClient(farm.etcd, farm.clock, random.Random(name), name)
        restored = Restored(kept, grace, farm.clock, lambda ids: None)
        self.registry = ClusterRegistry(farm.clock, lambda: self.cluster.next_id(), restored)
        self.started = False
        self.error: ClusterFailed | None = None
        environment = Environment(self.client, self.registry, farm.clock, memory, settings, random.Random(name))
        self.cluster = Cluster(environment, self._failed)
        self.cluster.start().addBoth(self._begun)

    def register(self, name: str = "bank", place: str = "h:1", label: str = "server", wire: str = "elko") -> int:
        """Register a provider with one service."""
        return self.offer(self.registry.join(label, wire, "10.0.0.1:5"), name, place)

    def register_instance(self, name: str, place: str, entry: str) -> int:
        """Register a provider that has an owner."""
        return self.offer(self.registry.join(entry, "http", "10.0.0.1", Owner("address 10.0.0.1", entry)), name, place)

    def offer(self, id: int, name: str, place: str, **more: Any) -> int:
        """Offer one more service of a provider."""
        self.registry.offer([Service(name, place, id, **more)], Rights())
        return id

    def found(self, name: str = "bank") -> list[int]:
        """Return the providers of a service, as finds have them."""
        return [each.provider for each in self.registry.find(name, "tcp")]

    def kill(self) -> None:
        """End as a process that is killed."""
        self.client.abandon()
        self.cluster._sessions.halt()

    @property
    def degradations(self) -> str:
        """The reasons for which it is degraded."""
        return " ".join(each.reason for each in self.cluster.degradations())

    @property
    def is_member(self) -> bool:
        """True while it is a member."""
        return self.cluster.state is State.MEMBER

    def _begun(self, result: object) -> None:
        self.started = True
        if isinstance(result, Failure) and not result.check(CancelledError):
            assert isinstance(result.value, ClusterFailed)
            self.error = result.value

    def _failed(self, error: ClusterFailed) -> None:
        self.error = error
