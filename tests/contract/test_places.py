"""Hostile peers that take all places of a door: the same attack against each door of a running broker.

A door is a listener of one protocol. Its honest newcomer speaks the protocol up to an answer; its hostile peers
connect, and send the beginning of a conversation, or begin sessions.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import attrs
import pytest

from broker.app.console import LIMITS
from tests.config.certificates import certificate
from tests.integration.daemon import Daemon, Peer, environment
from tests.integration.dbp_nodes import Nodes
from tests.integration.mc0_clients import Clients, counters
from tests.integration.mtl_peers import CANARY, Peers
from tests.patience import PATIENCE, until

HERE = "127.0.0.1"
TCP = f"tcp:0:interface={HERE}"

PLACES = 20
"""Places of each listener."""

HOSTILE = 60
"""Hostile peers, three for each place."""

CONFIG = f"""
[console]
endpoint = "{TCP}"
[mc0]
endpoint = "tcp://{HERE}:0"
connections = {PLACES}
handshake = 60.0
[dbp]
endpoint = "tcp://{HERE}:0"
beacon = []
connections = {PLACES}
handshake = 60.0
[mtl]
endpoint = "tcp://{HERE}:0"
connections = {PLACES}
handshake = 60.0
[dns]
enabled = true
endpoint = "{TCP}"
connections = {PLACES}
idle = 600.0
[http]
endpoint = "{TCP}"
connections = {PLACES}
[director]
enabled = true
[[director.listeners]]
name = "director"
endpoint = "{TCP}"
limits = {{ connections = {PLACES} }}
"""

LISTENER = """
[[elko.listeners]]
name = "{name}"
endpoint = "{endpoint}"
transport = "{transport}"
limits = {{ connections = {places} }}
"""


NOTIFIED = """
[[notify.rules]]
name = "file"
events = ["listener-full"]
command = ["sh", "-c", "cat > {file}.new && mv {file}.new {file}"]
"""


@attrs.frozen
class Door:
    """A listener: the log line with its port, the wire in counters, an honest newcomer, and what hostile ones send."""

    port: str
    wire: str
    honest: Callable[[Daemon, int], object]
    sends: bytes = b""


def _stream(port: int, source: str = HERE) -> socket.socket:
    return socket.create_connection((HERE, port), PATIENCE, (source, 0))


def _answer(stream: socket.socket, data: bytes, wanted: bytes) -> bytes:
    """Send, and read until the answer has come."""
    stream.sendall(data)
    got = b""
    while wanted not in got:
        piece = stream.recv(65_536)
        assert piece, (data, got)
        got += piece
    return got


def _message(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n\n"


AUTH, PING = _message(to="client", op="auth"), _message(to="client", op="ping", tag="here")
HELLO = AUTH + PING


def elko(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        _answer(stream, HELLO, b'"here"')


def director(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        _answer(stream, HELLO.replace(b'"client"', b'"director"'), b'"here"')


def tls(daemon: Daemon, port: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _stream(port) as plain, context.wrap_socket(plain) as stream:
        _answer(stream, HELLO, b'"here"')


def websocket(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        upgrade = (
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        frame = b"\x81" + bytes([0x80 | len(HELLO)]) + bytes(4) + HELLO
        _answer(stream, upgrade + frame, b'"here"')


def long_poll(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        session = json.loads(_answer(stream, _get("/connect"), b"}").partition(b"\r\n\r\n")[2])["sessionid"]
        body = b"POST /xmit/%s/1 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (session.encode(), len(HELLO))
        _answer(stream, body + HELLO, b'"2"')
        _answer(stream, _get(f"/select/{session}/1"), b"here")


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode()


def rtcp(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        _answer(stream, b"start\n", b"start ")
        _answer(stream, b"1 0\n" + AUTH + b"2 0\n" + PING, b'"here"')


def http(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        assert b"200 OK" in _answer(stream, _get("/healthz"), b'"ok"')


def console(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        _answer(stream, b"version\r\n", b"elkobroker 0")


QUERY = bytes.fromhex("0001 0100 0001 0000 0000 0000") + b"\4bank\7service\12elkobroker\0\0\1\0\1"


def dns(daemon: Daemon, port: int) -> None:
    with _stream(port) as stream:
        _answer(stream, struct.pack("!H", len(QUERY)) + QUERY, b"\4bank")


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
    "elko": Door(r"elko listener 'tcp' on \S+:(\d+) ", "elko", elko, b'{"to":"client",'),
    "tls": Door(r"elko listener 'tls' on \S+:(\d+) ", "elko", tls, b"\x16\x03\x01\x02\x00\x01"),
    "websocket": Door(r"elko listener 'websocket' on \S+:(\d+) ", "elko", websocket, b"GET / HTTP/1.1\r\n"),
    "long poll": Door(r"elko listener 'http' on \S+:(\d+) ", "elko", long_poll, b"GET /conn"),
    "long poll, sessions": Door(r"elko listener 'http' on \S+:(\d+) ", "elko", long_poll, _get("/connect") * 10),
    "rtcp": Door(r"elko listener 'rtcp' on \S+:(\d+) ", "elko", rtcp, b"sta"),
    "rtcp, sessions": Door(r"elko listener 'rtcp' on \S+:(\d+) ", "elko", rtcp, b"start\n"),
    "director": Door(r"director listener 'director' on \S+:(\d+) ", "director", director, b"{"),
    "console": Door(r"console on \S+:(\d+)", "console", console),
    "http": Door(r"http on \S+:(\d+) \(", "http", http, b"GET /v1/serv"),
    "mc0": Door(r"mc0 on tcp://\S+:(\d+) \(", "mc0", mc0, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "dbp": Door(r"dbp on tcp://\S+:(\d+) \(", "dbp", dbp, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "mtl": Door(r"mtl on tcp://\S+?:(\d+)\b", "mtl", mtl, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL"),
    "dns": Door(r"dns on \S+:(\d+) \(udp and tcp\)", "dns", dns, b"\0"),
}


def _configured(directory: Path) -> tuple[str, str]:
    public, private = certificate(directory, "broker")
    secure = f"tls:0:certificate={public}:key={private}:interface={HERE}"
    listeners = [
        LISTENER.format(name=name, transport="tcp" if name == "tls" else name, endpoint=endpoint, places=PLACES)
        for name, endpoint in (("tcp", TCP), ("tls", secure), ("websocket", TCP), ("http", TCP), ("rtcp", TCP))
    ]
    config = directory / "elkobroker.toml"
    config.write_text(CONFIG + "".join(listeners))
    return "--config", str(config)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("places")
    with Daemon(directory, *_configured(directory)) as running:
        yield running


def _port(daemon: Daemon, door: Door) -> int:
    return int(daemon.wait_for(door.port).group(1))


def _attack(daemon: Daemon, name: str, stack: ExitStack) -> None:
    """Take all places, several times over, and keep them."""
    door = DOORS[name]
    before = counters(daemon)[f"{door.wire}_accept.displaced"]
    for _ in range(HOSTILE if name != "console" else HOSTILE + LIMITS.connections):
        hostile = stack.enter_context(_stream(_port(daemon, door)))
        if door.sends:
            hostile.sendall(door.sends)
    until(lambda: counters(daemon)[f"{door.wire}_accept.displaced"] > before)


@pytest.mark.parametrize("name", DOORS)
def test_a_newcomer_is_served_beside_hostile_peers_that_take_all_places(daemon: Daemon, name: str) -> None:
    door = DOORS[name]
    with ExitStack() as stack:
        _attack(daemon, name, stack)
        for _ in range(5):
            door.honest(daemon, _port(daemon, door))


def _readiness(daemon: Daemon) -> Any:
    try:
        with urlopen(f"http://{HERE}:{daemon.http_port()}/readyz", timeout=PATIENCE) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


def _providing(port: int, source: str = HERE) -> Peer:
    """A server that offers a service: it gives way to nobody."""
    peer = Peer(_stream(port, source))
    peer.send(to="client", op="auth", label="server")
    peer.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
    peer.done()
    return peer


def test_peers_that_offer_something_stay_while_hostile_ones_come_and_go(daemon: Daemon) -> None:
    door = DOORS["elko"]
    with ExitStack() as stack:
        servers = [stack.enter_context(_providing(_port(daemon, door))) for _ in range(5)]
        _attack(daemon, "elko", stack)
        for server in servers:
            server.done()
        assert any("give way" in each["reason"] for each in _readiness(daemon)["degraded"])
        [row] = [
            each for each in _status(daemon)["listeners"] if (each.get("wire"), each.get("name")) == ("elko", "tcp")
        ]
        assert row["full"] is True


def _status(daemon: Daemon) -> Any:
    with urlopen(f"http://{HERE}:{daemon.http_port()}/v1/status", timeout=PATIENCE) as answer:
        return json.load(answer)


def test_a_listener_whose_peers_are_all_needed_refuses_newcomers_with_a_reason(tmp_path: Path) -> None:
    option, config = _configured(tmp_path)
    with open(config, "a") as file:
        file.write(NOTIFIED.format(file=tmp_path / "event"))
    with Daemon(tmp_path, option, config) as daemon, ExitStack() as stack:
        port = _port(daemon, DOORS["elko"])
        servers = [stack.enter_context(_providing(port)) for _ in range(PLACES)]
        with Peer(_stream(port)) as newcomer:
            assert "all places are taken" in newcomer.receive()["msg"]
            newcomer.closed()
        readiness = _readiness(daemon)
        assert readiness["ready"] is False
        [reason] = [each for each in readiness["reasons"] if each["what"] == "listener elko tcp"]
        assert "new ones are refused" in reason["reason"]
        assert counters(daemon)["elko_accept.refused"] == 1
        doctor = [sys.executable, "-m", "broker.brokerctl", "--url", f"http://{HERE}:{daemon.http_port()}", "doctor"]
        shown = subprocess.run(doctor, capture_output=True, text=True, timeout=PATIENCE, env=environment())
        assert "new ones are refused" in shown.stdout, shown
        until(lambda: counters(daemon)["notifications.sent"])
        assert json.loads((tmp_path / "event").read_text())["name"] == "listener elko tcp"
        for server in servers:
            server.done()
        servers.pop().sock.close()

        def served() -> bool:
            with Peer(_stream(port)) as peer:
                peer.send(to="client", op="auth")
                try:
                    return bool(peer.ask(to="error", op="ping", tag="in")["tag"] == "in")
                except (KeyError, OSError, EOFError):
                    return False

        until(served)
