"""Topic rules: which rule counts for a key, which topics its patterns mean, and what nobody may do."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.wires.common.topic_rules import FREE, NOTHING, TopicRule, Topics, rights_of
from tests.wires.mc0.recording import rule

names = st.text("abAB.*?[]{}key- ", max_size=8)
topics = st.one_of(names.map(str.encode), st.binary(max_size=12))


def may(pattern: str, topic: bytes, key: str = "web1") -> bool:
    """True if the holder of that key may subscribe; publishing must be the same but for the broker's own topics."""
    rights = rights_of(key, [TopicRule(("*",), (pattern,), (pattern,))])
    assert rights.may_publish(topic) == (rights.may_subscribe(topic) and not topic.startswith(b"elkobroker."))
    return rights.may_subscribe(topic)


@pytest.mark.parametrize(
    ("pattern", "topic", "allowed"),
    [
        ("t", b"t", True),
        ("t", b"T", False),
        ("t", b"t2", False),
        ("t", b"", False),
        ("", b"", True),
        ("", b"t", False),
        ("t*", b"t", True),
        ("t*", b"t\0\xff", True),
        ("t*", b"st", False),
        ("*", b"", True),
        ("*", b"anything", True),
        ("*t", b"*t", True),
        ("*t", b"at", False),
        ("t**", b"t*", True),
        ("t**", b"t", False),
        ("t?", b"t?", True),
        ("t?", b"ta", False),
        ("t[a]", b"t[a]", True),
        ("t[a]", b"ta", False),
        ("mcollective nodes {key}", b"mcollective nodes web1", True),
        ("mcollective nodes {key}", b"mcollective nodes web11", False),
        ("mcollective nodes {key}", b"mcollective nodes {key}", False),
        ("{key}*", b"web1 and more", True),
        ("{key}/{key}", b"web1/web1", True),
        ("{KEY}", b"web1", False),
        ("{key", b"{key", True),
        ("schl\u00fcssel", "schl\u00fcssel".encode(), True),
        ("schl\u00fcssel", "schl\u00fcssel".encode("latin-1"), False),
        ("elkobroker.*", b"elkobroker.load", True),
    ],
)
def test_a_pattern_is_a_topic_or_a_prefix(pattern: str, topic: bytes, allowed: bool) -> None:
    assert may(pattern, topic) == allowed


@pytest.mark.parametrize("pattern", ["{key}", "{key}*", "nodes {key}", "nodes {key}*", "{key}{key}"])
@pytest.mark.parametrize("topic", [b"", b"nodes ", b"nodes web1", b"{key}", b"anything"])
def test_a_pattern_with_the_name_of_the_key_means_nothing_where_there_is_no_key(pattern: str, topic: bytes) -> None:
    assert not may(pattern, topic, key="")


@pytest.mark.parametrize("key", ["*", "a*", "{key}", "[a]", "a b", "\udcff"])
def test_what_looks_like_a_pattern_in_the_name_of_a_key_is_none(key: str) -> None:
    name = key.encode("utf-8", "surrogateescape")
    assert may("{key}", name, key)
    assert not may("{key}", b"a", key)
    assert not may("{key}", name + b"b", key)
    assert may("x{key}*", b"x" + name + b"b", key)
    assert not may("x{key}*", b"xab", key)


@example("{key}", b"", "")
@given(names, topics, names)
def test_patterns_mean_what_they_say(pattern: str, topic: bytes, key: str) -> None:
    prefix = pattern[-1:] == "*"
    name = (pattern[:-1] if prefix else pattern).replace("{key}", key).encode()
    expected = topic[: len(name)] == name if prefix else topic == name
    if not key and "{key}" in pattern:
        expected = False
    assert may(pattern, topic, key) == expected
    assert (topic in Topics([pattern, "other", "more*"], key)) == (
        expected or topic == b"other" or topic[:4] == b"more"
    )


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("web1", "web"),
        ("web", "web"),
        ("WEB1", "one"),
        ("db1", "db"),
        ("db22", "one"),
        ("x", "one"),
        ("", "none"),
        ("some longer name", None),
    ],
)
def test_the_first_rule_that_matches_the_key_counts_and_no_other(key: str, counts: str | None) -> None:
    table = [
        rule("web* www", subscribe="web"),
        rule("db? web1", subscribe="db"),
        rule("x WEB1 db*", subscribe="one"),
        rule("web* x db1", subscribe="late"),
        TopicRule(("",), (), ("none",)),
    ]
    rights = rights_of(key, table)
    found = [topic for topic in ("web", "db", "one", "late", "none") if rights.may_subscribe(topic.encode())]
    assert found == ([counts] if counts else [])


def test_publishing_and_subscribing_are_two_things() -> None:
    rights = rights_of("k", [rule("*", publish="p", subscribe="s")])
    assert [rights.may_publish(topic) for topic in (b"p", b"s")] == [True, False]
    assert [rights.may_subscribe(topic) for topic in (b"p", b"s")] == [False, True]


@given(topics)
def test_without_rules_everything_is_allowed_and_without_a_rule_for_the_key_nothing(topic: bytes) -> None:
    assert rights_of("k", []) is FREE
    assert FREE.may_subscribe(topic)
    assert FREE.may_publish(topic)
    assert rights_of("k", [rule("other", "*", "*")]) is NOTHING
    assert not NOTHING.may_subscribe(topic)
    assert not NOTHING.may_publish(topic)


@given(st.binary(max_size=8))
def test_the_brokers_own_topics_are_for_nobody_to_publish_on(rest: bytes) -> None:
    every = rights_of("k", [rule("*", "* elkobroker.*", "elkobroker.*")])
    for rights in (FREE, every):
        assert not rights.may_publish(b"elkobroker." + rest)
        assert rights.may_subscribe(b"elkobroker." + rest)
    assert every.may_publish(b"elkobroker")
    assert not every.may_subscribe(b"elkobroker")
