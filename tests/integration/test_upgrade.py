"""Upgrade and restore: the present daemon on the state of an early version, and on a backup of a running daemon.

`first_state` has the configuration, the databases (as SQL) and the open journal segment that the first version with
durable queues left behind when it was killed.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from broker.client.blocking import Client
from tests.integration.daemon import Daemon, environment, twistd
from tests.patience import PATIENCE, until

FIRST = Path(__file__).with_name("first_state")
DATABASES = ("elkobroker", "queues")


def first_state(directory: Path) -> Path:
    """A state directory as the first version left it."""
    directory.mkdir(mode=0o700)
    for name in DATABASES:
        with closing(sqlite3.connect(directory / f"{name}.sqlite3")) as database:
            database.executescript(FIRST.joinpath(f"{name}.sql").read_text())
    shutil.copytree(FIRST / "journal", directory / "journal")
    return directory


def bodies(daemon: Daemon, queue: str, count: int) -> list[bytes]:
    """The next messages of a durable queue."""
    port = daemon.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) \(").group(1)
    found: list[bytes] = []
    with Client(f"tcp://127.0.0.1:{port}") as client:
        reader = client.read("queue", [queue], confirm="full")
        while len(found) < count:
            content = reader.take(PATIENCE)
            found.append(content.body)
            content.confirm()
    return found


def test_state_and_configuration_of_the_first_version_are_taken_over(tmp_path: Path) -> None:
    first_state(tmp_path / "state")
    with Daemon(tmp_path, "--config", str(FIRST / "elkobroker.toml")) as daemon, daemon.connect() as peer:
        [bank] = peer.ask(to="client", op="find", service="bank")["desc"]
        assert bank == {
            "type": "servicedesc",
            "service": "bank",
            "hostport": "bank.example.com:7000",
            "protocol": "tcp",
            "auth": {"type": "auth", "mode": "password", "code": "s3cret"},
            "provider": 3,
            "restored": True,
        }
        [rohan] = peer.ask(to="client", op="find", service="rohan")["desc"]
        # DBP has registered the lasting service again: the id is above all that the old version may have given out.
        assert (rohan["hostport"], rohan["provider"] >= 1028, "restored" in rohan) == ("127.0.0.1:7100", True, False)
        assert bodies(daemon, "jobs-a", 2) == [b"one", b"two"]
        [launcher] = console(daemon, "launcherdesc")["launchers"]
        assert (launcher["name"], launcher["on"]) == ("gate", True)
        # Before the kill at the end of the block: the journal's thread seals in pieces, which take longer under load.
        [earlier] = FIRST.glob("journal/open/*")
        until(lambda: is_sealed(tmp_path / "state" / "journal", earlier.stem))


def is_sealed(journal: Path, name: str) -> bool:
    """Return True if the segment of an earlier run is sealed, and no longer open."""
    segments = list(journal.rglob(f"{name}*"))
    return bool(segments) and all("segments" in segment.parts for segment in segments)


def console(daemon: Daemon, command: str) -> dict[str, list[dict[str, object]]]:
    """The answer of the console to one command."""
    with daemon.connect(role="admin") as admin:
        answer: dict[str, list[dict[str, object]]] = admin.ask(to="admin", op=command)
    return answer


@pytest.mark.parametrize("name", DATABASES)
def test_a_state_of_a_later_version_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    state = first_state(tmp_path / "state")
    with closing(sqlite3.connect(state / f"{name}.sqlite3")) as database:
        database.execute("PRAGMA user_version = 1000")
        before = list(database.iterdump())
    with Daemon(tmp_path, "--config", str(FIRST / "elkobroker.toml")) as daemon:
        daemon.wait_for(rf"{name}\.sqlite3 .*schema 1000")
        if name == "elkobroker":
            assert daemon.process.wait(PATIENCE) == 1
        else:
            daemon.wait_for("console on")  # without MTL, which is tried again
    with closing(sqlite3.connect(state / f"{name}.sqlite3")) as database:
        assert list(database.iterdump()) == before


def test_a_configuration_of_a_later_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "later.toml"
    file.write_text("[broker]\nversion = 2\n")
    checked = subprocess.run(
        [twistd(), "-n", "--pidfile=", "elkobroker", "--config", str(file), "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    assert "broker.version: the file has version 2, and this broker reads version 1" in checked.stdout + checked.stderr


def test_a_backup_of_a_running_broker_is_restored(tmp_path: Path) -> None:
    configuration = str(FIRST / "elkobroker.toml")
    saved = tmp_path / "other" / "state"
    saved.mkdir(parents=True, mode=0o700)
    (tmp_path / "first").mkdir()
    first_state(tmp_path / "first" / "state")
    with Daemon(tmp_path / "first", "--config", configuration) as daemon, daemon.connect(label="till") as peer:
        peer.send(
            to="client",
            op="willserve",
            services=[{"service": "till", "hostport": "h.example:1"}],
        )
        peer.done()
        daemon.wait_for("console on")
        state = tmp_path / "first" / "state"
        # The procedure of docs/operations.md: SQLite's online backup, while the broker writes.
        until_stored(state / "elkobroker.sqlite3", "till")
        for name in DATABASES:
            with (
                closing(sqlite3.connect(state / f"{name}.sqlite3")) as source,
                closing(sqlite3.connect(saved / f"{name}.sqlite3")) as target,
            ):
                source.backup(target)
    with Daemon(tmp_path / "other", "--config", configuration) as restored, restored.connect() as peer:
        [till] = peer.ask(to="client", op="find", service="till")["desc"]
        assert (till["hostport"], till["restored"]) == ("h.example:1", True)
        assert bodies(restored, "jobs-a", 2) == [b"one", b"two"]


def until_stored(database: Path, label: str) -> None:
    """Wait for a provider with that label in the store."""
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
        for _ in range(int(PATIENCE * 20)):
            rows = connection.execute("SELECT described FROM provider").fetchall()
            if any(json.loads(row)["label"] == label for (row,) in rows):
                return
            time.sleep(0.05)
    raise AssertionError(f"{label} was not stored")
