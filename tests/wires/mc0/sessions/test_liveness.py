"""mc0: when sessions end for silence or for the end of their connection, and when a NOOP is sent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from broker.core.liveness import SLACK, TICK
from broker.wires.mc0.sessions.mc0_session import EXPIRES
from broker.wires.mc0.sessions.session_table import CHECKS_PER_TTL, MIN_TTL, RECONNECT_WITHIN
from tests.recording.farm import STEP
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer, rule

CONNECTOR = "VERSION|0.2"
"""A message that only the real connector sends."""

AROUND = TICK + 0.011
"""Seconds: a tick, and the step of the clock in which it is noticed."""


@pytest.fixture
def farm() -> Iterator[Mc0Farm]:
    with nothing_fails():
        yield Mc0Farm()


def connected(farm: Mc0Farm, ttl: int, more: str = "") -> Mc0Peer:
    """A peer with a TTL that is subscribed to a topic."""
    peer = farm.peer("C")
    assert peer.ask(f"CONNECT|ID|c|TTL|{ttl}{more}") == ["OK|ID|c"]
    assert peer.ask("SUB|ID|s||t") == ["OK|ID|s"]
    return peer


def lasts(farm: Mc0Farm, peer: Mc0Peer, step: float = 0.01) -> float:
    """The remaining time of its session."""
    start = farm.clock.seconds()
    while farm.session(peer) is not None:
        farm.clock.advance(step)
        assert farm.clock.seconds() < start + 300
    return farm.clock.seconds() - start


# silence


@pytest.mark.parametrize("ttl", [1_000, 2_000, 30_000])
def test_a_session_ends_after_a_silence_of_its_ttl_and_a_twentieth(farm: Mc0Farm, ttl: int) -> None:
    peer = connected(farm, ttl)
    tolerated = 1.05 * ttl / 1000
    assert tolerated < lasts(farm, peer) <= tolerated + SLACK + ttl / 1000 / CHECKS_PER_TTL + 2 * AROUND
    assert set(peer.take()) == {"NOOP"}
    assert farm.subscribers() == {}
    assert farm.counted("mc0_sessions.expired") == 1
    farm.wait(3 * ttl / 1000)
    assert peer.take() == []
    assert peer.connected


@pytest.mark.parametrize("line", ["NOOP", "NOOP|ID|n", "PUT|TOPIC|u||x", "SUB||u", "UNSUB||u", "CONNECT", "PING", ""])
def test_any_message_is_a_sign_of_life(farm: Mc0Farm, line: str) -> None:
    peer = connected(farm, 1_000)
    for _ in range(10):
        farm.wait(1.0)
        peer.say(line)
    assert farm.session(peer) is not None
    assert farm.subscribers()[b"t"] == 1


def test_what_is_sent_to_a_peer_is_no_sign_of_its_life(farm: Mc0Farm) -> None:
    peer, publisher = connected(farm, 1_000), farm.peer("P")
    for _ in range(30):
        farm.wait(0.1)
        publisher.say("PUT|TOPIC|t||x")
    assert farm.session(peer) is None
    assert len(peer.take()) < 14


def test_an_expired_peer_is_not_notified_and_begins_again_without_ttl_and_subscriptions(farm: Mc0Farm) -> None:
    peer, publisher = connected(farm, 1_000), farm.peer("P")
    lasts(farm, peer)
    peer.take()
    assert peer.ask("NOOP") == []
    assert peer.ask("NOOP|ID|n") == ["OK|ID|n"]
    publisher.say("PUT|TOPIC|t||x")
    for _ in range(30):
        farm.wait(1)
        peer.say("NOOP")
    assert peer.take() == [], "it is to notice that nothing comes any more"
    session = farm.session(peer)
    assert session is not None
    assert session.ttl == 0


def test_connect_without_a_ttl_leaves_it_as_it_was(farm: Mc0Farm) -> None:
    peer = connected(farm, 2_000)
    assert peer.ask("CONNECT|ID|again") == ["OK|ID|again"]
    assert 2.1 < lasts(farm, peer) < 2.5


def test_connect_with_another_ttl_replaces_it(farm: Mc0Farm) -> None:
    peer = connected(farm, 60_000)
    farm.wait(5)
    assert peer.ask("CONNECT|ID|again|TTL|1000") == ["OK|ID|again"]
    assert 1.05 < lasts(farm, peer) < 1.5


def test_connect_with_a_longer_ttl_replaces_it_as_well(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    assert peer.ask("CONNECT|ID|again|TTL|20000") == ["OK|ID|again"]
    assert peer.wait_for("NOOP", 30) == pytest.approx(10, abs=2 * AROUND)


def test_a_ttl_of_zero_means_neither_noops_nor_an_end(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    assert peer.ask("CONNECT|ID|again|TTL|0") == ["OK|ID|again"]
    farm.wait(600)
    assert peer.take() == []
    assert farm.subscribers() == {b"t": 1}


def test_a_very_short_ttl_costs_little_and_does_not_end_at_once(farm: Mc0Farm) -> None:
    peer = connected(farm, 1)
    assert EXPIRES * MIN_TTL + SLACK - 0.001 <= lasts(farm, peer) < 1
    assert len(peer.take()) <= 4


def test_a_broker_that_stood_still_thinks_nobody_gone(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    for _ in range(20):
        farm.clock.advance(100)
        peer.say("NOOP")
    assert farm.session(peer) is not None
    assert farm.counted("mc0_sessions.expired") == 0


def test_a_clock_that_is_set_back_neither_ends_sessions_nor_keeps_noops_from_them(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    farm.wait(0.4)
    farm.clock.advance(-3_600)
    for _ in range(10):
        peer.say("NOOP")
        farm.wait(0.9)
    assert farm.session(peer) is not None
    assert 16 <= len(peer.take()) <= 18


# NOOP


@pytest.mark.parametrize("id", ["", "|ID|c"])
@pytest.mark.parametrize("ttl", [1_000, 3_000, 30_000])
def test_a_noop_comes_after_half_a_ttl_in_which_nothing_was_sent(farm: Mc0Farm, ttl: int, id: str) -> None:
    peer = farm.peer()
    peer.say(f"CONNECT|TTL|{ttl}{id}")
    assert peer.take() == (["OK|ID|c"] if id else [])
    half, grain = ttl / 2000, ttl / 1000 / CHECKS_PER_TTL
    for _ in range(5):
        assert half - AROUND <= peer.wait_for("NOOP", 2 * half) <= half + grain + 2 * AROUND
        peer.say("NOOP")


def test_noops_of_sessions_with_the_same_ttl_go_out_together(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"P{number}") for number in range(20)]
    for peer in peers:
        peer.say("CONNECT|TTL|30000")
        farm.clock.advance(0.02)
    heard: dict[int, int] = {}
    for step in range(800):
        farm.clock.advance(0.02)
        count = sum(len(peer.take()) for peer in peers)
        if count:
            heard[step] = count
    assert sum(heard.values()) == 20
    assert len(heard) <= 2


@pytest.mark.parametrize("ttl", [1_000, 3_000, 30_000])
def test_the_connector_never_misses_a_sign_of_our_life(farm: Mc0Farm, ttl: int) -> None:
    """It gives up after 1.0 TTL without any message, and itself says NOOP after 0.95."""
    peer, publisher = connected(farm, ttl, f"|{CONNECTOR}"), farm.peer("P")
    heard = [farm.clock.seconds()]
    said = published = farm.clock.seconds()
    end = said + 10 * ttl / 1000
    while (now := farm.clock.seconds()) < end:
        if now - said >= 0.95 * ttl / 1000:
            peer.say("NOOP")
            said = now
        if now - published >= 1.37 * ttl / 1000:
            publisher.say("PUT|TOPIC|t||x")
            published = now
        heard += [now] * len(peer.take())
        farm.clock.advance(0.02)
    assert farm.session(peer) is not None
    assert max(after - before for before, after in pairwise(heard)) < 0.6 * ttl / 1000 + TICK


@pytest.mark.parametrize("line", ["PUT|TOPIC|t||x", "NOOP|ID|n", "PING"])
def test_whatever_is_sent_takes_the_place_of_noops(farm: Mc0Farm, line: str) -> None:
    peer = connected(farm, 1_000)
    for _ in range(20):
        farm.wait(0.4)
        assert len(peer.ask(line)) == 1
    assert peer.wait_for("NOOP", 1) == pytest.approx(0.5, abs=2 * AROUND)


def test_what_a_peer_says_does_not_take_the_place_of_noops(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    for _ in range(50):
        farm.wait(0.2)
        peer.say("NOOP")
    assert 18 <= len(peer.take()) <= 20


def test_a_noop_that_finds_no_room_is_counted_and_the_session_goes_on(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    peer.stop_reading()
    for _ in range(5):
        farm.wait(1)
        peer.say("NOOP")
    assert farm.session(peer) is not None
    assert 8 <= farm.counted("mc0_dropped.noop") <= 10
    peer.read_on()
    farm.wait(0.6)
    assert peer.take() == ["NOOP"]


def test_a_peer_whose_connection_is_gone_keeps_its_session_for_its_ttl(farm: Mc0Farm) -> None:
    peer, publisher = connected(farm, 2_000), farm.peer("P")
    peer.drop()
    farm.wait(1.5)
    assert publisher.ask("PUT|TOPIC|t|ID|p||lost") == ["OK|ID|p"]
    assert farm.counted("mc0_dropped.gone") == 1
    peer.connect()
    publisher.say("PUT|TOPIC|t||heard")
    assert peer.take() == ["MESSAGE|TOPIC|t||heard"], "though it said nothing itself"
    peer.drop()
    assert lasts(farm, peer) < 1


def test_a_peer_without_an_identity_of_its_own_leaves_no_session_behind(farm: Mc0Farm) -> None:
    peer = farm.peer(b"\0abcd")
    assert peer.ask("CONNECT|ID|c|TTL|86400000") == ["OK|ID|c"]
    assert peer.ask("SUB|ID|s||t") == ["OK|ID|s"]
    peer.drop()
    assert farm.session(peer) is None
    assert farm.subscribers() == {}
    assert farm.counted("mc0_sessions.gone") == 1
    assert len(farm.leases) == 0


# after a restart


def test_after_a_restart_a_peer_hears_nothing_until_it_connects(farm: Mc0Farm) -> None:
    peer, publisher = connected(farm, 1_000, f"|{CONNECTOR}"), farm.peer("P")
    farm.restart()
    for _ in range(100):
        farm.wait(0.95)
        peer.say("NOOP")
        publisher.say("PUT|TOPIC|t||x")
    assert peer.take() == []
    assert peer.ask(f"CONNECT|ID|c2|TTL|1000|{CONNECTOR}") == ["OK|ID|c2"]
    assert peer.ask("SUB|ID|s2||t") == ["OK|ID|s2"]
    publisher.say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]
    assert peer.wait_for("NOOP", 1) == pytest.approx(0.5, abs=2 * AROUND)


@pytest.mark.parametrize("line", ["PUT|TOPIC|elkobroker.load||x", "PUT|TOPIC|forbidden||x", "SUB||forbidden"])
def test_a_refusal_that_was_not_asked_for_is_kept_from_who_did_not_connect(line: str) -> None:
    with nothing_fails():
        farm = Mc0Farm(rule(publish="t", subscribe="t"))
        peer = farm.peer()
        assert peer.ask(line) == []
        assert farm.counted("mc0_refused.forbidden") == 1
        peer.say(f"CONNECT|TTL|30000|{CONNECTOR}")
        assert peer.ask(line) == []
        peer.say("CONNECT|TTL|30000|VERSION|0.3")
        [error] = peer.ask(line)
        assert " has no right to " in error


# without a TTL


def test_a_session_without_a_ttl_lasts_as_long_as_its_connection(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    farm.wait(1_000)
    assert farm.session(peer) is not None
    assert peer.take() == []
    peer.drop()
    assert RECONNECT_WITHIN <= lasts(farm, peer, STEP) <= RECONNECT_WITHIN + 2 * STEP
    assert farm.subscribers() == {}
    assert farm.counted("mc0_sessions.gone") == 1


@pytest.mark.parametrize("line", ["NOOP", "PUT|TOPIC|t||x", "CONNECT"])
def test_a_session_without_a_ttl_and_subscriptions_ends_with_its_connection(farm: Mc0Farm, line: str) -> None:
    peer = farm.peer()
    peer.say(line)
    peer.drop()
    assert farm.session(peer) is None
    assert farm.counted("mc0_sessions.gone") == 1
    assert len(farm.leases) == 0


def test_while_its_connection_is_open_a_session_without_a_ttl_costs_no_lease(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    assert len(farm.leases) == 0
    peer.drop()
    assert len(farm.leases) == 1
    peer.connect()
    peer.say("NOOP")
    assert len(farm.leases) == 0
    peer.say("CONNECT|TTL|1000")
    assert len(farm.leases) == 1


@pytest.mark.parametrize("ttl", [0, 30_000])
def test_the_end_of_an_older_connection_does_not_concern_a_session_that_has_moved(farm: Mc0Farm, ttl: int) -> None:
    peer, publisher = farm.peer("A"), farm.peer("P")
    peer.say(f"CONNECT|TTL|{ttl}")
    peer.say("SUB||t")
    older = peer.line
    assert older is not None
    with farm.router.receiving(peer.sender):
        farm.wire.receive(b"A", [b"", b"NOOP"], 1_000)
    farm.wire.closed(older.number)
    if not ttl:
        farm.wait(2 * RECONNECT_WITHIN)
    publisher.say("PUT|TOPIC|t||x")
    assert "MESSAGE|TOPIC|t||x" in peer.take()
    session = farm.session(peer)
    assert session is not None
    assert session.connection == 1_000


def test_a_peer_without_a_ttl_that_comes_back_goes_on(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    peer.say("SUB||t")
    peer.drop()
    peer.connect()
    peer.say("NOOP")
    farm.wait(10 * RECONNECT_WITHIN)
    other.say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]


@pytest.mark.parametrize("key", ["", "K1"])
def test_a_peer_without_a_ttl_that_comes_back_and_only_listens_goes_on(key: str) -> None:
    farm = Mc0Farm(keys={"K1": "one"})
    peer, other = farm.peer("A", key), farm.peer("B", key)
    peer.say("SUB||t")
    peer.drop()
    other.say("PUT|TOPIC|t||lost")
    peer.connect()
    other.say("PUT|TOPIC|t||at once")
    assert peer.take() == ["MESSAGE|TOPIC|t||at once"]
    farm.wait(10 * RECONNECT_WITHIN)
    other.say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]
    assert peer.line is not None
    assert farm.routes.needs(peer.line.number)


def test_a_peer_without_a_ttl_that_only_listens_has_a_minute_to_come_back_each_time(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    peer.say("SUB||t")
    peer.drop()
    peer.connect()
    farm.wait(RECONNECT_WITHIN - 1)
    peer.drop()
    farm.wait(2)
    peer.connect()
    other.say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]
    peer.drop()
    assert RECONNECT_WITHIN <= lasts(farm, peer, STEP) <= RECONNECT_WITHIN + 2 * STEP


def test_a_session_that_gets_a_ttl_and_loses_it_again_still_lasts_as_long_as_its_connection(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    peer.say("CONNECT|TTL|0")
    farm.wait(10)
    peer.drop()
    assert lasts(farm, peer, STEP) <= RECONNECT_WITHIN + 2 * STEP


# a drain


@pytest.mark.parametrize("ttl", [0, 30_000])
def test_a_drain_does_not_count_as_time_in_which_a_peer_could_come_back(farm: Mc0Farm, ttl: int) -> None:
    back, gone, other = connected(farm, ttl), farm.peer("gone"), farm.peer("other")
    gone.say(f"CONNECT|TTL|{ttl}")
    gone.say("SUB||t")
    other.say("NOOP")
    farm.wire.drain()
    for peer in (back, gone, other):
        peer.drop()
    farm.wait(1_000)
    assert farm.subscribers() == {b"t": 2}
    farm.wire.undrain()
    within = ttl / 1000 or RECONNECT_WITHIN
    farm.wait(within - 1)
    assert farm.subscribers() == {b"t": 2}
    back.connect()
    back.say("NOOP")
    farm.wait(0.05 * within + 2)
    assert farm.subscribers() == {b"t": 1}
    back.take()
    farm.peer("publisher").say("PUT|TOPIC|t||x")
    assert back.take() == ["MESSAGE|TOPIC|t||x"]
    assert len(farm.leases) == (1 if ttl else 0)


def test_a_peer_that_is_not_sent_away_by_a_drain_goes_on(farm: Mc0Farm) -> None:
    peer = connected(farm, 1_000)
    farm.wire.drain()
    farm.wait(0.6)
    assert peer.take() == ["NOOP"]
    farm.wait(10)
    assert farm.subscribers() == {}


# what is left


def test_when_all_are_gone_no_timer_is_left(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"P{number}") for number in range(20)]
    for number, peer in enumerate(peers):
        peer.say(f"CONNECT|TTL|{number % 4 * 500}")
        peer.say("SUB||t|u")
    for peer in peers[::2]:
        peer.say("DISCONNECT")
    for peer in peers:
        peer.drop()
    farm.wait(2 * RECONNECT_WITHIN)
    assert list(farm.wire.table) == []
    assert farm.subscribers() == {}
    assert farm.clock.getDelayedCalls() == []
