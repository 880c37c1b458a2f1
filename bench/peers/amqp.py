"""A writer and readers of a queue over AMQP 0-9-1, the protocol of RabbitMQ: see `bench.peers.mtl.QueueTraffic`.

Messages are persistent, writers have confirms, and readers confirm each message. Frames are made by hand: a client
library would be what is measured.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

from bench.peers.mtl import QueueTraffic
from bench.servers import Server
from bench.traffic import STUCK, Stuck, connect

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
_CHANNEL = 1
_END = b"\xce"
_ACK = struct.Struct(">HHQB")
_DELIVERY = struct.Struct(">QB")
_PIECE = 1 << 18

START, TUNE, CONNECTED, OPENED = (10, 10), (10, 30), (10, 41), (20, 11)
DECLARED, CONSUMES, LIMITED, CONFIRMS, DELIVER, ACK = (50, 11), (60, 21), (60, 11), (85, 11), (60, 60), (60, 80)


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _method(number: tuple[int, int], arguments: bytes, channel: int = _CHANNEL) -> bytes:
    return _frame(1, channel, _METHOD.pack(*number) + arguments)


class Channel:
    """A connection with one channel, and a durable queue."""

    def __init__(self, server: Server, queue: bytes) -> None:
        self.sock = connect(server.port)
        self.sock.settimeout(STUCK)
        self._buffer = b""
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self._await(START)
        login = _long(b"") + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
        self.sock.sendall(_method((10, 11), login, 0))
        self._await(TUNE)
        self.sock.sendall(_method((10, 31), struct.pack(">HIH", 16, 131_072, 0), 0))
        self.ask((10, 40), _short(b"/") + _short(b"") + b"\0", CONNECTED, 0)
        self.ask((20, 10), _short(b""), OPENED)
        self.ask((50, 10), b"\0\0" + _short(queue) + b"\x02" + _long(b""), DECLARED)

    def ask(self, number: tuple[int, int], arguments: bytes, answer: tuple[int, int], channel: int = _CHANNEL) -> None:
        """Send a method and wait for its answer."""
        self.sock.sendall(_method(number, arguments, channel))
        self._await(answer)

    def frames(self) -> list[tuple[int, bytes]]:
        """Kind and payload of all complete frames that have come."""
        try:
            while piece := self.sock.recv(_PIECE):
                self._buffer += piece
                if len(piece) < _PIECE:
                    break
            else:
                raise Stuck("the server closed a connection")
        except BlockingIOError:
            pass
        buffer, at, found = self._buffer, 0, []
        while len(buffer) >= at + _FRAME.size:
            kind, _, size = _FRAME.unpack_from(buffer, at)
            if len(buffer) < at + _FRAME.size + size + 1:
                break
            found.append((kind, buffer[at + _FRAME.size : at + _FRAME.size + size]))
            at += _FRAME.size + size + 1
        self._buffer = buffer[at:]
        return found

    def _await(self, number: tuple[int, int]) -> None:
        while True:
            for kind, payload in self.frames():
                if kind != 1 or _METHOD.unpack_from(payload) != number:
                    raise Stuck(f"{payload[:100]!r} came, and not the method {number}")
                return


class AmqpQueue(QueueTraffic):
    """The load over AMQP. Readers confirm one by one."""

    def __init__(self, server: Server, name: str, readers: int, window: int, size: int) -> None:
        super().__init__(window, size)
        queue = name.encode()
        self._unconfirmed: dict[int, None] = {}
        self._writer = Channel(server, queue)
        self._writer.ask((85, 10), b"\0", CONFIRMS)
        self._readers = [Channel(server, queue) for _ in range(readers)]
        for reader in self._readers:
            reader.ask((60, 10), struct.pack(">IHB", 0, window, 0), LIMITED)
            reader.ask((60, 20), b"\0\0" + _short(queue) + _short(b"") + b"\0" + _long(b""), CONSUMES)
        self._poller = select.poll()
        for channel in (self._writer, *self._readers):
            channel.sock.setblocking(False)
            self._poller.register(channel.sock, select.POLLIN)
        head = struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
        self._before = _method((60, 40), b"\0\0" + _short(b"") + _short(queue) + b"\0") + _frame(2, _CHANNEL, head)

    def close(self) -> None:
        """Close the connections."""
        for channel in (self._writer, *self._readers):
            channel.sock.close()

    def _send(self, count: int) -> None:
        pieces = []
        for _ in range(count):
            self._sent += 1
            number = b"%08d" % self._sent
            pieces.append(self._before + _frame(3, _CHANNEL, number + self._filler))
            self._unconfirmed[self._sent] = None
            if self._readers:
                self._missing.add(number)
        if pieces:
            _send(self._writer.sock, b"".join(pieces))

    def _hear(self) -> bool:
        frames = self._writer.frames()
        for _, payload in frames:
            *number, sequence, multiple = _ACK.unpack(payload)
            if tuple(number) != ACK:
                raise Stuck(f"a writer got {payload[:100]!r}")
            covered = [each for each in self._unconfirmed if each <= sequence] if multiple else [sequence]
            for each in covered:
                del self._unconfirmed[each]
        return bool(frames)

    def _take(self, reader: Channel) -> bool:
        frames = reader.frames()
        acks = []
        for kind, payload in frames:
            if kind == 1:
                if _METHOD.unpack_from(payload) != DELIVER:
                    raise Stuck(f"a reader got {payload[:100]!r}")
                acks.append(_DELIVERY.unpack_from(payload, 5 + payload[4])[0])
            elif kind == 3:
                self._missing.remove(payload[:8])
        if acks:
            _send(reader.sock, b"".join(_method(ACK, _DELIVERY.pack(tag, 0)) for tag in acks))
        return bool(frames)


def _send(sock: socket.socket, data: bytes) -> None:
    view: Any = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            select.select([], [sock], [], STUCK)
