"""One message without end, on each ZeroMQ wire and by each kind of peer; and CURVE handshakes that are only begun.

bench/README.md says what the rows are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import attrs
from zmq.utils import z85

from bench import servers, traffic
from bench import zmtp as zmtp_peer
from bench.harness import MIB, Figure, Scenario, at_least, at_most, exactly
from bench.machine import forget_peak, peak_resident, waited_seconds
from bench.peers import elko as messages
from bench.peers.mc0 import Pace, messages_between, opened
from bench.processes import NICENESS, InProcess
from bench.robust.measure import ALONE, ANSWERED_WITHIN, SHARE_ELSEWHERE, SHARE_THERE
from bench.robust.swarm import SOURCES, Attack, Seen, swarm
from bench.servers import Mc0Server, Server
from bench.zmtp import COMMAND, GREETING, MORE, Curve, Keys, Null

SIZES = {"empty": 0, "33-byte": 33, "1 MB": 1_000_000}
"""Bytes of a frame."""

LIMITS = {"mc0": 16 * MIB, "dbp": 1 * MIB, "mtl": 16 * MIB, "mtl-data": 16 * MIB}
"""Bytes of a message that each wire takes, by default."""

BESIDE = 1 * MIB
"""Bytes by which the broker may grow beyond that."""

SENT = 24 * MIB
"""Bytes that are sent at most, if the broker takes them: more than any limit, and less than other programs would
notice, though empty frames may cost thirty times as much."""

AT_ONCE = 1 << 16
"""Bytes that are sent at once, or one frame."""

CLOSED_WITHIN = 3.0
"""Seconds in which the connection is to be closed after the last byte, or in which the broker takes some."""

REVOKED_WITHIN = 5.0
"""Seconds in which the broker has noticed that a key is not allowed any more."""


@attrs.frozen
class Poured:
    """The outcome of a message without end."""

    sent: int
    closed: bool


def pour(port: int, size: int, server_key: bytes | None, keys: Keys | None, revoke: Path | None) -> Poured:
    """Send frames of one message until the connection is closed, or `SENT` bytes were.

    With ``revoke`` the key is revoked before, by emptying that users file.
    """
    with closing(zmtp_peer.connect(port, b"", server_key, keys=keys)) as peer:
        if revoke is not None:
            revoke.write_text("")
            time.sleep(REVOKED_WITHIN)
        peer.sock.settimeout(CLOSED_WITHIN)
        seal, content = peer.mechanism.seal, bytes(size)
        count = max(AT_ONCE // (size + peer.mechanism.overhead + 2), 1)
        always = zmtp_peer.frame(MORE, content) * count if isinstance(peer.mechanism, Null) else b""
        sent = 0
        try:
            while sent < SENT:
                data = always or b"".join([seal(content, True) for _ in range(count)])
                peer.sock.sendall(data)
                sent += len(data)
            while peer.sock.recv(zmtp_peer.READ):
                pass
        except TimeoutError:
            return Poured(sent, False)
        except OSError:
            pass  # it was closed with something unread
        return Poured(sent, True)


_REASON = re.compile(r"peer 127\.0\.0\.1\S*: [a-z-]+: .*")


def _figures(
    server: Server, wire: str, size: str, port: int, *arguments: object, who: str, stack: ExitStack
) -> list[Figure]:
    """Let one peer pour."""
    before = server.resident()
    forget_peak(server.pid)
    process = InProcess(pour, port, SIZES[size], *arguments, niceness=NICENESS)
    stack.callback(process.stop)
    poured: Poured = process.result(120)
    alive = server.process.poll() is None
    grown = peak_resident(server.pid) - before if alive else 0
    end = time.monotonic() + CLOSED_WITHIN  # a thread writes the log
    while not (reasons := _REASON.findall(server.log.read_text(errors="replace"))) and time.monotonic() < end:
        time.sleep(0.05)
    what = f"{wire}, {who}, {size} frames"
    return [
        exactly(f"{what}: the broker is alive", alive, True),
        at_most(f"{what}: MiB that it grew by", grown / MIB, (LIMITS[wire] + BESIDE) / MIB, "{:.1f}"),
        exactly(f"{what}: the connection is closed", poured.closed, True),
        Figure(f"{what}: MiB that were taken", f"{poured.sent / MIB:.1f}"),
        Figure(f"{what}: the reason", reasons[0][:120] if reasons else "none", "logged", bool(reasons)),
    ]


@contextmanager
def _fresh(wire: str) -> Iterator[tuple[Server, int]]:
    """A broker that lets strangers in on this wire, and the port."""
    if wire == "mc0":
        with servers.mc0() as mc0:
            yield mc0, mc0.port
    elif wire == "dbp":
        with servers.dbp() as dbp:
            yield dbp, dbp.port
    else:
        with servers.mtl() as mtl:
            yield mtl, mtl.port if wire == "mtl" else mtl.data


def stranger(wire: str) -> Callable[[float], list[Figure]]:
    """Anybody who connects, without any mechanism."""

    def run(_: float) -> list[Figure]:
        figures = []
        for size in SIZES:
            with ExitStack() as stack:
                server, port = stack.enter_context(_fresh(wire))
                figures += _figures(server, wire, size, port, None, None, None, who="a stranger", stack=stack)
        return figures

    return run


def known(revoked: bool) -> Callable[[float], list[Figure]]:
    """A client of mc0 with CURVE whose key is allowed, or was when it connected."""

    def run(_: float) -> list[Figure]:
        figures = []
        keys, ours = zmtp_peer.new_keys(), zmtp_peer.new_keys()
        for size in SIZES:
            with ExitStack() as stack:
                server = stack.enter_context(servers.mc0(keys, allowed=ours))
                arguments = server.key, ours, server.allowed if revoked else None
                who = "a revoked key" if revoked else "an allowed key"
                figures += _figures(server, "mc0", size, server.port, *arguments, who=who, stack=stack)
        return figures

    return run


# handshakes

HOSTILE = 1_000

ASKS_EVERY = 0.005
"""Seconds between two questions of a good peer beside them."""


def hello(server_key: bytes) -> bytes:
    """The octets of a CURVE client up to its first answer."""
    return zmtp_peer.greeting(b"CURVE") + zmtp_peer.frame(COMMAND, Curve(z85.decode(server_key)).hello())


def mc0_noops(server: Mc0Server, seconds: float) -> list[float]:
    """The seconds that each NOOP of a good CURVE peer took until its OK."""
    with closing(opened(server, b"good")) as peer:
        asked, answered = [b"", b"NOOP", b"ID", b"1"], [b"", b"OK", b"ID", b"1"]
        return messages_between(peer, peer, asked, answered, ASKS_EVERY).run(seconds)


def elko_pings(server: Mc0Server, seconds: float) -> list[float]:
    """The seconds that each ping of a good Elko peer took."""
    with traffic.opened(server.elko, messages.auth("good"), 0) as sock:
        sock.sendall(messages.PING)
        size = len(traffic.await_replies(sock, 1))
        return Pace(sock, lambda: messages.PING, sock, size, ASKS_EVERY).run(seconds)


def hellos(seconds: float) -> list[Figure]:
    """Connections that begin a CURVE handshake, go at the answer, and come again; a good peer on mc0, and one on Elko.

    They send the same HELLO again and again: it costs them nothing, and the broker two scalar multiplications.
    """
    parts = {"mc0": (mc0_noops, SHARE_THERE), "elko": (elko_pings, SHARE_ELSEWHERE)}
    with ExitStack() as stack:
        server = stack.enter_context(servers.mc0(zmtp_peer.new_keys()))
        assert server.key is not None

        def shares(duration: float) -> dict[str, float]:
            started = {wire: InProcess(part, server, duration) for wire, (part, _) in parts.items()}
            for process in started.values():
                stack.callback(process.stop)
            took = {wire: process.result(duration + 60) for wire, process in started.items()}
            return {wire: sum(t <= ANSWERED_WITHIN for t in times) / len(times) for wire, times in took.items()}

        alone = shares(ALONE)
        opening = hello(server.key)
        attack = Attack(lambda number: iter((opening,)), hangs_up=GREETING + Curve.WELCOME)
        hostile = InProcess(swarm, attack, server.port, HOSTILE, SOURCES, seconds, niceness=NICENESS)
        stack.callback(hostile.stop)
        waited, used, start = waited_seconds(server.pid), server.cpu(), time.perf_counter()
        beside = shares(seconds)
        took = time.perf_counter() - start
        waited, used = (waited_seconds(server.pid) - waited) / took, (server.cpu() - used) / took
        seen: Seen = hostile.result(60)
    return [
        *(
            at_least(f"{wire}: what the good peer keeps of its share", beside[wire] / alone[wire], least, "{:.1%}")
            for wire, (_, least) in parts.items()
        ),
        Figure("connections of the others, a second", f"{seen.connects / seconds:,.0f}"),
        Figure("the broker's CPU, of one core", f"{used:.0%}"),
        Figure("the broker could have run, but had no core", f"{waited:.0%}"),
    ]


SCENARIOS = {
    **{
        f"{wire}-endless-one": Scenario(f"{wire}: a stranger's message without end", 0.0, stranger(wire))
        for wire in LIMITS
    },
    "mc0-endless-allowed": Scenario("mc0: the message without end of an allowed key", 0.0, known(False)),
    "mc0-endless-revoked": Scenario("mc0: the message without end of a revoked key", 0.0, known(True)),
    "mc0-hellos": Scenario(f"{HOSTILE:,} connections begin CURVE handshakes", 10.0, hellos),
}
