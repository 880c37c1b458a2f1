"""The writer of the log: a destination that takes no lines stops nobody, and the last lines are written."""

from __future__ import annotations

import fcntl
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from twisted.logger import globalLogPublisher

from broker.logs import log_writer
from broker.logs.log_destination import Journal, observer
from broker.logs.log_lines import LogControl
from broker.logs.log_writer import MAX_QUEUED, Line, LogWriter, RotatingFile, Stream, written
from tests.patience import PATIENCE, until

LINE = "x" * 999 + "\n"


class Held:
    """A destination that takes lines while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.lines: list[Line] = []

    def write(self, lines: Sequence[Line]) -> int:
        self.begun.set()
        assert self.open.wait(PATIENCE)
        self.lines += lines
        return 0

    def reopen(self) -> None:
        self.lines.append("opened again")


@pytest.fixture
def held() -> Iterator[Held]:
    destination = Held()
    yield destination
    destination.open.set()


def test_lines_wait_for_a_destination_that_takes_none_and_those_beyond_the_bound_are_dropped(held: Held) -> None:
    writer = LogWriter(held)
    writer.start()
    writer.put("first\n")
    assert held.begun.wait(PATIENCE)
    more = MAX_QUEUED // len(LINE) + 10
    for _ in range(more):
        writer.put(LINE)  # would wait for ever
    kept = MAX_QUEUED // len(LINE)
    assert writer.dropped == more - kept
    held.open.set()
    until(lambda: len(held.lines) == 1 + kept)


def test_the_number_of_dropped_lines_is_logged_when_lines_are_written_again(held: Held) -> None:
    control = LogControl()
    log = observer(control, held)
    globalLogPublisher.addObserver(log)
    try:
        writer = control.writer
        assert writer is not None
        writer.start()
        writer.put("first\n")
        assert held.begun.wait(PATIENCE)
        for _ in range(MAX_QUEUED // len(LINE) + 7):
            writer.put(LINE)
        dropped = writer.dropped
        held.open.set()
        report = f" {dropped} lines of the log were dropped: they could not be written\n"
        until(lambda: held.lines and str(held.lines[-1]).endswith(report))
        assert control.counts() == {"log_dropped": dropped}
    finally:
        globalLogPublisher.removeObserver(log)


def test_the_end_waits_for_the_last_lines_but_not_for_ever(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LAST_SECONDS", 0.05)
    writer = LogWriter(held)
    writer.start()
    writer.put("first\n")
    writer.finish()
    writer.put("second\n")
    assert held.lines == []
    held.open.set()
    until(lambda: held.lines == ["first\n", "second\n"])


def test_all_lines_after_the_end_wait_for_a_destination_no_longer_than_one(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "LAST_SECONDS", PATIENCE / 100)
    writer = LogWriter(held)
    writer.start()
    writer.put("first\n")
    writer.finish()
    began = time.monotonic()
    for _ in range(150):
        writer.put(LINE)
    assert time.monotonic() - began < PATIENCE


def test_an_output_without_a_descriptor_gets_the_lines() -> None:
    under = io.BytesIO()
    out = io.TextIOWrapper(under, "utf-8")
    assert Stream(out).write(["one\n", "two\n"]) == 0
    assert under.getvalue() == b"one\ntwo\n"


def test_after_the_end_a_line_is_written_when_it_was_put() -> None:
    destination = Held()
    destination.open.set()
    writer = LogWriter(destination)
    writer.start()
    writer.finish()
    for number in range(5):
        writer.put(f"{number}\n")
        assert destination.lines[-1] == f"{number}\n"


def test_before_the_start_lines_are_written_by_the_caller() -> None:
    destination = Held()
    destination.open.set()
    LogWriter(destination).put("early\n")
    assert destination.lines == ["early\n"]


def test_many_threads_lose_no_line() -> None:
    destination = Held()
    destination.open.set()
    writer = LogWriter(destination)
    writer.start()

    def put(name: int) -> None:
        for number in range(500):
            writer.put(f"{name} {number}\n")

    threads = [threading.Thread(target=put, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(destination.lines) == 2_000)
    for name in range(4):
        own = [line for line in destination.lines if str(line).startswith(f"{name} ")]
        assert own == [f"{name} {number}\n" for number in range(500)]


def test_lines_that_a_destination_fails_to_take_are_counted_as_whole_lines() -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4_096)
    os.set_blocking(write, False)
    lines = [LINE] * 10
    got: list[int] = []
    writing = threading.Thread(target=lambda: got.append(written(write, lines, "utf-8")))
    writing.start()  # it waits although the pipe is non-blocking
    assert os.read(read, 4_096)
    os.close(read)
    writing.join(PATIENCE)
    os.close(write)
    assert 0 < got[0] < 10


def test_a_journal_that_reads_nothing_stops_nobody_and_gets_the_lines_when_it_reads(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "socket"))
        out = io.StringIO()
        writer = LogWriter(Journal(out, str(tmp_path / "socket")))
        writer.start()
        sent = [b"MESSAGE=%d\n" % number for number in range(2_000)]
        for line in sent:
            writer.put(line)  # more than the socket takes
        server.settimeout(PATIENCE)
        assert [server.recv(100) for _ in sent] == sent
        assert (out.getvalue(), writer.dropped) == ("", 0)


def test_a_file_is_rotated_at_its_limit_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    file = RotatingFile(str(path), 2_500, 2)
    for number in range(12):
        assert file.write([f"{number:03}" + LINE[3:]]) == 0
    numbers = {each.name: each.read_text().count("\n") for each in tmp_path.iterdir()}
    assert numbers == {"it.log": 3, "it.log.1": 3, "it.log.2": 3}
    assert path.read_text().startswith("009")


def test_a_limit_of_no_files_begins_a_new_one(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "it.log"), 1_000, 0)
    for _ in range(5):
        file.write([LINE])
    assert [each.name for each in tmp_path.iterdir()] == ["it.log"]
    assert (tmp_path / "it.log").stat().st_size == 1_000


@pytest.mark.parametrize("started", [False, True])
def test_a_file_that_was_renamed_is_opened_again(tmp_path: Path, started: bool) -> None:
    path = tmp_path / "it.log"
    writer = LogWriter(RotatingFile(str(path), 0, 0))
    if started:
        writer.start()
    writer.put("old\n")
    until(lambda: path.read_text() == "old\n")
    path.rename(tmp_path / "it.old")
    writer.reopen()
    until(path.exists)
    writer.put("new\n")
    until(lambda: path.read_text() == "new\n")
    assert (tmp_path / "it.old").read_text() == "old\n"


class Overtaken(LogWriter):
    """A writer for which another thread calls `reopen` once, just after the writer's own has looked for that call."""

    caller: threading.Thread | None = None

    @property  # type: ignore[override]
    def _reopening(self) -> bool:
        found = self._asked
        if self.caller is None and self._mutex._is_owned():  # type: ignore[attr-defined]
            self.caller = threading.Thread(target=self.reopen)
            self.caller.start()
            self.caller.join(0.1)
        return found

    @_reopening.setter
    def _reopening(self, value: bool) -> None:
        self._asked = value


def test_a_call_to_open_again_as_the_thread_goes_to_sleep_is_not_lost(held: Held) -> None:
    held.open.set()
    writer = Overtaken(held)
    writer.start()
    writer.put("first\n")
    until(lambda: "opened again" in held.lines)


def test_a_file_that_another_program_truncates_goes_on_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    file = RotatingFile(str(path), 0, 0)
    file.write(["old\n"])
    os.truncate(path, 0)
    file.write(["new\n"])
    assert path.read_text() == "new\n"


CRASH = """
import sys
from twisted.logger import Logger, globalLogBeginner
from broker.logs.log_lines import LogControl
from broker.logs.log_destination import observer
from broker.logs.log_writer import Stream
control = LogControl()
globalLogBeginner.beginLoggingTo([observer(control, Stream(sys.stdout))], redirectStandardIO=False)
control.writer.start()
for number in range(1000):
    Logger("broker.test").info("line {number}", number=number)
raise ValueError("the end")
"""


def test_the_last_lines_before_a_crash_are_written() -> None:
    run = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 1
    assert run.stdout.count("\n") == 1_000
    assert run.stdout.endswith(" line 999\n")
