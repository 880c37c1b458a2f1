"""A reactor at work, with or without the metrics journal, in a process of its own: the subject of
`bench/journal/cost.py`.

    python -m bench.journal.reactor none|journal DIRECTORY LOAD

LOAD is a `Load` as JSON. At each of its turns some messages come on each of its connections. They are read as any
message is, and told to what the broker has for them: the registry, or the feed of the journal. Without the journal
loads are told to the registry all the same, as in a broker that has none, and heartbeats to nobody. One line of JSON
comes at the end: what was counted, and the longest times by which the reactor was late (Linux only).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from heapq import nlargest
from itertools import count, cycle
from typing import Any

import attrs
from twisted.internet import epollreactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from bench.common import machine
from broker.app.daemon import COLLECT_AFTER
from broker.core.model import Rights, Service
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.export.journal import Journal
from broker.export.journal_feed import FullLoads, JournalFeed
from broker.export.retention import Disk
from broker.export.segments import JournalLimits, Segments

PROVIDERS = 1_000
"""The providers that report, in turn; each with one service."""

SENT = 1_795_246_600.25
"""The times of their clocks in heartbeats."""

LONGEST = 10
"""The number of the longest times that are reported."""

OVER = (1, 2, 5, 10, 20)
"""Milliseconds: how often the reactor was later than that by its own doing is counted."""

TICK = 0.002
"""Seconds after which the reactor is to come round again."""

THREADS_LOOKED_FOR = 0.25
"""Seconds between two looks for threads that are new."""


@attrs.frozen
class Load:
    """``rate`` messages a second of one kind, ``hb`` or ``load``, for so many seconds, on so many connections: some on
    each of them every ``turn`` seconds."""

    kind: str
    rate: int
    seconds: float
    connections: int
    turn: float
    segment_bytes: int
    hangs: float = 0.0
    """For how long the disk does not answer, once, after a third of the time."""


@attrs.frozen
class Late:
    """By how much a tick was late, in seconds."""

    at: float
    whole: float
    no_core: float
    """In which the reactor could have run, but other processes had all the cores."""
    threads_no_core: float
    """The same of the journal's thread: when that has the interpreter, the reactor waits for a core with it."""

    @property
    def own(self) -> float:
        """The remaining lateness: by this process itself, and by the machine."""
        return max(0.0, self.whole - self.no_core - self.threads_no_core)


