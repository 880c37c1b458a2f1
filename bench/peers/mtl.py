"""Clients of MTL and their load: writers and readers, in plain pyzmq.

All that comes is compared with what must come. Nobody sends more at once than libzmq holds for a slow peer, so that
nothing may be dropped.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Sequence, Sized
from itertools import count
from typing import Any

import zmq
from zmq.backend import Socket as BackendSocket

from bench.servers import MtlServer
from bench.traffic import STUCK, Sample, Stuck

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
    """A connection, that waits for nothing for longer than `bench.traffic.STUCK`."""
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


_sequences = count(1)


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


# loads

AHEAD = {100: 500, 1024: 500, 10 * 1024: 50}
"""Contents on their way to each reader of a fan-out, by the size of a body. libzmq takes 1,000 for a peer."""

DISTINCT = 50
"""Different bodies."""

FURTHER = 4
"""Windows by which a queue may grow while its readers are behind."""


def bodies(size: int) -> list[bytes]:
    """Some that differ."""
    return [b"%08d" % i + b"." * (size - 8) for i in range(DISTINCT)]


class FanOut:
    """One writer, and readers who each get all that it sends: test profile, and topics.

    The writer is at most ``ahead`` Contents ahead of the readers; by default that is as much as is never dropped.
    """

    def __init__(self, server: MtlServer, readers: int, size: int, ahead: int = 0) -> None:
        self._context = at = context()
        control = Control(at, server, "test")
        self._readers = [
            flow(at, server, control.lease("Reader", [RESOURCE], "none"), RESOURCE) for _ in range(readers)
        ]
        self._writer = flow(at, server, control.lease("Writer", [RESOURCE], "none"))
        self._bodies = bodies(size)
        self._ahead = ahead or AHEAD[size]
        self._sent = self._taken = 0

    def run(self, seconds: float) -> Sample:
        """Send for so long, then let all come. Counts deliveries."""
        begun = self._sent
        half = max(self._ahead // 2, 1)
        lead = self._ahead - half
        drained(self._writer)  # answers pings: nothing else comes to the writer
        start = now = time.perf_counter()
        end = start + seconds
        self._send(lead)
        while now < end:
            self._send(half)
            self._take(half)
            now = time.perf_counter()
        self._take(lead)
        return Sample((self._sent - begun) * len(self._readers), time.perf_counter() - start)

    def close(self) -> None:
        """Close the connections."""
        self._context.destroy(0)

    def _send(self, count: int) -> None:
        send, ending = methods(self._writer)[1], tail(RESOURCE)
        first = self._sent
        for number in range(first, first + count):
            send(HEAD.pack(CONTENT, number) + ending, MORE)
            send(self._bodies[number % DISTINCT], 0)
        self._sent += count

    def _take(self, count: int) -> None:
        ending, first = tail(RESOURCE), self._taken
        headers = [HEAD.pack(CONTENT, number + 1) + ending for number in range(first, first + count)]
        contents = [self._bodies[number % DISTINCT] for number in range(first, first + count)]
        for reader in self._readers:
            recv = methods(reader)[0]
            try:
                for header, body in zip(headers, contents, strict=True):
                    came = recv(0)
                    while came == PING:
                        recv(0)
                        reader.send_multipart([PONG, b""])
                        came = recv(0)
                    if came != header or recv(0) != body:
                        raise Stuck(f"not the Content that was to come: {came!r:.100} for {header!r}")
            except zmq.Again:
                raise Stuck(f"a Content did not come within {STUCK:g} s") from None
        self._taken += count


def drained(sock: Socket) -> list[tuple[bytes, bytes]]:
    """All commands that have come, with their bodies; Pings are answered."""
    recv, send = methods(sock)
    came: list[tuple[bytes, bytes]] = []
    try:
        while True:
            header = recv(NOW)
            body = recv(NOW)
            if header == PING:
                send(PONG, MORE)
                send(b"", 0)
            else:
                came.append((header, body))
    except zmq.Again:
        return came


class Unconfirmed:
    """The sequences of the unconfirmed Contents of a writer, in order."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._sent: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sequence: int) -> None:
        """One goes out now."""
        self._sent[sequence] = None

    def hear(self) -> bool:
        """Take what has come. Returns whether there was something."""
        came = drained(self._sock)
        for header, _ in came:
            kind, sequence = HEAD.unpack_from(header)
            if kind != CONFIRM or len(header) != HEAD.size + 1:
                raise Stuck(f"a writer was told {header!r:.100}")
            covered = [sequence]
            if header[HEAD.size]:
                covered = [each for each in self._sent if each <= sequence]
            for each in covered:
                if each not in self._sent:
                    raise Stuck(f"the Content {each} was confirmed, but not sent, or confirmed before")
                del self._sent[each]
        return bool(came)


