"""Authentication over MTL, from outside: SASL, rules, and rights that are taken away. Both flows are on one socket.

The file is longer than others: its tests share one daemon, which is expensive to start.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import pytest
import zmq

from broker.access import editing
from tests.access.users import ELSEWHERE, give_password, put, right
from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import Keys, brokerkeys, counters, shown
from tests.integration.mtl_peers import (
    CANARY,
    PING,
    PONG,
    Bare,
    Content,
    Control,
    Flow,
    Peers,
    Reply,
    Response,
    Scram,
    challenge,
    configured,
    ends_in_order,
    peers_of,
    short,
)
from tests.patience import until
from tests.ports import free_port

HEARTBEAT = 2.0
"""Seconds. A reader that does not answer during a login lives for three of them, and a login takes long on a busy
machine; the test of silence takes as long."""

LEASE = 1.0
"""Seconds in which a lease must be used here."""

FLOWS = 20
"""Leases of one user."""

PASSWORD = "correct horse"

RIGHTS = (
    ELSEWHERE
    + right("alice carol dave erin", "*", "mtl mtl?private")
    + right("bob", "subscribe", "mtl", "topic:news *", "queue:{user}")
    + right("bob", "publish", "mtl", "topic:news {user}", "queue:*")
    + right("bob", "offer", "mtl", "bob-*")
)

SASL = """
endpoint = "tcp://127.0.0.1:{port}"
data_port = {port}
heartbeat = {heartbeat}
lease = {lease}
window = 3
flows = {flows}
hosts = ["/", "private"]
[access]
file = "users.toml"
"""


@attrs.define
class House:
    """A daemon that requires authentication."""

    directory: Path
    daemon: Daemon
    port: int
    _sources: Iterator[int] = attrs.field(factory=lambda: count(2))

    @property
    def users(self) -> Path:
        """The file of users."""
        return self.directory / "users.toml"

    def source(self) -> str:
        """An address that nobody has failed from."""
        return f"127.0.0.{next(self._sources)}"

    def configure(self) -> str:
        """Write the configuration."""
        return configured(self.directory, SASL.format(port=self.port, heartbeat=HEARTBEAT, lease=LEASE, flows=FLOWS))

    def permit(self, before: str, after: str) -> None:
        """Change the users file."""
        put(self.users, self.users.read_text().replace(before, after))


def add(directory: Path, name: str, password: str = PASSWORD) -> None:
    """Make a user with a password, or give them another one."""
    give_password(directory / "users.toml", name, password)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One for many tests; in the end its daemon must have had no defect."""
    directory = tmp_path_factory.mktemp("sasl")
    put(directory / "users.toml", RIGHTS)
    for name in ("alice", "bob", "carol", "dave", "erin", "stranger"):
        add(directory, name)
    house = House(directory, None, free_port())  # type: ignore[arg-type]
    with Daemon(directory, "--config", house.configure()) as house.daemon:
        house.daemon.wait_for(r"mtl on \S+ \(data \S+; null\)")
        yield house
        assert PASSWORD not in ends_in_order(house.daemon)


@pytest.fixture
def peers(house: House) -> Iterator[Peers]:
    with peers_of(house.daemon) as peers:
        yield peers


def opened(house: House, peers: Peers, **options: Any) -> Control:
    """A peer that has to say who it is, from an address of its own."""
    control = peers.control(source=house.source(), **options)
    assert control.open().code == "401"
    return control


def let_in(house: House, peers: Peers, user: str, profile: str = "test") -> Control:
    """A peer that is a user."""
    control = opened(house, peers)
    assert control.plain(user, PASSWORD).code == "201"
    assert control.profile(profile).code == "200"
    return control


def leased(peers: Peers, control: Control, side: str, *resources: str) -> Flow:
    """A flow with a lease of that peer, and what it has summoned."""
    flow = peers.flow()
    assert flow.lease(control.token(side, *resources)) == "200"
    for name in resources if side == "Reader" else ():
        assert flow.summon(name) == "200"
    return flow


# SASL


def test_A02_A04_who_has_to_say_who_it_is_hears_how(peers: Peers) -> None:
    reply = peers.control().open()
    assert reply.code == "401"
    assert reply.body == {"status": "Unauthorized", "mechanisms": ["SCRAM-SHA-256", "PLAIN"]}


