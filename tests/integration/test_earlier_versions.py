"""Earlier versions beside this one: their state, their client library, and their brokers in one cluster.

They are taken from the history of the repository, and run with the libraries of this one.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.core.queues import sqlite_store
from broker.core.store import SCHEMA
from tests.cluster.brokers import Brokers
from tests.integration.daemon import ROOT, Daemon, environment
from tests.integration.test_upgrade import DATABASES, FIRST, bodies

pytestmark = pytest.mark.long

LAYOUTS = {"d972ced9": (1, 1), "d4bb11e9": (2, 1), "b5a63490": (3, 1), "58cd173e": (4, 2)}
"""Commits, each with the layouts of its two databases: the registry, and the queues."""

CLUSTERED = "dbc0c946"
"""A commit whose brokers share a registry with those of this version."""

PLACES = {"a": "10.0.0.1:80", "b": "10.0.0.2:80"}
"""A service of each broker of the cluster."""

ENDED = -signal.SIGTERM
"""Exit status after an orderly stop: Twisted ends by the signal that it received."""

Sources = Callable[[str], Path]


def unpack(commit: str, folder: Path) -> Path:
    """Unpack a commit into an empty folder. Skips the test where the history does not reach so far."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the history of this checkout ends after {commit}")
    subprocess.run(["tar", "-x"], cwd=folder, input=packed.stdout, check=True)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The function that unpacks a commit."""

    return cache(lambda commit: unpack(commit, tmp_path_factory.mktemp(commit)))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of the first version, which had no listener of HTTP: the name of the section is a comment."""
    file = tmp_path / "elkobroker.toml"
    file.write_text((FIRST / "elkobroker.toml").read_text() + "# Not [http].\n")
    return file


def of(source: Path) -> dict[str, str]:
    """The variable by which Python imports the broker from there."""
    return {"PYTHONPATH": str(source)}


def endpoint(daemon: Daemon) -> str:
    return daemon.wait_for(r"mtl on (tcp://127\.0\.0\.1:\d+) \(")[1]


def put(daemon: Daemon, body: bytes) -> None:
    """Write a durable message by the client library of this version."""
    with Client(endpoint(daemon)) as client:
        writer = client.write("queue", ["jobs-a"])
        writer.send(body)
        writer.flush()


def found(daemon: Daemon, name: str) -> list[str]:
    with daemon.connect() as peer:
        return [each["hostport"] for each in peer.ask(to="client", op="find", service=name)["desc"]]


def stop(daemon: Daemon) -> None:
    daemon.signal(signal.SIGTERM)
    assert daemon.ended() == ENDED


def content(state: Path) -> list[str]:
    """The databases as SQL."""
    lines: list[str] = []
    for name in DATABASES:
        with closing(sqlite3.connect(state / f"{name}.sqlite3")) as database:
            lines += database.iterdump()
    return lines


@pytest.mark.parametrize("commit", LAYOUTS)
def test_an_earlier_state_is_taken_over_and_not_given_back_in_a_later_layout(
    sources: Sources, config: Path, tmp_path: Path, commit: str
) -> None:
    options = ("--config", str(config))
    earlier = of(sources(commit))
    with Daemon(tmp_path, *options, env=earlier) as old, old.connect(label="till") as peer:
        peer.send(to="client", op="willserve", services=[{"service": "till", "hostport": "h.example:1"}])
        peer.done()
        put(old, b"one")
        stop(old)
    with Daemon(tmp_path, *options, "--http-port", "0") as new:
        assert found(new, "till") == ["h.example:1"]
        put(new, b"two")
        stop(new)
    before = content(tmp_path / "state")
    with Daemon(tmp_path, *options, env=earlier) as old:
        if LAYOUTS[commit] == (SCHEMA, sqlite_store.SCHEMA):
            assert found(old, "till") == ["h.example:1"]
        else:
            old.wait_for(rf"elkobroker\.sqlite3 .*schema {SCHEMA}")
            assert old.ended() == 1
            assert content(tmp_path / "state") == before
    with Daemon(tmp_path, *options, "--http-port", "0") as new:
        assert found(new, "till") == ["h.example:1"]
        assert bodies(new, "jobs-a", 2) == [b"one", b"two"]


PROGRAM = """
import sys
from broker.client.blocking import Client

with Client(sys.argv[1]) as client:
    writer = client.write("queue", ["jobs-a"])
    writer.send(b"one")
    writer.flush()
    content = client.read("queue", ["jobs-a"], confirm="full").take(60)
    content.confirm()
    [service] = client.services("till")
    print(content.body.decode(), service.hostport)
"""


@pytest.mark.parametrize("commit", LAYOUTS)
def test_an_earlier_client_library_is_served(sources: Sources, config: Path, tmp_path: Path, commit: str) -> None:
    options = ("--config", str(config), "--http-port", "0")
    with Daemon(tmp_path, *options) as daemon, daemon.connect(label="till") as peer:
        peer.send(to="client", op="willserve", services=[{"service": "till", "hostport": "h.example:1"}])
        peer.done()
        command = [sys.executable, "-c", PROGRAM, endpoint(daemon)]
        variables = environment(**of(sources(commit)))
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "one h.example:1\n"), done.stderr


def test_brokers_of_two_versions_share_a_registry_while_one_after_the_other_is_upgraded(
    sources: Sources, tmp_path: Path
) -> None:
    with Brokers(tmp_path) as brokers:
        for name in ("a", "b"):
            brokers.start(name, env=of(sources(CLUSTERED)))
            brokers[name].offer("bank", PLACES[name], instance=name)
        brokers.see("bank", *PLACES.values())
        for name in ("a", "b"):
            assert brokers.stop(name) == ENDED
            brokers.start(name)
            # As its client does, which renews it.
            brokers[name].offer("bank", PLACES[name], instance=name)
            brokers.see("bank", *PLACES.values())
            brokers[name].offer(f"later-{name}", "10.0.0.3:80")
            brokers.see(f"later-{name}", "10.0.0.3:80")
