"""The places of peers: the order in which they give way, the share of an address, and the pool of descriptors."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from broker.core.errors import Refusal
from broker.core.place_table import ABORTS, CLOSING, RECENT, PlaceTable, Pool


class Peer:
    """A peer that closes when it is asked to, and is gone once `PlaceTable.gone` was called."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.heard = 0.0
        self.needed = False
        self.crowd = 0
        self.refusal: Refusal | None = None
        self.aborted = False

    def give_way(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def abort(self) -> None:
        self.aborted = True


class Door:
    """A table, and its peers."""

    def __init__(self, clock: Clock, limit: int = 1_000, pool: Pool | None = None) -> None:
        self.table = PlaceTable(limit, clock.seconds, pool)
        self._sources = count()

    def come(self, source: str | None = None, authenticated: bool = False, needed: bool = False) -> Peer | None:
        """A newcomer, from an address of its own by default. Returns None for one that is refused."""
        peer = Peer(f"192.0.2.{next(self._sources)}" if source is None else source)
        peer.needed = needed
        if self.table.make_room(peer.source) is not None:
            self.table.refused(peer)
            return None
        self.table.take(peer, authenticated)
        return peer

    def fill(self, number: int, **about: bool) -> list[Peer]:
        peers = [self.come(**about) for _ in range(number)]  # type: ignore[arg-type]
        return [peer for peer in peers if peer is not None]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gave_way(peers: list[Peer]) -> list[int]:
    return [number for number, peer in enumerate(peers) if peer.refusal is not None]


def test_strangers_give_way_by_age_and_then_known_peers_by_idleness(clock: Clock) -> None:
    door = Door(clock, 4)
    peers = door.fill(4)
    for peer in peers[:2]:
        door.table.authenticated(peer)
    clock.advance(1)
    peers[0].heard = clock.seconds()
    for expected in ([2], [2, 3], [1, 2, 3], [0, 1, 2, 3]):
        newcomer = door.come(authenticated=True, needed=True)
        assert newcomer is not None
        assert gave_way(peers) == expected
    assert door.come() is None
    assert (door.table.displaced, door.table.turned_away) == (4, 1)


def test_a_crowd_replaces_its_own_peers_only(clock: Clock) -> None:
    door = Door(clock, 100)
    others = door.fill(20)
    crowd = [door.come("198.51.100.1") for _ in range(1_000)]
    assert gave_way(others) == []
    assert sum(peer is not None and peer.refusal is None for peer in crowd) == 80
    assert door.come() is not None


def test_a_newcomer_of_the_largest_crowd_is_refused_where_others_alone_could_give_way(clock: Clock) -> None:
    door = Door(clock, 10)
    others = door.fill(5, authenticated=True)
    for _ in range(5):
        door.come("198.51.100.1", authenticated=True, needed=True)
    assert door.come("198.51.100.1") is None
    assert gave_way(others) == []


def test_an_address_keeps_half_of_the_places_against_newcomers_of_others(clock: Clock) -> None:
    door = Door(clock, 20)
    crowd = [door.come("198.51.100.1", authenticated=True, needed=True) for _ in range(20)]
    assert door.come("198.51.100.1") is None
    others = door.fill(30, authenticated=True, needed=True)
    assert len(others) == 10
    assert sum(peer is not None and peer.refusal is None for peer in crowd) == 10
    assert gave_way(others) == []


def test_a_crowd_replaces_its_idle_peers_where_strangers_of_others_are_fewer(clock: Clock) -> None:
    door = Door(clock, 6)
    crowd = [door.come("198.51.100.1", authenticated=True) for _ in range(5)]
    strangers = door.fill(1)
    assert door.come("198.51.100.1") is not None
    assert gave_way([peer for peer in crowd if peer is not None]) == [0]
    assert gave_way(strangers) == []


def test_among_peers_of_one_address_those_that_came_in_numbers_give_way_first(clock: Clock) -> None:
    door = Door(clock, 3)
    peers = [door.come("127.0.0.1") for _ in range(3)]
    for peer, crowd in zip(peers, (0, 1, 9), strict=True):
        assert peer is not None
        peer.crowd = crowd
    door.come("127.0.0.1")
    assert gave_way([peer for peer in peers if peer is not None]) == [2]


def test_a_peer_counts_for_the_address_of_its_client_once_that_is_known(clock: Clock) -> None:
    door = Door(clock)
    for authenticated in (False, True):
        peer = door.come("proxy", authenticated)
        assert peer is not None
        door.table.move(peer, "client")
        assert (peer.source, door.table.of("proxy"), door.table.of("client")) == ("client", 0, 1)
        door.table.leave(peer)
        door.table.move(peer, "another")
        assert (door.table.of("client"), door.table.of("another")) == (0, 0)


def test_closing_connections_keep_their_time_until_places_are_scarce(clock: Clock) -> None:
    door = Door(clock, 100)
    peers = door.fill(100)
    for peer in peers:
        door.table.leave(peer)
    assert not any(peer.aborted for peer in peers)
    again = door.fill(100)
    assert gave_way(again) == []
    aborted = 0
    while aborted < 100 - CLOSING:
        door.come()
        before, aborted = aborted, sum(peer.aborted for peer in peers)
        assert 0 < aborted - before <= 2 * ABORTS, "a few for each that arrives, or gives way"


def test_a_listener_takes_what_others_do_not_need_and_each_has_its_reserve(clock: Clock) -> None:
    pool = Pool(80)
    busy, idle = Door(clock, pool=pool), Door(clock, pool=pool)
    assert len(busy.fill(100, authenticated=True, needed=True)) == 70
    assert busy.table.full
    assert not idle.table.full
    assert len(idle.fill(10, authenticated=True, needed=True)) == 10
    assert idle.come() is None, "all others are needed"
    assert "refused" in idle.table.trouble


def test_at_the_end_of_the_pool_strangers_of_the_largest_listener_give_way_first(clock: Clock) -> None:
    pool = Pool(80)
    attacked, used = Door(clock, pool=pool), Door(clock, pool=pool)
    hostile = attacked.fill(60)
    assert len(used.fill(20, authenticated=True)) == 20
    assert gave_way(hostile) == []
    assert used.come(authenticated=True) is not None
    assert gave_way(hostile) == [0]
    assert used.come() is not None
    assert gave_way(hostile) == [0, 1]


def test_at_its_own_limit_a_listener_displaces_its_own_peers_only(clock: Clock) -> None:
    pool = Pool(80)
    other, full = Door(clock, pool=pool), Door(clock, 3, pool)
    strangers, own = other.fill(60), full.fill(3)
    assert full.come(authenticated=True) is not None
    assert (gave_way(strangers), gave_way(own)) == ([], [0])


def test_a_table_is_reported_as_full_for_a_while(clock: Clock) -> None:
    door = Door(clock, 1)
    assert not door.table.full
    door.come()
    assert (door.table.full, door.table.trouble) == (True, "")
    door.come()
    assert "give way" in door.table.trouble
    assert not door.table.turns_away
    clock.advance(RECENT)
    assert door.table.trouble == ""


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 3)), max_size=200))
def test_whatever_comes_and_goes_the_bounds_hold(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    pool = Pool(16)
    doors = [Door(clock, 10, pool), Door(clock, 20, pool)]
    present: list[list[Peer]] = [[], []]
    for what, at, who in steps:
        door, peers = doors[at], present[at]
        clock.advance(1)
        if what <= 3:
            peer = door.come(f"192.0.2.{who}", authenticated=what > 1, needed=what > 2)
            if peer is not None:
                peers.append(peer)
        elif peers:
            peer = peers.pop(who % len(peers))
            door.table.leave(peer)
            if what > 4:
                door.table.gone(peer)
        for each, table in zip(present, (door.table for door in doors), strict=True):
            each[:] = [peer for peer in each if peer.refusal is None]
            assert len(table) == len(each) <= table.limit
            for source in {peer.source for peer in each}:
                assert table.of(source) == sum(peer.source == source for peer in each)
        assert sum(len(each.table) for each in doors) <= 16
