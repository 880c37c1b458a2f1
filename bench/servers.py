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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeVar

from bench import machine, traffic
from bench.zmtp import Keys

CHECKOUT = Path(__file__).resolve().parents[1]

START_WITHIN = 60.0
"""Seconds for a server to accept connections: it takes under one, unless the machine is very busy."""

STOP_WITHIN = 5.0
"""Seconds from SIGTERM to SIGKILL."""

HOST = "127.0.0.1"

WIRES = ("mc0", "dbp", "mtl", "http")
"""The wires beside Elko's: each has its section in the configuration, and its option that switches it off."""


NOTHING: Mapping[str, str] = MappingProxyType({})

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Subject:
    """The version of the broker that is measured."""

    checkout = CHECKOUT
    """A checkout of the project: by default the one that this file is in."""


class FailedError(Exception):
    """A process that is measured failed, or did not come up; the text has its last words."""


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

    def stop(self) -> None:
        """End it in good order if it can, and in any case."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class WireServer(Server):
    """A server whose ``port`` is that of a wire beside Elko's. The others are 0 with the reference servers."""

    elko = 0
    console = 0
    key: bytes | None = None
    """The public key that clients need, if it wants CURVE."""

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
    """A broker without other wires than Elko, with a state directory of its own, for as long as the context lasts."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory:
        port, log = free_port(), Path(directory) / "log"
        off = (f"--{wire}-port=off" for wire in WIRES)
        command = twistd(f"--port={port}", f"--state={directory}", "--console-port=off", *off)
        server = Server(spawn(command, log), port, True, log)

        def accepts() -> bool | None:
            try:
                socket.create_connection((HOST, port), 1).close()
            except OSError:
                return None
            return True

        try:
            _awaited(server, accepts, START_WITHIN)
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
    variables: Mapping[str, str] = NOTHING,
    every_wire: bool = False,
) -> Iterator[tuple[W, re.Match[str]]]:
    """A broker that has one wire beside Elko's, or all, with this configuration and its state in that directory.

    ``listens`` finds in the log where the wire listens. The match is part of the server. ``variables`` come on top of
    the environment.
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
        *(f"--{other}-port=off" for other in WIRES if other != wire and not every_wire),
        f"--state={directory}",
    )
    process = spawn(command, log, variables=variables)
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
def reference(kind: type[S], name: str, *arguments: str, keys: Keys | None = None) -> Iterator[S]:
    """A server that is a module of `bench.references`, and prints its port. With ``keys`` it wants CURVE."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as place:
        log = Path(place) / "log"
        files = [] if keys is None else [str(_secret_file(Path(place), keys.secret))]
        command = [sys.executable, "-m", f"bench.references.{name}", *arguments, *files]
        process = spawn(command, log, stdout=subprocess.PIPE, checkout=CHECKOUT)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise FailedError(f"{' '.join(command)} did not start:\n{log.read_text()}")
            server = kind(process, int(line), False, log)
            if isinstance(server, WireServer):
                server.key = None if keys is None else keys.public
            if isinstance(server, MtlServer):
                server.data = server.port
            yield server
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


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


def await_log(server: Server, find: Callable[[str], F | None], within: float = START_WITHIN) -> F:
    """Wait until ``find`` finds something in its log, and return that. Raises `FailedError`."""
    return _awaited(server, lambda: find(_log(server)), within)


def _awaited(server: Server, look: Callable[[], F | None], within: float) -> F:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        if server.process.poll() is not None:
            raise FailedError(f"the broker ended with status {server.process.returncode}:\n{_log(server)}")
        time.sleep(0.02)
    raise FailedError(f"the broker does not listen after {within:g} s:\n{_log(server)}")


def _log(server: Server) -> str:
    return server.log.read_text(errors="replace") if server.log.exists() else ""


def _secret_file(directory: Path, secret: bytes) -> Path:
    file = directory / "secret"
    file.touch(mode=0o600)
    file.write_bytes(secret + b"\n")
    return file


# brokers with one more wire, each with a state directory of its own


class Mc0Server(WireServer):
    """A server with an mc0 wire."""


class DbpServer(WireServer):
    """A server whose ``port`` is that of its ROUTER."""

    udp = 0


class MtlServer(WireServer):
    """A server whose ``port`` is that of its control flow. The reference server has none, and its own for data."""

    data = 0


class DnsServer(WireServer):
    """A server whose ``port`` is that of DNS, by UDP."""


class HttpServer(WireServer):
    """A server whose ``port`` is that of HTTP."""


DNS_LISTENS = re.compile(r"dns on 127\.0\.0\.1:(\d+) \(udp")
MC0_LISTENS = re.compile(r"mc0 on tcp://127\.0\.0\.1:(\d+) \(")
DBP_LISTENS = re.compile(r"dbp on tcp://127\.0\.0\.1:(\d+) \(udp 127\.0\.0\.1:(\d+)")
MTL_LISTENS = re.compile(r"mtl on tcp://127\.0\.0\.1:(\d+) \(data tcp://127\.0\.0\.1:(\d+)")
HTTP_LISTENS = re.compile(r" http on 127\.0\.0\.1:(\d+) \(")
"""The log lines of open wires."""

DURABLE = "durable"
"""A queue that is kept on the disk. All others are not."""

HELPERS = "ELKOBROKER_HELPERS"
"""The variable that says which code handles ZMTP: ``python``, or ``compiled`` for the helpers in C."""


@contextmanager
def mc0(keys: Keys | None = None, *, helpers: str | None = None, more: str = "") -> Iterator[Mc0Server]:
    """A broker with mc0; with ``keys`` it wants CURVE, and lets any client key in. ``helpers`` is the value of
    `HELPERS`, ``more`` are further sections of the configuration."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        config = '[mc0]\nendpoint = "tcp://127.0.0.1:0"\n'
        if keys is not None:
            config += f'secret_key_file = "{_secret_file(directory, keys.secret)}"\n'
        variables = {} if helpers is None else {HELPERS: helpers}
        with broker_with(Mc0Server, "mc0", config + more, MC0_LISTENS, directory, variables=variables) as (
            server,
            said,
        ):
            server.port = int(said[1])
            server.key = None if keys is None else keys.public
            yield server


