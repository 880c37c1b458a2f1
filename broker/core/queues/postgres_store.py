"""Store of the durable messages of queues in PostgreSQL, which several brokers share.

Rules:
- A batch is one transaction, durable when `PostgresStore.write` returns (``synchronous_commit`` is never off).
- A queue belongs to the broker that took it last. Each `PostgresStore.take` raises the epoch of the queue, and every
  transaction that writes checks the epochs of its queues and locks them (``FOR SHARE``): after a take, no write of the
  former owner commits. A queue and its dead-letter queues have one epoch.
- If the connection is lost during a write, the whole transaction is executed again over a new connection, which has the
  same effect once or twice. If that fails too, the outcome is unknown (`OutcomeUnknown`).
- Each call has a limit of time, so that a server that is frozen or unreachable blocks a thread for seconds only.
- TTLs are kept by the clock of the server, so that brokers with different clocks agree about them.
- A message has a checksum of all that never changes, and so not of its count. During a rolling upgrade, brokers of the
  version before write counts, and messages without a checksum, which are not compared.

Importing this module needs psycopg, which is installed by the extra ``postgresql``.

The file is longer than others: the SQL statements are beside the methods that execute them.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from time import monotonic, time
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import errors
from psycopg.waiting import Ready, Wait
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.damage import Damage, checksum
from broker.core.database import StateError, StateFull, StateUnusable
from broker.core.model import MAX_NAMED, Verified
from broker.core.queues.queue_interfaces import (
    MAX_ORDER,
    Batch,
    Fenced,
    ISharedQueueStore,
    MessagePage,
    OutcomeUnknown,
    RestoredMessage,
)
from broker.core.queues.queue_messages import Death, living_name

CONNECT_SECONDS = 5
"""Limit of time of one attempt to connect, in seconds: below the patience of a client for a reply."""

STATEMENT_SECONDS = 8.0
"""Limit of time of one statement at the server, in seconds, lock waits included: a batch takes some milliseconds."""

IDLE_SECONDS = 5.0
"""Seconds after which the server aborts a transaction whose broker is silent: a broker that is stopped in the middle of
a write must not keep its locks, for which the next owner waits."""

ANSWER_SECONDS = 10.0
"""Limit of time of one answer of the server, in seconds: beyond `STATEMENT_SECONDS`, so that it is reached only if the
server or the network is gone."""

PIECE_MESSAGES = 500
"""Limit of messages in one piece of `PostgresStore.read`: a few milliseconds of work for the reactor."""

PIECE_BYTES = 4 * 1024 * 1024
"""Limit of bytes in one piece, without its last message."""

_POLL = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}

VERIFIED_ROWS = 20
"""Messages that one step of a verification reads. They are in memory together, and each may have a megabyte."""

_LOCK = 0x656C6B6F
"""Key of the advisory lock that is held while the tables are created or migrated: several brokers may start at once."""

_TABLES = """
CREATE TABLE elkobroker.queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space text NOT NULL, name text NOT NULL,
    epoch bigint NOT NULL, owner text NOT NULL, UNIQUE (space, name)
);
CREATE TABLE elkobroker.message (
    queue bigint NOT NULL REFERENCES elkobroker.queue, dead text NOT NULL, id bigint NOT NULL,
    count integer NOT NULL, expires double precision, death text, head bytea NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (queue, dead, id)
);
"""

_SUMS = """
ALTER TABLE elkobroker.message ADD COLUMN sum bigint;
CREATE TABLE elkobroker.damaged (
    found timestamptz NOT NULL DEFAULT now(), reason text NOT NULL, LIKE elkobroker.message
);
"""

STEPS = (_TABLES, _SUMS)
"""Migrations: the tables of version 1, then the step to each further version."""

SCHEMA = len(STEPS)
"""Version of the tables, in the table ``elkobroker.layout``."""

_TAKE = """
INSERT INTO elkobroker.queue (space, name, epoch, owner) VALUES (%s, %s, 1, %s)
ON CONFLICT (space, name) DO UPDATE SET epoch = queue.epoch + 1, owner = EXCLUDED.owner RETURNING id, epoch
"""

_TAKE_KNOWN = """
UPDATE elkobroker.queue SET epoch = epoch + 1, owner = %s WHERE (space, name) = (%s, %s) RETURNING id, epoch
"""

_HIGHEST = "SELECT coalesce(max(id), 0) FROM elkobroker.message WHERE queue = %s AND id < %s"

_FENCE = "SELECT id, epoch FROM elkobroker.queue WHERE id = ANY(%s::bigint[]) ORDER BY id FOR SHARE"

_INSERT = """
INSERT INTO elkobroker.message (queue, dead, id, count, expires, death, head, body, sum)
SELECT * FROM unnest(
    %s::bigint[], %s::text[], %s::bigint[], %s::integer[], %s::double precision[], %s::text[], %b::bytea[], %b::bytea[],
    %s::bigint[]
)
ON CONFLICT (queue, dead, id) DO UPDATE SET count = EXCLUDED.count, expires = EXCLUDED.expires,
    death = EXCLUDED.death, head = EXCLUDED.head, body = EXCLUDED.body, sum = EXCLUDED.sum
