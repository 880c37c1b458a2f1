"""Events of the registry, of listeners and of stores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import succeed
from zope.interface import implementer

from broker.app.event_sources import EVERY, EventSources, report_plan
from broker.core.interfaces import INotifications
from broker.core.model import EVENTS, NOBODY, Check, CheckState, Listening, NotReady, Owner, Provider, Rights, Service
from broker.core.plan import PlanFile
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.turns import SHARE, Turns
from broker.export.plan_document import parse
from tests.core.plans import MADE, document, service
from tests.ticking_clock import TickingClock

SETTLE = 5.0
GRACE = 60.0


@implementer(INotifications)
class Farm:
    """A registry with its event sources. ``events`` has what they reported, each within ``cost`` seconds."""

    cost = 0.0

    def __init__(self, *known: Provider) -> None:
        self.clock = TickingClock()
        self.restored = Restored(known, GRACE, self.clock, lambda ids: None)
        self.registry = Registry(self.clock, count(101).__next__, self.restored)
        self.listeners: list[Listening] = []
        self.degradations: list[NotReady] = []
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.full: list[NotReady] = []
        self.sources = EventSources(
            self,
            self.registry,
            self.restored,
            self.clock,
            Turns(self.clock),
            self.registry.check_of,
            lambda: self.listeners,
            lambda: self.degradations,
            lambda: self.full,
        )
        self.sources.use(SETTLE)
        self.sources.start()

    def event(self, kind: str, name: str, about: Mapping[str, object] | None = None) -> None:
        assert kind in EVENTS
        self.events.append((kind, name, dict(about or {})))
        self.clock.rightNow += self.cost

    def offer(self, name: str) -> int:
        provider = self.registry.join("p", "elko", "10.0.0.1")
        self.registry.offer([Service(name, "h:1", provider)], Rights())
        return provider

    def advance(self, seconds: float) -> list[tuple[str, str, dict[str, Any]]]:
        self.clock.advance(seconds)
        events, self.events = self.events, []
        return events


def test_a_service_is_gone_when_its_last_provider_has_left_for_a_while() -> None:
    farm = Farm()
    one, two = farm.offer("bank"), farm.offer("bank")
    farm.registry.leave(one)
    assert farm.advance(2 * SETTLE) == []
    farm.registry.leave(two, "expired")
    assert farm.advance(SETTLE - 0.1) == []
    assert farm.advance(0.1) == [("service-gone", "bank", {"why": "expired"})]
    three = farm.offer("bank")
    about = {"provider": three, "hostport": "h:1", "protocol": "tcp"}
    assert farm.advance(0) == [("service-back", "bank", about)]


@pytest.mark.parametrize("other", [SETTLE / 2, SETTLE * 2])
def test_another_time_holds_for_services_that_have_left(other: float) -> None:
    farm = Farm()
    farm.registry.leave(farm.offer("bank"))
    assert farm.advance(SETTLE / 4) == []
    farm.sources.use(other)
    assert farm.advance(other - SETTLE / 4 - 0.1) == []
    assert farm.advance(0.1) == [("service-gone", "bank", {"why": "left"})]


def test_a_service_that_left_longer_ago_than_a_shorter_time_is_gone_at_once() -> None:
    farm = Farm()
    farm.registry.leave(farm.offer("bank"))
    farm.clock.advance(SETTLE / 2)
    farm.registry.leave(farm.offer("shop"))
    farm.sources.use(SETTLE / 4)
    assert farm.advance(0) == [("service-gone", "bank", {"why": "left"})]
    assert farm.advance(SETTLE / 4) == [("service-gone", "shop", {"why": "left"})]


def test_a_server_that_reconnects_is_not_gone() -> None:
    farm = Farm()
    farm.registry.leave(farm.offer("bank"))
    farm.advance(SETTLE / 2)
    farm.offer("bank")
    assert farm.advance(2 * SETTLE) == []


def known(id: int, *names: str, owner: Owner = NOBODY) -> Provider:
    """A provider from before a restart."""
    services = tuple(Service(name, f"h:{id}", id) for name in names)
    return Provider(id, f"old {id}", "elko", "10.0.0.1", 0.0, 0.0, services, owner=owner)


def test_a_service_is_not_gone_while_restored_ones_answer_finds() -> None:
    farm = Farm(known(1, "bank"), known(2, "bank"))
    farm.registry.leave(farm.offer("bank"))
    assert [each.hostport for each in farm.registry.find("bank", "tcp", restored=True)] == ["h:2"]
    assert farm.advance(GRACE) == []
    assert farm.advance(SETTLE - 1) == []
    assert farm.advance(1) == [("service-gone", "bank", {"why": "expired"})]
    farm.offer("bank")
    assert [kind for kind, _, _ in farm.advance(0)] == ["service-back"]


def test_services_that_do_not_return_within_the_grace_period_are_gone() -> None:
    farm = Farm(known(1, "bank"), known(2, "shop"), known(3, "inn"))
    farm.offer("bank")
    farm.clock.advance(GRACE)
    farm.offer("inn")
    gone = [("service-gone", "shop", {"why": "expired"})]
    assert farm.advance(SETTLE) == gone
    assert farm.advance(GRACE) == []


def test_a_service_is_gone_once_if_it_returned_and_left_before_the_end_of_the_grace_period() -> None:
    farm = Farm(known(1, "bank"), known(2, "shop"))
    farm.registry.leave(farm.offer("bank"))
    assert farm.advance(SETTLE) == [("service-gone", "bank", {"why": "left"})]
    farm.clock.advance(GRACE)
    assert farm.advance(SETTLE) == [("service-gone", "shop", {"why": "expired"})]


def test_restored_services_that_are_withdrawn_are_gone() -> None:
    farm = Farm(known(1, "bank", "shop", "inn"), known(2, "post", owner=Owner("bob", "post/a")))
    provider = farm.offer("bank")
    farm.registry.withdraw(provider, ["inn"])
    assert farm.advance(SETTLE) == [("service-gone", "inn", {"why": "withdrawn"})]
    farm.registry.leave(provider)
    assert farm.registry.end_remembered("elko", "post/a")
    assert sorted(farm.advance(SETTLE)) == [
        ("service-gone", "bank", {"why": "left"}),
        ("service-gone", "post", {"why": "withdrawn"}),
        ("service-gone", "shop", {"why": "left"}),
    ]
    assert farm.advance(GRACE + SETTLE) == []


def test_recorded_services_of_other_brokers_that_are_not_read_are_gone() -> None:
    farm = Farm()
    farm.restored.record([known(1, "bank"), known(2, "shop")])
    farm.offer("bank")
    assert farm.advance(GRACE) == []
    farm.restored.read()
    assert farm.advance(SETTLE) == [("service-gone", "shop", {"why": "expired"})]


def test_several_services_settle_each_in_its_own_time() -> None:
    farm = Farm()
    one, two = farm.offer("a"), farm.offer("b")
    farm.registry.leave(one)
    farm.advance(1)
    farm.registry.leave(two)
    assert [name for _, name, _ in farm.advance(SETTLE - 1)] == ["a"]
    assert [name for _, name, _ in farm.advance(1)] == ["b"]


def test_many_services_that_are_gone_are_reported_over_several_turns() -> None:
    farm = Farm()
    names = [f"s{number}" for number in range(200)]
    for provider in [farm.offer(name) for name in names]:
        farm.registry.leave(provider)
    farm.cost = SHARE / 40
    farm.clock.rightNow += SETTLE
    farm.clock.turn()
    assert 0 < len(farm.events) <= 100
    farm.registry.leave(farm.offer("late"))
    for _ in range(10):
        farm.clock.turn()
    assert [name for _, name, _ in farm.events] == names
    assert [name for _, name, _ in farm.advance(SETTLE)] == [*names, "late"]


def test_a_new_service_is_no_event() -> None:
    farm = Farm()
    farm.offer("bank")
    assert farm.advance(2 * SETTLE) == []


def test_a_service_that_fails_by_a_new_rule_is_reported_again() -> None:
    farm = Farm()
    farm.offer("bank")
    [bank] = farm.registry.services("bank")

    def states(*states: CheckState | None) -> list[str]:
        for state in states:
            farm.registry.set_check(bank, None if state is None else Check(state, "no answer", 0.0))
        return [kind for kind, _, _ in farm.advance(0)]

    assert states(CheckState.FAILING) == ["service-failing"]
    assert states(None, CheckState.UNTESTED) == []
    assert states(CheckState.FAILING) == ["service-failing"]
    assert states(None, CheckState.UNTESTED, CheckState.PASSING) == ["service-passing"]
    assert states(None, CheckState.UNTESTED, CheckState.PASSING) == []


def test_listeners_are_reported_when_their_state_changes() -> None:
    farm = Farm()
    farm.listeners = [Listening("mtl", "127.0.0.1:1", 0.0, "in use"), Listening("dns", "127.0.0.1:2", 0.0)]
    farm.sources.listeners_changed()
    farm.sources.listeners_changed()
    assert farm.advance(0) == [("listener-not-ready", "mtl", {"reason": "in use", "where": "127.0.0.1:1"})]
    farm.listeners = [Listening("mtl", "127.0.0.1:1", 0.0)]
    farm.sources.listeners_changed()
    farm.sources.listeners_changed()
    assert farm.advance(0) == [("listener-ready", "mtl", {"where": "127.0.0.1:1"})]


def test_a_store_is_reported_when_it_breaks_and_when_it_works_again() -> None:
    farm = Farm()
    farm.degradations = [NotReady("store", "disk full")]
    assert farm.advance(EVERY) == [("store-degraded", "store", {"reason": "disk full"})]
    assert farm.advance(EVERY) == []
    farm.degradations = []
    assert farm.advance(EVERY) == [("store-restored", "store", {})]


def test_nothing_is_reported_after_the_stop() -> None:
    farm = Farm()
    provider = farm.offer("bank")
    farm.sources.stop()
    farm.registry.leave(provider)
    assert farm.advance(10 * SETTLE) == []
    assert not farm.clock.getDelayedCalls()


def test_a_service_that_a_new_plan_finds_short_is_an_event_once(tmp_path: Path) -> None:
    farm, file = Farm(), tmp_path / "plan.json"
    plan = PlanFile(str(file), farm.clock, lambda function, *arguments: succeed(function(*arguments)), parse)
    plan.watch(partial(report_plan, farm))  # type: ignore[arg-type]
    short = service("bank", state="overloaded", add=2, need_now=6, need_horizon=6)
    about = {"verdict": "overloaded", "has": 4, "needs": 6, "add": 2, "short_at": MADE}
    for services, events in (
        ((service("bank"), service("shop")), []),
        ((short, service("shop")), [("short-of-capacity", "bank", about)]),
        ((short, service("shop", note="again")), []),
        ((service("bank"), service("shop")), []),
        ((short, service("shop")), [("short-of-capacity", "bank", about)]),
    ):
        file.write_bytes(document(*services))
        plan.use(str(file))
        assert farm.advance(0) == events
    plan.stop()


def test_a_full_listener_is_an_event_and_so_is_its_end() -> None:
    farm = Farm()
    farm.full.append(NotReady("listener elko main", "it is full"))
    assert farm.advance(EVERY) == [("listener-full", "listener elko main", {"reason": "it is full"})]
    assert farm.advance(EVERY) == []
    farm.full.clear()
    assert farm.advance(EVERY) == [("listener-has-room", "listener elko main", {})]
