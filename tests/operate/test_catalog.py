"""The catalogue: a row for each name, whose instances add up."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Refusal
from broker.core.model import Check, CheckState, LoadDetails, Policy, Provider, Rights, Service
from broker.core.plan import Plan
from broker.export.plan_document import parse
from broker.operate import table_endpoints
from broker.operate.catalog import STATES, catalog_view
from tests.core.plans import document, service
from tests.operate.calls import ApiFarm, Site

OLD = Provider(
    7, "old", "elko", "192.0.2.3:1", 0.0, 0.0, (Service("bank", "old:80", 7, zone="west"), Service("gone", "old:81", 7))
)


@pytest.fixture
def farm() -> ApiFarm:
    return ApiFarm(OLD)


def catalog(farm: ApiFarm, query: str = "", plan: Plan | None = None) -> list[dict[str, Any]]:
    view = catalog_view(farm.registry, lambda: plan)
    site = Site(table_endpoints.table_endpoints(lambda: {view.name: view}, farm.registry))
    rows: list[dict[str, Any]] = site.get(f"/v1/catalog{query}")["rows"]
    for row in rows:
        assert row["instances"] == sum(row.get(state, 0) for state in STATES), row
    return rows


def test_each_name_has_one_row_with_its_instances_by_state(farm: ApiFarm) -> None:
    for label, state in (("b-1", CheckState.PASSING), ("b-2", CheckState.FAILING), ("b-3", CheckState.DOUBTFUL)):
        provider = farm.join(label, "bank", wire="mtl")
        [offered] = farm.registry.services_of(provider)
        policy = Policy.HIDE if state is CheckState.FAILING else Policy.SHOW
        farm.registry.set_check(offered, Check(state, "so", farm.clock.seconds()), policy)
        farm.registry.load(provider, float(label[-1]))
    farm.join("b-4", "bank", "alone", wire="dbp")
    # A rate needs two reports.
    for requests, errors in ((1, 1), (120, 3)):
        farm.registry.load(provider, 3.0, LoadDetails(requests, errors))
        farm.clock.advance(10.0)
    alone, bank, gone = catalog(farm)
    assert bank == {
        "service": "bank",
        "instances": 5,
        "passing": 1,
        "doubtful": 1,
        "failing": 1,
        "untested": 1,
        "restored": 1,
        "wires": "dbp mtl",
        "protocols": "tcp",
        "zones": "west",
        "load": 6.0,
        "lowest": 0.0,
        "highest": 3.0,
        "requests": 12.0,
        "errors": 0.3,
    }
    assert (alone["service"], alone["instances"], alone["untested"]) == ("alone", 1, 1)
    assert gone == {"service": "gone", "instances": 1, "restored": 1, "wires": "", "protocols": "tcp"}


def test_a_restored_instance_that_returns_is_counted_once(farm: ApiFarm) -> None:
    provider = farm.registry.join("old", "elko", "192.0.2.3:2")
    farm.registry.offer([Service("bank", "old:80", provider)], Rights())
    [bank] = catalog(farm, "?pattern=bank")
    assert (bank["instances"], bank["untested"], bank.get("restored")) == (1, 1, None)


def test_names_end_with_their_last_instance(farm: ApiFarm) -> None:
    provider = farm.join("shop-1", "shop")
    farm.registry.withdraw(provider, ["shop"])
    farm.clock.advance(30)  # the grace period
    assert catalog(farm) == []


def test_a_name_has_the_verdict_of_the_plan(farm: ApiFarm) -> None:
    farm.join("b-1", "bank")
    plan = parse(document(service("bank", state="can free", free=2)))
    [bank, _] = catalog(farm, plan=plan)
    assert bank["verdict"] == "can free"


def test_names_are_in_their_order_and_sorted_by_what_is_asked(farm: ApiFarm) -> None:
    for name in ("c", "a", "b"):
        farm.join(name, name)
    farm.registry.load(farm.join("again", "b"), 5.0)
    assert [row["service"] for row in catalog(farm, "?limit=2")] == ["a", "b"]
    assert [row["service"] for row in catalog(farm, "?sort=-load&limit=1")] == ["b"]


def test_names_are_filtered_by_their_instances(farm: ApiFarm) -> None:
    provider = farm.registry.join("b-1", "elko", "192.0.2.9")
    east = [Service("bank", "b:80", provider, zone="east", tags=("v2",)), Service("post", "p:80", provider)]
    farm.registry.offer(east, Rights())
    assert [row["service"] for row in catalog(farm, "?filter=v2+in+tags")] == ["bank"]
    assert [row["service"] for row in catalog(farm, "?filter=zone%3D%22%22")] == ["gone", "post"]
    with pytest.raises(Refusal, match="position 5"):
        catalog(farm, "?filter=zone")


def test_a_filter_applies_to_restored_instances(farm: ApiFarm) -> None:
    assert [row["service"] for row in catalog(farm, "?filter=zone%3Dwest")] == ["bank"]
    assert [row["service"] for row in catalog(farm, "?filter=service%3Dgone")] == ["gone"]
