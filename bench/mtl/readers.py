"""The effect of readers that do not read, crowds that come and go, and nonsense on the MTL wire and its other peers.

bench/README.md says what the rows are; `bench.robust` runs them.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import zmq

from bench.common.figures import KIB, MIB, Figure, Scenario, at_least, at_most, exactly
from bench.common.machine import peak_resident, waited_seconds
from bench.common.processes import InProcess, Load, Remote
from bench.common.traffic import STUCK, Sample
from bench.mtl import fuzz as mtl_fuzz
from bench.mtl import peers as mtl_peers
from bench.mtl import servers as mtl_servers
from bench.mtl.crowd import QUIET, WRITERS, Crowd, Writers
from bench.mtl.fuzz import Verdict
from bench.mtl.peers import RESOURCE, Control
from bench.mtl.servers import MtlServer
from bench.mtl.traffic import FanOut, Queue

HIGH_WATER = 1_000
"""Messages that may wait for one reader, by default."""

WINDOW = 100
"""Contents that a reader of a queue may have unconfirmed, by default."""

OVERHEAD = 1 * KIB
"""Bytes that a Content may cost beside its body while it waits: those of its frames in libzmq, and the books."""

ALLOCATOR = 6 * MIB
"""Bytes by which the process may grow for other reasons: memory that is free but not given back, buffers that grew."""

SLOWED = 0.95
"""The share of their throughput that the others must keep."""

TURNS = 8
"""Stretches of each kind, in turns."""

# one that does not read

READERS = 9
BODY = 1 * KIB
RECEIVE_BUFFER = 4_096
"""Bytes that the kernel takes for the one that does not read: the less, the sooner the broker notices."""

NOTICED = 0.1
"""Seconds that it is there before its effects are measured: its buffers are full by then. It may not be there for long:
a reader that has missed ten thousand Contents is ended."""


class Sleeper:
    """A reader that reads no Content."""

    def __init__(self, server: MtlServer, profile: str, resource: str, confirm: str) -> None:
        at = mtl_peers.context()
        lease = Control(at, server, profile).lease("Reader", [resource], confirm)
        self._sock = at.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.RCVHWM, 1), (zmq.RCVBUF, RECEIVE_BUFFER)):
            self._sock.set(option, value)
        self._sock.connect(f"tcp://127.0.0.1:{server.data}")
        mtl_peers.say(self._sock, mtl_peers.LEASE, lease)
        mtl_peers.say(self._sock, mtl_peers.SUMMON, resource)

    def run(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


@contextmanager
def _running(prepare: type[Load], *arguments: object) -> Iterator[Remote]:
    load = Remote(prepare, *arguments)
    try:
        yield load
    finally:
        load.stop()


class Scheduler:
    """Stretches with and without a disturbance, and what they cost: rates, and the broker's CPU for each message."""

    def __init__(self, server: MtlServer, load: Remote) -> None:
        self._server = server
        self._load = load
        self.rates: dict[bool, list[float]] = {False: [], True: []}
        self.costs: dict[bool, list[float]] = {False: [], True: []}

    def run(self, disturbed: bool, seconds: float) -> None:
        """One stretch."""
        before = self._server.cpu()
        sample: Sample = self._load.run(seconds)[0]
        self.rates[disturbed].append(sample.messages / sample.seconds)
        self.costs[disturbed].append((self._server.cpu() - before) / sample.messages)

    def figures(self, what: str) -> list[Figure]:
        """The comparison of the two kinds."""
        kept = statistics.median(x / y for x, y in zip(self.rates[True], self.rates[False], strict=True))
        cost = statistics.median(x / y for x, y in zip(self.costs[True], self.costs[False], strict=True))
        return [
            Figure(f"{what} a second, without it", f"{statistics.median(self.rates[False]):,.0f}"),
            at_least("the share of them with it", kept, SLOWED, "{:.2f}"),
            Figure("CPU for each, in proportion", f"{cost:.2f}"),
        ]


def unread(seconds: float) -> list[Figure]:
    """Nine readers read, and a tenth does not: it comes and goes, so that there are stretches with and without it."""
    with ExitStack() as stack:
        server = stack.enter_context(mtl_servers.broker())
        load = stack.enter_context(_running(FanOut, server, READERS, BODY))
        load.run(seconds / 10)
        before = server.resident()
        turns = Scheduler(server, load)
        grown: list[int] = []
        for _ in range(TURNS):
            turns.run(False, seconds / TURNS / 2)
            with _running(Sleeper, server, "test", RESOURCE, "none"):
                load.run(NOTICED)
                turns.run(True, seconds / TURNS / 2)
                grown.append(server.resident() - before)
        counters = server.counters()
        peak = peak_resident(server.pid) - before
    bound = HIGH_WATER * (BODY + OVERHEAD) + ALLOCATOR
    return [
        *turns.figures("deliveries to the others"),
        at_most("MiB that the broker grew by, at most", peak / MIB, bound / MIB, "{:.1f}"),
        Figure("MiB, with each of them in turn", ", ".join(f"{each / MIB:.1f}" for each in grown)),
        _at_all("dropped, as the broker counts", _sum(counters, "mtl_dropped.")),
        Figure("ended, since they do not read", f"{counters.get('mtl_flows.slow', 0)} of {TURNS}"),
    ]


