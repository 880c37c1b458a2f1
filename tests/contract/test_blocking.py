"""A reactor that nothing blocks: while the log, a file or a disk does not answer, every wire does."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.daemon import Daemon, Peer
from tests.integration.test_control import call
from tests.patience import PATIENCE, until

LINES = 300
"""Lines of the log that fill a pipe of a page, and the buffer of its reader, several times."""

CONFIGURATION = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[director]
enabled = true
[[director.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
[mtl]
endpoint = "tcp://127.0.0.1:0"
data_port = 0
[http]
endpoint = "tcp:0:interface=127.0.0.1"
[dns]
enabled = true
endpoint = "tcp:0:interface=127.0.0.1"
"""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""The greeting of a peer of ZMTP 3.0."""


def elko(port: int) -> None:
    with Peer(connected(port)) as peer:
        assert peer.ask(to="error", op="ping")


def console(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(b"help\r\n")
        assert sock.recv(4_096)


def http(port: int) -> None:
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE).status == 200


def zmtp(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(GREETING)
        assert received(sock, len(GREETING)).startswith(b"\xff")


def dns(port: int) -> None:
    question = b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0" + b"\x04bank\x07service\x0aelkobroker\0" + b"\0\x21\0\x01"
    with connected(port) as sock:
        sock.sendall(len(question).to_bytes(2, "big") + question)
        assert received(sock, 4)[2:] == b"\x12\x34"


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more
        data += more
    return data


DOORS: dict[str, tuple[str, Callable[[int], None]]] = {
    "elko": (r"elko listener 'main' on \S+:(\d+) ", elko),
    "director": (r"director listener 'main' on \S+:(\d+) ", elko),
    "console": (r"console on \S+:(\d+)", console),
    "http": (r"http on \S+:(\d+) \(", http),
    "mc0": (r"mc0 on tcp://127\.0\.0\.1:(\d+) \(", zmtp),
    "dbp": (r"dbp on tcp://127\.0\.0\.1:(\d+) \(", zmtp),
    "mtl": (r"mtl on \S*?:(\d+)", zmtp),
    "dns": (r"dns on \S*?:(\d+)", dns),
}
"""The doors: the line of the log that has their port, and a question that only a running reactor answers."""


@contextmanager
def unread(daemon: Daemon, config: Path) -> Iterator[None]:
    """The standard output is not read, and more lines were logged than its pipe takes."""
    daemon.pause_output()
    for _ in range(LINES):
        assert call(daemon, "PUT", "/v1/log", {"level": "debug"})[0] == 200
    yield
    daemon.resume_output()


@contextmanager
def unanswered(daemon: Daemon, config: Path) -> Iterator[None]:
    """A reload reads a file that does not come, as from a network file system that does not answer."""
    text = config.read_bytes()
    config.unlink()
    os.mkfifo(config)
    daemon.signal(signal.SIGHUP)
    pipe = until(lambda: opened(config))
    assert pipe is not None
    yield
    os.write(pipe, text)
    os.close(pipe)
    daemon.wait_for("the configuration was reloaded")


def opened(pipe: Path) -> int | None:
    """The writing end of a pipe, once another process reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


TROUBLES = {"unread-log": unread, "unanswered-reload": unanswered}


@pytest.fixture(scope="module", params=TROUBLES)
def troubled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with all doors, while something that it needs does not answer."""
    directory = tmp_path_factory.mktemp("blocking")
    config = directory / "broker.toml"
    config.write_text(CONFIGURATION)
    with Daemon(directory, "--config", str(config)) as running:
        for line, _ in DOORS.values():
            running.wait_for(line)
        with TROUBLES[request.param](running, config):
            yield running


@pytest.mark.parametrize("door", DOORS)
def test_a_door_answers_meanwhile(troubled: Daemon, door: str) -> None:
    line, ask = DOORS[door]
    ask(int(troubled.wait_for(line).group(1)))


def test_the_log_goes_on_where_it_was_paused(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.http_port()
        daemon.pause_output()
        for _ in range(LINES):
            call(daemon, "PUT", "/v1/log", {"level": "info"})
        call(daemon, "PUT", "/v1/log", {"level": "debug"})
        daemon.resume_output()
        daemon.wait_for("log level debug")
        assert sum("log level info" in line for line in daemon.log) == LINES


def test_a_stop_does_not_wait_for_a_file_that_does_not_come(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIGURATION)
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.http_port()
        config.unlink()
        os.mkfifo(config)
        daemon.signal(signal.SIGHUP)
        pipe = until(lambda: opened(config))
        assert pipe is not None
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        os.close(pipe)
