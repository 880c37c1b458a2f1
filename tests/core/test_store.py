"""Store: content after a clean stop and after a kill, and errors for unusable state directories."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import attrs
import pytest
from zope.interface.verify import verifyObject

from broker.core.database import StateFull, StateInUse, StateUnusable
from broker.core.disk import RESERVE
from broker.core.last_values import size_of
from broker.core.model import Auth, KnownSession, LastValue, Provider, PublishedHeaders, Service, Snapshot
from broker.core.queues.queue_interfaces import IQueueStore
from broker.core.queues.sqlite_store import QueueStore
from broker.core.store import DATABASE, LOCK, SCHEMA, Store
from tests.full_disk import no_room, on_a_small_disk

KILLS = 20

PROVIDER = Provider(
    id=7,
    label="context one",
    wire="elko",
    address="10.0.0.7:40001",
    load=0.25,
    heard=1234.5,
    services=(
        Service("context-user", "10.0.0.7:9000", 7, label="users", auth=Auth("password", "s3cret", "x")),
        Service("context-user", "10.0.0.7:9002", 7, protocol="http"),
        Service("Rohan", "10.0.0.7:5247", 7, info='{"topics": ["\u00e9", null]}', lasting=True),
    ),
)


SESSIONS = (
    KnownSession(b"node 1", "K" * 40, "192.0.2.7", 30.0, b"0.2", (b"mcollective nodes", b"", b"\0\xff\xed\xa0\x80")),
    KnownSession(bytes(range(1, 256)), "", "", 0.0, None, ()),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    store = Store(str(directory))
    store.open()
    yield store
    store.close(1)


def reopened(store: Store, directory: Path, next_provider: int = 1) -> Snapshot:
    """Stop cleanly, and return the state that the next run reads."""
    store.close(next_provider)
    return store.open()


# what comes back


def test_a_new_directory_is_empty_and_private(store: Store, directory: Path) -> None:
    assert reopened(store, directory) == Snapshot(1, [], {})
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {f.name: stat.S_IMODE(f.stat().st_mode) for f in directory.iterdir()} == dict.fromkeys(
        (LOCK, RESERVE, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"), 0o600
    )


def test_a_database_that_others_could_read_is_closed_to_them(directory: Path, store: Store) -> None:
    store.close(1)
    (directory / DATABASE).chmod(0o644)
    store.open()
    assert stat.S_IMODE((directory / DATABASE).stat().st_mode) == 0o600


def test_all_of_a_provider_comes_back(store: Store, directory: Path) -> None:
    store.record([PROVIDER], [], 8)
    store.switch("context", True)
    store.switch("gatekeeper", True)
    store.switch("gatekeeper", False)
    assert reopened(store, directory, 8) == Snapshot(8, [PROVIDER], {"context": True, "gatekeeper": False})


def test_all_of_a_session_comes_back(store: Store, directory: Path) -> None:
    store.record([PROVIDER], [], 8, SESSIONS, [])
    assert reopened(store, directory, 8) == Snapshot(8, [PROVIDER], {}, SESSIONS)
    changed = attrs.evolve(SESSIONS[1], ttl=0.5)
    store.record([], [], 8, [changed], [SESSIONS[0].identity, b"never there"])
    assert reopened(store, directory).sessions == (changed,)


def test_all_of_a_last_value_comes_back(store: Store, directory: Path) -> None:
    headers = PublishedHeaders((b"X-Unit", b"\xff\0"))
    headers.tail, headers.retain, headers.payer = b"\x00\x01", True, "192.0.2.7"
    retained = LastValue(headers, (b"one", b"", b"\xfe"), 1234.5, "192.0.2.7", True, size_of(b"t\xff", headers, 4, 3))
    plain = LastValue(PublishedHeaders(), (), 7.0, "", False, size_of(b"", PublishedHeaders(), 0, 0))
    store.record_values({("", b"t\xff"): retained, ("test-env", b""): plain, ("", b"never there"): None})
    known = reopened(store, directory).last_values
    assert known == {("", b"t\xff"): retained, ("test-env", b""): plain}
    found = known["", b"t\xff"].headers
    assert (found.tail, found.retain, found.payer) == (b"\x00\x01", True, "192.0.2.7")
    store.record_values({("", b"t\xff"): attrs.evolve(retained, stamp=2.0), ("test-env", b""): None})
    assert reopened(store, directory).last_values == {("", b"t\xff"): attrs.evolve(retained, stamp=2.0)}


def test_last_values_use_no_reserve_of_the_disk(store: Store, directory: Path) -> None:
    value = LastValue(PublishedHeaders(), (b"x" * 100_000,), 1.0, "", False, 100_000)
    with no_room():
        with pytest.raises(StateFull):
            store.record_values({("", b"t"): value})
        assert (directory / RESERVE).exists()
    store.record_values({("", b"t"): value})
    assert list(reopened(store, directory).last_values) == [("", b"t")]


@pytest.mark.parametrize("label", ["", "\ud800 alone", "\0", "😀", "'; DROP TABLE provider; --"])
@pytest.mark.parametrize("load", [0.0, 1e308, float("inf")])
def test_no_text_or_load_of_a_peer_stops_a_write(store: Store, directory: Path, label: str, load: float) -> None:
    odd = attrs.evolve(PROVIDER, label=label, load=load, services=(Service(label, label, 7, label, label, info=label),))
    store.record([odd], [], 8)
    assert reopened(store, directory).providers == [odd]


def test_providers_are_replaced_and_forgotten(store: Store, directory: Path) -> None:
    store.record([attrs.evolve(PROVIDER, id=n, services=()) for n in (3, 1, 2)], [], 4)
    relabelled = attrs.evolve(PROVIDER, id=2, label="other", services=())
    store.record([relabelled], [1, 99], 4)
    assert reopened(store, directory).providers == [relabelled, attrs.evolve(PROVIDER, id=3, services=())]


def test_the_counter_only_rises_until_a_clean_stop(store: Store, directory: Path) -> None:
    store.reserve(2_000)
    store.reserve(1_000)
    store.record([], [], 500)
    with closing(sqlite3.connect(directory / DATABASE)) as other:
        assert other.execute("SELECT next_provider FROM counter").fetchall() == [(2_000,)]
    assert reopened(store, directory, 12).next_provider == 12


def test_a_write_that_fails_half_way_leaves_nothing(store: Store, directory: Path) -> None:
    store.record([PROVIDER], [], 8)
    too_large = attrs.evolve(PROVIDER, id=2**64)
    with pytest.raises(OverflowError):
        store.record([attrs.evolve(PROVIDER, label="changed"), too_large], [7], 100)
    store.reserve(9)  # it still works
    assert reopened(store, directory).providers == [PROVIDER]


def test_a_busy_database_is_an_error_and_not_a_hang(store: Store, directory: Path) -> None:
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateUnusable, match="locked"):
            store.reserve(5_000)
    store.reserve(6_000)


def test_threads_take_turns(store: Store, directory: Path) -> None:
    def write(n: int) -> None:
        store.record([attrs.evolve(PROVIDER, id=n, services=())], [], n + 1)
        store.switch(f"launcher-{n}", True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 101)))
    snapshot = reopened(store, directory, 101)
    assert [p.id for p in snapshot.providers] == list(range(1, 101))
    assert len(snapshot.launchers_on) == 100


def test_nothing_is_written_after_close(store: Store, directory: Path) -> None:
    store.close(3)
    store.close(9)
    with pytest.raises(StateUnusable, match="not open"):
        store.reserve(10)
    assert store.open().next_provider == 3


# directories that cannot be used


def test_a_second_broker_is_told_which_one_has_the_directory(store: Store, directory: Path) -> None:
    with pytest.raises(StateInUse) as refused:
        Store(str(directory)).open()
    assert str(directory) in str(refused.value)
    assert f"process {os.getpid()}" in str(refused.value)
    store.reserve(2)  # the first one is not affected
    store.close(2)
    second = Store(str(directory))
    assert second.open().next_provider == 2
    second.close(2)


def test_not_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(StateUnusable, match="is not a directory") as refused:
            Store(str(path)).open()
        assert str(path) in str(refused.value)
    assert file.read_text() == "mine"


@contextmanager
def without_privileges() -> Iterator[None]:
    """Make the kernel apply file modes, which it does not do for root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        with without_privileges(), pytest.raises(StateUnusable, match="Permission denied") as refused:
            Store(directory).open()
        assert directory in str(refused.value)
        below = os.path.join(directory, "state")
        with without_privileges(), pytest.raises(StateUnusable, match="Permission denied") as refused:
            Store(below).open()
        assert below in str(refused.value)
        os.chmod(directory, 0o755)


