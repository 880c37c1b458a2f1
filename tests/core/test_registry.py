"""Registry: ids, services and their index, loads, waiting finds, and the order of notifications.

The file is longer than others: it has all tests of `broker.core.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf, nan
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from zope.interface.verify import verifyObject

from broker.core.errors import Reason, Refusal, Refusals
from broker.core.interfaces import IRegistry, IWait
from broker.core.model import BROKER, MAX_NAME, MAX_TEXT, Auth, Change, Kind, Load, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import FEW_IDS, Registry
from broker.core.service_info import MAX_DEPTH, MAX_DIGITS, MAX_INFO

FREE = Rights(services=1_000_000)


def make(clock: Clock | None = None, first: int = 1) -> Registry:
    clock = Clock() if clock is None else clock
    return Registry(clock, count(first).__next__, Restored((), 0.0, clock, lambda ids: None))


def join(registry: Registry, label: str = "p") -> int:
    return registry.join(label, "elko", "192.0.2.1:1")


def offer(registry: Registry, provider: int, *names: str, rights: Rights = FREE) -> list[Service]:
    services = [Service(name, f"{name}:{number}", provider) for number, name in enumerate(names)]
    registry.offer(services, rights)
    return services


def refusals(registry: Registry, services: list[Service], rights: Rights) -> tuple[Refusal, ...]:
    """Offer services of which some are refused. Returns the refusals."""
    with pytest.raises(Refusals) as refused:
        registry.offer(services, rights)
    return refused.value.each


def recorded(registry: Registry, *kinds: Kind) -> list[Change]:
    changes: list[Change] = []
    registry.watch(changes.append, kinds or tuple(Kind))
    return changes


def outcome(found: Deferred[Service]) -> list[object]:
    """Return a list to which the Deferred's result is added when it fires: the service, or the exception."""
    results: list[object] = []
    found.addBoth(lambda result: results.append(getattr(result, "value", result)))
    return results


def fail() -> None:
    raise AssertionError("must not be called")


def test_it_is_what_it_promises_to_be() -> None:
    registry = make()
    assert verifyObject(IRegistry, registry)
    assert verifyObject(IWait, registry.monitor("x", None, lambda service: None, fail))
    assert verifyObject(IWait, registry.watch(lambda change: None))


# providers


def test_ids_rise_from_one_and_are_not_used_again() -> None:
    registry = make()
    assert [join(registry), join(registry)] == [1, 2]
    registry.leave(2)
    registry.leave(1)
    assert join(registry) == 3


def test_ids_go_on_where_they_are_told_to() -> None:
    assert join(make(first=501)) == 501


def test_a_provider_is_told_as_it_is_now() -> None:
    clock = Clock()
    registry = make(clock)
    id = registry.join("one", "elko", "192.0.2.1:5")
    clock.advance(2)
    [service] = offer(registry, id, "bank")
    registry.relabel(id, "two")
    provider = registry.provider(id)
    assert provider is not None
    assert (provider.label, provider.wire, provider.address) == ("two", "elko", "192.0.2.1:5")
    assert registry.wire_and_label(id) == ("elko", "two")
    assert (provider.load, provider.heard, provider.services) == (0.0, 2.0, (service,))
    clock.advance(3)
    registry.load(id, 0.5)
    provider = registry.provider(id)
    assert provider is not None
    assert (provider.load, provider.heard) == (0.5, 5.0)
    assert [p.id for p in registry.providers()] == [id]
    registry.leave(id)
    assert registry.provider(id) is None
    assert registry.wire_and_label(id) is None
    assert registry.providers() == []


def test_a_label_is_cut_at_its_limit() -> None:
    registry = make()
    id = join(registry, "x" * (MAX_TEXT + 5))
    provider = registry.provider(id)
    assert provider is not None
    assert provider.label == "x" * MAX_TEXT
    registry.relabel(id, "y" * (MAX_TEXT + 5))
    provider = registry.provider(id)
    assert provider is not None
    assert provider.label == "y" * MAX_TEXT