def test_A05_A12_nothing_else_is_done_before(house: House, peers: Peers) -> None:
    def all_refused() -> None:
        for command in ("Profile", "Reader", "Writer"):
            reply = control.ask(f"Connection.{command}", {"profile": "test", "resources": []})
            assert (reply.code, reply.body["mechanisms"]) == ("401", ["SCRAM-SHA-256", "PLAIN"])

    control = opened(house, peers)
    all_refused()
    exchange = Scram("alice", PASSWORD)
    first = control.authorize("SCRAM-SHA-256", exchange.first())
    all_refused()
    last = control.authorize("SCRAM-SHA-256", exchange.final(challenge(first)))
    exchange.proved_by(challenge(last))
    all_refused()
    assert control.authorize("SCRAM-SHA-256", b"").code == "201"
    assert control.profile("test").code == "200"


def test_A06_A08_A19_plain_is_done_at_once(house: House, peers: Peers) -> None:
    for name in ("PLAIN", "plain"):
        control = opened(house, peers)
        reply = control.authorize(name, f"\0alice\0{PASSWORD}".encode())
        assert (reply.code, reply.body["status"]) == ("201", "Ready")
        assert "test" in reply.body["profiles"]
    control = opened(house, peers)
    assert control.authorize("PLAIN", f"alice\0alice\0{PASSWORD}".encode()).code == "201"


def test_A06_A07_A08_scram_is_done_in_three_steps_and_proves_the_broker(house: House, peers: Peers) -> None:
    for kind in (zmq.DEALER, zmq.REQ):
        control = opened(house, peers, kind=kind)
        assert control.scram("alice", PASSWORD).code == "201"
    assert control.scram("bob", PASSWORD).code == "201", "and then as somebody else"


def test_A07_who_sends_no_initial_response_is_asked_for_one(house: House, peers: Peers) -> None:
    control = opened(house, peers)
    assert challenge(control.authorize("PLAIN", None)) == b""
    assert control.plain("alice", PASSWORD).code == "201"
    bare = opened(house, peers)
    assert challenge(bare.ask("Connection.Authorize", {"mechanism": "SCRAM-SHA-256"})) == b""
    assert bare.scram("alice", PASSWORD).code == "201"


def test_A09_wrong_passwords_and_unknown_users_look_alike(house: House, peers: Peers) -> None:
    def answers(user: str, password: str) -> list[Reply]:
        control = opened(house, peers)
        exchange = Scram(user, password)
        first = control.authorize("SCRAM-SHA-256", exchange.first())
        wrong = control.authorize("SCRAM-SHA-256", exchange.final(challenge(first)))
        plain = control.plain(user, password)
        assert control.profile("test").code == "401"
        assert control.plain("alice", PASSWORD).code == "201"
        return [Reply(first.code, {}), wrong, plain]

    wrong = answers("alice", "wrong")
    assert wrong == answers("nobody", PASSWORD) == answers("alice ", PASSWORD)
    assert [reply.code for reply in wrong] == ["402", "401", "401"]
    salts = [challenge(opened(house, peers).authorize("SCRAM-SHA-256", b"n,,n=nobody,r=x")) for _ in range(2)]
    assert salts[0].partition(b",s=")[2] == salts[1].partition(b",s=")[2], "though there is nobody who has it"


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS", "GSSAPI", "", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS"])
def test_A10_a_mechanism_that_is_not_offered_is_answered_by_those_that_are(
    house: House, peers: Peers, mechanism: str
) -> None:
    control = opened(house, peers)
    reply = control.authorize(mechanism, b"")
    assert (reply.code, reply.body["mechanisms"]) == ("401", ["SCRAM-SHA-256", "PLAIN"])
    assert control.plain("alice", PASSWORD).code == "201"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"mechanism": None, "response": ""},
        {"mechanism": 1, "response": ""},
        {"response": "AGFsaWNlAHg="},
        {"mechanism": "PLAIN", "response": 1},
        {"mechanism": "PLAIN", "response": ["AGFsaWNlAHg="]},
        {"mechanism": "PLAIN", "response": "AGFsaWNlAHg"},
        {"mechanism": "PLAIN", "response": "****"},
        {"mechanism": "PLAIN", "response": "AGFs aWNlAHg="},
        {"mechanism": "PLAIN", "response": "é"},
        [],
    ],
)
def test_A11_an_authorize_with_other_members_is_refused_and_changes_nothing(
    house: House, peers: Peers, body: object
) -> None:
    control = let_in(house, peers, "alice")
    assert control.ask("Connection.Authorize", body).code == "400"
    assert control.lease("Reader").code == "202"


