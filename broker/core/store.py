"""Store of the persistent state, an SQLite database in the state directory (`broker.core.database`).

Rules:
- One broker per state directory: an exclusive lock on the file ``lock``, which contains the broker's process id. The
  kernel releases it when the process ends, so there is no stale lock.
- Every method writes one transaction, which is durable when it returns.
- The counter of provider ids only rises, until `Store.close` sets it to the exact next id.
- The directory is private (0700), since the database contains secrets (`Auth.code`).
- A damaged database is set aside, and the broker begins with an empty one: peers register again, and ids are above all
  that were issued (`broker.core.recorder`). A damaged row is set aside in the database, and the others are used.
- Peers of damaged sessions establish these again. The wire that owns the sessions validates their content.

The file is longer than others: it has all tables of one database, with the steps between their versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, TypeVar

import attrs

from broker.blocking import blocking
from broker.core.damage import DAMAGED_ROWS, Damage, checksum, kept_rows, left_aside, summed
from broker.core.database import (
    Database,
    Design,
    StateDamaged,
    StateFull,
    StateInUse,
    set_rows_aside,
    transact,
    without_sums,
)
from broker.core.disk import DiskReserve, is_full
from broker.core.last_values import size_of
from broker.core.model import (
    DESCRIPTIONS,
    MAX_NAMED,
    NOBODY,
    Auth,
    KnownSession,
    LastValue,
    Owner,
    Provider,
    PublishedHeaders,
    Service,
    Snapshot,
    Verified,
    description,
)

T = TypeVar("T")

DATABASE = "elkobroker.sqlite3"
LOCK = "lock"

STEPS = (
    """
CREATE TABLE counter (only INTEGER PRIMARY KEY CHECK (only = 1), next_provider INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 1);
CREATE TABLE provider (id INTEGER PRIMARY KEY, described TEXT NOT NULL);
CREATE TABLE launcher (name TEXT PRIMARY KEY, switched_on INTEGER NOT NULL);
""",
    # ``topics`` is an array in JSON, in which each character represents one byte.
    """
CREATE TABLE session (
    identity BLOB PRIMARY KEY, key TEXT NOT NULL, address TEXT NOT NULL, ttl REAL NOT NULL, version BLOB,
    topics TEXT NOT NULL
);
""",
    """
CREATE TABLE cluster (identity TEXT PRIMARY KEY, memory TEXT NOT NULL);
""",
    f"""
ALTER TABLE counter ADD COLUMN sum INTEGER;
ALTER TABLE provider ADD COLUMN sum INTEGER;
ALTER TABLE launcher ADD COLUMN sum INTEGER;
ALTER TABLE cluster ADD COLUMN sum INTEGER;
ALTER TABLE session ADD COLUMN sum INTEGER;
UPDATE counter SET sum = checksum(next_provider);
UPDATE provider SET sum = checksum(id, CAST(described AS BLOB));
UPDATE launcher SET sum = checksum(CAST(name AS BLOB), switched_on);
UPDATE cluster SET sum = checksum(CAST(identity AS BLOB), CAST(memory AS BLOB));
UPDATE session SET sum = checksum(
    identity, CAST(key AS BLOB), CAST(address AS BLOB), ttl, version, CAST(topics AS BLOB)
);
{DAMAGED_ROWS}
""",
    """
