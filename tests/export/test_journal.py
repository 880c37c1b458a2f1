"""Journal in the reactor: losses are counted exactly, and only counted records are lost.

The file is longer than others: it has all tests of `broker.export.journal`.
"""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThreadPool
from twisted.logger import LogLevel, capturedLogs
from twisted.python.threadpool import ThreadPool
from twisted.trial.unittest import TestCase

from broker.core.disk import RETRY_SECONDS_MOST
from broker.export.journal import (
    ALIVE_SECONDS,
    FLUSH_SECONDS,
    SLICE,
    STOP_SECONDS,
    SYNC_SECONDS,
    Journal,
)
from broker.export.journal_disk import JournalInUse
from broker.export.journal_records import Record, boot_name
from broker.export.segments import JournalLimits, Segments
from tests.export.journals import HOUR, NOON, FailingDisk, check_losses, made, number, records_in, sealed_in
from tests.threads import Thread, immediately


class Run:
    """Journal in a directory, with its clock, its disk and its thread."""

    def __init__(self, directory: Path, in_thread: Any = immediately, boot: str = "boot", **limits: Any) -> None:
        self.directory = directory
        self.clock = Clock()
        self.clock.advance(NOON)
        self.disk = FailingDisk()
        self.segments = made(Segments(str(directory), "b", boot, JournalLimits(**limits), self.disk))
        self.journal = Journal(self.clock, in_thread, self.segments)
        self.put_so_far = 0

    def started(self) -> Run:
        self.journal.start()
        return self

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            self.put_so_far += 1
            self.journal.put(Record(self.journal.now(), "hb", "dbp", hb_seq=self.put_so_far))

    def flush(self) -> None:
        self.clock.pump([FLUSH_SECONDS])

    def beats(self) -> list[int]:
        return [record["hb_seq"] for record in records_in(self.directory) if record["event"] == "hb"]

    def stop(self) -> bool:
        """Return whether that was one write."""
        done: list[None] = []
        self.journal.stop().addCallback(done.append)
        return bool(done)


