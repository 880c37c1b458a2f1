"""A thousand hostile DNS peers, by UDP and by TCP, beside good ones and an Elko peer of the same broker.

    python -m bench.dns.robust [--scenarios PATTERN,...] [--seconds S] [--json FILE] [--list]

bench/README.md says what the scenarios are. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import random
import re
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.common import machine, traffic
from bench.common.figures import KIB, MIB, Figure, Scenario, at_least, at_most, exactly, run_scenarios
from bench.common.processes import NICENESS, InProcess
from bench.common.servers import WireServer, broker_with
from bench.common.swarm import FIRST_SOURCE, SOURCES, Attack, swarm
from bench.elko import messages
from bench.mc0.traffic import elko_pings

PEERS = 1_000

ASKS_EVERY = 0.05
"""Seconds between two queries of a good peer: less often than the rate of an address allows."""

LOST_AFTER = 0.5
"""Seconds after which a good peer takes a query by UDP for lost, and asks again, as resolvers do."""

CONNECTED_WITHIN = 5.0
"""Seconds for a connection and its answer: the kernel repeats a lost request for a connection after 1 and 3 s."""

ANSWERED_WITHIN = 0.100
"""Seconds for 99 of 100 answers, and for the last of 100 pings of the Elko peer, while the machine is attacked."""

ANSWERED = 0.99
"""The share of the good peers' queries that get their answer at the first attempt, by UDP and beside a flood."""

EACH = 64 * KIB
"""Bytes of memory that a hostile peer may cost: an unfinished query of 4 KiB, two reads, small things. The output of
one that does not read has `OUTPUT` more."""

OUTPUT = 4 * MIB // 64
"""As a share of the output that may wait for a peer: the broker handles nothing of a peer that does not read."""

GROWTH = 24 * MIB
"""Bytes by which the process may grow whatever happens: tables of addresses, and of complaints."""

CONFIG = """
[dns]
enabled = true
endpoint = "tcp:0:interface=127.0.0.1"
limit_loopback = true
idle = 5.0
[console]
enabled = true
"""

LISTENS = re.compile(r"dns on 127\.0\.0\.1:(\d+) \(udp and tcp\)")
_DEFECT = re.compile(r"Traceback|Unhandled|made the broker fail|MemoryError")


def name(*labels: bytes) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


BANK = name(b"bank", b"service", b"elkobroker")
NONE = name(b"none", b"service", b"elkobroker")


def query(number: int, qname: bytes = BANK, kind: int = 33) -> bytes:
    """A query with EDNS for the largest response."""
    header = struct.pack("!6H", number & 0xFFFF, 0x0100, 1, 0, 0, 1)
    return header + qname + struct.pack("!HH", kind, 1) + b"\0" + struct.pack("!HHIH", 41, 4096, 0, 0)


def framed(data: bytes) -> bytes:
    return struct.pack("!H", len(data)) + data


# good peers


@attrs.frozen
class Asked:
    """The results of a good peer: the seconds of each answer, and how many queries were lost."""

    took: list[float]
    lost: int


def good_udp(port: int, seconds: float) -> Asked:
    """Ask by UDP, one query after the other."""
    took, lost = [], 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((traffic.HOST, port))
        sock.settimeout(LOST_AFTER)
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            start = time.perf_counter()
            sock.send(query(number))
            try:
                while sock.recv(4096)[:2] != struct.pack("!H", number & 0xFFFF):
                    pass
                took.append(time.perf_counter() - start)
            except TimeoutError:
                lost += 1
            time.sleep(max(0.0, ASKS_EVERY - (time.perf_counter() - start)))
    return Asked(took, lost)


def good_tcp(port: int, seconds: float) -> Asked:
    """Ask by TCP, each time on a connection of its own: the accept and the first answer together."""
    took, lost = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        try:
            with socket.create_connection((traffic.HOST, port), CONNECTED_WITHIN) as sock:
                sock.sendall(framed(query(1)))
                if not sock.recv(4096):
                    raise ConnectionError
            took.append(time.perf_counter() - start)
        except OSError:
            lost += 1
        time.sleep(max(0.0, ASKS_EVERY - (time.perf_counter() - start)))
    return Asked(took, lost)


