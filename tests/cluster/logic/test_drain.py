"""A member that drains: its providers stay until they are found elsewhere, or until the TTL has passed."""

from __future__ import annotations

import pytest

from tests.cluster.logic.members import Farm, Member

TTL = 10.0


@pytest.fixture
def farm() -> Farm:
    return Farm()


def drain(farm: Farm, member: Member, draining: bool = True) -> None:
    """Begin or end the drain of a member, and wait until the others know."""
    member.cluster.describe({}, draining)
    farm.run(0.2)


def found(*members: Member) -> list[list[int]]:
    """The providers of the service that each member finds."""
    return [each.found() for each in members]


def test_a_service_is_found_everywhere_until_it_has_moved(farm: Farm) -> None:
    members = a, b, c = farm.joined("a", "b", "c")
    old = a.register()
    farm.until(lambda: c.found(), "the service")
    drain(farm, a)
    a.registry.leave(old)
    assert found(a) == [[old]], "in the same turn"
    ghost = a.registry.provider(old)
    assert ghost is not None
    assert (ghost.broker, ghost.label, [each.hostport for each in ghost.services]) == ("a", "server", ["h:1"])
    farm.run(TTL - 1)
    assert found(*members) == [[old]] * 3
    new = b.register()
    while found(*members) != [[new]] * 3:
        assert all(len(each) == 1 for each in found(*members))
        farm.clock.advance(0.001)
    farm.run(2 * TTL)
    assert found(*members) == [[new]] * 3
    assert farm.providers()[0] == [new]
    assert not a.cluster.has_entries()


def test_a_service_that_does_not_come_back_goes_after_the_ttl(farm: Farm) -> None:
    members = a, _, _ = farm.joined("a", "b", "c")
    first, second = a.register("bank", "h:1"), a.register("bank", "h:2")
    farm.run(0.2)
    drain(farm, a)
    a.registry.leave(first)
    farm.run(4.0)
    a.registry.leave(second)
    assert a.cluster.has_entries()
    farm.run(TTL - 4.2)
    assert found(*members) == [[first, second]] * 3
    farm.run(0.5)
    assert found(*members) == [[second]] * 3
    farm.run(4.0)
    assert found(*members) == [[]] * 3
    assert farm.values("s") == []
    assert not a.cluster.has_entries()


@pytest.mark.parametrize(("why", "draining"), [("withdrawn", True), ("expired", True), ("left", False)])
def test_other_ends_take_the_service_along_at_once(farm: Farm, why: str, draining: bool) -> None:
    members = a, _ = farm.joined("a", "b")
    id = a.register()
    farm.run(0.2)
    drain(farm, a, draining)
    a.registry.leave(id, why)
    assert found(a) == [[]]
    assert farm.until(lambda: found(*members) == [[], []], "its end") < 0.1


def test_what_was_withdrawn_just_before_the_end_goes_at_once(farm: Farm) -> None:
    members = a, _ = farm.joined("a", "b")
    id = a.offer(a.register("bank", "h:1"), "shop", "h:2")
    farm.run(0.2)
    drain(farm, a)
    a.registry.withdraw(id, ["shop"])
    a.registry.leave(id)
    farm.run(0.2)
    assert [each.found("shop") for each in members] == [[], []]
    assert found(*members) == [[id], [id]]


def test_a_service_that_was_not_written_yet_when_its_session_ends_is_found(farm: Farm) -> None:
    members = a, b = farm.joined("a", "b")
    drain(farm, a)
    id = a.register()
    a.registry.leave(id)
    farm.run(0.2)
    assert found(*members) == [[id], [id]]
    new = b.register()
    farm.run(0.2)
    assert found(*members) == [[new], [new]]


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_two_entries_without_knowledge_of_each_other_become_the_live_one(farm: Farm, pause: float) -> None:
    members = a, b = farm.joined("a", "b")
    drain(farm, a)
    old = a.register()
    farm.run(pause)
    a.registry.leave(old)
    new = b.register()
    farm.run(0.5)
    assert found(*members) == [[new], [new]]
    assert farm.providers()[0] == [new]


def test_a_service_that_comes_back_after_the_drain_was_undone_replaces_its_entry(farm: Farm) -> None:
    members = a, _ = farm.joined("a", "b")
    old = a.register()
    farm.run(0.2)
    drain(farm, a)
    a.registry.leave(old)
    drain(farm, a, False)
    new = a.register()
    assert found(a) == [[new]]
    farm.run(0.5)
    assert found(*members) == [[new], [new]]
    farm.run(2 * TTL)
    assert found(*members) == [[new], [new]]
    assert farm.providers()[0] == [new]


def test_a_stop_leaves_the_entries_of_services_on_their_way(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    old = a.register()
    farm.run(0.2)
    drain(farm, a)
    a.registry.leave(old)
    a.cluster.stop(a.cluster.has_entries())
    farm.run(2.0)
    assert found(b) == [[old]]
    farm.run(TTL)
    assert found(b) == [[]]


def test_entries_end_with_the_lease(farm: Farm) -> None:
    members = a, _ = farm.joined("a", "b")
    old = a.register()
    farm.run(0.2)
    drain(farm, a)
    a.registry.leave(old)
    farm.etcd.vanish(a.memory.memory.lease)
    farm.run(5.0)
    assert a.is_member
    assert found(*members) == [[], []]
    assert farm.values("s") == []


def test_a_label_that_changes_is_published(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register(label="before")
    farm.run(0.2)
    a.registry.relabel(id, "after")
    farm.run(0.2)
    mirrored = b.registry.provider(id)
    assert mirrored is not None
    assert mirrored.label == "after"
