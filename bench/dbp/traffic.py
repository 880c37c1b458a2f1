"""The load on the DBP wire: clients that ask, and services that register; all on plain sockets.

The expected messages are known byte for byte (`bench.dbp.peers.steady`), and all of them are compared.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from select import EPOLLIN, EPOLLOUT

from bench.common import traffic
from bench.common.traffic import STUCK, Poll, Sample, Stuck
from bench.dbp import peers as dbp_peers
from bench.dbp.peers import encoded
from bench.mc0.traffic import Sink, Source
from bench.zmtp import peer as zmtp_peer
from bench.zmtp.peer import READ, Frames, Peer

BEATS_EVERY = 0.001
"""Seconds between two bursts of heartbeats."""

TAKEN_WITHIN = 0.1
"""Seconds after which the last one was taken, at rates that the server keeps up with."""

FEW = 10
"""Replies that are to fit in what is read at once, or the generator does not rest."""


class _Client:
    """One of `Clients`."""

    __slots__ = ("answered", "fd", "sent", "sink", "source", "waiting")

    def __init__(self, peer: Peer, requests: Sequence[Frames], replies: Sequence[Frames], ring: bytes) -> None:
        self.fd = peer.sock.fileno()
        self.source = Source(peer, requests)
        self.sink = Sink(peer, replies, ring)
        self.sent = 0
        self.answered = 0
        self.waiting = False


class Clients:
    """Each keeps ``window`` requests in flight.

    A window of 1 is a conversation: there the generator does not rest. Nor does it where a reply fills what is read at
    once in a few: there it would be waited for. Without ``compared``, replies are counted, but for one reply of each
    client: so it may go on for longer than the time frame stays as it is.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        requests: Sequence[Frames],
        replies: Sequence[Frames],
        window: int,
        compared: bool = True,
    ) -> None:
        self._peers = peers
        self._window = window
        self._poll = Poll()
        if window == 1 or peers[0].size(replies[0]) * FEW > READ:
            self._poll.rest = 0
        ring = Sink.ring(peers[0], replies) if compared else b""
        self._clients: dict[int, _Client] = {}
        for peer in peers:
            peer.sock.setblocking(False)
            client = _Client(peer, requests, replies, ring)
            self._clients[client.fd] = client
            self._poll.register(client.fd, EPOLLIN)

    def run(self, seconds: float) -> Sample:
        """Keep the windows full for so long, then let all replies come. Raises `Stuck`."""
        clients = self._clients
        begun = sum(client.sent for client in clients.values())
        start = now = last = time.perf_counter()
        end = start + seconds
        for client in clients.values():
            self._send(client, self._window)
        outstanding = self._window * len(clients)
        while outstanding:
            events = self._poll.poll()
            now = time.perf_counter()
            if events:
                last = now
            elif now - last > STUCK:
                raise Stuck(f"no reply within {STUCK:g} s; {outstanding} requests are without")
            for fd, mask in events:
                client = clients[fd]
                if mask & ~EPOLLOUT:
                    before, client.answered = client.answered, client.sink.take()
                    room = client.answered - before
                    if now >= end:
                        outstanding -= room
                        room = 0
                else:
                    room = 0
                if room or client.waiting:
                    self._send(client, room)
        return Sample(sum(client.sent for client in clients.values()) - begun, now - start)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        self._poll.close()

    def _send(self, client: _Client, count: int) -> None:
        client.sent += count
        waiting = not client.source.send(count)
        if waiting != client.waiting:
            client.waiting = waiting
            self._poll.modify(client.fd, EPOLLIN | EPOLLOUT if waiting else EPOLLIN)


class Beats:
    """Services that beat by UDP, all together so often a second; nothing is answered. ``sockets`` take turns."""

    def __init__(self, sockets: Sequence[socket.socket], datagrams: Sequence[bytes], rate: float) -> None:
        self._sockets = sockets
        self._datagrams = datagrams
        self._rate = rate

    def run(self, seconds: float) -> Sample:
        """Send for so long, and wait until the server must have taken all."""
        sends = [sock.send for sock in self._sockets]
        datagrams, total, ports = self._datagrams, len(self._datagrams), len(sends)
        start = now = time.perf_counter()
        end = start + seconds
        sent = 0
        while now < end:
            due = int((now - start) * self._rate)
            for i in range(sent, due):
                sends[i % ports](datagrams[i % total])
            sent = due
            time.sleep(BEATS_EVERY)
            now = time.perf_counter()
        time.sleep(TAKEN_WITHIN)
        return Sample(sent, time.perf_counter() - start)

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()