CREATE TABLE last_value (
    space TEXT, topic BLOB, described TEXT NOT NULL, tail BLOB NOT NULL, body BLOB NOT NULL, sum INTEGER,
    PRIMARY KEY (space, topic)
);
""",
)
"""Migrations: the tables of version 1, then the step to each further version."""

SCHEMA = len(STEPS)
"""Version of the tables, in ``PRAGMA user_version``."""

SESSIONS_SINCE = 2
"""First version with the table of sessions."""

CLUSTER_SINCE = 3
"""First version with the table of memberships in clusters."""

SUMS_SINCE = 4
"""First version with checksums."""

VALUES_SINCE = 5
"""First version with the table of last values."""

_DESIGN = Design(DATABASE, STEPS, "Peers then register again, and launchers are switched as configured")

_COLUMNS = {
    "counter": "next_provider, sum",
    "provider": "id, described, sum",
    "launcher": "name, switched_on, sum",
    "session": "identity, key, address, ttl, version, topics, sum",
    "cluster": "identity, memory, sum",
    "last_value": "space, topic, described, tail, body, sum",
}

MISMATCH = "does not match its checksum"
"""The reason for which a damaged row is set aside."""

VERIFIED_ROWS = 500
"""Rows that one step of a verification reads: half a megabyte of usual providers."""

VERIFIED_VALUES = 20
"""Rows that one step of a verification of last values reads: each may have megabytes."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""ASCII only: a label may contain a lone surrogate, from an escape in a peer's JSON, which UTF-8 cannot encode and
which would fail the write."""


class Store:
    """Store of the persistent state: provider ids, providers, sessions of subscribers, switches of launchers, last
    values of topics.

    It is an SQLite database in ``directory``. ``now`` is the clock, in seconds since the epoch. Methods block on the
    disk, and any thread may call them. Each write is one transaction, which is durable when its method returns: all of
    it, or nothing, which raises `broker.core.database.StateError`.
    """

    def __init__(self, directory: str, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._now = now
        self._found: list[Damage] = []
        self._database = Database(directory, _DESIGN)
        self._reserve = DiskReserve(directory)
        self._lock: int | None = None

    def open(self) -> Snapshot:
        """Take the lock, create or migrate the database, and return its content.

        A damaged database is set aside first. Raises `StateInUse`, `StateFull` or another `StateUnusable`; then nothing
        is held, and the existing content is unchanged.
        """
        try:
            self._hold()
            self._found += left_aside(self._directory)
            try:
                snapshot = self._database.open(self._read_and_tidy)
            except StateDamaged as error:
                path = self._database.set_aside(self._now())
                self._found.append(
                    Damage(
                        self._database.path,
                        f"it is kept as {path}, and an empty one was created; peers register again ({error.how})",
                        files=1,
                    )
                )
                snapshot = self._database.open(self._read_and_tidy)
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
            return self._database.look(lambda connection: self._read(connection)[0], Snapshot(1, [], {}))
        except BaseException:
            self._release()
            raise

    def reserve(self, next_provider: int) -> None:
        """Store that provider ids below this one may be in use. Never lowers the number."""
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
        described = [summed(row.id, _encode(_describe(row))) for row in rows]
        present = [summed(*_session_row(session)) for session in sessions]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO provider VALUES (?, ?, ?)", described)
            connection.executemany("DELETE FROM provider WHERE id = ?", [(id,) for id in gone])
            connection.executemany("INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", present)
            connection.executemany("DELETE FROM session WHERE identity = ?", [(each,) for each in sessions_gone])
            _raise_counter(connection, next_provider)

        self._write(work)

    def switch(self, name: str, on: bool) -> None:
        """Store the switch of a launcher."""
        row = summed(name, int(on))
        self._write(lambda connection: connection.execute("INSERT OR REPLACE INTO launcher VALUES (?, ?, ?)", row))

    def remember_cluster(self, identity: str, memory: str) -> None:
        """Store the saved state of this broker's membership in a cluster."""
        row = summed(identity, memory)
        self._write(lambda connection: connection.execute("INSERT OR REPLACE INTO cluster VALUES (?, ?, ?)", row))

    def record_cluster(self, changes: Mapping[str, str | None]) -> None:
        """Store rows of the record of a cluster by their identities, and with None delete them."""
        present = [summed(identity, text) for identity, text in changes.items() if text is not None]
        gone = [(identity,) for identity, text in changes.items() if text is None]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO cluster VALUES (?, ?, ?)", present)
            connection.executemany("DELETE FROM cluster WHERE identity = ?", gone)

        self._write(work)

    def record_values(self, changes: Mapping[tuple[str, bytes], LastValue | None]) -> None:
        """Store last values by the names of their namespace and topic, and with None delete them. Raises `StateFull`
        rather than using the reserve of the disk."""
        present = [summed(*_value_row(*key, value)) for key, value in changes.items() if value is not None]
        gone = [key for key, value in changes.items() if value is None]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO last_value VALUES (?, ?, ?, ?, ?, ?)", present)
            connection.executemany("DELETE FROM last_value WHERE space = ? AND topic = ?", gone)

        grown = sum(value.size for value in changes.values() if value is not None)
        self._write(work, grown if present else None)

    def found(self) -> list[Damage]:
        """Return the findings of damage since the last call."""
        found, self._found = self._found, []
        return found

    def verify(self) -> Iterator[Verified]:
        """Compare all rows with their checksums, and yield the result of each piece. Nothing is changed."""
        (aside,) = self._database.read(lambda connection: connection.execute("SELECT count(*) FROM damaged").fetchone())
        yield Verified(aside=aside)
        for table in _COLUMNS:
            last = -(2**63)
            while rows := self._database.read(partial(_piece, table, last)):
                last = rows[-1][0]
                bad = [f"row {id} of the table {table}" for id, *row, sum in rows if checksum(*row) != sum]
                yield Verified(len(rows), len(bad), bad[:MAX_NAMED])

    def close(self, next_provider: int) -> None:
        """End a clean run: store the exact next id and release the directory, even if storing fails. No-op if not
        open."""
        try:
            if self._database.is_open:
                self._database.write(
                    lambda connection: connection.execute(
                        "INSERT OR REPLACE INTO counter VALUES (1, ?, ?)", summed(next_provider)
                    )
                )
        finally:
            self._release()

    # internal

    def _write(self, work: Callable[[sqlite3.Connection], object], grows: int | None = None) -> None:
        if self._lock is None and not self._database.is_open:
            with contextlib.suppress(StateFull):
                self._hold()
        self._database.write(work, grows)

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

    def _read_and_tidy(self, connection: sqlite3.Connection) -> Snapshot:
        """Read the content, and set damaged rows aside."""
        snapshot, damaged = self._read(connection)

        def tidy(connection: sqlite3.Connection) -> None:
            for table, rows in damaged.items():
                set_rows_aside(connection, table, _COLUMNS[table], rows, self._now())

        if damaged:
            transact(connection, tidy)
            for rows in damaged.values():
                self._found.append(kept_rows(f"{len(rows)} rows of {self._database.path}", rows, "used"))
        return snapshot

    def _read(self, connection: sqlite3.Connection) -> tuple[Snapshot, dict[str, list[tuple[int, str]]]]:
        """Return the content, and the damaged rows of each table, each with the reason."""
        # On a full disk a database of an older version is read without migration.
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        has_sums = version >= SUMS_SINCE
        damaged: dict[str, list[tuple[int, str]]] = {}

        def rows(table: str, decode: Callable[..., T], failure: str = MISMATCH) -> list[T]:
            """Return the decoded rows of a table, in the order in which they were stored, without damaged ones.

            ``failure`` is the reason for one that ``decode`` fails on: by default a column has another type, which its
            checksum may not show.
            """
            columns = _COLUMNS[table] if has_sums else without_sums(_COLUMNS[table])
            found = []
            for id, *row, sum in connection.execute(f"SELECT rowid, {columns} FROM {table} ORDER BY rowid"):
                reason = MISMATCH
                if not has_sums or checksum(*row) == sum:
                    try:
                        found.append(decode(*row))
                        continue
                    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                        reason = failure
                damaged.setdefault(table, []).append((id, f"{table} {id} {reason}"))
            return found

        counters = [number for number in rows("counter", lambda number: number) if isinstance(number, int)]
        providers = rows("provider", lambda id, text: _provider(id, json.loads(text)), "cannot be understood")
        launchers = dict(rows("launcher", lambda name, on: (str(name), bool(on))))
        sessions = rows("session", _session) if version >= SESSIONS_SINCE else ()
        cluster = dict(rows("cluster", lambda *row: row)) if version >= CLUSTER_SINCE else {}
        values = dict(rows("last_value", _last_value)) if version >= VALUES_SINCE else {}
        # Without its row the counter begins at 1: the recorder issues ids that are far above, by the clock.
        next_provider = max([*counters, *(provider.id + 1 for provider in providers)], default=1)
        return Snapshot(next_provider, providers, launchers, tuple(sessions), cluster, values), damaged

    def _release(self) -> None:
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _raise_counter(connection: sqlite3.Connection, next_provider: int) -> None:
    (before,) = connection.execute("SELECT next_provider FROM counter").fetchone() or (1,)
    if next_provider > before:
        connection.execute("INSERT OR REPLACE INTO counter VALUES (1, ?, ?)", summed(next_provider))


