"""DBP: who may speak for a service, and that strangers, whatever they send, make nothing grow and nobody be flooded."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest

from broker.core.gone_names import SPARE
from broker.core.rates import ADDRESSES
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.listing import GONE
from broker.wires.dbp.sessions.outbound import ADDRESS_BURST, ADDRESS_RATE, SOURCE_RATE
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import BEACON_PORT, ELSEWHERE, FLOAT32, HERE, NAME, TEXT, THERE, DbpFarm, DbpPeer, T

BEAT = b" <3 %b Rohan" % TEXT
BYE = b" </3 %b Rohan" % TEXT


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm()


def trusting() -> DbpFarm:
    return DbpFarm(Dbp(check_address=False))


# by UDP


def test_a_heartbeat_from_another_address_keeps_nobody_alive_and_moves_nothing(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.datagram(BEAT, (THERE, 7))
    for _ in range(7):
        farm.wait(0.4)
        assert farm.datagram(BEAT, (ELSEWHERE, 8)) == [], "a registered name is not answered to others either"
    farm.wait(0.4)
    assert farm.catalogue.get("Rohan") is None
    assert {to for _, to in farm.udp.sent} == {(THERE, 7)}
    assert farm.counted("dbp_refused.wrong-address") == 7


def test_a_heartbeat_from_another_address_begins_no_contract(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan")
    farm.datagram(BEAT, (ELSEWHERE, 8))
    farm.wait(10)
    assert farm.catalogue.get("Rohan") is not None
    assert len(farm.leases) == 0


def test_a_disconnect_from_another_address_ends_nothing(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.datagram(BEAT, (THERE, 7))
    for data in (BYE, b" </3 %b" % TEXT):
        assert farm.datagram(data, (ELSEWHERE, 7)) == []
    assert farm.catalogue.get("Rohan") is not None
    assert farm.counted("dbp_refused.wrong-address") == 1, "the other one spoke for nobody"


def test_an_acknowledgement_counts_only_for_who_beats_from_there(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.datagram(BEAT, (THERE, 7))
    for source in ((ELSEWHERE, 7), (THERE, 8), (ELSEWHERE, 8)):
        farm.wait(0.9)
        farm.datagram(b" u.u %b" % TEXT, source)
    farm.wait(0.5)
    assert farm.catalogue.get("Rohan") is None


def test_a_nameless_disconnect_ends_those_who_beat_from_its_source_and_no_others(farm: DbpFarm) -> None:
    for name, port in (("one", 7), ("two", 7), ("three", 8)):
        farm.dealer().registered(name, heartbeat=1)
        farm.datagram(b" <3 %b %b" % (TEXT, name.encode()), (THERE, port))
    farm.datagram(b" </3 %b" % TEXT, (THERE, 7))
    assert [entry.name for entry in farm.catalogue] == ["three"]


def test_all_loopback_addresses_are_one_peer(farm: DbpFarm) -> None:
    farm.dealer("127.0.0.1").registered("Rohan", heartbeat=1)
    farm.wait(2)
    farm.datagram(BEAT, ("127.0.0.2", 7))
    farm.wait(2)
    assert farm.catalogue.get("Rohan") is not None
    farm.datagram(BYE, ("127.9.9.9", 8))
    assert farm.catalogue.get("Rohan") is None


def test_without_the_check_anybody_may_speak_for_a_service() -> None:
    with nothing_fails():
        farm = trusting()
        farm.dealer().registered("Rohan", heartbeat=1)
        for _ in range(5):
            farm.wait(2)
            farm.datagram(BEAT, (ELSEWHERE, 8))
        assert farm.entry("Rohan").source == (ELSEWHERE, 8)
        farm.datagram(BYE, (ELSEWHERE, 9))
        assert farm.catalogue.get("Rohan") is None


def test_the_check_may_be_switched_on_while_it_runs() -> None:
    with nothing_fails():
        farm = trusting()
        farm.dealer().registered("Rohan", heartbeat=1)
        farm.datagram(BEAT, (ELSEWHERE, 8))
        farm.use(Dbp())
        farm.wait(1)
        farm.datagram(b" <3 %b" % TEXT, (ELSEWHERE, 8))
        farm.datagram(BYE, (ELSEWHERE, 8))
        assert farm.catalogue.get("Rohan") is not None
        assert farm.counted("dbp_refused.wrong-address") == 2


# over the ROUTER


@pytest.mark.parametrize("frames", [("<3", T, "Rohan"), ("</3", T, "Rohan")])
def test_nobody_else_may_speak_for_a_service_over_the_router(farm: DbpFarm, frames: tuple[str | type[T], ...]) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.wait(2)
    farm.dealer(ELSEWHERE).send(*frames)
    assert farm.catalogue.get("Rohan") is not None
    assert farm.counted("dbp_refused.wrong-address") + farm.counted("dbp_refused.unexpected") == 1
    farm.wait(1.2)
    assert farm.catalogue.get("Rohan") is None


def test_a_heartbeat_of_a_service_from_elsewhere_is_answered_by_a_disconnect(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    stranger = farm.dealer(ELSEWHERE)
    assert [frames[0] for frames in stranger.ask("<3", T, "Rohan")] == [b"</3"]
    farm.wait(1.2)
    assert stranger.take() == [], "it did not become the service's connection"


def test_without_the_check_anybody_may_speak_over_the_router() -> None:
    with nothing_fails():
        farm = trusting()
        farm.dealer().registered("Rohan", port=6000, heartbeat=1)
        assert farm.dealer(ELSEWHERE).ask("UoU", T, {"name": "Rohan", "port": 7000})[0][0] == b"u.u"
        for _ in range(3):
            farm.wait(2)
            farm.dealer(ELSEWHERE).send("<3", T, "Rohan")
        assert farm.hostports("Rohan") == [f"{THERE}:7000"]
        farm.dealer(ELSEWHERE).send("</3", T, "Rohan")
        assert farm.hostports("Rohan") == []


def test_who_said_good_bye_for_another_is_not_heard_any_more_himself(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan")
    stranger = farm.dealer(ELSEWHERE)
    stranger.send("</3", T, "Rohan")
    assert stranger.ask("u_U", T, "") == []


def test_a_stranger_who_borrows_an_identity_is_another_connection(farm: DbpFarm) -> None:
    peer = farm.dealer(identity=b"rohan").registered("Rohan", heartbeat=1)
    peer.close()
    thief = farm.dealer(ELSEWHERE, b"rohan")
    assert [frames[0] for frames in thief.ask("<3", T)] == [b"</3"]
    assert farm.entry("Rohan").connection is None


# who is flooded


@pytest.mark.long
def test_a_stranger_is_told_to_register_and_then_not_again_for_a_while(farm: DbpFarm) -> None:
    answers = []
    for _ in range(400):
        answers += farm.datagram(BEAT, (THERE, 7))
        farm.wait(0.05, 0.05)
    assert all(answer.startswith(b" </3 ") for answer in answers)
    assert 3 <= len(answers) <= 1 + 20 * SOURCE_RATE
    assert farm.counted("dbp_refused.not-registered") == 400


@pytest.mark.long
def test_one_address_is_not_flooded_whatever_ports_datagrams_seem_to_come_from(farm: DbpFarm) -> None:
    for port in range(1_024, 6_024):
        farm.datagrams.receive(BEAT, (THERE, port))
    assert len(farm.udp.sent) == ADDRESS_BURST
    farm.udp.sent.clear()
    for port in range(10_000, 20_000):
        farm.datagrams.receive(BEAT, (THERE, port))
        farm.clock.advance(0.001)
    assert len(farm.udp.sent) == pytest.approx(10 * ADDRESS_RATE, abs=2)


def test_an_answer_is_never_longer_than_what_it_answers(farm: DbpFarm) -> None:
    """Otherwise a peer that forges an address could flood others with more than it sends."""
    [answer] = farm.datagram(b"<3 1 x")
    assert len(answer) <= 28
    [answer] = farm.datagram(BEAT, (THERE, 8))
    assert len(answer) <= len(BEAT)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"x",
        b"SHALOM 5246",
        b"GONDOR_CALLS_FOR_AID",
        b" <3",
        b" <3 ",
        b" <3 now Rohan",
        b"\xff\xfe\xfd",
        b" <3 1 \xff\xfe",
        b"\x01\x00\x01\x02<3",
        b" u_U 1 ",
        b' UwU 1 {"name": "x"}',
        b" <3 %b %b" % (TEXT, b"n" * 300),
        b" <3 %b %b" % (TEXT, NAME.encode()),
        b" <3 %b Rohan" % (b"9" * 400),
        b" </3 %b Rohan" % TEXT,
        b" </3 %b" % TEXT,
        b" u.u %b" % TEXT,
        b"x" * 1_025,
        b"x" * 65_507,
    ],
)
def test_nothing_else_is_answered(farm: DbpFarm, data: bytes) -> None:
    assert farm.datagram(data) == []
    assert farm.udp.sent == []
    assert len(farm.catalogue) == 0


def test_nothing_is_answered_to_the_port_of_the_beacon_but_others_may_be_told(farm: DbpFarm) -> None:
    assert farm.datagram(BEAT, (THERE, BEACON_PORT)) == []
    assert len(farm.datagram(BEAT, (THERE, BEACON_PORT + 1))) == 1


# what grows


def sizes(farm: DbpFarm) -> dict[str, int]:
    """The sizes of all tables."""
    return {
        "entries": len(farm.catalogue),
        "places": len(farm.catalogue.sources()),
        "connections": len(farm.commands),
        "sources": len(farm.sources),
        "addresses": len(farm.addresses),
        "refusal_log": farm.refusal_log.logged,
        "counters": len(farm.counters.all()),
        "leases": len(farm.leases),
        "gone": farm.listing.gone,
        "providers": len(farm.registry.providers()),
    }


def of_strangers(random: Random) -> bytes:
    """Something that a stranger might send."""
    name = b"n%d" % random.randrange(10**9)
    kinds = [b" <3 %b %b" % (TEXT, name), b" </3 %b %b" % (TEXT, name), b" </3 %b" % TEXT, b" u.u %b" % TEXT]
    kinds += [name + b" <3", b"SHALOM %d" % random.randrange(10**5), random.randbytes(random.randrange(60))]
    return random.choice(kinds)


@pytest.mark.long
def test_nothing_that_datagrams_say_makes_anything_grow(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.datagram(BEAT)
    random = Random(5)
    before = sizes(farm)
    for number in range(30_000):
        address = f"198.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}"
        farm.datagrams.receive(of_strangers(random), (address, random.randrange(1, 65_536)))
        farm.udp.sent.clear()
        if number % 100 == 0:
            farm.datagram(BEAT)
            farm.wait(TICKS)
    after = sizes(farm)
    for table in ("sources", "addresses", "refusal_log"):
        assert 5_000 < after[table] <= ADDRESSES
    assert after["counters"] < 20
    same = before.keys() - {"sources", "addresses", "refusal_log", "counters"}
    assert {table: after[table] for table in same} == {table: before[table] for table in same}


TICKS = 0.05


@pytest.mark.long
def test_heartbeats_of_a_registered_service_from_anywhere_make_nothing_grow() -> None:
    """Not where addresses are not checked either: a service's datagrams come from one place, the last."""
    with nothing_fails():
        farm = trusting()
        farm.dealer().registered("Rohan", heartbeat=1)
        for number in range(10_000):
            farm.datagrams.receive(BEAT, (f"198.51.{number % 250}.{number // 250}", 7))
        after = sizes(farm)
        assert after["places"] == after["entries"] == 1
        assert farm.catalogue.at((THERE, 7)) == []


