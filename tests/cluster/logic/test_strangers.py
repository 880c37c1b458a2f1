"""Data of etcd that are not of this farm's brokers: other layouts, other clusters, keys and values of strangers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest
from twisted.logger import capturedLogs

from broker.cluster.etcd.etcd_interface import Delete, KeyValue, Put
from broker.cluster.ids import BLOCK
from broker.cluster.key_table import MAX_MEMBERS, MAX_VALUE
from broker.cluster.layout import LAYOUT
from broker.cluster.publisher import MAX_BATCH
from broker.cluster.settings import SILENCE
from broker.core.model import Rights, Service
from broker.core.service_info import MAX_DEPTH, MAX_DIGITS
from broker.core.turns import PIECE
from tests.cluster.logic.members import Farm, KeptMemory

OTHER_LAYOUT: dict[str, object] = {
    "meta": {"layout": LAYOUT, "epoch": "5e7c"},
    "ids": {"first": 65_537},
    "b/old": {"id": "5e7c", "addresses": ["10.0.0.1:5974"]},
    "p/17": {"holder": "old", "name": "bank", "place": "h:1"},
    "p/0000000000000018": {"holder": "old", "services": {"bank": "h:1"}},
    "load/17": 0.5,
}
"""Database of a layout with other keys and values than this one has; `database` sets the version in ``meta``."""


REGISTRATION = "s/elko/bank/tcp/h:1"

STRANGERS: dict[str, object] = {"broker": "x", "provider": 7, "service": {"name": "bank", "hostport": "h:1"}}
"""Value of a registration of a broker "x", which is none."""


@pytest.fixture
def farm() -> Farm:
    return Farm()


def database(farm: Farm, version: int | None) -> dict[bytes, KeyValue]:
    """Put a database of another layout, without ``meta`` if the version is None. Returns its keys."""
    for rest, value in OTHER_LAYOUT.items():
        if rest == "meta":
            if version is None:
                continue
            value = {"layout": version, "epoch": "5e7c"}
        farm.etcd.txn([], [Put(farm.key(rest), json.dumps(value).encode(), 0)])
    return dict(farm.etcd.keys)


# layouts


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (LAYOUT - 1, "stop all brokers of the farm, and delete its keys"),
        (-1, "stop all brokers of the farm, and delete its keys"),
        (LAYOUT + 1, "run the newer version"),
        (10**9, "run the newer version"),
    ],
)
def test_a_database_of_another_layout_ends_the_start_and_stays_as_it_is(
    farm: Farm, version: int, sentence: str
) -> None:
    before = database(farm, version)
    memory = KeptMemory()
    a = farm.member("a", memory)
    farm.until(lambda: a.started, "the end of the start")
    assert sentence in str(a.error)
    assert f"has version {version}" in str(a.error)
    farm.run(30.0)
    assert farm.etcd.keys == before
    # The advice helps.
    farm.etcd.txn([], [Delete(farm.key(""), farm.key("")[:-1] + b"0")])
    again = farm.member("a", memory)
    farm.until(lambda: again.started, "the join")
    assert again.error is None
    assert again.found() == []
    id = again.register()
    farm.until(lambda: farm.providers()[0] == [id], "the entry")


def test_a_database_without_a_version_is_taken_as_new_and_its_values_are_left_out(farm: Farm) -> None:
    database(farm, None)
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(lambda: b.found() == [id], "the service")
    # The key of provider ids is repaired; the four other values are not of the layout.
    assert [each.cluster.counts()["cluster.bad-values"] for each in (a, b)] == [4, 4]
    assert [each.name for each in a.cluster.members()] == ["a", "b"]
    assert json.loads(farm.etcd.keys[farm.key("meta")].value)["layout"] == LAYOUT


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b'{"layout":3,"epoch":"x","more":1}', "has version 3, and this broker knows 2: run the newer version"),
        (b'{"layout":1,"epoch":"x"}', "has version 1, which this broker does not know"),
        (b'{"layout":0,"epoch":"x"}', "has version 0, which this broker does not know"),
        (b"something else", "is not one of elkobroker's"),
        (b'{"layout":"1","epoch":"x"}', "is not one of elkobroker's"),
    ],
)
def test_another_layout_ends_the_start(farm: Farm, value: bytes, sentence: str) -> None:
    farm.etcd.txn([], [Put(farm.key("meta"), value, 0)])
    a = farm.member("a")
    farm.until(lambda: a.started, "the end of the start")
    assert a.error is not None
    assert sentence in str(a.error)
    assert farm.values("b") == []


def test_a_deleted_version_is_written_again_without_a_gap(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = sorted([a.register("bank", "h:1"), b.register("bank", "h:2")])
    farm.until(lambda: a.found() == b.found() == ids, "the services")
    farm.etcd.txn([], [Delete(farm.key("meta"))])
    farm.run(2.0)
    [late] = farm.joined("c")
    for _ in range(400):
        farm.run(0.1)
        assert a.found() == b.found() == ids
    assert late.found() == ids
    assert all(each.is_member and not each.degradations for each in (a, b, late))
    late.register("shop", "h:3")
    farm.until(lambda: a.found("shop") and b.found("shop"), "the new service")


def test_a_version_that_is_deleted_again_and_again_fills_no_log(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    with capturedLogs() as events:
        for _ in range(50):
            farm.etcd.txn([], [Delete(farm.key("meta"))])
            farm.until(lambda: farm.key("meta") in farm.etcd.keys, "the version", 1.0)
    assert len([each for each in events if "meta" in each["log_format"]]) == 2
    assert a.is_member
    assert b.is_member


# names and ids


def test_the_name_in_a_strangers_value_is_free_when_its_lease_ends(farm: Farm) -> None:
    lease = farm.etcd.grant(10).lease
    farm.etcd.txn([], [Put(farm.key("b/a"), b"a stranger's", lease)])
    a = farm.member("a")
    assert 5 < farm.until(lambda: a.started, "the join") < 15
    assert a.error is None


def test_the_name_in_a_strangers_value_that_never_ends_is_refused(farm: Farm) -> None:
    farm.etcd.txn([], [Put(farm.key("b/a"), b"a stranger's", 0)])
    a = farm.member("a")
    farm.until(lambda: a.started, "the end of the start")
    assert "/elkobroker/default/b/a in etcd has no lease" in str(a.error)


def test_a_member_whose_name_a_stranger_overwrites_takes_it_back(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    for value in (b"a stranger's", b'{"instance":"5e7c"}'):
        farm.etcd.txn([], [Put(farm.key("b/a"), value, 0)])
        farm.until(lambda: farm.etcd.keys[farm.key("b/a")].lease and b.found() == [id], "the return", 5.0)
        farm.until(lambda: a.is_member, "the session", 5.0)
    assert a.error is None


@pytest.mark.parametrize("value", [b"a stranger's", b'{"instance":"5e7c"}'])
def test_a_member_whose_value_a_stranger_overwrites_under_its_lease_writes_it_again(farm: Farm, value: bytes) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(lambda: b.found() == [id], "the service")
    before = farm.etcd.keys[farm.key("b/a")]
    farm.etcd.txn([], [Put(farm.key("b/a"), value, before.lease)])
    farm.until(lambda: farm.etcd.keys[farm.key("b/a")].value == before.value and b.found() == [id], "the return", 2.0)
    farm.run(1.0)
    revision = farm.etcd.revision
    farm.run(10.0)
    assert farm.etcd.revision - revision <= 2 * 11, "beats only"
    assert farm.etcd.keys[farm.key("b/a")].lease == before.lease


@pytest.mark.parametrize("value", [b"", b"7", b'{"next":0}', b'{"next":"x"}', b'{"next":1e400}', b"\xff"])
def test_a_strangers_value_of_the_provider_ids_is_repaired(farm: Farm, value: bytes) -> None:
    farm.etcd.txn([], [Put(farm.key("ids"), value, 0)])
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", "h:1"), b.register("bank", "h:2")]
    assert len(set(ids)) == 2
    farm.until(lambda: a.found() == b.found() == sorted(ids), "the services")
    assert json.loads(farm.etcd.keys[farm.key("ids")].value)["next"] > max(ids)


# keys and values of strangers


def test_of_a_member_without_a_key_nothing_is_found_however_much_it_had(farm: Farm) -> None:
    """A stranger deletes the key alone, while its member cannot repair that; then the member is back."""
    a, b = farm.joined("a", "b")
    id = a.registry.join("server", "elko", "10.0.0.1:5")
    a.registry.offer([Service(f"bank-{n}", "h:1", id) for n in range(PIECE + 1)], Rights())
    farm.until(lambda: len(b.registry.services()) == PIECE + 1, "the services")
    a.client.disconnect()
    farm.etcd.txn([], [Delete(farm.key("b/a"))])
    farm.until(lambda: not b.registry.services(), "the end of the services", 1.5)
    a.client.connect()
    farm.until(lambda: len(b.registry.services()) == PIECE + 1, "the return")


def test_entries_of_a_member_count_on_when_a_stranger_deletes_its_key(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    # So many that the loads are in a transaction after that of the service.
    a.registry.offer([Service(f"bank-{number}", "h:1", id) for number in range(1, MAX_BATCH)], Rights(services=1_000))
    a.registry.load(id, 7.0)
    farm.until(lambda: [each.load for each in b.registry.loads()] == [7.0], "the load", 3.0)
    farm.etcd.txn([], [Delete(farm.key("b/a"))])
    for _ in range(300):
        farm.run(0.01)
        assert len(b.registry.services()) == MAX_BATCH
    assert farm.values("b") == ["a", "b"]
    assert [each.load for each in b.registry.loads()] == [7.0]


def test_a_service_that_ends_while_the_key_of_its_member_is_deleted_is_gone(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    kept, gone, later = (a.register("bank", f"h:{number}") for number in range(3))
    farm.until(lambda: len(b.found()) == 3, "the services")
    # Another program deletes a key of the lease, which has not ended: so the next deletion is an act.
    farm.etcd.txn([], [Delete(farm.key("b/a"))])
    farm.etcd.txn([], [Delete(farm.key(f"s/{farm.values('s')[1]}"))])
    a.registry.leave(gone)
    farm.run(3.0)
    assert (farm.values("b"), b.found()) == (["a", "b"], [kept, later])
    a.registry.leave(later)
    farm.until(lambda: b.found() == [kept], "the end", 1.0)


def test_a_member_without_a_lease_is_none_nor_are_its_entries(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    values: dict[str, object] = {
        "b/x": {"instance": "5e7c"},
        REGISTRATION: STRANGERS,
        "l/x/0": {"loads": [[7, 3.5, None, None, None, None]]},
        "beat/x": {"counter": 1},
    }
    put(farm, values, 0)
    [late] = farm.joined("c")
    for each in (a, b, late):
        assert (each.found(), sorted(member.name for member in each.cluster.members())) == ([], ["a", "b", "c"])
        assert each.cluster.counts()["cluster.bad-values"] == len(values)


@pytest.mark.parametrize(
    ("rest", "value"),
    [
        # Texts that no answer to an operator can have.
        ("b/x", {"instance": "\ud800"}),
        ("b/x", {"instance": "5e7c", "listeners": {"mtl": "\udfff"}}),
        ("q/c3BhY2U=/am9icw==", {"owner": "\ud800"}),
        ("q/c3BhY2U=/7aCA", {"owner": "a"}),
        # Names that no member can have, which would be in log lines.
        ("b/x\ny", {"instance": "5e7c"}),
        ("b/" + "x" * 65, {"instance": "5e7c"}),
        ("beat/-x", {"counter": 1}),
        ("q/c3BhY2U=/am9icw==", {"owner": "a\n"}),
    ],
)
def test_a_text_that_no_member_writes_is_left_out(farm: Farm, rest: str, value: object) -> None:
    [a] = farm.joined("a")
    put(farm, {rest: value}, farm.etcd.grant(600).lease)
    assert a.cluster.counts()["cluster.bad-values"] == 1
    assert ([each.name for each in a.cluster.members()], a.cluster.claims()) == (["a"], [])


def test_loads_of_a_stranger_do_not_hide_those_of_the_holder(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    b.registry.load(id, 7.0)
    farm.until(lambda: [each.load for each in a.registry.loads()] == [7.0], "the load", 3.0)
    lease = farm.etcd.grant(600).lease
    put(farm, {"b/x": {"instance": "5e7c"}, "l/x/0": {"loads": [[id, 1.0, None, None, None, None]]}}, lease)
    # Any change of the provider has its load read again.
    b.offer(id, "shop", "h:1")
    farm.until(lambda: a.found("shop"), "the change", 1.0)
    [late] = farm.joined("c")
    assert [each.registry.loads()[0].load for each in (a, late)] == [7.0, 7.0]


def test_beats_of_many_strangers_leave_room_for_those_of_a_member(farm: Farm) -> None:
    lease = farm.etcd.grant(600).lease
    put(farm, {f"beat/x{number}": {"counter": 1} for number in range(MAX_MEMBERS + 1)}, lease)
    [a] = farm.joined("a")
    sessions = a.cluster.counts()["cluster.sessions"]
    farm.run(3 * SILENCE)
    assert (a.is_member, a.cluster.counts()["cluster.sessions"]) == (True, sessions)
    assert a.cluster.health()[0].lag is not None


def test_a_large_value_is_left_out(farm: Farm) -> None:
    [a] = farm.joined("a")
    lease = farm.etcd.grant(600).lease
    put(farm, {"b/x": {"instance": "5e7c"}, REGISTRATION: STRANGERS}, lease)
    assert a.found() == [7]
    put(farm, {REGISTRATION: {**STRANGERS, "unknown": "x" * MAX_VALUE}}, lease)
    assert (a.found(), a.cluster.counts()["cluster.bad-values"], a.is_member) == ([], 1, True)


@pytest.mark.parametrize(
    ("value", "lease"), [(b"no value", 0), (json.dumps({"broker": "b", "provider": 7}).encode(), 0), (b"{}", 600)]
)
def test_a_registration_that_a_stranger_overwrites_is_written_again(farm: Farm, value: bytes, lease: int) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(lambda: b.found() == [id], "the service")
    farm.etcd.txn([], [Put(farm.key(REGISTRATION), value, farm.etcd.grant(lease).lease if lease else 0)])
    farm.until(lambda: not b.found(), "the loss")
    farm.until(lambda: b.found() == [id], "the repair", 1.0)
    assert a.found() == [id]
    assert farm.etcd.keys[farm.key(REGISTRATION)].lease == farm.etcd.keys[farm.key("b/a")].lease


def put(farm: Farm, values: Mapping[str, object], lease: int) -> None:
    """Put values, each in a revision of its own, as another program does."""
    for rest, value in values.items():
        farm.etcd.txn([], [Put(farm.key(rest), json.dumps(value).encode(), lease)])
    farm.run(0.5)


# other clusters


def test_another_farm_in_the_same_etcd_is_not_seen(farm: Farm) -> None:
    [a] = farm.joined("a")
    others = [farm.member("a", farm=name) for name in ("default2", "defaul", "default-", "Default")]
    farm.until(lambda: all(each.started for each in others), "the joins")
    for number, each in enumerate(others):
        assert each.error is None
        each.register("bank", f"h:{number}")
    own = a.register("bank", "h:9")
    farm.run(1.0)
    assert a.found() == [own]
    assert [len(each.found()) for each in others] == [1, 1, 1, 1]
    assert [each.name for each in a.cluster.members()] == ["a"]
    assert a.cluster.counts()["cluster.bad-values"] == 0


def test_a_broker_that_comes_to_the_database_of_another_cluster_is_a_new_member_there(farm: Farm) -> None:
    memory = KeptMemory()
    a = farm.member("a", memory)
    farm.until(lambda: a.started, "the join")
    last = [a.register("bank", f"h:{number}") for number in range(3)][-1]
    farm.run(1.0)
    a.kill()
    elsewhere = Farm(seed=2)
    # Both databases give out the same leases, so that only the epoch tells them apart.
    elsewhere.etcd = type(farm.etcd)(elsewhere.clock, random.Random(1))
    [x] = elsewhere.joined("x")
    theirs = x.register("shop", "h:1")
    moved = elsewhere.member("a", memory)
    elsewhere.until(lambda: moved.started and moved.found("shop"), "the join")
    assert moved.error is None
    assert (moved.found("shop"), moved.found(), x.found()) == ([theirs], [], [])
    assert x.is_member
    assert elsewhere.etcd.keys[elsewhere.key("b/a")].lease != elsewhere.etcd.keys[elsewhere.key("b/x")].lease
    id = moved.register("bank", "h:7")
    assert id > last
    assert id > theirs + BLOCK
    elsewhere.until(lambda: x.found() == [id], "the service")


@pytest.mark.parametrize(
    ("info", "fault"),
    [
        ('{"a":%s}' % ("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)), ""),
        ('{"a":%s}' % ("[" * MAX_DEPTH + "]" * MAX_DEPTH), "is nested deeper than 100"),
        ('{"a":%s}' % ("[" * 5_000 + "]" * 5_000), "is nested deeper than 100"),
        ('{"a":%s}' % ("9" * MAX_DIGITS), ""),
        ('{"a":%s}' % ("9" * (MAX_DIGITS + 1)), "has a number of more than 1000 digits"),
        ('{"a":%s}' % ("9" * 5_000), "has a number of more than 1000 digits"),
        ('{"a":NaN}', "is no object of JSON"),
        ('{"a":[-Infinity]}', "is no object of JSON"),
        ("[]", "is no object of JSON"),
    ],
)
def test_an_information_that_some_parsers_refuse_is_left_out(farm: Farm, info: str, fault: str) -> None:
    a, _ = farm.joined("a", "b")
    lease = farm.etcd.keys[farm.key("b/b")].lease
    value = {"broker": "b", "provider": 7, "service": {"name": "bank", "hostport": "h:1", "info": info}}
    with capturedLogs() as events:
        farm.etcd.txn([], [Put(farm.key(REGISTRATION), json.dumps(value).encode(), lease)])
        # A later key, so that the first one has been read.
        marker = {"broker": "b", "provider": 8, "service": {"name": "inn", "hostport": "h:2"}}
        farm.etcd.txn([], [Put(farm.key("s/elko/inn/tcp/h:2"), json.dumps(marker).encode(), lease)])
        farm.until(lambda: a.found("inn") == [8], "the later registration")
    assert a.found() == ([] if fault else [7])
    assert a.cluster.counts()["cluster.bad-values"] == bool(fault)
    assert {each["why"] for each in events if "why" in each} == ({f"the info of 'bank' {fault}"} if fault else set())
