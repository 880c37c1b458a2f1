"""Turns of the reactor: the longest wait of a client that pings all the time, during an event that concerns all peers.

The CPU time is that of the broker's main thread between a ping and its
answer: it does not depend on other work of the machine.
"""

from __future__ import annotations

import signal
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
from bench.rows.scale import CONFIG, SETTLE, is_found
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

    def join(self, first: int, providers: int, each: int) -> None:
        """Connect providers that offer so many services each."""
        for provider in range(first, first + providers):
            names = [f"service-{provider:06d}-{n}" for n in range(each)]
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


@contextmanager
def farm(providers: int, each: int) -> Iterator[Farm]:
    """Start a broker, and register services."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        with broker_with(WireServer, "http", CONFIG, HTTP_LISTENS, directory) as (server, _):
            made = Farm(server, directory / "config.toml", stack)
            made.join(0, providers, each)
            time.sleep(SETTLE)
            assert is_found(server.elko, "service-000000-0")
            yield made


def main_thread(server: WireServer) -> float:
    """Seconds of CPU time of the thread of the reactor."""
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def stall(providers: int, each: int, event: Callable[[Farm], None], seconds: float) -> list[Figure]:
    """Measure the longest ping during an event."""
    raise_descriptor_limit()
    with farm(providers, each) as made:
        pinger = opened(made.server.elko, messages.auth("pinger") + messages.PING, 1)
        waits, costs = [], []
        acting = threading.Thread(target=event, args=(made,))
        acting.start()
        end = time.perf_counter() + seconds
        while acting.is_alive() or time.perf_counter() < end:
            if acting.is_alive():
                end = time.perf_counter() + seconds
            before, start = main_thread(made.server), time.perf_counter()
            pinger.sendall(messages.PING)
            traffic.await_replies(pinger, 1)
            waits.append(1e3 * (time.perf_counter() - start))
            costs.append(1e3 * (main_thread(made.server) - before))
        pinger.close()
    worst = max(costs)
    return [
        Figure("longest wait for an answer", f"{max(waits):.0f} ms"),
        Figure("most CPU time until an answer", f"{worst:.1f} ms", f"<= {GOAL:.0f} ms", worst <= GOAL),
        Figure("pings", f"{len(waits):,}"),
    ]


def _row(title: str, providers: int, each: int, event: Callable[[Farm], None]) -> Scenario:
    return Scenario(title, AFTER, partial(stall, providers, each, event))


ROWS = {
    "drop-100x100": _row("100 providers with 100 services each disconnect at once", 100, 100, Farm.leave),
    "drop-1000x10": _row("1,000 providers with 10 services each disconnect at once", 1_000, 10, Farm.leave),
    "drop-9000x1": _row("9,000 providers with one service each disconnect at once", 9_000, 1, Farm.leave),
    "drop-1000x100": _row("1,000 providers with 100 services each disconnect at once", 1_000, 100, Farm.leave),
    "reload-100k": _row("SIGHUP with other health checks and 100,000 services", 1_000, 100, Farm.reload),
    "register-100k": _row(
        "50 providers offer 1,000 services each beside 100,000", 1_000, 100, lambda made: made.join(1_000, 50, 1_000)
    ),
}