def test_a_provider_is_named_by_label_endpoint_or_id() -> None:
    registry = make()
    registry.offer_own([Service("broker-elko", "h:9", BROKER)])
    first, second, third = (join(registry, label) for label in ("bank", "2", "shop"))
    offer(registry, third, "one", "two")
    assert registry.named("bank") == [first]
    assert registry.named("two:1") == [third]
    assert registry.named("2") == [second], "whose label is its id, too"
    assert registry.named("3") == [third]
    for unknown in ("", "h:9", "0", "03", "4", "٣", "9" * 5_000):
        assert registry.named(unknown) == []


def test_leaving_twice_is_harmless() -> None:
    registry = make()
    id = join(registry)
    registry.leave(id)
    revision = registry.revision
    registry.leave(id)
    registry.leave(77)
    registry.withdraw(id, ["bank"])
    registry.load(id, 3.0)
    assert registry.revision == revision


# services


def test_the_index_is_by_name_and_protocol() -> None:
    registry = make()
    id = join(registry)
    tcp, http, other = (Service("bank", "h:1", id), Service("bank", "h:2", id, "http"), Service("shop", "h:3", id))
    registry.offer([tcp, http, other], FREE)
    assert list(registry.find("bank", "tcp")) == [tcp]
    assert list(registry.find("bank", "http")) == [http]
    assert list(registry.find("bank", "rtcp")) == []
    assert list(registry.find("Bank", "tcp")) == []
    assert list(registry.services()) == [tcp, http, other]
    assert list(registry.services("bank")) == [tcp, http]
    assert list(registry.services("bank", "http")) == [http]
    assert list(registry.services("none")) == []


def test_services_are_listed_in_the_order_of_their_offers() -> None:
    registry = make()
    first, second = join(registry), join(registry)
    [late] = offer(registry, second, "bank")
    [later] = offer(registry, first, "bank")
    assert list(registry.find("bank", "tcp")) == [late, later]


def test_the_same_service_may_be_offered_often_and_goes_whole() -> None:
    registry = make()
    id = join(registry)
    for _ in range(3):
        registry.offer([Service("bank", "h:1", id)], FREE)
    assert len(registry.find("bank", "tcp")) == 3
    withdrawn = recorded(registry, Kind.WITHDRAWN)
    registry.withdraw(id, ["bank"])
    assert list(registry.find("bank", "tcp")) == []
    assert len(withdrawn) == 3


def test_withdrawing_takes_every_protocol_of_the_own_services_only() -> None:
    registry = make()
    mine, other = join(registry), join(registry)
    registry.offer(
        [Service("bank", "h:1", mine), Service("bank", "h:2", mine, "http"), Service("x", "h:3", mine)], FREE
    )
    offer(registry, other, "bank")
    registry.withdraw(mine, ["bank", "never offered", "bank"])
    assert [(s.name, s.provider) for s in registry.services()] == [("x", mine), ("bank", other)]


def test_a_provider_that_leaves_takes_its_services_along() -> None:
    registry = make()
    stays, goes = join(registry), join(registry)
    offer(registry, stays, "bank")
    offer(registry, goes, "bank", "shop")
    registry.leave(goes)
    assert [s.provider for s in registry.find("bank", "tcp")] == [stays]
    assert list(registry.find("shop", "tcp")) == []
    assert list(registry.services("shop")) == []


def test_the_brokers_own_services_are_found_and_nobody_can_withdraw_them() -> None:
    registry = make()
    own = Service("elkobroker.broker-admin", "h:9000", BROKER)
    registry.offer_own([own])
    registry.withdraw(BROKER, [own.name])
    assert list(registry.find(own.name, "tcp")) == [own]
    assert list(registry.services()) == [own]
    assert registry.providers() == []
    assert registry.loads() == []


def test_the_brokers_own_services_are_replaced_and_only_differences_are_told() -> None:
    registry = make()
    kept, gone, new = (Service(f"broker-{name}", "h:1", BROKER) for name in ("kept", "gone", "new"))
    registry.offer_own([kept, gone])
    changes = recorded(registry, Kind.OFFERED, Kind.WITHDRAWN)
    registry.offer_own([Service("broker-kept", "h:1", BROKER), new])
    assert [(change.kind, change.subject) for change in changes] == [(Kind.WITHDRAWN, gone), (Kind.OFFERED, new)]
    assert list(registry.services()) == [kept, new]
    assert registry.find("broker-gone", "tcp") == ()


