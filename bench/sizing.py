"""Memory and CPU of one broker for each provider, session, watcher and message: the figures for sizing a machine.

Each row starts a broker with all wires, adds so many of one kind, and reads its resident memory before and after,
and the CPU that a steady activity of them costs. Run it as ``python -m bench.sizing``.
"""

from __future__ import annotations

import json
import re
import socket
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.common.command import begin, parsed, write
from bench.common.report import table
from bench.common.servers import HOST, Server, await_log, free_port, spawn, twistd, wait_for
from bench.dbp import peers as dbp
from bench.zmtp.peer import connect as zmtp
from broker.client.blocking import Client

COUNT = 2_000
"""Of each kind: enough that the allocator's steps do not show."""

ROUNDS = 5
"""Reports, renewals or heartbeats of each."""

SETTLE = 1.5
"""Seconds after which what was added has been stored, and memory is read."""


@attrs.frozen(eq=False)
class Farm:
    """A broker, the ports of its wires, and what holds the peers open."""

    server: Server
    http: int
    mc0: int
    dbp: int
    mtl: int
    held: ExitStack

    def dial(self, port: int) -> socket.socket:
        """A connection that stays open."""
        return self.held.enter_context(socket.create_connection((HOST, port), 15))


@contextmanager
def farm() -> Iterator[Farm]:
    """A broker with all wires."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, ExitStack() as held:
        ports = {name: free_port() for name in ("elko", "http", "mc0", "dbp", "mtl", "console")}
        options = [f"--{name}-port={port}" for name, port in ports.items() if name != "elko"]
        command = twistd(f"--port={ports['elko']}", *options, f"--state={directory}/state")
        log = Path(directory) / "log"
        server = Server(spawn(command, log), ports["elko"], True, log)
        try:
            wait_for(server)
            await_log(server, re.compile("console on").search)
            yield Farm(server, ports["http"], ports["mc0"], ports["dbp"], ports["mtl"], held)
        finally:
            held.close()
            server.stop()


Act = Callable[[], object]
"""One round of the steady activity."""


def say(sock: socket.socket, *messages: dict[str, object]) -> None:
    """Send Elko messages, and wait until they are handled."""
    lines = [json.dumps(message) for message in (*messages, {"to": "client", "op": "ping", "tag": "x"})]
    sock.sendall("\n".join(lines).encode() + b"\n")
    while b"pong" not in sock.recv(65_536):
        pass


def elko_providers(farm: Farm, count: int) -> Act:
    """Elko servers, each with one service; a round is a load report of each."""
    socks = [farm.dial(farm.server.port) for _ in range(count)]
    for number, sock in enumerate(socks):
        service = {"service": f"service-{number % 100}", "hostport": f"host-{number}.example.com:7000"}
        say(
            sock,
            {"to": "client", "op": "auth", "label": f"server-{number}"},
            {"to": "client", "op": "willserve", "services": [service]},
        )

    def loads() -> None:
        for number, sock in enumerate(socks):
            sock.sendall(b'{"to":"client","op":"load","factor":%.2f}\n' % (time.time() % 1 + number % 3))
        say(socks[-1])

    return loads


def http_instances(farm: Farm, count: int) -> Act:
    """Services over HTTP, on one connection; a round renews each with a load."""
    sock = farm.dial(farm.http)

    def ask(method: str, path: str, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        answer = sock.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(answer.decode())

    for number in range(count):
        where = {"hostport": f"host-{number}.example.com:7000", "ttl": 3_600}
        ask("PUT", f"/v1/services/service-{number % 100}/{number}", where)

    def renew() -> None:
        for number in range(count):
            ask("POST", f"/v1/services/service-{number % 100}/{number}/renew", {"load": number % 7 / 7})

    return renew


def http_watchers(farm: Farm, count: int) -> Act:
    """Watchers of events over HTTP (pages, say); a round is ten changes of the registry, which all get."""
    one = farm.dial(farm.server.port)
    say(one, {"to": "client", "op": "auth", "label": "changing"})
    socks = [farm.dial(farm.http) for _ in range(count)]
    for sock in socks:
        sock.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")

    def change() -> None:
        for _ in range(5):
            offer = {"service": "changing", "hostport": "host.example.com:7000"}
            say(
                one,
                {"to": "client", "op": "willserve", "services": [offer]},
                {"to": "client", "op": "wontserve", "services": ["changing"]},
            )
        time.sleep(0.5)  # they are gathered for a quarter of a second
        for sock in socks:
            sock.setblocking(False)
            try:
                while sock.recv(65_536):
                    pass
            except BlockingIOError:
                sock.setblocking(True)

    return change


def mc0_subscribers(farm: Farm, count: int) -> Act:
    """Subscribers of mc0, each of one topic; a round is one message to all."""
    peers = [zmtp(farm.mc0, b"node-%d" % number, None) for number in range(count)]
    for peer in peers:
        farm.held.callback(peer.close)
        peer.ask(b"", b"CONNECT", b"ID", b"0", b"VERSION", b"0.3")
        peer.ask(b"", b"SUB", b"ID", b"1", b"", b"topic")

    def publish() -> None:
        peers[0].send(b"", b"PUT", b"TOPIC", b"topic", b"", b"x" * 100)
        for peer in peers:
            peer.receive()

    return publish


def dbp_services(farm: Farm, count: int) -> Act:
    """Services of DBP; a round is a heartbeat of each by UDP."""
    dbp.register(farm.dbp, [dbp.registration(number) for number in range(count)])
    sock = farm.held.enter_context(dbp.datagrams())

    def beat() -> None:
        for number in range(count):
            sock.sendto(dbp.heartbeat(dbp.name(number)), (HOST, farm.dbp))
            if number % 100 == 0:
                time.sleep(0.01)  # no more than the kernel's buffer holds

    return beat


def queue_messages(farm: Farm, count: int) -> Act:
    """Messages of 1 KiB in a queue of MTL that is not durable; no activity."""
    with Client(f"tcp://{HOST}:{farm.mtl}") as client:
        queue = client.write("queue", ["sizing"])
        for _ in range(count):
            queue.post(b"x" * 1_024)
        queue.flush()
    return lambda: None


KINDS = {
    "elko": ("an Elko server with a service", "a load report", elko_providers, COUNT, COUNT),
    "http": ("a service registered over HTTP", "a renewal with a load", http_instances, 1_000, 1_000),
    "watch": ("a watcher of events over HTTP", "a change, delivered to all 100", http_watchers, 100, 10),
    "mc0": ("a subscriber of mc0", "a message of 100 bytes, delivered to one", mc0_subscribers, COUNT, COUNT),
    "dbp": ("a service of DBP", "a heartbeat by UDP", dbp_services, COUNT, COUNT),
    "queue": ("a message of 1 KiB in a queue of MTL", "-", queue_messages, 20_000, 0),
}
"""Each kind: what it is, its activity, how it is made, how many, and activities in a round."""


def measured(name: str) -> dict[str, float]:
    """KiB of one, and microseconds of CPU for one activity."""
    _, _, make, count, acts = KINDS[name]
    with farm() as running:
        time.sleep(SETTLE)
        before = running.server.resident()
        act = make(running, count)
        time.sleep(SETTLE)
        size = (running.server.resident() - before) / count / 1024
        cpu = running.server.cpu()
        for _ in range(ROUNDS):
            act()
        time.sleep(0.2)
        spent = running.server.cpu() - cpu
    return {"kib": size, "microseconds": spent / ROUNDS / acts * 1e6 if acts else 0.0, "empty": before / 2**20}


def main() -> None:
    """Measure, and print a table."""
    arguments = ArgumentParser(description=__doc__)
    options, names = parsed(arguments, "kinds", {name: kind[0] for name, kind in KINDS.items()})
    about = begin()
    results = {name: measured(name) for name in names}
    rows = [
        [
            KINDS[name][0],
            f"{each['kib']:.1f}",
            KINDS[name][1],
            f"{each['microseconds']:.0f}" if each["microseconds"] else "-",
        ]
        for name, each in results.items()
    ]
    print(table(["what", "KiB", "activity", "µs of CPU"], rows))
    print(f"\nAn empty broker takes {max(each['empty'] for each in results.values()):.0f} MiB.")
    write(options.json, about, results=results)


if __name__ == "__main__":
    main()