def test_a_run_begins_and_ends_with_a_sign_of_life(tmp_path):
    run = Run(tmp_path).started()
    run.put(2)
    run.clock.pump([FLUSH_SECONDS] * int(2 * ALIVE_SECONDS))
    assert run.stop()

    records = records_in(tmp_path)
    assert [(r["event"], r.get("why")) for r in records] == [
        ("alive", "start"),
        ("hb", None),
        ("hb", None),
        ("alive", None),
        ("alive", None),
        ("alive", "stop"),
    ]
    assert [r["seq"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert [r["ts"] for r in records if r["event"] == "alive"] == [
        int((NOON + seconds) * 1e6) for seconds in (0, 60, 120, 120)
    ]
    assert len(sealed_in(tmp_path)) == 1
    assert run.journal.counts()["journal_records.written"] == 6
    assert run.clock.getDelayedCalls() == []


def test_what_was_put_before_the_start_is_kept(tmp_path):
    run = Run(tmp_path)
    run.put(3)
    run.started()
    run.stop()

    assert run.beats() == [1, 2, 3]


def test_records_are_in_the_file_after_one_flush_and_on_the_disk_after_a_sync(tmp_path):
    run = Run(tmp_path).started()
    run.put(SLICE * 2 + 1)
    assert run.beats() == []
    run.flush()
    assert run.beats() == list(range(1, SLICE * 2 + 2))
    assert run.journal.counts()["journal_records.written"] == 0
    run.clock.pump([FLUSH_SECONDS] * int(SYNC_SECONDS))

    assert run.journal.counts()["journal_records.written"] == SLICE * 2 + 2


def test_a_file_that_is_due_is_sealed_without_new_records(tmp_path):
    run = Run(tmp_path, segment_seconds=20.0).started()
    run.put()
    run.clock.pump([FLUSH_SECONDS] * 22)

    assert len(sealed_in(tmp_path)) == 1


@pytest.mark.parametrize("torn", [0, 1])
def test_what_a_killed_run_left_is_sealed_at_the_start(tmp_path, torn):
    killed = Run(tmp_path, boot="boot1").started()
    killed.put(5)
    killed.flush()
    killed.segments.close()
    with (tmp_path / "open" / "b-boot1-1.jsonl").open("ab") as file:
        file.write(b'{"v":1,"bro' * torn)
    with capturedLogs() as events:
        run = Run(tmp_path, boot="boot2").started()

    assert [path.name for path in sealed_in(tmp_path)] == ["b-boot1-1.jsonl.gz"]
    assert run.beats() == [1, 2, 3, 4, 5]
    counts = run.journal.counts()
    assert (counts["journal_segments.recovered"], counts["journal_segments.torn"]) == (1, torn)
    assert [(e["log_level"], e["files"], e["torn"]) for e in events] == [(LogLevel.info, 1, torn)]


def test_what_cannot_be_recovered_is_told_and_keeps_no_record_from_the_files(tmp_path):
    killed = Run(tmp_path, boot="boot1").started()
    killed.put(5)
    killed.flush()
    killed.segments.close()
    with (tmp_path / "open" / "b-boot1-1.jsonl").open("ab") as file:
        file.write(b"torn")
    run = Run(tmp_path, boot="boot2")
    run.disk.fails_to = {"truncate"}
    with capturedLogs() as events:
        run.started()
        run.put()
        run.flush()

    assert [str(e.get("why")) for e in events if e["log_level"] is LogLevel.error] == [
        f"[Errno 5] Input/output error: '{tmp_path}/open/b-boot1-1.jsonl'"
    ]
    assert run.journal.counts()["journal_errors.seal"] == 1
    assert len((tmp_path / "open" / "b-boot2-1.jsonl").read_bytes().splitlines()) == 2


def test_a_second_broker_does_not_start(tmp_path):
    Run(tmp_path).started()

    with pytest.raises(JournalInUse):
        Run(tmp_path, boot="other").started()


# losses


def test_a_full_queue_is_told_of_with_the_exact_number(tmp_path):
    run = Run(tmp_path, queue=10).started()  # the first of the ten is the sign of life
    run.put(30)
    with capturedLogs() as events:
        run.flush()
        run.put(4)
        run.flush()
    run.stop()

    records = records_in(tmp_path)
    assert run.beats() == [*range(1, 10), *range(31, 35)]
    [drop] = [r for r in records if r["event"] == "drop"]
    assert (drop["dropped"], drop["why"], drop["seq"]) == (21, "queue", 32)
    assert check_losses(records) == 21
    assert run.journal.counts()["journal_records.dropped"] == 21
    assert len([e for e in events if e["log_level"] is LogLevel.warn]) == 1


def test_a_drop_is_told_although_nothing_else_happens(tmp_path):
    run = Run(tmp_path, queue=5).started()
    run.put(5)
    run.flush()
    run.flush()

    assert records_in(tmp_path)[-1]["event"] == "drop"


def test_a_thread_that_is_held_up_costs_no_memory_without_bound(tmp_path):
    thread = Thread()
    run = Run(tmp_path, thread, queue=100).started()
    for _ in range(50):
        run.put(10)
        run.flush()
    assert run.journal.counts()["journal_records.dropped"] == 401
    thread.work_all()
    run.put(7)
    run.flush()
    thread.work_all()
    run.flush()
    thread.work_all()

    assert run.beats() == [*range(1, 100), *range(501, 508)]
    assert check_losses(records_in(tmp_path)) == 401


def test_a_full_disk_stops_the_journal_and_it_resumes_by_itself(tmp_path):
    run = Run(tmp_path).started()
    run.put(3)
    run.flush()
    run.disk.room = 50
    with capturedLogs() as events:
        for _ in range(200):
            run.put()
            run.flush()
        before = run.journal.counts()
        run.disk.room = None
        run.clock.pump([FLUSH_SECONDS] * int(RETRY_SECONDS_MOST + 1))
    run.stop()

    assert before["journal_errors.write"] < 20
    records = records_in(tmp_path)
    lost = check_losses(records)
    drops = [r for r in records if r["event"] == "drop"]
    assert [(r["dropped"], r["why"]) for r in drops] == [(lost, "disk")]
    assert run.journal.counts()["journal_records.dropped"] == lost
    assert run.journal.counts()["journal_records.written"] == len(records)
    assert [e["log_level"] for e in events] == [LogLevel.error, LogLevel.info]


def test_after_a_sync_that_failed_the_next_drop_tells_all_again(tmp_path):
    run = Run(tmp_path, queue=4).started()
    run.put(10)  # seven are lost
    run.flush()
    run.put(2)
    run.disk.fails_to = {"sync"}
    run.clock.pump([FLUSH_SECONDS] * int(SYNC_SECONDS + 1))
    run.disk.fails_to = set()
    run.put(1)
    run.clock.pump([FLUSH_SECONDS] * 5)
    assert run.stop()

    records = records_in(tmp_path)
    assert run.beats() == [13]
    assert check_losses(records) == records[0]["dropped"] == run.journal.counts()["journal_records.dropped"]


def test_a_stop_with_a_full_disk_ends_all_the_same(tmp_path):
    run = Run(tmp_path).started()
    run.put(3)
    run.flush()
    run.disk.room = 0
    run.put(5)
    with capturedLogs() as events:
        assert run.stop()
    run.put()

    assert run.beats() == [1, 2, 3]
    assert [e["count"] for e in events if "lost by the stop" in e["log_format"]] == [8]
    Run(tmp_path, boot="next").started()


def test_a_stop_that_finds_its_file_removed_begins_another(tmp_path):
    run = Run(tmp_path).started()
    run.put(3)
    run.flush()
    (tmp_path / "open" / "b-boot-1.jsonl").unlink()
    run.put(2)
    assert run.stop()

    records = records_in(tmp_path)
    assert [(r["event"], r.get("dropped")) for r in records] == [("drop", 7), ("alive", None)]
    assert check_losses(records) == 7
    assert records[-1]["why"] == "stop"


def test_a_stop_waits_for_a_dead_disk_so_long_and_no_longer(tmp_path):
    thread = Thread()
    run = Run(tmp_path, thread).started()
    stopped = run.journal.stop()
    run.clock.pump([1.0] * int(STOP_SECONDS - 1))
    assert not stopped.called
    run.clock.advance(1.0)
    assert stopped.called
    thread.work_all()


def test_a_stop_during_a_write_writes_what_came_meanwhile(tmp_path):
    thread = Thread()
    run = Run(tmp_path, thread, queue=5).started()
    thread.work_all()
    run.put(2)
    run.flush()
    run.put(9)
    stopped = run.journal.stop()
    thread.work_all()

    assert stopped.called
    records = records_in(tmp_path)
    assert run.beats() == [1, 2, 3, 4, 5, 6, 7]
    assert check_losses(records) == 4
    assert [r["seq"] for r in records if r.get("why") == "stop"] == [records[-1]["seq"]]


def test_a_sealing_that_fails_costs_no_record(tmp_path):
    run = Run(tmp_path, segment_bytes=1).started()
    run.disk.fails_to = {"rename"}
    with capturedLogs() as events:
        for _ in range(50):
            run.put()
            run.flush()
        assert sealed_in(tmp_path) == []
        run.disk.fails_to = set()
        run.clock.pump([FLUSH_SECONDS] * int(RETRY_SECONDS_MOST + 1))
    assert run.stop()

    assert run.beats() == list(range(1, 51))
    assert check_losses(records_in(tmp_path)) == 0
    assert [e["log_level"] for e in events] == [LogLevel.error, LogLevel.info]


def test_the_stop_does_not_wait_to_seal_what_could_not_be_sealed(tmp_path):
    run = Run(tmp_path, segment_bytes=1).started()
    run.disk.fails_to = {"rename"}
    run.flush()
    run.disk.fails_to = set()
    assert run.stop()

    assert len(sealed_in(tmp_path)) == 2
    assert list((tmp_path / "open").iterdir()) == []


@pytest.mark.parametrize("queue", [1_000, 10])
def test_a_clock_that_was_set_back_holds_nothing_up(tmp_path, queue):
    run = Run(tmp_path, queue=queue).started()
    run.flush()
    run.clock.advance(-1000.0)
    with capturedLogs() as events:
        run.put(20)
        run.flush()
        run.put(1)
        run.flush()

    assert run.beats() == [*range(1, min(queue, 20) + 1), 21]
    assert run.journal.counts()["journal_clock.back"] == 1
    assert [e["seconds"] for e in events if "seconds" in e] == [1000.0 - FLUSH_SECONDS]


def test_a_full_queue_notices_a_clock_that_was_set_back_although_nobody_asks_for_the_time(tmp_path):
    run = Run(tmp_path, queue=3).started()
    run.flush()
    record = Record(run.journal.now(), "hb", "dbp", hb_seq=1)
    run.clock.advance(-1000.0)
    for _ in range(4):
        run.journal.put(record)
    run.flush()

    assert run.beats() == [1, 1, 1]


def test_a_clock_that_is_kept_right_is_not_complained_of(tmp_path):
    run = Run(tmp_path).started()
    with capturedLogs() as events:
        for _ in range(20):
            run.put()
            run.clock.advance(-0.01)
            run.put()
            run.flush()

    assert run.beats() == list(range(1, 41))
    assert run.journal.counts()["journal_clock.back"] == 0
    assert events == []


def test_what_is_written_before_and_after_a_clock_was_set_back_is_in_the_folders_of_its_hours(tmp_path):
    run = Run(tmp_path).started()
    run.put(3)
    run.flush()
    run.clock.advance(-2 * HOUR)
    run.put(3)
    run.flush()  # appended to the file of the later hour, which is then started again
    run.put(3)
    run.flush()
    assert run.stop()

    sealed = sealed_in(tmp_path)
    assert [(path.parent.name, number(path)) for path in sealed] == [("hour=12", 1), ("hour=10", 2)]
    assert [r["hb_seq"] for r in records_in(tmp_path) if r["event"] == "hb"] == list(range(1, 10))
    assert check_losses(records_in(tmp_path)) == 0


# records that cannot be written


def test_texts_that_are_no_unicode_are_changed_and_told_of_once_a_minute(tmp_path):
    run = Run(tmp_path).started()
    with capturedLogs() as events:
        for _ in range(2 * 60):
            run.journal.put(Record(run.journal.now(), "hb", "dbp", label="a\ud800b"))
            run.put()
            run.flush()
    run.stop()

    records = records_in(tmp_path)
    assert check_losses(records) == 0
    assert [r["label"] for r in records if "label" in r] == ["a?b"] * 120
    assert len([r for r in records if "hb_seq" in r]) == 120
    assert run.journal.counts()["journal_records.mended"] == 120
    assert [e["log_level"] for e in events] == [LogLevel.warn] * 2


def test_a_record_that_nobody_can_write_costs_its_hand_over_and_is_told_of(tmp_path):
    run = Run(tmp_path).started()
    run.put(3)
    run.flush()
    run.put(2)
    run.journal.put(Record(run.journal.now(), "hb", "dbp", label=object()))  # type: ignore[arg-type]
    run.put(2)
    with capturedLogs() as events:
        run.flush()
        run.put(4)
        run.clock.pump([FLUSH_SECONDS] * 3)
    run.stop()

    records = records_in(tmp_path)
    assert check_losses(records) == 5 == run.journal.counts()["journal_records.dropped"]
    assert run.beats() == [1, 2, 3, 8, 9, 10, 11]
    assert run.journal.counts()["journal_errors.write"] == 1
    assert [e["log_level"] for e in events] == [LogLevel.critical, LogLevel.info]


def test_a_directory_that_is_removed_meanwhile_costs_what_was_in_it_and_the_journal_goes_on(tmp_path):
    directory = tmp_path / "journal"
    run = Run(directory).started()
    run.put(3)
    run.clock.pump([FLUSH_SECONDS] * int(SYNC_SECONDS + 1))
    assert run.journal.counts()["journal_records.written"] == 4
    shutil.rmtree(directory)
    run.put(3)
    with capturedLogs() as events:
        run.clock.pump([FLUSH_SECONDS] * int(SYNC_SECONDS + 1))
        run.put(3)
        run.clock.pump([FLUSH_SECONDS] * 3)
    with pytest.raises(JournalInUse):
        Run(directory, boot="other").started()
    assert run.stop()

    records = records_in(directory)
    assert run.beats() == [7, 8, 9]
    assert [(r["dropped"], r["why"]) for r in records if r["event"] == "drop"] == [(7, "disk")]
    assert check_losses(records) == 7 == run.journal.counts()["journal_records.dropped"]
    assert run.journal.counts()["journal_records.written"] == len(records)
    assert [e["log_level"] for e in events] == [LogLevel.error, LogLevel.info]
    assert "the open file was removed" in str(events[0]["why"])


# maintenance of sealed segments


def test_old_segments_are_deleted_each_hour(tmp_path):
    run = Run(tmp_path, segment_seconds=600.0, keep_seconds=2 * 3600.0).started()
    run.clock.pump([10.0] * 360 * 6)

    assert run.journal.counts()["journal_segments.deleted"] > 0
    ages = [run.clock.seconds() - NOON - 3600 * (int(path.parent.name[5:]) - 12) for path in sealed_in(tmp_path)]
    assert max(ages) <= 3 * 3600 + 10


def test_a_deletion_that_fails_is_tried_again_after_an_hour(tmp_path):
    run = Run(tmp_path, segment_seconds=600.0, keep_seconds=2 * 3600.0).started()
    run.clock.pump([10.0] * 360)
    run.disk.keeps = {path.name for path in sealed_in(tmp_path)}
    run.clock.pump([10.0] * 360 * 4)
    assert run.journal.counts()["journal_errors.retain"] in (2, 3)
    assert run.stop()


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 12)),
        st.tuples(st.just("flush"), st.integers(1, 8)),
        st.tuples(st.just("work"), st.integers(1, 3)),
        st.tuples(st.just("room"), st.none() | st.integers(0, 2000)),
        st.tuples(st.just("fail"), st.sets(st.sampled_from(["sync", "truncate", "rename"]))),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("remove"), st.none()),
        st.tuples(st.just("clock"), st.floats(-4000, 4000)),
    ),
    max_size=40,
)