@pytest.mark.parametrize("response", [b"", b"alice", b"\0alice", b"\0\0x", b"\xff\0a\0b", b"a\0b\0c\0d", b"x" * 2_000])
def test_A11_a_response_that_is_none_of_the_mechanism_fails(house: House, peers: Peers, response: bytes) -> None:
    control = opened(house, peers)
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        assert control.authorize(mechanism, response).code == "401"
    assert control.plain("alice", PASSWORD).code == "201"


def test_A13_who_authenticates_again_keeps_what_it_had_if_it_succeeds(house: House, peers: Peers) -> None:
    control = let_in(house, peers, "alice")
    reader = leased(peers, control, "Reader", "resource")
    writer = leased(peers, control, "Writer")
    assert control.scram("alice", PASSWORD).code == "201"
    writer.write(b"x")
    assert reader.content().body == b"x"
    assert control.plain("alice", "wrong").code == "401"
    assert control.lease("Reader").code == "401"
    assert reader.dismiss("resource") == "403"
    sequence = writer.write(b"x")
    assert writer.receive() == Response(sequence, "403")


def test_A16_a_virtual_host_that_is_not_for_a_user_is_as_one_that_is_not_there(house: House, peers: Peers) -> None:
    replies = []
    for host in ("private", "nowhere"):
        control = peers.control(source=house.source())
        assert control.open(host).code == "401"
        replies.append(control.plain("bob", PASSWORD))
    assert replies[0] == replies[1]
    assert replies[0].code == "403"
    control = peers.control(source=house.source())
    assert control.open("private").code == "401"
    assert control.plain("alice", PASSWORD).code == "201"


# rights that are taken away


def test_A21_who_is_removed_is_out(house: House, peers: Peers) -> None:
    control = let_in(house, peers, "carol")
    reader = leased(peers, control, "Reader", "resource")
    alice = leased(peers, let_in(house, peers, "alice"), "Reader", "resource")
    removing = Thread(target=editing.remove_user, args=(str(house.users), "carol"))
    removing.start()  # which takes longer than somebody may be silent here

    def is_out() -> bool:
        reader.lives()
        alice.lives()
        return control.profile("test").code == "401"

    until(is_out)
    removing.join()
    assert reader.dismiss("resource") == "403"
    assert alice.dismiss("resource") == "200"
    assert control.plain("carol", PASSWORD).code == "401"


def test_A21_so_is_who_gets_another_password(house: House, peers: Peers) -> None:
    control = let_in(house, peers, "dave")
    lease = control.token("Writer", "resource")
    add(house.directory, "dave", "another")
    house.daemon.signal(signal.SIGHUP)  # or it would take up to two seconds
    until(lambda: control.profile("test").code == "401")
    assert peers.flow().lease(lease) == "403", "though it was given before"
    assert control.scram("dave", PASSWORD).code == "401"
    assert control.scram("dave", "another").code == "201"


def test_A21_rights_that_change_are_taken_away(house: House, peers: Peers) -> None:
    control = let_in(house, peers, "bob", "topic")
    flow = leased(peers, control, "Reader", "news today")
    alice = let_in(house, peers, "alice")
    house.permit('"topic:news *"', '"topic:news"')
    until(lambda: control.profile("topic").code == "401")
    assert flow.dismiss("news today") == "403"
    assert alice.profile("topic").code == "200", "whose rights are the same"
    assert control.plain("bob", PASSWORD).code == "201"
    assert control.profile("topic").code == "200"
    assert control.lease("Reader", "news today").code == "403"
    house.permit('"topic:news"', '"topic:news *"')
    until(lambda: control.profile("topic").code == "401")


# rights


