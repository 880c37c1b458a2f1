"""The broker with an mc0 wire, and the servers of `mc0_reference.py`: started, and always ended."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import servers
from mc0_zmtp import Keys
from servers import CannotStart, Server

_LISTENS = re.compile(r"mc0 on tcp://127\.0\.0\.1:(\d+) \(")
"""What the broker logs when the wire is open."""

_CONFIG = """
[mc0]
endpoint = "tcp://127.0.0.1:0"
auth = "{auth}"
"""

_CURVE = """
secret_key_file = "{file}"
any_key = true
"""


class Mc0Server(Server):
    """A server whose ``port`` is that of its mc0 wire. The broker's other ports are 0 with the reference servers."""

    key: bytes | None = None
    """The public key that clients need, if it wants CURVE."""
    elko = 0
    console = 0


@contextmanager
def broker(keys: Keys | None = None) -> Iterator[Mc0Server]:
    """A broker with a state directory of its own; with ``keys`` it wants CURVE, and lets any client key in."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        config = _CONFIG.format(auth="open" if keys is None else "curve")
        if keys is not None:
            config += _CURVE.format(file=_secret_file(directory, keys))
        (directory / "config.toml").write_text(config)
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
            "--dbp-port=off",
            f"--state={directory}",
        ]
        server = Mc0Server(servers.spawn(command, log), 0, True, log)
        server.key = None if keys is None else keys.public
        server.elko, server.console = elko, console
        try:
            server.port = _port(server)
            yield server
        finally:
            server.stop()


@contextmanager
def reference(kind: str, keys: Keys | None = None) -> Iterator[Mc0Server]:
    """One of the servers of `mc0_reference.py`."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        log = directory / "log"
        command = [sys.executable, str(Path(__file__).with_name("mc0_reference.py")), kind]
        if keys is not None:
            command.append(str(_secret_file(directory, keys)))
        process = servers.spawn(command, log, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise CannotStart(f"the reference server {kind!r} did not start:\n{log.read_text()}")
            server = Mc0Server(process, int(line), False, log)
            server.key = None if keys is None else keys.public
            yield server
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _secret_file(directory: Path, keys: Keys) -> Path:
    file = directory / "mc0.secret"
    file.touch(mode=0o600)
    file.write_bytes(keys.secret + b"\n")
    return file


def _port(server: Server) -> int:
    """The port that the broker says it listens on. Raises `CannotStart`."""
    end = time.monotonic() + servers.START_WITHIN
    while time.monotonic() < end:
        text = server.log.read_text(errors="replace")
        if (found := _LISTENS.search(text)) is not None:
            return int(found[1])
        if server.process.poll() is not None:
            raise CannotStart(f"the broker ended with status {server.process.returncode}:\n{text}")
        time.sleep(0.02)
    raise CannotStart(f"the broker has no mc0 wire after {servers.START_WITHIN:g} s:\n{server.log.read_text()}")
