"""DBP at two brokers of a cluster: heartbeats that arrive at the other one, and services that change their broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from broker.core.rates import Rates
from broker.core.turns import all_at_once
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.catalogue import MOVE_SECONDS
from broker.wires.dbp.sessions.other_brokers import BEATS, BURST, MOVES, RemoteServices
from tests.core.cluster.network import Links, Network
from tests.recording.farm import clock_at
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import ELSEWHERE, TEXT, THERE, DbpFarm, T
from tests.wires.mirroring import Mirrors

EVERY_SECOND = {"heartbeat_ms": 1000}


class Pair:
    """Two brokers with DBP, which mirror each other."""

    def __init__(self) -> None:
        self.clock = clock_at()
        self.network = Network(self.clock)
        self.mirrors = Mirrors(self.clock)
        farms = {}
        for name, registry in self.mirrors.registries.items():
            farm = farms[name] = DbpFarm(clock=self.clock, registry=registry)
            links = self.network.add(name)
            farm.catalogue.elsewhere = RemoteServices(
                registry, links, farm.catalogue, farm.refusal_log, Rates(self.clock.seconds)
            )
        self.network.up("a", "b")
        self.a, self.b = farms["a"], farms["b"]

    def wait(self, seconds: float) -> None:
        self.a.wait(seconds)

    def beat(self, farm: DbpFarm, name: str, source: tuple[str, int] = (THERE, 40_000)) -> Sequence[bytes]:
        return farm.datagram(b" <3 %b %b" % (TEXT, name.encode()), source)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with nothing_fails():
        yield Pair()


def test_heartbeats_by_udp_reach_the_broker_that_holds_the_service(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    for _ in range(20):
        pair.wait(0.8)
        # The broker that holds it sends its own heartbeats to the source.
        assert b"</3" not in b"".join(pair.beat(pair.b, "gondor"))
    assert pair.a.hostports("gondor") == pair.b.hostports("gondor")
    assert len(pair.b.hostports("gondor")) == 1
    pair.wait(0.1)
    assert pair.b.counted("dbp_forwarded.sent") == pair.a.counted("dbp_forwarded.received") == 20
    assert pair.a.entry("gondor").source == (THERE, 40_000)
    pair.wait(10)
    assert pair.a.counted("dbp_services.expired") == 1
    assert pair.b.hostports("gondor") == []
    # Now it is nowhere: it is asked to register again.
    assert pair.beat(pair.b, "gondor")[-1].startswith(b" </3")


def test_heartbeats_over_the_router_reach_it_too(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    node = pair.b.dealer()
    req = pair.b.req()
    for _ in range(10):
        pair.wait(0.8)
        assert node.ask("<3", T, "gondor") == []
        [[reply, *_]] = req.ask("<3", T, "gondor")
        assert reply == b"u.u"
    assert pair.a.catalogue.get("gondor") is not None
    node.send("</3", T, "gondor")
    pair.wait(0.1)
    assert pair.a.catalogue.get("gondor") is None
    assert pair.a.counted("dbp_services.disconnected") == 1


def test_a_disconnect_by_udp_reaches_it(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    pair.b.datagram(b" </3 %b gondor" % TEXT, (THERE, 40_000))
    pair.wait(0.1)
    assert pair.a.counted("dbp_services.disconnected") == 1
    assert pair.b.hostports("gondor") == []


def test_forged_heartbeats_are_refused_at_the_broker_that_gets_them(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    assert pair.beat(pair.b, "gondor", (ELSEWHERE, 40_000)) == []
    assert pair.b.counted("dbp_refused.wrong-address") == 1
    [[reply, *_]] = pair.b.dealer(ELSEWHERE).ask("<3", T, "gondor")
    assert reply == b"</3"
    assert pair.network.sent == 0
    # And at the one that holds it, if the other one let them pass.
    pair.b.use(Dbp(check_address=False))
    pair.beat(pair.b, "gondor", (ELSEWHERE, 40_000))
    pair.wait(0.1)
    assert pair.a.counted("dbp_refused.wrong-address") == 1
    assert pair.a.counted("dbp_forwarded.received") == 0


def test_a_flood_at_one_broker_is_none_at_the_other(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    for _ in range(500):
        pair.beat(pair.b, "gondor")
    assert pair.network.sent <= BURST + 1
    assert pair.b.counted("dbp_forwarded.limited") >= 479


def test_a_node_that_changes_its_broker_takes_its_registration_along(pair: Pair) -> None:
    old = pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.5)
    probes = len(pair.a.probes.asked)
    new = pair.b.dealer().registered("gondor", **EVERY_SECOND)
    for _ in range(20):
        pair.wait(0.5)
        new.send("<3", T, "gondor")
        assert pair.a.hostports("gondor") == pair.b.hostports("gondor") == [f"{THERE}:0"]
    assert pair.a.catalogue.get("gondor") is None
    assert pair.a.hostports("gondor") == pair.b.hostports("gondor") == [f"{THERE}:0"]
    assert pair.a.counted("dbp_services.moved") == 1
    # No noise: it is neither probed, nor sent a DISCONNECT, nor thought silent.
    assert len(pair.a.probes.asked) == probes
    assert all(b"</3" not in frames for frames in old.take())
    assert pair.a.counted("dbp_services.expired") == 0
    # And back again.
    old.close()
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.5)
    assert pair.b.catalogue.get("gondor") is None
    assert pair.a.hostports("gondor") == pair.b.hostports("gondor") == [f"{THERE}:0"]


def test_a_node_that_has_just_moved_takes_another_port(pair: Pair) -> None:
    """The broker still has the registration of the former one, which is found as the port changes."""
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.5)
    new = pair.b.dealer().registered("gondor", **EVERY_SECOND)
    new.send("UoU", T, {"name": "gondor", "port": 7000})
    pair.wait(0.5)
    assert pair.a.hostports("gondor") == pair.b.hostports("gondor") == [f"{THERE}:7000"]
    assert pair.a.catalogue.get("gondor") is None


def test_a_service_that_moves_is_in_the_registry_until_that_shows_the_new_one(pair: Pair) -> None:
    pair.a.dealer().registered("gondor")
    pair.wait(0.1)
    pair.mirrors.mirroring = False
    pair.b.dealer().registered("gondor")
    pair.wait(1.0)
    assert len(pair.a.hostports("gondor")) == 1
    pair.mirrors.mirror()
    assert pair.a.catalogue.get("gondor") is None
    assert len(pair.a.hostports("gondor")) == 1


def test_a_move_that_never_shows_ends_after_some_seconds(pair: Pair) -> None:
    pair.a.dealer().registered("gondor")
    pair.wait(0.1)
    pair.mirrors.mirroring = False
    pair.b.dealer().registered("gondor")
    pair.wait(MOVE_SECONDS - 1)
    assert pair.a.catalogue.get("gondor") is not None
    pair.wait(2.0)
    assert pair.a.catalogue.get("gondor") is None


def test_a_service_that_moves_is_sent_nothing_by_a_broker_that_drains(pair: Pair) -> None:
    """A DISCONNECT would end its registration at the other broker."""
    source = (THERE, 40_000)
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.beat(pair.a, "gondor", source)
    pair.wait(0.1)
    pair.mirrors.mirroring = False
    pair.b.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    pair.a.udp.take(source)
    all_at_once(pair.a.catalogue.send_away())
    assert pair.a.catalogue.get("gondor") is None
    assert pair.a.udp.take(source) == []


def test_a_holder_that_missed_the_move_gives_up_when_the_heartbeats_stop(pair: Pair) -> None:
    old = pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    pair.network.down("a", "b")
    new = pair.b.dealer().registered("gondor", **EVERY_SECOND)
    for _ in range(8):
        pair.wait(0.5)
        new.send("<3", T, "gondor")
    assert pair.a.catalogue.get("gondor") is None
    assert pair.a.probes.asked == []
    assert all(b"</3" not in frames for frames in old.take())
    assert pair.a.counted("dbp_services.moved") == 1


def test_a_lasting_service_moves_without_a_link_if_the_registry_shows_it(pair: Pair) -> None:
    pair.a.dealer().registered("gondor")
    pair.wait(0.1)
    pair.network.down("a", "b")
    pair.b.dealer().registered("gondor")
    pair.wait(0.1)
    assert pair.a.catalogue.get("gondor") is None
    assert pair.a.hostports("gondor") == pair.b.hostports("gondor") == [f"{THERE}:0"]


def test_a_name_belongs_to_one_service_of_the_cluster(pair: Pair) -> None:
    pair.a.dealer().registered("gondor", **EVERY_SECOND)
    pair.wait(0.1)
    [[reply, *_]] = pair.b.dealer(ELSEWHERE).register("gondor", **EVERY_SECOND)
    assert reply == b"(O_O)"
    assert pair.b.counted("dbp_refused.name-taken") == 1
    assert pair.a.catalogue.get("gondor") is not None
    # Without a contract a name may be taken over, as at one broker.
    pair.a.dealer().registered("rohan")
    pair.wait(0.1)
    pair.b.dealer(ELSEWHERE).registered("rohan")
    pair.wait(0.1)
    assert pair.a.catalogue.get("rohan") is None
    assert pair.a.hostports("rohan") == [f"{ELSEWHERE}:0"]


def test_a_restored_service_that_is_at_another_broker_is_given_up(pair: Pair) -> None:
    pair.mirrors.mirroring = False
    pair.b.dealer().registered("gondor")
    [provider] = pair.b.registry.providers()
    pair.a.catalogue.restore([provider])
    assert pair.a.catalogue.get("gondor") is not None
    pair.mirrors.mirror()
    assert pair.a.catalogue.get("gondor") is None


@pytest.mark.parametrize(
    "frames", [[], [b""], [b"{}"], [b'["beat"]'], [b'["beat","x","y","z"]'], [b"[" * 100_000], [b"1", b"2"], [b"\xff"]]
)
@pytest.mark.parametrize("channel", [BEATS, MOVES])
def test_messages_of_no_meaning_are_counted(pair: Pair, channel: str, frames: list[bytes]) -> None:
    links = pair.network.links["a"]
    assert isinstance(links, Links)
    links.receivers[channel].receive("b", frames)
    assert pair.a.counted("dbp_refused.syntax") == 1


def test_messages_about_unknown_services_are_counted(pair: Pair) -> None:
    pair.network.links["a"].receivers[BEATS].receive("b", [b'["beat","gondor","192.0.2.7",-5,"NOFORM"]'])
    assert pair.a.counted("dbp_forwarded.unknown") == 1
    pair.a.dealer().registered("gondor")
    pair.network.links["a"].receivers[BEATS].receive("b", [b'["beat","gondor","192.0.2.7",-5,"NOFORM"]'])
    assert pair.a.entry("gondor").source is None
    assert pair.a.entry("gondor").contract
