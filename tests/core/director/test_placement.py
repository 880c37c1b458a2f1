"""Reservations: chosen server and clone, refusals, quotas, use and end.

The file is longer than others: it has all tests of `broker.core.director.placement`.
"""

from __future__ import annotations

import pytest

from broker.core.director import farm_state
from broker.core.director.director_interfaces import Denied, DirectorSettings, DoReserve, Granted, Request
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Rig, check

NOWHERE = "unable to find suitable server"
FULL = "requested context full"


def test_the_server_is_told_before_the_reservation_is_granted() -> None:
    rig = Rig()
    side = rig.server("cs1")
    answer = rig.reserve("context-a", "user-joe")
    assert isinstance(answer, Granted)
    assert answer == Granted("context-a", "cs1:1", answer.reservation)
    assert side.take() == [DoReserve("context-a", "user-joe", answer.reservation)]
    anonymous = rig.granted("context-a")
    assert side.take() == [DoReserve("context-a", None, anonymous.reservation)]
    check(rig.director)


def test_reservations_are_long_random_numbers() -> None:
    rig = Rig()
    rig.server("cs1")
    tokens = {int(rig.granted("context-a").reservation) for _ in range(200)}
    assert len(tokens) == 200
    # Each bit is set in some and clear in others, but with a chance of 2**-193.
    both = [sum(token >> bit & 1 for token in tokens) for bit in range(farm_state.TOKEN_BITS)]
    assert farm_state.TOKEN_BITS >= 128
    assert all(0 < count < 200 for count in both)


def test_a_reservation_does_not_show_when_it_is_printed() -> None:
    rig = Rig()
    rig.server("cs1")
    granted = rig.granted("context-a")
    assert granted.reservation not in repr(granted)


def test_a_new_context_goes_to_the_server_with_the_least_load_then_to_the_one_that_came_first() -> None:
    rig = Rig()
    sides = [rig.server(f"cs{n}") for n in range(3)]
    assert [rig.granted(f"context-n{n}").hostport for n in range(4)] == ["cs0:1", "cs1:1", "cs2:1", "cs0:1"]
    assert rig.director.providers() == ["cs1", "cs2", "cs0"]
    for side, load in zip(sides, (0.5, 0.2, 0.3), strict=True):
        side.link.load(load)
    assert rig.granted("context-m1").hostport == "cs1:1"
    sides[1].link.load(0.9)
    assert rig.granted("context-m2").hostport == "cs2:1"
    sides[2].link.load(-5)
    assert rig.director.providers() == ["cs2", "cs0", "cs1"]
    assert rig.granted("context-m3").hostport == "cs2:1"


def test_a_report_does_not_hide_what_was_just_placed() -> None:
    rig = Rig(DirectorSettings(load_bump=0.25))
    one, other = rig.server("cs1"), rig.server("cs2")
    other.link.load(0.3)
    rig.granted("context-a")
    rig.granted("context-b")
    one.link.load(0.0)
    assert rig.director.providers() == ["cs1", "cs2"]
    assert rig.granted("context-c").hostport == "cs2:1"
    one.open("context-a", yours=True)
    one.open("context-b", yours=True)
    one.link.load(0.0)
    assert rig.granted("context-d").hostport == "cs1:1"


def test_the_estimated_load_can_be_set() -> None:
    rig = Rig(DirectorSettings(load_bump=0.25))
    rig.server("cs1")
    rig.granted("context-a")
    rig.granted("context-a")
    rig.director.use(DirectorSettings(load_bump=0.5))
    rig.granted("context-b")
    assert next(rig.director.dump(1, None, None).pieces).load == 0.75  # type: ignore[union-attr]


def test_going_to_an_open_context_costs_no_load() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    rig.granted("context-a")
    assert next(rig.director.dump(1, None, None).pieces).load == 0.0  # type: ignore[union-attr]


def test_there_must_be_a_server_for_the_family_and_the_protocol() -> None:
    rig = Rig()
    assert rig.denied("context-a") == NOWHERE
    side = rig.server("cs1")
    assert rig.denied("other-a") == NOWHERE
    assert rig.denied("context-a", protocol="http") == NOWHERE
    side.open("context-o")
    assert rig.denied("context-o", protocol="http") == "requested protocol not available"
    side.link.address("http", "cs1:80/root")
    assert rig.granted("context-o", protocol="http").hostport == "cs1:80/root"
    assert rig.granted("context", "user-joe").context == "context"
    check(rig.director)


