"""Batched notices: one for all changes of a set within a short time."""

from __future__ import annotations

import pytest

from broker.core.director.director_interfaces import ContextPlace, UserPlace
from broker.core.director.farm_tables import BATCH_INTERVAL, MAX_UNBATCHED
from tests.core.director.rig import Peer, Rig, Side

MANY = 5 * MAX_UNBATCHED


@pytest.fixture
def rig() -> Rig:
    return Rig()


def crowded(rig: Rig, many: int = MANY) -> tuple[Side, Peer]:
    """A server with so many clones of a context, in each of which is one of a user; and who watches both sets."""
    side = rig.server("cs1")
    for number in range(many):
        side.open(f"context-c-{number}")
        side.enter(f"context-c-{number}", f"user-anon-{number}")
    admin = rig.admin()
    rig.director.watch_context(admin, "context-c")
    rig.director.watch_user(admin, "user-anon")
    return side, admin


def test_up_to_a_few_places_are_told_with_each_change(rig: Rig) -> None:
    side, admin = crowded(rig, MAX_UNBATCHED)
    side.link.leave()
    heard = admin.take()
    assert len(heard) == 2 * MAX_UNBATCHED
    assert heard[0] == UserPlace("user-anon", tuple(f"context-c-{number}" for number in range(1, MAX_UNBATCHED)))
    assert heard[-1] == ContextPlace("context-c")
    rig.clock.advance(BATCH_INTERVAL)
    assert admin.take() == []


def test_a_crowd_that_grows_is_told_once_as_it_is_then(rig: Rig) -> None:
    side, admin = crowded(rig)
    for number in range(MANY, MANY + 100):
        side.open(f"context-c-{number}")
        side.enter(f"context-c-{number}", f"user-anon-{number}")
    assert admin.take() == []
    rig.clock.advance(BATCH_INTERVAL)
    names = tuple(f"context-c-{number}" for number in range(MANY + 100))
    assert admin.take() == [ContextPlace("context-c", None, names), UserPlace("user-anon", names)]
    rig.clock.advance(10 * BATCH_INTERVAL)
    assert admin.take() == []


def test_the_end_of_a_server_with_a_crowd_is_told_in_few_notices_of_which_the_last_is_right(rig: Rig) -> None:
    side, admin = crowded(rig)
    side.link.leave()
    heard = admin.take()
    assert len(heard) == 2 * (MAX_UNBATCHED + 1)
    assert [place for place in heard if isinstance(place, UserPlace)][-1] == UserPlace("user-anon")
    assert heard[-1] == ContextPlace("context-c")
    rig.clock.advance(BATCH_INTERVAL)
    assert admin.take() == []


def test_a_user_in_many_contexts_is_a_crowd_too(rig: Rig) -> None:
    side = rig.server("cs1")
    for number in range(MANY):
        side.open(f"context-{number}")
        side.enter(f"context-{number}", "user-joe")
    admin = rig.admin()
    rig.director.watch_user(admin, "user-joe")
    side.open("context-x")
    side.enter("context-x", "user-joe")
    assert admin.take() == []
    rig.clock.advance(BATCH_INTERVAL)
    [place] = admin.take()
    assert isinstance(place, UserPlace)
    assert len(place.contexts) == MANY + 1


def test_who_does_not_watch_any_more_is_not_told(rig: Rig) -> None:
    side, admin = crowded(rig)
    other = rig.admin("other")
    rig.director.watch_context(other, "context-c")
    side.open("context-c-x")
    rig.director.forget(admin)
    rig.clock.advance(BATCH_INTERVAL)
    assert admin.take() == []
    assert len(other.take()) == 1


def test_one_crowd_is_told_in_each_turn_and_none_more_often_than_it_may(rig: Rig) -> None:
    side, admin = crowded(rig)

    def change(number: int) -> None:
        side.link.exited(f"context-c-{number}", f"user-anon-{number}")
        side.link.closed(f"context-c-{number}")

    change(0)
    rig.clock.rightNow += BATCH_INTERVAL
    rig.turn()
    [users] = admin.take()
    assert isinstance(users, UserPlace)
    change(1)
    rig.turn()
    [contexts] = admin.take()
    assert isinstance(contexts, ContextPlace)
    assert len(contexts.clones) == MANY - 2
    rig.turn()
    assert admin.take() == []
    rig.clock.advance(BATCH_INTERVAL)
    [users] = admin.take()
    assert isinstance(users, UserPlace)
    assert len(users.contexts) == MANY - 2
    assert not rig.clock.getDelayedCalls()
