"""mc0 with CURVE from outside: who gets in, who does not, and what becomes of sessions when keys come and go."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import zmq

from broker.access import editing
from tests.access.users import ACCESS, ELSEWHERE, put, right
from tests.contract.strangers import secured
from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import (
    Client,
    Clients,
    Keys,
    brokerkeys,
    clients_of,
    configured,
    counters,
    identities,
    is_served,
    shown,
    whole_log,
)
from tests.patience import PATIENCE, until

HANDSHAKE = 0.3
"""Seconds of a handshake: who is not let in tries again after them."""

WEB = ("web1", "web2")

MC0 = f"""
secret_key_file = "keys/broker.private"
handshake = {HANDSHAKE}
{ACCESS}"""

RIGHTS = (
    ELSEWHERE + right("web*", "publish", "mc0") + right("web*", "subscribe", "mc0", "topic:nodes {user}", "topic:peace")
)
"""Peers without a user have none at mc0."""


@attrs.frozen
class Farm:
    """A daemon, and the keys of its clients in files, as `brokerkeys` makes them."""

    directory: Path
    daemon: Daemon

    def keys(self, name: str) -> Keys:
        """A pair, which is made if it is not there."""
        if not (self.directory / "keys" / f"{name}.private").exists():
            brokerkeys("new", name, "--dir", self.directory / "keys")
        return keys_in(self.directory, name)

    def allow(self, name: str) -> None:
        """Let that key in."""
        allow(self.directory, name)

    def disallow(self, name: str) -> None:
        """Let that key in no more."""
        editing.remove_user(str(self.directory / "users.toml"), name)


def keys_in(directory: Path, name: str) -> Keys:
    """Return the keys of a client, from the files in a directory."""
    words = [
        (directory / "keys" / file).read_bytes() for file in (f"{name}.public", f"{name}.private", "broker.public")
    ]
    return Keys(*map(bytes.strip, words))


def allow(directory: Path, name: str) -> None:
    """Make a user with the key of that name."""
    path = str(directory / "users.toml")
    editing.add_user(path, name)
    editing.add_key(path, name, keys_in(directory, name).public.decode())


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A farm that knows web1 and web2. In the end its daemon must have had no defect."""
    directory = tmp_path_factory.mktemp("curve")
    for name in ("broker", "web1", "web2"):
        brokerkeys("new", name, "--dir", directory / "keys")
    put(directory / "users.toml", RIGHTS)
    for name in WEB:
        allow(directory, name)
    with Daemon(directory, *configured(directory, MC0)) as daemon:
        daemon.wait_for(r"mc0 on \S+ \(curve\)")
        yield Farm(directory, daemon)
        daemon.signal(signal.SIGTERM)
        log = whole_log(daemon)
        assert "Traceback" not in log
        assert " critical " not in log


@pytest.fixture
def clients(farm: Farm) -> Iterator[Clients]:
    with clients_of(farm.daemon) as clients:
        yield clients


@pytest.fixture
def bystander(farm: Farm, clients: Clients) -> Client:
    return clients.subscribed(b"bystander", "peace", keys=farm.keys("web1"))


def refused(farm: Farm, reason: str) -> int:
    """Return the number of refusals for that reason."""
    return counters(farm.daemon)[f"mc0_refused.{reason}"]


# who gets in


def test_an_allowed_client_is_served_and_shown_with_its_key(farm: Farm, bystander: Client) -> None:
    is_served(bystander)
    [session] = shown(farm.daemon, "mc0 sessions web1")  # by the user
    assert session["identity"] == "bystander"
    assert (session["name"], session["key"]) == ("web1", farm.keys("web1").public.decode())


def test_rights_are_those_of_the_user_of_the_key(farm: Farm, clients: Clients) -> None:
    web2 = clients.subscribed(b"node", "nodes web2", keys=farm.keys("web2"))
    assert web2.ask("SUB|ID|s||nodes web1") == "ERROR|MESSAGE|web2 has no right to subscribe 'nodes web1' here|ID|s"


def test_a_waiting_client_gets_in_by_itself_when_its_key_is_allowed(farm: Farm, clients: Clients) -> None:
    keys = farm.keys("web3")
    newcomer = clients.new(b"newcomer", keys=keys)
    newcomer.say("SUB|ID|s||nodes web3")
    farm.daemon.wait_for(re.escape(f"mc0 peer 127.0.0.1 with key {keys.public.decode()}: key-not-allowed: "))
    assert newcomer.hears_nothing(0)
    farm.allow("web3")
    assert newcomer.hear() == "OK|ID|s"


@pytest.mark.long
def test_the_sessions_of_a_key_that_is_taken_away_end_and_begin_again_when_it_is_back(
    farm: Farm, clients: Clients, bystander: Client
) -> None:
    fired = clients.subscribed(b"fired", "peace", "nodes web2", keys=farm.keys("web2"))
    before = counters(farm.daemon)
    farm.disallow("web2")
    until(lambda: counters(farm.daemon)["mc0_sessions.revoked"] > before["mc0_sessions.revoked"])
    assert identities(farm.daemon, "fired") == []
    fired.say("PUT|TOPIC|peace||nobody hears it")
    until(lambda: refused(farm, "key-not-allowed") > before["mc0_refused.key-not-allowed"])
    is_served(bystander)
    assert fired.hears_nothing(0)
    farm.allow("web2")

    def back() -> bool:
        fired.say("NOOP|ID|back")
        return not fired.hears_nothing(0.1)

    until(back)
    assert fired.hear() == "OK|ID|back"
    assert identities(farm.daemon, "fired") == ["fired"]