def test_an_offer_of_nothing_is_no_change() -> None:
    registry = make()
    id = join(registry)
    revision = registry.revision
    registry.offer([], FREE)
    registry.withdraw(id, [])
    assert registry.revision == revision


# reasons of withdrawals


def test_a_service_that_is_withdrawn_goes_for_another_reason_than_one_whose_provider_leaves() -> None:
    registry = make()
    id = join(registry)
    offer(registry, id, "bank", "shop")
    changes = recorded(registry, Kind.WITHDRAWN, Kind.LEFT)
    registry.withdraw(id, ["bank"])
    registry.leave(id)
    assert [(change.kind, change.why) for change in changes] == [
        (Kind.WITHDRAWN, "withdrawn"),
        (Kind.WITHDRAWN, "left"),
        (Kind.LEFT, "left"),
    ]


def test_all_services_of_a_provider_that_expires_go_for_that_reason_and_those_who_resume_hear_it_too() -> None:
    registry = make()
    id = join(registry)
    offer(registry, id, "bank", "shop")
    revision = registry.revision
    changes = recorded(registry)
    registry.leave(id, "expired")
    assert [(change.kind, change.why) for change in changes] == [
        (Kind.WITHDRAWN, "expired"),
        (Kind.WITHDRAWN, "expired"),
        (Kind.LEFT, "expired"),
    ]
    assert registry.changes_since(registry.epoch, revision) == changes
    registry.leave(id)
    assert len(changes) == 3, "the first reason counts"


def test_what_comes_or_changes_has_no_reason() -> None:
    registry = make()
    changes = recorded(registry)
    id = join(registry)
    [service] = offer(registry, id, "bank")
    registry.load(id, 1)
    registry.amend(attrs.evolve(service, interval=1.0))
    assert [change.kind for change in changes] == [Kind.JOINED, Kind.OFFERED, Kind.LOAD, Kind.AMENDED]
    assert {change.why for change in changes} == {""}


# amending


@pytest.mark.parametrize(
    "more",
    [{"info": '{"port": 1}'}, {"lasting": True}, {"interval": 2.5}, {"info": "{}", "lasting": True, "interval": 1.0}],
)
def test_what_is_said_of_a_service_can_be_changed_and_only_watchers_hear_of_it(more: dict[str, Any]) -> None:
    registry = make()
    id = join(registry)
    [service] = offer(registry, id, "bank")
    changes = recorded(registry)
    registry.monitor("bank", None, lambda service: fail(), fail)
    registry.wait("bank", None).addCallback(lambda service: fail())
    new = attrs.evolve(service, **more)
    registry.amend(new)
    assert registry.find("bank", "tcp") == (new,)
    assert list(registry.services()) == list(registry.services("bank")) == [new]
    assert [(change.kind, change.provider, change.subject) for change in changes] == [(Kind.AMENDED, id, new)]
    assert registry.revision == changes[0].revision
    registry.withdraw(id, ["bank"])
    assert (registry.find("bank", "tcp"), list(registry.services())) == ((), [])
    assert changes[1].subject == new


def test_an_amended_service_keeps_its_place_in_every_order() -> None:
    registry = make()
    one, two, three = (join(registry) for _ in range(3))
    offer(registry, one, "a", "bank", "z")
    [old] = offer(registry, two, "bank")
    offer(registry, three, "bank")
    names = [(s.name, s.provider) for s in registry.services()]
    new = attrs.evolve(old, info="{}")
    registry.amend(new)
    registry.amend(attrs.evolve(registry.find("bank", "tcp")[0], info="[]"))
    assert [(s.provider, s.info) for s in registry.find("bank", "tcp")] == [(one, "[]"), (two, "{}"), (three, None)]
    assert [(s.name, s.provider) for s in registry.services()] == names


