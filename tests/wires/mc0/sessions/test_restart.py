"""mc0: sessions that outlast a restart of the broker: which do, for how long, and what their peers notice."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from broker.core.model import KnownSession
from broker.wires.mc0.sessions.mc0_session import MAX_KNOWN_BYTES, MAX_KNOWN_TOPICS
from broker.wires.mc0.sessions.session_table import RECONNECT_WITHIN
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer, rule

KEYS = {"K1": "one", "K2": "two"}

TTL = 30.0

KNOWN = KnownSession(b"node", "", "192.0.2.7", TTL, b"0.2", (b"t", b"u"))


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    with nothing_fails():
        yield


@pytest.fixture
def farm() -> Mc0Farm:
    return Mc0Farm()


@pytest.fixture
def keyed() -> Mc0Farm:
    return Mc0Farm(keys=KEYS)


def subscriber(farm: Mc0Farm, identity: str = "node", key: str = "", ttl: float = TTL) -> Mc0Peer:
    """A peer that has subscribed to two topics as the real connector does."""
    peer = farm.peer(identity, key)
    assert peer.ask(f"CONNECT|ID|c|TTL|{ttl * 1000:.0f}|VERSION|0.2") == ["OK|ID|c"]
    assert peer.ask("SUB|ID|s||t|u") == ["OK|ID|s"]
    return peer


def restart(farm: Mc0Farm) -> None:
    farm.restart(farm.record.known())


def publish(farm: Mc0Farm, key: str = "") -> None:
    farm.peer("publisher", key).say("PUT|TOPIC|t||x")


# what is recorded


def test_a_session_is_recorded_as_it_is(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    assert farm.record.known() == [KNOWN]
    peer.say("UNSUB||t")
    peer.say("SUB||new")
    assert farm.record.known() == [attrs.evolve(KNOWN, topics=(b"u", b"new"))]
    peer.say("CONNECT|TTL|5000|VERSION|0.3")
    assert farm.record.known() == [attrs.evolve(KNOWN, ttl=5.0, version=b"0.3", topics=(b"u", b"new"))]


@pytest.mark.parametrize("end", ["DISCONNECT", "expired", "revoked", "taken"])
def test_a_session_that_ends_is_not_recorded_any_more(keyed: Mc0Farm, end: str) -> None:
    peer = subscriber(keyed, key="K1")
    assert len(keyed.record.known()) == 1
    if end == "DISCONNECT":
        peer.say("DISCONNECT")
    elif end == "expired":
        keyed.wait(1.05 * TTL + 1)
    elif end == "revoked":
        keyed.revoke("K1")
    else:
        peer.drop()
        keyed.router.claim = None
        keyed.peer("node", "K2").say("NOOP")
    assert keyed.record.known() == []


def test_a_peer_that_only_publishes_costs_the_disk_nothing(farm: Mc0Farm) -> None:
    peer = farm.peer()
    for line in ("PUT|TOPIC|t||x", "NOOP", "UNSUB||t", "CONNECT"):
        peer.say(line)
    assert farm.record.known() == []


def test_what_changes_nothing_costs_the_disk_nothing(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    before = farm.record.changes
    for line in ("SUB||t|u", "UNSUB||other", "NOOP", "PUT|TOPIC|t||x", "CONNECT|TTL|30000|VERSION|0.2"):
        peer.say(line)
    assert farm.record.changes == before


def test_an_identity_that_the_router_made_is_not_recorded(farm: Mc0Farm) -> None:
    farm.peer(b"\0abcd").say("SUB||t")
    assert farm.record.known() == []


@pytest.mark.parametrize(
    "topics",
    [
        [f"{number}" for number in range(MAX_KNOWN_TOPICS + 1)],
        [f"{number}".ljust(MAX_KNOWN_BYTES // 9 + 1) for number in range(9)],
    ],
)
def test_a_session_with_very_many_topics_is_not_recorded_until_it_has_fewer(topics: list[str]) -> None:
    farm = Mc0Farm(subscriptions=1_000)
    peer = farm.peer()
    peer.say(f"SUB||{'|'.join(topics)}")
    assert farm.record.known() == []
    peer.say(f"UNSUB||{topics[0]}")
    [known] = farm.record.known()
    assert [topic.decode() for topic in known.topics] == topics[1:]


# what is restored


def test_a_peer_that_says_nothing_after_the_restart_is_sent_messages_and_noops(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    restart(farm)
    publish(farm)
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]
    assert peer.wait_for("NOOP", TTL / 2 + 1) >= TTL / 2 - 1


def test_a_restored_session_goes_on_where_it_was(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    restart(farm)
    assert peer.ask("PUT|TOPIC|u|ID|p||x") == ["MESSAGE|TOPIC|u||x", "OK|ID|p"]
    session = farm.session(peer)
    assert session is not None
    assert (session.version, session.ttl, list(session.topics)) == (b"0.2", TTL, [b"t", b"u"])
    assert peer.line is not None
    assert session.connection == peer.line.number
    assert farm.counted("mc0_sessions.restored") == 1
    peer.say("UNSUB||t")
    assert farm.subscribers() == {b"u": 1}
    assert farm.record.known() == [attrs.evolve(KNOWN, topics=(b"u",))]


def test_a_peer_that_does_not_come_back_is_waited_for_one_ttl(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    peer.drop()
    restart(farm)
    farm.wait(TTL)
    assert farm.subscribers() == {b"t": 1, b"u": 1}
    farm.wait(0.05 * TTL + 1)
    assert farm.subscribers() == {}
    assert farm.counted("mc0_sessions.expired") == 1


def test_a_peer_without_a_ttl_has_a_minute_to_come_back(farm: Mc0Farm) -> None:
    gone, back = farm.peer("gone"), farm.peer("back")
    for peer in (gone, back):
        peer.say("SUB||t")
    gone.drop()
    restart(farm)
    farm.wait(RECONNECT_WITHIN - 1)
    assert farm.subscribers() == {b"t": 2}
    farm.wait(2)
    assert farm.subscribers() == {b"t": 1}


@pytest.mark.parametrize("ttl", [0, TTL])
def test_a_peer_that_says_nothing_after_the_restart_is_needed_and_can_be_disconnected(
    farm: Mc0Farm, ttl: float
) -> None:
    peer = subscriber(farm, ttl=ttl)
    assert peer.line is not None
    restart(farm)
    assert farm.routes.needs(peer.line.number)
    assert farm.wire.disconnect("node") == peer.line.number


def test_a_session_that_was_restored_outlasts_the_next_restart_too(farm: Mc0Farm) -> None:
    peer = subscriber(farm)
    known = farm.record.known()
    farm.restart(known)
    assert farm.record.changes == 0, "it is in the store as it is"
    farm.restart(known)
    publish(farm)
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]


def test_topics_that_were_refused_are_asked_for_again(farm: Mc0Farm) -> None:
    farm.use(rule(subscribe="t", publish="*"))
    peer = subscriber(farm)
    farm.restart(farm.record.known())
    session = farm.session(peer)
    assert session is not None
    assert (list(session.topics), list(session.refused)) == ([b"t"], [b"u"])
    farm.use(rule(subscribe="*"))
    assert list(session.topics) == [b"t", b"u"]


# which may not


def test_a_key_that_is_allowed_no_more_gets_no_session_back(keyed: Mc0Farm) -> None:
    subscriber(keyed, "A", "K1")
    subscriber(keyed, "B", "K2")
    known = keyed.record.known()
    del keyed.keys["K1"]
    keyed.restart(known)
    assert [session.identity for session in keyed.wire.table] == [b"B"]


@pytest.mark.parametrize("before", ["", "K1"])
def test_a_session_is_not_restored_where_keys_came_or_went(before: str) -> None:
    known = attrs.evolve(KNOWN, key=before)
    farm = Mc0Farm(keys={} if before else KEYS)
    farm.restart([known])
    assert farm.subscribers() == {}


def test_after_a_restart_too_an_identity_belongs_to_its_key(keyed: Mc0Farm) -> None:
    peer = subscriber(keyed, key="K1")
    peer.drop()
    keyed.router.claim = None
    keyed.restart(keyed.record.known())
    thief = keyed.peer("node", "K2")
    assert thief.ask("NOOP|ID|n") == []
    publish(keyed, "K2")
    assert thief.take() == []
    assert keyed.subscribers() == {}


def test_no_more_are_restored_than_there_may_be() -> None:
    farm = Mc0Farm(sessions=3)
    farm.restart([attrs.evolve(KNOWN, identity=b"%d" % number) for number in range(5)])
    assert [session.identity for session in farm.wire.table] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("known", "ttl"),
    [
        (attrs.evolve(KNOWN, ttl=1e300), 86_400.0),
        (attrs.evolve(KNOWN, ttl=1e-9), 0.2),
        (attrs.evolve(KNOWN, identity=b""), None),
        (attrs.evolve(KNOWN, identity=b"x" * 256), None),
        (attrs.evolve(KNOWN, identity=b"\0made"), None),
    ],
)
def test_values_that_no_peer_can_have_sent_do_no_harm(known: KnownSession, ttl: float | None) -> None:
    farm = Mc0Farm()
    farm.restart([known])
    assert [session.ttl for session in farm.wire.table] == ([] if ttl is None else [ttl])
    farm.wait(2)
