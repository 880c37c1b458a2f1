"""Programs of administrators: the launchers with their switches, and the processes, whose output is logged.

Rules:
- A program inherits the broker's environment and working directory. Its standard input is empty, unless it is run for
  a task; no shell is involved.
- Output is logged line by line under ``program.NAME`` in bounded memory: long lines are truncated, and a rate limit
  bounds the lines per second. Dropped lines are counted, and the count is logged.
- A program is a server in its own right and outlives the broker. See `Programs.stop` for its output. A `Child` is a
  part of the broker, which ends it.
- The first process of a container becomes the parent of each process whose own parent has ended, and reaps it.
- The table of launchers comes from the configuration. The switch ``on`` of an entry keeps its last position across
  restarts and reloads; the configuration's ``on`` applies only until the first change.
- Launching switches on, even if the program cannot be run; shutting down a server of that name switches off.
- A program may be launched while it runs: a second instance may be intended, and only the administrator can decide.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall, IProcessTransport, IReactorProcess, IReactorTime
from twisted.internet.process import reapProcessHandlers
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.blocking import unavoidable
from broker.core.interfaces import ILaunchers
from broker.core.model import Launcher

MAX_RUNNING = 100
"""Concurrent programs: each takes two descriptors, and a farm has a handful of servers per machine."""

MAX_LINE = 2_000
"""Logged bytes of a line: a long stack-trace line fits, and a program without newlines stays bounded."""

LINES_PER_SECOND = 200
"""Logged lines per program and second, for both outputs together: a stack trace with its causes fits."""

DRAIN_SECONDS = 1.0
"""Seconds from the exit of a program to its log line if its output stays open: a process that it left behind may hold
the pipe open without end."""


REAP_EVERY = 1.0
"""Seconds between two looks for orphans that have ended: an ended process takes no more than its id."""


class ProgramFailed(Exception):
    """A program that could not be run, or failed; the message gives the reason."""


class Programs:
    """Starts programs with ``reactor``, which must provide `IReactorProcess` and `IReactorTime`.

    ``first``: this is the first process of its container, which reaps orphans.
    """

    def __init__(self, reactor: IReactorProcess, first: bool = False) -> None:
        self._reactor = reactor
        self._clock = IReactorTime(reactor)
        self._running: set[_Program] = set()
        self._reaping: IDelayedCall | None = None
        if first:
            self._reap()

    def spawn(self, name: str, argv: list[str]) -> None:
        """Start a program and return at once. Its output is logged under ``name``.

        ``argv`` is its command line: at least the program, looked up on ``PATH`` if it has no slash. Raises OSError
        with a ``strerror`` if it cannot be run.
        """
        if len(self._running) >= MAX_RUNNING:
            raise OSError(errno.EAGAIN, f"{MAX_RUNNING} launched programs are running already")
        self._start(_Program(name, self._clock, self._running), argv)

    def keep(self, name: str, argv: list[str], ended: Callable[[str], None]) -> Child:
        """Start a program that is a part of the broker, which must end it by `Child.end`.

        ``ended`` is called with a text when it has ended. Raises OSError with a ``strerror`` if it cannot be run.
        """
        child = Child(name, self._clock, set(), ended)
        self._start(child, argv)
        return child

    def run(self, name: str, argv: list[str], data: bytes, seconds: float) -> Deferred[None]:
        """Run a program with ``data`` on its standard input. Fires when it has ended with exit code 0.

        Fails with `ProgramFailed` otherwise, even if it cannot be run. After ``seconds`` it is killed.
        """
        if len(self._running) >= MAX_RUNNING:
            return fail(ProgramFailed(f"{MAX_RUNNING} launched programs are running already"))
        task = _Task(name, self._clock, self._running, data, seconds)
        try:
            self._start(task, argv)
        except OSError as error:
            return fail(ProgramFailed(f"cannot be run: {error.strerror}"))
        return task.ended

    def stop(self) -> None:
        """Detach from the programs, which keep running.

        Their output pipes are closed. A program that prints afterwards gets a broken pipe: Java and Python programs see
        an error at most, but the default action of SIGPIPE terminates C programs and shell scripts. A program that must
        outlive the broker needs redirected output: ``sh -c 'exec PROGRAM >>FILE 2>&1'``.
        """
        for program in tuple(self._running):
            program.detach()
        self._running.clear()
        if self._reaping is not None:
            self._reaping.cancel()

    def _start(self, program: _Program, argv: list[str]) -> None:
        executable = os.fsencode(_executable(argv))
        self._reactor.spawnProcess(program, executable, [os.fsencode(a) for a in argv], env=None)

    def _reap(self) -> None:
        self._reaping = self._clock.callLater(REAP_EVERY, self._reap)
        reap_orphans()


def reap_orphans() -> None:
    """Reap ended processes that this one did not start. The reactor reaps those that it started: their exit codes are
    the programs' results."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # there is no child
        if ended is None or ended.si_pid in reapProcessHandlers:
            return  # the rest waits for the reactor, which reaps that one first
        os.waitpid(ended.si_pid, os.WNOHANG)


