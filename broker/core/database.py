"""An SQLite database of the broker in its state directory: how it is opened, written, and kept usable on a full disk.

Rules:
- Each write is one transaction, on the disk when it returns (write-ahead log, synchronous=FULL): a broker killed at any
  moment finds at its next start all that was acknowledged, and of what was being written all or nothing.
- A database whose disk is full is not opened (`StateFull`). It can be read even so (`Database.look`); then each write
  tries to open it first.
- A write that finds the disk full gives up the reserve (`broker.core.disk_reserve`), has the write-ahead log copied
  into the database, so that the log's room is used again, and is tried once more. A write that would fill the disk does
  not: it is refused until there is room besides the reserve, or in the database itself. Until then each write has the
  log copied, and a database that is nearly empty is made small.
- The database holds secrets: file 0600. Content that cannot be understood is never changed or deleted; the error says
  how to move it away.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import attrs
from twisted.logger import Logger

from broker.core.disk_reserve import DiskReserve, is_full

BUSY_SECONDS = 1.0
"""Seconds that a write waits for another process that holds the database (an operator's ``sqlite3``). Short, because
the reactor thread may be waiting too."""

SMALL_BYTES = 4 * 1024 * 1024
"""A database with no more than this in it, and as much that is free, is written again on a full disk, in some tens of
milliseconds, so that its file becomes small."""

SPARE_BYTES = 1024 * 1024
"""Free pages of a full database that stay free when it takes something: each row takes a little more than its bytes."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

T = TypeVar("T")


class StateError(Exception):
    """The state directory cannot be used; the text tells a person why, and what to do."""


class StateInUse(StateError):
    """Another broker has the state directory."""


class StateUnusable(StateError):
    """The state directory or its database cannot be read, written or understood."""


class StateFull(StateUnusable):
    """The disk of the state directory is full. It may have room again at any time."""


@attrs.frozen
class Design:
    """The design of a database. ``steps`` make each version of its tables out of the one before, the first of nothing.

    ``then`` completes the advice to move it away: what is lost by that. ``log_bytes`` is the length to which the
    write-ahead log is cut back. ``cheap_deletes`` has deleted content stay in free pages, where SQLite is built to
    overwrite it: else taking it out needs as much of the log as putting it in.
    """

    name: str
    steps: tuple[str, ...]
    then: str
    log_bytes: int | None = None
    cheap_deletes: bool = False

    @property
    def schema(self) -> int:
        """The version of the tables, kept in ``PRAGMA user_version``."""
        return len(self.steps)


class Database:
    """The database of that design in ``directory``. Its methods block on the disk; any thread may call them."""

    log = Logger()

    def __init__(self, directory: str, design: Design) -> None:
        self._directory = directory
        self._design = design
        self.path = os.path.join(directory, design.name)
        self._reserve = DiskReserve(directory)
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._late = False
        """It was read from a full disk, and is to be opened by the next write."""
        self._tight = False
        """The disk was full, and the reserve is not there again."""

    def open(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Make what is not there yet, and return what ``read`` does.

        Raises `StateUnusable`, where only room is lacking `StateFull`; then nothing that was there has changed.
        """
        with self._mutex:
            try:
                connection = self._opened()
                try:
                    found = read(connection)
                except BaseException:
                    connection.close()
                    raise
            except (sqlite3.Error, OSError) as error:
                raise self.unusable(error) from error
            self._connection = connection
            return found

    def look(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Read it from a full disk, and have writes open it from now on. Returns ``nothing`` if there is none yet.

        ``read`` must not write. Raises `StateUnusable`.
        """
        with self._mutex:
            try:
                found = nothing
                if os.path.exists(self.path):
                    try:
                        # Then SQLite needs no shared memory, which is a file of 32 KiB.
                        found = self._look("EXCLUSIVE", read, nothing)
                    except sqlite3.OperationalError as error:
                        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                            raise
                        found = self._look("NORMAL", read, nothing)  # some other process has made that file
            except (sqlite3.Error, OSError) as error:
                raise self.unusable(error) from error
            self._late = True
            return found

    def write(self, work: Callable[[sqlite3.Connection], object], grows: int | None = None) -> None:
        """Do ``work`` in one transaction: all of it, or nothing, which raises `StateUnusable`.

        ``grows`` is by how many bytes the database grows, where that may be without end. None is for what makes room,
        or needs little: it may use the reserve.
        """
        with self._mutex:
            try:
                connection = self._connected()
                if grows is not None and not self._may_grow(connection, grows):
                    raise StateFull(f"the disk is full: the database {self.path} cannot grow")
                try:
                    _transact(connection, work)
                except sqlite3.Error as error:
                    if not is_full(error, self._directory):
                        raise
                    self._tight = True
                    if grows is not None:
                        raise
                    self._give_up_reserve()
                    _checkpoint(connection)
                    _transact(connection, work)
                if self._tight:
                    self._loosen(connection)
            except (sqlite3.Error, OSError) as error:
                raise self.unusable(error) from error

    def probe(self, grows: int) -> None:
        """Write something that changes nothing. Raises `StateUnusable` where a write that grows by so much would."""
        self.write(lambda connection: connection.execute(f"PRAGMA user_version = {self._design.schema}"), grows)

    def close(self) -> None:
        """The end. Harmless when not open."""
        with self._mutex:
            self._late = False
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def is_open(self) -> bool:
        """It can be written, as far as is known."""
        return self._connection is not None

    def unusable(self, error: sqlite3.Error | OSError) -> StateUnusable:
        """The error to raise for one of SQLite or the system."""
        if is_full(error, self._directory):
            return StateFull(f"the disk is full: the database {self.path} cannot be used: {error}")
        if isinstance(error, OSError):
            if isinstance(error, (FileExistsError, NotADirectoryError)):
                return StateUnusable(f"the state directory {self._directory} is not a directory; give another one")
            return StateUnusable(
                f"the state directory {self._directory} cannot be used: {error.strerror} "
                f"({error.filename or self._directory}); give another one, or make it usable for user {os.geteuid()}"
            )
        # the primary code is in the low byte; errors that Python itself raises have none
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            return self.damaged(str(error))
        return StateUnusable(f"the database {self.path} cannot be used: {error}")

    def damaged(self, how: str) -> StateUnusable:
        """The error to raise where it has what was never written."""
        return StateUnusable(
            f"the database {self.path} is damaged ({how}); to keep it and begin with an empty one, {self._move_away()}"
        )

    # inside

    def _look(self, locking: str, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        connection = sqlite3.connect(f"file:{quote(self.path)}?mode=rw", BUSY_SECONDS, uri=True)
        with contextlib.closing(connection):
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
        """Open it, with one more try without the reserve if the disk is full."""
        try:
            return self._connect()
        except (sqlite3.Error, OSError) as error:
            if not (is_full(error, self._directory) and self._give_up_reserve()):
                raise
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        # SQLite would create the file with the umask's mode; the files that it keeps beside it take over this one's.
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_mode & 0o077:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
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
        """Returns whether there is room now that was not there before."""
        self._tight = True
        released = self._reserve.release()
        if released:
            self.log.warn("the disk of {directory} is full: its reserve is used now", directory=self._directory)
        return released

    def _check(self, connection: sqlite3.Connection) -> int:
        """The version of our tables, 0 if there is nothing yet. Raises `StateUnusable` for anything else."""
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
        """Give room back to the disk after a write, and take the reserve again if there is enough."""
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


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _transact(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _checkpoint(connection: sqlite3.Connection) -> None:
    """Have the write-ahead log copied into the database, as far as there is room for it. It keeps its own room."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
