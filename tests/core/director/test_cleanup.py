"""A large server that is gone is put away in turns, and nobody meets what is left of it."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.director import farm_tables
from broker.core.director.director_interfaces import ContextPlace, Say, UserPlace
from broker.core.director.farm_tables import STEPS_PER_TURN, Cleanup
from broker.core.errors import Reason, Refusal
from broker.core.watches import Notifier
from tests.core.director.rig import Rig, Side, check


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A director that puts away two things in a turn."""
    monkeypatch.setattr(farm_tables, "STEPS_PER_TURN", 2)
    return Rig()


def full(rig: Rig, label: str = "large") -> Side:
    """A server with three contexts of two users each."""
    side = rig.server(label)
    for context in ("context-a", "context-b", "context-c-1"):
        side.open(context)
        side.enter(context, f"user-{context[8:]}-1", f"user-{context[8:]}-2")
    return side


def turns(rig: Rig) -> int:
    """Let everything be put away. Returns how many turns it took."""
    count = 0
    while rig.director._farm._cleanup._due:
        rig.turn()
        count += 1
    return count


def test_a_server_that_is_large_goes_in_turns_its_users_first(rig: Rig) -> None:
    side = full(rig)
    admin = rig.admin()
    rig.director.watch_user(admin, "user-b-1")
    rig.director.watch_context(admin, "context-a")
    side.link.leave()
    assert (rig.director.providers(), rig.count("users"), rig.count("contexts")) == ([], 4, 3)
    assert turns(rig) == 5
    assert admin.take() == [UserPlace("user-b-1"), ContextPlace("context-a")]
    assert (rig.count("users"), rig.count("contexts")) == (0, 0)
    check(rig.director)


def test_many_small_servers_that_go_at_once_share_the_steps_of_a_turn(rig: Rig) -> None:
    sides = [rig.server(f"cs{number}") for number in range(6)]
    for number, side in enumerate(sides):
        side.open(f"context-{number}")
    for side in sides:
        side.link.leave()
    assert rig.count("contexts") == 4
    turns(rig)
    assert rig.count("contexts") == 0


def test_nobody_is_sent_to_what_is_left_of_a_server(rig: Rig) -> None:
    side = full(rig)
    side.link.leave()
    assert rig.denied("context-a") == "unable to find suitable server"
    assert not rig.director.find_context("context-a").open
    other = rig.server("other")
    assert rig.granted("context-b").hostport == "other:1"
    assert rig.granted("context-c").context == "context-c"
    assert side.take() == []
    assert len(other.take()) == 2
    turns(rig)
    check(rig.director)


def test_a_pending_context_of_a_server_that_is_gone_is_placed_elsewhere(rig: Rig) -> None:
    side = full(rig)
    rig.granted("context-new", "user-joe")
    other = rig.server("other")
    side.link.leave()
    assert rig.granted("context-new", "user-bob").hostport == "other:1"
    turns(rig)
    assert (rig.count("reservations"), rig.count("lost")) == (1, 1)
    other.open("context-new", yours=True)
    other.enter("context-new", "user-bob-7")
    assert rig.count("reservations") == 0
    check(rig.director)


def test_a_reservation_of_a_server_that_is_gone_may_expire_meanwhile(rig: Rig) -> None:
    side = full(rig)
    for number in range(4):
        rig.granted("context-new", f"user-{number}")
    side.link.leave()
    rig.clock.advance(31)
    turns(rig)
    assert rig.count("reservations") == 0
    assert rig.count("lost") + rig.count("expired") == 4
    check(rig.director)


def test_a_server_that_comes_back_meanwhile_has_all_that_it_reports(rig: Rig) -> None:
    side = full(rig)
    side.link.leave()
    back = full(rig)
    assert rig.director.providers() == ["large"]
    turns(rig)
    assert (rig.count("users"), rig.count("contexts"), rig.count("hidden_contexts")) == (6, 3, 0)
    assert back.take() == []
    assert rig.granted("context-a").hostport == "large:1"
    check(rig.director)


def test_a_link_that_ends_does_not_take_what_a_new_link_reports_meanwhile(rig: Rig) -> None:
    rig.server("large")
    side = full(rig)
    side.link.leave()
    back = full(rig)
    assert turns(rig) > 1
    assert (rig.count("users"), rig.count("contexts"), rig.count("links")) == (6, 3, 2)
    back.link.leave()
    turns(rig)
    assert (rig.count("users"), rig.count("contexts"), rig.director.providers()) == (0, 0, ["large"])
    check(rig.director)


def test_a_hidden_context_shows_when_the_other_server_is_gone_and_not_one_of_a_server_that_is_gone_too(
    rig: Rig,
) -> None:
    low, middle, high = (rig.server(label, addresses={"tcp": f"{label}:1"}) for label in ("a", "b", "c"))
    for side in (low, middle, high):
        side.open("context-a")
        for user in range(5):
            side.enter("context-a", f"user-{side.name}-{user}")
    high.link.leave()
    middle.link.leave()
    turns(rig)
    assert rig.director.find_context("context-a").provider == "a"
    assert rig.count("users") == 5
    check(rig.director)


@pytest.mark.parametrize(
    ("context", "user"),
    [("context-a", None), ("context-c", None), (None, "user-a-2"), (None, "user-b"), ("context-b", "user-b-1")],
)
def test_what_is_left_of_a_server_can_be_told_nothing(rig: Rig, context: str | None, user: str | None) -> None:
    side = full(rig)
    rig.server("other").open("context-o")
    assert rig.director.say(context, user, "hello") == 1
    assert side.take() == [Say(context, user, "hello")]
    side.link.leave()
    with pytest.raises(Refusal) as refusal:
        rig.director.say(context, user, "hello")
    assert refusal.value.reason is Reason.NOT_REGISTERED


def test_what_goes_wrong_with_one_does_not_keep_the_others() -> None:
    def broken():
        yield
        raise ValueError("broken")

    done: list[int] = []

    def steps():
        for number in range(STEPS_PER_TURN):
            done.append(number)
            yield

    clock = Clock()
    work = Cleanup(clock, Notifier())
    with capturedLogs() as logs:
        work.add(broken())
        work.add(steps())
    assert len(logs) == 1
    clock.advance(0)
    assert len(done) == STEPS_PER_TURN
    assert not work._work
    assert not clock.getDelayedCalls()