def _executable(argv: list[str]) -> str:
    """Return the path of the program to run. Raises OSError if there is no executable."""
    if any("\0" in word for word in argv):
        raise OSError(errno.EINVAL, "its command line has a NUL character")
    with unavoidable("a program is started, which reads its file, and its caller awaits the outcome"):
        found = shutil.which(argv[0])
        if found is not None:
            return found
        if os.path.dirname(argv[0]) and os.path.exists(argv[0]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _Program(ProcessProtocol):
    """One running program. ``running`` is the set of running programs."""

    transport: IProcessTransport

    def __init__(self, name: str, clock: IReactorTime, running: set[_Program]) -> None:
        self._log = Logger(namespace=f"program.{name}")
        self._running = running
        self._clock = clock
        self._output = _Output(self._log, clock)
        self._lines = {1: _Lines(self._output), 2: _Lines(self._output)}
        self._how: str | None = None
        self._drain: IDelayedCall | None = None
        self._detached = False

    def connectionMade(self) -> None:
        self._running.add(self)
        self.transport.closeStdin()
        self._log.info("started as process {pid}", pid=self.transport.pid)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self._lines[childFD].received(data)

    def processExited(self, reason: Failure) -> None:
        self._how = _how(reason.value)
        if self._detached:
            self._log_end()
        else:
            # `processEnded` follows only when the pipes are closed, and a grandchild may hold them open.
            self._drain = self._clock.callLater(DRAIN_SECONDS, self._drained)

    def _drained(self) -> None:
        self._drain = None
        self._log_end()

    def processEnded(self, reason: Failure) -> None:
        self._running.discard(self)
        if not self._detached:
            self._let_go()

    def detach(self) -> None:
        """Close the output pipes, and log no more output."""
        self._detached = True
        self._let_go()
        self.transport.loseConnection()

    def _let_go(self) -> None:
        for lines in self._lines.values():
            lines.ended()
        self._output.ended()
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
            self._log_end()

    def _log_end(self) -> None:
        self._log.info("ended {how}", how=self._how)


class _Task(_Program):
    """A program with a short task: it gets input, has a deadline, and its end is reported."""

    def __init__(self, name: str, clock: IReactorTime, running: set[_Program], data: bytes, seconds: float) -> None:
        super().__init__(name, clock, running)
        self._data = data
        self._seconds = seconds
        self._deadline: IDelayedCall | None = None
        self._late = False
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self._running.add(self)
        self._deadline = self._clock.callLater(self._seconds, self._kill)
        self.transport.write(self._data)
        self.transport.closeStdin()

    def processExited(self, reason: Failure) -> None:
        super().processExited(reason)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        # Twisted may report the exit of a short program before `spawnProcess` returns: `ended` stays the same object.
        if isinstance(reason.value, ProcessDone):
            self.ended.callback(None)
        else:
            how = "did not end in time" if self._late else f"ended {_how(reason.value)}"
            self.ended.errback(ProgramFailed(f"it {how}"))

    def detach(self) -> None:
        """Close the output pipes, and wait for the end no longer."""
        super().detach()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _kill(self) -> None:
        self._deadline = None
        self._late = True
        with contextlib.suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")


class Child(_Program):
    """A program that is a part of the broker. ``ended`` is called with the way in which it ended."""

    def __init__(self, name: str, clock: IReactorTime, running: set[_Program], ended: Callable[[str], None]) -> None:
        super().__init__(name, clock, running)
        self._ended = ended
        self._killing: IDelayedCall | None = None
        self._gone: Deferred[None] = Deferred()

    @property
    def pid(self) -> int | None:
        """The id of the process; None after its end."""
        pid: int | None = self.transport.pid
        return pid

    def end(self, seconds: float) -> Deferred[None]:
        """End it in order, or kill it after some seconds. Fires when it has ended."""
        if not self._gone.called and self._killing is None:
            self._killing = self._clock.callLater(seconds, self._signal, "KILL")
            self._signal("TERM")
        return self._gone

    def processExited(self, reason: Failure) -> None:
        super().processExited(reason)
        if self._killing is not None and self._killing.active():
            self._killing.cancel()
        self._ended(_how(reason.value))
        self._gone.callback(None)

    def _signal(self, name: str) -> None:
        with contextlib.suppress(ProcessExitedAlready):
            self.transport.signalProcess(name)


class _Output:
    """Logger with a rate limit of `LINES_PER_SECOND`, which also reports the number of dropped lines."""

    def __init__(self, log: Logger, clock: IReactorTime) -> None:
        self._log = log
        self._clock = clock
        self._second = clock.seconds()
        self._left = LINES_PER_SECOND
        self._dropped = 0
        self._report: IDelayedCall | None = None

    def full(self) -> bool:
        """Return True if the rate limit is reached for this second."""
        now = self._clock.seconds()
        # a clock that was set back begins a new second too
        if not 0 <= now - self._second < 1:
            self._second = now
            self._left = LINES_PER_SECOND
        return self._left == 0

    def line(self, line: bytes, more: int) -> None:
        """Log a line of which ``more`` bytes were truncated."""
        if self.full():
            self.drop(1)
            return
        self._left -= 1
        text = _printable(line.decode("utf-8", "backslashreplace"))
        if more:
            text += f" ... ({more} bytes more)"
        self._log.info("{line}", line=text)

    def drop(self, lines: int) -> None:
        """Count lines that are not logged."""
        self._dropped += lines
        if self._dropped and self._report is None:
            self._report = self._clock.callLater(1, self._notify)

    def ended(self) -> None:
        """Report dropped lines at the end of the output."""
        if self._report is not None:
            self._report.cancel()
            self._notify()

    def _notify(self) -> None:
        self._report = None
        self._log.warn(
            "{dropped} lines more, not logged (at most {most} a second are)",
            dropped=self._dropped,
            most=LINES_PER_SECOND,
        )
        self._dropped = 0


class _Lines:
    """Line splitter for one output stream."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._begun = b""
        """The loggable part of the unterminated line."""
        self._more = 0
        """The number of its truncated bytes."""

    def received(self, data: bytes) -> None:
        start = 0
        # lines below the rate limit are split one by one; a flood beyond it is only counted
        while (end := data.find(b"\n", start)) >= 0 and not self._output.full():
            self._add(data[start:end])
            self._end()
            start = end + 1
        if end >= 0:
            last = data.rindex(b"\n")
            self._output.drop(data.count(b"\n", start))
            self._begun, self._more = b"", 0
            start = last + 1
        self._add(data[start:])

    def ended(self) -> None:
        """Flush an unterminated last line at the end of the stream."""
        if self._begun:
            self._end()

    def _add(self, part: bytes) -> None:
        room = MAX_LINE - len(self._begun)
        self._begun += part[:room]
        self._more += max(0, len(part) - room)

    def _end(self) -> None:
        line, more = self._begun, self._more
        self._begun, self._more = b"", 0
        self._output.line(line.removesuffix(b"\r"), more)


def _printable(text: str) -> str:
    """Escape control characters, which could forge log lines or reach a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _how(ended: BaseException | None) -> str:
    if isinstance(ended, ProcessDone):
        return "with exit code 0"
    if isinstance(ended, ProcessTerminated) and ended.signal is not None:
        try:
            return f"by signal {ended.signal} ({signal.Signals(ended.signal).name})"
        except ValueError:
            return f"by signal {ended.signal}"
    return f"with exit code {getattr(ended, 'exitCode', 'unknown')}"


@implementer(ILaunchers)
class Launchers:
    """`ILaunchers` over a table of entries.

    ``switched_on`` has the stored switches by name, those of entries that are no longer configured included;
    ``remember`` stores a changed switch. ``spawn`` starts a program, given the launcher's name and the words of its
    command line, without waiting for it; it raises OSError if the program cannot be run.
    """

    log = Logger()

    def __init__(
        self,
        entries: Sequence[Launcher],
        switched_on: Mapping[str, bool],
        spawn: Callable[[str, list[str]], None],
        remember: Callable[[str, bool], None],
    ) -> None:
        self._switches = dict(switched_on)
        self._spawn = spawn
        self._remember = remember
        self.replace(entries)

    def replace(self, entries: Sequence[Launcher]) -> None:
        """Replace the table on a reload. Switches stay; running programs are not affected."""
        self._entries = {entry.name: entry for entry in entries}

    def start_all(self, mode: Literal["initial", "recover", "restart"]) -> None:
        """Launch the programs that start with the broker: those switched on, and in mode ``initial`` the initial ones
        too."""
        for launcher in self.describe():
            if launcher.on or (mode == "initial" and launcher.initial):
                self.launch(launcher.name)

    def launch(self, name: str) -> str:
        entry = self._entries.get(name)
        if entry is None:
            return f"fail {name} not found"
        self._switch(entry, True)
        problem = self._run(entry)
        if problem is not None:
            self.log.warn("launcher {name!r}: {problem}", name=name, problem=problem)
            return f"fail {name} {problem}"
        return f"start {name}"

    def describe(self) -> Sequence[Launcher]:
        return [attrs.evolve(entry, on=self._is_on(entry)) for entry in self._entries.values()]

    def switch_off(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            self._switch(entry, False)

    def _is_on(self, entry: Launcher) -> bool:
        return self._switches.get(entry.name, entry.on)

    def _switch(self, entry: Launcher, on: bool) -> None:
        if self._is_on(entry) != on:
            self._switches[entry.name] = on
            self._remember(entry.name, on)

    def _run(self, entry: Launcher) -> str | None:
        """Start the program. Returns the error text, None on success."""
        try:
            words = shlex.split(entry.script)
        except ValueError as error:
            return f"cannot split its script: {error}"
        if not words:
            return "its script is empty"
        try:
            self._spawn(entry.name, words)
        except OSError as error:
            return f"cannot run {words[0]}: {error.strerror or error}"
        return None