# hostile peers by TCP


def noise(number: int) -> Iterator[bytes]:
    """Random bytes."""
    source = random.Random(number)
    while True:
        yield source.randbytes(source.randint(1, 4_096))


def half(number: int) -> Iterator[bytes]:
    """A query that is never completed, or one byte at a time."""
    whole = framed(query(number))
    if number % 2:
        yield whole[:-1]
        return
    while True:
        for byte in whole:
            yield bytes((byte,))


def long_begun(number: int) -> Iterator[bytes]:
    """All but the last byte of the longest message."""
    yield struct.pack("!H", 4_096) + bytes(4_095)


def pipelined(number: int) -> Iterator[bytes]:
    """Queries without end."""
    yield from repeat(framed(query(number)) * 200)


def malformed(number: int) -> Iterator[bytes]:
    """Queries that cannot be read."""
    bad = [struct.pack("!6H", 1, 0, 1, 0, 0, 16) + BANK, struct.pack("!6H", 1, 0, 65_535, 0, 0, 0), bytes(12)]
    yield from cycle(framed(each) * 50 for each in bad)


def silent(number: int) -> Iterator[bytes]:
    """Nothing at all."""
    return iter(())


def http(number: int) -> Iterator[bytes]:
    """A request of a browser."""
    yield b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"


# hostile peers by UDP


def flood(port: int, make: Callable[[int], bytes], count: int, seconds: float) -> int:
    """Send as fast as it goes from so many sockets, of `SOURCES` addresses. Returns how many."""
    socks = []
    for number in range(count):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        traffic.bind(sock, FIRST_SOURCE + number % SOURCES)
        sock.connect((traffic.HOST, port))
        socks.append(sock)
    sent = 0
    end = time.monotonic() + seconds
    datagrams = [make(number) for number in range(1_000)]
    while time.monotonic() < end:
        for number, sock in enumerate(socks):
            try:
                sock.send(datagrams[(sent + number) % 1_000])
            except OSError:
                continue
            sent += 1
    for sock in socks:
        sock.close()
    return sent


def udp_noise(number: int) -> bytes:
    source = random.Random(number)
    return source.randbytes(source.randint(0, 600))


def udp_fuzz(number: int) -> bytes:
    """A query with some bytes changed."""
    source = random.Random(number)
    data = bytearray(query(number))
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


# what is measured


