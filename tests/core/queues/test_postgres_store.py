"""PostgreSQL as the store of queues: epochs, lost connections, and errors for databases that cannot be used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf
from typing import Any

import attrs
import psycopg
import pytest

from broker.core.database import StateError, StateFull, StateUnusable
from broker.core.queues import postgres_store
from broker.core.queues.postgres_store import SCHEMA, STEPS, PostgresStore
from broker.core.queues.queue_interfaces import Batch, Fenced, OutcomeUnknown, RestoredMessage, Row
from tests.cluster.real_postgres import PASSWORD, Postgres, server
from tests.core.queues.stores import taken

NOTHING = Batch((), (), (), (), ())
QUEUES = ((1, "/", "q"), (2, "/", "q.dead"), (3, "/", "other"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with server() as postgres:
        yield postgres


@attrs.define
class Place:
    """An empty database, and the stores over it."""

    postgres: Postgres
    database: str
    stores: list[PostgresStore] = attrs.field(factory=list)

    def store(self, more: str = "", password: str | None = PASSWORD) -> PostgresStore:
        store = PostgresStore(self.postgres.url(self.database, more=more), password)
        self.stores.append(store)
        return store

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.postgres.sql(statement, self.database)

    def orders(self) -> list[int]:
        return [order for (order,) in self.sql("SELECT id FROM elkobroker.message ORDER BY id")]


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    place = Place(postgres, postgres.database())
    yield place
    for store in place.stores:
        store.close()


def rows(*orders: int, queue: int = 1) -> list[Row]:
    return [(order, queue, 0, None, None, b"head", b"body") for order in orders]


def put(*orders: int, queue: int = 1) -> Batch:
    return attrs.evolve(NOTHING, queues=QUEUES, rows=rows(*orders, queue=queue))


def refused(store: PostgresStore) -> str:
    with pytest.raises(StateUnusable) as error:
        store.open(0.0)
    assert PASSWORD not in str(error.value)
    return str(error.value)


# epochs


def test_a_former_owner_writes_nothing_of_any_kind(place: Place) -> None:
    one, two = place.store(), place.store()
    one.take("/", "q", "one")
    one.write(put(1, 2))
    one.write(put(3, queue=2))
    assert len(taken(two, "/", "q")) == 3
    for batch in (
        put(4),
        put(5, queue=2),
        attrs.evolve(NOTHING, counts=[(1, 1, 9)]),
        attrs.evolve(NOTHING, gone=[(1, 1)]),
        attrs.evolve(NOTHING, gone=[(2, 3)]),
    ):
        with pytest.raises(Fenced) as fenced:
            one.write(batch)
        assert fenced.value.queues <= {1, 2}
    assert place.sql("SELECT id, count FROM elkobroker.message ORDER BY id") == [(1, 0), (2, 0), (3, 0)]
    two.write(put(4))
    one.release("/", "q")  # not its own any more
    assert place.sql("SELECT owner, epoch FROM elkobroker.queue") == [("test", 2)]


def test_a_transaction_with_a_lost_queue_writes_nothing_and_names_it(place: Place) -> None:
    one, two = place.store(), place.store()
    one.take("/", "q", "one")
    one.take("/", "other", "one")
    one.write(put(1))
    two.take("/", "q", "two")
    with pytest.raises(Fenced) as fenced:
        one.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[*rows(2), *rows(3, queue=3)]))
    assert fenced.value.queues == {1}
    one.write(put(3, queue=3))
    assert place.orders() == [1, 3]


def test_a_queue_that_was_not_taken_is_not_written(place: Place) -> None:
    store = place.store()
    with pytest.raises(Fenced):
        store.write(put(1))
    with pytest.raises(StateUnusable, match="is not taken"):
        store.read("/", "q", None)


def test_a_take_waits_for_the_write_in_progress_and_sees_it(place: Place) -> None:
    """The former owner commits before the take, or not at all."""
    one, two = place.store(), place.store()
    one.take("/", "q", "one")
    with psycopg.connect(place.postgres.url(place.database), password=PASSWORD) as other:
        other.execute("SELECT 1 FROM elkobroker.queue FOR SHARE")  # as a write in progress does
        other.execute("INSERT INTO elkobroker.message SELECT id, '', 7, 0, NULL, NULL, '', '' FROM elkobroker.queue")
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(row.order for row in taken(two, "/", "q")))
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'elkobroker'"
        while not place.sql(waiting):
            pass
        assert found == []
        other.commit()
    thread.join(20)
    assert found == [7]


def test_the_record_of_a_queue_is_deleted_when_it_is_empty_only(place: Place) -> None:
    store = place.store()
    store.take("/", "q", "one")
    store.write(put(1))
    store.release("/", "q")
    assert store.names() == [("/", "q")]
    [_] = taken(store, "/", "q")
    store.write(attrs.evolve(NOTHING, gone=[(1, 1)]))
    store.release("/", "q")
    assert place.sql("SELECT * FROM elkobroker.queue") == []


def test_pieces_are_bounded_by_messages_and_by_bytes(place: Place) -> None:
    store = place.store()
    store.take("/", "q", "one")
    big = [(order, 1, 0, None, None, b"", bytes(3_000_000)) for order in range(1, 5)]
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=big))
    store.write(put(*range(5, 1_100)))
    store.write(put(*range(2_000, 2_010), queue=2))
    piece = store.read("/", "q", None)
    assert [row.order for row in piece.messages] == [1, 2]
    found = taken(store, "/", "q")
    assert [row.order for row in found] == [*range(1, 1_100), *range(2_000, 2_010)]
    assert {row.name for row in found[1_099:]} == {"q.dead"}


# lost connections


def test_a_server_that_restarts_is_connected_again(place: Place) -> None:
    store = place.store()
    store.take("/", "q", "one")
    store.write(put(1))
    place.postgres.restart()
    store.write(put(2))
    assert place.orders() == [1, 2]


def test_a_connection_that_an_administrator_ends_is_opened_again(place: Place) -> None:
    store = place.store()
    store.take("/", "q", "one")
    place.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'elkobroker'")
    store.write(put(1))
    assert place.orders() == [1]


def test_a_server_that_is_stopped_leaves_the_outcome_unknown(place: Place) -> None:
    store = place.store()
    store.take("/", "q", "one")
    place.postgres.stop("immediate")
    try:
        with pytest.raises(OutcomeUnknown, match="no server listens there"):
            store.write(put(1))
        with pytest.raises(StateUnusable, match="no server listens there"):
            store.probe()
    finally:
        place.postgres.start()
    store.write(put(1))
    assert place.orders() == [1]


def test_a_frozen_server_blocks_for_seconds_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "ANSWER_SECONDS", 0.3)
    store = place.store()
    store.take("/", "q", "one")
    with place.postgres.frozen(), pytest.raises(OutcomeUnknown, match=r"did not answer in 0\.3 seconds"):
        store.write(put(1))
    store.write(put(1, 2))
    assert place.orders() == [1, 2]


def test_a_commit_whose_answer_is_lost_is_repeated_with_the_same_effect(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.store()
    store.take("/", "q", "one")
    exchange = postgres_store._Connection.wait
    lost: list[str] = []

    def wait(self: Any, gen: Any, *options: Any, **more: Any) -> Any:
        result = exchange(self, gen, *options, **more)
        if not lost and place.orders() == [1]:
            lost.append("the answer to the COMMIT")
            self.close()
            raise psycopg.OperationalError("the connection was lost")
        return result

    monkeypatch.setattr(postgres_store._Connection, "wait", wait)
    store.write(put(1))
    assert lost
    assert place.orders() == [1]


def test_a_lock_of_somebody_else_is_an_error_and_not_a_hang(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "STATEMENT_SECONDS", 0.2)
    store = place.store()
    store.take("/", "q", "one")
    with psycopg.connect(place.postgres.url(place.database), password=PASSWORD) as other:
        other.execute("LOCK TABLE elkobroker.message")
        with pytest.raises(StateUnusable, match="timeout"):
            store.write(put(1))
    store.write(put(1))
    assert place.orders() == [1]


# databases that cannot be used


def test_a_wrong_password(place: Place) -> None:
    assert "the password is wrong, or the user does not exist" in refused(place.store(password="wrong"))
    assert "give mtl.queue_store_password_file" in refused(place.store(password=None))


def test_a_database_that_does_not_exist(place: Place) -> None:
    place.database = "missing"
    assert "the database or the user does not exist" in refused(place.store())


def test_a_server_without_tls(place: Place) -> None:
    assert "it offers no TLS, which sslmode requires" in refused(place.store("?sslmode=require"))


def test_an_option_that_libpq_does_not_know(place: Place) -> None:
    assert "cannot be used" in refused(place.store("?speed=fast"))


def test_a_newer_schema(place: Place) -> None:
    place.store().open(0.0)
    place.sql(f"UPDATE elkobroker.layout SET version = {SCHEMA + 1}")
    assert f"was written by a newer elkobroker (version {SCHEMA + 1}, this one knows {SCHEMA})" in refused(
        place.store()
    )


@pytest.mark.parametrize(
    "statements",
    ["CREATE TABLE elkobroker.letters (text text)", "CREATE TABLE elkobroker.layout (text text)"],
)
def test_tables_of_something_else(place: Place, statements: str) -> None:
    place.sql("CREATE SCHEMA elkobroker")
    place.sql(statements)
    text = refused(place.store())
    assert "has tables that are not elkobroker's" in text
    place.sql(text[text.index("ALTER SCHEMA") : text.index(" TO kept") + 8])
    assert place.store().open(0.0) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE elkobroker.message SET death = 'of boredom', sum = NULL",
        "ALTER TABLE elkobroker.message RENAME TO letters",
        "ALTER TABLE elkobroker.message RENAME COLUMN head TO tail",
    ],
)
def test_content_that_is_not_understood(place: Place, statement: str) -> None:
    store = place.store()
    store.take("/", "q", "one")
    store.write(put(1))
    place.sql(statement)
    with pytest.raises(StateUnusable, match="is damaged"):
        taken(place.store(), "/", "q")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("body = 'bode'", {"body": b"bode"}),
        ("head = 'dead'", {"head": b"dead"}),
        ("expires = 5", {}),
        ("death = 'rejected'", {}),
        ("id = 3", {"order": 3}),
        ("sum = sum # 1", {}),
    ],
)
def test_a_message_that_was_changed_is_damaged(place: Place, change: str, expected: dict[str, Any]) -> None:
    one = place.store()
    one.take("/", "q", "one")
    one.write(put(1, 2))
    one.write(
        attrs.evolve(NOTHING, queues=QUEUES, rows=[(7, 2, 4, 1e10, "expired", b"head", b"body")], counts=[(1, 1, 9)])
    )
    place.sql(f"UPDATE elkobroker.message SET {change} WHERE id = 2")
    damaged = RestoredMessage("/", "q", 0, 2, 0, inf, None, b"head", b"body", damaged=True)
    rows = taken(place.store(), "/", "q")
    assert [row for row in rows if row.damaged] == [attrs.evolve(damaged, **expected)]
    assert [(row.order, row.count) for row in rows if not row.damaged] == [(1, 9), (7, 4)]
    pieces = list(place.store().verify())
    assert (sum(each.rows for each in pieces), sum(each.damaged for each in pieces)) == (3, 1)


def test_a_damaged_message_without_a_readable_head_is_set_aside_by_its_owner(place: Place) -> None:
    one = place.store()
    one.take("/", "q", "one")
    one.write(put(1, 2))
    place.sql("UPDATE elkobroker.message SET head = 'dead' WHERE id = 2")
    url = place.postgres.url(place.database)
    two, three = (PostgresStore(url, PASSWORD, readable=lambda head: head != b"dead") for _ in range(2))
    place.stores += [two, three]
    two.take("/", "q", "two")
    three.take("/", "q", "three")
    assert [row.order for row in two.read("/", "q", None).messages] == [1]
    assert (place.orders(), two.found()) == ([1, 2], []), "it has lost the queue"
    assert [row.order for row in three.read("/", "q", None).messages] == [1]
    assert [each.rows for each in three.found()] == [1]
    assert place.orders() == [1]
    assert place.sql("SELECT id, convert_from(head, 'UTF8') FROM elkobroker.damaged") == [(2, "dead")]
    assert next(iter(three.verify())).aside == 1


def test_messages_of_an_older_version_are_taken_over_and_those_of_one_beside_this_too(place: Place) -> None:
    place.sql(f"CREATE SCHEMA elkobroker; CREATE TABLE elkobroker.layout (version integer NOT NULL); {STEPS[0]}")
    place.sql("INSERT INTO elkobroker.layout VALUES (1)")
    place.sql("INSERT INTO elkobroker.queue (space, name, epoch, owner) VALUES ('/', 'q', 1, 'old')")
    insert = "INSERT INTO elkobroker.message (queue, dead, id, count, head, body) VALUES (1, '', {}, 0, 'h', 'b')"
    place.sql(insert.format(1))
    assert [row.order for row in taken(place.store(), "/", "q")] == [1]
    place.sql(insert.format(2))
    rows = taken(place.store(), "/", "q")
    assert [(row.order, row.damaged) for row in rows] == [(1, False), (2, False)]
    assert place.sql("SELECT version FROM elkobroker.layout") == [(SCHEMA,)]


def test_an_encoding_that_lacks_characters(place: Place) -> None:
    place.database = place.postgres.database("ENCODING 'LATIN1' TEMPLATE template0")
    assert "create it with ENCODING 'UTF8'" in refused(place.store())


def test_a_user_without_the_right_to_create_the_schema(place: Place) -> None:
    place.sql(f"CREATE ROLE guest_{place.database} LOGIN PASSWORD '{PASSWORD}'")
    store = PostgresStore(place.postgres.url(place.database, f"guest_{place.database}"), PASSWORD)
    assert "GRANT CREATE ON DATABASE" in refused(store)


def test_a_database_that_may_not_be_written(place: Place) -> None:
    place.store().open(0.0)
    place.sql(f"ALTER DATABASE {place.database} SET default_transaction_read_only = on")
    store = place.store()
    with pytest.raises(StateUnusable, match="a standby or read-only"):
        store.take("/", "q", "one")


def test_a_full_disk(place: Place) -> None:
    place.store().open(0.0)
    place.sql(
        "CREATE FUNCTION elkobroker.no_room() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
    )
    place.sql("CREATE TRIGGER no_room BEFORE INSERT ON elkobroker.message EXECUTE FUNCTION elkobroker.no_room()")
    store = place.store()
    store.take("/", "q", "one")
    with pytest.raises(StateFull, match="the disk of the PostgreSQL database"):
        store.write(put(1))
    place.sql("DROP TRIGGER no_room ON elkobroker.message")
    store.write(put(1))


def test_brokers_that_start_at_once_create_the_tables_once(place: Place) -> None:
    stores = [place.store() for _ in range(6)]
    errors: list[StateError] = []

    def open(store: PostgresStore) -> None:
        try:
            store.open(0.0)
        except StateError as error:
            errors.append(error)

    threads = [threading.Thread(target=open, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_commit_is_durable_whatever_the_server_s_default(place: Place) -> None:
    place.sql(f"ALTER DATABASE {place.database} SET synchronous_commit = off")
    store = place.store()
    store.open(0.0)
    assert store._attempt(lambda connection: connection.execute("SHOW synchronous_commit").fetchone()) == ("on",)
