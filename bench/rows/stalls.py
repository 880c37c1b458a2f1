"""Turns of the reactor: the longest wait of a client that pings all the time, during an event that concerns all peers.

The CPU time is that of the broker's main thread between a ping and its
answer: it does not depend on other work of the machine.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench import traffic
from bench.harness import Figure, Scenario
from bench.machine import raise_descriptor_limit
from bench.peers import elko as messages
from bench.rows.scale import CONFIG, SETTLE, is_found, read
from bench.servers import HTTP_LISTENS, WireServer, broker_with
from bench.traffic import opened

AFTER = 2.0
"""Seconds of pings after the event: what it has begun goes on in further turns."""

GOAL = 20.0
"""Milliseconds of CPU time of one turn."""


@attrs.frozen
class Farm:
    """A broker with its providers."""

    server: WireServer
    config: Path
    stack: ExitStack
    http: int

    def join(self, first: int, providers: int, each: int, sets: int = 1_000_000) -> None:
        """Connect providers that offer so many services each, of so many sets of names."""
        for provider in range(first, first + providers):
            names = [f"service-{provider % sets:06d}-{n}" for n in range(each)]
            opening = messages.auth(f"provider-{provider:06d}")
            opening += messages.willserve(names, f"10.0.0.1:{10_000 + provider % 50_000}") + messages.PING
            self.stack.enter_context(opened(self.server.elko, opening, 1, source=1 + provider % 20))

    def leave(self) -> None:
        """Disconnect all providers."""
        self.stack.close()

    def reload(self) -> None:
        """Apply other rules of health checks to all services."""
        self.config.write_text(self.config.read_text() + '[[checks.rules]]\nservices = ["*"]\nkind = "ping"\n')
        self.server.process.send_signal(signal.SIGHUP)


ALL_WIRES = CONFIG + "".join(f'[{wire}]\nendpoint = "tcp://127.0.0.1:0"\n' for wire in ("mc0", "dbp", "mtl"))


@contextmanager
def farm(providers: int, each: int, every_wire: bool = False, sets: int = 1_000_000) -> Iterator[Farm]:
    """Start a broker, and register services."""
    config = ALL_WIRES if every_wire else CONFIG
    raise_descriptor_limit()
    with TemporaryDirectory(prefix="elkobroker-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        with broker_with(WireServer, "http", config, HTTP_LISTENS, directory, every_wire=every_wire) as (server, said):
            made = Farm(server, directory / "config.toml", stack, int(said[1]))
            made.join(0, providers, each, sets)
            time.sleep(SETTLE)
            assert is_found(server.elko, "service-000000-0")
            yield made


def main_thread(server: WireServer) -> float:
    """Seconds of CPU time of the thread of the reactor."""
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def stall(providers: int, each: int, event: Callable[[Farm], None], every_wire: bool, seconds: float) -> list[Figure]:
    """Measure the longest ping during an event."""
    with farm(providers, each, every_wire) as made:
        return longest_ping(made.server, partial(event, made), seconds)


def pinging(server: WireServer) -> socket.socket:
    """Return a connection for pings."""
    return opened(server.elko, messages.auth("pinger") + messages.PING, 1)


def longest_ping(
    server: WireServer,
    event: Callable[[], None],
    seconds: float,
    when: str = "",
    pinger: socket.socket | None = None,
) -> list[Figure]:
    """Measure the longest ping to a broker during an event, and for some seconds after it."""
    pinger = pinger or pinging(server)
    waits, costs = [], []
    acting = threading.Thread(target=event)
    acting.start()
    end = time.perf_counter() + seconds
    while acting.is_alive() or time.perf_counter() < end:
        if acting.is_alive():
            end = time.perf_counter() + seconds
        before, start = main_thread(server), time.perf_counter()
        pinger.sendall(messages.PING)
        traffic.await_replies(pinger, 1)
        waits.append(1e3 * (time.perf_counter() - start))
        costs.append(1e3 * (main_thread(server) - before))
    pinger.close()
    worst = max(costs)
    return [
        Figure(f"longest wait for an answer{when}", f"{max(waits):.0f} ms"),
        Figure(f"most CPU time until an answer{when}", f"{worst:.1f} ms", f"<= {GOAL:.0f} ms", worst <= GOAL),
        Figure(f"pings{when}", f"{len(waits):,}"),
    ]


PAGE_GOAL = 50.0
"""Milliseconds of the first page of the catalogue."""

PAGES = 20
"""Pages that are read of each kind."""


def catalogue(providers: int, each: int, sets: int, seconds: float) -> list[Figure]:
    """Measure pages of the catalogue, and the longest ping beside them."""
    with farm(providers, each, sets=sets) as made:
        taken: dict[str, list[float]] = {
            "?limit=100": [],
            "?limit=100&sort=-instances": [],
            "?limit=100&pattern=*7*": [],
        }

        def look() -> None:
            for query, times in taken.items():
                times += [read(made.http, f"/v1/catalog{query}") for _ in range(PAGES)]

        figures = longest_ping(made.server, look, seconds)
        first, *others = ((query, sorted(times)[PAGES // 2]) for query, times in taken.items())
        found = [Figure("first page", f"{first[1]:.1f} ms", f"<= {PAGE_GOAL:.0f} ms", first[1] <= PAGE_GOAL)]
        return [*found, *(Figure(f"page {query}", f"{median:.1f} ms") for query, median in others), *figures]


def _row(title: str, providers: int, each: int, event: Callable[[Farm], None], every_wire: bool = False) -> Scenario:
    return Scenario(title, AFTER, partial(stall, providers, each, event, every_wire))


def _offers(made: Farm) -> None:
    made.join(1_000, 50, 1_000)


ROWS = {
    "drop-100x100": _row("100 providers with 100 services each disconnect at once", 100, 100, Farm.leave),
    "drop-1000x10": _row("1,000 providers with 10 services each disconnect at once", 1_000, 10, Farm.leave),
    "drop-9000x1": _row("9,000 providers with one service each disconnect at once", 9_000, 1, Farm.leave),
    "drop-1000x100": _row("1,000 providers with 100 services each disconnect at once", 1_000, 100, Farm.leave),
    "reload-100k": _row("SIGHUP with other health checks and 100,000 services", 1_000, 100, Farm.reload),
    "catalog-10kx10": Scenario(
        "Pages of the catalogue, 10,000 names of 100,000 services", AFTER, partial(catalogue, 1_000, 100, 100)
    ),
    "register-100k": _row("50 providers offer 1,000 services each beside 100,000", 1_000, 100, _offers),
    "register-wires": _row("the same with all wires on, beside 20,000", 1_000, 20, _offers, every_wire=True),
}