def test_of_several_of_the_same_name_and_protocol_the_first_is_amended() -> None:
    registry = make()
    id = join(registry)
    http, first, second = Service("bank", "h:1", id, "http"), Service("bank", "h:1", id), Service("bank", "h:1", id)
    registry.offer([http, first, second], FREE)
    amended = attrs.evolve(first, info="{}")
    registry.amend(amended)
    assert list(registry.services()) == [http, amended, second]
    changes = recorded(registry)
    registry.amend(second)
    assert registry.find("bank", "tcp") == (first, second)
    registry.leave(id)
    assert [change.kind for change in changes] == [Kind.AMENDED, *[Kind.WITHDRAWN] * 3, Kind.LEFT]
    assert list(registry.services()) == []


def test_an_interval_can_be_agreed_changed_and_given_up() -> None:
    registry = make()
    id = join(registry)
    [service] = offer(registry, id, "bank")
    changes = recorded(registry)
    for interval in (1.0, 1.0, 2.0, None):
        registry.amend(attrs.evolve(service, interval=interval))
        assert registry.find("bank", "tcp")[0].interval == interval
    assert [getattr(change.subject, "interval", fail) for change in changes] == [1.0, 2.0, None]


def test_amending_without_a_difference_is_a_sign_of_life_and_no_change() -> None:
    clock = Clock()
    registry = make(clock)
    id = join(registry)
    [service] = offer(registry, id, "bank")
    revision = registry.revision
    clock.advance(5)
    registry.amend(attrs.evolve(service))
    assert registry.revision == revision
    provider = registry.provider(id)
    assert provider is not None
    assert provider.heard == 5


