"""Store of the persistent state, an SQLite database in the state directory (`broker.core.database`).

Rules:
- One broker per state directory: an exclusive lock on the file ``lock``, which contains the broker's process id. The
  kernel releases it when the process ends, so there is no stale lock.
- Every method writes one transaction, which is durable when it returns.
- The counter of provider ids only rises, until `Store.close` sets it to the exact next id.
- The directory is private (0700), since the database contains secrets (`Auth.code`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from zope.interface import implementer

from broker.blocking import blocking
from broker.core import stored_sessions
from broker.core.database import Database, Design, StateFull, StateInUse
from broker.core.disk_reserve import DiskReserve, is_full
from broker.core.interfaces import IStore
from broker.core.model import NOBODY, Auth, KnownSession, Owner, Provider, Service, Snapshot

DATABASE = "elkobroker.sqlite3"
LOCK = "lock"


STEPS = (
    """
CREATE TABLE counter (only INTEGER PRIMARY KEY CHECK (only = 1), next_provider INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 1);
CREATE TABLE provider (id INTEGER PRIMARY KEY, described TEXT NOT NULL);
CREATE TABLE launcher (name TEXT PRIMARY KEY, switched_on INTEGER NOT NULL);
""",
    stored_sessions.TABLE,
    """
CREATE TABLE cluster (identity TEXT PRIMARY KEY, memory TEXT NOT NULL);
""",
)
"""Migrations: the tables of version 1, then the step to each further version."""

SCHEMA = len(STEPS)
"""Version of the tables, in ``PRAGMA user_version``."""

SESSIONS_SINCE = 2
"""First version with the table of sessions."""

CLUSTER_SINCE = 3
"""First version with the table of memberships in clusters."""

_DESIGN = Design(DATABASE, STEPS, "Provider ids then begin at 1 again, and launchers are switched as configured")

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""ASCII only: a label may contain a lone surrogate, from an escape in a peer's JSON, which UTF-8 cannot encode and
which would fail the write."""


@implementer(IStore)
class Store:
    """`IStore` in an SQLite database in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._database = Database(directory, _DESIGN)
        self._reserve = DiskReserve(directory)
        self._lock: int | None = None

    def open(self) -> Snapshot:
        """Take the lock, create or migrate the database, and return its content.

        Raises `StateInUse`, `StateFull` or another `StateUnusable`; then nothing is held, and the existing content is
        unchanged.
        """
        try:
            self._hold()
            snapshot = self._database.open(self._read)
        except BaseException:
            self._release()
            raise
        self._reserve.take()
        return snapshot

    def look(self) -> Snapshot:
        """Take the lock, and return the content without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the database first. Raises `StateInUse` or `StateUnusable`,
        with nothing held.
        """
        try:
            with contextlib.suppress(StateFull):  # no room even for the lock or the directory
                self._hold()
            return self._database.look(self._read, Snapshot(1, [], {}))
        except BaseException:
            self._release()
            raise

    def reserve(self, next_provider: int) -> None:
        """Store that provider ids below this one may be in use."""
        self._write(lambda connection: _raise_counter(connection, next_provider))

    def record(
        self,
        rows: Sequence[Provider],
        gone: Sequence[int],
        next_provider: int,
        sessions: Sequence[KnownSession] = (),
        sessions_gone: Sequence[bytes] = (),
    ) -> None:
        """Store these providers with their services and these sessions, delete those with the ids ``gone`` and the
        identities ``sessions_gone``, and `reserve`: all or nothing."""
        described = [(row.id, _encode(_describe(row))) for row in rows]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO provider VALUES (?, ?)", described)
            connection.executemany("DELETE FROM provider WHERE id = ?", [(id,) for id in gone])
            stored_sessions.write(connection, sessions, sessions_gone)
            _raise_counter(connection, next_provider)

        self._write(work)

    def switch(self, name: str, on: bool) -> None:
        """Store the switch of a launcher."""
        self._write(lambda connection: connection.execute("INSERT OR REPLACE INTO launcher VALUES (?, ?)", (name, on)))

    def remember_cluster(self, identity: str, memory: str) -> None:
        """Store the memory of a membership in a cluster."""
        self._write(
            lambda connection: connection.execute("INSERT OR REPLACE INTO cluster VALUES (?, ?)", (identity, memory))
        )

    def close(self, next_provider: int) -> None:
        """End a clean run: store the exact next id and release the directory, even if storing fails. No-op if not
        open."""
        try:
            if self._database.is_open:
                self._database.write(
                    lambda connection: connection.execute("UPDATE counter SET next_provider = ?", (next_provider,))
                )
        finally:
            self._release()

    # internal

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        if self._lock is None and not self._database.is_open:
            with contextlib.suppress(StateFull):
                self._hold()
        self._database.write(work)

    @blocking
    def _hold(self) -> None:
        """Create the directory, and take its lock."""
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            if self._lock is None:
                self._lock = self._take_lock()
        except OSError as error:
            raise self._database.unusable(error) from error

    @blocking
    def _take_lock(self) -> int:
        path = os.path.join(self._directory, LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            try:
                os.write(lock, f"{os.getpid()}\n".encode())
            except OSError as error:
                if not is_full(error, self._directory):  # a lock without a process id still excludes others
                    raise
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

    def _read(self, connection: sqlite3.Connection) -> Snapshot:
        counter = connection.execute("SELECT next_provider FROM counter").fetchone()
        if counter is None or not isinstance(counter[0], int):
            raise self._database.damaged("the counter of provider ids is missing")
        providers = []
        for id, described in connection.execute("SELECT id, described FROM provider ORDER BY id"):
            try:
                providers.append(_provider(id, json.loads(described)))
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                raise self._database.damaged(f"provider {id} cannot be understood") from None
        launchers = {name: bool(on) for name, on in connection.execute("SELECT name, switched_on FROM launcher")}
        # On a full disk a database of an older version is read without migration.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        sessions = stored_sessions.read(connection) if version >= SESSIONS_SINCE else ()
        cluster = dict(connection.execute("SELECT identity, memory FROM cluster")) if version >= CLUSTER_SINCE else {}
        return Snapshot(counter[0], providers, launchers, sessions, cluster)

    def _release(self) -> None:
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _raise_counter(connection: sqlite3.Connection, next_provider: int) -> None:
    connection.execute("UPDATE counter SET next_provider = max(next_provider, ?)", (next_provider,))


def _describe(provider: Provider) -> dict[str, Any]:
    return {
        "label": provider.label,
        "wire": provider.wire,
        "address": provider.address,
        "load": provider.load,
        "heard": provider.heard,
        **({"owner": attrs.asdict(provider.owner)} if provider.owner.name else {}),
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
    """Decode the result of `_describe`. Raises a built-in exception for anything else."""
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
        owner=_owner(value.get("owner")),  # which rows of older versions lack
    )


def _owner(value: Any) -> Owner:
    return NOBODY if value is None else Owner(*(_text(value[field.name]) for field in attrs.fields(Owner)))


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
