"""Lists over HTTP: pages, order, conditions, and their answers to clients with a current copy."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from broker.core.errors import Refusal
from broker.core.model import Check, CheckState
from broker.operate import table_endpoints
from broker.operate.broker_tables import counter_view, registry_views
from broker.rest.problem import Problem
from broker.wires.tables import AnyView, Column, Counter, Documentation, View
from tests.operate.calls import ApiFarm, Site, content, pieces


def sessions(wire: str, *rows: dict[str, Any]) -> AnyView:
    columns = (Column("address", "Its address"), Column("key", "Its key"), Column("size", "Its size", "bytes"))
    title = f"{wire.upper()} sessions"
    return View(
        f"{wire} sessions", "", columns, lambda: list(rows), dict, lambda row: (str(row["address"]),), title=title
    )


@pytest.fixture
def farm() -> ApiFarm:
    farm = ApiFarm()
    farm.join("bank-1", "bank", "mint")
    farm.join("shop-1", "shop", wire="dbp")
    return farm


@pytest.fixture
def site(farm: ApiFarm) -> Site:
    documentation = Documentation([Counter("mc0_dropped", "Messages dropped", "messages")])
    views = {
        view.name: view
        for view in (
            *registry_views(farm.registry, farm.clock),
            counter_view(lambda: {"mc0_dropped.full": 3, "elsewhere.x": 1}, documentation),
            sessions("elko", {"address": "a:1", "key": "k"}),
            sessions("mtl", {"address": "b:2", "size": 5}, {"address": "a:3", "size": 7}),
            View("director contexts", "", (Column("context", ""),), lambda: ["inn"], lambda c: {"context": c}, tuple),
        )
    }  # fmt: skip
    return Site(table_endpoints.table_endpoints(lambda: views, farm.registry))


def test_a_list_has_the_rows_of_a_page_and_the_number_of_all(farm: ApiFarm, site: Site) -> None:
    answer = site.get("/v1/services?offset=1&limit=1")
    assert answer == {
        "rows": [
            {"service": "mint", "protocol": "tcp", "hostport": "bank-1:80", "provider": 100, "secret": False},
        ],
        "total": 3,
        "offset": 1,
        "limit": 1,
        "epoch": farm.registry.epoch,
        "revision": farm.registry.revision,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["bank", "mint", "shop"]),
        ("pattern=*n*", ["bank", "mint"]),
        ("pattern=nothing", []),
        ("sort=-service", ["shop", "mint", "bank"]),
        ("where=provider=101", ["shop"]),
        ("where=provider=100&where=service=mint", ["mint"]),
        ("sort=-service&offset=1&limit=1", ["mint"]),
        ("offset=3", []),
    ],
)
def test_rows_are_selected_by_the_query(site: Site, query: str, found: list[str]) -> None:
    assert [row["service"] for row in site.get(f"/v1/services?{query}")["rows"]] == found


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", "78L"),
        (" BANK ", "L"),
        ("e" * 64, "L"),
        ("bank", "L"),
        ("bank*", ""),
        ("Bank?E*", "L"),
        ("[AB]ank*", "L"),
        ("[2001:DB8::7]:51", "7"),
        ("[2001:db8:", "78"),
        ("2001:db8::7]", "7"),
        ("[[]2001:*", "78"),
    ],
)
def test_a_search_finds_a_part_in_either_case_or_is_a_pattern(farm: ApiFarm, typed: str, found: str) -> None:
    addresses = {"7": "[2001:db8::7]:5123", "8": "[2001:db8::8]:5123", "L": f"Bank-{'E' * 250}"}
    view = sessions("elko", *({"address": address} for address in addresses.values()))
    site = Site(table_endpoints.table_endpoints(lambda: {view.name: view}, farm.registry))
    rows = site.get(f"/v1/views/elko/sessions?search={quote(typed)}")["rows"]
    assert [row["address"] for row in rows] == [addresses[each] for each in found]


@pytest.mark.parametrize(
    "query",
    [
        "sort=size",
        "where=size=1",
        "where=service",
        "limit=0",
        "limit=1001",
        "limit=x",
        "offset=-1",
        "offset=1000001",
        "colour=red",
        "limit=1&limit=2",
        f"pattern={'a' * 256}",
        "&".join(["where=service=a"] * 11),
    ],
)
def test_a_wrong_query_is_refused_with_the_parameter(site: Site, query: str) -> None:
    with pytest.raises((Problem, Refusal)) as caught:
        site.get(f"/v1/services?{query}")
    assert "service" in str(caught.value) or query.partition("=")[0] in str(caught.value)


def test_a_client_with_the_present_revision_gets_no_second_copy(farm: ApiFarm, site: Site) -> None:
    response = site.response("GET", "/v1/services")
    tag = dict(response.headers)["ETag"]
    assert tag == f'"{farm.registry.epoch}-{farm.registry.revision}"'
    again = site.response("GET", "/v1/services", if_none_match=tag)
    assert (again.status, content(again)) == (304, b"")
    farm.join("late", "late")
    assert site.response("GET", "/v1/services", if_none_match=tag).status == 200


def test_a_change_without_a_revision_makes_a_copy_old(farm: ApiFarm, site: Site) -> None:
    def tag_of(table: str) -> str:
        return dict(site.response("GET", f"/v1/{table}").headers)["ETag"]

    [bank] = farm.registry.find("bank", "tcp")
    farm.registry.set_check(bank, Check(CheckState.FAILING, "no connection", 0.0))
    refused, revision = tag_of("services"), farm.registry.revision
    farm.registry.set_check(bank, Check(CheckState.FAILING, "no connection", 0.0))
    assert tag_of("services") == refused
    farm.registry.set_check(bank, Check(CheckState.FAILING, "no answer within 5 s", 0.0))
    assert site.response("GET", "/v1/services", if_none_match=refused).status == 200
    assert farm.registry.revision == revision


def test_rows_with_ages_have_no_tag(site: Site) -> None:
    assert "ETag" not in dict(site.response("GET", "/v1/providers").headers)


def test_a_wrong_query_is_refused_to_a_client_with_a_copy_too(farm: ApiFarm, site: Site) -> None:
    tag = f'"{farm.registry.epoch}-{farm.registry.revision}"'
    with pytest.raises(Refusal):
        site.response("GET", "/v1/services?sort=size", if_none_match=tag)


def test_the_snapshot_is_that_of_the_begin(farm: ApiFarm, site: Site) -> None:
    revision = farm.registry.revision
    body = pieces(site.response("GET", "/v1/services"))
    first = next(body)
    farm.registry.leave(101)
    farm.join("late", "late")
    answer = content_of([first, *body])
    assert answer["revision"] == revision
    assert [row["service"] for row in answer["rows"]] == ["bank", "mint"], "gone before its turn, and after the start"


def content_of(parts: list[bytes]) -> Any:

    return json.loads(b"".join(parts))


def test_tables_of_several_wires_are_one_list(site: Site) -> None:
    rows = site.get("/v1/sessions?sort=address")["rows"]
    assert rows == [
        {"wire": "elko", "address": "a:1", "key": "k"},
        {"wire": "mtl", "address": "a:3", "size": 7},
        {"wire": "mtl", "address": "b:2", "size": 5},
    ]
    assert site.get("/v1/sessions?where=wire=elko")["total"] == 1
    assert site.get("/v1/queues")["rows"] == []


def test_each_view_is_described_and_has_a_path(site: Site) -> None:
    described = {view["name"]: view for view in site.get("/v1/views")["rows"]}
    assert described["mtl sessions"]["path"] == "/v1/views/mtl/sessions"
    assert described["mtl sessions"]["title"] == "MTL sessions"
    assert described["director contexts"]["title"] == "Director contexts", "without a title of its own"
    assert described["mtl sessions"]["columns"][2] == {"name": "size", "help": "Its size", "unit": "bytes"}
    for view in described.values():
        assert site.get(view["path"])["total"] > 0
    assert site.get("/v1/director/contexts")["rows"] == [{"context": "inn"}]


@pytest.mark.parametrize("path", ["/v1/views/mtl/nothing", "/v1/views/nothing/sessions", "/v1/director/users"])
def test_an_unknown_view_is_not_found(site: Site, path: str) -> None:
    with pytest.raises(Problem, match="there is no view") as caught:
        site.get(path)
    assert caught.value.status == 404


def test_counters_have_their_meaning(site: Site) -> None:
    assert site.get("/v1/counters")["rows"] == [
        {"name": "elsewhere.x", "value": 1},
        {"name": "mc0_dropped.full", "value": 3, "unit": "messages", "now": False, "help": "Messages dropped"},
    ]
