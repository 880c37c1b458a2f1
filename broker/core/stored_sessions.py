"""Table of subscribers' sessions in the store.

A damaged row costs that session only, which its peer can establish again. The wire that owns the sessions validates
their content.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from math import isfinite
from typing import Any

from broker.core.checksums import summed
from broker.core.model import KnownSession

TABLE = """
CREATE TABLE session (
    identity BLOB PRIMARY KEY, key TEXT NOT NULL, address TEXT NOT NULL, ttl REAL NOT NULL, version BLOB,
    topics TEXT NOT NULL
);
"""
"""``topics`` is an array in JSON, in which each character represents one byte."""

SUMS = """
ALTER TABLE session ADD COLUMN sum INTEGER;
UPDATE session SET sum = checksum(
    identity, CAST(key AS BLOB), CAST(address AS BLOB), ttl, version, CAST(topics AS BLOB)
);
"""
"""The step to the tables with checksums."""

COLUMNS = "identity, key, address, ttl, version, topics, sum"


def write(connection: sqlite3.Connection, rows: Sequence[KnownSession], gone: Sequence[bytes]) -> None:
    """Store these sessions, and delete those with the identities ``gone``."""
    connection.executemany(
        "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?)",
        [summed(*_row(session)) for session in rows],
    )
    connection.executemany("DELETE FROM session WHERE identity = ?", [(identity,) for identity in gone])


def _row(session: KnownSession) -> tuple[Any, ...]:
    s = session
    topics = json.dumps([topic.decode("latin-1") for topic in s.topics])
    return s.identity, s.key, s.address, float(s.ttl), s.version, topics


def decode(identity: Any, key: Any, address: Any, ttl: Any, version: Any, topics: Any) -> KnownSession:
    """Decode a row. Raises a built-in exception for one that this module did not write."""
    if not (isinstance(identity, bytes) and isinstance(key, str) and isinstance(address, str)):
        raise TypeError
    if not (isinstance(ttl, float) and isfinite(ttl) and ttl >= 0 and isinstance(version, bytes | None)):
        raise TypeError
    names = json.loads(topics)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError
    return KnownSession(identity, key, address, ttl, version, tuple(name.encode("latin-1") for name in names))
