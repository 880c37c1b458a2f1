"""Store: databases of older versions, damaged rows and damaged databases."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core.damage import checksum, left_aside
from broker.core.database import StateDamaged, StateFull, StateUnusable
from broker.core.model import KnownSession, LastValue, Provider, PublishedHeaders, Service, Snapshot, Verified
from broker.core.store import DATABASE, SCHEMA, STEPS, Store
from tests.core.test_store import SESSIONS
from tests.full_disk import no_room

NOW = 1_764_000_000.0
"""2025-11-24 16:00:00 UTC."""

ASIDE = f"{DATABASE}.damaged-20251124T160000Z"

PROVIDER = Provider(7, "one", "elko", "h:9", 0.25, 1234.5, (Service("bank", "h:1", 7, info="caf\u00e9", lasting=True),))


VALUE = LastValue(PublishedHeaders((b"X-Unit", b"m")), (b"sun",), 1234.5, "", False, 1_186)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    store = Store(str(directory), lambda: NOW)
    yield store
    store.close(1)


def filled(directory: Path, *statements: str, providers: int = 3) -> None:
    """Create a state directory as after a clean stop, then apply foreign changes."""
    store = Store(str(directory), lambda: NOW)
    store.open()
    store.record([attrs.evolve(PROVIDER, id=n) for n in range(1, providers + 1)], [], 501, SESSIONS)
    store.switch("gate", True)
    store.switch("bank", False)
    store.remember_cluster("farm/a", "first")
    store.record_values({("", b"t"): VALUE})
    store.close(501)
    changed(directory, *statements)


def changed(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        database.create_function("checksum", -1, checksum, deterministic=True)
        for statement in statements:
            database.execute(statement)


def asides(directory: Path) -> list[tuple[str, str, bytes]]:
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        return database.execute("SELECT source, reason, CAST(content AS BLOB) FROM damaged ORDER BY id").fetchall()


# older versions


def old(directory: Path, version: int) -> None:
    """Create a database as the program of a version wrote it."""
    directory.mkdir(mode=0o700)
    service = {"name": "bank", "hostport": "h:1", "protocol": "tcp", "label": None, "auth": None}
    row = {"label": "old", "wire": "elko", "address": "h:9", "load": 0.5, "heard": 1.0, "services": [service]}
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        database.executescript("".join(STEPS[: min(version, 3)]))
        database.execute("UPDATE counter SET next_provider = 9")
        database.execute("INSERT INTO provider VALUES (3, ?)", (json.dumps(row),))
        database.execute("INSERT INTO launcher VALUES ('gate', 1)")
        if version >= 2:
            database.execute("INSERT INTO session VALUES (?, 'k', 'h', 30.0, NULL, ?)", (b"node", '["t"]'))
        if version >= 3:
            database.execute("INSERT INTO cluster VALUES ('farm/a', 'first')")
        database.commit()
        database.create_function("checksum", -1, checksum, deterministic=True)
        database.executescript("".join(STEPS[3:version]))
        database.execute(f"PRAGMA user_version = {version}")
        database.commit()


def expected(version: int) -> Snapshot:
    services = (Service("bank", "h:1", 3, info=None, lasting=False),)
    return Snapshot(
        9,
        [Provider(3, "old", "elko", "h:9", 0.5, 1.0, services)],
        {"gate": True},
        (KnownSession(b"node", "k", "h", 30.0, None, (b"t",)),) if version >= 2 else (),
        {"farm/a": "first"} if version >= 3 else {},
    )


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_a_database_of_an_older_version_is_taken_over_and_its_rows_get_checksums(
    directory: Path, store: Store, version: int
) -> None:
    old(directory, version)
    assert store.open() == expected(version)
    assert store.found() == []
    assert sum(each.damaged for each in store.verify()) == 0
    store.close(9)
    changed(directory, "UPDATE provider SET described = replace(described, 'bank', 'bang')")
    assert store.open() == attrs.evolve(expected(version), providers=[])


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_on_a_full_disk_a_database_of_an_older_version_is_read_as_it_is(
    directory: Path, store: Store, version: int
) -> None:
    old(directory, version)
    with no_room():
        with pytest.raises(StateFull):
            store.open()
        assert store.look() == expected(version)


# rows


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        ("UPDATE provider SET described = replace(described, '0.25', '0.75') WHERE id = 3", "provider"),
        ("UPDATE provider SET described = '{' WHERE id = 3", "provider"),
        ("UPDATE provider SET described = CAST(x'ff' || described AS TEXT) WHERE id = 3", "provider"),
        ("UPDATE provider SET described = replace(hex(zeroblob(50000)), '00', '[') WHERE id = 3", "provider"),
        ("UPDATE provider SET id = 4 WHERE id = 3", "provider"),
        ("UPDATE provider SET sum = sum + 1 WHERE id = 3", "provider"),
        ("UPDATE provider SET sum = NULL WHERE id = 3", "provider"),
        ("UPDATE session SET identity = 5 WHERE address <> ''", "session"),
        ("UPDATE session SET key = x'00' WHERE address <> ''", "session"),
        ("UPDATE session SET key = 'L' || substr(key, 2) WHERE address <> ''", "session"),
        ("UPDATE session SET ttl = 31.0 WHERE address <> ''", "session"),
        ("UPDATE session SET ttl = 9e999 WHERE address <> ''", "session"),
        ("UPDATE session SET version = '0.2' WHERE address <> ''", "session"),
        ("UPDATE session SET topics = '[5]' WHERE address <> ''", "session"),
        ("UPDATE launcher SET switched_on = 1 WHERE name = 'bank'", "launcher"),
        ("UPDATE launcher SET name = 'bang' WHERE name = 'bank'", "launcher"),
        ("UPDATE cluster SET memory = 'second'", "cluster"),
        ("UPDATE last_value SET body = x'00'", "last_value"),
        ("UPDATE last_value SET space = x'00'", "last_value"),
        ("UPDATE last_value SET described = '{}'", "last_value"),
        (
            "UPDATE last_value SET body = zeroblob(5), "
            "sum = checksum(CAST(space AS BLOB), topic, CAST(described AS BLOB), tail, zeroblob(5))",
            "last_value",
        ),
        ("UPDATE counter SET next_provider = 500", "counter"),
        ("UPDATE counter SET next_provider = 'many'", "counter"),
    ],
)
def test_a_row_that_was_changed_is_set_aside_and_the_others_are_used(
    directory: Path, store: Store, statement: str, source: str
) -> None:
    filled(directory)
    whole = store.open()
    store.close(501)
    changed(directory, statement)
    less: dict[str, dict[str, Any]] = {
        "provider": {"providers": whole.providers[:2]},
        "session": {"sessions": SESSIONS[1:]},
        "launcher": {"launchers_on": {"gate": True}},
        "cluster": {"cluster": {}},
        "last_value": {"last_values": {}},
        "counter": {"next_provider": 4},
    }
    assert store.open() == attrs.evolve(whole, **less[source])
    [found] = store.found()
    assert (found.what, found.rows) == (f"1 rows of {directory / DATABASE}", 1)
    assert source in found.reason
    [(where, reason, content)] = asides(directory)
    assert (where, "does not match its checksum" in reason, content != b"") == (source, True, True)
    assert next(each.aside for each in store.verify()) == 1
    store.close(501)
    assert store.open() == attrs.evolve(whole, **{**less[source], "next_provider": 501})
    assert store.found() == [], "it is reported once"


def test_a_lost_counter_does_not_end_the_start(directory: Path, store: Store) -> None:
    filled(directory, "DELETE FROM counter")
    assert store.open().next_provider == 4
    store.reserve(1_000)
    store.close(700)
    assert store.open().next_provider == 700


@pytest.mark.parametrize("more", ['"info":5', '"lasting":1', '"lasting":null', '"info":{}'])
def test_a_provider_of_an_older_version_that_cannot_be_understood_is_set_aside(
    directory: Path, store: Store, more: str
) -> None:
    old(directory, 3)
    changed(directory, f"UPDATE provider SET described = replace(described, '\"auth\"', '{more},\"auth\"')")
    assert store.open().providers == []
    assert "provider 3 cannot be understood" in store.found()[0].reason


def test_verification_finds_changed_rows_of_a_running_broker_and_changes_nothing(directory: Path, store: Store) -> None:
    filled(directory, providers=1_200)
    store.open()
    assert sum(each.rows for each in store.verify()) == 1 + 1_200 + 2 + 2 + 1 + 1
    changed(directory, "UPDATE provider SET described = '' WHERE id IN (3, 1100)", "UPDATE cluster SET memory = ''")
    pieces = list(store.verify())
    assert [name for each in pieces for name in each.named] == [
        "row 3 of the table provider",
        "row 1100 of the table provider",
        "row 1 of the table cluster",
    ]
    assert sum(each.damaged for each in pieces) == 3
    assert Verified(1, 1, ["a"]).joined(Verified(2, 1, ["b"], 4)) == Verified(3, 2, ["a", "b"], 4)
    assert asides(directory) == []


# databases


@pytest.mark.parametrize("where", ["whole", "head", "middle", "index", "cut", "schema", "text"])
def test_a_damaged_database_is_set_aside_and_the_store_begins_with_an_empty_one(
    directory: Path, store: Store, where: str
) -> None:
    filled(directory, providers=500)
    path = directory / DATABASE
    content = bytearray(path.read_bytes())
    garbage = random.Random(1).randbytes(len(content))
    if where == "whole":
        content[:] = garbage
    elif where == "head":
        content[:100] = garbage[:100]
    elif where == "middle":
        content[4096:-4096] = garbage[4096:-4096]
    elif where == "index":  # a page that is not read at the start, but would be at a write
        with closing(sqlite3.connect(path)) as database:
            ((page, size),) = database.execute(
                "SELECT rootpage, page_size FROM sqlite_master, pragma_page_size "
                "WHERE type = 'index' AND tbl_name = 'launcher'"
            )
        content[(page - 1) * size : page * size] = garbage[:size]
    elif where == "cut":
        del content[len(content) // 2 :]
    elif where == "schema":  # one bit in the definition of a table
        content[content.index(b"described TEXT")] ^= 1
    else:
        content = bytearray(b"mine\n" * 2000)
    path.write_bytes(content)
    assert store.open() == Snapshot(1, [], {})
    [found] = store.found()
    assert (found.what, found.files) == (str(path), 1)
    assert ASIDE in found.reason
    assert (directory / ASIDE).read_bytes() == content
    store.record([PROVIDER], [], 8)
    store.close(8)
    assert store.open() == Snapshot(8, [PROVIDER], {})
    [found] = store.found()
    assert "an earlier start has kept it" in found.reason, "until the file is gone"


def test_two_databases_are_set_aside_in_one_second(directory: Path, store: Store) -> None:
    for _ in range(2):
        filled(directory)
        (directory / DATABASE).write_bytes(b"mine\n" * 2000)
        store.open()
        store.close(1)
    assert {each.reason.split()[-1] for each in left_aside(str(directory))} == {ASIDE, f"{ASIDE}-2"}


def test_databases_of_other_versions_or_programs_are_not_set_aside(directory: Path, store: Store) -> None:
    filled(directory, f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(StateUnusable, match="newer") as refused:
        store.open()
    assert not isinstance(refused.value, StateDamaged)
    assert left_aside(str(directory)) == []
