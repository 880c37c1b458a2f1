"""mc0 from outside: the dialogue, sessions and their ends, the farm's topics, the console, and bad neighbours.

The file is longer than others: its tests share one daemon, which is expensive to start.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.app.process import SPARE
from broker.config.key import declared
from broker.core.store import DATABASE
from broker.wires.mc0.mc0_settings import Mc0
from tests.access.users import ACCESS, ELSEWHERE, put, right
from tests.integration.daemon import ROOT, Daemon
from tests.integration.mc0_clients import (
    Client,
    Clients,
    clients_of,
    configured,
    console,
    counters,
    identities,
    is_served,
    shown,
    whole_log,
)
from tests.net.zmtp_peers import greeting, ready
from tests.patience import PATIENCE, until

LONGEST_FRAME = 1_200_000
"""The value of ``max_message`` in these tests: little more than the megabyte of a topic that is too long."""

HANDSHAKE = 0.3
"""And ``handshake``: a connection that does not become one is closed after these seconds."""

LEAST_STALLED_AFTER = next(each.key.within or (0,) for each in declared(Mc0) if each.name == "stalled_after")[0]
"""The shortest ``stalled_after`` that a configuration may have, in seconds."""

MEGABYTE = "t" * (1 << 20)

LONGEST_STOP = 20.0
"""Seconds that a stop may take, whatever peers do: systemd kills the broker after them. It takes a fifth of a second on
a machine that is not busy."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for many tests; in the end it must have had no defect."""
    directory = tmp_path_factory.mktemp("mc0")
    with Daemon(
        directory, *configured(directory, f"max_message = {LONGEST_FRAME}\nhandshake = {HANDSHAKE}")
    ) as running:
        running.mc0_port()
        yield running
        running.signal(signal.SIGTERM)
        log = whole_log(running)
        assert "Traceback" not in log
        assert " critical " not in log


@pytest.fixture
def clients(daemon: Daemon) -> Iterator[Clients]:
    with clients_of(daemon) as clients:
        yield clients


@pytest.fixture
def bystander(clients: Clients) -> Client:
    return clients.subscribed(b"bystander", "peace")


# the dialogue


def test_the_dialogue_of_the_document(clients: Clients) -> None:
    node = clients.new(b"node")
    node.say("CONNECT|VERSION|0.3|TTL|30000")
    node.say("SUB||topic1|topic2")
    assert node.heard() == []
    assert node.ask("NOOP|ID|1234") == "OK|ID|1234"
    node.say("PUT|TOPIC|topic1|X-REPLY-TO|topic2|ID|5||one|two||three")
    assert node.hear() == "MESSAGE|TOPIC|topic1|X-REPLY-TO|topic2||one|two||three"
    assert node.hear() == "OK|ID|5"
    node.say("UNSUB||topic1")
    node.say("PUT|TOPIC|topic1||nobody hears that")
    node.say("PUT|TOPIC|topic2||x")
    assert node.heard() == ["MESSAGE|TOPIC|topic2||x"]
    assert node.ask("DISCONNECT|ID|6") == "OK|ID|6"
    node.say("PUT|TOPIC|topic2||nor that")
    assert node.heard() == []


def test_a_req_socket_is_a_client_too(clients: Clients) -> None:
    client = clients.new(kind=zmq.REQ)
    for line in ("CONNECT|TTL|30000", "SUB", "PUT|TOPIC|nobody", "UNSUB", "NOOP", "DISCONNECT"):
        assert client.ask(f"{line}|ID|1||t") == "OK|ID|1"
    assert client.ask("PUT|ID|2||x") == "ERROR|MESSAGE|PUT needs a TOPIC that is not empty|ID|2"


