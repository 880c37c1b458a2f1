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

from broker.core.cluster.cluster_interfaces import IMirror
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.model import (
    BROKER,
    Change,
    Check,
    CheckState,
    FailingService,
    Kind,
    Load,
    LoadDetails,
    Policy,
    Provider,
    Rights,
    Service,
)
from broker.core.registered_services import Restored

FREE = Rights(services=1_000_000)
GRACE = 30.0


class Rig:
    """A registry with its clock, and all its changes."""

    def __init__(self, first: int = 1) -> None:
        self.clock = Clock()
        restored = Restored((), GRACE, self.clock, lambda ids: None)
        self.registry = ClusterRegistry(self.clock, count(first).__next__, restored)
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
    **more: Any,
) -> Provider:
    """A provider of another member. ``failing`` has the policies of its failing services by their places."""
    offered = tuple(Service(name, hostport, id) for name, hostport in services)
    more["failing"] = tuple(FailingService(place, reason, policy) for place, policy in (failing or {}).items())
    return Provider(id, more.pop("label", "p"), wire, "", more.pop("load", 0.0), 0.0, offered, broker=broker, **more)


def test_it_implements_its_interfaces() -> None:
    registry = Rig().registry
    assert verifyObject(IRegistry, registry)
    assert verifyObject(IMirror, registry)


# mirrored providers


def test_services_of_other_members_are_found_listed_watched_and_waited_for() -> None:
    rig = Rig()
    found: list[Service] = []
    rig.registry.wait("chat", None).addCallback(found.append)
    rig.registry.mirror([other(7, ("chat", "h:1"), load=2.0)])
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
    rig.registry.mirror([other(7, ("chat", "h:1"), ("mail", "h:2"))])
    kept = rig.registry.find("chat", "tcp")[0]
    rig.told()
    changed = other(7, ("chat", "h:1"), ("news", "h:3"))
    rig.registry.mirror([attrs.evolve(changed, services=(*changed.services[:1], changed.services[1]))])
    assert rig.told() == [(Kind.OFFERED, 7), (Kind.WITHDRAWN, 7)]
    assert rig.registry.find("chat", "tcp")[0] is kept
    rig.registry.mirror([attrs.evolve(changed, services=(attrs.evolve(kept, info="{}"), changed.services[1]))])
    assert rig.told() == [(Kind.AMENDED, 7)]
    assert rig.registry.find("chat", "tcp")[0].info == "{}"
    rig.registry.mirror([], [(7, "expired")])
    assert rig.told() == [(Kind.WITHDRAWN, 7), (Kind.WITHDRAWN, 7), (Kind.LEFT, 7)]
    assert rig.find("chat") == rig.find("news") == []
    assert list(rig.registry.ids()) == []


def test_loads_are_told_once_each_and_not_to_those_who_want_own_ones() -> None:
    rig = Rig()
    own: list[int] = []
    every: list[tuple[int, float]] = []
    rig.registry.watch_loads(lambda id, load, details: own.append(id), own=True)
    rig.registry.watch_loads(lambda id, load, details: every.append((id, load)))
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror([other(7)])
    rig.registry.mirror_loads([(7, 1.5, LoadDetails(requests=3)), (7, 1.5, LoadDetails(requests=3)), (99, 1.0, None)])
    rig.registry.load(mine, 1.0)
    assert (own, every) == ([mine], [(7, 1.5), (mine, 1.0)])
    provider = rig.registry.provider(7)
    assert provider is not None
    assert provider.details == LoadDetails(requests=3)


def test_finds_are_in_the_order_of_the_ids_and_then_of_offering() -> None:
    rig = Rig(first=50)
    rig.join(("chat", "own:1"))
    rig.registry.mirror([other(70, ("chat", "c:1"), ("chat", "c:2"), broker="c")])
    rig.registry.mirror([other(3, ("chat", "b:1"))])
    rig.registry.mirror([other(3, ("chat", "b:1"), ("chat", "b:0"))])
    rig.offer(50, ("chat", "own:0"))
    order = [(3, "b:1"), (3, "b:0"), (50, "own:1"), (50, "own:0"), (70, "c:1"), (70, "c:2")]
    assert rig.find("chat") == order
    assert [each.hostport for each in rig.registry.services("chat")] == [hostport for _, hostport in order]
    assert [each.id for each in rig.registry.providers()] == [3, 50, 70]
    assert list(rig.registry.ids()) == [3, 50, 70]
    assert [each.provider for each in rig.registry.loads()] == [3, 50, 70]