@pytest.mark.parametrize(
    ("profile", "side", "resource", "code"),
    [
        ("topic", "Reader", "news today", "202"),
        ("topic", "Reader", "weather", "403"),
        ("topic", "Writer", "news bob", "202"),
        ("topic", "Writer", "news alice", "403"),
        ("topic", "Writer", "elkobroker.services", "403"),
        ("queue", "Reader", "bob", "202"),
        ("queue", "Reader", "alice", "403"),
        ("queue", "Writer", "alice", "202"),
        ("registry", "Reader", "services", "403"),
        ("registry", "Writer", "service/bob-1", "202"),
        ("registry", "Writer", "service/bank", "403"),
        ("registry", "Writer", "load", "202"),
    ],
)
def test_rights_are_those_to_a_resource(
    house: House, peers: Peers, profile: str, side: str, resource: str, code: str
) -> None:
    assert let_in(house, peers, "bob", profile).lease(side, resource).code == code


def test_so_they_do_where_the_lease_is_for_all(house: House, peers: Peers) -> None:
    control = let_in(house, peers, "bob", "topic")
    reader = leased(peers, control, "Reader")
    assert [reader.summon(name) for name in ("news today", "weather")] == ["200", "400"]
    writer = leased(peers, control, "Writer")
    sequence = writer.write(b"x", "weather")
    assert writer.receive() == Response(sequence, "400")


def test_the_broker_says_who_wrote(house: House, peers: Peers) -> None:
    alice, bob = let_in(house, peers, "alice", "topic"), let_in(house, peers, "bob", "topic")
    reader = leased(peers, alice, "Reader", "news bob")
    leased(peers, bob, "Writer").write(b"x", "news bob", {"user-id": "alice", "a": "b"})
    assert reader.content().properties == {"a": "b", "user-id": "bob"}
    for control in (alice, bob):
        assert control.profile("queue").code == "200"
    leased(peers, bob, "Writer").write(b"x", "signed", {"user-id": "alice"})
    properties = leased(peers, alice, "Reader", "signed").content().properties
    assert properties == {"user-id": "bob", "redelivered": False, "delivery-count": 1}


def test_a_user_without_rights_has_no_virtual_host(house: House, peers: Peers) -> None:
    control = opened(house, peers)
    assert control.plain("stranger", PASSWORD).code == "403"
    assert control.profile("test").code == "401"


def test_a_user_has_a_limited_number_of_leases_in_all_sessions(house: House, peers: Peers) -> None:
    sessions = [let_in(house, peers, "erin") for _ in range(2)]
    for number in range(FLOWS + 2):
        sessions[number % 2].send("Connection.Writer", {"resources": []})
    codes = [sessions[number % 2].receive().code for number in range(FLOWS + 2)]
    assert sorted(codes) == ["202"] * FLOWS + ["429"] * 2
    until(lambda: sessions[0].lease("Writer").code == "202")  # unused ones end


# both flows on one socket


def test_D11_D12_G01_G02_one_socket_carries_both_flows(house: House, peers: Peers) -> None:
    control = opened(house, peers)
    assert control.plain("alice", PASSWORD).code == "201"
    assert control.profile("test").code == "200"
    reply = control.lease("Reader", "resource")
    assert reply.body["port"] == house.port
    assert peers.data == peers.address
    flow = peers.flow()
    assert flow.lease(reply.body["lease"]) == "200"
    assert flow.summon("resource") == "200"
    both = peers.flow()  # a DEALER that does everything
    both.say(b"", CANARY.encode(), b"{}")
    assert both.socket.recv_multipart()[1] == b"501"
    assert both.lease(control.token("Writer")) == "200"
    both.write(b"x")
    assert flow.content().body == b"x"
    both.say(b"", CANARY.encode(), b"{}")
    both.say(bytes([PING]), b"")
    assert [len(both.socket.recv_multipart()) for _ in range(2)] == [3, 2]


def test_E10_X01_frames_that_are_neither_are_dropped_on_one_socket_too(peers: Peers) -> None:
    control = peers.control()
    before = control.heard()
    data = [[b"Connection.Open", b"{}"], [b"\x0a", b""]]
    for frames in [*data, [b"x", b"y", b"z"], [b""], [b"", b""], [b"\x08", b"", b""]]:
        control.socket.send_multipart(frames)
    assert control.heard() == before == []
    flow = peers.flow()
    flow.say(bytes([PING]), b"")
    assert flow.receive() == Response(0, "403")


