"""Peers that fall silent, on every wire with leases: one is doubtful before its lease ends; many at once are verified
before they end, and not kept for ever."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import attrs
import pytest
from twisted.internet.task import Clock

from broker.access.users_access import UsersAccess
from broker.app.health_checks import silence_of
from broker.config.checks_settings import Checks
from broker.core.checks.check_rules import Outcome, Question
from broker.core.interfaces import ILeases, IRegistry
from broker.core.model import Change, Check, CheckState, Kind, Policy, Rights, Service
from broker.core.registry import Registry
from broker.core.silence import EACH_TICK, LEAST, ORPHAN_LEASE, PROVED_FOR, TICKS, SilenceSettings, Verification
from broker.wires.dbp import dbp_settings
from broker.wires.elko.sessions.authentication import Role
from broker.wires.mtl.codec import data_messages as mtl
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from tests.access.test_users_access import Rig
from tests.access.users import BOB, right, user
from tests.recording.farm import CoreFarm
from tests.wires.dbp.recording import DbpFarm, T
from tests.wires.http.recording import HttpFarm
from tests.wires.mc0.recording import Mc0Farm
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import ProfilesFarm, put
from tests.wires.recording import ElkoFarm, desc

PEERS = 10

REFUSED = Outcome(False, "no connection: refused", closed_port=True)
ACCEPTED = Outcome(True, "a connection was accepted")


class Network:
    """Results of the checks of the broker: ``answers`` by hostport. They get no answer from any other."""

    def __init__(self) -> None:
        self.answers: dict[str, Outcome] = {}
        self.asked: list[str] = []
        self.ended = 0
        self.made: Verification | None = None

    def silence(self, registry: IRegistry, leases: ILeases, clock: Clock) -> Verification:
        """The rule for a farm."""

        def ask(question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None]:
            self.asked.append(question.hostport)
            if question.hostport in self.answers:
                clock.callLater(0.001, answered, self.answers[question.hostport])
            return self._end

        self.made = Verification(registry, leases, clock, ask, SilenceSettings())
        return self.made

    def _end(self) -> None:
        self.ended += 1


class Wire(Protocol):
    """Peers of one wire: each offers the service ``bank`` at its own place."""

    registry: Registry
    patience: float
    """Seconds of their leases."""

    @property
    def farm(self) -> CoreFarm: ...

    def offer(self, number: int) -> None: ...

    def beat(self, number: int) -> None:
        """Give a sign of life."""

    def move(self, number: int) -> None:
        """Offer the service at another port."""


class Dbp:
    patience = 3.0

    def __init__(self, network: Network) -> None:
        class Farm(DbpFarm):
            make_silence = staticmethod(network.silence)

        self.farm = Farm()
        self.registry = self.farm.registry
        self._peers = [self.farm.dealer(f"192.0.2.{number}") for number in range(1, PEERS + 1)]

    def offer(self, number: int) -> None:
        self._peers[number].registered(f"bank{number}", ip=f"192.0.2.{number}", port=5, heartbeat=1)

    def beat(self, number: int) -> None:
        self._peers[number].send("<3", T, f"bank{number}")

    def move(self, number: int) -> None:
        peer = self.farm.dealer(f"192.0.2.{number + 1}")
        peer.registered(f"bank{number}", ip=f"192.0.2.{number}", port=6, heartbeat=1)


class Http:
    patience = 3.0

    def __init__(self, network: Network) -> None:
        class Farm(HttpFarm):
            make_silence = staticmethod(network.silence)

        elko = ElkoFarm()
        self.registry = elko.registry
        self.farm = Farm(elko)

    def offer(self, number: int) -> None:
        assert self.farm.put(f"bank{number}", "one", f"192.0.2.{number}:5", ttl=3).status == 201

    def beat(self, number: int) -> None:
        assert self.farm.renew(f"bank{number}", "one").status == 200

    def move(self, number: int) -> None:
        assert self.farm.put(f"bank{number}", "one", f"192.0.2.{number}:6", ttl=3).status == 200


class Mtl:
    patience = 15.0

    def __init__(self, network: Network) -> None:
        class Farm(ProfilesFarm):
            make_silence = staticmethod(network.silence)

        self.farm: ProfilesFarm = Farm()
        assert isinstance(self.farm.core, Registry)
        self.registry = self.farm.core
        self._peers: list[MtlPeer] = []

    def offer(self, number: int) -> None:
        peer = self.farm.peer()
        peer.lease(self.farm.lease(Side.WRITER, profile=self.farm.registry, confirm=ConfirmMode.FULL))
        name = f"bank{number}"
        put(peer, 1, f"service/{name}", desc(name, f"192.0.2.{number}:5"), type="offer")
        self._peers.append(peer)

    def beat(self, number: int) -> None:
        self._peers[number].say(*mtl.PING)

    def move(self, number: int) -> None:
        name = f"bank{number}"
        put(self._peers[number], 2, f"service/{name}", desc(name, f"192.0.2.{number}:6"), type="offer")


WIRES: dict[str, Callable[[Network], Wire]] = {"dbp": Dbp, "http": Http, "mtl": Mtl}


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, network: Network) -> Wire:
    """Ten peers that have just given a sign of life."""
    made: Wire = WIRES[request.param](network)
    for number in range(PEERS):
        made.offer(number)
    return made


def places(wire: Wire, state: CheckState | None = None) -> int:
    """Return the number of services, of all or of one state."""
    services = [service for service in wire.registry.services() if service.name.startswith("bank")]
    if state is None:
        return len(services)
    checks = (wire.registry.check_of(service) for service in services)
    return sum(check is not None and check.state is state for check in checks)


def pass_leases(wire: Wire, leases: float, alive: range = range(0)) -> None:
    """Let so many leases pass, with three signs of life in each from those that live."""
    for _ in range(round(3 * leases)):
        wire.farm.wait(wire.patience / 3)
        for number in alive:
            wire.beat(number)


def pass_parts(wire: Wire, tenths: int, alive: range) -> None:
    """Let tenths of a lease pass, with a sign of life in each from those that live."""
    for _ in range(tenths):
        wire.farm.wait(wire.patience / 10)
        for number in alive:
            wire.beat(number)


def test_one_that_falls_silent_is_doubtful_before_its_lease_ends(wire: Wire) -> None:
    said: list[str] = []

    def follow(change: Change) -> None:
        assert isinstance(change.subject, Service)
        if change.subject.name == "bank0":
            said.append(f"{change.kind.value} {change.why}")

    wire.registry.watch(follow, (Kind.CHECKED, Kind.WITHDRAWN))
    living = range(1, PEERS)
    pass_parts(wire, 7, living)
    assert places(wire, CheckState.DOUBTFUL) == 0
    pass_parts(wire, 2, living)
    (doubtful,) = wire.registry.services("bank0")
    check = wire.registry.check_of(doubtful)
    assert check is not None
    assert check.state is CheckState.DOUBTFUL
    assert check.reason.startswith("no sign of life for ")
    assert wire.registry.policy_of(doubtful) is Policy.LAST
    wire.beat(0)
    assert places(wire, CheckState.DOUBTFUL) == 0
    pass_parts(wire, 9, living)
    assert places(wire, CheckState.DOUBTFUL) == 1
    pass_parts(wire, 3, living)
    assert (places(wire), places(wire, CheckState.DOUBTFUL)) == (PEERS - 1, 0)
    assert [each.split()[1] for each in said] == ["doubtful", "untested", "doubtful", said[-1].split()[1]]
    assert said[-1].startswith(Kind.WITHDRAWN.value)


def test_one_that_moves_while_it_is_doubtful_is_not_doubtful_at_its_new_place(wire: Wire) -> None:
    said: list[tuple[str, str]] = []

    def follow(change: Change) -> None:
        assert isinstance(change.subject, Service)
        if change.subject.hostport.endswith(":6"):
            said.append((change.kind.value, change.why))

    pass_parts(wire, 9, range(1, PEERS))
    assert places(wire, CheckState.DOUBTFUL) == 1
    wire.registry.watch(follow, (Kind.OFFERED, Kind.CHECKED))
    wire.move(0)
    assert said == [("offered", "")]


def test_one_that_falls_silent_alone_ends_with_its_lease(wire: Wire) -> None:
    pass_leases(wire, 2, alive=range(1, PEERS))
    assert places(wire) == PEERS - 1
    assert places(wire, CheckState.DOUBTFUL) == 0


def test_in_a_drain_they_end_with_their_leases_without_a_doubt(wire: Wire, network: Network) -> None:
    said: list[Change] = []
    wire.registry.watch(said.append, (Kind.CHECKED,))
    assert network.made is not None
    network.made.draining = True
    pass_leases(wire, 1.4)
    assert (places(wire), said) == (0, [])


def test_fewer_than_the_least_number_end_with_their_leases(network: Network) -> None:
    wire = Http(network)
    for number in range(LEAST - 1):
        wire.offer(number)
    pass_leases(wire, 1.4)
    assert places(wire) == 0


def test_behind_a_cut_network_they_are_doubtful_and_come_back_without_a_withdrawal(wire: Wire) -> None:
    gone: list[Change] = []
    wire.registry.watch(gone.append, (Kind.WITHDRAWN, Kind.LEFT))
    pass_leases(wire, 3)
    assert (places(wire), places(wire, CheckState.DOUBTFUL)) == (PEERS, PEERS)
    for number in range(PEERS):
        wire.beat(number)
    assert places(wire, CheckState.DOUBTFUL) == 0
    pass_leases(wire, 2, alive=range(PEERS))
    assert (places(wire), gone) == (PEERS, [])


def test_they_come_last_in_finds(network: Network) -> None:
    wire = Http(network)
    for number in range(PEERS):
        assert wire.farm.put("bank", str(number), f"192.0.2.{number}:5", ttl=3).status == 201
    other = Service("bank", "h:1", wire.registry.join("elko", "elko", ""))
    wire.registry.offer([other], Rights())
    pass_leases(wire, 1.4)
    found = wire.registry.find("bank", "tcp")
    assert (len(found), found[0]) == (PEERS + 1, other)


@pytest.mark.parametrize("ttls", [5, 2])
def test_after_a_number_of_leases_they_go_in_any_case(wire: Wire, network: Network, ttls: int) -> None:
    assert network.made is not None
    network.made.settings = silence_of(Checks(silent_ttls=ttls))
    pass_leases(wire, ttls - 0.5)
    assert places(wire) == PEERS
    pass_leases(wire, 1)
    assert places(wire) == 0


def test_killed_processes_are_gone_at_once(wire: Wire, network: Network) -> None:
    network.answers = dict.fromkeys((f"192.0.2.{number}:5" for number in range(PEERS)), REFUSED)
    pass_leases(wire, 1.5)
    assert places(wire) == 0


def test_servers_that_accept_connections_are_not_doubtful_any_more(wire: Wire, network: Network) -> None:
    network.answers = dict.fromkeys((f"192.0.2.{number}:5" for number in range(PEERS)), ACCEPTED)
    pass_leases(wire, 1.34)
    assert len(network.asked) >= PEERS
    assert places(wire) == PEERS
    # While most are silent, they are verified again with each lease, for as long as they accept connections.
    pass_leases(wire, 6)
    assert places(wire) == PEERS
    network.answers = {}
    pass_leases(wire, 6)
    assert places(wire) == 0


@pytest.mark.long
def test_servers_that_accept_connections_and_send_nothing_go_in_the_end(wire: Wire, network: Network) -> None:
    network.answers = dict.fromkeys((f"192.0.2.{number}:5" for number in range(PEERS)), ACCEPTED)
    wire.farm.wait(PROVED_FOR / 2)
    for number in range(PEERS):
        wire.beat(number)
    wire.farm.wait(PROVED_FOR - 2 * wire.patience)
    assert places(wire) == PEERS
    wire.farm.wait(4 * wire.patience)
    assert places(wire) == 0


def test_a_probe_without_an_answer_makes_a_service_without_a_contract_doubtful(network: Network) -> None:
    class Farm(DbpFarm):
        make_silence = staticmethod(network.silence)

    farm = Farm(dbp_settings.Dbp(probe=10.0))
    peer = farm.dealer("192.0.2.1").registered("bank0", ip="192.0.2.1", port=5)

    def doubtful() -> bool:
        check = farm.registry.check_of(farm.registry.services("bank0")[0])
        return check is not None and check.state is CheckState.DOUBTFUL

    farm.wait(25)
    assert not doubtful(), "it has never answered"
    farm.probes.alive.add(("192.0.2.1", 5))
    farm.wait(10)
    farm.probes.alive.clear()
    farm.wait(21)
    assert doubtful()
    peer.send("u_U", T, "")
    assert not doubtful()


@pytest.mark.parametrize("under_way", [False, True])
def test_without_probes_a_service_without_a_contract_is_not_doubtful_for_a_probe(
    network: Network, under_way: bool
) -> None:
    class Farm(DbpFarm):
        make_silence = staticmethod(network.silence)

    farm = Farm(dbp_settings.Dbp(probe=10.0))
    farm.dealer("192.0.2.1").registered("bank0", ip="192.0.2.1", port=5)
    farm.probes.alive.add(("192.0.2.1", 5))
    farm.wait(11)
    farm.probes.alive.clear()
    farm.wait(9.5 if under_way else 15)
    assert network.made is not None
    assert network.made.counts()["silence.doubtful"] == (not under_way)
    farm.use(dbp_settings.Dbp(probe=0.0))
    farm.wait(15)
    (service,) = farm.registry.services("bank0")
    assert farm.registry.check_of(service) is None
    assert network.made.counts()["silence.doubtful"] == 0
    farm.use(dbp_settings.Dbp(probe=10.0))
    farm.wait(25)
    assert farm.catalogue.get("bank0") is not None, "two probes without an answer, counted from the reload on"
    farm.wait(20)
    assert farm.catalogue.get("bank0") is None


def test_silent_registrations_of_another_program_keep_no_dead_peers_of_others(network: Network) -> None:
    wire = Http(network)
    for number in range(PEERS):
        wire.offer(number)
    network.answers = dict.fromkeys((f"192.0.2.{number}:5" for number in range(PEERS)), ACCEPTED)
    for number in range(2 * PEERS):
        assert wire.farm.put(f"live{number}", "one", f"192.0.2.9:{number + 1}", ttl=3).status == 201

    def live(leases: int, numbers: range) -> None:
        for _ in range(3 * leases):
            wire.farm.wait(1.0)
            for number in numbers:
                assert wire.farm.renew(f"live{number}", "one").status == 200

    live(7, range(2 * PEERS))
    assert places(wire) == PEERS, "they are many, and accept connections"
    live(2, range(1, 2 * PEERS))
    assert len(wire.registry.services("live0")) == 0
    assert places(wire) == PEERS


def test_idle_nodes_of_mc0_are_not_taken_for_silent_ones(network: Network) -> None:
    class Farm(Mc0Farm):
        make_silence = staticmethod(network.silence)

    farm = Farm()
    peers = [farm.peer(f"node{number}") for number in range(2 * PEERS)]
    for peer in peers:
        peer.say("CONNECT|TTL|20000")
        peer.say("SUB||jobs")
        farm.wait(0.95)
    for _ in range(2):
        # Each sends a NOOP at 0.95 of its TTL, as the original clients do; one has fallen silent.
        for peer in peers[1:]:
            farm.wait(0.95)
            peer.say("NOOP")
    assert farm.subscribers() == {b"jobs": 2 * PEERS - 1}
    assert network.made is not None
    assert network.made.counts()["silent_peers.doubtful"] == 1


def test_sessions_of_mc0_are_shown_as_doubtful_before_they_end(network: Network) -> None:
    class Farm(Mc0Farm):
        make_silence = staticmethod(network.silence)

    farm = Farm()
    peer = farm.peer("node")
    peer.say("CONNECT|TTL|20000")
    farm.wait(20.0)
    (session,) = farm.wire.table
    assert not farm.wire.table.silence.doubtful(session)
    farm.wait(0.7)
    assert farm.wire.table.silence.doubtful(session)
    peer.say("NOOP")
    assert not farm.wire.table.silence.doubtful(session)


def test_subscriptions_of_mc0_outlast_a_cut_network(network: Network) -> None:
    class Farm(Mc0Farm):
        make_silence = staticmethod(network.silence)

    farm = Farm()
    peers = [farm.peer(f"node{number}") for number in range(PEERS)]
    for peer in peers:
        peer.say("CONNECT|TTL|3000")
        peer.say("SUB||jobs")
    farm.wait(3 * 3)
    assert farm.subscribers() == {b"jobs": PEERS}
    peers[0].say("NOOP")
    farm.wait(3 * 6)
    assert farm.subscribers() == {}


def test_thousands_become_doubtful_over_several_turns(network: Network) -> None:

    class Farm(DbpFarm):
        make_silence = staticmethod(network.silence)

    farm = Farm()
    for number in range(3 * EACH_TICK):
        farm.dealer().registered(f"bank{number}", heartbeat=1)
    farm.clock.advance(3.2)
    farm.clock.advance(0.05)
    doubtful = [len(farm.silence.suspects)]
    while doubtful[-1] < 3 * EACH_TICK:
        farm.clock.advance(TICKS / 2)
        doubtful.append(len(farm.silence.suspects))
    assert max(after - before for before, after in pairwise([0, *doubtful])) <= EACH_TICK
    assert len(farm.registry.services()) == 3 * EACH_TICK


def test_a_connection_that_breaks_meanwhile_ends_no_peer_of_a_cut_network(network: Network) -> None:
    wire = Http(network)
    for number in range(PEERS):
        wire.offer(number)
    assert network.made is not None
    # The leases end one after the other: most peers are not doubtful yet when the connection breaks.
    wire.farm.wait(0.1)
    for number in range(1, PEERS):
        wire.beat(number)
    while not network.made.suspects:
        wire.farm.clock.advance(0.05)
    other = Service("elko", "h:1", wire.registry.join("elko", "elko", ""))
    wire.registry.offer([other], Rights())
    wire.registry.set_check(other, Check(CheckState.FAILING, "no answer to a ping", 0.0), Policy.LAST)
    assert not network.made.orphaned(other.provider, object())
    pass_leases(wire, 1)
    assert (places(wire), places(wire, CheckState.DOUBTFUL)) == (PEERS, PEERS)


def test_no_check_runs_after_the_stop(wire: Wire, network: Network) -> None:
    pass_leases(wire, 1.4)
    assert network.made is not None
    asked = len(network.asked)
    network.made.stop()
    wire.farm.wait(20)
    assert (len(network.asked), network.ended >= asked) == (asked, True)


class ElkoProviders(CoreFarm):
    """Elko providers, which are bound to connections, and whose pings are what the test says."""

    def __init__(self, network: Network, access: UsersAccess | None = None) -> None:
        elko = ElkoFarm()
        if access is not None:
            elko.access = access
        super().__init__(elko.clock)
        self.registry = elko.registry
        elko.wiring = attrs.evolve(elko.wiring, silence=network.silence(self.registry, self.leases, self.clock))
        self.peers = [elko.client(label=f"p{number}") for number in range(PEERS)]
        for number, peer in enumerate(self.peers):
            peer.say(to="client", op="willserve", services=[desc("bank", f"192.0.2.{number}:5")])
        self._elko = elko

    def bob(self, number: int) -> None:
        """A peer logs in as bob, and offers as the others."""
        peer = self._elko.connect()
        peer.say(to="client", op="auth", auth={"mode": "password", "id": "bob", "code": "crayon"})
        peer.say(to="client", op="willserve", services=[desc("bank", f"192.0.2.{number}:5")])
        self.peers.append(peer)

    def serve(self, *roles: Role) -> None:
        """The listeners of all peers serve these roles from now on."""
        for door in self._elko.doors:
            door.use(attrs.evolve(door.policy, roles=frozenset(roles)))

    def silent(self, numbers: Iterable[int]) -> None:
        """Pings of these fail."""
        places = {f"192.0.2.{number}:5" for number in numbers}
        for service in self.registry.services("bank"):
            if service.hostport in places:
                check = Check(CheckState.FAILING, "no answer to a ping", self.clock.seconds())
                self.registry.set_check(service, check, Policy.LAST)

    def lose(self, numbers: Iterable[int]) -> None:
        """The connections of these break, without a word of the peers."""
        for number in numbers:
            self.peers[number].peer.vanished = True
            self.peers[number].peer.close()

    def comes_back(self, number: int) -> None:
        """A peer connects again, and offers the same."""
        again = self._elko.client(label=f"p{number}")
        again.say(to="client", op="willserve", services=[desc("bank", f"192.0.2.{number}:5")])

    def found(self) -> int:
        return len(self.registry.find("bank", "tcp"))


def test_connections_that_break_one_by_one_end_their_providers(network: Network) -> None:
    farm = ElkoProviders(network)
    farm.silent([3])
    farm.lose([3])
    assert farm.found() == PEERS - 1
    farm.lose([5])
    assert farm.found() == PEERS - 2


def test_connections_of_a_cut_network_leave_their_providers_until_they_are_back(network: Network) -> None:
    farm = ElkoProviders(network)
    farm.silent(range(PEERS))
    farm.lose(range(PEERS))
    assert farm.found() == PEERS
    farm.wait(60)
    assert farm.found() == PEERS
    for number in range(PEERS):
        farm.comes_back(number)
    assert farm.found() == PEERS
    assert len({service.provider for service in farm.registry.find("bank", "tcp")}) == PEERS
    farm.wait(200)
    assert farm.found() == PEERS


def test_providers_without_connections_go_in_any_case(network: Network) -> None:
    farm = ElkoProviders(network)
    farm.silent(range(PEERS))
    farm.lose(range(PEERS))
    farm.wait(5 * ORPHAN_LEASE - 5)
    assert farm.found() == PEERS
    farm.wait(10)
    assert farm.found() == 0


def test_providers_without_connections_go_at_once_where_nothing_listens(network: Network) -> None:
    network.answers = dict.fromkeys((f"192.0.2.{number}:5" for number in range(PEERS)), REFUSED)
    farm = ElkoProviders(network)
    farm.silent(range(PEERS))
    farm.lose(range(PEERS))
    farm.wait(1)
    assert farm.found() == 0


def test_peers_that_close_their_connections_are_gone_whatever_their_checks_say(network: Network) -> None:
    farm = ElkoProviders(network)
    farm.silent(range(PEERS))
    for number in range(PEERS):
        farm.peers[number].peer.close()
    assert farm.found() == 0


@pytest.mark.parametrize(
    ("operations", "names", "stay"),
    [("find", ("*",), 0), ("find offer", ("shop",), 0), ("find offer", ("bank",), PEERS)],
)
def test_providers_without_connections_are_reviewed_when_rights_change(
    network: Network, tmp_path: Path, operations: str, names: tuple[str, ...], stay: int
) -> None:
    rig = Rig(tmp_path / "users.toml")
    bob = user("bob", f'passwords = ["{BOB.text()}"]')
    rig.change(bob + right("anonymous"))
    farm = ElkoProviders(network, rig.access)
    farm.silent(range(PEERS))
    farm.lose(range(PEERS))
    farm.peers.clear()
    gc.collect()
    assert farm.found() == PEERS
    rig.change(bob + right("anonymous", operations, "*", *names))
    assert farm.found() == stay
    farm.wait(5 * ORPHAN_LEASE + 5)
    assert farm.registry.providers() == []


def test_a_provider_without_its_connection_goes_with_the_login_of_its_user(network: Network, tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    bob = user("bob", f'passwords = ["{BOB.text()}"]')
    rig.change(bob + right("anonymous bob"))
    farm = ElkoProviders(network, rig.access)
    farm.bob(PEERS)
    farm.silent(range(PEERS + 1))
    farm.lose(range(PEERS + 1))
    farm.peers.clear()
    gc.collect()
    assert farm.found() == PEERS + 1
    rig.change(user("eve") + right("anonymous"))
    assert farm.found() == PEERS


def test_a_provider_without_its_connection_goes_when_its_listener_serves_no_clients_any_more(network: Network) -> None:
    farm = ElkoProviders(network)
    farm.silent(range(PEERS))
    farm.lose(range(PEERS))
    farm.serve("client")
    assert farm.found() == PEERS
    farm.serve("admin")
    assert farm.found() == 0
