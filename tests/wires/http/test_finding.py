"""Finding by HTTP: waits, the least loaded first, secrets; Prometheus' service discovery."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from broker.core.model import Auth, Check, CheckState, Owner, Policy, Provider, Rights, Service
from broker.rest.messages import Request, Response
from tests.garbage import no_collection
from tests.net.http.http_peers import Site
from tests.recording.farm import GRACE
from tests.wires.http.recording import HttpFarm
from tests.wires.recording import ElkoFarm


@pytest.fixture
def http() -> HttpFarm:
    return HttpFarm()


def offer(http: HttpFarm, name: str, hostport: str, load: float = 0.0, **given: Any) -> int:
    registry = http.farm.registry
    provider = registry.join("p", "elko", "192.0.2.1")
    registry.offer([Service(name, hostport, provider, **given)], Rights())
    registry.load(provider, load)
    return provider


def test_services_come_in_the_order_of_their_offers_or_loads(http: HttpFarm) -> None:
    for hostport, load in (("h:1", 0.9), ("h:2", 0.1), ("h:3", 0.5)):
        offer(http, "bank", hostport, load)
    assert http.find("bank") == ["h:1", "h:2", "h:3"]
    assert http.find("bank", near="load") == ["h:2", "h:3", "h:1"]
    assert http.find("bank", near="load", limit=1) == ["h:2"]


def test_a_protocol_selects(http: HttpFarm) -> None:
    offer(http, "bank", "h:1")
    offer(http, "bank", "h:2", protocol="http")
    assert http.find("bank") == ["h:1", "h:2"]
    assert http.find("bank", protocol="http") == ["h:2"]
    assert http.find("bank", protocol="ws") == []


def test_a_wait_ends_with_a_service_of_the_protocol(http: HttpFarm) -> None:
    answered = http.ask("GET", "/v1/services/bank", query={"wait": "10", "protocol": "http"})
    http.clock.advance(5)
    offer(http, "bank", "h:1")
    assert answered.status == 0
    offer(http, "bank", "h:2", protocol="http")
    assert (answered.status, [each["hostport"] for each in answered.json["services"]]) == (200, ["h:2"])


def test_a_wait_ends_with_a_service_that_begins_to_match_its_filter(http: HttpFarm) -> None:
    registry = http.farm.registry
    provider = offer(http, "bank", "h:1", tags=("v1",))
    answered = http.ask("GET", "/v1/services/bank", query={"wait": "10", "filter": '"v2" in tags'})
    registry.amend(Service("bank", "h:1", provider, tags=("v1",), info="{}"))
    assert answered.status == 0
    registry.amend(Service("bank", "h:1", provider, tags=("v2",)))
    assert answered.status == 200


def test_a_wait_ends_at_its_deadline(http: HttpFarm) -> None:
    answered = http.ask("GET", "/v1/services/bank", query={"wait": "10", "protocol": "http"})
    http.clock.advance(5)
    offer(http, "bank", "h:1")
    http.clock.advance(4)
    assert answered.status == 0
    http.clock.advance(1)
    assert (answered.status, answered.json["code"]) == (404, "no-such-service")
    assert http.refusals == []
    assert http.clock.getDelayedCalls() == []


def test_services_from_before_a_restart_are_marked() -> None:
    old = Service("bank", "h:1", 7)
    http = HttpFarm(ElkoFarm(restored=[Provider(7, "p", "elko", "a", 0.0, 0.0, (old,))]))
    [found] = http.ask("GET", "/v1/services/bank").json["services"]
    assert (found["hostport"], found["restored"], found["load"]) == ("h:1", True, None)


def test_restored_services_follow_those_that_are_offered_again() -> None:
    old = [Service("bank", f"h:{n}", 7, restored=True, protocol=protocol) for n, protocol in ((1, "tcp"), (2, "http"))]
    http = HttpFarm(ElkoFarm(restored=[Provider(7, "another", "elko", "a", 0.0, 0.0, tuple(old))]))
    offer(http, "bank", "h:3")
    offer(http, "bank", "h:4", protocol="ws")
    assert http.find("bank") == ["h:3", "h:4", "h:1", "h:2"]
    offer(http, "bank", "h:2", protocol="http")
    assert http.find("bank") == ["h:3", "h:4", "h:2", "h:1"]


def test_an_instance_that_returns_at_another_address_replaces_its_restored_service() -> None:
    providers = [
        Provider(id, "tellers", "http", "a", 0.0, 0.0, (Service("bank", f"h:{id}", id),), owner=Owner("", f"bank/{id}"))
        for id in (7, 8)
    ]
    http = HttpFarm(ElkoFarm(restored=providers))
    assert http.find("bank") == ["h:7", "h:8"]
    assert http.put("bank", "7", "h:70", label="tellers").status == 201
    assert http.find("bank") == ["h:70", "h:8"]
    assert http.put("bank", "8", "h:80", label="other", protocol="http").status == 201
    assert http.find("bank") == ["h:70", "h:80"]


def test_a_failing_service_is_shown_with_its_reason_and_comes_last(http: HttpFarm) -> None:
    registry = http.farm.registry
    for hostport, load in (("h:1", 0.1), ("h:2", 0.9)):
        offer(http, "bank", hostport, load)
    first, _ = registry.services("bank")
    registry.set_check(first, Check(CheckState.FAILING, "no answer within 2 s", 5.0), Policy.LAST)
    assert http.find("bank") == http.find("bank", near="load") == ["h:2", "h:1"]
    [healthy, failing] = http.ask("GET", "/v1/services/bank").json["services"]
    assert "check" not in healthy
    assert failing["check"] == {
        "state": "failing",
        "reason": "no answer within 2 s",
        "since": "1970-01-01T00:00:05+00:00",
    }


def test_the_state_of_a_check_is_since_a_time_of_day(http: HttpFarm) -> None:
    offer(http, "bank", "h:1")
    [bank] = http.farm.registry.services("bank")
    http.farm.registry.set_check(bank, Check(CheckState.FAILING, "no answer within 2 s", http.clock.seconds()))
    clock: Any = http.clock
    clock.wall = lambda: clock.seconds() + 3_600  # the system clock was set since the start
    [found] = http.ask("GET", "/v1/services/bank").json["services"]
    assert found["check"]["since"] == "1970-01-01T01:00:00+00:00"


def test_a_secret_is_for_this_machine_and_users(http: HttpFarm) -> None:
    offer(http, "bank", "h:1", auth=Auth("password", "hunter2"))
    [remote] = http.ask("GET", "/v1/services/bank").json["services"]
    [local] = http.ask("GET", "/v1/services/bank", local=True).json["services"]
    assert remote["auth"] == {"mode": "password"}
    assert local["auth"] == {"mode": "password", "code": "hunter2"}


def test_prometheus_discovers_targets(http: HttpFarm) -> None:
    offer(http, "bank", "192.0.2.1:80", label="b")
    offer(http, "bank", "[::1]:80", protocol="http")
    offer(http, "post", "host.example:81")
    offer(http, "post", "somewhere")
    offer(http, "post", "h:82", auth=Auth("password", "x"))
    found = http.ask("GET", "/v1/discovery/prometheus").json
    assert [each["targets"] for each in found] == [["192.0.2.1:80"], ["[::1]:80"], ["host.example:81"]]
    assert found[0]["labels"] == {
        "__meta_elkobroker_service": "bank",
        "__meta_elkobroker_protocol": "tcp",
        "__meta_elkobroker_provider": "1",
        "__meta_elkobroker_label": "b",
    }
    found = http.ask("GET", "/v1/discovery/prometheus", query={"pattern": "b*", "protocol": "http"}).json
    assert [each["targets"] for each in found] == [["[::1]:80"]]


def test_prometheus_keeps_its_targets_over_a_restart() -> None:
    before = Provider(1, "b", "elko", "", 0.0, 0.0, (Service("bank", "192.0.2.1:80", 1), Service("bank", "h:81", 1)))
    http = HttpFarm(ElkoFarm(restored=[before]))
    discovered = http.ask("GET", "/v1/discovery/prometheus").json
    assert [each["targets"] for each in discovered] == [["192.0.2.1:80"], ["h:81"]]
    # A live one takes the place of its own.
    offer(http, "bank", "h:81")
    offer(http, "post", "h:82")
    discovered = http.ask("GET", "/v1/discovery/prometheus").json
    assert sorted(each["targets"][0] for each in discovered) == ["192.0.2.1:80", "h:81", "h:82"]
    http.farm.clock.advance(GRACE)
    discovered = http.ask("GET", "/v1/discovery/prometheus").json
    assert [each["targets"][0] for each in discovered] == ["h:81", "h:82"]


def test_an_empty_discovery_is_an_array(http: HttpFarm) -> None:
    assert http.ask("GET", "/v1/discovery/prometheus").json == []


def test_a_large_discovery_is_made_in_pieces(http: HttpFarm) -> None:
    for number in range(450):
        offer(http, f"s{number}", f"h:{number}")
    assert len(http.ask("GET", "/v1/discovery/prometheus").json) == 450
    assert len(http.ask("GET", "/v1/discovery/prometheus", query={"pattern": "s44?"}).json) == 10


def test_a_discovery_copies_no_table_of_all_services(http: HttpFarm) -> None:
    offer(http, "stays", "h:1")
    leaver = offer(http, "leaves", "h:2")
    answer = http.dispatch.answer(Request("GET", "/v1/discovery/prometheus", {}, {"host": "localhost:9080"}, b""))
    assert isinstance(answer, Response)
    assert not isinstance(answer.body, bytes)
    pieces: Iterator[bytes] = iter(answer.body)
    began = next(pieces)
    http.farm.registry.leave(leaver)
    found = json.loads(b"".join([began, *pieces]))
    assert [each["targets"] for each in found] == [["h:1"]]


@pytest.mark.parametrize("query", [{"wait": "-1"}, {"wait": "1000"}, {"limit": "0"}, {"near": "me"}, {"x": "1"}])
def test_wrong_parameters(http: HttpFarm, query: dict[str, str]) -> None:
    assert http.ask("GET", "/v1/services/bank", query=query).status == 400


MOST_CALLS, MOST_FILES = 80, 15
"""Calls of functions from the read of a request to its answer, and the files of the broker that have them. The reactor,
its clock and the socket are not among them."""


def test_a_find_passes_few_files_and_calls() -> None:
    """A request costs what it passes: this bounds the layers on its way."""
    farm = HttpFarm()
    farm.ask("PUT", "/v1/services/bank/1", {"hostport": "192.0.2.1:80", "ttl": 60})
    site = Site(farm.dispatch.answer)
    link = site.connect()
    calls: list[str] = []

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "/tests/" not in frame.f_code.co_filename:
            calls.append(frame.f_code.co_filename)

    for _ in range(2):  # the first one fills caches
        calls.clear()
        # A collection calls functions of Hypothesis.
        with no_collection():
            sys.setprofile(called)
            link.ask("GET /v1/services/bank", "Host: 127.0.0.1", "User-Agent: curl/8.0", "Accept: */*")
            sys.setprofile(None)
        assert link.answer().status == 200
    files = {name.partition("/broker/")[2] for name in calls if "/broker/" in name}
    assert len(calls) <= MOST_CALLS
    assert len(files) <= MOST_FILES, sorted(files)


def test_a_find_is_filtered_and_prefers_a_zone(http: HttpFarm) -> None:
    offer(http, "bank", "h:1", zone="east", tags=("v1",), meta={"rev": "1"})
    offer(http, "bank", "h:2", zone="west", tags=("v2",), meta={"rev": "2"})
    offer(http, "bank", "h:3")
    assert http.find("bank", filter="v2 in tags") == ["h:2"]
    assert http.find("bank", filter="meta.rev=2 and not zone=east") == ["h:2"]
    assert http.find("bank", filter='zone=""') == ["h:3"]
    assert http.find("bank", near="zone", zone="west") == ["h:2", "h:1", "h:3"]
    refused = http.ask("GET", "/v1/services/bank", query={"filter": "zone=b &"})
    assert refused.status == 400
    assert refused.json["detail"] == "filter, position 8: the character '&' is no part of a filter"
    assert http.ask("GET", "/v1/services/bank", query={"near": "zone"}).status == 400


def test_labels_are_those_of_the_registration(http: HttpFarm) -> None:
    labels = {"tags": ["v2", "v2"], "meta": {"team": "money"}}
    assert http.ask("PUT", "/v1/services/bank/a", {"hostport": "192.0.2.1:80", **labels}).status == 201
    [found] = http.ask("GET", "/v1/services/bank").json["services"]
    assert (found["tags"], found["meta"]) == (["v2"], {"team": "money"})
    for wrong in ({"tags": "v2"}, {"tags": ["x"] * 65}, {"meta": {"a": 1}}, {"meta": {"a": "x" * 1_025}}):
        answer = http.ask("PUT", "/v1/services/bank/b", {"hostport": "192.0.2.1:80", **wrong})
        assert answer.status == 400, wrong