@pytest.mark.parametrize(
    "more",
    [
        {"name": "shop"},
        {"protocol": "http"},
        {"provider": 2},
        {"provider": 99},
        {"hostport": "h:2"},
        {"label": "other"},
        {"auth": Auth("open")},
        {"restored": True},
        {"info": "i" * (MAX_INFO + 1)},
        {"info": '{"x": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}"},
        {"info": '{"x": 1' + "0" * MAX_DIGITS + "}"},
    ],
)
def test_a_service_that_may_not_be_amended_so_stays_as_it_is(more: dict[str, Any]) -> None:
    registry = make()
    id = join(registry)
    assert (id, join(registry)) == (1, 2)
    service = Service("bank", "h:1", id, info="old")
    registry.offer([service], FREE)
    changes = recorded(registry)
    with pytest.raises(Refusal) as refused:
        registry.amend(attrs.evolve(service, **{"info": "new", **more}))
    assert refused.value.reason is Reason.PARAMETER
    assert len(refused.value.text) < 400
    assert list(registry.services()) == [service]
    assert changes == []


def test_info_at_its_limit_is_taken() -> None:
    registry = make()
    [service] = offer(registry, join(registry), "bank")
    registry.amend(attrs.evolve(service, info="i" * MAX_INFO))


def test_who_amends_while_told_is_told_of_afterwards() -> None:
    registry = make()
    id = join(registry)

    def amend(change: Change) -> None:
        assert isinstance(change.subject, Service)
        registry.amend(attrs.evolve(change.subject, info="{}"))

    registry.watch(amend, (Kind.OFFERED,))
    changes = recorded(registry)
    offer(registry, id, "a", "b")
    assert [(change.kind, getattr(change.subject, "name", None)) for change in changes] == [
        (Kind.OFFERED, "a"),
        (Kind.OFFERED, "b"),
        (Kind.AMENDED, "a"),
        (Kind.AMENDED, "b"),
    ]


# rights and limits


def test_names_that_may_not_be_offered_are_left_out_and_the_rest_counts() -> None:
    registry = make()
    id = join(registry)
    rights = Rights(offer=("context-*", "workshop-service-?"))
    names = ["context-user", "director-provider", "workshop-service-1", "workshop-service-12", "Context-user"]
    refused = refusals(registry, [Service(name, "h:1", id) for name in names], rights)
    assert [service.name for service in registry.services()] == ["context-user", "workshop-service-1"]
    assert [refusal.reason for refusal in refused] == [Reason.FORBIDDEN] * 3
    assert "director-provider" in refused[0].text


@pytest.mark.parametrize("offered", [("*",), ("elkobroker.*",), ("*", "elkobroker.x")])
def test_the_brokers_own_names_are_never_given_away(offered: tuple[str, ...]) -> None:
    registry = make()
    id = join(registry)
    [refusal] = refusals(registry, [Service("elkobroker.x", "h:1", id)], Rights(offer=offered))
    assert refusal.reason is Reason.FORBIDDEN
    assert list(registry.services()) == []


def test_no_patterns_allow_no_names() -> None:
    registry = make()
    id = join(registry)
    [refusal] = refusals(registry, [Service("bank", "h:1", id)], Rights(offer=()))
    assert refusal.reason is Reason.FORBIDDEN


def test_a_pattern_matches_the_whole_name_even_with_newlines() -> None:
    rights = Rights(offer=("bank",))
    assert [rights.permits(name) for name in ("bank", "bank\nx", "bank\n")] == [True, False, False]


@pytest.mark.parametrize(
    "service",
    [
        Service("x" * (MAX_NAME + 1), "h:1", 1),
        Service("x", "h:1", 1, "p" * (MAX_NAME + 1)),
        Service("x", "h" * (MAX_TEXT + 1), 1),
        Service("x", "h:1", 1, label="l" * (MAX_TEXT + 1)),
        Service("x", "h:1", 1, auth=Auth("m" * (MAX_TEXT + 1))),
        Service("x", "h:1", 1, auth=Auth("password", "c" * (MAX_TEXT + 1))),
        Service("x", "h:1", 1, auth=Auth("password", "c", "i" * (MAX_TEXT + 1))),
        Service("x", "h:1", 1, info="i" * (MAX_INFO + 1)),
    ],
)
def test_a_text_over_its_limit_is_refused(service: Service) -> None:
    registry = make()
    join(registry)
    [refusal] = refusals(registry, [service], FREE)
    assert refusal.reason is Reason.PARAMETER
    assert len(refusal.text) < 400
    assert list(registry.services()) == []


def test_texts_at_their_limit_are_taken() -> None:
    registry = make()
    id = join(registry)
    text = "t" * MAX_TEXT
    service = Service("x" * MAX_NAME, text, id, "p" * MAX_NAME, text, Auth(text, text, text), info="i" * MAX_INFO)
    registry.offer([service], FREE)


def test_a_peer_has_its_limit_of_services() -> None:
    registry = make()
    id = join(registry)
    rights = Rights(services=3)
    names = ["a", "b", "c", "d", "e"]
    refused = refusals(registry, [Service(name, "h:1", id) for name in names], rights)
    assert [service.name for service in registry.services()] == ["a", "b", "c"]
    assert [refusal.reason for refusal in refused] == [Reason.LIMIT] * 2
    assert "3" in refused[0].text
    registry.withdraw(id, ["a"])
    registry.offer([Service("f", "h:1", id)], rights)
    [refusal] = refusals(registry, [Service("g", "h:1", id)], rights)
    assert refusal.reason is Reason.LIMIT


def test_a_refused_service_takes_no_room() -> None:
    registry = make()
    id = join(registry)
    rights = Rights(offer=("a", "b"), services=2)
    refusals(registry, [Service(name, "h:1", id) for name in ("no", "a", "no", "b")], rights)
    assert [service.name for service in registry.services()] == ["a", "b"]


MOST_SERVICES = 20


@pytest.fixture
def full() -> tuple[Registry, int, tuple[Refusal, ...]]:
    registry = make()
    registry.most_services = MOST_SERVICES
    id = join(registry)
    services = [Service("bank", "h:1", id) for _ in range(MOST_SERVICES + 2)]
    refused = refusals(registry, services, FREE)
    return registry, id, refused


def test_all_peers_together_have_a_limit_of_services(full: tuple[Registry, int, tuple[Refusal, ...]]) -> None:
    registry, _, refused = full
    assert [refusal.reason for refusal in refused] == [Reason.LIMIT] * 2
    other = join(registry)
    [refusal] = refusals(registry, [Service("shop", "h:1", other)], FREE)
    assert refusal.reason is Reason.LIMIT


def test_a_limit_below_the_services_that_are_there_ends_none(full: tuple[Registry, int, tuple[Refusal, ...]]) -> None:
    registry, id, _ = full
    registry.most_services = 3
    assert len(registry.services_of(id)) == MOST_SERVICES
    registry.withdraw(id, ["bank"])
    assert len(refusals(registry, [Service("bank", "h:1", id) for _ in range(5)], FREE)) == 2


def test_a_limit_below_the_services_that_are_there_permits_no_exchange(
    full: tuple[Registry, int, tuple[Refusal, ...]],
) -> None:
    registry, _, _ = full
    id = join(registry)
    registry.most_services += 1
    offer(registry, id, "shop")
    moved = Service("shop", "h:2", id)
    registry.check(moved, FREE, id)
    registry.most_services -= 1
    with pytest.raises(Refusal) as refused:
        registry.check(moved, FREE, id)
    assert refused.value.reason is Reason.LIMIT
    registry.check(moved, FREE)


def test_the_text_says_that_the_table_of_the_broker_is_full(full: tuple[Registry, int, tuple[Refusal, ...]]) -> None:
    _, _, refused = full
    assert str(MOST_SERVICES) in refused[0].text
    assert str(FREE.services) not in refused[0].text


def test_what_goes_makes_room_for_all(full: tuple[Registry, int, tuple[Refusal, ...]]) -> None:
    registry, id, _ = full
    other = join(registry)
    registry.leave(id)
    offer(registry, other, "a", "b")
    registry.withdraw(other, ["a", "b"])
    services = [Service("bank", "h:1", other) for _ in range(MOST_SERVICES + 1)]
    assert [refusal.reason for refusal in refusals(registry, services, FREE)] == [Reason.LIMIT]


# loads


def test_loads_are_those_of_all_providers() -> None:
    registry = make()
    one, two = join(registry, "one"), join(registry, "two")
    registry.load(two, 0.25)
    assert registry.loads() == [Load(one, "one", 0.0), Load(two, "two", 0.25)]
    registry.leave(two)
    assert registry.loads() == [Load(one, "one", 0.0)]


@pytest.mark.parametrize("load", [0.0, 7.5, 1e300])
def test_a_load_is_kept_and_told_as_it_was_reported(load: float) -> None:
    registry = make()
    id = join(registry, "one")
    loads = recorded(registry, Kind.LOAD)
    registry.load(id, load)
    assert registry.loads() == [Load(id, "one", load)]
    assert [change.subject for change in loads] == [Load(id, "one", load)]


@pytest.mark.parametrize("load", [-1.0, -1e-300, -inf, inf, nan])
def test_a_load_that_is_negative_or_not_finite_is_refused(load: float) -> None:
    registry = make()
    id = join(registry, "one")
    registry.load(id, 0.5)
    loads = recorded(registry, Kind.LOAD)
    with pytest.raises(Refusal) as refused:
        registry.load(id, load)
    assert refused.value.reason is Reason.PARAMETER
    assert registry.loads() == [Load(id, "one", 0.5)]
    assert loads == []


def test_a_service_with_an_empty_hostport_is_refused_and_the_others_are_added() -> None:
    registry = make()
    id = join(registry)
    nowhere, somewhere = Service("bank", "", id), Service("post", "h:1", id)
    [refusal] = refusals(registry, [nowhere, somewhere], Rights())
    assert refusal.reason is Reason.PARAMETER
    assert refusal.text == "service 'bank' has an empty hostport: no peer could connect to it"
    assert registry.services() == [somewhere]
    with pytest.raises(Refusal, match=refusal.text):
        registry.check(nowhere, Rights())
    registry.check(somewhere, Rights())


# finds that wait


def test_a_find_gets_the_first_service_of_its_name_in_any_protocol() -> None:
    registry = make()
    id = join(registry)
    found = outcome(registry.wait("bank", 5))
    offer(registry, id, "shop")
    assert found == []
    services = [Service("bank", "h:1", id, "http"), Service("bank", "h:2", id)]
    registry.offer(services, FREE)
    assert found == [services[0]]


def test_a_find_ends_when_its_time_is_up() -> None:
    clock = Clock()
    registry = make(clock)
    found = outcome(registry.wait("bank", 5))
    clock.advance(4.99)
    assert found == []
    clock.advance(0.02)
    [refusal] = found
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.text) == (Reason.NO_SUCH_SERVICE, "no such service")
    offer(registry, join(registry), "bank")
    assert len(found) == 1


