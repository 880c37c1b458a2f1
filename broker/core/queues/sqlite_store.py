"""Store of the durable messages of queues: an SQLite database in the state directory (`broker.core.database`).

Rules:
- A batch is one transaction, durable when `QueueStore.write` returns: a confirm that an author gets afterwards is true
  even if the broker is killed or the machine stops.
- A message is written once, with its order and delivery count. The count is written again when the message returns from
  a consumer, and not at its delivery: after a kill it may be a little too low.
- Orders are unique among all queues, so messages are identified by their orders alone.
- The directory is the state directory, which `broker.core.store` locks for one broker.
- A message has two checksums: one of its constant parts, and one of its order and count, which `_COUNT` renews. The
  name of a queue has its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from zope.interface import implementer

from broker.core.damage import DAMAGED_ROWS, Damage, checksum, kept_rows, summed
from broker.core.database import Database, Design, set_rows_aside, transact, without_sums
from broker.core.model import MAX_NAMED, Verified
from broker.core.queues.queue_interfaces import MAX_ORDER, Batch, IQueueStore, RestoredMessage
from broker.core.queues.queue_messages import Death

DATABASE = "queues.sqlite3"

LOG_BYTES = 64 * 1024 * 1024
"""Length to which the write-ahead log is truncated, in bytes: a batch may be as long."""

COMMIT_BYTES = 4 * 1024 * 1024
"""Limit of the messages in one batch, in bytes, without the last message: the reserve has room for as much on a full
disk (`broker.core.disk`)."""

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

_SUMS = f"""
ALTER TABLE queue ADD COLUMN sum INTEGER;
ALTER TABLE message ADD COLUMN sum INTEGER;
ALTER TABLE message ADD COLUMN count_sum INTEGER;
UPDATE queue SET sum = checksum(id, CAST(space AS BLOB), CAST(name AS BLOB));
UPDATE message SET sum = checksum(id, queue, expires, CAST(death AS BLOB), head, body), count_sum = checksum(id, count);
{DAMAGED_ROWS}
"""

_INSERT = {n: f"INSERT OR REPLACE INTO message VALUES {','.join(['(?,?,?,?,?,?,?,?,?)'] * n)}" for n in ROWS}

_COUNT = """
UPDATE message SET count = json_extract(new.value, '$[1]'), count_sum = json_extract(new.value, '$[2]')
FROM json_each(?) AS new WHERE message.id = json_extract(new.value, '$[0]')
"""

_COLUMNS = "id, queue, count, expires, death, head, body, sum, count_sum"

_QUEUE_COLUMNS = "id, space, name, sum"

SUMS_SINCE = 2
"""First version with checksums."""

VERIFIED_ROWS = 200
"""Messages that one step of a verification reads: some 2 MB, in a few milliseconds."""

STEPS = (_TABLES, _SUMS)
"""Migrations: the tables of version 1, then the step to each further version."""

SCHEMA = len(STEPS)
"""Version of the tables, in ``PRAGMA user_version``."""

_Lost = dict[str, list[tuple[int, str]]]
"""By table, the rows that cannot be used, each with the reason."""

_DESIGN = Design(DATABASE, STEPS, "The durable queues are then empty", LOG_BYTES, cheap_deletes=True)


@implementer(IQueueStore)
class QueueStore:
    """`IQueueStore` in an SQLite database in ``directory``.

    ``readable`` returns True for a head that the wire can decode, which may fail for a corrupted one.
    """

    def __init__(self, directory: str, readable: Callable[[bytes], bool] = lambda head: True) -> None:
        self._database = Database(directory, _DESIGN)
        self._readable = readable
        self._found: list[Damage] = []
        self._untidy: tuple[_Lost, float] | None = None
        """The rows that `look` could not read, and its time, until the first write sets them aside."""

    def open(self, now: float) -> list[RestoredMessage]:
        """Create or migrate the database, and return all messages by their order.

        ``now`` is in seconds since the epoch. Raises `StateUnusable`, its subclass `StateFull` if only room
        is lacking; then the existing content is unchanged.
        """

        def read(connection: sqlite3.Connection) -> list[RestoredMessage]:
            rows, lost = self._read(connection, now)
            transact(connection, lambda connection: _tidy(connection, lost, now))
            self._add_found(lost)
            return rows

        self._untidy = None
        return self._database.open(read)

    def look(self, now: float) -> list[RestoredMessage]:
        """Return all messages without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the database first. Raises `StateUnusable`.
        """
        nothing: tuple[list[RestoredMessage], _Lost] = [], {}
        rows, lost = self._database.look(lambda connection: self._read(connection, now), nothing)
        self._untidy = lost, now
        self._add_found(lost)
        return rows

    def write(self, batch: Batch) -> None:
        """Write a batch: all of it, or nothing, which raises `StateUnusable`."""

        def work(connection: sqlite3.Connection) -> None:
            if self._untidy is not None:
                # First: new messages and queues may have the numbers of rows that could not be read.
                _tidy(connection, *self._untidy)
            queues = [summed(*queue) for queue in batch.queues]
            connection.executemany("INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?)", queues)
            at = 0
            for count in ROWS:
                while len(batch.rows) - at >= count:
                    rows = [_summed(row) for row in batch.rows[at : at + count]]
                    connection.execute(_INSERT[count], list(chain.from_iterable(rows)))
                    at += count
            if batch.counts:
                counts = [summed(order, number) for _, order, number in batch.counts]
                connection.execute(_COUNT, (json.dumps(counts),))
            for table, gone in (("message", [order for _, order in batch.gone]), ("queue", batch.queues_gone)):
                if gone:
                    listed = json.dumps(gone)
                    connection.execute(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (listed,))

        grows = batch.rows and not batch.urgent
        self._database.write(work, sum(len(row[-1]) + len(row[-2]) for row in batch.rows) if grows else None)
        self._untidy = None

    def probe(self) -> None:
        """Execute a write that changes nothing. Raises `StateUnusable` if a batch with new messages would fail."""
        self._database.probe(COMMIT_BYTES)

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._database.close()

    def found(self) -> list[Damage]:
        """See `IQueueStore`."""
        found, self._found = self._found, []
        return found

    def verify(self) -> Iterator[Verified]:
        """See `IQueueStore`."""
        yield self._database.read(self._verified_queues)
        last: int | None = None
        while (done := self._database.read(partial(self._verified, last))) is not None:
            result, last = done
            yield result

    def _verified_queues(self, connection: sqlite3.Connection) -> Verified:
        rows = connection.execute(f"SELECT {_QUEUE_COLUMNS} FROM queue").fetchall()
        bad = [f"the name of queue {row[0]}" for row in rows if checksum(*row[:-1]) != row[-1]]
        (aside,) = connection.execute("SELECT count(*) FROM damaged").fetchone()
        return Verified(len(rows), len(bad), bad[:MAX_NAMED], aside)

    def _verified(self, last: int | None, connection: sqlite3.Connection) -> tuple[Verified, int] | None:
        where = "" if last is None else f"WHERE id > {last}"
        rows, bad = 0, []
        # Not all at once: each may have a megabyte.
        for row in connection.execute(f"SELECT {_COLUMNS} FROM message {where} ORDER BY id LIMIT {VERIFIED_ROWS}"):
            rows, last = rows + 1, row[0]
            if not _matches(row):
                bad.append(f"message {row[0]} of queue {row[1]}")
        return None if last is None or not rows else (Verified(rows, len(bad), bad[:MAX_NAMED]), last)

    def _add_found(self, lost: _Lost) -> None:
        for table, rows in lost.items():
            if rows:
                what = "messages" if table == "message" else "names of queues"
                self._found.append(kept_rows(f"{len(rows)} {what} in {self._database.path}", rows, "delivered"))

    def _read(self, connection: sqlite3.Connection, now: float) -> tuple[list[RestoredMessage], _Lost]:
        """Return all messages that can be delivered or become dead letters, and the rows of both tables that cannot."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        has_sums = version >= SUMS_SINCE
        queues: dict[int, tuple[str, str]] = {}
        lost: _Lost = {"message": [], "queue": []}
        columns = _QUEUE_COLUMNS if has_sums else without_sums(_QUEUE_COLUMNS)
        for id, space, name, sum in connection.execute(f"SELECT {columns} FROM queue"):
            is_text = isinstance(space, str) and isinstance(name, str)
            if is_text and (not has_sums or checksum(id, space, name) == sum):
                queues[id] = (space, name)
            else:
                lost["queue"].append((id, f"the name of queue {id} does not match its checksum"))
        rows = []
        columns = _COLUMNS if has_sums else without_sums(_COLUMNS)
        for row in connection.execute(f"SELECT {columns} FROM message ORDER BY id"):
            is_good = not has_sums or _matches(row)
            try:
                message = _restored(row, queues, now, not is_good)
            except LookupError:
                lost["message"].append((row[0], f"the queue of message {row[0]} is unknown"))
                continue
            except (ValueError, TypeError):
                message = None
            if message is None or (message.damaged and not self._readable(message.head)):
                lost["message"].append((row[0], f"message {row[0]} cannot be read"))
            else:
                rows.append(message)
        return rows, lost


