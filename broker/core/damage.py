"""Damage of stored data: the findings, which the log, the readiness of the daemon, its events and its metrics show.

Rules:
- Damaged data are never used, and never deleted: a message becomes a dead letter, any other row goes to the table
  ``damaged`` of its database, and a file that cannot be used is renamed (`set_aside`).
- A finding is reported until the end of the process, and a renamed file by each later start until it is gone: an
  operator decides about it.

Checksums of the rows of stores, compared whenever a row is read.

SQLite compares the structure of a database, and not the content of its rows: a bit that a disk or its memory has
changed within a text or a number is read as if it had been written.

The checksum is CRC-32. It detects every change of up to 32 adjacent bits, and so each single bit, and leaves one of
four thousand million other changes undetected. A cryptographic hash would add nothing: one who can write the row can
also write its hash. It takes 4 microseconds for a message of 10 KB, a quarter of the time of BLAKE2.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from broker.blocking import blocking
from broker.core.interfaces import InThread
from broker.core.model import NotReady, Verified

MAX_FINDINGS = 100
"""Findings that are reported one by one; further ones are only counted. A failing disk damages many rows at once."""

MARK = ".damaged-"
"""Separates the name of a file that was set aside from the time of that, in UTC."""

_ASIDE = re.compile(re.escape(MARK) + r"\d{8}T\d{6}Z(-\d+)?$")

DAMAGED_ROWS = """
CREATE TABLE damaged (
    id INTEGER PRIMARY KEY, found REAL NOT NULL, source TEXT NOT NULL, reason TEXT NOT NULL, content TEXT NOT NULL
);
"""
"""The table of rows that were set aside, in an SQLite database: ``found`` is in seconds since the epoch, ``source`` the
former table, ``content`` its columns as literals of SQL."""


@attrs.frozen
class Damage:
    """A finding: the damaged part, the damage and its consequence, and the numbers of rows and of files."""

    what: str
    reason: str
    rows: int = 0
    files: int = 0


def kept_rows(what: str, rows: Sequence[tuple[int, str]], not_used: str) -> Damage:
    """Return the finding about rows that were moved to the table ``damaged``, each with its id and the reason."""
    reasons = "; ".join([reason for _, reason in rows[:3]] + ["..."] * (len(rows) > 3))
    return Damage(what, f"{reasons}. They are kept in the table damaged, and are not {not_used}", rows=len(rows))


class Damages:
    """All findings of this process. Any part of the start may add some; they are reported once it is complete."""

    log = Logger()

    def __init__(self) -> None:
        self._found: list[Damage] = []
        self._more = 0
        self._rows = 0
        self._files = 0
        self._report: Callable[[Damage], object] | None = None
        self._stores: dict[str, tuple[Callable[[], Iterator[Verified]], InThread]] = {}
        self._waiting: list[Deferred[list[tuple[str, Verified]]]] = []

    def add(self, found: Iterable[Damage]) -> None:
        """Add findings, and log them."""
        for each in found:
            self._rows += each.rows
            self._files += each.files
            if len(self._found) >= MAX_FINDINGS:
                self._more += 1
                continue
            self._found.append(each)
            self.log.error("{what} is damaged: {reason}", what=each.what, reason=each.reason)
            if self._report is not None:
                self._report(each)

    def report(self, report: Callable[[Damage], object]) -> None:
        """Call ``report`` with each finding, those up to now included."""
        self._report = report
        for each in self._found:
            report(each)

    def include(self, name: str, verify: Callable[[], Iterator[Verified]], in_thread: InThread) -> None:
        """Include a store in `verify`: the function that compares its rows, and the thread for its pieces."""
        self._stores[name] = (verify, in_thread)

    def verify(self) -> Deferred[list[tuple[str, Verified]]]:
        """Compare the rows of all stores with their checksums. Fires with the result of each.

        A call during a verification gets its result. Fails as a store does.
        """
        waiting: Deferred[list[tuple[str, Verified]]] = Deferred()
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            ensureDeferred(self._verify()).addBoth(self._verified)
        return waiting

    async def _verify(self) -> list[tuple[str, Verified]]:
        results = []
        for name, (verify, in_thread) in self._stores.items():
            pieces = verify()
            result = Verified()
            while (piece := await in_thread(next, pieces, None)) is not None:
                result = result.joined(piece)
            results.append((name, result))
        return results

    def _verified(self, result: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(result)

    def degradations(self) -> Iterator[NotReady]:
        """Yield the findings, as reasons for which the daemon is degraded."""
        for each in self._found:
            yield NotReady(each.what, f"damaged: {each.reason}")
        if self._more:
            yield NotReady("state", f"{self._more} more findings of damage are not listed")

    def counts(self) -> dict[str, int]:
        """Return the counters."""
        return {"state_damaged.rows": self._rows, "state_damaged.files": self._files}


@blocking
def set_aside(path: str, now: float, companions: Sequence[str] = ()) -> str:
    """Rename a file that cannot be used, and the files whose names are its name and a suffix. Returns its new path.

    ``now`` is in seconds since the epoch. Raises OSError.
    """
    first = f"{path}{MARK}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    target, number = first, 1
    while os.path.lexists(target):
        number += 1
        target = f"{first}-{number}"
    for suffix in companions:
        with suppress(FileNotFoundError):
            os.rename(path + suffix, target + suffix)
    # The file itself comes last: after a kill in between, the next start does the rest.
    os.rename(path, target)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return target


@blocking
def left_aside(directory: str) -> list[Damage]:
    """Return the findings about files that earlier starts have set aside in a directory."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [
        Damage(os.path.join(directory, name.split(MARK)[0]), f"an earlier start has kept it as {name}")
        for name in names
        if _ASIDE.search(name)
    ]


decoded = partial(str, encoding="utf-8", errors="surrogateescape")
"""Text of a row that may be damaged: bytes that are not UTF-8 are preserved. For `sqlite3.Connection.text_factory`."""

_DOUBLE = struct.Struct("<d").pack


def summed(*row: Any) -> tuple[Any, ...]:
    """Return the columns of a row with their checksum."""
    return (*row, checksum(*row))


def checksum(*values: Any) -> int:
    """Return the checksum of the columns of a row: int, float, str, bytes or None.

    The types count, too, except that a text has the checksum of its bytes: SQL can compute it by a cast where the text
    may be damaged.
    """
    sum = 0
    for value in values:
        if type(value) is bytes:
            kind, data = b"b", value
        elif isinstance(value, str):
            kind, data = b"b", value.encode("utf-8", "surrogateescape")
        elif isinstance(value, float):
            kind, data = b"f", _DOUBLE(value)
        elif value is None:
            kind, data = b"n", b""
        else:
            kind, data = b"i", b"%d" % value
        # The length separates columns: "ab", "c" has another checksum than "a", "bc".
        sum = crc32(data, crc32(b"%b%d," % (kind, len(data)), sum))
    return sum
