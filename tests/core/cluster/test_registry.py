"""The registry of a member of a cluster: own providers, mirrored ones, moves, and one order of finds everywhere.

The file is longer than others: it has all tests of `broker.core.cluster.cluster_registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from broker.core.cluster.cluster_interfaces import IMirror, Key, Registration, key_of
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry, StoredMemory
from broker.core.memory_budget import MemoryBudget, MemoryLimits
from broker.core.model import (
    NOBODY,
    Change,
    Check,
    CheckState,
    FailingService,
    Kind,
    Load,
    LoadDetails,
    Owner,
    Policy,
    Provider,
    Rights,
    Service,
)
from broker.core.registered_services import Restored
from tests.examples import examples

FREE = Rights(services=1_000_000)
GRACE = 30.0


class Rig:
    """A registry with its clock, and all its changes."""

    def __init__(self, first: int = 1, memory: StoredMemory | None = None) -> None:
        self.clock = Clock()
        restored = Restored((), GRACE, self.clock, lambda ids: None)
        self.registry = ClusterRegistry(self.clock, count(first).__next__, restored, memory)
        self.changes: list[Change] = []
        self.own: list[Change] = []
        self.registry.watch(self.changes.append)
        self.registry.watch(self.own.append, own=True)

    def join(self, *services: tuple[str, str], label: str = "p", wire: str = "elko") -> int:
        """Register an own provider with services, given by name and hostport."""
        id = self.registry.join(label, wire, "192.0.2.1:1")
        self.offer(id, *services)
        return id

    def offer(self, id: int, *services: tuple[str, str]) -> None:
        self.registry.offer([Service(name, hostport, id) for name, hostport in services], FREE)

    def find(self, name: str, restored: bool = False) -> list[tuple[int, str]]:
        return [(each.provider, each.hostport) for each in self.registry.find(name, "tcp", restored)]

    def report(self, name: str, hostport: str) -> FailingService | None:
        own = self.registry.own(at(name, hostport))
        assert own is not None
        return own.failing

    def told(self) -> list[tuple[Kind, int]]:
        """Return the changes since the last call."""
        told = [(each.kind, each.provider) for each in self.changes]
        revisions = [each.revision for each in self.changes]
        assert revisions == sorted(revisions)
        self.changes.clear()
        return told


def other(
    id: int,
    *services: tuple[str, str],
    broker: str = "b",
    wire: str = "elko",
    failing: Mapping[int, Policy] | None = None,
    reason: str = "no answer",
    lasting: bool = False,
    info: str | None = None,
    **more: Any,
) -> list[Registration]:
    """Registrations of a provider of another member. ``failing`` has the policies of its failing services by their
    places."""
    provider = Provider(id, more.pop("label", "p"), wire, "", more.pop("load", 0.0), 0.0, (), broker=broker, **more)
    made = []
    for place, (name, hostport) in enumerate(services):
        service = Service(name, hostport, id, lasting=lasting, info=info)
        report = None if place not in (failing or {}) else FailingService(reason, (failing or {})[place])
        made.append(Registration(key_of(wire, service, NOBODY), provider, service, place, report))
    return made


def at(name: str, hostport: str, wire: str = "elko") -> Key:
    """The key of a registration."""
    return wire, name, "tcp", hostport


def gone(*registrations: Sequence[Registration], why: str = "left") -> list[tuple[Key, str]]:
    """Registrations that are gone, as `IMirror.mirror` has them."""
    return [(each.key, why) for some in registrations for each in some]


def test_it_implements_its_interfaces() -> None:
    registry = Rig().registry
    assert verifyObject(IRegistry, registry)
    assert verifyObject(IMirror, registry)


# mirrored providers


def test_services_of_other_members_are_found_listed_watched_and_waited_for() -> None:
    rig = Rig()
    found: list[Service] = []
    rig.registry.wait("chat", None).addCallback(found.append)
    rig.registry.mirror([*other(7, ("chat", "h:1"), load=2.0)])
    assert rig.find("chat") == [(7, "h:1")]
    assert [each.provider for each in found] == [7]
    assert rig.told() == [(Kind.JOINED, 7), (Kind.OFFERED, 7), (Kind.LOAD, 7)]
    assert rig.registry.loads() == [Load(7, "p", 2.0)]
    provider = rig.registry.provider(7)
    assert provider is not None
    assert (provider.broker, rig.registry.holder(7), rig.registry.mirrored("b")) == ("b", "b", [7])
    assert rig.registry.mirrored("c") == []
    assert rig.own == []


def test_a_new_value_is_told_as_its_difference() -> None:
    rig = Rig()
    rig.registry.mirror(other(7, ("chat", "h:1"), ("mail", "h:2")))
    [kept] = rig.registry.find("chat", "tcp")
    rig.told()
    chat, news = other(7, ("chat", "h:1"), ("news", "h:3"))
    rig.registry.mirror([chat, news], gone(other(7, ("mail", "h:2"))))
    assert rig.told() == [(Kind.OFFERED, 7), (Kind.WITHDRAWN, 7)]
    assert rig.registry.find("chat", "tcp")[0] is kept
    rig.registry.mirror(other(7, ("chat", "h:1"), info="{}"))
    assert rig.told() == [(Kind.AMENDED, 7)]
    assert rig.registry.find("chat", "tcp")[0].info == "{}"
    rig.registry.mirror([], gone([chat, news], why="expired"))
    assert rig.told() == [(Kind.WITHDRAWN, 7), (Kind.WITHDRAWN, 7), (Kind.LEFT, 7)]
    assert rig.find("chat") == rig.find("news") == []
    assert list(rig.registry.ids()) == []


def test_a_new_label_is_told_once_and_not_to_those_who_want_own_ones() -> None:
    rig = Rig()
    rig.registry.mirror(other(7, ("chat", "h:1"), ("mail", "h:2")))
    mine = rig.join(("chat", "h:3"))
    rig.changes.clear()
    rig.own.clear()
    for _ in range(2):
        rig.registry.mirror(other(7, ("chat", "h:1"), ("mail", "h:2"), label="new"))
        rig.registry.relabel(mine, "mine")
    told = [(each.kind, each.provider, each.subject) for each in rig.changes]
    assert told == [(Kind.RELABELLED, 7, "new"), (Kind.RELABELLED, mine, "mine")]
    assert [each.provider for each in rig.own] == [mine]


def test_loads_are_told_once_each_and_not_to_those_who_want_own_ones() -> None:
    rig = Rig()
    own: list[int] = []
    every: list[tuple[int, float]] = []
    rig.registry.watch_loads(lambda id, load, details: own.append(id), own=True)
    rig.registry.watch_loads(lambda id, load, details: every.append((id, load)))
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror(other(7, ("chat", "h:2")))
    details = LoadDetails(requests=3)
    rig.registry.mirror_loads(
        [("b", 7, 1.5, details), ("b", 7, 1.5, details), ("b", 99, 1.0, None), ("c", 7, 9.0, None)]
    )
    rig.registry.load(mine, 1.0)
    assert (own, every) == ([mine], [(7, 1.5), (mine, 1.0)])
    provider = rig.registry.provider(7)
    assert provider is not None
    assert provider.details == LoadDetails(requests=3)


def test_finds_are_in_the_order_of_the_ids_and_then_of_offering() -> None:
    rig = Rig(first=50)
    rig.join(("chat", "own:1"))
    rig.registry.mirror([*other(70, ("chat", "c:1"), ("chat", "c:2"), broker="c")])
    rig.registry.mirror([*other(3, ("chat", "b:1"))])
    rig.registry.mirror([*other(3, ("chat", "b:1"), ("chat", "b:0"))])
    rig.offer(50, ("chat", "own:0"))
    order = [(3, "b:1"), (3, "b:0"), (50, "own:1"), (50, "own:0"), (70, "c:1"), (70, "c:2")]
    assert rig.find("chat") == order
    assert [each.hostport for each in rig.registry.services("chat")] == [hostport for _, hostport in order]
    assert [each.id for each in rig.registry.providers()] == [3, 50, 70]
    assert list(rig.registry.ids()) == [3, 50, 70]
    assert [each.provider for each in rig.registry.loads()] == [3, 50, 70]


def test_services_that_changed_their_order_are_in_the_new_one() -> None:
    rig = Rig()
    first, second = other(7, ("chat", "h:1"), ("chat", "h:2"))
    rig.registry.mirror([second])
    rig.registry.mirror([first])
    assert rig.find("chat") == [(7, "h:1"), (7, "h:2")]
    rig.registry.mirror([attrs.evolve(first, order=2)])
    assert rig.find("chat") == [(7, "h:2"), (7, "h:1")]
    provider = rig.registry.provider(7)
    assert provider is not None
    assert [each.hostport for each in provider.services] == ["h:2", "h:1"]


def test_watchers_see_one_amendment_of_each_description_and_none_of_the_order() -> None:
    """As at the broker that holds it. An end after a beginning would tell that the service is gone."""
    rig = Rig()
    [known] = other(7, ("chat", "h:1"))
    rig.registry.mirror([known])
    seen: list[Change] = []
    rig.registry.watch(seen.append)
    for changes in ({"info": "{}"}, {"zone": "west"}, {"tags": ("new",)}, {"meta": {"a": "b"}}, {"lasting": True}):
        known = attrs.evolve(known, service=attrs.evolve(known.service, **changes))
        rig.registry.mirror([known])
        assert [(each.kind, each.subject) for each in seen] == [(Kind.AMENDED, known.service)]
        seen.clear()
    rig.registry.mirror([attrs.evolve(known, order=5)])
    assert seen == []


def test_peers_have_no_power_over_providers_of_other_members() -> None:
    rig = Rig()
    rig.registry.mirror([*other(7, ("chat", "h:1"))])
    registry = rig.registry
    for act in (
        lambda: registry.leave(7),
        lambda: registry.withdraw(7, ["chat"]),
        lambda: registry.offer([Service("more", "h:2", 7)], FREE),
        lambda: registry.amend(Service("chat", "h:1", 7, info="{}")),
        lambda: registry.load(7, 1.0),
        lambda: registry.relabel(7, "q"),
    ):
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.reason is Reason.FORBIDDEN
        assert "'b'" in str(refused.value)
    assert rig.find("chat") == [(7, "h:1")]


def test_an_id_of_this_broker_is_not_mirrored() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror([*other(mine, ("chat", "evil:1"))])
    assert rig.find("chat") == [(mine, "h:1")]
    assert rig.registry.holder(mine) == ""


def test_services_over_the_limit_are_left_out_and_counted() -> None:
    rig = Rig()
    rig.registry.most_services = 3
    rig.registry.mirror([*other(7, *(("chat", f"h:{number}") for number in range(5)))])
    assert rig.find("chat") == [(7, "h:0"), (7, "h:1"), (7, "h:2")]
    assert rig.registry.left_out == 2


def test_services_that_are_left_out_are_counted_while_they_are() -> None:
    rig = Rig()
    rig.registry.most_services = 1
    rig.registry.mirror(other(7, ("chat", "h:0"), ("chat", "h:1")))
    rig.registry.mirror(other(7, ("chat", "h:1"), info="{}"))
    assert (rig.find("chat"), rig.registry.left_out) == ([(7, "h:0")], 1)
    rig.registry.mirror([], gone(other(7, ("chat", "h:1"))))
    assert rig.registry.left_out == 0


def test_services_that_were_left_out_are_found_under_a_higher_limit() -> None:
    rig = Rig()
    rig.registry.most_services = 2
    rig.registry.mirror(other(7, *(("chat", f"h:{number}") for number in range(5))))
    rig.told()
    rig.registry.most_services = 4
    assert rig.find("chat") == [(7, f"h:{number}") for number in range(4)]
    assert rig.told() == [(Kind.OFFERED, 7)] * 2
    rig.registry.most_services = 1
    assert len(rig.find("chat")) == 4
    rig.registry.most_services = 100
    assert len(rig.find("chat")) == 5


def held_elsewhere(memory: StoredMemory | None = None) -> tuple[Rig, int]:
    """Register a provider with one service, of which another member has a later registration."""
    rig = Rig(memory=memory)
    mine = rig.registry.join("p", "elko", "192.0.2.1:1", payer="192.0.2.1")
    rig.offer(mine, ("chat", "h:1"))
    rig.registry.mirror(other(7, ("chat", "h:1")), superseded=[at("chat", "h:1")])
    assert rig.find("chat") == [(7, "h:1")]
    return rig, mine


def test_a_superseded_service_counts_towards_the_limit_of_its_provider() -> None:
    rig, mine = held_elsewhere()
    with pytest.raises(Refusal):
        rig.registry.offer([Service("mail", "h:2", mine)], Rights(services=1))


def test_a_superseded_service_makes_room_in_the_memory_of_its_address_for_its_successor() -> None:
    memory = MemoryBudget(MemoryLimits(address=20_000))
    rig, mine = held_elsewhere(memory)
    rig.registry.amend(Service("chat", "h:1", mine, info="x" * 3_000))
    rig.registry.mirror(other(7, ("chat", "h:1")), superseded=[at("chat", "h:1")])
    rig.registry.check(Service("chat", "h:2", mine, info="y" * 3_000), FREE, mine)
    with pytest.raises(Refusal):
        rig.registry.check(Service("mail", "h:2", mine, info="y" * 3_000), FREE, mine)


def test_services_that_were_left_out_are_found_when_there_is_room() -> None:
    rig = Rig()
    rig.registry.most_services = 3
    mine = rig.join(("mail", "h:1"), ("news", "h:1"))
    rig.registry.mirror(other(7, *(("chat", f"h:{number}") for number in range(5))))
    rig.registry.mirror([], gone(other(7, ("chat", "h:1"))))
    assert rig.find("chat") == [(7, "h:0")]
    rig.registry.withdraw(mine, ["mail"])
    assert rig.find("chat") == [(7, "h:0"), (7, "h:2")]
    rig.registry.leave(mine)
    assert rig.find("chat") == [(7, "h:0"), (7, "h:2"), (7, "h:3")]
    rig.registry.mirror([], gone(other(7, ("chat", "h:0"), ("chat", "h:2"))))
    assert rig.find("chat") == [(7, "h:3"), (7, "h:4")]
    assert rig.registry.sizes()["services"] == 2


def test_lasting_services_of_a_member_that_died_are_restored_ones_for_the_grace() -> None:
    rig = Rig()
    chat, lasting = other(7, ("chat", "h:1")), other(7, ("mail", "h:2"), lasting=True)
    rig.registry.mirror([*chat, *lasting])
    rig.registry.mirror([], gone(chat, lasting, why="expired"))
    assert (rig.find("chat", restored=True), rig.find("mail")) == ([], [])
    assert [each.restored for each in rig.registry.find("mail", "tcp", True)] == [True]
    rig.registry.mirror(other(8, ("mail", "h:2"), broker="c"))
    assert rig.find("mail", restored=True) == [(8, "h:2")]
    rig.registry.mirror([], gone(lasting))
    assert rig.find("mail", restored=True) == []
    rig.registry.mirror(lasting)
    rig.registry.mirror([], gone(lasting, why="expired"))
    rig.clock.advance(GRACE)
    assert rig.find("mail", restored=True) == []


# health checks of other members


FAILING = Check(CheckState.FAILING, "no answer", 0.0)


def three(**failing: Mapping[int, Policy]) -> list[Registration]:
    """Registrations of the providers 1, 2 and 3 of another member; ``p1`` has the failing services of the first."""
    return [each for id in (1, 2, 3) for each in other(id, ("chat", f"h:{id}"), failing=failing.get(f"p{id}"))]


@pytest.mark.parametrize(
    ("policy", "expected"), [(Policy.SHOW, [1, 2, 3]), (Policy.LAST, [2, 3, 1]), (Policy.HIDE, [2, 3])]
)
def test_a_find_obeys_the_checks_of_other_members(policy: Policy, expected: list[int]) -> None:
    rig = Rig()
    rig.registry.mirror(three())
    [first, *_] = rig.registry.find("chat", "tcp")
    rig.told()
    rig.clock.advance(5.0)
    rig.registry.mirror(three(p1={0: policy})[:1])
    hiding = policy is Policy.HIDE
    assert rig.told() == [(Kind.CHECKED, 1), *[(Kind.HIDDEN, 1)] * hiding]
    assert [each for each, _ in rig.find("chat")] == expected
    assert (rig.registry.check_of(first), rig.registry.policy_of(first)) == (attrs.evolve(FAILING, since=5.0), policy)
    assert tuple(rig.registry.by_check(rig.registry.services("chat"))) == rig.registry.find("chat", "tcp")
    rig.clock.advance(5.0)
    rig.registry.mirror(three(p1={0: policy})[:1])
    assert rig.told() == []
    rig.registry.mirror(three())
    assert rig.told() == [(Kind.CHECKED, 1), *[(Kind.SHOWN, 1)] * hiding]
    assert [each for each, _ in rig.find("chat")] == [1, 2, 3]
    check = rig.registry.check_of(first)
    assert check is not None
    assert (check.state, check.since) == (CheckState.PASSING, 10.0)
    assert rig.own == []


def test_another_reason_or_policy_is_taken_over_without_a_change_of_the_state() -> None:
    rig = Rig()
    rig.registry.mirror(three(p1={0: Policy.LAST}))
    [_, _, first] = rig.registry.find("chat", "tcp")
    rig.told()
    rig.clock.advance(5.0)
    rig.registry.mirror([*other(1, ("chat", "h:1"), failing={0: Policy.HIDE}, reason="status 503")])
    assert rig.registry.check_of(first) == Check(CheckState.FAILING, "status 503", 0.0)
    assert rig.told() == [(Kind.HIDDEN, 1)]
    rig.registry.mirror([attrs.evolve(three(p1={0: Policy.HIDE})[0], service=attrs.evolve(first, info="{}"))])
    assert rig.told() == [(Kind.AMENDED, 1)]
    assert [each for each, _ in rig.find("chat")] == [2, 3]


def test_the_panic_threshold_counts_own_and_mirrored_services() -> None:
    rig = Rig(first=100)
    own = [rig.join(("chat", f"own:{n}")) for n in range(2)]
    rig.registry.mirror(three(p1={0: Policy.HIDE}, p2={0: Policy.HIDE}))
    assert [each for each, _ in rig.find("chat")] == [3, *own]
    rig.registry.set_check(rig.registry.services_of(100)[0], FAILING, Policy.HIDE)
    assert [each for each, _ in rig.find("chat")] == [3, 101, 1, 2, 100]
    rig.registry.mirror([], [(at("chat", "h:2"), "left")])
    assert [each for each, _ in rig.find("chat")] == [3, 101]


def test_a_service_that_an_own_one_hid_is_judged_again() -> None:
    rig = Rig(first=100)
    rig.registry.mirror(three(p1={0: Policy.HIDE}))
    own = rig.join(("chat", "h:1"))
    assert [each for each, _ in rig.find("chat")] == [2, 3, own]
    rig.registry.leave(own)
    assert [each for each, _ in rig.find("chat")] == [2, 3]
    rig.registry.mirror([], gone(three()))
    rig.registry.mirror(three())
    assert [each for each, _ in rig.find("chat")] == [1, 2, 3]


def test_a_wait_that_began_while_a_mirrored_service_was_hidden_gets_it_when_it_passes() -> None:
    rig = Rig()
    rig.registry.mirror(three(p1={0: Policy.HIDE}))
    found: list[Service] = []
    rig.registry.wait("chat", None).addCallback(found.append)
    rig.registry.mirror(three())
    assert [each.provider for each in found] == [1]


def test_failing_services_of_own_providers_are_reported_with_the_configured_policy() -> None:
    rig = Rig()
    own = rig.join(("chat", "h:1"), ("mail", "h:2"), ("news", "h:3"))
    _, mail, news = rig.registry.services_of(own)
    # The only service of its name is not hidden, which each member finds out by itself.
    rig.registry.set_check(mail, FAILING, Policy.HIDE)
    rig.registry.set_check(news, Check(CheckState.PASSING, "answered", 0.0), Policy.HIDE)
    assert rig.report("chat", "h:1") is rig.report("news", "h:3") is None
    assert rig.report("mail", "h:2") == FailingService("no answer", Policy.HIDE)


def test_doubtful_services_come_last_at_all_members_and_are_reported_as_such() -> None:
    rig = Rig(first=100)
    own = rig.join(("chat", "h:9"))
    rig.registry.mirror(three())
    rig.registry.doubt(own, "no sign of life for 4 s")
    report = rig.report("chat", "h:9")
    assert report == FailingService("no sign of life for 4 s", Policy.LAST, doubtful=True)
    rig.registry.doubt(own, None)
    assert rig.report("chat", "h:9") is None
    rig.told()
    rig.registry.mirror([attrs.evolve(three()[0], failing=report)])
    assert rig.told() == [(Kind.CHECKED, 1)]
    [*_, last] = rig.registry.find("chat", "tcp")
    assert last.provider == 1
    check = rig.registry.check_of(last)
    assert check is not None
    assert (check.state, check.reason) == (CheckState.DOUBTFUL, "no sign of life for 4 s")
    rig.registry.mirror(three())
    assert [each for each, _ in rig.find("chat")] == [1, 2, 3, own]


# moves


def test_a_service_that_comes_here_is_found_once_from_then_on() -> None:
    rig = Rig(first=100)
    before = other(7, ("chat", "h:1"), ("mail", "h:2"), load=1.0)
    rig.registry.mirror(before)
    rig.told()
    seen: list[list[tuple[int, str]]] = []
    rig.registry.watch(lambda change: seen.append(rig.find("chat")), (Kind.OFFERED, Kind.WITHDRAWN))
    mine = rig.join(("chat", "h:1"))
    assert seen == [[(mine, "h:1")]] * 2
    assert rig.find("mail") == [(7, "h:2")]
    rig.offer(mine, ("mail", "h:2"))
    assert rig.find("mail") == [(mine, "h:2")]
    assert rig.registry.provider(7) is None, "nothing of it is found"
    rig.registry.mirror([], gone(before))
    assert rig.find("chat") == [(mine, "h:1")]


def test_one_that_leaves_here_again_is_found_at_its_holder() -> None:
    rig = Rig(first=100)
    rig.registry.mirror(other(7, ("chat", "h:1")))
    mine = rig.join(("chat", "h:1"), ("chat", "h:1"))
    assert rig.find("chat") == [(mine, "h:1")], "a key is found once"
    rig.registry.withdraw(mine, ["chat"])
    assert rig.find("chat") == [(7, "h:1")]
    rig.offer(mine, ("chat", "h:1"))
    rig.registry.leave(mine)
    assert rig.find("chat") == [(7, "h:1")]


def test_of_two_own_sessions_the_one_of_the_later_act_is_found() -> None:
    rig = Rig()
    first, second = rig.join(("chat", "h:1")), rig.join(("chat", "h:1"))
    assert rig.find("chat") == [(second, "h:1")]
    rig.registry.amend(Service("chat", "h:1", first))
    assert rig.find("chat") == [(first, "h:1")]
    rig.registry.leave(first)
    assert rig.find("chat") == [(second, "h:1")]
    own = rig.registry.own(at("chat", "h:1"))
    assert own is not None
    assert own.provider.id == second


def test_another_wire_at_the_same_endpoint_is_another_service() -> None:
    rig = Rig(first=100)
    rig.registry.mirror(other(7, ("chat", "h:1"), wire="dbp"))
    mine = rig.join(("chat", "h:1"))
    assert rig.find("chat") == [(7, "h:1"), (mine, "h:1")]


def test_an_entry_names_a_service_whatever_its_endpoint() -> None:
    rig = Rig()
    first = rig.registry.join("p", "http", "", Owner("anna", "chat/1"))
    rig.registry.offer([Service("chat", "h:1", first)], FREE)
    second = rig.registry.join("p", "http", "", Owner("anna", "chat/1"))
    rig.registry.offer([Service("chat", "h:2", second, "udp")], FREE)
    assert rig.find("chat") == []
    assert [each.hostport for each in rig.registry.services("chat")] == ["h:2"]


def superseded(rig: Rig) -> int:
    """Register a provider of two services, of which another member has claimed one."""
    mine = rig.join(("chat", "h:1"), ("mail", "h:2"))
    rig.told()
    rig.registry.mirror(other(7, ("chat", "h:1")), superseded=[at("chat", "h:1")])
    return mine


def test_a_superseded_service_is_gone_for_all_but_its_session() -> None:
    rig = Rig()
    mine = superseded(rig)
    assert (rig.find("chat"), rig.find("mail")) == ([(7, "h:1")], [(mine, "h:2")])
    assert rig.told() == [(Kind.JOINED, 7), (Kind.OFFERED, 7), (Kind.WITHDRAWN, mine)]
    assert [each.id for each in rig.registry.providers()] == [mine, 7]
    assert [each.name for each in rig.registry.services_of(mine)] == ["mail"]
    rig.registry.load(mine, 3.0)
    rig.registry.relabel(mine, "new")
    rig.registry.mirror([], [(at("chat", "h:1"), "left")], counting=[at("chat", "h:1")])
    assert rig.find("chat") == [(mine, "h:1")]
    assert [each.name for each in rig.registry.services_of(mine)] == ["chat", "mail"]
    assert rig.registry.loads() == [Load(mine, "new", 3.0)]


def test_a_service_of_a_provider_in_doubt_that_is_found_again_comes_last() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror(other(7, ("chat", "h:2")))
    rig.registry.doubt(mine, "it is silent")
    assert [each for each, _ in rig.find("chat")] == [7, mine]
    rig.registry.mirror(other(8, ("chat", "h:1")), superseded=[at("chat", "h:1")])
    assert [each for each, _ in rig.find("chat")] == [7, 8]
    rig.told()
    rig.registry.mirror([], [(at("chat", "h:1"), "left")], counting=[at("chat", "h:1")])
    assert [each for each, _ in rig.find("chat")] == [7, mine]
    assert rig.told() == [(Kind.OFFERED, mine), (Kind.CHECKED, mine), (Kind.WITHDRAWN, 8), (Kind.LEFT, 8)]
    rig.registry.doubt(mine, None)
    assert [each for each, _ in rig.find("chat")] == [mine, 7]


def test_a_superseded_service_that_nobody_has_is_found() -> None:
    rig = Rig()
    mine = superseded(rig)
    rig.registry.mirror([], [(at("chat", "h:1"), "left")])
    assert rig.find("chat") == [(mine, "h:1")]


@pytest.mark.parametrize("how", ["leave", "withdraw"])
def test_a_superseded_service_that_ends_does_not_come_back(how: str) -> None:
    rig = Rig()
    mine = superseded(rig)
    if how == "leave":
        rig.registry.leave(mine)
    else:
        rig.registry.withdraw(mine, ["chat"])
    rig.registry.mirror([], [(at("chat", "h:1"), "left")])
    assert rig.find("chat") == []
    assert rig.registry.own(at("chat", "h:1")) is None


@pytest.mark.parametrize("how", ["offer", "amend", "amend without a change"])
def test_an_act_on_a_superseded_service_takes_it_back(how: str) -> None:
    rig = Rig()
    mine = superseded(rig)
    if how == "offer":
        rig.offer(mine, ("chat", "h:1"))
    else:
        rig.registry.amend(Service("chat", "h:1", mine, info="{}" if how == "amend" else None))
    assert rig.find("chat") == [(mine, "h:1")]
    rig.registry.mirror(other(7, ("chat", "h:1")))
    assert rig.find("chat") == [(mine, "h:1")]


def test_a_move_between_two_other_members_is_one_step() -> None:
    rig = Rig()
    rig.registry.mirror(other(7, ("chat", "h:1")))
    seen: list[list[tuple[int, str]]] = []
    rig.registry.watch(lambda change: seen.append(rig.find("chat")))
    rig.registry.mirror(other(8, ("chat", "h:1"), broker="c"))
    assert seen == [[(8, "h:1")]] * 4


class Acts:
    """Records what `OwnRegistrations` is called with."""

    def __init__(self, rig: Rig, stays: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self._stays = stays
        rig.registry.own_registrations = self

    def acted(self, key: Key) -> None:
        self.calls.append(("acted", key[1]))

    def refreshed(self, key: Key) -> None:
        self.calls.append(("refreshed", key[1]))

    def restated(self, key: Key) -> None:
        self.calls.append(("restated", key[1]))

    def forgotten(self, key: Key) -> None:
        self.calls.append(("forgotten", key[1]))

    def none_remembered(self) -> None:
        self.calls.append(("none", "remembered"))

    def ended(self, last: Registration, why: str) -> Registration | None:
        self.calls.append((why, last.key[1]))
        return attrs.evolve(last, provider=attrs.evolve(last.provider, broker="a")) if self._stays else None

    def told(self) -> list[tuple[str, str]]:
        calls, self.calls = self.calls, []
        return calls


def test_changes_of_own_registrations_are_passed_on() -> None:
    rig = Rig()
    acts = Acts(rig)
    mine = rig.join(("chat", "h:1"), ("mail", "h:2"))
    assert acts.told() == [("acted", "chat"), ("acted", "mail")]
    rig.registry.amend(Service("chat", "h:1", mine, info="{}"))
    assert acts.told() == [("acted", "chat")]
    rig.registry.amend(Service("chat", "h:1", mine, info="{}"))
    rig.registry.load(mine, 3.0)
    assert acts.told() == []
    rig.registry.relabel(mine, "new")
    assert acts.told() == [("refreshed", "chat"), ("refreshed", "mail")]
    second = rig.join(("chat", "h:1"))
    acts.told()
    rig.registry.leave(second)
    assert acts.told() == [("refreshed", "chat")]
    rig.registry.withdraw(mine, ["chat"])
    rig.registry.leave(mine, "expired")
    assert acts.told() == [("withdrawn", "chat"), ("expired", "mail")]


def test_another_reason_or_policy_of_a_failing_service_is_passed_on() -> None:
    rig = Rig()
    acts = Acts(rig)
    mine = rig.join(("chat", "h:1"))
    [service] = rig.registry.services_of(mine)
    failing, passing = Check(CheckState.FAILING, "status 503", 0.0), Check(CheckState.PASSING, "answered", 0.0)
    acts.told()
    rig.registry.set_check(service, passing)
    rig.registry.set_check(service, attrs.evolve(passing, reason="answered again"))
    assert acts.told() == []
    rig.registry.set_check(service, failing, Policy.LAST)
    rig.registry.set_check(service, attrs.evolve(failing, since=1.0), Policy.LAST)
    assert acts.told() == [("refreshed", "chat")]
    rig.registry.set_check(service, attrs.evolve(failing, reason="status 500"), Policy.LAST)
    rig.registry.set_check(service, attrs.evolve(failing, reason="status 500"), Policy.HIDE)
    assert acts.told() == [("restated", "chat")] * 2
    rig.registry.set_check(service, passing)
    rig.registry.doubt(mine, "silent")
    assert acts.told() == [("refreshed", "chat")] * 2


def test_a_provider_whose_registrations_stay_is_found_as_one_of_this_broker_as_a_member() -> None:
    rig = Rig()
    Acts(rig, stays=True)
    mine = rig.join(("chat", "h:1"))
    seen: list[list[tuple[int, str]]] = []
    rig.registry.watch(lambda change: seen.append(rig.find("chat")))
    rig.told()
    rig.own.clear()
    rig.registry.leave(mine)
    assert seen == [[(mine, "h:1")]] * 4
    assert rig.told() == [(Kind.WITHDRAWN, mine), (Kind.LEFT, mine), (Kind.JOINED, mine), (Kind.OFFERED, mine)]
    assert [each.kind for each in rig.own] == [Kind.WITHDRAWN, Kind.LEFT]
    assert rig.registry.holder(mine) == "a"
    rig.registry.mirror([], [(at("chat", "h:1"), "left")])
    assert rig.find("chat") == []


# any order of all operations

NAMES = ("chat", "mail")
HOSTS = ("h:1", "h:2", "h:3")
KEYS = [(name, host) for name in NAMES for host in HOSTS]
SERVICES = st.lists(st.sampled_from(KEYS), max_size=4)


class AnyOrder(RuleBasedStateMachine):
    """Own and mirrored operations in any order, against a model."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(first=100)
        self.own: dict[tuple[str, str], list[int]] = {key: [] for key in KEYS}
        """Own providers at each key, in the order of their acts."""
        self.places: dict[tuple[int, tuple[str, str]], int] = {}
        """Number of the offer that is found, by provider and key."""
        self.sessions: list[int] = []
        self.others: dict[tuple[str, str], tuple[int, int, Policy]] = {}
        self.superseded: set[tuple[str, str]] = set()
        self.offers = 0
        self.revision = 0

    def _offered(self, id: int, services: Sequence[tuple[str, str]]) -> None:
        for key in services:
            self.offers += 1
            self.own[key].append(id)
            self.places[id, key] = self.offers
            self.superseded.discard(key)

    def _pick(self, number: int) -> int | None:
        return self.sessions[number % len(self.sessions)] if self.sessions else None

    @rule(services=SERVICES)
    def join(self, services: list[tuple[str, str]]) -> None:
        id = self.rig.join(*services)
        self.sessions.append(id)
        self._offered(id, services)

    @rule(number=st.integers(0, 9), services=SERVICES.filter(bool))
    def offer(self, number: int, services: list[tuple[str, str]]) -> None:
        id = self._pick(number)
        if id is not None:
            self.rig.offer(id, *services)
            self._offered(id, services)

    @rule(number=st.integers(0, 9), name=st.sampled_from(NAMES))
    def withdraw(self, number: int, name: str) -> None:
        id = self._pick(number)
        if id is not None:
            self.rig.registry.withdraw(id, [name])
            self._ended(id, [key for key in KEYS if key[0] == name])

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        id = self._pick(number)
        if id is not None:
            self.rig.registry.leave(id)
            self.sessions.remove(id)
            self._ended(id, KEYS)

    def _ended(self, id: int, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            self.own[key] = [each for each in self.own[key] if each != id]
            if not self.own[key]:
                self.superseded.discard(key)

    @rule(
        id=st.integers(1, 6) | st.integers(300, 303),
        services=st.lists(st.sampled_from(KEYS), max_size=4, unique=True),
        failing=st.dictionaries(st.integers(0, 3), st.sampled_from(Policy)),
        supersedes=st.booleans(),
    )
    def mirror(self, id: int, services: list[tuple[str, str]], failing: dict[int, Policy], supersedes: bool) -> None:
        orders = [KEYS.index(key) for key in services]
        present = [
            attrs.evolve(each, order=order)
            for each, order in zip(other(id, *services, failing=failing), orders, strict=True)
        ]
        self.rig.registry.mirror(present, superseded=[each.key for each in present] if supersedes else ())
        for place, key in enumerate(services):
            self.others[key] = id, orders[place], failing.get(place, Policy.SHOW)
            if supersedes and self.own[key]:
                self.superseded.add(key)

    @rule(key=st.sampled_from(KEYS), counting=st.booleans())
    def gone(self, key: tuple[str, str], counting: bool) -> None:
        self.rig.registry.mirror([], [(at(*key), "expired")], counting=[at(*key)] if counting else ())
        self.others.pop(key, None)
        if counting:
            self.superseded.discard(key)

    @invariant()
    def finds_are_those_of_the_model(self) -> None:
        view: dict[tuple[str, str], tuple[int, int, Policy]] = {}
        for key in KEYS:
            if self.own[key] and not (key in self.superseded and key in self.others):
                view[key] = self.own[key][-1], self.places[self.own[key][-1], key], Policy.SHOW
            elif key in self.others:
                view[key] = self.others[key]
        for name in NAMES:
            found = sorted((id, place, key[1], policy) for key, (id, place, policy) in view.items() if key[0] == name)
            all_of_name = [((id, host), policy) for id, _, host, policy in found]
            judged = [each for each in all_of_name if each[1] is not Policy.SHOW]
            panic = len(judged) > 0.5 * len(all_of_name)
            expected = [each for each, policy in all_of_name if policy is Policy.SHOW]
            expected += [each for each, policy in judged if policy is Policy.LAST or panic]
            assert self.rig.find(name) == expected
            listed = [(each.provider, each.hostport) for each in self.rig.registry.services(name)]
            assert listed == [each for each, _ in all_of_name]
        present = sorted({*(id for id, _, _ in view.values()), *self.sessions})
        assert [each.id for each in self.rig.registry.providers()] == present
        assert [each.id for each in self.rig.registry.providers() if not each.broker] == sorted(self.sessions)
        assert self.rig.registry.sizes()["services"] == len(view)

    @invariant()
    def revisions_rise_by_one(self) -> None:
        revisions = [each.revision for each in self.rig.changes]
        assert all(later == before + 1 for before, later in pairwise([self.revision, *revisions]))
        self.revision += len(revisions)
        self.rig.changes.clear()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(deadline=None, max_examples=examples(60), stateful_step_count=30)
