"""Recorder: state after a restart at each moment, work of the reactor thread, and provider ids.

The file is longer than others: it has all tests of `broker.core.recorder`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from broker.core.database import StateFull, StateUnusable
from broker.core.disk import QUIET_SECONDS, RETRY_SECONDS, RETRY_SECONDS_MOST
from broker.core.errors import Refusal
from broker.core.model import BROKER, KnownSession, Provider, Rights, Service, Snapshot
from broker.core.recorder import (
    FLUSH_ROWS,
    FLUSH_SECONDS,
    RESERVE,
    Recorder,
)
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.store import DATABASE, Store
from tests.full_disk import no_room
from tests.threads import Thread, TimedThread

GRACE = 60.0


class UnreliableStore(Store):
    """The store on a disk that fails while ``error`` is set. ``meanwhile`` is what the reactor does during the next
    write."""

    error: Exception | None = None
    meanwhile: Callable[[], object] | None = None
    writes = 0

    def record(self, *arguments: Any, **others: Any) -> None:
        self.writes += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.error is not None:
            raise self.error
        super().record(*arguments, **others)

    def close(self, next_provider: int) -> None:
        if self.error is not None:
            raise self.error
        super().close(next_provider)


class CountingRegistry(Registry):
    """The registry, which counts the copies of providers that it makes."""

    copies = 0

    def provider(self, provider: int) -> Provider | None:
        self.copies += 1
        return super().provider(provider)


class Run:
    """One run of a broker's core on a state directory."""

    def __init__(self, directory: str, now: float = 0.0) -> None:
        self.directory = directory
        self.clock = Clock()
        self.clock.advance(now)
        self.thread = Thread()
        self.disk = TimedThread(self.clock, self.thread)
        self.store = UnreliableStore(directory)
        try:
            snapshot = self.store.open()
        except StateFull:
            snapshot = self.store.look()
        self.snapshot = snapshot
        restored = Restored(snapshot.providers, GRACE, self.clock, lambda ids: self.recorder.forget(ids))
        self.registry = CountingRegistry(self.clock, lambda: self.recorder.next_id(), restored)
        self.recorder = Recorder(
            self.registry,
            self.store,
            self.clock,
            self.thread,
            self.disk,
            snapshot.next_provider,
            [session.identity for session in snapshot.sessions],
        )

    def join(self, *names: str) -> int:
        provider = self.registry.join("label", "elko", "10.0.0.1:1")
        self.offer(provider, *names)
        return provider

    def offer(self, provider: int, *names: str) -> None:
        services = [Service(name, f"10.0.0.1:{provider % 50_000}", provider) for name in names]
        self.registry.offer(services, Rights())

    def flush(self) -> None:
        """Advance the clock past the delay of a write, and run the thread."""
        self.clock.advance(FLUSH_SECONDS)
        self.thread.work_all()

    def fail(self, error: Exception) -> None:
        """The oldest job of the thread fails without having written anything."""
        self.store.error = error
        self.thread.work()
        self.store.error = None

    def durable_mark(self) -> int:
        with closing(sqlite3.connect(os.path.join(self.directory, DATABASE))) as database:
            (mark,) = database.execute("SELECT next_provider FROM counter").fetchone()
        return int(mark)


