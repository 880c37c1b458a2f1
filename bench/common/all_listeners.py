"""Good peers on every wire of one broker, beside hostile ones on one of them: the shares of answers in time.

`measure` starts a fresh broker with all wires, lets one good peer on each wire ping alone, and then again beside
the attack. Each good peer speaks through its own transport.
"""

from __future__ import annotations

import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count, repeat
from pathlib import Path
from select import EPOLLIN, epoll
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from bench.common import machine, servers, traffic
from bench.common.processes import NICENESS, InProcess
from bench.common.servers import CannotStart, Server, spawn
from bench.common.swarm import ANSWER_WITHIN, PING_EVERY, Attack, Seen, swarm
from bench.dbp import servers as dbp_servers
from bench.elko import messages
from bench.elko.good_peers import HANDSHAKE, ConsolePeer, ElkoPeer, Good, HttpPeer, RtcpPeer, WebPeer, frame, request
from bench.http.good_peer import ApiPeer
from bench.mc0 import servers as mc0_servers
from bench.mtl import servers as mtl_servers
from bench.zmtp import good_peers as zmtp_good
from tests.config.certificates import certificate

SHARE_ELSEWHERE, SHARE_THERE = 0.95, 0.80
"""Of its share of answers in time, what a good peer keeps on any other wire, and on the attacked one."""

ANSWERED_WITHIN = 0.050
"""Seconds in which every good peer is to be answered."""

CONSOLES = 99
"""Hostile connections to the console, which takes a hundred."""

CONFIG = """
[mc0]
endpoint = "tcp://127.0.0.1:0"
auth = "open"
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
[mtl]
endpoint = "tcp://127.0.0.1:0"
auth = "open"
[http]
endpoint = "tcp:0:interface=127.0.0.1"
[director]
enabled = true
[[director.listeners]]
name = "director"
endpoint = "tcp:0:interface=127.0.0.1"
[[elko.listeners]]
name = "elko"
endpoint = "tcp:0:interface=127.0.0.1"
[[elko.listeners]]
name = "websocket"
endpoint = "tcp:0:interface=127.0.0.1"
transport = "websocket"
path = "/"
[[elko.listeners]]
name = "http"
endpoint = "tcp:0:interface=127.0.0.1"
transport = "http"
path = "/"
[[elko.listeners]]
name = "rtcp"
endpoint = "tcp:0:interface=127.0.0.1"
transport = "rtcp"
[[elko.listeners]]
name = "tls"
endpoint = "tls:0:certificate={certificate}:key={key}:interface=127.0.0.1"
"""

WIRES = ("elko", "director", "websocket", "http", "rtcp", "console", "mc0", "dbp", "mtl", "mtl-data", "api")
"""The wires with a good peer on each. The listener ``tls`` has none: it is attacked only."""


GOOD: dict[str, Callable[[Mapping[str, int]], Good]] = {
    "elko": lambda ports: ElkoPeer(ports["elko"]),
    "director": lambda ports: ElkoPeer(ports["director"], "director"),
    "websocket": lambda ports: WebPeer(ports["websocket"]),
    "http": lambda ports: HttpPeer(ports["http"]),
    "rtcp": lambda ports: RtcpPeer(ports["rtcp"]),
    "console": lambda ports: ConsolePeer(ports["console"]),
    "mc0": zmtp_good.mc0_peer,
    "dbp": zmtp_good.dbp_peer,
    "mtl": zmtp_good.mtl_peer,
    "mtl-data": zmtp_good.MtlDataPeer,
    "api": lambda ports: ApiPeer(ports["api"]),
}


