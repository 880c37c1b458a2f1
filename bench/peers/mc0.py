"""Peers of mc0 and their load: one publishes, others (or itself) get what comes of it; all on plain sockets.

The expected messages are known byte for byte. Without CURVE all are compared; with CURVE their size is, and samples are
decrypted. The publisher stays `WINDOW` messages ahead of the slowest receiver at most, so that nothing may be dropped.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT

from bench.servers import Mc0Server
from bench.traffic import STUCK, Poll, Sample, Stuck
from bench.zmtp import READ, Frames, Null, Peer, connect

TOPIC = b"mcollective bench"
"""The topic of all messages."""

WINDOW = 500
"""Messages on their way. libzmq takes 1,000 for a peer, and learns in steps of 500 how many of them are gone."""

SLICE = 32
"""Messages that are encrypted before any of them is sent."""

_BUFFER = bytearray(READ)
_VIEW = memoryview(_BUFFER)


def opened(server: Mc0Server, identity: bytes) -> Peer:
    """A peer that has said CONNECT."""
    peer = connect(server.port, identity, server.key)
    expect(peer.ask(b"", b"CONNECT", b"ID", b"0", b"VERSION", b"0.3"), b"0")
    return peer


def subscribed(server: Mc0Server, identity: bytes) -> Peer:
    """A peer that gets what is published to `TOPIC`."""
    peer = opened(server, identity)
    expect(peer.ask(b"", b"SUB", b"ID", b"1", b"", TOPIC), b"1")
    return peer


def expect(answer: Sequence[bytes], number: bytes) -> None:
    """Raises `Stuck` unless this is the OK for the command with that ID."""
    if list(answer) != [b"", b"OK", b"ID", number]:
        raise Stuck(f"{answer!r:.300} is no OK for {number!r}")


class Source:
    """Sends the same messages round and round."""

    def __init__(self, peer: Peer, messages: Sequence[Frames]) -> None:
        self.sock = peer.sock
        self._peer = peer
        self._messages = messages
        self._next = 0
        self._due = 0  # messages that may be sent
        self._left = memoryview(b"")  # of what was begun
        self._ring = memoryview(b"")
        if isinstance(peer.mechanism, Null):  # always the same bytes
            self._ring = memoryview(b"".join(map(peer.encode, messages)) * 2)
        self._size = len(self._ring) // len(messages) // 2

    def send(self, count: int) -> bool:
        """Send so many more. Returns whether all of them are on their way; else call again when more can be sent."""
        self._due += count
        while self._left or self._due:
            if not self._left:
                self._left = self._taken()
            try:
                sent = self.sock.send(self._left)
            except BlockingIOError:
                return False
            self._left = self._left[sent:]
        return True

    def _taken(self) -> memoryview:
        total = len(self._messages)
        first = self._next
        if self._size:
            count = min(self._due, total)
            data = self._ring[first * self._size : (first + count) * self._size]
        else:
            count = min(self._due, SLICE)
            data = memoryview(
                b"".join(self._peer.encode(self._messages[i % total]) for i in range(first, first + count))
            )
        self._due -= count
        self._next = (first + count) % total
        return data


class Sink:
    """Gets the same messages round and round; all have one size."""

    def __init__(self, peer: Peer, messages: Sequence[Frames], ring: bytes) -> None:
        self._peer = peer
        self._sock = peer.sock
        self._messages = messages
        self._size = peer.size(messages[0])
        self._ring = ring
        self._round = self._size * len(messages)
        self._bytes = 0
        self.checked = bool(ring)

    def take(self) -> int:
        """Read what is there. Returns how many messages have come so far, all in all. Raises `Stuck`."""
        size = self._sock.recv_into(_BUFFER)
        if not size:
            raise Stuck("the server closed the connection of a receiver")
        at = self._bytes % self._round
        if self._ring:
            if not self._ring.startswith(_VIEW[:size], at):
                raise Stuck(f"not what was sent: {bytes(_VIEW[: min(size, 300)])!r}")
        elif not self.checked:
            self._check(size, at)
        self._bytes += size
        return self._bytes // self._size

    def _check(self, size: int, at: int) -> None:
        """Decrypt the first whole message of what was read."""
        start = -at % self._size
        if start + self._size <= size:
            (message,) = self._peer.feed(bytes(_VIEW[start : start + self._size]))
            expected = list(self._messages[(at + start) // self._size % len(self._messages)])
            if message != expected:
                raise Stuck(f"not what was sent: {message!r:.300}")
            self.checked = True

    @staticmethod
    def ring(peer: Peer, messages: Sequence[Frames]) -> bytes:
        """The expected bytes on the wire, with as many again as may be read at once; none where they are encrypted."""
        if not isinstance(peer.mechanism, Null):
            return b""
        block = b"".join(map(peer.encode, messages))
        return block * (2 + READ // len(block))


class Flow:
    """A sender, and receivers that each get one message for each that is sent (the sender may be one).

    A ``window`` of 1 is a conversation: there the generator does not rest, but waits for each message.
    """

    def __init__(
        self, sender: Peer, receivers: Sequence[Peer], sent: Sequence[Frames], expected: Sequence[Frames], window: int
    ) -> None:
        self._peers = {sender, *receivers}
        self._window = window
        self._source = Source(sender, sent)
        ring = Sink.ring(sender, expected)
        self._sinks = {peer.sock.fileno(): (i, Sink(peer, expected, ring)) for i, peer in enumerate(receivers)}
        self._counts = [0] * len(receivers)
        self._sent = 0
        self._poll = Poll()
        if window == 1:
            self._poll.rest = 0
        for peer in self._peers:
            peer.sock.setblocking(False)
        for fd in self._sinks:
            self._poll.register(fd, EPOLLIN)
        self._out = sender.sock.fileno()
        if self._out not in self._sinks:
            self._poll.register(self._out, 0)
        self._waiting = False

    def run(self, seconds: float) -> Sample:
        """Keep the window full for so long, then let everything come. Counts what was received."""
        sinks, counts = self._sinks, self._counts
        begun = self._sent
        start = now = time.perf_counter()
        end = start + seconds
        while True:
            slowest = min(counts)
            room = self._window - (self._sent - slowest) if now < end else 0
            if room or self._waiting:
                self._send(room)
            elif self._sent == slowest:
                break
            events = self._poll.poll()
            now = time.perf_counter()
            for fd, mask in events:
                if mask & ~EPOLLOUT and fd in sinks:
                    i, sink = sinks[fd]
                    counts[i] = sink.take()
                elif mask & (EPOLLHUP | EPOLLERR):
                    raise Stuck("the server closed the connection of the sender")
        if any(count != self._sent for count in counts):
            raise Stuck(f"{self._sent} messages were sent, but from {min(counts)} to {max(counts)} came")
        if not all(sink.checked for _, sink in sinks.values()):
            raise Stuck("a receiver got no message whole, so that none could be checked")
        return Sample((self._sent - begun) * len(counts), now - start)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        self._poll.close()

    def _send(self, count: int) -> None:
        self._sent += count
        waiting = not self._source.send(count)
        if waiting != self._waiting:
            self._waiting = waiting
            base = EPOLLIN if self._out in self._sinks else 0
            self._poll.modify(self._out, base | EPOLLOUT if waiting else base)


class Pace:
    """Something is sent every so often, whether or not what was sent before has come back: how long does each take?

    ``encode`` gives what is sent through ``out``. For each, ``size`` bytes come through ``back``, in the same order.
    """

    def __init__(
        self, out: socket.socket, encode: Callable[[], bytes], back: socket.socket, size: int, every: float
    ) -> None:
        self._out = out
        self._encode = encode
        self._back = back
        self._size = size
        self._every = every
        self._bytes = 0

    def run(self, seconds: float, within: float = STUCK) -> list[float]:
        """Send for so long. Returns the seconds that each took, infinite if it did not come ``within`` so many."""
        back = self._back
        sent: deque[float] = deque()
        took: list[float] = []
        due = time.perf_counter()
        end = due + seconds
        while True:
            now = time.perf_counter()
            if now < end and now >= due:
                data = self._encode()
                sent.append(time.perf_counter())
                self._out.sendall(data)
                due = max(due + self._every, now)
            elif now >= end and (not sent or now >= end + within):
                return took + [math.inf] * len(sent)
            wait = (due if now < end else end + within) - time.perf_counter()
            # select() waits to the microsecond; epoll would to the millisecond
            if not select.select([back], [], [], max(wait, 0))[0]:
                continue
            size = back.recv_into(_BUFFER)
            now = time.perf_counter()
            if not size:
                return took + [math.inf] * len(sent)
            self._bytes += size
            while self._bytes >= self._size:
                self._bytes -= self._size
                took.append(now - sent.popleft())

    def close(self) -> None:
        """Close the connections."""
        for sock in {self._out, self._back}:
            sock.close()


def messages_between(sender: Peer, receiver: Peer, sent: Frames, expected: Frames, every: float) -> Pace:
    """The same message, every so many seconds, from one peer to another or back to itself."""
    return Pace(sender.sock, lambda: sender.encode(sent), receiver.sock, receiver.size(expected), every)
