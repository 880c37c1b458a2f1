"""CURVE handshakes that are only begun, beside a good peer on mc0 and one on Elko."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing

from zmq.utils import z85

from bench import servers, traffic
from bench import zmtp as zmtp_peer
from bench.harness import Figure, Scenario, at_least
from bench.machine import waited_seconds
from bench.peers import elko as messages
from bench.peers.mc0 import Pace, messages_between, opened
from bench.processes import NICENESS, InProcess
from bench.robust.measure import ALONE, ANSWERED_WITHIN, SHARE_ELSEWHERE, SHARE_THERE
from bench.robust.swarm import SOURCES, Attack, Seen, swarm
from bench.servers import Mc0Server
from bench.zmtp import COMMAND, GREETING, Curve

HOSTILE = 1_000

ASKS_EVERY = 0.005
"""Seconds between two questions of a good peer beside them."""


def hello(server_key: bytes) -> bytes:
    """The octets of a CURVE client up to its first answer."""
    return zmtp_peer.greeting(b"CURVE") + zmtp_peer.frame(COMMAND, Curve(z85.decode(server_key)).hello())


def mc0_noops(server: Mc0Server, seconds: float) -> list[float]:
    """The seconds that each NOOP of a good CURVE peer took until its OK."""
    with closing(opened(server, b"good")) as peer:
        asked, answered = [b"", b"NOOP", b"ID", b"1"], [b"", b"OK", b"ID", b"1"]
        return messages_between(peer, peer, asked, answered, ASKS_EVERY).run(seconds)


def elko_pings(server: Mc0Server, seconds: float) -> list[float]:
    """The seconds that each ping of a good Elko peer took."""
    with traffic.opened(server.elko, messages.auth("good"), 0) as sock:
        sock.sendall(messages.PING)
        size = len(traffic.await_replies(sock, 1))
        return Pace(sock, lambda: messages.PING, sock, size, ASKS_EVERY).run(seconds)


def hellos(seconds: float) -> list[Figure]:
    """Connections that begin a CURVE handshake, go at the answer, and come again; a good peer on mc0, and one on Elko.

    They send the same HELLO again and again: it costs them nothing, and the broker two scalar multiplications.
    """
    parts = {"mc0": (mc0_noops, SHARE_THERE), "elko": (elko_pings, SHARE_ELSEWHERE)}
    with ExitStack() as stack:
        server = stack.enter_context(servers.mc0(zmtp_peer.new_keys()))
        assert server.key is not None

        def shares(duration: float) -> dict[str, float]:
            started = {wire: InProcess(part, server, duration) for wire, (part, _) in parts.items()}
            for process in started.values():
                stack.callback(process.stop)
            took = {wire: process.result(duration + 60) for wire, process in started.items()}
            return {wire: sum(t <= ANSWERED_WITHIN for t in times) / len(times) for wire, times in took.items()}

        alone = shares(ALONE)
        opening = hello(server.key)
        attack = Attack(lambda number: iter((opening,)), hangs_up=GREETING + Curve.WELCOME)
        hostile = InProcess(swarm, attack, server.port, HOSTILE, SOURCES, seconds, niceness=NICENESS)
        stack.callback(hostile.stop)
        waited, used, start = waited_seconds(server.pid), server.cpu(), time.perf_counter()
        beside = shares(seconds)
        took = time.perf_counter() - start
        waited, used = (waited_seconds(server.pid) - waited) / took, (server.cpu() - used) / took
        seen: Seen = hostile.result(60)
    return [
        *(
            at_least(f"{wire}: what the good peer keeps of its share", beside[wire] / alone[wire], least, "{:.1%}")
            for wire, (_, least) in parts.items()
        ),
        Figure("connections of the others, a second", f"{seen.connects / seconds:,.0f}"),
        Figure("the broker's CPU, of one core", f"{used:.0%}"),
        Figure("the broker could have run, but had no core", f"{waited:.0%}"),
    ]


SCENARIOS = {"mc0-hellos": Scenario(f"{HOSTILE:,} connections begin CURVE handshakes", 10.0, hellos)}