def unconfirmed(seconds: float) -> list[Figure]:
    """Four readers of a queue read and confirm, and a fifth does neither; what it has goes to the others in the end."""
    with ExitStack() as stack:
        server = stack.enter_context(mtl_servers.broker())
        load = stack.enter_context(_running(Queue, server, "memory", 4, WINDOW, BODY, False, TURNS * WINDOW))
        load.run(seconds / 10)
        before = server.resident()
        turns = Scheduler(server, load)
        for _ in range(TURNS):
            turns.run(False, seconds / TURNS / 2)
            with _running(Sleeper, server, "queue", "memory", "full"):
                load.run(NOTICED)
                turns.run(True, seconds / TURNS / 2)
        peak = peak_resident(server.pid) - before
        start = time.perf_counter()
        load.run(0)
        took = time.perf_counter() - start
        returned = server.counters()["mtl_queue.returned"]
    return [
        *turns.figures("Contents confirmed"),
        at_most("MiB that the broker grew by", peak / MIB, ALLOCATOR / MIB, "{:.1f}"),
        _at_all("given back by it", returned),
        Figure("seconds until the others had the last of that", f"{took:.2f}"),
    ]


def _sum(counters: dict[str, int], prefix: str) -> int:
    return sum(count for name, count in counters.items() if name.startswith(prefix))


def _at_all(what: str, count: int) -> Figure:
    return Figure(what, f"{count:,}", "> 0", count > 0)


# a crowd

CROWDS = 2
"""Processes that have its readers."""

CROWD = 1_000

LONGER = 1.0
"""Seconds for which the writers go on after the crowd: it must not see them stop."""


def crowd(seconds: float) -> list[Figure]:
    """A thousand readers join and leave while three writers write."""
    with ExitStack() as stack:
        server = stack.enter_context(mtl_servers.broker())
        writers = stack.enter_context(_running(Writers, server))
        crowds = [stack.enter_context(_running(Crowd, server, CROWD // CROWDS, seed)) for seed in range(CROWDS)]
        start, used, waited = time.perf_counter(), server.cpu(), waited_seconds(server.pid)
        writers.start(seconds + QUIET + LONGER)
        for each in crowds:
            each.start(seconds)
        seen: Counter[str] = Counter()
        for each in crowds:
            seen += each.result(seconds)[0]
        took = time.perf_counter() - start
        used, waited = (server.cpu() - used) / took, (waited_seconds(server.pid) - waited) / took
        written: int = writers.result(seconds + QUIET + LONGER)[0]
        counters = server.counters()
        dropped = sum(counters.get(f"mtl_dropped.{why}", 0) for why in ("full", "held"))
    return [
        exactly("Contents before the 200 to the Summon", seen["before"], 0),
        exactly("Contents after the 200 to the Dismiss", seen["after"], 0),
        exactly("out of order", seen["disordered"], 0),
        at_most("gaps, each where the broker counts something as dropped", seen["missed"], dropped, "{:,}"),
        _at_all("joined", seen["joined"]),
        _at_all("left", seen["left"]),
        _at_all("closed their connection instead, and others came", seen["gone"]),
        Figure("Contents written", f"{written:,}"),
        _at_all("Contents that came to readers", seen["contents"]),
        Figure("the broker's CPU, of one core", f"{used:.0%}"),
        Figure("the broker could have run, but had no core", f"{waited:.0%}"),
    ]


# nonsense

MESSAGES = 20_000
"""Of both flows together."""

GROWN = 16 * MIB
"""Bytes by which the broker may grow: ten thousand sessions, full tables of what is complained of, the allocator's."""

LATER = 4 * MIB
"""Bytes of that in the second half: tables are full by then."""


def nonsense(seconds: float) -> list[Figure]:
    """Random and mutated messages on both flows, in two halves; a good client beside them."""
    verdicts: dict[str, list[Verdict]] = {name: [] for name in mtl_fuzz.PARTS}
    with ExitStack() as stack:
        server = stack.enter_context(mtl_servers.broker())
        resident = [server.resident()]
        good = stack.enter_context(_running(Queue, server, "good", 1, WINDOW, 100))
        for seed in range(2):
            for name, part in mtl_fuzz.PARTS.items():
                process = InProcess(part, server, MESSAGES // 4, seed)
                stack.callback(process.stop)
                verdicts[name].append(process.result(4 * STUCK))
            resident.append(server.resident())
            good.run(0.1)
        alive = server.process.poll() is None
        log = server.log.read_text(errors="replace")
        counters = server.counters()
    figures = [
        exactly("the broker is alive", alive, True),
        exactly("tracebacks in its log", log.count("Traceback"), 0),
        Figure("lines in its log", f"{log.count(chr(10)):,}"),
        at_most("MiB that it grew by", (resident[2] - resident[0]) / MIB, GROWN / MIB, "{:.1f}"),
        at_most("MiB of that in the second half", (resident[2] - resident[1]) / MIB, LATER / MIB, "{:.1f}"),
        Figure("ill-formed, as the broker counts", f"{_sum(counters, 'mtl_ill_formed.'):,}"),
    ]
    for name, both in verdicts.items():
        figures += [
            Figure(f"{name}: messages", f"{sum(each.sent for each in both):,}"),
            Figure(f"{name}: well-formed, and to be answered", f"{sum(each.well_formed for each in both):,}"),
            exactly(f"{name}: of those, not answered", [x for each in both for x in each.unanswered][:1], []),
            exactly(f"{name}: ill-formed, but answered", [x for each in both for x in each.answered][:1], []),
            exactly(f"{name}: answers in no good form", [x for each in both for x in each.malformed][:1], []),
        ]
    return figures


SCENARIOS = {
    "mtl-reader-unread": Scenario(f"one of {READERS + 1} readers does not read", 5.0, unread),
    "mtl-reader-unconfirmed": Scenario("one of 5 readers of a queue does not read, nor confirm", 5.0, unconfirmed),
    "mtl-crowd": Scenario(f"{CROWD:,} readers come and go while {WRITERS} writers write", 15.0, crowd),
    "mtl-nonsense": Scenario(f"{MESSAGES:,} random and mutated messages", 0.0, nonsense),
}