class NoCore:
    """For how long the threads of this process could have run, but had no core.

    It reads files without letting go of the interpreter, so that it does not wait for that itself.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._read_file = ctypes.PyDLL(None).pread
        self._read_file.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
        self._buffer = ctypes.create_string_buffer(64)
        self._first = str(os.getpid())
        self._looked_at = 0.0

    def seconds(self, now: float) -> tuple[float, float]:
        """Of this thread, and of all others."""
        if now - self._looked_at > THREADS_LOOKED_FOR:
            self._looked_at = now
            for name in os.listdir("/proc/self/task"):
                if name not in self._files:
                    self._files[name] = os.open(f"/proc/self/task/{name}/schedstat", os.O_RDONLY)
        of = {name: self._read(name) for name in list(self._files)}
        first = of.pop(self._first)
        return first, sum(of.values())

    def _read(self, name: str) -> float:
        size = self._read_file(self._files[name], self._buffer, len(self._buffer), 0)
        if size <= 0:  # it has ended
            os.close(self._files.pop(name))
            return 0.0
        return int(self._buffer.raw[:size].split()[1]) / 1e9


class HangingDisk(Disk):
    """A disk that does not answer for a while, once."""

    def __init__(self, hangs: float) -> None:
        super().__init__()
        self._hangs = hangs
        self._due = False
        self._done = False

    def hang(self) -> None:
        """Do not answer from now on, unless that has been."""
        self._due, self._done = not self._done, True

    def write(self, file: int, data: bytes | memoryview) -> int:
        if self._due:
            self._due = False
            time.sleep(self._hangs)
        return super().write(file, data)


class Written:
    """The journal as `broker/app/journal.py` wires it, on a disk that may hang."""

    def __init__(self, reactor: Any, registry: Registry, directory: str, load: Load) -> None:
        self.disk = HangingDisk(load.hangs)
        self.threads = ThreadPool(minthreads=0, maxthreads=1)
        segments = Segments(directory, "bench", "boot", JournalLimits(segment_bytes=load.segment_bytes), self.disk)
        self.journal = Journal(reactor, partial(deferToThreadPool, reactor, self.threads), segments)
        self.threads.start()
        self.journal.start()
        self.feed = JournalFeed(registry, self.journal.put, self.journal.now, FullLoads([(("service-1*",), 1.0)]))
        self.journal.before_flush = self.feed.catch_up

    def stop(self) -> Deferred[None]:
        self.feed.stop()
        return self.journal.stop().addCallback(lambda _: self.threads.stop())


class Farm:
    """The providers, and what they send."""

    def __init__(self, load: Load, registry: Registry, feed: JournalFeed | None) -> None:
        self.messages = 0
        ids = []
        for number in range(PROVIDERS):
            id = registry.join(f"node{number}", "dbp", f"192.0.2.1:{number}")
            service = Service(f"service-{number % 50}", f"192.0.2.1:{5000 + number}", id, interval=10.0)
            registry.offer([service], Rights())
            ids.append(id)
        providers, numbers = cycle(ids), count()

        def beat() -> None:
            self.messages += 1
            provider = next(providers)
            if feed is not None:
                registry.beat(provider, SENT)

        def report() -> None:
            self.messages += 1
            registry.load(next(providers), next(numbers) % 100 / 100)

        self.hear: Callable[[], None] = beat if load.kind == "hb" else report
        self._load = load
        self._sending: list[socket.socket] = []
        self._owed = 0.0

    def connect(self, reactor: Any) -> None:
        """Connect them to the reactor."""
        for _ in range(self._load.connections):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            reactor.adoptStreamConnection(ours.fileno(), socket.AF_UNIX, _Doorman(self.hear))
            ours.close()
            self._sending.append(theirs)

    def send(self, passed: float) -> None:
        """Send what belongs to the time that passed."""
        self._owed += self._load.rate * passed / len(self._sending)
        each = int(self._owed)
        self._owed -= each
        if each:
            for sending in self._sending:
                sending.send(b"x" * each)


class _Connection(Protocol):
    """Each byte is a message."""

    def __init__(self, hear: Callable[[], None]) -> None:
        self._hear = hear

    def dataReceived(self, data: bytes) -> None:
        for _ in data:
            self._hear()


class _Doorman(Factory):
    noisy = False

    def __init__(self, hear: Callable[[], None]) -> None:
        self._hear = hear

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return _Connection(self._hear)


class Bench:
    """One run: everything from the start to the result."""

    def __init__(self, reactor: Any, with_journal: bool, directory: str, load: Load) -> None:
        self._reactor = reactor
        self._load = load
        registry = Registry(reactor, count(1).__next__, Restored((), 0.0, reactor, lambda ids: None))
        self._written = Written(reactor, registry, directory, load) if with_journal else None
        self._farm = Farm(load, registry, None if self._written is None else self._written.feed)
        self._farm.connect(reactor)
        self._no_core = NoCore()
        self._lates: list[Late] = []
        self._begin = self._last = self._sent = time.monotonic()
        self._waited = self._no_core.seconds(self._begin)
        self._cpu, self._process = time.thread_time(), time.process_time()
        self.result: dict[str, Any] = {}
        reactor.callLater(0, self._tick)
        reactor.callLater(0, self._send)

    def _tick(self) -> None:
        now = time.monotonic()
        waited = self._no_core.seconds(now)
        at = now - self._begin
        reactor_waited, threads_waited = waited[0] - self._waited[0], waited[1] - self._waited[1]
        self._lates.append(Late(at, now - self._last - TICK, reactor_waited, threads_waited))
        self._last, self._waited = now, waited
        if at >= self._load.seconds:
            self._end()
            return
        if self._load.hangs and self._written is not None and at > self._load.seconds / 3:
            self._written.disk.hang()
        self._reactor.callLater(TICK, self._tick)

    def _send(self) -> None:
        now = time.monotonic()
        passed, self._sent = now - self._sent, now
        self._sending = self._reactor.callLater(self._load.turn, self._send)
        self._farm.send(passed)

    def _end(self) -> None:
        self._sending.cancel()
        self.result.update(
            messages=self._farm.messages,
            ticks=len(self._lates),
            cpu=time.thread_time() - self._cpu,
            process=time.process_time() - self._process,
            longest=self._longest(lambda late: late.whole),
            own=self._longest(lambda late: late.own),
            over={str(ms): sum(late.own * 1e3 > ms for late in self._lates) for ms in OVER},
        )
        stopped: Deferred[None] = succeed(None) if self._written is None else self._written.stop()
        stopped.addCallback(self._stopped)

    def _longest(self, by: Callable[[Late], float]) -> list[dict[str, float]]:
        return [{**attrs.asdict(late), "own": late.own} for late in nlargest(LONGEST, self._lates, key=by)]

    def _stopped(self, _: object) -> None:
        self.result["counts"] = {} if self._written is None else dict(self._written.journal.counts())
        self._reactor.stop()


def main() -> int:
    subject, directory, load = sys.argv[1:]
    machine.raise_descriptor_limit()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)  # as in the broker
    reactor: Any = epollreactor.EPollReactor()
    running: list[Bench] = []
    reactor.callWhenRunning(
        lambda: running.append(Bench(reactor, subject == "journal", directory, Load(**json.loads(load))))
    )
    reactor.run()
    print(json.dumps(running[0].result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
