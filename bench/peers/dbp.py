"""Messages to and from peers of DBP, byte for byte; times as the original writes them, in float32.

A float32 of our days changes every 128 s only, so that what a server answers is known beforehand (`steady`).
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable, Sequence

from bench import traffic
from bench.traffic import STUCK, Stuck, received
from bench.zmtp import GREETING, Frames, Peer, connect, frame, opening

SERVICES = 1_000
"""Registered services, as the original was measured with."""

NOWHERE = 1
"""A port at which no service listens: who is asked there is refused at once."""

AGREED = b'{"heartbeat": 3600000, "liveness": 3}'
"""The reply to a service that registered with the longest interval: it is not expected again while it is measured."""


def now() -> bytes:
    """The time frame."""
    return struct.pack("<f", time.time())


def steady(seconds: float) -> bytes:
    """The time frame for so many seconds to come; waits until there is one."""
    while True:
        value = now()
        if struct.pack("<f", time.time() + seconds) == value:
            return value
        time.sleep(0.1)


# services as the original's register


def name(number: int) -> str:
    """A name; all have one length."""
    return f"service-{number:06d}"


def info(number: int) -> bytes:
    """The info of a service of the original, in its own form; all have one length."""
    interface = {"ip": "127.0.0.1", "port": 10_000 + number % 10_000}
    about = {"interfaces": {"router": interface}, "reg_time": "Sat Nov 21 07:37:01 2026", "topics": None}
    return json.dumps(about).encode()


def listed(numbers: Iterable[int]) -> bytes:
    """The body of the answer to a request for these."""
    return b"{%b}" % b", ".join(b'"%b": %b' % (name(number).encode(), info(number)) for number in numbers)


def registration(number: int) -> Frames:
    """The registration of such a service."""
    return [b"", b"UwU", now(), b'{"name": "%b", %b' % (name(number).encode(), info(number)[1:])]


def approval(at: bytes) -> Frames:
    """The reply to it, by a REQ."""
    return [b"", b"OwO", at, b""]


# services as the document has them


def beating(number: int, milliseconds: int) -> Frames:
    """A registration with an interval of heartbeats, in which the service is where nobody answers."""
    about = {
        "name": name(number),
        "ip": "127.0.0.1",
        "port": NOWHERE,
        "function": "bench",
        "heartbeat_ms": milliseconds,
    }
    return [b"", b"UwU", now(), json.dumps(about).encode()]


def agreement(at: bytes) -> Frames:
    """The reply to such a service, by a DEALER, if its interval was the longest."""
    return [b"", b"OwO", at, AGREED, b"", b""]


LONGEST = 3_600_000
"""Milliseconds of the longest interval."""


# requests


def request(wanted: str) -> Frames:
    """A request for one service, or for all."""
    return [b"", b"u_U", now(), wanted.encode()]


def reply(at: bytes, body: bytes) -> Frames:
    """The answer."""
    return [b"", b"o_O", at, body]


# connections


def client(port: int, source: int = 0) -> Peer:
    """A DEALER."""
    return connect(port, b"", None, source)


def clients(port: int, count: int) -> list[Peer]:
    """So many of them."""
    return [client(port) for _ in range(count)]


def encoded(frames: Frames) -> bytes:
    """A message on the wire."""
    last = len(frames) - 1
    return b"".join(frame(int(i < last), content) for i, content in enumerate(frames))


WELCOME = GREETING + 2 + len(b"\x05READY") + 5 + len("Socket-Type") + len("ROUTER") + 5 + len("Identity")
"""Bytes of the server's half."""


def register(port: int, registrations: Sequence[Frames], kind: bytes = b"REQ", source: int = 0) -> None:
    """Register services as the original's do: each opens a connection, and closes it when it was answered."""
    for message in registrations:
        with traffic.connect(port, source) as sock:
            sock.settimeout(STUCK)
            sock.sendall(opening(kind))
            _read(sock, WELCOME)
            sock.sendall(encoded(message))
            data = _read(sock, len(encoded(approval(now()))))
            if b"OwO" not in data:
                raise Stuck(f"a registration was answered by {data!r:.300}")


def _read(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or more if they are there. Raises `Stuck`."""
    data = b""
    while len(data) < size:
        data += received(sock, data)
    return data
