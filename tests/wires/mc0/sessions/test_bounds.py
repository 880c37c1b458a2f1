"""mc0: limits, and what peers can make the broker keep."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest
from twisted.logger import Logger

from broker.core.topics import TopicsBounds
from broker.wires.mc0.sessions.mc0_session import Mc0Session
from tests.garbage import set_aside
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    with nothing_fails():
        yield


def sessions_kept(farm: Mc0Farm) -> int:
    """The number of sessions that the broker refers to. (Not those in memory: recent log events hold some as well.)"""
    seen: dict[int, object] = {}
    new: list[object] = [farm]
    while new:
        found = new.pop()
        if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType | Logger):
            seen[id(found)] = found
            new += gc.get_referents(found)
    return sum(isinstance(each, Mc0Session) for each in seen.values())


@pytest.fixture
def memory() -> Iterator[None]:
    set_aside()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def kept() -> int:
    """Bytes that are in use."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# sessions


def test_there_are_only_so_many_sessions() -> None:
    farm = Mc0Farm(sessions=3)
    peers = [farm.peer(f"P{number}") for number in range(3)]
    for peer in peers:
        assert peer.ask("NOOP|ID|n") == ["OK|ID|n"]
    late = farm.peer("late")
    assert late.ask("CONNECT|ID|c|TTL|1000") == ["ERROR|MESSAGE|there are 3 sessions already (mc0.sessions)|ID|c"]
    assert late.ask("PING|ID|x") == ["ERROR|MESSAGE|there are 3 sessions already (mc0.sessions)|ID|x"]
    assert late.ask("NOOP|ID|x|odd") == ["ERROR|MESSAGE|there are 3 sessions already (mc0.sessions)|ID|x"]
    assert late.ask("NOOP") == []
    assert late.ask("PING") == []
    late.send(b"")
    assert late.take() == []
    assert farm.counted("mc0_refused.limit") == 6
    assert peers[0].ask("CONNECT|ID|c|TTL|1000") == ["OK|ID|c"]
    peers[1].say("DISCONNECT")
    assert late.ask("CONNECT|ID|c|TTL|1000") == ["OK|ID|c"]


def test_fewer_sessions_than_there_are_end_none() -> None:
    farm = Mc0Farm(sessions=3)
    peers = [farm.peer(f"P{number}") for number in range(3)]
    for peer in peers:
        peer.say("SUB||t")
    farm.use(sessions=1)
    assert farm.subscribers() == {b"t": 3}
    assert farm.peer("late").ask("NOOP|ID|n") == ["ERROR|MESSAGE|there are 1 sessions already (mc0.sessions)|ID|n"]
    farm.use(sessions=4)
    assert farm.peer("later").ask("NOOP|ID|n") == ["OK|ID|n"]


def test_sessions_that_are_over_are_not_kept() -> None:
    farm = Mc0Farm(keys={"K": "key", "K2": "other"})
    peers = [farm.peer(f"P{number}", "K") for number in range(4)]
    for number, peer in enumerate(peers):
        peer.say("CONNECT|TTL|1000" if number % 2 else "CONNECT")
        peer.say("SUB||t|elkobroker.load")
        peer.stop_reading()
        peer.say("NOOP|ID|waits")
    assert sessions_kept(farm) == 4
    peers[0].say("DISCONNECT")
    peers[2].drop()
    farm.wait(100)
    farm.peer("P0", "K").say("NOOP")
    assert not farm.peer("P0", "K2").connected
    farm.peer("P1", "K").say("NOOP")
    farm.revoke("K")
    assert sessions_kept(farm) == 0


def test_a_session_that_changed_its_connection_is_not_kept_when_it_is_over() -> None:
    farm = Mc0Farm()
    peer = farm.peer()
    peer.say("CONNECT|TTL|1000")
    peer.connect()
    peer.say("NOOP")
    farm.wait(2)
    assert farm.session(peer) is None
    assert sessions_kept(farm) == 0


# subscriptions


@pytest.mark.parametrize("line", ["SUB|ID|s||t3", "SUB|ID|s||t0|t1|t2|t3"])
def test_a_session_has_only_so_many_subscriptions(line: str) -> None:
    farm = Mc0Farm(subscriptions=3)
    peer = farm.peer()
    peer.say("CONNECT|VERSION|0.3")
    assert peer.ask("SUB|ID|s||t0|t1|t2") == ["OK|ID|s"]
    assert peer.ask("SUB|ID|s||t1|t2|t0") == ["OK|ID|s"]
    assert peer.ask(line) == ["ERROR|MESSAGE|may have 3 subscriptions, and no more (mc0.subscriptions)|ID|s"]
    assert farm.subscribers() == {b"t0": 1, b"t1": 1, b"t2": 1}
    assert farm.counted("mc0_refused.limit") == 1
    peer.say("UNSUB||t0")
    assert peer.ask("SUB|ID|s||t3") == ["OK|ID|s"]


def test_a_sub_that_is_refused_for_the_limit_subscribes_to_nothing() -> None:
    farm = Mc0Farm(subscriptions=3)
    peer = farm.peer()
    peer.say("SUB||t0")
    assert peer.ask("SUB|ID|s||t1|t2|t3") == [
        "ERROR|MESSAGE|may have 3 subscriptions, and no more (mc0.subscriptions)|ID|s"
    ]
    assert farm.subscribers() == {b"t0": 1}


def test_the_connector_is_told_ok_also_at_the_limit() -> None:
    farm = Mc0Farm(subscriptions=3)
    peer = farm.peer()
    peer.say("CONNECT|VERSION|0.2|TTL|30000")
    assert peer.ask("SUB|ID|s||t0|t1|t2|t3|t4") == ["OK|ID|s"]
    assert farm.subscribers() == {b"t0": 1, b"t1": 1, b"t2": 1}
    assert farm.counted("mc0_refused.limit") == 1


