"""Model-based test of queues: the model is a plain list of messages. No message is lost, delivered twice, too early or
too late."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import attrs
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.core.errors import Reason, Refusal
from broker.core.liveness import TICK
from broker.core.queues.consumer_ring import Consumer
from broker.core.queues.queue_messages import OVERHEAD, Death, Message, QueueRule, QueueSettings, settings_of
from broker.core.queues.work_queue import FIRST_PAUSE, LONGEST_PAUSE
from tests.core.queues.farm import QueuesFarm, Worker
from tests.examples import examples

LATE = 3 * TICK
"""Tolerated delay of due work in seconds: a lease is checked at the end of its slot, and a clock that advances in ticks
adds up to two to that."""

MOST_TICKS = 1_000
"""Ticks until nothing is due any more; messages are due once each, and again after each delivery."""


@attrs.define(eq=False)
class Entry:
    """Message of the model."""

    body: bytes
    queue: str
    place: int
    deadline: float = inf
    count: int = 0
    holder: Worker | None = None
    avoid: Worker | None = None
    again: float = 0.0


class Model(RuleBasedStateMachine):
    """State machine: two queues and their dead-letter queues, three workers, and a plain list of the expected
    places."""

    NAMES = ("a", "b", "a.dead", "b.dead")

    @initialize(
        settings=st.builds(
            QueueSettings,
            max_messages=st.integers(1, 6),
            max_deliveries=st.integers(0, 3),
            dead_letters=st.frozensets(st.sampled_from(Death)),
            ttl=st.none() | st.sampled_from([0.0, 0.3]),
            single=st.booleans(),
            drop_oldest=st.booleans(),
        ),
        windows=st.tuples(*[st.integers(1, 4)] * 3),
    )
    def begin(self, settings: QueueSettings, windows: Sequence[int]) -> None:
        self.farm = QueuesFarm(settings)
        self.queues = self.farm.queues
        self.settings = {name: settings_of(name, [QueueRule(("*",), settings)]) for name in self.NAMES}
        self.workers = [Recorded(self, window) for window in windows]
        self.consumers: dict[str, dict[Worker, Consumer]] = {name: {} for name in self.NAMES}
        self.entries: dict[bytes, Entry] = {}
        self.over: set[bytes] = set()
        self.places = 0
        self.bodies = 0
        self.put_count = 0

    @property
    def now(self) -> float:
        return self.farm.leases.moment()

    def place(self) -> int:
        self.places += 1
        return self.places

    def of(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.queue == name]

    def held_by_none(self, name: str) -> list[Entry]:
        """Return the messages of the queue, in order."""
        return sorted((e for e in self.of(name) if e.holder is None), key=lambda entry: entry.place)

    def ready(self, name: str) -> list[Entry]:
        """Return the messages of the queue that are not set aside, in order."""
        return [e for e in self.held_by_none(name) if e.avoid is None or e.again <= self.now]

    def eligible(self, name: str) -> list[Worker]:
        consumers = list(self.consumers[name])
        return consumers[:1] if self.settings[name].single else consumers

    # the model

    def end(self, entry: Entry) -> None:
        del self.entries[entry.body]
        self.over.add(entry.body)

    def die(self, entry: Entry, death: Death) -> None:
        if death not in self.settings[entry.queue].dead_letters:
            self.end(entry)
            return
        grave = entry.queue + ".dead"
        while len(self.of(grave)) >= self.settings[grave].max_messages and (buried := self.held_by_none(grave)):
            self.end(buried[0])
        entry.queue, entry.place = grave, self.place()
        entry.deadline, entry.count, entry.holder, entry.avoid = inf, 0, None, None

    def returned(self, entry: Entry) -> bool:
        """Process the return of a delivered message. Returns False if it is dead."""
        entry.holder = None
        most = self.settings[entry.queue].max_deliveries
        if most and entry.count >= most:
            self.die(entry, Death.DELIVERIES)
        elif entry.deadline < self.now:
            self.die(entry, Death.EXPIRED)
        else:
            return True
        return False

    def taken(self, worker: Worker, message: Message) -> None:
        """Process a delivery by the queues."""
        entry = self.entries[bytes(message.body)]
        assert entry.holder is None, "given to two"
        while entry.queue != message.queue.name:  # it has just expired, and those before it
            assert self.let_pass(entry.queue)
        assert worker in self.eligible(entry.queue)
        assert entry.deadline >= self.now
        for older in self.ready(entry.queue):
            if older.avoid is None:  # or its back-off ends with this very tick
                assert older.place >= entry.place or older.deadline < self.now, "given out before an older one"
        entry.holder, entry.avoid = worker, None
        entry.count += 1
        assert message.count == entry.count
        assert (message.death is not None) == entry.queue.endswith(".dead")

    def settle_times(self) -> None:
        """Process due work of the queues and of the model, until nothing was due just now."""
        self.farm.clock.advance(TICK)
        for _ in range(MOST_TICKS):
            if not self.just_due():
                break
            self.farm.clock.advance(TICK)
        for name in self.NAMES:
            while self.let_pass(name):
                pass

    def let_pass(self, name: str) -> bool:
        """Expire the first message of a queue, or end the first pause. Returns False if neither is due.

        Each is done as of its own time: several ticks may have passed, and a message that is the first one at its
        deadline dies, although an older one is back from its pause by now.
        """
        waiting = self.held_by_none(name)
        ready = [entry for entry in waiting if entry.avoid is None]
        back = min((e for e in waiting if e.avoid is not None), key=lambda entry: entry.again, default=None)
        until = self.now if back is None else min(self.now, back.again)
        if ready and ready[0].deadline < until:
            self.die(ready[0], Death.EXPIRED)
        elif back is not None and back.again <= until:
            back.avoid = None
        else:
            return False
        return True

    def just_due(self) -> bool:
        """Return whether something was due lately: a message's deadline, or the end of its back-off."""
        now, since = self.now, self.now - LATE
        times = [each.deadline for each in self.entries.values()]
        times += [each.again for each in self.entries.values() if each.avoid is not None]
        return any(since <= time <= now for time in times)

    # rules

    @rule(name=st.sampled_from(["a", "b"]), ttl=st.none() | st.sampled_from([0.1, 0.5]))
    def put(self, name: str, ttl: float | None) -> None:
        settings = self.settings[name]
        self.bodies += 1
        entry = Entry(b"%d" % self.bodies, name, 0)
        wanted = True
        if len(self.of(name)) >= settings.max_messages:
            waiting = self.held_by_none(name)
            wanted = settings.drop_oldest and bool(waiting)
            if wanted:  # one is enough: only dead-letter queues exceed the limit
                self.die(waiting[0], Death.TOO_MANY)
        if not wanted:
            with pytest.raises(Refusal) as refused:
                self.farm.queue(name).put(b"head", entry.body)
            assert refused.value.reason is Reason.LIMIT
            self.over.add(entry.body)
            return
        entry.place = self.place()
        times = [each for each in (ttl, settings.ttl) if each is not None]
        entry.deadline = self.now + min(times) if times else inf
        self.entries[entry.body] = entry
        self.farm.put(entry.body, name=name, ttl=ttl)
        self.put_count += 1
        self.settle_times()

    @rule(which=st.integers(0, 2), name=st.sampled_from(NAMES))
    def join(self, which: int, name: str) -> None:
        worker = self.workers[which]
        if worker not in self.consumers[name]:
            # Messages come before the consumer is known here.
            self.consumers[name][worker] = None  # type: ignore[assignment]
            self.consumers[name][worker] = self.farm.consume(worker, name)
            self.settle_times()

    @rule(which=st.integers(0, 2), name=st.sampled_from(NAMES))
    def leave(self, which: int, name: str) -> None:
        consumer = self.consumers[name].pop(self.workers[which], None)
        if consumer is not None:
            consumer.queue.leave(consumer)
            self.settle_times()

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(data=st.data(), what=st.sampled_from(["confirm", "reject", "recycle", "recycle"]))
    def answer(self, data: st.DataObject, what: str) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers if worker.held]))
        indexes = data.draw(st.sets(st.integers(0, len(worker.held) - 1), min_size=1))
        messages = [worker.held[index] for index in sorted(indexes)]
        for message in messages:
            worker.release(worker.held.index(message))
        for message in messages:
            entry = self.entries[bytes(message.body)]
            if what == "confirm":
                self.end(entry)
                message.queue.settle(message)
            elif what == "reject":
                self.die(entry, Death.REJECTED)
                message.queue.reject(message)
            else:
                self.recycle(entry, message, worker)
        self.queues.serve(worker)
        self.settle_times()

    def recycle(self, entry: Entry, message: Message, worker: Worker) -> None:
        others = [each for each in self.eligible(entry.queue) if each is not worker and each.room]
        lives = self.returned(entry)
        aside = False
        if lives and worker in self.consumers[entry.queue] and all(each.stuck for each in others):
            aside = True
            entry.avoid = worker
            pause = min(FIRST_PAUSE * 2 ** (entry.count - 1), LONGEST_PAUSE)
            entry.again = min(self.now + pause, entry.deadline)
        message.queue.recycle(message, worker)
        if lives and not aside and any(not each.stuck for each in others):
            assert entry.holder in others

    @rule(which=st.integers(0, 2))
    def die_suddenly(self, which: int) -> None:
        worker = self.workers[which]
        room = worker.room
        worker.room = False
        for consumers in self.consumers.values():
            consumer = consumers.pop(worker, None)
            if consumer is not None:
                consumer.queue.leave(consumer)
        held, worker.held = worker.held, []
        for message in held:  # one by one, since a death may make room for another one elsewhere at once
            self.returned(self.entries[bytes(message.body)])
            message.queue.give_back(message)
        for message in held:
            message.queue.serve()
        worker.room = (room or bool(held)) and not worker.stuck
        self.settle_times()

    @rule(which=st.integers(0, 2))
    def get_stuck(self, which: int) -> None:
        self.workers[which].stuck = True

    @rule(which=st.integers(0, 2))
    def go_on(self, which: int) -> None:
        worker = self.workers[which]
        worker.stuck = False
        worker.room = len(worker.held) < worker.window
        self.queues.serve(worker)
        self.settle_times()

    @rule(seconds=st.sampled_from([0.1, 0.4, 5.0]))
    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.settle_times()

    # invariants

    @invariant()
    def all_are_where_they_must_be(self) -> None:
        if not hasattr(self, "farm"):
            return
        infos = {info.name: info for info in self.queues.describe()}
        for name in self.NAMES:
            entries = self.of(name)
            info = infos.get(name)
            out = [entry for entry in entries if entry.holder is not None]
            load = (0, 0) if info is None else (info.ready, info.out)
            assert load == (len(entries) - len(out), len(out))
        assert self.queues.messages == len(self.entries)
        assert self.queues.bytes == sum(len(entry.body) + 4 + OVERHEAD for entry in self.entries.values())
        for worker in self.workers:
            assert len(worker.held) <= worker.window
            assert set(worker.has) == {entry.body for entry in self.entries.values() if entry.holder is worker}
        assert not self.over & set(self.entries)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        if not hasattr(self, "farm"):
            return
        for name in self.NAMES:
            idle = [worker for worker in self.eligible(name) if worker.room]
            assert not (idle and self.ready(name))
            aside = [entry for entry in self.of(name) if entry.avoid is not None and entry.holder is None]
            if aside:
                oldest = min(aside, key=lambda entry: entry.place)
                assert all(worker is oldest.avoid for worker in idle)

    def teardown(self) -> None:
        """Assert that at the end everything is delivered, once, and in order."""
        if not hasattr(self, "farm"):
            return
        for which in range(3):
            self.die_suddenly(which)
        self.wait(LONGEST_PAUSE)
        for name in self.NAMES:
            ready = self.ready(name)
            expected = [entry.body for entry in ready if entry.deadline >= self.now]
            for entry in ready:
                if entry.deadline < self.now:
                    self.die(entry, Death.EXPIRED)
            sink = Worker(1_000)
            self.farm.consume(sink, name)
            assert sink.got == expected
            for message in list(sink.held):
                self.farm.confirm(sink, sink.held.index(message))
        assert (self.queues.messages, self.queues.bytes) == (0, 0)


class Recorded(Worker):
    """Worker that reports to the model."""

    def __init__(self, model: Model, window: int) -> None:
        super().__init__(window)
        self.model = model

    def take(self, message: Message) -> bool:
        if not self.stuck:
            self.model.taken(self, message)
        return super().take(message)


Model.TestCase.settings = hypothesis_settings(
    max_examples=examples(30), stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
test_model = Model.TestCase