def good_peers(ports: dict[str, int], alone: float, beside: float) -> tuple[dict[str, float], dict[str, float]]:
    """One good peer on each wire pings every 10 ms. Returns the shares answered within 50 ms, before and in the attack.

    A ping counts from when it was due, so that one that cannot be sent in time counts as late.
    """
    peers = {wire: GOOD[wire](ports) for wire in WIRES}
    poll = epoll()
    owners: dict[int, tuple[Good, socket.socket]] = {}
    for peer in peers.values():
        peer.pongs = 0
        for sock in peer.sockets:
            sock.settimeout(traffic.STUCK)
            owners[sock.fileno()] = peer, sock
            poll.register(sock.fileno(), EPOLLIN)
    start = time.perf_counter()
    change, end = start + alone, start + alone + beside
    dues: list[float] = []
    took: dict[Good, list[float]] = {peer: [] for peer in peers.values()}
    due = start
    while True:
        now = time.perf_counter()
        if now < end:
            number = 0
            while due <= now:
                dues.append(due)
                due += PING_EVERY
                number += 1
            if number:
                for peer in peers.values():
                    peer.ping(number)
        elif now >= end + ANSWER_WITHIN or all(len(each) == len(dues) for each in took.values()):
            break
        for fd, _ in poll.poll(max(due - time.perf_counter(), 0) if now < end else 0.1):
            peer, sock = owners[fd]
            if not peer.read(sock):
                poll.unregister(fd)
            now = time.perf_counter()
            times = took[peer]
            while len(times) < min(peer.pongs, len(dues)):
                times.append(now - dues[len(times)])
    before = sum(at < change for at in dues)

    def share(times: list[float], first: int, last: int) -> float:
        return sum(t <= ANSWERED_WITHIN for t in times[first:last]) / (last - first)

    return (
        {wire: share(took[peer], 0, before) for wire, peer in peers.items()},
        {wire: share(took[peer], before, len(dues)) for wire, peer in peers.items()},
    )


VISIT_EVERY, VISIT_WITHIN = 0.1, 1.0
"""Seconds between two new connections to Elko's listener, and in which each is to be answered."""


def visitors(port: int, seconds: float) -> float:
    """Connect, ping and go for so long. Returns the share of visits that were answered in time."""
    answered = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        try:
            with socket.create_connection((traffic.HOST, port), VISIT_WITHIN) as sock:
                sock.sendall(messages.auth("visitor") + messages.PING)
                answered.append(b"pong" in sock.recv(4_096))
        except OSError:
            answered.append(False)
        time.sleep(max(start + VISIT_EVERY - time.perf_counter(), 0))
    return sum(answered) / len(answered)


# attacks


def forever(first: bytes, then: bytes) -> Callable[[int], Iterator[bytes]]:
    def pieces(number: int) -> Iterator[bytes]:
        if first:
            yield first
        yield from repeat(then)

    return pieces


def _blocks(number: int) -> Iterator[bytes]:
    """An RTCP session whose blocks hold pings."""
    yield b"start\n"
    for first in count(1, 40):
        yield b"".join(b"%d %d\n" % (i, i - 1) + messages.PING for i in range(first, first + 40))


def _hello(number: int) -> Iterator[bytes]:
    """The first flight of a TLS handshake, which a real client made."""
    yield CLIENT_HELLO


def _client_hello() -> bytes:
    out, tls = ssl.MemoryBIO(), ssl.create_default_context()
    tls.check_hostname = False
    connection = tls.wrap_bio(ssl.MemoryBIO(), out)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("a handshake needs an answer")


CLIENT_HELLO = _client_hello()

AUTH = messages.auth("hostile")
USER = messages.auth("hostile", "director")
RESERVE = messages.message(
    '{"to":"director", "op":"reserve", "protocol":"tcp", "context":"context-x", "user":"user-x"}'
)


@attrs.frozen
class Door:
    """Hostile peers on one wire, so many if that is not for the command line to say.

    ``bound`` is the most bytes by which the broker may grow. With ``descriptors`` it may have so many open, and new
    connections to another listener are tried.
    """

    name: str
    wire: str
    title: str
    attack: Attack
    count: int | None = None
    bound: int | None = None
    descriptors: int | None = None


