"""DBP: the broker beside a bare ROUTER loop that answers with frames that were made beforehand.

The expected messages are known byte for byte (`bench.peers.dbp.steady`), and all of them are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from select import EPOLLIN, EPOLLOUT

from bench import servers, zmtp
from bench.harness import Result, Row, cpu
from bench.peers import dbp as dbp_peers
from bench.peers.dbp import SERVICES
from bench.peers.mc0 import Sink, Source
from bench.servers import DbpServer
from bench.traffic import Poll, Sample, Script, Stuck, Visits
from bench.zmtp import READ, Frames, Peer

GOAL = 1.3
"""The most that the broker may cost, as a ratio to the bare loop."""

WINDOW = 64
"""Requests in flight, of each client, as the original was measured with."""

LISTS = 8
"""Lists of a thousand in flight: each is 125 kB."""

ENOUGH_LISTS = 6_000
"""Lists of a thousand in a second: twenty times the original's best."""

STEADY = 10.0
"""Seconds from the beginning of a run for which the time frame must stay as it is."""

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
    once in a few: there it would be waited for.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        requests: Sequence[Frames],
        replies: Sequence[Frames],
        window: int,
    ) -> None:
        self._peers = peers
        self._window = window
        self._poll = Poll()
        if window == 1 or peers[0].size(replies[0]) * FEW > READ:
            self._poll.rest = 0
        ring = Sink.ring(peers[0], replies)
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
        start = now = time.perf_counter()
        end = start + seconds
        for client in clients.values():
            self._send(client, self._window)
        outstanding = self._window * len(clients)
        while outstanding:
            events = self._poll.poll()
            now = time.perf_counter()
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


def requests(
    clients: int, window: int, asked: Sequence[str], numbers: Sequence[Sequence[int]]
) -> Callable[[DbpServer, float], Result]:
    """CPU time for each request: ``asked`` in turn, of which each is answered with the services of these numbers."""

    def prepare(server: DbpServer) -> Clients:
        if server.broker:
            dbp_peers.register(server.port, [dbp_peers.registration(number) for number in range(SERVICES)])
        at = dbp_peers.steady(STEADY)
        replies = [dbp_peers.reply(at, dbp_peers.listed(each)) for each in numbers]
        return Clients(dbp_peers.clients(server.port, clients), list(map(dbp_peers.request, asked)), replies, window)

    return cpu(prepare)


def one_of_many(clients: int, window: int) -> Callable[[DbpServer, float], Result]:
    """Requests for one service, for each of them in turn."""
    return requests(
        clients, window, [dbp_peers.name(n) for n in range(SERVICES)], [[number] for number in range(SERVICES)]
    )


def arrivals(kind: bytes, parallel: int) -> Callable[[DbpServer, float], Result]:
    """CPU time for each registration, with its connection; and that ends when it was answered."""
    hermes = kind == b"REQ"

    numbers = count()

    def prepare(server: DbpServer) -> Visits:
        at = dbp_peers.steady(STEADY)
        answer = dbp_peers.encoded(dbp_peers.approval(at) if hermes else dbp_peers.agreement(at))

        def script(_: int) -> Script:
            number = next(numbers)
            message = dbp_peers.registration(number) if hermes else dbp_peers.beating(number, dbp_peers.LONGEST)
            data = yield zmtp.opening(kind)
            while len(data) < dbp_peers.WELCOME:
                data += yield b""
            data += yield dbp_peers.encoded(message)
            while len(data) < dbp_peers.WELCOME + len(answer):
                data += yield b""
            if data[dbp_peers.WELCOME :] != answer:
                raise Stuck(f"not what was expected: {data[dbp_peers.WELCOME :]!r:.500}")

        return Visits(server.port, script, parallel, parallel == 1)

    return cpu(prepare)


ALL = [""], [range(SERVICES)]

_row = partial(Row, subject=servers.dbp, peer=partial(servers.reference, DbpServer, "dbp"))

ROWS = {
    "info-1": _row(f"one service, 1 client, window {WINDOW}", one_of_many(1, WINDOW), goal=GOAL, original="10,460/s"),
    "info-20": _row(
        f"one service, 20 clients, window {WINDOW}", one_of_many(20, WINDOW), goal=GOAL, original="12,840/s"
    ),
    "info-single": _row("one service, 1 client, one at a time", one_of_many(1, 1), original="4,020/s"),
    "list-1000": _row(
        f"all of {SERVICES:,} services, window {LISTS}",
        requests(1, LISTS, *ALL),
        goal=GOAL,
        wanted=ENOUGH_LISTS,
        original="321/s",
    ),
    "list-1000-single": _row(f"all of {SERVICES:,} services, one at a time", requests(1, 1, *ALL), original="321/s"),
    "dealer-50": _row("new DEALERs that register, 50 at a time", arrivals(b"DEALER", 50)),
    "dealer-1": _row("the same, one at a time", arrivals(b"DEALER", 1)),
    "req-50": _row("new REQs that register as Hermes', 50 at a time", arrivals(b"REQ", 50)),
    "req-1": _row("the same, one at a time", arrivals(b"REQ", 1), original="1,340/s"),
}
