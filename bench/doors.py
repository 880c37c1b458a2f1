"""Good peers on every TCP wire of one broker, beside hostile ones on one of them: the shares of answers in time.

`measure` starts a fresh broker with all TCP wires, lets one good peer on each wire ping alone, and then again beside
the attack. Each good peer speaks through its own transport.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, repeat
from pathlib import Path
from select import EPOLLIN, epoll
from tempfile import TemporaryDirectory

import attrs
import machine
import messages
import servers
import traffic
from processes import NICENESS, InProcess
from servers import CHECKOUT, CannotStart, Server, spawn
from swarm import ANSWER_WITHIN, PING_EVERY, Attack, Seen, swarm

SHARE_ELSEWHERE, SHARE_THERE = 0.95, 0.80
"""Of its share of answers in time, what a good peer keeps on any other wire, and on the attacked one."""

ANSWERED_WITHIN = 0.050
"""Seconds in which every good peer is to be answered."""

CONSOLES = 99
"""Hostile connections to the console, which takes a hundred."""

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

CONFIG = """
[mc0]
enabled = false
[dbp]
enabled = false
[mtl]
enabled = false
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

WIRES = ("elko", "director", "websocket", "http", "rtcp", "console")
"""The wires with a good peer on each. The listener ``tls`` has none: it is attacked only."""


def frame(opcode: int, payload: bytes) -> bytes:
    """One WebSocket frame of a client; the mask is all zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def request(path: str, body: bytes | None = None) -> bytes:
    """One request of HTTP."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n".encode()
    return f"POST {path} HTTP/1.1\r\nHost: broker\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


# good peers


class Good:
    """A peer that pings. It answers with how many pongs it has read."""

    def __init__(self, port: int) -> None:
        self.sock = traffic.connect(port)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets = [self.sock]
        self.pongs = 0
        self._tail: dict[socket.socket, bytes] = {}

    def ping(self, number: int) -> None:
        """Send so many pings."""
        self.sock.sendall(messages.PING * number)

    def read(self, sock: socket.socket) -> bool:
        """Read what has come. Returns False when the broker closed the connection."""
        data = sock.recv(1 << 16)
        self.came(sock, data)
        return bool(data)

    def came(self, sock: socket.socket, data: bytes) -> None:
        """Count the pongs in what has come."""
        whole = self._tail.get(sock, b"") + data
        self.pongs += whole.count(b'pong"')
        self._tail[sock] = whole[-4:]

    def say(self, data: bytes) -> None:
        """Send the first words, and wait for what is said to them."""
        self.sock.sendall(data)
        self.sock.settimeout(traffic.STUCK)
        pongs = self.pongs
        while self.pongs == pongs:
            if not self.read(self.sock):
                raise traffic.Stuck("the broker closed a good connection")


class ElkoPeer(Good):
    """Lines over TCP."""

    def __init__(self, port: int, role: str = "broker") -> None:
        super().__init__(port)
        self._ping = messages.PING.replace(b'"broker"', f'"{role}"'.encode())
        self.say(messages.auth("good", role) + self._ping)

    def ping(self, number: int) -> None:
        self.sock.sendall(self._ping * number)


class WebPeer(Good):
    """Messages over a WebSocket."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sock.sendall(HANDSHAKE)
        self.sock.recv(4_096)
        self._ping = frame(1, messages.PING)
        self.say(frame(1, messages.auth("good")) + self._ping)

    def ping(self, number: int) -> None:
        self.sock.sendall(self._ping * number)


class RtcpPeer(Good):
    """Numbered blocks."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._sent = 0
        self.sock.sendall(b"start\n")
        self.sock.recv(4_096)
        self.say(self._block(messages.auth("good")) + self._block(messages.PING))

    def _block(self, data: bytes) -> bytes:
        self._sent += 1
        return b"%d %d\n" % (self._sent, self.pongs) + data

    def ping(self, number: int) -> None:
        self.sock.sendall(b"".join(self._block(messages.PING) for _ in range(number)))


class ConsolePeer(Good):
    """Commands of the console."""

    COMMAND = b'{op:"ping"}\n'

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.say(self.COMMAND)

    def ping(self, number: int) -> None:
        self.sock.sendall(self.COMMAND * number)