def test_a_find_without_end_waits() -> None:
    clock = Clock()
    registry = make(clock)
    found = registry.wait("bank", None)
    clock.advance(10**9)
    assert clock.getDelayedCalls() == []
    [service] = offer(registry, join(registry), "bank")
    assert outcome(found) == [service]


def test_a_find_that_was_answered_leaves_no_timer() -> None:
    clock = Clock()
    registry = make(clock)
    found = registry.wait("bank", 5)
    [service] = offer(registry, join(registry), "bank")
    assert outcome(found) == [service]
    assert clock.getDelayedCalls() == []


def test_a_cancelled_find_hears_nothing_and_leaves_no_timer() -> None:
    clock = Clock()
    registry = make(clock)
    found = registry.wait("bank", 5)
    found.cancel()
    [error] = outcome(found)
    assert isinstance(error, CancelledError)
    assert clock.getDelayedCalls() == []
    offer(registry, join(registry), "bank")


def test_a_find_does_not_hear_of_what_is_there_already() -> None:
    registry = make()
    offer(registry, join(registry), "bank")
    assert outcome(registry.wait("bank", None)) == []


# order of notifications


def test_for_each_service_waits_hear_first_in_their_order_and_then_the_watchers() -> None:
    registry = make()
    heard: list[str] = []

    def hears(who: str) -> Callable[[Service], None]:
        return lambda service: heard.append(f"{who} {service.name}")

    registry.watch(lambda change: heard.append(f"watcher {change.subject.name}"), (Kind.OFFERED,))  # type: ignore[union-attr]
    registry.monitor("b", None, hears("first"), fail)
    registry.wait("a", None).addCallback(hears("second"))
    registry.monitor("a", None, hears("third"), fail)
    offer(registry, join(registry), "a", "b", "a")
    assert heard == [
        "second a", "third a", "watcher a",
        "first b", "watcher b",
        "third a", "watcher a",
    ]  # fmt: skip