class Subscriber:
    """Session with topics."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.topics: tuple[bytes, ...] = (b"t",)

    def known(self) -> KnownSession:
        return KnownSession(self.identity, "", "h", 30.0, None, self.topics)


class RecorderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.run_ = self.start(os.path.join(self.directory, "state"))

    def start(self, directory: str) -> Run:
        run = Run(directory)
        self.addCleanup(run.store.close, 1)
        return run

    def after_a_kill(self, run: Run) -> Snapshot:
        """Return the state that the next run would read after a kill."""
        with tempfile.TemporaryDirectory(dir=self.directory) as copy:
            shutil.copytree(run.directory, copy, dirs_exist_ok=True)
            store = Store(copy)
            snapshot = store.open()
            store.close(1)
            return snapshot

    def remembered(self, run: Run) -> dict[int, list[str]]:
        """Return the names of the services that would be read after a kill, by provider."""
        return {p.id: [s.name for s in p.services] for p in self.after_a_kill(run).providers}

    def test_one_act_copies_its_provider_once(self) -> None:
        run = self.run_
        provider = run.join(*(f"s{n}" for n in range(100)))
        assert run.registry.copies <= 2, "of the join and of the offer"
        run.registry.withdraw(provider, [f"s{n}" for n in range(98)])
        assert run.registry.copies <= 3
        run.flush()
        assert self.remembered(run) == {provider: ["s98", "s99"]}

    def test_the_last_label_of_a_provider_is_remembered(self) -> None:
        run = self.run_
        provider = run.join("bank")
        run.flush()
        run.registry.relabel(provider, "other")
        run.flush()
        assert [each.label for each in self.after_a_kill(run).providers] == ["other"]

    # ids of a start

    def test_ids_of_a_start_are_above_those_of_all_earlier_ones_whatever_the_state_directory_has(self) -> None:
        given: list[int] = []
        directory = os.path.join(self.directory, "other")
        copy = os.path.join(self.directory, "copy")
        for now, before in ((1_000_000.0, None), (1_000_060.0, copy), (1_000_120.0, None)):
            if before is not None:
                shutil.copytree(directory, before)
            run = Run(directory, now)
            given += [run.join() for _ in range(2 * RESERVE)]
            run.store.close(given[-1] + 1)
        for now, state in ((1_000_121.0, copy), (1_000_122.0, os.path.join(self.directory, "new"))):
            run = Run(state, now)
            given.append(run.join())
            run.store.close(given[-1] + 1)
        assert given == sorted(set(given))
        assert given[-1] < 2**53

    def test_a_clock_that_was_set_back_or_is_wrong_by_centuries_repeats_no_id_and_leaves_room(self) -> None:
        given: list[int] = []
        directory = os.path.join(self.directory, "other")
        for now in (1_000_000.0, 900_000.0, 0.0, 9e11, 1_000_000.0):
            run = Run(directory, now)
            given.append(run.join())
            run.store.close(given[-1] + 1)
        assert given == [10**12 + each for each in range(5)]

    # what is written, and when

    def test_changes_are_gathered_and_then_written_in_the_thread(self) -> None:
        run = self.run_
        first = run.join("a", "b")
        second = run.join()
        run.clock.advance(FLUSH_SECONDS * 0.9)
        assert run.thread.jobs == []
        run.clock.advance(FLUSH_SECONDS * 0.1)
        assert len(run.thread.jobs) == 1
        assert self.remembered(run) == {}
        run.thread.work()
        assert self.remembered(run) == {first: ["a", "b"], second: []}
        assert self.after_a_kill(run).providers == run.registry.providers()

    def test_each_kind_of_change_is_written(self) -> None:
        run = self.run_
        one, two = run.join("a"), run.join("x")
        run.flush()
        run.offer(one, "b")
        run.flush()
        assert self.remembered(run) == {one: ["a", "b"], two: ["x"]}
        run.registry.withdraw(one, ["a"])
        run.flush()
        assert self.remembered(run) == {one: ["b"], two: ["x"]}
        [service] = run.registry.find("b", "tcp")
        run.registry.amend(attrs.evolve(service, info='{"topics": null}', lasting=True))
        run.flush()
        assert self.after_a_kill(run).providers == run.registry.providers()
        run.registry.leave(two)
        run.flush()
        assert self.remembered(run) == {one: ["b"]}

    def test_loads_and_the_brokers_own_services_are_not_written(self) -> None:
        run = self.run_
        provider = run.join()
        run.flush()
        run.registry.load(provider, 3.0)
        run.registry.offer_own([Service("broker-client", "127.0.0.1:9000", BROKER)])
        assert run.clock.getDelayedCalls() == []
        assert run.thread.jobs == []

    def test_a_provider_that_came_and_went_costs_no_write(self) -> None:
        run = self.run_
        for _ in range(100):
            run.registry.leave(run.join("a"))
        run.flush()
        assert (run.store.writes, run.clock.getDelayedCalls()) == (0, [])

    def test_a_provider_that_goes_while_it_is_written_is_removed(self) -> None:
        run = self.run_
        provider = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.registry.leave(provider)
        run.thread.work()
        run.flush()
        assert self.remembered(run) == {}

    def test_one_write_at_a_time_with_a_limit(self) -> None:
        run = self.run_
        for _ in range(FLUSH_ROWS + 5):
            run.join("a")
        run.thread.work_all()  # ids were reserved
        run.clock.advance(FLUSH_SECONDS)
        run.join("late")
        run.clock.advance(FLUSH_SECONDS * 10)
        assert len(run.thread.jobs) == 1
        run.thread.work()
        assert sorted(self.remembered(run)) == list(range(1, FLUSH_ROWS + 1))
        run.flush()
        assert sorted(self.remembered(run)) == list(range(1, FLUSH_ROWS + 7))
        assert run.clock.getDelayedCalls() == []

    def test_writes_go_on_however_late_the_reactor_is(self) -> None:
        run = self.run_
        run.disk.late = True  # it processes no report of the thread
        joined = []
        for _ in range(5):
            joined.append(run.join("a"))
            run.clock.advance(FLUSH_SECONDS)
            run.thread.work()
            assert sorted(self.remembered(run)) == joined, "each is there after the delay and one write"

    # failures

    def test_a_change_during_a_long_write_is_written_as_soon_as_that_ends(self) -> None:
        run = self.run_
        joined = []

        def change() -> None:
            joined.append(run.join("b"))
            run.clock.advance(FLUSH_SECONDS * 3)

        first = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.store.meanwhile = change
        run.thread.work()
        (second,) = joined
        assert self.remembered(run) == {first: ["a"]}
        assert len(run.thread.jobs) == 1, "it has waited for long enough"
        third = run.join("c")
        run.thread.work()
        assert self.remembered(run) == {first: ["a"], second: ["b"], third: ["c"]}

    def test_a_failed_write_is_tried_again_less_and_less_often_and_told_of_once(self) -> None:
        run = self.run_
        kept = run.join("a")
        waits = []
        with capturedLogs() as logged:
            run.clock.advance(FLUSH_SECONDS)
            for _ in range(8):
                run.fail(StateUnusable("the disk is full"))
                run.offer(kept, "more")  # a change does not shorten the back-off
                (timer,) = run.clock.getDelayedCalls()
                waits.append(timer.getTime() - run.clock.seconds())
                run.clock.advance(waits[-1])
            gone = run.join("b")
            run.registry.leave(gone)
            run.thread.work()
            run.flush()
        assert waits == [min(RETRY_SECONDS * 2**n, RETRY_SECONDS_MOST) for n in range(8)]
        assert self.remembered(run) == {kept: ["a"] + ["more"] * 8}
        assert [e["log_level"] for e in logged] == [LogLevel.error, LogLevel.info]
        assert str(logged[0]["why"]) == "the disk is full"

    def test_a_change_during_a_write_that_fails_wins(self) -> None:
        run = self.run_
        provider = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.store.meanwhile = lambda: run.offer(provider, "b")
        run.fail(StateUnusable("the disk is full"))
        run.clock.advance(RETRY_SECONDS)
        run.thread.work_all()
        assert self.remembered(run) == {provider: ["a", "b"]}

    def test_a_change_before_the_reactor_hears_of_the_end_of_failures_is_written(self) -> None:
        run = self.run_
        first = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.fail(StateUnusable("the disk is full"))
        run.disk.late = True
        run.clock.advance(RETRY_SECONDS)
        run.thread.work()  # this write succeeds, and reports so
        second = run.join("b")
        run.disk.turn()
        assert run.recorder.failures == 0
        run.flush()
        assert self.remembered(run) == {first: ["a"], second: ["b"]}

    def test_a_defect_is_logged_with_its_traceback_and_does_not_end_the_recording(self) -> None:
        run = self.run_
        provider = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.fail(ZeroDivisionError())
        assert len(self.flushLoggedErrors(ZeroDivisionError)) == 1  # type: ignore[no-untyped-call]
        run.clock.advance(RETRY_SECONDS)
        run.thread.work()
        assert self.remembered(run) == {provider: ["a"]}

    # ids

    def test_ids_begin_where_the_snapshot_says(self) -> None:
        assert [self.run_.recorder.next_id() for _ in range(3)] == [1, 2, 3]
        self.run_.thread.work_all()
        self.successResultOf(self.stopped(self.run_))
        assert self.start(self.run_.directory).recorder.next_id() == 4

    @pytest.mark.long
    def test_every_id_is_reserved_before_it_is_given_out_however_slow_the_thread(self) -> None:
        for every in (1, RESERVE // 4, RESERVE, 10**9):  # the thread does one job after so many ids
            run = self.start(os.path.join(self.directory, f"every-{every}"))
            given = []
            for n in range(3 * RESERVE):
                given.append(run.recorder.next_id())
                assert given[-1] < run.durable_mark()
                if n % every == every - 1 and run.thread.jobs:
                    run.thread.work()
            assert given == list(range(1, 3 * RESERVE + 1))
            assert self.after_a_kill(run).next_provider > given[-1]

    def test_a_prompt_thread_spares_the_reactor_thread_the_disk(self) -> None:
        run = self.run_
        with capturedLogs() as logged:
            for _ in range(10 * RESERVE):
                run.recorder.next_id()
                run.thread.work_all()
        assert logged == []

    def test_one_reservation_at_a_time_from_the_half_on(self) -> None:
        run = self.run_
        for _ in range(RESERVE // 2):
            run.recorder.next_id()
        assert run.thread.jobs == []
        for _ in range(100):
            run.recorder.next_id()
        assert len(run.thread.jobs) == 1

    def test_a_write_renews_the_reserve(self) -> None:
        run = self.run_
        last = [run.join() for _ in range(RESERVE // 3)][-1]
        run.flush()
        assert run.durable_mark() == last + 1 + RESERVE

    def test_without_a_disk_ids_go_on_and_the_log_says_what_may_follow(self) -> None:
        run = self.run_
        with closing(sqlite3.connect(os.path.join(run.directory, DATABASE), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # writes fail from now on
            with capturedLogs() as logged:
                given = [run.recorder.next_id() for _ in range(2 * RESERVE)]
            assert given == list(range(1, 2 * RESERVE + 1))
            assert [e["log_level"] for e in logged] == [LogLevel.warn, LogLevel.error]
        run.clock.advance(RETRY_SECONDS)
        run.thread.work_all()
        assert run.durable_mark() > given[-1]
        assert run.clock.getDelayedCalls() == []

    def test_a_store_that_cannot_be_written_refuses_the_start(self) -> None:
        run = self.run_
        run.store.close(1)
        with pytest.raises(StateUnusable):
            Recorder(run.registry, run.store, run.clock, run.thread, run.disk, 1)

    # a full disk at the start

    def started_on_a_full_disk(self, directory: str, now: float) -> Run:
        with no_room():
            run = Run(directory, now)
        self.addCleanup(run.store.close, 1)
        return run

    def test_a_start_on_a_full_disk_is_told_once_and_stores_what_lives_when_there_is_room(self) -> None:
        directory = os.path.join(self.directory, "full")
        with capturedLogs() as logged:
            run = self.started_on_a_full_disk(directory, 1e9)
            one, two = run.join("a"), run.join("b")
            with no_room():
                for _ in range(3):
                    run.clock.advance(RETRY_SECONDS_MOST)
                    run.thread.work_all()
            run.registry.leave(one)
            run.clock.advance(RETRY_SECONDS_MOST)
            run.thread.work_all()
        assert self.remembered(run) == {two: ["b"]}
        assert run.durable_mark() > two
        assert run.clock.getDelayedCalls() == []
        assert [e["log_level"] for e in logged] == [LogLevel.error, LogLevel.info]
        assert "the disk is full" in str(logged[0]["why"])

    def test_ids_never_repeat_whatever_starts_found_the_disk_full(self) -> None:
        directory = os.path.join(self.directory, "full")
        given: list[int] = []
        for start, full in enumerate([False, True, True, False, True, False]):
            now = 1e9 + 10 * start
            run = self.started_on_a_full_disk(directory, now) if full else Run(directory, now)
            given += [run.recorder.next_id() for _ in range(RESERVE + 100)]
            run.store._release()  # as a kill does it: nothing more is written
        assert len(set(given)) == len(given)
        assert max(given) < 2**53, "which is what other people's JSON can tell apart"

    def test_ids_never_repeat_when_the_disk_was_full_for_a_while_and_the_broker_was_killed(self) -> None:
        directory = os.path.join(self.directory, "full")
        run = Run(directory, 1e9)
        with no_room():
            given = [run.recorder.next_id() for _ in range(3 * RESERVE)]
        run.store._release()
        again = Run(directory, 1e9 + 10)
        self.addCleanup(again.store.close, 1)
        given += [again.recorder.next_id() for _ in range(3 * RESERVE)]
        assert len(set(given)) == len(given)

    def test_a_disk_that_fails_and_succeeds_by_turns_is_told_of_by_one_pair_of_lines_a_minute(self) -> None:
        run = self.run_
        kept = run.join("a")
        with capturedLogs() as logged:
            begun = run.clock.seconds()
            while run.clock.seconds() < begun + 3 * QUIET_SECONDS:
                run.offer(kept, "more")
                run.clock.advance(FLUSH_SECONDS)
                run.fail(StateUnusable("the disk is full"))
                run.clock.advance(RETRY_SECONDS)
                run.thread.work_all()
        levels = [e["log_level"] for e in logged]
        assert levels == [LogLevel.error, LogLevel.info] * 3

    # from before the restart

    def restarted(self) -> Run:
        """Start a second run, after a kill of a first one with the providers 1 (service ``a``) and 2 (service
        ``b``)."""
        run = self.run_
        run.join("a")
        run.join("b")
        run.flush()
        shutil.copytree(run.directory, os.path.join(self.directory, "second"))
        return self.start(os.path.join(self.directory, "second"))

    def test_what_has_not_come_back_stays_stored(self) -> None:
        run = self.restarted()
        new = run.join("c")
        run.flush()
        assert new > 2
        assert self.remembered(run) == {1: ["a"], 2: ["b"], new: ["c"]}

    def test_what_came_back_is_stored_once(self) -> None:
        run = self.restarted()
        new = run.registry.join("label", "elko", "10.0.0.1:2")
        run.registry.offer([Service("a", "10.0.0.1:1", new)], Rights())
        run.flush()
        assert 1 not in self.remembered(run)
        assert self.remembered(run)[new] == ["a"]

    def test_after_the_grace_it_is_gone(self) -> None:
        run = self.restarted()
        run.clock.advance(GRACE)
        run.flush()
        assert self.remembered(run) == {}

    # sessions

    def known(self, run: Run) -> dict[bytes, tuple[bytes, ...]]:
        """Return the topics of the sessions that would be read after a kill."""
        return {session.identity: session.topics for session in self.after_a_kill(run).sessions}

    def test_sessions_are_gathered_and_stored_as_they_are_in_the_end(self) -> None:
        run = self.run_
        one, two = Subscriber(b"one"), Subscriber(b"two")
        for session in (one, two):
            run.recorder.remember_session(session.known())
        one.topics = (b"t", b"u")
        run.recorder.remember_session(one.known())
        run.clock.advance(FLUSH_SECONDS * 0.9)
        assert run.thread.jobs == []
        run.flush()
        assert self.known(run) == {b"one": (b"t", b"u"), b"two": (b"t",)}
        run.recorder.forget_session(b"one")
        run.flush()
        assert self.known(run) == {b"two": (b"t",)}
        assert run.clock.getDelayedCalls() == []

    def test_a_session_that_came_and_went_costs_no_write(self) -> None:
        run = self.run_
        for number in range(100):
            run.recorder.remember_session(Subscriber(b"%d" % number).known())
            run.recorder.forget_session(b"%d" % number)
        run.flush()
        assert (run.store.writes, run.clock.getDelayedCalls()) == (0, [])

    def test_a_session_that_need_not_be_stored_any_more_is_removed(self) -> None:
        run = self.run_
        run.recorder.remember_session(Subscriber(b"one").known())
        run.flush()
        run.recorder.forget_session(b"one")
        run.flush()
        assert self.known(run) == {}

    def test_a_session_that_ends_or_begins_while_it_is_written_is_stored_as_it_is_in_the_end(self) -> None:
        run = self.run_
        ends, again = Subscriber(b"ends"), Subscriber(b"again")
        for session in (ends, again):
            run.recorder.remember_session(session.known())
        run.flush()
        run.recorder.forget_session(b"again")
        run.recorder.remember_session(ends.known())
        run.clock.advance(FLUSH_SECONDS)
        run.recorder.forget_session(b"ends")
        run.recorder.remember_session(again.known())
        run.thread.work()
        run.flush()
        assert self.known(run) == {b"again": (b"t",)}

    def test_sessions_of_a_failed_write_are_written_with_the_next_one(self) -> None:
        run = self.run_
        one, two = Subscriber(b"one"), Subscriber(b"two")
        run.recorder.remember_session(one.known())
        run.recorder.remember_session(two.known())
        run.flush()
        one.topics = (b"new",)
        run.recorder.remember_session(one.known())
        run.recorder.forget_session(b"two")
        run.clock.advance(FLUSH_SECONDS)
        with capturedLogs():
            run.fail(StateUnusable("the disk is full"))
            one.topics = (b"newest",)
            run.recorder.remember_session(one.known())
            run.clock.advance(RETRY_SECONDS)
            run.thread.work_all()
        assert self.known(run) == {b"one": (b"newest",)}

    def test_one_write_takes_so_many_sessions(self) -> None:
        run = self.run_
        for number in range(FLUSH_ROWS + 5):
            run.recorder.remember_session(Subscriber(b"%d" % number).known())
        run.clock.advance(FLUSH_SECONDS)
        run.thread.work()
        assert len(self.known(run)) == FLUSH_ROWS
        run.flush()
        assert len(self.known(run)) == FLUSH_ROWS + 5

    def test_a_session_from_before_the_restart_stays_stored_until_it_is_over(self) -> None:
        run = self.run_
        run.recorder.remember_session(Subscriber(b"one").known())
        self.successResultOf(self.stopped(run))
        second = self.start(run.directory)
        second.join("a")
        second.flush()
        assert self.known(second) == {b"one": (b"t",)}
        second.recorder.forget_session(b"one")
        second.flush()
        assert self.known(second) == {}

    def test_sessions_that_end_with_the_broker_stay_stored(self) -> None:
        run = self.run_
        run.recorder.remember_session(Subscriber(b"one").known())
        done = run.recorder.stop()
        run.recorder.forget_session(b"one")
        run.thread.work_all()
        self.successResultOf(done)
        assert [session.identity for session in self.found_after(run).sessions] == [b"one"]

    # the stop

    def stopped(self, run: Run) -> Deferred[None]:
        """Stop, while the thread runs all of its jobs."""
        done = run.recorder.stop()
        run.thread.work_all()
        return done

    def found_after(self, run: Run) -> Snapshot:
        return self.start(run.directory).snapshot

    def test_a_stop_writes_everything_and_the_exact_next_id(self) -> None:
        run = self.run_
        for _ in range(FLUSH_ROWS * 2 + 7):
            run.join("a")
        providers: list[Provider] = list(run.registry.providers())
        self.successResultOf(self.stopped(run))
        assert self.found_after(run) == Snapshot(FLUSH_ROWS * 2 + 8, providers, {})

    def test_peers_that_the_stop_disconnects_are_remembered(self) -> None:
        run = self.run_
        written, marked = run.join("a"), None
        run.flush()
        marked = run.join("b")
        done = run.recorder.stop()
        run.registry.leave(written)
        run.registry.leave(marked)
        run.recorder.forget([written])
        run.thread.work_all()
        self.successResultOf(done)
        assert [p.id for p in self.found_after(run).providers] == [written, marked]

    def test_a_stop_waits_for_the_write_under_way_and_for_the_close(self) -> None:
        run = self.run_
        run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.join("b")
        done = run.recorder.stop()
        assert len(run.thread.jobs) == 2
        for _ in range(2):  # that write; the last one and the close
            assert not done.called
            run.thread.work()
        self.successResultOf(done)
        assert len(self.found_after(run).providers) == 2

    def test_a_stop_ends_when_the_store_fails_too(self) -> None:
        run = self.run_
        run.join("a")
        done = run.recorder.stop()
        with capturedLogs() as logged:
            run.fail(StateUnusable("the disk is full"))
        self.successResultOf(done)
        assert [e["log_level"] for e in logged] == [LogLevel.error] * 2
        run.flush()
        assert run.store.writes == 1

    def test_a_stop_tries_once_more_what_failed_before(self) -> None:
        run = self.run_
        provider = run.join("a")
        run.clock.advance(FLUSH_SECONDS)
        run.fail(StateUnusable("the disk is full"))
        self.successResultOf(self.stopped(run))
        assert [p.id for p in self.found_after(run).providers] == [provider]

    def test_no_ids_after_the_stop(self) -> None:
        self.run_.recorder.stop()
        with pytest.raises(Refusal):
            self.run_.recorder.next_id()