def test_two_reservations_of_one_context_that_is_not_open_go_to_one_server() -> None:
    rig = Rig()
    rig.server("cs1")
    rig.server("cs2")
    assert {rig.granted("context-a", f"user-{n}").hostport for n in range(5)} == {"cs1:1"}
    assert rig.granted("context-b").hostport == "cs2:1"
    check(rig.director)


def test_a_placement_is_forgotten_when_its_reservations_have_expired() -> None:
    rig = Rig()
    first, _ = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a")
    rig.clock.advance(20)
    rig.granted("context-a")
    first.link.load(0.5)
    rig.clock.advance(10)
    assert rig.count("reservations") == 1
    assert rig.granted("context-a").hostport == "cs1:1"
    rig.clock.advance(30)
    assert rig.count("placements") == 0
    assert rig.granted("context-a").hostport == "cs2:1"
    assert rig.count("expired") == 3
    check(rig.director)


def test_a_pending_context_is_denied_as_an_open_one_is() -> None:
    rig = Rig()
    side = rig.server("cs1", addresses={"tcp": "cs1:1", "http": "cs1:80"}, capacity=2)
    rig.server("cs2", addresses={"rtcp": "cs2:1"})
    rig.granted("context-a")
    assert rig.denied("context-a", protocol="rtcp") == "requested protocol not available"
    rig.granted("context-a", protocol="http")
    assert rig.denied("context-a") == "server full"
    side.link.will_serve("context", -1, True)
    assert rig.denied("context-a") == NOWHERE
    rig.granted("context-a", internal=True)
    check(rig.director)


def test_restricted_contexts_are_for_servers() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-r", restricted=True)
    assert rig.denied("context-r") == NOWHERE
    assert rig.granted("context-r", internal=True).hostport == "cs1:1"
    side.open("context-r")
    rig.granted("context-r")


def test_restricted_families_are_for_servers_and_stay_so() -> None:
    rig = Rig()
    side = rig.server("cs1", families=("rcontext",), restricted=True)
    side.link.will_serve("rcontext", -1, False)
    assert rig.denied("rcontext-a") == NOWHERE
    assert rig.granted("rcontext-a", internal=True).hostport == "cs1:1"
    assert rig.denied("rcontext-a") == NOWHERE
    rig.server("cs2", families=("rcontext",))
    assert rig.granted("rcontext-b").hostport == "cs2:1"
    check(rig.director)


def test_a_closed_gate_denies_with_its_reason() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-o")
    side.link.gate("context-o", False, "closed for cleaning")
    assert rig.denied("context-o") == "closed for cleaning"
    side.link.gate("context-o", False, None)
    assert rig.denied("context-o") == "context closed to new entries"
    side.link.gate("context-o", False, "")
    assert rig.denied("context-o") == ""
    side.link.gate("context-o", True, "ignored")
    rig.granted("context-o")


def test_a_full_context_is_denied() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-f", maxcap=1)
    side.enter("context-f", "user-x")
    assert rig.denied("context-f") == FULL
    side.link.exited("context-f", "user-x")
    rig.granted("context-f")
    side.open("context-z", maxcap=0)
    assert rig.denied("context-z") == FULL


def test_a_context_that_took_nobody_is_tried_by_one_user_at_a_time() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-z", maxcap=0)
    side.link.closed("context-z")
    rig.granted("context-z", "user-joe")
    assert rig.denied("context-z") == FULL
    rig.granted("context-z", "user-joe")
    rig.clock.advance(30)
    rig.granted("context-z", "user-bob")
    side.open("context-z", maxcap=2)
    rig.granted("context-z")
    assert rig.denied("context-z") == FULL
    check(rig.director)