def _piece(table: str, last: int, connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Return the next rows of a table, each behind its rowid."""
    select = f"SELECT rowid, {_COLUMNS[table]} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
    limit = VERIFIED_VALUES if table == "last_value" else VERIFIED_ROWS
    return connection.execute(select, (last, limit)).fetchall()


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
                **s.descriptions,
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
                auth=_auth(s["auth"]),
                **_descriptions(s),
                # Rows of older versions lack these two.
                info=_optional(s.get("info")),
                lasting=_flag(s.get("lasting", False)),
            )
            for s in value["services"]
        ),
        owner=_owner(value.get("owner")),  # which rows of older versions lack
    )


def _descriptions(value: Any) -> dict[str, Any]:
    return {name: description(name, value[name]) for name in DESCRIPTIONS if name in value}


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


def _session_row(session: KnownSession) -> tuple[Any, ...]:
    s = session
    topics = json.dumps([topic.decode("latin-1") for topic in s.topics])
    return s.identity, s.key, s.address, float(s.ttl), s.version, topics


def _session(identity: Any, key: Any, address: Any, ttl: Any, version: Any, topics: Any) -> KnownSession:
    """Decode a row. Raises a built-in exception for one that this module did not write."""
    if not (isinstance(identity, bytes) and isinstance(key, str) and isinstance(address, str)):
        raise TypeError
    if not (isinstance(ttl, float) and isfinite(ttl) and ttl >= 0 and isinstance(version, bytes | None)):
        raise TypeError
    return KnownSession(identity, key, address, ttl, version, tuple(_bytes_of(json.loads(topics))))


def _bytes_of(names: Any) -> Iterator[bytes]:
    """Decode an array in JSON in which each character represents one byte."""
    if not isinstance(names, list):
        raise TypeError
    for name in names:
        yield _text(name).encode("latin-1")


def _value_row(space: str, topic: bytes, value: LastValue) -> tuple[Any, ...]:
    described = {
        "headers": [header.decode("latin-1") for header in value.headers],
        "pieces": [len(piece) for piece in value.body],
        "stamp": value.stamp,
        "payer": value.payer,
        "retained": value.retained,
    }
    return space, topic, _encode(described), value.headers.tail, b"".join(value.body)


def _last_value(space: Any, topic: Any, described: Any, tail: Any, body: Any) -> tuple[tuple[str, bytes], LastValue]:
    """Decode a row. Raises a built-in exception for one that this module did not write."""
    if not (isinstance(space, str) and all(isinstance(each, bytes) for each in (topic, tail, body))):
        raise TypeError
    known, pieces, begin = json.loads(described), [], 0
    for length in known["pieces"]:
        pieces.append(body[begin : begin + length])
        begin += length
    if begin != len(body):
        raise ValueError
    headers = PublishedHeaders(_bytes_of(known["headers"]))
    headers.tail, headers.retain, headers.payer = tail, _flag(known["retained"]), _text(known["payer"])
    size = size_of(topic, headers, len(body), len(pieces))
    return (space, topic), LastValue(headers, tuple(pieces), float(known["stamp"]), headers.payer, headers.retain, size)
