"""The load generator: as little work per message as Python allows, so that it is not what is measured.

Messages are built beforehand and sent in slices of one block of bytes; replies are not parsed, only their newlines are
counted, two a message. Every wait is bounded: a server that does not answer for `STUCK` seconds ends the run.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Sequence
from select import EPOLLIN, EPOLLOUT, epoll

import attrs

HOST = "127.0.0.1"

STUCK = 15.0
"""Seconds without any reply after which a run is given up."""

REST = 0.0002
"""Seconds that the generator rests before it looks for replies. One that sleeps until there are some is woken by the
server's sends, and the server pays for it (5 to 10 µs a send on a virtual machine with an idle core), which tells of
the generator's speed and not of the server's."""

_BUFFER = bytearray(1 << 18)

_IP_BIND_ADDRESS_NO_PORT = 24

NEWLINES = 2
"""The bytes that end a message."""


class Stuck(Exception):
    """The server does not answer, or closed the connection."""


@attrs.frozen
class Sample:
    """One measured stretch: so many messages (or deliveries) in so many seconds."""

    messages: int
    seconds: float


def connect(port: int, source: int = 0) -> socket.socket:
    """A connection to the server on which nothing waits to be sent, from the loopback address number ``source``: each
    has its own 28,000 ports."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if source:
        bind(sock, source)
    sock.connect((HOST, port))
    return sock


def bind(sock: socket.socket, source: int) -> None:
    """Let it connect from the loopback address of that number, 1 upwards."""
    sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((f"127.0.{source // 250}.{source % 250 + 1}", 0))


def opened(port: int, opening: bytes, replies: int, source: int = 0) -> socket.socket:
    """A connection on which ``opening`` was sent and so many replies have come."""
    sock = connect(port, source)
    if opening:
        sock.sendall(opening)
        await_replies(sock, replies)
    return sock


def await_replies(sock: socket.socket, replies: int) -> bytes:
    """Read so many replies, and return what was read."""
    sock.settimeout(STUCK)
    data = b""
    while data.count(b"\n") < replies * NEWLINES:
        data += received(sock, data)
    return data


def received(sock: socket.socket, before: bytes | bytearray = b"") -> bytes:
    """The next bytes, at least one; ``before`` are those that were read before. Raises `Stuck`."""
    try:
        data = sock.recv(1 << 16)
    except TimeoutError:
        raise Stuck(f"nothing came within {STUCK:g} s, after {before[-300:]!r}") from None
    if not data:
        raise Stuck(f"the server closed the connection, after {before[-300:]!r}")
    return data


class Poll:
    """Looks for replies every now and then, `rest` seconds apart."""

    rest = REST

    def __init__(self) -> None:
        self._epoll = epoll()
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.close = self._epoll.close

    def poll(self) -> list[tuple[int, int]]:
        """The connections that are ready, after a rest. Raises `Stuck`."""
        if self.rest:
            time.sleep(self.rest)
        events = self._epoll.poll(STUCK)
        if not events:
            raise Stuck(f"nothing came within {STUCK:g} s")
        return events


class _Stream:
    """One connection of a `Pipeline`."""

    __slots__ = ("due", "newlines", "outstanding", "position", "sock", "waiting")

    def __init__(self, sock: socket.socket, position: int) -> None:
        self.sock = sock
        self.position = position  # of the next byte in the ring
        self.due = 0  # bytes that may be sent now
        self.outstanding = 0  # units without their replies
        self.newlines = 0  # of a unit that is partly answered
        self.waiting = False  # for the socket to take more