def test_the_load_tool_finds_verb_and_id_at_their_places(clients: Clients) -> None:
    """As mc0torture does: the second frame must be OK, the fourth the ID."""
    chatty = [clients.new(f"chattyClient {number}".encode()) for number in range(5)]
    for client in chatty:
        client.send(b"CONNECT", b"ID", client.identity)
    for client in chatty:
        for number in range(50):
            client.send(b"NOOP", b"ID", b"%b %d" % (client.identity, number))
    for client in chatty:
        for id in [client.identity, *(b"%b %d" % (client.identity, number) for number in range(50))]:
            frames = client.socket.recv_multipart()
            assert (frames[1], frames[3]) == (b"OK", id)
            assert len(frames) == 4
        client.send(b"DISCONNECT")


def test_two_are_sent_what_a_third_publishes_and_one_of_them_comes_back(daemon: Daemon, clients: Clients) -> None:
    steady = clients.subscribed(b"steady", "news")
    roving = clients.subscribed(b"roving", "news")
    publisher = clients.new(b"publisher")
    assert publisher.ask("PUT|TOPIC|news|ID|1||both") == "OK|ID|1"
    assert [steady.hear(), roving.hear()] == ["MESSAGE|TOPIC|news||both"] * 2
    before = counters(daemon)["mc0_dropped.gone"]
    roving.socket.disconnect(roving.address)
    number = 1

    def dropped() -> bool:
        nonlocal number
        number += 1
        roving.hears_nothing(0)  # libzmq goes on with disconnecting when it is asked something
        assert publisher.ask(f"PUT|TOPIC|news|ID|{number}||one") == f"OK|ID|{number}"
        return counters(daemon)["mc0_dropped.gone"] > before

    until(dropped)
    roving.socket.connect(roving.address)
    assert set(roving.heard()) <= {"MESSAGE|TOPIC|news||one"}  # which broke off where, nobody knows
    assert publisher.ask("PUT|TOPIC|news|ID|last||both again") == "OK|ID|last"
    assert roving.hear() == "MESSAGE|TOPIC|news||both again"
    assert steady.heard() == ["MESSAGE|TOPIC|news||one"] * (number - 1) + ["MESSAGE|TOPIC|news||both again"]


# the life of a session


@pytest.mark.long
def test_noops_come_at_half_the_ttl_until_a_silent_session_ends(daemon: Daemon, clients: Clients) -> None:
    before = counters(daemon)
    node = clients.subscribed(b"silent in the end", "t")
    assert node.ask("CONNECT|TTL|1000|ID|c") == "OK|ID|c"
    gaps = []
    for _ in range(3):
        began = time.monotonic()
        assert node.hear() == "NOOP"
        gaps.append(time.monotonic() - began)
        node.say("NOOP")
    assert 0.4 < sorted(gaps)[1] < 0.9
    assert "silent in the end" in identities(daemon)
    until(lambda: "silent in the end" not in identities(daemon))
    after = counters(daemon)
    assert after["mc0_sessions.expired"] == before["mc0_sessions.expired"] + 1
    node.say("PUT|TOPIC|t||nobody is subscribed any more")
    assert set(node.heard()) <= {"NOOP"}  # some from before the end


@pytest.mark.long
def test_after_a_kill_subscribers_that_say_nothing_are_sent_messages_and_noops(tmp_path: Path) -> None:
    ttl = 8.0  # in which all must have connected again, also on a machine that is busy
    with Daemon(tmp_path) as daemon:
        port = daemon.mc0_port()
        clients = clients_of(daemon)
        nodes = [clients.subscribed(b"node %d" % number, "t") for number in range(5)]
        for node in nodes:
            assert node.ask(f"CONNECT|VERSION|0.2|TTL|{ttl * 1000:.0f}|ID|c") == "OK|ID|c"
        steady = clients.subscribed(b"steady", "t")
        until(lambda: stored(tmp_path / "state") == {b"node %d" % n: ttl for n in range(5)} | {b"steady": 0.0})
        daemon.signal(signal.SIGKILL)
        daemon.ended()
    for node in (*nodes, steady):
        node.cut_off()
        with suppress(zmq.Again):
            while True:
                node.socket.recv_multipart(zmq.NOBLOCK)  # a NOOP from before
    with Daemon(tmp_path, "--mc0-port", str(port)) as daemon, clients:
        for node in (*nodes, steady):
            node.let_in()
        publisher = clients.new(b"publisher")
        assert publisher.ask("PUT|TOPIC|t|ID|p||ping") == "OK|ID|p"
        for node in (*nodes, steady):
            hear_after_noops(node, "MESSAGE|TOPIC|t||ping")
        assert nodes[0].hear() == "NOOP"
        assert counters(daemon)["mc0_sessions.restored"] == 6
        nodes[0].say("DISCONNECT|ID|d")
        hear_after_noops(nodes[0], "OK|ID|d")
        until(lambda: b"node 0" not in stored(tmp_path / "state"))
        console(daemon, "disconnect mc0 steady")
        steady.cut_off()
        until(lambda: b"steady" not in stored(tmp_path / "state"))