def test_a_database_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, DATABASE)
        with open(path, "wb"):
            os.chmod(path, 0o400)
        os.chmod(directory, 0o777)
        with without_privileges(), pytest.raises(StateUnusable, match="Permission denied") as refused:
            Store(directory).open()
        assert path in str(refused.value)


def refused(directory: Path) -> str:
    """Return the error text of this state. Asserts that the database is unchanged and the lock released."""
    path = directory / DATABASE
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StateUnusable) as raised:
            Store(str(directory)).open()
    assert path.read_bytes() == before
    assert str(path) in str(raised.value)
    return str(raised.value)


def filled(directory: Path, *statements: str) -> None:
    """Create a state directory as after a clean stop, with some providers, then apply a change."""
    store = Store(str(directory))
    store.open()
    store.record([attrs.evolve(PROVIDER, id=n) for n in range(1, 500)], [], 501, SESSIONS)
    store.close(501)
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_a_newer_schema(directory: Path) -> None:
    filled(directory, f"PRAGMA user_version = {SCHEMA + 1}")
    assert f"written by a newer elkobroker (schema {SCHEMA + 1}, this one knows {SCHEMA})" in refused(directory)


def test_a_database_of_something_else(directory: Path) -> None:
    directory.mkdir()
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        database.execute("CREATE TABLE letters (text)")
    assert "is not one of elkobroker's" in refused(directory)