class HttpPeer(Good):
    """A session that polls: pings go in one request at a time, answers come on a second connection."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._select = traffic.connect(port)
        self._select.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets.append(self._select)
        self._data = {self.sock: b"", self._select: b""}
        self.sock.sendall(request("/connect"))
        self._session = self._answer(self.sock)["sessionid"]
        self._xmit = 0
        self._due = 0
        self._busy = False
        self._send(messages.auth("good"))
        self._answer(self.sock)
        self._busy = False
        self._poll("1")

    def ping(self, number: int) -> None:
        self._due += number
        if not self._busy and self._due:
            pings, self._due = self._due, 0
            self._send(messages.PING * pings)

    def _send(self, body: bytes) -> None:
        self._busy = True
        self._xmit += 1
        self.sock.sendall(request(f"/xmit/{self._session}/{self._xmit}", body))

    def _poll(self, number: str) -> None:
        self._select.sendall(request(f"/select/{self._session}/{number}"))

    def _answer(self, sock: socket.socket) -> dict[str, str]:
        sock.settimeout(traffic.STUCK)
        while (body := self._response(sock)) is None:
            self._data[sock] += sock.recv(1 << 16)
        answer: dict[str, str] = json.loads(body)
        return answer

    def _response(self, sock: socket.socket) -> bytes | None:
        """The body of the next response, if it is complete."""
        head, found, rest = self._data[sock].partition(b"\r\n\r\n")
        if not found:
            return None
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return None
        self._data[sock] = rest[length:]
        return rest[:length]

    def came(self, sock: socket.socket, data: bytes) -> None:
        self._data[sock] += data
        while (body := self._response(sock)) is not None:
            if sock is self.sock:
                self._busy = False
                self.ping(0)
            else:
                self.pongs += body.count(b'pong"')
                self._poll(json.loads(body)["seqnum"])


GOOD: dict[str, Callable[[int], Good]] = {
    "elko": ElkoPeer,
    "director": lambda port: ElkoPeer(port, "director"),
    "websocket": WebPeer,
    "http": HttpPeer,
    "rtcp": RtcpPeer,
    "console": ConsolePeer,
}


def good_peers(ports: dict[str, int], alone: float, beside: float) -> tuple[dict[str, float], dict[str, float]]:
    """One good peer on each wire pings every 10 ms. Returns the shares answered within 50 ms, before and in the attack.

    A ping counts from when it was due, so that one that cannot be sent in time counts as late.
    """
    peers = {wire: GOOD[wire](port) for wire, port in ports.items()}
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


# attacks


def _forever(first: bytes, then: bytes) -> Callable[[int], Iterator[bytes]]:
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
    """Hostile peers on one wire."""

    name: str
    wire: str
    title: str
    attack: Attack
    count: int | None = None


DOORS = [
    Door("elko-pings", "elko", "pings without end", Attack(_forever(AUTH, messages.PING * 50))),
    Door(
        "elko-malformed", "elko", "lines that are no messages", Attack(_forever(AUTH, b'}\n{]\n\n{"op":7}\n\n' * 100))
    ),
    Door(
        "director-pings",
        "director",
        "pings without end",
        Attack(_forever(USER, messages.PING.replace(b"broker", b"director") * 50)),
    ),
    Door("director-reserve", "director", "reservations that are denied", Attack(_forever(USER, RESERVE * 50))),
    Door("websocket-pings", "websocket", "ping frames without end", Attack(_forever(HANDSHAKE, frame(9, b"") * 500))),
    Door("websocket-text", "websocket", "messages that are none", Attack(_forever(HANDSHAKE, frame(1, b"}") * 500))),
    Door("http-connect", "http", "requests for sessions", Attack(_forever(b"", request("/connect") * 20))),
    Door(
        "http-unknown",
        "http",
        "requests for sessions that nobody has",
        Attack(_forever(b"", request("/select/1/1") * 20)),
    ),
    Door("http-noise", "http", "requests that are none", Attack(_forever(b"", b"GET / HTTP/9\r\nx\r\n\r\n"))),
    Door("rtcp-blocks", "rtcp", "blocks of pings", Attack(_blocks)),
    Door("rtcp-noise", "rtcp", "requests that need a session", Attack(_forever(b"", b"ack 0\n" * 100))),
    Door("console-counters", "console", "`counters` without end", Attack(_forever(b"", b"counters\n" * 50)), CONSOLES),
    Door("console-help", "console", "`help` without end", Attack(_forever(b"", b"help\n" * 50)), CONSOLES),
    Door("console-errors", "console", "commands that are none", Attack(_forever(b"", b"find x\n[\n" * 50)), CONSOLES),
    Door("tls-hello", "tls", "TLS handshakes that are begun", Attack(_hello, hangs_up=True)),
]
"""All scenarios."""


@attrs.frozen
class Shares:
    """One scenario: shares of pings answered within 50 ms, by wire."""

    door: str
    wire: str
    title: str
    alone: dict[str, float]
    beside: dict[str, float]
    waited: float
    """The share of the time in which the broker could have run, and others had the cores."""
    unexpected: list[str]
    seen: Seen

    @property
    def kept(self) -> dict[str, float]:
        """The part of its share that each good peer keeps."""
        return {wire: self.beside[wire] / self.alone[wire] if self.alone[wire] else 0.0 for wire in self.alone}

    def misses(self) -> list[str]:
        """The goals that were missed."""
        missed = [
            f"{wire} kept {100 * kept:.0f} %"
            for wire, kept in self.kept.items()
            if kept < (SHARE_THERE if wire == self.wire else SHARE_ELSEWHERE)
        ]
        return missed + ["defect"] * bool(self.unexpected)

    def cells(self) -> list[str]:
        return [
            self.wire,
            self.title,
            *(f"{100 * self.kept[wire]:.1f} %" for wire in WIRES),
            f"{100 * min(self.alone.values()):.0f} %",
            f"{100 * self.waited:.0f} %",
            str(self.seen.connects),
            f"{self.seen.sent / 1e6:.0f}",
            ", ".join(self.misses()) or "met",
        ]


HEADINGS = ["attacked", "by", *WIRES, "least alone", "no core", "connects", "MB sent", "goals"]

_PORT = re.compile(r"(?:listener '(\w+)'|(console)) on \S*?:(\d+)")
_DEFECT = re.compile(r"Traceback|Unhandled|made the broker fail|a connection failed|MemoryError")


def measure(door: Door, count: int, seconds: float, alone: float) -> Shares:
    """Attack a fresh broker through one door."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-")))
        server, ports = _start(directory)
        stack.callback(server.stop)
        wires = {wire: ports[wire] for wire in WIRES}
        good = InProcess(good_peers, wires, alone, seconds)
        stack.callback(good.stop)
        time.sleep(alone + 0.2)  # so long they are alone; their processes take a moment to start
        waited, start = machine.waited_seconds(server.pid), time.monotonic()
        number = count if door.count is None else door.count
        hostile = InProcess(swarm, ports[door.wire], door.attack, number, seconds, niceness=NICENESS)
        stack.callback(hostile.stop)
        before, beside = good.result(alone + seconds + 60)
        waited = (machine.waited_seconds(server.pid) - waited) / (time.monotonic() - start)
        seen = hostile.result(30)
        log = server.log.read_text(errors="replace").splitlines()
    return Shares(
        door=door.name,
        wire=door.wire,
        title=door.title,
        alone=before,
        beside=beside,
        waited=waited,
        unexpected=[line[:300] for line in log if _DEFECT.search(line)][:5],
        seen=seen,
    )


def _start(directory: Path) -> tuple[Server, dict[str, int]]:
    """A broker with all TCP wires, and their ports."""
    certificate, key = _certificate(directory)
    config = directory / "config.toml"
    config.write_text(CONFIG.format(certificate=certificate, key=key))
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
    server = Server(spawn(command, log), 0, True, log)
    end = time.monotonic() + servers.START_WITHIN
    while time.monotonic() < end:
        text = log.read_text(errors="replace") if log.exists() else ""
        ports = {name or console: int(port) for name, console, port in _PORT.findall(text)}
        if {*WIRES, "tls"} <= ports.keys():
            return server, ports
        if server.process.poll() is not None:
            break
        time.sleep(0.02)
    server.stop()
    raise CannotStart(f"the broker does not have all wires:\n{log.read_text()}")


def _certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate and its key, as the tests make them."""
    sys.path.insert(0, str(CHECKOUT))
    from tests.config.certificates import certificate

    return certificate(directory, "broker")
