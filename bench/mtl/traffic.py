"""The load on the MTL wire: writers and readers, in plain pyzmq. Each class is for a process of its own.

All that comes is compared with what must come. Nobody sends more at once than libzmq holds for a slow peer, so that
nothing may be dropped.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

import zmq

from bench.common.traffic import STUCK, Sample, Stuck
from bench.mtl import peers as mtl_peers
from bench.mtl.peers import CONFIRM, CONTENT, HEAD, MORE, NOW, PING, PONG, RESOURCE, Control, Socket, methods
from bench.mtl.servers import MtlServer

AHEAD = {100: 500, 1024: 500, 10 * 1024: 50}
"""Contents on their way to each reader of a fan-out, by the size of a body. libzmq takes 1,000 for a peer."""

DISTINCT = 50
"""Different bodies."""

RATE = 1_000
"""Contents a second whose latency is measured."""

FURTHER = 4
"""Windows by which a queue may grow while its readers are behind."""


def bodies(size: int) -> list[bytes]:
    """Some that differ."""
    return [b"%08d" % i + b"." * (size - 8) for i in range(DISTINCT)]


class FanOut:
    """One writer, and readers who each get all that it sends: test profile, and topics.

    The writer is at most ``ahead`` Contents ahead of the readers; by default that is as much as is never dropped.
    """

    def __init__(self, server: MtlServer, readers: int, size: int, ahead: int = 0) -> None:
        at = mtl_peers.context()
        control = Control(at, server, "test")
        self._readers = [
            mtl_peers.flow(at, server, control.lease("Reader", [RESOURCE], "none"), RESOURCE) for _ in range(readers)
        ]
        self._writer = mtl_peers.flow(at, server, control.lease("Writer", [RESOURCE], "none"))
        self._bodies = bodies(size)
        self._ahead = ahead or AHEAD[size]
        self._sent = self._taken = 0

    def run(self, seconds: float) -> Sample:
        """Send for so long, then let all come. Counts deliveries."""
        begun = self._sent
        half = max(self._ahead // 2, 1)
        lead = self._ahead - half
        self._answer_pings()
        start = now = time.perf_counter()
        end = start + seconds
        self._send(lead)
        while now < end:
            self._send(half)
            self._take(half)
            now = time.perf_counter()
        self._take(lead)
        return Sample((self._sent - begun) * len(self._readers), time.perf_counter() - start)

    def _send(self, count: int) -> None:
        send, tail = methods(self._writer)[1], mtl_peers.tail(RESOURCE)
        first = self._sent
        for number in range(first, first + count):
            send(HEAD.pack(CONTENT, number) + tail, MORE)
            send(self._bodies[number % DISTINCT], 0)
        self._sent += count

    def _take(self, count: int) -> None:
        tail, first = mtl_peers.tail(RESOURCE), self._taken
        headers = [HEAD.pack(CONTENT, number + 1) + tail for number in range(first, first + count)]
        contents = [self._bodies[number % DISTINCT] for number in range(first, first + count)]
        for reader in self._readers:
            recv = methods(reader)[0]
            try:
                for header, body in zip(headers, contents, strict=True):
                    came = recv(0)
                    while came == PING:
                        recv(0)
                        reader.send_multipart([PONG, b""])
                        came = recv(0)
                    if came != header or recv(0) != body:
                        raise Stuck(f"not the Content that was to come: {came!r:.100} for {header!r}")
            except zmq.Again:
                raise Stuck(f"a Content did not come within {STUCK:g} s") from None
        self._taken += count

    def _answer_pings(self) -> None:
        """Nothing else comes to the writer."""
        for _ in drained(self._writer):
            pass


def drained(sock: Socket) -> list[tuple[bytes, bytes]]:
    """All commands that have come, with their bodies; Pings are answered."""
    recv, send = methods(sock)
    came: list[tuple[bytes, bytes]] = []
    try:
        while True:
            header = recv(NOW)
            body = recv(NOW)
            if header == PING:
                send(PONG, MORE)
                send(b"", 0)
            else:
                came.append((header, body))
    except zmq.Again:
        return came


class Unconfirmed:
    """The unconfirmed Contents of a writer: the time of each, by sequence."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._sent: dict[int, float] = {}
        self.took: list[float] = []
        """The seconds after which it was told."""

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sequence: int) -> None:
        """One goes out now."""
        self._sent[sequence] = time.perf_counter()

    def hear(self) -> bool:
        """Take what has come. Returns whether there was something."""
        came = drained(self._sock)
        now = time.perf_counter()
        for header, _ in came:
            kind, sequence = HEAD.unpack_from(header)
            if kind != CONFIRM or len(header) != HEAD.size + 1:
                raise Stuck(f"a writer was told {header!r:.100}")
            covered = [sequence]
            if header[HEAD.size]:
                covered = []
                for each in self._sent:
                    if each > sequence:
                        break
                    covered.append(each)
            for each in covered:
                if each not in self._sent:
                    raise Stuck(f"the Content {each} was confirmed, but not sent, or confirmed before")
                self.took.append(now - self._sent.pop(each))
        return bool(came)


