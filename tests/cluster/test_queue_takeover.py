"""Durable queues of a cluster: real brokers, a real etcd and PostgreSQL, clients under load, and kills."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.blocking import Client
from tests.cluster.brokers import TTL, Broker, Brokers
from tests.cluster.queue_load import QUEUES, QUICK, QueueLoad
from tests.cluster.real_postgres import PASSWORD, Postgres, server
from tests.patience import until
from tests.ports import free_port


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with server() as postgres:
        yield postgres


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        yield brokers


def mtl(broker: Broker) -> str:
    """The endpoint of a broker's control flow."""
    return "tcp://127.0.0.1:" + broker.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ").group(1)


class Pair:
    """Two brokers over one PostgreSQL, with a load on a durable queue that both may own."""

    def __init__(self, brokers: Brokers, postgres: Postgres) -> None:
        self._brokers = brokers
        self._postgres = postgres
        self._database = postgres.database()
        secret = brokers.directory / "secret"
        secret.write_text(PASSWORD)
        # A broker that comes back has the port that clients know.
        self._ports = {name: free_port() for name in "ab"}
        self._store = (
            f'queue_store = "{postgres.url(self._database)}"\nqueue_store_password_file = "{secret}"\n{QUEUES}'
        )
        for name in self._ports:
            self.start(name)
        self.load = QueueLoad([mtl(brokers[name]) for name in self._ports])

    def start(self, name: str) -> None:
        """Start a broker, for the first time or again."""
        mtl = f'[mtl]\nendpoint = "tcp://127.0.0.1:{self._ports[name]}"\ndata_port = 0\n'
        self._brokers.start(name, config=mtl + self._store)

    def owner(self) -> str:
        """Return the name of the broker that owns the queue."""
        [(owner,)] = self._postgres.sql("SELECT owner FROM elkobroker.queue", self._database)
        return str(owner)

    def finish(self) -> None:
        """Stop the writers, and assert that all confirmed messages are read and confirmed."""
        load = self.load
        load.stop_writing()
        until(lambda: set(load.confirmed) <= {name for _, name in load.seen}, "all confirmed messages are read")
        until(lambda: self._postgres.sql("SELECT id FROM elkobroker.message", self._database) == [], "all is confirmed")
        assert load.errors == []
        assert len(load.confirmed) == len(set(load.confirmed))


@pytest.mark.long
def test_no_confirmed_message_is_lost_or_comes_again_when_owners_are_killed(
    brokers: Brokers, postgres: Postgres
) -> None:
    pair = Pair(brokers, postgres)
    load = pair.load
    kills: list[float] = []
    try:
        for _ in range(2):
            load.advanced()
            owner = pair.owner()
            kills.append(time.monotonic())
            brokers.kill(owner)
            load.advanced()
            assert pair.owner() != owner
            pair.start(owner)
        pair.finish()
        times: dict[str, list[float]] = {}
        for at, name in load.seen:
            times.setdefault(name, []).append(at)
        assert set(times) == set(load.confirmed), "nothing else was read"
        again = {name: each for name, each in times.items() if len(each) > 1}
        # Their Confirms had not been written: they were read in the moment before a kill, or the flow had ended.
        for name, each in again.items():
            assert any(each[0] >= kill - 1.0 and each[1] >= kill for kill in kills), (name, each, kills)
        assert max(Counter(name for _, name in load.seen).values()) <= 1 + len(kills)
        assert len(again) < len(times) / 2
    finally:
        load.close()


@pytest.mark.long
def test_a_drain_and_restart_of_each_owner_accounts_for_all_confirmed_messages(
    brokers: Brokers, postgres: Postgres
) -> None:
    pair = Pair(brokers, postgres)
    load = pair.load
    drains: list[float] = []
    try:
        for _ in range(2):
            load.advanced()
            owner = pair.owner()
            drains.append(time.monotonic())
            brokers.drain(owner)
            assert brokers.stop(owner) == -signal.SIGTERM
            load.advanced()
            assert pair.owner() != owner
            pair.start(owner)
        pair.finish()
        seen = Counter(name for _, name in load.seen)
        assert set(seen) == set(load.confirmed), "nothing else was read"
        # A message comes again only if its reader had not confirmed it when the drain ended the flow.
        assert max(seen.values()) <= 1 + len(drains)
        assert sum(seen.values()) - len(seen) < len(seen) / 2
    finally:
        load.close()


@pytest.mark.long
def test_a_queue_on_the_disk_of_a_broker_is_refused_while_that_is_away(brokers: Brokers) -> None:
    config = f'[mtl]\nendpoint = "tcp://127.0.0.1:0"\n{QUEUES}'
    for name in ("a", "b"):
        brokers.start(name, config=config)
    with Client(mtl(brokers["a"]), settings=QUICK) as client:
        client.write("queue", ["jobs"]).send(b"x", timeout=20)
    # the other broker refers to the owner
    with Client(mtl(brokers["b"]), settings=QUICK) as client:
        client.write("queue", ["jobs"]).send(b"y", timeout=20)
    brokers.kill("a")
    until(lambda: brokers["b"].members() == ["b"], "the lease of the owner ends")
    with Client(mtl(brokers["b"]), settings=QUICK) as client:
        with pytest.raises(TimeoutError):
            client.read("queue", ["jobs"], confirm="full", timeout=2)
        brokers.start("a", config=config)
        reader = client.read("queue", ["jobs"], confirm="full", timeout=TTL + 30)
        for body in (b"x", b"y"):
            content = reader.take(20)
            assert content.body == body
            content.confirm()