@given(_STEPS, st.booleans())
def test_whatever_happens_each_record_is_there_once_or_told_of(tmp_path_factory, steps, held_up):
    directory = tmp_path_factory.mktemp("journal")
    thread = Thread()
    in_thread = thread if held_up else immediately
    boots = 0

    def begin() -> Run:
        nonlocal boots
        boots += 1
        return Run(directory, in_thread, f"boot{boots:03d}", queue=10, segment_bytes=1500).started()

    def of(boot: str) -> list[dict[str, Any]]:
        return sorted((r for r in records_in(directory) if r["boot"] == boot), key=lambda r: r["seq"])

    def work(most: int = 1_000_000) -> None:
        while thread.jobs and most:
            thread.work()
            most -= 1

    run, removed = begin(), False
    for step, value in steps:
        if step == "put":
            run.put(value)
        elif step == "flush":
            run.clock.pump([FLUSH_SECONDS] * value)
        elif step == "work":
            work(value)
        elif step == "room":
            run.disk.room = value
        elif step == "fail":
            run.disk.fails_to = value
        elif step == "remove":  # only the open file: the loss of a sealed segment is undetectable
            if run.segments.waiting == 0:
                removed = True
                for path in (directory / "open").glob(f"b-{run.segments.boot}-*.jsonl"):
                    path.unlink()
        elif step == "clock":
            run.clock.advance(value)
        else:
            acknowledged, old = 0 if removed else run.segments.acknowledged, run
            run.segments.close()
            thread.jobs.clear()
            run, removed = begin(), False
            work(1)
            seqs = [r["seq"] for r in of(old.segments.boot)]
            assert len(set(seqs)) == len(seqs) >= acknowledged
    run.disk.room, run.disk.fails_to = None, set()
    for _ in range(int(RETRY_SECONDS_MOST) + 10):
        run.flush()
        work()
    done: list[None] = []
    run.journal.stop().addCallback(done.append)
    work()

    assert done
    records = of(run.segments.boot)
    kept = sum(r["event"] == "hb" for r in records)
    counts = run.journal.counts()
    assert check_losses(records) == counts["journal_records.dropped"] == records[-1]["seq"] - len(records)
    assert counts["journal_records.written"] == len(records)
    assert kept <= run.put_so_far <= kept + counts["journal_records.dropped"]
    beats = [r["hb_seq"] for r in records if r["event"] == "hb"]
    assert beats == sorted(set(beats))
    assert records[-1]["why"] == "stop"
    assert list((directory / "open").iterdir()) == []


