"""mc0: the broker beside a bare tuned loop around one ROUTER, which forwards and answers, and does nothing else."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from select import EPOLLIN, epoll

from bench import servers
from bench.harness import WARM_UP, Result, Row, cpu
from bench.peers.mc0 import TOPIC, WINDOW, Flow, expect, messages_between, opened, subscribed
from bench.servers import Mc0Server
from bench.traffic import Sample, Stuck
from bench.zmtp import READ, connect, new_keys

GOALS = {1: 0.65, 10: 0.3, 100: 0.2}
"""The most that a delivery of 100 B may cost with NULL, as a ratio to the tuned loop, by the number of subscribers."""

LONG_GOAL = 1.0
"""The same for 10 KiB: the kernel's copies dominate."""

COMPILED_GOALS = {1: 1.2, 10: 1.0, 100: 1.0}
"""The same with CURVE and the compiled helper."""

PYTHON_GOAL = 2.0
"""The same with CURVE and without the helper."""

ACKNOWLEDGED_GOAL = 0.8
"""The most that an acknowledged PUT may cost, and a message may take, in the median and at 99 %."""

IDLE_GOAL = 1.3
"""The most that a silent session may cost, as a ratio to a bare Twisted protocol."""

RATE = 1_000
"""Messages a second whose latency is measured."""

BEHIND, SHORT_BUFFER = 200, 65_536
"""Messages on their way to subscribers for which the kernel takes so many bytes: nearly all of them are in queues of
the server, which accounts for their memory."""

SESSIONS = 2_000
TTL = 30.0
"""Silent sessions, and their TTL in seconds: both sides send a NOOP when most of it has passed."""

NOOP = [b"", b"NOOP"]

KEYS = new_keys()
"""Of all servers that want CURVE."""


def latency(part: float) -> Callable[[Mc0Server, float], Result]:
    """Return a measurement of the microseconds from one peer to another that this part of the messages takes."""

    def measure(server: Mc0Server, seconds: float) -> Result:
        pace = messages_between(
            opened(server, b"sender"),
            subscribed(server, b"receiver"),
            [b"", b"PUT", b"TOPIC", TOPIC, b"", b"." * 100],
            [b"", b"MESSAGE", b"TOPIC", TOPIC, b"", b"." * 100],
            1 / RATE,
        )
        try:
            pace.run(WARM_UP)
            took = sorted(pace.run(seconds))
        finally:
            pace.close()
        if math.isinf(took[-1]):
            raise Stuck("a message did not arrive")
        return Result(1e6 * took[int(len(took) * part)], rate=len(took) / seconds)

    return measure


def puts(subscribers: int, size: int, window: int = WINDOW, buffer: int | None = None) -> Callable[[Mc0Server], Flow]:
    """One publishes, so many get it; bodies have ``size`` bytes and a number. With ``buffer`` the kernel takes so many
    bytes for each subscriber."""
    bodies = [b"%08d" % i + b"." * (size - 8) for i in range(100 if size < 1_000 else 20)]

    def prepare(server: Mc0Server) -> Flow:
        receivers = [subscribed(server, b"subscriber-%03d" % i) for i in range(subscribers)]
        if buffer is not None:
            for each in receivers:
                each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        return Flow(
            opened(server, b"publisher"),
            receivers,
            [[b"", b"PUT", b"TOPIC", TOPIC, b"", body] for body in bodies],
            [[b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body] for body in bodies],
            window,
        )

    return prepare


def acknowledged(window: int) -> Callable[[Mc0Server], Flow]:
    """One publishes to a topic that nobody has, and gets an OK for each message."""
    numbers = [b"%08d" % i for i in range(100)]

    def prepare(server: Mc0Server) -> Flow:
        peer = opened(server, b"publisher")
        return Flow(
            peer,
            [peer],
            [[b"", b"PUT", b"ID", number, b"TOPIC", b"nobody", b"", b"." * 100] for number in numbers],
            [[b"", b"OK", b"ID", number] for number in numbers],
            window,
        )

    return prepare


