"""Files of lines that are appended in a thread: the audit log, and the collected log.

Rules:
- Lines are written in order by one thread, and synchronized to the disk. The file has the mode 0600, is only appended
  to, and is renamed at its size limit: ``FILE.1`` is the newest of the old ones.
- If the disk fails, lines are kept in memory, up to `MAX_WAITING`, and written when the disk is back; further ones are
  counted as lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.blocking import blocking
from broker.small_file import rotate
from broker.wall_clock import wall

MAX_WAITING, MAX_WAITING_BYTES = 10_000, 4 * 1024**2
"""Lines that wait for the disk, of some 300 bytes each: an hour of three acts a second; and their bytes."""

BATCH = 1_000
"""Lines of one write."""

RETRY = 5.0
"""Seconds between attempts while the disk fails."""

MODE = 0o600
"""Mode of the file: it names users and addresses."""


class LineFile:
    """The file ``path``. ``title`` names it in the daemon's log, for example "audit log".

    ``in_thread`` calls a function in one thread, in order, and returns a Deferred of its result. ``size`` is the number
    of bytes at which the file is rotated, ``files`` the number of rotated files that are kept.
    """

    log = Logger()

    def __init__(
        self,
        title: str,
        path: str,
        size: int,
        files: int,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self.title = title
        self.path = path
        self._size = size
        self._files = files
        self._clock = clock
        self._in_thread = in_thread
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        """Bytes of the lines that wait, those that are being written included."""
        self._writing: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._counts = {"written": 0, "lost": 0, "errors": 0}
        self.failure = ""
        """The reason why the file cannot be written now; empty if it can."""

    def use(self, path: str, size: int, files: int) -> None:
        """Switch to another file and limits. Lines that could not be written to the former file go to the new one."""
        self._size = size
        self._files = files
        if path == self.path:
            return
        self.log.info("the {title} is {path} now, and was {before}", title=self.title, path=path, before=self.path)
        self.path = path
        if self._timer is not None:
            self._timer.cancel()
            self._again()

    def counts(self) -> Mapping[str, int]:
        """Return the counters ``written``, ``lost`` and ``errors``, and the number of lines that are ``waiting``."""
        return {**self._counts, "waiting": len(self._waiting)}

    def stamp(self) -> str:
        """Return the present time by RFC 3339, UTC, for a line."""
        return datetime.fromtimestamp(wall(self._clock), UTC).isoformat(timespec="milliseconds")

    def append(self, line: bytes) -> None:
        """Append a line, given without its end."""
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(line) >= MAX_WAITING_BYTES:
            self._counts["lost"] += 1
            return
        self._waiting.append(line + b"\n")
        self._waiting_bytes += len(line) + 1
        self._write()

    def stop(self) -> Deferred[None]:
        """Write what waits. Fires when all of that is on the disk, or a write failed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None:
            self._write()
        if self._writing is None:
            return succeed(None)
        done: Deferred[None] = Deferred()

        def ended(_: object) -> None:
            # What waited during a write is in the next one, which has begun by now.
            if self._writing is None:
                done.callback(None)
            else:
                self._writing.addBoth(ended)

        self._writing.addBoth(ended)
        return done

    def _write(self) -> None:
        if self._writing is not None or self._timer is not None or not self._waiting:
            return
        lines = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        self._writing = self._in_thread(append, self.path, b"".join(lines), self._size, self._files)
        self._writing.addCallbacks(self._written, self._failed, callbackArgs=(lines,), errbackArgs=(lines,))

    def _written(self, _: object, lines: list[bytes]) -> None:
        self._writing = None
        self._waiting_bytes -= sum(map(len, lines))
        self._counts["written"] += len(lines)
        if self.failure:
            self.failure = ""
            self.log.info("the {title} {path} can be written again", title=self.title, path=self.path)
        self._write()

    def _failed(self, failure: Failure, lines: list[bytes]) -> None:
        self._writing = None
        self._counts["errors"] += 1
        room = MAX_WAITING - len(self._waiting)
        self._counts["lost"] += max(0, len(lines) - room)
        self._waiting_bytes -= sum(map(len, lines[room:]))
        self._waiting.extendleft(reversed(lines[:room]))
        reason = failure.value.strerror or str(failure.value) if isinstance(failure.value, OSError) else ""
        if not reason:
            self.log.failure("a defect in writing the {title}", failure, title=self.title)
        elif not self.failure:
            self.log.error(
                "the {title} {path} cannot be written: {reason}", title=self.title, path=self.path, reason=reason
            )
        self.failure = reason or "a defect of the broker"
        self._timer = self._clock.callLater(RETRY, self._again)

    def _again(self) -> None:
        self._timer = None
        self._write()


@blocking
def append(path: str, data: bytes, size: int, files: int) -> None:
    """Append whole lines to the file, after rotating it if it has its size. Blocks. Raises OSError."""
    descriptor = _open(path)
    try:
        before = os.fstat(descriptor).st_size
        if before and before + len(data) > size:
            rotate(path, files)
            full, descriptor = descriptor, _open(path)
            os.close(full)
            before = 0
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            # A power failure cut the last line: it must not spoil the next one.
            data = b"\n" + data
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            # Half a line would spoil the next one. The file was only extended by this call.
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


@blocking
def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