def test_what_the_connector_may_not_have_for_the_limit_is_shown() -> None:
    farm = Mc0Farm(subscriptions=3)
    peer = farm.peer()
    peer.say("CONNECT|VERSION|0.2|TTL|30000")
    peer.say("SUB||t0|t1|t2|t3|t4")
    session = farm.session(peer)
    assert session is not None
    assert list(session.refused) == [b"t3", b"t4"]


@pytest.mark.parametrize("bounds", [TopicsBounds(subscriptions=5), TopicsBounds(name_bytes=5)])
def test_the_table_of_all_topics_is_bounded(bounds: TopicsBounds) -> None:
    farm = Mc0Farm(topics=bounds)
    peers = [farm.peer(f"P{number}") for number in range(2)]
    answers = [peers[number % 2].ask(f"SUB|ID|s||{number}") for number in range(8)]
    assert answers[:5] == [["OK|ID|s"]] * 5
    assert [answer.startswith("ERROR|MESSAGE|") for [answer] in answers[5:]] == [True] * 3
    assert len(farm.subscribers()) == 5
    peers[0].say("DISCONNECT")
    assert len(farm.subscribers()) == 2
    assert peers[1].ask("SUB|ID|s||5|6|7|8")[0].startswith("ERROR|MESSAGE|")
    assert len(farm.subscribers()) == 2, "all of them or none"
    assert peers[1].ask("SUB|ID|s||6") == ["OK|ID|s"]


# memory


def test_nothing_is_left_of_topics_that_nobody_has() -> None:
    farm = Mc0Farm()
    peer = farm.peer()
    for number in range(1_000):
        peer.say(f"PUT|TOPIC|put {number}||x")
        peer.say(f"SUB||sub {number}")
        peer.say(f"UNSUB||sub {number}|never {number}")
    assert farm.subscribers() == {}
    assert farm.topics.subscriptions == 0
    session = farm.session(peer)
    assert session is not None
    assert list(session.topics) == list(session.refused) == []


def test_what_a_peer_says_is_not_kept(memory: None) -> None:
    farm = Mc0Farm(subscriptions=10)
    peers = [farm.peer(f"P{number}") for number in range(20)]
    other = farm.peer("other")

    def talk(length: int) -> None:
        for number, peer in enumerate(peers):
            long = b"%d" % number * (length // 2)
            peer.send(b"", b"PUT", b"TOPIC", b"t", b"X", long, long, b"v", b"ID", b"i", b"", long)
            peer.send(long, long, long, long)
            peer.send(b"", b"NOOP", b"ID", long, b"X")
            peer.send(b"", b"SUB", b"", long)
            peer.send(b"", b"PUT", b"TOPIC", long)
            peer.send(b"", b"CONNECT", b"TTL", b"1" + long)
            peer.say("CONNECT|VERSION|0.2|TTL|30000")
            peer.take()
        other.say("NOOP")

    talk(100)
    before = kept()
    talk(MEBIBYTE)
    assert kept() - before < MEBIBYTE


def test_a_long_version_is_not_kept(memory: None) -> None:
    farm = Mc0Farm()
    before = kept()
    for number in range(20):
        peer = farm.peer(f"P{number}")
        peer.send(b"", b"CONNECT", b"ID", b"c", b"VERSION", bytes([number]) * MEBIBYTE)
        assert peer.take() == ["OK|ID|c"]
    assert kept() - before < MEBIBYTE


def test_no_answer_is_longer_than_it_must_be() -> None:
    peer = Mc0Farm().peer()
    long = b"i" * MEBIBYTE
    for frames in ([long], [b"PUT", b"TOPIC", long], [b"PUT", b"TOPIC", b"t", long, b""], [b"SUB", b"", long]):
        peer.send(b"", *frames)
        peer.send(b"", *frames[:1], b"ID", b"x", *frames[1:])
        peer.send(b"", *frames[:1], b"ID", long, *frames[1:])
    taken = peer.take()
    assert len(taken) >= 9
    assert max(map(len, taken)) < 1_000


@pytest.mark.parametrize("line", ["PUT|ID|x|TOPIC|t|", "SUB|ID|x|", "UNSUB|ID|x|"])
def test_a_message_of_very_many_frames_is_refused(line: str) -> None:
    peer = Mc0Farm(subscriptions=1_000_000).peer()
    peer.say("SUB||t")
    peer.send(b"", *line.encode().split(b"|"), *[b""] * 100_000)
    [answer] = peer.take()
    assert answer.startswith("ERROR|MESSAGE|")
    assert answer.endswith("|ID|x")


def test_clients_behind_proxies_give_way_when_there_are_too_many_sessions() -> None:
    farm = Mc0Farm(sessions=3)
    proxy, direct = farm.peer("proxy"), farm.peer("direct")
    for number in range(5):
        proxy.send(b"client %d" % number, b"", b"SUB", b"", b"t")
    assert len(list(farm.wire.table)) == 3
    assert direct.ask("NOOP|ID|1") == ["OK|ID|1"]
    assert [session.connection for session in farm.wire.table] == [-4, -5, 2]
    assert farm.counted("mc0_sessions.displaced") == 3
    others = [farm.peer(f"other {number}") for number in range(2)]
    assert [other.ask("NOOP|ID|1") for other in others] == [["OK|ID|1"]] * 2
    assert farm.peer("last").ask("NOOP|ID|1") == ["ERROR|MESSAGE|there are 3 sessions already (mc0.sessions)|ID|1"]
    proxy.drop()
    assert farm.counted("mc0_sessions.displaced") == 5
