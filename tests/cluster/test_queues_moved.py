"""From SQLite to PostgreSQL: messages that are left on the disk are seen, and `brokerctl queues move` carries them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.blocking import Client
from tests.cluster.brokers import Broker, Brokers
from tests.cluster.queue_load import QUEUES, QUICK
from tests.cluster.real_postgres import PASSWORD, Postgres, server
from tests.console_blocks import as_shown, command_of
from tests.integration.daemon import environment
from tests.patience import PATIENCE, until

DISK = f'[mtl]\nendpoint = "tcp://127.0.0.1:0"\n{QUEUES}'
MANY = 450


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with server() as postgres:
        yield postgres


def mtl(broker: Broker) -> str:
    return "tcp://127.0.0.1:" + broker.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ").group(1)


def ctl(broker: Broker, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "broker.brokerctl", "--url", f"http://127.0.0.1:{broker.http_port()}", *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout


def left(broker: Broker) -> dict[str, int]:
    code, said = ctl(broker, "queues", "--json")
    assert code == 0
    return {row["queue"]: row["left"] for row in json.loads(said)["rows"] if "left" in row}


def reasons(broker: Broker) -> str:
    return str(broker.degraded())


def fill(broker: Broker, queue: str, first: int, last: int) -> None:
    with Client(mtl(broker), settings=QUICK) as client:
        writer = client.write("queue", [queue])
        for number in range(first, last):
            writer.post(b"%d" % number)
        writer.flush()


def drained(broker: Broker, queue: str, count: int) -> list[int]:
    """The next messages of a queue, confirmed."""
    found = []
    with Client(mtl(broker), settings=QUICK) as client:
        reader = client.read("queue", [queue], confirm="full", window=1, timeout=PATIENCE)
        for _ in range(count):
            content = reader.take(PATIENCE)
            found.append(int(content.body))
            content.confirm()
    return found


@pytest.mark.long
def test_messages_on_the_disk_are_said_and_moved(tmp_path: Path, postgres: Postgres) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    store = f'queue_store = "{postgres.url(postgres.database())}"\nqueue_store_password_file = "{secret}"\n'
    shared = DISK.replace(QUEUES, store + QUEUES)
    with Brokers(tmp_path) as farm:
        a = farm.start("a", config=DISK)
        assert ctl(a, "queues", "move")[0] != 0
        fill(a, "jobs", 0, MANY)
        fill(a, "jobs.of.b", 0, 3)
        farm.stop("a")
        # Another broker has a queue of the same name by now.
        b = farm.start("b", config=shared)
        fill(b, "jobs.of.b", 3, 4)
        a = farm.start("a", config=shared)
        a.wait_for(rf"durable queues: messages are left in .*jobs \({MANY}\), jobs.of.b \(3\)")
        assert f"jobs ({MANY})" in reasons(a)
        assert left(a) == {"jobs": MANY, "jobs.of.b": 3}
        code, said = ctl(a, "queues", "move", "--json")
        assert code == 1
        assert json.loads(said) == {
            "moved": MANY,
            "refused": {"jobs.of.b": "the queue jobs.of.b belongs to the broker b"},
        }
        assert left(a) == {"jobs.of.b": 3}
        # They are in order, from any broker, and kept over a restart of the one that has them.
        assert drained(b, "jobs", 5) == list(range(5))
        farm.stop("a")
        a = farm.start("a", config=shared)
        rest = drained(a, "jobs", MANY - 5)
        assert rest == sorted(rest)
        assert rest[-1] == MANY - 1
        # The other broker is gone: its queue is taken, and the rest follows behind what is there.
        farm.stop("b")
        until(lambda: a.members() == ["a"], "b is gone")
        until(lambda: ctl(a, "queues", "move")[0] == 0, "the rest moves")
        assert (left(a), reasons(a)) == ({}, "{}")
        assert sorted(drained(a, "jobs.of.b", 4)) == [0, 1, 2, 3]
        _, _, _, *words = command_of("docs/cluster.md", "brokerctl --url http://broker-a:9080 queues move").split()
        shown = ctl(a, *words)[1]
        assert as_shown("docs/cluster.md", "brokerctl --url http://broker-a:9080 queues move", shown)
        assert not any("raceback" in line for line in [*a.log, *b.log])
