"""Failing services on every wire that finds services: last, hidden, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.core.model import Check, CheckState, Policy, Rights, Service
from broker.core.registry import Registry
from broker.wires.dbp.sessions.listing import Listing
from tests.recording.logs import nothing_fails
from tests.wires.dns.recording import DnsFarm
from tests.wires.http.recording import HttpFarm
from tests.wires.mtl.profiles.test_registry_profile import RegistryFarm, brief
from tests.wires.mtl.profiles_recording import got, summon
from tests.wires.recording import ElkoFarm, desc

FAILING = Check(CheckState.FAILING, "no answer", 0.0)
FREE = Rights()
PASSING = Check(CheckState.PASSING, "answered", 0.0)


def offered(farm: ElkoFarm, *hostports: str, name: str = "bank") -> list[Service]:
    """Services of that name, of a provider each."""
    for hostport in hostports:
        farm.client(hostport).offer(desc(name, hostport))
    return list(farm.registry.services(name, "tcp"))


def hostports(answer: list[dict[str, Any]]) -> list[str]:
    return [each["hostport"] for each in answer[0]["desc"]]


@pytest.mark.parametrize(("policy", "expected"), [(Policy.LAST, ["b:1", "c:1", "a:1"]), (Policy.HIDE, ["b:1", "c:1"])])
def test_elko(policy: Policy, expected: list[str]) -> None:
    farm = ElkoFarm()
    services = offered(farm, "a:1", "b:1", "c:1")
    client = farm.client()
    assert hostports(client.find("bank")) == ["a:1", "b:1", "c:1"]
    farm.registry.set_check(services[0], FAILING, policy)
    assert hostports(client.find("bank")) == expected
    assert len(farm.admin().ask("admin", "servicedesc", service="bank")[0]["desc"]) == 3
    farm.registry.set_check(services[0], PASSING, policy)
    assert hostports(client.find("bank")) == ["a:1", "b:1", "c:1"]


def test_an_elko_find_that_waits_for_a_hidden_service() -> None:
    farm = ElkoFarm()
    farm.registry.use_panic(1.0)
    [service] = offered(farm, "a:1")
    farm.registry.set_check(service, FAILING, Policy.HIDE)
    client = farm.client()
    assert client.find("bank", wait=60) == []
    farm.registry.set_check(service, PASSING, Policy.HIDE)
    assert hostports(client.take()) == ["a:1"]


def priorities(dns: DnsFarm) -> list[int]:
    """The priorities of the SRV records of the bank."""
    return [each.priority for rrset in dns.ask("bank.service.elkobroker", "SRV").answer for each in rrset]


def test_dns() -> None:
    dns = DnsFarm(begin=lambda count: 1)
    services = offered(dns.farm, "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1")
    dns.farm.registry.set_check(services[1], FAILING, Policy.LAST)
    answer = dns.ask("bank.service.elkobroker", "A").answer
    assert [str(each) for rrset in answer for each in rrset] == ["192.0.2.3", "192.0.2.1", "192.0.2.2"]
    assert priorities(dns) == [0, 0, 1]
    dns.farm.registry.set_check(services[1], FAILING, Policy.HIDE)
    assert priorities(dns) == [0, 0]
    dns.farm.registry.set_check(services[1], PASSING, Policy.HIDE)
    assert priorities(dns) == [0, 0, 0]


def test_dns_without_any_service_that_is_shown() -> None:
    dns = DnsFarm()
    dns.farm.registry.use_panic(1.0)
    [service] = offered(dns.farm, "192.0.2.1:1")
    dns.farm.registry.set_check(service, FAILING, Policy.HIDE)
    assert dns.ask("bank.service.elkobroker", "A").answer == []
    dns.farm.registry.set_check(service, PASSING, Policy.HIDE)
    assert len(dns.ask("bank.service.elkobroker", "A").answer) == 1


class Listed:
    """DBP's answers about the services of a farm."""

    def __init__(self, farm: ElkoFarm) -> None:
        self.listing = Listing(farm.registry, farm.clock)

    def all(self) -> Any:
        return json.loads(self.listing.all())

    def named(self, name: str) -> Any:
        return json.loads(self.listing.named([name]))


def providers(answer: Any) -> list[str]:
    return [each["hostport"] for each in answer["bank"]["providers"]]


def test_dbp_lists_failing_services_last() -> None:
    farm = ElkoFarm()
    listed = Listed(farm)
    services = offered(farm, "a:1", "b:1", "c:1")
    assert providers(listed.named("bank")) == providers(listed.all()) == ["a:1", "b:1", "c:1"]
    farm.registry.set_check(services[0], FAILING, Policy.LAST)
    assert providers(listed.named("bank")) == providers(listed.all()) == ["b:1", "c:1", "a:1"]
    assert listed.named("bank")["bank"]["hostport"] == "b:1"
    farm.registry.set_check(services[0], FAILING, Policy.HIDE)
    assert providers(listed.named("bank")) == providers(listed.all()) == ["b:1", "c:1"]
    farm.registry.set_check(services[0], PASSING, Policy.HIDE)
    assert providers(listed.named("bank")) == providers(listed.all()) == ["a:1", "b:1", "c:1"]


@pytest.mark.parametrize("panic", [0.1, 1.0])
@pytest.mark.parametrize("policy", [Policy.LAST, Policy.HIDE])
def test_dbp_follows_another_policy_of_a_service_that_fails_already(policy: Policy, panic: float) -> None:
    farm = ElkoFarm()
    farm.registry.use_panic(panic)
    listed = Listed(farm)
    services = offered(farm, "a:1", "b:1", "c:1")
    for now in (Policy.SHOW, policy, Policy.SHOW):
        farm.registry.set_check(services[0], FAILING, now)
        expected = [each.hostport for each in farm.registry.find("bank", "tcp")]
        assert providers(listed.named("bank")) == providers(listed.all()) == expected


