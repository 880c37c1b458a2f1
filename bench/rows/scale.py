"""Growth: the same figures with 1,000 to 1,000,000 services, of providers with a hundred each.

All wires but Elko and HTTP are off. The restart is that after a kill, with the state that was written until then.
"""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import traffic
from bench.harness import Figure, Scenario
from bench.peers import elko as messages
from bench.servers import HOST, HTTP_LISTENS, START_WITHIN, WireServer, broker_with
from bench.traffic import Pipeline, opened

OF_EACH = 100
"""Services of a provider."""

SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "200k": 200_000, "1m": 1_000_000}

SETTLE = 3.0
"""Seconds until memory is read: the record is written within half a second, and garbage is collected."""

CONFIG = """\
[broker]
services = 2_000_000
memory = 4_294_967_296
memory_per_address = 4_294_967_296
[http]
endpoint = "tcp:0:interface=127.0.0.1"
"""


def names_of(provider: int) -> list[str]:
    """The names of the services of a provider."""
    return [f"service-{provider * OF_EACH + n:07d}" for n in range(OF_EACH)]


def register(server: WireServer, count: int, stack: ExitStack, first: int = 0) -> None:
    """Open the providers, numbered from ``first`` on, whose connections stay until the stack is closed."""
    for provider in range(first, first + count // OF_EACH):
        opening = messages.auth(f"provider-{provider:05d}")
        opening += messages.willserve(names_of(provider), f"10.0.0.1:{10_000 + provider}") + messages.PING
        stack.enter_context(opened(server.elko, opening, 1, source=1 + provider % 20))


def find_cost(server: WireServer, count: int, seconds: float) -> float:
    """Microseconds of CPU for a find of names from all over the table."""
    step = max(1, count // 1_000)
    names = [names_of(n // OF_EACH)[n % OF_EACH] for n in range(0, count, step)]
    load = Pipeline(
        [opened(server.elko, messages.auth("finder") + messages.PING, 1)], 400, list(map(messages.find, names))
    )
    try:
        load.run(0.5)
        before = server.cpu()
        sample = load.run(seconds)
        return 1e6 * (server.cpu() - before) / sample.messages
    finally:
        load.close()


def read(port: int, path: str) -> float:
    """Milliseconds until the whole answer to a GET is here."""
    connection = http.client.HTTPConnection(HOST, port, timeout=traffic.STUCK)
    start = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    connection.close()
    return 1e3 * (time.perf_counter() - start)


def is_found(port: int, name: str) -> bool:
    """True once a find at a broker that starts has a service."""
    try:
        with socket.create_connection((HOST, port), 1) as sock:
            sock.sendall(messages.auth("finder") + messages.find(name))
            return b"hostport" in traffic.await_replies(sock, 1)
    except (OSError, traffic.Stuck):
        return False


def grow(count: int, seconds: float) -> list[Figure]:
    """Measure a broker with so many services."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        with broker_with(WireServer, "http", CONFIG, HTTP_LISTENS, directory) as (server, said), ExitStack() as stack:
            port = int(said[1])
            time.sleep(1.0)
            empty, before, start = server.resident(), server.cpu(), time.perf_counter()
            register(server, count, stack)
            cpu, took = server.cpu() - before, time.perf_counter() - start
            time.sleep(SETTLE)
            memory = (server.resident() - empty) / count
            find = find_cost(server, count, seconds)
            page = min(read(port, "/v1/services?limit=100") for _ in range(5))
            metrics = min(read(port, "/metrics") for _ in range(5))
            server.process.kill()
            server.process.wait()
        start = time.perf_counter()
        with broker_with(WireServer, "http", CONFIG, HTTP_LISTENS, directory) as (server, said):
            last = names_of(count // OF_EACH - 1)[-1]
            while not is_found(server.elko, last):
                if time.perf_counter() > start + START_WITHIN:
                    raise traffic.Stuck("the services of before the restart are not found")
                time.sleep(0.01)
            restart, restart_cpu = time.perf_counter() - start, server.cpu()
    return [
        Figure("memory, a service", f"{memory:,.0f} B"),
        Figure("register, CPU for one", f"{1e6 * cpu / count:,.1f} µs"),
        Figure("register, a second, one provider after the other", f"{count / took:,.0f}"),
        Figure("find, CPU for one", f"{find:.2f} µs"),
        Figure("a page of 100 services over HTTP", f"{page:.1f} ms"),
        Figure("/metrics", f"{metrics:.1f} ms"),
        Figure("from the start until the last service is found", f"{restart:.2f} s"),
        Figure("CPU until then", f"{restart_cpu:.2f} s"),
    ]


ROWS = {name: Scenario(f"Growth: {size:,} services", 1.0, partial(grow, size)) for name, size in SIZES.items()}