@pytest.mark.long
def test_the_memory_of_a_flood_is_bounded(farm: DbpFarm) -> None:
    random = Random(6)

    def flood() -> int:
        """As many sources as fit in the tables, and more; what is taken then."""
        for number in range(ADDRESSES + 2_000):
            source = (f"198.51.100.{random.randrange(256)}", random.randrange(1, 65_536))
            farm.datagrams.receive(b" <3 %b n%d" % (TEXT, random.randrange(10**9)), source)
            if number % 4 == 0:
                farm.datagrams.receive(of_strangers(random), source)
            farm.udp.sent.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = flood()
        assert flood() == pytest.approx(first, abs=200_000)
    finally:
        tracemalloc.stop()
    assert first < 6_000_000


@pytest.mark.long
def test_registrations_and_good_byes_leave_only_what_is_bounded(farm: DbpFarm) -> None:
    before = sizes(farm)
    for number in range(12_000):
        peer = farm.dealer().registered(f"n{number}", heartbeat=1)
        farm.datagrams.receive(b" <3 %b n%d" % (TEXT, number), (THERE, 1_024 + number))
        peer.send("</3", T)
        peer.close()
        farm.udp.sent.clear()
    after = sizes(farm)
    assert GONE / SPARE <= after["gone"] <= GONE * SPARE
    assert after["sources"] <= ADDRESSES
    same = before.keys() - {"counters", "gone", "sources"}
    assert {table: after[table] for table in same} == {table: before[table] for table in same}
    assert farm.clock.getDelayedCalls() == []


