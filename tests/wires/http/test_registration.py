"""Registration by HTTP: register, renew, replace, withdraw, expire; owners and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.core.errors import Reason
from broker.core.memory_budget import MemoryBudget, MemoryLimits
from broker.core.model import Check, CheckState, Kind, Policy, Rights, Service
from broker.core.service_info import MAX_DEPTH, MAX_DIGITS
from broker.rest.dispatch import LISTENER
from broker.wires.http.http_settings import Http
from tests.access.test_users_access import Rig
from tests.access.users import ANN, BOB, FILE
from tests.rest.test_dispatch import basic
from tests.wires.http.recording import HttpFarm
from tests.wires.recording import ElkoFarm


def nested(levels: int) -> object:
    """Return a list in lists, of so many levels."""
    return json.loads("[" * levels + "]" * levels)


@pytest.fixture
def http() -> HttpFarm:
    return HttpFarm()


def test_an_instance_is_registered_found_and_withdrawn(http: HttpFarm) -> None:
    answered = http.put("bank", "a", "192.0.2.1:7000", ttl=10, load=0.5, label="ctx", info={"zone": "east"})
    assert answered.status == 201
    token = answered.json.pop("owner_token")
    assert len(token) == 43
    assert answered.json == {"provider": 1, "ttl": 10.0, "expires": "1970-01-01T00:00:10+00:00"}
    assert answered.headers["Location"] == "/v1/services/bank/a"
    found = http.ask("GET", "/v1/services/bank").json
    assert found == {
        "name": "bank",
        "services": [
            {
                "hostport": "192.0.2.1:7000",
                "protocol": "tcp",
                "provider": 1,
                "label": "ctx",
                "load": 0.5,
                "restored": False,
                "info": {"zone": "east"},
            }
        ],
    }
    provider = http.farm.registry.provider(1)
    assert provider is not None
    assert (provider.wire, provider.address, provider.label) == ("http", "192.0.2.7", "ctx")
    assert http.delete("bank", "a").status == 204
    assert http.find("bank") == []
    assert http.farm.registry.provider(1) is None
    assert http.delete("bank", "a").status == 404


def test_a_name_may_have_a_slash(http: HttpFarm) -> None:
    assert http.put("bank/east", "a b").status == 201
    assert http.find("bank%2Feast") == ["h:1"]
    assert http.instances.counts == {"registered": 1}


def test_an_instance_expires_without_renewals(http: HttpFarm) -> None:
    http.put("bank", "a", ttl=2)
    for _ in range(3):
        http.wait(1.5)
        assert http.renew("bank", "a").status == 200
    http.wait(1.9)
    assert http.find("bank") == ["h:1"]
    http.wait(0.5)
    assert http.find("bank") == []
    assert http.renew("bank", "a").status == 404
    assert http.instances.counts == {"registered": 1, "renewed": 3, "expired": 1}
    assert http.clock.getDelayedCalls() == []


def test_a_stall_of_the_broker_expires_no_instance(http: HttpFarm) -> None:
    http.put("bank", "a", ttl=2)
    http.wait(1)
    http.clock.advance(60)
    assert http.find("bank") == ["h:1"]
    assert http.renew("bank", "a").status == 200
    http.wait(1.5)
    assert http.find("bank") == ["h:1"]


def test_a_renewal_reports_a_load(http: HttpFarm) -> None:
    http.put("bank", "a")
    assert http.renew("bank", "a", load=0.75).status == 200
    assert [each.load for each in http.farm.registry.loads()] == [0.75]
    assert http.renew("bank", "a", load=-1).status == 400
    assert http.renew("bank", "a", other=1).status == 400


def test_the_same_registration_is_a_renewal_and_no_change(http: HttpFarm) -> None:
    http.put("bank", "a", ttl=2)
    revision = http.farm.registry.revision
    http.wait(1.5)
    assert http.put("bank", "a", ttl=2).status == 200
    http.wait(1.5)
    assert http.find("bank") == ["h:1"]
    assert http.farm.registry.revision == revision


def test_another_registration_replaces_it(http: HttpFarm) -> None:
    heard: list[tuple[Kind, str]] = []
    http.put("bank", "a", "h:1", label="one")
    http.farm.registry.watch(
        lambda change: (
            heard.append((change.kind, change.subject.hostport)) if isinstance(change.subject, Service) else None
        )
    )
    assert http.put("bank", "a", "h:2", label="two").status == 200
    assert http.put("bank", "a", "h:2", label="two", info={"x": 1}).status == 200
    assert heard == [(Kind.WITHDRAWN, "h:1"), (Kind.OFFERED, "h:2"), (Kind.AMENDED, "h:2")]
    [found] = http.ask("GET", "/v1/services/bank").json["services"]
    assert (found["label"], found["info"], found["provider"]) == ("two", {"x": 1}, 1)
    provider = http.farm.registry.provider(1)
    assert provider is not None
    assert provider.label == "two"


def test_other_descriptions_leave_the_service_registered_with_its_check(http: HttpFarm) -> None:
    http.put("bank", "a", "h:1", zone="a", tags=["v1"], meta={"version": "1"})
    http.put("bank", "b", "h:2")
    [bank, _] = http.farm.registry.find("bank", "tcp")
    http.farm.registry.set_check(bank, Check(CheckState.FAILING, "no connection", 0.0), Policy.LAST)
    heard: list[Kind] = []
    http.farm.registry.watch(lambda change: heard.append(change.kind))
    assert http.put("bank", "a", "h:1", zone="b", tags=["v2"], meta={"version": "2"}).status == 200
    assert heard == [Kind.AMENDED]
    found = http.ask("GET", "/v1/services/bank").json["services"]
    assert [each["hostport"] for each in found] == ["h:2", "h:1"]
    assert (found[1]["zone"], found[1]["tags"], found[1]["meta"]) == ("b", ["v2"], {"version": "2"})
    assert found[1]["check"]["state"] == "failing"


def test_a_refused_replacement_changes_nothing(http: HttpFarm) -> None:
    http.put("bank", "a", "h:1")
    assert http.put("bank", "a", "h" * 5_000).status == 400
    assert http.find("bank") == ["h:1"]
    assert http.put("bank", "a", "h:1").status == 200


def test_a_replacement_without_memory_for_it_changes_nothing(http: HttpFarm) -> None:
    memory = MemoryBudget(MemoryLimits(address=20_000))
    http.farm.registry._memory = memory
    assert http.put("bank", "a", "h:1").status == 201
    memory.store("192.0.2.7", 10_000)
    answered = http.put("bank", "a", "h:2", info={"x": "y" * 1_000})
    assert (answered.status, answered.json["code"]) == (429, "limit")
    assert http.find("bank") == ["h:1"]
    assert http.put("bank", "a", "h:2").status == 200


def test_a_shorter_ttl_takes_effect(http: HttpFarm) -> None:
    http.put("bank", "a", ttl=3_600)
    http.put("bank", "a", ttl=1)
    http.wait(1.5)
    assert http.find("bank") == []


def test_an_instance_has_one_owner(http: HttpFarm) -> None:
    http.put("bank", "a", address="192.0.2.1")
    for answered in (
        http.put("bank", "a", "evil:1", address="192.0.2.2"),
        http.renew("bank", "a", address="192.0.2.2"),
        http.delete("bank", "a", address="192.0.2.2"),
    ):
        assert (answered.status, answered.json["code"]) == (409, "name-taken")
    assert http.find("bank") == ["h:1"]


def test_limits_refuse_new_instances_only() -> None:
    http = HttpFarm(http=Http(services=3, services_per_user=2))
    assert [http.put("bank", each).status for each in "abc"] == [201, 201, 429]
    assert [http.put("bank", each, address="192.0.2.8").status for each in "de"] == [201, 429]
    assert http.put("bank", "a", "h:2").status == 200
    http.delete("bank", "a")
    assert http.put("bank", "c").status == 201
    assert len(http.farm.registry.providers()) == 3, "a refused registration leaves no provider"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("bank", {}),
        ("bank", {"hostport": ""}),
        ("bank", {"hostport": 1}),
        ("bank", {"hostport": "h:1", "ttl": 0.5}),
        ("bank", {"hostport": "h:1", "ttl": 100_000}),
        ("bank", {"hostport": "h:1", "load": -1}),
        ("bank", {"hostport": "h:1", "info": []}),
        ("bank", {"hostport": "h:1", "info": {"x": "y" * 20_000}}),
        ("bank", {"hostport": "h:1", "info": {"x": nested(MAX_DEPTH)}}),
        ("bank", {"hostport": "h:1", "info": {"x": nested(900)}}),
        ("bank", {"hostport": "h:1", "info": {"x": 10**MAX_DIGITS}}),
        ("bank", {"hostport": "h:1", "label": "y" * 20_000}),
        ("bank", {"hostport": "h:1", "protocol": ""}),
        ("n" * 300, {"hostport": "h:1"}),
    ],
)
def test_wrong_registrations_leave_nothing(http: HttpFarm, name: str, body: dict[str, object]) -> None:
    assert http.ask("PUT", f"/v1/services/{name}/a", body).status == 400
    assert http.farm.registry.providers() == []
    assert len(http.instances) == 0
    assert http.failures == 0


def test_an_info_that_every_parser_can_parse_is_kept(http: HttpFarm) -> None:
    info = {"deep": nested(MAX_DEPTH - 1), "long": 10 ** (MAX_DIGITS - 1), "text": "[" * 500 + "1" * 5_000}
    assert http.put("bank", "a", info=info).status == 201
    assert http.ask("GET", "/v1/services/bank").json["services"][0]["info"] == info


def test_the_names_of_the_broker_are_its_own(http: HttpFarm) -> None:
    assert http.put("elkobroker.services", "a").json["code"] == "forbidden"


def test_an_instance_has_a_name_of_bounded_length(http: HttpFarm) -> None:
    assert http.put("bank", "i" * 300).status == 400


def test_what_an_administrator_withdrew_is_unknown_to_its_client(http: HttpFarm) -> None:
    http.put("bank", "a")
    http.put("bank", "b")
    http.farm.registry.leave(1, "withdrawn")
    http.farm.registry.withdraw(2, ["bank"])
    assert [http.renew("bank", each).status for each in "ab"] == [404, 404]
    assert len(http.instances) == 0
    assert http.farm.registry.providers() == []
    assert http.put("bank", "a").status == 201


def test_a_service_of_another_wire_is_no_instance(http: HttpFarm) -> None:
    provider = http.farm.registry.join("elko", "elko", "192.0.2.1")
    http.farm.registry.offer([Service("bank", "h:9", provider)], Rights())
    assert http.delete("bank", "a").status == 404
    assert http.find("bank") == ["h:9"]


def test_the_end_of_the_wire_leaves_its_instances_in_the_registry() -> None:
    farm = ElkoFarm()
    http = HttpFarm(farm)
    http.put("bank", "a", ttl=1)
    http.instances.stop()
    http.wait(5)
    assert [service.hostport for service in farm.registry.services("bank")] == ["h:1"]
    assert farm.clock.getDelayedCalls() == []


def test_the_refusals_are_counted(http: HttpFarm) -> None:
    http.put("bank", "a", "")
    http.renew("bank", "none")
    assert [refusal.reason for refusal in http.refusals] == [Reason.PARAMETER]


# rights that end


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('name = "bob"', 'name = "rob"'),
        (BOB.text(), ANN.text()),
        ('operations = ["find", "offer"]', 'operations = ["find"]'),
        ('"{user}-*"', '"{user}-b*"'),
    ],
    ids=["user", "password", "operation", "name"],
)
def test_instances_end_with_the_right_to_offer_them(tmp_path: Path, before: str, after: str) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = HttpFarm(access=rig.access)
    rig.access.changed.append(lambda: [*farm.instances.review(rig.access, LISTENER)])
    body = {"hostport": "h:1", "ttl": 3_600}
    for user, password, name in (("bob", "crayon", "bob-1"), ("bob", "crayon", "shared"), ("ann", "pencil", "ann-1")):
        assert farm.ask("PUT", f"/v1/services/{name}/a", body, authorization=basic(user, password)).status == 201
    rig.change(FILE.replace(before, after))
    kept = {"ann-1", "shared"} if after == '"{user}-b*"' else {"ann-1"}
    assert {service.name for service in farm.farm.registry.services()} == kept
    assert farm.instances.counts["revoked"] == 3 - len(kept)
    assert len(farm.instances) == len(kept)


def test_an_instance_renewed_by_a_new_password_outlives_the_old_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = HttpFarm(access=rig.access)
    rig.access.changed.append(lambda: [*farm.instances.review(rig.access, LISTENER)])
    body = {"hostport": "h:1", "ttl": 3_600}
    assert farm.ask("PUT", "/v1/services/bob-1/a", body, authorization=basic("bob", "crayon")).status == 201
    both = FILE.replace(f'["{BOB.text()}"]', f'["{BOB.text()}", "{ANN.text()}"]')
    rig.change(both)
    renewed = farm.ask("POST", "/v1/services/bob-1/a/renew", {}, authorization=basic("bob", "pencil"))
    assert renewed.status == 200
    rig.change(FILE.replace(BOB.text(), ANN.text()))
    assert [service.name for service in farm.farm.registry.services()] == ["bob-1"]
