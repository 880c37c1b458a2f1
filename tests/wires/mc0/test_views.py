"""The views of mc0 for operators: its sessions and the topics, found by pattern, readable for any name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.net.zmtp.machine import MAX_IDENTITY
from broker.wires.mc0.mc0_wire import MAX_TOPICS, views
from broker.wires.tables import MAX_ROWS as MAX_LISTED
from broker.wires.tables import Row
from tests.operate.test_console import Operator, enter
from tests.recording.logs import nothing_fails
from tests.wires.contexts import page
from tests.wires.mc0.recording import Mc0Farm, rule
from tests.wires.recording import ElkoFarm

REAL = "node1 424 #<Thread:0x00007f5ab9829bf8 /usr/lib/ruby/vendor_ruby/mcollective/runner.rb:140 run>"
"""An identity as the real connector makes it."""


@pytest.fixture
def farm() -> Iterator[Mc0Farm]:
    with nothing_fails():
        yield Mc0Farm(
            rule("web*", "*", "mcollective* elkobroker.*"),
            rule("operator", "*", "*"),
            keys={"K1": "web1", "K2": "operator"},
            sessions=2_000,
            subscriptions=2_000,
        )


@pytest.fixture
def operator(farm: Mc0Farm) -> Operator:
    operator = enter(ElkoFarm(), views={each.name: each for each in views(farm.wire, farm.topics, farm.leases)})
    operator.read()
    return operator


def sessions(farm: Mc0Farm, pattern: str = "*") -> list[Row]:
    return page(views(farm.wire, farm.topics, farm.leases), "mc0 sessions", pattern)


def topics(farm: Mc0Farm, pattern: str = "*") -> list[Row]:
    return page(views(farm.wire, farm.topics, farm.leases), "mc0 topics", pattern)


def names(shown: list[Row]) -> list[object]:
    return [each["identity"] for each in shown]


# sessions


def test_a_session_is_shown_with_all_that_matters(farm: Mc0Farm, operator: Operator) -> None:
    peer = farm.peer(REAL, "K1", "192.0.2.7")
    peer.say("CONNECT|VERSION|0.2|TTL|30000")
    peer.say("SUB||mcollective discovery|other|mcollective rpcutil|elkobroker.load")
    peer.stop_reading()
    publisher = farm.peer("mco", "K2", "192.0.2.8")
    for _ in range(3):
        publisher.say("PUT|TOPIC|mcollective rpcutil||x")
    farm.wait(12)
    publisher.say("NOOP")
    text = operator.type("mc0 sessions")
    assert text.index('"identity"') < text.index('"address"') < text.index('"topics"')
    first, second = (dict(each) for each in sessions(farm))
    assert first.pop("heard") == pytest.approx(12, abs=0.2)
    assert second.pop("heard") == 0
    assert first == {
        "identity": REAL,
        "address": "192.0.2.7",
        "key": "K1",
        "name": "web1",
        "ttl": 30_000,
        "subscriptions": 3,
        "topics": ["mcollective discovery", "mcollective rpcutil", "elkobroker.load"],
        "refused": ["other"],
        "dropped": 3,
    }
    assert second == {
        "identity": "mco",
        "address": "192.0.2.8",
        "key": "K2",
        "name": "operator",
        "ttl": 0,
        "subscriptions": 0,
        "topics": [],
        "dropped": 0,
    }


def test_a_peer_without_a_key_is_shown_without_one() -> None:
    farm = Mc0Farm()
    farm.peer("A").say("NOOP")
    assert sessions(farm) == [
        {
            "identity": "A",
            "address": "192.0.2.7",
            "ttl": 0,
            "heard": 0.0,
            "subscriptions": 0,
            "topics": [],
            "dropped": 0,
        }
    ]


def test_a_session_has_an_address_while_it_has_a_connection() -> None:
    farm = Mc0Farm()
    peer = farm.peer("A")
    peer.say("SUB||t")
    peer.drop()
    assert [session["address"] for session in sessions(farm)] == [""]
    peer.connect()
    assert [session["address"] for session in sessions(farm)] == ["192.0.2.7"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["node1", "node2", "mco"]),
        ("", []),
        ("node*", ["node1", "node2"]),
        ("node?", ["node1", "node2"]),
        ("node[2-9]", ["node2"]),
        ("web1", ["node1", "node2"]),
        ("oper*", ["mco"]),
        ("NODE1", []),
        ("node", []),
    ],
)
def test_sessions_are_found_by_identity_or_name_of_the_key(
    farm: Mc0Farm, operator: Operator, pattern: str, found: list[str]
) -> None:
    for identity, key in (("node1", "K1"), ("node2", "K1"), ("mco", "K2")):
        farm.peer(identity, key).say("NOOP")
    assert names(sessions(farm, pattern)) == found
    text = operator.type(f"mc0 sessions '{pattern}'")
    assert [each in text for each in ("node1", "node2", "mco")] == [each in found for each in ("node1", "node2", "mco")]


def test_only_so_many_sessions_and_topics_are_shown_and_a_pattern_finds_the_others(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"node{number}", "K2") for number in range(MAX_LISTED + 5)]
    for peer in peers:
        peer.say("NOOP")
    peers[3].say("SUB||" + "|".join(f"t{number}" for number in range(MAX_LISTED + 5)))
    shown = sessions(farm)
    assert names(shown) == [f"node{number}" for number in range(MAX_LISTED)]
    assert shown[3]["topics"] == [f"t{number}" for number in range(MAX_TOPICS)]
    assert shown[3]["subscriptions"] == MAX_LISTED + 5
    assert names(sessions(farm, f"node{MAX_LISTED + 2}")) == [f"node{MAX_LISTED + 2}"]
    assert len(topics(farm)) == MAX_LISTED
    assert [each["topic"] for each in topics(farm, f"t{MAX_LISTED + 2}")] == [f"t{MAX_LISTED + 2}"]


@pytest.mark.parametrize(
    "identity",
    [b"\0\x91\x12\xff\xfe", b"\x1b[2J", "\u202egpj".encode(), "\u2603".encode(), b"x" * 255, b"\xed\xa0"],
)
def test_any_identity_and_topic_can_be_shown(farm: Mc0Farm, operator: Operator, identity: bytes) -> None:
    peer = farm.peer(identity, "K2")
    peer.send(b"", b"SUB", b"ID", b"s", b"", identity)
    assert peer.take() == ["OK|ID|s"]
    for line in ("mc0 sessions", "mc0 topics"):
        text = operator.type(line)
        assert "error" not in text
        assert all(part.isprintable() for part in text.split("\n"))
    [session] = sessions(farm)
    assert isinstance(session["identity"], str)
    assert 0 < len(session["identity"]) <= 4 * MAX_IDENTITY
    assert isinstance(session["topics"], list)
    [topic] = session["topics"]
    assert topic == session["identity"] or (len(topic) <= 130 and session["identity"].startswith(topic[:-3]))


# topics


def test_topics_are_shown_by_name_with_subscribers_and_messages(farm: Mc0Farm, operator: Operator) -> None:
    peers = [farm.peer(f"P{number}", "K2") for number in range(3)]
    for peer in peers:
        peer.say("SUB||b|a")
    peers[0].say("SUB||c")
    for topic in ("a", "a", "b", "nobody's"):
        peers[1].say(f"PUT|TOPIC|{topic}||x")
    peers[2].say("DISCONNECT")
    assert topics(farm) == [
        {"topic": "a", "subscribers": 2, "published": 2},
        {"topic": "b", "subscribers": 2, "published": 1},
        {"topic": "c", "subscribers": 1, "published": 0},
    ]
    assert topics(farm, "[bc]") == topics(farm)[1:]
    assert topics(farm, "none") == []
    assert operator.type("mc0 topics c") == (
        '[\n  {\n    "topic": "c",\n    "subscribers": 1,\n    "published": 0\n  }\n]\n'
    )
