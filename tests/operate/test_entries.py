"""Single names and providers: explanations, load histories; health; the user; the document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.access.rights import AnonymousAccess
from broker.core.cluster.cluster_interfaces import SINGLE
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import Auth, Check, CheckState, NotReady, Policy, Provider, Rights, Service
from broker.core.turns import Turns
from broker.operate import daemon_endpoints, table_endpoints, why
from broker.operate.table_endpoints import MAX_IDS
from broker.rest.problem import Problem
from tests.operate.calls import ApiFarm, Site, content

OLD = Provider(7, "old", "elko", "192.0.2.3:1", 0.0, 0.0, (Service("bank", "old:80", 7, "tcp"),))


class Entries(ApiFarm):
    def __init__(self, here: str = "") -> None:
        super().__init__(OLD)
        self.history = LoadHistory(self.registry, self.clock, Turns(self.clock))
        self.history.start()
        self.left: dict[int, float] = {}
        self.reasons: list[NotReady] = []
        self.degraded: list[NotReady] = []
        self.status: dict[str, Any] = {"version": "1", "journal": {"directory": "/j", "failures": 0}}
        self.site = Site(
            [
                *why.endpoints(
                    self.registry, self.clock, self.history, lambda provider: self.left.get(provider.id), here
                ),
                *table_endpoints.history_endpoints(self.registry, self.history),
                *daemon_endpoints.health_endpoints(
                    lambda: self.reasons,
                    lambda: self.degraded,
                    lambda: self.status,
                    self.registry,
                    self.registry.sizes,
                ),
            ]
        )

    def why(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.site.get(f"/v1/why/{name}")["entries"]
        return found


@pytest.fixture
def farm() -> Entries:
    return Entries()


def test_the_registration_of_an_entry_is_by_the_time_of_day(farm: Entries) -> None:
    farm.join("bank-1", "bank")
    clock: Any = farm.clock
    clock.wall = lambda: clock.seconds() + 3_600  # the system clock was set since the start
    [entry, _] = farm.why("bank")
    assert entry["since"] == "2026-01-01T01:00:00Z"


def test_an_entry_of_a_connection_is_explained(farm: Entries) -> None:
    provider = farm.join("bank-1", "bank")
    farm.clock.advance(12)
    [entry, _] = farm.why("bank")
    assert entry == {
        "service": "bank",
        "protocol": "tcp",
        "hostport": "bank-1:80",
        "broker": "",
        "wire": "elko",
        "provider": provider,
        "label": "bank-1",
        "address": "192.0.2.1:7",
        "since": "2026-01-01T00:00:00Z",
        "heard": 12.0,
        "left": None,
        "restored": False,
        "alive_by": "the connection from 192.0.2.1:7 on elko; the last sign of life was 12 s ago",
        "ends": "when that connection ends, or when it is withdrawn",
        "check": "not checked",
    }


def test_an_entry_from_before_a_restart_is_explained(farm: Entries) -> None:
    [entry] = farm.why("bank")
    assert (entry["restored"], entry["since"], entry["heard"]) == (True, None, None)
    assert entry["label"] == "old"
    assert "before the restart" in entry["alive_by"]
    assert "grace period" in entry["ends"]


def test_a_recorded_entry_names_the_broker_at_which_it_is_registered() -> None:
    farm = Entries("a")
    other = Provider(8, "other", "elko", "", 0.0, 0.0, (Service("bank", "other:80", 8, "tcp"),), broker="b")
    farm.restored.record([other])
    assert [(each["hostport"], each["broker"]) for each in farm.why("bank")] == [("old:80", "a"), ("other:80", "b")]


def test_heartbeats_and_lasting_registrations_are_explained(farm: Entries) -> None:
    provider = farm.join("sat", wire="dbp")
    beats = Service("beats", "h:1", provider, interval=0.5)
    farm.registry.offer([beats, Service("lasts", "h:2", provider, lasting=True)], Rights())
    assert "every 0.5 s" in farm.why("beats")[0]["alive_by"]
    assert (farm.why("beats")[0]["left"], "longer than its wire allows" in farm.why("beats")[0]["ends"]) == (None, True)
    farm.left[provider] = 1.26
    [entry] = farm.why("beats")
    assert (entry["left"], entry["ends"]) == (1.3, "in 1.3 s without another sign of life, or when it is withdrawn")
    assert farm.why("lasts")[0]["left"] is None, "a service without heartbeats"
    assert "withdrawn" in farm.why("lasts")[0]["ends"]
    farm.registry.offer_own([Service("broker-admin", "h:3", 0)])
    assert "listener" in farm.why("broker-admin")[0]["alive_by"]


def test_the_check_of_an_entry_is_a_sentence(farm: Entries) -> None:
    farm.join("bank-1", "shop")
    [service] = farm.registry.services("shop")
    farm.registry.set_check(service, Check(CheckState.FAILING, "no answer", farm.clock.seconds()), Policy.LAST)
    farm.clock.advance(3)
    assert farm.why("shop")[0]["check"] == "failing for 3 s: no answer; it comes last in finds"


def test_an_entry_that_finds_leave_out_is_explained(farm: Entries) -> None:
    farm.registry.use_panic(1.0)
    provider = farm.join("inn-1", "inn")
    [service] = farm.registry.services("inn", "tcp")
    farm.registry.set_check(service, Check(CheckState.FAILING, "no answer", farm.clock.seconds()), Policy.HIDE)
    [entry] = farm.why("inn")
    assert entry["check"].endswith("no answer; it is left out of finds")
    assert farm.site.get(f"/v1/providers/{provider}")["provider"]["failing"] == 1


def test_every_protocol_of_a_name_is_explained(farm: Entries) -> None:
    provider = farm.join("bank-1")
    farm.registry.offer([Service("shop", "h:1", provider, p) for p in ("ws", "tcp")], Rights())
    assert [entry["protocol"] for entry in farm.why("shop")] == ["ws", "tcp"]


def test_an_unknown_name_or_provider_is_not_found(farm: Entries) -> None:
    farm.join("bank-1")
    for path in ("why/nothing", "providers/99", "providers/x", "providers/-1", f"providers/{9**30}"):
        with pytest.raises(Problem) as caught:
            farm.site.get(f"/v1/{path}")
        assert caught.value.status == 404


def test_a_provider_is_shown_with_all_of_it_and_no_secret(farm: Entries) -> None:
    provider = farm.join("bank-1")
    secret = Auth("password", "hidden")
    farm.registry.offer([Service(f"s{n}", "h:1", provider, auth=secret) for n in range(250)], Rights())
    for load in (0.25, 0.5):
        farm.registry.load(provider, load)
        farm.clock.advance(STEP)
    text = content(farm.site.response("GET", f"/v1/providers/{provider}"))
    assert b"hidden" not in text
    about = json.loads(text)
    assert (about["provider"]["services"], about["provider"]["load"]) == (250, 0.5)
    assert [row["service"] for row in about["services"]] == [row["service"] for row in about["why"]]
    assert (about["step"], about["loads"], len(about["why"])) == (60, [0.25, 0.5], 250)


def test_loads_of_the_last_hour_are_a_list(farm: Entries) -> None:
    one, other = farm.join("one"), farm.join("other")
    farm.registry.load(other, 2.0)
    farm.clock.advance(STEP)
    answer = farm.site.get("/v1/loads/history?sort=-load")
    assert answer["step"] == STEP
    assert answer["rows"] == [
        {"provider": other, "label": "other", "load": 2.0, "loads": [2.0]},
        {"provider": one, "label": "one", "load": 0.0, "loads": [0.0]},
    ]


def test_histories_are_those_of_the_named_providers(farm: Entries) -> None:
    one, _, third = farm.join("one"), farm.join("other"), farm.join("third")
    answer = farm.site.get(f"/v1/loads/history?provider={third}&provider=999&provider={one}")
    assert [row["label"] for row in answer["rows"]] == ["third", "one"]
    assert answer["total"] == 2
    many = "&".join(f"provider={n}" for n in range(1, MAX_IDS + 2))
    with pytest.raises(Problem):
        farm.site.get(f"/v1/loads/history?{many}")


def test_health_is_ok_and_readiness_has_reasons(farm: Entries) -> None:
    assert farm.site.get("/healthz") == {"status": "ok"}
    assert farm.site.get("/readyz") == {"ready": True, "reasons": [], "degraded": []}
    farm.reasons.append(NotReady("listener mtl", "the port is in use"))
    response = farm.site.response("GET", "/readyz")
    assert response.status == 503
    assert json.loads(content(response)) == {
        "ready": False,
        "reasons": [{"what": "listener mtl", "reason": "the port is in use"}],
        "degraded": [],
    }


def test_a_degraded_daemon_is_ready(farm: Entries) -> None:
    farm.degraded.append(NotReady("cluster", "etcd cannot be reached"))
    assert farm.site.get("/readyz") == {
        "ready": True,
        "reasons": [],
        "degraded": [{"what": "cluster", "reason": "etcd cannot be reached"}],
    }


def test_the_state_of_registry_and_journal_is_shown(farm: Entries) -> None:
    farm.join("bank-1", "bank")
    assert farm.site.get("/v1/registry") == {
        "epoch": farm.registry.epoch,
        "revision": 2,
        "providers": 1,
        "services": 1,
        "waits": 0,
    }
    assert farm.site.get("/v1/journal") == {"enabled": True, "directory": "/j", "failures": 0}
    assert farm.site.get("/v1/status")["version"] == "1"
    del farm.status["journal"]
    assert farm.site.get("/v1/journal") == {"enabled": False}


def test_a_user_sees_its_name_and_its_rights(farm: Entries) -> None:
    site = Site(daemon_endpoints.identity_endpoints(AnonymousAccess(), "http", "1", list, SINGLE))
    about = site.get("/v1/whoami")
    assert (about["name"], about["method"], about["users"], about["servers"]) == ("bob", "none", False, [])
    assert "admin.shutdown" in about["operations"]