def test_a_set_whose_clones_are_meant_for_nobody_gets_a_new_one_for_each() -> None:
    rig = Rig()
    sides = [rig.server(f"cs{n}") for n in range(3)]
    sides[0].open("context-c-1", maxcap=9, basecap=0)
    sides[0].link.closed("context-c-1")
    assert [rig.granted("context-c").hostport for _ in range(3)] == ["cs0:1", "cs1:1", "cs2:1"]
    check(rig.director)


def test_a_full_server_is_denied_and_gets_no_new_contexts_until_it_has_room() -> None:
    rig = Rig()
    side = rig.server("cs1", capacity=1)
    side.open("context-o")
    side.enter("context-o", "user-y")
    assert rig.denied("context-o") == "server full"
    assert rig.denied("context-new") == NOWHERE
    check(rig.director)
    side.link.exited("context-o", "user-y")
    check(rig.director)
    rig.granted("context-new")
    assert rig.denied("context-other") == NOWHERE
    rig.clock.advance(30)
    rig.granted("context-other")
    assert rig.denied("context-third") == NOWHERE
    side.link.will_serve("more", 2, False)
    rig.granted("context-third")
    assert rig.denied("context-fourth") == NOWHERE
    side.link.will_serve("context", -1, False)
    rig.granted("context-fourth")
    check(rig.director)


def test_a_burst_does_not_overfill_a_context() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a", maxcap=5)
    side.enter("context-a", "user-0")
    answers = [rig.reserve("context-a", f"user-{n}") for n in range(1, 20)]
    assert [type(answer) for answer in answers] == [Granted] * 4 + [Denied] * 15
    for n in range(1, 5):
        side.enter("context-a", f"user-{n}-8232480406087251935")
    assert rig.denied("context-a") == FULL
    assert rig.count("used") == 4
    assert rig.count("reservations") == 0
    check(rig.director)


def test_a_burst_does_not_overfill_a_context_that_was_open_before() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a", maxcap=3)
    side.link.closed("context-a")
    answers = [rig.reserve("context-a", f"user-{n}") for n in range(5)]
    assert [type(answer) for answer in answers] == [Granted] * 3 + [Denied] * 2
    assert rig.denied("context-a") == FULL
    side.open("context-a", yours=True, maxcap=4)
    assert rig.granted("context-a")
    assert rig.denied("context-a") == FULL
    check(rig.director)


def test_a_burst_does_not_overfill_a_server() -> None:
    rig = Rig()
    for label in ("cs1", "cs2"):
        rig.server(label, capacity=3)
    answers = [rig.reserve(f"context-{n}") for n in range(9)]
    assert [type(answer) for answer in answers] == [Granted] * 6 + [Denied] * 3
    check(rig.director)


@pytest.mark.parametrize(
    ("reserved", "arriving"),
    [
        ("user-alice", "user-alice"),
        ("user-alice", "user-alice-8232480406087251935"),
        ("user-alice-b-c", "user-alice-b-c-8232480406087251935"),
        (None, "user-anonymous-17"),
        (None, "anybody"),
    ],
)
def test_a_user_who_comes_uses_up_their_reservation(reserved: str | None, arriving: str) -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a", maxcap=3)
    rig.granted("context-a", "user-other")
    rig.granted("context-a", reserved)
    side.enter("context-a", arriving)
    assert rig.count("used") == 1
    assert rig.count("reservations") == 1
    rig.granted("context-a")
    assert rig.denied("context-a") == FULL
    check(rig.director)


def test_who_comes_elsewhere_uses_up_nothing() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-a")
    other.open("context-b")
    one.open("context-c")
    rig.granted("context-a", "user-joe")
    rig.granted("context-a")
    other.enter("context-b", "user-joe")
    one.enter("context-c", "user-joe")
    assert rig.count("used") == 0


def test_a_users_own_reservation_is_used_before_an_anonymous_one_and_of_those_the_oldest() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    rig.granted("context-a")
    rig.clock.advance(10)
    rig.granted("context-a", "user-joe")
    rig.clock.advance(10)
    rig.granted("context-a")
    side.enter("context-a", "user-joe-1", "user-bob-1")
    rig.clock.advance(10)
    assert (rig.count("used"), rig.count("expired")) == (2, 0)
    rig.clock.advance(20)
    assert rig.count("expired") == 1
    check(rig.director)