# a full disk


@pytest.mark.parametrize("killed", [False, True])
def test_on_a_full_disk_it_is_read_and_opened_by_the_first_write_that_has_room(directory: Path, killed: bool) -> None:
    filled(directory)
    if killed:  # what is stored is in the log, and the file that SQLite shares is gone
        before = Store(str(directory))
        before.open()
        before.record([attrs.evolve(PROVIDER, id=600)], [], 700)
        (directory / f"{DATABASE}-shm").unlink()
    shutil.copytree(directory, copy := directory.with_name("copy"))
    with no_room():
        store = Store(str(copy))
        (copy / RESERVE).unlink()
        with pytest.raises(StateFull, match="the disk is full"):
            store.open()
        snapshot = store.look()
        assert [p.id for p in snapshot.providers] == [*range(1, 500), *([600] if killed else [])]
        assert snapshot.next_provider == (700 if killed else 501)
        with pytest.raises(StateInUse):
            Store(str(copy)).look()
        for _ in range(2):
            with pytest.raises(StateFull, match="the disk is full"):
                store.record([attrs.evolve(PROVIDER, id=1_000)], range(1, 500), 2_000)
    store.record([attrs.evolve(PROVIDER, id=1_000)], range(1, 500), 2_000)
    snapshot = reopened(store, copy, 3_000)
    assert [p.id for p in snapshot.providers] == [*([600] if killed else []), 1_000]
    assert snapshot.next_provider == 3_000
    store.close(1)


