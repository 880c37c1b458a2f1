"""Data leases: who may use one, how long, how many there are, and what is left of those that are over.

Each test is named after the row of the conformance list that it is for, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from twisted.internet.task import Clock

from broker.core.errors import Reason, Refusal
from broker.core.liveness import TICK, Leases
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions import data_leases
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.data_leases import DataLeases
from broker.wires.mtl.sessions.profile_interface import Grant
from tests.wires.mtl.data_recording import Everything

KEY = "k" * 40
OTHER_KEY = "o" * 40


class Table:
    """Data leases, on a clock that tests turn. ``ended`` are the tokens whose flows were ended."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.clock.advance(1_795_246_600.0)
        self.leases = Leases(self.clock)
        self.data = DataLeases(self.leases, Mtl(**settings))
        self.ended: list[str] = []
        self.data.ended = self.ended.extend

    def wait(self, seconds: float) -> None:
        self.clock.pump([TICK] * round(seconds / TICK))

    def issue(self, principal: Principal | None = None, session: object = "session") -> str:
        return self.data.issue(grant(principal or somebody()), session)

    @property
    def empty(self) -> bool:
        """True if nothing is left: no lease, no count, no deadline."""
        kept = (
            value for name, value in vars(self.data).items() if name not in ("config", "ended", "_leases", "_expired")
        )
        return not any(kept) and len(self.leases) == 0


def somebody(user: str = "alice", key: str = "") -> Principal:
    return Principal(user, "/", Everything(), key)


def grant(principal: Principal) -> Grant:
    profile: Any = None  # leases do not look at it
    return Grant(principal, Side.READER, profile, (), ConfirmMode.NONE, 100)


def limited(table: Table, principal: Principal, session: object = "session") -> str:
    """The reason for which another lease is refused."""
    with pytest.raises(Refusal) as caught:
        table.issue(principal, session)
    assert caught.value.reason is Reason.LIMIT
    return caught.value.text


# tokens


# who may use it


def test_a_lease_is_refused_to_who_has_another_curve_key_or_none() -> None:
    table = Table()
    token = table.issue(somebody(key=KEY))
    assert table.data.take(token, b"thief", OTHER_KEY) is None
    assert table.data.take(token, b"thief", "") is None
    assert table.data.take(token, b"peer", KEY) is not None
    assert table.data.take(token, b"peer", OTHER_KEY) is None
    without = table.issue(somebody())
    assert table.data.take(without, b"peer", KEY) is None
    assert table.data.take(without, b"peer", "") is not None


# how long


def test_D09_an_unused_lease_ends_after_its_time() -> None:
    table = Table(lease=2.0)
    token, other = table.issue(), table.issue()
    table.wait(1.9)
    assert table.data.take(other, b"peer", "") is not None
    table.wait(0.3)
    assert table.data.take(token, b"peer", "") is None
    assert table.data.counts() == {"mtl_leases.expired": 1}
    assert table.ended == []
    table.wait(600)
    assert table.data.take(other, b"peer", "") is not None


def test_a_refused_use_does_not_prolong_the_time() -> None:
    table = Table(lease=2.0)
    token = table.issue(somebody(key=KEY))
    for _ in range(3):
        table.wait(1.0)
        table.data.take(token, b"thief", OTHER_KEY)
    assert len(table.data) == 0


def test_time_in_which_the_broker_stood_still_does_not_count() -> None:
    table = Table(lease=2.0)
    token = table.issue()
    table.clock.advance(3600)
    table.wait(1.0)
    assert table.data.take(token, b"peer", "") is not None


def test_a_lease_ends_with_its_flow() -> None:
    table = Table()
    token = table.issue()
    assert table.data.take(token, b"peer", "") is not None
    table.data.release(token)
    assert table.data.take(token, b"peer", "") is None
    table.data.release(token)
    table.data.release("never issued")
    assert table.ended == []
    assert table.empty


# how many


def test_a_session_has_a_limited_number_of_leases_used_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_leases, "SESSION_LEASES", 3)
    table = Table()
    alice = somebody()
    first, second, _ = (table.issue(alice) for _ in range(3))
    assert table.data.take(first, b"peer", "") is not None
    assert "3" in limited(table, alice)
    table.issue(alice, "another session")
    table.data.release(first)
    third = table.issue(alice)
    limited(table, alice)
    table.wait(31)
    assert {table.data.take(token, b"peer", "") for token in (second, third)} == {None}
    assert len([table.issue(alice) for _ in range(3)]) == 3


def test_who_has_no_name_shares_no_limit_with_others_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_leases, "SESSION_LEASES", 5)
    table = Table(flows=3)
    for session in range(2):
        for _ in range(5):
            table.issue(somebody(""), session)
        limited(table, somebody(""), session)


def test_beyond_the_number_of_unused_leases_the_oldest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_leases, "MAX_UNUSED_LEASES", 3)
    table = Table()
    used = table.issue()
    assert table.data.take(used, b"peer", "") is not None
    tokens = [table.issue() for _ in range(5)]
    assert table.data.unused == 3
    assert [table.data.take(token, b"peer", "") is not None for token in [used, *tokens]] == [1, 0, 0, 1, 1, 1]
    assert table.data.counts() == {"mtl_leases.expired": 2}


# what is taken away


def test_A21_who_is_revoked_loses_all_leases_and_the_flows_of_those_in_use_end() -> None:
    table = Table()
    alice, again, bob = somebody(), somebody(), somebody("bob")
    used, unused, later, other = (table.issue(who) for who in (alice, alice, again, bob))
    for token in (used, later, other):
        assert table.data.take(token, b"peer", "") is not None
    assert set(table.data.principals()) == {alice, again, bob}
    table.data.revoke([alice, somebody("nobody")])
    assert table.ended == [used]
    assert table.data.take(used, b"peer", "") is None
    assert table.data.take(unused, b"peer", "") is None
    assert table.data.take(later, b"peer", "") is not None
    table.data.revoke([who for who in table.data.principals() if who.user == "alice"])
    assert table.ended == [used, later]
    assert table.data.take(other, b"peer", "") is not None
    assert set(table.data.principals()) == {bob}


def test_who_hears_of_an_end_may_release_that_lease_and_others() -> None:
    table = Table()
    alice = somebody()
    tokens = [table.issue(alice) for _ in range(3)]
    for token in tokens:
        table.data.take(token, b"peer", "")

    def ended(ends: Collection[str]) -> None:
        table.ended.extend(ends)
        for each in tokens:
            table.data.release(each)

    table.data.ended = ended
    table.data.revoke([alice])
    assert table.ended == tokens
    assert table.empty


def test_nothing_is_left_of_leases_that_are_over() -> None:
    table = Table(lease=1.0)
    for number in range(100):
        principal = somebody(f"user {number % 7}")
        tokens = [table.issue(principal, number) for _ in range(4)]
        for token in tokens[:3]:
            table.data.take(token, b"peer", "")
        table.data.release(tokens[0])
        table.data.revoke([principal])
        table.issue(somebody(""), number)
    assert len(table.data) == table.data.unused == 100
    table.wait(2)
    assert table.empty