def test_reservations_are_kept_when_their_context_opens_and_when_it_closes() -> None:
    rig = Rig()
    one, _ = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a", "user-joe")
    rig.granted("context-a", "user-bob")
    one.open("context-a", yours=True, maxcap=2)
    check(rig.director)
    assert rig.denied("context-a") == FULL
    one.enter("context-a", "user-joe-1")
    one.link.exited("context-a", "user-joe-1")
    one.link.closed("context-a")
    check(rig.director)
    one.link.load(1.0)
    assert rig.granted("context-a").hostport == "cs1:1"
    one.open("context-a", yours=True, maxcap=2)
    one.enter("context-a", "user-bob-1")
    assert rig.count("used") == 2
    check(rig.director)


def test_a_context_that_opens_elsewhere_takes_the_next_and_leaves_those_that_were_sent() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    rig.granted("context-a", "user-joe")
    other.open("context-a", maxcap=1)
    assert rig.granted("context-a").hostport == "cs2:1"
    check(rig.director)
    one.open("context-a", yours=True, maxcap=1)
    one.enter("context-a", "user-joe-1")
    assert rig.count("used") == 1
    check(rig.director)


@pytest.mark.parametrize(
    ("protocol", "context", "user"),
    [
        ("tcp", "", None),
        ("tcp", "c" * 256, None),
        ("", "context-a", None),
        ("tcp", "context-a", ""),
        ("t" * 256, "c", None),
    ],
)
def test_names_that_cannot_be_kept_are_refused(protocol: str, context: str, user: str | None) -> None:
    rig = Rig()
    side = rig.server("cs1")
    with pytest.raises(Refusal) as refusal:
        rig.director.reserve(Request("joe", protocol, context, user, False, 10))
    assert refusal.value.reason is Reason.PARAMETER
    assert side.take() == []


def test_many_reservations_expire_in_several_turns() -> None:
    rig = Rig()
    rig.server("cs1")
    for n in range(2 * farm_state.EXPIRIES_PER_TURN + 1):
        rig.granted("context-a", f"user-{n}")
    left: list[int] = []
    # A call for the same time that was asked for later comes between the first turn and the second.
    rig.clock.callLater(30, lambda: left.append(rig.count("reservations")))
    rig.clock.advance(30)
    assert left == [farm_state.EXPIRIES_PER_TURN + 1]
    assert rig.count("reservations") == 0
    assert rig.clock.getDelayedCalls() == []
    check(rig.director)


def test_the_time_of_reservations_can_be_set() -> None:
    rig = Rig(DirectorSettings(reservation_seconds=5.0))
    rig.server("cs1")
    rig.granted("context-a")
    rig.director.use(DirectorSettings(reservation_seconds=60.0))
    rig.granted("context-a")
    rig.clock.advance(5)
    assert rig.count("reservations") == 1
    rig.clock.advance(55)
    assert rig.count("reservations") == 0


def test_a_shorter_time_of_reservations_does_not_wait_for_the_earlier_ones() -> None:
    rig = Rig(DirectorSettings(reservation_seconds=60.0))
    rig.server("cs1")
    rig.granted("context-a", "user-ann")
    rig.director.use(DirectorSettings(reservation_seconds=5.0))
    rig.granted("context-a", "user-bob")
    rig.clock.advance(1)
    rig.granted("context-a", "user-cyd")
    left = []
    for seconds in (4, 1, 53, 1):
        rig.clock.advance(seconds)
        check(rig.director)
        left.append(rig.count("reservations"))
    assert left == [2, 1, 1, 0]
    assert rig.clock.getDelayedCalls() == []


# clones


def test_a_clone_with_room_is_chosen_and_its_name_replaces_the_requested_one() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-c-1", maxcap=4, basecap=1)
    other.open("context-c-2", maxcap=4, basecap=1)
    first = rig.granted("context-c", "user-1")
    assert (first.context, first.hostport) == ("context-c-1", "cs1:1")
    second = rig.granted("context-c", "user-2")
    assert (second.context, second.hostport) == ("context-c-2", "cs2:1")
    check(rig.director)
    assert rig.granted("context-c", "user-3").context == "context-c"
    assert rig.granted("context-c-1", "user-4").context == "context-c-1"
    check(rig.director)


