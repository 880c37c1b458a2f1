"""DNS: the broker beside unbound, which answers the same questions from local data."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness import Load, Row, cpu
from bench.peers.dns import TYPES, Questions
from bench.servers import Server, dns, unbound

GOAL = 2.7
"""The most that a response may cost, as a ratio to unbound's, which is written in C."""


def _load(kind: str) -> Callable[[Server], Load]:
    return lambda server: Questions(server, kind)


ROWS = {kind.lower(): Row(f"{kind} of four services, by UDP", cpu(_load(kind)), dns, unbound, GOAL) for kind in TYPES}
