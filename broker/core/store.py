"""What must survive a restart, in one SQLite database in the state directory.

Rules:
- One broker per state directory: an exclusive lock on the file ``lock``, which holds the broker's process id. The
  kernel releases it when the process dies, so there is no stale lock.
- Every method writes one transaction, on disk when it returns: a broker killed at any moment finds at its next start
  all that was acknowledged, and of what was being written all or nothing.
- The counter of provider ids only rises, until `Store.close` sets it to the exact next id.
- The database holds secrets (`Auth.code`): file 0600, directory 0700.
- What cannot be understood is never changed or deleted here; the error says how to move it away.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from broker.core import session_rows
from broker.core.model import Auth, KnownSession, Provider, Service, Snapshot

DATABASE = "elkobroker.sqlite3"
LOCK = "lock"

SCHEMA = 2
"""The version of the tables below, kept in ``PRAGMA user_version``."""

BUSY_SECONDS = 1.0
"""How long a write waits for another process that holds the database (an operator's ``sqlite3``). Short, because the
reactor thread may be waiting too."""

_STEPS = (
    """
CREATE TABLE counter (only INTEGER PRIMARY KEY CHECK (only = 1), next_provider INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 1);
CREATE TABLE provider (id INTEGER PRIMARY KEY, described TEXT NOT NULL);
CREATE TABLE launcher (name TEXT PRIMARY KEY, switched_on INTEGER NOT NULL);
""",
    session_rows.TABLE,
)
"""What makes each version of the tables out of the one before, beginning with version 1."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""ASCII only: a label may hold what UTF-8 cannot, a lone surrogate from a peer's escape, and must not stop a write."""


class StateError(Exception):
    """The state directory cannot be used; the text tells a person why, and what to do."""


class StateInUse(StateError):
    """Another broker has the state directory."""


class StateUnusable(StateError):
    """The state directory or its database cannot be read, written or understood."""


class Store:
    """The database in ``directory``. Its methods block on the disk; any thread may call them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, DATABASE)
        self._mutex = threading.Lock()
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Snapshot:
        """Take the lock, make what is not there yet, and return what was stored.

        Raises `StateInUse` or `StateUnusable`; then nothing is held, and nothing that was there has changed.
        """
        with self._mutex:
            try:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                self._lock = self._take_lock()
                self._connection = self._connect()
                return self._read(self._connection)
            except (sqlite3.Error, OSError) as error:
                self._release()
                raise self._unusable(error) from error
            except BaseException:
                self._release()
                raise

    def reserve(self, next_provider: int) -> None:
        """Note that provider ids below this one may have been given out."""
        with self._transaction() as connection:
            _raise_counter(connection, next_provider)

    def record(
        self,
        rows: Sequence[Provider],
        gone: Sequence[int],
        next_provider: int,
        sessions: Sequence[KnownSession] = (),
        sessions_gone: Sequence[bytes] = (),
    ) -> None:
        """Store these providers with their services and these sessions, forget those with the ids ``gone`` and the
        identities ``sessions_gone``, and reserve: all or none."""
        described = [(row.id, _encode(_describe(row))) for row in rows]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO provider VALUES (?, ?)", described)
            connection.executemany("DELETE FROM provider WHERE id = ?", [(id,) for id in gone])
            session_rows.write(connection, sessions, sessions_gone)
            _raise_counter(connection, next_provider)

    def switch(self, name: str, on: bool) -> None:
        """Note whether the launcher of that name is wanted."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO launcher VALUES (?, ?)", (name, int(on)))

    def close(self, next_provider: int) -> None:
        """The end of a clean run: store the exact next id and release the directory, even if storing fails.

        Harmless when not open.
        """
        if self._connection is None:
            return
        try:
            with self._transaction() as connection:
                connection.execute("UPDATE counter SET next_provider = ?", (next_provider,))
        finally:
            with self._mutex:
                self._release()

    # inside

    def _take_lock(self) -> int:
        path = os.path.join(self._directory, LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise StateInUse(
                f"the state directory {self._directory} is in use by another broker (process {holder}): "
                "stop that one, or give this one a directory of its own"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _connect(self) -> sqlite3.Connection:
        # SQLite would create the file with the umask's mode; the files that it keeps beside it take over this one's.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_mode & 0o077:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

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
        if version < 1:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables:
                raise StateUnusable(f"the database {self._path} is not one of elkobroker's; {self._move_away()}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if version < SCHEMA:
            steps = "".join(_STEPS[max(version, 0) :])
            connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {SCHEMA}; COMMIT;")

    def _read(self, connection: sqlite3.Connection) -> Snapshot:
        counter = connection.execute("SELECT next_provider FROM counter").fetchone()
        if counter is None or not isinstance(counter[0], int):
            raise self._damaged("the counter of provider ids is missing")
        providers = []
        for id, described in connection.execute("SELECT id, described FROM provider ORDER BY id"):
            try:
                providers.append(_provider(id, json.loads(described)))
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                raise self._damaged(f"provider {id} cannot be understood") from None
        launchers = {name: bool(on) for name, on in connection.execute("SELECT name, switched_on FROM launcher")}
        return Snapshot(counter[0], providers, launchers, session_rows.read(connection))

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

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unusable(self, error: sqlite3.Error | OSError) -> StateUnusable:
        if isinstance(error, OSError):
            if isinstance(error, (FileExistsError, NotADirectoryError)):
                return StateUnusable(f"the state directory {self._directory} is not a directory; give another one")
            return StateUnusable(
                f"the state directory {self._directory} cannot be used: {error.strerror} "
                f"({error.filename or self._directory}); give another one, or make it usable for user {os.geteuid()}"
            )
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
            f"move it away: (cd {directory} && mkdir kept && mv {DATABASE}* kept/). "
            "Provider ids then begin at 1 again, and launchers are switched as configured"
        )


def _raise_counter(connection: sqlite3.Connection, next_provider: int) -> None:
    connection.execute("UPDATE counter SET next_provider = max(next_provider, ?)", (next_provider,))


def _describe(provider: Provider) -> dict[str, Any]:
    return {
        "label": provider.label,
        "wire": provider.wire,
        "address": provider.address,
        "load": provider.load,
        "heard": provider.heard,
        "services": [
            {
                "name": s.name,
                "hostport": s.hostport,
                "protocol": s.protocol,
                "label": s.label,
                "auth": s.auth and {"mode": s.auth.mode, "code": s.auth.code, "id": s.auth.id},
                "info": s.info,
                "lasting": s.lasting,
            }
            for s in provider.services
        ],
    }


def _provider(id: int, value: Any) -> Provider:
    """The inverse of `_describe`. Raises one of the built-in errors for anything else."""
    return Provider(
        id=id,
        label=_text(value["label"]),
        wire=_text(value["wire"]),
        address=_text(value["address"]),
        load=float(value["load"]),
        heard=float(value["heard"]),
        services=tuple(
            Service(
                name=_text(s["name"]),
                hostport=_text(s["hostport"]),
                provider=id,
                protocol=_text(s["protocol"]),
                label=_optional(s["label"]),
                auth=_auth(s["auth"]),
                # Rows of older versions lack these two.
                info=_optional(s.get("info")),
                lasting=_flag(s.get("lasting", False)),
            )
            for s in value["services"]
        ),
    )


def _auth(value: Any) -> Auth | None:
    if value is None:
        return None
    return Auth(mode=_text(value["mode"]), code=_optional(value["code"]), id=_optional(value["id"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)
