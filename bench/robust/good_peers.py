"""Good peers on the text wires and DNS: each pings through its own transport, and counts the pongs that it has read."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time

from bench import traffic
from bench.peers import elko as messages

PING_EVERY = 0.010
"""Seconds between two pings of a good peer, whether or not the one before was answered."""


def frame(opcode: int, payload: bytes) -> bytes:
    """One WebSocket frame of a client; the mask is all zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def http(line: str, *headers: str, body: bytes = b"") -> bytes:
    """One request of HTTP. ``line`` is its method and path."""
    head = [f"{line} HTTP/1.1", "Host: localhost", *headers]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def upgrade(path: str) -> bytes:
    """The handshake of a WebSocket."""
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    return http(f"GET {path}", "Upgrade: websocket", "Connection: Upgrade", key, "Sec-WebSocket-Version: 13")


HANDSHAKE = upgrade("/")


class Good:
    """A peer that sends ``asked``, on a connection of its own, once in ``every`` seconds."""

    every = PING_EVERY

    def __init__(self, sock: socket.socket, asked: bytes = messages.PING) -> None:
        self.sock = sock
        self.asked = asked
        self.sockets = [self.sock]
        self.pongs = 0
        self._tail: dict[socket.socket, bytes] = {}

    def ping(self, number: int) -> None:
        """Send so many pings."""
        self.sock.sendall(self.asked * number)

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
        super().__init__(traffic.connect(port), messages.PING.replace(b'"broker"', f'"{role}"'.encode()))
        self.say(messages.auth("good", role) + self.asked)


class TlsPeer(Good):
    """Lines over TLS."""

    def __init__(self, port: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.tls = context.wrap_socket(traffic.connect(port))
        super().__init__(self.tls)
        self.say(messages.auth("good") + self.asked)

    def read(self, sock: socket.socket) -> bool:
        """Read what has come, what is decrypted already included."""
        going_on = super().read(sock)
        while going_on and self.tls.pending():
            going_on = super().read(sock)
        return going_on


class WebPeer(Good):
    """Messages over a WebSocket."""

    def __init__(self, port: int) -> None:
        super().__init__(traffic.connect(port), frame(1, messages.PING))
        self.sock.sendall(HANDSHAKE)
        self.sock.recv(4_096)
        self.say(frame(1, messages.auth("good")) + self.asked)


class RtcpPeer(Good):
    """Numbered blocks."""

    def __init__(self, port: int) -> None:
        super().__init__(traffic.connect(port))
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
        super().__init__(traffic.connect(port), self.COMMAND)
        self.say(self.COMMAND)


class HttpPeer(Good):
    """A session that polls: pings go in one request at a time, answers come on a second connection."""

    def __init__(self, port: int) -> None:
        super().__init__(traffic.connect(port))
        self._select = traffic.connect(port)
        self.sockets.append(self._select)
        self._data = {self.sock: b"", self._select: b""}
        self.sock.sendall(http("GET /connect"))
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
        self.sock.sendall(http(f"POST /xmit/{self._session}/{self._xmit}", body=body))

    def _poll(self, number: str) -> None:
        self._select.sendall(http(f"GET /select/{self._session}/{number}"))

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


REGISTER = b'{"hostport":"192.0.2.1:80","ttl":3600}'


class ApiPeer(Good):
    """A client of the API, which sends a request when the one before is answered, as HTTP clients do.

    An answer counts for all pings that were due when its request was sent.
    """

    def __init__(self, port: int) -> None:
        super().__init__(traffic.connect(port))
        self._due = 0
        self._asked = 1
        self.say(http("PUT /v1/services/bank/good", body=REGISTER))

    def ping(self, number: int) -> None:
        """Note so many pings, and send a request unless one is unanswered."""
        self._due += number
        if not self._asked:
            self._ask()

    def came(self, sock: socket.socket, data: bytes) -> None:
        """Count the answer, if it is complete: it has a provider."""
        whole = self._tail.get(sock, b"") + data
        self._tail[sock] = whole[-10:]
        if b'"provider":' in whole:
            self._tail[sock] = b""
            self.pongs += self._asked
            self._asked = 0
            if self._due:
                self._ask()

    def _ask(self) -> None:
        self._asked, self._due = self._due, 0
        self.sock.sendall(http("GET /v1/services/bank"))


BANK = b"\4bank\7service\nelkobroker\0"
"""The name of a service in DNS."""


def query(number: int, qname: bytes = BANK, kind: int = 33) -> bytes:
    """A DNS query with EDNS for the largest response."""
    header = struct.pack("!6H", number & 0xFFFF, 0x0100, 1, 0, 0, 1)
    return header + qname + struct.pack("!HH", kind, 1) + b"\0" + struct.pack("!HHIH", 41, 4096, 0, 0)


def framed(data: bytes) -> bytes:
    """A DNS message over TCP."""
    return struct.pack("!H", len(data)) + data


class DnsPeer(Good):
    """Queries over one TCP connection."""

    every = 0.05
    """Less often than the rate of an address allows."""

    def __init__(self, port: int) -> None:
        super().__init__(traffic.connect(port), framed(query(1)))
        self.say(self.asked)

    def came(self, sock: socket.socket, data: bytes) -> None:
        whole = self._tail.get(sock, b"") + data
        while len(whole) >= 2 and len(whole) >= (end := 2 + int.from_bytes(whole[:2], "big")):
            whole = whole[end:]
            self.pongs += 1
        self._tail[sock] = whole


class DnsUdpPeer(Good):
    """Queries by UDP, one at a time. One without an answer is asked again after `LOST_AFTER`, as resolvers do.

    An answer counts for all pings that were due when it was first asked for.
    """

    every = 0.05
    LOST_AFTER = 0.5

    def __init__(self, port: int) -> None:
        super().__init__(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sock.connect((traffic.HOST, port))
        self._due = self._asked = self._number = 0
        self._at = 0.0

    def ping(self, number: int) -> None:
        self._due += number
        if not self._asked or time.monotonic() >= self._at + self.LOST_AFTER:
            self._ask()

    def came(self, sock: socket.socket, data: bytes) -> None:
        if data[:2] == struct.pack("!H", self._number & 0xFFFF):
            self.pongs += self._asked
            self._asked = 0
            if self._due:
                self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked, self._due = self._due, 0
        self._number += 1
        self._at = time.monotonic()
        self.sock.send(query(self._number))
