"""The owner token of HTTP: an instance that moved to another address goes on by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.task import Clock

from broker.access.principal import Principal
from broker.core.errors import Reason, Refusal
from broker.core.liveness import Leases
from broker.core.model import Kind, Provider
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.silent_peers import EndAtOnce
from broker.core.store import Store
from broker.wires.http.http_settings import Http
from broker.wires.http.http_wire import http_views
from broker.wires.http.sessions.instances import Instances, Offer
from tests.wires.http.recording import HttpFarm
from tests.wires.http.test_elsewhere import HOME, Pair
from tests.wires.recording import ElkoFarm

AWAY = "192.0.2.9"
"""The address to which an instance moves."""


@pytest.fixture
def http() -> HttpFarm:
    return HttpFarm()


def test_each_registration_has_a_token_that_its_repetition_returns(http: HttpFarm) -> None:
    first = http.put("bank", "a").json["owner_token"]
    assert http.put("bank", "a", "h:2").json["owner_token"] == first
    assert http.put("bank", "b").json["owner_token"] != first
    assert "owner_token" not in http.renew("bank", "a").json
    http.delete("bank", "a")
    assert http.put("bank", "a").json["owner_token"] != first


def test_a_moved_instance_replaces_renews_and_withdraws_by_its_token(http: HttpFarm) -> None:
    token = http.put("bank", "a", ttl=10, load=0.5).json["owner_token"]
    http.wait(8)
    assert http.renew("bank", "a", AWAY, token).status == 200
    http.wait(8)
    moved = http.put("bank", "a", "h:9", AWAY, token, ttl=10)
    assert (moved.status, moved.json["owner_token"], http.find("bank")) == (200, token, ["h:9"])
    provider = http.farm.registry.provider(moved.json["provider"])
    assert provider is not None
    assert (provider.address, provider.owner.name) == (AWAY, f"address {AWAY}")
    # The new owner needs no token any more, and the old one does.
    assert http.renew("bank", "a", AWAY).status == 200
    assert http.renew("bank", "a").status == 409
    assert http.renew("bank", "a", token=token).status == 200
    assert http.delete("bank", "a", "2001:db8::1", token).status == 204
    assert http.find("bank") == []
    assert http.instances.counts == {"registered": 1, "renewed": 3, "replaced": 1, "moved": 1, "withdrawn": 1}


def test_watchers_of_a_move_see_the_service_all_the_time(http: HttpFarm) -> None:
    token = http.put("bank", "a").json["owner_token"]
    present = []
    http.farm.registry.watch(
        lambda change: present.append([each.hostport for each in http.farm.registry.find("bank", "tcp")]),
        (Kind.OFFERED, Kind.WITHDRAWN),
    )
    http.put("bank", "a", "h:9", AWAY, token)
    assert present
    assert all(present)


@pytest.mark.parametrize("token", ["x", "A" * 43, "A" * 5_000, "é", "A" * 43 + ", " + "B" * 43])
def test_a_wrong_token_is_refused(http: HttpFarm, token: str) -> None:
    http.put("bank", "a")
    for answered in (
        http.put("bank", "a", "evil:1", AWAY, token),
        http.renew("bank", "a", AWAY, token),
        http.delete("bank", "a", AWAY, token),
    ):
        assert (answered.status, answered.json["code"]) == (409, "name-taken")
        assert "this is not its owner token" in answered.json["detail"]
        assert token not in answered.json["detail"]
    assert http.find("bank") == ["h:1"]
    # The owner itself needs none: a stale one does no harm.
    assert http.put("bank", "a", "h:2", token=token).status == 200


def test_the_token_of_one_instance_is_none_for_another(http: HttpFarm) -> None:
    token = http.put("bank", "a").json["owner_token"]
    http.put("bank", "b")
    assert http.put("bank", "b", "evil:1", AWAY, token).status == 409


def test_names_with_slashes_are_not_confused(http: HttpFarm) -> None:
    assert http.put("a/b", "c").status == 201
    assert http.put("a", "b/c", address=AWAY).status == 201


def test_a_move_counts_towards_the_limit_of_its_new_owner() -> None:
    http = HttpFarm(http=Http(services=2, services_per_user=1))
    token = http.put("bank", "a").json["owner_token"]
    assert http.put("bank", "b", address=AWAY).status == 201
    assert http.put("bank", "a", "h:2", AWAY, token).status == 429
    assert http.find("bank") == ["h:1", "h:1"]
    # The table is full, and a move takes no further place.
    assert http.put("bank", "a", "h:2", "192.0.2.10", token).status == 200
    assert http.put("bank", "c").status == 429


def test_a_move_takes_no_further_place_of_all_services() -> None:
    http = HttpFarm()
    token = http.put("bank", "a").json["owner_token"]
    http.farm.registry.most_services = http.farm.registry.sizes()["services"]
    assert http.put("bank", "b").status == 429
    assert http.put("bank", "a", "h:2", AWAY, token).status == 200
    assert http.find("bank") == ["h:2"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "unix", "uid 1000 here"])
def test_this_machine_is_one_owner_by_all_its_local_addresses(http: HttpFarm, address: str) -> None:
    assert http.put("bank", "a", address="127.0.0.1").status == 201
    assert http.put("bank", "a", address=address).status == 200
    assert http.renew("bank", "a", address=address).status == 200


def test_nothing_shows_the_token_or_its_digest(http: HttpFarm) -> None:
    answered = http.put("bank", "a")
    token = answered.json["owner_token"]
    [known] = http.instances
    provider = http.farm.registry.provider(answered.json["provider"])
    assert provider is not None
    shown = [repr(known), repr(provider), repr(http.ask("GET", "/v1/services/bank").json)]
    shown += [
        repr(view.rows("", "", 10)) if hasattr(view, "rows") else repr(view) for view in http_views((), http.instances)
    ]
    assert provider.owner.proof
    for text in shown:
        assert token not in text
        assert provider.owner.proof not in text


# restart


def restarted(provider: Provider, clock: Clock) -> Instances:
    """The table after a restart of the broker that had this provider."""
    registry = Registry(clock, iter(range(100, 200)).__next__, Restored([provider], 60.0, clock, lambda ids: None))
    return Instances(registry, Leases(clock), Http(), EndAtOnce())


def put(table: Instances, address: str, token: str = "", hostport: str = "h:1", label: str | None = None) -> str:
    made, _ = table.put(
        "bank", "a", Principal(address=address), Offer(hostport, "tcp", {"label": label}, None, 30.0), token
    )
    return made.token


@pytest.mark.parametrize("label", [None, "my bank"])
def test_after_a_restart_the_token_and_the_owner_are_still_good(
    http: HttpFarm, tmp_path: Path, label: str | None
) -> None:
    answered = http.put("bank", "a", label=label)
    token = answered.json["owner_token"]
    provider = http.farm.registry.provider(answered.json["provider"])
    assert provider is not None
    store = Store(str(tmp_path))
    store.open()
    store.record([provider], [], 10)
    store.close(10)
    [kept] = Store(str(tmp_path)).open().providers
    assert kept.owner == provider.owner
    assert not [path for path in tmp_path.iterdir() if path.is_file() and token.encode() in path.read_bytes()]

    clock = Clock()
    table = restarted(kept, clock)
    with pytest.raises(Refusal) as refused:
        put(table, AWAY, "A" * 43)
    assert refused.value.reason is Reason.NAME_TAKEN
    assert put(table, AWAY, token, "h:2", label) == token
    assert put(table, AWAY, "", "h:3", label) == token
    assert put(restarted(kept, clock), "192.0.2.7", "", "h:2", label) != token

    table = restarted(kept, clock)
    clock.advance(61.0)
    assert put(table, AWAY) != token


@pytest.mark.parametrize("by", ["owner", "token"])
def test_an_instance_from_before_a_restart_is_withdrawn_by_its_owner_or_its_token(http: HttpFarm, by: str) -> None:
    token = http.put("bank", "a").json["owner_token"]
    http.put("bank", "b", "h:2")
    later = HttpFarm(ElkoFarm(restored=http.farm.registry.providers()))
    for wrong in ("", "A" * 43):
        refused = later.delete("bank", "a", AWAY, wrong)
        assert (refused.status, refused.json["code"]) == (409, "name-taken")
    assert later.find("bank") == ["h:1", "h:2"]
    assert (later.delete("bank", "a") if by == "owner" else later.delete("bank", "a", AWAY, token)).status == 204
    assert later.find("bank") == ["h:2"]
    assert later.instances.counts == {"withdrawn": 1}
    assert later.delete("bank", "a").status == 404
    assert later.put("bank", "a", address=AWAY).status == 201


def test_another_instance_with_the_same_label_does_not_end_one_from_before_a_restart(http: HttpFarm) -> None:
    http.put("bank", "a", label="pool")
    later = HttpFarm(ElkoFarm(restored=http.farm.registry.providers()))
    assert later.put("bank", "b", "h:2", label="pool").status == 201
    assert sorted(later.find("bank")) == ["h:1", "h:2"]
    assert later.put("bank", "a", "h:3", label="pool").status == 201
    assert sorted(later.find("bank")) == ["h:2", "h:3"]


def test_a_token_that_is_given_with_a_new_registration_is_kept(http: HttpFarm) -> None:
    token = http.put("bank", "a").json["owner_token"]
    http.delete("bank", "a")
    again = http.put("bank", "a", token=token)
    assert (again.status, again.json["owner_token"]) == (201, token)
    assert http.put("bank", "b", token="too short").json["owner_token"] != "too short"


# cluster


def test_the_token_is_good_at_each_broker_of_a_cluster() -> None:
    pair = Pair()
    token = put(pair.a, HOME)
    pair.found()
    with pytest.raises(Refusal):
        put(pair.b, AWAY, "A" * 43)
    assert put(pair.b, AWAY, token, "h:2") == token
    assert pair.found() == [["h:2"], ["h:2"]]
    assert (len(pair.a), len(pair.b), pair.a.counts["moved"]) == (0, 1, 1)
    # And back, at the same endpoint.
    assert put(pair.a, HOME, token, "h:2") == token
    assert pair.found() == [["h:2"], ["h:2"]]
    assert (len(pair.a), len(pair.b)) == (1, 0)
