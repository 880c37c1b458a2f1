"""mc0: which topics a peer may use, what it is told when it may not, and what happens when the rules change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.core.turns import all_at_once
from broker.wires.mc0.sessions.mc0_session import MAX_REFUSED, MAX_REFUSED_BYTES
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer, Rule, rule

KEYS = {"K-web": "web1", "K-mco": "operator", "K-odd": "odd", "K-all": "all"}

RULES = (
    rule("all", subscribe="*"),
    rule("operator", publish="mcollective*", subscribe="mcollective*"),
    rule(
        "web* db*",
        publish="mcollective?reply* nodes/{user} registration",
        subscribe="mcollective-discovery nodes/{user} {user}/*",
    ),
)


@pytest.fixture(autouse=True)
def _no_failures() -> Iterator[None]:
    with nothing_fails():
        yield


@pytest.fixture
def farm() -> Mc0Farm:
    return Mc0Farm(*RULES, keys=KEYS)


def connector(farm: Mc0Farm, key: str = "K-web", identity: str = "node") -> Mc0Peer:
    """A peer that says what the real connector says."""
    peer = farm.peer(identity, key)
    assert peer.ask("CONNECT|ID|c|TTL|30000|VERSION|0.2") == ["OK|ID|c"]
    return peer


def refused(farm: Mc0Farm, peer: Mc0Peer) -> list[bytes]:
    session = farm.session(peer)
    assert session is not None
    return list(session.refused)


def subscriptions(farm: Mc0Farm, peer: Mc0Peer) -> list[bytes]:
    session = farm.session(peer)
    assert session is not None
    return list(session.topics)


# PUT


@pytest.mark.parametrize(
    ("key", "topic", "may"),
    [
        ("K-web", "nodes/web1", True),
        ("K-web", "registration", True),
        ("K-web", "nodes/web2", False),
        ("K-web", "nodes/web1/more", False),
        ("K-web", "mcollective reply", False),
        ("K-web", "mcollective?reply 1", True),
        ("K-mco", "mcollective anything", True),
        ("K-mco", "nodes/operator", False),
        ("K-odd", "mcollective", False),
    ],
)
def test_a_peer_publishes_on_the_topics_of_its_rule_only(farm: Mc0Farm, key: str, topic: str, may: bool) -> None:
    peer, listener = farm.peer("P", key), farm.peer("L", "K-all")
    listener.say(f"SUB||{topic}")
    answer = peer.ask(f"PUT|TOPIC|{topic}|ID|p||x")
    if may:
        assert answer == ["OK|ID|p"]
        assert listener.take() == [f"MESSAGE|TOPIC|{topic}||x"]
    else:
        assert answer == [f"ERROR|MESSAGE|{KEYS[key]} has no right to publish '{topic}' here|ID|p"]
        assert listener.take() == []
        assert farm.counted("mc0_refused.forbidden") == 1


@pytest.mark.parametrize("rules", [(), (rule(publish="*", subscribe="*"),), (rule(publish="elkobroker.*"),)])
@pytest.mark.parametrize("topic", ["elkobroker.services", "elkobroker.load", "elkobroker.", "elkobroker.x"])
def test_nobody_publishes_on_the_brokers_own_topics(rules: tuple[Rule, ...], topic: str) -> None:
    farm = Mc0Farm(*rules)
    peer = farm.peer()
    assert peer.ask(f"PUT|TOPIC|{topic}|ID|p||x") == [
        f"ERROR|MESSAGE|a peer without a user has no right to publish '{topic}' here|ID|p"
    ]
    assert farm.counted("mc0_refused.forbidden") == 1
    assert farm.counted("mc0.published") == 0


@pytest.mark.parametrize("topic", ["elkobroker", "Elkobroker.load", "my elkobroker.load"])
def test_what_only_looks_like_an_own_topic_is_free(topic: str) -> None:
    peer = Mc0Farm().peer()
    peer.say(f"SUB||{topic}")
    assert peer.ask(f"PUT|TOPIC|{topic}|ID|p||x") == [f"MESSAGE|TOPIC|{topic}||x", "OK|ID|p"]


def test_a_refused_put_of_the_connector_is_counted_and_not_answered(farm: Mc0Farm) -> None:
    peer = connector(farm)
    assert peer.ask("PUT|TOPIC|forbidden||x") == []
    assert farm.counted("mc0_refused.forbidden") == 1


def test_a_refused_put_without_an_id_is_answered_to_others_that_connected(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K-web")
    peer.say("CONNECT")
    assert peer.ask("PUT|TOPIC|forbidden||x") == ["ERROR|MESSAGE|web1 has no right to publish 'forbidden' here"]


# SUB


@pytest.mark.parametrize("version", ["", "|VERSION|0.3", "|VERSION|0.20"])
def test_a_refused_sub_is_an_error_and_subscribes_to_nothing(farm: Mc0Farm, version: str) -> None:
    peer = farm.peer("A", "K-web")
    peer.say(f"CONNECT{version}")
    assert peer.ask("SUB|ID|s||web1/a|other|nodes/web1") == [
        "ERROR|MESSAGE|web1 has no right to subscribe 'other' here|ID|s"
    ]
    assert farm.subscribers() == {}
    assert farm.counted("mc0_refused.forbidden") == 1


def test_the_connector_is_told_ok_and_gets_what_it_may_have(farm: Mc0Farm) -> None:
    peer = connector(farm)
    assert peer.ask("SUB|ID|s||web1/a|other|nodes/web1|nodes/web2") == ["OK|ID|s"]
    assert subscriptions(farm, peer) == [b"web1/a", b"nodes/web1"]
    assert refused(farm, peer) == [b"other", b"nodes/web2"]
    assert farm.counted("mc0_refused.forbidden") == 1


def test_a_sub_in_which_all_is_refused_is_ok_to_the_connector_too(farm: Mc0Farm) -> None:
    peer = connector(farm, "K-odd")
    assert peer.ask("SUB|ID|s||a|b") == ["OK|ID|s"]
    assert farm.subscribers() == {}
    assert refused(farm, peer) == [b"a", b"b"]


def test_unsub_forgets_what_was_refused(farm: Mc0Farm) -> None:
    peer = connector(farm)
    peer.say("SUB||other|more")
    assert peer.ask("UNSUB|ID|u||other") == ["OK|ID|u"]
    assert refused(farm, peer) == [b"more"]
    farm.use(rule(publish="*", subscribe="*"))
    assert subscriptions(farm, peer) == [b"more"]


def test_a_refused_topic_that_finds_a_place_later_is_not_refused_any_more() -> None:
    farm = Mc0Farm(rule(subscribe="*"), keys=KEYS, subscriptions=1)
    peer = connector(farm)
    peer.say("SUB||first|second")
    assert (subscriptions(farm, peer), refused(farm, peer)) == ([b"first"], [b"second"])
    peer.say("UNSUB||first")
    peer.say("SUB||second")
    assert (subscriptions(farm, peer), refused(farm, peer)) == ([b"second"], [])


def test_only_so_many_refused_topics_are_remembered(farm: Mc0Farm) -> None:
    peer = connector(farm)
    for number in range(3 * MAX_REFUSED):
        assert peer.ask(f"SUB|ID|s||other{number}") == ["OK|ID|s"]
    assert len(refused(farm, peer)) == MAX_REFUSED


def test_only_so_many_bytes_of_refused_topics_are_remembered(farm: Mc0Farm) -> None:
    peer = connector(farm)
    names = [f"{number:04}" + "x" * 4_000 for number in range(MAX_REFUSED)]
    assert peer.ask(f"SUB|ID|s||{'|'.join(names)}|short") == ["OK|ID|s"]
    assert sum(map(len, refused(farm, peer))) <= MAX_REFUSED_BYTES
    assert refused(farm, peer)[-1] == b"short"


def test_an_error_names_the_first_of_many_topics(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K-web")
    topics = "|".join(f"other {number} {'x' * 4_000}" for number in range(500))
    [answer] = peer.ask(f"SUB|ID|s||{topics}")
    assert "'other 0 x" in answer
    assert len(answer) < 1_000


def test_an_error_can_be_read_whatever_the_topic_is(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K-web")
    peer.send(b"", b"PUT", b"TOPIC", "\N{SNOWMAN}\n\u202e".encode() + b"\xff", b"ID", b"p")
    [[_, _, _, text, _, _]] = peer.take_frames()
    assert text.decode().isprintable()
    assert "\N{SNOWMAN}" in text.decode()


# the rules change


def test_subscriptions_that_are_not_allowed_any_more_end_and_come_back_when_they_are(farm: Mc0Farm) -> None:
    peer, mco = connector(farm), connector(farm, "K-mco", "mco")
    peer.say("SUB||nodes/web1|web1/a")
    for topics, allowed in (("web1/*", False), ("nodes/*", True)):
        farm.use(rule("operator", "*", "*"), rule("web1", "", topics))
        mco.say("PUT|TOPIC|nodes/web1||x")
        assert bool(peer.take()) == allowed
        assert len(refused(farm, peer)) == 1
    farm.use()
    assert refused(farm, peer) == []
    assert sorted(subscriptions(farm, peer)) == [b"nodes/web1", b"web1/a"]
    assert farm.subscribers() == {b"nodes/web1": 1, b"web1/a": 1}


def test_what_the_connector_was_refused_begins_when_it_is_allowed(farm: Mc0Farm) -> None:
    peer, mco = connector(farm), connector(farm, "K-mco", "mco")
    peer.say("SUB||other")
    farm.use()
    mco.say("PUT|TOPIC|other||x")
    assert peer.take() == ["MESSAGE|TOPIC|other||x"]
    assert refused(farm, peer) == []


def test_a_refused_topic_that_is_allowed_later_begins_with_its_last_value(farm: Mc0Farm) -> None:
    farm.topics.last_values.every = True
    for topic, body in ((b"other", b"old"), (b"other", b"x"), (b"web1/a", b"y")):
        farm.topics.publish(topic, [], [body])
    peer = connector(farm)
    assert peer.ask("SUB|ID|s||web1/a|other|empty") == ["OK|ID|s", "MESSAGE|TOPIC|web1/a||y"]
    farm.use()
    assert peer.take() == ["MESSAGE|TOPIC|other||x"]
    farm.use()
    assert peer.take() == []


def test_what_found_no_place_begins_when_there_may_be_more_subscriptions() -> None:
    farm = Mc0Farm(rule(subscribe="*"), keys=KEYS, subscriptions=1)
    peer = connector(farm)
    peer.say("SUB||first|second|third")
    assert (subscriptions(farm, peer), refused(farm, peer)) == ([b"first"], [b"second", b"third"])
    all_at_once(farm.wire.use(100, 2))
    assert (subscriptions(farm, peer), refused(farm, peer)) == ([b"first", b"second"], [b"third"])
    farm.wire.use(100, 1)
    assert (subscriptions(farm, peer), refused(farm, peer)) == ([b"first", b"second"], [b"third"])


def test_new_rules_count_for_what_is_published_at_once(farm: Mc0Farm) -> None:
    peer = connector(farm)
    assert peer.ask("PUT|TOPIC|registration|ID|1||x") == ["OK|ID|1"]
    farm.use(rule())
    assert peer.ask("PUT|TOPIC|registration|ID|2||x") == [
        "ERROR|MESSAGE|web1 has no right to publish 'registration' here|ID|2"
    ]


def test_the_same_rules_again_change_nothing(farm: Mc0Farm) -> None:
    peer = connector(farm)
    peer.say("SUB||web1/a|other|nodes/web1")
    for _ in range(3):
        farm.use(*RULES)
        assert subscriptions(farm, peer) == [b"web1/a", b"nodes/web1"]
        assert refused(farm, peer) == [b"other"]
    assert peer.take() == []


def test_new_rules_count_for_all_though_one_peer_is_at_its_limit() -> None:
    farm = Mc0Farm(rule(publish="*", subscribe="a* x*"), keys=KEYS, subscriptions=3)
    full, other = connector(farm, identity="full"), connector(farm, identity="other")
    full.say("SUB||a1|a2|a3|b1|b2")
    other.say("SUB||x1|a1")
    farm.use(rule(publish="*", subscribe="a* b*"))
    assert subscriptions(farm, full) == [b"a1", b"a2", b"a3"]
    assert subscriptions(farm, other) == [b"a1"]
    assert refused(farm, other) == [b"x1"]
    assert farm.subscribers() == {b"a1": 2, b"a2": 1, b"a3": 1}


def test_what_finds_no_place_when_the_rules_change_is_still_shown() -> None:
    farm = Mc0Farm(rule(publish="*", subscribe="a* x*"), keys=KEYS, subscriptions=3)
    peer = connector(farm)
    peer.say("SUB||a1|a2|x1|b1|b2|b3")
    farm.use(rule(publish="*", subscribe="a* b*"))
    assert subscriptions(farm, peer) == [b"a1", b"a2", b"b1"]
    assert sorted(refused(farm, peer)) == [b"b2", b"b3", b"x1"]


def test_a_peer_whose_key_has_no_right_may_do_nothing_and_a_peer_without_a_key_is_anonymous(farm: Mc0Farm) -> None:
    odd = farm.peer("odd", "K-odd")
    assert odd.ask("SUB|ID|s||mcollective")[0].startswith("ERROR|")
    nameless = Mc0Farm(rule("?*", "*", "*"), rule("anonymous", "p", "s")).peer()
    assert nameless.ask("SUB|ID|1||s") == ["OK|ID|1"]
    assert nameless.ask("PUT|ID|2|TOPIC|p") == ["OK|ID|2"]
    assert nameless.ask("PUT|ID|3|TOPIC|s")[0].startswith("ERROR|")