class _Arrival:
    """One of `Arrivals`: a connection on which so many bytes are to come before the next thing is done."""

    __slots__ = ("data", "greeted", "slot", "sock")

    def __init__(self, sock: socket.socket, slot: int) -> None:
        self.sock = sock
        self.slot = slot
        self.data = bytearray()
        self.greeted = False


class Arrivals:
    """Connections that come, send one message, wait for its answer and go: ``parallel`` at a time.

    ``messages`` never end. All are encoded already, and so is the ``answer`` that each must get.
    """

    def __init__(self, port: int, kind: bytes, messages: Iterator[bytes], answer: bytes, parallel: int) -> None:
        self._port = port
        self._opening = zmtp_peer.opening(kind)
        self._messages = messages
        self._answer = answer
        self._parallel = parallel
        self._poll = Poll()
        if parallel == 1:
            self._poll.rest = 0
        self._open: dict[int, _Arrival] = {}

    def run(self, seconds: float) -> Sample:
        """Come and go for so long. Raises `Stuck`."""
        visits = self._open
        start = now = last = time.perf_counter()
        end = start + seconds
        for slot in range(self._parallel):
            self._arrive(slot)
        done = 0
        while visits:
            events = self._poll.poll()
            now = time.perf_counter()
            if events:
                last = now
            elif now - last > STUCK:
                raise Stuck("no answer to what a new connection sent")
            for fd, _ in events:
                each = visits[fd]
                if self._take(each):
                    del visits[fd]
                    each.sock.close()
                    done += 1
                    if now < end:
                        self._arrive(each.slot)
        return Sample(done, now - start)

    def close(self) -> None:
        """Nothing is open between runs."""
        self._poll.close()

    def _take(self, each: _Arrival) -> bool:
        """Read what is there. Returns whether the answer has come."""
        more = each.sock.recv(READ)
        data = each.data
        data += more
        if not more:
            raise Stuck(f"the server closed a new connection, after {bytes(data)!r:.300}")
        if not each.greeted:
            if len(data) >= dbp_peers.WELCOME:
                each.greeted = True
                each.sock.send(next(self._messages))
            return False
        if len(data) < dbp_peers.WELCOME + len(self._answer):
            return False
        if data[dbp_peers.WELCOME :] != self._answer:
            raise Stuck(f"not what was expected: {bytes(data[dbp_peers.WELCOME :])!r:.500}")
        return True

    def _arrive(self, slot: int) -> None:
        sock = traffic.connect(self._port, slot + 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.send(self._opening)
        sock.setblocking(False)
        self._open[sock.fileno()] = _Arrival(sock, slot)
        self._poll.register(sock.fileno(), EPOLLIN)


class Present:
    """Connections that are there already: each sends one message and gets one answer, ``window`` at a time."""

    def __init__(self, peers: Sequence[Peer], messages: Sequence[Frames], answer: Frames, window: int) -> None:
        self._peers = peers
        self._packets = list(map(encoded, messages))
        self._answer = encoded(answer)
        self._window = window
        self._poll = Poll()
        if window == 1:
            self._poll.rest = 0
        for peer in peers:
            peer.sock.setblocking(False)
            self._poll.register(peer.sock.fileno(), EPOLLIN)

    def run(self) -> Sample:
        """Have each of them say it once. Raises `Stuck`."""
        sockets = {peer.sock.fileno(): peer.sock for peer in self._peers}
        left = iter(zip(sockets.values(), self._packets, strict=True))
        start = now = last = time.perf_counter()
        sent = done = 0
        while done < len(sockets):
            while sent - done < self._window and (each := next(left, None)) is not None:
                sock, packet = each
                sock.send(packet)
                sent += 1
            events = self._poll.poll()
            now = time.perf_counter()
            if events:
                last = now
            elif now - last > STUCK:
                raise Stuck(f"no answer within {STUCK:g} s; {sent - done} messages are without")
            for fd, _ in events:
                data = sockets[fd].recv(READ)
                if data != self._answer:
                    raise Stuck(f"not what was expected: {data!r:.500}")
                done += 1
        return Sample(done, now - start)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        self._poll.close()
