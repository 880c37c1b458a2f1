"""Server processes that are measured: started, waited for, and always ended."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import machine

CHECKOUT = Path(__file__).resolve().parent.parent

START_WITHIN = 20.0
"""Seconds for a server to accept connections: it takes under one, unless the machine is very busy."""

STOP_WITHIN = 5.0
"""Seconds from SIGTERM to SIGKILL."""

HOST = "127.0.0.1"

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class CannotStart(Exception):
    """A server did not come up; the text has its last words."""


class Server:
    """One running server process. ``broker`` tells the broker from the reference servers."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, broker: bool, log: Path) -> None:
        self.process = process
        self.port = port
        self.broker = broker
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        return machine.cpu_seconds(self.pid)

    def resident(self) -> int:
        """Bytes of memory now."""
        return machine.resident(self.pid)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in good order if it can, and in any case."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def broker() -> Iterator[Server]:
    """A broker with a state directory of its own, for as long as the context lasts."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory:
        server = start_broker(Path(directory))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def reference(kind: str) -> Iterator[Server]:
    """One of the servers of `reference.py`."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory:
        log = Path(directory, "log")
        command = [sys.executable, str(Path(__file__).with_name("reference.py")), kind]
        process = spawn(command, log, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise CannotStart(f"the reference server {kind!r} did not start:\n{log.read_text()}")
            yield Server(process, int(line), False, log)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def start_broker(directory: Path, wait: bool = True) -> Server:
    """Start a broker in this directory, as ``twistd -n elkobroker`` does it. The caller must stop it.

    With ``wait`` False it is returned at once, and may not accept connections yet.
    """
    port = free_port()
    twistd = Path(sys.executable).with_name("twistd")
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    command = [
        str(twistd),
        "-n",
        "--pidfile=",
        "elkobroker",
        f"--port={port}",
        f"--state={state}",
        "--console-port=off",
        "--mc0-port=off",
        "--dbp-port=off",
    ]
    log = directory / f"log-{port}"
    server = Server(spawn(command, log), port, True, log)
    if wait:
        try:
            wait_for(server)
        except BaseException:
            server.stop()
            raise
    return server


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def spawn(command: list[str], log: Path, stdout: int | None = None) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, PYTHONPATH=str(CHECKOUT))
    environment.pop("STATE_DIRECTORY", None)  # it would count before --state
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            preexec_fn=_die_with_parent,  # a benchmark that is killed must not leave servers behind
        )


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(server: Server, poll: float = 0.02) -> None:
    """Wait until it accepts connections, trying every ``poll`` seconds. Raises `CannotStart`."""
    end = time.monotonic() + START_WITHIN
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise CannotStart(f"the broker ended with status {server.process.returncode}:\n{server.log.read_text()}")
        try:
            socket.create_connection((HOST, server.port), 1).close()
            return
        except OSError:
            time.sleep(poll)
    raise CannotStart(f"the broker does not listen after {START_WITHIN:g} s:\n{server.log.read_text()}")
