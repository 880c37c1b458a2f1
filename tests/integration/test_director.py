"""The director in the real daemon: Context Servers find it by themselves, and users are placed and never thrown out."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as web_socket

from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.configurations import OFF, listener
from tests.integration.context_server import ContextServer
from tests.integration.daemon import ROOT, Daemon, Peer
from tests.integration.mtl_peers import ends_in_order
from tests.patience import PATIENCE
from tests.patience import until as wait_until

OPTIONS = ("--mc0-port", "off", "--dbp-port", "off", "--mtl-port", "off")


def director(directory: Path, port: int = 0, broker: int = 0) -> Daemon:
    """A daemon with a director."""
    return Daemon(directory, "--director-port", str(port), *OPTIONS, port=broker)


def director_port(daemon: Daemon, listener: str = "main") -> int:
    """The port of the director."""
    return int(daemon.wait_for(rf"director listener '{listener}' on \S+:(\d+) ").group(1))


def connect(daemon: Daemon, role: str) -> Peer:
    """A peer of the director."""
    peer = Peer(socket.create_connection(("127.0.0.1", director_port(daemon)), PATIENCE))
    peer.send(to=role, op="auth", label="tester")
    return peer


def place(user: Peer, server: ContextServer, context: str, name: str) -> None:
    """A user asks where to go, and goes there."""
    answer = user.ask(to="director", op="reserve", protocol="tcp", context=context, user=name)
    assert answer["hostport"] == server.address
    server.enter(answer["reservation"], answer["context"], name)


def settled(admin: Peer, **parameters: Any) -> Any:
    """The answer to a dump, once the director has handled what servers had sent it before."""
    return admin.ask(to="admin", op="dump", depth=3, **parameters)


def until(admin: Peer, numusers: int) -> Any:
    """The dump as soon as it has that many users: what a server has sent may still be on its way."""
    end = time.monotonic() + PATIENCE
    while (answer := settled(admin))["numusers"] != numusers:
        assert time.monotonic() < end, answer
        time.sleep(0.01)
    return answer


def test_without_being_asked_for_there_is_none(tmp_path: Path) -> None:
    with Daemon(tmp_path, *OPTIONS) as daemon, daemon.connect() as client:
        for role in ("user", "provider", "admin"):
            [desc] = client.ask(to="broker", op="find", service=f"director-{role}")["desc"]
            assert desc["failure"] == "no such service"


def test_a_server_finds_the_director_by_itself_and_a_user_enters(tmp_path: Path) -> None:
    with director(tmp_path) as daemon, daemon.connect() as client:
        for role in ("user", "provider", "admin"):
            [desc] = client.ask(to="broker", op="find", service=f"director-{role}")["desc"]
            assert desc["hostport"] == f"127.0.0.1:{director_port(daemon)}"
            assert (desc["protocol"], desc["provider"]) == ("tcp", 0)
        with (
            ContextServer("cs1", daemon.port()) as server,
            connect(daemon, "admin") as admin,
            connect(daemon, "director") as user,
        ):
            server.wait_for_links(1)
            place(user, server, "context-chat", "user-alice")
            assert until(admin, 1)["numcontexts"] == 1
            assert admin.ask(to="admin", op="find", user="user-alice")["contexts"] == ["context-chat"]
            admin.send(to="admin", op="say", context="context-chat", text="hello")
            [said] = server.wait_for("say")
            assert said == {"to": "provider", "op": "say", "context": "context-chat", "text": "hello"}
            admin.send(to="admin", op="relay", user="user-alice", msg={"to": "user-alice", "op": "hi"})
            [relayed] = server.wait_for("relay")
            assert relayed["msg"] == {"to": "user-alice", "op": "hi"}
        assert server.closes == []


def test_a_server_that_hears_of_the_director_again_is_still_one_and_nobody_is_thrown_out(tmp_path: Path) -> None:
    with (
        director(tmp_path) as daemon,
        ContextServer("cs1", daemon.port()) as server,
        connect(daemon, "admin") as admin,
        connect(daemon, "director") as user,
    ):
        server.wait_for_links(1)
        place(user, server, "context-a", "user-1")
        for links in (2, 3):
            admin.send(to="admin", op="reinit", director=True)
            server.wait_for_links(links)
            place(user, server, f"context-{links}", f"user-{links}")
        dump = until(admin, 3)
        assert (dump["numproviders"], dump["numcontexts"]) == (1, 3)
        assert admin.ask(to="admin", op="listproviders")["providers"] == ["cs1"]
        ends_in_order(daemon)
        assert server.closes == []


def test_a_server_that_lost_the_director_comes_back_when_it_is_announced_again(tmp_path: Path) -> None:
    with (
        director(tmp_path) as daemon,
        ContextServer("cs1", daemon.port()) as server,
        connect(daemon, "admin") as admin,
        connect(daemon, "director") as user,
    ):
        server.wait_for_links(1)
        place(user, server, "context-a", "user-1")
        until(admin, 1)
        server.lose_directors()
        until(admin, 0)
        admin.send(to="admin", op="reinit", director=True)
        server.wait_for_links(1)
        assert until(admin, 1)["numproviders"] == 1
        assert server.closes == []


def test_after_the_end_of_the_daemon_the_servers_come_back_with_all_their_users(tmp_path: Path) -> None:
    with director(tmp_path) as daemon:
        broker, port = daemon.port(), director_port(daemon)
        with ContextServer("cs1", broker) as server, ContextServer("cs2", broker, 9001) as other:
            server.wait_for_links(1)
            other.wait_for_links(1)
            with connect(daemon, "director") as user:
                for number in range(10):
                    answer = user.ask(
                        to="director", op="reserve", protocol="tcp", context=f"context-{number}", user=f"user-{number}"
                    )
                    chosen = server if answer["hostport"] == server.address else other
                    chosen.enter(answer["reservation"], answer["context"], f"user-{number}")
            for end in (signal.SIGKILL, signal.SIGTERM):
                daemon.signal(end)
                daemon.ended()
                server.wait_for_links(0)
                other.wait_for_links(0)
                daemon.__exit__(None, None, None)
                daemon = director(tmp_path, port, broker)
                assert director_port(daemon) == port
                server.wait_for_links(1)
                other.wait_for_links(1)
                with connect(daemon, "admin") as admin:
                    dump = until(admin, 10)
                    assert (dump["numproviders"], dump["numcontexts"]) == (2, 10)
            assert server.closes == other.closes == []
            daemon.__exit__(None, None, None)


def test_the_director_is_shut_down_alone(tmp_path: Path) -> None:
    with (
        director(tmp_path) as daemon,
        daemon.connect("admin") as broker_admin,
        ContextServer("cs1", daemon.port()) as server,
        connect(daemon, "admin") as admin,
    ):
        server.wait_for_links(1)
        broker_admin.ask(to="admin", op="watch", services=True)
        for _ in range(2):
            admin.send(to="admin", op="shutdown", provider="cs1", director=True)
        server.wait_for("shutdown")
        admin.closed()
        server.wait_for_links(0)
        gone = [broker_admin.receive() for _ in range(3)]
        assert {notice["desc"][0]["service"] for notice in gone} == {
            "director-admin",
            "director-provider",
            "director-user",
        }
        assert not any(notice["on"] for notice in gone)
        with pytest.raises(OSError, match="refused"):
            connect(daemon, "admin")
        assert broker_admin.ask(to="admin", op="ping")["op"] == "pong"
        ends_in_order(daemon)


CONFIG = """
[broker]
diagnostics = true
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
enabled = false
[dbp]
enabled = false
[mtl]
enabled = false
[director]
service = "east"
providers = {providers}
[[director.listeners]]
name = "farm"
endpoint = "tcp:0:interface=127.0.0.1"
allow = ["provider"]
publish = "director.example.org:9010"
[[director.listeners]]
name = "people"
endpoint = "tcp:0:interface=127.0.0.1"
allow = ["user", "admin"]
"""


def test_listeners_of_its_own_and_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(CONFIG.format(providers=1))
    with Daemon(tmp_path, "--config", str(file)) as daemon, daemon.connect() as client:
        [desc] = client.ask(to="broker", op="find", service="director-provider-east")["desc"]
        assert desc["hostport"] == "director.example.org:9010"
        [desc] = client.ask(to="broker", op="find", service="director-user-east")["desc"]
        assert "auth" not in desc

        def join() -> Peer:
            peer = Peer(socket.create_connection(("127.0.0.1", director_port(daemon, "farm")), PATIENCE))
            peer.send(to="provider", op="auth", label="cs")
            return peer

        with join() as first, join() as second:
            first.done()
            assert "takes no more" in second.receive()["msg"]
            second.closed()
        file.write_text(CONFIG.format(providers=2))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        with join() as first, join() as second:
            first.done()
            second.done()
        file.write_text(CONFIG.format(providers=2).replace("9010", "9011"))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for(r"reload: changed: director.listeners\[farm\].publish")
        [desc] = client.ask(to="broker", op="find", service="director-provider-east")["desc"]
        assert desc["hostport"] == "director.example.org:9011"


def test_a_script_that_asks_and_ends_its_output_gets_a_large_dump(tmp_path: Path) -> None:
    with director(tmp_path) as daemon, connect(daemon, "provider") as server:
        server.send(to="provider", op="address", protocol="tcp", hostport="h:1")
        for number in range(3_000):
            server.send(to="provider", op="context", context=f"context-{number}", open=True, yours=False)
            server.send(to="provider", op="user", context=f"context-{number}", user=f"user-{number}", on=True)
        server.done()
        with connect(daemon, "admin") as admin:
            admin.send(to="admin", op="dump", depth=3)
            admin.send(to="admin", op="ping")
            admin.sock.shutdown(socket.SHUT_WR)
            dump = admin.receive()
            assert len(dump["providers"][0]["contexts"]) == 3_000
            assert admin.receive()["op"] == "pong"
            admin.closed()


def test_who_asks_for_more_than_may_wait_and_reads_it_gets_it_all(tmp_path: Path) -> None:
    with director(tmp_path) as daemon, connect(daemon, "provider") as server, connect(daemon, "admin") as admin:
        for number in range(2_000):
            name = f"context-{number}-{'x' * 200}"
            server.send(to="provider", op="context", context=name, open=True, yours=False)
            server.send(to="provider", op="user", context=name, user=f"user-{number}-{'x' * 200}", on=True)
        server.done()
        for _ in range(12):
            admin.send(to="admin", op="dump", depth=3)
        admin.send(to="admin", op="ping")
        for _ in range(12):
            assert admin.receive()["numusers"] == 2_000
        assert admin.receive()["op"] == "pong"


def test_the_end_of_a_server_with_a_crowd_that_is_watched_holds_nobody_up(tmp_path: Path) -> None:
    crowd = 3_000
    with director(tmp_path) as daemon, connect(daemon, "provider") as server, connect(daemon, "admin") as admin:
        admin.send(to="admin", op="watch", context="context-crowd")
        admin.send(to="admin", op="watch", user="user-anon")
        for number in range(crowd):
            name = f"context-crowd-{number}"
            server.send(to="provider", op="context", context=name, open=True, yours=False)
            server.send(to="provider", op="user", context=name, user=f"user-anon-{number}", on=True)
        server.done()
        server.sock.close()
        told = 0
        latest: dict[str, Any] = {"context": {"open": False, "clones": ["any"]}}
        while latest["context"].get("clones") or latest["user"]["on"]:
            notice = admin.receive()
            latest[notice["op"]] = notice
            told += 1
        assert told < crowd
        assert settled(admin)["numusers"] == 0


def test_the_console_speaks_to_the_director(tmp_path: Path) -> None:
    with (
        director(tmp_path) as daemon,
        ContextServer("cs1", daemon.port()) as server,
        Peer(socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE)) as console,
    ):
        server.wait_for_links(1)
        console.sock.sendall(b"director dump depth=1\ncounters\nquit\n")
        text = b""
        while data := console.sock.recv(65536):
            text += data
        assert b'"provider": "cs1"' in text
        assert b"director.providers 1" in text


ON_ALL_TRANSPORTS = (
    OFF
    + listener("main")
    + listener("main", of="director")
    + listener("web", 'transport = "websocket"', 'allow = ["user"]', of="director")
    + listener("poll", 'transport = "http"', 'path = "/director"', 'allow = ["user"]', of="director")
    + listener("rtcp", 'transport = "rtcp"', 'allow = ["user"]', of="director")
)


def test_users_may_come_over_any_transport(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(ON_ALL_TRANSPORTS)
    with Daemon(tmp_path, "--config", str(file)) as daemon, ContextServer("cs1", daemon.port()) as server:
        server.wait_for_links(1)
        with daemon.connect() as client:
            for protocol, listener in (("ws", "web"), ("http", "poll"), ("rtcp", "rtcp"), ("tcp", "main")):
                [desc] = client.ask(to="broker", op="find", service="director-user", protocol=protocol)["desc"]
                assert desc["hostport"] == f"127.0.0.1:{director_port(daemon, listener)}"
        request = {"to": "director", "op": "reserve", "protocol": "tcp"}
        with web_socket(f"ws://127.0.0.1:{director_port(daemon, 'web')}/", proxy=None) as browser:
            browser.send(json.dumps({"to": "director", "op": "auth"}))
            browser.send(json.dumps({**request, "context": "context-web", "user": "user-web"}))
            answer = json.loads(browser.recv(PATIENCE))
            server.enter(answer["reservation"], "context-web", "user-web")
        poller = HttpPeer(director_port(daemon, "poll"), "/director/")
        poller.send(to="director", op="auth")
        poller.send(**request, context="context-poll", user="user-poll")
        [answer] = poller.receive()
        server.enter(answer["reservation"], "context-poll", "user-poll")
        with RtcpPeer(director_port(daemon, "rtcp")) as peer:
            peer.send(to="director", op="auth")
            peer.send(**request, context="context-rtcp", user="user-rtcp")
            server.enter(peer.receive()["reservation"], "context-rtcp", "user-rtcp")
        with connect(daemon, "admin") as admin:
            assert until(admin, 3)["numcontexts"] == 3
        ends_in_order(daemon)


def test_the_example_enters(tmp_path: Path) -> None:
    with director(tmp_path) as daemon, ContextServer("cs1", daemon.port()) as server:
        server.wait_for_links(1)
        command = [sys.executable, str(ROOT / "examples/enter.py"), "--broker", f"127.0.0.1:{daemon.port()}"]
        run = partial(subprocess.run, capture_output=True, text=True, timeout=PATIENCE, check=False)
        ended = run([*command, "context-inn", "--user", "user-joe"])
        assert ended.stderr == ""
        found = re.fullmatch(r"context-inn at cs1:9000, reservation (\d+)\n", ended.stdout)
        assert found is not None
        server.enter(found[1], "context-inn", "user-joe")
        ended = run([*command, "shop-1"])
        assert (ended.returncode, ended.stderr) == (1, "shop-1: unable to find suitable server\n")


def test_a_peer_that_sends_rubbish_is_told_and_does_not_hurt_others(tmp_path: Path) -> None:
    with director(tmp_path) as daemon, ContextServer("cs1", daemon.port()) as server:
        server.wait_for_links(1)
        for rubbish in (b"/ what\n\n", b"\xff\xfe\n", b"{" * 100_000 + b"\n\n", b"x" * 1_048_577):
            with Peer(socket.create_connection(("127.0.0.1", director_port(daemon)), PATIENCE)) as bad:
                bad.sock.sendall(rubbish)
                assert bad.receive()["to"] == "error"
                bad.closed()
        with connect(daemon, "director") as user:
            place(user, server, "context-a", "user-1")
        assert server.closes == []
        ends_in_order(daemon)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_restart_a_user_waits_for_the_server_of_the_context_and_is_not_denied(
    tmp_path: Path, end: signal.Signals
) -> None:
    def returns(daemon: Daemon, name: str, *contexts: str) -> Peer:
        server = connect(daemon, "provider")
        server.send(to="provider", op="address", protocol="tcp", hostport=f"{name}:9000")
        server.send(to="provider", op="willserve", context="context")
        for context in contexts:
            server.send(to="provider", op="context", context=context, open=True, yours=False)
        server.done()
        return server

    with director(tmp_path) as daemon, returns(daemon, "one", "context-inn"), returns(daemon, "two"):
        record = tmp_path / "state" / "director.json"
        wait_until(lambda: record.exists() and '"context-inn"' in record.read_text())
        daemon.signal(end)
        daemon.ended()
    with director(tmp_path) as daemon, connect(daemon, "director") as user, returns(daemon, "two"):
        user.send(to="director", op="reserve", protocol="tcp", context="context-inn", user="user-joe")
        user.done()  # the request has been handled, and is not answered
        with returns(daemon, "one", "context-inn") as server:
            answer = user.receive()
            assert (answer["context"], answer["hostport"]) == ("context-inn", "one:9000")
            told = server.receive()
            assert (told["op"], told["reservation"]) == ("doreserve", answer["reservation"])
