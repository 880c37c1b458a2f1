"""Ports that programs of a test listen on later, or again: free now, and none that the kernel gives away."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

PORTS = range(20_000, 32_000, 2)
"""Below the ephemeral ports of Linux, which begin at 32,768: no outgoing connection and no port 0 of another program
takes one of these between the end of a listener and the start of the next. The odd port above each belongs to the same
caller, since etcd has two."""


def _shuffled() -> Iterator[int]:
    # Each process of a run has ports of its own: no other one tries a port between the search and the use.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    while True:
        yield from random.sample(own, len(own))


_candidates = _shuffled()


def free_port() -> int:
    """Return a port that is free at all addresses, by TCP and by UDP, and that no earlier call has returned of late."""
    for port in _candidates:
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, suppress(OSError):
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for each in (tcp, udp):
                each.bind(("", port))
            return port
    raise AssertionError
