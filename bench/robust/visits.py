"""Newcomers: a connection to each listener, one question on it, and whether the answer came in time."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping

import attrs

from bench import traffic
from bench import zmtp as zmtp_peer
from bench.peers import dbp as dbp_peers
from bench.peers import elko as messages
from bench.robust.good_peers import HANDSHAKE, ConsolePeer, frame, framed, http, query

VISIT_EVERY, VISIT_WITHIN = 0.1, 1.0
"""Seconds between two new connections, and in which each is to be answered."""


@attrs.frozen
class Visit:
    """The first words of a newcomer, and a part of the right answer."""

    opening: bytes
    answer: bytes

    def __call__(self, port: int) -> bool:
        """Connect, ask and go. Returns True for the right answer."""
        with socket.create_connection((traffic.HOST, port), VISIT_WITHIN) as sock:
            sock.sendall(self.opening)
            end, came = time.monotonic() + VISIT_WITHIN, b""
            while self.answer not in came:
                sock.settimeout(max(end - time.monotonic(), 0.001))
                if not (data := sock.recv(1 << 16)):
                    return False
                came += data
        return True


def shake_hands(port: int) -> bool:
    """Complete a TLS handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((traffic.HOST, port), VISIT_WITHIN) as sock, context.wrap_socket(sock):
        return True


def ask_by_udp(port: int) -> bool:
    """Send a DNS query from a new port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((traffic.HOST, port))
        sock.settimeout(VISIT_WITHIN)
        sock.send(query(1))
        return bool(sock.recv(4_096))


ZMTP = Visit(zmtp_peer.opening(), b"READY")

VISITS: Mapping[str, Callable[[int], bool]] = {
    "elko": Visit(messages.auth("visitor") + messages.PING, b"pong"),
    "director": Visit(
        messages.auth("visitor", "director") + messages.PING.replace(b'"broker"', b'"director"'), b"pong"
    ),
    "websocket": Visit(HANDSHAKE + frame(1, messages.auth("visitor")) + frame(1, messages.PING), b"pong"),
    "http": Visit(http("GET /connect"), b"sessionid"),
    "rtcp": Visit(b"start\n", b"start"),
    "console": Visit(ConsolePeer.COMMAND, b"pong"),
    "tls": shake_hands,
    "mc0": ZMTP,
    "dbp": Visit(zmtp_peer.opening() + dbp_peers.encoded(dbp_peers.request("nothing")), b"o_O"),
    "mtl": ZMTP,
    "mtl-data": ZMTP,
    "api": Visit(http("GET /v1/services/bank"), b" 200 "),
    "dns": Visit(framed(query(1)), b"\4bank"),
    "dns-udp": ask_by_udp,
}


def visitors(wire: str, port: int, seconds: float) -> float:
    """Visit a listener for so long. Returns the share of visits with an answer in time."""
    answered = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            answered.append(VISITS[wire](port))
        except OSError:
            answered.append(False)
        time.sleep(max(start + VISIT_EVERY - time.monotonic(), 0))
    return sum(answered) / len(answered)
