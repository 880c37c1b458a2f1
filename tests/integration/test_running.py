"""The daemon from outside: registering, finding, the console, the examples, and what happens to bad neighbours."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.integration.configurations import listener
from tests.integration.daemon import ROOT, Daemon, Peer, StartedDaemon, environment, twistd
from tests.integration.mc0_clients import console
from tests.patience import PATIENCE, written


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with StartedDaemon(tmp_path_factory.mktemp("running")) as running:
        running.port()
        yield running


def offer(name: str, hostport: str = "h:1") -> list[dict[str, str]]:
    return [{"type": "servicedesc", "service": name, "hostport": hostport}]


def test_what_one_server_offers_another_finds(daemon: Daemon) -> None:
    with daemon.connect(label="bank 1") as provider, daemon.connect(label="customer") as customer:
        provider.send(to="client", op="willserve", services=offer("bank", "bank.example.com:7000"))
        provider.done()
        [found] = customer.ask(to="client", op="find", service="bank", tag="t")["desc"]
        assert found["hostport"] == "bank.example.com:7000"


@pytest.mark.long
def test_it_runs_on_the_reactor_of_the_broker_unless_another_is_chosen(daemon: Daemon, tmp_path: Path) -> None:
    daemon.wait_for(r"reactor class: broker\.net\.reactor\.Reactor")
    with StartedDaemon(tmp_path, twistd_options=["--reactor=poll"]) as other:
        other.wait_for(r"reactor class: .*PollReactor")
        with other.connect() as provider, other.connect() as customer:
            provider.send(to="client", op="willserve", services=offer("bank"))
            provider.done()
            assert len(customer.ask(to="client", op="find", service="bank")["desc"]) == 1


def test_a_client_that_ends_its_output_gets_its_answers_and_then_the_end(daemon: Daemon) -> None:
    with daemon.connect() as peer:
        peer.send(to="client", op="ping", tag="last words")
        peer.sock.shutdown(socket.SHUT_WR)
        assert peer.receive()["tag"] == "last words"
        peer.closed()


def test_a_refusal_closes_without_a_reset(daemon: Daemon) -> None:
    with daemon.connect(None) as peer:
        for _ in range(1000):  # unread input behind the refused message would reset a socket that is closed too early
            peer.send(to="client", op="load", factor=1)
        assert peer.receive()["op"] == "debug"
        peer.closed()


def test_one_line_without_an_empty_line_is_enough(daemon: Daemon) -> None:
    with daemon.connect(None) as peer:
        peer.sock.sendall(b"{to:'client', op:'auth'}\n{to:'client', op:'ping', tag:'line'}\n")
        assert peer.receive() == {"to": "client", "op": "pong", "tag": "line"}


def test_the_console_answers_one_line(daemon: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE) as console:
        console.sendall(b'\xff\xfb\x1f{op:"servicedesc"}\r\n')
        reply = b""
        while b'"on": true' not in reply:
            data = console.recv(65536)
            assert data
            reply += data
        assert b'"broker-client"' in reply


def test_the_examples(daemon: Daemon) -> None:
    broker = f"127.0.0.1:{daemon.port()}"
    provider = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/provider.py"), "--broker", broker, "--service", "example"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        found = subprocess.run(
            [sys.executable, str(ROOT / "examples/find.py"), "example", "--broker", broker, "--wait", "20"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert found.stdout.startswith("example at 127.0.0.1:7000 (provider ")
    finally:
        provider.kill()
        provider.communicate()


def test_the_example_that_finds_nothing_says_so(daemon: Daemon) -> None:
    command = [sys.executable, str(ROOT / "examples/find.py"), "nothing", "--broker", f"127.0.0.1:{daemon.port()}"]
    missed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (missed.returncode, missed.stderr) == (1, "nothing: no such service\n")


def test_a_reset_by_a_provider_is_its_end(daemon: Daemon) -> None:
    with daemon.connect("admin") as admin, daemon.connect() as provider:
        admin.ask(to="admin", op="watch", services=True)
        provider.send(to="client", op="willserve", services=offer("reset"))
        admin.receive()
        provider.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        provider.sock.close()
        assert admin.receive()["on"] is False


@pytest.mark.long
def test_help_explains_every_option(tmp_path: Path) -> None:
    command = [twistd(), "elkobroker", "--help"]
    shown = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 0
    options = [
        "port",
        "bind",
        "config",
        "check",
        "state",
        "mc0-port",
        "dbp-port",
        "mtl-port",
        "http-port",
        "console-port",
        "open",
        "log-format",
    ]
    for option in options:
        assert f"--{option}" in shown.stdout


@pytest.mark.long
def test_peers_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "elko.sock"
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        f'[[elko.listeners]]\nname = "unix"\nendpoint = "unix:{path}"\n[mc0]\nenabled = false\n[dbp]\nenabled = false\n'
    )
    with Daemon(tmp_path, "--config", str(config)) as running:
        running.wait_for("elko listener 'unix' on")
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        with Peer(sock) as peer:
            peer.send(to="client", op="auth")
            peer.send(
                to="client",
                op="willserve",
                services=[{**offer("secret")[0], "auth": {"mode": "password", "code": "c"}}],
            )
            [found] = peer.ask(to="client", op="find", service="secret")["desc"]
            assert found["auth"] == {"type": "auth", "mode": "password", "code": "c"}
            peer.sock.shutdown(socket.SHUT_WR)
            peer.closed()
        running.signal(signal.SIGKILL)
        running.ended()
    with Daemon(tmp_path, "--config", str(config)) as running:  # over the socket file that the killed one left
        running.wait_for("elko listener 'unix' on")


@pytest.mark.long
def test_where_descriptors_are_few_listeners_share_them_and_refuse_with_a_reason(tmp_path: Path) -> None:
    notify = (
        f'[[notify.rules]]\nname = "f"\nevents = ["listener-full"]\ncommand = ["sh", "-c", "cat > {tmp_path}/event"]\n'
    )
    (tmp_path / "x.toml").write_text(
        notify + listener("main") + '[mc0]\nendpoint = "tcp://127.0.0.1:0"\n[dbp]\nendpoint = "tcp://127.0.0.1:0"\n'
    )
    with Daemon(tmp_path, "--config", str(tmp_path / "x.toml"), descriptors=700) as running, ExitStack() as held:
        pool = int(running.wait_for(r"all listeners together take (\d+) connections").group(1))
        listeners = len(running_listeners(running))
        servers: list[Peer] = []
        while len(servers) <= pool:
            server = held.enter_context(running.connect())
            server.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
            server.send(to="error", op="ping", tag="in")
            answer = server.receive()
            if "msg" in answer:
                break
            servers.append(server)
        assert "all places are taken" in answer["msg"]
        assert len(servers) > 2 * pool / listeners, "more than an even share"
        assert "elkobroker" in console(running, "version"), "the console has its reserve"
        try:
            readiness = urlopen(f"http://127.0.0.1:{running.http_port()}/readyz", timeout=PATIENCE)
        except HTTPError as error:
            readiness = error
        [reason] = [each for each in json.load(readiness)["reasons"] if each["what"] == "listener elko main"]
        assert "new ones are refused" in reason["reason"]
        [row] = [each for each in running_listeners(running) if each.get("name") == "main"]
        assert row["full"] is True, "as the page shows"
        address = f"http://127.0.0.1:{running.http_port()}"
        doctor = [sys.executable, "-m", "broker.brokerctl", "--url", address, "doctor"]
        shown = subprocess.run(doctor, capture_output=True, text=True, timeout=PATIENCE, env=environment())
        assert "new ones are refused" in shown.stdout, shown
        assert "listener elko main" in written(tmp_path / "event")
        for server in servers:
            server.done()


def running_listeners(daemon: Daemon) -> list[dict[str, Any]]:
    """The listeners that are open."""
    return list(json.loads(console(daemon, "status"))["listeners"])
