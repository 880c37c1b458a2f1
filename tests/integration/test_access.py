"""Users and rights of the real daemon, on real sockets: cross-user access, revocation, guesses, TLS, the audit log."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.access import users_document
from broker.access.passwords import MIN_ITERATIONS, of
from tests.access.users import put
from tests.config.certificates import certificate, revocation_list
from tests.integration.configurations import OFF
from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE, written

TOKEN = users_document.new_token()

USERS = f"""\
[[users]]
name = "ann"
passwords = ["{of("pencil", MIN_ITERATIONS).text()}"]
certificates = ["ann.example"]

[[users]]
name = "bob"
passwords = ["{of("crayon").text()}"]

[[users]]
name = "robot"
[[users.tokens]]
label = "ci"
hash = "{users_document.token_hash(TOKEN)}"

[[rights]]
users = ["ann"]
operations = ["*"]

[[rights]]
users = ["bob", "robot"]
operations = ["find", "offer"]
names = ["{{user}}-*"]
"""

CONFIG = f"""\
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"

[access]
file = "users.toml"

{OFF}"""


@contextmanager
def running(folder: Path, config: str = CONFIG, users: str = USERS) -> Iterator[Daemon]:
    put(folder / "users.toml", users)
    (folder / "x.toml").write_text(config)
    with Daemon(folder, "--config", "x.toml") as daemon:
        daemon.port()
        yield daemon


def login(daemon: Daemon, user: str, code: str, role: str = "client") -> Peer:
    auth = {"mode": "password", "code": code, **({"id": user} if user else {})}
    return daemon.connect(role, auth=auth, label=user)


def offer(peer: Peer, name: str) -> None:
    peer.send(to="client", op="willserve", services=[{"service": name, "hostport": "h:1"}])


def found(peer: Peer, name: str) -> Any:
    """The first descriptor of the answer to a find."""
    return peer.ask(to="client", op="find", service=name)["desc"][0]


# cross-user access


def test_a_user_finds_and_offers_no_names_of_others(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, login(daemon, "ann", "pencil") as ann, login(daemon, "bob", "crayon") as bob:
        offer(ann, "ann-bank")
        offer(bob, "bob-bank")
        ann.done()
        bob.done()
        assert found(ann, "bob-bank")["hostport"] == "h:1"
        assert "bob has no right to find 'ann-bank'" in found(bob, "ann-bank")["failure"]
        offer(bob, "ann-shop")
        assert "bob has no right to offer 'ann-shop'" in bob.receive()["msg"]
        assert found(ann, "ann-shop")["failure"] == "no such service"
        assert found(bob, "bob-bank")["hostport"] == "h:1"


def test_only_an_administrator_administers(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with login(daemon, "bob", "crayon", "admin") as bob:
            assert "may not be admin" in bob.receive()["msg"]
        with login(daemon, "ann", "pencil", "admin") as ann:
            assert ann.ask(to="admin", op="servicedesc")["op"] == "servicedesc"


def test_without_credentials_a_peer_has_no_rights_but_those_that_are_given(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.connect("client") as peer:
        assert "may not be client" in peer.receive()["msg"]
    public = '[[rights]]\nusers = ["anonymous"]\noperations = ["find"]\nnames = ["public-*"]\n'
    with running(tmp_path, users=USERS + public) as daemon, daemon.connect("client") as peer:
        assert found(peer, "public-x")["failure"] == "no such service"
        assert "no right to find 'bob-bank'" in found(peer, "bob-bank")["failure"]


def test_messages_behind_an_auth_wait_for_the_check_of_the_password(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.connect(None) as peer:
        for message in (
            {"to": "client", "op": "auth", "auth": {"mode": "password", "id": "bob", "code": "crayon"}},
            {"to": "client", "op": "willserve", "services": [{"service": "bob-x", "hostport": "h:2"}]},
            {"to": "client", "op": "find", "service": "bob-x"},
        ):
            peer.send(**message)
        peer.sock.shutdown(socket.SHUT_WR)
        # The end of input withdraws services, but not before the messages in front of it are handled.
        assert peer.receive()["desc"][0]["hostport"] == "h:2"
        peer.closed()


# revocation


@pytest.mark.parametrize(
    ("user", "code", "change"),
    [
        ("bob", "crayon", ('name = "bob"', 'name = "rob"')),
        ("bob", "crayon", (of("crayon").text()[:20], "")),
        ("", TOKEN, (users_document.token_hash(TOKEN), users_document.token_hash("other"))),
    ],
    ids=["user", "password", "token"],
)
def test_a_removed_credential_ends_its_connections_and_withdraws_its_services(
    tmp_path: Path, user: str, code: str, change: tuple[str, str]
) -> None:
    with running(tmp_path) as daemon, login(daemon, user, code) as peer, login(daemon, "ann", "pencil") as ann:
        name = f"{user or 'robot'}-bank"
        offer(peer, name)
        peer.done()
        assert found(ann, name)["hostport"] == "h:1"
        text = USERS.replace(*change)
        if user and change[1] == "":
            text = USERS.replace(USERS.split('name = "bob"\n')[1].split("\n")[0], "")
        put(tmp_path / "users.toml", text)
        assert "not valid any more" in peer.receive()["msg"]
        peer.closed()
        assert found(ann, name)["failure"] == "no such service"


def test_rights_that_are_taken_away_withdraw_services_and_keep_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, login(daemon, "bob", "crayon") as bob, login(daemon, "ann", "pencil") as ann:
        offer(bob, "bob-bank")
        offer(bob, "bob-shop")
        bob.done()
        put(tmp_path / "users.toml", USERS.replace('"{user}-*"', '"{user}-b*"'))
        daemon.wait_for("the users file changed")
        assert found(ann, "bob-shop")["failure"] == "no such service"
        assert found(ann, "bob-bank")["hostport"] == "h:1"
        bob.done()


def test_a_reload_takes_users_and_the_audit_log_from_other_files(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, login(daemon, "bob", "crayon") as bob, login(daemon, "ann", "pencil") as ann:
        bob.done()
        ann.done()
        put(tmp_path / "other.toml", USERS.replace("bob", "rob"))
        other = CONFIG.replace('"users.toml"', '"other.toml"\naudit = "other.jsonl"')
        (tmp_path / "x.toml").write_text(other)
        daemon.signal(signal.SIGHUP)
        assert "not valid any more" in bob.receive()["msg"]
        bob.closed()
        ann.done()
        with login(daemon, "rob", "crayon") as rob:
            rob.done()
        with login(daemon, "ann", "pencil", "admin") as admin:
            admin.send(to="admin", op="reinit", server="nobody")
            admin.done()
        (tmp_path / "x.toml").write_text(other.replace('file = "other.toml"', ""))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("restart needed: access.file: .*a users file comes or goes at a restart only")
        ann.done()
        (act,) = map(json.loads, written(tmp_path / "other.jsonl").splitlines())
    assert (act["user"], act["operation"]) == ("ann", "admin.reload")


# guesses


@pytest.mark.long
def test_a_thousand_guessed_passwords_are_harmless_to_others(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, login(daemon, "ann", "pencil") as ann:
        ann.done()
        port = daemon.port()
        guesses = [
            Peer(socket.create_connection(("127.0.0.1", port), PATIENCE, ("127.0.0.2", 0))) for _ in range(1_000)
        ]
        try:
            for guess in guesses:
                guess.send(to="client", op="auth", auth={"mode": "password", "id": "bob", "code": "guess"})
            # The connection that is logged in is served meanwhile, and another address logs in.
            ann.done()
            with login(daemon, "ann", "pencil") as good:
                good.done()
            for guess in guesses:
                assert guess.receive()["op"] == "debug"
                guess.closed()
        finally:
            for guess in guesses:
                guess.sock.close()
        with login(daemon, "ann", "pencil") as good:
            good.done()


# the console, and the audit log


class Console:
    """An operator at the console."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.text = ""

    def type(self, *lines: str) -> None:
        self.sock.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def until(self, text: str) -> str:
        """All that was printed until the text."""
        while text not in self.text:
            data = self.sock.recv(65_536)
            assert data, f"closed without {text!r}: {self.text}"
            self.text += data.decode()
        printed, self.text = self.text, ""
        return printed


