"""Hostile connections and datagrams, a thousand peers at a time, in a process of their own at a lower priority."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll

import attrs

from bench import traffic

FIRST_SOURCE = 300
SOURCES = 20
"""The hostile peers come from these loopback addresses, 50 from each; good peers and newcomers from 127.0.0.1."""

RECEIVE_BUFFER = 4_096
"""Bytes that the kernel takes for a hostile peer that does not read: the less, the sooner the broker notices."""


@attrs.frozen
class Attack:
    """The behaviour of each hostile connection.

    It sends the pieces that ``pieces`` gives for its number, as fast as they are taken. ``reads`` says whether it reads
    what it is sent; ``again`` whether it connects again when it is disconnected; ``hangs_up``, if it is not 0, that it
    closes the connection itself, and connects again, when it was sent so many bytes.
    """

    pieces: Callable[[int], Iterator[bytes]]
    reads: bool = True
    again: bool = True
    hangs_up: int = 0


@attrs.frozen
class Seen:
    """The results of the swarm: connections made, disconnections by the broker, bytes sent, replies read."""

    connects: int
    disconnects: int
    sent: int
    replies: int


class _Hostile:
    """One hostile connection."""

    __slots__ = ("left", "number", "pieces", "sock", "taken")

    def __init__(self, number: int, sock: socket.socket, attack: Attack) -> None:
        self.number = number
        self.sock = sock
        self.pieces = attack.pieces(number)
        self.left = b""
        self.taken = 0


def swarm(attack: Attack, port: int, count: int, sources: int, seconds: float) -> Seen:
    """Attack with so many connections at once, from so many addresses, for so long."""
    poll = epoll()
    everyone: dict[int, _Hostile] = {}
    base = EPOLLRDHUP | (EPOLLIN if attack.reads else 0)
    connects = disconnects = sent_bytes = newlines = 0
    buffer = bytearray(1 << 18)

    def connect(number: int) -> None:
        nonlocal connects
        sock = socket.socket()
        sock.setblocking(False)
        if not attack.reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        traffic.bind(sock, FIRST_SOURCE + number % sources)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result = sock.connect_ex((traffic.HOST, port))
        if result not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(result, os.strerror(result))
        connects += 1
        everyone[sock.fileno()] = _Hostile(number, sock, attack)
        poll.register(sock.fileno(), base | EPOLLOUT)

    def disconnected(hostile: _Hostile) -> None:
        nonlocal disconnects
        disconnects += 1
        del everyone[hostile.sock.fileno()]
        hostile.sock.close()
        if attack.again:
            connect(hostile.number)

    def send(hostile: _Hostile) -> None:
        nonlocal sent_bytes
        piece = hostile.left or next(hostile.pieces, b"")
        if not piece:
            poll.modify(hostile.sock.fileno(), base)
            return
        sent = hostile.sock.send(piece)
        sent_bytes += sent
        hostile.left = piece[sent:]

    for number in range(count):
        connect(number)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and everyone:
        for fd, mask in poll.poll(0.01):
            each = everyone.get(fd)
            if each is None:
                continue
            try:
                if mask & (EPOLLERR | EPOLLHUP) or (mask & EPOLLRDHUP and not mask & EPOLLIN):
                    disconnected(each)
                    continue
                if mask & EPOLLIN:
                    size = each.sock.recv_into(buffer)
                    if not size:
                        disconnected(each)
                        continue
                    newlines += buffer.count(b"\n", 0, size)
                    each.taken += size
                    if attack.hangs_up and each.taken >= attack.hangs_up:
                        disconnected(each)
                        continue
                if mask & EPOLLOUT:
                    send(each)
            except BlockingIOError:
                pass
            except OSError:
                disconnected(each)
    for each in everyone.values():
        each.sock.close()
    return Seen(connects, disconnects, sent_bytes, newlines // traffic.NEWLINES)


def flood(make: Callable[[int], bytes], port: int, count: int, sources: int, seconds: float) -> Seen:
    """Send datagrams as fast as it goes from so many sockets of so many addresses."""
    socks = []
    for number in range(count):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        traffic.bind(sock, FIRST_SOURCE + number % sources)
        sock.connect((traffic.HOST, port))
        socks.append(sock)
    sent = size = 0
    end = time.monotonic() + seconds
    datagrams = [make(number) for number in range(1_000)]
    while time.monotonic() < end:
        for number, sock in enumerate(socks):
            try:
                size += sock.send(datagrams[(sent + number) % 1_000])
            except OSError:
                continue
            sent += 1
    for sock in socks:
        sock.close()
    return Seen(count, 0, size, 0)


def forever(first: bytes, then: bytes) -> Callable[[int], Iterator[bytes]]:
    """Pieces of a peer that says ``first`` once, and ``then`` without end."""

    def pieces(number: int) -> Iterator[bytes]:
        if first:
            yield first
        yield from repeat(then)

    return pieces
