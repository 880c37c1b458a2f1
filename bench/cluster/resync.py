"""A resynchronisation of a broker that runs: how long it takes, and for how long it holds the reactor.

    python -m bench.cluster.resync [--services N]

Two members of a farm, without wires, share this process, its reactor and a real etcd of one member. One has the
services, ten of each provider; the other one reads all keys again, once without a change, and once after half of the
providers have changed unseen. A timer of 2 ms has the longest time between two turns of the reactor, and the most CPU
time of the process in between, which other load of the machine hardly changes; both members have their part in it.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor  # noqa: TID253 - nothing else imports this program
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from bench.common.machine import describe
from bench.common.report import table
from broker.cluster.cluster import Cluster
from broker.cluster.etcd.client import connect
from broker.cluster.settings import ClusterSettings, Environment, Memory
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import Rights, Service
from broker.core.restored_services import Restored
from tests.cluster.real_etcd import Etcd

reactor: Any = _reactor

EVERY = 0.002
"""Seconds between two calls of the timer."""

PER_PROVIDER = 10


class NoMemory:
    """A memory of nothing."""

    def load(self) -> Memory:
        return Memory()

    def save(self, memory: Memory) -> None:
        pass


class Turns:
    """A timer that notes the most seconds, and the most CPU time, between two of its calls."""

    def __init__(self) -> None:
        self.begin()
        self._tick()

    def begin(self) -> None:
        """Forget what was noted."""
        self.longest = self.cpu = 0.0
        self._before = time.perf_counter(), time.process_time()

    def _tick(self) -> None:
        now = time.perf_counter(), time.process_time()
        self.longest = max(self.longest, now[0] - self._before[0] - EVERY)
        self.cpu = max(self.cpu, now[1] - self._before[1])
        self._before = now
        reactor.callLater(EVERY, self._tick)


def member(name: str, etcd: Etcd) -> tuple[Cluster, ClusterRegistry]:
    """Return a member, which is not started, and its registry."""
    registry = ClusterRegistry(reactor, lambda: cluster.next_id(), Restored((), 0.0, reactor, lambda ids: None))
    settings = ClusterSettings(name, ttl=30)
    environment = Environment(
        connect(reactor, deferToThread, etcd.urls), registry, reactor, NoMemory(), settings, random.Random(1)
    )
    cluster = Cluster(environment, lambda error: sys.exit(str(error)))
    return cluster, registry


async def resync(cluster: Cluster) -> float:
    """Have a member read all keys again. Returns the seconds until its registry has them."""
    parts, before = cluster._parts, cluster.counts()["cluster.resyncs"]
    begun = time.perf_counter()
    # As after a compaction of the next revision.
    parts.feed._complete = False
    cluster._sessions.interrupt("a resynchronisation is measured")
    while cluster.counts()["cluster.resyncs"] == before or cluster.degradations():
        await deferLater(reactor, EVERY)
    applied: Deferred[None] = Deferred()
    parts.mirror.when_applied(lambda: applied.callback(None))
    await applied
    return time.perf_counter() - begun


async def measure(etcd: Etcd, services: int) -> list[list[str]]:
    """Return the rows of the table."""
    one, registry = member("a", etcd)
    other, mirrored = member("b", etcd)
    await one.start()
    await other.start()
    ids = [registry.join(f"server {number}", "elko", "10.0.0.1:1") for number in range(services // PER_PROVIDER)]
    for number, id in enumerate(ids):
        offered = [Service(f"service-{number % 100}", f"h{number}:{n}", id) for n in range(PER_PROVIDER)]
        registry.offer(offered, Rights(services=services))
        await deferLater(reactor, 0)
    while len(mirrored.services()) < services:
        await deferLater(reactor, 0.1)
    gc.collect()
    gc.freeze()
    turns = Turns()
    rows = []
    for what in ("nothing, without a resynchronisation", "nothing", "half of the providers"):
        if what.startswith("half"):
            other._parts.feed.close()
            for number, id in enumerate(ids[::2]):
                registry.offer([Service("another", f"h{number}:99", id)], Rights(services=services))
            await deferLater(reactor, 2.0)
        turns.begin()
        if "without" in what:
            await deferLater(reactor, 2.0)
            seconds = ""
        else:
            seconds = f"{await resync(other):.2f}"
        rows.append([what, seconds, f"{1000 * turns.longest:.1f}", f"{1000 * turns.cpu:.1f}"])
    assert mirrored.services() == registry.services()
    await one.stop(False)
    await other.stop(False)
    return rows


def main() -> None:
    """Measure, and print Markdown."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--services", type=int, default=10_000)
    given = options.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in describe().items()))

    def done(result: object) -> None:
        print(
            table(("changed meanwhile", "seconds", "longest turn, ms", "most CPU in a turn, ms"), result)
            if isinstance(result, list)
            else result
        )
        reactor.stop()

    with tempfile.TemporaryDirectory(prefix="elkobroker-bench-") as directory, Etcd(Path(directory)) as etcd:
        Deferred.fromCoroutine(measure(etcd, given.services)).addBoth(done)
        reactor.run()


if __name__ == "__main__":
    main()
