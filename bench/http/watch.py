"""The broker's CPU for pages that watch the registry: 100 of them, at 100 changes a second.

A broker is started twice, without and with watchers, under the same changes: loads of one Elko provider. The CPU of
the broker's process is read from the kernel. The watchers read from one process of their own. Run it as
``python -m bench.http.watch``.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.common.machine import describe
from bench.common.processes import InProcess
from bench.common.report import table
from bench.common.servers import WireServer, broker_with

LISTENS = re.compile(r"http on 127\.0\.0\.1:(\d+) \(")

CONFIG = """
[http]
endpoint = "tcp:0:interface=127.0.0.1"
connections_per_address = 5_000
waiting_per_address = 5_000
rate = 10_000
burst = 5_000
"""

SETTLE = 2.0
"""Seconds before the measurement, in which the watchers connect."""


class HttpServer(WireServer):
    """A broker with HTTP."""


def main() -> None:
    """Measure, and print a table."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--watchers", type=int, default=100)
    options.add_argument("--changes", type=int, default=100, help="a second")
    options.add_argument("--seconds", type=float, default=15.0, help="of each measured stretch")
    options.add_argument("--runs", type=int, default=3, help="how often each is run; the median counts")
    given = options.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in describe().items()))
    rows = []
    for watchers in (0, given.watchers):
        runs = [_measured(watchers, given.changes, given.seconds) for _ in range(given.runs)]
        cpu = median(run[0] for run in runs)
        events, writes = (median(run[n] for run in runs) for n in (1, 2))
        rows.append([str(watchers), f"{100 * cpu:.1f} %", f"{events:.0f}", f"{writes:.1f}"])
    print(table(("watchers", "CPU of a core", "events a second to each", "reads a second of each, at most"), rows))


def _measured(watchers: int, changes: int, seconds: float) -> tuple[float, float, float]:
    """Return the share of a core, and the events and reads a second of each watcher."""
    with _running() as (server, port):
        reading = InProcess(_watch, port, watchers, SETTLE + seconds)
        reporting = InProcess(_report, server.elko, changes, SETTLE + seconds)
        try:
            time.sleep(SETTLE)
            before, begun = server.cpu(), time.monotonic()
            time.sleep(seconds - 0.5)
            used = (server.cpu() - before) / (time.monotonic() - begun)
            events, reads = reading.result(seconds + 30)
        finally:
            reading.stop()
            reporting.stop()
        return used, events, reads


@contextmanager
def _running() -> Iterator[tuple[HttpServer, int]]:
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        broker_with(HttpServer, "http", CONFIG, LISTENS, Path(directory)) as (server, found),
    ):
        yield server, int(found[1])


def _watch(port: int, watchers: int, seconds: float) -> tuple[float, float]:
    """Watch for so many seconds. Returns the events and the reads a second of each watcher."""
    selector = selectors.DefaultSelector()
    for _ in range(watchers):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        selector.register(sock, selectors.EVENT_READ, [0, 0])
    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        if not watchers:
            time.sleep(left)
        for key, _ in selector.select(min(left, 0.5)) if watchers else ():
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            assert data, "the broker ended a watch"
            key.data[0] += data.count(b"data: ")
            key.data[1] += 1
    counts = [key.data for key in selector.get_map().values()]
    if not counts:
        return 0.0, 0.0
    return min(each[0] for each in counts) / seconds, max(each[1] for each in counts) / seconds


def _report(port: int, changes: int, seconds: float) -> None:
    """Report loads as an Elko provider does."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(json.dumps({"to": "client", "op": "auth", "label": "bench"}).encode() + b"\n\n")
        service = {"type": "servicedesc", "service": "bench", "hostport": "h:1"}
        sock.sendall(json.dumps({"to": "client", "op": "willserve", "services": [service]}).encode() + b"\n\n")
        begun = time.monotonic()
        for number in range(int(changes * seconds)):
            time.sleep(max(0.0, begun + number / changes - time.monotonic()))
            load = {"to": "client", "op": "load", "factor": number % 10 / 10}
            sock.sendall(json.dumps(load).encode() + b"\n\n")


if __name__ == "__main__":
    main()