# silence


@pytest.mark.long
def test_D09_H06_H07_H08_K11_silence(house: House, peers: Peers) -> None:
    """All at once, since silence takes its time: a lease, and readers that answer Pings, or do not."""
    control = let_in(house, peers, "alice", "queue")
    writer = leased(peers, control, "Writer", "silence")
    assert writer.settled(*(writer.write(b"%d" % number) for number in range(3))) == []
    silent = leased(peers, control, "Reader", "silence")
    assert silent.bodies(3) == [b"0", b"1", b"2"]
    answering = leased(peers, control, "Reader", "silence")
    began = time.monotonic()
    unused = control.token("Reader")
    expired = counters(house.daemon)["mtl_leases.expired"]

    assert silent.next() == Bare(PING), "H06"
    got: list[Content] = []
    while len(got) < 3:  # K11; it answers Pings meanwhile
        writer.lives()
        if answering.socket.poll(10):
            command = answering.next()
            if isinstance(command, Content):
                got.append(command)
            else:
                assert command == Bare(PING)
                answering.say(bytes([PONG]), b"")
    assert time.monotonic() - began > 2 * HEARTBEAT
    assert [content.body for content in got] == [b"0", b"1", b"2"]
    assert all(content.properties["redelivered"] for content in got)
    while silent.socket.poll(0):
        assert silent.next() == Bare(PING)
    assert silent.dismiss("silence") == "403", "H07"
    assert answering.dismiss("silence") == "200", "H08"
    assert writer.settled(writer.write(b"x")) == [], "H08"
    until(lambda: counters(house.daemon)["mtl_leases.expired"] > expired)
    assert time.monotonic() - began > LEASE
    assert peers.flow().lease(unused) == "403", "D09"


# CURVE

CLIENTS = ("alice", "bob", "eve")
"""The users that have a key."""


@attrs.frozen
class Vault:
    """A daemon with CURVE, and the keys of its clients."""

    directory: Path
    daemon: Daemon

    def keys(self, name: str) -> Keys:
        """A client's."""
        files = [f"{name}.public", f"{name}.private", "broker.public"]
        return Keys(*((self.directory / "keys" / file).read_bytes().strip() for file in files))


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    """One for many tests. alice has a password too."""
    directory = tmp_path_factory.mktemp("vault")
    for name in ("broker", *CLIENTS):
        brokerkeys("new", name, "--dir", directory / "keys")
    vault = Vault(directory, None)  # type: ignore[arg-type]
    put(directory / "users.toml", ELSEWHERE + right("* anonymous", "*", "mtl"))
    add(directory, "alice")
    for name in CLIENTS:
        if name != "alice":
            editing.add_user(str(directory / "users.toml"), name)
        editing.add_key(str(directory / "users.toml"), name, vault.keys(name).public.decode())
    mtl = 'secret_key_file = "keys/broker.private"\n[access]\nfile = "users.toml"\n'
    with Daemon(directory, "--config", configured(directory, mtl)) as daemon:
        daemon.wait_for(r"mtl on \S+ \(data \S+; curve\)")
        yield Vault(directory, daemon)
        ends_in_order(daemon)


@pytest.fixture
def keyed(vault: Vault) -> Iterator[Peers]:
    """Peers of it."""
    with peers_of(vault.daemon) as peers:
        yield peers


def test_a_key_that_stands_for_a_user_is_enough(vault: Vault, keyed: Peers) -> None:
    control = keyed.control(keys=vault.keys("bob")).opened("topic")
    reader, writer = keyed.flow(vault.keys("bob")), keyed.flow(vault.keys("bob"))
    assert reader.lease(control.token("Reader", "t")) == writer.lease(control.token("Writer", "t")) == "200"
    assert reader.summon("t") == "200"
    writer.write(b"x")
    assert reader.content().properties == {"user-id": "bob"}
    [session] = shown(vault.daemon, "mtl sessions bob")
    assert session["authorized"]