class Pipeline:
    """Connections that keep ``window`` messages in flight, all together.

    ``units`` are sent round and round, each connection beginning at another; all have one length. A unit of ``size``
    messages is answered by ``replies`` replies (loads end with a ping, which alone the broker answers).
    """

    def __init__(
        self, sockets: Sequence[socket.socket], window: int, units: Sequence[bytes], size: int = 1, replies: int = 1
    ) -> None:
        length = len(units[0])
        if any(len(unit) != length for unit in units):
            raise ValueError("all units must have the same length")
        self._size = size
        self._unit_bytes = length
        self._unit_newlines = replies * NEWLINES
        self._window = max(window // len(sockets) // size, 1)
        repeat = -(-2 * self._window // len(units))  # so that few sends are cut in two at the end of the ring
        self._ring = memoryview(b"".join(units) * repeat)
        self._poll = Poll()
        self._streams: dict[int, _Stream] = {}
        for i, sock in enumerate(sockets):
            sock.setblocking(False)
            self._streams[sock.fileno()] = _Stream(sock, i * len(units) // len(sockets) * length)
            self._poll.register(sock.fileno(), EPOLLIN)

    def run(self, seconds: float) -> Sample:
        """Keep the window full for so long, then let all replies come."""
        streams = self._streams
        buffer, unit_bytes, unit_newlines = _BUFFER, self._unit_bytes, self._unit_newlines
        done = 0
        outstanding = self._window * len(streams)
        start = time.perf_counter()
        end = start + seconds
        for stream in streams.values():
            stream.due = self._window * unit_bytes
            self._send(stream)
        while outstanding:
            events = self._poll.poll()
            refill = time.perf_counter() < end
            for fd, mask in events:
                stream = streams[fd]
                if mask & EPOLLIN:
                    size = stream.sock.recv_into(buffer)
                    if not size:
                        raise Stuck("the server closed the connection")
                    newlines = stream.newlines + buffer.count(b"\n", 0, size)
                    units, stream.newlines = divmod(newlines, unit_newlines)
                    done += units
                    if refill:
                        stream.due += units * unit_bytes
                    else:
                        outstanding -= units
                if stream.due:
                    self._send(stream)
        return Sample(done * self._size, time.perf_counter() - start)

    def close(self) -> None:
        """Close the connections."""
        for stream in self._streams.values():
            stream.sock.close()
        self._poll.close()

    def _send(self, stream: _Stream) -> None:
        ring, position, due = self._ring, stream.position, stream.due
        total = len(ring)
        blocked = False
        while due and not blocked:
            wanted = min(due, total - position)
            try:
                sent = stream.sock.send(ring[position : position + wanted])
            except BlockingIOError:
                sent = 0
            blocked = sent < wanted
            due -= sent
            position = (position + sent) % total
        stream.position, stream.due = position, due
        if blocked != stream.waiting:
            stream.waiting = blocked
            self._poll.modify(stream.sock.fileno(), EPOLLIN | EPOLLOUT if blocked else EPOLLIN)


class FanOut:
    """One sender, and watchers that each get every message: sent in batches, each when all have had the one before."""

    def __init__(
        self, sender: socket.socket, watchers: Sequence[socket.socket], messages: Sequence[bytes], batch: int
    ) -> None:
        self._sender = sender
        self._watchers = {sock.fileno(): sock for sock in watchers}
        self._newlines = dict.fromkeys(self._watchers, 0)
        self._batch = batch
        self._block = b"".join(messages[i % len(messages)] for i in range(batch))
        self._poll = Poll()
        for sock in watchers:
            sock.setblocking(False)
            self._poll.register(sock.fileno(), EPOLLIN)

    def run(self, seconds: float) -> Sample:
        """Send batches for so long. Counts deliveries: each message to each watcher."""
        wanted = self._batch * NEWLINES
        newlines, watchers, buffer = self._newlines, self._watchers, _BUFFER
        batches = 0
        start = now = time.perf_counter()
        end = start + seconds
        while now < end:
            self._sender.sendall(self._block)
            behind = len(watchers)
            while behind:
                for fd, _ in self._poll.poll():
                    size = watchers[fd].recv_into(buffer)
                    if not size:
                        raise Stuck("the server closed the connection of a watcher")
                    newlines[fd] = count = newlines[fd] + buffer.count(b"\n", 0, size)
                    if count == wanted:
                        newlines[fd] = 0
                        behind -= 1
            now = time.perf_counter()
            batches += 1
        return Sample(batches * self._batch * len(watchers), now - start)

    def close(self) -> None:
        """Close the connections."""
        for sock in [self._sender, *self._watchers.values()]:
            sock.close()
        self._poll.close()


Script = Generator[bytes, bytes, None]
"""The behaviour of one visitor: it yields packets to send, empty ones to send nothing, and is sent what was read."""


class Visits:
    """Connections that come, follow a script and go: ``parallel`` at a time, each from an address of its own.

    A ``conversation`` does not rest between messages.
    """

    def __init__(self, port: int, script: Callable[[int], Script], parallel: int, conversation: bool = False) -> None:
        self._port = port
        self._script = script
        self._parallel = parallel
        self._poll = Poll()
        if conversation:
            self._poll.rest = 0
        self._open: dict[int, tuple[socket.socket, Script, int]] = {}

    def run(self, seconds: float) -> Sample:
        """Visit for so long. Raises `Stuck`."""
        visits = self._open
        start = now = time.perf_counter()
        end = start + seconds
        for slot in range(self._parallel):
            self._visit(slot)
        done = 0
        while visits:
            events = self._poll.poll()
            now = time.perf_counter()
            for fd, _ in events:
                sock, script, slot = visits[fd]
                data = sock.recv(1 << 16)
                if not data:
                    raise Stuck("the server closed a new connection")
                try:
                    if packet := script.send(data):
                        sock.send(packet)
                except StopIteration:
                    del visits[fd]
                    sock.close()
                    done += 1
                    if now < end:
                        self._visit(slot)
        return Sample(done, now - start)

    def close(self) -> None:
        """Close the poll: nothing is open between runs."""
        self._poll.close()

    def _visit(self, slot: int) -> None:
        sock = connect(self._port, slot + 1)
        script = self._script(slot)
        sock.send(next(script))
        sock.setblocking(False)
        self._open[sock.fileno()] = sock, script, slot
        self._poll.register(sock.fileno(), EPOLLIN)
