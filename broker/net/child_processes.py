"""Running the programs that administrators launch, and logging what they print.

Rules:
- A program gets the broker's environment and working directory, an empty standard input, and no shell.
- Its output is logged line by line, under ``program.NAME``, in bounded memory: long lines are cut, and of a chatty
  program so many lines a second; what is left out is counted, and the count logged.
- A program is a server in its own right: it is not ended with the broker. See `Programs.stop` for its output.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal

from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall, IProcessTransport, IReactorProcess, IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

MAX_RUNNING = 100
"""Programs at a time: each takes two descriptors, and a farm has a handful of servers per machine."""

MAX_LINE = 2_000
"""Bytes of a line that are logged: a long stack-trace line fits, a program that prints no newline stays bounded."""

LINES_PER_SECOND = 200
"""Lines logged per program and second, of both its outputs together: a stack trace with its causes fits."""

DRAIN_SECONDS = 1.0
"""Seconds that the end of a program waits to be logged after its last output; a process that it left behind may
hold that open for ever."""


class Programs:
    """Starts programs with ``reactor``, which must provide `IReactorProcess` and `IReactorTime`."""

    def __init__(self, reactor: IReactorProcess) -> None:
        self._reactor = reactor
        self._clock = IReactorTime(reactor)
        self._running: set[_Program] = set()

    def spawn(self, name: str, argv: list[str]) -> None:
        """Start a program, whose output is logged under ``name``, and return without waiting for it.

        ``argv`` is its command line: at least the program, looked up on ``PATH`` if it has no slash. Raises OSError
        with a ``strerror`` if it cannot be run.
        """
        if len(self._running) >= MAX_RUNNING:
            raise OSError(errno.EAGAIN, f"{MAX_RUNNING} launched programs are running already")
        executable = _executable(argv)
        program = _Program(name, self._clock, self._running)
        self._reactor.spawnProcess(program, os.fsencode(executable), [os.fsencode(a) for a in argv], env=None)

    def stop(self) -> None:
        """Let go of the programs, which go on running.

        Their output pipes are closed. From then on a program that prints gets a broken pipe: Java and Python programs
        see an error at most, but one that leaves SIGPIPE as it is, as C programs and shell scripts do, is killed by it.
        So what must outlive the broker prints elsewhere: ``sh -c 'exec PROGRAM >>FILE 2>&1'``.
        """
        for program in tuple(self._running):
            program.detach()
        self._running.clear()


def _executable(argv: list[str]) -> str:
    """The path of the program to run; raises OSError if there is none that can be."""
    if any("\0" in word for word in argv):
        raise OSError(errno.EINVAL, "its command line has a NUL character")
    found = shutil.which(argv[0])
    if found is not None:
        return found
    if os.path.dirname(argv[0]) and os.path.exists(argv[0]):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


class _Program(ProcessProtocol):
    """One running program. ``running`` holds those that run."""

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
            self._drain = self._clock.callLater(DRAIN_SECONDS, self._drained)

    def _drained(self) -> None:
        self._drain = None
        self._log_end()

    def processEnded(self, reason: Failure) -> None:
        self._running.discard(self)
        if not self._detached:
            self._let_go()

    def detach(self) -> None:
        """Hear its output no more."""
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


class _Output:
    """Logs lines, at most `LINES_PER_SECOND` of them in each second, and how many were left out."""

    def __init__(self, log: Logger, clock: IReactorTime) -> None:
        self._log = log
        self._clock = clock
        self._second = clock.seconds()
        self._left = LINES_PER_SECOND
        self._dropped = 0
        self._report: IDelayedCall | None = None

    def full(self) -> bool:
        """True if no line can be logged now."""
        now = self._clock.seconds()
        # a clock that was set back begins a new second too
        if not 0 <= now - self._second < 1:
            self._second = now
            self._left = LINES_PER_SECOND
        return self._left == 0

    def line(self, line: bytes, more: int) -> None:
        """Log a line, of which ``more`` bytes were cut."""
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
            self._report = self._clock.callLater(1, self._tell)

    def ended(self) -> None:
        """There will be no more lines."""
        if self._report is not None:
            self._report.cancel()
            self._tell()

    def _tell(self) -> None:
        self._report = None
        self._log.warn(
            "{dropped} lines more, not logged (at most {most} a second are)",
            dropped=self._dropped,
            most=LINES_PER_SECOND,
        )
        self._dropped = 0


class _Lines:
    """Cuts one stream of output into lines."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._begun = b""
        """The line that has not ended yet, as far as it would be logged."""
        self._more = 0
        """Bytes of it beyond that."""

    def received(self, data: bytes) -> None:
        start = 0
        # while lines can be logged each is looked at; a flood beyond that is only counted
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
        """The stream has ended, perhaps in the middle of a line."""
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
    """Text with its control characters escaped: they may not forge log lines, or reach a terminal."""
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