def test_after_a_drain_subscribers_that_come_back_are_sent_messages(tmp_path: Path) -> None:
    ttl = 1.0
    with Daemon(tmp_path) as daemon, clients_of(daemon) as clients:
        node = clients.subscribed(b"node", "t")
        assert node.ask(f"CONNECT|TTL|{ttl * 1000:.0f}|ID|c") == "OK|ID|c"
        console(daemon, "drain 60")
        node.cut_off()
        time.sleep(3 * ttl)
        assert identities(daemon) == ["node"]
        console(daemon, "drain undo")
        until(lambda: shown(daemon, "mc0 sessions")[0]["address"])
        publisher = clients.new(b"publisher")
        assert publisher.ask("PUT|TOPIC|t|ID|p||x") == "OK|ID|p"
        hear_after_noops(node, "MESSAGE|TOPIC|t||x")


def hear_after_noops(client: Client, line: str) -> None:
    """Wait for a message, before which only NOOPs may come."""
    while (heard := client.hear()) != line:
        assert heard == "NOOP"


def stored(state: Path) -> dict[bytes, float]:
    """The TTLs of the sessions that would outlast a kill, by identity."""
    with closing(sqlite3.connect(f"file:{state / DATABASE}?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT identity, ttl FROM session"))


def test_without_the_record_a_client_receives_nothing_after_a_restart_until_it_connects_again(tmp_path: Path) -> None:
    ttl = 0.4
    with Daemon(tmp_path) as daemon:
        port = daemon.mc0_port()
        clients = clients_of(daemon)
        node = clients.subscribed(b"node", "t")
        assert node.ask(f"CONNECT|TTL|{ttl * 1000:.0f}|ID|c") == "OK|ID|c"
        assert node.hear() == "NOOP"
        daemon.signal(signal.SIGKILL)
        daemon.ended()
    node.cut_off()
    with suppress(zmq.Again):
        while True:
            node.socket.recv_multipart(zmq.NOBLOCK)  # a NOOP from before
    with Daemon(tmp_path, "--mc0-port", str(port), "--state", str(tmp_path / "empty")) as daemon, clients:
        node.let_in()
        node.say("NOOP")
        node.say("PUT|TOPIC|t||nobody is subscribed")
        node.say("PUT|TOPIC|elkobroker.load||nobody may")
        assert node.heard() == []
        assert node.hears_nothing(ttl)
        [session] = shown(daemon, "mc0 sessions")
        assert (session["identity"], session["ttl"], session["topics"]) == ("node", 0, [])
        assert node.ask("CONNECT|TTL|30000|ID|again") == "OK|ID|again"
        assert node.ask("SUB|ID|again||t") == "OK|ID|again"
        assert node.ask("PUT|TOPIC|t||x") == "MESSAGE|TOPIC|t||x"


# reload


def rights(subscribe: str, operations: str = "publish") -> str:
    """A users file by which everybody may subscribe to some topics."""
    return (
        "nobody = true\n"
        + ELSEWHERE
        + right("anonymous", operations, "mc0")
        + right("anonymous", "subscribe", "mc0", f"topic:{subscribe}")
    )


