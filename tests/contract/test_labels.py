"""Labels of services (zone, tags, meta): each wire with a place for them takes them, and shows those of the others; the
filters of services apply to them at each door."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from broker.core.model import MAX_TEXT, Kind, Service
from broker.operate.broker_tables import registry_views
from broker.operate.catalog import catalog_view
from broker.wires.mtl.codec.field_table import encode
from broker.wires.mtl.sessions.access_policy import Side
from tests.contract.test_hostports import OFFERING
from tests.contract.wires import WIRES
from tests.wires.http.recording import HttpFarm
from tests.wires.mtl.profiles_recording import ProfilesFarm, dismiss, got, summon
from tests.wires.recording import ElkoFarm

LABELS: dict[str, Any] = {"zone": "east", "tags": ["v2", "blue"], "meta": {"team": "money"}}


@pytest.mark.parametrize("seeker", WIRES)
@pytest.mark.parametrize("wire_name", OFFERING)
def test_each_wire_takes_labels_and_shows_those_of_the_others(wire_name: str, seeker: str) -> None:
    farm = ElkoFarm()
    WIRES[wire_name](farm).provider("provider").offer("bank", "192.0.2.1:80", **LABELS)
    [service] = farm.registry.find("bank", "tcp")
    assert service.descriptions == {**LABELS, "tags": ("v2", "blue")}
    shown = WIRES[seeker](farm).seeker().described("bank")
    assert {name: shown.get(name) for name in LABELS} == LABELS


@pytest.mark.parametrize("wire_name", OFFERING)
def test_a_service_without_labels_has_none(wire_name: str) -> None:
    farm = ElkoFarm()
    WIRES[wire_name](farm).provider("provider").offer("bank", "192.0.2.1:80")
    [service] = farm.registry.find("bank", "tcp")
    assert set(service.descriptions) <= {"label"}


@pytest.mark.parametrize("wire_name", OFFERING)
def test_labels_of_a_service_change_while_it_stays(wire_name: str) -> None:
    farm = ElkoFarm()
    provider = WIRES[wire_name](farm).provider("provider")
    provider.offer("bank", "192.0.2.1:80")
    changes: list[Kind] = []
    farm.registry.watch(lambda change: changes.append(change.kind), (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED))
    provider.relabel("bank", "192.0.2.1:80", **LABELS)
    assert changes == [Kind.AMENDED]
    [service] = farm.registry.find("bank", "tcp")
    assert service.descriptions == {**LABELS, "tags": ("v2", "blue")}


@pytest.mark.parametrize("wire_name", OFFERING)
def test_a_zone_has_one_limit_on_each_wire(wire_name: str) -> None:
    farm = ElkoFarm()
    provider = WIRES[wire_name](farm).provider("provider")
    provider.offer("bank", "192.0.2.1:80", zone="z" * MAX_TEXT)
    [service] = farm.registry.find("bank", "tcp")
    assert service.zone == "z" * MAX_TEXT
    with suppress(AssertionError):  # of the role: the offer is refused
        provider.offer("post", "192.0.2.1:80", zone="z" * (MAX_TEXT + 1))
    assert farm.registry.find("post", "tcp") == ()


FILTERS = {
    'zone=east and "v2" in tags': ["a"],
    "zone=west or meta.team=money": ["a", "b"],
    "not (zone=east)": ["b"],
    "meta.team!=money": ["b"],
    "service=nothing": [],
}


def farm_with_two() -> ElkoFarm:
    farm = ElkoFarm()
    provider = WIRES["elko"](farm).provider("provider")
    provider.offer("a", "192.0.2.1:80", **LABELS)
    provider.offer("b", "192.0.2.2:80", zone="west")
    return farm


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_selects_the_same_services_at_each_door(text: str) -> None:
    farm = farm_with_two()
    http = HttpFarm(farm)
    assert [name for name in "ab" if http.find(name, filter=text)] == FILTERS[text]
    services = next(each for each in registry_views(farm.registry, farm.clock) if each.name == "broker services")
    for view in (services, catalog_view(farm.registry, lambda: None)):
        assert view.filter is not None
        chosen = view.filter(text)
        rows = [str(view.row(each)["service"]) for each in view.items() if chosen(each)]
        assert [name for name in rows if name in ("a", "b")] == FILTERS[text]
    mtl = ProfilesFarm(farm.registry)
    peer = mtl.peer()
    peer.lease(mtl.lease(Side.READER, "services", profile=mtl.registry))
    *entries, end = summon(peer, "services", body=encode({"filter": text}))
    assert end.event == "synced"
    assert [entry.json["service"] for entry in entries] == FILTERS[text]


def test_a_reader_of_mtl_sees_a_service_while_its_filter_applies() -> None:
    farm = farm_with_two()
    mtl = ProfilesFarm(farm.registry)
    peer = mtl.peer()
    peer.lease(mtl.lease(Side.READER, "services", profile=mtl.registry))
    summon(peer, "services", body=encode({"filter": "zone=east"}))

    def change(name: str, zone: str | None) -> list[tuple[str, str]]:
        [before] = farm.registry.find(name, "tcp")
        farm.registry.amend(Service(name, before.hostport, before.provider, zone=zone))
        return [(each.event, each.says["service"]) for each in got(peer)]

    assert change("b", "north") == []
    assert change("b", "east") == [("up", "b")]
    assert change("a", None) == [("down", "a")]
    farm.registry.withdraw(farm.registry.find("b", "tcp")[0].provider, "b")
    assert [(each.event, each.says["service"]) for each in got(peer)] == [("down", "b")]


@pytest.mark.parametrize(
    ("resource", "text", "reason"),
    [
        ("services", "zone=", "position 6: expected a value"),
        ("load", "zone=b", "a filter is for services"),
        ("services", 7, "is a text"),
    ],
)
def test_a_filter_of_mtl_that_cannot_be_parsed_is_explained(resource: str, text: Any, reason: str) -> None:
    mtl = ProfilesFarm(farm_with_two().registry)
    peer = mtl.peer()
    peer.lease(mtl.lease(Side.READER, resource, profile=mtl.registry))
    [problem] = summon(peer, resource, body=encode({"filter": text}))
    assert (problem.event, problem.says["code"]) == ("error", 400)
    assert reason in problem.says["reason"]
    dismiss(peer, resource)
    assert summon(peer, resource)[-1].event == "synced"
