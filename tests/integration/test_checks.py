"""Health checks in the real daemon: servers that are stopped, and continue, and services at real ports."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE

SERVER = Path(__file__).with_name("elko_server.py")

RULE = """
[[checks.rules]]
services = ["*"]
kind = "{kind}"
interval = 1.0
timeout = 0.3
up = 1
down = 2
policy = "{policy}"
{more}
"""

HEAD = """
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
[[director.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
[director]
enabled = true
[mc0]
enabled = false
[dbp]
enabled = false
[mtl]
enabled = false
[http]
enabled = false
[checks]
networks = ["127.0.0.0/8"]
"""


def daemon(directory: Path, kind: str = "ping", policy: str = "hide", more: str = "") -> Daemon:
    """A broker with a director, and one rule of checks."""
    tables = HEAD.split("[[director.listeners]]")
    text = f"{tables[0]}{tables[1][tables[1].index('[director]') :]}{RULE.format(kind=kind, policy=policy, more=more)}"
    listener = '[[director.listeners]]\nname = "main"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
    text = text.replace("[director]\nenabled = true\n", f"[director]\nenabled = true\n{listener}")
    (directory / "broker.toml").write_text(text)
    return Daemon(directory, "--config", str(directory / "broker.toml"))


def ports(running: Daemon) -> tuple[int, int]:
    """The ports of the broker and of the director."""
    found = running.wait_for(r"director listener 'main' on \S+:(\d+) ")
    return running.port(), int(found.group(1))


@contextmanager
def server(running: Daemon, label: str, hostport: str) -> Iterator[subprocess.Popen[str]]:
    """A server as a process of its own, which has registered."""
    command = [sys.executable, str(SERVER), *map(str, ports(running)), label, hostport]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


class Operator:
    """An operator at the console."""

    def __init__(self, running: Daemon) -> None:
        self._socket = socket.create_connection(("127.0.0.1", running.console_port()), PATIENCE)
        self._lines = self._socket.makefile("rw")

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def rows(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view."""
        self._lines.write(f"{view}\n")
        self._lines.flush()
        text = ""
        while True:
            line = self._lines.readline()
            assert line, "the console has closed the connection"
            # The answer is JSON over several lines; its first one may follow a prompt.
            text = text + line if text else line[line.find("[") :] if "[" in line else ""
            try:
                return list(json.loads(text))
            except ValueError:
                continue

    def until(self, view: str, meets: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The rows of a view as soon as they meet a condition."""
        deadline = time.monotonic() + PATIENCE
        while not meets(rows := self.rows(view)):
            assert time.monotonic() < deadline, rows
            time.sleep(0.05)
        return rows

    def states(self, **expected: str) -> list[dict[str, Any]]:
        """The services ``inn`` once each has the expected state, by hostport."""

        def meets(rows: list[dict[str, Any]]) -> bool:
            return {row["hostport"]: row.get("check") for row in rows} == {
                hostport.replace("_", ":"): state for hostport, state in expected.items()
            }

        return self.until("broker services inn", meets)


def found(client: Peer) -> list[str]:
    answer = client.ask(to="broker", op="find", service="inn")
    return [each.get("hostport", each.get("failure")) for each in answer["desc"]]


def reserve(user: Peer, context: str) -> Any:
    answer = user.ask(to="director", op="reserve", protocol="tcp", context=context, user=f"user-{context}")
    return answer.get("hostport") or answer.get("deny")


def test_a_stopped_server_is_not_found_until_it_continues(tmp_path: Path) -> None:
    with (
        daemon(tmp_path) as running,
        server(running, "one", "one:1") as one,
        server(running, "two", "two:1"),
        Operator(running) as operator,
    ):
        client = running.connect()
        user = Peer(socket.create_connection(("127.0.0.1", ports(running)[1]), PATIENCE))
        user.send(to="director", op="auth")
        operator.until("broker checks", lambda rows: [row["state"] for row in rows] == ["passing"] * 4)
        assert sorted(found(client)) == ["one:1", "two:1"]
        assert {reserve(user, f"inn-{number}") for number in range(6)} == {"one:1", "two:1"}
        one.send_signal(signal.SIGSTOP)
        rows = operator.states(one_1="failing", two_1="passing")
        [reason] = [row["reason"] for row in rows if row["hostport"] == "one:1"]
        assert reason == "no answer to a ping within 0.3 s"
        assert found(client) == ["two:1"]
        operator.until("broker checks", lambda rows: sorted(row["state"] for row in rows)[:2] == ["failing"] * 2)
        # New contexts, and those that were placed on the stopped server, and are not open there yet.
        assert {reserve(user, f"inn-{number}") for number in range(12)} == {"two:1"}
        one.send_signal(signal.SIGCONT)
        operator.states(one_1="passing", two_1="passing")
        assert sorted(found(client)) == ["one:1", "two:1"]
        operator.until("broker checks", lambda rows: [row["state"] for row in rows] == ["passing"] * 4)
        assert "one:1" in {reserve(user, f"inn-{number}") for number in range(20, 32)}


@pytest.mark.long
def test_a_server_that_does_not_know_pings_is_found_as_before(tmp_path: Path) -> None:
    with daemon(tmp_path) as running, Operator(running) as operator:
        client = running.connect()
        client.send(to="broker", op="willserve", services=[{"service": "inn", "hostport": "old:1"}])
        assert found(client) == ["old:1"]
        [row] = operator.until("broker checks", lambda rows: bool(rows) and rows[0]["streak"] >= 3)
        assert row["state"] == "untested"
        assert "has not answered any yet" in row["reason"]
        pings = client.receive()
        assert (pings["to"], pings["op"]) == ("client", "ping")


@pytest.mark.long
def test_a_stopped_broker_finds_nobody_failing(tmp_path: Path) -> None:
    with daemon(tmp_path) as running, server(running, "one", "one:1"), Operator(running) as operator:
        operator.until("broker checks", lambda rows: [row["state"] for row in rows] == ["passing"] * 2)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(4)  # longer than two intervals and two timeouts: what a live broker calls failing
        running.process.send_signal(signal.SIGCONT)
        rows = operator.rows("broker checks")
        assert [row["state"] for row in rows] == ["passing", "passing"]
        time.sleep(2)
        assert [row["state"] for row in operator.rows("broker checks")] == ["passing", "passing"]
        assert not any("failing" in line for line in running.log)


@pytest.mark.long
def test_a_reload_ends_checks_and_begins_them(tmp_path: Path) -> None:
    with (
        daemon(tmp_path) as running,
        server(running, "one", "one:1") as one,
        server(running, "two", "two:1"),
        Operator(running) as operator,
    ):
        client = running.connect()
        operator.states(one_1="passing", two_1="passing")
        one.send_signal(signal.SIGSTOP)
        operator.states(one_1="failing", two_1="passing")
        assert found(client) == ["two:1"]
        path = tmp_path / "broker.toml"
        path.write_text(path.read_text().replace("[checks]", "[checks]\nenabled = false"))
        running.signal(signal.SIGHUP)
        running.wait_for("the configuration was reloaded")
        assert operator.rows("broker checks") == []
        assert sorted(found(client)) == ["one:1", "two:1"]
        path.write_text(path.read_text().replace("enabled = false\nnetworks", "enabled = true\nnetworks"))
        one.send_signal(signal.SIGCONT)
        running.signal(signal.SIGHUP)
        operator.states(one_1="passing", two_1="passing")


class Answers(BaseHTTPRequestHandler):
    """A server whose status the test chooses."""

    status = 200
    paths: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(self.status)
        self.send_header("Location", "http://192.0.2.1/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.mark.long
def test_http_checks_follow_the_status(tmp_path: Path) -> None:
    more = 'path = "/health?deep=1"\nstatuses = [200, 299]'
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Answers) as web,
        daemon(tmp_path, "http", "last", more) as running,
        Operator(running) as operator,
    ):
        threading.Thread(target=web.serve_forever, daemon=True).start()
        try:
            hostport = f"127.0.0.1:{web.server_port}"
            client = running.connect()
            client.send(to="broker", op="willserve", services=[{"service": "inn", "hostport": hostport}])
            operator.until("broker services inn", lambda rows: [row.get("check") for row in rows] == ["passing"])
            Answers.status = 302
            [row] = operator.until("broker services inn", lambda rows: rows[0]["check"] == "failing")
            assert row["reason"] == "status 302"
            assert found(client) == [hostport]
            Answers.status = 204
            operator.until("broker services inn", lambda rows: rows[0]["check"] == "passing")
            assert set(Answers.paths) == {"/health?deep=1"}
        finally:
            web.shutdown()


@pytest.mark.long
def test_tcp_checks_notice_a_closed_port(tmp_path: Path) -> None:
    with daemon(tmp_path, "tcp", "last") as running, Operator(running) as operator:
        client = running.connect()
        with socket.create_server(("127.0.0.1", 0)) as port:
            hostport = f"localhost:{port.getsockname()[1]}"
            services = [{"service": "inn", "hostport": hostport}, {"service": "far", "hostport": "192.0.2.1:80"}]
            client.send(to="broker", op="willserve", services=services)
            operator.until("broker services inn", lambda rows: [row.get("check") for row in rows] == ["passing"])
        [row] = operator.until("broker services inn", lambda rows: rows[0]["check"] == "failing")
        assert "refused" in row["reason"]
        [far] = operator.until("broker checks far", lambda rows: rows[0]["reason"] != "not checked yet")
        assert far["state"] == "untested"
        assert far["reason"] == "not checked: 192.0.2.1 is in none of the networks of checks.networks"


def test_the_address_of_a_listener_that_was_closed_on_purpose_is_checked_again(tmp_path: Path) -> None:
    with daemon(tmp_path, "tcp", "last") as running, Operator(running) as operator, running.connect() as client:
        _, port = ports(running)
        service = {"service": "inn", "hostport": f"127.0.0.1:{port}"}
        client.send(to="broker", op="willserve", services=[service])
        own = f"not checked: 127.0.0.1 port {port} is a listener of this broker"
        operator.until("broker checks inn", lambda rows: [row["reason"] for row in rows] == [own])
        with Peer(socket.create_connection(("127.0.0.1", port), PATIENCE)) as admin:
            admin.send(to="admin", op="auth")
            admin.send(to="admin", op="shutdown", director=True)
            admin.closed()
        [row] = operator.until("broker checks inn", lambda rows: rows[0]["state"] == "failing")
        assert "refused" in row["reason"]


def test_addresses_that_are_refused_are_counted_and_explained(tmp_path: Path) -> None:
    text = HEAD.split("[[director.listeners]]")[0] + (
        '[mc0]\nenabled = false\n[mtl]\nenabled = false\n[dbp]\nendpoint = "tcp://127.0.0.1:0"\n'
        '[http]\nendpoint = "tcp:0:interface=127.0.0.1"\n[checks]\nnetworks = ["0.0.0.0/0"]\n'
        + RULE.format(kind="tcp", policy="last", more='wires = ["http"]')
    )
    (tmp_path / "broker.toml").write_text(text)
    with Daemon(tmp_path, "--config", str(tmp_path / "broker.toml")) as running:
        api = f"http://127.0.0.1:{running.http_port()}/v1"
        own = f"127.0.0.1:{running.port()}"
        reasons = {
            "own": (own, f"not checked: 127.0.0.1 port {running.port()} is a listener of this broker"),
            "meta": ("169.254.169.254:80", "not checked: 169.254.169.254 is a link-local address"),
        }
        for name, (hostport, _) in reasons.items():
            call("PUT", f"{api}/services/{name}/1", {"hostport": hostport, "ttl": 60})
        with zmq.Context() as context, context.socket(zmq.DEALER) as node:
            node.linger = 0
            node.connect(f"tcp://127.0.0.1:{running.dbp_port()}")
            about = {"name": "probe", "heartbeat": 1, "liveness": 5, "ip": "127.0.0.1", "port": running.port()}
            node.send_multipart([b"", b"UwU", b"1795246600.0", json.dumps(about).encode()])
            assert node.recv_multipart()[1] == b"OwO"
            reasons["probe"] = reasons["own"]
            for name, (_, reason) in reasons.items():
                deadline = time.monotonic() + PATIENCE
                while (check := call("GET", f"{api}/why/{name}")["entries"][0]["check"]) != f"untested: {reason}":
                    assert time.monotonic() < deadline, check
                    assert check in ("not checked", "untested: not checked yet")
                    time.sleep(0.05)
        rows = {row["hostport"]: row for row in call("GET", f"{api}/views/broker/checks")["rows"]}
        assert all(rows[hostport]["reason"] == reason for hostport, reason in (reasons["own"], reasons["meta"]))
        counters = call("GET", f"{api}/views/broker/counters?limit=1000")["rows"]
        counts = {row["name"]: row["value"] for row in counters if row["name"].startswith("checks_refused")}
        assert counts["checks_refused.special"] >= 1
        assert counts["checks_refused.own-listener"] >= 2


def call(method: str, url: str, body: object = None) -> Any:
    """The answer of the HTTP API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.replace(" ", "%20"), data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)
