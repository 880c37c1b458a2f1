"""Random histories of two brokers with queues over one fenced store: traffic, moves, and faults of disk and claims."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from unittest.mock import patch

import attrs
from twisted.logger import capturedLogs

from broker.core.database import StateUnusable
from broker.core.errors import Refusal
from broker.core.queues import queue_recorder
from broker.core.queues.consumer_ring import Consumer
from broker.core.queues.queue_messages import (
    DEAD,
    NOT_KEPT,
    Death,
    Message,
    QueueRule,
    QueueSettings,
    living_name,
)
from broker.core.queues.queue_recorder import COMMIT_SECONDS
from broker.core.queues.work_queue import Queue
from tests.core.queues.cluster_broker import Broker
from tests.core.queues.farm import Author, Worker
from tests.core.queues.fenced_store import FencedDatabase, FencedStore
from tests.core.queues.owners import Claims

QUEUES = ("x", "y", "z")

ALL = tuple(name + suffix for name in QUEUES for suffix in ("", DEAD, DEAD + DEAD))

SETTINGS = QueueSettings(
    durable=True, dead_letters=frozenset(Death), expires=20.0, max_deliveries=3, max_messages=1_000
)

COMMIT_BYTES = 25_000
"""Size of a transaction, instead of megabytes: thousands of histories run in one process."""

LARGE = 2 * COMMIT_BYTES // 5
"""Bytes of a large message: three of them are more than one transaction writes."""

CALM = 60
"""Rounds, of two seconds each, in which everything settles: longer than any pause before another attempt."""


class Member:
    """A broker with its store and workers."""

    def __init__(self, claims: Claims, name: str, database: FencedDatabase) -> None:
        self.name = name
        self.store = FencedStore(database)
        self.broker = Broker(claims, name, self.store, True, SETTINGS)
        self.workers: list[tuple[Worker, Consumer]] = []

    def queues(self) -> list[Queue]:
        """Return its queues, those of dead letters included."""
        found = (self.broker.queues.present("/", name) for name in ALL)
        return [queue for queue in found if queue is not None]


class QueueHistory:
    """A history from a seed: ``steps`` actions, then a time without faults, then what must hold."""

    def __init__(self, seed: int, steps: int = 300) -> None:
        self._rng = random.Random(seed)
        self._steps = steps
        self._database = FencedDatabase()
        self._claims = Claims()
        self._authors: list[Author] = []
        self._members: dict[str, Member] = {}
        for name in "ab":
            self._start(name)
        self._sent = 0
        self._answered: set[bytes] = set()
        """Bodies that a worker confirmed: they may be gone."""
        faults = self._rng.choice((0.1, 0.5, 1.5))
        self._actions: dict[Callable[[Member, str], None], float] = {
            self._send: 5,
            self._work: 6,
            self._fail: 1,
            self._doubt: 1,
            self._tick: 2,
            self._consume: 2,
            self._confirm: 3,
            self._reject: 2,
            self._leave: 1,
            self._move: 4,
            self._wait: 2,
            self._require: 3,
            self._reload: 0.5,
            self._back: 1,
            self._away: faults,
            self._expire: faults,
            self._steal: faults,
            self._kill: faults,
        }
        self._weights = list(accumulate(self._actions.values()))

    def run(self) -> None:
        """Run it. Raises AssertionError."""
        with capturedLogs() as logs, patch.object(queue_recorder, "COMMIT_BYTES", COMMIT_BYTES):
            for _ in range(self._steps):
                self._act()
                self._check_totals()
                self._find_unkept()
            self._settle()
        for event in logs:
            failure = event.get("log_failure")
            assert failure is None, failure.getTraceback()
        self._check_messages()

    # actions

    def _act(self) -> None:
        [action] = self._rng.choices(list(self._actions), cum_weights=self._weights)
        name = self._rng.choice(QUEUES)
        owners = [each for each in self._members.values() if each.broker.queues.present("/", name) is not None]
        # Most requests come to the broker that has the queue.
        member = self._rng.choice(owners if owners and self._rng.random() < 0.8 else list(self._members.values()))
        with suppress(Refusal):  # the queue is elsewhere, or is not loaded yet
            action(member, name)

    def _send(self, member: Member, name: str) -> None:
        self._sent += 1
        body = b"%d" % self._sent + bytes(self._rng.choice((0, 0, LARGE)))
        ttl = self._rng.choice((None, None, 5.0))
        if ttl is not None:
            self._answered.add(body)
        member.broker.queue(name).put(b"head", body, ttl, author=member.broker.author, token=body)

    def _work(self, member: Member, _name: str) -> None:
        for _ in range(min(self._rng.randint(1, 4), len(member.broker.thread.jobs))):
            member.broker.thread.work()

    def _fail(self, member: Member, _: str) -> None:
        if member.broker.thread.jobs:
            member.broker.thread.fail(StateUnusable("the disk fails"))

    def _doubt(self, member: Member, _: str) -> None:
        """The connection to the store is lost after a write."""
        jobs = member.broker.thread.jobs
        if jobs and jobs[0][1] == member.store.write:
            member.store.loses_answer = True
            member.broker.thread.work()

    def _tick(self, member: Member, _: str) -> None:
        member.broker.clock.advance(COMMIT_SECONDS)

    def _wait(self, member: Member, _: str) -> None:
        member.broker.wait(self._rng.choice((1, 10, 25)))

    def _require(self, member: Member, name: str) -> None:
        ready = member.broker.ownership.require("/", name)
        if ready is not None:
            ready.addErrback(lambda failure: failure.trap(Refusal))

    def _consume(self, member: Member, name: str) -> None:
        worker = Worker(self._rng.randint(1, 3))
        member.workers.append((worker, member.broker.queue(name).join(worker)))

    def _reload(self, member: Member, name: str) -> None:
        """One of its queues is not durable from now on, or all are again."""
        rules = [QueueRule((name,), attrs.evolve(SETTINGS, durable=False))] if self._rng.random() < 0.5 else []
        member.broker.queues.use([*rules, QueueRule(("*",), SETTINGS)])

    def _busy(self, member: Member) -> Worker | None:
        busy = [worker for worker, _ in member.workers if worker.held]
        return self._rng.choice(busy) if busy else None

    def _confirm(self, member: Member, _: str) -> None:
        worker = self._busy(member)
        if worker is not None:
            index = self._rng.randrange(len(worker.held))
            self._answered.add(bytes(worker.held[index].body))
            member.broker.confirm(worker, index)

    def _reject(self, member: Member, _: str) -> None:
        worker = self._busy(member)
        if worker is not None:
            member.broker.reject(worker, self._rng.randrange(len(worker.held)), self._rng.random() < 0.5)

    def _leave(self, member: Member, _: str) -> None:
        if member.workers:
            member.broker.gone(*member.workers.pop(self._rng.randrange(len(member.workers))))

    def _move(self, member: Member, name: str) -> None:
        source = name + self._rng.choice(("", "", "", DEAD))
        target = self._rng.choice([each for each in (*QUEUES, source + DEAD) if each != source])
        queue = member.broker.queues.present("/", source)
        if queue is not None and not queue.given_up:
            queue.move(member.broker.queue(target), _head)

    # faults

    def _away(self, member: Member, _: str) -> None:
        self._claims.away.add(member.name)

    def _back(self, member: Member, _: str) -> None:
        if member.name in self._claims.away:
            self._claims.back(member.name)

    def _expire(self, member: Member, _: str) -> None:
        self._claims.expire(member.name)

    def _steal(self, _: Member, name: str) -> None:
        self._claims.set(("/", name), None)

    def _kill(self, member: Member, _: str) -> None:
        self._claims.die(member.name)
        self._claims.away.discard(member.name)
        self._start(member.name)

    def _start(self, name: str) -> None:
        member = self._members[name] = Member(self._claims, name, self._database)
        self._authors.append(member.broker.author)

    # what must hold

    def _settle(self) -> None:
        """End all faults, let everything be written, then let the workers leave."""
        for name in list(self._claims.away):
            self._claims.back(name)
        self._calm()
        for member in self._members.values():
            for worker, consumer in member.workers:
                member.broker.gone(worker, consumer)
        self._calm()

    def _calm(self) -> None:
        for _ in range(CALM):
            for member in self._members.values():
                member.broker.clock.advance(2.0)
                member.broker.thread.work_all()
                self._find_unkept()

    def _check_totals(self) -> None:
        """The totals are those of the queues, and of the messages that workers have of queues that are gone."""
        for member in self._members.values():
            queues = member.queues()
            for queue in queues:
                assert queue.messages == len(queue.waiting()) + queue.out
                assert queue.leaving >= 0
            counted = sum(queue.messages for queue in queues)
            held = sum(len(worker.held) for worker, _ in member.workers)
            assert counted <= member.broker.queues.messages <= counted + held

    def _find_unkept(self) -> None:
        """Messages that were moved to a queue that is not durable, or died in one, may be lost."""
        for member in self._members.values():
            held = (message for worker, _ in member.workers for message in worker.held)
            for message in (*held, *(message for queue in member.queues() for message in queue.waiting())):
                if message.kept == NOT_KEPT and not message.queue.settings.durable:
                    self._answered.add(bytes(message.body))

    def _check_messages(self) -> None:
        """Nothing confirmed to an author is lost, and each broker has in memory what the store has of its queues."""
        safe = {body for author in self._authors for body in author.safe}
        missing = safe - self._answered - self._database.bodies()
        assert not missing, f"lost: {sorted(missing)}"
        for member in self._members.values():
            queues = member.queues()
            assert member.broker.queues.messages == sum(queue.messages for queue in queues)
            for queue in queues:
                assert queue.leaving == 0, queue.name
                assert len(queue.waiting()) == len({message.order for message in queue.waiting()}), queue.name
                loaded = member.broker.ownership.stores("/", queue.name)  # not claimed while the store failed
                if loaded and member.store.owns(("/", living_name(queue.name))):
                    here = {message.order: message.count for message in queue.waiting() if message.kept != NOT_KEPT}
                    assert here == self._database.orders("/", queue.name), queue.name


def _head(message: Message) -> bytes:
    return bytes(message.head)
