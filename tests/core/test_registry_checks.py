"""Health checks in the registry: the order of finds, hidden services, panic, changes, and waits."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.task import Clock

from broker.core.model import Check, CheckState, Kind, Policy, Provider, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from tests.core.test_registry import FREE, join, make, outcome, recorded

FAILING = Check(CheckState.FAILING, "no answer", 1.0)
PASSING = Check(CheckState.PASSING, "answered", 2.0)


def farm(number: int) -> tuple[Registry, list[Service]]:
    registry = make()
    services = [Service("inn", f"inn:{n}", join(registry)) for n in range(number)]
    for service in services:
        registry.offer([service], FREE)
    return registry, services


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(Policy.SHOW, "0123"), (Policy.LAST, "0231"), (Policy.HIDE, "023")],
)
def test_a_find_obeys_the_policy(policy, expected):
    registry, services = farm(4)
    registry.set_check(services[1], FAILING, policy)
    assert [each.hostport[-1] for each in registry.find("inn", "tcp")] == list(expected)
    assert registry.find("inn", "tcp") is registry.find("inn", "tcp")
    assert list(registry.services("inn", "tcp")) == services
    assert registry.check_of(services[1]) is FAILING
    assert registry.policy_of(services[1]) is policy
    registry.set_check(services[1], PASSING, policy)
    assert list(registry.find("inn", "tcp")) == services
    assert registry.policy_of(services[1]) is Policy.SHOW


def test_only_a_failing_state_changes_the_order():
    registry, services = farm(3)
    registry.set_check(services[0], Check(CheckState.UNTESTED, "not checked yet", 0.0), Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == services


@pytest.mark.parametrize(("policy", "expected"), [(Policy.SHOW, "012"), (Policy.LAST, "120"), (Policy.HIDE, "120")])
def test_a_doubtful_service_has_the_place_of_its_rule_after_a_doubt_about_its_provider(policy, expected):
    registry, services = farm(3)
    registry.set_check(services[0], Check(CheckState.DOUBTFUL, "one more success is needed", 1.0), policy)
    assert [each.hostport[-1] for each in registry.find("inn", "tcp")] == list(expected)
    registry.doubt(services[0].provider, "it is silent")
    registry.amend(attrs.evolve(services[0], tags=("changed",)))
    amended = registry.services_of(services[0].provider)[0]
    assert [each.hostport[-1] for each in registry.find("inn", "tcp")] == list("120")
    registry.doubt(services[0].provider, None)
    assert [each.hostport[-1] for each in registry.find("inn", "tcp")] == list(expected)
    registry.set_check(amended, PASSING, policy)
    assert [each.hostport[-1] for each in registry.find("inn", "tcp")] == list("012")


def test_a_service_that_a_provider_in_doubt_offers_comes_last_until_the_end_of_the_doubt():
    registry, services = farm(2)
    first, second = (each.provider for each in services)
    registry.doubt(first, "it is silent")
    changes = recorded(registry, Kind.OFFERED, Kind.CHECKED)
    registry.offer([Service("spa", "spa:1", first)], FREE)
    registry.offer([Service("spa", "spa:2", second)], FREE)
    assert [each.provider for each in registry.find("spa", "tcp")] == [second, first]
    told = [(each.kind, each.provider, each.why) for each in changes]
    assert told == [(Kind.OFFERED, first, ""), (Kind.CHECKED, first, "doubtful"), (Kind.OFFERED, second, "")]
    registry.doubt(first, None)
    assert [each.provider for each in registry.find("spa", "tcp")] == [first, second]


def test_a_doubt_for_another_reason_keeps_the_time_of_its_beginning():
    clock = Clock()
    registry = make(clock)
    provider = join(registry)
    service = Service("inn", "inn:1", provider)
    registry.offer([service], FREE)
    for seconds, reason in ((5.0, "it is silent"), (7.0, "it is silent"), (9.0, "its link is down")):
        clock.advance(seconds - clock.seconds())
        registry.doubt(provider, reason)
        assert registry.check_of(service) == Check(CheckState.DOUBTFUL, reason, 5.0)


def test_changes_tell_the_state_and_what_is_hidden():
    registry, services = farm(3)
    seen = recorded(registry, Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN)
    before = registry.revision
    registry.set_check(services[0], PASSING, Policy.HIDE)
    registry.set_check(services[0], FAILING, Policy.HIDE)
    registry.set_check(services[0], Check(CheckState.FAILING, "another reason", 1.0), Policy.HIDE)
    registry.set_check(services[0], PASSING, Policy.HIDE)
    assert [(change.kind.value, change.why) for change in seen] == [
        ("checked", "passing"),
        ("checked", "failing"),
        ("hidden", ""),
        ("checked", "passing"),
        ("shown", ""),
    ]
    assert [change.revision for change in seen] == list(range(before + 1, before + 6))
    assert all(change.subject is services[0] for change in seen)
    assert registry.changes_since(registry.epoch, before, (Kind.HIDDEN, Kind.SHOWN)) == [seen[2], seen[4]]


@pytest.mark.parametrize("policy", [Policy.LAST, Policy.HIDE])
def test_a_change_of_the_policy_alone_is_told_if_it_changes_the_order(policy):
    registry, (first, *_) = farm(3)
    registry.use_panic(0.1)
    registry.set_check(first, FAILING, Policy.SHOW)
    changes = recorded(registry, Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN)
    told = (Kind.CHECKED, first, "failing")
    for now, expected in ((Policy.SHOW, []), (policy, [told]), (policy, []), (Policy.SHOW, [told])):
        registry.set_check(first, FAILING, now)
        assert [(each.kind, each.subject, each.why) for each in changes] == expected
        changes.clear()


def test_a_failure_of_most_hides_nothing():
    registry, services = farm(4)
    for service in services[:2]:
        registry.set_check(service, FAILING, Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == services[2:]
    seen = recorded(registry, Kind.HIDDEN, Kind.SHOWN)
    registry.set_check(services[2], FAILING, Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == [services[3], *services[:3]]
    assert [change.subject for change in seen] == services[:2]
    registry.set_check(services[2], PASSING, Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == services[2:]


def test_the_only_service_of_a_name_is_hidden_only_without_a_panic_threshold():
    registry, services = farm(1)
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == services
    registry.use_panic(1.0)
    assert registry.find("inn", "tcp") == ()
    registry.use_panic(0.5)
    assert list(registry.find("inn", "tcp")) == services


def test_panic_counts_the_services_that_come_and_go():
    registry, services = farm(2)
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert list(registry.find("inn", "tcp")) == services[1:]
    registry.leave(services[1].provider)
    assert list(registry.find("inn", "tcp")) == services[:1]
    more = Service("inn", "inn:9", join(registry))
    registry.offer([more], FREE)
    assert registry.find("inn", "tcp") == (more,)
    registry.leave(services[0].provider)
    assert registry.find("inn", "tcp") == (more,)
    assert registry.check_of(services[0]) is None


def test_a_wait_that_began_while_a_service_was_hidden_gets_it_when_it_returns():
    registry, services = farm(1)
    registry.use_panic(1.0)
    early: list[Service] = []
    late: list[Service] = []
    registry.monitor("inn", None, early.append, lambda: None)
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert registry.find("inn", "tcp") == ()
    results = outcome(registry.wait("inn", None))
    registry.monitor("inn", None, late.append, lambda: None)
    registry.set_check(services[0], PASSING, Policy.HIDE)
    assert results == services
    assert late == services
    assert early == []  # it was told of this service before: real servers would connect to it twice


def test_an_amended_service_keeps_its_check():
    registry, services = farm(3)
    registry.set_check(services[0], FAILING, Policy.HIDE)
    amended = Service("inn", "inn:0", services[0].provider, info="{}")
    registry.amend(amended)
    present = registry.services("inn", "tcp")[0]
    assert present.info == "{}"
    assert registry.check_of(present) is FAILING
    assert registry.policy_of(present) is Policy.HIDE
    assert list(registry.find("inn", "tcp")) == services[1:]
    registry.set_check(present, None)
    assert registry.find("inn", "tcp")[0] is present
    assert registry.check_of(present) is None


def test_a_check_of_a_service_that_is_gone_has_no_effect():
    registry, services = farm(2)
    registry.leave(services[0].provider)
    revision = registry.revision
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert registry.revision == revision
    assert registry.check_of(services[0]) is None


def test_a_restored_copy_does_not_replace_a_hidden_service():
    clock = Clock()
    old = Provider(1, "", "elko", "", 0.0, 0.0, (Service("inn", "inn:0", 1), Service("inn", "inn:7", 1)))
    registry = Registry(clock, iter(range(5, 99)).__next__, Restored([old], 60.0, clock, lambda ids: None))
    registry.use_panic(1.0)
    live = Service("inn", "inn:0", registry.join("", "dbp", ""))
    registry.offer([live], FREE)
    registry.set_check(live, FAILING, Policy.HIDE)
    assert [each.hostport for each in registry.find("inn", "tcp", restored=True)] == ["inn:7"]
