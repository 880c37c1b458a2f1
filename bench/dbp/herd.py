"""A thousand services that beat, half of them by UDP, half over the ROUTER; and who watches them from outside.

The test is that the broker notices exactly the nodes that fall silent. So the herd notes when it last sent each
heartbeat, and how late it was itself; and the watcher, which knows nothing of DBP, when a service came or went.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from select import EPOLLIN, epoll
from threading import Event, Thread

import attrs

from bench.common import traffic
from bench.common.traffic import STUCK, Stuck
from bench.dbp import peers as dbp_peers
from bench.dbp.servers import DbpServer
from bench.elko import messages
from bench.zmtp.peer import READ, Peer

COUNT = 1_000

INTERVAL = 1.0
"""Seconds between heartbeats, as is agreed."""

LIVENESS = 3
"""Intervals of silence after which a service is gone."""

DISCONNECT = b"</3"
HEARTBEAT = b"<3"


@attrs.define
class Service:
    """One of the herd. Times in seconds of `time.perf_counter`, which is the same for all processes."""

    number: int
    udp: socket.socket | None
    peer: Peer | None
    sent: float = 0.0
    """When it last beat."""

    def fileno(self) -> int:
        """The descriptor of what it beats through."""
        if self.udp is not None:
            return self.udp.fileno()
        assert self.peer is not None
        return self.peer.sock.fileno()

    def beat(self) -> None:
        """Send a heartbeat."""
        if self.udp is not None:
            self.udp.send(dbp_peers.heartbeat(dbp_peers.name(self.number)))
        else:
            assert self.peer is not None
            self.peer.sock.sendall(
                dbp_peers.encoded([b"", HEARTBEAT, dbp_peers.now(), dbp_peers.name(self.number).encode()])
            )


@attrs.frozen
class Lived:
    """The outcome of a herd.

    ``died`` has, for each service that fell silent, its name, whether it beat by UDP, and when it last did.
    ``latest`` is the longest time between two heartbeats that any of the others sent, in intervals: from 3 on, the
    broker would have been right. ``parted`` are those that the broker sent away although they beat; ``heard`` counts
    its own heartbeats.
    """

    died: list[tuple[str, bool, float]]
    latest: float
    parted: list[str]
    heard: int


def live(server: DbpServer, seconds: float, dying: int = 0, within: float = 1.0) -> Lived:
    """Register a herd, and beat for so long. Then so many fall silent, one after the other ``within`` some seconds."""
    services = [_registered(server, number) for number in range(COUNT)]
    by_fd: dict[int, Service] = {}
    poll = epoll()
    for service in services:
        by_fd[service.fileno()] = service
        poll.register(service.fileno(), EPOLLIN)
    start = now = time.perf_counter()
    ends = {service.number: start + seconds + within * i / max(dying, 1) for i, service in enumerate(services[:dying])}
    end = start + seconds + (within + (LIVENESS + 1) * INTERVAL if dying else 0)
    due = deque((start + INTERVAL * i / COUNT, service) for i, service in enumerate(services))
    died: list[tuple[str, bool, float]] = []
    parted: list[str] = []
    latest = 0.0
    heard = 0
    while now < end:
        while due and due[0][0] <= now:
            at, service = due.popleft()
            latest = max(latest, now - service.sent)
            service.beat()
            service.sent = time.perf_counter()
            if at + INTERVAL > ends.get(service.number, end):
                died.append((dbp_peers.name(service.number), service.udp is not None, service.sent))
                if service.number not in ends:
                    died.pop()  # it lives to the end
            else:
                due.append((at + INTERVAL, service))
        wait = min(due[0][0] if due else end, end) - time.perf_counter()
        for fd, _ in poll.poll(max(wait, 0)):
            service = by_fd[fd]
            died_before = service.number in ends and service.sent + INTERVAL < time.perf_counter()
            try:
                beats, gone = _read(service, fd)
            except Stuck:
                if not died_before:
                    raise
                poll.unregister(fd)
                continue
            heard += beats
            if gone and not died_before:
                parted.append(dbp_peers.name(service.number))
        now = time.perf_counter()
    return Lived(died, latest / INTERVAL, parted, heard)


def _registered(server: DbpServer, number: int) -> Service:
    message = dbp_peers.beating(number, int(1000 * INTERVAL))
    udp = None
    peer = dbp_peers.client(server.port)
    answer = peer.ask(*message)
    if answer[1] != b"OwO":
        raise Stuck(f"a registration was answered by {answer!r:.300}")
    if number % 2 == 0:
        peer.close()
        udp = dbp_peers.datagrams()
        udp.connect((traffic.HOST, server.udp))
    service = Service(number, udp, None if udp is not None else peer)
    service.beat()
    service.sent = time.perf_counter()
    return service


def _read(service: Service, fd: int) -> tuple[int, bool]:
    """The messages to a service: its heartbeats, and True if it was sent away."""
    if service.udp is not None:
        try:
            commands = [service.udp.recv(READ).split()[0]]
        except OSError:
            return 0, False
    else:
        assert service.peer is not None
        data = service.peer.sock.recv(READ)
        if not data:
            raise Stuck("the server closed the connection of a service")
        commands = [message[1] for message in service.peer.feed(data)]
    return commands.count(HEARTBEAT), DISCONNECT in commands


class Watcher:
    """An administrator of the Elko wire, who is told of all services that come and go."""

    def __init__(self, server: DbpServer) -> None:
        self.came: dict[str, float] = {}
        self.went: dict[str, float] = {}
        """When each came, and went, last."""
        self._enough = Event()
        self._wanted = 0
        opening = messages.auth("watcher", "admin") + messages.WATCH_SERVICES
        opening += messages.message('{"to":"admin", "op":"ping", "tag":"watching"}')
        self._sock = traffic.opened(server.elko, opening, 1)
        self._sock.settimeout(None)  # for minutes nothing may happen
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def await_all(self, count: int) -> None:
        """Wait until so many have come. Raises `Stuck`."""
        self._wanted = count
        if len(self.came) < count and not self._enough.wait(2 * STUCK):
            raise Stuck(f"of {count} services {len(self.came)} have come")

    def close(self) -> None:
        """Watch no more. Raises `Stuck` if it had ended before."""
        if not self._thread.is_alive():
            raise Stuck("the connection of the watcher has ended")
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _read(self) -> None:
        data = b""
        while more := self._sock.recv(READ):
            now = time.perf_counter()
            *whole, data = (data + more).split(b"\n\n")
            for text in whole:
                notice = json.loads(text)
                times = self.came if notice["on"] else self.went
                for service in notice["desc"]:
                    times[service["service"]] = now
            if len(self.came) >= self._wanted:
                self._enough.set()
