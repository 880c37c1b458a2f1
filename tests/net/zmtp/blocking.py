"""A blocking driver: one socket with one machine, so that real peers can be met without a reactor."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from broker.net.zmtp.machine import Machine
from tests.net.zmtp.conversation import Side
from tests.patience import PATIENCE

READ = 65_536
"""Bytes of one read, as a Twisted transport has."""


class Connection:
    """A connection over a real socket. It accepts every claim."""

    def __init__(self, wire: socket.socket, machine: Machine) -> None:
        self._wire = wire
        wire.settimeout(PATIENCE)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.side = Side(machine)
        self.input = b""
        """The octets of the last read."""
        self.answering = True
        """False: the machine's output is discarded."""
        self.flush()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def flush(self) -> bytes:
        """Send what there is to be sent, and return it."""
        output = self.side.give()
        if self.answering:
            self._wire.sendall(output)
        return output

    def step(self) -> bytes:
        """Read once, and send what comes of it. Returns what was sent. Raises EOFError at the end."""
        self.input = self._wire.recv(READ)
        if not self.input:
            raise EOFError
        self.side.take(self.input)
        return self.flush()

    def until(self, condition: Callable[[], object]) -> None:
        """Read until it holds."""
        while not condition():
            self.step()

    def message(self) -> list[bytes]:
        """The next message."""
        self.until(lambda: self.side.messages)
        return self.side.messages.pop(0)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send one message, once traffic has begun."""
        self.until(lambda: self.side.machine.encoder is not None)
        assert self.side.machine.encoder is not None
        self._wire.sendall(self.side.machine.encoder.message(frames))

    def ping(self) -> None:
        """Send a PING."""
        self._wire.sendall(self.side.machine.ping())

    def to_the_end(self) -> bytes:
        """The input until the other side closes."""
        octets = b""
        while data := self._wire.recv(READ):
            octets += data
        return octets

    def write(self, octets: bytes) -> None:
        """Send octets as they are."""
        self._wire.sendall(octets)


class Listener:
    """A listening socket on a free port of this host."""

    def __init__(self) -> None:
        self._wire = socket.create_server(("127.0.0.1", 0))
        self._wire.settimeout(PATIENCE)
        self.endpoint = f"tcp://127.0.0.1:{self._wire.getsockname()[1]}"

    def accept(self, machine: Machine) -> Connection:
        """The next connection."""
        wire, _ = self._wire.accept()
        return Connection(wire, machine)

    def close(self) -> None:
        """Accept no more."""
        self._wire.close()


def connect(endpoint: str, machine: Machine) -> Connection:
    """Connect to a TCP endpoint of libzmq."""
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    return Connection(socket.create_connection((host, int(port)), PATIENCE), machine)
