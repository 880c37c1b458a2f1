"""The broker with a DBP wire, and the server of `dbp_reference.py`: started, and always ended."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import servers
import traffic
from servers import CannotStart, Server

_LISTENS = re.compile(r"dbp on tcp://127\.0\.0\.1:(\d+) \(udp 127\.0\.0\.1:(\d+)")
"""What the broker logs when the wire is open."""

_CONFIG = """
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
services = 100_000
"""
"""No beacon: others on this machine may wait for one of theirs."""


class DbpServer(Server):
    """A server whose ``port`` is that of its ROUTER. The broker's other ports are 0 with the reference server."""

    udp = 0
    elko = 0
    console = 0


@contextmanager
def broker() -> Iterator[DbpServer]:
    """A broker with a state directory of its own."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        (directory / "config.toml").write_text(_CONFIG)
        elko = console = servers.free_port()
        while console == elko:
            console = servers.free_port()
        log = directory / "log"
        command = [
            str(Path(sys.executable).with_name("twistd")),
            "-n",
            "--pidfile=",
            "elkobroker",
            f"--config={directory / 'config.toml'}",
            f"--port={elko}",
            f"--console-port={console}",
            "--mc0-port=off",
            f"--state={directory}",
        ]
        server = DbpServer(servers.spawn(command, log), 0, True, log)
        server.elko, server.console = elko, console
        try:
            server.port, server.udp = _ports(server)
            yield server
        finally:
            server.stop()


@contextmanager
def reference() -> Iterator[DbpServer]:
    """The server of `dbp_reference.py`."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        log = Path(name, "log")
        command = [sys.executable, str(Path(__file__).with_name("dbp_reference.py"))]
        process = servers.spawn(command, log, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise CannotStart(f"the reference server did not start:\n{log.read_text()}")
            yield DbpServer(process, int(line), False, log)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def counters(server: DbpServer) -> dict[str, int]:
    """What the broker has counted, as its console says."""
    with socket.create_connection((servers.HOST, server.console), traffic.STUCK) as sock:
        sock.sendall(b"counters\nquit\n")
        text = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _ports(server: Server) -> tuple[int, int]:
    """The ports of the ROUTER and of UDP that the broker says it listens on. Raises `CannotStart`."""
    end = time.monotonic() + servers.START_WITHIN
    while time.monotonic() < end:
        text = server.log.read_text(errors="replace") if server.log.exists() else ""
        if (found := _LISTENS.search(text)) is not None:
            return int(found[1]), int(found[2])
        if server.process.poll() is not None:
            raise CannotStart(f"the broker ended with status {server.process.returncode}:\n{text}")
        time.sleep(0.02)
    raise CannotStart(f"the broker has no DBP wire after {servers.START_WITHIN:g} s:\n{server.log.read_text()}")
