"""Messages of MTL clients, byte for byte; in plain pyzmq."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.backend import Socket as BackendSocket

from bench.common.traffic import STUCK, Stuck
from bench.mtl.servers import MtlServer

RESOURCE = "resource"
"""The one of the test profile."""

SOCKETS = 8_192
"""Sockets that a process may have."""

HEAD = struct.Struct(">BQ")
LEASE, RESPONSE, SUMMON, DISMISS, CONTENT, CONFIRM, REJECT = range(1, 8)
PING, PONG = b"\x08", b"\x09"

_KEYS = zmq.curve_keypair()
"""Of all clients: a data lease is for the key that asked for it."""

MORE = int(zmq.SNDMORE)
NOW = int(zmq.NOBLOCK)

Socket = zmq.Socket[bytes]


def context() -> zmq.Context[Socket]:
    """The ZeroMQ context of a process."""
    made: zmq.Context[Socket] = zmq.Context()
    made.set(zmq.MAX_SOCKETS, SOCKETS)
    made.set(zmq.BLOCKY, 0)
    return made


def dealer(at: zmq.Context[Socket], server: MtlServer, port: int) -> Socket:
    """A connection, that waits for nothing for longer than `bench.common.traffic.STUCK`."""
    sock = at.socket(zmq.DEALER)
    sock.set(zmq.LINGER, 0)
    sock.set(zmq.RCVTIMEO, int(STUCK * 1000))
    sock.set(zmq.SNDTIMEO, int(STUCK * 1000))
    if server.key is not None:
        sock.curve_serverkey = server.key
        sock.curve_publickey, sock.curve_secretkey = _KEYS
    sock.connect(f"tcp://127.0.0.1:{port}")
    return sock


def methods(sock: Socket) -> tuple[Callable[..., bytes], Callable[..., object]]:
    """Functions that receive and send one frame fast: the methods of the extension itself."""
    recv: Any = BackendSocket.recv.__get__(sock)
    send: Any = BackendSocket.send.__get__(sock)
    return recv, send


# the control flow


def request(command: str, **members: object) -> list[bytes]:
    """A request, as a DEALER sends it."""
    body = {name.replace("_", "-"): value for name, value in members.items()}
    return [b"", f"Connection.{command}".encode(), json.dumps(body).encode()]


OPEN = request("Open", protocol={"name": "MTL", "version": 1}, virtual_host="/")


class Control:
    """Data leases of one profile, in as many sessions as are needed for them."""

    def __init__(self, at: zmq.Context[Socket], server: MtlServer, profile: str) -> None:
        self._context = at
        self._server = server
        self._profile = profile
        self._sessions: list[Socket] = []
        self._left = 0

    def lease(self, side: str, resources: Sequence[str], confirm: str, **members: object) -> str:
        """Get a lease. ``side`` is Reader or Writer."""
        if not self._server.broker:
            return "any"
        if not self._left:
            self._begin()
        self._left -= 1
        asked = request(side, resources=resources, confirm=confirm, **members)
        return str(ask(self._sessions[-1], asked, b"202")["lease"])

    def close(self) -> None:
        """Go."""
        for session in self._sessions:
            session.close()

    def _begin(self) -> None:
        session = dealer(self._context, self._server, self._server.port)
        self._sessions.append(session)
        self._left = ask(session, OPEN, b"201")["limits"]["leases"]
        ask(session, request("Profile", profile=self._profile), b"200")


def ask(session: Socket, asked: Sequence[bytes], code: bytes) -> Any:
    """The reply. Raises `Stuck` if it has another code."""
    session.send_multipart(asked)
    try:
        reply = session.recv_multipart()
    except zmq.Again:
        raise Stuck(f"no reply to {asked[1]!r}") from None
    if len(reply) != 3 or reply[1] != code:
        raise Stuck(f"{asked[1]!r} was replied to with {reply!r:.300}")
    return json.loads(reply[2])


# the data flow


def short(text: str) -> bytes:
    """A short string."""
    data = text.encode()
    return bytes((len(data),)) + data


def command(kind: int, sequence: int, text: str) -> list[bytes]:
    """One that says something: a Lease, a Summon or a Dismiss."""
    return [HEAD.pack(kind, sequence) + short(text), b""]


def tail(resource: str) -> bytes:
    """The bytes behind the sequence of a Content without properties."""
    return short(resource) + bytes(4)


def confirm(sequence: int, multiple: bool = False) -> bytes:
    """The header of a Confirm."""
    return HEAD.pack(CONFIRM, sequence) + bytes((multiple,))


_sequences = itertools.count(1)


def say(sock: Socket, kind: int, text: str) -> None:
    """Send a command, and have its 200. Raises `Stuck` if it is answered with something else."""
    sequence = next(_sequences)
    sock.send_multipart(command(kind, sequence, text))
    try:
        answer = sock.recv_multipart()
        while answer[0] == PING:
            sock.send_multipart([PONG, b""])
            answer = sock.recv_multipart()
    except zmq.Again:
        raise Stuck(f"no answer to a command {kind}") from None
    if answer != [HEAD.pack(RESPONSE, sequence), b"200"]:
        raise Stuck(f"a command {kind} was answered by {answer!r:.300}")


def flow(at: zmq.Context[Socket], server: MtlServer, lease: str, *summoned: str) -> Socket:
    """A data flow. A reader has summoned these resources."""
    sock = dealer(at, server, server.data)
    say(sock, LEASE, lease)
    for resource in summoned:
        say(sock, SUMMON, resource)
    return sock