class Herd:
    """Sessions that only stay alive: each sends a NOOP now and then, and receives the server's."""

    def __init__(self, server: Mc0Server) -> None:
        self._poll = epoll()
        self._peers = [connect(server.port, b"herd-%05d" % i, None, 1 + i % 20) for i in range(SESSIONS)]
        self._by_fd = {peer.sock.fileno(): peer for peer in self._peers}
        for peer in self._peers:
            peer.send(b"", b"CONNECT", b"ID", b"0", b"TTL", b"%d" % (1000 * TTL), b"VERSION", b"0.3")
            answer = peer.receive()
            while answer == NOOP:
                answer = peer.receive()
            expect(answer, b"0")
            self._poll.register(peer.sock.fileno(), EPOLLIN)
        now = time.perf_counter()
        self._due = deque((now + TTL / 2 * i / SESSIONS, peer) for i, peer in enumerate(self._peers))

    def run(self, seconds: float) -> Sample:
        """Stay alive for so long. Counts the NOOPs of both sides."""
        start = now = time.perf_counter()
        noops = 0
        while now < start + seconds:
            while self._due[0][0] <= now:
                at, peer = self._due.popleft()
                peer.send(*NOOP)
                noops += 1
                self._due.append((at + 0.95 * TTL, peer))
            for fd, _ in self._poll.poll(max(0.0, self._due[0][0] - now)):
                data = self._by_fd[fd].sock.recv(READ)
                if not data:
                    raise Stuck("the server closed the connection of a session")
                noops += sum(message == NOOP for message in self._by_fd[fd].feed(data))
            now = time.perf_counter()
        return Sample(noops, now - start)

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.close()
        self._poll.close()


def idle(server: Mc0Server, seconds: float) -> Result:
    """Measure silent sessions for at least the time after which each has sent and got a NOOP."""
    return cpu(Herd)(server, max(seconds, TTL / 2))


def _row(
    title: str,
    measure: Callable[[Mc0Server, float], Result],
    sealing: str | None,
    goal: float | None,
    original: str = "-",
) -> Row:
    keys = None if sealing is None else KEYS
    peer = partial(servers.reference, Mc0Server, "mc0", keys=keys)
    return Row(title, measure, partial(servers.mc0, keys, helpers=sealing), peer, goal, original=original)


def _goal(sealing: str | None, subscribers: int, size: int) -> float:
    if sealing is None:
        return GOALS[subscribers] if size == 100 else LONG_GOAL
    return COMPILED_GOALS[subscribers] if sealing == "compiled" else PYTHON_GOAL


ORIGINALS = {(False, 1): "5.8", (False, 10): "2.1", (False, 100): "1.9"}
ORIGINALS |= {(True, 1): "11.9", (True, 10): "5.7", (True, 100): "5.1"}
"""Microseconds of the broker in C++ for a delivery of 100 B, without and with CURVE."""

ROWS: dict[str, Row] = {}
for _sealing in (None, "compiled", "python"):
    _name, _title = ("null", "NULL") if _sealing is None else (f"curve-{_sealing}", f"CURVE, {_sealing}")
    for _size, _label in ((100, "100 B"), (10 * 1024, "10 KiB")):
        for _count in GOALS:
            ROWS[f"{_name}-put-{_count}-{'100' if _size == 100 else '10k'}"] = _row(
                f"{_title}: {_label} to {_count}, a delivery",
                cpu(puts(_count, _size)),
                _sealing,
                _goal(_sealing, _count, _size),
                ORIGINALS[_sealing is not None, _count] if _size == 100 else "-",
            )
    _acknowledged = None if _sealing else ACKNOWLEDGED_GOAL
    for _window in (1, 100):
        ROWS[f"{_name}-ack-{_window}"] = _row(
            f"{_title}: PUT and OK, window {_window}", cpu(acknowledged(_window)), _sealing, _acknowledged
        )
    for _part in (0.5, 0.99):
        ROWS[f"{_name}-latency-{_part * 100:g}"] = _row(
            f"{_title}: PUT to MESSAGE, {RATE:,} a second, {_part:.0%}", latency(_part), _sealing, _acknowledged
        )
for _count in (1, 10):
    ROWS[f"null-behind-{_count}-10k"] = _row(
        f"NULL: 10 KiB to {_count} with short buffers, a delivery",
        cpu(puts(_count, 10 * 1024, BEHIND, SHORT_BUFFER)),
        None,
        LONG_GOAL,
    )
ROWS["idle"] = Row(
    f"{SESSIONS:,} silent sessions, TTL {TTL:g} s, a NOOP; beside a bare Twisted protocol",
    idle,
    servers.mc0,
    partial(servers.reference, Mc0Server, "bare_mc0", str(TTL / 2)),
    IDLE_GOAL,
)
