"""What many silent, slow or hostile mc0 peers cost the broker, and those beside them.

    python bench/mc0_robust.py [--scenarios PATTERN,...] [--seconds S] [--json FILE] [--list]

README.md says what the scenarios are. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from math import inf
from select import EPOLLOUT, epoll

import attrs
import mc0_servers
import mc0_zmtp
import traffic
from figures import KIB, MIB, Figure, Scenario, at_least, at_most, exactly, run_scenarios
from machine import peak_resident, waited_seconds
from mc0_herd import Herd
from mc0_peers import TOPIC, opened, subscribed
from mc0_servers import Mc0Server
from mc0_traffic import ANSWERED_WITHIN, ASKS_EVERY, HEAD_START, WINDOW, Flow, elko_pings, messages_between
from processes import NICENESS, InProcess

HIGH_WATER = 1_000
"""Messages that may wait for one peer, by default."""

SETTLE = 1.5
"""Seconds from the last connection until memory is read."""


# silent peers

IDLE_SESSIONS = 2_000
IDLE_TTL = 30.0
IDLE_CPU = 0.01
"""The share of one core that they may cost."""

IDLE_MEMORY = 5_000
"""Bytes of a session beyond a bare connection, which libzmq alone takes 30,000 for."""


def idle(seconds: float) -> list[Figure]:
    """Sessions that do nothing but stay alive."""
    with mc0_servers.reference("tuned") as server:
        before = server.resident()
        with closing(Herd(server, IDLE_SESSIONS, 0)):
            time.sleep(SETTLE)
            bare = (server.resident() - before) / IDLE_SESSIONS
    with mc0_servers.reference("tuned") as server, closing(Herd(server, IDLE_SESSIONS, IDLE_TTL)) as herd:
        loop = server.cpu()
        herd.run(seconds)
        loop = (server.cpu() - loop) / seconds
    with mc0_servers.broker() as server:
        before = server.resident()
        start = time.perf_counter()
        with closing(Herd(server, IDLE_SESSIONS, IDLE_TTL)) as herd, closing(opened(server, b"publisher")) as publisher:
            connected = time.perf_counter() - start
            time.sleep(SETTLE)
            each = (server.resident() - before) / IDLE_SESSIONS
            used = server.cpu()
            herd.run(seconds)
            used = (server.cpu() - used) / seconds
            lost, took = herd.lost(publisher)
    return [
        at_most("CPU of one core", used, IDLE_CPU, "{:.2%}"),
        Figure("CPU of a loop that only takes the same NOOPs", f"{loop:.2%}"),
        at_most("bytes of a session beyond a bare connection", each - bare, IDLE_MEMORY, "{:,.0f}"),
        Figure("bytes of a bare connection", f"{bare:,.0f}"),
        Figure("NOOPs from the broker, a second", f"{herd.noops / seconds:.0f}"),
        Figure("seconds to connect and subscribe all", f"{connected:.2f}"),
        Figure("milliseconds for one message to all", f"{1e3 * took:.0f}"),
        exactly("sessions lost", lost, 0),
        exactly("unexpected messages", herd.unexpected[:3], []),
    ]


# many heartbeats

BEATING = 300
BEAT_TTL = 1.0
STUCK_AFTER = 1.0
"""Seconds in which each message must arrive. Both originals let some lie until something else wakes them."""

NOOP_AFTER = 0.5
"""TTLs of silence after which the broker says NOOP."""

NOOP_TOLERANCE = 0.1
"""TTLs by which that may be late: it looks every 50 ms."""


@attrs.frozen
class Beaten:
    """What the sessions saw."""

    lost: int
    noops: int
    gap: float
    longest: float
    unexpected: list[list[bytes]]


def beating(server: Mc0Server, seconds: float) -> Beaten:
    """Sessions that stay alive with a short TTL; in the end, one message to all."""
    herd = Herd(server, BEATING, BEAT_TTL)
    herd.run(seconds)
    lost, _ = herd.lost(opened(server, b"publisher to all"), STUCK_AFTER)
    return Beaten(lost, herd.noops, statistics.median(herd.gaps), max(herd.gaps), herd.unexpected[:3])


def beats(seconds: float) -> list[Figure]:
    """Heartbeats of many sessions beside one publisher and one subscriber: nothing may get stuck, nobody lost."""
    problems: dict[str, object] = {}
    took: list[float] = []
    topic = b"mcollective pair"
    with ExitStack() as stack:
        server = stack.enter_context(mc0_servers.broker())
        publisher = stack.enter_context(closing(opened(server, b"publisher")))
        subscriber = stack.enter_context(closing(opened(server, b"subscriber")))
        subscriber.ask(b"", b"SUB", b"ID", b"1", b"", topic)
        herd = InProcess(beating, server, seconds)
        stack.callback(herd.stop)
        source = random.Random(1)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not problems:
            number = b"%d" % len(took)
            start = time.perf_counter()
            publisher.send(b"", b"PUT", b"TOPIC", topic, b"", number)
            try:
                message = subscriber.receive()
            except traffic.Stuck:
                problems["lost"] = number
                break
            took.append(time.perf_counter() - start)
            if message != [b"", b"MESSAGE", b"TOPIC", topic, b"", number]:
                problems["wrong"] = message
            time.sleep(source.uniform(0, 0.01))
        seen: Beaten = herd.result(seconds + 30)
    if stuck := sum(each > STUCK_AFTER for each in took):
        problems["stuck"] = stuck
    if seen.lost:
        problems["lost sessions"] = seen.lost
    if seen.unexpected:
        problems["unexpected"] = seen.unexpected
    return [
        exactly("problems", problems, {}),
        Figure("messages", f"{len(took):,}"),
        Figure("milliseconds, median", f"{1e3 * statistics.median(took):.1f}"),
        at_most("milliseconds, longest", 1e3 * max(took), 1e3 * STUCK_AFTER, "{:,.1f}"),
        Figure("NOOPs from the broker", f"{seen.noops:,}"),
        Figure(
            "TTLs between two, median",
            f"{seen.gap:.2f}",
            f"{NOOP_AFTER:g} +- {NOOP_TOLERANCE:g}",
            abs(seen.gap - NOOP_AFTER) <= NOOP_TOLERANCE,
        ),
        at_most("TTLs between two, longest", seen.longest, 1, "{:.2f}"),
    ]


# one that does not read

READERS = 9
BODY = 1 * KIB
RECEIVE_BUFFER = 4_096
"""Bytes that the kernel takes for the one that does not read: the less, the sooner the broker notices."""

OVERHEAD = 1 * KIB
"""Bytes that a message may cost beside its body while it waits: 64 for each frame, more for each that is longer than
33, and for the books about both."""

ALLOCATOR = 4 * MIB
"""Bytes by which the process may grow for other reasons: memory that is free but not given back, buffers that grew."""

SLOWED = 0.8
"""The share of their throughput that the others must keep."""


def slow(seconds: float) -> list[Figure]:
    """One of ten subscribers stops reading, and reads again in the end."""
    bodies = [b"%04d" % i + b"." * (BODY - 4) for i in range(1_000)]
    puts = [[b"", b"PUT", b"TOPIC", TOPIC, b"", body] for body in bodies]
    expected = [[b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body] for body in bodies]
    with ExitStack() as stack:
        server = stack.enter_context(mc0_servers.broker())
        publisher = stack.enter_context(closing(opened(server, b"publisher")))
        readers = [stack.enter_context(closing(subscribed(server, b"reader-%d" % i))) for i in range(READERS)]
        sleeper = stack.enter_context(closing(subscribed(server, b"sleeper")))
        flow = Flow(publisher, [*readers, sleeper], puts, expected, WINDOW)
        flow.run(seconds / 10)
        sample = flow.run(seconds / 2)
        rate_before = sample.messages / (READERS + 1) / sample.seconds
        sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        before = peak_resident(server.pid)
        sample = Flow(publisher, readers, puts, expected, WINDOW).run(seconds)
        sent = sample.messages // READERS
        grown = peak_resident(server.pid) - before
        dropped = sum(n for name, n in server.counters().items() if name.startswith("mc0_dropped."))
        came = list(reading(sleeper, sent - dropped))
        for peer in (publisher, sleeper):
            peer.sock.settimeout(traffic.STUCK)
        publisher.send(*puts[0])
        again = sleeper.receive() == expected[0]
    in_order = next((i for i, message in enumerate(came) if message != expected[i % len(expected)]), len(came))
    rate = sent / sample.seconds / rate_before
    return [
        at_most(
            "MiB that the broker grew by", grown / MIB, (HIGH_WATER * (BODY + OVERHEAD) + ALLOCATOR) / MIB, "{:.1f}"
        ),
        at_least("the others' throughput, of that before", rate, SLOWED, "{:.2f}"),
        Figure("messages", f"{sent:,}"),
        Figure("dropped, as the broker counts", f"{dropped:,}", "> 0", dropped > 0),
        exactly("of the others, not come", sent - dropped - len(came), 0),
        at_least("the first, without a gap", in_order, HIGH_WATER, "{:,}"),
        exactly("gets what is published when it reads again", again, True),
    ]


def reading(peer: mc0_zmtp.Peer, count: int) -> Iterator[list[bytes]]:
    """Read so many messages, or as many as come."""
    peer.sock.settimeout(traffic.STUCK)
    for _ in range(count):
        try:
            yield peer.receive()
        except traffic.Stuck:
            return


# a flood

FLOODERS = 20
FLOOD = 5.0
SLICE = 200
"""Messages that are sent at once."""


def pouring(port: int, seconds: float) -> None:
    """Send small messages from many connections, every other a PUT, as fast as they are taken."""
    poll = epoll()
    peers = [mc0_zmtp.connect(port, b"flooder-%02d" % i, None, 1 + i) for i in range(FLOODERS)]
    small = [[b"", b"PUT", b"TOPIC", b"nobody", b"", b"x"], [b"", b"NOOP"]]
    whole, left = {}, {}
    for i, peer in enumerate(peers):
        peer.sock.setblocking(False)
        whole[peer.sock.fileno()] = memoryview(peer.encode(small[i % len(small)]) * SLICE)
        left[peer.sock.fileno()] = whole[peer.sock.fileno()][:0]
        poll.register(peer.sock.fileno(), EPOLLOUT)
    sockets = {peer.sock.fileno(): peer.sock for peer in peers}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for fd, _ in poll.poll(0.01):
            data = left[fd] or whole[fd]
            left[fd] = data[sockets[fd].send(data) :]


def mc0_peer(server: Mc0Server, seconds: float) -> list[float]:
    """The seconds that each NOOP of an mc0 peer took until its OK."""
    with closing(opened(server, b"good")) as peer:
        asked, answered = [b"", b"NOOP", b"ID", b"1"], [b"", b"OK", b"ID", b"1"]
        return messages_between(peer, peer, asked, answered, ASKS_EVERY).run(seconds)


def flood(seconds: float) -> list[Figure]:
    """Connections that send small messages as fast as they can; and two good peers, one on each wire."""
    peers: dict[str, Callable[[Mc0Server, float], list[float]]] = {"Elko": elko_pings, "mc0": mc0_peer}
    with ExitStack() as stack:
        server = stack.enter_context(mc0_servers.broker())

        def together(duration: float) -> dict[str, InProcess]:
            started = {name: InProcess(peer, server, duration) for name, peer in peers.items()}
            for process in started.values():
                stack.callback(process.stop)
            return started

        alone = {name: process.result(HEAD_START + 30) for name, process in together(HEAD_START).items()}
        waited, start = waited_seconds(server.pid), time.perf_counter()
        good = together(seconds)
        hostile = InProcess(pouring, server.port, seconds, niceness=NICENESS)
        stack.callback(hostile.stop)
        took = {name: sorted(process.result(seconds + 60)) for name, process in good.items()}
        waited = (waited_seconds(server.pid) - waited) / (time.perf_counter() - start)
        hostile.result(30)
        taken = server.counters()["mc0.published"] / (time.perf_counter() - start)
    figures = []
    for name, times in took.items():
        figures += [
            Figure(f"{name}: median, milliseconds", f"{1e3 * statistics.median(times):.1f}"),
            _answered(f"{name}: 99 %", times[len(times) * 99 // 100]),
            _answered(f"{name}: longest", times[-1]),
            Figure(f"{name}: longest while alone", f"{1e3 * max(alone[name]):.1f}"),
        ]
    return [
        *figures,
        Figure("PUTs taken from the flood, a second", f"{taken:,.0f}"),
        Figure("the broker could have run, but had no core", f"{waited:.0%}"),
    ]


def _answered(what: str, took: float) -> Figure:
    value = "never" if took == inf else f"{1e3 * took:.1f}"
    return Figure(what, value, f"<= {1e3 * ANSWERED_WITHIN:g}", took <= ANSWERED_WITHIN)


SCENARIOS = {
    "idle": Scenario(f"{IDLE_SESSIONS:,} silent sessions, TTL {IDLE_TTL:g} s", 60.0, idle),
    "beats": Scenario(f"{BEATING} sessions with a TTL of {BEAT_TTL:g} s, and one publisher", 60.0, beats),
    "slow": Scenario(f"one of {READERS + 1} subscribers does not read", 5.0, slow),
    "flood": Scenario(f"{FLOODERS} connections send as fast as they can", FLOOD, flood),
}


if __name__ == "__main__":
    sys.exit(run_scenarios("The mc0 wire with silent, slow and hostile peers.", SCENARIOS))
