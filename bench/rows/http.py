"""HTTP: finds and registrations beside a bare Twisted protocol, and the CPU of reads with 100,000 services.

Reads are called in this process, without a socket. The pieces of a body are counted one by one, since the transport
takes at least one in a step of the scheduler, and a step that is over its quantum ends the turn.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
from twisted.internet.task import Clock

from bench.harness import Figure, Load, Row, Scenario, Start, at_most, cpu
from bench.peers.http import FIND, PLACE, Requests, Watchers, put, register
from bench.servers import CHECKOUT, Server, etcd, http, reference, twistd
from broker.access.principal import Principal
from broker.access.rights import AnonymousAccess
from broker.app.daemon import COLLECT_AFTER
from broker.app.process import COUNTERS
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.turns import Turns
from broker.operate import daemon_endpoints, event_endpoints, metrics, table_endpoints, why
from broker.operate.broker_tables import counter_view, registry_views
from broker.rest.http_endpoint import Call, Routes, convert_query
from broker.rest.messages import Request, Response
from broker.wires.http.sessions.finding import FindingEndpoints
from broker.wires.tables import AnyView

READS = (
    "/v1/services",
    "/v1/services?limit=1000&offset=50000",
    "/v1/services?pattern=*-4242*",
    "/v1/services?where=protocol=tcp&where=label=x",
    "/v1/services?sort=-hostport",
    "/v1/services?sort=hostport&offset=99000&limit=1000",
    "/v1/providers",
    "/v1/providers?sort=-load",
    "/v1/loads?sort=load",
    "/v1/loads/history?limit=1000",
    "/v1/discovery/prometheus",
    "/v1/providers/5",
    "/v1/why/service-4242",
    "/v1/events",
    "/v1/events?limit=1000",
    "/v1/registry",
    "/v1/counters",
    "/v1/views",
    "/metrics",
)
"""The reads."""

SERVICES = 100_000
"""Services, each of a provider of its own."""

RUNS = 3

BOUND = 10.0
"""Milliseconds of CPU that no turn may take."""


def reads(_: float) -> list[Figure]:
    """Measure all reads: the least of `RUNS` counts."""
    farm = _Farm()
    figures = []
    for read in READS:
        longest, whole, pieces = min(_measured(farm, read) for _ in range(RUNS))
        figures.append(
            at_most(
                f"{read}: longest turn, ms ({whole * 1e3:.1f} in {pieces:,} pieces)", longest * 1e3, BOUND, "{:.2f}"
            )
        )
    return figures


class _Farm:
    """A registry with services, and the endpoints over it."""

    def __init__(self) -> None:
        self.clock = Clock()
        ids = count(1)
        registry = Registry(self.clock, lambda: next(ids), Restored([], 0.0, self.clock, lambda ids: None))
        for number in range(SERVICES):
            provider = registry.join(f"server-{number}", "elko", f"192.0.2.{number % 250}:{number % 60_000}")
            registry.offer([Service(f"service-{number}", f"server-{number}:9000", provider)], Rights())
            registry.load(provider, number % 97 / 97)
        past = LoadHistory(registry, self.clock, Turns(self.clock))
        past.start()
        self.clock.advance(2 * STEP)
        views: Mapping[str, AnyView] = {
            view.name: view
            for view in (*registry_views(registry, self.clock), counter_view(lambda: {"a.b": 1}, COUNTERS))
        }
        self.routes = Routes(
            [
                *table_endpoints.table_endpoints(lambda: views, registry),
                *FindingEndpoints(registry, AnonymousAccess(), self.clock).endpoints(),
                *why.endpoints(registry, self.clock, past, lambda provider: None),
                *table_endpoints.history_endpoints(registry, past),
                *event_endpoints.event_endpoints(registry),
                *daemon_endpoints.health_endpoints(list, list, dict, registry, registry.sizes),
                *metrics.endpoints([lambda: metrics.table_metrics(_as_a_wire(views))], lambda reading: ()),
            ]
        )
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)


def _as_a_wire(views: Mapping[str, AnyView]) -> Iterable[AnyView]:
    """Return the largest view under the name of a wire's, so that its rows are counted."""
    return [attrs.evolve(views["broker services"], name="elko services", sums=("provider",))]


