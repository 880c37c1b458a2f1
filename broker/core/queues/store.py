"""Store of the durable messages of queues: an SQLite database in the state directory (`broker.core.database`).

Rules:
- A batch is one transaction, durable when `QueueStore.write` returns: a confirm that an author gets afterwards is true
  even if the broker is killed or the machine stops.
- A message is written once, with its order and delivery count. The count is written again when the message returns from
  a consumer, and not at its delivery: after a kill it may be a little too low.
- Orders are unique among all queues, so messages are identified by their orders alone.
- The directory is the state directory, which `broker.core.store` locks for one broker.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import Any

from zope.interface import implementer

from broker.core.database import Database, Design
from broker.core.queues.interfaces import Batch, IQueueStore, RestoredMessage
from broker.core.queues.settings import Death

DATABASE = "queues.sqlite3"

LOG_BYTES = 64 * 1024 * 1024
"""Length to which the write-ahead log is truncated, in bytes: a batch may be as long."""

COMMIT_BYTES = 4 * 1024 * 1024
"""Limit of the messages in one batch, in bytes, without the last message: the reserve has room for as much on a full
disk (`broker.core.disk_reserve`)."""

COMMIT_GONE = 1_000
"""Limit of the messages that one batch deletes, for the same reason: each may cost a page of 4 KiB in SQLite's log."""

ROWS = (256, 64, 16, 4, 1)
"""Numbers of rows for one statement, the largest first. Each statement releases the interpreter and has to acquire it
again: with one row each, a batch would take seconds beside a busy reactor."""

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

STEPS = (_TABLES,)
"""Migrations: the tables of version 1, then the step to each further version."""

SCHEMA = len(STEPS)
"""Version of the tables, in ``PRAGMA user_version``."""

_DESIGN = Design(DATABASE, STEPS, "The durable queues are then empty", LOG_BYTES, cheap_deletes=True)


@implementer(IQueueStore)
class QueueStore:
    """`IQueueStore` in an SQLite database in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._database = Database(directory, _DESIGN)

    def open(self, now: float) -> list[RestoredMessage]:
        """Create or migrate the database, and return all messages by their order. ``now`` is in seconds of the epoch.

        Raises `StateUnusable`, its subclass `StateFull` if only room is lacking; then the existing content is
        unchanged.
        """

        def read(connection: sqlite3.Connection) -> list[RestoredMessage]:
            rows = self._read(connection, now)
            connection.execute("DELETE FROM queue WHERE id NOT IN (SELECT queue FROM message)")
            return rows

        return self._database.open(read)

    def look(self, now: float) -> list[RestoredMessage]:
        """Return all messages without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the database first. Raises `StateUnusable`.
        """
        return self._database.look(lambda connection: self._read(connection, now), [])

    def write(self, batch: Batch) -> None:
        """Write a batch: all of it, or nothing, which raises `StateUnusable`."""

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO queue VALUES (?, ?, ?)", batch.queues)
            at = 0
            for count in ROWS:
                while len(batch.rows) - at >= count:
                    connection.execute(_INSERT[count], list(chain.from_iterable(batch.rows[at : at + count])))
                    at += count
            if batch.counts:
                connection.execute(_COUNT, (json.dumps([each[1:] for each in batch.counts]),))
            for table, gone in (("message", [order for _, order in batch.gone]), ("queue", batch.queues_gone)):
                if gone:
                    listed = json.dumps(gone)
                    connection.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (listed,))

        grows = batch.rows and not batch.urgent
        self._database.write(work, sum(len(row[-1]) + len(row[-2]) for row in batch.rows) if grows else None)

    def probe(self) -> None:
        """Execute a write that changes nothing. Raises `StateUnusable` if a batch with new messages would fail."""
        self._database.probe(COMMIT_BYTES)

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._database.close()

    def _read(self, connection: sqlite3.Connection, now: float) -> list[RestoredMessage]:
        queues = {id: (space, name) for id, space, name in connection.execute("SELECT id, space, name FROM queue")}
        rows = []
        for row in connection.execute("SELECT id, queue, count, expires, death, head, body FROM message ORDER BY id"):
            try:
                rows.append(_restored(row, queues, now))
            except (ValueError, TypeError, LookupError):
                raise self._database.damaged(f"message {row[0]} cannot be understood") from None
        return rows


def _restored(row: Sequence[Any], queues: dict[int, tuple[Any, Any]], now: float) -> RestoredMessage:
    """Decode a row. Raises a built-in exception for one that this module did not write."""
    order, number, count, expires, death, head, body = row
    space, name = queues[number]
    if not (isinstance(count, int) and all(isinstance(text, str) for text in (space, name))):
        raise TypeError
    if not (isinstance(head, bytes) and isinstance(body, bytes)):
        raise TypeError
    return RestoredMessage(
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
