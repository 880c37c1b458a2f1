"""Brokers of several versions in one farm: values with more or fewer members than this version writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from broker.cluster.etcd.etcd_interface import Delete, Put
from broker.cluster.layout import LAYOUT
from broker.core.cluster.cluster_interfaces import QueueClaim
from broker.core.model import NOBODY, LoadDetails, Owner, Policy, Service
from tests.cluster.logic.members import Farm
from tests.cluster.logic.test_failures import claimed

ID = 7
"""Provider of the broker of another version; ids of a new farm are higher."""

REGISTRATION = "s/elko/bank/tcp/h:1"


def _queue(space: str, name: str) -> str:
    return "/".join(["q", *(base64.urlsafe_b64encode(each.encode()).decode() for each in (space, name))])


OLDER: dict[str, dict[str, Any]] = {
    "b/other": {"instance": "5e7c"},
    REGISTRATION: {"broker": "other", "provider": ID, "service": {"name": "bank", "hostport": "h:1"}},
    "l/other/0": {"loads": [[ID, 3.5, None, None, None, None]]},
    "beat/other": {"counter": 9},
    _queue("space", "jobs"): {"owner": "other"},
}
"""Values of an older broker: the members without which the layout is not the same."""

UNKNOWN: dict[str, Any] = {"zone": "north", "weights": [1, None, {"a": 2.5}], "split": {"in": True}}
"""Members that this version does not know."""

NEWER: dict[str, dict[str, Any]] = {
    "b/other": {
        **UNKNOWN,
        "instance": "5e7c",
        "link": "10.0.0.9:9002",
        "key": "k" * 40,
        "listeners": {"mtl": "tcp://10.0.0.9:5975", "quic of a later version": "quic://10.0.0.9:1"},
        "version": "99.1.0",
        "draining": True,
    },
    REGISTRATION: {
        **UNKNOWN,
        "broker": "other",
        "provider": ID,
        "label": "server",
        "address": "10.0.0.7:1",
        "owner": "user anna",
        "proof": "ab12",
        "order": 3,
        "service": {
            "name": "bank",
            "hostport": "h:1",
            "label": "x",
            "auth": {"mode": "a mode of a later version", "code": "c", **UNKNOWN},
            "info": '{"a":1}',
            "lasting": True,
            "interval": 2.5,
            "failing": "a reason",
            "policy": "a policy of a later version",
            **UNKNOWN,
        },
    },
    "s/a%20wire%20of%20a%20later%20version/shop/udp/h:2": {
        **UNKNOWN,
        "broker": "other",
        "provider": 8,
        "service": {"name": "shop", "hostport": "h:2", "protocol": "udp", **UNKNOWN},
    },
    "l/other/0": {**UNKNOWN, "loads": [[ID, 3.5, 10, 1, 2, 0.5]]},
    "beat/other": {**UNKNOWN, "counter": 9, "lag": 0.25, "providers": 1, "services": 2},
    _queue("space", "jobs"): {**UNKNOWN, "owner": "other"},
}
"""Values of a newer broker, which adds members to all of them."""


@pytest.fixture
def farm() -> Farm:
    return Farm()


def enter(farm: Farm, values: Mapping[str, Mapping[str, Any]]) -> int:
    """Put the values of a broker of another version, under a lease, in one revision. Returns the lease."""
    lease = farm.etcd.grant(600).lease
    write(farm, values, lease)
    return lease


def write(farm: Farm, values: Mapping[str, Any], lease: int) -> None:
    """Put values under a lease."""
    puts = [Put(farm.key(key), json.dumps(value).encode(), lease) for key, value in values.items()]
    farm.etcd.txn([], puts)
    farm.run(0.1)


def bad(farm: Farm, values: Mapping[str, Any]) -> tuple[int, int, list[int]]:
    """Put changed values of a newer broker. Returns the number of values that a member left out, the one that a late
    member left out, and the services that both find."""
    [a] = farm.joined("a")
    lease = enter(farm, NEWER)
    assert a.found() == [ID]
    write(farm, values, lease)
    [late] = farm.joined("late")
    assert a.found() == late.found()
    assert a.is_member
    assert late.is_member
    counts = [each.cluster.counts()["cluster.bad-values"] for each in (a, late)]
    return counts[0], counts[1], a.found()


# an older broker


def test_values_of_an_older_broker_have_the_defaults_of_the_members_that_it_lacks(farm: Farm) -> None:
    [a] = farm.joined("a")
    enter(farm, OLDER)
    [late] = farm.joined("late")
    for member in (a, late):
        assert member.registry.find("bank", "tcp") == (Service("bank", "h:1", ID),)
        provider = member.registry.provider(ID)
        assert provider is not None
        assert (provider.broker, provider.address, provider.owner) == ("other", "", NOBODY)
        assert (provider.load, provider.details) == (3.5, None)
        assert member.registry.policy_of(provider.services[0]) is Policy.SHOW
        other = member.cluster.member("other")
        assert other is not None
        assert (other.instance, other.link, other.key, dict(other.listeners)) == ("5e7c", "", "", {})
        assert (other.version, other.draining) == ("", False)
        [health] = [each for each in member.cluster.health() if each.member.name == "other"]
        assert (health.lag, health.providers, health.services) == (None, 0, 0)
        assert member.cluster.claim_of("space", "jobs") == QueueClaim("other")
        assert member.cluster.counts()["cluster.bad-values"] == 0


@pytest.mark.parametrize("values", [OLDER, NEWER], ids=["older", "newer"])
def test_a_service_moves_from_a_broker_of_another_version_in_one_step(
    farm: Farm, values: Mapping[str, Mapping[str, Any]]
) -> None:
    a, b = farm.joined("a", "b")
    # A session has no owner.
    values = {**values, REGISTRATION: {**values[REGISTRATION], "owner": ""}}
    lease = enter(farm, values)
    id = a.register()
    while b.found() != [id]:
        assert b.found() == [ID]
        farm.clock.advance(0.001)
    # The broker of the other version takes it back.
    write(farm, {REGISTRATION: values[REGISTRATION]}, lease)
    assert a.found() == b.found() == [ID]


def test_the_entries_of_a_broker_of_another_version_go_with_its_lease(farm: Farm) -> None:
    [a] = farm.joined("a")
    lease = enter(farm, OLDER)
    assert a.found() == [ID]
    # It leaves in order.
    farm.etcd.txn([], [Delete(farm.key("beat/other"))])
    farm.etcd.revoke(lease)
    farm.run(0.1)
    assert a.found() == []
    assert a.cluster.member("other") is None
    assert claimed(farm, a, "jobs") == QueueClaim("a")


# a newer broker


def test_members_that_a_newer_broker_adds_are_ignored(farm: Farm) -> None:
    [a] = farm.joined("a")
    enter(farm, NEWER)
    [late] = farm.joined("late")
    for member in (a, late):
        [service] = member.registry.find("bank", "tcp")
        assert (service.hostport, service.label, service.info) == ("h:1", "x", '{"a":1}')
        assert (service.lasting, service.interval) == (True, 2.5)
        assert service.auth is not None
        assert (service.auth.mode, service.auth.code) == ("a mode of a later version", "c")
        check = member.registry.check_of(service)
        assert check is not None
        assert (check.reason, member.registry.policy_of(service)) == ("a reason", Policy.LAST)
        assert [each.hostport for each in member.registry.find("shop", "udp")] == ["h:2"]
        provider = member.registry.provider(ID)
        assert provider is not None
        assert (provider.wire, provider.owner) == ("elko", Owner("user anna", "", "ab12"))
        assert member.registry.wire_and_label(8) == ("a wire of a later version", "")
        assert (provider.load, provider.details) == (3.5, LoadDetails(10, 1, 2, 0.5))
        other = member.cluster.member("other")
        assert other is not None
        assert (other.version, other.draining, other.link) == ("99.1.0", True, "10.0.0.9:9002")
        assert "quic of a later version" in other.listeners
        [health] = [each for each in member.cluster.health() if each.member.name == "other"]
        assert (health.lag, health.providers, health.services) == (0.25, 1, 2)
        assert member.cluster.claim_of("space", "jobs") == QueueClaim("other", "tcp://10.0.0.9:5975")
        assert member.cluster.counts()["cluster.bad-values"] == 0


def test_members_that_a_newer_broker_adds_to_meta_are_kept_and_those_of_ids_are_not(farm: Farm) -> None:
    meta = json.dumps({**UNKNOWN, "layout": LAYOUT, "epoch": "5e7c"}).encode()
    farm.etcd.txn([], [Put(farm.key("meta"), meta, 0)])
    farm.etcd.txn([], [Put(farm.key("ids"), json.dumps({**UNKNOWN, "next": 1_000}).encode(), 0)])
    a, b = farm.joined("a", "b")
    assert farm.etcd.keys[farm.key("meta")].value == meta
    # Each block is a write of the whole value.
    assert list(json.loads(farm.etcd.keys[farm.key("ids")].value)) == ["next"]
    id = a.register()
    assert id >= 1_000
    farm.until(lambda: b.found() == [id], "the service")


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        # Values of a layout that is not this one, under a known key: left out, though an earlier value was taken.
        (REGISTRATION, {**NEWER[REGISTRATION], "service": "bank"}, []),
        (REGISTRATION, {**NEWER[REGISTRATION], "broker": {"name": "other", "zone": "north"}}, []),
        (REGISTRATION, {**NEWER[REGISTRATION], "service": {"name": "bank", "endpoints": ["h:1"]}}, []),
        (REGISTRATION, [7, "bank"], []),
        ("l/other/0", {"loads": [[ID, 3.5, 10, 1, 2, 0.5, "one more"]]}, [ID]),
        ("l/other/0", {"loads": {str(ID): 3.5}}, [ID]),
        ("l/other/a name", {"loads": []}, [ID]),
        # What a member publishes of itself: without it, its entries do not count.
        ("b/other", {**NEWER["b/other"], "instance": 7}, []),
        ("b/other", {**NEWER["b/other"], "listeners": [["mtl", "tcp://10.0.0.9:5975"]]}, []),
        ("beat/other", {"counter": "9"}, [ID]),
        # A kind of keys that this version does not know.
        ("m/other", {"memory": 1}, [ID]),
        ("m/other/0", {"memory": 1}, [ID]),
    ],
)
def test_a_value_of_another_layout_is_counted_and_left_out_and_the_rest_works(
    farm: Farm, key: str, value: Any, found: list[int]
) -> None:
    assert bad(farm, {key: value}) == (1, 1, found)


def test_loads_of_another_layout_are_unknown_at_all_members_until_the_next_ones(farm: Farm) -> None:
    members = farm.joined("a")
    lease = enter(farm, NEWER)
    for number, (value, load) in enumerate((([[ID, "7.5"]], 0.0), ([[ID, 4.5, None, None, None, None]], 4.5))):
        write(farm, {"l/other/0": {"loads": value}}, lease)
        # One that has known the loads before, and one that reads this value only.
        members += farm.joined(f"late-{number}")
        assert [[each.load for each in member.registry.loads() if each.provider == ID] for member in members] == [
            [load]
        ] * len(members)


@pytest.mark.parametrize("other", [{}, {"epoch": "5e7c"}], ids=["the same data", "other data"])
@pytest.mark.parametrize("version", [LAYOUT - 1, LAYOUT + 1])
def test_a_member_ends_when_another_layout_is_set(farm: Farm, version: int, other: dict[str, str]) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    farm.until(a.found, "the service")
    meta = json.loads(farm.etcd.keys[farm.key("meta")].value)
    farm.etcd.txn([], [Put(farm.key("meta"), json.dumps({**meta, **other, "layout": version}).encode(), 0)])
    farm.until(lambda: a.error is not None and b.error is not None, "the end", 5.0)
    assert f"has version {version}" in str(a.error)
    before = dict(farm.etcd.keys)
    farm.run(5.0)
    assert farm.etcd.keys == before, "nothing more is written"
    assert a.found() == [id]


@pytest.mark.parametrize("version", [LAYOUT - 1, LAYOUT + 1])
def test_another_layout_that_is_set_while_a_member_reads_the_data_ends_its_start(farm: Farm, version: int) -> None:
    meta = {"layout": LAYOUT, "epoch": "5e7c"}
    farm.etcd.txn([], [Put(farm.key("meta"), json.dumps(meta).encode(), 0)])
    a = farm.member("a")
    farm.until(lambda: farm.values("b"), "the name, which is taken between the version and the rest")
    farm.etcd.txn([], [Put(farm.key("meta"), json.dumps({**meta, "layout": version}).encode(), 0)])
    farm.until(lambda: a.started, "the end of the start")
    assert f"has version {version}" in str(a.error)