# connections


@pytest.mark.long
def test_of_connections_that_only_ask_nothing_is_kept(farm: DbpFarm) -> None:
    for _ in range(1_000):
        peer = farm.dealer()
        peer.send("u_U", T, "")
        peer.send("u_U", T, "mmi.service", "x")
        peer.send("ping", T, "")
        peer.send("UwU", T, "nonsense")
        peer.send("UoU", T, {"name": "x"})
        assert len(peer.take()) == 5
    assert sizes(farm)["connections"] == 0


@pytest.mark.long
def test_a_flood_of_bad_peers_takes_no_service_from_those_that_are_registered(farm: DbpFarm) -> None:
    services = [farm.dealer().registered(f"s{number}", heartbeat=1) for number in range(50)]
    for number in range(20_000):
        farm.dealer(ELSEWHERE).send("nonsense", T)
        if number % 1_000 == 0:
            farm.wait(0.5)
            for each, service in enumerate(services):
                service.send(*(("<3", T, f"s{each}") if each % 2 else ("<3", T)))
    assert len(farm.catalogue) == 50
    for service in services:
        assert {frames[0] for frames in service.take()} == {b"<3"}
    assert farm.refusal_log.logged <= ADDRESSES


@pytest.mark.long
def test_when_connections_end_nothing_is_left_of_them(farm: DbpFarm) -> None:
    peers: list[DbpPeer] = []
    for number in range(100):
        peer = farm.dealer() if number % 2 else farm.req(time=FLOAT32)
        peers.append(peer)
        if number % 3:
            peer.register(f"s{number}", heartbeat=1)
        else:
            peer.send("o_O", T, "x")
    assert sizes(farm)["connections"] == 66  # the 34 that broke the rules are closed
    for peer in peers:
        peer.close()
    assert sizes(farm)["connections"] == 0
    assert all(entry.connection is None for entry in farm.catalogue)


