"""Many mc0 sessions that only stay alive: each sends NOOP now and then, and receives the broker's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from select import EPOLLIN, epoll

from bench.common.traffic import STUCK, Stuck
from bench.mc0.peers import TOPIC, expect
from bench.mc0.servers import Mc0Server
from bench.zmtp import peer as zmtp_peer

SAYS_NOOP_AFTER = 0.95
"""TTLs of silence after which the real connector says NOOP; after 1.05 the broker forgets it."""

SOURCES = 20
"""Loopback addresses that they connect from."""

NOOP = [b"", b"NOOP"]


class Herd:
    """So many sessions. A ``ttl`` (in seconds) of 0 makes them connections that have said CONNECT once, no more."""

    def __init__(self, server: Mc0Server, count: int, ttl: float) -> None:
        self._ttl = ttl
        self.noops = 0
        self.gaps: list[float] = []
        """Seconds between two messages that a session got, in TTLs."""
        self.unexpected: list[list[bytes]] = []
        self._poll = epoll()
        self._peers = [
            zmtp_peer.connect(server.port, b"herd-%05d" % i, server.key, 1 + i % SOURCES) for i in range(count)
        ]
        self._numbers = {peer.sock.fileno(): i for i, peer in enumerate(self._peers)}
        self._heard = [0.0] * count
        self._reached: dict[int, float] = {}
        self._connected = time.perf_counter()
        for i, peer in enumerate(self._peers):
            peer.send(b"", b"CONNECT", b"ID", b"0", b"TTL", b"%d" % (1000 * ttl), b"VERSION", b"0.3")
            if ttl:
                peer.send(b"", b"SUB", b"ID", b"1", b"", TOPIC, b"mcollective nodes %d" % i)
        for i, peer in enumerate(self._peers):
            expect(peer.receive(), b"0")
            if ttl:
                expect(peer.receive(), b"1")
            self._heard[i] = time.perf_counter()
            self._poll.register(peer.sock.fileno(), EPOLLIN)

    def run(self, seconds: float) -> None:
        """Stay alive for so long, each session at moments of its own."""
        every, count = SAYS_NOOP_AFTER * self._ttl, len(self._peers)
        now = time.perf_counter()
        end = now + seconds
        # They have been silent since they connected, and none may be silent for longer than `every`.
        first = max(every / 4, every - (now - self._connected))
        due = deque((now + first * i / count, peer) for i, peer in enumerate(self._peers))
        while now < end:
            while due[0][0] <= now:
                at, peer = due.popleft()
                peer.send(*NOOP)
                due.append((at + every, peer))
            self._receive(min(due[0][0], end) - now)
            now = time.perf_counter()

    def lost(self, publisher: zmtp_peer.Peer, within: float = STUCK) -> tuple[int, float]:
        """Publish one message to all. Returns how many did not get it, and the seconds until the last one had it."""
        self._reached.clear()
        start = now = time.perf_counter()
        publisher.send(b"", b"PUT", b"TOPIC", TOPIC, b"", b"all")
        while len(self._reached) < len(self._peers) and now < start + within:
            self._receive(start + within - now)
            now = time.perf_counter()
        return len(self._peers) - len(self._reached), max(self._reached.values(), default=now) - start

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        self._poll.close()

    def _receive(self, within: float) -> None:
        for fd, _ in self._poll.poll(max(within, 0)):
            number = self._numbers[fd]
            peer = self._peers[number]
            data = peer.sock.recv(zmtp_peer.READ)
            if not data:
                raise Stuck("the server closed the connection of a session")
            self._note(number, peer.feed(data))

    def _note(self, number: int, messages: Iterable[list[bytes]]) -> None:
        now = time.perf_counter()
        for message in messages:
            if message == NOOP:
                self.noops += 1
                self.gaps.append((now - self._heard[number]) / self._ttl)
            elif message[1] == b"MESSAGE" and message[-1] == b"all":
                self._reached[number] = now
            else:
                self.unexpected.append(message)
            self._heard[number] = now
