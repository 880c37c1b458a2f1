"""The detection of silent services by the DBP wire, and the effect of floods of datagrams on it.

bench/README.md says what the rows are; `bench.robust` runs them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from bench.common import traffic
from bench.common.figures import MIB, Figure, Scenario, at_most, exactly
from bench.common.machine import peak_resident, waited_seconds
from bench.common.processes import NICENESS, InProcess
from bench.dbp import floods as dbp_floods
from bench.dbp import herd as dbp_herd
from bench.dbp import peers as dbp_peers
from bench.dbp import servers as dbp_servers
from bench.dbp.floods import PORTS, RATE
from bench.dbp.herd import COUNT, INTERVAL, LIVENESS, Lived, Watcher
from bench.dbp.servers import DbpServer
from bench.dbp.traffic import Clients
from bench.mc0.traffic import ANSWERED_WITHIN, ASKS_EVERY, HEAD_START, elko_pings, messages_between

LASTING = 100
FIRST_LASTING = 500_000
"""Services under no contract, which are asked for: so many, with numbers from here on."""

ALLOWED = 0.2
"""Intervals by which a detection may be late."""

DYING = 200
"""Services of the herd that fall silent in the end."""

DYING_WITHIN = 10.0
"""Seconds in which they do, one after the other."""

ROOM = 120.0
"""Seconds that a part may take longer than it should."""


def asked(peer_count: int, window: int, server: DbpServer, seconds: float) -> float:
    """Clients that ask for one of the lasting services after the other. Returns how many requests a second."""
    numbers = range(FIRST_LASTING, FIRST_LASTING + LASTING)
    requests = [dbp_peers.request(dbp_peers.name(number)) for number in numbers]
    at = dbp_peers.steady(1.0)
    replies = [dbp_peers.reply(at, dbp_peers.listed([number])) for number in numbers]
    load = Clients(dbp_peers.clients(server.port, peer_count), requests, replies, window, compared=False)
    with closing(load):
        sample = load.run(seconds)
    return sample.messages / sample.seconds


def lists(server: DbpServer, seconds: float) -> int:
    """A client that has two requests for all in flight. Returns how many lists came."""
    done = 0
    end = time.perf_counter() + seconds
    with closing(dbp_peers.client(server.port)) as peer:
        peer.send(*dbp_peers.request(""))
        while time.perf_counter() < end:
            peer.send(*dbp_peers.request(""))
            answer = peer.receive()
            if answer[1] != b"o_O" or not answer[3].endswith(b"}}"):
                raise traffic.Stuck(f"no list: {answer[:3]!r}, {answer[3][-100:]!r}")
            done += 1
    return done


def remember(server: DbpServer) -> None:
    """Register the lasting services."""
    dbp_peers.register(server.port, [dbp_peers.registration(FIRST_LASTING + i) for i in range(LASTING)])


# exact liveness


def liveness(seconds: float) -> list[Figure]:
    """A herd beats while others ask as fast as they are answered; then a part of it falls silent."""
    alive = max(seconds - DYING_WITHIN - LIVENESS - 1, INTERVAL)
    with ExitStack() as stack:
        server = stack.enter_context(dbp_servers.broker())
        remember(server)
        watcher = stack.enter_context(closing(Watcher(server)))
        herd = InProcess(dbp_herd.live, server, alive, DYING, DYING_WITHIN)
        stack.callback(herd.stop)
        watcher.await_all(COUNT)
        asking = [
            InProcess(part, *arguments, server, alive + DYING_WITHIN, niceness=NICENESS)
            for part, arguments in ((asked, (4, 16)), (lists, ()), (lists, ()))
        ]
        for process in asking:
            stack.callback(process.stop)
        start, waited = time.perf_counter(), waited_seconds(server.pid)
        rate, *listed = [process.result(seconds + ROOM) for process in asking]
        waited = (waited_seconds(server.pid) - waited) / (time.perf_counter() - start)
        lived: Lived = herd.result(seconds + ROOM)
        went = dict(watcher.went)
        counted = server.counters()
    dead = {name for name, _, _ in lived.died}
    took: dict[bool, list[float]] = {True: [], False: []}
    for name, udp, sent in lived.died:
        if name in went:
            took[udp].append((went[name] - sent) / INTERVAL)
    figures = [
        exactly("expired although they beat", len(went.keys() - dead), 0),
        exactly("sent away although they beat", lived.parted[:3], []),
        at_most("longest between two heartbeats that one sent, intervals", lived.latest, LIVENESS, "{:.2f}"),
        exactly("fell silent and not noticed", len(dead - went.keys()), 0),
    ]
    for udp, how in ((True, "by UDP"), (False, "over the ROUTER")):
        figures += _detected(how, took[udp])
    return [
        *figures,
        Figure("heartbeats of the broker, a second", f"{lived.heard / seconds:,.0f}"),
        Figure("requests for one, a second", f"{rate:,.0f}"),
        Figure("requests for all, a second", f"{sum(listed) / (alive + DYING_WITHIN):,.0f}"),
        Figure("datagrams dropped by the kernel", f"{counted['dbp_datagrams.dropped']:,}"),
        Figure("the broker could have run, but had no core", f"{waited:.0%}"),
    ]


def _detected(how: str, took: Sequence[float]) -> list[Figure]:
    if not took:
        return [Figure(f"{how}: none noticed", "-", "some", False)]
    least, most = min(took), max(took)
    bounds = f"{LIVENESS}-{LIVENESS + ALLOWED:g}"
    return [
        Figure(f"{how}: noticed after, intervals, least", f"{least:.3f}", f"> {LIVENESS}", least > LIVENESS),
        Figure(f"{how}: median", f"{statistics.median(took):.3f}", bounds, most <= LIVENESS + ALLOWED),
        Figure(f"{how}: most", f"{most:.3f}", f"<= {LIVENESS + ALLOWED:g}", most <= LIVENESS + ALLOWED),
    ]


# floods

_KINDS = {
    "strangers": dbp_floods.strangers,
    "garbage": dbp_floods.garbage,
    "the herd's": dbp_floods.registered,
}

FLOODED = 32 * MIB
"""Bytes by which the broker may grow: tables of 10,000 sources and addresses each, and what the allocator keeps."""


def dbp_peer(server: DbpServer, seconds: float) -> list[float]:
    """The seconds that each request of a client took."""
    with closing(dbp_peers.client(server.port)) as peer:
        request = dbp_peers.request(dbp_peers.name(FIRST_LASTING))
        reply = dbp_peers.reply(dbp_peers.now(), dbp_peers.listed([FIRST_LASTING]))
        return messages_between(peer, peer, request, reply, ASKS_EVERY).run(seconds)


def floods(seconds: float) -> list[Figure]:
    """Datagrams of three kinds, from one port and from many, while a herd beats and two good peers ask."""
    runs = [(kind, ports) for kind in _KINDS for ports in (1, PORTS)]
    figures: list[Figure] = []
    with ExitStack() as stack:
        server = stack.enter_context(dbp_servers.broker())
        remember(server)
        watcher = stack.enter_context(closing(Watcher(server)))
        herd = InProcess(dbp_herd.live, server, HEAD_START + len(runs) * (seconds + 0.5) + LIVENESS)
        stack.callback(herd.stop)
        watcher.await_all(COUNT)
        alone = max(max(took) for took in _good(server, HEAD_START, stack).values())
        figures.append(Figure("longest answer beside the herd alone, milliseconds", f"{1e3 * alone:.1f}"))
        before = server.resident()
        for kind, ports in runs:
            counted, start = server.counters(), time.perf_counter()
            waited = waited_seconds(server.pid)
            flood = InProcess(dbp_floods.flood, server.udp, _KINDS[kind], ports, seconds, niceness=NICENESS)
            stack.callback(flood.stop)
            took = _good(server, seconds, stack)
            sent: int = flood.result(ROOM)
            waited = (waited_seconds(server.pid) - waited) / (time.perf_counter() - start)
            dropped = server.counters()["dbp_datagrams.dropped"] - counted["dbp_datagrams.dropped"]
            what = f"{kind}, {ports} port{'s' if ports > 1 else ''}"
            figures.append(Figure(f"{what}: datagrams a second", f"{sent / seconds:,.0f}"))
            figures.append(Figure(f"{what}: dropped by the kernel", f"{dropped / max(sent, 1):.2%}"))
            for wire, times in took.items():
                figures += _answers(f"{what}: {wire}", times)
            figures.append(Figure(f"{what}: the broker had no core", f"{waited:.0%}"))
        grown = peak_resident(server.pid) - before
        lived: Lived = herd.result(ROOM)
        went = set(watcher.went)
    return [
        *figures,
        exactly("expired although they beat", len(went), 0),
        at_most("longest between two heartbeats that one sent, intervals", lived.latest, LIVENESS, "{:.2f}"),
        Figure("MiB before", f"{before / MIB:.0f}"),
        at_most("MiB that the broker grew by", grown / MIB, FLOODED / MIB, "{:.1f}"),
    ]


def _good(server: DbpServer, seconds: float, stack: ExitStack) -> dict[str, list[float]]:
    """The latency of the answers to two good peers."""
    parts: dict[str, Callable[[DbpServer, float], list[float]]] = {"Elko": elko_pings, "DBP": dbp_peer}
    started = {wire: InProcess(part, server, seconds) for wire, part in parts.items()}
    for process in started.values():
        stack.callback(process.stop)
    return {wire: sorted(process.result(seconds + ROOM)) for wire, process in started.items()}


def _answers(what: str, took: Sequence[float]) -> list[Figure]:
    longest, most = took[-1], took[len(took) * 99 // 100]
    return [
        Figure(f"{what}: answer, 99 %, milliseconds", f"{1e3 * most:.1f}"),
        Figure(f"{what}: longest", f"{1e3 * longest:.1f}", f"<= {1e3 * ANSWERED_WITHIN:g}", longest <= ANSWERED_WITHIN),
    ]


SCENARIOS = {
    "dbp-liveness": Scenario(f"{COUNT:,} services beat each {INTERVAL:g} s", 60.0, liveness, 300.0, 20.0),
    "dbp-floods": Scenario(f"{RATE:,} datagrams a second", 5.0, floods, quick=2.0),
}