def test_A06_A08_every_mechanism_works_over_curve(vault: Vault, keyed: Peers) -> None:
    control = keyed.control(keys=vault.keys("bob"))
    assert control.open().code == "201"
    listed = control.authorize("NONE", b"").body["mechanisms"]
    assert listed == ["SCRAM-SHA-256", "EXTERNAL", "PLAIN", "ANONYMOUS"]
    assert control.scram("alice", PASSWORD).code == "201"
    assert control.plain("alice", PASSWORD).code == "201"
    for response in (b"", b"bob"):
        assert control.authorize("EXTERNAL", response).code == "201"
    assert control.authorize("EXTERNAL", b"alice").code == "401", "which is not the key's user"
    assert challenge(control.authorize("external", None)) == b""
    assert control.authorize("EXTERNAL", b"").code == "201"
    assert control.authorize("ANONYMOUS", b"a visitor").code == "201"


def test_D07_a_lease_is_of_no_use_with_another_key(vault: Vault, keyed: Peers) -> None:
    alice = keyed.control(keys=vault.keys("alice")).opened("test")
    token = alice.token("Reader")
    assert keyed.flow(vault.keys("bob")).lease(token) == "403"
    assert keyed.flow(vault.keys("alice")).lease(token) == "200"


def test_who_has_no_key_is_not_heard(vault: Vault, keyed: Peers) -> None:
    before = counters(vault.daemon)["mtl_refused.handshake"]
    control, flow = keyed.control(), keyed.flow()
    # libzmq removes the pipe of a refused handshake: a request that comes after it has no route (EAGAIN).
    with suppress(zmq.Again):
        control.send("Connection.Open", {})
    with suppress(zmq.Again):
        flow.send(1, short("lease"))
    until(lambda: counters(vault.daemon)["mtl_refused.handshake"] > before)
    assert control.hears_nothing(0)
    assert flow.hears_nothing(0)


def test_A21_a_key_that_is_taken_away_is_out(vault: Vault, keyed: Peers) -> None:
    control = keyed.control(keys=vault.keys("eve")).opened("test")
    flow = keyed.flow(vault.keys("eve"))
    assert flow.lease(control.token("Reader")) == flow.summon("resource") == "200"
    for view in ("mtl sessions eve", "mtl flows eve"):
        assert len(shown(vault.daemon, view)) == 1
    path = vault.directory / "users.toml"
    editing.remove_user(str(path), "eve")
    put(path, path.read_text().replace('"*", "anonymous"', '"*"'))
    vault.daemon.signal(signal.SIGHUP)  # or it would take a second
    # Its connections are closed. libzmq connects again, and is not let in.
    until(lambda: not shown(vault.daemon, "mtl sessions eve"))
    assert not shown(vault.daemon, "mtl flows eve")
    ended = counters(vault.daemon)
    control.send("Connection.Open", {"protocol": {"name": "MTL", "version": 1}})
    flow.send(4, short("resource"))
    key = "mtl_refused.key-not-allowed"
    until(lambda: counters(vault.daemon)[key] > ended[key])
    assert control.hears_nothing(0)
    assert flow.hears_nothing(0)


def test_the_keys_of_strangers_are_admitted_by_the_virtual_hosts_of_a_reload(tmp_path: Path) -> None:
    for name in ("broker", "eve"):
        brokerkeys("new", name, "--dir", tmp_path / "keys")
    put(tmp_path / "users.toml", ELSEWHERE + right("anonymous", "*", "mtl?guests"))
    add(tmp_path, "alice")

    def configure(hosts: str) -> str:
        return configured(
            tmp_path, f'{hosts}\nsecret_key_file = "keys/broker.private"\n[access]\nfile = "users.toml"\n'
        )

    with Daemon(tmp_path, "--config", configure('hosts = ["/"]')) as daemon, peers_of(daemon) as peers:
        keys = Vault(tmp_path, daemon).keys("eve")
        refused = "mtl_refused.key-not-allowed"
        peers.control(keys=keys)
        until(lambda: counters(daemon).get(refused))
        configure('hosts = ["/", "guests"]')
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("reloaded")
        assert peers.control(keys=keys).open("guests").code == "201"
        before = counters(daemon)[refused]
        configure('hosts = ["/"]')
        daemon.signal(signal.SIGHUP)
        until(lambda: counters(daemon)[refused] > before, "the end of the connections of strangers")
        assert shown(daemon, "mtl sessions") == []
        ends_in_order(daemon)