@pytest.mark.long
def test_a_connection_that_broke_the_rules_is_closed_and_the_next_one_is_served(farm: DbpFarm) -> None:
    peer = farm.dealer(HERE, b"chosen")
    peer.send("o_O", T, "x")
    assert len(peer.take()) == 1
    assert peer.closed
    peer.connect()
    assert peer.find() == {}


@pytest.mark.long
def test_an_answer_is_sent_where_heartbeats_have_no_room(farm: DbpFarm) -> None:
    peer = farm.dealer(HERE).registered("Rohan", heartbeat=1)
    peer.stop_reading()
    for _ in range(3):
        assert [frames[0] for frames in peer.ask("u_U", T, "")] == [b"o_O"]
        peer.send("<3", T)
        farm.wait(2)  # the first heartbeat comes after the answer by an interval, and up to a tick
    assert peer.take() == []
    assert farm.counted("dbp_dropped.full") == 3
    peer.read_on()
    farm.wait(1)
    assert [frames[0] for frames in peer.take()] == [b"<3"]


@pytest.mark.long
def test_a_service_that_reads_no_answer_stays_while_it_beats(farm: DbpFarm) -> None:
    peer = farm.dealer(HERE).registered("Rohan", heartbeat=1)
    peer.stop_reading(answers=False)
    for _ in range(5):
        peer.send("u_U", T, "")
        peer.send("UoU", T, {"load": 0.5})
        farm.wait(1)
    assert farm.counted("dbp_dropped.full") >= 10
    assert farm.entry("Rohan").connection is not None
