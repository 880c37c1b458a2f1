"""Durable messages of queues, in an SQLite database of their own in the state directory.

Rules:
- A batch is one transaction, on the disk when `QueueStore.write` returns (write-ahead log, synchronous=FULL): who is
  told of it afterwards is told the truth, also if the broker is killed, or the machine stops.
- A message is written once, with the place and the count that it had then. Its count is written again when it comes
  back from a consumer, and not when it is given out: after a kill it may be a little too low.
- The directory is the state directory, which `broker.core.store` keeps for one broker. File 0600.
- What cannot be understood is never changed or deleted here; the error says how to move it away.
"""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from typing import Any

import attrs

from broker.core.queue_roles import Restored
from broker.core.queue_settings import Death
from broker.core.store import StateUnusable

DATABASE = "queues.sqlite3"

SCHEMA = 1
"""The version of the tables below, kept in ``PRAGMA user_version``."""

BUSY_SECONDS = 1.0
"""How long a write waits for another process that holds the database (an operator's ``sqlite3``)."""

LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log is cut back to this when it was longer: a batch may be as long."""

ROWS = (256, 64, 16, 4, 1)
"""How many rows go into one statement. Each statement lets other threads run, and has to wait for its turn afterwards:
with a row each, a batch would take seconds beside a busy reactor."""

_TABLES = """
CREATE TABLE queue (id INTEGER PRIMARY KEY, space TEXT NOT NULL, name TEXT NOT NULL);
CREATE TABLE message (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, count INTEGER NOT NULL, expires REAL, death TEXT,
    head BLOB NOT NULL, body BLOB NOT NULL
);
"""

_INSERT = {n: f"INSERT OR REPLACE INTO message VALUES {','.join(['(?,?,?,?,?,?,?)'] * n)}" for n in ROWS}

_COUNT = """
UPDATE message SET count = json_extract(new.value, '$[1]') FROM json_each(?) AS new
WHERE message.id = json_extract(new.value, '$[0]')
"""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Row = tuple[int, int, int, float | None, str | None, bytes, bytes]
"""A message: its order, the number of its queue, its count, when its time is over in seconds of the epoch (None for
never), why it died, head and body."""


@attrs.frozen
class Batch:
    """What is written together. ``queues`` are numbers, spaces and names; ``counts`` orders and counts.

    The last two are the numbers of queues and the orders of messages that are gone.
    """

    queues: Sequence[tuple[int, str, str]]
    rows: Sequence[Row]
    counts: Sequence[tuple[int, int]]
    gone: Sequence[int]
    queues_gone: Sequence[int]


class QueueStore:
    """The database in ``directory``. Its methods block on the disk; any thread may call them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, DATABASE)
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def open(self, now: float) -> list[Restored]:
        """Make what is not there yet, and return all messages by their order. ``now`` is in seconds of the epoch.

        Raises `StateUnusable`; then nothing that was there has changed.
        """
        with self._mutex:
            try:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                connection = self._connect()
                try:
                    self._prepare(connection)
                    rows = self._read(connection, now)
                except BaseException:
                    connection.close()
                    raise
            except sqlite3.Error as error:
                raise self._unusable(error) from error
            except OSError as error:
                raise StateUnusable(f"the database {self._path} cannot be used: {error.strerror}") from error
            self._connection = connection
            return rows

    def write(self, batch: Batch) -> None:
        """Write a batch: all of it, or nothing, which raises `StateUnusable`."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO queue VALUES (?, ?, ?)", batch.queues)
            at = 0
            for count in ROWS:
                while len(batch.rows) - at >= count:
                    connection.execute(_INSERT[count], list(chain.from_iterable(batch.rows[at : at + count])))
                    at += count
            if batch.counts:
                connection.execute(_COUNT, (json.dumps(batch.counts),))
            for table, gone in (("message", batch.gone), ("queue", batch.queues_gone)):
                if gone:
                    listed = json.dumps(gone)
                    connection.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (listed,))

    def probe(self) -> None:
        """Write something that changes nothing. Raises `StateUnusable` where a batch would."""
        with self._transaction() as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def close(self) -> None:
        """The end. Harmless when not open."""
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # inside

    def _connect(self) -> sqlite3.Connection:
        # SQLite would create the file with the umask's mode; the files that it keeps beside it take over this one's.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_mode & 0o077:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise StateUnusable(
                f"the database {self._path} was written by a newer elkobroker "
                f"(schema {version}, this one knows {SCHEMA}): run that version; or {self._move_away()}"
            )
        (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            raise self._damaged(damage)
        if version < SCHEMA:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables:
                raise StateUnusable(f"the database {self._path} is not one of elkobroker's; {self._move_away()}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        if version < SCHEMA:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")

    def _read(self, connection: sqlite3.Connection, now: float) -> list[Restored]:
        queues = {id: (space, name) for id, space, name in connection.execute("SELECT id, space, name FROM queue")}
        rows = []
        for row in connection.execute("SELECT id, queue, count, expires, death, head, body FROM message ORDER BY id"):
            try:
                rows.append(_restored(row, queues, now))
            except (ValueError, TypeError, LookupError):
                raise self._damaged(f"message {row[0]} cannot be understood") from None
        connection.execute("DELETE FROM queue WHERE id NOT IN (SELECT queue FROM message)")
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            connection = self._connection
            if connection is None:
                raise StateUnusable(f"the database {self._path} is not open")
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> StateUnusable:
        # the primary code is in the low byte; errors that Python itself raises have none
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            return self._damaged(str(error))
        return StateUnusable(f"the database {self._path} cannot be used: {error}")

    def _damaged(self, how: str) -> StateUnusable:
        return StateUnusable(
            f"the database {self._path} is damaged ({how}); to keep it and start anew, {self._move_away()}"
        )

    def _move_away(self) -> str:
        directory = shlex.quote(self._directory)
        return (
            f"move it away: (cd {directory} && mkdir -p kept && mv {DATABASE}* kept/). "
            "The durable queues are then empty"
        )


def _restored(row: Sequence[Any], queues: dict[int, tuple[Any, Any]], now: float) -> Restored:
    """A message as it was read. Raises one of the built-in errors for what was never written."""
    order, number, count, expires, death, head, body = row
    space, name = queues[number]
    if not (isinstance(count, int) and all(isinstance(text, str) for text in (space, name))):
        raise TypeError
    if not (isinstance(head, bytes) and isinstance(body, bytes)):
        raise TypeError
    return Restored(
        space=space,
        name=name,
        number=number,
        order=order,
        count=count,
        seconds=inf if expires is None else float(expires) - now,
        death=None if death is None else Death(death),
        head=head,
        body=body,
    )
