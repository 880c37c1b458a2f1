"""The CPU time of operations of the registry of a cluster's member, beside that of a single broker.

    python -m bench.cluster.registry [--runs N]

Both registries are in one process, in turns, without sockets; a clock that stands still. The least of all runs counts.
``mirrored`` is the member's registry with as many providers of another member beside its own.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

from twisted.internet.task import Clock

from bench.common.report import table
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import Provider, Rights, Service
from broker.core.registry import Registry
from broker.core.restored_services import Restored

PROVIDERS = 5_000
NAMES = 500
"""Names of services: ten providers offer each of them."""

READS = 50_000
"""Finds, and reports of loads."""

OPERATIONS = ("join", "offer", "find", "load", "leave")
FREE = Rights(services=1_000_000)


def single() -> Registry:
    """Return the registry of a single broker."""
    clock: Any = Clock()
    return Registry(clock, count(1).__next__, Restored((), 0.0, clock, lambda ids: None))


def member() -> ClusterRegistry:
    """Return the registry of a member."""
    clock = Clock()
    return ClusterRegistry(clock, count(1).__next__, Restored((), 0.0, clock, lambda ids: None))


def mirrored() -> ClusterRegistry:
    """Return the registry of a member with providers of another one, at other endpoints."""
    registry = member()
    for number in range(PROVIDERS):
        id = 1_000_000 + number
        service = Service(f"service-{number % NAMES}", f"other:{number}", id)
        registry.mirror([Provider(id, "other", "elko", "", 0.0, 0.0, (service,), broker="other")])
    return registry


def measure(make: Callable[[], Registry]) -> list[float]:
    """Return the microseconds of one operation of each kind."""
    registry = make()
    names = [f"service-{number % NAMES}" for number in range(PROVIDERS)]
    at = [time.process_time()]
    ids = [registry.join("provider", "elko", "192.0.2.1:1") for _ in names]
    at.append(time.process_time())
    for id, name in zip(ids, names, strict=True):
        registry.offer([Service(name, f"host:{id}", id)], FREE)
    at.append(time.process_time())
    for name in names[:NAMES]:
        registry.find(name, "tcp")  # the first find after a change gathers the answer, which is then cached
    gathered = time.process_time() - at[-1]
    for number in range(READS):
        registry.find(names[number % PROVIDERS], "tcp")
    at.append(time.process_time())
    for number in range(READS):
        registry.load(ids[number % PROVIDERS], float(number))
    at.append(time.process_time())
    for id in ids:
        registry.leave(id)
    at.append(time.process_time())
    counts = (PROVIDERS, PROVIDERS, READS, READS, PROVIDERS)
    spent = [after - before for before, after in pairwise(at)]
    spent[2] -= gathered
    return [seconds / count * 1e6 for seconds, count in zip(spent, counts, strict=True)]


def main() -> None:
    """Run from the command line."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7, help="runs of each registry (7)")
    runs = parser.parse_args().runs
    makers: dict[str, Callable[[], Registry]] = {"single": single, "member": member, "mirrored": mirrored}
    found: dict[str, list[list[float]]] = {name: [] for name in makers}
    for _ in range(runs):
        for name, make in makers.items():
            found[name].append(measure(make))
    best = {name: [min(each) for each in zip(*every, strict=True)] for name, every in found.items()}
    rows = [
        [name, *(f"{value:.2f} ({value / of:.2f})" for value, of in zip(times, best["single"], strict=True))]
        for name, times in best.items()
    ]
    print(table(["registry, µs (ratio)", *OPERATIONS], rows))


if __name__ == "__main__":
    main()