DOORS = [
    Door("elko-pings", "elko", "pings without end", Attack(forever(AUTH, messages.PING * 50))),
    Door("elko-malformed", "elko", "lines that are no messages", Attack(forever(AUTH, b'}\n{]\n\n{"op":7}\n\n' * 100))),
    Door(
        "director-pings",
        "director",
        "pings without end",
        Attack(forever(USER, messages.PING.replace(b"broker", b"director") * 50)),
    ),
    Door("director-reserve", "director", "reservations that are denied", Attack(forever(USER, RESERVE * 50))),
    Door("websocket-pings", "websocket", "ping frames without end", Attack(forever(HANDSHAKE, frame(9, b"") * 500))),
    Door("websocket-text", "websocket", "messages that are none", Attack(forever(HANDSHAKE, frame(1, b"}") * 500))),
    Door("http-connect", "http", "requests for sessions", Attack(forever(b"", request("/connect") * 20))),
    Door(
        "http-unknown",
        "http",
        "requests for sessions that nobody has",
        Attack(forever(b"", request("/select/1/1") * 20)),
    ),
    Door("http-noise", "http", "requests that are none", Attack(forever(b"", b"GET / HTTP/9\r\nx\r\n\r\n"))),
    Door("rtcp-blocks", "rtcp", "blocks of pings", Attack(_blocks)),
    Door("rtcp-noise", "rtcp", "requests that need a session", Attack(forever(b"", b"ack 0\n" * 100))),
    Door("console-counters", "console", "`counters` without end", Attack(forever(b"", b"counters\n" * 50)), CONSOLES),
    Door("console-help", "console", "`help` without end", Attack(forever(b"", b"help\n" * 50)), CONSOLES),
    Door("console-errors", "console", "commands that are none", Attack(forever(b"", b"find x\n[\n" * 50)), CONSOLES),
    Door("tls-hello", "tls", "TLS handshakes that are begun", Attack(_hello, hangs_up=1)),
]
"""All scenarios."""


RUNAWAY = 1 << 30
"""Bytes of growth at which the hostile peers are ended, since other programs need memory, too."""

LOOK_EVERY = 0.05
"""Seconds between two looks at the broker's memory."""


@attrs.frozen
class Shares:
    """One scenario: shares of pings answered within 50 ms, by wire."""

    door: Door
    alone: dict[str, float]
    beside: dict[str, float]
    waited: float
    """The share of the time in which the broker could have run, and others had the cores."""
    used: float
    """The share of a core that it took."""
    grown: int
    """The most bytes of memory by which it grew."""
    visits: float | None
    """The share of new connections that were answered."""
    unexpected: list[str]
    seen: Seen | None
    """None if the hostile peers were ended before their time."""

    @property
    def kept(self) -> dict[str, float]:
        """The part of its share that each good peer keeps."""
        return {wire: self.beside[wire] / self.alone[wire] if self.alone[wire] else 0.0 for wire in self.alone}

    def misses(self) -> list[str]:
        """The goals that were missed."""
        missed = [
            f"{wire} kept {100 * kept:.0f} %"
            for wire, kept in self.kept.items()
            if kept < (SHARE_THERE if wire == self.door.wire else SHARE_ELSEWHERE)
        ]
        if self.door.bound is not None and self.grown > self.door.bound:
            missed.append(f"memory: {self.grown >> 20} of {self.door.bound >> 20} MiB")
        if self.visits is not None and self.visits < SHARE_ELSEWHERE:
            missed.append("new connections")
        return missed + ["defect"] * bool(self.unexpected)

    def cells(self) -> list[str]:
        seen = self.seen
        return [
            self.door.wire,
            self.door.title,
            *(f"{100 * self.kept[wire]:.1f} %" for wire in WIRES),
            f"{100 * min(self.alone.values()):.0f} %",
            "-" if self.visits is None else f"{100 * self.visits:.0f} %",
            f"{100 * self.waited:.0f} %",
            f"{100 * self.used:.0f} %",
            f"{self.grown / 2**20:.0f}",
            "ended" if seen is None else str(seen.connects),
            "ended" if seen is None else f"{seen.sent / 1e6:.0f}",
            ", ".join(self.misses()) or "met",
        ]


HEADINGS = [
    "attacked",
    "by",
    *WIRES,
    "least alone",
    "new ones",
    "no core",
    "CPU",
    "MiB more",
    "connects",
    "MB sent",
    "goals",
]

