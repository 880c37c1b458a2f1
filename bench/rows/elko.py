"""Elko: the broker beside bare Twisted servers that do no more than the network part of the same work."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench import servers, traffic
from bench.harness import IDLE, Load, Result, Row, cpu
from bench.peers import elko as messages
from bench.servers import Server
from bench.traffic import NEWLINES, FanOut, Pipeline, Script, Visits

SETTLE = 1.5
"""Seconds from the last connection until memory is read: the broker writes what it stores within half a second."""

SERVICES = 1_000

LOADS_A_PING = 100
"""Loads are not answered; each unit of so many messages ends with a ping, that says that they were taken."""

ECHO_GOAL = 1.2
VISIT_GOAL = 1.3
REGISTER_GOAL = 1.7
"""The most that the broker may cost, as a ratio to the echo server, to the one that answers visits, and to the plain
registry, which has none of the broker's guarantees."""


def memory(connections: int) -> Callable[[Server, float], Result]:
    """Resident memory for each connection that has authenticated and offers one service."""

    def measure(server: Server, _: float) -> Result:
        time.sleep(IDLE)
        before = server.resident()
        with ExitStack() as stack:
            for i in range(connections):
                name = f"server-{i:05d}"
                opening = (
                    messages.auth(name) + messages.willserve([name], f"10.0.0.1:{10_000 + i}", name) + messages.PING
                )
                stack.enter_context(traffic.opened(server.port, opening, 1, source=1 + i % 20))
            time.sleep(SETTLE)
            used = server.resident() - before
        return Result(used / connections)

    return measure


# loads


def connections(server: Server, count: int) -> list[socket.socket]:
    """Connections that are ready; the broker's are authenticated."""
    opening = messages.auth("bench") + messages.PING if server.broker else b""
    return [traffic.opened(server.port, opening, 1) for _ in range(count)]


def pings(count: int, window: int) -> Callable[[Server], Load]:
    """Pings on so many connections."""
    return lambda server: Pipeline(connections(server, count), window, [messages.PING])


class WithProvider:
    """A load, and a provider that has to stay for it."""

    def __init__(self, load: Load, provider: socket.socket) -> None:
        self.run = load.run
        self._load = load
        self._provider = provider

    def close(self) -> None:
        self._load.close()
        self._provider.close()


def finds(count: int, window: int) -> Callable[[Server], Load]:
    """Finds among 1,000 services, each in its turn."""
    names = [f"service-{i:04d}" for i in range(SERVICES)]

    def prepare(server: Server) -> Load:
        load = Pipeline(connections(server, count), window, [messages.find(name) for name in names])
        if not server.broker:
            return load
        opening = messages.auth("provider") + messages.willserve(names) + messages.PING
        return WithProvider(load, traffic.opened(server.port, opening, 1))

    return prepare


def loads(server: Server) -> Load:
    """Load reports that nobody watches. The echo server answers them too: that is its message, in and out."""
    reports = [messages.load(i / 100) for i in range(LOADS_A_PING - 1)]
    unit = b"".join(reports) + messages.PING
    replies = 1 if server.broker else LOADS_A_PING
    return Pipeline(connections(server, 1), 8_000, [unit], LOADS_A_PING, replies)


def watched_loads(watchers: int, batch: int) -> Callable[[Server], Load]:
    """Load reports that all watchers are told of, so many reports at once."""

    def prepare(server: Server) -> Load:
        if server.broker:
            opening = messages.auth("watcher", "admin") + messages.WATCH_LOADS + messages.PING
            replies = 2
        else:
            opening, replies = messages.message("watch"), 1
        sockets = [traffic.opened(server.port, opening, replies) for _ in range(watchers)]
        return FanOut(connections(server, 1)[0], sockets, [messages.load(i / 100) for i in range(100)], batch)

    return prepare


def visits(parallel: int) -> Callable[[Server], Load]:
    """Connections that authenticate, offer a service, ping and close, all in one packet."""
    names = [f"visitor-{i:02d}" for i in range(parallel)]
    packets = [messages.auth(name) + messages.willserve([name]) + messages.PING for name in names]

    def script(slot: int) -> Script:
        data = yield packets[slot]
        while data.count(b"\n") < NEWLINES:
            data += yield b""

    return lambda server: Visits(server.port, script, parallel)


def _row(title: str, peer: str, load: Callable[[Server], Load], goal: float | None = None, original: str = "-") -> Row:
    return Row(title, cpu(load), servers.broker, partial(servers.reference, Server, "elko", peer), goal, None, original)


ROWS = {
    "ping-1": _row("ping, 1 connection, window 8000", "echo", pings(1, 8_000), ECHO_GOAL, "11.4"),
    "ping-50": _row("ping, 50 connections, window 400", "echo", pings(50, 400), ECHO_GOAL, "6.2"),
    "ping-50-single": _row("ping, 50 connections, 1 in flight each", "echo", pings(50, 50), ECHO_GOAL, "24.3"),
    "find-1": _row("find, 1,000 services, 1 connection, window 8000", "echo", finds(1, 8_000), ECHO_GOAL, "9.5"),
    "find-50": _row("find, 1,000 services, 50 connections, window 400", "echo", finds(50, 400), ECHO_GOAL, "9.1"),
    "load-0": _row("load, no watcher", "echo", loads, None, "3.5"),
    "load-1": _row("load, 1 watcher, a delivery", "fanout", watched_loads(1, 400), None, "10.4"),
    "load-100": _row("load, 100 watchers, a delivery", "fanout", watched_loads(100, 400), None, "2.6"),
    "load-100-single": _row("the same, one report at a time", "fanout", watched_loads(100, 1)),
    "visit": _row("connect, auth, willserve, ping, close; 20 at once", "answer", visits(20), VISIT_GOAL, "112"),
    "visit-single": _row("the same, one at a time", "answer", visits(1), VISIT_GOAL, "192"),
    "visit-register": _row("the same, 20 at once, beside a plain registry", "register", visits(20), REGISTER_GOAL),
    "memory-2000": Row(
        "memory for an idle provider, of 2,000",
        memory(2_000),
        servers.broker,
        partial(servers.reference, Server, "elko", "answer"),
        original="21,000",
        unit="B",
    ),
}
