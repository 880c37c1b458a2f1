"""Programs run by the real reactor: logged output, and refusals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorProcess, IReactorTime
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker.net.child_processes import LINES_PER_SECOND, MAX_LINE, MAX_RUNNING, ProgramFailed, Programs
from tests.patience import PATIENCE

WAIT = 60.0
"""Seconds after which an event that a test waits for will not come; only a failing test takes as long."""


@implementer(ILogObserver)
class Logged:
    """Log lines of programs, as (name, line)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._waiting: list[tuple[Callable[[], bool], Deferred[None]]] = []

    def __call__(self, event: LogEvent) -> None:
        namespace = event.get("log_namespace") or ""
        if not namespace.startswith("program."):
            return
        self.lines.append((namespace.removeprefix("program."), formatEvent(event)))
        for waiting in tuple(self._waiting):
            condition, fired = waiting
            if condition():
                self._waiting.remove(waiting)
                fired.callback(None)

    def until(self, condition: Callable[[], bool]) -> Deferred[None]:
        """Fires once the log is so."""
        fired: Deferred[None] = Deferred()
        if condition():
            fired.callback(None)
        else:
            self._waiting.append((condition, fired))
        return fired


@implementer(IReactorTime, IReactorProcess)
class Hurried:
    """The real reactor, which registers a process only when it has ended, as a busy machine may have it do."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def spawnProcess(self, *args: Any, **options: Any) -> Any:
        return self._reactor.spawnProcess(*args, **options)

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **options: object) -> IDelayedCall:
        # A task sets its deadline between the start of its program and the registration of the process.
        if delay == WAIT:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        return IDelayedCall(self._reactor.callLater(delay, callable, *args, **options))

    def seconds(self) -> float:
        return float(self._reactor.seconds())

    def getDelayedCalls(self) -> Any:
        return self._reactor.getDelayedCalls()


class ProgramTests(TestCase):
    timeout = WAIT

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.clock = IReactorTime(reactor)
        self.programs = Programs(reactor)
        self.log = Logged()
        globalLogPublisher.addObserver(self.log)
        self.addCleanup(globalLogPublisher.removeObserver, self.log)
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def of(self, name: str) -> list[str]:
        return [line for owner, line in self.log.lines if owner == name]

    def logged(self, name: str, line: str) -> Deferred[None]:
        return self.log.until(lambda: line in self.of(name))

    def ended(self, name: str) -> Deferred[None]:
        return self.log.until(lambda: any(line.startswith("ended ") for line in self.of(name)))

    async def output(self, script: str, *arguments: str) -> list[str]:
        """All that is logged of a Python program but its start."""
        self.programs.spawn("it", [sys.executable, "-c", script, *arguments])
        await self.ended("it")
        first, *rest = self.of("it")
        assert re.fullmatch(r"started as process \d+", first)
        return rest

    # output

    async def test_output_is_logged_line_by_line(self) -> None:
        script = """
import sys
for part in ("one\\ntw", "o\\n", "\\n", "three\\r\\n"):
    sys.stdout.write(part)
    sys.stdout.flush()
