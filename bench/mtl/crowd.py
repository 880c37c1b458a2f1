"""Many readers of the test profile that join and leave all the time, and writers that go on writing.

Each reader knows what may come to it: nothing before its Summon is answered, and nothing after its Dismiss is; between
them whatever each writer sends, in order and without a gap.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from enum import Enum, auto

import zmq

from bench.common.traffic import STUCK, Stuck
from bench.mtl import peers as mtl_peers
from bench.mtl.peers import CONTENT, DISMISS, HEAD, LEASE, RESOURCE, RESPONSE, SUMMON, Control, Socket
from bench.mtl.servers import MtlServer
from bench.mtl.traffic import drained

WRITERS = 3
RATE = 40
"""Contents a second of each writer."""

STAYS = 0.1
"""Seconds for which a reader stays on average, and a third of those for which it is away. So a quarter of them are
there at a time, and some thousands come and go in a second."""

AWAY = 3 * STAYS

GONE = 0.05
"""The share of those who leave by closing their connection. Another one with a new lease comes in their place."""

QUIET = 0.3
"""Seconds in the end for which all are away and the writers go on: nothing may come."""

BODY = 100


class State(Enum):
    """The state of a reader."""

    LEASING = auto()
    OUT = auto()
    JOINING = auto()
    IN = auto()
    LEAVING = auto()


class _Reader:
    """One of the crowd."""

    def __init__(self, sock: Socket, lease: str, seen: Counter[str]) -> None:
        self.sock = sock
        self.state = State.LEASING
        self.due = 0.0
        """When it joins or leaves, or is given up."""
        self._seen = seen
        self._sequence = 0
        self._last: dict[int, int] = {}
        """The last number of each writer."""
        self._commands = itertools.count(1)
        self._command = 0
        self._dismissed = False
        self._say(LEASE, lease)

    def act(self, now: float, source: random.Random) -> None:
        """Its time has come."""
        if self.state is State.OUT:
            self.state = State.JOINING
            self._say(SUMMON, RESOURCE)
        elif self.state is State.IN:
            self.state = State.LEAVING
            self._say(DISMISS, RESOURCE)
        else:
            raise Stuck(f"a command was not answered: {self.state}")
        self.due = now + STUCK

    def hear(self, now: float, source: random.Random) -> None:
        """Take what has come."""
        for header, body in drained(self.sock):
            kind, sequence = HEAD.unpack_from(header)
            if kind == CONTENT:
                self._content(sequence, body)
            elif kind == RESPONSE and sequence == self._command and body == b"200":
                self._answered(now, source)
            else:
                raise Stuck(f"a reader got {header!r:.100}, {body!r:.100}")

    def _say(self, kind: int, text: str) -> None:
        self._command = next(self._commands)
        self.sock.send_multipart(mtl_peers.command(kind, self._command, text))

    def _answered(self, now: float, source: random.Random) -> None:
        if self.state is State.JOINING:
            self._seen["joined"] += 1
            self.state = State.IN
            self._last.clear()
            self.due = now + source.expovariate(1 / STAYS)
            return
        if self.state is State.LEAVING:
            self._seen["left"] += 1
            self._dismissed = True
        self.state = State.OUT
        self.due = now + source.expovariate(1 / AWAY)

    def _content(self, sequence: int, body: bytes) -> None:
        seen = self._seen
        seen["contents"] += 1
        if self.state in (State.IN, State.LEAVING):
            writer, number = body[0], int.from_bytes(body[1:9])
            last = self._last.get(writer)
            if last is not None and number <= last:
                seen["disordered"] += 1
            elif (last is not None and number != last + 1) or sequence != self._sequence + 1:
                seen["missed"] += 1
            self._last[writer] = number
        elif self.state is State.OUT and self._dismissed:
            seen["after"] += 1
        else:
            seen["before"] += 1
        self._sequence = sequence


class Crowd:
    """So many readers in one process."""

    def __init__(self, server: MtlServer, readers: int, seed: int) -> None:
        self._server = server
        self._source = random.Random(seed)
        self._context = mtl_peers.context()
        self._control = Control(self._context, server, "test")
        self._seen: Counter[str] = Counter()
        self._readers = [self._new() for _ in range(readers)]

    def run(self, seconds: float) -> Counter[str]:
        """Come and go for so long. Returns how often what was seen."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._sweep(joining=True)
        end += STUCK
        while any(reader.state is not State.OUT for reader in self._readers):
            self._sweep(joining=False)
            if time.perf_counter() > end:
                raise Stuck("some readers are not answered in the end")
        end = time.perf_counter() + QUIET
        while time.perf_counter() < end:
            self._sweep(joining=False)
        return self._seen

    def _sweep(self, joining: bool) -> None:
        """Look after each of them once."""
        source = self._source
        for i, reader in enumerate(self._readers):
            now = time.perf_counter()
            if int(reader.sock.get(zmq.EVENTS)) & zmq.POLLIN:
                reader.hear(now, source)
            if reader.state is State.IN and not joining:
                reader.act(now, source)
            elif now < reader.due or (reader.state is State.OUT and not joining):
                continue
            elif reader.state is State.IN and source.random() < GONE:
                self._seen["gone"] += 1
                reader.sock.close()
                self._readers[i] = self._new()
            else:
                reader.act(now, source)

    def _new(self) -> _Reader:
        sock = mtl_peers.dealer(self._context, self._server, self._server.data)
        reader = _Reader(sock, self._control.lease("Reader", [RESOURCE], "none"), self._seen)
        reader.due = time.perf_counter() + STUCK
        return reader


class Writers:
    """`WRITERS` of them in one process."""

    def __init__(self, server: MtlServer) -> None:
        at = mtl_peers.context()
        control = Control(at, server, "test")
        self._writers = [
            mtl_peers.flow(at, server, control.lease("Writer", [RESOURCE], "none")) for _ in range(WRITERS)
        ]
        self._tail = mtl_peers.tail(RESOURCE)

    def run(self, seconds: float) -> int:
        """Write for so long. Returns how much was written."""
        start = time.perf_counter()
        written = 0
        filler = b"." * (BODY - 9)
        while (now := time.perf_counter()) < start + seconds:
            while written < (now - start) * RATE * WRITERS:
                number, writer = divmod(written, WRITERS)
                header = HEAD.pack(CONTENT, number) + self._tail
                self._writers[writer].send_multipart([header, bytes((writer,)) + number.to_bytes(8) + filler])
                written += 1
            for sock in self._writers:
                drained(sock)
            time.sleep(0.001)
        return written
