"""DBP: expiry of services and its time, heartbeats of the broker, and probes.

The file is longer than others: all its tests concern the lease of one kind of service.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.liveness import LATEST, TICK
from broker.core.model import Change, CheckState, Kind, Service
from broker.wires.dbp.dbp_settings import Dbp
from tests.examples import sampled
from tests.recording.logs import nothing_fails
from tests.wires.dbp.recording import BEACON_PORT, FLOAT32, HERE, NAME, TEXT, THERE, DbpFarm, DbpPeer, T

GOOD_BYE = b" </3"

SOME = 5.0
"""Seconds of heartbeats that wait unread at most."""

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}
"""Members of the infos of Hermes' services only."""


@pytest.fixture
def farm() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm()


def beat(name: str) -> bytes:
    """A heartbeat as a datagram."""
    return b" <3 %b %b" % (TEXT, name.encode())


class Gone:
    """The times at which services went, by name."""

    def __init__(self, farm: DbpFarm) -> None:
        self.at: dict[str, float] = {}
        self._farm = farm
        farm.registry.watch(self._changed, (Kind.WITHDRAWN,))

    def _changed(self, change: Change) -> None:
        assert isinstance(change.subject, Service)
        self.at[change.subject.name] = self._farm.clock.seconds()


def silence(farm: DbpFarm, name: str, step: float = 0.005, most: float = 60.0) -> float:
    """The seconds until that service is gone."""
    start = farm.clock.seconds()
    while farm.catalogue.get(name) is not None:
        farm.clock.advance(step)
        assert farm.clock.seconds() < start + most
    return farm.clock.seconds() - start


# a crowd


class Crowd:
    """Many services that beat, and a loop that is busy: it looks at its sockets after its timers, now and then."""

    def __init__(self, farm: DbpFarm, seed: int) -> None:
        self.farm = farm
        self.random = Random(seed)
        self.read: dict[str, float] = {}
        """The time at which the last heartbeat of each was read."""
        self._due: list[tuple[float, int]] = []
        self._services: list[tuple[str, float, Callable[[], object]]] = []
        self.dead: set[str] = set()

    def add(self, name: str, interval: float, send: Callable[[], object]) -> None:
        """A service that beats every ``interval``, give or take a tenth."""
        self._services.append((name, interval, send))
        start = self.farm.clock.seconds() + self.random.random() * interval
        heapq.heappush(self._due, (start, len(self._services) - 1))
        self.read[name] = self.farm.clock.seconds()

    def go(self, seconds: float, least: float = 0.005, most: float = 0.04) -> None:
        """Let time pass in steps between these."""
        clock = self.farm.clock
        end = clock.seconds() + seconds
        while (now := clock.seconds()) < end:
            clock.advance(self.random.uniform(least, most))
            self.deliver()
            assert clock.seconds() > now
            self.farm.udp.sent.clear()

    def set_back(self, seconds: float) -> None:
        """The clock was set back: all go on as before, and say so at other times."""
        self._due = [(at - seconds, number) for at, number in self._due]
        self.read = {name: at - seconds for name, at in self.read.items()}

    def deliver(self) -> None:
        """Messages sent in the meantime are read."""
        now = self.farm.clock.seconds()
        while self._due[0][0] <= now:
            at, number = heapq.heappop(self._due)
            name, interval, send = self._services[number]
            if name in self.dead:
                continue
            send()
            self.read[name] = now
            following = at + interval * self.random.uniform(0.9, 1.1)
            heapq.heappush(self._due, (max(following, now - SOME), number))  # more does not fit in a socket's buffer


def crowd(farm: DbpFarm, size: int, interval: float, seed: int = 1) -> Crowd:
    """A third beats by UDP, a third over the ROUTER, and a third now so and now so."""
    many = Crowd(farm, seed)
    for number in range(size):
        name = f"s{number}"
        peer = farm.dealer().registered(name, port=6000, heartbeat_ms=round(interval * 1000))
        source = (THERE, 20_000 + number)

        def by_udp(name: str = name, source: tuple[str, int] = source) -> None:
            farm.datagrams.receive(beat(name), source)

        def by_router(peer: DbpPeer = peer, name: str = name) -> None:
            peer.send("<3", T, name)
            peer.take_raw()

        def by_either(udp: Callable[[], None] = by_udp, router: Callable[[], None] = by_router) -> None:
            many.random.choice((udp, router))()

        many.add(name, interval, (by_udp, by_router, by_either)[number % 3])
    return many


@pytest.mark.long
def test_of_a_thousand_services_that_beat_nobody_is_thought_gone_by_a_busy_loop(farm: DbpFarm) -> None:
    many, gone = crowd(farm, 1_000, 1.0), Gone(farm)
    many.go(125)
    assert gone.at == {}
    assert len(farm.catalogue) == 1_000
    assert farm.counted("dbp_services.expired") == 0
    assert farm.probes.asked == [], "none of them missed a heartbeat"