sys.stderr.write("wrong\\n")
sys.stdout.write("no newline")
"""
        lines = await self.output(script)
        assert lines[-1] == "ended with exit code 0"
        assert [x for x in lines[:-1] if x != "wrong"] == ["one", "two", "", "three", "no newline"]
        assert "wrong" in lines

    async def test_programs_are_told_apart(self) -> None:
        self.programs.spawn("first", ["echo", "I am first"])
        self.programs.spawn("second", ["echo", "I am second"])
        await self.ended("first")
        await self.ended("second")
        assert self.of("first")[1:] == ["I am first", "ended with exit code 0"]
        assert self.of("second")[1:] == ["I am second", "ended with exit code 0"]

    async def test_what_is_no_text_is_escaped(self) -> None:
        script = r"import sys; sys.stdout.buffer.write(b'caf\xc3\xa9 \xff \x1b[2J {x}\ttab\rforged \xf0\x9f\x98\x80\n')"
        lines = await self.output(script)
        assert lines[0] == r"café \xff \x1b[2J {x}" + "\t" + r"tab\rforged 😀"

    async def test_a_long_line_is_cut(self) -> None:
        lines = await self.output(f"print('x' * {MAX_LINE}); print('y' * {MAX_LINE + 5}); print('z' * 3_000_000)")
        assert lines[:3] == [
            "x" * MAX_LINE,
            "y" * MAX_LINE + " ... (5 bytes more)",
            "z" * MAX_LINE + f" ... ({3000000 - MAX_LINE} bytes more)",
        ]

    @pytest.mark.long
    async def test_a_flood_is_counted_and_not_logged(self) -> None:
        count = 300_000
        began = self.clock.seconds()
        lines = await self.output(f"for i in range({count}): print('line', i)")
        seconds = self.clock.seconds() - began
        logged = [x for x in lines if x.startswith("line ")]
        dropped = [re.fullmatch(r"(\d+) lines more, not logged \(at most \d+ a second are\)", x) for x in lines]
        assert logged[:LINES_PER_SECOND] == [f"line {i}" for i in range(LINES_PER_SECOND)]
        assert all(re.fullmatch(r"line \d+", x) and int(x[5:]) < count for x in logged)
        assert len(logged) <= LINES_PER_SECOND * (seconds + 1)
        assert len(logged) + sum(int(x[1]) for x in dropped if x) == count
        assert len(lines) <= len(logged) + seconds + 2

    async def test_a_count_is_logged_also_if_the_program_falls_silent(self) -> None:
        script = f"import sys, time; print('x\\n' * {LINES_PER_SECOND + 50}, end='', flush=True); time.sleep({WAIT})"
        self.programs.spawn("it", [sys.executable, "-c", script])
        await self.logged("it", f"50 lines more, not logged (at most {LINES_PER_SECOND} a second are)")
        self.kill("it", signal.SIGKILL)
        await self.ended("it")

    # what it gets

    async def test_it_gets_no_input_the_environment_and_the_working_directory(self) -> None:
        os.environ["ELKOBROKER_TEST"] = "passed on"
        self.addCleanup(os.environ.pop, "ELKOBROKER_TEST")
        lines = await self.output(
            "import os, sys; print(repr(sys.stdin.read()), os.environ['ELKOBROKER_TEST'], os.getcwd(), sys.argv[1:])",
            "two words",
            "é",
        )
        assert lines[0] == f"'' passed on {os.getcwd()} ['two words', 'é']"

    # its end

    def kill(self, name: str, number: int) -> None:
        os.kill(int(self.of(name)[0].split()[-1]), number)

    async def test_its_exit_code_is_logged(self) -> None:
        assert await self.output("raise SystemExit(3)") == ["ended with exit code 3"]

    async def test_its_signal_is_logged(self) -> None:
        lines = await self.output("import os; os.kill(os.getpid(), 9)")
        assert lines == ["ended by signal 9 (SIGKILL)"]

    async def test_its_end_is_logged_although_a_process_that_it_left_holds_its_output(self) -> None:
        self.programs.spawn("it", ["sh", "-c", f"sleep {WAIT} & echo $!"])
        await self.ended("it")
        assert self.of("it")[2:] == ["ended with exit code 0"]
        self.programs.stop()
        os.kill(int(self.of("it")[1]), signal.SIGKILL)

    async def test_it_outlives_the_broker(self) -> None:
        script = f"import time; print('up', flush=True); time.sleep({WAIT})"
        self.programs.spawn("it", [sys.executable, "-c", script])
        await self.logged("it", "up")
        self.programs.stop()
        self.kill("it", 0)  # it is there
        self.kill("it", signal.SIGTERM)
        await self.ended("it")
        assert self.of("it")[1:] == ["up", "ended by signal 15 (SIGTERM)"]

    # what cannot be run

    def assert_refused(self, why: str, *argv: str) -> None:
        with pytest.raises(OSError, match=why) as refused:
            self.programs.spawn("it", list(argv))
        assert refused.value.strerror == why
        assert self.log.lines == []

    async def test_a_task_gets_its_input_and_reports_its_end(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "out")
            await self.programs.run("task", ["sh", "-c", 'cat > "$1"', "sh", path], b"x" * 200_000, WAIT)
            self.assertEqual(os.path.getsize(path), 200_000)

    async def test_a_task_that_fails_is_a_failure_with_its_reason(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "script")
            with open(path, "w") as script:
                script.write("#!/nonexisting\n")
            os.chmod(path, 0o700)
            for argv, why in (
                (["sh", "-c", "exit 3"], "it ended with exit code 3"),
                (["/nonexisting"], "cannot be run: No such file or directory"),
                ([path], "cannot be run: No such file or directory"),
            ):
                with self.assertRaises(ProgramFailed) as failed:
                    await self.programs.run("task", argv, b"x" * 200_000, WAIT)
                self.assertEqual(str(failed.exception), why)

    async def test_a_task_that_ends_before_its_start_returns(self) -> None:
        programs = Programs(Hurried(self.clock))
        await programs.run("task", ["true"], b"", WAIT)
        with self.assertRaises(ProgramFailed) as failed:
            await programs.run("task", ["false"], b"", WAIT)
        self.assertEqual(str(failed.exception), "it ended with exit code 1")

    async def test_a_task_without_an_end_is_killed(self) -> None:
        with self.assertRaises(ProgramFailed) as failed:
            await self.programs.run("task", ["sleep", "1000"], b"", 0.05)
        self.assertEqual(str(failed.exception), "it did not end in time")

    def test_a_missing_program(self) -> None:
        for program in ("no-such-program-here", "/no/such/program", "./no-such-program", ""):
            self.assert_refused("No such file or directory", program)

    def test_a_file_that_may_not_be_run(self) -> None:
        file = os.path.join(self.directory, "text")
        with open(file, "w") as text:
            text.write("hello")
        self.assert_refused("Permission denied", file)
        self.assert_refused("Permission denied", self.directory)

    def test_a_file_that_is_no_program(self) -> None:
        file = os.path.join(self.directory, "text")
        with open(file, "w") as text:
            text.write("hello")
        os.chmod(file, 0o755)
        before = sorted(os.listdir("/proc/self/fd"))
        self.assert_refused("Exec format error", file)
        assert sorted(os.listdir("/proc/self/fd")) == before

    def test_a_command_line_that_no_program_can_be_given(self) -> None:
        self.assert_refused("its command line has a NUL character", "echo", "a\x00b")

    async def test_no_more_programs_than_the_limit(self) -> None:
        names = [f"p{n}" for n in range(MAX_RUNNING)]
        for name in names:
            self.programs.spawn(name, ["sleep", str(WAIT)])
        with pytest.raises(OSError, match=f"{MAX_RUNNING} launched programs are running already"):
            self.programs.spawn("it", ["true"])
        for name in names:
            self.kill(name, signal.SIGKILL)
        for name in names:
            await self.ended(name)
        self.programs.spawn("it", ["true"])
        await self.ended("it")


ORPHANS = """
import ctypes, os, sys
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from broker.net import child_processes
from broker.net.child_processes import ProgramFailed, Programs

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans come here
child_processes.REAP_EVERY = 0.02
programs = Programs(reactor, first=True)
seen = []

def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()

def look():
    if len(seen) == 20 and not children():
        reactor.stop()
    else:
        reactor.callLater(0.02, look)

for _ in range(20):
    # Each leaves an orphan behind, and its own exit code must not be taken.
    leaving = ["sh", "-c", "sleep 0.1 & exit 7"]
    programs.run("leaving", leaving, b"", 60).addErrback(lambda failure: seen.append(str(failure.value)))
reactor.callWhenRunning(look)
reactor.run()
assert set(seen) == {"it ended with exit code 7"}, seen
"""


def test_the_first_process_reaps_orphans_and_leaves_the_exit_codes_of_programs() -> None:
    subprocess.run([sys.executable, "-c", ORPHANS], timeout=PATIENCE, check=True)
