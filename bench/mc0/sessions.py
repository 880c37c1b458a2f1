"""The cost of many silent or slow mc0 peers for the broker, and for peers beside them.

bench/README.md says what the rows are; `bench.robust` runs them.
"""

from __future__ import annotations

import random
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

import attrs

from bench.common import traffic
from bench.common.figures import KIB, MIB, Figure, Scenario, at_least, at_most, exactly
from bench.common.machine import peak_resident, wakeups
from bench.common.processes import InProcess, Remote
from bench.mc0 import servers as mc0_servers
from bench.mc0.herd import Herd
from bench.mc0.peers import TOPIC, opened, subscribed
from bench.mc0.servers import Mc0Server
from bench.mc0.traffic import WINDOW, Flow
from bench.zmtp import peer as zmtp_peer

HIGH_WATER = 1_000
"""Messages that may wait for one peer, by default."""

SETTLE = 1.5
"""Seconds from the last connection until memory is read."""


# silent peers

IDLE_SESSIONS = 2_000
IDLE_TTL = 30.0

IDLE_CPU = 1.3
"""The most that they may cost, as a ratio to a bare Twisted protocol."""

IDLE_MEMORY = 6_000
"""Bytes of a session, with its connection."""

IDLE_WAKEUPS = 1
"""A second, beyond those without sessions: the loop measures its own lag ten times a second."""

STILL = 5.0
"""Seconds for which nothing is due: less than half a TTL after the last session was opened."""


@attrs.frozen
class Idled:
    """The observations of the sessions. ``lost`` and ``took`` are of one message to all."""

    connected: float
    noops: int
    unexpected: list[list[bytes]]
    lost: int = 0
    took: float = 0.0


class Idle:
    """Sessions that stay alive, in a process of their own. A run of no time publishes one message to all."""

    def __init__(self, server: Mc0Server) -> None:
        start = time.perf_counter()
        self._server = server
        self._herd = Herd(server, IDLE_SESSIONS, IDLE_TTL)
        self._connected = time.perf_counter() - start

    def run(self, seconds: float) -> Idled:
        """Stay alive for so long."""
        herd, noops = self._herd, self._herd.noops
        lost, took = 0, 0.0
        if seconds:
            herd.run(seconds)
        else:
            with closing(opened(self._server, b"publisher")) as publisher:
                lost, took = herd.lost(publisher)
        return Idled(self._connected, herd.noops - noops, herd.unexpected[:3], lost, took)