def test_services_that_changed_their_order_are_in_the_new_one() -> None:
    rig = Rig()
    rig.registry.mirror([other(7, ("chat", "h:1"), ("chat", "h:2"))])
    rig.registry.mirror([other(7, ("chat", "h:2"), ("chat", "h:1"))])
    assert rig.find("chat") == [(7, "h:2"), (7, "h:1")]


def test_peers_have_no_power_over_providers_of_other_members() -> None:
    rig = Rig()
    rig.registry.mirror([other(7, ("chat", "h:1"))])
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
    rig.registry.mirror([other(mine, ("chat", "evil:1"))])
    assert rig.find("chat") == [(mine, "h:1")]
    assert rig.registry.holder(mine) == ""


def test_services_over_the_limit_are_left_out_and_counted() -> None:
    rig = Rig()
    rig.registry.most_services = 3
    rig.registry.mirror([other(7, *(("chat", f"h:{number}") for number in range(5)))])
    assert rig.find("chat") == [(7, "h:0"), (7, "h:1"), (7, "h:2")]
    assert rig.registry.left_out == 2


def test_lasting_services_of_a_member_that_died_are_restored_ones_for_the_grace() -> None:
    rig = Rig()
    lasting = Service("mail", "h:2", 7, lasting=True)
    provider = other(7, ("chat", "h:1"))
    rig.registry.mirror([attrs.evolve(provider, services=(*provider.services, lasting))])
    rig.registry.mirror([], [(7, "expired")])
    assert (rig.find("chat", restored=True), rig.find("mail")) == ([], [])
    assert [each.restored for each in rig.registry.find("mail", "tcp", True)] == [True]
    rig.registry.mirror([other(8, ("mail", "h:2"), broker="c")])
    assert rig.find("mail", restored=True) == [(8, "h:2")]
    rig.registry.mirror([], [(8, "left")])
    assert rig.find("mail", restored=True) == []
    rig.registry.mirror([attrs.evolve(provider, services=(lasting,))])
    rig.registry.mirror([], [(7, "expired")])
    rig.clock.advance(GRACE)
    assert rig.find("mail", restored=True) == []


# health checks of other members


FAILING = Check(CheckState.FAILING, "no answer", 0.0)


def three(**failing: Mapping[int, Policy]) -> list[Provider]:
    """Providers 1, 2 and 3 of another member; ``p1`` has the failing services of the first."""
    return [other(id, ("chat", f"h:{id}"), failing=failing.get(f"p{id}")) for id in (1, 2, 3)]


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
    rig.registry.mirror([other(1, ("chat", "h:1"), failing={0: Policy.HIDE}, reason="status 503")])
    assert rig.registry.check_of(first) == Check(CheckState.FAILING, "status 503", 0.0)
    assert rig.told() == [(Kind.HIDDEN, 1)]
    rig.registry.mirror([attrs.evolve(three(p1={0: Policy.HIDE})[0], services=(attrs.evolve(first, info="{}"),))])
    assert rig.told() == [(Kind.AMENDED, 1)]
    assert [each for each, _ in rig.find("chat")] == [2, 3]


def test_the_panic_threshold_counts_own_and_mirrored_services() -> None:
    rig = Rig(first=100)
    own = [rig.join(("chat", f"own:{n}")) for n in range(2)]
    rig.registry.mirror(three(p1={0: Policy.HIDE}, p2={0: Policy.HIDE}))
    assert [each for each, _ in rig.find("chat")] == [3, *own]
    rig.registry.set_check(rig.registry.services_of(100)[0], FAILING, Policy.HIDE)
    assert [each for each, _ in rig.find("chat")] == [3, 101, 1, 2, 100]
    rig.registry.mirror([], [(2, "left")])
    assert [each for each, _ in rig.find("chat")] == [3, 101]


