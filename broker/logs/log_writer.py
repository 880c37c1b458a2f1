"""The writer of the log: a thread, with a bounded queue, so that a destination that is not read stops nothing.

Rules:
- `LogWriter.put` adds a line to the queue and never waits. A full queue drops the line; so does a destination that
  fails. Dropped lines are counted, and the first line that can be written again is followed by one with their number.
- Before `LogWriter.start`, lines are written by the caller: twistd forks after it has started to log, and a thread does
  not survive that.
- After `LogWriter.finish`, the caller of `put` waits until its line is written, so that the last lines of a process are
  not lost. All these waits together are bounded by `LAST_SECONDS`.
- The queue needs no lock that a signal handler could find held: Twisted logs in the handlers of SIGINT and SIGTERM.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import time
from _thread import allocate_lock
from collections.abc import Sequence
from threading import RLock, Thread, get_ident
from typing import IO, Protocol

from twisted.logger import Logger

from broker.small_file import rotate

MAX_QUEUED = 2 * 1024 * 1024
"""Bytes or characters of the lines that wait to be written: some 20,000 lines, which is the output of some seconds on
the level debug. As many may be in the write that is under way."""

GATHER_SECONDS = 0.005
"""Seconds that the thread waits for more lines before it writes: lines of a burst share one system call and one switch
of threads."""

LAST_SECONDS = 2.0
"""Seconds that the end of the process waits for a destination that takes no lines."""

Line = str | bytes
"""A line of text with its line end, or a message in the form of the destination."""


class Destination(Protocol):
    """A place to which lines are written. Its methods block, and run in one thread at a time."""

    def write(self, lines: Sequence[Line]) -> int:
        """Write lines. Returns the number of those that could not be written."""

    def reopen(self) -> None:
        """Open the destination again by its name. Raises OSError, and goes on with the former one."""


class LogWriter:
    """The writer of lines to ``destination``."""

    log = Logger()

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.dropped = 0
        """Number of lines that were dropped."""
        self._unreported = 0
        self._lines: list[Line] = []
        self._queued = 0
        self._mutex = RLock()
        self._wake = allocate_lock()
        self._wake.acquire()
        self._thread: Thread | None = None
        self._idle = True
        """True while the thread has nothing to write."""
        self._reopening = False
        self._last: float | None = None
        """After `finish`: the seconds that callers may still wait, all together."""

    def put(self, line: Line) -> None:
        """Write a line soon. It is dropped if too many wait."""
        if self._thread is None:
            self._write([line])
            return
        with self._mutex:
            if self._queued + len(line) > MAX_QUEUED:
                self._drop(1)
                return
            self._lines.append(line)
            self._queued += len(line)
        self._rouse()
        if self._last is not None and get_ident() != self._thread.ident:
            self._wait()

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="log", daemon=True)
            self._thread.start()
            atexit.register(self.finish)

    def reopen(self) -> None:
        """Open the destination again, after the lines that are written now: its file was renamed. Any handler of a
        signal may call it."""
        if self._thread is None:
            self._reopen()
        else:
            with self._mutex:  # else the thread, which has just looked, would go to sleep over it
                self._reopening = True
            self._rouse()

    def finish(self) -> None:
        """Wait until all lines are written, and have later ones written at once. Blocks up to `LAST_SECONDS`."""
        if self._thread is not None:
            if self._last is None:
                self._last = LAST_SECONDS
            self._rouse()
            self._wait()

    # internal

    def _rouse(self) -> None:
        if self._idle:
            self._idle = False
            with contextlib.suppress(RuntimeError):  # another thread was quicker
                self._wake.release()

    def _wait(self) -> None:
        """Wait for the thread within the time that is left."""
        assert self._last is not None
        began = time.monotonic()
        while not self._idle and time.monotonic() - began < self._last:
            time.sleep(0.001)
        self._last = max(0.0, self._last - (time.monotonic() - began))

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            if self._last is None:
                time.sleep(GATHER_SECONDS)
            while not self._idle:
                if self._reopening:
                    self._reopening = False
                    self._reopen()
                with self._mutex:
                    lines, self._lines, self._queued = self._lines, [], 0
                    # Under the lock: a line that is added afterwards rouses the thread again.
                    self._idle = not lines and not self._reopening
                if lines:
                    self._write(lines)

    def _write(self, lines: Sequence[Line]) -> None:
        try:
            failed = self.destination.write(lines)
        except Exception:  # a defect, which must not end the thread
            failed = len(lines)
        if failed:
            self._drop(failed)
        if failed < len(lines):
            with self._mutex:
                lost, self._unreported = self._unreported, 0
            if lost:
                self.log.warn("{count} lines of the log were dropped: they could not be written", count=lost)

    def _drop(self, lines: int) -> None:
        with self._mutex:
            self.dropped += lines
            self._unreported += lines

    def _reopen(self) -> None:
        try:
            self.destination.reopen()
        except OSError as error:
            self.log.error("the log cannot be opened again: {error}", error=str(error))
        else:
            self.log.info("the log was opened again")


class Stream:
    """An output that is open already, such as the standard output. Nothing can be opened again.

    Lines are written to its descriptor, if it has one: a buffer of Python's would be locked, by a thread that waits for
    the reader, when the interpreter flushes it at the end.
    """

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._encoding = getattr(out, "encoding", None) or "utf-8"
        try:
            out.flush()
            self._descriptor: int | None = out.fileno()
        except (OSError, ValueError):
            self._descriptor = None

    def write(self, lines: Sequence[Line]) -> int:
        """See `Destination`."""
        if self._descriptor is not None:
            return written(self._descriptor, lines, self._encoding)
        try:
            self._out.write(_encoded(lines, self._encoding).decode(self._encoding))
            self._out.flush()
        except (OSError, ValueError):
            return len(lines)
        return 0

    def reopen(self) -> None:
        """See `Destination`."""


class RotatingFile:
    """A file at ``path``, which becomes ``PATH.1`` when it has ``limit`` bytes. ``kept`` such files are kept.

    With a ``limit`` of 0 it is not rotated: another program does that, and then calls for `reopen`. Raises OSError.
    """

    def __init__(self, path: str, limit: int, kept: int) -> None:
        self.path = os.path.abspath(path)
        self.limit = limit
        self.kept = kept
        self._file = self._opened()

    def write(self, lines: Sequence[Line]) -> int:
        """See `Destination`. Lines are not divided between two files."""
        if self.limit and os.fstat(self._file).st_size >= self.limit:
            # On failure the file grows further: lines are worth more than the limit.
            with contextlib.suppress(OSError):
                rotate(self.path, self.kept)
                self.reopen()
        return written(self._file, lines, "utf-8")

    def reopen(self) -> None:
        """See `Destination`."""
        before, self._file = self._file, self._opened()
        os.close(before)

    def _opened(self) -> int:
        # O_APPEND: a program that rotates by copying truncates the file.
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def written(descriptor: int, lines: Sequence[Line], encoding: str) -> int:
    """Write lines to a descriptor. Returns the number of those that could not be written. Blocks."""
    data = [_encoded([line], encoding) for line in lines]
    rest = memoryview(b"".join(data))
    try:
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # the terminal, which another program shares, was made non-blocking
                select.select([], [descriptor], [])
    except OSError:
        lost, left = 0, len(rest)
        while left > 0:
            lost += 1
            left -= len(data[-lost])
        return lost
    return 0


def _encoded(lines: Sequence[Line], encoding: str) -> bytes:
    # A character that the terminal's encoding lacks must not cost the line.
    return b"".join(each if isinstance(each, bytes) else each.encode(encoding, "backslashreplace") for each in lines)
