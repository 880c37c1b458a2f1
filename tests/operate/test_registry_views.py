"""The views of the registry: providers and services of all wires, without secrets."""

from __future__ import annotations

import json
from itertools import count

import pytest
from twisted.internet.task import Clock

from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.load_history import LoadHistory
from broker.core.model import NOBODY, Provider, Service
from broker.core.registered_services import Restored
from broker.core.turns import Turns
from broker.operate import why
from broker.operate.broker_tables import registry_views
from tests.operate.calls import Site
from tests.operate.test_console import Operator, enter
from tests.wires.contexts import page
from tests.wires.recording import ElkoFarm, desc


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


@pytest.fixture
def operator(farm: ElkoFarm) -> Operator:
    operator = enter(farm, views={each.name: each for each in registry_views(farm.wiring.registry, farm.clock)})
    operator.read()
    return operator


def test_a_provider_is_shown_with_its_last_sign_of_life(farm: ElkoFarm, operator: Operator) -> None:
    peer = farm.client("bank-1", address="192.0.2.9:5")
    peer.offer(desc("bank"), desc("mint"))
    peer.say("broker", "load", factor=0.5)
    farm.clock.advance(12)
    [row] = json.loads(operator.type("broker providers bank*"))
    assert row == {
        "provider": 1,
        "wire": "elko",
        "label": "bank-1",
        "address": "192.0.2.9:5",
        "load": 0.5,
        "services": 2,
        "heard": 12.0,
        "age": 12.0,
    }
    peer.say("error", "ping", tag="x")
    [row] = page(registry_views(farm.wiring.registry, farm.clock), "broker providers", "elko")
    assert row["load"] == 0.5
    assert page(registry_views(farm.wiring.registry, farm.clock), "broker providers", "192.0.2.1*") == []


def test_loads_are_shown_with_those_details_that_were_reported(farm: ElkoFarm, operator: Operator) -> None:
    farm.client("bank-1").say("broker", "load", factor=0.5, requests=120, latency_ms=41.5)
    farm.client("bank-2").say("broker", "load", factor=2)
    assert json.loads(operator.type("broker loads bank*")) == [
        {"provider": 1, "wire": "elko", "label": "bank-1", "load": 0.5, "requests": 120, "latency_ms": 41.5},
        {"provider": 2, "wire": "elko", "label": "bank-2", "load": 2.0},
    ]


def test_services_are_shown_without_their_secrets(farm: ElkoFarm, operator: Operator) -> None:
    farm.client("one").offer(desc("bank", auth={"mode": "password", "code": "hidden"}), desc("mint", label="old"))
    text = operator.type("broker services")
    assert "hidden" not in text
    assert [(each["service"], each["secret"], each.get("label")) for each in json.loads(text)] == [
        ("bank", True, None),
        ("mint", False, "old"),
    ]
    assert [each["service"] for each in json.loads(operator.type("broker services m*"))] == ["mint"]


def test_the_age_of_a_provider_of_another_broker_is_not_known() -> None:
    clock = Clock()
    registry = ClusterRegistry(clock, count(1).__next__, Restored((), 0.0, clock, lambda ids: None))
    other, service = Provider(1_000, "p", "elko", "", 0.0, 0.0, (), broker="b"), Service("bank", "h:1", 1_000)
    registry.mirror([Registration(key_of("elko", service, NOBODY), other, service, 1)])
    registry.join("own", "elko", "")
    clock.advance(60)
    own, mirrored = page(registry_views(registry, clock, "a"), "broker providers")
    assert (own["heard"], own["age"]) == (60.0, 60.0)
    assert mirrored["broker"] == "b"
    assert "heard" not in mirrored
    assert "age" not in mirrored
    site = Site(why.endpoints(registry, clock, LoadHistory(registry, clock, Turns(clock)), lambda provider: None, "a"))
    [entry] = site.get("/v1/why/bank")["entries"]
    assert (entry["broker"], entry["heard"], entry["since"]) == ("b", None, None)


def test_the_holder_is_shown_in_a_cluster_only(farm: ElkoFarm) -> None:
    farm.client("bank-1").offer(desc("bank"))
    alone, member = (
        registry_views(farm.wiring.registry, farm.clock),
        registry_views(farm.wiring.registry, farm.clock, "a"),
    )
    for name in ("broker providers", "broker services", "broker loads"):
        assert all("broker" not in row for row in page(alone, name))
        assert {row["broker"] for row in page(member, name)} == {"a"}
        [view] = [view for view in member if view.name == name]
        assert view.columns[-1].name == "broker"
