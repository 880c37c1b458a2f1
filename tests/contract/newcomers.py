"""Doors: the listeners of a running broker by protocol, with an honest newcomer and the first bytes of a hostile one.

The honest newcomer speaks the protocol up to an answer.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping

import attrs

from tests.config.certificates import unverified
from tests.integration.daemon import Daemon
from tests.integration.dbp_nodes import Nodes
from tests.integration.mc0_clients import Clients
from tests.integration.mtl_peers import CANARY, Peers
from tests.patience import PATIENCE
from tests.wires.elko.transports.virtual_links import HANDSHAKE, masked

HERE = "127.0.0.1"


@attrs.frozen
class Door:
    """A listener: the log line with its port, the wire in counters, an honest newcomer, and what hostile ones send."""

    line: str
    wire: str
    honest: Callable[[Daemon, int], object]
    sends: bytes = b""

    def port(self, daemon: Daemon) -> int:
        """The TCP port, once it is open."""
        return int(daemon.wait_for(self.line).group(1))


def connected(port: int, source: str = HERE) -> socket.socket:
    """A connection from an address of this machine."""
    return socket.create_connection((HERE, port), PATIENCE, (source, 0))


def answered(stream: socket.socket, data: bytes, wanted: bytes) -> bytes:
    """Send, and read until the answer has come."""
    stream.sendall(data)
    got = b""
    while wanted not in got:
        piece = stream.recv(65_536)
        assert piece, (data, got)
        got += piece
    return got


def elko_message(words: Mapping[str, object]) -> bytes:
    """One message of Elko, to the client role unless it names another."""
    return json.dumps({"to": "client", **words}).encode() + b"\n\n"


AUTH, PING = elko_message({"op": "auth"}), elko_message({"op": "ping", "tag": "here"})
HELLO = AUTH + PING


def elko(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, HELLO, b'"here"')


def director(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, HELLO.replace(b'"client"', b'"director"'), b'"here"')


def tls(daemon: Daemon, port: int) -> None:
    with connected(port) as plain, unverified().wrap_socket(plain) as stream:
        answered(stream, HELLO, b'"here"')


def websocket(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, HANDSHAKE + masked(0x81, HELLO), b'"here"')


def long_poll(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        session = json.loads(answered(stream, get("/connect"), b"}").partition(b"\r\n\r\n")[2])["sessionid"]
        body = b"POST /xmit/%s/1 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (session.encode(), len(HELLO))
        answered(stream, body + HELLO, b'"2"')
        answered(stream, get(f"/select/{session}/1"), b"here")


def get(path: str) -> bytes:
    """One request of HTTP."""
    return f"GET {path} HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode()


def rtcp(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, b"start\n", b"start ")
        answered(stream, b"1 0\n" + AUTH + b"2 0\n" + PING, b'"here"')


def http(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        assert b"200 OK" in answered(stream, get("/healthz"), b'"ok"')


def console(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, b"version\r\n", b"elkobroker 0")


QUERY = bytes.fromhex("0001 0100 0001 0000 0000 0000") + b"\4bank\7service\12elkobroker\0\0\1\0\1"


def dns(daemon: Daemon, port: int) -> None:
    with connected(port) as stream:
        answered(stream, struct.pack("!H", len(QUERY)) + QUERY, b"\4bank")


def mc0(daemon: Daemon, port: int) -> None:
    with Clients(f"tcp://{HERE}:{port}") as clients:
        assert clients.new().ask("NOOP|ID|x") == "OK|ID|x"


def dbp(daemon: Daemon, port: int) -> None:
    with Nodes(daemon) as nodes:
        assert "Error" in nodes.dealer().find("nothing")


def mtl(daemon: Daemon, port: int) -> None:
    address = f"tcp://{HERE}:{port}"
    with Peers(address, address) as peers:
        assert peers.control().ask(CANARY, {}).code == "501", "it is no command, but it is answered"


DOORS = {
    "elko": Door(r"elko listener 'main' on \S+:(\d+) ", "elko", elko, b'{"to":"client",'),
    "tls": Door(r"elko listener 'tls' on \S+:(\d+) ", "elko", tls, b"\x16\x03\x01\x02\x00\x01"),
    "websocket": Door(r"elko listener 'websocket' on \S+:(\d+) ", "elko", websocket, b"GET / HTTP/1.1\r\n"),
    "long poll": Door(r"elko listener 'http' on \S+:(\d+) ", "elko", long_poll, b"GET /conn"),
    "rtcp": Door(r"elko listener 'rtcp' on \S+:(\d+) ", "elko", rtcp, b"sta"),
    "director": Door(r"director listener 'director' on \S+:(\d+) ", "director", director, b"{"),
    "console": Door(r"console on \S+:(\d+)", "console", console),
    "http": Door(r"http on \S+:(\d+) \(", "http", http, b"GET /v1/serv"),
    "mc0": Door(r"mc0 on tcp://\S+:(\d+) \(", "mc0", mc0, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "dbp": Door(r"dbp on tcp://\S+:(\d+) \(", "dbp", dbp, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "mtl": Door(r"mtl on tcp://\S+?:(\d+)\b", "mtl", mtl, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "dns": Door(r"dns on \S+:(\d+) \(udp and tcp\)", "dns", dns, b"\0"),
}
"""All doors, by name."""
