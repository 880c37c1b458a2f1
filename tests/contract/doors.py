"""Doors: every way to log in at the real daemon with a name and a password, or with a token.

A door is driven through `Door`: the same attack is made on each. A login returns `IN`, or all that the peer is shown of
the refusal.
"""

from __future__ import annotations

import http.client
import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import attrs
from websockets.sync.client import connect

from broker.access import users_document
from broker.access.passwords import MIN_ITERATIONS, of
from tests.access.users import put
from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.configurations import TCP, listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.mtl_peers import Peers, ends_in_order, peers_of
from tests.patience import PATIENCE

IN = "in"
"""The result of a login that succeeded."""

TOKEN = users_document.new_token()

CODE = "figleaf"
"""A token that a person chose: the code of a server."""

USERS = f"""\
[[users]]
name = "ann"
passwords = ["{of("pencil", MIN_ITERATIONS).text()}"]
[[users]]
name = "bob"
passwords = ["{of("crayon", MIN_ITERATIONS).text()}", "{of("chalk", MIN_ITERATIONS).text()}"]
[[users.tokens]]
label = "ci"
hash = "{users_document.token_hash(TOKEN)}"
[[users]]
name = "cyd"
passwords = ["{of("eraser", MIN_ITERATIONS).text()}"]
[[users]]
name = "server"
[[users.tokens]]
label = "code"
hash = "{users_document.token_hash(CODE)}"
[[rights]]
users = ["ann", "bob", "cyd"]
operations = ["*"]
[[rights]]
users = ["anonymous", "server"]
operations = ["find"]
listeners = ["elko listener 'coded'", "elko listener 'open'", "http"]
names = ["x", "secretive"]
"""

CONFIG = (
    listener("main")
    + listener("web", 'transport = "websocket"')
    + listener("poll", 'transport = "http"', "limits = { http_select_wait = 1 }")
    + listener("rtcp", 'transport = "rtcp"')
    + listener("coded")
    + listener("open")
    + listener("main", of="director")
    + f"""\
[director]
enabled = true
[http]
endpoint = "{TCP}"
[mtl]
endpoint = "tcp://127.0.0.1:0"
plain = true
[access]
file = "users.toml"
[mc0]
enabled = false
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
"""
)


@attrs.define
class House:
    """The daemon with all doors."""

    daemon: Daemon
    mtl: Peers
    _sources: Iterator[int] = attrs.field(factory=lambda: count(2))

    def source(self) -> str:
        """An address that nothing came from yet."""
        return f"127.9.0.{next(self._sources)}"


@contextmanager
def open_house(directory: Path, users: str = USERS, more: str = "") -> Iterator[House]:
    """Run the daemon, with ``more`` sections, which must have no defect in the end."""
    put(directory / "users.toml", users)
    (directory / "x.toml").write_text(CONFIG + more)
    with Daemon(directory, "--config", "x.toml") as daemon:
        with peers_of(daemon) as mtl:
            daemon.port("coded")
            yield House(daemon, mtl)
        ends_in_order(daemon)


class Door(Protocol):
    """One way to log in, from an address of this machine."""

    def __call__(self, house: House, user: str, secret: str, source: str) -> str:
        """Log in by a password; without a user, by a token."""


def _auth(user: str, secret: str) -> dict[str, str]:
    return {"mode": "password", "code": secret, **({"id": user} if user else {})}


def _told(answer: Any) -> str:
    """The result of an `auth` with a ping behind it."""
    return IN if answer["op"] == "pong" else str(answer["msg"])


def _tcp(port: int, role: str, user: str, secret: str, source: str) -> str:
    with Peer(socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))) as peer:
        peer.send(to=role, op="auth", auth=_auth(user, secret))
        peer.send(to=role, op="ping")
        return _told(peer.receive())


def elko(house: House, user: str, secret: str, source: str) -> str:
    """Elko over TCP."""
    return _tcp(house.daemon.port(), "client", user, secret, source)


def coded(house: House, user: str, secret: str, source: str) -> str:
    """Elko, by a token that a person chose."""
    return _tcp(house.daemon.port("coded"), "client", "", CODE if secret in ("pencil", "crayon") else secret, source)