def test_a_change_of_rights_changes_what_live_sessions_may_do(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    put(users, rights("first"))
    options = configured(tmp_path, ACCESS)
    with Daemon(tmp_path, *options) as daemon, clients_of(daemon) as clients:
        connector = clients.new(b"connector")
        assert connector.ask("CONNECT|VERSION|0.2|TTL|30000|ID|c") == "OK|ID|c"
        assert connector.ask("SUB|ID|s||first|second") == "OK|ID|s"
        plain = clients.new(b"plain")
        assert "has no right to subscribe 'second' here|ID|s" in plain.ask("SUB|ID|s||second")
        publisher = clients.new(b"publisher")

        def published() -> list[str]:
            assert publisher.ask("PUT|TOPIC|first|ID|1||x") == "OK|ID|1"
            assert publisher.ask("PUT|TOPIC|second|ID|2||x") == "OK|ID|2"
            return connector.heard()

        assert published() == ["MESSAGE|TOPIC|first||x"]
        put(users, rights("sec*"))
        daemon.wait_for("the users file changed")
        assert published() == ["MESSAGE|TOPIC|second||x"]
        assert plain.ask("SUB|ID|s||second") == "OK|ID|s"
        put(users, rights("first", "pubish"))
        daemon.wait_for(r"users.toml, line \d+: rights\[1\].operations\[0\] matches no operation")
        assert published() == ["MESSAGE|TOPIC|second||x"]


# the farm


def test_the_farms_topics_follow_an_elko_provider(daemon: Daemon, clients: Clients) -> None:
    watcher = clients.subscribed(b"watcher", "elkobroker.services", "elkobroker.load")

    def change(topic: bytes) -> dict[str, Any]:
        *head, body = watcher.receive()
        assert head == [b"MESSAGE", b"TOPIC", topic, b""]
        assert b"sesame" not in body
        about: dict[str, Any] = json.loads(body)
        return about

    with daemon.connect(label="Bank") as provider:
        auth = {"type": "auth", "mode": "password", "code": "sesame"}
        bank = {"service": "bank", "hostport": "bank.example.com:7000", "label": "Bank", "auth": auth}
        provider.send(to="client", op="willserve", services=[bank])
        provider.send(to="client", op="load", factor=0.25)
        came = change(b"elkobroker.services")
        loaded = change(b"elkobroker.load")
    went = change(b"elkobroker.services")
    provider_id = came["provider"]
    about = {"service": "bank", "hostport": "bank.example.com:7000", "protocol": "tcp", "label": "Bank"}
    about["provider"] = provider_id
    assert came == {**about, "on": True, "revision": came["revision"]}
    assert loaded == {"provider": provider_id, "label": "Bank", "load": 0.25, "revision": loaded["revision"]}
    assert went == {**about, "on": False, "revision": went["revision"]}
    assert came["revision"] < loaded["revision"] < went["revision"]


def test_nobody_publishes_on_the_farms_topics(clients: Clients) -> None:
    watcher = clients.subscribed(b"watcher", "elkobroker.services", "elkobroker.mine")
    liar = clients.new(b"liar")
    for topic in ("elkobroker.services", "elkobroker.mine"):
        assert f"has no right to publish '{topic}' here|ID|p" in liar.ask(f"PUT|TOPIC|{topic}|ID|p||{{}}")
    assert watcher.heard() == []


def test_the_example_prints_a_registration_its_load_and_its_end(daemon: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "printed"
    command = [sys.executable, "-u", str(ROOT / "examples/farm.py"), "--broker", f"tcp://127.0.0.1:{daemon.mc0_port()}"]
    offering = [sys.executable, str(ROOT / "examples/provider.py"), "--broker", f"127.0.0.1:{daemon.port()}"]
    offering += ["--service", "bank", "--hostport", "bank.example.com:7000", "--load", "0.25"]

    with out.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as farm:
        try:
            until(lambda: "watching the farm\n" in out.read_text())
            with subprocess.Popen(offering, stdout=subprocess.DEVNULL) as provider:
                try:
                    until(lambda: "load of" in out.read_text())
                finally:
                    provider.kill()
            until(lambda: "- bank" in out.read_text())
        finally:
            farm.kill()
    assert re.sub(r"\(provider \d+\)", "(provider 1)", out.read_text()).splitlines() == [
        "watching the farm",
        "+ bank at bank.example.com:7000 (provider 1)",
        "load of example provider (provider 1): 0.25",
        "- bank at bank.example.com:7000 (provider 1)",
    ]


# the console


def test_the_console_shows_sessions_and_topics_by_pattern(daemon: Daemon, clients: Clients) -> None:
    web = clients.subscribed(b"web1 424 #<Thread:0x0 run>", "mcollective nodes web1", "mcollective discovery")
    assert web.ask("CONNECT|TTL|30000|ID|c") == "OK|ID|c"
    clients.subscribed(b"db1", "mcollective discovery")
    commands = console(daemon, "help")
    assert "\n  mc0 sessions [PATTERN]\n" in commands
    assert "\n  mc0 topics [PATTERN]\n" in commands
    assert {"web1 424 #<Thread:0x0 run>", "db1"} <= set(identities(daemon))
    [session] = shown(daemon, "mc0 sessions web*")
    assert session.pop("heard") < PATIENCE
    assert session == {
        "identity": "web1 424 #<Thread:0x0 run>",
        "address": "127.0.0.1",
        "ttl": 30_000,
        "subscriptions": 2,
        "topics": ["mcollective nodes web1", "mcollective discovery"],
        "dropped": 0,
    }
    assert shown(daemon, "mc0 sessions nobody*") == []
    assert shown(daemon, 'mc0 topics "mcollective d*"') == [
        {"topic": "mcollective discovery", "subscribers": 2, "published": 0}
    ]


def test_where_mc0_is_off_nothing_of_it_is_there(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--mc0-port", "off") as daemon:
        commands = console(daemon, "help")
        assert "  counters\n" in commands
        assert "mc0" not in commands
        assert console(daemon, "mc0 sessions").startswith("error: there is no command 'mc0'")
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        assert "mc0 on" not in whole_log(daemon)


# bad neighbours


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param("GET|ID|x", "ERROR|MESSAGE|Unknown command verb 'GET'|ID|x", id="unknown verb"),
        pytest.param("PUT|ID|x|TOPIC", "ERROR|MESSAGE|the last header has no value|ID|x", id="odd headers"),
        pytest.param(
            "PUT|ID|x|TOPIC|t|X-A||body", "ERROR|MESSAGE|the last header has no value|ID|x", id="an empty value"
        ),
        pytest.param(
            f"PUT|ID|x|TOPIC|{MEGABYTE}||b",
            "ERROR|MESSAGE|a topic of PUT has more than 4096 bytes|ID|x",
            id="a long topic to publish on",
        ),
        pytest.param(
            f"SUB|ID|x||peace|{MEGABYTE}",
            "ERROR|MESSAGE|a topic of SUB has more than 4096 bytes|ID|x",
            id="a long topic to subscribe to",
        ),
        pytest.param(
            f"NOOP|ID|x{'|k|v' * 1000}",
            "ERROR|MESSAGE|the message has more than 1000 headers|ID|x",
            id="many headers",
        ),
        pytest.param("CONNECT|TTL|soon|ID|x", "ERROR|MESSAGE|the TTL of CONNECT is no number|ID|x", id="no TTL"),
    ],
)
def test_what_is_no_message_is_an_error_and_harmless(
    clients: Clients, bystander: Client, said: str, answer: str
) -> None:
    rude = clients.new(b"rude")
    assert rude.ask(said) == answer
    is_served(bystander)
    assert rude.heard() == []


def test_bad_input_again_and_again_is_one_line_a_minute_and_commands_no_terminal(tmp_path: Path) -> None:
    identity, visible = b"\xff\x00\x1b[2J\n{evil}\x7f", r"\xff\x00\x1b[2J\n{evil}\x7f"
    with Daemon(tmp_path) as daemon, clients_of(daemon) as clients:
        rude = clients.new(identity)
        for _ in range(5):
            rude.say("\x1b[2J\x9b\n{message}")
        assert rude.heard() == ["ERROR|MESSAGE|Unknown command verb '\x1b[2J\x9b\n{message}'"] * 5
        assert identities(daemon) == [visible]
        assert counters(daemon)["mc0_refused.unknown-op"] == 5
        daemon.signal(signal.SIGTERM)
        log = whole_log(daemon)
        [line] = [line for line in log.splitlines() if "unknown-op" in line]
        assert f"mc0 peer 127.0.0.1: unknown-op: {visible}: Unknown command verb " in line
        assert not set("\x1b\x9b\x7f\0") & set(log)


# starting and stopping


@pytest.mark.long
def test_a_client_that_does_not_read_does_not_delay_the_stop(tmp_path: Path) -> None:
    with Daemon(tmp_path, *configured(tmp_path, "high_water = 10")) as daemon, clients_of(daemon) as clients:
        slow = clients.subscribed(b"slow", "flood", rcvhwm=1, rcvbuf=10_000)
        publisher = clients.new(b"publisher")

        def dropped() -> bool:
            for _ in range(50):
                publisher.send(b"PUT", b"TOPIC", b"flood", b"ID", b"p", b"", bytes(60_000))
                assert publisher.hear() == "OK|ID|p"
            return bool(counters(daemon)["mc0_dropped.full"])

        until(dropped)
        for number in range(10):
            slow.say(f"NOOP|ID|{number}")
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        assert time.monotonic() - began < LONGEST_STOP
        assert "Traceback" not in whole_log(daemon)


def test_a_stop_that_ends_services_is_no_failure_to_tell_of_them(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, clients_of(daemon) as clients, daemon.connect() as provider:
        clients.subscribed(b"watcher", "elkobroker.services")
        provider.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
        provider.done()
        daemon.signal(signal.SIGTERM)
        provider.closed()
        provider.sock.close()
        assert "Traceback" not in whole_log(daemon)


def test_a_unix_socket_serves_too_also_over_what_a_kill_left(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/mc0"
    options = configured(tmp_path, f'endpoint = "{endpoint}"')
    for _ in range(2):
        with Daemon(tmp_path, *options) as daemon, Clients(endpoint) as clients:
            daemon.wait_for(re.escape(f"mc0 on {endpoint} (null)"))
            is_served(clients.subscribed(b"node", "peace"))
            [session] = shown(daemon, "mc0 sessions")
            assert session["address"] == f"uid {os.getuid()} here"
            daemon.signal(signal.SIGKILL)
            daemon.ended()


@pytest.mark.long
def test_where_descriptors_are_few_the_console_has_some_left(tmp_path: Path) -> None:
    room = 20
    with (
        Daemon(
            tmp_path,
            "--dbp-port",
            "off",
            "--mtl-port",
            "off",
            "--http-port",
            "off",
            descriptors=SPARE + 5 * room,
        ) as daemon,
        clients_of(daemon) as clients,
    ):
        nodes = [clients.subscribed(b"node %d" % number, "peace") for number in range(room)]
        peers = [daemon.connect() for _ in range(room)]
        for peer in peers:
            peer.done()
        assert len(identities(daemon)) == room
        for node in nodes:
            assert node.heard() == []
        for peer in peers:
            peer.sock.close()


# limits of the listener


def test_a_connection_that_leaves_a_frame_unfinished_is_closed(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path, *configured(tmp_path, f"stalled_after = {LEAST_STALLED_AFTER}")) as daemon,
        socket.create_connection(("127.0.0.1", daemon.mc0_port()), PATIENCE) as slow,
    ):
        slow.settimeout(PATIENCE)
        slow.sendall(greeting() + ready({b"Socket-Type": b"DEALER", b"Identity": b""}))
        slow.sendall(b"\x02" + (1 << 20).to_bytes(8) + b"x")
        while slow.recv(65536):  # the broker's greeting and READY
            pass
        assert counters(daemon)["mc0_refused.too-slow"] == 1