class Queue:
    """One writer that is confirmed, and readers of its queue who confirm one by one, or ``multiple`` at once.

    Nobody has more than ``window`` unconfirmed. Without readers everything stays in the queue. Others may have so many
    Contents ``elsewhere``; a run of no time waits until they have come, too.
    """

    def __init__(
        self,
        server: MtlServer,
        name: str,
        readers: int,
        window: int,
        size: int,
        multiple: bool = False,
        elsewhere: int = 0,
    ) -> None:
        at = mtl_peers.context()
        control = Control(at, server, "queue")
        self._readers = [
            mtl_peers.flow(at, server, control.lease("Reader", [name], "full", window=window), name)
            for _ in range(readers)
        ]
        self._writer = mtl_peers.flow(at, server, control.lease("Writer", [name], "full"))
        self._tail = mtl_peers.tail(name)
        self._window = window
        self._multiple = multiple
        self._elsewhere = elsewhere
        self._filler = b"." * (size - 8)
        self._unconfirmed = Unconfirmed(self._writer)
        self._sent = 0
        self._missing: set[bytes] = set()
        """Bodies that no reader has had yet."""
        self._poller = zmq.Poller()
        for sock in (self._writer, *self._readers):
            self._poller.register(sock, zmq.POLLIN)

    def run(self, seconds: float) -> Sample:
        """Write for so long, then let all be confirmed. Counts Contents."""
        begun = self._sent
        start = now = time.perf_counter()
        end = start + seconds
        allowed = self._elsewhere if seconds else 0
        most = FURTHER * self._window + self._elsewhere
        while now < end or self._unconfirmed or len(self._missing) > allowed:
            if now < end:
                room = self._window - len(self._unconfirmed)
                self._send(min(room, most - len(self._missing)) if self._readers else room)
            moved = self._unconfirmed.hear()
            for reader in self._readers:
                moved |= self._take(reader)
            if not moved and not self._poller.poll(int(STUCK * 1000)):
                raise Stuck(f"{len(self._unconfirmed)} are not confirmed, {len(self._missing)} did not come")
            now = time.perf_counter()
        self._unconfirmed.took.clear()
        return Sample(self._sent - begun, now - start)

    def _send(self, count: int) -> None:
        send = methods(self._writer)[1]
        for _ in range(count):
            self._sent += 1
            body = b"%08d" % self._sent + self._filler
            send(HEAD.pack(CONTENT, self._sent) + self._tail, MORE)
            send(body, 0)
            self._unconfirmed.add(self._sent)
            if self._readers:
                self._missing.add(body[:8])

    def _take(self, reader: Socket) -> bool:
        contents = drained(reader)
        if not contents:
            return False
        send = methods(reader)[1]
        sequence = 0
        for header, body in contents:
            kind, sequence = HEAD.unpack_from(header)
            if kind != CONTENT or len(body) != 8 + len(self._filler):
                raise Stuck(f"a reader got {header!r:.100}")
            try:
                self._missing.remove(body[:8])
            except KeyError:
                raise Stuck(f"the Content {body[:8]!r} came twice, or was not sent") from None
            if not self._multiple:
                send(mtl_peers.confirm(sequence), MORE)
                send(b"", 0)
        if self._multiple:
            send(mtl_peers.confirm(sequence, multiple=True), MORE)
            send(b"", 0)
        return True


# latency


class Pacer:
    """A writer that sends at `RATE`, each Content with the time."""

    def __init__(self, server: MtlServer, profile: str, name: str, size: int) -> None:
        at = mtl_peers.context()
        self._confirmed = profile == "queue"
        control = Control(at, server, profile)
        lease = control.lease("Writer", [name], "full" if self._confirmed else "none")
        self._writer = mtl_peers.flow(at, server, lease)
        self._tail = mtl_peers.tail(name)
        self._filler = b"." * (size - 8)
        self._sent = 0
        self._unconfirmed = Unconfirmed(self._writer)

    def run(self, seconds: float) -> list[float]:
        """Send for so long. Returns the seconds after which each Content was confirmed, where they are."""
        first = time.perf_counter()
        for number in range(int(seconds * RATE)):
            self._listen_until(first + number / RATE)
            self._sent += 1
            if self._confirmed:
                self._unconfirmed.add(self._sent)
            body = time.perf_counter_ns().to_bytes(8) + self._filler
            self._writer.send_multipart([HEAD.pack(CONTENT, self._sent) + self._tail, body])
        end = time.perf_counter() + STUCK
        while self._unconfirmed and time.perf_counter() < end:
            self._listen_until(time.perf_counter() + 0.01)
        if self._unconfirmed:
            raise Stuck(f"{len(self._unconfirmed)} Contents were not confirmed")
        took, self._unconfirmed.took = self._unconfirmed.took, []
        return took

    def _listen_until(self, due: float) -> None:
        """Take Confirms until then."""
        while True:
            if self._confirmed:
                self._unconfirmed.hear()
            else:
                drained(self._writer)  # Pings
            wait = due - time.perf_counter()
            if wait <= 0:
                return
            # To the microsecond, where a Poller waits to the millisecond. The descriptor only tells of news.
            select.select([self._writer.fileno()], [], [], wait)


class Listener:
    """A reader that notes how long each Content took."""

    def __init__(self, server: MtlServer, profile: str, name: str) -> None:
        at = mtl_peers.context()
        self._confirms = profile == "queue"
        control = Control(at, server, profile)
        lease = control.lease("Reader", [name], "full" if self._confirms else "none")
        self._reader = mtl_peers.flow(at, server, lease, name)

    def run(self, seconds: float) -> list[float]:
        """Read all that is sent in so long."""
        recv, send = methods(self._reader)
        took: list[float] = []
        while len(took) < int(seconds * RATE):
            try:
                header = recv(0)
                body = recv(0)
            except zmq.Again:
                raise Stuck(f"a Content did not come within {STUCK:g} s") from None
            if header == PING:
                self._reader.send_multipart([PONG, b""])
                continue
            took.append((time.perf_counter_ns() - int.from_bytes(body[:8])) / 1e9)
            if self._confirms:
                send(mtl_peers.confirm(HEAD.unpack_from(header)[1]), MORE)
                send(b"", 0)
        return took


def percentile(took: Sequence[float], part: float) -> float:
    """The percentile, in microseconds."""
    return 1e6 * sorted(took)[int(len(took) * part)]