def idle(seconds: float) -> list[Figure]:
    """Sessions that do nothing but stay alive, on the broker and on a bare Twisted protocol beside it."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(mc0_servers.broker()),
            stack.enter_context(mc0_servers.bare(NOOP_AFTER * IDLE_TTL)),
        ]
        time.sleep(SETTLE)
        before = [server.resident() for server in servers]
        alone, empty = _still(servers)
        herds = [Remote(Idle, server) for server in servers]
        for herd in herds:
            stack.callback(herd.stop)
        time.sleep(SETTLE)
        each, bare = [(server.resident() - was) / IDLE_SESSIONS for server, was in zip(servers, before, strict=True)]
        still, filled = _still(servers)
        used = [server.cpu() for server in servers]
        for herd in herds:
            herd.start(seconds)
        seen: list[Idled] = [herd.result(seconds)[0] for herd in herds]
        used = [server.cpu() - was for server, was in zip(servers, used, strict=True)]
        broker, reference = (share / seconds - idle for share, idle in zip(used, alone, strict=True))
        last: Idled = herds[0].run(0)[0]
    return [
        at_most("CPU, as a ratio to the bare protocol", broker / reference, IDLE_CPU, "{:.2f}"),
        Figure("CPU of one core, beyond that without sessions", f"{broker:.2%}"),
        Figure("CPU of the bare protocol", f"{reference:.2%}"),
        Figure("CPU without sessions", f"{alone[0]:.2%}"),
        Figure("CPU while nothing is due", f"{still[0]:.2%}"),
        Figure("times a second that the reactor wakes, while nothing is due", f"{filled:.0f}"),
        at_most("the same, beyond that without sessions", filled - empty, IDLE_WAKEUPS, "{:.0f}"),
        at_most("bytes of a session, with its connection", each, IDLE_MEMORY, "{:,.0f}"),
        Figure("bytes of a connection of the bare protocol", f"{bare:,.0f}"),
        Figure("NOOPs from the broker, a second", f"{seen[0].noops / seconds:.0f}"),
        Figure("NOOPs from the bare protocol, a second", f"{seen[1].noops / seconds:.0f}"),
        Figure("seconds to connect and subscribe all", f"{seen[0].connected:.2f}"),
        Figure("milliseconds for one message to all", f"{1e3 * last.took:.0f}"),
        exactly("sessions lost", last.lost, 0),
        exactly("unexpected messages", seen[0].unexpected, []),
    ]


def _still(servers: Sequence[Mc0Server]) -> tuple[list[float], float]:
    """The CPU of each for some time, as shares of a core; and how often a second the reactor of the first woke."""
    used, woken = [server.cpu() for server in servers], wakeups(servers[0].pid)
    time.sleep(STILL)
    shares = [(server.cpu() - was) / STILL for server, was in zip(servers, used, strict=True)]
    return shares, (wakeups(servers[0].pid) - woken) / STILL


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
    """The observations of the sessions."""

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
RECEIVE_BUFFER = 1 << 16
"""Bytes that the kernel takes for the one that does not read: the less, the sooner the broker notices. With much less
it would read for minutes in the end, since the kernel acknowledges small windows late."""

OVERHEAD = 1 * KIB
"""Bytes that a message may cost beside its body while it waits: 64 for each frame, more for each that is longer than
33, and for the books about both."""

ALLOCATOR = 4 * MIB
"""Bytes by which the process may grow for other reasons: memory that is free but not given back, buffers that grew."""

SLOWED = 0.95
"""The share of their throughput that the others must keep."""

TURNS = 6
"""Stretches with the one that does not read, and as many without, in turns."""


def slow(seconds: float) -> list[Figure]:
    """Nine subscribers read, and a tenth only does in the end; beside that broker, another one has the nine alone."""
    bodies = [b"%04d" % i + b"." * (BODY - 4) for i in range(1_000)]
    puts = [[b"", b"PUT", b"TOPIC", TOPIC, b"", body] for body in bodies]
    expected = [[b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body] for body in bodies]
    rates: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:

        def ready(server: Mc0Server) -> tuple[zmtp_peer.Peer, Flow]:
            publisher = opened(server, b"publisher")
            readers = [subscribed(server, b"reader-%d" % i) for i in range(READERS)]
            return publisher, stack.enter_context(closing(Flow(publisher, readers, puts, expected, WINDOW)))

        calm = ready(stack.enter_context(mc0_servers.broker()))[1]
        server = stack.enter_context(mc0_servers.broker())
        publisher, flow = ready(server)
        for each in (calm, flow):
            each.run(seconds / 10)
        sleeper = stack.enter_context(closing(subscribed(server, b"sleeper")))
        sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        before = peak_resident(server.pid)
        first = flow.sent
        flow.run(seconds / 10)  # its buffers are full by then
        for turn in range(TURNS):
            for slowed in (False, True) if turn % 2 else (True, False):
                sample = (flow if slowed else calm).run(seconds / TURNS / 2)
                rates[slowed].append(sample.messages / sample.seconds)
        sent = flow.sent - first
        grown = peak_resident(server.pid) - before
        dropped = sum(n for name, n in server.counters().items() if name.startswith("mc0_dropped."))
        came = list(reading(sleeper, sent - dropped))
        for peer in (publisher, sleeper):
            peer.sock.settimeout(traffic.STUCK)
        publisher.send(*puts[0])
        again = sleeper.receive() == expected[0]
    wanted = (expected[i % len(expected)] for i in count(first))
    pairs = enumerate(zip(came, wanted, strict=False))
    in_order = next((i for i, (message, due) in pairs if message != due), len(came))
    kept = statistics.median(one / other for one, other in zip(rates[True], rates[False], strict=True))
    return [
        at_most(
            "MiB that the broker grew by", grown / MIB, (HIGH_WATER * (BODY + OVERHEAD) + ALLOCATOR) / MIB, "{:.1f}"
        ),
        at_least("the others' throughput, of that without it", kept, SLOWED, "{:.2f}"),
        Figure("deliveries a second, without it", f"{statistics.median(rates[False]):,.0f}"),
        Figure("messages", f"{sent:,}"),
        Figure("dropped, as the broker counts", f"{dropped:,}", "> 0", dropped > 0),
        exactly("of the others, not come", sent - dropped - len(came), 0),
        at_least("the first, without a gap", in_order, HIGH_WATER, "{:,}"),
        exactly("gets what is published when it reads again", again, True),
    ]


def reading(peer: zmtp_peer.Peer, count: int) -> Iterator[list[bytes]]:
    """Read so many messages, or as many as come."""
    peer.sock.settimeout(traffic.STUCK)
    for _ in range(count):
        try:
            yield peer.receive()
        except traffic.Stuck:
            return


SCENARIOS = {
    "mc0-idle": Scenario(f"{IDLE_SESSIONS:,} silent sessions, TTL {IDLE_TTL:g} s", 60.0, idle, quick=20.0),
    "mc0-beats": Scenario(f"{BEATING} sessions, TTL {BEAT_TTL:g} s, and one publisher", 60.0, beats, quick=15.0),
    "mc0-slow": Scenario(f"one of {READERS + 1} subscribers does not read", 5.0, slow),
}
