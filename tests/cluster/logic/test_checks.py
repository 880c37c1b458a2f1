"""Health checks in a cluster: the holder checks its own services, and the finds of all members obey the results."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs
import pytest

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Event, Put
from broker.core.liveness import Leases
from broker.core.model import MAX_TEXT, Check, CheckState, FailingService, Kind, Policy
from broker.core.silence import LEAST, Verification
from tests.cluster.logic.members import Farm, Member

FAILING = Check(CheckState.FAILING, "no answer to a ping within 5 s", 0.0)
PASSING = Check(CheckState.PASSING, "answered", 0.0)


@pytest.fixture
def farm() -> Farm:
    return Farm()


def judge(member: Member, id: int, check: Check | None, policy: Policy = Policy.HIDE) -> None:
    """Set the check of all services of an own provider."""
    for service in member.registry.services_of(id):
        member.registry.set_check(service, check, policy)


def checks(member: Member, name: str = "bank") -> list[tuple[CheckState, str] | None]:
    """The checks of the services of a name, in the order of the registry."""
    found = [member.registry.check_of(each) for each in member.registry.services(name, "tcp")]
    return [None if each is None else (each.state, each.reason) for each in found]


@pytest.mark.parametrize(("policy", "order"), [(Policy.SHOW, "012"), (Policy.LAST, "120"), (Policy.HIDE, "12")])
def test_finds_of_all_members_obey_a_check_of_the_holder(farm: Farm, policy: Policy, order: str) -> None:
    a, b, c = farm.joined("a", "b", "c")
    ids = [a.register("bank", "h:1"), a.register("bank", "h:2"), a.register("bank", "h:3")]
    farm.until(lambda: b.found() == c.found() == ids, "the services")
    seen: list[tuple[Kind, str]] = []
    b.registry.watch(lambda change: seen.append((change.kind, change.why)), (Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN))
    judge(a, ids[0], FAILING, policy)
    expected = [ids[int(each)] for each in order]
    assert a.found() == expected
    farm.until(lambda: all(checks(each)[0] == (CheckState.FAILING, FAILING.reason) for each in (b, c)), "the failure")
    assert b.found() == c.found() == expected
    [late] = farm.joined("d")
    assert late.found() == expected
    judge(a, ids[0], PASSING)
    farm.until(lambda: all(each.found() == ids for each in (a, b, c, late)), "the success")
    farm.run(0.5)
    hiding = policy is Policy.HIDE
    assert seen == [
        (Kind.CHECKED, "failing"),
        *[(Kind.HIDDEN, "")] * hiding,
        (Kind.CHECKED, "passing"),
        *[(Kind.SHOWN, "")] * hiding,
    ]


def test_a_doubt_of_the_holder_reaches_all_members_and_withdraws_nothing(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", "h:1"), a.register("bank", "h:2")]
    farm.until(lambda: b.found() == ids, "the services")
    seen: list[tuple[Kind, str]] = []
    b.registry.watch(lambda change: seen.append((change.kind, change.why)))
    a.registry.doubt(ids[0], "no sign of life")
    farm.until(lambda: b.found() == [ids[1], ids[0]], "the doubt")
    assert checks(b)[0] == (CheckState.DOUBTFUL, "no sign of life")
    a.registry.doubt(ids[0], None)
    farm.until(lambda: b.found() == ids, "the end of the doubt")
    assert seen == [(Kind.CHECKED, "doubtful"), (Kind.CHECKED, "passing")]


def test_the_panic_threshold_counts_the_services_of_all_members(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", "a:1"), a.register("bank", "a:2"), b.register("bank", "b:1"), b.register("bank", "b:2")]
    farm.until(lambda: a.found() == b.found() == sorted(ids), "the services")
    for id in ids[:2]:
        judge(a, id, FAILING)
    # Half of the farm's services fail, although all of those at their holder do.
    farm.until(lambda: a.found() == b.found() == sorted(ids[2:]), "the hidden ones")
    judge(b, ids[2], FAILING)
    farm.until(lambda: len(a.found()) == len(b.found()) == 4, "the panic")
    assert a.found() == b.found() == [ids[3], *sorted(ids[:3])]


def test_only_changes_of_what_fails_are_written_and_they_are_gathered(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(90)]
    farm.until(lambda: len(b.found()) == 90, "the services")
    farm.run(1.0)
    before = a.cluster.counts()
    for id in ids:
        judge(a, id, PASSING)
    farm.run(0.5)
    for id in ids[:30]:
        judge(a, id, FAILING)
    farm.until(lambda: len(b.found()) == 60, "the failures")
    after = a.cluster.counts()
    # Besides the providers that fail there are beats.
    assert after["cluster.operations"] - before["cluster.operations"] <= 30 + 2
    assert after["cluster.transactions"] - before["cluster.transactions"] <= 1 + 2


def test_a_later_reason_reaches_the_others_without_a_change(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id, other = a.register("bank", "h:1"), a.register("bank", "h:2")
    farm.until(lambda: len(b.found()) == 2, "the services")
    judge(a, id, FAILING)
    farm.until(lambda: b.found() == [other], "the failure")
    seen: list[object] = []
    for member in (a, b):
        member.registry.watch(seen.append)
    since = b.registry.check_of(b.registry.services("bank", "tcp")[0]).since  # type: ignore[union-attr]
    judge(a, id, attrs.evolve(FAILING, reason="status 503"))
    farm.until(lambda: checks(b)[0] == (CheckState.FAILING, "status 503"), "the later reason", 1.5)
    assert b.registry.check_of(b.registry.services("bank", "tcp")[0]).since == since  # type: ignore[union-attr]
    assert (a.found(), b.found(), seen) == ([other], [other], [])


def test_another_policy_of_a_failing_service_reaches_the_others(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id, other = a.register("bank", "h:1"), a.register("bank", "h:2")
    farm.until(lambda: len(b.found()) == 2, "the services")
    judge(a, id, FAILING, Policy.LAST)
    farm.until(lambda: b.found() == [other, id], "the failure")
    judge(a, id, FAILING, Policy.HIDE)
    farm.until(lambda: b.found() == [other], "the policy", 1.5)
    assert a.found() == [other]


def test_reasons_that_change_all_the_time_are_written_once_in_an_interval(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(5)]
    farm.until(lambda: len(b.found()) == 5, "the services")
    for id in ids:
        judge(a, id, FAILING, Policy.SHOW)
    farm.until(lambda: all(each == (CheckState.FAILING, FAILING.reason) for each in checks(b)), "the failures")
    written = dict.fromkeys(ids, 0)

    def count(revision: int, events: Sequence[Event]) -> None:
        for number, id in enumerate(ids):
            written[id] += any(each.key.endswith(b"h:%d" % number) for each in events)

    farm.etcd.applied.append(count)
    begun = farm.clock.seconds()
    for number in range(200):
        for id in ids[:4]:
            judge(a, id, attrs.evolve(FAILING, reason=f"status {number}"), Policy.SHOW)
        farm.run(0.05)
    farm.run(1.5)
    assert [state and state[1] for state in checks(b)] == ["status 199"] * 4 + [FAILING.reason]
    # The default interval is a second.
    assert all(8 <= written[id] <= farm.clock.seconds() - begun for id in ids[:4]), written
    assert written[ids[4]] == 0


def test_a_reason_that_was_written_with_another_change_is_not_written_again(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    judge(a, id, FAILING, Policy.SHOW)
    farm.until(lambda: checks(b) == [(CheckState.FAILING, FAILING.reason)], "the failure")
    judge(a, id, attrs.evolve(FAILING, reason="status 503"), Policy.SHOW)
    a.registry.relabel(id, "another")
    farm.until(lambda: checks(b) == [(CheckState.FAILING, "status 503")], "the later reason", 0.2)
    key = farm.key("s/elko/bank/tcp/h:1")
    revision = farm.etcd.keys[key].mod_revision
    farm.run(3.0)
    assert farm.etcd.keys[key].mod_revision == revision


def test_a_large_provider_reports_its_failing_services(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.registry.join("large", "elko", "h:5")
    for number in range(40):
        a.offer(id, "bank", f"h:{number}", info='{"a":"' + "x" * 16_000 + '"}')
    farm.until(lambda: len(b.found()) == 40, "the services")
    a.registry.set_check(a.registry.services_of(id)[7], attrs.evolve(FAILING, reason="\ud800" * 5_000), Policy.HIDE)
    farm.until(lambda: len(b.found()) == 39, "the failure")
    assert "h:7" not in [each.hostport for each in b.registry.find("bank", "tcp")]
    assert checks(b)[7] == (CheckState.FAILING, "?" * MAX_TEXT)


def test_a_failure_survives_the_loss_of_all_data_of_etcd(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(3)]
    farm.until(lambda: b.found() == ids, "the services")
    judge(a, ids[1], FAILING)
    farm.until(lambda: b.found() == [ids[0], ids[2]], "the failure")
    seen: list[object] = []
    b.registry.watch(seen.append)
    farm.etcd.wipe()
    farm.until(lambda: len(farm.values("s")) == 3, "the entries")
    farm.run(25.0)
    assert (b.found(), seen) == ([ids[0], ids[2]], [])
    [late] = farm.joined("c")
    assert late.found() == [ids[0], ids[2]]


def test_a_failure_without_etcd_arrives_when_etcd_is_back(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(3)]
    farm.until(lambda: b.found() == ids, "the services")
    judge(a, ids[1], FAILING)
    farm.until(lambda: b.found() == [ids[0], ids[2]], "the failure")
    b.client.disconnect()
    a.client.disconnect()
    farm.run(3.0)
    judge(a, ids[1], PASSING)
    judge(a, ids[0], FAILING, Policy.LAST)
    assert (a.found(), b.found()) == ([ids[1], ids[2], ids[0]], [ids[0], ids[2]])
    a.client.connect()
    b.client.connect()
    farm.until(lambda: b.found() == [ids[1], ids[2], ids[0]], "the return", 60.0)


def test_a_provider_that_moved_is_not_judged_by_its_former_holder(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old, other = a.register("bank", "h:1"), a.register("bank", "h:2")
    judge(a, old, FAILING)
    farm.until(lambda: c.found() == [other], "the failure")
    new = b.register("bank", "h:1")
    farm.until(lambda: a.found() == b.found() == c.found() == sorted([other, new]), "the move")
    assert c.registry.policy_of(c.registry.services_of(new)[0]) is Policy.SHOW


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"failing": "no answer", "policy": "hide"}, Policy.HIDE),
        ({"failing": "", "policy": "show"}, Policy.SHOW),
        ({"failing": "no answer"}, Policy.LAST),
        ({"failing": "no answer", "policy": "one of a newer broker"}, Policy.LAST),
        ({"policy": "hide"}, None),
        ({"failing": None, "policy": "hide", "unknown": [1]}, None),
    ],
)
def test_a_report_is_read_with_its_policy(more: dict[str, object], expected: Policy | None) -> None:
    service = {"name": "bank", "hostport": "h:1", **more}
    value = json.dumps({"broker": "a", "provider": 7, "service": service}).encode()
    read = layout.registration(("elko", "bank", "tcp", "h:1"), value)
    reason = more.get("failing")
    assert read.failing == (None if expected is None else FailingService(str(reason), expected))


@pytest.mark.parametrize("more", [b'"failing":7', b'"failing":"x","policy":null', b'"failing":"%s"' % (b"x" * 5_000)])
def test_a_report_that_is_none_is_a_foreign_value(farm: Farm, more: bytes) -> None:
    a, _ = farm.joined("a", "b")
    lease = farm.etcd.keys[farm.key("b/b")].lease
    value = b'{"broker":"b","provider":7,"service":{"name":"bank","hostport":"h:1",%s}}' % more
    farm.etcd.txn([], [Put(farm.key("s/elko/bank/tcp/h:1"), value, lease)])
    farm.run(0.5)
    assert a.cluster.counts()["cluster.bad-values"] == 1
    assert a.found() == []


def test_a_provider_without_its_connection_ends_as_it_is_back_at_another_member(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    silence = Verification(a.registry, Leases(farm.clock), farm.clock, lambda question, answered: None)
    ids = [a.register("bank", f"h:{number}") for number in range(LEAST)]
    for id in ids:
        judge(a, id, FAILING, Policy.LAST)
    assert silence.orphaned(ids[0], object())
    farm.until(lambda: b.found() == ids, "the services")
    back = b.register("bank", "h:0")
    farm.until(lambda: set(a.found()) == {*ids[1:], back}, "the successor")
    assert a.registry.provider(ids[0]) is None
    b.registry.leave(back)
    farm.until(lambda: set(a.found()) == set(ids[1:]), "its end")
    farm.run(1.0)
    assert set(a.found()) == set(b.found()) == set(ids[1:])
    assert silence.counts()["silence.doubtful"] == 0
    silence.stop()