def _tidy(connection: sqlite3.Connection, lost: _Lost, now: float) -> None:
    """Set the rows aside that could not be read, and delete the queues without messages."""
    for table, columns in (("message", _COLUMNS), ("queue", _QUEUE_COLUMNS)):
        set_rows_aside(connection, table, columns, lost.get(table, ()), now)
    connection.execute("DELETE FROM queue WHERE id NOT IN (SELECT queue FROM message)")


def _summed(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of the table, with its checksums, for a `Row`."""
    order, number, count, expires, death, head, body = row
    expires = None if expires is None else float(expires)
    return (*row, checksum(order, number, expires, death, head, body), checksum(order, count))


def _matches(row: Sequence[Any]) -> bool:
    """Return True if a row of `_COLUMNS` matches its checksums."""
    order, number, count, expires, death, head, body, sum, count_sum = row
    return (checksum(order, number, expires, death, head, body), checksum(order, count)) == (sum, count_sum)


def _restored(row: Sequence[Any], queues: dict[int, tuple[str, str]], now: float, damaged: bool) -> RestoredMessage:
    """Decode a row. Raises LookupError for one of an unknown queue, and TypeError or ValueError for one that cannot be
    read at all. Only queue, head and body of a damaged one are used."""
    order, number, count, expires, death, head, body = row[:7]
    space, name = queues[number]
    if not (isinstance(head, bytes) and isinstance(body, bytes)):
        raise TypeError
    if damaged:
        if not 0 < order < MAX_ORDER:
            raise ValueError
        return RestoredMessage(space, name, number, order, 0, inf, None, head, body, damaged=True)
    if not isinstance(count, int):
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