def test_a_set_of_which_no_clone_has_room_gets_a_new_one_for_as_many_as_one_is_meant_for() -> None:
    rig = Rig()
    sides = [rig.server(f"cs{n}") for n in range(3)]
    sides[2].open("context-c-1", maxcap=9, basecap=2)
    sides[2].enter("context-c-1", "user-a", "user-b")
    got = [rig.granted("context-c", f"user-{n}").hostport for n in range(6)]
    assert got == ["cs0:1", "cs0:1", "cs1:1", "cs1:1", "cs2:1", "cs2:1"]
    check(rig.director)


def test_a_new_clone_takes_over_what_one_is_meant_for_and_the_rest_waits_for_the_next() -> None:
    rig = Rig()
    side = rig.server("cs1")
    for n in range(5):
        rig.granted("context-c", f"user-{n}")
    side.open("context-c-1", yours=True, maxcap=9, basecap=2)
    check(rig.director)
    assert rig.count("placements") == 1
    assert rig.granted("context-c", "user-9").context == "context-c"
    side.open("context-c-2", yours=True, maxcap=9, basecap=2)
    side.open("context-c-3", yours=True, maxcap=9, basecap=2)
    assert rig.count("placements") == 0
    for n in range(5):
        side.enter("context-c-3", f"user-{n}-1")
    assert rig.count("used") == 5
    assert rig.granted("context-c").context == "context-c-1"
    check(rig.director)


def test_a_clone_is_skipped_whose_gate_is_closed_or_whose_server_is_full() -> None:
    rig = Rig()
    one, other = rig.server("cs1", capacity=1), rig.server("cs2")
    one.open("context-c-1", basecap=5)
    other.open("context-c-2", basecap=5)
    other.open("context-c-3", basecap=5)
    one.open("context-x")
    one.enter("context-x", "user-x")
    other.link.gate("context-c-2", False, None)
    assert rig.granted("context-c").context == "context-c-3"
    check(rig.director)
    other.link.gate("context-c-3", False, None)
    assert rig.granted("context-c").context == "context-c"
    one.link.exited("context-x", "user-x")
    check(rig.director)
    assert rig.granted("context-c").context == "context-c-1"
    other.link.gate("context-c-2", True, None)
    assert rig.granted("context-c").context == "context-c-2"
    check(rig.director)


def test_a_full_server_does_not_keep_the_clone_sets_that_it_has_none_of_any_more() -> None:
    rig = Rig()
    side = rig.server("cs1", capacity=1)
    side.open("context-x")
    side.enter("context-x", "user-x")
    for number in range(5):
        side.open(f"context-{number}-1")
        assert rig.denied(f"context-{number}") == NOWHERE
        side.link.closed(f"context-{number}-1")
        check(rig.director)


def test_a_clone_that_is_never_to_be_cloned_is_chosen_although_it_is_full() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-h-1", maxcap=1, basecap=-1)
    side.enter("context-h-1", "user-z")
    answer = rig.reserve("context-h")
    assert isinstance(answer, Denied)
    assert (answer.context, answer.text) == ("context-h-1", FULL)


def test_a_base_capacity_over_the_maximum_does_not_overfill() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-c-1", maxcap=1, basecap=5)
    assert rig.granted("context-c").context == "context-c-1"
    assert rig.granted("context-c").context == "context-c"


def test_the_clones_of_a_server_that_speaks_the_protocol_are_preferred() -> None:
    rig = Rig()
    deaf = [rig.server(f"cs{n}") for n in range(5)]
    for n, side in enumerate(deaf):
        side.open(f"context-c-{n}")
    assert rig.denied("context-c", protocol="http") == "requested protocol not available"
    rig.server("web", addresses={"http": "web:80"}).open("context-c-9")
    assert rig.granted("context-c", protocol="http").context == "context-c-9"
    assert rig.granted("context-c").hostport != "web:80"
    check(rig.director)


def test_when_the_last_clone_has_closed_there_is_none() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-c-1")
    side.link.closed("context-c-1")
    assert rig.granted("context-c").context == "context-c"
    check(rig.director)