_PORT = re.compile(r"(?:listener '(\w+)'|(console)) on \S*?:(\d+)")
_DEFECT = re.compile(r"Traceback|Unhandled|made the broker fail|a connection failed|MemoryError")


def measure(door: Door, count: int, seconds: float, alone: float) -> Shares:
    """Attack a fresh broker through one door."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-")))
        server, ports = _start(directory, door.descriptors)
        stack.callback(server.stop)

        def started(function: Callable[..., Any], *arguments: Any, niceness: int = 0) -> InProcess:
            process = InProcess(function, *arguments, niceness=niceness)
            stack.callback(process.stop)
            return process

        good = started(good_peers, ports, alone, seconds)
        time.sleep(alone + 0.2)  # so long they are alone; their processes take a moment to start
        before = server.resident()
        machine.forget_peak(server.pid)
        waited, used, start = machine.waited_seconds(server.pid), server.cpu(), time.monotonic()
        number = count if door.count is None else door.count
        hostile = started(swarm, ports[door.wire], door.attack, number, seconds, niceness=NICENESS)
        visiting = started(visitors, ports["elko"], seconds) if door.descriptors else None
        ended = _watched(server, good, hostile, before + RUNAWAY, alone + seconds + 60)
        took = time.monotonic() - start
        waited, used = (machine.waited_seconds(server.pid) - waited) / took, (server.cpu() - used) / took
        shares = good.result(1)
        seen = None if ended else hostile.result(30)
        visits = None if visiting is None else visiting.result(30)
        grown = machine.peak_resident(server.pid) - before
        log = server.log.read_text(errors="replace").splitlines()
    return Shares(
        door=door,
        alone=shares[0],
        beside=shares[1],
        waited=waited,
        used=used,
        grown=grown,
        visits=visits,
        unexpected=[line[:300] for line in log if _DEFECT.search(line)][:5],
        seen=seen,
    )


def _watched(server: Server, good: InProcess, hostile: InProcess, most: int, within: float) -> bool:
    """Wait for the good peers. Returns whether the hostile ones were ended, since the broker has taken too much."""
    ended = False
    end = time.monotonic() + within
    while not good.done(LOOK_EVERY):
        if time.monotonic() > end:
            raise TimeoutError(f"the good peers did not end within {within:g} s")
        if not ended and server.resident() > most:
            hostile.stop()
            ended = True
    return ended


def _start(directory: Path, descriptors: int | None) -> tuple[Server, dict[str, int]]:
    """A broker with all wires, and their ports."""
    pem, key = certificate(directory, "broker")
    config = directory / "config.toml"
    config.write_text(CONFIG.format(certificate=pem, key=key))
    log = directory / "log"
    command = [
        str(Path(sys.executable).with_name("twistd")),
        "-n",
        "--pidfile=",
        "elkobroker",
        f"--config={config}",
        "--console-port=0",
        f"--state={directory}",
    ]
    server = Server(spawn(command, log, descriptors=descriptors), 0, True, log)
    end = time.monotonic() + servers.START_WITHIN
    while time.monotonic() < end:
        text = log.read_text(errors="replace") if log.exists() else ""
        ports = {name or console: int(port) for name, console, port in _PORT.findall(text)}
        for wires, listens in _ZEROMQ.items():
            if said := listens.search(text):
                ports |= zip(wires, map(int, said.groups()), strict=False)
        if {*WIRES, "tls"} <= ports.keys():
            return server, ports
        if server.process.poll() is not None:
            break
        time.sleep(0.02)
    server.stop()
    raise CannotStart(f"the broker does not have all wires:\n{log.read_text()}")


_ZEROMQ = {
    ("mc0",): mc0_servers.LISTENS,
    ("dbp",): dbp_servers.LISTENS,
    ("mtl", "mtl-data"): mtl_servers.LISTENS,
    ("api",): re.compile(r" http on 127\.0\.0\.1:(\d+) \("),
}
"""The log line of an open wire, and the names of the ports in it."""
