"""A reactor at work, with or without the metrics journal, in a process of its own: the subject of `bench.rows.journal`.

    python -m bench.references.journal none|journal DIRECTORY LOAD

LOAD is a `Load` as JSON. At each of its turns some messages come on each of its connections. They are read as any
message is, and passed to the registry, or to the feed of the journal. Without the journal loads are reported to the
registry all the same, as in a broker that has none, and heartbeats are discarded. One line of JSON comes at the end:
what was counted, and the longest time by which the reactor was late (Linux only).
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count, cycle
from typing import Any

import attrs
from twisted.internet import epollreactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from bench import machine
from broker.app.daemon import COLLECT_AFTER
from broker.core.model import Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.export.journal import Journal
from broker.export.journal_disk import Disk
from broker.export.journal_feed import FullLoads, JournalFeed
from broker.export.segments import JournalLimits, Segments

PROVIDERS = 1_000
"""The providers that report, in turn; each with one service."""

SENT = 1_795_246_600.25
"""The times of their clocks in heartbeats."""

TICK = 0.002
"""Seconds after which the reactor is to come round again."""


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


class Written:
    """The journal as `broker/app/core_parts.py` wires it."""

    def __init__(self, reactor: Any, registry: Registry, directory: str, load: Load) -> None:
        self.threads = ThreadPool(minthreads=0, maxthreads=1)
        segments = Segments(directory, "bench", "boot", JournalLimits(segment_bytes=load.segment_bytes), Disk())
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
        self._late = 0.0
        self._begin = self._last = self._sent = time.monotonic()
        self._waited = machine.waited_seconds(os.getpid())
        self._cpu = time.thread_time()
        self._process = time.process_time()
        self.result: dict[str, Any] = {}
        reactor.callLater(0, self._tick)
        reactor.callLater(0, self._send)

    def _tick(self) -> None:
        now, waited = time.monotonic(), machine.waited_seconds(os.getpid())
        # Not the time in which other processes had all the cores.
        self._late = max(self._late, now - self._last - TICK - (waited - self._waited))
        self._last, self._waited = now, waited
        if now - self._begin >= self._load.seconds:
            self._end()
            return
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
            cpu=time.thread_time() - self._cpu,
            late=self._late,
        )
        stopped: Deferred[None] = succeed(None) if self._written is None else self._written.stop()
        stopped.addCallback(self._stopped)

    def _stopped(self, _: object) -> None:
        self.result["thread"] = time.process_time() - self._process - (time.thread_time() - self._cpu)
        self.result["written"] = machine.written(os.getpid())
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