@pytest.mark.parametrize(("interval", "busy"), [(1.0, 0.04), (0.5, 0.02)])
def test_those_of_a_crowd_that_die_are_found_out_in_time_and_nobody_else(
    farm: DbpFarm, interval: float, busy: float
) -> None:
    """A loop whose turns take longer loses more of its time, and half a second leaves less room for that."""
    many, gone = crowd(farm, 200, interval), Gone(farm)
    many.go(5)
    dead = {f"s{number}" for number in range(0, 200, 3)} | {f"s{number}" for number in range(1, 200, 6)}
    for name in sorted(dead):
        many.go(0.05, most=busy)
        many.dead.add(name)
    many.go(4 * interval, most=busy)
    assert set(gone.at) == dead
    for name, at in gone.at.items():
        assert 3.0 < (at - many.read[name]) / interval <= 3.2


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_on_a_starved_machine_the_silent_are_found_out_within_five_intervals_and_nobody_else(
    farm: DbpFarm, interval: float
) -> None:
    """Four or five turns a second are all that the loop gets."""
    many, gone = crowd(farm, 200, interval), Gone(farm)
    many.go(10, least=0.2, most=LATEST)
    dead = {f"s{number}" for number in range(0, 200, 3)}
    for name in sorted(dead):
        many.go(0.2, least=0.2, most=LATEST)
        many.dead.add(name)
    many.go(5 * interval, least=0.2, most=LATEST)
    assert set(gone.at) == dead
    for name, at in gone.at.items():
        assert 3.0 < (at - many.read[name]) / interval <= 5.0


# deaths of each kind

Life = Callable[[DbpFarm, DbpPeer, float], None]