def test_the_connection_of_a_key_that_is_taken_away_is_closed(farm: Farm, clients: Clients) -> None:
    farm.keys("web4")
    farm.allow("web4")
    fired = clients.new(b"fired too", keys=farm.keys("web4"))
    fired.say("SUB|ID|sub||peace")
    fired.let_in()
    assert fired.hear() == "OK|ID|sub"
    before = counters(farm.daemon)["mc0_sessions.revoked"]
    farm.disallow("web4")
    until(lambda: counters(farm.daemon)["mc0_sessions.revoked"] > before)
    fired.cut_off()


# who does not


def test_keys_of_others_are_let_in_while_the_anonymous_user_has_a_right(tmp_path: Path) -> None:
    brokerkeys("new", "broker", "--dir", tmp_path / "keys")
    server = (tmp_path / "keys" / "broker.public").read_bytes().strip()
    users = tmp_path / "users.toml"
    put(users, "nobody = true\n" + ELSEWHERE + right("anonymous", "publish subscribe", "mc0", "topic:p*"))
    with Daemon(tmp_path, *configured(tmp_path, MC0)) as daemon, clients_of(daemon) as clients:
        guest = clients.subscribed(b"guest", "p1", keys=Keys(*zmq.curve_keypair(), server))
        assert "a peer without a user has no right to publish 'other' here" in guest.ask("PUT|TOPIC|other|ID|1||x")
        assert guest.ask("PUT|TOPIC|p1|ID|2||x") == "MESSAGE|TOPIC|p1||x"
        assert guest.hear() == "OK|ID|2"
        put(users, "nobody = true\n" + ELSEWHERE)
        guest.cut_off()
        assert counters(daemon)["mc0_sessions.revoked"] == 1


def test_a_peer_that_loses_its_right_in_the_middle_of_a_message_is_closed(tmp_path: Path) -> None:
    brokerkeys("new", "broker", "--dir", tmp_path / "keys")
    users = tmp_path / "users.toml"
    put(users, "nobody = true\n" + ELSEWHERE + right("anonymous", "publish subscribe", "mc0", "topic:p*"))
    with Daemon(tmp_path, *configured(tmp_path, MC0)) as daemon:
        with socket.create_connection(("127.0.0.1", daemon.mc0_port()), PATIENCE) as sock:
            seal = secured(daemon, sock, b"endless")
            sock.setblocking(True)
            sock.sendall(seal([b"", b"SUB", b"ID", b"1", b"", b"p1"]))
            sock.sendall(b"\x02" + (900_000).to_bytes(8, "big") + b"\x07MESSAGE")

            def begun() -> bool:
                sock.sendall(bytes(50_000))
                return counters(daemon)["memory.input"] > 0

            until(begun)
            put(users, "nobody = true\n" + ELSEWHERE)
            with suppress(ConnectionError):
                while sock.recv(65_536):
                    pass
        until(lambda: counters(daemon)["memory.input"] == 0)
        assert counters(daemon)["mc0_sessions.revoked"] == 1


def test_a_client_without_keys_stays_out(farm: Farm, clients: Clients, bystander: Client) -> None:
    before = refused(farm, "handshake")
    plain = clients.new(b"plain")
    plain.say("PUT|TOPIC|peace|ID|p||x")
    until(lambda: refused(farm, "handshake") > before)
    is_served(bystander)
    assert plain.hears_nothing(0)


def test_after_a_stop_sessions_go_on_but_those_whose_key_was_taken_away(tmp_path: Path) -> None:
    for name in ("broker", "web1", "web2"):
        brokerkeys("new", name, "--dir", tmp_path / "keys")
    put(tmp_path / "users.toml", RIGHTS)
    for name in WEB:
        allow(tmp_path, name)
    options = configured(tmp_path, MC0)
    with Daemon(tmp_path, *options) as daemon:
        port = daemon.mc0_port()
        clients = clients_of(daemon)
        stays, leaves = (clients.subscribed(name.encode(), "peace", keys=keys_in(tmp_path, name)) for name in WEB)
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    editing.remove_user(str(tmp_path / "users.toml"), "web2")
    stays.cut_off()
    leaves.cut_off()
    options = configured(tmp_path, f'endpoint = "tcp://127.0.0.1:{port}"\n{MC0}')
    with Daemon(tmp_path, *options) as daemon, clients:
        stays.let_in()
        assert identities(daemon) == ["web1"]
        publisher = clients.new(b"publisher", keys=keys_in(tmp_path, "web1"))
        assert publisher.ask("PUT|TOPIC|peace|ID|p||x") == "OK|ID|p"
        assert stays.hear() == "MESSAGE|TOPIC|peace||x"


def test_without_a_users_file_a_client_that_makes_a_key_for_each_run_is_answered_every_time(tmp_path: Path) -> None:
    brokerkeys("new", "broker", "--dir", tmp_path / "keys")
    server = (tmp_path / "keys" / "broker.public").read_bytes().strip()
    options = configured(tmp_path, 'secret_key_file = "keys/broker.private"')
    with Daemon(tmp_path, *options) as daemon, clients_of(daemon) as clients:

        def run(number: int) -> None:
            client = clients.new(b"chattyClient 0", keys=Keys(*zmq.curve_keypair(), server))
            assert client.ask(f"CONNECT|ID|{number}|TTL|30000") == f"OK|ID|{number}"
            client.close()
            until(lambda: counters(daemon)["mc0_connections.closed"] > number)

        for number in range(3):
            run(number)
        assert counters(daemon)["mc0_refused.identity-taken"] == 0
