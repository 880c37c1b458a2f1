"""Server processes that are measured: started, waited for, and always ended."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeVar

from bench.common import machine, traffic

CHECKOUT = Path(__file__).resolve().parents[2]

START_WITHIN = 20.0
"""Seconds for a server to accept connections: it takes under one, unless the machine is very busy."""

STOP_WITHIN = 5.0
"""Seconds from SIGTERM to SIGKILL."""

HOST = "127.0.0.1"

WIRES = ("mc0", "dbp", "mtl", "http")
"""The wires beside Elko's: each has its section in the configuration, and its option that switches it off."""


def wires_of(checkout: Path | None) -> tuple[str, ...]:
    """Return those that a version has."""
    package = (checkout or Subject.checkout) / "broker" / "wires"
    return tuple(wire for wire in WIRES if (package / wire / "wire.py").exists())


NOTHING: Mapping[str, str] = MappingProxyType({})

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Subject:
    """The version of the broker that is measured."""

    checkout = CHECKOUT
    """A checkout of the project: by default the one that this file is in."""


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


class WireServer(Server):
    """A server whose ``port`` is that of a wire beside Elko's. The others are 0 with the reference servers."""

    elko = 0
    console = 0

    def counters(self) -> dict[str, int]:
        """The broker's counters, as its console shows them."""
        with socket.create_connection((HOST, self.console), traffic.STUCK) as sock:
            sock.sendall(b"counters\nquit\n")
            text = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
        pairs = (line.split() for line in text.splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


F = TypeVar("F")
S = TypeVar("S", bound=Server)
W = TypeVar("W", bound=WireServer)


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
def broker_with(
    kind: type[W],
    wire: str,
    config: str,
    listens: re.Pattern[str],
    directory: Path,
    *,
    checkout: Path | None = None,
    variables: Mapping[str, str] = NOTHING,
    descriptors: int | None = None,
) -> Iterator[tuple[W, re.Match[str]]]:
    """A broker that has one wire beside Elko's, with this configuration and its state in that directory.

    ``listens`` finds in the log where the wire listens. The match is part of the server. ``checkout`` is a
    version other than `Subject`, ``variables`` come on top of the environment, ``descriptors`` is the limit of open
    files.
    """
    (directory / "config.toml").write_text(config)
    elko = console = free_port()
    while console == elko:
        console = free_port()
    log = directory / "log"
    command = twistd(
        f"--config={directory / 'config.toml'}",
        f"--port={elko}",
        f"--console-port={console}",
        *(f"--{other}-port=off" for other in wires_of(checkout) if other != wire),
        f"--state={directory}",
    )
    process = spawn(command, log, checkout=checkout, variables=variables, descriptors=descriptors)
    server = kind(process, 0, True, log)
    server.elko, server.console = elko, console
    try:
        yield server, await_log(server, listens.search)
    finally:
        server.stop()


def twistd(*options: str) -> list[str]:
    """The command of a broker with these options."""
    return [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile=", "elkobroker", *options]


@contextmanager
def reference(kind: str) -> Iterator[Server]:
    """One of the servers of `bench/elko/reference.py`."""
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        script(Server, Path(directory), "bench.elko.reference", kind) as server,
    ):
        yield server


@contextmanager
def script(kind: type[S], directory: Path, module: str, *arguments: str) -> Iterator[S]:
    """A server that is a module of the benchmarks, and prints its port."""
    log = directory / "log"
    command = [sys.executable, "-m", module, *arguments]
    process = spawn(command, log, stdout=subprocess.PIPE, checkout=CHECKOUT)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise CannotStart(f"{' '.join([module, *arguments])} did not start:\n{log.read_text()}")
        yield kind(process, int(line), False, log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def start_broker(directory: Path, wait: bool = True) -> Server:
    """Start a broker in this directory, as ``twistd -n elkobroker`` does it. The caller must stop it.

    With ``wait`` False it is returned at once, and may not accept connections yet.
    """
    port = free_port()
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    off = (f"--{wire}-port=off" for wire in wires_of(None))
    command = twistd(f"--port={port}", f"--state={state}", "--console-port=off", *off)
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


def spawn(
    command: list[str],
    log: Path,
    stdout: int | None = None,
    *,
    checkout: Path | None = None,
    variables: Mapping[str, str] = NOTHING,
    descriptors: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process whose standard error, and output, goes to ``log``; the options are those of `broker_with`."""

    def prepare() -> None:
        die_with_parent()  # a benchmark that is killed must not leave servers behind
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    environment = dict(os.environ, PYTHONPATH=str(checkout or Subject.checkout), **variables)
    environment.pop("STATE_DIRECTORY", None)  # it would count before --state
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            preexec_fn=prepare,
        )


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(server: Server, poll: float = 0.02) -> None:
    """Wait until it accepts connections, trying every ``poll`` seconds. Raises `CannotStart`."""

    def accepts() -> bool | None:
        try:
            socket.create_connection((HOST, server.port), 1).close()
        except OSError:
            return None
        return True

    _awaited(server, accepts, poll, START_WITHIN)


def await_log(server: Server, find: Callable[[str], F | None], within: float = START_WITHIN) -> F:
    """Wait until ``find`` finds something in its log, and return that. Raises `CannotStart`."""
    return _awaited(server, lambda: find(_log(server)), 0.02, within)


def _awaited(server: Server, look: Callable[[], F | None], poll: float, within: float) -> F:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        if server.process.poll() is not None:
            raise CannotStart(f"the broker ended with status {server.process.returncode}:\n{_log(server)}")
        time.sleep(poll)
    raise CannotStart(f"the broker does not listen after {within:g} s:\n{_log(server)}")


def _log(server: Server) -> str:
    return server.log.read_text(errors="replace") if server.log.exists() else ""
