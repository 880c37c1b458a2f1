"""Doors: every way to log in at the real daemon with a name and a password, or with a token.

A door is driven through `Door`: the same attack is made on each. A login returns `IN`, or all that the peer is shown of
the refusal.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
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
from tests.config.certificates import certificate
from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.configurations import TCP, listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.mc0_clients import Clients, Keys, brokerkeys
from tests.integration.mtl_peers import Peers, ends_in_order, peers_of
from tests.patience import PATIENCE

IN = "in"
"""The result of a login that succeeded."""

TOKEN = users_document.new_token()

CODE = "figleaf"
"""A token that a person chose: the code of a server."""

SPACED = "  zwei Wörter "
"""A password with blanks at both ends, which are a part of it."""

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
name = "dan"
passwords = ["{of(SPACED, MIN_ITERATIONS).text()}"]
[[users]]
name = "server"
[[users.tokens]]
label = "code"
hash = "{users_document.token_hash(CODE)}"
[[rights]]
users = ["ann", "bob", "cyd", "dan"]
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
def open_house(directory: Path, users: str = USERS, more: str = "", config: str = CONFIG) -> Iterator[House]:
    """Run the daemon, with ``more`` sections, which must have no defect in the end."""
    put(directory / "users.toml", users)
    (directory / "x.toml").write_text(config + more)
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

# by certificates and keys

SECRETS = ("broker", "ann", "stranger")
"""Names of pairs of CURVE keys. The user ann has the second one."""


@contextmanager
def open_keyed_house(directory: Path) -> Iterator[House]:
    """Run a daemon where users log in by client certificates and CURVE keys, beside a listener with passwords."""
    for name in SECRETS:
        brokerkeys("new", name, "--dir", directory / "keys")
    authority = certificate(directory, "authority", days=100)
    for name in SECRETS:
        certificate(directory, name, issuer=authority)
    files = ":".join(f"{key}={directory / name}" for key, name in _TLS_FILES.items())
    tls = f"tls:0:{files}:interface=127.0.0.1"
    config = f"""\
{listener("main")}{listener("tls", endpoint=tls)}{listener("main", endpoint=tls, of="director")}[director]
enabled = true
[console]
endpoint = "{tls}"
[http]
endpoint = "{tls}"
[access]
file = "users.toml"
[dbp]
enabled = false
[mc0]
endpoint = "tcp://127.0.0.1:0"
secret_key_file = "keys/broker.private"
[mtl]
endpoint = "tcp://127.0.0.1:0"
secret_key_file = "keys/broker.private"
"""
    ann = f'certificates = ["ann"]\nkeys = ["{_curve_keys(directory, "ann").public.decode()}"]\n'
    put(directory / "users.toml", USERS.replace('name = "ann"\n', f'name = "ann"\n{ann}', 1))
    file = directory / "x.toml"
    file.write_text(config)
    with Daemon(directory, "--config", str(file)) as daemon:
        with peers_of(daemon) as mtl:
            yield House(daemon, mtl)
        ends_in_order(daemon)


_TLS_FILES = {"certificate": "broker.cert.pem", "key": "broker.key.pem", "ca": "authority.cert.pem"}


def _curve_keys(directory: Path, name: str) -> Keys:
    files = (f"{name}.public", f"{name}.private", "broker.public")
    return Keys(*((directory / "keys" / file).read_bytes().strip() for file in files))


def _tls(house: House, line: str, name: str, source: str, sent: bytes, wanted: bytes) -> str:
    """The result of a request over TLS: `IN` if the answer has that piece."""
    directory = house.daemon.directory
    context = ssl.create_default_context(cafile=str(directory / _TLS_FILES["ca"]))
    context.check_hostname = False
    context.load_cert_chain(directory / f"{name}.cert.pem", directory / f"{name}.key.pem")
    port = int(house.daemon.wait_for(line).group(1))
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))
    with context.wrap_socket(plain) as stream:
        stream.sendall(sent)
        got = b""
        while wanted not in got:
            piece = stream.recv(65_536)
            got += piece
            if not piece or b'"error"' in got or b"error: " in got or b" 401 " in got:
                return got.decode()
    return IN


def _auth_and_ping(role: str) -> bytes:
    return b"".join(json.dumps({"to": role, "op": op}).encode() + b"\n\n" for op in ("auth", "ping"))


def elko_certificate(house: House, user: str, secret: str, source: str) -> str:
    """Elko over TLS."""
    return _tls(house, r"elko listener 'tls' on \S+:(\d+) ", user, source, _auth_and_ping("client"), b'"pong"')


def director_certificate(house: House, user: str, secret: str, source: str) -> str:
    """The Elko Director over TLS."""
    return _tls(house, r"director listener 'main' on \S+:(\d+) ", user, source, _auth_and_ping("director"), b'"pong"')


def console_certificate(house: House, user: str, secret: str, source: str) -> str:
    """The console over TLS."""
    return _tls(house, r"console on \S+:(\d+)", user, source, b"version\r\nquit\r\n", b"elkobroker 0")


def http_certificate(house: House, user: str, secret: str, source: str) -> str:
    """HTTP over TLS."""
    request = b"GET /v1/services HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    return _tls(house, r"http on \S+:(\d+) \(", user, source, request, b" 200 OK")


def mc0_key(house: House, user: str, secret: str, source: str) -> str:
    """mc0 over CURVE."""
    return _curve(house, f"tcp://127.0.0.1:{house.daemon.mc0_port()}", user, source)


def mtl_key(house: House, user: str, secret: str, source: str) -> str:
    """MTL over CURVE."""
    return _curve(house, house.mtl.address, user, source)


def _curve(house: House, address: str, name: str, source: str) -> str:
    with Clients(address.replace("://", f"://{source}:0;")) as clients:
        client = clients.new(keys=_curve_keys(house.daemon.directory, name))
        return IN if client.is_let_in() else "refused"


KEYED: dict[str, Door] = {
    each.__name__: each
    for each in (elko_certificate, director_certificate, console_certificate, http_certificate, mc0_key, mtl_key)
}
"""The doors of `open_keyed_house` where a certificate or key is a user, by name. They take no secret."""

TOKENS = ("elko", "websocket", "long_poll", "rtcp", "director", "console", "basic")
"""Those that take a token, too."""
