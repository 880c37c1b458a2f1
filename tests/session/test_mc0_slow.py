"""mc0: peers that do not read: what is dropped, what waits, in which order it comes, and whom it costs something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.session.mc0_answers import ANSWER_AGAIN, MAX_ANSWERS
from tests.session.mc0_recording import STEP, Mc0Farm, Mc0Peer, nothing_fails

SOON = ANSWER_AGAIN + 2 * STEP


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
    assert farm.counted("mc0_dropped.held") == 2_000


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
    assert farm.counted("mc0_refused.not-reading") > 100


# answers


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("SUB|ID|x||u", "OK|ID|x"),
        ("UNSUB|ID|x||t", "OK|ID|x"),
        ("CONNECT|ID|x|VERSION|0.2", "OK|ID|x"),
        ("PUT|ID|x|TOPIC|v||body", "OK|ID|x"),
        ("NOOP|ID|x", "OK|ID|x"),
        ("PUT|ID|x|TOPIC|elkobroker.load", "ERROR|MESSAGE|may not publish on 'elkobroker.load'|ID|x"),
        ("PING|ID|x", "ERROR|MESSAGE|Unknown command verb 'PING'|ID|x"),
    ],
)
def test_an_answer_that_finds_no_room_waits_for_it(farm: Mc0Farm, slow: Mc0Peer, line: str, answer: str) -> None:
    slow.say(line)
    farm.wait(30)
    assert slow.take() == []
    slow.read_on()
    assert slow.wait_for(answer, 1) <= SOON
    farm.wait(30)
    assert slow.take() == []


def test_nothing_comes_before_an_answer_that_waits(farm: Mc0Farm, publisher: Mc0Peer) -> None:
    peer = farm.peer("connector")
    peer.stop_reading()
    peer.say("CONNECT|ID|c|TTL|1000|VERSION|0.2")
    peer.say("SUB|ID|s||t")
    for number in range(10):
        publisher.say(f"PUT|TOPIC|t||{number}")
        farm.wait(0.1)
        peer.say("NOOP")
    peer.read_on()
    publisher.say("PUT|TOPIC|t||while its answers wait")
    farm.wait(SOON)
    assert peer.take() == ["OK|ID|c", "OK|ID|s"]
    publisher.say("PUT|TOPIC|t||afterwards")
    assert peer.take() == ["MESSAGE|TOPIC|t||afterwards"]
    assert farm.counted("mc0_dropped.held") == 11
    assert peer.wait_for("NOOP", 1) == pytest.approx(0.5, abs=2 * STEP)


def test_answers_that_wait_come_before_that_to_the_next_command(farm: Mc0Farm, slow: Mc0Peer) -> None:
    slow.say("NOOP|ID|1")
    slow.say("PING|ID|2")
    slow.read_on()
    slow.say("NOOP|ID|3")
    assert slow.take() == ["OK|ID|1", "ERROR|MESSAGE|Unknown command verb 'PING'|ID|2", "OK|ID|3"]
    farm.wait(1)
    assert slow.take() == []


def test_answers_go_out_as_there_is_room(farm: Mc0Farm, slow: Mc0Peer, publisher: Mc0Peer) -> None:
    for number in range(10):
        slow.say(f"NOOP|ID|{number}")
    for number in range(0, 10, 2):
        slow.stop_reading(after=2)
        farm.wait(SOON)
        publisher.say("PUT|TOPIC|t||x")
        assert slow.take() == [f"OK|ID|{number}", f"OK|ID|{number + 1}"]
    slow.read_on()
    farm.wait(SOON)
    publisher.say("PUT|TOPIC|t||y")
    assert slow.take() == ["MESSAGE|TOPIC|t||y"]


def test_the_messages_of_a_put_are_dropped_rather_than_its_ok(farm: Mc0Farm, slow: Mc0Peer) -> None:
    slow.say("PUT|TOPIC|t|ID|p||x")
    slow.read_on()
    assert slow.wait_for("OK|ID|p", 1) <= SOON
    assert farm.counted("mc0_dropped.full") == 1


def test_only_so_many_answers_wait(farm: Mc0Farm, slow: Mc0Peer) -> None:
    for number in range(MAX_ANSWERS + 50):
        slow.say(f"NOOP|ID|{number}")
    assert farm.counted("mc0_dropped.full") == 50
    slow.read_on()
    farm.wait(SOON)
    assert slow.take() == [f"OK|ID|{number}" for number in range(MAX_ANSWERS)]
    assert slow.ask("NOOP|ID|n") == ["OK|ID|n"]


@pytest.mark.parametrize("wait", [0, SOON])
def test_answers_for_a_connection_that_is_gone_are_dropped(farm: Mc0Farm, slow: Mc0Peer, wait: float) -> None:
    slow.say("NOOP|ID|1")
    slow.say("NOOP|ID|2")
    slow.drop()
    farm.wait(SOON)
    assert farm.counted("mc0_dropped.gone") == 2
    slow.connect()
    farm.wait(wait)
    assert slow.ask("NOOP|ID|3") == ["OK|ID|3"]


def test_disconnect_ends_the_session_also_of_who_does_not_read(farm: Mc0Farm, slow: Mc0Peer) -> None:
    slow.say("NOOP|ID|1")
    slow.say("DISCONNECT|ID|2")
    assert farm.session(slow) is None
    assert farm.subscribers() == {}
    assert farm.counted("mc0_dropped.ok") >= 1
    slow.read_on()
    farm.wait(1)
    assert slow.take() == []
    assert slow.ask("NOOP|ID|3") == ["OK|ID|3"]


@pytest.mark.parametrize("way", ["DISCONNECT", "silence"])
def test_answers_that_wait_when_the_session_ends_are_counted_as_dropped(farm: Mc0Farm, way: str) -> None:
    peer = farm.peer("A")
    peer.say("CONNECT|TTL|1000")
    peer.stop_reading()
    for number in range(5):
        peer.say(f"NOOP|ID|{number}")
    if way == "DISCONNECT":
        peer.say("DISCONNECT")
    else:
        farm.wait(2)
    assert farm.session(peer) is None
    dropped = [count for name, count in farm.counters.all().items() if name.startswith("mc0_dropped.")]
    assert sum(dropped) == 5


def test_waiting_again_and_again_piles_up_no_leases(farm: Mc0Farm, slow: Mc0Peer) -> None:
    for number in range(100):
        slow.say(f"NOOP|ID|{number}")  # finds no room
        slow.read_on()
        slow.say("NOOP")  # brings it out
        assert slow.take() == [f"OK|ID|{number}"]
        slow.stop_reading()
        if number % 10 == 9:
            slow.say("NOOP|ID|waits when answers are tried again")
            farm.wait(ANSWER_AGAIN)
            slow.read_on()
            slow.say("NOOP")
            slow.take()
            slow.stop_reading()
    # one of each session, and one for all answers that wait
    assert len(farm.leases) <= 2


def test_when_no_answer_waits_any_more_nothing_is_left_of_it(farm: Mc0Farm, slow: Mc0Peer) -> None:
    for _ in range(3):
        slow.stop_reading()
        slow.say("NOOP|ID|1")
        slow.read_on()
        farm.wait(2 * SOON)
        assert slow.take() == ["OK|ID|1"]
        assert len(farm.leases) == 1, "that of the session"
