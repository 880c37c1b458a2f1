"""Turns of the reactor that pass while a member works on many registrations."""

from __future__ import annotations

import pytest

from broker.cluster.publisher import MAX_BATCH, STEP
from broker.cluster.settings import ClusterSettings
from broker.core.model import Rights, Service
from broker.core.turns import PIECE, SHARE
from tests.cluster.logic.members import Farm, Member

SERVICES = 4 * STEP
assert SERVICES < MAX_BATCH, "one transaction has them all"

GATHER = ClusterSettings("a").gather

TURNS = pytest.mark.parametrize("turns", range(6))


@pytest.fixture
def farm() -> Farm:
    return Farm()


def offered(member: Member, turns: int) -> int:
    """Return the provider of `SERVICES` services, of which a transaction has been built for so many turns."""
    farm = member.farm
    id = member.register()
    farm.until(lambda: farm.values("s"), "the provider")
    farm.clock.tick = SHARE
    member.registry.offer([Service(f"s-{number}", "h:1", id) for number in range(SERVICES)], Rights())
    farm.clock.rightNow += GATHER
    for _ in range(turns):
        farm.clock.turn()
    farm.clock.tick = 0.0
    return id


def names(farm: Farm) -> set[str]:
    return {each.split("/")[1] for each in farm.values("s")}


@TURNS
def test_what_is_withdrawn_while_a_transaction_is_built_does_not_stay(farm: Farm, turns: int) -> None:
    a, b = farm.joined("a", "b")
    id = offered(a, turns)
    a.registry.withdraw(id, [f"s-{number}" for number in range(0, SERVICES, 2)])
    farm.run(1.0)
    kept = {f"s-{number}" for number in range(1, SERVICES, 2)}
    assert names(farm) == {"bank", *kept}
    assert {each.name for each in b.registry.services()} == {"bank", *kept}


@TURNS
def test_an_interruption_while_a_transaction_is_built_loses_nothing(farm: Farm, turns: int) -> None:
    a, b = farm.joined("a", "b")
    offered(a, turns)
    a.client.disconnect()
    farm.until(lambda: not a.is_member, "the end of the session")
    a.client.connect()
    farm.until(lambda: len(names(farm)) == SERVICES + 1, "the services")
    farm.until(lambda: len(b.registry.services()) == SERVICES + 1, "the services elsewhere")


@TURNS
def test_deletions_go_on_without_space_while_many_services_wait(farm: Farm, turns: int) -> None:
    a, b = farm.joined("a", "b")
    other = b.register("shop", "h:9")
    mine = a.register("shop", "h:10")
    farm.until(lambda: a.found("shop") == b.found("shop") == sorted((other, mine)), "the services")
    farm.etcd.fill()
    offered(a, turns)
    a.registry.leave(mine)
    farm.until(lambda: b.found("shop") == [other], "the departure")
    farm.etcd.drain_alarm()
    farm.until(lambda: len(names(farm)) == SERVICES + 2, "the services")


def test_what_peers_do_while_a_new_session_is_reconciled_counts(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    services = [f"s-{number}" for number in range(10 * PIECE)]

    def offer(member: Member) -> int:
        id = member.registry.join("server", "elko", "10.0.0.1:5")
        member.registry.offer([Service(name, "h:1", id) for name in services], Rights())
        return id

    def holders() -> set[int]:
        return set(farm.registrations().values())

    mine = offer(a)
    farm.until(lambda: len(names(farm)) == len(services) and holders() == {mine}, "the services")
    a.client.disconnect()
    farm.until(lambda: not a.is_member, "the end of the session")
    other = offer(b)
    farm.until(lambda: holders() == {other}, "the services of the other one")
    a.client.connect()
    farm.clock.tick = SHARE
    own = a.cluster._sessions.parts.own
    while not 0 < len(own._unread) < len(services):
        assert not a.is_member, "the session was reconciled in one turn"
        farm.clock.turn()
        farm.clock.rightNow += 0.001
    farm.clock.tick = 0.0
    newest = offer(a)
    farm.until(lambda: holders() == {newest}, "the newest services")
    farm.run(3.0)
    assert holders() == {newest}
    assert a.found("s-0") == b.found("s-0") == [newest]


def test_services_beyond_the_limit_of_a_broker_are_counted_there_until_it_rises(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    b.registry.most_services = b.registry.sizes()["services"]
    id = a.register()
    a.registry.offer([Service(f"s-{number}", "h:1", id) for number in range(3)], Rights())
    farm.run(1.0)
    assert b.cluster.counts()["cluster.left-out"] == 4
    assert not b.registry.services("bank")
    b.registry.most_services += 4
    assert b.cluster.counts()["cluster.left-out"] == 0
    assert b.registry.services("bank")