@contextmanager
def attacked() -> Iterator[WireServer]:
    """A broker with DNS, and a service of 20 places."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, ExitStack() as stack:
        server, found = stack.enter_context(broker_with(WireServer, "dns", CONFIG, LISTENS, Path(directory)))
        server.port = int(found[1])
        opening = messages.auth("bank") + b"".join(
            b'{"to":"client","op":"willserve","services":[{"type":"servicedesc","service":"bank",'
            b'"hostport":"192.0.2.%d:80"}]}\n\n' % place
            for place in range(1, 21)
        )
        stack.enter_context(traffic.opened(server.elko, opening + messages.PING, 1))
        yield server


def _in_time(what: str, took: list[float], goal: bool = True) -> Figure:
    """The seconds within which 99 of 100 answers came. There is no goal where the kernel's queue of datagrams is full:
    good ones wait in it behind hostile ones, and are lost."""
    most = sorted(took)[len(took) * 99 // 100] if took else float("inf")
    if not goal:
        return Figure(what, f"{1e3 * most:.0f} ms")
    return at_most(what, 1e3 * most, 1e3 * ANSWERED_WITHIN, "{:.0f} ms")


def _scenario(hostile: Callable[[int, float], object], bound: int, lossy: bool, seconds: float) -> list[Figure]:
    """Attack a fresh broker. ``lossy``: datagrams may be lost before the broker sees them."""
    with attacked() as server, ExitStack() as stack:
        before = server.resident()
        parts: dict[str, InProcess] = {}
        for title, function, at in (("udp", good_udp, server.port), ("tcp", good_tcp, server.port)):
            parts[title] = InProcess(function, at, seconds)
            stack.callback(parts[title].stop)
        elko = InProcess(elko_pings, server, seconds)
        stack.callback(elko.stop)
        waited, start = machine.waited_seconds(server.pid), time.monotonic()
        attack = InProcess(hostile, server.port, seconds, niceness=NICENESS)
        stack.callback(attack.stop)
        seen = {title: part.result(seconds + 60) for title, part in parts.items()}
        pings: list[float] = elko.result(60)
        waited = (machine.waited_seconds(server.pid) - waited) / (time.monotonic() - start)
        told = attack.result(60)
        counters = server.counters()
        peak = machine.peak_resident(server.pid)
        log = server.log.read_text(errors="replace").splitlines()
    figures = []
    for title, asked in seen.items():
        total = len(asked.took) + asked.lost
        within = sum(took <= ANSWERED_WITHIN for took in asked.took) / total
        figures += [
            Figure(f"{title}: median of {total} answers", f"{1e3 * statistics.median(asked.took or [9]):.1f} ms"),
            _in_time(f"{title}: 99 % of the answers", asked.took, goal=not (lossy and title == "udp")),
            Figure(f"{title}: longest", f"{1e3 * max(asked.took, default=9):.0f} ms"),
            Figure(f"{title}: in time", f"{100 * within:.1f} %"),
            Figure(f"{title}: lost", str(asked.lost))
            if lossy and title == "udp"
            else at_least(f"{title}: answered", 100 * len(asked.took) / total, 100 * ANSWERED, "{:.1f} %"),
        ]
    figures += [
        _in_time("elko: 99 % of the pings", pings),
        at_most("memory", peak / MIB, (before + bound) / MIB, "{:.0f} MiB"),
        exactly("defects in the log", sum(_DEFECT.search(line) is not None for line in log), 0),
        Figure("log lines", str(len(log))),
        Figure("hostile", str(told)),
        Figure("no core for the broker", f"{100 * waited:.0f} %"),
    ]
    shown = ("queries.udp", "queries.tcp", "limited.dropped", "limited.slipped", "datagrams.dropped", "datagrams.sent")
    return [*figures, *(Figure(f"dns_{each}", str(counters.get(f"dns_{each}", 0))) for each in shown)]


def by_tcp(title: str, attack: Attack) -> Scenario:
    bound = GROWTH + PEERS * (EACH if attack.reads else EACH + OUTPUT)

    def hostile(port: int, seconds: float) -> object:
        return swarm(port, attack, PEERS, seconds)

    return Scenario(title, 15, partial(_scenario, hostile, bound, False))


def by_udp(title: str, make: Callable[[int], bytes]) -> Scenario:
    def hostile(port: int, seconds: float) -> str:
        return f"{flood(port, make, PEERS, seconds)} datagrams"

    return Scenario(title, 15, partial(_scenario, hostile, GROWTH, True))


def no_attack(port: int, seconds: float) -> None:
    """No attack."""
    time.sleep(seconds)


SCENARIOS = {
    "alone": Scenario("no hostile peers", 5, partial(_scenario, no_attack, GROWTH, False)),
    "tcp-silent": by_tcp("1,000 connections that send nothing", Attack(silent)),
    "tcp-half": by_tcp("1,000 that send half a query, or a byte at a time", Attack(half)),
    "tcp-long": by_tcp("1,000 that begin the longest message", Attack(long_begun)),
    "tcp-noise": by_tcp("1,000 that send random bytes", Attack(noise)),
    "tcp-http": by_tcp("1,000 that send a request of HTTP", Attack(http)),
    "tcp-malformed": by_tcp("1,000 that send unreadable queries", Attack(malformed)),
    "tcp-pipelined": by_tcp("1,000 that send queries without end", Attack(pipelined)),
    "tcp-unread": by_tcp("1,000 that read no answers", Attack(pipelined, reads=False)),
    "udp-noise": by_udp("a flood of random bytes from 1,000 sockets", udp_noise),
    "udp-fuzz": by_udp("a flood of damaged queries", udp_fuzz),
    "udp-queries": by_udp("a flood of queries with long answers", query),
    "udp-missing": by_udp("a flood of queries of names that do not exist", partial(query, qname=NONE)),
}


if __name__ == "__main__":
    sys.exit(run_scenarios("Hostile DNS peers beside good ones.", SCENARIOS))