def test_a_service_that_an_own_one_hid_is_judged_again() -> None:
    rig = Rig(first=100)
    rig.registry.mirror(three(p1={0: Policy.HIDE}))
    own = rig.join(("chat", "h:1"))
    assert [each for each, _ in rig.find("chat")] == [2, 3, own]
    rig.registry.leave(own)
    assert [each for each, _ in rig.find("chat")] == [2, 3]
    rig.registry.mirror([], [(1, "left"), (2, "left"), (3, "left")])
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
    assert rig.registry.failing(own) == ()
    # The only service of its name is not hidden, which each member finds out by itself.
    rig.registry.set_check(mail, FAILING, Policy.HIDE)
    rig.registry.set_check(news, Check(CheckState.PASSING, "answered", 0.0), Policy.HIDE)
    assert rig.registry.failing(own) == (FailingService(1, "no answer", Policy.HIDE),)
    assert rig.registry.failing(99) == ()


def test_doubtful_services_come_last_at_all_members_and_are_reported_as_such() -> None:
    rig = Rig(first=100)
    own = rig.join(("chat", "h:9"))
    rig.registry.mirror(three())
    rig.registry.doubt(own, "no sign of life for 4 s")
    [report] = rig.registry.failing(own)
    assert report == FailingService(0, "no sign of life for 4 s", Policy.LAST, doubtful=True)
    rig.registry.doubt(own, None)
    assert rig.registry.failing(own) == ()
    rig.told()
    rig.registry.mirror([attrs.evolve(three()[0], failing=(report,))])
    assert rig.told() == [(Kind.CHECKED, 1)]
    [*_, last] = rig.registry.find("chat", "tcp")
    assert last.provider == 1
    check = rig.registry.check_of(last)
    assert check is not None
    assert (check.state, check.reason) == (CheckState.DOUBTFUL, "no sign of life for 4 s")
    rig.registry.mirror(three())
    assert [each for each, _ in rig.find("chat")] == [1, 2, 3, own]


# moves


def test_a_provider_that_comes_here_is_found_once_from_then_on() -> None:
    rig = Rig(first=100)
    rig.registry.mirror([other(7, ("chat", "h:1"), ("mail", "h:2"), load=1.0)])
    rig.told()
    seen: list[list[tuple[int, str]]] = []
    rig.registry.watch(lambda change: seen.append(rig.find("chat")), (Kind.OFFERED, Kind.WITHDRAWN))
    mine = rig.join(("chat", "h:1"))
    assert seen == [[(mine, "h:1")]] * 2
    assert rig.find("mail") == [(7, "h:2")]
    rig.offer(mine, ("mail", "h:2"))
    assert rig.find("mail") == [(mine, "h:2")]
    rig.registry.mirror([], [], {7: mine})
    assert rig.find("chat") == [(mine, "h:1")]
    assert rig.registry.provider(7) is None


def test_one_that_leaves_here_again_is_found_at_its_holder() -> None:
    rig = Rig(first=100)
    rig.registry.mirror([other(7, ("chat", "h:1"))])
    mine = rig.join(("chat", "h:1"), ("chat", "h:1"))
    rig.registry.withdraw(mine, ["chat"])
    assert rig.find("chat") == [(7, "h:1")]
    rig.offer(mine, ("chat", "h:1"))
    rig.registry.leave(mine)
    assert rig.find("chat") == [(7, "h:1")]


def test_another_wire_at_the_same_endpoint_is_another_service() -> None:
    rig = Rig(first=100)
    rig.registry.mirror([other(7, ("chat", "h:1"), wire="dbp")])
    mine = rig.join(("chat", "h:1"))
    assert rig.find("chat") == [(7, "h:1"), (mine, "h:1")]


def test_a_superseded_provider_is_gone_for_all_but_its_session() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"), ("mail", "h:2"))
    rig.told()
    rig.registry.mirror([other(7, ("chat", "h:1"), ("mail", "h:2"))], [], {mine: 7})
    assert rig.find("chat") == [(7, "h:1")]
    assert rig.registry.provider(mine) is None
    assert [each.id for each in rig.registry.providers()] == [7]
    assert (Kind.LEFT, mine) in rig.told()
    rig.registry.load(mine, 3.0)
    rig.registry.relabel(mine, "new")
    rig.registry.withdraw(mine, ["mail"])
    rig.registry.beat(mine)
    assert [each.name for each in rig.registry.services_of(mine)] == ["chat"]
    assert rig.registry.wire_and_label(mine) == ("elko", "new")
    assert rig.told() == []
    # Its successor goes, and the session is still there.
    rig.registry.mirror([], [(7, "left")])
    assert rig.find("chat") == [(mine, "h:1")]
    assert rig.find("mail") == []
    assert rig.registry.loads() == [Load(mine, "new", 3.0)]


