"""Restored services: answers of finds, and removal."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from twisted.internet.task import Clock

from broker.core.errors import Refusals
from broker.core.model import ANONYMOUS, Auth, Change, Kind, Provider, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry

GRACE = 60.0

AUTH = Auth("password", "secret")


def known(id: int, *services: Service, label: str = "old", wire: str = "elko") -> Provider:
    return Provider(id, label, wire, "192.0.2.9:1", 0.5, 0.0, services)


def service(provider: int, hostport: str, name: str = "bank", protocol: str = "tcp") -> Service:
    return Service(name, hostport, provider, protocol, "its label", AUTH)


class Broker:
    """Return a registry after a start with a stored state."""

    def __init__(self, *providers: Provider, grace: float = GRACE) -> None:
        self.clock = Clock()
        self.forgotten: list[set[int]] = []
        self.restored = Restored(providers, grace, self.clock, self._forget)
        self.registry = Registry(self.clock, iter(range(101, 200)).__next__, self.restored)

    def _forget(self, ids: Iterable[int]) -> None:
        self.forgotten.append(set(ids))

    def offer(self, *services: tuple[str, str, str], label: str = "new", wire: str = "elko") -> int:
        """Register a live provider with services of these names, hostports and protocols."""
        id = self.registry.join(label, wire, "192.0.2.1:1")
        offered = [Service(name, hostport, id, protocol) for name, hostport, protocol in services]
        self.registry.offer(offered, Rights())
        return id

    def old(self, name: str = "bank", protocol: str = "tcp") -> list[str]:
        """Return the hostports of the restored services of that name."""
        found = self.registry.find(name, protocol, restored=True)
        return [service.hostport for service in found if service.restored]


def test_what_is_remembered_answers_marked_and_otherwise_unchanged() -> None:
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:2")))
    assert list(broker.registry.find("bank", "tcp", restored=True)) == [
        Service("bank", "h:1", 1, "tcp", "its label", AUTH, restored=True),
        Service("bank", "h:2", 2, "tcp", "its label", AUTH, restored=True),
    ]


def test_it_answers_by_name_and_protocol() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2", protocol="http"), service(1, "h:3", "shop")))
    assert broker.old() == ["h:1"]
    assert broker.old(protocol="http") == ["h:2"]
    assert broker.old("shop") == ["h:3"]
    assert broker.old("none") == []


def test_it_is_in_no_listing_and_no_load_and_no_change() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    changes: list[Change] = []
    broker.registry.watch(changes.append)
    assert list(broker.registry.find("bank", "tcp")) == []
    assert list(broker.registry.services()) == []
    assert list(broker.registry.services("bank", "tcp")) == []
    assert list(broker.registry.services("bank")) == []
    assert broker.registry.loads() == []
    assert broker.registry.providers() == []
    assert broker.registry.provider(1) is None
    broker.clock.advance(GRACE)
    assert changes == []
    assert broker.registry.revision == 0


def test_waits_and_monitors_do_not_hear_of_it() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    heard: list[Service] = []
    broker.registry.monitor("bank", None, heard.append, lambda: None)
    broker.registry.wait("bank", None).addCallback(heard.append)
    assert heard == []


def test_behind_the_live_services_stand_the_remembered_ones_that_are_not_replaced() -> None:
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:2")), known(3, service(3, "h:3")))
    broker.offer(("bank", "h:2", "tcp"))
    broker.offer(("bank", "elsewhere:1", "tcp"))

    def found() -> list[tuple[str, bool]]:
        return [(s.hostport, s.restored) for s in broker.registry.find("bank", "tcp", restored=True)]

    live = [("h:2", False), ("elsewhere:1", False)]
    assert found() == [*live, ("h:1", True), ("h:3", True)]
    assert broker.forgotten == [{2}]
    assert [s.hostport for s in broker.registry.find("bank", "tcp")] == ["h:2", "elsewhere:1"]
    broker.clock.advance(GRACE)
    assert found() == live


def test_the_answer_is_the_same_object_until_something_changes() -> None:
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:2")))

    def found() -> tuple[Service, ...]:
        return broker.registry.find("bank", "tcp", restored=True)

    before = found()
    assert found() is before
    broker.offer(("bank", "h:1", "tcp"))
    after = found()
    assert found() is after is not before


def test_it_answers_again_when_the_live_one_goes_within_the_grace() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    id = broker.offer(("bank", "elsewhere:1", "tcp"))
    broker.registry.leave(id)
    assert broker.old() == ["h:1"]


def test_three_of_one_label_come_back_one_by_one() -> None:
    broker = Broker(*(known(n, service(n, f"h:{n}"), label="bank") for n in (1, 2, 3)))
    for n, left in ((3, ["h:1", "h:2"]), (1, ["h:2"]), (2, [])):
        broker.offer(("bank", f"h:{n}", "tcp"), label="bank")
        assert broker.old() == left
    assert broker.forgotten == [{3}, {1}, {2}]


@pytest.mark.parametrize("label", ["bank", ANONYMOUS, "", "mtl"])
def test_a_label_that_several_have_or_that_is_the_wires_brings_nobody_back(label: str) -> None:
    wire = "mtl" if label == "mtl" else "elko"
    several = [known(1, service(1, "h:1"), label=label, wire=wire)]
    if label == "bank":
        several.append(known(2, service(2, "h:2", "other"), label=label))
    broker = Broker(*several)
    broker.offer(("bank", "h:9", "tcp"), label=label, wire=wire)
    assert broker.old() == ["h:1"]


def test_a_place_of_another_wire_is_named_once_and_stays_in_the_store() -> None:
    broker = Broker(known(1, lasting(1, "h:1"), wire="dbp"))
    live = broker.offer(("bank", "h:1", "tcp"))
    assert [s.provider for s in broker.registry.find("bank", "tcp", restored=True)] == [live]
    broker.clock.advance(GRACE)
    assert broker.forgotten == [], "nothing but its own wire brings it back"


def test_services_come_back_one_by_one() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2"), service(1, "h:3", "shop"), label="old"))
    id = broker.offer(("bank", "h:2", "tcp"), label="old")
    assert (broker.old(), broker.old("shop"), broker.forgotten) == (["h:1"], ["h:3"], [])
    broker.registry.offer([Service("bank", "h:9", id)], Rights())
    assert (broker.old(), broker.old("shop"), broker.forgotten) == ([], ["h:3"], []), "it has moved"
    broker.registry.offer([Service("bank", "h:10", id)], Rights())
    assert (broker.old("shop"), broker.forgotten) == (["h:3"], []), "and has one more"
    broker.registry.offer([Service("shop", "h:3", id)], Rights())
    assert (broker.old("shop"), broker.forgotten) == ([], [{1}])


def test_of_several_offered_together_those_at_known_places_are_no_moved_ones() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2"), label="old"))
    broker.offer(("bank", "h:9", "tcp"), ("bank", "h:1", "tcp"), label="old")
    assert (broker.old(), broker.forgotten) == ([], [{1}])


def test_what_is_withdrawn_by_a_provider_that_is_back_is_remembered_no_longer() -> None:
    broker = Broker(
        known(1, service(1, "h:1"), service(1, "h:2", "shop"), service(1, "h:3", "inn")),
        known(2, service(2, "h:4", "shop")),
    )
    id = broker.offer(("bank", "h:1", "tcp"))
    broker.registry.withdraw(id, ["shop"])
    assert (broker.old("shop"), broker.old("inn")) == (["h:4"], ["h:3"])
    broker.registry.leave(id)
    assert (broker.old("shop"), broker.old("inn"), broker.forgotten) == (["h:4"], [], [{1}])


@pytest.mark.parametrize(
    ("offered", "label", "wire", "gone"),
    [
        (("bank", "h:1", "tcp"), "new", "elko", True),  # the same place
        (("bank", "h:9", "tcp"), "old", "elko", True),  # the same label, elsewhere
        (("bank", "h:9", "tcp"), "new", "elko", False),
        (("bank", "h:1", "http"), "old", "elko", False),  # another protocol
        (("shop", "h:1", "tcp"), "old", "elko", False),  # another name
        (("bank", "h:1", "tcp"), "old", "dbp", False),  # another wire
    ],
)
def test_a_provider_is_back_when_it_offers_the_same_from_the_same_place_or_by_the_same_label(
    offered: tuple[str, str, str], label: str, wire: str, gone: bool
) -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2", "other")))
    live = broker.offer(offered, label=label, wire=wire)
    broker.registry.leave(live)
    assert broker.old() == ([] if gone else ["h:1"])
    assert broker.old("other") == ([] if gone else ["h:2"]), "who came back and left has left with all"
    assert broker.forgotten == ([{1}] if gone else [])


def test_each_goes_as_its_own_provider_is_back() -> None:
    broker = Broker(
        known(1, service(1, "h:1"), label="one"),
        known(2, service(2, "h:2"), label="two"),
        known(3, service(3, "h:3"), label="three"),
    )
    broker.registry.leave(broker.offer(("bank", "h:2", "tcp"), label="who"))
    assert broker.old() == ["h:1", "h:3"]
    broker.registry.leave(broker.offer(("bank", "h:77", "tcp"), label="three"))
    assert broker.old() == ["h:1"]
    broker.registry.leave(broker.offer(("bank", "h:1", "tcp"), label="one"))
    assert broker.old() == []
    assert broker.forgotten == [{2}, {3}, {1}]
    assert broker.clock.getDelayedCalls() == [], "nothing is left to forget"


def test_a_provider_whose_several_services_are_back_at_once_goes_once() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2", "shop")))
    broker.offer(("bank", "h:1", "tcp"), ("shop", "h:2", "tcp"), label="old")
    assert broker.forgotten == [{1}]


def test_the_same_place_twice_before_the_restart_is_one_place_after_it() -> None:
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:1")))
    assert [s.provider for s in broker.registry.find("bank", "tcp", restored=True)] == [2]
    broker.registry.leave(broker.offer(("bank", "h:1", "tcp")))
    assert broker.old() == []
    assert broker.forgotten == [{1, 2}]


def test_a_refused_service_brings_nobody_back() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    id = broker.registry.join("old", "elko", "")
    with pytest.raises(Refusals):
        broker.registry.offer([Service("bank", "h:1", id)], Rights(offer=()))
    assert broker.old() == ["h:1"]


def test_all_go_when_the_grace_ends() -> None:
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:2")))
    broker.clock.advance(GRACE - 0.01)
    assert broker.old() == ["h:1", "h:2"]
    broker.clock.advance(0.02)
    assert broker.old() == []
    assert broker.forgotten == [{1, 2}]
    assert len(broker.restored) == 0


def lasting(provider: int, hostport: str, name: str = "bank") -> Service:
    return Service(name, hostport, provider, info="{}", lasting=True)


def test_at_the_end_of_the_grace_who_has_a_lasting_service_stays_in_the_store() -> None:
    broker = Broker(
        known(1, service(1, "h:1")),
        known(2, lasting(2, "h:2"), wire="dbp"),
        known(3, service(3, "h:3"), lasting(3, "h:3", "shop")),
    )
    assert broker.old() == ["h:1", "h:2", "h:3"]
    broker.clock.advance(GRACE)
    assert broker.old() == []
    assert broker.forgotten == [{1}]
    assert len(broker.restored) == 0
    broker.offer(("bank", "h:2", "tcp"), wire="dbp")
    assert broker.forgotten == [{1}]


def test_where_all_last_nothing_is_forgotten_at_the_end_of_the_grace() -> None:
    broker = Broker(known(1, lasting(1, "h:1")))
    broker.clock.advance(GRACE)
    assert (broker.forgotten, len(broker.restored)) == ([], 0)
    assert broker.clock.getDelayedCalls() == []


def test_who_has_a_lasting_service_is_forgotten_when_it_is_back() -> None:
    broker = Broker(
        known(1, lasting(1, "h:1"), label="bank", wire="dbp"), known(2, lasting(2, "h:2", "shop"), wire="dbp")
    )
    broker.offer(("bank", "h:1", "tcp"), label="bank", wire="dbp")
    assert broker.forgotten == [{1}]
    broker.clock.advance(GRACE)
    assert broker.forgotten == [{1}]


def test_after_the_grace_period_services_of_a_broker_that_is_gone_are_replaced() -> None:
    """Of the first two providers one is restored: the other one must not count as remembered after the period."""
    broker = Broker(known(1, service(1, "h:1")), known(2, service(2, "h:1")))
    broker.clock.advance(GRACE)
    assert broker.forgotten == [{1, 2}]
    broker.restored.remember(known(3, lasting(3, "h:3")))
    broker.offer(("bank", "h:3", "tcp"))
    assert broker.old() == []
    assert broker.forgotten == [{1, 2}, {3}]


def test_a_label_identifies_a_provider_whose_broker_is_gone() -> None:
    broker = Broker()
    broker.restored.remember(known(3, lasting(3, "h:3"), label="node", wire="dbp"))
    broker.offer(("bank", "h:9", "tcp"), label="node", wire="dbp")
    assert broker.old() == []
    broker.restored.remember(known(4, lasting(4, "h:4"), label="node", wire="dbp"))
    broker.offer(("bank", "h:10", "tcp"), label="node", wire="dbp")
    assert broker.old() == [], "the provider of before has been replaced"


def test_a_label_that_providers_of_two_brokers_have_brings_neither_back() -> None:
    broker = Broker(known(1, service(1, "h:1"), label="bank"))
    broker.restored.remember(known(3, lasting(3, "h:3"), label="bank"))
    broker.offer(("bank", "h:9", "tcp"), label="bank")
    assert broker.old() == ["h:1", "h:3"]


def test_labels_of_other_brokers_count_until_these_have_been_read() -> None:
    broker = Broker(known(1, service(1, "h:1"), label="bank"))
    broker.restored.record([known(8, service(8, "h:8"), label="bank"), known(9, service(9, "h:9"), label="inn")])
    broker.offer(("bank", "h:10", "tcp"), label="bank")
    broker.offer(("bank", "h:11", "tcp"), label="inn")
    assert broker.old() == ["h:1", "h:8"]
    broker.restored.read()
    broker.offer(("bank", "h:12", "tcp"), label="bank")
    assert broker.old() == []


def test_what_is_remembered_stays_in_the_store_when_the_broker_stops() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    broker.restored.stop()
    broker.restored.stop()
    assert broker.clock.getDelayedCalls() == []
    assert broker.forgotten == []


def test_with_nothing_to_remember_no_timer_runs() -> None:
    broker = Broker()
    assert broker.clock.getDelayedCalls() == []
    broker.offer(("bank", "h:1", "tcp"))
    assert broker.forgotten == []


def test_waits_hear_of_the_live_one_while_the_old_is_remembered() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    heard: list[tuple[str, bool]] = []
    broker.registry.monitor("bank", None, lambda s: heard.append((s.hostport, s.restored)), lambda: None)
    changes: list[Change] = []
    broker.registry.watch(changes.append, (Kind.OFFERED, Kind.WITHDRAWN))
    broker.offer(("bank", "h:1", "tcp"), label="old")
    assert heard == [("h:1", False)]
    assert [change.kind for change in changes] == [Kind.OFFERED], "what is forgotten is not told as withdrawn"


def test_a_grace_that_is_changed_counts_from_the_start() -> None:
    broker = Broker(known(1, service(1, "h:1")))
    broker.clock.advance(20)
    broker.restored.last(30)
    broker.clock.advance(9)
    assert broker.registry.find("bank", "tcp", restored=True)
    broker.clock.advance(1)
    assert not broker.registry.find("bank", "tcp", restored=True)
    assert broker.forgotten == [{1}]
    broker.restored.last(100)
    assert not broker.registry.find("bank", "tcp", restored=True)


def test_the_protocols_of_a_name_include_those_of_restored_services() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2", protocol="ws")))
    assert list(broker.registry.protocols("bank")) == []
    assert list(broker.registry.protocols("bank", restored=True)) == ["tcp", "ws"]
    broker.offer(("bank", "h:3", "udp"))
    assert list(broker.registry.protocols("bank", restored=True)) == ["udp", "tcp", "ws"]
    broker.clock.advance(GRACE)
    assert list(broker.registry.protocols("bank", restored=True)) == ["udp"]


def test_the_protocol_of_a_restored_service_goes_with_the_last_one() -> None:
    broker = Broker(known(1, service(1, "h:1", protocol="ws")), known(2, service(2, "h:2")))
    broker.registry.leave(broker.offer(("bank", "h:1", "ws")))
    assert list(broker.registry.protocols("bank", restored=True)) == ["tcp"]
    broker.registry.leave(broker.offer(("bank", "h:2", "tcp")))
    broker.restored.remember(known(3, lasting(3, "h:3", "shop")))
    assert list(broker.registry.protocols("bank", restored=True)) == [], "the end of a grace period is not awaited"


def test_the_grace_period_begins_when_the_other_brokers_have_been_read() -> None:
    lasting = Service("bank", "h:2", 2, "tcp", lasting=True)
    broker = Broker(known(1, service(1, "h:1")), known(2, lasting), known(3, service(3, "h:3")))
    broker.restored.record([known(9, service(9, "h:3"))])
    broker.restored.remember(known(4, service(4, "h:4")))
    broker.restored.last(GRACE / 2)
    broker.clock.advance(2 * GRACE)
    assert sorted(broker.old()) == ["h:1", "h:2", "h:3", "h:4"], "one of them may be at another broker"
    broker.restored.read()
    assert sorted(broker.old()) == ["h:1", "h:2", "h:4"]
    broker.clock.advance(GRACE / 4)
    broker.restored.read()
    broker.clock.advance(GRACE / 4)
    assert broker.old() == []
    assert broker.forgotten == [{1, 3, 4}], "they would be restored at each start"


def test_nothing_is_left_to_wait_for_where_nothing_is_remembered() -> None:
    broker = Broker()
    broker.restored.record([known(9, service(9, "h:3"))])
    broker.restored.read()
    assert broker.old() == []
    assert broker.clock.getDelayedCalls() == []


def test_what_is_recorded_of_another_broker_is_not_remembered_as_own() -> None:
    broker = Broker(known(1, service(1, "h:1"), service(1, "h:2")), known(2, service(2, "h:3")))
    broker.restored.record([known(9, service(9, "h:1"), service(9, "h:3"))])
    assert broker.restored.remembered() == [known(1, service(1, "h:2"))]
