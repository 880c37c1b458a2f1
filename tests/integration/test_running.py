"""The daemon from outside: registering, finding, the console, the examples, and what happens to bad neighbours."""

from __future__ import annotations

import json
import signal
import socket
import ssl
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

from tests.access.users import ACCESS, put, right, token, user
from tests.config.certificates import certificate
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


def test_it_runs_on_the_reactor_of_the_broker_unless_another_is_chosen(daemon: Daemon, tmp_path: Path) -> None:
    daemon.wait_for(r"reactor class: broker\.net\.reactor\.Reactor")
    with StartedDaemon(tmp_path, twistd_options=["--reactor=poll"]) as other:
        other.wait_for(r"reactor class: .*PollReactor")
        with other.connect() as provider, other.connect() as customer:
            provider.send(to="client", op="willserve", services=offer("bank"))
            provider.done()
            assert len(customer.ask(to="client", op="find", service="bank")["desc"]) == 1


def test_a_waiting_find_is_answered_when_the_service_comes(daemon: Daemon) -> None:
    with daemon.connect() as customer, daemon.connect() as provider:
        customer.send(to="broker", op="find", service="late", wait=-1, tag="w")
        customer.done()
        provider.send(to="broker", op="willserve", services=offer("late"))
        assert customer.receive()["tag"] == "w"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"FOO / HTTP/1.1\r\n\r\nfind bank\r\n"],
        [b"pat", b"ch / HT", b"TP/1.1\r\n\r\n", b"find bank\r\n"],
        [b"\x16\x03\x01\x02\x00", b"find bank\r\n"],
    ],
)
def test_the_console_executes_nothing_of_a_request_of_a_browser(daemon: Daemon, pieces: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE) as browser:
        browser.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with browser.makefile("rb") as answers:
            assert answers.readline().startswith(b"elkobroker console")
            for piece in pieces:
                browser.sendall(piece)
            rest = answers.read()
        assert rest.startswith(b"error: ")
        assert b"servicedesc" not in rest


def test_services_go_with_the_connection(daemon: Daemon) -> None:
    with daemon.connect("admin") as admin, daemon.connect() as provider:
        admin.ask(to="admin", op="watch", services=True)
        provider.send(to="client", op="willserve", services=offer("brief"))
        assert admin.receive()["on"] is True
        provider.sock.close()
        notice = admin.receive()
        assert (notice["on"], notice["desc"][0]["service"]) == (False, "brief")


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


def test_peers_over_tls_whose_certificate_is_exchanged_by_a_reload(tmp_path: Path) -> None:
    shown, key = certificate(tmp_path, "first")
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        f'{ACCESS}[[elko.listeners]]\nname = "main"\n'
        f'endpoint = "tls:0:certificate={shown}:key={key}:interface=127.0.0.1"\n'
        "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    put(tmp_path / "users.toml", user("server") + token("sesame") + right("server", "find"))
    with Daemon(tmp_path, "--config", str(config)) as running:
        with over_tls(running, shown) as peer:
            peer.send(to="client", op="auth", auth={"mode": "password", "code": "sesame"})
            [own] = peer.ask(to="client", op="find", service="broker-client", protocol="tls")["desc"]
            assert own["protocol"] == "tls"
            peer.send(to="client", op="disconnect")
            peer.closed()
        for old, new in zip((shown, key), certificate(tmp_path, "second"), strict=True):
            new.replace(old)
        running.signal(signal.SIGHUP)
        running.wait_for("the configuration was reloaded")
        with over_tls(running, shown) as peer:
            peer.send(to="client", op="auth", auth={"mode": "password", "code": "wrong"})
            assert peer.receive()["msg"] == "the token is wrong, or revoked"


def test_an_address_that_guesses_passwords_is_held_up_and_no_other(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        '[[elko.listeners]]\nname = "main"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
        f'[console]\nendpoint = "tcp:0:interface=127.0.0.1"\n{ACCESS}'
        "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )

    put(tmp_path / "users.toml", user("operator") + token("sesame") + right("operator"))

    def on_the_wire(code: str, host: str) -> str:
        with Peer(socket.create_connection(("127.0.0.1", running.port()), PATIENCE, (host, 0))) as peer:
            peer.send(to="admin", op="auth", auth={"mode": "password", "code": code})
            peer.send(to="admin", op="ping")
            answer = peer.receive()
            return str(answer.get("msg", answer["op"]))

    def in_the_console(code: str, host: str) -> str:
        with socket.create_connection(("127.0.0.1", running.console_port()), PATIENCE, (host, 0)) as operator:
            operator.sendall(f"token {code}\r\nhelp\r\nquit\r\n".encode())
            return b"".join(iter(lambda: operator.recv(65536), b"")).decode()

    with Daemon(tmp_path, "--config", str(config)) as running:
        for attempt, let_in in ((on_the_wire, "pong"), (in_the_console, "help")):
            # On a slow machine some of the first ones come when the back-off is over already.
            host = "127.0.0.1" if attempt is on_the_wire else "127.0.0.3"
            said = [attempt("wrong", host) for _ in range(10)]
            assert "the token is wrong" in said[0]
            assert any("too many wrong passwords" in text for text in said)
            assert let_in in attempt("sesame", "127.0.0.2")
        running.wait_for("elko peer 127.0.0.1: too-many-guesses: too many wrong passwords")


def over_tls(daemon: Daemon, trusted: Path) -> Peer:
    """A peer that trusts just this certificate."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = False
    plain = socket.create_connection(("127.0.0.1", daemon.port()), PATIENCE)
    return Peer(context.wrap_socket(plain))


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
