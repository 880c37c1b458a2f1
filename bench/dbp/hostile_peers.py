"""Hostile peers of the DBP wire: floods of datagrams, connections that send nonsense, come and go, or do not read."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from select import EPOLLOUT, epoll

from bench.common import traffic
from bench.common.swarm import FIRST_SOURCE, RECEIVE_BUFFER
from bench.dbp import herd as dbp_herd
from bench.dbp import peers as dbp_peers
from bench.zmtp import peer as zmtp_peer
from bench.zmtp.peer import READ

RATE = 50_000
"""Datagrams a second."""

PORTS = 500
"""The addresses that they come from, if there are many."""

BURST = 200
"""Datagrams that are sent between two looks at the clock."""

PEERS = 20
"""Hostile connections."""

SLEEPERS = 8
"""Connections that do not read."""

PACKET = 200
"""Messages that are sent at once."""


# what datagrams hold


def strangers() -> list[bytes]:
    """Heartbeats of services that are not registered."""
    return [dbp_peers.heartbeat(f"stranger-{i:06d}") for i in range(10_000)]


def garbage() -> list[bytes]:
    """Random bytes, from none to as many as are read, and more."""
    source = random.Random(1)
    return [source.randbytes(source.choice((0, 1, 10, 30, 100, 1_100))) for _ in range(2_000)]


def registered() -> list[bytes]:
    """Heartbeats of the herd, which it did not send."""
    return [dbp_peers.heartbeat(dbp_peers.name(i)) for i in range(dbp_herd.COUNT)]


def flood(port: int, kind: Callable[[], Sequence[bytes]], ports: int, seconds: float) -> int:
    """Send `RATE` datagrams a second from so many ports, for so long. Returns how many it came to."""
    data = kind()
    sends = []
    for _ in range(ports):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect((traffic.HOST, port))
        sends.append(sock.send)
    start = now = time.perf_counter()
    end = start + seconds
    sent = 0
    while now < end:
        due = min(int((now - start) * RATE) - sent, BURST)
        for i in range(sent, sent + due):
            sends[i % ports](data[i % len(data)])
        sent += max(due, 0)
        if due < BURST:
            time.sleep(0.0005)
        now = time.perf_counter()
    return sent


# what connections do


def nonsense(port: int, seconds: float) -> int:
    """Connections that send what is no message, as fast as it is taken. Returns how many were sent."""
    bad = [
        [b"", b"u_U"],
        [b"x", b"u_U", dbp_peers.now(), b""],
        [b"", b"QwQ", dbp_peers.now(), b""],
        [b"", b"u_U", b"yesterday", b""],
    ]
    return _pour(port, [dbp_peers.encoded(message) for message in bad], PEERS, seconds)


def sleepers(port: int, seconds: float) -> int:
    """Connections that ask for all services, again and again, and do not read. Returns how often they asked."""
    return _pour(port, [dbp_peers.encoded(dbp_peers.request(""))], SLEEPERS, seconds)


def churn(port: int, seconds: float) -> int:
    """Connections that come and go: before, while, or after they shake hands, or with a request. Returns how many."""
    opening = zmtp_peer.opening(b"DEALER")
    asks = dbp_peers.encoded(dbp_peers.request(dbp_peers.name(0)))
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        sock = traffic.connect(port, FIRST_SOURCE + count % PEERS)
        sock.settimeout(traffic.STUCK)
        try:
            if count % 4:
                sock.sendall(opening[: 30 if count % 4 == 1 else None])
            if count % 4 == 3:
                sock.recv(READ)
                sock.sendall(asks)
        except OSError:
            pass  # the server may close it
        sock.close()
        count += 1
    return count


def _pour(port: int, messages: Sequence[bytes], count: int, seconds: float) -> int:
    """Send messages over so many connections, one after the other, as fast as they are taken, and read nothing."""
    poll = epoll()
    peers = [dbp_peers.client(port, FIRST_SOURCE + i) for i in range(count)]
    whole, left = {}, {}
    for i, peer in enumerate(peers):
        peer.sock.setblocking(False)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        whole[peer.sock.fileno()] = memoryview(messages[i % len(messages)] * PACKET)
        left[peer.sock.fileno()] = whole[peer.sock.fileno()][:0]
        poll.register(peer.sock.fileno(), EPOLLOUT)
    sockets = {peer.sock.fileno(): peer.sock for peer in peers}
    end = time.perf_counter() + seconds
    packets = 0
    while time.perf_counter() < end:
        for fd, _ in poll.poll(0.01):
            data = left[fd] or whole[fd]
            left[fd] = data[sockets[fd].send(data) :]
            packets += not left[fd]
    return packets * PACKET
