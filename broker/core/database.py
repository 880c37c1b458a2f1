"""SQLite database in the state directory: opening, transactions, and operation on a full disk.

Rules:
- Each write is one transaction, durable when it returns (write-ahead log, synchronous=FULL): after a kill at any moment
  the next start finds all acknowledged writes, and of the one in progress all or nothing.
- A database on a full disk is not opened (`StateFull`). It can still be read (`Database.look`); then each write tries
  to open it first.
- A write that finds the disk full releases the reserve (`broker.core.disk`), checkpoints the write-ahead log,
  so that the log's room is reused, and is tried once more. A write that would fill the disk is refused instead, until
  there is room besides the reserve, or in the database itself. Until then each write checkpoints the log, and a
  database that is nearly empty is compacted.
- The database contains secrets: its mode is 0600. Content that cannot be understood is never deleted: either the error
  explains how to move the database away, or the owner sets it aside (`Database.set_aside`).
- Each row carries a checksum (`broker.core.damage`), which SQL can compute by ``checksum(...)``. A row that does not
  match goes to the table ``damaged`` (`set_rows_aside`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sqlite3
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import quote

import attrs
from twisted.logger import Logger

from broker.blocking import blocking
from broker.core.damage import checksum, decoded, set_aside
from broker.core.disk import DiskReserve, is_full

BUSY_SECONDS = 1.0
"""Seconds that a write waits for another process that locks the database (an operator's ``sqlite3``). Short, because
the reactor thread may be waiting too."""

SMALL_BYTES = 4 * 1024 * 1024
"""Threshold of compaction, in bytes: on a full disk, a database with at most this much content and at least as much
free space is vacuumed, in some tens of milliseconds."""

SPARE_BYTES = 1024 * 1024
"""Free pages of a full database that stay free when it takes new rows, in bytes: each row takes a little more than its
content."""

COMPANIONS = ("-wal", "-shm")
"""Suffixes of the files that belong to a database: the write-ahead log, and the memory that connections share."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_FAILURES = (sqlite3.Error, OSError, UnicodeDecodeError)
"""Errors of SQLite and the system. The last one is raised for SQLite's text about a damaged definition of a table."""

_OTHER_TABLES = ("no such table", "no such column", "malformed", "has no column", "values were supplied")
"""Parts of SQLite's texts for tables that differ from those of the version that the database has."""

T = TypeVar("T")


class StateError(Exception):
    """The state directory cannot be used; the text explains the reason and the remedy."""


class StateInUse(StateError):
    """Another broker uses the state directory."""


class StateUnusable(StateError):
    """The state directory or its database cannot be read, written or understood."""


class StateDamaged(StateUnusable):
    """The content of the database was not written by any version of the broker: it was changed afterwards.

    ``how`` is the sign of that.
    """

    def __init__(self, text: str, how: str) -> None:
        super().__init__(text)
        self.how = how


class StateFull(StateUnusable):
    """The disk of the state directory is full. There may be room again at any time."""


@attrs.frozen
class Design:
    """Schema of a database. ``steps`` are its migrations: each makes a version of the tables out of the one before, the
    first out of nothing.

    ``then`` completes the advice to move the database away: the loss that this causes. ``log_bytes`` is the length to
    which the write-ahead log is truncated. ``cheap_deletes`` leaves deleted content in free pages where SQLite's build
    would overwrite it: overwriting needs as much of the log as inserting did.
    """

    name: str
    steps: tuple[str, ...]
    then: str
    log_bytes: int | None = None
    cheap_deletes: bool = False

    @property
    def schema(self) -> int:
        """Version of the tables, in ``PRAGMA user_version``."""
        return len(self.steps)


class Database:
    """Database of a design in ``directory``. The methods block on the disk; any thread may call them."""

    log = Logger()

    def __init__(self, directory: str, design: Design) -> None:
        self._directory = directory
        self._design = design
        self.path = os.path.join(directory, design.name)
        self._reserve = DiskReserve(directory)
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._late = False
        """True after `look`: the next write opens the database."""
        self._tight = False
        """True if the disk was full and the reserve has not been restored yet."""

    @blocking
    def open(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Create or migrate the database, and return the result of ``read``.

        Raises `StateUnusable`, its subclass `StateFull` if only room is lacking; then the existing content is
        unchanged.
        """
        with self._mutex:
            try:
                connection = self._opened()
                try:
                    found = read(connection)
                except BaseException:
                    connection.close()
                    raise
            except _FAILURES as error:
                raise self.unusable(error) from error
            self._connection = connection
            return found

    @blocking
    def look(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Read the database on a full disk, and let later writes open it. Returns ``nothing`` if there is none yet.

        ``read`` must not write. Raises `StateUnusable`.
        """
        with self._mutex:
            try:
                found = nothing
                if os.path.exists(self.path):
                    try:
                        # In exclusive mode SQLite needs no shared memory, which is a file of 32 KiB.
                        found = self._look("EXCLUSIVE", read, nothing)
                    except sqlite3.OperationalError as error:
                        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                            raise
                        found = self._look("NORMAL", read, nothing)  # another process has created that file already
            except _FAILURES as error:
                raise self.unusable(error) from error
            self._late = True
            return found

    @blocking
    def write(self, work: Callable[[sqlite3.Connection], object], grows: int | None = None) -> None:
        """Execute ``work`` in one transaction: all of it, or nothing, which raises `StateUnusable`.

        ``grows`` is the growth of the database in bytes, for writes that may recur without end. None is for writes that
        free room or need little: these may use the reserve.
        """
        with self._mutex:
            try:
                connection = self._connected()
                if grows is not None and not self._may_grow(connection, grows):
                    raise StateFull(f"the disk is full: the database {self.path} cannot grow")
                try:
                    transact(connection, work)
                except sqlite3.Error as error:
                    if not is_full(error, self._directory):
                        raise
                    self._tight = True
                    # A growing write would only fill the room that the reserve frees.
                    if grows is not None:
                        raise
                    self._give_up_reserve()
                    _checkpoint(connection)
                    transact(connection, work)
                if self._tight:
                    self._loosen(connection)
            except _FAILURES as error:
                raise self.unusable(error) from error

    @blocking
    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of ``work``, which must not write. Raises `StateUnusable`."""
        with self._mutex:
            try:
                return work(self._connected())
            except _FAILURES as error:
                raise self.unusable(error) from error

    @blocking
    def set_aside(self, now: float) -> str:
        """Rename the database, which is damaged and not open, so that the next `open` creates another one.

        Returns the new path. ``now`` is in seconds since the epoch. Raises `StateUnusable`.
        """
        with self._mutex:
            try:
                return set_aside(self.path, now, COMPANIONS)
            except OSError as error:
                raise self.unusable(error) from error

    @blocking
    def probe(self, grows: int) -> None:
        """Execute a write that changes nothing. Raises `StateUnusable` if a write with that growth would fail."""
        self.write(lambda connection: connection.execute(f"PRAGMA user_version = {self._design.schema}"), grows)

    @blocking
    def close(self) -> None:
        """Close the database. Idempotent."""
        with self._mutex:
            self._late = False
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def is_open(self) -> bool:
        """True if the database can be written, as far as is known."""
        return self._connection is not None

    def unusable(self, error: Exception) -> StateUnusable:
        """Return the exception for one of `_FAILURES`."""
        if is_full(error, self._directory):
            return StateFull(f"the disk is full: the database {self.path} cannot be used: {error}")
        if isinstance(error, OSError):
            if isinstance(error, (FileExistsError, NotADirectoryError)):
                return StateUnusable(f"the state directory {self._directory} is not a directory; give another one")
            return StateUnusable(
                f"the state directory {self._directory} cannot be used: {error.strerror} "
                f"({error.filename or self._directory}); give another one, or make it usable for user {os.geteuid()}"
            )
        if isinstance(error, UnicodeDecodeError):
            return self.damaged("a text of its structure is not UTF-8")
        # the primary code is in the low byte; errors that Python itself raises have none
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGED or (code == sqlite3.SQLITE_ERROR and any(each in str(error) for each in _OTHER_TABLES)):
            return self.damaged(str(error))
        return StateUnusable(f"the database {self.path} cannot be used: {error}")

    def damaged(self, how: str) -> StateDamaged:
        """Return the exception for content that the broker never wrote."""
        how = " ".join(how.split())  # SQLite's check has several lines
        return StateDamaged(
            f"the database {self.path} is damaged ({how}); to keep it and begin with an empty one, {self._move_away()}",
            how,
        )

    # internal

    @blocking
    def _look(self, locking: str, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        connection = sqlite3.connect(f"file:{quote(self.path)}?mode=rw", timeout=BUSY_SECONDS, uri=True)
        with contextlib.closing(connection):
            _equip(connection)
            connection.execute(f"PRAGMA locking_mode = {locking}")
            return read(connection) if self._check(connection) else nothing

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self._late:
                raise StateUnusable(f"the database {self.path} is not open")
            self._connection = self._opened()
            self._late, self._tight = False, True
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        """Open the database, on a full disk with one more attempt without the reserve."""
        try:
            return self._connect()
        except (sqlite3.Error, OSError) as error:
            if not (is_full(error, self._directory) and self._give_up_reserve()):
                raise
            return self._connect()

    @blocking
    def _connect(self) -> sqlite3.Connection:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        # SQLite would create the file with the umask's mode; its companion files (-wal, -shm) inherit this one's.
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_mode & 0o077:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _equip(connection)
            version = self._check(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA temp_store = MEMORY")
            if self._design.cheap_deletes:
                connection.execute("PRAGMA secure_delete = FAST")
            if self._design.log_bytes is not None:
                connection.execute(f"PRAGMA journal_size_limit = {self._design.log_bytes}")
            design = self._design
            if version < design.schema:
                steps = "".join(design.steps[version:])
                connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {design.schema}; COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_up_reserve(self) -> bool:
        """Release the reserve. Returns True if that made room."""
        self._tight = True
        released = self._reserve.release()
        if released:
            self.log.warn("the disk of {directory} is full: its reserve is used now", directory=self._directory)
        return released

    def _check(self, connection: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 if there are none yet. Raises `StateUnusable` for foreign content."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > self._design.schema:
            raise StateUnusable(
                f"the database {self.path} was written by a newer elkobroker "
                f"(schema {version}, this one knows {self._design.schema}): run that version; or {self._move_away()}"
            )
        (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            raise self.damaged(damage)
        if version < 1:
            # Version 0 is the default of SQLite, so the file may belong to another program.
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables:
                raise StateUnusable(f"the database {self.path} is not one of elkobroker's; {self._move_away()}")
        return max(int(version), 0)

    def _may_grow(self, connection: sqlite3.Connection, bytes: int) -> bool:
        if self._tight:
            self._tight = not self._reserve.take()
        if not self._tight and self._reserve.spares():
            return True
        return _number(connection, "freelist_count") * _number(connection, "page_size") >= bytes + SPARE_BYTES

    def _loosen(self, connection: sqlite3.Connection) -> None:
        """Return room to the disk after a write, and restore the reserve if there is enough."""
        with contextlib.suppress(sqlite3.Error):
            (size,), (pages,), (free,) = (
                connection.execute(f"PRAGMA {what}").fetchone()
                for what in ("page_size", "page_count", "freelist_count")
            )
            if (pages - free) * size <= SMALL_BYTES <= free * size:
                connection.execute("VACUUM")
        _checkpoint(connection)
        self._tight = not self._reserve.take()

    def _move_away(self) -> str:
        directory = shlex.quote(self._directory)
        return f"move it away: (cd {directory} && mkdir -p kept && mv {self._design.name}* kept/). {self._design.then}"


def set_rows_aside(
    connection: sqlite3.Connection, table: str, columns: str, rows: Iterable[tuple[int, str]], now: float
) -> None:
    """Move rows of a table to the table ``damaged``: their rowids, each with a reason. ``columns`` is a list in SQL."""
    literals = " || ', ' || ".join(f"quote({each.strip()})" for each in columns.split(","))
    for id, reason in rows:
        connection.execute(
            f"INSERT INTO damaged (found, source, reason, content) SELECT ?, ?, ?, {literals} FROM {table} "
            "WHERE rowid = ?",
            (now, table, reason, id),
        )
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (id,))


def without_sums(columns: str) -> str:
    """Return a list of columns in SQL for tables of versions without checksums, which are read as they are on a full
    disk: NULL in their place."""
    return re.sub(r"\w*sum\b", "NULL", columns)


def _equip(connection: sqlite3.Connection) -> None:
    """Let rows be compared with their checksums, those with damaged text included."""
    connection.text_factory = decoded
    connection.create_function("checksum", -1, checksum, deterministic=True)


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def transact(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], object]) -> None:
    """Execute ``work`` in one transaction: all of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the write-ahead log into the database, as far as there is room. The log's file keeps its size for reuse."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