class InARealThread(TestCase):
    """Journal with Twisted's threads and clock."""

    def test_the_reactor_thread_touches_no_file(self) -> Deferred[None]:
        temporary = TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        directory = Path(temporary.name)
        threads = ThreadPool(minthreads=0, maxthreads=1)
        threads.start()
        self.addCleanup(threads.stop)
        disk = ThreadNotingDisk()
        segments = Segments(str(directory), "b", boot_name(NOON, b"x"), JournalLimits(segment_bytes=200_000), disk)
        clock: Any = reactor
        journal = Journal(clock, partial(deferToThreadPool, clock, threads), segments)
        journal.start()
        disk.used_in.clear()  # the start creates the directories itself
        for n in range(10_000):
            journal.put(Record(journal.now(), "hb", "dbp", hb_seq=n))

        def stopped(_: object) -> None:
            records = records_in(directory)
            self.assertEqual(check_losses(records), 0)
            self.assertEqual([r["hb_seq"] for r in records if r["event"] == "hb"], list(range(10_000)))
            self.assertNotIn(threading.get_ident(), disk.used_in)
            self.assertTrue(disk.used_in)

        return journal.stop().addCallback(stopped)


class ThreadNotingDisk(FailingDisk):
    """Disk that records the threads that use it."""

    def __init__(self) -> None:
        super().__init__()
        self.used_in: set[int] = set()

    def write(self, file: int, data: bytes | memoryview) -> int:
        self.used_in.add(threading.get_ident())
        return super().write(file, data)

    def sync(self, file: int) -> None:
        self.used_in.add(threading.get_ident())
        super().sync(file)
