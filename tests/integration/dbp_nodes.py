"""Nodes of DBP for tests of the whole daemon: plain ZeroMQ sockets, datagrams, and a service in a process of its own.

Each wait lasts `PATIENCE` at most.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from tests.integration.daemon import ROOT, Daemon, environment
from tests.integration.mc0_clients import ELKO, Client, Clients
from tests.patience import PATIENCE

LONGEST = 65_535
"""Bytes of the longest datagram there is."""

NOWHERE = 1
"""A port at which nobody listens: a service that is asked there does not answer."""

LOOK_EVERY = 50
"""Milliseconds between two looks whether `Answering` is to end."""


def text() -> bytes:
    """The time as the broker writes it by UDP."""
    return b"%.6f" % time.time()


def float32() -> bytes:
    """The time as Hermes writes it."""
    return struct.pack("<f", time.time())


def configured(directory: Path, dbp: str = "") -> tuple[str, str]:
    """The options of a daemon with these keys of [dbp]. It takes any free port and has no beacon, unless they say."""
    defaults = {"endpoint": '"tcp://127.0.0.1:0"', "beacon": "[]"}
    given = {line.partition("=")[0].strip() for line in dbp.splitlines()}
    keys = "".join(f"{key} = {value}\n" for key, value in defaults.items() if key not in given)
    path = directory / "elkobroker.toml"
    path.write_text(f"{ELKO}[mc0]\nenabled = false\n[dbp]\n{keys}{dbp}\n")
    return "--config", str(path)


class Node:
    """One ZeroMQ socket, and how its node writes the time."""

    def __init__(self, client: Client, now: Callable[[], bytes]) -> None:
        self.client = client
        self._now = now

    def say(self, command: str, *frames: str | bytes | dict[str, Any]) -> None:
        """Send a command, the time, and what follows: text is encoded, an object becomes JSON."""
        self.client.send(command.encode(), self._now(), *map(_frame, frames))

    def hear(self) -> list[bytes]:
        """The next message that is no heartbeat: its command, and what follows the time."""
        while (message := self._receive())[0] == b"<3":
            pass
        return message

    def heartbeat(self) -> bytes:
        """Return the sender of the next message, which must be a heartbeat."""
        command, name = self._receive()
        assert command == b"<3"
        return name

    def _receive(self) -> list[bytes]:
        command, at, *rest = self.client.receive()
        assert len(at) == len(self._now())
        return [command, *rest]

    def ask(self, command: str, *frames: str | bytes | dict[str, Any]) -> list[bytes]:
        """Send a command, and return the next message."""
        self.say(command, *frames)
        return self.hear()

    def registered(self, name: str, **info: Any) -> Node:
        """Register, and be approved."""
        assert self.ask("UwU", {"name": name, **info})[0] == b"OwO"
        return self

    def find(self, *names: str) -> dict[str, Any]:
        """The answer to a request for these names, or for all."""
        command, body = self.ask("u_U", *(names or ("",)))
        assert command == b"o_O"
        found: dict[str, Any] = json.loads(body)
        return found

    def hears_nothing(self, seconds: float) -> bool:
        """Return True if nothing comes in that time."""
        return self.client.hears_nothing(seconds)


def _frame(frame: str | bytes | dict[str, Any]) -> bytes:
    if isinstance(frame, dict):
        return json.dumps(frame).encode()
    return frame.encode() if isinstance(frame, str) else frame


class Nodes(Clients):
    """Makes nodes at the broker of a daemon on loopback, and closes them all in the end."""

    def __init__(self, daemon: Daemon) -> None:
        self.port = daemon.dbp_port()
        super().__init__(f"tcp://127.0.0.1:{self.port}")
        self._udp: list[Datagrams] = []

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each in self._udp:
            each.close()
        super().__exit__(kind, error, tb)

    def dealer(self) -> Node:
        """A node of the document."""
        return Node(self.new(), text)

    def req(self) -> Node:
        """A node of the document that uses a REQ."""
        return Node(self.new(kind=zmq.REQ), text)

    def hermes(self) -> Node:
        """A node that does as the original's do."""
        return Node(self.new(kind=zmq.REQ), float32)

    def udp(self) -> Datagrams:
        """A UDP socket of a node."""
        self._udp.append(Datagrams(("127.0.0.1", self.port)))
        return self._udp[-1]


class Datagrams:
    """The UDP socket of a node. It hears the broker only."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE)
        self.broker = broker

    @property
    def address(self) -> str:
        """The address of the socket."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        """Send just these bytes."""
        self._socket.sendto(data, self.broker)

    def beat(self, name: str) -> None:
        """Send a heartbeat."""
        self.send(b" <3 %b %b" % (text(), name.encode()))

    def hear(self) -> list[bytes]:
        """The words of the next datagram that is no heartbeat, without the time."""
        while (words := self._receive())[0] == b"<3":
            pass
        return words

    def heartbeat(self) -> bytes:
        """Return the sender of the next datagram, which must be a heartbeat."""
        command, name = self._receive()
        assert command == b"<3"
        return name

    def _receive(self) -> list[bytes]:
        data, source = self._socket.recvfrom(LONGEST)
        assert source == self.broker
        empty, command, at, *rest = data.split(b" ", 3)
        assert empty == b""
        assert abs(float(at) - time.time()) < PATIENCE
        return [command, *rest]

    def hears_nothing(self) -> bool:
        """Return True if nothing has come."""
        self._socket.setblocking(False)
        try:
            self._socket.recvfrom(LONGEST)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class Answering:
    """A service's own ROUTER, which answers whatever it is asked; ``asked`` are the questions without their times."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self._over = threading.Event()
        self._context: zmq.Context[Any] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self.port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Answer nothing more."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._router.close()
            self._context.term()

    def _answer(self) -> None:
        while not self._over.is_set():
            if self._router.poll(LOOK_EVERY):
                identity, empty, command, at, *rest = self._router.recv_multipart()
                self.asked.append([empty, command, *rest])
                self._router.send_multipart([identity, b"", b"u.u", at])


class Service:
    """``examples/service.py`` as a process of its own."""

    def __init__(self, port: int, name: str, interval: float) -> None:
        command = [sys.executable, str(ROOT / "examples/service.py"), "--name", name, "--port", str(port)]
        command += ["--interval", str(interval), "--hostport", f"127.0.0.1:{NOWHERE}"]
        self.process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def says(self, beginning: str) -> str:
        """The next line that begins so; the rest of it."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith(beginning):
                    return line.removeprefix(beginning).strip()
        finally:
            watchdog.cancel()
        raise AssertionError(f"it ended without saying {beginning!r}")
