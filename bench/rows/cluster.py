"""A cluster: how soon a change is seen at the other brokers, how long a broker with many services holds the others, and
what a member's topics cost beside a single broker's.

``changes`` starts three members of etcd and three brokers on hosts made of network namespaces, which needs root. One
Elko server offers and withdraws services at one broker; a watching administrator at each of the others notes when it
receives each change.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench import servers, traffic
from bench.harness import Figure, Row, Scenario, cpu, exactly
from bench.machine import cpu_seconds, raise_descriptor_limit
from bench.rows.mc0 import puts
from bench.rows.scale import CONFIG, OF_EACH, is_found, names_of, register
from bench.rows.stalls import longest_ping, pinging
from bench.servers import HTTP_LISTENS, Mc0Server, WireServer, broker_with
from tests.cluster.farm.hosts import ELKO, Broker, Hosts
from tests.cluster.real_etcd import Etcd
from tests.integration.daemon import Peer
from tests.patience import until

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


def changes(rate: float, seconds: float) -> list[Figure]:
    """Run a farm, and change services at one of its brokers so many times a second."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, Hosts(Path(directory), ttl=10) as hosts:
        for member in hosts.etcds.values():
            member.start()
        for member in hosts.etcds.values():
            until(member.healthy)
        for broker in hosts.brokers.values():
            broker.start()
        for broker in hosts.brokers.values():
            until(partial(_listens, broker))
        return seen_changes(hosts, int(rate * seconds), rate)


# topics


@contextmanager
def member() -> Iterator[Mc0Server]:
    """A broker with mc0 that is a member of two. Its topics have no subscriber at the other one."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-"))
        etcd = stack.enter_context(Etcd(Path(directory)))
        one, _ = (
            stack.enter_context(servers.mc0(more=CLUSTER.format(etcd=etcd.url, name=name, link=servers.free_port())))
            for name in "ab"
        )
        until(lambda: one.counters().get("cluster_links.up"))
        yield one


# many services

TTL = 5
"""Seconds of a lease: the least that the configuration permits."""

HELD = 600.0
"""Limit in seconds for services to expire or return: ten TTL of holding, and more on a machine with other work."""


@contextmanager
def farm(*names: str) -> Iterator[tuple[Etcd, list[Member]]]:
    """Brokers of a cluster with one member of etcd."""
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(Path(stack.enter_context(_directory()))))

        def member(name: str) -> Member:
            config = CONFIG + CLUSTER.format(etcd=etcd.url, name=name, link=servers.free_port()) + f"ttl = {TTL}\n"
            place = Path(stack.enter_context(_directory()))
            found, said = stack.enter_context(broker_with(Member, "http", config, HTTP_LISTENS, place))
            found.port = int(said[1])
            return found

        yield etcd, [member(name) for name in names]


class Member(WireServer):
    """A broker of a cluster, with HTTP."""

    def ask(self, path: str) -> Any:
        """Return an answer of the HTTP API."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=traffic.STUCK) as answer:
            return json.load(answer)

    def services(self) -> int:
        """Return the number of services that are found here, without those of the brokers themselves."""
        return int(self.ask("/v1/services?pattern=service-*&limit=1")["total"])


def _directory() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="elkobroker-bench-")


def stalls(count: int, seconds: float) -> list[Figure]:
    """Measure pings while the services of a broker expire at the other one, and while it returns with them."""
    raise_descriptor_limit()
    with farm("a", "b") as (_, [one, other]), ExitStack() as stack:
        names = [names_of(0)[0], names_of(count // OF_EACH - 1)[-1]]

        def await_all(there: bool = True) -> None:
            # Etcd takes seconds to end a lease of 50,000 keys, in which that of the other broker may end as well: then
            # the services are held for a while.
            until(lambda: all(is_found(other.elko, each) is there for each in names), "the services", HELD)

        def pause() -> None:
            one.process.send_signal(signal.SIGSTOP)
            await_all(False)

        def go_on() -> None:
            one.process.send_signal(signal.SIGCONT)
            await_all()

        begun = time.perf_counter()
        register(one, count, stack)
        await_all()
        took = time.perf_counter() - begun
        figures = [Figure(f"{count:,} services, registered and seen elsewhere", f"{took:.1f} s")]
        figures += longest_ping(other, pause, seconds, ", at the other broker when they expire")
        figures += longest_ping(other, go_on, seconds, ", there when they return")
        pinger = pinging(one)  # before the pause, in which nothing connects
        pause()
        return figures + longest_ping(one, go_on, seconds, ", at the broker that was paused", pinger)


def heal(count: int, seconds: float) -> list[Figure]:
    """Suspend etcd for longer than the TTL, so that all leases end, and count what each broker finds until it has been
    a member again for some seconds."""
    with farm("a", "b", "c") as (etcd, brokers), ExitStack() as stack:
        for number, each in enumerate(brokers):
            register(each, count // 3, stack, number * count // 3 // OF_EACH)
        until(lambda: all(each.services() == count for each in brokers), "the services")
        etcd.members[0].pause()
        time.sleep(2 * TTL)
        etcd.members[0].resume()
        begun = end = time.perf_counter()
        least, looks = [count] * len(brokers), 0
        while time.perf_counter() < end + seconds:
            least = [min(before, each.services()) for before, each in zip(least, brokers, strict=True)]
            looks += 1
            if time.perf_counter() < begun + TTL or any(each.ask("/readyz")["degraded"] for each in brokers):
                end = time.perf_counter()
        lost = [each.counters().get("cluster.lost-leases") for each in brokers]
    return [
        exactly(f"least of {count:,} services found at each broker", least, [count] * len(brokers)),
        exactly("leases lost at each broker", lost, [1] * len(brokers)),
        Figure("counts at each", f"{looks:,}"),
        Figure("seconds until all brokers are members again", f"{end - begun:.1f}"),
    ]


HEALS = {"300": 300, "3k": 3_000, "30k": 30_000}

ROWS: dict[str, Row | Scenario] = {
    "changes": Scenario("100 changes of services a second, seen at other brokers", 30.0, partial(changes, 100.0)),
    "changes-1k": Scenario("1,000 changes of services a second, seen elsewhere", 10.0, partial(changes, 1_000.0)),
    "stalls-50k": Scenario("A broker with 50,000 services expires, and returns", 2.0, partial(stalls, 50_000)),
}
ROWS |= {
    f"heal-{name}": Scenario(f"etcd is away beyond the TTL: {count:,} services", 3.0, partial(heal, count))
    for name, count in HEALS.items()
}
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