@contextmanager
def dbp() -> Iterator[DbpServer]:
    """A broker with DBP, without a beacon: others on this machine may wait for one of theirs."""
    config = '[dbp]\nendpoint = "tcp://127.0.0.1:0"\nbeacon = []\nservices = 100_000\n'
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        broker_with(DbpServer, "dbp", config, DBP_LISTENS, Path(directory)) as (server, said),
    ):
        server.port, server.udp = int(said[1]), int(said[2])
        yield server


@contextmanager
def mtl(keys: Keys | None = None) -> Iterator[MtlServer]:
    """A broker with MTL, and room in its queues for all that is sent while nobody reads; with ``keys`` it wants CURVE,
    and lets any client key in."""
    room = "messages = 10_000_000\nsize = 1_073_741_824\n"
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        config = '[mtl]\nendpoint = "tcp://127.0.0.1:0"\n'
        if keys is not None:
            config += f'secret_key_file = "{_secret_file(directory, keys.secret)}"\n'
        config += f'[[mtl.queues]]\nqueues = ["{DURABLE}"]\ndurable = true\n{room}[[mtl.queues]]\n{room}'
        with broker_with(MtlServer, "mtl", config, MTL_LISTENS, directory) as (server, said):
            server.port, server.data = int(said[1]), int(said[2])
            server.key = None if keys is None else keys.public
            yield server


def dns() -> AbstractContextManager[DnsServer]:
    """A broker with DNS, whose responses on this machine are not limited."""
    config = '[dns]\nenabled = true\nendpoint = "tcp:0:interface=127.0.0.1"\n'
    return _on_one_port(DnsServer, "dns", config, DNS_LISTENS)


def http() -> AbstractContextManager[HttpServer]:
    """A broker with HTTP, for clients on this machine."""
    return _on_one_port(HttpServer, "http", '[http]\nendpoint = "tcp:0:interface=127.0.0.1"\n', HTTP_LISTENS)


@contextmanager
def _on_one_port(kind: type[W], wire: str, config: str, listens: re.Pattern[str]) -> Iterator[W]:
    """A broker with a wire whose line in the log, ``listens``, has its port."""
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        broker_with(kind, wire, config, listens, Path(directory)) as (server, said),
    ):
        server.port = int(said[1])
        yield server


UNBOUND = Path("/usr/sbin/unbound")

_LOCAL_DATA = """\
server:
  directory: "{directory}"
  chroot: ""
  username: ""
  pidfile: ""
  use-syslog: no
  verbosity: 1
  do-daemonize: no
  num-threads: 1
  interface: 127.0.0.1
  port: {port}
  access-control: 127.0.0.0/8 allow
  local-zone: "service.elkobroker." static
  local-zone: "addr.elkobroker." static
remote-control:
  control-enable: no
"""


@contextmanager
def unbound(places: int = 4) -> Iterator[Server]:
    """An unbound (Debian: package unbound) that has SRV and A of as many places as the broker in its local data."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory, port = Path(name), free_port()
        lines = _LOCAL_DATA.format(directory=directory, port=port).splitlines()
        for number in range(1, places + 1):
            target = f"0a0000{number:02x}.addr.elkobroker."
            for data in (
                f"bank.service.elkobroker. 5 IN A 10.0.0.{number}",
                f"bank.service.elkobroker. 5 IN SRV 0 1000 80 {target}",
                f"{target} 5 IN A 10.0.0.{number}",
            ):
                lines.insert(-2, f"  local-data: '{data}'")
        config = directory / "unbound.conf"
        config.write_text("\n".join(lines) + "\n")
        log = directory / "log"
        server = Server(spawn([str(UNBOUND), "-d", "-c", str(config)], log), port, False, log)
        try:
            await_log(server, lambda text: "start of service" in text or None)
            yield server
        finally:
            server.stop()


ETCD = Path("/usr/bin/etcd")


@contextmanager
def etcd() -> Iterator[Server]:
    """An etcd (Debian: package etcd-server) of one member, with its JSON over HTTP."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory, port = Path(name), free_port()
        url, log = f"http://{HOST}:{port}", directory / "log"
        options = [f"--data-dir={name}/data", f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
        options.append(f"--listen-peer-urls=http://{HOST}:0")
        server = Server(spawn([str(ETCD), *options], log), port, False, log)
        try:
            await_log(server, lambda text: "ready to serve client requests" in text or None)
            yield server
        finally:
            server.stop()
