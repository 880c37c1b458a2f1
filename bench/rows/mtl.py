"""MTL: the broker beside a bare tuned ROUTER that forwards, and confirms what a queue would; durable queues also beside
RabbitMQ, which keeps its messages as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from bench import servers
from bench.harness import WARM_UP, Load, Result, Row, cpu
from bench.machine import written
from bench.peers.amqp import AmqpQueue
from bench.peers.mtl import FanOut, Queue
from bench.rabbitmq import rabbitmq
from bench.servers import DURABLE, MtlServer
from bench.zmtp import Keys

GOALS = {1: 0.8, 10: 0.5, 100: 0.45}
"""The most that a delivery of 100 B may cost, as a ratio to the bare ROUTER's, by the number of readers."""

LONG_GOAL = 1.0
"""The same for 10 KiB: the kernel's copies dominate."""

KEYS = Keys(*zmq.curve_keypair())
"""Of all servers that want CURVE."""


def _row(title: str, load: Callable[[MtlServer], Load], goal: float | None = None, curve: bool = False) -> Row:
    keys = KEYS if curve else None
    peer = partial(servers.reference, MtlServer, "mtl", keys=keys)
    return Row(title, cpu(load), partial(servers.mtl, keys), peer, goal)


def _fan_out(readers: int, size: int, ahead: int = 0) -> Callable[[MtlServer], Load]:
    return lambda server: FanOut(server, readers, size, ahead)


def _queue(
    name: str, readers: int, window: int, size: int = 100, multiple: bool = False
) -> Callable[[MtlServer], Load]:
    return lambda server: Queue(server, name, readers, window, size, multiple)


ROWS: dict[str, Row] = {}
for _curve in (False, True):
    for _size, _label in ((100, "100 B"), (10 * 1024, "10 KiB")):
        for _readers, _goal in GOALS.items():
            ROWS[f"{'curve-' if _curve else ''}fan-out-{_readers}-{'100' if _size == 100 else '10k'}"] = _row(
                f"{'CURVE: ' if _curve else ''}test profile, {_label} to {_readers}, a delivery",
                _fan_out(_readers, _size),
                None if _curve else _goal if _size == 100 else LONG_GOAL,
                _curve,
            )
ROWS["single"] = _row("test profile: 100 B, one at a time", _fan_out(1, 100, 1))
for _where in ("memory", DURABLE):
    ROWS |= {
        f"queue-{_where}-1": _row(f"queue, {_where}: one at a time", _queue(_where, 1, 1)),
        f"queue-{_where}-100": _row(f"queue, {_where}: window 100", _queue(_where, 1, 100)),
        f"queue-{_where}-1000": _row(f"queue, {_where}: window 1,000", _queue(_where, 1, 1_000)),
        f"queue-{_where}-10k": _row(f"queue, {_where}: 10 KiB, window 100", _queue(_where, 1, 100, 10 * 1024)),
        f"queue-{_where}-multiple": _row(
            f"queue, {_where}: window 1,000, Confirms for many", _queue(_where, 1, 1_000, multiple=True)
        ),
        f"queue-{_where}-4": _row(f"queue, {_where}: window 1,000, 4 readers", _queue(_where, 4, 1_000)),
        f"queue-{_where}-unread": _row(f"queue, {_where}: window 1,000, nobody reads", _queue(_where, 0, 1_000)),
    }


def _kept(readers: int, window: int, size: int) -> Callable[[Any], Load]:
    def prepare(server: Any) -> Load:
        if server.broker:
            return Queue(server, DURABLE, readers, window, size)
        return AmqpQueue(server, DURABLE, readers, window, size)

    return prepare


def _written(load: Callable[[Any], Load]) -> Callable[[Any, float], Result]:
    """Return a measurement of the bytes that go to the disk for each message."""

    def measure(server: Any, seconds: float) -> Result:
        ready = load(server)
        try:
            ready.run(WARM_UP)
            before = written(server.pid)
            sample = ready.run(seconds)
            return Result((written(server.pid) - before) / sample.messages, 0.0, sample.messages / sample.seconds)
        finally:
            ready.close()

    return measure


for _window in (1, 100):
    for _size, _label in ((100, "100 B"), (10 * 1024, "10 KiB")):
        ROWS[f"rabbitmq-{_window}-{'100' if _size == 100 else '10k'}"] = Row(
            f"queue, durable, beside RabbitMQ: {_label}, window {_window}",
            cpu(_kept(1, _window, _size)),
            servers.mtl,
            rabbitmq,
            1.0,
        )
    ROWS[f"rabbitmq-written-{_window}"] = Row(
        f"queue, durable, nobody reads: bytes written for 10 KiB, window {_window}",
        _written(_kept(0, _window, 10 * 1024)),
        servers.mtl,
        rabbitmq,
        1.1,
        unit="B",
    )