def test_when_told_the_change_is_made_whole() -> None:
    registry = make()
    seen: list[tuple[int, int]] = []
    registry.watch(lambda change: seen.append((len(registry.services()), registry.revision)))
    id = join(registry)
    offer(registry, id, "a", "b")
    registry.withdraw(id, ["a"])
    offer(registry, id, "a")
    registry.leave(id)
    assert seen == [(0, 1), (2, 3), (2, 3), (1, 4), (2, 5), (0, 8), (0, 8), (0, 8)]


def test_a_failing_wait_keeps_no_one_from_hearing() -> None:
    registry = make()
    heard: list[Service] = []

    def fails(service: Service) -> None:
        raise ZeroDivisionError("as it is meant to")

    registry.monitor("bank", None, fails, fail)
    registry.monitor("bank", None, heard.append, fail)
    watched = recorded(registry, Kind.OFFERED)
    with capturedLogs() as logs:
        services = offer(registry, join(registry), "bank", "bank")
    assert heard == services
    assert len(watched) == 2
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError] * 2


def test_a_failing_listener_puts_no_secret_into_the_log() -> None:
    def fails(news: object) -> None:
        raise ZeroDivisionError("as it is meant to")

    registry = make()
    id = join(registry)
    registry.monitor("bank", None, fails, fail)
    registry.watch(fails)
    with capturedLogs() as logs:
        registry.offer([Service("bank", "h:1", id, auth=Auth("password", "sesame"))], FREE)
    assert len(logs) == 2
    assert all("sesame" not in str(formatEvent(event)) for event in logs)