def by_udp(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    for _ in range(4):
        farm.wait(interval)
        farm.datagram(beat("Rohan"))


def over_the_router(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    for _ in range(4):
        farm.wait(interval)
        peer.send("<3", T, "Rohan")


def over_the_router_and_closed(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    over_the_router(farm, peer, interval)
    peer.close()


def by_req(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    peer.close()
    for _ in range(4):
        farm.wait(interval)
        req = farm.req()
        [[command, _]] = req.ask("<3", T, "Rohan")
        assert command == b"u.u"
        req.close()


def by_updates(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    for number in range(4):
        farm.wait(interval)
        peer.send("UoU", T, {"topics": [number]})


def by_one_way_after_the_other(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    by_udp(farm, peer, interval)
    over_the_router(farm, peer, interval)
    by_req(farm, peer, interval)


def with_another_clock(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    """The time that a peer writes is never believed."""
    for time in (b"0", b"1e20", b"1795246600"):
        farm.wait(interval)
        farm.datagram(b" <3 %b Rohan" % time)


def not_at_all(farm: DbpFarm, peer: DbpPeer, interval: float) -> None:
    pass


@pytest.mark.parametrize("liveness", sampled([3, 4, 5]))
@pytest.mark.parametrize("interval", [1.0, 0.5])
@pytest.mark.parametrize(
    "life",
    [
        by_udp,
        over_the_router,
        over_the_router_and_closed,
        by_req,
        by_updates,
        by_one_way_after_the_other,
        with_another_clock,
        not_at_all,
    ],
)
@pytest.mark.parametrize("fall_back", [True, False])
def test_each_death_is_found_out_within_a_fifth_of_an_interval(
    life: Life, interval: float, liveness: int, fall_back: bool
) -> None:
    for phase in range(5):
        with nothing_fails():
            farm = DbpFarm(Dbp(fall_back=fall_back))
            farm.dealer().registered("another", heartbeat=30)  # whose lease keeps the ticks going
            farm.clock.advance(phase * TICK / 5)
            peer = farm.dealer().registered("Rohan", port=6000, heartbeat=interval, liveness=liveness)
            life(farm, peer, interval)
            assert liveness < silence(farm, "Rohan") / interval <= liveness + 0.2
            assert farm.counted("dbp_services.expired") == 1


@pytest.mark.parametrize("liveness", [3, 4, 5])
@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_who_beats_just_in_time_again_and_again_is_never_thought_gone(
    farm: DbpFarm, interval: float, liveness: int
) -> None:
    farm.dealer().registered("Rohan", heartbeat=interval, liveness=liveness)
    for _ in range(20):
        farm.wait(0.999 * liveness * interval, 0.001)
        farm.datagram(beat("Rohan"))
    assert farm.counted("dbp_services.expired") == 0


@pytest.mark.parametrize("busy", [0.01, 0.02, 0.03, 0.04])
def test_what_came_just_in_time_counts_though_a_tick_was_handled_before_it_was_read(farm: DbpFarm, busy: float) -> None:
    """A tick counts what passed up to a twentieth of a second, and what lies unread meanwhile was in time."""
    for phase in range(20):
        name = f"Rohan{phase}"
        farm.clock.advance(phase * 0.0013)
        farm.dealer().registered(name, heartbeat=1, liveness=3)
        farm.wait(1)
        farm.datagram(beat(name))
        farm.wait(2.975, 0.005)
        farm.clock.advance(0.024)
        # It is sent now, a thousandth before the end of three intervals, while the loop is busy for ``busy``.
        farm.clock.advance(busy)
        farm.datagram(beat(name))
        assert farm.catalogue.get(name) is not None
        farm.dealer().send("</3", T, name)


# a loop that stands still


@pytest.mark.parametrize("stall", [5.0, 60.0, 3_600.0])
def test_a_broker_that_stood_still_thinks_nobody_gone(farm: DbpFarm, stall: float) -> None:
    many, gone = crowd(farm, 30, 1.0), Gone(farm)
    many.go(3)
    for _ in range(10):
        farm.clock.advance(stall)
        many.deliver()
        many.go(0.5)
    many.go(3)
    assert gone.at == {}


def test_a_broker_that_is_always_busy_for_five_seconds_thinks_nobody_gone(farm: DbpFarm) -> None:
    many, gone = crowd(farm, 30, 1.0), Gone(farm)
    many.go(600, 5.0, 5.0)
    assert gone.at == {}


def test_a_clock_that_is_set_back_neither_ends_anybody_nor_keeps_the_dead(farm: DbpFarm) -> None:
    many, gone = crowd(farm, 30, 1.0), Gone(farm)
    many.go(3)
    many.dead.add("s0")
    farm.clock.advance(-3_600)
    many.set_back(3_600)
    many.go(10)
    assert list(gone.at) == ["s0"]


def test_a_clock_that_is_set_forward_ends_nobody(farm: DbpFarm) -> None:
    many, gone = crowd(farm, 30, 1.0), Gone(farm)
    many.go(3)
    farm.clock.advance(86_400)
    many.deliver()
    many.go(5)
    assert gone.at == {}


# contracts


def test_an_acknowledgement_by_udp_is_a_sign_of_life_of_all_who_beat_from_there(farm: DbpFarm) -> None:
    for name in ("one", "two", "other"):
        farm.dealer().registered(name, heartbeat=1)
    for name in ("one", "two"):
        farm.datagram(beat(name), (THERE, 7))
    farm.datagram(beat("other"), (THERE, 8))
    for _ in range(3):
        farm.wait(2)
        farm.datagram(b" u.u %b" % TEXT, (THERE, 7))
    assert [entry.name for entry in farm.catalogue] == ["one", "two"]


def test_what_is_said_through_other_connections_keeps_nobody_alive_but_updates_and_heartbeats(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    other = farm.dealer()
    for _ in range(10):
        farm.wait(0.5)
        if farm.catalogue.get("Rohan") is not None:
            assert other.ask("u_U", T, "Rohan")
            assert other.ask("ping", T, "")
    assert farm.catalogue.get("Rohan") is None


def test_who_said_nothing_of_an_interval_stays_for_ever(farm: DbpFarm) -> None:
    farm.hermes().registered("Rohan", **HERMES)
    farm.dealer().registered("Gondor")
    assert len(farm.leases) == 0
    farm.wait(86_400, 60)
    assert len(farm.catalogue) == 2
    assert farm.udp.sent == []
    assert farm.probes.asked == []


@pytest.mark.parametrize("life", [by_udp, over_the_router, by_req, over_the_router_and_closed])
def test_the_first_heartbeat_begins_a_contract_at_the_configured_terms(life: Life) -> None:
    with nothing_fails():
        farm = DbpFarm(Dbp(interval=0.7, liveness=4))
        peer = farm.dealer().registered("Rohan")
        farm.wait(100)
        life(farm, peer, 0.7)
        assert 4.0 < silence(farm, "Rohan") / 0.7 <= 4.2


@pytest.mark.parametrize("frames", [("u.u", T), ("u_U", T, ""), ("UoU", T, {"topics": []})])
def test_nothing_but_a_heartbeat_or_an_interval_begins_a_contract(farm: DbpFarm, frames: tuple[Any, ...]) -> None:
    peer = farm.dealer().registered("Rohan")
    peer.send(*frames)
    assert not farm.entry("Rohan").contract
    farm.wait(10)
    assert farm.catalogue.get("Rohan") is not None


def test_the_rest_of_a_lease_is_known(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    farm.dealer().registered("Mordor")
    lasting = farm.entry("Mordor").provider
    provider = farm.entry("Rohan").provider
    assert (farm.catalogue.left(lasting), farm.catalogue.left(provider + 100)) == (None, None)
    farm.wait(2)
    left = farm.catalogue.left(provider)
    assert left is not None
    assert left <= silence(farm, "Rohan") <= left + 0.1, "checked at the next tick"
    assert farm.catalogue.left(provider) is None


def test_an_update_with_an_interval_begins_a_contract_and_one_without_does_not_end_it(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan")
    farm.wait(10)
    assert peer.ask("UoU", T, {"heartbeat": 0.5})[0][0] == b"u.u"
    farm.wait(1.4)
    assert peer.ask("UoU", T, {"heartbeat": None})[-1][0] == b"u.u"
    assert 3.0 < silence(farm, "Rohan") <= 3.2, "the configured second, then"


def test_an_update_changes_what_is_agreed(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=10, liveness=5)
    farm.wait(20)
    peer.send("UoU", T, {"heartbeat": 0.5, "liveness": 3})
    assert 1.5 < silence(farm, "Rohan") <= 1.6
    peer = farm.dealer().registered("Rohan", heartbeat=0.5)
    peer.send("UoU", T, {"heartbeat": 10})
    farm.wait(29)
    assert farm.catalogue.get("Rohan") is not None


def test_other_terms_count_for_who_registers_from_then_on(farm: DbpFarm) -> None:
    farm.dealer().registered("old", heartbeat=1)
    farm.use(Dbp(least_interval=2.0))
    farm.dealer().registered("new", heartbeat=1)
    assert 3.0 < silence(farm, "old") <= 3.2
    assert 2.8 < silence(farm, "new") <= 3.4


# The values of an info that are read, with numbers that make sense and others that do not.
numbers: st.SearchStrategy[Any] = st.one_of(
    st.integers(-5, 10_000),
    st.floats(0, 10, allow_subnormal=True),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1000", "0.5", "often", True, None, 10**400, [], {}]),
)
timings = st.dictionaries(
    st.sampled_from(["heartbeat", "heartbeat_ms", "heartbeat_interval", "interval", "liveliness", "liveness", "retry"]),
    numbers,
    max_size=4,
)


@given(timings, st.booleans())
def test_what_is_agreed_is_what_is_enforced(timing: dict[str, Any], hermes: bool) -> None:
    """The agreement is stated in milliseconds, within the configured bounds, and kept to the letter."""
    with nothing_fails():
        farm = DbpFarm(Dbp(least_interval=0.25, most_interval=2.0, fall_back=False))
        [[command, _, configuration, *rest]] = farm.dealer().register("Rohan", **timing, **(HERMES if hermes else {}))
        assert (command, rest) == (b"OwO", [b"", b""])
        agreed = json.loads(configuration)
        assert agreed.keys() == {"heartbeat", "liveness"}
        assert 250 <= agreed["heartbeat"] <= 2_000
        assert 3 <= agreed["liveness"] <= 5
        farm.datagram(beat("Rohan"))
        expected = agreed["heartbeat"] * agreed["liveness"] / 1000
        assert expected - 0.003 < silence(farm, "Rohan", 0.02) <= expected + 0.003 + 0.1


# who is told that the broker lives


def test_the_beats_follow_a_service_whose_datagrams_come_from_elsewhere(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1)
    for port in (1_000, 2_000):
        farm.datagram(beat("Rohan"), (THERE, port))
        farm.udp.sent.clear()
        farm.wait(1.1)
        assert {to for _, to in farm.udp.sent} == {(THERE, port)}


def test_who_beats_over_its_connection_is_told_there_in_the_form_of_its_time(farm: DbpFarm) -> None:
    for time in (TEXT, b"\0\0\0\0\0\0\xda\x41", FLOAT32):
        peer = farm.dealer(time=time).registered(f"Rohan{len(time)}", heartbeat=1)
        heard = 0
        for _ in range(20):
            farm.wait(0.5)
            peer.send("<3", T)
            for command, sent, name in peer.take():
                assert (command, name) == (b"<3", NAME.encode())
                assert len(sent) == len(time)
                heard += 1
        assert 9 <= heard <= 11
    assert farm.udp.sent == []


def test_who_beats_by_both_ways_is_told_by_both(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=1)
    for _ in range(5):
        farm.wait(1)
        peer.send("<3", T)
        farm.datagrams.receive(beat("Rohan"), (THERE, 9))
    assert len(farm.udp.take((THERE, 9))) >= 4
    assert len(peer.take()) >= 4


def test_who_is_under_no_contract_is_told_nothing(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan")
    farm.wait(10)
    assert peer.take() == []
    assert farm.udp.sent == []


def test_nothing_is_ever_sent_to_a_req_socket_but_replies(farm: DbpFarm) -> None:
    req = farm.req().registered("Rohan", heartbeat=1, port=6000)
    hermes = farm.hermes().registered("Gondor", liveliness=1000, **HERMES)
    farm.wait(2)
    for peer, name in ((req, "Rohan"), (hermes, "Gondor")):
        assert peer.take() == []
        [reply] = peer.ask("<3", T, name)
        assert reply[0] == b"u.u"
    farm.wait(5)
    assert req.take() == hermes.take() == []
    assert len(farm.catalogue) == 0


def test_nothing_is_ever_sent_to_the_port_of_the_beacon(farm: DbpFarm) -> None:
    source = (THERE, BEACON_PORT)
    farm.dealer().registered("Rohan", heartbeat=1)
    assert farm.datagram(beat("Rohan"), source) == []
    assert farm.datagram(beat("stranger"), source) == []
    assert farm.datagram(b" </3 %b" % TEXT, (THERE, 5)) == []
    farm.wait(10)
    assert farm.udp.sent == []
    assert farm.counted("dbp_services.expired") == 1


def test_who_is_thought_gone_is_told_wherever_it_can_be_and_then_nothing_more(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=1)
    farm.datagram(beat("Rohan"))
    peer.send("<3", T)
    silence(farm, "Rohan")
    assert [frames[0] for frames in peer.take()][-1] == b"</3"
    assert farm.udp.sent[-1][0].startswith(GOOD_BYE)
    farm.udp.sent.clear()
    assert peer.ask("u_U", T, "") == []
    farm.wait(60)
    assert peer.take() == []
    assert farm.udp.sent == []
    assert farm.clock.getDelayedCalls() == []


def test_a_service_that_registered_by_a_req_socket_and_beats_over_another_is_told_there(farm: DbpFarm) -> None:
    req = farm.req().registered("Rohan", heartbeat=1)
    dealer = farm.dealer()
    for _ in range(5):
        farm.wait(1)
        dealer.send("<3", T, "Rohan")
    assert req.take() == []
    assert len(dealer.take()) >= 3


def test_a_service_that_lost_its_connection_is_told_over_the_next_one_over_which_it_beats(farm: DbpFarm) -> None:
    first = farm.dealer().registered("Rohan", heartbeat=1)
    first.close()
    farm.wait(1)
    second = farm.dealer()
    for _ in range(5):
        second.send("<3", T, "Rohan")
        farm.wait(1)
    assert len(second.take()) >= 4


def test_a_connection_that_is_replaced_ends_before_the_first_message_of_the_next(farm: DbpFarm) -> None:
    """The number of a connection never comes again: the end of one is not the end of the other."""
    peer = farm.dealer(identity=b"rohan").registered("Rohan", heartbeat=1)
    before = peer.number
    peer.connect()
    assert farm.entry("Rohan").connection is None
    for _ in range(3):
        peer.send("<3", T, "Rohan")
        farm.wait(1)
    assert len(peer.take()) >= 2
    farm.commands.closed(before)
    connection = farm.entry("Rohan").connection
    assert connection is not None
    assert connection.number == peer.number


def test_after_the_newer_connection_of_a_service_ends_the_older_one_gets_its_heartbeats(farm: DbpFarm) -> None:
    older = farm.dealer().registered("Rohan", heartbeat=1, liveness=9)
    older.send("<3", T)
    newer = farm.dealer()
    newer.send("<3", T, "Rohan")
    farm.wait(2)
    assert newer.take()
    assert older.take() == []
    newer.close()
    farm.wait(3)
    assert len(older.take()) >= 2
    older.close()
    assert farm.entry("Rohan").connection is None


def test_an_older_connection_that_has_ended_is_not_used_again(farm: DbpFarm) -> None:
    older = farm.dealer().registered("Rohan", heartbeat=1)
    newer = farm.dealer()
    newer.send("<3", T, "Rohan")
    older.close()
    newer.close()
    assert farm.entry("Rohan").connection is None


def test_the_older_connection_of_a_removed_service_speaks_for_none(farm: DbpFarm) -> None:
    older = farm.dealer().registered("Rohan", heartbeat=1)
    newer = farm.dealer()
    newer.send("<3", T, "Rohan")
    entry = farm.entry("Rohan")
    newer.send("</3", T)
    assert entry.removed
    assert entry.connection is None
    assert not farm.commands.needs(older.number)


# who is asked whether it lives


def asked(farm: DbpFarm, since: int = 0) -> list[tuple[str, int]]:
    return [probe.place for probe in farm.probes.asked[since:]]


@pytest.mark.parametrize("interval", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("life", [by_udp, over_the_router, by_req, not_at_all])
def test_a_service_is_asked_when_one_heartbeat_is_missing_and_not_before(
    farm: DbpFarm, life: Life, interval: float
) -> None:
    peer = farm.dealer().registered("Rohan", port=6000, heartbeat=interval)
    life(farm, peer, interval)
    farm.wait(1.45 * interval, 0.005)
    assert farm.probes.asked == []
    farm.wait(0.1 * interval + TICK, 0.005)
    assert asked(farm) == [(THERE, 6000)]


@pytest.mark.parametrize(
    ("address", "said", "place"),
    [
        (THERE, {"port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "127.0.0.1", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "127.9.9.9", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "localhost", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "0.0.0.0", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "*", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "::1", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "2001:db8::1", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "rohan.example", "port": 6000}, (THERE, 6000)),
        (THERE, {"ip": "198.51.100.9", "port": 6000}, ("198.51.100.9", 6000)),
        (THERE, HERMES, (THERE, 5247)),
        (HERE, HERMES, (HERE, 5247)),
        (HERE, {"ip": "127.0.0.2", "port": 6000}, ("127.0.0.2", 6000)),
        (HERE, {"ip": "::1", "port": 6000}, (HERE, 6000)),
    ],
)
def test_a_service_is_asked_where_it_is(
    farm: DbpFarm, address: str, said: dict[str, Any], place: tuple[str, int]
) -> None:
    farm.dealer(address).registered("Rohan", heartbeat_ms=1000, **said)
    farm.wait(2)
    assert asked(farm) == [place]


@pytest.mark.parametrize(
    ("address", "ip", "port", "kind", "reason"),
    [
        (THERE, "169.254.169.254", 80, "special", "169.254.169.254 is a link-local address"),
        (HERE, "169.254.169.254", 80, "special", "169.254.169.254 is a link-local address"),
        (THERE, "224.0.0.1", 80, "special", "224.0.0.1 is a multicast address"),
        (HERE, "127.0.0.1", 5246, "own-listener", "127.0.0.1 port 5246 is a listener of this broker"),
        (HERE, "127.0.0.2", 9000, "own-listener", "127.0.0.2 port 9000 is a listener of this broker"),
    ],
)
def test_a_service_at_an_address_that_is_not_permitted_is_not_asked(
    farm: DbpFarm, address: str, ip: str, port: int, kind: str, reason: str
) -> None:
    farm.dealer(address).registered("Rohan", heartbeat=1, ip=ip, port=port)
    farm.wait(2)
    [service] = farm.registry.services("Rohan", "tcp")
    check = farm.registry.check_of(service)
    assert check is not None
    assert (check.state, check.reason) == (CheckState.UNTESTED, f"not checked: {reason}")
    assert farm.entry("Rohan").unprobed == check.reason
    assert 1.0 < silence(farm, "Rohan") <= 1.2, "it expires in time"
    assert farm.probes.asked == []
    assert set(farm.probes.refused) == {kind}
    assert len(farm.probes.refused) < 10
    assert farm.counters.all()["dbp_refused.address-not-allowed"] == 1


def test_the_reason_goes_with_the_address(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=1, ip="169.254.169.254", port=80)
    farm.wait(2)
    assert farm.entry("Rohan").unprobed
    peer.ask("UoU", T, {"ip": THERE, "port": 6000})
    farm.wait(2)
    assert asked(farm) == [(THERE, 6000)]
    assert not farm.entry("Rohan").unprobed
    [service] = farm.registry.services("Rohan", "tcp")
    assert farm.registry.check_of(service) is None


def test_the_reason_goes_with_the_probes(farm: DbpFarm) -> None:
    farm.use(Dbp(probe=1.0))
    farm.dealer().registered("Rohan", ip="169.254.169.254", port=80)
    farm.wait(2)
    [service] = farm.registry.services("Rohan", "tcp")
    assert farm.entry("Rohan").unprobed
    assert farm.registry.check_of(service) is not None
    farm.use(Dbp())
    assert not farm.entry("Rohan").unprobed
    assert farm.registry.check_of(service) is None


@pytest.mark.parametrize("said", [{}, {"port": 0}, {"port": 65_536}, {"port": "none"}, {"ip": "198.51.100.9"}])
def test_a_service_that_said_no_port_is_not_asked_and_expires_in_time(farm: DbpFarm, said: dict[str, Any]) -> None:
    farm.dealer().registered("Rohan", heartbeat=1, **said)
    assert 3.0 < silence(farm, "Rohan") <= 3.2
    assert farm.probes.asked == []


UPDATE = {"name": "Rohan", "x": 1}
"""Updates may come over another connection."""


@pytest.mark.parametrize("frames", [("<3", T), ("UoU", T, UPDATE)])
@pytest.mark.parametrize("time", [TEXT, FLOAT32, b"\0\0\0\0\0\0\xda\x41"])
def test_a_service_of_the_document_is_asked_by_a_heartbeat_in_the_form_of_time_that_it_used_last(
    farm: DbpFarm, time: bytes, frames: tuple[Any, ...]
) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    if frames[-1] == UPDATE:
        peer = farm.dealer()
    peer.time = time
    peer.send(*frames)
    farm.wait(2)
    [probe] = farm.probes.asked
    delimiter, command, sent, name = probe.frames
    assert (delimiter, command, name) == (b"", b"<3", NAME.encode())
    assert len(sent) == len(time)


@pytest.mark.parametrize("time", [TEXT, FLOAT32])
def test_a_service_of_hermes_is_asked_by_a_ping_with_four_bytes_of_time(farm: DbpFarm, time: bytes) -> None:
    farm.req(time=time).registered("Rohan", liveliness=1000, **HERMES)
    farm.wait(2)
    [probe] = farm.probes.asked
    delimiter, command, sent, _ = probe.frames
    assert (delimiter, command) == (b"", b"ping")
    assert len(sent) == 4


@pytest.mark.parametrize("liveness", [3, 5])
@pytest.mark.parametrize("interval", [0.2, 1.0, 10.0])
def test_questions_come_one_at_a_time_until_the_time_is_over(farm: DbpFarm, interval: float, liveness: int) -> None:
    farm.dealer().registered("another", heartbeat=100)  # whose lease keeps the ticks going
    farm.dealer().registered("Rohan", heartbeat=interval, liveness=liveness, port=6000)
    lasted = silence(farm, "Rohan", most=100)
    assert liveness * interval < lasted <= liveness * interval + max(0.2 * interval, 0.13)
    probes = list(farm.probes.asked)
    assert 2 <= len(probes) <= 2 * liveness
    for before, after in pairwise(probes):
        assert after.asked >= before.asked + before.seconds
    end = farm.clock.seconds()
    farm.wait(2 * interval)
    assert farm.probes.asked == probes
    assert probes[-1].asked + probes[-1].seconds <= end + TICK


def test_questions_cost_no_time_where_nothing_else_is_looked_after(farm: DbpFarm) -> None:
    start = farm.leases.now
    farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    lasted = silence(farm, "Rohan")
    assert lasted == pytest.approx(farm.leases.now - start, abs=TICK / 5)


def test_any_answer_keeps_a_service_alive_for_ever(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    farm.probes.alive.add((THERE, 6000))
    farm.wait(600)
    assert farm.catalogue.get("Rohan") is not None
    assert 300 <= len(farm.probes.asked) <= 600
    farm.probes.alive.clear()
    last = farm.entry("Rohan").heard
    silence(farm, "Rohan")
    assert 3.0 < farm.leases.now - last <= 3.2


def test_two_services_at_one_place_are_asked_one_after_the_other(farm: DbpFarm) -> None:
    for name in ("one", "two"):
        farm.dealer().registered(name, heartbeat=1, port=6000)
    farm.probes.alive.add((THERE, 6000))
    farm.wait(60)
    assert len(farm.catalogue) == 2
    for before, after in pairwise(farm.probes.asked):
        assert after.asked >= before.asked + 0.001
    farm.probes.alive.clear()
    farm.wait(4)
    assert len(farm.catalogue) == 0


def test_two_services_at_one_place_that_answers_again_in_time_both_live(farm: DbpFarm) -> None:
    for name in ("one", "two"):
        farm.dealer().registered(name, heartbeat=1, port=6000)
    farm.wait(1.7)
    farm.probes.alive.add((THERE, 6000))
    farm.wait(3)
    assert len(farm.catalogue) == 2


def test_a_service_that_beats_again_is_not_asked_any_more(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    farm.wait(1.6)
    assert len(farm.probes.asked) == 1
    for _ in range(20):
        farm.datagrams.receive(beat("Rohan"), (THERE, 7))
        farm.wait(1)
    assert len(farm.probes.asked) == 1


def test_without_the_fall_back_nobody_is_asked() -> None:
    with nothing_fails():
        farm = DbpFarm(Dbp(fall_back=False))
        farm.dealer().registered("Rohan", heartbeat=1, port=6000)
        farm.probes.alive.add((THERE, 6000))
        assert 3.0 < silence(farm, "Rohan") <= 3.2
        assert farm.probes.asked == []


def test_the_fall_back_may_be_switched_off_and_on_while_it_runs(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    farm.use(Dbp(fall_back=False))
    farm.wait(2)
    assert farm.probes.asked == []
    farm.use(Dbp())
    farm.probes.alive.add((THERE, 6000))
    farm.wait(10)
    assert farm.catalogue.get("Rohan") is not None


def test_an_answer_that_comes_when_the_service_is_gone_or_another_changes_nothing(farm: DbpFarm) -> None:
    peer = farm.dealer().registered("Rohan", heartbeat=1, port=6000)
    farm.wait(1.6)
    [probe] = farm.probes.asked
    peer.send("</3", T)
    probe.answer(True)
    assert farm.catalogue.get("Rohan") is None
    farm.dealer().registered("Rohan", port=6000)
    probe.answer(True)
    assert not farm.entry("Rohan").proved
    farm.wait(60)
    assert farm.catalogue.get("Rohan") is not None
    assert len(farm.leases) == 0


# those without a contract, who are asked if that is configured


@pytest.fixture
def asking() -> Iterator[DbpFarm]:
    with nothing_fails():
        yield DbpFarm(Dbp(probe=10.0))


def test_who_is_under_no_contract_is_asked_now_and_then(asking: DbpFarm) -> None:
    asking.hermes().registered("Rohan", **HERMES)
    asking.probes.alive.add((HERE, 5247))
    asking.wait(101)
    assert asked(asking) == [(HERE, 5247)] * 10
    assert {probe.frames[1] for probe in asking.probes.asked} == {b"ping"}
    assert asking.catalogue.get("Rohan") is not None


@pytest.mark.parametrize("liveness", [3, 4, 5])
def test_who_has_answered_once_is_gone_after_so_many_questions_without_an_answer(
    asking: DbpFarm, liveness: int
) -> None:
    asking.hermes().registered("Rohan", retry=liveness, **HERMES)
    asking.probes.alive.add((HERE, 5247))
    asking.wait(21)
    asking.probes.alive.clear()
    before = len(asking.probes.asked)
    silence(asking, "Rohan", TICK, 100)
    assert len(asking.probes.asked) - before == liveness
    assert asking.counted("dbp_services.expired") == 1
    assert len(asking.leases) == 0


def test_who_has_never_answered_stays(asking: DbpFarm) -> None:
    asking.hermes().registered("Rohan", **HERMES)
    asking.wait(1_000)
    assert asking.catalogue.get("Rohan") is not None
    assert len(asking.probes.asked) >= 99


def test_an_answer_in_between_restarts_the_count(asking: DbpFarm) -> None:
    asking.hermes().registered("Rohan", **HERMES)
    for alive in (True, False, False) * 5:
        asking.probes.alive = {(HERE, 5247)} if alive else set()
        asking.wait(10)
    assert asking.catalogue.get("Rohan") is not None


@pytest.mark.parametrize("said", [("UoU", T, {"x": 1}), ("u_U", T, ""), ("u.u", T)])
def test_whatever_a_service_says_by_itself_counts_as_an_answer(asking: DbpFarm, said: tuple[Any, ...]) -> None:
    peer = asking.dealer().registered("Rohan", port=6000)
    asking.probes.alive.add((THERE, 6000))
    asking.wait(11)
    asking.probes.alive.clear()
    for _ in range(100):
        asking.wait(1)
        peer.send(*said)
    assert asking.catalogue.get("Rohan") is not None


def test_a_connected_service_under_no_contract_is_told_when_it_is_thought_gone(asking: DbpFarm) -> None:
    peer = asking.dealer().registered("Rohan", port=6000)
    asking.probes.alive.add((THERE, 6000))
    asking.wait(11)
    asking.probes.alive.clear()
    silence(asking, "Rohan", TICK, 100)
    assert [frames[0] for frames in peer.take()] == [b"</3"]


def test_who_begins_to_beat_is_not_asked_now_and_then_any_more(asking: DbpFarm) -> None:
    asking.dealer().registered("Rohan", port=6000)
    asking.wait(15)
    assert len(asking.probes.asked) == 1
    for _ in range(60):
        asking.datagrams.receive(beat("Rohan"), (THERE, 7))
        asking.wait(1)
    assert len(asking.probes.asked) == 1
    assert 2.0 < silence(asking, "Rohan") <= 2.2, "it was silent for a second before"


def test_questions_now_and_then_may_be_switched_on_and_off(farm: DbpFarm) -> None:
    farm.hermes().registered("Rohan", **HERMES)
    farm.use(Dbp(probe=1.0))
    farm.wait(5.5)
    assert len(farm.probes.asked) == 5
    farm.use(Dbp())
    farm.wait(60)
    assert len(farm.probes.asked) == 5
    assert len(farm.leases) == 0


def test_questions_that_are_switched_on_outside_of_a_quantum_begin_after_their_time(farm: DbpFarm) -> None:
    farm.hermes().registered("Rohan", **HERMES)
    farm.dealer().registered("slow", heartbeat=30, port=1)
    farm.wait(1.0)
    farm.clock.advance(20.0)
    farm.use(Dbp(probe=10.0))
    farm.wait(9.5)
    assert asked(farm) == []
    farm.wait(1.0)
    assert asked(farm) == [(HERE, 5247)]


# health checks


def test_a_health_check_is_a_probe_and_its_answer_is_a_sign_of_life(farm: DbpFarm) -> None:
    farm.dealer().registered("Rohan", port=6000)
    [provider] = [each.id for each in farm.registry.providers()]
    answers: list[bool | None] = []
    assert farm.catalogue.ping(provider, 2.0, answers.append)
    assert asked(farm) == [(THERE, 6000)]
    assert not farm.catalogue.ping(provider, 2.0, answers.append), "one probe at a time"
    assert answers == []
    farm.wait(2.1)
    assert answers == [False]
    farm.probes.alive.add((THERE, 6000))
    assert farm.catalogue.ping(provider, 2.0, answers.append)
    farm.wait(0.1)
    assert answers == [False, True]
    entry = farm.catalogue.get("Rohan")
    assert entry is not None
    assert entry.proved
    assert entry.heard >= farm.leases.now - 0.2


def test_a_health_check_of_what_is_not_registered(farm: DbpFarm) -> None:
    answers: list[bool | None] = []
    assert not farm.catalogue.ping(99, 2.0, answers.append)
    farm.dealer().registered("Rohan")
    [provider] = [each.id for each in farm.registry.providers()]
    assert not farm.catalogue.ping(provider, 2.0, answers.append), "it has no address"
    other = farm.registry.join("Rohan", "elko", "192.0.2.9")
    assert not farm.catalogue.ping(other, 2.0, answers.append), "a provider of another wire"
    farm.wait(3)
    assert answers == []