def test_a_superseded_provider_that_leaves_does_not_come_back() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror([other(7, ("chat", "h:1"))], [], {mine: 7})
    rig.registry.leave(mine)
    rig.registry.mirror([], [(7, "left")])
    assert rig.find("chat") == []
    assert list(rig.registry.ids()) == []


def test_a_superseded_provider_that_offers_takes_its_endpoints_back() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror([other(7, ("chat", "h:1"))], [], {mine: 7})
    rig.offer(mine, ("mail", "h:2"))
    assert rig.find("chat") == [(mine, "h:1")]
    assert rig.find("mail") == [(mine, "h:2")]


def test_a_successor_may_have_a_successor() -> None:
    rig = Rig()
    mine = rig.join(("chat", "h:1"))
    rig.registry.mirror([other(7, ("chat", "h:1"))], [], {mine: 7})
    rig.registry.mirror([other(8, ("chat", "h:1"), broker="c")], [], {7: 8})
    assert rig.find("chat") == [(8, "h:1")]
    rig.registry.mirror([], [(8, "expired")])
    assert rig.find("chat") == [(mine, "h:1")]


def test_a_move_between_two_other_members_is_one_step() -> None:
    rig = Rig()
    rig.registry.mirror([other(7, ("chat", "h:1"))])
    seen: list[list[tuple[int, str]]] = []
    rig.registry.watch(lambda change: seen.append(rig.find("chat")))
    rig.registry.mirror([other(8, ("chat", "h:1"), broker="c")], [(7, "left")])
    assert seen == [[(8, "h:1")]] * 4


def test_a_changed_label_is_told_to_those_who_store_it() -> None:
    rig = Rig()
    told: list[int] = []
    rig.registry.unannounced.append(told.append)
    mine = rig.join()
    rig.registry.relabel(mine, "new")
    assert told == [mine]


def test_another_reason_or_policy_of_a_failing_service_is_told_to_those_who_store_it() -> None:
    rig = Rig()
    told: list[int] = []
    rig.registry.restated.append(told.append)
    mine = rig.join(("chat", "h:1"))
    [service] = rig.registry.services_of(mine)
    failing, passing = Check(CheckState.FAILING, "status 503", 0.0), Check(CheckState.PASSING, "answered", 0.0)
    rig.registry.set_check(service, passing)
    rig.registry.set_check(service, attrs.evolve(passing, reason="answered again"))
    rig.registry.set_check(service, failing, Policy.LAST)
    rig.registry.set_check(service, attrs.evolve(failing, since=1.0), Policy.LAST)
    assert told == []
    rig.registry.set_check(service, attrs.evolve(failing, reason="status 500"), Policy.LAST)
    rig.registry.set_check(service, attrs.evolve(failing, reason="status 500"), Policy.HIDE)
    assert told == [mine, mine]
    rig.registry.set_check(service, passing)
    assert told == [mine, mine]


# any order of all operations

NAMES = ("chat", "mail")
HOSTS = ("h:1", "h:2", "h:3")
SERVICES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(HOSTS)), max_size=4)


