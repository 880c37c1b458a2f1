"""mc0: what each command does and is answered, and who is sent what is published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm

UNKNOWN = ["PING", "GET", "noop", "Sub", "MESSAGE", "OK", "ERROR", "NOOP\0junk", ""]


@pytest.fixture
def farm() -> Iterator[Mc0Farm]:
    with nothing_fails():
        yield Mc0Farm()


# OK, and when there is none


@pytest.mark.parametrize(
    "line",
    [
        "CONNECT|ID|x",
        "CONNECT|ID|x|TTL|30000|VERSION|0.2",
        "CONNECT|VERSION|any|TTL|0|ID|x",
        "DISCONNECT|ID|x",
        "SUB|ID|x||a|b",
        "SUB|ID|x|",
        "SUB|ID|x",
        "UNSUB|ID|x||a|b",
        "UNSUB|ID|x|",
        "UNSUB|ID|x",
        "PUT|TOPIC|t|ID|x||body",
        "PUT|ID|x|TOPIC|t",
        "NOOP|ID|x",
        "NOOP|ID|other|ID|x",
        "NOOP|X-ANY|header|ID|x||and|a|body",
    ],
)
def test_a_command_with_an_id_is_answered_with_ok_at_once_and_one_without_is_not(farm: Mc0Farm, line: str) -> None:
    peer = farm.peer()
    peer.say(line)
    assert peer.take_frames() == [[b"", b"OK", b"ID", b"x"]]
    assert peer.ask(line.replace("|ID|other", "").replace("|ID|x", "")) == []
    farm.wait(10)
    assert peer.take() == []


@pytest.mark.parametrize("id", [b"\0\xff binary \x01", b"i" * 300, b"ID", b"0", b" "])
def test_an_id_is_echoed_byte_for_byte(farm: Mc0Farm, id: bytes) -> None:
    peer = farm.peer()
    peer.send(b"", b"NOOP", b"ID", id)
    assert peer.take_frames() == [[b"", b"OK", b"ID", id]]


def test_an_id_need_not_be_unique(farm: Mc0Farm) -> None:
    peer = farm.peer()
    assert [peer.ask("NOOP|ID|same"), peer.ask("SUB|ID|same||t")] == [["OK|ID|same"], ["OK|ID|same"]]


def test_a_thousand_commands_are_answered_in_their_order(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    for number in range(1000):
        peer.say(f"PUT|ID|{number}|TOPIC|t||{number}")
        other.say(f"NOOP|ID|b{number}")
    assert peer.take() == [f"OK|ID|{number}" for number in range(1000)]
    assert other.take() == [f"OK|ID|b{number}" for number in range(1000)]


def test_the_delimiter_may_hold_anything_and_ours_is_empty(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.send(b"junk", b"NOOP", b"ID", b"d1")
    assert peer.take_frames() == [[b"", b"OK", b"ID", b"d1"]]


# ERROR


@pytest.mark.parametrize("verb", UNKNOWN)
def test_an_unknown_verb_is_answered_with_error_as_by_the_original(farm: Mc0Farm, verb: str) -> None:
    peer = farm.peer()
    assert peer.ask(f"{verb}|ID|x|") == [f"ERROR|MESSAGE|Unknown command verb '{verb}'|ID|x"]
    assert peer.ask(verb) == [f"ERROR|MESSAGE|Unknown command verb '{verb}'"]
    assert farm.counted("mc0_refused.unknown-op") == 2
    assert peer.ask("NOOP|ID|still here") == ["OK|ID|still here"]


@pytest.mark.parametrize("frames", [[], [b""], [b"junk"]])
def test_what_is_too_short_is_counted_and_not_answered(farm: Mc0Farm, frames: list[bytes]) -> None:
    peer = farm.peer()
    peer.send(*frames)
    assert peer.take() == []
    assert farm.counted("mc0_refused.syntax") == 1
    assert peer.ask("NOOP|ID|1") == ["OK|ID|1"]


@pytest.mark.parametrize(
    ("line", "with_id"),
    [
        ("NOOP|ID", False),
        ("NOOP|ID|x|X-A", True),
        ("CONNECT|ID|x|TTL", True),
        ("PUT|ID|p|TOPIC|t|X-A||body", False),
        ("PUT|ID|x|TOPIC|t|X-A||body", True),
        ("SUB|one", False),
        ("SUB|ID|x|one|two|three", True),
    ],
)
def test_a_key_without_a_value_is_an_error_with_the_id_of_that_message_only(
    farm: Mc0Farm, line: str, with_id: bool
) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    assert other.ask("NOOP|ID|b0") == ["OK|ID|b0"]
    [answer] = peer.ask(line)
    assert answer.startswith("ERROR|MESSAGE|")
    if line.startswith("PUT|ID|p"):
        assert answer.endswith("|ID|p")
    else:
        assert answer.endswith("|ID|x") == with_id
        assert answer.count("|") == (4 if with_id else 2)
    assert other.take() == []


@pytest.mark.parametrize(
    "line",
    [
        "PUT|ID|x|TOPIC|||body",
        "PUT|ID|x||body",
        "PUT|ID|x|TOPIC|t|X-A|||body",
        "CONNECT|ID|x|TTL|abc",
        "CONNECT|ID|x|TTL|-5",
    ],
)
def test_what_cannot_be_done_is_an_error_and_does_nothing(farm: Mc0Farm, line: str) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    other.ask("SUB|ID|s||t|")
    [answer] = peer.ask(line)
    assert answer.startswith("ERROR|MESSAGE|")
    assert answer.endswith("|ID|x")
    assert farm.counted("mc0_refused.parameter") == 1
    assert other.take() == []


@pytest.mark.parametrize("verb", ["CONNECT", "DISCONNECT", "SUB", "UNSUB", "PUT|TOPIC|t", "NOOP"])
def test_an_empty_id_cannot_be_sent_back_and_is_an_error_without_one(farm: Mc0Farm, verb: str) -> None:
    peer = farm.peer()
    [answer] = peer.ask(f"{verb}|ID|")
    assert answer.startswith("ERROR|MESSAGE|")
    assert answer.count("|") == 2


# CONNECT and DISCONNECT


@pytest.mark.parametrize("again", ["CONNECT|ID|2", "CONNECT|ID|2|TTL|5000|VERSION|9"])
def test_a_second_connect_keeps_the_subscriptions(farm: Mc0Farm, again: str) -> None:
    peer = farm.peer()
    peer.say("CONNECT|TTL|30000")
    peer.say("SUB||t")
    assert peer.ask(again) == ["OK|ID|2"]
    assert peer.ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]


def test_disconnect_ends_the_session_with_its_subscriptions_and_no_other(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    peer.say("CONNECT|TTL|1000")
    peer.say("SUB||t|u")
    other.say("SUB||t")
    assert peer.ask("DISCONNECT|ID|d") == ["OK|ID|d"]
    assert farm.session(peer) is None
    assert farm.subscribers() == {b"t": 1}
    assert other.ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]
    assert farm.counted("mc0_sessions.disconnected") == 1
    farm.wait(10)
    assert peer.take() == []


def test_after_disconnect_a_command_begins_a_new_session(farm: Mc0Farm) -> None:
    peer = farm.peer()
    for _ in range(2):
        assert peer.ask("DISCONNECT|ID|d") == ["OK|ID|d"]
        assert peer.ask("DISCONNECT") == []
        assert peer.ask("SUB|ID|s||t") == ["OK|ID|s"]
        assert peer.ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]


# SUB and UNSUB


def test_a_topic_is_exactly_those_bytes(farm: Mc0Farm) -> None:
    peer, publisher = farm.peer("A"), farm.peer("B")
    topics = ["t", "T", "t ", "te", "*", "t*", "mcollective nodes web1", "\0\xff", "elkobroker"]
    for topic in topics:
        peer.say(f"SUB||{topic}")
        for each in topics:
            publisher.say(f"PUT|TOPIC|{each}||{each}")
        assert peer.take() == [f"MESSAGE|TOPIC|{topic}||{topic}"]
        peer.say(f"UNSUB||{topic}")
    assert farm.subscribers() == {}


def test_a_topic_is_subscribed_to_once(farm: Mc0Farm) -> None:
    peer = farm.peer()
    assert peer.ask("SUB|ID|1||t|t|u|t") == ["OK|ID|1"]
    assert peer.ask("SUB|ID|2||t") == ["OK|ID|2"]
    assert peer.ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]
    assert peer.ask("UNSUB|ID|3||t|t") == ["OK|ID|3"]
    assert peer.ask("PUT|TOPIC|t||x") == []
    assert farm.subscribers() == {b"u": 1}


def test_the_empty_topic_may_be_subscribed_to(farm: Mc0Farm) -> None:
    peer = farm.peer()
    assert peer.ask("SUB|ID|1||") == ["OK|ID|1"]
    assert peer.ask("UNSUB|ID|2||") == ["OK|ID|2"]
    assert farm.subscribers() == {}


def test_topics_in_the_place_of_headers_are_headers(farm: Mc0Farm) -> None:
    peer = farm.peer()
    assert peer.ask("SUB|t|u|ID|1") == ["OK|ID|1"]
    assert farm.subscribers() == {}


def test_unsub_of_another_topic_changes_nothing(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    assert peer.ask("UNSUB|ID|1||u|v") == ["OK|ID|1"]
    assert peer.ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]


# PUT


def test_the_messages_of_a_put_go_out_before_its_ok(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    assert peer.ask("PUT|TOPIC|t|ID|p||x") == ["MESSAGE|TOPIC|t||x", "OK|ID|p"]


def test_a_put_is_accepted_also_where_nobody_is_subscribed(farm: Mc0Farm) -> None:
    peer = farm.peer()
    assert peer.ask("PUT|TOPIC|t|ID|p||x") == ["OK|ID|p"]
    assert peer.ask("SUB|ID|s||t") == ["OK|ID|s"]
    farm.wait(1)
    assert peer.take() == []


def test_all_headers_but_the_id_are_handed_on_with_the_last_value_of_each(farm: Mc0Farm) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    line = "PUT|X-A|1|TOPIC|other|TTL|9|VERSION|8|ID|p|MESSAGE|m|FOO|bar|id|low|ID\0x|n|X-A|2|TOPIC|t||body"
    message, ok = peer.ask(line)
    assert message == "MESSAGE|TOPIC|t|X-A|2|TTL|9|VERSION|8|MESSAGE|m|FOO|bar|id|low|ID\0x|n||body"
    assert ok == "OK|ID|p"
    farm.wait(30)
    assert peer.take() == [], "a TTL in a PUT is none of ours"


@pytest.mark.parametrize("body", ["", "|", "||", "||a|b|c", "||||TOPIC|other|", "||\0\xff"])
def test_a_body_is_handed_on_as_it_is(farm: Mc0Farm, body: str) -> None:
    peer = farm.peer()
    peer.say("SUB||t")
    assert peer.ask(f"PUT|TOPIC|t{body}") == [f"MESSAGE|TOPIC|t{body or '|'}"]


def test_a_long_body_is_not_copied(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    peer.say("SUB||t")
    other.say("SUB||t")
    blob = b"x" * 100_000
    other.send(b"", b"PUT", b"TOPIC", b"t", b"X-A", blob, b"", blob, b"short")
    for each in (peer, other):
        [frames] = each.take_frames()
        assert frames[5] is blob
        assert frames[7] is blob


def test_a_put_reaches_each_subscriber_once_in_the_order_of_the_publisher(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"S{number}") for number in range(5)]
    for peer in peers:
        peer.say("SUB||t|u")
    publishers = [farm.peer("P"), farm.peer("Q")]
    for number in range(50):
        for publisher in publishers:
            publisher.say(f"PUT|TOPIC|{'tu'[number % 2]}||{number}")
    expected = [f"MESSAGE|TOPIC|{'tu'[number % 2]}||{number}" for number in range(50) for _ in publishers]
    assert [peer.take() for peer in peers] == [expected] * 5
    assert farm.counted("mc0.published") == 100
    assert farm.counted("mc0.delivered") == 500


def test_an_operator_ends_a_session_by_its_identity(farm: Mc0Farm) -> None:
    peer, other = farm.peer("A"), farm.peer("B")
    for each in (peer, other):
        each.ask("CONNECT|ID|c|TTL|30000")
        each.ask("SUB|ID|s||t")
    session = farm.session(peer)
    assert session is not None
    assert farm.wire.disconnect(str(session)) == session.connection
    assert farm.wire.disconnect(str(session)) is None
    assert farm.session(peer) is None
    assert farm.session(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"n" * 120 + b"1", b"n" * 120 + b"2"),
        (b"\xff" * 254 + b"1", b"\xff" * 254 + b"2"),
        (b"a\x01", b"a\\x01"),
        (b"a\x85", "a\x85".encode()),
        (b"a\xad", "a\xad".encode()),
    ],
)
def test_an_operator_disconnects_one_session_of_two_with_similar_identities(
    farm: Mc0Farm, one: bytes, other: bytes
) -> None:
    for identity in (one, other):
        peer = farm.peer(identity)
        assert peer.ask("NOOP|ID|x") == ["OK|ID|x"]
    second = list(farm.wire.table)[1]
    assert second.identity == other
    assert farm.wire.disconnect(str(second)) == second.connection
    assert [session.identity for session in farm.wire.table] == [one]
