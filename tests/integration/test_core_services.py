"""The other core services that the document of DBP names: last value caching and logging aggregation."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest

from broker.core.store import DATABASE
from tests.brokerctl.server import ctl
from tests.integration.configurations import ROUTERS, TCP, listener
from tests.integration.daemon import Daemon
from tests.integration.dbp_nodes import Nodes
from tests.integration.mc0_clients import clients_of
from tests.integration.mtl_peers import peers_of
from tests.patience import PATIENCE, until

CONFIG = f"""\
[broker]
last_values = true
[log]
collect = true
[http]
endpoint = "{TCP}"
{ROUTERS}{listener("main")}"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("values")
    (folder / "x.toml").write_text(CONFIG)
    with Daemon(folder, "--config", "x.toml") as started:
        yield started


@pytest.mark.parametrize("publisher", ["mc0", "mtl", "brokerctl"])
def test_later_subscribers_of_each_wire_are_sent_the_newest_message(daemon: Daemon, publisher: str) -> None:
    topic, url = f"weather.{publisher}", f"http://127.0.0.1:{daemon.http_port()}"
    for text in ("rain", "sun"):
        if publisher == "brokerctl":
            assert ctl("--url", url, "pub", topic, text).exit_code == 0
        elif publisher == "mtl":
            with peers_of(daemon) as peers:
                writer = peers.writer("topic", topic, confirm="full")
                assert writer.settled(writer.write(text.encode())) == []
        else:
            with clients_of(daemon) as clients:
                assert clients.new().ask(f"PUT|TOPIC|{topic}|ID|p||{text}") == "OK|ID|p"
    is_sent_to_later_subscribers(daemon, topic)
    command = [sys.executable, "-m", "broker.brokerctl", "--url", url, "sub", topic, "-n", "1", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)
    assert (shown["text"], shown["retained"]) == ("sun", True)


def is_sent_to_later_subscribers(
    daemon: Daemon, topic: str, properties: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Assert that the value ``sun`` of the topic is sent to later subscribers over mc0 and MTL, and to nodes of DBP."""
    with clients_of(daemon) as clients:
        client = clients.new()
        assert client.ask(f"SUB|ID|s||{topic}") == "OK|ID|s"
        assert client.hear() == f"MESSAGE|TOPIC|{topic}||sun"
    with peers_of(daemon) as peers:
        content = peers.reader("topic", topic).content()
        assert (content.body, content.properties) == (b"sun", {**properties, "retained": True})
    with Nodes(daemon) as nodes:
        for node in (nodes.dealer(), nodes.hermes()):
            value = node.find(f"lvc:{topic}")[f"lvc:{topic}"]
            assert (value["topic"], value["text"]) == (topic, "sun")
            assert 1_700_000_000 < value["time"] <= time.time()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_last_values_in_the_store_are_sent_after_a_restart(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "x.toml").write_text(CONFIG.replace("[broker]", "[broker]\nstore_last_values = true"))
    with Daemon(tmp_path, "--config", "x.toml") as before:
        with peers_of(before) as peers:
            writer = peers.writer("topic", "retained", confirm="full")
            assert writer.settled(writer.write(b"sun", properties={"retain": True, "n": 5})) == []
        with clients_of(before) as clients:
            assert clients.new().ask("PUT|TOPIC|weather|ID|p||sun") == "OK|ID|p"
        if end == signal.SIGKILL:
            until(lambda: len(stored_topics(tmp_path)) == 2)
        before.signal(end)
        before.ended()
    with Daemon(tmp_path, "--config", "x.toml") as after:
        is_sent_to_later_subscribers(after, "weather")
        is_sent_to_later_subscribers(after, "retained", {"n": 5, "retain": True})
        after.signal(signal.SIGTERM)
        after.ended()
    (tmp_path / "x.toml").write_text(CONFIG)
    with Daemon(tmp_path, "--config", "x.toml"):
        until(lambda: stored_topics(tmp_path) == [])


def stored_topics(directory: Path) -> list[object]:
    with closing(sqlite3.connect(f"file:{directory}/state/{DATABASE}?mode=ro", uri=True)) as database:
        return database.execute("SELECT topic FROM last_value").fetchall()


def test_a_topic_without_a_value_is_an_error_for_a_node(daemon: Daemon) -> None:
    with Nodes(daemon) as nodes:
        assert nodes.dealer().find("lvc:none", "none") == {
            "Error": "No Last Value of the Topic none; No Last Value of the Topic none"
        }
        assert nodes.dealer().find("lvc:elkobroker.services") == {
            "Error": "No Last Value of the Topic elkobroker.services"
        }


def test_an_answer_to_a_node_has_values_of_a_mebibyte_at_most(daemon: Daemon) -> None:
    with peers_of(daemon) as peers:
        for topic in ("long", "longer"):
            writer = peers.writer("topic", topic, confirm="full")
            assert writer.settled(writer.write(b"x" * 600_000)) == []
    with Nodes(daemon) as nodes:
        found = nodes.dealer().find("lvc:long", "lvc:longer")
    no_room = "No Room for the Last Value of the Topic longer"
    assert (len(found.pop("lvc:long")["text"]), found) == (600_000, {"Error": no_room})


@pytest.mark.long
def test_messages_of_log_topics_are_collected_from_every_wire(daemon: Daemon) -> None:
    url = f"http://127.0.0.1:{daemon.http_port()}"
    with clients_of(daemon) as clients:
        assert clients.new().ask('PUT|TOPIC|log.rohan|ID|p||{"level":"error","message":"fire","n":1}') == "OK|ID|p"
    with peers_of(daemon) as peers:
        writer = peers.writer("topic", "log.rohan.debug", confirm="full")
        assert writer.settled(writer.write(b"smoke")) == []
    assert ctl("--url", url, "pub", "log.gondor.warning", "the beacons are lit").exit_code == 0
    shown = ctl("--url", url, "--json", "logs", "--level", "info")
    assert shown.exit_code == 0, shown.output
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(each["node"], each["level"], each["wire"], each["text"]) for each in records] == [
        ("rohan", "error", "mc0", "fire"),
        ("gondor", "warning", "http", "the beacons are lit"),
    ]
    assert records[0]["fields"] == {"n": 1}
    assert "smoke" in ctl("--url", url, "logs", "ro*").stdout
    following = [sys.executable, "-m", "broker.brokerctl", "--url", url, "logs", "gondor", "-f"]
    with subprocess.Popen(following, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "the beacons are lit" in process.stdout.readline()
        ctl("--url", url, "pub", "log.gondor", "they are answered")
        assert "they are answered" in process.stdout.readline()
        process.terminate()
    until(lambda: len((daemon.directory / "state" / "collected.jsonl").read_text().splitlines()) == 4)