"""

_COUNT = """
UPDATE elkobroker.message AS old SET count = new.count
FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::integer[]) AS new (queue, dead, id, count)
WHERE (old.queue, old.dead, old.id) = (new.queue, new.dead, new.id)
"""

_DELETE = """
DELETE FROM elkobroker.message AS old USING unnest(%s::bigint[], %s::text[], %s::bigint[]) AS gone (queue, dead, id)
WHERE (old.queue, old.dead, old.id) = (gone.queue, gone.dead, gone.id)
"""

_SIZES = """
SELECT dead, id, octet_length(head) + octet_length(body) FROM elkobroker.message
WHERE queue = %s AND (dead, id) > (%s, %s) ORDER BY dead, id LIMIT %s
"""

_READ = """
SELECT dead, id, count, expires, death, head, body, sum, extract(epoch FROM clock_timestamp())::double precision
FROM elkobroker.message WHERE queue = %s AND (dead, id) > (%s, %s) AND (dead, id) <= (%s, %s) ORDER BY dead, id
"""

_SET_ASIDE = """
WITH gone AS (
    DELETE FROM elkobroker.message WHERE queue = %s AND (dead, id) = (%s, %s)
    AND EXISTS (SELECT FROM elkobroker.queue WHERE queue.id = message.queue AND queue.epoch = %s FOR SHARE) RETURNING *
)
INSERT INTO elkobroker.damaged (reason, queue, dead, id, count, expires, death, head, body, sum)
SELECT %s, queue, dead, id, count, expires, death, head, body, sum FROM gone
"""

_VERIFY = """
SELECT space, name, message.dead, message.id, count, expires, death, head, body, sum, queue.id
FROM elkobroker.message JOIN elkobroker.queue ON queue.id = message.queue
WHERE (queue.id, dead, message.id) > (%s, %s, %s) ORDER BY queue.id, dead, message.id LIMIT %s
"""

_RELEASE = """
DELETE FROM elkobroker.queue WHERE id = %s AND epoch = %s
AND NOT EXISTS (SELECT FROM elkobroker.message WHERE message.queue = queue.id)
"""

_NAMES = """
SELECT space, name FROM elkobroker.queue
WHERE EXISTS (SELECT FROM elkobroker.message WHERE message.queue = queue.id) ORDER BY id
"""

T = TypeVar("T")

Column = list[Any]


class _Late(psycopg.OperationalError):
    """The server did not answer in time."""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """Connection whose every exchange with the server has a limit of time."""

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **more: Any) -> T:
        """See `psycopg.Connection.wait`. Raises `_Late`, with the connection closed."""
        end = monotonic() + ANSWER_SECONDS
        try:
            wanted = next(gen)
            poll = select.poll()
            poll.register(self.pgconn.socket, _POLL[wanted])
            while True:
                left = end - monotonic()
                if left <= 0:
                    self.close()  # else the end of a transaction would wait once more
                    raise _Late(f"the server did not answer in {ANSWER_SECONDS:g} seconds")
                events = poll.poll(left * 1000)
                if not events:
                    continue
                mask = events[0][1]
                ready = 0
                # An error or a hangup is found by the read or the write that it makes possible.
                if mask & ~select.POLLOUT:
                    ready |= Ready.R
                if mask & ~select.POLLIN:
                    ready |= Ready.W
                wanted = gen.send(Ready(ready))
                poll.modify(self.pgconn.socket, _POLL[wanted])
        except StopIteration as stop:
            result: T = stop.value
            return result


class _Unit:
    """A queue with its dead-letter queues, which this store has taken."""

    __slots__ = ("epoch", "id")

    def __init__(self, id: int, epoch: int) -> None:
        self.id = id
        self.epoch = epoch


@implementer(ISharedQueueStore)
class PostgresStore:
    """`ISharedQueueStore` in the schema ``elkobroker`` of a PostgreSQL database.

    ``url`` is a connection URL of libpq without a password, which is a separate argument; None: that of libpq's
    password file, if any. ``now`` is the clock, in seconds since the epoch. ``readable`` returns True for a head that
    the wire can read, which an altered one may not be.
    """

    log = Logger()

    def __init__(
        self,
        url: str,
        password: str | None = None,
        now: Callable[[], float] = time,
        readable: Callable[[bytes], bool] = lambda head: True,
    ) -> None:
        self._url = url
        self._password = password
        self._now = now
        self._readable = readable
        self._found: list[Damage] = []
        self._mutex = threading.Lock()
        self._connection: _Connection | None = None
        self._closed = False
        self._checked = False
        """True after the tables have been found to be those of this version."""
        self._offset = 0.0
        """Clock of the server minus that of this broker, in seconds."""
        self._units: dict[tuple[str, str], _Unit] = {}
        """By space and name."""
        self._queues: dict[int, tuple[str, str, str]] = {}
        """Space, name without `DEAD`, and the rest of the name, by the number of the queue."""

    def open(self, now: float) -> list[RestoredMessage]:
        """Connect, and create or migrate the tables. Returns no messages: queues are taken one by one.

        Raises `StateUnusable`. The call is optional: all others connect if there is no connection.
        """
        with self._mutex:
            self._closed = False
            self._attempt(lambda connection: None)
            return []

    def look(self, now: float) -> list[RestoredMessage]:
        """Return no messages: a server that is full is tried again by each call."""
        return []

    def names(self) -> list[tuple[str, str]]:
        """Return space and name of each queue that has messages, without those of dead-letter queues."""
        with self._mutex:
            return self._attempt(lambda connection: [(a, b) for a, b in connection.execute(_NAMES)])

    def take(self, space: str, name: str, owner: str, known: bool = False) -> int | None:
        """See `ISharedQueueStore`."""

        def work(connection: _Connection) -> tuple[_Unit, int] | None:
            if known:
                row = connection.execute(_TAKE_KNOWN, (owner, space, name)).fetchone()
                if row is None:
                    return None
            else:
                row = _one(connection.execute(_TAKE, (space, name, owner)))
            unit = _Unit(*row)
            # In a statement of its own: the first one may have waited for the last write of the former owner.
            (highest,) = _one(connection.execute(_HIGHEST, (unit.id, MAX_ORDER)))
            return unit, highest

        with self._mutex:
            taken = self._attempt(work)
            if taken is None:
                return None
            self._units[space, name], highest = taken
            return highest

    def read(self, space: str, name: str, after: tuple[str, int] | None) -> MessagePage:
        """See `ISharedQueueStore`."""

        def work(connection: _Connection) -> MessagePage:
            unit = self._units[space, name]
            start = after or ("", -1)
            sizes = connection.execute(_SIZES, (unit.id, *start, PIECE_MESSAGES)).fetchall()
            last = start
            total = 0
            for dead, id, size in sizes:
                last = (dead, id)
                total += size
                if total >= PIECE_BYTES:
                    break
            rows = connection.execute(_READ, (unit.id, *start, *last), binary=True).fetchall() if sizes else []
            messages = [(row, self._restored(space, name, row)) for row in rows]
            for row in [row for row, message in messages if message is None]:
                self._set_aside(connection, unit, name, row)
            return MessagePage([message for _, message in messages if message is not None], last if sizes else None)

        with self._mutex:
            if (space, name) not in self._units:
                raise StateUnusable(f"the queue {name} is not taken")
            return self._attempt(work)

    def release(self, space: str, name: str) -> None:
        """See `ISharedQueueStore`."""
        with self._mutex:
            unit = self._units.pop((space, name), None)
            if unit is not None:
                self._attempt(lambda connection: connection.execute(_RELEASE, (unit.id, unit.epoch)))

    def forget(self, space: str, name: str) -> None:
        """See `ISharedQueueStore`."""
        with self._mutex:
            self._units.pop((space, name), None)

    def write(self, batch: Batch) -> None:
        """Write a batch: all of it, or nothing. Raises `StateUnusable`, `OutcomeUnknown`, or `Fenced`."""
        with self._mutex:
            for number, space, name in batch.queues:
                living = living_name(name)
                self._queues[number] = (space, living, name[len(living) :])
            numbers = {row[1] for row in batch.rows} | {each[0] for each in (*batch.counts, *batch.gone)}
            lost = frozenset(number for number in numbers if self._unit(number) is None)
            if lost:
                raise Fenced(lost)
            self._attempt(lambda connection: self._transact(connection, batch, numbers), writes=True)
            for number in batch.queues_gone:
                self._queues.pop(number, None)

    def found(self) -> list[Damage]:
        """See `IQueueStore`."""
        found, self._found = self._found, []
        return found

    def verify(self) -> Iterator[Verified]:
        """See `IQueueStore`. The messages of other brokers' queues are compared, too."""
        count = "SELECT count(*) FROM elkobroker.damaged"
        with self._mutex:
            (aside,) = self._attempt(lambda connection: _one(connection.execute(count)))
        yield Verified(aside=aside)
        last: tuple[Any, ...] = (-1, "", -1)
        while rows := self._rows_after(last):
            bad = [
                f"message {row[3]} of queue {row[1]}{row[2]!r}" for row in rows if not _matches(row[0], row[1], row[2:])
            ]
            yield Verified(len(rows), len(bad), bad[:MAX_NAMED])
            last = (rows[-1][10], rows[-1][2], rows[-1][3])

    def _rows_after(self, last: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the next rows of a verification."""
        values = (*last, VERIFIED_ROWS)
        with self._mutex:
            return self._attempt(lambda connection: connection.execute(_VERIFY, values, binary=True).fetchall())

    def probe(self) -> None:
        """Execute a write that changes nothing. Raises `StateUnusable`."""
        with self._mutex:
            self._attempt(lambda connection: connection.execute("UPDATE elkobroker.layout SET version = version"))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._mutex:
            self._closed = True
            self._disconnect()

    # transactions

    def _unit(self, number: int) -> _Unit | None:
        queue = self._queues.get(number)
        return None if queue is None else self._units.get(queue[:2])

    def _transact(self, connection: _Connection, batch: Batch, numbers: Iterable[int]) -> None:
        units = {number: self._unit(number) for number in numbers}
        wanted = {unit.id: unit.epoch for unit in units.values() if unit is not None}
        with connection.transaction():
            if wanted:
                present = dict(connection.execute(_FENCE, (sorted(wanted),)).fetchall())
                lost = frozenset(
                    number for number, unit in units.items() if unit is None or present.get(unit.id) != unit.epoch
                )
                if lost:
                    raise Fenced(lost)
            with connection.pipeline():
                if batch.rows:
                    connection.execute(_INSERT, self._columns(batch))
                if batch.counts:
                    keys = self._keys((number, order) for number, order, _ in batch.counts)
                    connection.execute(_COUNT, (*keys, [count for _, _, count in batch.counts]))
                if batch.gone:
                    connection.execute(_DELETE, self._keys(batch.gone))

    def _columns(self, batch: Batch) -> tuple[Column, ...]:
        orders, numbers, counts, expires, deaths, heads, bodies = (list(each) for each in zip(*batch.rows, strict=True))
        ids, deads, _ = self._keys(zip(numbers, orders, strict=True))
        due = [None if each is None else each + self._offset for each in expires]
        reasons = [None if each is None else str(each) for each in deaths]
        sums = [
            checksum(*self._queues[number][:2], *row)
            for number, *row in zip(numbers, deads, orders, due, reasons, heads, bodies, strict=True)
        ]
        return ids, deads, orders, counts, due, reasons, heads, bodies, sums

    def _keys(self, pairs: Iterable[tuple[int, int]]) -> tuple[Column, Column, Column]:
        """Return the columns of the primary key, for numbers of queues and orders."""
        ids: Column = []
        deads: Column = []
        orders: Column = []
        for number, order in pairs:
            unit = self._unit(number)
            assert unit is not None
            ids.append(unit.id)
            deads.append(self._queues[number][2])
            orders.append(order)
        return ids, deads, orders

    def _restored(self, space: str, name: str, row: tuple[Any, ...]) -> RestoredMessage | None:
        """Decode a row; None for a damaged one that cannot become a dead letter."""
        dead, order, count, expires, death, head, body, _, now = row
        head, body = bytes(head), bytes(body)
        if living_name(name + dead) != name:
            return None  # an altered suffix: the name would be that of another queue
        if not _matches(space, name, row):
            if not (self._readable(head) and 0 < order < MAX_ORDER):
                return None
            return RestoredMessage(space, name + dead, 0, order, 0, inf, None, head, body, damaged=True)
        try:
            reason = None if death is None else Death(death)
        except ValueError:
            raise self._damaged(f"message {order} of the queue {name} cannot be understood") from None
        seconds = inf if expires is None else expires - now
        return RestoredMessage(space, name + dead, 0, order, count, seconds, reason, head, body)

    def _set_aside(self, connection: _Connection, unit: _Unit, name: str, row: tuple[Any, ...]) -> None:
        dead, order = row[:2]
        reason = f"message {order} of the queue {name}{dead} does not match its checksum, and cannot be read"
        done = connection.execute(_SET_ASIDE, (unit.id, dead, order, unit.epoch, reason))
        if done.rowcount:
            kept = "It is kept in the table elkobroker.damaged, and is not delivered"
            self._found.append(Damage(f"a message in {self._place}", f"{reason}. {kept}", rows=1))

    # the connection

    def _attempt(self, work: Callable[[_Connection], T], writes: bool = False) -> T:
        """Call ``work``, a second time over a new connection if the first one was lost. Raises `StateError`."""
        again = self._connection is not None
        unknown = False
        while True:
            try:
                connection = self._connected()
                try:
                    return work(connection)
                except psycopg.Error:
                    unknown = unknown or connection.closed
                    raise
            except psycopg.Error as error:
                lost = self._connection is None or self._connection.closed or isinstance(error, _Late)
                if lost:
                    self._disconnect()
                if lost and again and not isinstance(error, _Late):
                    again = False
                    continue
                why = self._unusable(error)
                unknown = unknown or isinstance(error, _Late)
                raise OutcomeUnknown(str(why)) if writes and unknown else why from error
            except BaseException:
                if self._connection is not None and self._connection.closed:
                    self._disconnect()
                raise

    def _connected(self) -> _Connection:
        if self._closed:
            raise StateUnusable(f"the store {self._url} is not open")
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = _Connection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            application_name="elkobroker",
            tcp_user_timeout=int(ANSWER_SECONDS * 1000),
            client_encoding="UTF8",
            password=self._password,
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: _Connection) -> None:
        """Set the limits of the session, and check the tables. Raises `StateUnusable` or `psycopg.Error`."""
        for name, seconds in (
            ("statement_timeout", STATEMENT_SECONDS),
            ("lock_timeout", STATEMENT_SECONDS),
            ("idle_in_transaction_session_timeout", IDLE_SECONDS),
        ):
            connection.execute(f"SET {name} = {int(seconds * 1000)}")
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        began = self._now()
        encoding, clock = _one(
            connection.execute(
                "SELECT current_setting('server_encoding'), extract(epoch FROM clock_timestamp())::double precision"
            )
        )
        if encoding != "UTF8":
            raise StateUnusable(f"{self._place} has the encoding {encoding}: create it with ENCODING 'UTF8'")
        self._offset = clock - began
        if not self._checked:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                self._migrate(connection)
            self._checked = True

    def _migrate(self, connection: _Connection) -> None:
        version = 0
        if _one(connection.execute("SELECT to_regclass('elkobroker.layout')"))[0] is not None:
            try:
                rows = connection.execute("SELECT version FROM elkobroker.layout").fetchall()
            except errors.UndefinedColumn:
                rows = []
            if len(rows) != 1:
                raise self._foreign()
            version = rows[0][0]
        else:
            tables = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('elkobroker')"
            if _one(connection.execute(tables))[0]:
                raise self._foreign()
            connection.execute("CREATE SCHEMA IF NOT EXISTS elkobroker")
            connection.execute("CREATE TABLE elkobroker.layout (version integer NOT NULL)")
            connection.execute("INSERT INTO elkobroker.layout VALUES (0)")
        if not isinstance(version, int):
            raise self._foreign()
        if version > SCHEMA:
            raise StateUnusable(
                f"the schema elkobroker of {self._place} was written by a newer elkobroker (version {version}, "
                f"this one knows {SCHEMA}): run that version"
            )
        for step in STEPS[version:]:
            connection.execute(step)
        if version < SCHEMA:
            connection.execute("UPDATE elkobroker.layout SET version = %s", (SCHEMA,))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                connection.close()

    # errors

    @property
    def _place(self) -> str:
        """The database, for operators."""
        parts = urlsplit(self._url)
        return f"the PostgreSQL database {parts.path.strip('/') or 'of that user'} at {parts.netloc or 'this machine'}"

    def _unusable(self, error: psycopg.Error) -> StateError:
        """Return the exception for an error of psycopg."""
        text = " ".join(str(error).split()) or type(error).__name__
        place = self._place
        if isinstance(error, errors.DiskFull):
            return StateFull(f"the disk of {place} is full: {text}")
        if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn | errors.DatatypeMismatch):
            self._checked = False
            return self._damaged(text)
        if isinstance(error, errors.InsufficientPrivilege):
            return StateUnusable(
                f"{place} does not permit what is needed ({text}): GRANT CREATE ON DATABASE to that user, or create "
                "the schema elkobroker and give it to them"
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return StateUnusable(f"{place} cannot be written, since it is a standby or read-only: {text}")
        for sign, remedy in _REMEDIES:
            if sign in text:
                return StateUnusable(f"{place} cannot be used: {remedy} ({text})")
        return StateUnusable(f"{place} cannot be used: {text}")

    def _foreign(self) -> StateUnusable:
        return StateUnusable(
            f"the schema elkobroker of {self._place} has tables that are not elkobroker's; {self._move_away()}"
        )

    def _damaged(self, how: str) -> StateUnusable:
        return StateUnusable(
            f"the schema elkobroker of {self._place} is damaged ({how}); to keep it and begin with an empty one, "
            f"{self._move_away()}"
        )

    def _move_away(self) -> str:
        return "rename it: ALTER SCHEMA elkobroker RENAME TO kept. The durable queues are then empty"


_REMEDIES = (
    ("password authentication failed", "the password is wrong, or the user does not exist"),
    ("no password supplied", "it requires a password: give mtl.queue_store_password_file"),
    ("server does not support SSL", "it offers no TLS, which sslmode requires"),
    ("certificate verify failed", "its certificate is not trusted; see sslrootcert"),
    ("no pg_hba.conf entry", "its pg_hba.conf does not admit this broker"),
    ("does not exist", "the database or the user does not exist; createdb and createuser make them"),
    ("refused", "no server listens there"),
    ("timeout", "it does not answer"),
)
"""Fragments of error texts of libpq, with explanations for operators: it has no codes for failed connections."""


def _matches(space: str, name: str, row: Sequence[Any]) -> bool:
    """Return True if a row matches its checksum, which messages of older versions lack. The row begins with the columns
    of `_READ`."""
    dead, order, _, expires, death, head, body, sum = row[:8]
    return sum is None or checksum(space, name, dead, order, expires, death, bytes(head), bytes(body)) == sum


def _one(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return row
