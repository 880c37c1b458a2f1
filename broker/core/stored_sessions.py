"""Table of subscribers' sessions in the store.

A row that cannot be decoded costs that session only, which its peer can establish again: the row is deleted, and the
log has the number of such rows. The wire that owns the sessions validates their content.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

from twisted.logger import Logger

from broker.core.model import KnownSession

TABLE = """
CREATE TABLE session (
    identity BLOB PRIMARY KEY, key TEXT NOT NULL, address TEXT NOT NULL, ttl REAL NOT NULL, version BLOB,
    topics TEXT NOT NULL
);
"""
"""``topics`` is an array in JSON, in which each character represents one byte."""

_log = Logger()


def write(connection: sqlite3.Connection, rows: Sequence[KnownSession], gone: Sequence[bytes]) -> None:
    """Store these sessions, and delete those with the identities ``gone``."""
    connection.executemany(
        "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?)",
        [
            (s.identity, s.key, s.address, s.ttl, s.version, json.dumps([t.decode("latin-1") for t in s.topics]))
            for s in rows
        ],
    )
    connection.executemany("DELETE FROM session WHERE identity = ?", [(identity,) for identity in gone])


def read(connection: sqlite3.Connection) -> tuple[KnownSession, ...]:
    """Return all sessions, in the order in which they were stored."""
    known: list[KnownSession] = []
    malformed: list[int] = []
    for id, *row in connection.execute(
        "SELECT rowid, identity, key, address, ttl, version, topics FROM session ORDER BY rowid"
    ).fetchall():
        try:
            known.append(_session(*row))
        except (ValueError, TypeError, RecursionError):
            malformed.append(id)
    if malformed:
        _log.warn("{count} stored sessions cannot be understood, and are not restored", count=len(malformed))
        with suppress(sqlite3.Error):  # on a read-only or full disk the next start tries again
            connection.executemany("DELETE FROM session WHERE rowid = ?", [(id,) for id in malformed])
    return tuple(known)


def _session(identity: Any, key: Any, address: Any, ttl: Any, version: Any, topics: Any) -> KnownSession:
    """Decode a row. Raises a built-in exception for one that this module did not write."""
    if not (isinstance(identity, bytes) and isinstance(key, str) and isinstance(address, str)):
        raise TypeError
    if not (isinstance(ttl, float) and isfinite(ttl) and ttl >= 0 and isinstance(version, bytes | None)):
        raise TypeError
    names = json.loads(topics)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError
    return KnownSession(identity, key, address, ttl, version, tuple(name.encode("latin-1") for name in names))
