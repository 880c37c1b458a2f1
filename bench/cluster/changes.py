"""Costs of a cluster: how soon a change is seen at the other brokers, a resynchronisation, and etcd's load.

``python -m bench.cluster.changes`` starts three members of etcd and three brokers on hosts made of network namespaces,
and measures:

- changes: one Elko server offers and withdraws services at one broker, 100 changes a second; a watching administrator
  at each of the others notes when it hears of each.
- load: providers of Elko report a load each second; requests and bytes are those of etcd's own metrics.
- resync: a broker is started beside one with 10,000 services; the time until it lists all, and the greatest lateness of
  its reactor by its own histogram.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import tempfile
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.common.machine import describe
from bench.common.report import table
from tests.cluster.farm.hosts import ELKO, HTTP, Broker, Hosts
from tests.cluster.real_etcd import Member, until

BETWEEN = 100
"""Offers between the offer of a service and its withdrawal."""


class Peer:
    """A plain connection of Elko."""

    def __init__(self, broker: Broker, role: str) -> None:
        self.socket = socket.create_connection((broker.address, ELKO), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("rb")
        self.say(to=role, op="auth")

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n\n")

    def hear(self) -> dict[str, Any]:
        """The next message but pings, which are answered."""
        while line := self.lines.readline():
            if line.strip():
                message: dict[str, Any] = json.loads(line)
                if message["op"] != "ping":
                    return message
                self.say(to=message["to"], op="pong", tag=message.get("tag"))
        raise EOFError

    def done(self) -> None:
        """Return when all that was sent was handled."""
        self.say(to="error", op="ping", tag="done")
        while self.hear().get("tag") != "done":
            pass


def changes(hosts: Hosts, count: int, rate: float) -> list[list[str]]:
    """Measure the time from a change to its arrival at the watchers of the other brokers."""
    one, *others = hosts.brokers.values()
    provider = Peer(one, "client")
    seen: dict[str, dict[str, float]] = {each.name: {} for each in others}
    watchers = []
    for broker in others:
        watcher = Peer(broker, "admin")
        watcher.say(to="admin", op="watch", services=True)
        watcher.done()

        def read(watcher: Peer = watcher, seen: dict[str, float] = seen[broker.name]) -> None:
            try:
                while True:
                    message = watcher.hear()
                    now = time.monotonic()
                    for each in message.get("desc", ()):
                        seen[f"{each['service']} {message['on']}"] = now
            except (OSError, EOFError, ValueError):
                return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        watchers.append((watcher, thread))
    sent: dict[str, float] = {}
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        # A service that came and went within one transaction would be no change at the others.
        pair, on = number // 2, number % 2 == 0
        name = f"change-{pair if on else pair - BETWEEN}"
        sent[f"{name} {on}"] = time.monotonic()
        if on:
            provider.say(to="client", op="willserve", services=[{"service": name, "hostport": f"192.0.2.1:{number}"}])
        elif pair >= BETWEEN:
            provider.say(to="client", op="wontserve", services=[name])
    time.sleep(2.0)
    rows = []
    for name, times in seen.items():
        late = sorted(1000 * (times[key] - sent[key]) for key in sent if key in times)
        if late:
            rows.append(
                [name, str(len(late)), f"{median(late):.1f}", f"{late[int(0.99 * len(late))]:.1f}", f"{late[-1]:.1f}"]
            )
    for watcher, thread in watchers:
        watcher.socket.shutdown(socket.SHUT_RDWR)
        thread.join()
    provider.socket.close()
    return rows


def load(hosts: Hosts, count: int, seconds: float) -> list[list[str]]:
    """Measure what etcd is asked for by providers that report a load each second."""
    one = next(iter(hosts.brokers.values()))
    peers = []
    for number in range(count):
        peer = Peer(one, "client")
        peer.say(to="client", op="willserve", services=[{"service": f"load-{number % 10}", "hostport": f"h:{number}"}])
        peers.append(peer)
    for peer in peers:
        peer.done()
    over = threading.Event()

    def report() -> None:
        number = 0
        while not over.is_set():
            begun = time.monotonic()
            for peer in peers:
                number += 1
                peer.say(to="client", op="load", factor=(number % 997) / 1000)
            over.wait(max(0.0, 1.0 - (time.monotonic() - begun)))

    thread = threading.Thread(target=report)
    thread.start()
    time.sleep(3.0)
    members = list(hosts.etcds.values())
    before = [metrics(each) for each in members]
    time.sleep(seconds)
    after = [metrics(each) for each in members]
    over.set()
    thread.join()
    for peer in peers:
        peer.socket.close()
    rows = []
    for method in ("Txn", "LeaseKeepAlive", "Range", "Put"):
        total = sum(a.get(method, 0) - b.get(method, 0) for a, b in zip(after, before, strict=True))
        rows.append([f"{method} a second, all brokers together", f"{total / seconds:.1f}"])
    grown = max(a["size"] - b["size"] for a, b in zip(after, before, strict=True))
    rows.append(["growth of the database in use, kB a second", f"{grown / seconds / 1000:.1f}"])
    return rows


def metrics(member: Member) -> dict[str, float]:
    """Return the requests that a member has handled by method, and the size of its database in use."""
    with urllib.request.urlopen(f"{member.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in re.finditer(r'^grpc_server_msg_received_total\{.*grpc_method="(\w+)".*\} (\S+)$', text, re.MULTILINE):
        found[line[1]] = found.get(line[1], 0) + float(line[2])
    size = re.search(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)$", text, re.MULTILINE)
    found["size"] = float(size[1]) if size else 0.0
    return found


def resync(hosts: Hosts, services: int) -> list[list[str]]:
    """Measure the start of a broker beside one with many services."""
    one, *_, last = hosts.brokers.values()
    last.kill()
    peers = []
    for number in range(services // 10):
        peer = Peer(one, "client")
        offered = [{"service": f"s-{number}-{n}", "hostport": f"h:{number}"} for n in range(10)]
        peer.say(to="client", op="willserve", services=offered)
        peers.append(peer)
    for peer in peers:
        peer.done()
    time.sleep(8.0)
    begun = time.monotonic()
    last.start()
    until(lambda: _listens(last))
    listening = time.monotonic() - begun
    found = until(lambda: _count(last) if _count(last) >= services else 0)
    complete = time.monotonic() - begun
    lateness = _lateness(last)
    for peer in peers:
        peer.socket.close()
    return [
        ["services", str(found)],
        ["seconds from the start of the process until it listens", f"{listening:.1f}"],
        ["seconds until it lists all", f"{complete:.1f}"],
        ["lateness of its reactor's timer, the bucket of the longest, s", lateness],
    ]


def _listens(broker: Broker) -> bool:
    try:
        socket.create_connection((broker.address, ELKO), 1).close()
    except OSError:
        return False
    return True


def _count(broker: Broker) -> int:
    peer = Peer(broker, "admin")
    try:
        peer.say(to="admin", op="servicedesc")
        return sum(1 for each in peer.hear()["desc"] if each["provider"])
    finally:
        peer.socket.close()


def _lateness(broker: Broker) -> str:
    """Return the least bucket of the histogram that has all samples."""
    with urllib.request.urlopen(f"http://{broker.address}:{HTTP}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    buckets = re.findall(r'^elkobroker_reactor_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    most = float(buckets[-1][1])
    return next(f"<= {bound}" for bound, count in buckets if float(count) == most)


def main() -> None:
    """Measure, and print Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--changes", type=int, default=3000)
    options.add_argument("--rate", type=float, default=100.0, help="changes a second")
    options.add_argument("--loaded", type=int, default=1000, help="providers that report loads")
    options.add_argument("--seconds", type=float, default=20.0, help="for which the loads are measured")
    options.add_argument("--services", type=int, default=10_000)
    given = options.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in describe().items()))
    with tempfile.TemporaryDirectory(prefix="elkobroker-bench-") as directory, Hosts(Path(directory), ttl=10) as hosts:
        for member in hosts.etcds.values():
            member.start()
        for member in hosts.etcds.values():
            until(member.healthy)
        for broker in hosts.brokers.values():
            broker.start()
        for broker in hosts.brokers.values():
            until(partial(_listens, broker))
        print("\n## Changes\n")
        rows = changes(hosts, given.changes, given.rate)
        print(table(("seen at", "changes", "median, ms", "p99, ms", "longest, ms"), rows))
        print("\n## Loads\n")
        print(table(("what", "result"), load(hosts, given.loaded, given.seconds)))
        print("\n## Resynchronisation\n")
        print(table(("what", "result"), resync(hosts, given.services)))


if __name__ == "__main__":
    main()
