"""Sessions: the return of a member whose connection was lost, under its lease or a new one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from broker.cluster.etcd.etcd_interface import Event, Granted, LeaseGone
from broker.core.model import Service
from tests.cluster.logic.members import Farm, Member


@pytest.fixture
def farm() -> Farm:
    return Farm()


def cut(member: Member) -> None:
    """End the watch, and let no call through."""
    member.client.disconnect()
    for watch in list(member.client._watches):
        watch.fail("the connection was lost")


def test_entries_are_held_while_etcd_is_away_after_a_loss_of_its_data(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    farm.until(a.found, "the service")
    cut(b)
    farm.etcd.wipe()
    farm.until(lambda: farm.values("b") == ["a"] and a.is_member, "the return of one member")
    for number in range(3):
        farm.etcd.kill(number)
    for _ in range(60):
        farm.run(0.5)
        assert a.found() == [id]
    for number in range(3):
        farm.etcd.restart(number)
    b.client.connect()
    while farm.providers()[0] != [id]:
        farm.run(0.05)
        assert a.found() == [id]
        assert farm.clock.seconds() < 100
    farm.run(25.0)
    assert a.found() == b.found() == [id]


def test_nothing_is_written_from_a_table_behind_the_session(farm: Farm) -> None:
    a, b = farm.member("a", gather=0.0), farm.member("b")
    farm.until(lambda: a.started and b.started, "the join")
    id = a.register()
    farm.until(b.found, "the service")
    cut(a)
    other = b.register()
    farm.until(lambda: farm.providers()[0] == [other], "the move")
    a.registry.amend(Service("bank", "h:1", id, info="{}"))
    a.client.connect()
    farm.until(lambda: a.found() == [other], "the table")
    farm.run(3.0)
    assert (a.found(), b.found(), farm.providers()) == ([other], [other], ([other], [id]))


def test_a_watch_that_does_not_bring_the_write_of_its_session_is_silent(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    farm.run(1.0)
    [watch] = a.client._watches
    watch.push = lambda *_: None  # type: ignore[method-assign]
    transactions = a.cluster.counts()["cluster.transactions"]
    a.cluster._sessions.interrupt("a fault of the test")
    farm.until(lambda: not a.is_member, "the end of the session")
    id = b.register()
    farm.run(3.0)
    assert not a.is_member
    assert a.cluster.counts()["cluster.transactions"] == transactions
    farm.until(lambda: a.is_member and a.found() == [id], "the next watch", 5.0)


def test_entries_are_held_if_the_data_of_etcd_are_lost_at_the_beginning_of_a_session(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    farm.until(lambda: a.found() == [id], "the service")
    grant = a.client.grant
    wiped: list[int] = []

    def lose(ttl: int) -> Deferred[Granted]:
        if wiped:
            return grant(ttl)
        wiped.append(ttl)
        farm.etcd.wipe()
        # Until there is a leader again.
        return deferLater(farm.clock, 3.0, grant, ttl)  # type: ignore[arg-type]

    a.client.grant = lose  # type: ignore[method-assign]
    cut(b)
    farm.clock.callLater(5.0, b.client.connect)
    for lease in [each.lease for each in farm.etcd.keys.values() if each.key == farm.key("b/a")]:
        farm.etcd.vanish(lease)
    end = farm.clock.seconds() + 40
    while farm.clock.seconds() < end:
        assert a.found() == [id]
        farm.run(0.01)
    assert wiped
    assert a.is_member
    assert b.is_member


def test_nothing_is_written_while_the_lease_is_replaced(farm: Farm) -> None:
    [a] = farm.joined("a")
    a.register()
    farm.until(lambda: farm.values("s"), "the entry")
    leases: set[int] = set()

    def applied(revision: int, events: Sequence[Event]) -> None:
        leases.update(each.value.lease for each in events if each.value is not None and b"/ids" not in each.key)

    farm.etcd.applied.append(applied)
    # A lease beyond its TTL that etcd has not ended yet: its key of the member is still there.
    keep_alive = farm.etcd.keep_alive

    def gone(id: int) -> int:
        raise LeaseGone("requested lease not found")

    farm.etcd.keep_alive = gone  # type: ignore[method-assign]
    for watch in list(a.client._watches):
        watch.fail("the connection was lost")
    farm.until(lambda: "is held by" in a.degradations, "the new lease")
    a.registry.load(a.found()[0], 5.0)
    farm.run(3.0)
    farm.etcd.keep_alive = keep_alive  # type: ignore[method-assign]
    farm.until(lambda: a.is_member, "the return", 30.0)
    farm.until(lambda: farm.values("l"), "the load")
    assert 0 not in leases
