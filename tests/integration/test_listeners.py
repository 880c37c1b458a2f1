"""Listeners whose port is taken: the daemon serves without them, and opens them when their port is free again."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.config.certificates import certificate
from tests.integration.daemon import Daemon, Peer
from tests.integration.mc0_clients import shown
from tests.integration.test_lifecycle import run
from tests.patience import PATIENCE
from tests.ports import free_port

ALL = """
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"

[[elko.listeners]]
name = "second"
endpoint = "tcp:{second}:interface=127.0.0.1"
label = "the second"

[[elko.listeners]]
name = "web"
endpoint = "tcp:{web}:interface=127.0.0.1"
transport = "websocket"

[[elko.listeners]]
name = "poll"
endpoint = "tcp:{poll}:interface=127.0.0.1"
transport = "http"

[[elko.listeners]]
name = "steady"
endpoint = "tcp:{steady}:interface=127.0.0.1"
transport = "rtcp"

[director]
enabled = true
[[director.listeners]]
name = "farm"
endpoint = "tcp:{farm}:interface=127.0.0.1"

[mc0]
endpoint = "tcp://127.0.0.1:{mc0}"

[dbp]
endpoint = "tcp://127.0.0.1:{dbp}"
beacon = []

[mtl]
endpoint = "tcp://127.0.0.1:{mtl}"
data_port = {data}

[http]
endpoint = "tcp:{http}:interface=127.0.0.1"
"""

OFF = "[mc0]\nenabled = false\n[dbp]\nenabled = false\n[mtl]\nenabled = false\n[http]\nenabled = false\n"

KINDS = ("second", "web", "poll", "steady", "farm", "mc0", "dbp", "mtl", "http")

NAMES = [*(f"elko listener {name!r}" for name in KINDS[:4]), "director listener 'farm'", *KINDS[5:]]
"""Their names in the log."""


@contextmanager
def taken(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[int]:
    """A port that a foreign process has, by TCP or by UDP alone."""
    with socket.socket(socket.AF_INET, kind) as foreign:
        if kind == socket.SOCK_STREAM:
            # As for any listener: closed connections may still have the port for a minute.
            foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", free_port()))
        if kind == socket.SOCK_STREAM:
            foreign.listen()
        yield foreign.getsockname()[1]


def configured(directory: Path, text: str) -> tuple[str, str]:
    config = directory / "elkobroker.toml"
    config.write_text(text)
    return "--config", str(config)


def states(daemon: Daemon, pattern: str = "*") -> dict[str, dict[str, Any]]:
    """The listeners as the console shows them."""
    return {each["name"]: each for each in shown(daemon, f"broker listeners {pattern}")}


def own(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """The descriptors of a service of the broker's own, as an administrator is shown them."""
    with daemon.connect("admin") as admin:
        found = admin.ask(to="admin", op="servicedesc", service=name)["desc"]
        return [each for each in found if "failure" not in each]


def told_status(notify: socket.socket, text: str) -> str:
    """The first status that the service manager is told and that has this text."""
    while True:
        for line in notify.recv(65_536).decode().split("\n"):
            if line.startswith("STATUS=") and text in line:
                return line