def director(house: House, user: str, secret: str, source: str) -> str:
    """The Elko Director."""
    port = int(house.daemon.wait_for(r"director listener '\S+' on \S+:(\d+) ").group(1))
    return _tcp(port, "director", user, secret, source)


def websocket(house: House, user: str, secret: str, source: str) -> str:
    """Elko over WebSocket."""
    address = f"ws://127.0.0.1:{house.daemon.port('web')}/"
    with connect(address, proxy=None, source_address=(source, 0)) as peer:
        # One frame: the broker may close the connection after the first message.
        auth = json.dumps({"to": "client", "op": "auth", "auth": _auth(user, secret)})
        peer.send(auth + '{"to":"client","op":"ping"}')
        return _told(json.loads(peer.recv(PATIENCE)))


def long_poll(house: House, user: str, secret: str, source: str) -> str:
    """Elko over HTTP."""
    peer = HttpPeer(house.daemon.port("poll"), "/", source=source)
    try:
        peer.send(to="client", op="auth", auth=_auth(user, secret))
        body = b'{"to":"client","op":"ping"}'
        # A session that was refused is gone.
        peer.request(f"xmit/{peer.session}/{peer.sent}", body)
        return _told(peer.receive()[0])
    finally:
        peer.connection.close()


def rtcp(house: House, user: str, secret: str, source: str) -> str:
    """Elko over RTCP."""
    with RtcpPeer(house.daemon.port("rtcp"), source=source) as peer:
        peer.send(to="client", op="auth", auth=_auth(user, secret))
        peer.send(to="client", op="ping")
        return _told(peer.receive())


def console(house: House, user: str, secret: str, source: str) -> str:
    """The console."""
    lines = f"login {user}\r\n{secret}\r\n" if user else f"token {secret}\r\n"
    with socket.create_connection(("127.0.0.1", house.daemon.console_port()), PATIENCE, (source, 0)) as sock:
        sock.sendall(lines.encode())
        text = ""
        while True:
            data = sock.recv(65_536).decode()
            text += data
            if "elkobroker console" in text:
                return IN
            if not data or ("error: " in text and text.endswith("\n")):
                return text


def basic(house: House, user: str, secret: str, source: str) -> str:
    """HTTP, by Basic or Bearer."""
    pair = b64encode(f"{user}:{secret}".encode()).decode()
    connection = http.client.HTTPConnection("127.0.0.1", house.daemon.http_port(), PATIENCE, (source, 0))
    try:
        headers = {"Authorization": f"Basic {pair}" if user else f"Bearer {secret}"}
        connection.request("GET", "/v1/services/x", headers=headers)
        answer = connection.getresponse()
        about = json.loads(answer.read())
        if answer.status == 200:
            return IN
        shown = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("date", "x-request-id", "content-length")
        }
        return json.dumps([answer.status, shown, about | {"request_id": ""}])
    finally:
        connection.close()


def _mtl(house: House, mechanism: str, user: str, secret: str, source: str) -> str:
    peer = house.mtl.control(source=source)
    try:
        assert peer.open().code == "401"
        reply = peer.plain(user, secret) if mechanism == "PLAIN" else peer.scram(user, secret)
        return IN if reply.code == "201" else f"{reply.code} {reply.body}"
    finally:
        peer.close()


def mtl_plain(house: House, user: str, secret: str, source: str) -> str:
    """MTL by PLAIN."""
    return _mtl(house, "PLAIN", user, secret, source)


def mtl_scram(house: House, user: str, secret: str, source: str) -> str:
    """MTL by SCRAM-SHA-256."""
    return _mtl(house, "SCRAM-SHA-256", user, secret, source)


NAMED: dict[str, Door] = {
    each.__name__: each for each in (elko, websocket, long_poll, rtcp, director, console, basic, mtl_plain, mtl_scram)
}
"""The doors with users, by name."""

DOORS: dict[str, Door] = {**NAMED, "coded": coded}
"""All doors with a secret that can be guessed."""

TOKENS = ("elko", "websocket", "long_poll", "rtcp", "director", "console", "basic")
"""Those that take a token, too."""