def _measured(farm: _Farm, url: str) -> tuple[float, float, int]:
    """Return the longest piece and the whole of a read in seconds of CPU, and the number of pieces."""
    split = urlsplit(url)
    given = parse_qs(split.query)

    def begin() -> Response:
        endpoint, path = farm.routes.find("GET", split.path)
        request = Request("GET", split.path, given)
        response = endpoint.handler(Call(request, Principal(), path, convert_query(endpoint.query, given)))
        assert isinstance(response, Response)
        return response

    seconds, response = _timed(begin)
    times = [seconds]
    if not isinstance(response.body, bytes):
        body: Iterator[bytes] = iter(response.body)
        piece: bytes | None = b""
        while piece is not None:
            seconds, piece = _timed(lambda: next(body, None))
            times.append(seconds)
    return max(times), sum(times), len(times)


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    before = time.thread_time()
    result = act()
    return time.thread_time() - before, result


FIND_GOAL = 3.4
"""The most that a find may cost, as a ratio to a bare protocol of Twisted that sends the same bytes. It has the
scheduler, limits, rights and the registry besides."""

ETCD_GOAL = 1.05
"""The most that a registration may cost, as a ratio to a write of etcd, which is synced to its disk."""


def _load(connections: int, make: Callable[[int], bytes]) -> Callable[[Server], Load]:
    return lambda server: Requests(server, connections, make)


def _registrations(server: Server) -> Load:
    """Registrations; at etcd, writes of the same values."""

    def registration(number: int) -> bytes:
        place = 1 + number % 1_000
        return register("bank", place) if server.broker else put(f"services/bank/{place}", json.dumps(PLACE).encode())

    return Requests(server, 50, registration)


WATCHERS = 100
"""Pages that follow the registry."""


def watches(seconds: float) -> list[Figure]:
    """Measure the delay of changes to watchers, and the cost of many changes, beside an etcd."""
    (half, share), (of_etcd, its_share) = (_watched(start, seconds) for start in (http, etcd))
    delay, cost = "5 changes a second: the median of the delays at all watchers", "100 changes a second: of a core, %"
    return [
        at_most(f"{delay}, ms", half, 10.0, "{:.1f}"),
        Figure("the same at etcd, ms", f"{of_etcd:.1f}"),
        at_most(cost, share, 8.0, "{:.1f}"),
        Figure("the same at etcd, %", f"{its_share:.1f}"),
    ]


def _watched(start: Start, seconds: float) -> tuple[float, float]:
    with start() as server:
        watchers = Watchers(server, WATCHERS)
        try:
            delays = sorted(watchers.delays(5, seconds))
            return delays[len(delays) // 2] * 1e3, watchers.share(100, seconds) * 100
        finally:
            watchers.close()


COMMANDS = 9
"""Runs of a command, of which the cheapest counts: it does the same each time."""


def command(_: float) -> list[Figure]:
    """Measure the CPU time of one command of brokerctl beside one of etcd's, and of a start beside Twisted's own."""
    with http() as server:
        url = f"http://127.0.0.1:{server.port}"
        status = _spent([sys.executable, "-m", "broker.brokerctl", "--url", url, "status"])
    with etcd() as server:
        of_etcd = _spent(["etcdctl", f"--endpoints=127.0.0.1:{server.port}", "endpoint", "status"])
    with TemporaryDirectory() as place:
        check = _spent(twistd(f"--state={place}", "--check"))
    return [
        at_most("brokerctl status, s of CPU", status, 0.12, "{:.3f}"),
        Figure("etcdctl endpoint status, s of CPU", f"{of_etcd:.3f}"),
        at_most("twistd elkobroker --check, s of CPU", check, 0.4, "{:.3f}"),
        Figure("twistd --version, s of CPU", f"{_spent([twistd()[0], '--version']):.3f}"),
    ]


def _spent(words: Sequence[str]) -> float:
    """The CPU time of a command, the least of some runs."""
    times = []
    for _ in range(COMMANDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


_bare = partial(reference, Server, "http")

ROWS = {
    "find": Row("A find on 50 connections", cpu(_load(50, lambda _: FIND)), http, _bare, FIND_GOAL),
    "find-1": Row("A find on one connection, one after the other", cpu(_load(1, lambda _: FIND)), http, _bare),
    "register": Row(
        "A registration or renewal on 50 connections, a write of etcd", cpu(_registrations), http, etcd, ETCD_GOAL
    ),
    "watch": Scenario(f"Changes to {WATCHERS} watchers by server-sent events", 10.0, watches),
    "command": Scenario("A command of brokerctl, and a start of the daemon", 0.0, command),
    "reads": Scenario(f"Reads with {SERVICES:,} services", 0.0, reads),
}