class AnyOrder(RuleBasedStateMachine):
    """Own and mirrored operations in any order, against a model."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(first=100)
        self.own: dict[int, list[tuple[str, str]]] = {}
        self.hidden: dict[int, int] = {}
        self.others: dict[int, list[tuple[str, str]]] = {}
        self.failing: dict[int, dict[int, Policy]] = {}
        self.revision = 0

    def _pick(self, ids: Sequence[int], number: int) -> int | None:
        return ids[number % len(ids)] if ids else None

    @rule(services=SERVICES)
    def join(self, services: list[tuple[str, str]]) -> None:
        self.own[self.rig.join(*services)] = list(services)

    @rule(number=st.integers(0, 9), services=SERVICES.filter(bool))
    def offer(self, number: int, services: list[tuple[str, str]]) -> None:
        id = self._pick(list(self.own), number)
        if id is not None:
            self.rig.offer(id, *services)
            self.own[id] += services
            self.hidden.pop(id, None)

    @rule(number=st.integers(0, 9), name=st.sampled_from(NAMES))
    def withdraw(self, number: int, name: str) -> None:
        id = self._pick(list(self.own), number)
        if id is not None:
            self.rig.registry.withdraw(id, [name])
            self.own[id] = [each for each in self.own[id] if each[0] != name]

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        id = self._pick(list(self.own), number)
        if id is not None:
            self.rig.registry.leave(id)
            del self.own[id]
            self.hidden.pop(id, None)

    @rule(
        id=st.integers(1, 6) | st.integers(300, 303),
        services=SERVICES,
        failing=st.dictionaries(st.integers(0, 3), st.sampled_from(Policy)),
    )
    def mirror(self, id: int, services: list[tuple[str, str]], failing: dict[int, Policy]) -> None:
        self.rig.registry.mirror([other(id, *services, failing=failing)])
        self.others[id] = services
        self.failing[id] = failing

    @rule(id=st.integers(1, 6), failing=st.dictionaries(st.integers(0, 3), st.sampled_from(Policy)))
    def check(self, id: int, failing: dict[int, Policy]) -> None:
        if id in self.others:
            self.rig.registry.mirror([other(id, *self.others[id], failing=failing)])
            self.failing[id] = failing

    @rule(id=st.integers(1, 6) | st.integers(300, 303))
    def gone(self, id: int) -> None:
        self.rig.registry.mirror([], [(id, "expired")])
        self._gone(id)

    def _gone(self, id: int) -> None:
        self.others.pop(id, None)
        for own in [own for own, successor in self.hidden.items() if successor == id]:
            del self.hidden[own]

    @rule(number=st.integers(0, 9), id=st.integers(1, 6), services=SERVICES)
    def supersede(self, number: int, id: int, services: list[tuple[str, str]]) -> None:
        own = self._pick(list(self.own), number)
        if own is not None:
            self.rig.registry.mirror([other(id, *services)], [], {own: id})
            self.others[id] = services
            self.failing.pop(id, None)
            self.hidden[own] = id

    @rule(old=st.integers(1, 6), new=st.integers(300, 303), services=SERVICES)
    def move(self, old: int, new: int, services: list[tuple[str, str]]) -> None:
        self.rig.registry.mirror([other(new, *services)], [], {old: new})
        self.others[new] = services
        self.failing.pop(new, None)
        self.others.pop(old, None)
        self.hidden = {own: new if successor == old else successor for own, successor in self.hidden.items()}

    @invariant()
    def finds_are_those_of_the_model(self) -> None:
        shown = {id: services for id, services in self.own.items() if id not in self.hidden}
        covered = {service for services in shown.values() for service in services}
        for name in NAMES:
            all_of_name = [
                ((id, service[1]), Policy.SHOW if id in shown else self.failing.get(id, {}).get(place, Policy.SHOW))
                for id, services in sorted({**self.others, **shown}.items())
                for place, service in enumerate(services)
                if service[0] == name and (id in shown or service not in covered)
            ]
            judged = [each for each in all_of_name if each[1] is not Policy.SHOW]
            panic = len(judged) > 0.5 * len(all_of_name)
            expected = [each for each, policy in all_of_name if policy is Policy.SHOW]
            expected += [each for each, policy in judged if policy is Policy.LAST or panic]
            assert self.rig.find(name) == expected
            listed = [(each.provider, each.hostport) for each in self.rig.registry.services(name)]
            assert listed == [each for each, _ in all_of_name]
        present = sorted({*self.others, *shown})
        assert [each.id for each in self.rig.registry.providers()] == present
        assert [each.id for each in self.rig.registry.providers() if not each.broker] == sorted(shown)
        assert self.rig.registry.sizes()["services"] == sum(
            len(each.services) for each in self.rig.registry.providers()
        )

    @invariant()
    def revisions_rise_by_one(self) -> None:
        revisions = [each.revision for each in self.rig.changes]
        assert all(later == before + 1 for before, later in pairwise([self.revision, *revisions]))
        self.revision += len(revisions)
        self.rig.changes.clear()
        assert BROKER not in self.others


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