def test_a_wait_begun_by_a_listener_does_not_hear_of_the_same_offer() -> None:
    registry = make()
    late: list[Service] = []
    registry.wait("a", None).addCallback(lambda service: registry.monitor("b", None, late.append, fail))
    id = join(registry)
    offer(registry, id, "a", "b")
    assert late == []
    services = offer(registry, id, "b")
    assert late == services


def test_a_wait_ended_by_another_listener_hears_nothing() -> None:
    registry = make()
    heard: list[Service] = []
    registry.monitor("bank", None, lambda service: second.cancel(), fail)
    second = registry.monitor("bank", None, heard.append, fail)
    with capturedLogs() as logs:
        offer(registry, join(registry), "bank")
    assert heard == []
    assert logs == [], "nor does anything go wrong"


def test_watchers_hear_in_the_order_of_revisions_even_if_a_listener_makes_changes() -> None:
    registry = make()
    id = join(registry)
    changes = recorded(registry)
    registry.wait("a", None).addCallback(lambda service: offer(registry, id, "b"))
    offer(registry, id, "a")
    assert [change.revision for change in changes] == [2, 3]


# heartbeats


def test_a_heartbeat_is_told_with_its_time_until_the_watch_is_cancelled() -> None:
    registry = make()
    one, two = join(registry), join(registry)
    told: list[tuple[int, float | None]] = []
    watch = registry.watch_beats(lambda provider, sent: told.append((provider, sent)))
    registry.watch_loads(lambda provider, load, details: fail())
    registry.beat(two, 5.5)
    registry.beat(one)
    watch.cancel()
    watch.cancel()
    registry.beat(one)
    assert told == [(two, 5.5), (one, None)]


def test_a_heartbeat_is_a_sign_of_life_and_no_change() -> None:
    clock = Clock()
    registry = make(clock)
    id = join(registry)
    revision = registry.revision
    clock.advance(7)
    registry.beat(id)
    provider = registry.provider(id)
    assert provider is not None
    assert provider.heard == 7
    assert registry.revision == revision


def test_a_heartbeat_of_a_provider_that_left_is_ignored() -> None:
    registry = make()
    id = join(registry)
    registry.watch_beats(lambda provider, sent: fail())
    registry.leave(id)
    registry.beat(id)


def test_a_watcher_of_heartbeats_that_fails_is_logged_and_the_others_hear() -> None:
    registry = make()
    id = join(registry)

    def fails(provider: int, sent: float | None) -> None:
        raise RuntimeError

    told: list[int] = []
    registry.watch_beats(fails)
    registry.watch_beats(lambda provider, sent: told.append(provider))
    with capturedLogs() as logs:
        registry.beat(id)
    assert told == [id]
    assert ["heartbeat" in str(formatEvent(event)) for event in logs] == [True]


def test_the_protocols_of_a_name_follow_its_services() -> None:
    registry = make()
    assert list(registry.protocols("bank")) == []
    first, second = (join(registry, label) for label in ("one", "two"))
    registry.offer([Service("bank", "h:1", first, "tcp"), Service("bank", "h:2", first, "ws")], Rights())
    registry.offer([Service("bank", "h:3", second, "tcp")], Rights())
    assert list(registry.protocols("bank")) == ["tcp", "ws"]
    registry.leave(first)
    assert list(registry.protocols("bank")) == ["tcp"]
    registry.leave(second)
    assert list(registry.protocols("bank")) == []


def test_ids_are_those_of_all_peers_and_of_few_others() -> None:
    registry = make()
    ids = [join(registry) for _ in range(3)]
    assert list(registry.ids()) == ids
    before = registry.ids()
    registry.leave(ids[1])
    assert {ids[0], ids[2]} <= set(registry.ids()) <= set(ids)
    assert list(before) == ids
    for _ in range(3 * FEW_IDS):
        registry.leave(join(registry))
    assert {ids[0], ids[2]} < set(registry.ids())
    assert len(registry.ids()) <= FEW_IDS + 10
