"""Floods of DBP datagrams: heartbeats of strangers and of registered services, and random bytes."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence

from bench.common import traffic
from bench.dbp import herd as dbp_herd
from bench.dbp import peers as dbp_peers

RATE = 50_000
"""Datagrams a second."""

PORTS = 500
"""The addresses that they come from, if there are many."""

BURST = 200
"""Datagrams that are sent between two looks at the clock."""


# what datagrams hold


def strangers() -> list[bytes]:
    """Heartbeats of services that are not registered."""
    return [dbp_peers.heartbeat(f"stranger-{i:06d}") for i in range(10_000)]


def garbage() -> list[bytes]:
    """Random bytes, from none to as many as are read, and more."""
    source = random.Random(1)
    return [source.randbytes(source.choice((0, 1, 10, 30, 100, 1_100))) for _ in range(2_000)]


def registered() -> list[bytes]:
    """Heartbeats of the herd, which it did not send."""
    return [dbp_peers.heartbeat(dbp_peers.name(i)) for i in range(dbp_herd.COUNT)]


def flood(port: int, kind: Callable[[], Sequence[bytes]], ports: int, seconds: float) -> int:
    """Send `RATE` datagrams a second from so many ports, for so long. Returns how many it came to."""
    data = kind()
    sends = []
    for _ in range(ports):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect((traffic.HOST, port))
        sends.append(sock.send)
    start = now = time.perf_counter()
    end = start + seconds
    sent = 0
    while now < end:
        due = min(int((now - start) * RATE) - sent, BURST)
        for i in range(sent, sent + due):
            sends[i % ports](data[i % len(data)])
        sent += max(due, 0)
        if due < BURST:
            time.sleep(0.0005)
        now = time.perf_counter()
    return sent
