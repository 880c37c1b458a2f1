"""Clients of mc0 for tests of the whole daemon: real ZeroMQ sockets, keys, and what the console shows of it.

Messages are written as in `tests.wires.mc0.codec.examples`: frames between bars, each character one byte, no delimiter.
Each wait lasts `PATIENCE` at most.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import attrs
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.integration.daemon import Daemon, environment, twistd
from tests.patience import PATIENCE

T = TypeVar("T")

ELKO = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
"""
"""The part of a configuration that is not about mc0."""


# keys


@attrs.frozen
class Keys:
    """Keys of a client: its own pair, and the broker's public key; all in Z85."""

    public: bytes
    secret: bytes = attrs.field(repr=False)
    server: bytes = attrs.field(repr=False)


def brokerkeys(*arguments: str | Path) -> str:
    """Run the command ``brokerkeys``, which must succeed. Returns what it printed."""
    command = [str(Path(sys.executable).with_name("brokerkeys")), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# clients


class Client:
    """One client. Its messages have the delimiter, which a REQ socket adds and takes away itself."""

    def __init__(
        self, context: zmq.Context[Any], address: str, identity: bytes, kind: int, keys: Keys | None, **options: Any
    ) -> None:
        self.address = address
        self.identity = identity
        self.socket: zmq.Socket[bytes] = context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = self.socket.sndtimeo = int(PATIENCE * 1000)
        if identity:
            self.socket.routing_id = identity
        if keys is not None:
            self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
            self.socket.curve_serverkey = keys.server
        for name, value in options.items():
            setattr(self.socket, name, value)
        self._delimiter = [] if kind == zmq.REQ else [b""]
        self._events = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._done = 0
        self.socket.connect(address)

    def send(self, *frames: bytes) -> None:
        """Send a message."""
        self.socket.send_multipart([*self._delimiter, *frames])

    def receive(self) -> list[bytes]:
        """The next message."""
        frames = self.socket.recv_multipart()
        if self._delimiter:
            assert frames.pop(0) == b""
        return frames

    def say(self, line: str) -> None:
        """Send a message that is written as a line."""
        self.send(*line.encode("latin-1").split(b"|"))

    def hear(self) -> str:
        """The next message as a line."""
        return b"|".join(self.receive()).decode("latin-1")

    def ask(self, line: str) -> str:
        """Send a message, and return the next one that comes."""
        self.say(line)
        return self.hear()

    def heard(self) -> list[str]:
        """All that comes before the answer to a NOOP, which is sent now."""
        self._done += 1
        id = f"done {self._done}"
        self.say(f"NOOP|ID|{id}")
        lines = []
        while (line := self.hear()) != f"OK|ID|{id}":
            lines.append(line)
        return lines

    def hears_nothing(self, seconds: float) -> bool:
        """Return True if nothing comes in that time."""
        return not self.socket.poll(int(seconds * 1000))

    def let_in(self) -> None:
        """Wait until the broker has let it in, for the first time or again."""
        self._event(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def is_let_in(self) -> bool:
        """Wait for the result of the first handshake, and return True if the broker has let it in."""
        assert self._events.poll(int(PATIENCE * 1000))
        return bool(recv_monitor_message(self._events)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def cut_off(self, patience: float = PATIENCE) -> None:
        """Wait until the broker has closed the connection. Nothing of it comes afterwards."""
        self._event(zmq.EVENT_DISCONNECTED, patience)

    def _event(self, event: int, patience: float = PATIENCE) -> None:
        while self._events.poll(int(patience * 1000)):
            if recv_monitor_message(self._events)["event"] == event:
                return
        raise AssertionError("it did not come")

    def close(self) -> None:
        """Close the connection."""
        self.socket.disable_monitor()
        self._events.close(0)
        self.socket.close(0)


class Clients:
    """Makes clients of the broker at ``address``, and closes them all in the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context: zmq.Context[Any] = zmq.Context()
        self._all: list[Client] = []
        """pyzmq closes what nobody refers to."""

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._context.destroy(0)

    def new(self, identity: bytes = b"", kind: int = zmq.DEALER, keys: Keys | None = None, **options: Any) -> Client:
        """A client that has begun to connect. ``options`` are attributes of pyzmq's sockets."""
        client = Client(self._context, self.address, identity, kind, keys, **options)
        self._all.append(client)
        return client

    def subscribed(self, identity: bytes, *topics: str, keys: Keys | None = None, **options: Any) -> Client:
        """A client that is subscribed to these topics."""
        client = self.new(identity, keys=keys, **options)
        assert client.ask(f"SUB|ID|sub||{'|'.join(topics)}") == "OK|ID|sub"
        return client


def is_served(client: Client) -> None:
    """Assert that a client which is subscribed to "peace" is served as if it were alone."""
    assert client.ask("PUT|TOPIC|peace|ID|put||x") == "MESSAGE|TOPIC|peace||x"
    assert client.hear() == "OK|ID|put"
    assert client.heard() == []


def answered(clients: list[Client]) -> int:
    """Return the number of clients that have something to read."""
    return sum(not client.hears_nothing(0) for client in clients)


# the daemon


def clients_of(daemon: Daemon) -> Clients:
    """Clients of a daemon that listens on loopback."""
    return Clients(f"tcp://127.0.0.1:{daemon.mc0_port()}")


def configured(directory: Path, mc0: str = "") -> tuple[str, str]:
    """The options of a daemon with these keys of [mc0]; tables may follow. It takes any free port, unless they say."""
    endpoint = "" if "endpoint" in mc0 else 'endpoint = "tcp://127.0.0.1:0"\n'
    path = directory / "elkobroker.toml"
    path.write_text(f"{ELKO}[dbp]\nenabled = false\n[mc0]\n{endpoint}{mc0}\n")
    return "--config", str(path)


def console(daemon: Daemon, command: str, patience: float = PATIENCE) -> str:
    """Return the answer of the console to a command."""
    with socket.create_connection(("127.0.0.1", daemon.console_port()), patience) as operator:
        operator.sendall(f"{command}\r\nquit\r\n".encode())
        answer = b"".join(iter(lambda: operator.recv(65536), b""))
    return answer.decode().partition("\r\n")[2].replace("\r\n", "\n")


def shown(daemon: Daemon, view: str) -> list[dict[str, Any]]:
    """Return the rows that the console shows, as values."""
    found: list[dict[str, Any]] = json.loads(console(daemon, view))
    return found


def identities(daemon: Daemon, pattern: str = "*") -> list[str]:
    """The sessions that the console shows."""
    return [str(each["identity"]) for each in shown(daemon, f"mc0 sessions {pattern}")]


def counters(daemon: Daemon) -> dict[str, int]:
    """Return the counters of the broker; 0 for one that it does not have."""
    found = Counts()
    for line in console(daemon, "counters").splitlines():
        name, _, count = line.rpartition(" ")
        found[name] = int(count)
    return found


class Counts(dict[str, int]):
    """Counts by name."""

    def __missing__(self, name: str) -> int:
        return 0


def whole_log(daemon: Daemon) -> str:
    """All that a daemon has printed, once it has ended."""
    daemon.ended()
    with suppress(AssertionError):
        daemon.wait_for(r"(?!)")  # which nothing matches
    return "".join(daemon.log)


def run_to_its_end(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected to end by itself."""
    return subprocess.run(
        [twistd(), "-n", "--pidfile=", "elkobroker", *options],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
