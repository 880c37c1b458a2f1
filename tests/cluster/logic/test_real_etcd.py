"""Three members over the real etcd, in one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater

from broker.cluster.cluster import Cluster
from broker.cluster.member_sessions import State
from broker.cluster.settings import ClusterFailed, ClusterSettings, Environment
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.errors import Refusal
from broker.core.model import Rights, Service
from broker.core.registered_services import Restored
from tests.cluster.etcd.recording import ClientCase
from tests.cluster.logic.members import KeptMemory
from tests.cluster.real_etcd import Etcd
from tests.patience import PATIENCE

TTL = 4
"""TTL in seconds, of which an interruption is more than the half: a short one, since the test waits for it."""

LONG_TTL = 30
"""TTL in seconds of members without links. After two of them in a doubt, nothing shows that a member is alive which has
not reached etcd again, and the service that its own one replaced is back: on a busy machine that takes its time."""


async def until(condition: Callable[[], object], what: str, seen: Callable[[], object] = str) -> None:
    """Wait until a condition holds; ``seen`` returns what the failure reports instead."""
    end = reactor.seconds() + PATIENCE  # type: ignore[attr-defined]
    while not condition():
        assert reactor.seconds() < end, f"waited in vain for {what}: {seen()}"  # type: ignore[attr-defined]
        await deferLater(reactor, 0.01)  # type: ignore[arg-type]


async def in_touch(cluster: Cluster) -> None:
    """Wait until a member has read all that etcd has."""
    end = reactor.seconds() + PATIENCE  # type: ignore[attr-defined]
    while True:
        try:
            return await cluster.caught_up()
        except Refusal:
            assert reactor.seconds() < end, "waited in vain for the cluster"  # type: ignore[attr-defined]
            await deferLater(reactor, 0.05)  # type: ignore[arg-type]


class RealEtcdTests(ClientCase):
    directory: Path

    @pytest.fixture(autouse=True)
    def use_directory(self, tmp_path: Path) -> None:
        """Give the test a directory."""
        self.directory = tmp_path

    def member(
        self, name: str, etcd: Etcd, memory: KeptMemory | None = None, **settings: Any
    ) -> tuple[Cluster, ClusterRegistry]:
        """Make a member, which is not started."""
        failures: list[ClusterFailed] = []
        client = self.client(*etcd.urls)
        registry = ClusterRegistry(
            reactor,  # type: ignore[arg-type]
            lambda: cluster.next_id(),
            Restored((), 30.0, reactor, lambda ids: None),  # type: ignore[arg-type]
        )
        environment = Environment(
            client,
            registry,
            reactor,  # type: ignore[arg-type]
            memory or KeptMemory(),
            ClusterSettings(name, **settings),
            random.Random(name),
        )
        cluster = Cluster(environment, failures.append)
        self.addCleanup(lambda: self.assertEqual(failures, []))
        self.addCleanup(cluster.stop, False)
        return cluster, registry

    @pytest.mark.long
    async def test_members_share_a_registry_over_restarts_and_faults_of_etcd(self) -> None:
        def register(registry: ClusterRegistry, place: str) -> int:
            id = registry.join("server", "elko", "10.0.0.1:5")
            registry.offer([Service("bank", place, id)], Rights())
            return id

        def found(registry: ClusterRegistry) -> list[int]:
            return [each.provider for each in registry.find("bank", "tcp")]

        with Etcd(self.directory, members=3) as etcd:
            memory = KeptMemory()
            a, b, c = (self.member(name, etcd, memory if name == "a" else None, ttl=LONG_TTL) for name in "abc")
            await gatherResults([each.start() for each, _ in (a, b, c)])
            registries = [a[1], b[1], c[1]]
            first = register(a[1], "h:1")
            await until(lambda: all(found(each) == [first] for each in registries), "a service")
            second = register(b[1], "h:1")
            await until(lambda: all(found(each) == [second] for each in registries), "a move")
            twin, _ = self.member("b", etcd, ttl=LONG_TTL)
            with pytest.raises(ClusterFailed, match="another broker has the name b"):
                await twin.start()

            etcd.leader().kill()
            third = register(c[1], "h:3")
            expected = sorted([second, third])
            await until(lambda: all(found(each) == expected for each in registries), "a service without the leader")

            for each in etcd.members:
                each.kill()
            await until(lambda: all(cluster.degradations() for cluster, _ in (a, b, c)), "the notice")
            fourth = register(a[1], "h:4")
            assert all(set(expected) <= set(found(each)) for each in registries)
            for each in etcd.members:
                each.wipe()
                each.start()
            expected = sorted([*expected, fourth])

            def seen() -> list[object]:
                members = [(cluster.state, *cluster.degradations()) for cluster, _ in (a, b, c)]
                return [expected, *map(found, registries), *members, [each.healthy() for each in etcd.members]]

            await until(lambda: all(found(each) == expected for each in registries), "all of the lost data", seen)

            await a[0].stop(True)
            again = self.member("a", etcd, memory, ttl=LONG_TTL)
            await again[0].start()
            assert again[0].state is State.MEMBER
            # The entries of the run before are still there for the others.
            assert found(b[1]) == expected
            fifth = register(again[1], "h:4")
            expected = sorted([second, third, fifth])
            registries = [again[1], b[1], c[1]]
            await until(lambda: all(found(each) == expected for each in registries), "the return of a provider")
            for cluster, _ in (again, b, c):
                await cluster.stop(False)

    async def test_a_lease_that_ends_after_an_outage_of_all_is_held(self) -> None:
        """That of one member ends when the other one is in touch again, before it is back itself."""
        with Etcd(self.directory) as etcd:
            a, c = self.member("a", etcd, ttl=TTL), self.member("c", etcd, ttl=TTL)
            await gatherResults([each.start() for each, _ in (a, c)])
            id = a[1].join("server", "elko", "10.0.0.1:5")
            a[1].offer([Service("bank", "h:1", id)], Rights())
            await until(lambda: c[1].find("bank", "tcp"), "the service")
            etcd.members[0].pause()
            await deferLater(reactor, 0.6 * TTL)  # type: ignore[arg-type]
            a[0]._sessions.halt()
            etcd.members[0].resume()
            await in_touch(c[0])
            await self.client(*etcd.urls).revoke(a[0]._parts.membership.lease)
            await in_touch(c[0])
            assert [each.provider for each in c[1].find("bank", "tcp")] == [id]
