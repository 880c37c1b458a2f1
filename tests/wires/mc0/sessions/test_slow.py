"""mc0: peers that do not read: what is dropped, what waits, in which order it comes, and what it costs the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recording.farm import STEP
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import REPLIES, Mc0Farm, Mc0Peer


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    with nothing_fails() as warnings:
        yield warnings


@pytest.fixture
def farm(warnings: list[str]) -> Mc0Farm:
    return Mc0Farm()


@pytest.fixture
def slow(farm: Mc0Farm) -> Mc0Peer:
    """A peer that is subscribed to a topic, and then does not read any more."""
    peer = farm.peer("slow")
    assert peer.ask("SUB|ID|s||t") == ["OK|ID|s"]
    peer.stop_reading()
    return peer


@pytest.fixture
def publisher(farm: Mc0Farm) -> Mc0Peer:
    return farm.peer("publisher")


# messages


def test_what_finds_no_room_is_dropped_and_counted_and_delivery_resumes(
    farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer
) -> None:
    slow.stop_reading(after=3)
    for number in range(10):
        assert publisher.ask(f"PUT|TOPIC|t|ID|{number}||{number}") == [f"OK|ID|{number}"]
    assert slow.take() == [f"MESSAGE|TOPIC|t||{number}" for number in range(3)]
    assert farm.counted("mc0_dropped.full") == 7
    assert farm.counted("mc0.delivered") == 3
    session = farm.session(slow)
    assert session is not None
    assert session.dropped == 7
    slow.read_on()
    publisher.say("PUT|TOPIC|t||after")
    assert slow.take() == ["MESSAGE|TOPIC|t||after"]


def test_a_slow_subscriber_costs_the_others_nothing(farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer) -> None:
    others = [farm.peer(f"o{number}") for number in range(3)]
    for other in others:
        other.say("SUB||t")
    slow.say("NOOP|ID|waits")
    expected = [f"MESSAGE|TOPIC|t||{number}" for number in range(2_000)]
    for number in range(2_000):
        publisher.say(f"PUT|TOPIC|t||{number}")
    assert [other.take() for other in others] == [expected] * 3
    assert publisher.ask("NOOP|ID|n") == ["OK|ID|n"]
    assert farm.counted("mc0_dropped.full") == 2_000


def test_one_that_is_gone_costs_the_others_nothing(farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer) -> None:
    other = farm.peer("other")
    other.say("SUB||t")
    slow.drop()
    assert publisher.ask("PUT|TOPIC|t|ID|p||x") == ["OK|ID|p"]
    assert other.take() == ["MESSAGE|TOPIC|t||x"]
    assert farm.counted("mc0_dropped.gone") == 1


def test_what_is_dropped_in_a_row_is_logged_once(
    farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer, warnings: list[str]
) -> None:
    for _ in range(100):
        publisher.say("PUT|TOPIC|t||x")
    assert warnings == ["mc0 peer 192.0.2.7: not-reading: slow: reads too slowly: messages for it are dropped"]
    assert farm.counted("mc0_refused.not-reading") == 1


def test_a_peer_that_is_slow_again_and_again_does_not_fill_the_log(
    farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer, warnings: list[str]
) -> None:
    slow.read_on()
    slow.say("CONNECT|TTL|200")
    for _ in range(300):
        slow.stop_reading()
        publisher.say("PUT|TOPIC|t||x")
        slow.read_on()
        slow.say("NOOP")
        farm.wait(0.2)
        slow.take()
    assert farm.counted("mc0_dropped.full") == 300
    assert 1 <= len(warnings) <= 2, "a minute has passed"
    assert farm.counted("mc0_refused.not-reading") == 300


def test_a_peer_that_connects_again_and_is_slow_again_is_logged_again(
    farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer
) -> None:
    for _ in range(2):
        slow.stop_reading()
        for _ in range(3):
            publisher.say("PUT|TOPIC|t||x")
        slow.connect()
    assert farm.counted("mc0_refused.not-reading") == 2


# answers


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("SUB|ID|x||u", "OK|ID|x"),
        ("UNSUB|ID|x||t", "OK|ID|x"),
        ("CONNECT|ID|x|VERSION|0.2", "OK|ID|x"),
        ("PUT|ID|x|TOPIC|v||body", "OK|ID|x"),
        ("NOOP|ID|x", "OK|ID|x"),
        (
            "PUT|ID|x|TOPIC|elkobroker.load",
            "ERROR|MESSAGE|a peer without a user has no right to publish 'elkobroker.load' here|ID|x",
        ),
        ("PING|ID|x", "ERROR|MESSAGE|Unknown command verb 'PING'|ID|x"),
    ],
)
def test_an_answer_finds_room_where_messages_do_not(farm: Mc0Farm, slow: Mc0Peer, line: str, answer: str) -> None:
    slow.say(line)
    assert slow.take() == [answer]
    farm.wait(30)
    assert slow.take() == []


def test_messages_and_noops_are_dropped_while_answers_wait(farm: Mc0Farm, publisher: Mc0Peer) -> None:
    peer = farm.peer("connector")
    peer.stop_reading()
    peer.say("CONNECT|ID|c|TTL|1000|VERSION|0.2")
    peer.say("SUB|ID|s||t")
    for number in range(10):
        publisher.say(f"PUT|TOPIC|t||{number}")
        farm.wait(0.1)
        peer.say("NOOP")
    assert peer.take() == ["OK|ID|c", "OK|ID|s"]
    assert farm.counted("mc0_dropped.full") == 10
    peer.read_on()
    publisher.say("PUT|TOPIC|t||afterwards")
    assert peer.take() == ["MESSAGE|TOPIC|t||afterwards"]
    assert peer.wait_for("NOOP", 1) == pytest.approx(0.5, abs=2 * STEP)


def test_answers_and_messages_come_in_the_order_of_their_causes(slow: Mc0Peer, publisher: Mc0Peer) -> None:
    slow.stop_reading(after=3)
    slow.say("NOOP|ID|1")
    publisher.say("PUT|TOPIC|t||x")
    slow.say("PUT|TOPIC|t|ID|2||y")
    publisher.say("PUT|TOPIC|t||dropped")
    slow.say("PING|ID|3")
    assert slow.take() == [
        "OK|ID|1",
        "MESSAGE|TOPIC|t||x",
        "MESSAGE|TOPIC|t||y",
        "OK|ID|2",
        "ERROR|MESSAGE|Unknown command verb 'PING'|ID|3",
    ]


def test_the_messages_of_a_put_are_dropped_rather_than_its_ok(farm: Mc0Farm, slow: Mc0Peer) -> None:
    assert slow.ask("PUT|TOPIC|t|ID|p||x") == ["OK|ID|p"]
    assert farm.counted("mc0_dropped.full") == 1


def test_only_so_many_answers_wait(farm: Mc0Farm, slow: Mc0Peer) -> None:
    for number in range(REPLIES + 50):
        slow.say(f"NOOP|ID|{number}")
    assert slow.take() == [f"OK|ID|{number}" for number in range(REPLIES)]
    assert farm.counted("mc0_dropped.full") == 50
    slow.read_on()
    assert slow.ask("NOOP|ID|n") == ["OK|ID|n"]


def test_a_session_that_is_refused_for_the_limit_is_told_also_where_messages_find_no_room() -> None:
    farm = Mc0Farm(sessions=1)
    farm.peer("first").say("NOOP")
    late = farm.peer("late")
    late.stop_reading()
    assert late.ask("NOOP|ID|n") == ["ERROR|MESSAGE|there are 1 sessions already (mc0.sessions)|ID|n"]


def test_disconnect_ends_the_session_also_of_a_peer_that_does_not_read(farm: Mc0Farm, slow: Mc0Peer) -> None:
    assert slow.ask("DISCONNECT|ID|1") == ["OK|ID|1"]
    assert farm.session(slow) is None
    assert farm.subscribers() == {}


def test_the_ok_to_a_disconnect_that_finds_no_room_is_counted(farm: Mc0Farm, slow: Mc0Peer) -> None:
    for number in range(REPLIES):
        slow.say(f"NOOP|ID|{number}")
    slow.say("DISCONNECT|ID|2")
    assert farm.session(slow) is None
    assert farm.counted("mc0_dropped.ok") == 1
    slow.read_on()
    farm.wait(1)
    assert slow.take() == [f"OK|ID|{number}" for number in range(REPLIES)]
    assert slow.ask("NOOP|ID|3") == ["OK|ID|3"]