def test_every_other_listener_whose_port_is_taken_opens_when_it_is_free(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, ExitStack() as foreign:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(PATIENCE)
        ports = {name: foreign.enter_context(taken()) for name in KINDS}
        options = configured(tmp_path, ALL.format(**ports, data=free_port()))
        with Daemon(tmp_path, *options, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as daemon:
            for name, port in zip(NAMES, ports.values(), strict=True):
                daemon.wait_for(rf"{name}: cannot listen on \S*127.0.0.1:{port}: Address already in use; ")
            told = told_status(notify, "is not ready")
            assert all(f"{name} is not ready: " in told for name in NAMES)
            before = states(daemon)
            assert [name for name, each in before.items() if each["ready"]] == ["elko listener 'main'", "console"]
            assert all(f":{port}" in before[name]["where"] for name, port in zip(NAMES, ports.values(), strict=True))
            assert before["dbp"]["reason"].endswith("Address already in use")
            assert len(own(daemon, "broker-client")) == 1
            with daemon.connect() as client:
                client.send(to="broker", op="find", service="director-user", wait=-1)
                client.done()
                foreign.close()
                assert client.receive()["desc"][0]["hostport"] == f"127.0.0.1:{ports['farm']}"
            for name in NAMES:
                daemon.wait_for(rf"{name} on \S*127.0.0.1:\d+ ")
            while told_status(notify, "serving") != "STATUS=serving":
                pass
            assert all(each["ready"] for each in states(daemon).values())
            assert list(states(daemon, "d[bi]*")) == ["director listener 'farm'", "dbp"]
            [second] = [each for each in own(daemon, "broker-client") if each.get("label") == "the second"]
            with Peer(socket.create_connection(("127.0.0.1", ports["second"]), PATIENCE)) as peer:
                peer.send(to="client", op="auth")
                peer.done()
            assert second["hostport"] == f"127.0.0.1:{ports['second']}"
            assert [each["hostport"] for each in own(daemon, "director-user")] == [f"127.0.0.1:{ports['farm']}"]
            daemon.signal(signal.SIGTERM)
            assert daemon.ended() == -signal.SIGTERM
            daemon.wait_for("stopped")
            assert not any("Traceback" in line for line in daemon.log)


def test_the_console_opens_when_its_port_is_free_and_a_reload_tries_at_once(tmp_path: Path) -> None:
    options = configured(tmp_path, f'[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n{OFF}')
    with ExitStack() as foreign:
        port = foreign.enter_context(taken())
        with Daemon(tmp_path, *options, console=str(port)) as daemon:
            daemon.wait_for(f"console: cannot listen on 127.0.0.1:{port}: Address already in use; ")
            with daemon.connect() as peer:
                peer.done()
            foreign.close()
            daemon.signal(signal.SIGHUP)
            daemon.wait_for("the configuration was reloaded")
            assert daemon.console_port() == port


def test_a_unix_socket_opens_over_the_file_of_a_program_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "elko.sock"
    listeners = '[[elko.listeners]]\nname = "main"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
    listeners += f'[[elko.listeners]]\nname = "local"\nendpoint = "unix:{path}"\n'
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with Daemon(tmp_path, *configured(tmp_path, listeners + OFF)) as daemon:
            daemon.wait_for(f"elko listener 'local': cannot listen on {path}: Address already in use; ")
            foreign.close()
            daemon.wait_for(f"elko listener 'local' on {path} ")
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(str(path))
                peer = Peer(local)
                peer.send(to="client", op="auth")
                peer.done()


@pytest.mark.parametrize(
    ("wire", "socket_kind", "told"),
    [
        ("dbp", socket.SOCK_DGRAM, "cannot listen on udp 127.0.0.1:{port}: "),
        ("dbp", socket.SOCK_STREAM, "cannot listen on tcp://127.0.0.1:{port}: "),
        ("data", socket.SOCK_STREAM, "cannot listen on tcp://127.0.0.1:{port}: "),
        ("mtl", socket.SOCK_STREAM, "cannot listen on tcp://127.0.0.1:{port}: "),
    ],
)
def test_a_wire_of_two_sockets_has_both_or_neither(
    tmp_path: Path, wire: str, socket_kind: socket.SocketKind, told: str
) -> None:
    with ExitStack() as foreign:
        port = foreign.enter_context(taken(socket_kind))
        ports = {name: 0 if name in KINDS[:6] else free_port() for name in (*KINDS[:-1], "data", "http")} | {wire: port}
        with Daemon(tmp_path, *configured(tmp_path, ALL.format(**ports))) as daemon:
            name = "dbp" if wire == "dbp" else "mtl"
            daemon.wait_for(f"{name}: {told.format(port=port)}Address already in use; ")
            daemon.console_port()
            others = {"dbp": ["dbp"], "data": ["mtl"], "mtl": ["data"]}[wire]
            if socket_kind == socket.SOCK_DGRAM or wire != "dbp":
                for other in others:
                    with pytest.raises(ConnectionRefusedError):
                        socket.create_connection(("127.0.0.1", ports[other]), PATIENCE)
            foreign.close()
            daemon.wait_for(rf"{name} on tcp://127.0.0.1:{ports[name]} ")
            assert states(daemon)[name]["ready"]


def test_a_listener_over_tls_opens_with_the_certificate_that_is_there_by_then(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    with ExitStack() as foreign:
        port = foreign.enter_context(taken())
        options = configured(
            tmp_path,
            '[[elko.listeners]]\nname = "main"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
            f'[[elko.listeners]]\nname = "safe"\n'
            f'endpoint = "tls:{port}:certificate={cert}:key={key}:interface=127.0.0.1"\n{OFF}',
        )
        with Daemon(tmp_path, *options) as daemon:
            daemon.wait_for("elko listener 'safe': cannot listen on ")
            for old, new in zip((cert, key), certificate(tmp_path, "second"), strict=True):
                new.replace(old)
            config = tmp_path / "elkobroker.toml"
            config.write_text(config.read_text().replace('name = "safe"', 'name = "safe"\nallow = ["admin"]'))
            daemon.signal(signal.SIGHUP)
            daemon.wait_for("the configuration was reloaded")
            foreign.close()
            daemon.port("safe")
            trusting = ssl.create_default_context(cafile=str(cert))
            trusting.check_hostname = False
            plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
            with Peer(trusting.wrap_socket(plain)) as peer:
                peer.send(to="client", op="auth")
                assert peer.receive()["msg"] == "auth: the role 'client' is not served on this listener"
            daemon.signal(signal.SIGTERM)
            daemon.ended()


@pytest.mark.parametrize(
    ("wire", "socket_kind", "told"),
    [
        ("second", socket.SOCK_STREAM, "elko listener 'second': cannot listen on {port}: "),
        ("farm", socket.SOCK_STREAM, "director listener 'farm': cannot listen on {port}: "),
        ("mc0", socket.SOCK_STREAM, "mc0: cannot listen on tcp://{port}: "),
        ("dbp", socket.SOCK_STREAM, "dbp: cannot listen on tcp://{port}: "),
        ("dbp", socket.SOCK_DGRAM, "dbp: cannot listen on udp {port}: "),
        ("data", socket.SOCK_STREAM, "mtl: cannot listen on tcp://{port}: "),
    ],
)
def test_a_strict_start_fails_over_any_listener(
    tmp_path: Path, wire: str, socket_kind: socket.SocketKind, told: str
) -> None:
    with taken(socket_kind) as port:
        ports = dict.fromkeys((*KINDS, "data"), 0) | {wire: port}
        options = configured(tmp_path, "[broker]\nstrict_listeners = true\n" + ALL.format(**ports))
        ended = run(tmp_path, *options, "--console-port", "0", "--state", str(tmp_path / "state"))
    assert ended.returncode == 1
    [line] = [line for line in ended.stdout.splitlines() if " critical " in line]
    why = told.format(port=f"127.0.0.1:{port}")
    assert line.endswith(f"elkobroker cannot start: {why}Address already in use")
    assert "Traceback" not in ended.stdout


def test_the_start_fails_where_no_listener_can_be_opened(tmp_path: Path) -> None:
    with taken() as port:
        options = configured(tmp_path, f"[elko]\nlisteners = []\n{OFF}")
        ended = run(tmp_path, *options, "--console-port", str(port), "--state", str(tmp_path / "state"))
    assert ended.returncode == 1
    assert f"console: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stdout


def test_listeners_in_another_order_are_announced_where_they_are(tmp_path: Path) -> None:
    tables = [
        f'[[elko.listeners]]\nname = "{name}"\nlabel = "{name}"\nendpoint = "tcp:0:interface=127.0.0.1"\n'
        for name in ("main", "second")
    ]
    config = tmp_path / "elkobroker.toml"
    with Daemon(tmp_path, *configured(tmp_path, "".join(tables) + OFF)) as daemon:
        ports = {name: daemon.port(name) for name in ("main", "second")}
        config.write_text("".join(reversed(tables)) + OFF)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        told = {each["label"]: each["hostport"] for each in own(daemon, "broker-client")}
        assert told == {name: f"127.0.0.1:{port}" for name, port in ports.items()}


@pytest.mark.long
def test_a_check_of_the_ports_names_each_that_cannot_be_bound(tmp_path: Path) -> None:
    with ExitStack() as foreign:
        ports = {name: foreign.enter_context(taken()) for name in (*KINDS[:-1], "data", "http")}
        path = tmp_path / "elko.sock"
        unix = foreign.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(path))
        unix.listen()
        more = f'[[elko.listeners]]\nname = "local"\nendpoint = "unix:{path}"\n'
        more += f'[[elko.listeners]]\nname = "nowhere"\nendpoint = "unix:{tmp_path}/missing/elko.sock"\n'
        options = configured(tmp_path, more + ALL.format(**ports))
        ended = run(tmp_path, *options, "--check-ports", "--console-port", "0")
        assert ended.returncode == 1
        told = [line for line in ended.stdout.splitlines() if line.startswith("error: ")]
        names = [*NAMES[:-1], "mtl", "http"]
        assert [line.split(": ")[1] for line in told] == ["elko listener 'local'", "elko listener 'nowhere'", *names]
        for line, port in zip(told[2:], ports.values(), strict=True):
            assert line.endswith(f"127.0.0.1:{port}: Address already in use")
        assert told[0].endswith(f"cannot listen on {path}: Address already in use")
        assert told[1].endswith("No such file or directory")
    path.unlink()
    ended = run(tmp_path, *configured(tmp_path, ALL.format(**ports)), "--check-ports", "--console-port", "0")
    assert (ended.returncode, "error: " in ended.stdout) == (0, False)
    with taken(socket.SOCK_DGRAM) as port:
        ended = run(tmp_path, *configured(tmp_path, ALL.format(**ports | {"dbp": port})), "--check-ports")
        assert ended.returncode == 1
        assert f"error: dbp: cannot listen on udp 127.0.0.1:{port}: Address already in use" in ended.stdout
    assert not (tmp_path / "state").exists()
