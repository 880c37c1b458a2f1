"""The rights of users of MTL: which rule counts, what its patterns mean, and what nobody may do."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Reason, Refusal
from broker.wires.mtl.sessions.access_rules import FREE, AccessPolicy, AccessRule, ResourceNames
from broker.wires.mtl.sessions.principals import Permissions, Side

R, W = Side.READER, Side.WRITER

words = st.text("ab*{}user:.-", max_size=8)


def rule(
    users: str = "*", hosts: str = "*", read: str | None = "*", write: str | None = "*", offer: str | None = "*"
) -> AccessRule:
    """A rule with a pattern of each kind; None for none."""
    read_patterns, write_patterns, offer_patterns = (
        () if pattern is None else (pattern,) for pattern in (read, write, offer)
    )
    return AccessRule((users,), (hosts,), read_patterns, write_patterns, offer_patterns)


def allowed(rules: list[AccessRule], user: str = "anna", host: str = "/") -> Permissions:
    return AccessPolicy(("/", "test", "test-anna"), rules).allowed(user, host)


def may(pattern: str, profile: str, resource: str, user: str = "anna") -> bool:
    """True if that pattern allows it; the same must come out for reading and for writing."""
    reading = allowed([rule(read=pattern, write=None)], user)
    writing = allowed([rule(read=None, write=pattern)], user)
    assert not reading.may(W, profile, resource)
    assert not writing.may(R, profile, resource)
    assert reading.may(R, profile, resource) == writing.may(W, profile, resource)
    return reading.may(R, profile, resource)


@pytest.mark.parametrize(
    ("pattern", "profile", "resource", "wanted"),
    [
        ("*", "topic", "news", True),
        ("*", "topic", "", True),
        ("topic:*", "topic", "news", True),
        ("topic:*", "topic", "", True),
        ("topic:*", "queue", "news", False),
        ("topic:news", "topic", "news", True),
        ("topic:news", "topic", "News", False),
        ("topic:news", "topic", "news2", False),
        ("topic:news", "topic", "", False),
        ("topic:news", "TOPIC", "news", False),
        ("topic:news.*", "topic", "news.", True),
        ("topic:news.*", "topic", "news.sports", True),
        ("topic:news.*", "topic", "news", False),
        ("topic:news.*", "topic", "news.>", True),
        ("topic:news.sports", "topic", "news.>", False),
        ("topic:*s", "topic", "*s", True),
        ("topic:*s", "topic", "news", False),
        ("topic:n?ws", "topic", "news", False),
        ("topic:[n]ews", "topic", "news", False),
        ("topic", "topic", "", False),
        ("t*", "topic", "news", True),
        ("news", "topic", "news", False),
        ("", "topic", "news", False),
        ("queue:jobs-{user}", "queue", "jobs-anna", True),
        ("queue:jobs-{user}", "queue", "jobs-anna2", False),
        ("queue:jobs-{user}", "queue", "jobs-{user}", False),
        ("queue:jobs-{user}", "queue", "jobs-bert", False),
        ("queue:{user}.*", "queue", "anna.jobs", True),
        ("queue:{user}{user}", "queue", "annaanna", True),
        ("queue:{User}", "queue", "anna", False),
    ],
)
def test_a_pattern_is_a_resource_of_a_profile_or_how_it_begins(
    pattern: str, profile: str, resource: str, wanted: bool
) -> None:
    assert may(pattern, profile, resource) == wanted


@pytest.mark.parametrize("pattern", ["queue:{user}", "queue:{user}*", "queue:jobs-{user}", "{user}*"])
@pytest.mark.parametrize("resource", ["", "jobs-", "{user}", "jobs-{user}", "anna"])
def test_what_is_a_users_own_is_nobodys_where_nobody_said_who_it_is(pattern: str, resource: str) -> None:
    assert not may(pattern, "queue", resource, user="")


@pytest.mark.parametrize("user", ["a*", "*", "[a]", "{user}", "a b"])
def test_what_looks_like_a_pattern_in_a_users_name_is_none(user: str) -> None:
    assert may("queue:{user}", "queue", user, user)
    assert not may("queue:{user}", "queue", "ab", user)
    offers = allowed([rule(offer="{user}-*")], user).offers
    assert offers.permits(f"{user}-web")
    assert not offers.permits("ab-web")


@given(st.lists(words, max_size=4), words, words)
def test_patterns_mean_what_they_say(patterns: list[str], user: str, name: str) -> None:
    wanted = False
    for pattern in patterns:
        if user or "{user}" not in pattern:
            begins, whole = pattern[-1:] == "*", pattern.removesuffix("*").replace("{user}", user)
            wanted = wanted or (name.startswith(whole) if begins else name == whole)
    assert (name in ResourceNames.of(patterns, user)) == wanted


# rules


def test_without_rules_everything_is_allowed_to_everybody_who_got_in() -> None:
    for user, host in product(("anna", ""), ("/", "test")):
        rights = allowed([], user, host)
        assert rights is FREE
        for side, profile in product(Side, ("topic", "queue", "registry", "service", "test")):
            assert rights.may(side, profile, "anything")
        assert rights.offers.permits("web")


def test_the_first_rule_that_names_the_user_counts_and_no_other() -> None:
    rules = [rule("an*", read="topic:a"), rule("anna", read="topic:b"), rule("b*", read=None), rule(read="topic:c")]
    for user, wanted in (("anna", "a"), ("bert", ""), ("carl", "c"), ("", "c"), ("Anna", "c")):
        rights = allowed(rules, user)
        assert [name for name in "abc" if rights.may(R, "topic", name)] == list(wanted), user


def test_a_rule_may_be_for_several_and_for_nobody() -> None:
    rules = [AccessRule(("anna", "b?rt", "[cd]*"), ("*",), ("*",), (), ()), AccessRule(("",), ("*",), (), ("*",), ())]
    for user in ("anna", "bert", "dora"):
        assert allowed(rules, user).may(R, "topic", "t")
    assert allowed(rules, "").may(W, "topic", "t")
    assert not allowed(rules, "").may(R, "topic", "t")


def refused(rules: list[AccessRule], user: str, host: str) -> str:
    with pytest.raises(Refusal) as refusal:
        allowed(rules, user, host)
    assert refusal.value.reason is Reason.FORBIDDEN
    return refusal.value.text


def test_hosts_that_are_not_there_are_refused_as_those_that_are_not_for_the_user() -> None:
    rules = [rule("anna", hosts="test"), rule("bert", hosts="none")]
    assert allowed(rules, "anna", "test").may(R, "topic", "t")
    texts = {
        refused(rules, "anna", "/"),
        refused(rules, "anna", "none"),
        refused(rules, "bert", "none"),
        refused(rules, "carl", "test"),
        refused(rules, "", "test"),
        refused([], "anna", "none"),
        refused([rule()], "anna", "none"),
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("*", ["/", "test", "test-anna"]),
        ("test", ["test"]),
        ("test*", ["test", "test-anna"]),
        ("test-{user}", ["test-anna"]),
        ("t?st", ["test"]),
        ("[!/]*", ["test", "test-anna"]),
        ("Test", []),
        ("", []),
    ],
)
def test_hosts_have_the_patterns_of_the_shell(pattern: str, hosts: list[str]) -> None:
    for host in ("/", "test", "test-anna"):
        if host in hosts:
            allowed([rule(hosts=pattern)], "anna", host)
        else:
            refused([rule(hosts=pattern)], "anna", host)


def test_a_rule_that_does_not_name_the_host_is_not_made_up_for_by_a_later_one() -> None:
    refused([rule("anna", hosts="test"), rule("*", hosts="*")], "anna", "/")


def test_what_may_be_offered_has_the_patterns_of_the_shell() -> None:
    offers = allowed([rule(offer="{user}-w?b[12]")]).offers
    assert offers.permits("anna-web1")
    assert not offers.permits("anna-web3")
    assert not offers.permits("bert-web1")
    assert not allowed([rule(offer=None)]).offers.permits("web")
    assert not allowed([rule(offer="{user}*")], "").offers.permits("web")


# the broker's own


@pytest.mark.parametrize("rules", [[], [rule()], [rule(read="topic:*", write="topic:*")]])
def test_the_brokers_own_topics_may_be_read_and_not_written_to(rules: list[AccessRule]) -> None:
    rights = allowed(rules)
    assert rights.may(R, "topic", "elkobroker.load")
    assert not rights.may(W, "topic", "elkobroker.load")
    assert not rights.may(W, "topic", "elkobroker.>")
    assert rights.may(W, "topic", "elkobrokers")


@pytest.mark.parametrize("rules", [[], [rule()]])
def test_nobody_works_for_the_brokers_own_services_or_offers_them(rules: list[AccessRule]) -> None:
    rights = allowed(rules)
    for profile, resource in product(("registry", "service"), ("service/elkobroker.x", "load/elkobroker.x")):
        assert not rights.may(W, profile, resource)
        assert rights.may(R, profile, resource) == (profile == "registry")
        assert rights.may(W, profile, resource.replace("elkobroker", "x"))
    assert not rights.may(W, "queue", "elkobroker.x")
    assert not rights.offers.permits("elkobroker.x")


# changes


def test_rules_and_hosts_may_be_replaced() -> None:
    book = AccessPolicy(("/",), [rule()])
    with pytest.raises(Refusal):
        book.allowed("anna", "test")
    before = book.allowed("anna", "/")
    book.use(("test",), [rule(read="topic:a")])
    assert book.allowed("anna", "test") != before
    with pytest.raises(Refusal):
        book.allowed("anna", "/")


def test_rights_are_equal_where_the_same_is_allowed() -> None:
    one = AccessPolicy(("/",), [rule("b*"), AccessRule(("anna",), ("/",), ("topic:a", "topic:{user}"), (), ("web",))])
    two = AccessPolicy(("/", "test"), [AccessRule(("*",), ("*",), ("topic:anna", "topic:a", "topic:a"), (), ("web",))])
    assert one.allowed("anna", "/") == two.allowed("anna", "test")
    assert one.allowed("bert", "/") != two.allowed("bert", "/")