def test_a_full_disk_is_read_beside_another_process_that_reads(directory: Path) -> None:
    filled(directory)
    with closing(sqlite3.connect(directory / DATABASE)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT * FROM counter").fetchall()
        with no_room():
            store = Store(str(directory))
            assert store.look().next_provider == 501
    store.close(1)


def test_a_first_start_on_a_full_disk_finds_nothing_and_stores_later(directory: Path) -> None:
    store = Store(str(directory))
    with no_room():
        with pytest.raises(StateFull):
            store.open()
        assert store.look() == Snapshot(1, [], {})
        with pytest.raises(StateFull):
            store.reserve(10)
    store.reserve(10)
    assert reopened(store, directory, 11) == Snapshot(11, [], {})
    store.close(1)


def test_on_a_full_disk_a_damaged_database_is_refused_or_set_aside(directory: Path) -> None:
    filled(directory)
    (directory / DATABASE).write_bytes(b"nonsense" * 1_000)
    with no_room():
        store = Store(str(directory))
        with pytest.raises(StateUnusable, match="is damaged") as refused:
            store.look()
        assert not isinstance(refused.value, StateFull)
        with pytest.raises(StateFull):
            store.open()
        assert [each.files for each in store.found()] == [1]
        assert store.look() == Snapshot(1, [], {})


def test_the_reserve_lets_a_full_disk_be_written_and_is_taken_again(tmp_path: Path) -> None:
    script = """
import os, sys
from broker.core.database import StateFull
from broker.core.model import Provider
from broker.core.disk import RESERVE, RESERVE_BYTES
from broker.core.store import Store

state = os.path.join(sys.argv[1], "state")
reserve = os.path.join(state, RESERVE)

def fill(name):
    with open(os.path.join(sys.argv[1], name), "wb", 0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass

store = Store(state)
store.open()
assert os.stat(reserve).st_size == RESERVE_BYTES
store.close(2)
fill("first")
store.open()
assert not os.path.exists(reserve)
store.reserve(3)
store.close(4)
fill("second")
try:
    store.open()
except StateFull:
    assert store.look().next_provider == 4
try:
    store.reserve(5)
except StateFull:
    print("full")
for name in ("first", "second"):
    os.unlink(os.path.join(sys.argv[1], name))
store.reserve(6)
assert os.stat(reserve).st_size == RESERVE_BYTES
store.close(7)
print(store.open().next_provider)
"""
    assert on_a_small_disk(tmp_path, 64, script).split() == ["full", "7"]


# kill -9

WRITER = """
import sys
from broker.core.model import Provider, Service
from broker.core.store import Store

store = Store(sys.argv[1])
snapshot = store.open()
next_id = snapshot.next_provider
live = [p.id for p in snapshot.providers]
round = max((p.load for p in snapshot.providers), default=0.0)
while True:
    # each round replaces all providers by new ones, whose load is the number of the round; most time goes into that
    round += 1
    store.reserve(next_id + 200)
    ids = list(range(next_id, next_id + 200))
    next_id += 200
    print("ids", ids[-1], flush=True)
    rows = [Provider(i, "x" * 500, "elko", "", round, 0.0, (Service("s", "h:1", i),)) for i in ids]
    store.record(rows, live, next_id)
    live = ids
    print("round", round, flush=True)
"""


@pytest.mark.long
def test_killed_while_writing(directory: Path) -> None:
    chance = random.Random(2)
    last_id, last_round = 0, 0.0
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(chance.randrange(1, 40))]
            writer.kill()
            # what it acknowledged between that and its death is still in the pipe
            said += writer.stdout.readlines()
        if said and not said[-1].endswith("\n"):
            said.pop()  # killed in the middle of the line
        for word, number in (line.split() for line in said):
            if word == "ids":
                last_id = max(last_id, int(number))
            else:
                last_round = max(last_round, float(number))
        store = Store(str(directory))
        snapshot = store.open()
        assert snapshot.next_provider > last_id
        rounds = {p.load for p in snapshot.providers}
        assert len(rounds) <= 1, "a half-written transaction"
        assert max(rounds, default=0.0) >= last_round
        assert len(snapshot.providers) == (200 if rounds else 0)
        last_id = snapshot.next_provider - 1
        store.close(snapshot.next_provider)
    assert last_round > KILLS / 2


def test_it_is_what_it_promises_to_be(tmp_path: Path) -> None:
    assert verifyObject(IQueueStore, QueueStore(str(tmp_path)))