@contextmanager
def console(daemon: Daemon) -> Iterator[Console]:
    with socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE) as sock:
        operator = Console(sock)
        operator.until(":")
        yield operator


def test_an_operator_logs_in_at_the_console_and_acts_are_audited(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with console(daemon) as operator:
            operator.type("login ann", "pencil", "version")
            operator.until("elkobroker ")
            operator.type("reinit all", "version")
            operator.until("elkobroker ")
        with login(daemon, "ann", "pencil", "admin") as ann:
            ann.send(to="admin", op="launch", name="nothing")
            ann.receive()
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    path = tmp_path / "state" / "audit.jsonl"
    acts = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(act["user"], act["method"], act["listener"], act["operation"], act["object"]) for act in acts] == [
        ("ann", "password", "console", "admin.reload", "all"),
        ("ann", "password", "elko listener 'main'", "admin.launch", "nothing"),
    ]
    assert {act["result"] for act in acts} == {"done"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_trace_shows_the_lines_of_the_console_without_credentials(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, login(daemon, "ann", "pencil"):
        with socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE) as tracer:
            tracer.sendall(b"login ann\r\npencil\r\ntrace peer 127.0.0.1\r\n")
            daemon.wait_for("trace of 127.0.0.1 for")
            with socket.create_connection(("127.0.0.1", daemon.console_port()), PATIENCE) as operator:
                operator.sendall(b"login ann\r\npencil\r\n")
                daemon.wait_for(r"trace in console \S+: Line \(hidden\)")
                daemon.wait_for(r"trace out console \S+: elkobroker console")
                operator.sendall(b'version\r\n{op:"auth",auth:{mode:"password",code:"x1y2"}}\r\n')
                daemon.wait_for(r"trace in console \S+: Line .*code:\(hidden\)")
        assert not any("pencil" in line or "x1y2" in line for line in daemon.log)


@pytest.mark.long
def test_the_console_is_for_those_with_a_right_to_it(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with console(daemon) as operator:
            operator.type("status")
            assert "type login NAME" in operator.until("type login NAME")
            operator.type("login bob", "crayon")
            operator.until("bob has no right to use the console")
        watcher = '[[rights]]\nusers = ["bob"]\noperations = ["view"]\n'
        put(tmp_path / "users.toml", USERS + watcher)
        daemon.wait_for("the users file changed")
        with console(daemon) as operator:
            operator.type("login bob", "crayon", "shutdown self=true")
            operator.until("bob has no right to admin.shutdown")
            put(tmp_path / "users.toml", USERS)
            operator.until("bob may not be admin any more")


# TLS

TLS = CONFIG.replace("tcp:0:", "tls:0:certificate={0}:key={1}{2}:")


def tls(daemon: Daemon, trusted: Path, client: tuple[Path, Path] | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = False
    if client is not None:
        context.load_cert_chain(*client)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", daemon.port()), PATIENCE))


def serial(peer: ssl.SSLSocket) -> object:
    """The number of the certificate that the broker showed."""
    shown = peer.getpeercert()
    assert shown is not None
    return shown["serialNumber"]


def swap(files: tuple[Path, Path], others: tuple[Path, Path]) -> None:
    for file, other in zip(files, others, strict=True):
        other.rename(file)


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "authority", days=100)


def test_a_certificate_is_swapped_at_a_reload_and_no_connection_drops(
    tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    files = certificate(tmp_path, "broker", days=50, issuer=authority)
    with running(tmp_path, TLS.format(*files, "")) as daemon, tls(daemon, authority[0]) as old:
        first = Peer(old)
        first.send(to="client", op="auth", auth={"mode": "password", "id": "ann", "code": "pencil"})
        first.done()
        swap(files, certificate(tmp_path, "next", days=50, issuer=authority))
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was reloaded")
        first.done()
        with tls(daemon, authority[0]) as new:
            shown = serial(new)
        assert shown != serial(old)
        # A bad one changes nothing.
        files[0].write_text("-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("the configuration was not reloaded: .*has no ")
        first.done()
        with tls(daemon, authority[0]) as still:
            assert serial(still) == shown


def test_a_client_certificate_of_another_authority_is_refused_in_the_handshake(
    tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    files = certificate(tmp_path, "broker", issuer=authority)
    ann = certificate(tmp_path, "ann.example", issuer=authority)
    stranger = certificate(tmp_path, "stranger", issuer=certificate(tmp_path, "other", days=100))
    with running(tmp_path, TLS.format(*files, f":ca={authority[0]}")) as daemon:
        for client in (stranger, None):
            with pytest.raises((ssl.SSLError, ConnectionError)), tls(daemon, authority[0], client) as refused:
                # With TLS 1.3, the client is notified with its first read.
                assert refused.recv(1)
        daemon.wait_for("peer 127.0.0.1: handshake: no TLS: certificate verify failed")
        with tls(daemon, authority[0], ann) as good:
            peer = Peer(good)
            peer.send(to="client", op="auth")
            offer(peer, "ann-bank")
            assert found(peer, "ann-bank")["hostport"] == "h:1"
            # Its name is removed from the users file.
            put(tmp_path / "users.toml", USERS.replace('"ann.example"', '"anna.example"'))
            assert "not valid any more" in peer.receive()["msg"]


def test_a_revoked_client_certificate_loses_its_connection_at_the_reload(
    tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    files = certificate(tmp_path, "broker", issuer=authority)
    ann = certificate(tmp_path, "ann.example", issuer=authority)
    bob = certificate(tmp_path, "bob.example", issuer=authority)
    crl = revocation_list(tmp_path / "crl.pem", authority)
    with (
        running(tmp_path, TLS.format(*files, f":ca={authority[0]}:crl={crl}")) as daemon,
        tls(daemon, authority[0], ann) as one,
        tls(daemon, authority[0], bob) as other,
    ):
        peers = Peer(one), Peer(other)
        for peer in peers:
            peer.send(to="client", op="auth", auth={"mode": "password", "id": "ann", "code": "pencil"})
            peer.done()
        revocation_list(crl, authority, ann[0])
        daemon.signal(signal.SIGHUP)
        with pytest.raises((ConnectionError, ssl.SSLError, EOFError)):
            peers[0].receive()
        peers[1].done()
        with pytest.raises((ssl.SSLError, ConnectionError)), tls(daemon, authority[0], ann) as refused:
            assert refused.recv(1)