def test_dbp_does_not_list_a_name_whose_services_are_hidden() -> None:
    farm = ElkoFarm()
    farm.registry.use_panic(1.0)
    listed = Listed(farm)
    [service] = offered(farm, "a:1")
    offered(farm, "b:1", name="mint")
    farm.registry.set_check(service, FAILING, Policy.HIDE)
    assert list(listed.all()) == ["mint"]
    assert list(listed.named("bank")) == ["Error"]
    assert not listed.listing.has("bank")
    offered(farm, "c:1", name="post")
    assert list(listed.all()) == ["mint", "post"]
    farm.registry.set_check(service, PASSING, Policy.HIDE)
    assert set(listed.all()) == {"bank", "mint", "post"}
    assert listed.named("bank")["bank"]["hostport"] == "a:1"
    assert listed.listing.has("bank")


def test_dbp_prefers_the_info_of_a_service_that_answers() -> None:
    farm = ElkoFarm()
    listed = Listed(farm)
    for number in (1, 2, 3):
        provider = farm.registry.join("x", "dbp", "192.0.2.7")
        service = Service("bank", f"h:{number}", provider, info=json.dumps({"number": number}))
        farm.registry.offer([service], FREE)
    assert listed.named("bank") == {"bank": {"number": 1}}
    farm.registry.set_check(farm.registry.services("bank", "tcp")[0], FAILING, Policy.LAST)
    assert listed.named("bank") == listed.all() == {"bank": {"number": 2}}


def test_mtl_updates_and_withdraws_failing_services() -> None:
    with nothing_fails():
        farm = RegistryFarm()
        farm.core.use_panic(1.0)
        reader = farm.watching("services")
        one = farm.provider(Service("bank", "h:1", 0))
        [service] = farm.core.services("bank", "tcp")
        got(reader)
        revision = farm.core.revision
        farm.core.set_check(service, PASSING, Policy.LAST)
        assert got(reader) == []
        farm.core.set_check(service, FAILING, Policy.LAST)
        [update] = got(reader)
        assert (update.event, update.json["check"], update.json["reason"]) == ("update", "failing", "no answer")
        [snapshot, _] = summon(farm.reader("service/bank"), "service/bank")
        assert snapshot.json["check"] == "failing"
        farm.core.set_check(service, PASSING, Policy.LAST)
        [update] = got(reader)
        assert (update.event, update.json.get("check")) == ("update", None)
        farm.core.set_check(service, FAILING, Policy.HIDE)
        assert brief(got(reader)) == [("update", "bank", one, "h:1"), ("down", "bank", one, "h:1")]
        assert summon(farm.reader("service/bank"), "service/bank")[0].event == "synced"
        farm.core.set_check(service, PASSING, Policy.HIDE)
        assert brief(got(reader)) == [("up", "bank", one, "h:1")]
        changes = farm.core.changes_since(farm.core.epoch, revision)
        assert changes is not None
        kinds = [change.kind.value for change in changes]
        assert kinds == ["checked", "checked", "checked", "checked", "hidden", "checked", "shown"]


def test_a_hidden_mtl_entry_that_leaves_is_not_told_again() -> None:
    with nothing_fails():
        farm = RegistryFarm()
        farm.core.use_panic(1.0)
        reader = farm.watching("services")
        one = farm.provider(Service("bank", "h:1", 0))
        [service] = farm.core.services("bank", "tcp")
        farm.core.set_check(service, FAILING, Policy.HIDE)
        got(reader)
        farm.core.leave(one)
        assert got(reader) == []


def test_services_are_ordered_only_if_a_check_fails() -> None:
    farm = ElkoFarm()
    registry: Registry = farm.registry
    services = offered(farm, "a:1", "b:1", "c:1")
    assert registry.by_check(services) is services
    registry.set_check(services[0], FAILING, Policy.SHOW)
    assert registry.by_check(services) is services
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert registry.by_check(services) == services[1:]
    registry.leave(services[0].provider)
    assert registry.by_check(services) is services


def test_http() -> None:
    http = HttpFarm()
    registry = http.farm.registry
    for number in range(3):
        provider = registry.join("p", "elko", "192.0.2.1")
        registry.offer([Service("bank", f"h:{number}", provider)], FREE)
        registry.load(provider, number / 10)
    services = registry.services("bank", "tcp")
    registry.set_check(services[0], FAILING, Policy.LAST)
    assert http.find("bank") == http.find("bank", near="load") == ["h:1", "h:2", "h:0"]
    assert http.find("bank", protocol="tcp") == ["h:1", "h:2", "h:0"]
    found = http.ask("GET", "/v1/services/bank").json["services"]
    assert [each.get("check", {}).get("state") for each in found] == [None, None, "failing"]
    registry.set_check(services[0], FAILING, Policy.HIDE)
    assert http.find("bank") == http.find("bank", near="load") == ["h:1", "h:2"]


def test_an_http_find_that_waits_for_a_hidden_service() -> None:
    http = HttpFarm()
    registry = http.farm.registry
    registry.use_panic(1.0)
    registry.offer([Service("bank", "h:1", registry.join("p", "elko", "192.0.2.1"))], FREE)
    [service] = registry.services("bank", "tcp")
    registry.set_check(service, FAILING, Policy.HIDE)
    answered = http.ask("GET", "/v1/services/bank", query={"wait": "10"})
    http.clock.advance(1)
    assert answered.status == 0
    registry.set_check(service, PASSING, Policy.HIDE)
    assert (answered.status, [each["hostport"] for each in answered.json["services"]]) == (200, ["h:1"])
