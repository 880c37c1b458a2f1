"""MTL together with the rest of the farm, from outside: other wires, the console, and restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import zmq

from tests.access.users import ACCESS, ELSEWHERE, give_password, put, right
from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import clients_of, console, counters, shown
from tests.integration.mtl_peers import (
    PING,
    Confirm,
    Content,
    Flow,
    Peers,
    Reject,
    Response,
    configured,
    ends_in_order,
    peers_of,
)


def desc(name: str, hostport: str = "h:1", **more: Any) -> dict[str, Any]:
    """A descriptor of a service, as Elko has it."""
    return {"type": "servicedesc", "service": name, "hostport": hostport, **more}


def event(content: Content) -> tuple[str, Any]:
    """Return the event of a Content of the registry, and the descriptor of the entry."""
    return content.properties["event"], json.loads(content.body) if content.body else None


def synced(reader: Flow) -> None:
    """Wait for the end of a snapshot, in which nothing is."""
    content = reader.content()
    assert event(content) == ("synced", None)
    assert content.properties["revision"] >= 0


# the registry


def test_S06_the_registry_begins_with_a_snapshot(mtl: Daemon, peers: Peers) -> None:
    with mtl.connect(label="bank 1") as provider:
        provider.send(to="client", op="willserve", services=[desc("bank"), desc("bank", "h:2"), desc("post")])
        provider.done()
        reader = peers.leased("registry", "Reader", "service/bank")
        assert reader.summon("service/bank") == "200"
        kind, body = event(first := reader.content())
        assert (kind, body["service"]) == ("snapshot", "bank")
        assert first.resource == "service/bank"
        assert first.properties["service"] == "bank"
        synced(reader)
        assert reader.heard() == []


# topics


def test_what_mc0_puts_mtl_reads_and_the_other_way_round(mtl: Daemon, peers: Peers) -> None:
    reader, elsewhere = peers.reader("topic", "shared"), peers.reader("topic", "shared", host="elsewhere")
    writer = peers.writer("topic", "shared", confirm="full")
    with clients_of(mtl) as clients:
        client = clients.subscribed(b"client", "shared")
        client.say("PUT|TOPIC|shared|X-A|1||from mc0")
        assert client.hear() == "MESSAGE|TOPIC|shared|X-A|1||from mc0"
        content = reader.content()
        assert (content.resource, content.body, content.properties) == ("shared", b"from mc0", {"X-A": "1"})
        properties = {"X-B": "text", "X-C": 7, "content-type": "text/plain"}
        sequence = writer.write(b"from mtl", "shared", properties)
        assert client.hear() == "MESSAGE|TOPIC|shared|X-B|text|X-C|7||from mtl"
        assert reader.content().properties == properties
        assert writer.settled(sequence) == []
    assert elsewhere.heard() == []


def test_the_farm_can_be_watched_by_a_topic_of_the_brokers_own(mtl: Daemon, peers: Peers) -> None:
    reader = peers.reader("topic", "elkobroker.services")
    with mtl.connect(label="x") as provider:
        provider.send(to="client", op="willserve", services=[desc("watched by topic")])
        while (told := json.loads(reader.content().body))["service"] != "watched by topic":
            pass
        assert told["on"]
    assert peers.control().opened("topic").lease("Writer", "elkobroker.services").code == "403"


# the console


def test_the_console_shows_sessions_flows_and_queues(mtl: Daemon, peers: Peers) -> None:
    peers.control().opened("topic")
    reader = peers.reader("queue", "seen by the console", window=5)
    writer = peers.writer("queue", "seen by the console", confirm="none")
    for _ in range(7):
        writer.write(b"xyz")
    reader.contents(5)
    sessions = shown(mtl, "mtl sessions")
    assert {"user", "address", "host", "profile", "authorized"} <= sessions[0].keys()
    assert {"profile": "topic", "host": "/", "authorized": True, "address": "127.0.0.1"}.items() <= max(
        sessions, key=lambda each: each["profile"] == "topic"
    ).items()
    flows = [each for each in shown(mtl, "mtl flows queue") if each.get("summoned") == ["seen by the console"]]
    [flow] = flows
    assert (flow["side"], flow["confirm"], flow["sent"]) == ("reader", "full", 5)
    assert flow["resources"] == ["seen by the console"]
    [queue] = shown(mtl, "mtl queues seen*")
    assert (queue["queue"], queue["ready"], queue["unconfirmed"], queue["readers"]) == ("seen by the console", 2, 5, 1)
    assert shown(mtl, "mtl queues nobody*") == []
    assert "mtl sessions" in console(mtl, "help")
    counted = counters(mtl)
    assert counted["mtl_contents.received"] >= 7
    assert counted["mtl_requests.answered"] > 0


# reloads and restarts


def test_the_registry_and_the_topics_of_other_wires_stay_in_their_virtual_host(tmp_path: Path) -> None:
    config = configured(tmp_path, 'hosts = ["/", "b"]')
    with Daemon(tmp_path, "--config", config) as daemon, peers_of(daemon) as peers:
        assert "registry" in peers.control().open("/").body["profiles"]
        configured(tmp_path, 'hosts = ["b", "/"]')
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("reloaded")  # or not
        assert "registry" in peers.control().open("/").body["profiles"]
        assert "registry" not in peers.control().open("b").body["profiles"]


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], AbstractContextManager[Daemon]]:
    """Starts a daemon at a unix socket that requires authentication; several times if needed."""
    users = tmp_path / "users.toml"
    put(users, ELSEWHERE + right("alice", "*", "mtl"))
    give_password(users, "alice", "secret")
    keys = f'endpoint = "ipc://@elkobroker-{uuid4()}"'
    config = configured(tmp_path, keys + ACCESS + '\n[[mtl.queues]]\nqueues = ["durable"]\ndurable = true')
    return lambda: Daemon(tmp_path, "--config", config)


def test_H09_after_a_restart_an_old_flow_can_tell_and_durable_messages_are_there(
    start: Callable[[], AbstractContextManager[Daemon]],
) -> None:
    def log_in() -> None:
        assert control.open().body["mechanisms"] == ["SCRAM-SHA-256", "PLAIN"]
        assert control.plain("alice", "secret").code == "201"
        assert control.profile("queue").code == "200"

    with start() as before:
        peers = peers_of(before)
        assert peers.address == peers.data
        control, flow = peers.control(), peers.flow()
        log_in()
        reply = control.lease("Writer", "durable", "lost")
        assert reply.body["port"] == 0, "the endpoint that it is connected to"
        assert flow.lease(reply.body["lease"]) == "200"
        sent = [flow.write(b"%d" % number, name) for number in range(20) for name in ("durable", "lost")]
        assert flow.settled(*sent) == []
        before.signal(signal.SIGKILL)
        before.ended()
    with peers, start() as after:
        after.wait_for("mtl on ")
        assert control.profile("queue").body["reason"] == "open"
        flow.say(bytes([PING]), b"")
        assert flow.receive() == Response(0, "403")
        assert flow.lease(reply.body["lease"]) == "403"
        log_in()
        assert flow.lease(control.token("Reader", "durable", "lost")) == flow.summon("durable") == "200"
        contents = flow.contents(20)
        assert [content.body for content in contents] == [b"%d" % number for number in range(20)]
        assert contents[0].properties["user-id"] == "alice"
        assert flow.summon("lost") == "200"
        assert flow.heard() == []
        ends_in_order(after)


def test_K03_whatever_is_on_the_disk_after_a_stop_was_confirmed(tmp_path: Path) -> None:
    """A writer writes without a pause while the broker stops, so that some messages are on their way to the disk."""
    config = configured(tmp_path, '[[mtl.queues]]\nqueues = ["durable"]\ndurable = true')
    with Daemon(tmp_path, "--config", config) as before, peers_of(before) as peers:
        writer = peers.writer("queue", "durable")
        number = 0

        def write() -> None:
            nonlocal number
            number = writer.write(b"%d" % (number + 1), sequence=number + 1)

        while number < 500:
            write()
        before.signal(signal.SIGTERM)
        confirmed = 0
        rejected = set()
        while before.process.poll() is None or writer.socket.poll(0):
            if writer.socket.poll(0, zmq.POLLOUT):  # there is no room behind the end
                write()
            while writer.socket.poll(0):
                answer = writer.receive()
                assert isinstance(answer, Confirm | Reject)
                if isinstance(answer, Reject):
                    rejected.add(answer.sequence)
                else:
                    assert answer.sequence > confirmed
                    confirmed = answer.sequence
    with Daemon(tmp_path, "--config", config) as after, peers_of(after) as peers:
        reader = peers.reader("queue", "durable", window=1_000)
        kept = set()
        for sequence in range(1, confirmed - len(rejected) + 1):
            kept.add(int(reader.content().body))
            if not sequence % 500:
                reader.confirm(sequence, multiple=True)
        assert kept == set(range(1, confirmed + 1)) - rejected
        assert reader.heard() == []
