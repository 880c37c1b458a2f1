"""A user counts once for a context, and nobody's unused reservations keep many others out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.director.director_interfaces import Close, DirectorSettings, DoReserve
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Rig, Side, check

FULL = "requested context full"


@pytest.fixture
def rig() -> Rig:
    return Rig(DirectorSettings(user_reservations=3))


def refused(what: Callable[[], object], text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        what()
    assert refusal.value.reason is Reason.LIMIT
    assert refusal.value.text.startswith(f"too many reservations: {text} ")


# once for each user and context


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("user", ["user-joe", None])
def test_a_user_that_asks_three_times_has_one_place(rig: Rig, user: str | None, opened: bool) -> None:
    side = rig.server("cs1")
    side.open("context-a", maxcap=3)
    if not opened:
        side.link.closed("context-a")
    tokens = [rig.granted("context-a", user, by="one").reservation for _ in range(3)]
    assert side.take() == [DoReserve("context-a", user, token) for token in tokens]
    assert len(set(tokens)) == 3, "the server keeps the older ones, so that each must be a new one"
    assert (rig.count("reservations"), rig.count("replaced"), rig.count("denied")) == (1, 2, 0)
    rig.granted("context-a")
    rig.granted("context-a")
    assert rig.denied("context-a") == FULL
    check(rig.director)


def test_a_user_counts_once_whichever_connections_ask(rig: Rig) -> None:
    rig.server("cs1")
    for number in range(5):
        rig.granted("context-a", "user-joe", by=number)
    assert rig.count("reservations") == 1
    check(rig.director)


def test_anonymous_users_of_several_connections_and_of_one_server_are_several(rig: Rig) -> None:
    rig.server("cs1")
    for _ in range(2):
        rig.granted("context-a")
        rig.granted("context-a", by="cs2", internal=True)
    assert rig.count("reservations") == 4
    rig.granted("context-a", "user-joe", by="cs2", internal=True)
    rig.granted("context-a", "user-joe", by="cs2", internal=True)
    assert rig.count("reservations") == 5
    check(rig.director)


def test_the_last_place_is_not_refused_to_the_user_that_has_it(rig: Rig) -> None:
    side = rig.server("cs1", capacity=1)
    for _ in range(2):
        rig.granted("context-a", "user-joe")
    side.open("context-a", yours=True, maxcap=1)
    rig.granted("context-a", "user-joe")
    assert rig.denied("context-a", "user-bob") == FULL
    side.enter("context-a", "user-joe-1")
    assert rig.denied("context-a", "user-joe") == FULL
    check(rig.director)


def test_the_newest_counts_for_its_own_time(rig: Rig) -> None:
    rig.server("cs1")
    rig.granted("context-a", "user-joe")
    rig.clock.advance(20)
    rig.granted("context-a", "user-joe")
    rig.clock.advance(29)
    assert rig.count("reservations") == 1
    rig.clock.advance(1)
    assert (rig.count("reservations"), rig.count("expired"), rig.count("replaced")) == (0, 1, 1)
    check(rig.director)


def test_a_user_that_comes_with_an_older_token_uses_up_the_place(rig: Rig) -> None:
    # The director is not told by which token a user entered: a second entry is of a user, and counts as one.
    side = rig.server("cs1")
    side.open("context-a", maxcap=2)
    rig.granted("context-a", "user-joe")
    rig.granted("context-a", "user-joe")
    side.enter("context-a", "user-joe-1")
    assert (rig.count("used"), rig.count("reservations")) == (1, 0)
    side.enter("context-a", "user-joe-2")
    side.link.exited("context-a", "user-joe-1")
    rig.granted("context-a", "user-bob")
    assert rig.denied("context-a") == FULL
    check(rig.director)


def test_a_user_that_enters_where_nobody_sent_them_uses_up_nothing(rig: Rig) -> None:
    one, other = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a", "user-joe")
    other.open("context-a")
    other.open("context-c-1", basecap=5)
    other.open("context-c-2", basecap=5)
    assert rig.granted("context-a", "user-joe").hostport == "cs2:1"
    assert rig.granted("context-c", "user-joe").context == "context-c-1"
    one.open("context-z")
    rig.granted("context-z", "user-eve")
    one.open("context-a", yours=True)
    one.enter("context-a", "user-joe-1")
    other.enter("context-c-2", "user-joe-2")
    assert (rig.count("used"), rig.count("reservations")) == (0, 3)
    check(rig.director)


def test_a_denied_request_leaves_the_older_reservation(rig: Rig) -> None:
    side = rig.server("cs1")
    side.open("context-a", maxcap=1)
    rig.granted("context-a", "user-joe")
    assert rig.denied("context-a", "user-joe", protocol="http") == "requested protocol not available"
    side.link.gate("context-a", False, "cleaning")
    assert rig.denied("context-a", "user-joe") == "cleaning"
    side.link.gate("context-a", True, None)
    assert rig.denied("context-a", "user-bob") == FULL
    assert rig.count("reservations") == 1
    check(rig.director)


def test_a_user_that_asks_again_is_sent_to_the_same_server_for_a_context_that_is_not_open(rig: Rig) -> None:
    first, _ = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a", "user-joe")
    first.link.load(0.9)
    assert rig.granted("context-a", "user-joe").hostport == "cs1:1"
    assert rig.count("placements") == 1
    check(rig.director)


def test_the_place_at_another_server_is_free_when_the_context_opens_elsewhere(rig: Rig) -> None:
    _, other = rig.server("cs1", capacity=1), rig.server("cs2")
    assert rig.granted("context-a", "user-joe").hostport == "cs1:1"
    other.open("context-a")
    assert rig.granted("context-a", "user-joe").hostport == "cs2:1"
    other.link.load(0.9)
    assert rig.granted("context-b", "user-bob").hostport == "cs1:1"
    check(rig.director)


def test_a_user_whose_server_has_gone_is_sent_to_another(rig: Rig) -> None:
    first, _ = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a", "user-joe")
    first.link.leave()
    assert rig.granted("context-a", "user-joe").hostport == "cs2:1"
    assert (rig.count("lost"), rig.count("replaced")) == (1, 0)
    check(rig.director)


# clones


def test_a_user_that_asks_again_for_a_set_keeps_the_clone(rig: Rig) -> None:
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-c-1", maxcap=4, basecap=1)
    other.open("context-c-2", maxcap=4, basecap=1)
    for asked in ("context-c", "context-c", "context-c-1", "context-c"):
        assert rig.granted(asked, "user-joe").context == "context-c-1"
    assert rig.count("reservations") == 1
    assert rig.granted("context-c", "user-bob").context == "context-c-2"
    check(rig.director)


def test_a_user_whose_clone_was_filled_by_others_gets_another_one(rig: Rig) -> None:
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-c-1", maxcap=4, basecap=1)
    other.open("context-c-2", maxcap=4, basecap=1)
    assert rig.granted("context-c", "user-joe").context == "context-c-1"
    one.enter("context-c-1", "user-bob-1")
    assert rig.granted("context-c", "user-joe").context == "context-c-2"
    other.enter("context-c-2", "user-eve-1")
    assert rig.granted("context-c", "user-joe").context == "context-c"
    assert rig.granted("context-c-1", "user-joe").context == "context-c-1"
    assert rig.count("reservations") == 2
    check(rig.director)


def test_a_user_whose_clone_is_closed_to_them_gets_another_one(rig: Rig) -> None:
    side = rig.server("cs1")
    side.open("context-c-1", maxcap=4, basecap=4)
    assert rig.granted("context-c", "user-joe").context == "context-c-1"
    side.open("context-c-2", maxcap=4, basecap=4)
    side.link.gate("context-c-1", False, None)
    assert rig.granted("context-c", "user-joe").context == "context-c-2"
    assert rig.count("reservations") == 1
    side.link.closed("context-c-1")
    side.link.closed("context-c-2")
    assert rig.granted("context-c", "user-joe").context == "context-c"
    assert (rig.count("reservations"), rig.count("placements")) == (1, 1)
    check(rig.director)


def test_a_user_that_waits_for_a_clone_is_in_it_when_it_opens(rig: Rig) -> None:
    side = rig.server("cs1")
    assert rig.granted("context-c", "user-joe").context == "context-c"
    rig.granted("context-c", "user-joe")
    side.open("context-c-1", yours=True, maxcap=1, basecap=1)
    assert rig.granted("context-c", "user-joe").context == "context-c-1"
    assert rig.count("reservations") == 1
    side.enter("context-c-1", "user-joe-5")
    assert (rig.count("used"), rig.count("reservations")) == (1, 0)
    check(rig.director)


def test_a_user_with_two_clones_has_one_reservation_when_the_set_is_asked_for(rig: Rig) -> None:
    side = rig.server("cs1")
    side.open("context-c-1", basecap=5)
    side.open("context-c-2", basecap=5)
    rig.granted("context-c-2", "user-joe")
    rig.granted("context-c-1", "user-joe")
    assert rig.count("reservations") == 2, "these are two contexts"
    side.link.gate("context-c-2", False, None)
    assert rig.granted("context-c", "user-joe").context == "context-c-1"
    assert rig.count("reservations") == 2
    check(rig.director)


def test_a_hidden_clone_is_not_kept(rig: Rig) -> None:
    low, high = rig.server("cs1"), rig.server("cs2")
    low.open("context-c-1", yours=True, basecap=5)
    assert rig.granted("context-c", "user-joe").hostport == "cs1:1"
    high.open("context-c-1", basecap=5)
    assert Close("context-c-1", None, dup=True) in low.take()
    assert rig.granted("context-c", "user-joe").hostport == "cs2:1"
    assert rig.count("reservations") == 1
    check(rig.director)


# so many, and not more


def test_the_share_of_a_connection_is_limited(rig: Rig) -> None:
    side = rig.server("cs1")
    side.open("context-a")
    for n in range(3):
        rig.granted("context-a", f"user-{n}", by="one", most=3)
    refused(lambda: rig.reserve("context-a", "user-3", by="one", most=3), "this connection has 3")
    refused(lambda: rig.reserve("context-b", by="one", most=3), "this connection has 3")
    assert rig.count("denied") == 2
    rig.granted("context-a", "user-2", by="one", most=3)
    rig.granted("context-a", "user-3", by="other", most=3)
    refused(lambda: rig.reserve("context-a", "user-3", by="one", most=3), "this connection has 3")
    side.enter("context-a", "user-0")
    rig.granted("context-a", by="one", most=3)
    rig.granted("context-a", "user-2", by="third")
    rig.granted("context-b", by="one", most=3)
    rig.clock.advance(30)
    for n in range(3):
        rig.granted("context-a", f"user-{n}", by="one", most=3)
    check(rig.director)


def test_all_reservations_together_are_limited(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.director.reservations.MAX_RESERVATIONS", 2)
    rig.server("cs1")
    rig.granted("context-a", "user-joe")
    rig.granted("context-a", by="one")
    refused(lambda: rig.reserve("context-a"), "the director has 2")
    rig.granted("context-a", "user-joe")
    rig.granted("context-a", by="one")
    check(rig.director)


def test_the_share_of_a_user_is_limited(rig: Rig) -> None:
    side = rig.server("cs1")
    side.open("context-c-1", basecap=5)
    assert rig.granted("context-c", "user-joe", by="one").context == "context-c-1"
    for n in range(2):
        rig.granted(f"context-{n}", "user-joe", by="one")
    refused(lambda: rig.reserve("context-x", "user-joe", by="one"), "this user has 3")
    rig.granted("context-0", "user-joe", by="one")
    rig.granted("context-x", "user-bob", by="one")
    for n in range(5):
        rig.granted(f"context-{n}", by="one")
    side.enter("context-c-1", "user-joe-1")
    rig.granted("context-x", "user-joe", by="one")
    check(rig.director)


def test_a_user_is_not_refused_for_what_others_asked_for_under_their_name(rig: Rig) -> None:
    side = rig.server("cs1", capacity=4)
    for n in range(3):
        side.open(f"context-{n}", maxcap=1)
        rig.granted(f"context-{n}", "user-joe", by="stranger")
    rig.granted("context-x", "user-joe", by="joe")
    assert (rig.count("reservations"), rig.count("replaced")) == (3, 1)
    rig.granted("context-0", "user-bob")
    assert rig.denied("context-1", "user-bob") == FULL
    check(rig.director)


def test_a_users_own_reservations_stay_when_those_of_others_give_way(rig: Rig) -> None:
    side = rig.server("cs1")
    for n, by in enumerate(("joe", "stranger", "stranger")):
        side.open(f"context-{n}", maxcap=1)
        rig.granted(f"context-{n}", "user-joe", by=by)
    rig.granted("context-x", "user-joe", by="joe")
    assert rig.denied("context-0", "user-bob") == FULL
    rig.granted("context-1", "user-bob")
    check(rig.director)


def test_the_share_of_a_user_can_be_set_and_a_smaller_one_counts_from_the_next_request(rig: Rig) -> None:
    rig.server("cs1")
    for n in range(3):
        rig.granted(f"context-{n}", "user-joe", by=n)
    rig.director.use(DirectorSettings(user_reservations=1))
    assert rig.count("reservations") == 3
    refused(lambda: rig.reserve("context-x", "user-joe", by=0), "this user has 1")
    rig.granted("context-x", "user-joe", by=3)
    assert rig.count("reservations") == 1
    check(rig.director)


@pytest.mark.parametrize("opened", [True, False])
def test_no_more_are_sent_to_a_context_than_can_be_in_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    monkeypatch.setattr("broker.core.director.placement.MAX_EXPECTED_USERS", 3)
    side: Side = rig.server("cs1")
    if opened:
        side.open("context-a")
        side.enter("context-a", "user-a")
    for n in range(2 if opened else 3):
        rig.granted("context-a", f"user-{n}")
    assert rig.denied("context-a") == FULL
    rig.granted("context-a", "user-0")
    check(rig.director)