class QueueTraffic:
    """One writer that is confirmed, and readers of its queue: the load, whatever the protocol.

    Nobody has more than ``window`` unconfirmed. Without readers everything stays in the queue.
    """

    _readers: Sequence[Any]
    _unconfirmed: Sized
    _poller: Any
    """The poller of all connections."""

    def __init__(self, window: int, size: int) -> None:
        self._window = window
        self._filler = b"." * (size - 8)
        self._sent = 0
        self._missing: set[bytes] = set()
        """Bodies that no reader has had yet."""

    def run(self, seconds: float) -> Sample:
        """Write for so long, then let all be confirmed. Counts messages."""
        begun = self._sent
        start = now = time.perf_counter()
        end = start + seconds
        most = FURTHER * self._window
        while now < end or self._unconfirmed or self._missing:
            if now < end:
                room = self._window - len(self._unconfirmed)
                self._send(min(room, most - len(self._missing)) if self._readers else room)
            moved = self._hear()
            for reader in self._readers:
                moved |= self._take(reader)
            if not moved and not self._poller.poll(int(STUCK * 1000)):
                raise Stuck(f"{len(self._unconfirmed)} are not confirmed, {len(self._missing)} did not come")
            now = time.perf_counter()
        return Sample(self._sent - begun, now - start)

    def _send(self, count: int) -> None:
        """Send so many messages."""
        raise NotImplementedError

    def _hear(self) -> bool:
        """Take the confirms that have come. Returns True if there were some."""
        raise NotImplementedError

    def _take(self, reader: Any) -> bool:
        """Take and confirm the messages that have come at a reader. Returns True if there were some."""
        raise NotImplementedError


class Queue(QueueTraffic):
    """The same over MTL. Readers confirm one by one, or ``multiple`` at once."""

    _unconfirmed: Unconfirmed

    def __init__(
        self,
        server: MtlServer,
        name: str,
        readers: int,
        window: int,
        size: int,
        multiple: bool = False,
    ) -> None:
        super().__init__(window, size)
        self._context = at = context()
        control = Control(at, server, "queue")
        self._readers = [
            flow(at, server, control.lease("Reader", [name], "full", window=window), name) for _ in range(readers)
        ]
        self._writer = flow(at, server, control.lease("Writer", [name], "full"))
        self._tail = tail(name)
        self._multiple = multiple
        self._unconfirmed = Unconfirmed(self._writer)
        self._poller = zmq.Poller()
        for sock in (self._writer, *self._readers):
            self._poller.register(sock, zmq.POLLIN)

    def close(self) -> None:
        """Close the connections."""
        self._context.destroy(0)

    def _send(self, count: int) -> None:
        send = methods(self._writer)[1]
        for _ in range(count):
            self._sent += 1
            body = b"%08d" % self._sent + self._filler
            send(HEAD.pack(CONTENT, self._sent) + self._tail, MORE)
            send(body, 0)
            self._unconfirmed.add(self._sent)
            if self._readers:
                self._missing.add(body[:8])

    def _hear(self) -> bool:
        return self._unconfirmed.hear()

    def _take(self, reader: Socket) -> bool:
        contents = drained(reader)
        if not contents:
            return False
        send = methods(reader)[1]
        sequence = 0
        for header, body in contents:
            kind, sequence = HEAD.unpack_from(header)
            if kind != CONTENT or len(body) != 8 + len(self._filler):
                raise Stuck(f"a reader got {header!r:.100}")
            try:
                self._missing.remove(body[:8])
            except KeyError:
                raise Stuck(f"the Content {body[:8]!r} came twice, or was not sent") from None
            if not self._multiple:
                send(confirm(sequence), MORE)
                send(b"", 0)
        if self._multiple:
            send(confirm(sequence, multiple=True), MORE)
            send(b"", 0)
        return True
