"""The cost of a message of a topic for a local subscriber, at a member of a cluster and at a single broker.

    python -m bench.cluster.topics [--seconds S] [--runs N] [--json FILE]

CPU time of the broker's process for each delivery by mc0, 100 bytes, NULL. The member has another one beside it, which
has no subscriber of the topic, or one: then each message goes over the link, too.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import attrs

from bench.common import command
from bench.common.figures import judged, median
from bench.common.report import table
from bench.elko import cost as elko
from bench.elko.cost import Result
from bench.mc0 import servers
from bench.mc0.cost import puts
from bench.mc0.peers import TOPIC, expect, opened, subscribed
from bench.mc0.servers import Mc0Server
from bench.zmtp.peer import READ, Peer
from tests.cluster.real_etcd import Etcd, until

GOAL = 1.1
"""The most that a delivery may cost at a member without interest elsewhere, as a ratio to a single broker: the same,
apart from the difference of two runs."""

SUBSCRIBERS = (1, 10)

TITLES = {
    "single": "a single broker",
    "member": "a member of two",
    "linked": "a member of two, with a subscriber at the other",
}

CLUSTER = """
[cluster]
etcd = ["{etcd}"]
name = "{name}"
link = "tcp://127.0.0.1:{link}"
"""


@attrs.frozen
class Servers:
    """The measured brokers."""

    single: Mc0Server
    member: Mc0Server
    other: Mc0Server


@contextmanager
def started() -> Iterator[Servers]:
    """Start etcd, two members and a single broker."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-"))
        etcd = stack.enter_context(Etcd(Path(directory)))

        def member(name: str) -> Mc0Server:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                link = taken.getsockname()[1]
            more = CLUSTER.format(etcd=etcd.url, name=name, link=link)
            return stack.enter_context(servers.broker(more=more))

        brokers = Servers(stack.enter_context(servers.broker()), member("a"), member("b"))
        until(lambda: brokers.member.counters().get("cluster_links.up"), "the link")
        yield brokers


@contextmanager
def drained(peer: Peer) -> Iterator[None]:
    """Read what arrives for a peer, and forget it, in a thread of its own; closes the peer at the end."""

    def read() -> None:
        with suppress(OSError):
            while peer.sock.recv(READ):
                pass

    peer.sock.setblocking(True)
    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            peer.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        peer.sock.close()


def passed(server: Mc0Server) -> int:
    """Publish a message. Returns how many a member has sent to others."""
    publisher = opened(server, b"first")
    expect(publisher.ask(b"", b"PUT", b"ID", b"1", b"TOPIC", TOPIC, b"", b"x"), b"1")
    publisher.sock.close()
    return server.counters().get("remote_topics.sent", 0)


def measured(server: Mc0Server, subscribers: int, seconds: float) -> Result:
    """Measure a delivery at one broker."""
    result: Result = elko.cpu(puts(subscribers, 100))(server, seconds)
    return result


def main() -> int:
    """Run the benchmark. Returns its exit code: 1 if the goal is not met."""
    options = command.whole("The cost of a message of a topic for local subscribers of a member.", runs=5, seconds=3.0)
    about = command.begin()
    found: dict[tuple[str, int], list[Result]] = {}

    def run(**brokers: Mc0Server) -> None:
        for _ in range(options.runs):
            for count in SUBSCRIBERS:
                for name, server in brokers.items():
                    found.setdefault((name, count), []).append(measured(server, count, options.seconds))

    with started() as brokers:
        run(single=brokers.single, member=brokers.member)
        elsewhere = subscribed(brokers.other, b"elsewhere")
        with drained(elsewhere):
            until(lambda: passed(brokers.member), "a message at the other member")
            run(linked=brokers.member)
    costs = {key: median(results, "cost") for key, results in found.items()}
    ratios = {(name, count): cost / costs["single", count] for (name, count), cost in costs.items()}
    rows = [
        [TITLES[name], str(count), f"{cost:.2f}", f"{ratios[name, count]:.2f}"] for (name, count), cost in costs.items()
    ]
    print(table(["broker", "local subscribers", "a delivery, µs", "ratio"], rows))
    met = all(ratios["member", count] <= GOAL for count in SUBSCRIBERS)
    print(f"a delivery at a member without interest elsewhere: goal {GOAL:g} of a single broker: {judged(met)}")
    command.write(options.json, about, topics={f"{name} {count}": ratio for (name, count), ratio in ratios.items()})
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
