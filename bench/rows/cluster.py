"""A cluster: how soon a change is seen at the other brokers, and what a member's topics cost beside a single broker's.

``changes`` starts three members of etcd and three brokers on hosts made of network namespaces, which needs root. One
Elko server offers and withdraws services at one broker; a watching administrator at each of the others notes when it
receives each change.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import servers
from bench.harness import Figure, Row, Scenario, cpu
from bench.machine import cpu_seconds
from bench.rows.mc0 import puts
from bench.servers import Mc0Server
from tests.cluster.farm.hosts import ELKO, Broker, Hosts
from tests.cluster.real_etcd import Etcd, until
from tests.integration.daemon import Peer

RATE = 100.0
"""Changes a second."""

IDLE = 5.0
"""Seconds for which the brokers' CPU time is measured without changes: beats, health checks and timers."""

GOAL = 1.1
"""The most that a delivery may cost at a member without interest elsewhere, as a ratio to a single broker: the same,
apart from the difference of two runs."""

CLUSTER = """
[cluster]
etcd = ["{etcd}"]
name = "{name}"
link = "tcp://127.0.0.1:{link}"
"""

BETWEEN = 100
"""Offers between the offer of a service and its withdrawal."""


class Connection(Peer):
    """A connection that has authenticated. Pings of the broker are answered, and are none of the messages."""

    def __init__(self, broker: Broker, role: str) -> None:
        super().__init__(socket.create_connection((broker.address, ELKO), 30))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(to=role, op="auth")

    def receive(self) -> Any:
        while (message := super().receive())["op"] == "ping":
            self.send(to=message["to"], op="pong", tag=message.get("tag"))
        return message

    def done(self) -> None:
        self.send(to="error", op="ping", tag="done")
        while self.receive().get("tag") != "done":
            pass


def _cpu(hosts: Hosts) -> float:
    """Return the seconds of CPU time of all brokers."""
    return sum(cpu_seconds(each.process.pid) for each in hosts.brokers.values() if each.process is not None)


def seen_changes(hosts: Hosts, count: int, rate: float) -> list[Figure]:
    """Measure the time from a change to its arrival at the watchers of the other brokers, and its CPU time."""
    one, *others = hosts.brokers.values()
    provider = Connection(one, "client")
    seen: dict[str, dict[str, float]] = {each.name: {} for each in others}
    watchers = []
    for broker in others:
        watcher = Connection(broker, "admin")
        watcher.send(to="admin", op="watch", services=True)
        watcher.done()

        def read(watcher: Connection = watcher, seen: dict[str, float] = seen[broker.name]) -> None:
            try:
                while True:
                    message = watcher.receive()
                    now = time.monotonic()
                    for each in message.get("desc", ()):
                        seen[f"{each['service']} {message['on']}"] = now
            except (OSError, EOFError, ValueError):
                return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        watchers.append((watcher, thread))
    sent: dict[str, float] = {}
    used = _cpu(hosts)
    time.sleep(IDLE)
    idle = (_cpu(hosts) - used) / IDLE
    used = _cpu(hosts)
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        # A service that came and went within one transaction would be no change at the others.
        pair, on = number // 2, number % 2 == 0
        name = f"change-{pair if on else pair - BETWEEN}"
        sent[f"{name} {on}"] = time.monotonic()
        if on:
            provider.send(to="client", op="willserve", services=[{"service": name, "hostport": f"192.0.2.1:{number}"}])
        elif pair >= BETWEEN:
            provider.send(to="client", op="wontserve", services=[name])
    time.sleep(2.0)
    used = _cpu(hosts) - used - idle * (time.monotonic() - begun)
    rows = [
        Figure(
            "CPU time of a change, all three brokers, beyond that of their idleness, ms", f"{1e3 * used / count:.2f}"
        )
    ]
    for name, times in seen.items():
        late = sorted(1000 * (times[key] - sent[key]) for key in sent if key in times)
        if late:
            figures = f"{median(late):.1f}, {late[int(0.99 * len(late))]:.1f}, {late[-1]:.1f}"
            rows.append(Figure(f"{len(late):,} changes seen at {name}: median, 99 %, longest, ms", figures))
    for watcher, thread in watchers:
        watcher.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
    provider.sock.close()
    return rows


def _listens(broker: Broker) -> bool:
    try:
        socket.create_connection((broker.address, ELKO), 1).close()
    except OSError:
        return False
    return True


def changes(seconds: float) -> list[Figure]:
    """Run a farm, and change services at one of its brokers."""
    with tempfile.TemporaryDirectory(prefix="elkobroker-bench-") as directory, Hosts(Path(directory), ttl=10) as hosts:
        for member in hosts.etcds.values():
            member.start()
        for member in hosts.etcds.values():
            until(member.healthy)
        for broker in hosts.brokers.values():
            broker.start()
        for broker in hosts.brokers.values():
            until(partial(_listens, broker))
        return seen_changes(hosts, int(RATE * seconds), RATE)


# topics


@contextmanager
def member() -> Iterator[Mc0Server]:
    """A broker with mc0 that is a member of two. Its topics have no subscriber at the other one."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="elkobroker-bench-"))
        etcd = stack.enter_context(Etcd(Path(directory)))
        one, _ = (
            stack.enter_context(servers.mc0(more=CLUSTER.format(etcd=etcd.url, name=name, link=servers.free_port())))
            for name in "ab"
        )
        until(lambda: one.counters().get("cluster_links.up"))
        yield one


ROWS: dict[str, Row | Scenario] = {"changes": Scenario("A change of services, seen at other brokers", 30.0, changes)}
ROWS |= {
    f"topics-{count}": Row(
        f"mc0 at a member, 100 B to {count}, a delivery; beside a single broker",
        cpu(puts(count, 100)),
        member,
        servers.mc0,
        GOAL,
    )
    for count in (1, 10)
}
