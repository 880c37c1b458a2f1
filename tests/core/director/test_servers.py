"""Servers and their links: one server that connects twice, contexts and users that several links report, duplicates.

The file is longer than others: all its tests concern the merged state of servers with several links.
"""

from __future__ import annotations

import pytest
from zope.interface.verify import verifyObject

from broker.core.director.director_interfaces import (
    Close,
    ContextPlace,
    DirectorSettings,
    DoReserve,
    IContextServer,
    IDirector,
    Reinit,
    UserPlace,
)
from broker.core.director.farm_state import MAX_LINKS
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Rig, Side, check


def twice(rig: Rig) -> tuple[Side, Side]:
    """A server with two links, in a context that both report, with one user."""
    first = rig.server("cs1")
    first.open("context-a")
    first.enter("context-a", "user-joe-1")
    second = rig.server("cs1")
    second.open("context-a")
    second.enter("context-a", "user-joe-1")
    return first, second


def test_they_are_what_they_promise_to_be() -> None:
    rig = Rig()
    assert verifyObject(IDirector, rig.director)
    assert verifyObject(IContextServer, rig.link("x").link)


def test_one_server_that_connects_twice_is_listed_once() -> None:
    rig = Rig()
    twice(rig)
    assert rig.director.providers() == ["cs1"]
    dump = rig.director.dump(3, None, None)
    assert (dump.providers, dump.contexts, dump.users) == (1, 1, 1)
    check(rig.director)


def test_what_both_links_report_is_told_once_and_nothing_is_closed() -> None:
    rig = Rig()
    admin = rig.admin()
    rig.director.watch_context(admin, "context-a")
    rig.director.watch_user(admin, "user-joe-1")
    first, second = twice(rig)
    assert admin.take() == [ContextPlace("context-a", "cs1"), UserPlace("user-joe-1", ("context-a",))]
    assert first.take() == second.take() == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_context_that_this_director_had_opened_survives_a_second_link_in_either_order(order: tuple[int, int]) -> None:
    rig = Rig()
    links = [rig.server("cs1"), rig.server("cs1")]
    rig.granted("context-clon", "user-alice")
    assert [type(news) for news in links[1].take()] == [DoReserve]
    for place in order:
        links[place].open("context-clon-539", yours=place == 1, maxcap=3, basecap=1)
        links[place].enter("context-clon-539", "user-alice-7077")
    assert links[0].take() == links[1].take() == []
    assert rig.director.find_user("user-alice").contexts == ("context-clon-539",)
    assert rig.count("used") == 1
    assert rig.count("reservations") == 0
    check(rig.director)


def test_a_user_is_gone_when_the_last_link_says_so() -> None:
    rig = Rig()
    first, second = twice(rig)
    first.link.exited("context-a", "user-joe-1")
    assert rig.director.find_user("user-joe-1").on
    second.link.exited("context-a", "user-joe-1")
    assert not rig.director.find_user("user-joe-1").on
    check(rig.director)


def test_a_context_is_gone_when_the_last_link_says_so() -> None:
    rig = Rig()
    first, second = twice(rig)
    second.link.closed("context-a")
    assert rig.director.find_context("context-a").open
    assert rig.director.find_user("user-joe-1").on
    first.link.closed("context-a")
    assert not rig.director.find_context("context-a").open
    assert rig.director.users() == []
    check(rig.director)


@pytest.mark.parametrize("which", [0, 1])
def test_a_link_that_ends_takes_nothing_with_it_that_another_reports(which: int) -> None:
    rig = Rig()
    links = twice(rig)
    admin = rig.admin()
    rig.director.watch_user(admin, "user-joe-1")
    links[which].link.leave()
    links[which].link.leave()
    assert admin.take() == []
    assert rig.director.providers() == ["cs1"]
    assert rig.director.reinit("cs1") == 1
    assert links[1 - which].take() == [Reinit()]
    check(rig.director)
    links[1 - which].link.leave()
    assert admin.take() == [UserPlace("user-joe-1")]
    assert rig.director.providers() == []
    check(rig.director)


def test_what_only_the_link_that_ends_reported_ends_with_it() -> None:
    rig = Rig()
    first, second = rig.server("cs1"), rig.server("cs1")
    first.open("context-a")
    second.open("context-a")
    second.enter("context-a", "user-joe")
    second.open("context-b")
    second.link.leave()
    assert rig.director.contexts() == ["context-a"]
    assert rig.director.users() == []
    check(rig.director)


def test_the_newest_link_is_told() -> None:
    rig = Rig()
    first, second = twice(rig)
    rig.granted("context-a", "user-bob")
    assert (len(first.take()), len(second.take())) == (0, 1)
    second.link.leave()
    rig.granted("context-a", "user-bob")
    assert len(first.take()) == 1


def test_a_link_that_gives_its_address_late_brings_what_it_said_before() -> None:
    rig = Rig()
    first = rig.server("cs1")
    first.open("context-a")
    first.enter("context-a", "user-joe")
    second = rig.link("cs1")
    second.link.will_serve("other", 5, False)
    second.link.load(0.5)
    second.open("context-a", yours=True, maxcap=9)
    second.open("context-b")
    second.link.gate("context-b", False, "no")
    second.enter("context-b", "user-bob")
    second.link.address("tcp", "cs1:1")
    assert first.take() == second.take() == []
    assert rig.director.providers() == ["cs1"]
    assert sorted(rig.director.contexts()) == ["context-a", "context-b"]
    assert next(rig.director.dump(1, None, None).pieces).capacity == 5  # type: ignore[union-attr]
    assert rig.denied("context-b") == "no"
    assert rig.director.find_user("user-bob").contexts == ("context-b",)
    check(rig.director)
    first.link.leave()
    assert sorted(rig.director.contexts()) == ["context-a", "context-b"]
    assert rig.director.users() == ["user-bob"]
    check(rig.director)


def test_a_link_that_turns_out_to_be_of_a_full_server_may_make_room_there() -> None:
    rig = Rig()
    rig.server("cs1", capacity=0)
    assert rig.denied("context-a") == "unable to find suitable server"
    late = rig.link("cs1")
    late.link.will_serve("context", 1, False)
    late.link.address("tcp", "cs1:1")
    check(rig.director)
    rig.granted("context-a")


def test_servers_whose_addresses_contradict_each_other_are_two() -> None:
    rig = Rig()
    rig.server("cs1", addresses={"tcp": "cs1:1", "http": "proxy:80"})
    rig.server("cs2", addresses={"tcp": "cs2:1", "http": "proxy:80"})
    assert rig.director.providers() == ["cs1", "cs2"]
    check(rig.director)


def test_a_server_that_came_back_while_its_old_link_hangs_is_one_with_the_new_addresses() -> None:
    rig = Rig()
    old = rig.server("cs1", addresses={"tcp": "cs1:1", "http": "cs1:80"})
    new = rig.server("cs1", addresses={"tcp": "cs1:1", "http": "cs1:81"})
    assert rig.director.providers() == ["cs1"]
    assert rig.granted("context-a", protocol="http").hostport == "cs1:81"
    old.link.leave()
    assert rig.granted("context-a", protocol="http").hostport == "cs1:81"
    assert len(new.take()) == 2
    check(rig.director)


def test_an_address_replaces_the_one_of_its_protocol() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.link.address("tcp", "cs1:2")
    assert rig.granted("context-a").hostport == "cs1:2"
    rig.server("cs2", addresses={"tcp": "cs1:1"})
    assert rig.director.providers() == ["cs2", "cs1"]
    check(rig.director)


def test_a_server_of_several_links_is_not_taken_apart_by_an_address() -> None:
    rig = Rig()
    first, _ = rig.server("cs1"), rig.server("cs1")
    rig.server("cs2")
    first.link.address("tcp", "cs2:1")
    assert sorted(rig.director.providers()) == ["cs1", "cs2"]
    check(rig.director)


def test_too_many_links_of_one_server_are_refused() -> None:
    rig = Rig()
    sides = [rig.server("cs1") for _ in range(MAX_LINKS)]
    late = rig.link("cs1")
    with pytest.raises(Refusal) as refusal:
        late.link.address("tcp", "cs1:1")
    assert refusal.value.reason is Reason.TOO_MANY_CONNECTIONS
    check(rig.director)
    late.link.leave()
    sides[3].link.leave()
    rig.server("cs1")
    assert rig.director.providers() == ["cs1"]
    check(rig.director)


def test_too_many_links_in_all_are_refused() -> None:
    rig = Rig(DirectorSettings(providers=2))
    first = rig.server("cs1")
    rig.server("cs2")
    with pytest.raises(Refusal) as refusal:
        rig.link("cs3")
    assert refusal.value.reason is Reason.LIMIT
    first.link.leave()
    rig.server("cs3")
    rig.director.use(DirectorSettings(providers=3))
    rig.server("cs4")


def test_of_two_servers_with_one_context_the_one_with_the_higher_key_keeps_it() -> None:
    rig = Rig()
    low = rig.server("low", addresses={"tcp": "a:1", "http": "z:1"})
    high = rig.server("high", addresses={"tcp": "b:1", "rtcp": "0:1"})
    low.open("context-a", yours=True)
    low.enter("context-a", "user-joe")
    admin = rig.admin()
    rig.director.watch_context(admin, "context-a")
    rig.director.watch_user(admin, "user-joe")
    high.open("context-a", yours=True)
    assert low.take() == [Close("context-a", None, True)]
    assert high.take() == []
    assert admin.take() == [UserPlace("user-joe"), ContextPlace("context-a"), ContextPlace("context-a", "high")]
    check(rig.director)
    high.enter("context-a", "user-bob")
    low.link.exited("context-a", "user-joe")
    low.link.closed("context-a")
    assert rig.director.find_context("context-a").provider == "high"
    assert rig.director.find_user("user-bob").on
    assert admin.take() == []
    check(rig.director)


def test_of_two_servers_with_one_context_the_newcomer_loses_if_its_key_is_lower() -> None:
    rig = Rig()
    low, high = rig.server("low", addresses={"tcp": "a:1"}), rig.server("high", addresses={"tcp": "b:1"})
    high.open("context-a", yours=True)
    low.open("context-a")
    assert low.take() == high.take() == []
    low.open("context-a", yours=True)
    low.open("context-a", yours=True)
    assert low.take() == [Close("context-a", None, True)]
    low.link.closed("context-a")
    assert rig.director.find_context("context-a").provider == "high"
    check(rig.director)


def test_servers_without_an_address_do_no_harm() -> None:
    rig = Rig()
    one, other, real = rig.link("one"), rig.link("other"), rig.server("real")
    one.open("context-a", yours=True)
    other.open("context-a", yours=True)
    assert rig.denied("context-a") == "requested protocol not available"
    assert rig.director.find_context("context-a").provider == "one"
    real.open("context-a")
    assert one.take() == other.take() == []
    assert rig.director.find_context("context-a").provider == "real"
    other.link.address("tcp", "other:1")
    assert (one.take(), other.take()) == ([], [Close("context-a", None, True)])
    check(rig.director)


def test_when_the_winner_goes_the_hidden_context_shows_with_its_users() -> None:
    rig = Rig()
    low, middle, high = (rig.server(label, addresses={"tcp": f"{label}:1"}) for label in ("a", "b", "c"))
    low.open("context-a")
    low.enter("context-a", "user-low")
    middle.open("context-a")
    middle.enter("context-a", "user-middle")
    high.open("context-a")
    assert rig.director.users() == []
    admin = rig.admin()
    rig.director.watch_context(admin, "context-a")
    rig.director.watch_user(admin, "user-middle")
    high.link.leave()
    assert admin.take() == [
        ContextPlace("context-a"),
        ContextPlace("context-a", "b"),
        UserPlace("user-middle", ("context-a",)),
    ]
    check(rig.director)
    middle.link.closed("context-a")
    assert rig.director.users() == ["user-low"]
    check(rig.director)


def test_a_server_that_ends_takes_its_users_then_its_contexts() -> None:
    rig = Rig()
    side = rig.server("cs1")
    admin = rig.admin()
    for context, user in (("context-a", "user-1"), ("context-b", "user-2")):
        side.open(context)
        side.enter(context, user)
        rig.director.watch_context(admin, context)
        rig.director.watch_user(admin, user)
    side.link.leave()
    assert admin.take() == [
        UserPlace("user-1"),
        UserPlace("user-2"),
        ContextPlace("context-a"),
        ContextPlace("context-b"),
    ]
    assert rig.director.contexts() == rig.director.users() == rig.director.providers() == []
    check(rig.director)


def test_a_server_that_ends_takes_its_reservations_and_the_next_is_made_elsewhere() -> None:
    rig = Rig()
    first, second = rig.server("cs1"), rig.server("cs2")
    first.open("context-a")
    rig.granted("context-a", "user-joe")
    assert rig.granted("context-new", "user-joe").hostport == "cs1:1"
    first.link.leave()
    assert rig.count("reservations") == 0
    assert rig.count("lost") == 2
    assert rig.granted("context-new", "user-joe").hostport == "cs2:1"
    assert len(second.take()) == 1
    check(rig.director)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda link: link.entered("context-none", "user-x"), Reason.NOT_REGISTERED),
        (lambda link: link.entered("context-a", ""), Reason.PARAMETER),
        (lambda link: link.entered("context-a", "u" * 256), Reason.PARAMETER),
        (lambda link: link.exited("context-a", "user-absent"), Reason.NOT_REGISTERED),
        (lambda link: link.exited("context-none", "user-x"), Reason.NOT_REGISTERED),
        (lambda link: link.exited("context-a", "u" * 256), Reason.PARAMETER),
        (lambda link: link.closed("context-none"), Reason.NOT_REGISTERED),
        (lambda link: link.closed("c" * 256), Reason.PARAMETER),
        (lambda link: link.closed(""), Reason.PARAMETER),
        (lambda link: link.gate("context-none", False, None), Reason.NOT_REGISTERED),
        (lambda link: link.gate("context-a", False, "r" * 1025), Reason.PARAMETER),
        (lambda link: link.opened("", False, -1, -1, False), Reason.PARAMETER),
        (lambda link: link.opened("c" * 256, False, -1, -1, False), Reason.PARAMETER),
        (lambda link: link.address("", "h:1"), Reason.PARAMETER),
        (lambda link: link.address("tcp", "h" * 1025), Reason.PARAMETER),
        (lambda link: link.address("tcp", ""), Reason.PARAMETER),
        (lambda link: link.will_serve("", -1, False), Reason.PARAMETER),
        (lambda link: link.load(float("nan")), Reason.PARAMETER),
        (lambda link: link.load(float("inf")), Reason.PARAMETER),
    ],
)
def test_a_wrong_report_is_refused_and_changes_nothing(what, reason: Reason) -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    before = rig.director.counts()
    with pytest.raises(Refusal) as refusal:
        what(side.link)
    assert refusal.value.reason is reason
    assert not refusal.value.reason.fatal
    assert rig.director.counts() == before
    check(rig.director)


def test_a_server_may_not_report_users_of_another_servers_contexts() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-a")
    one.enter("context-a", "user-joe")
    for report in (
        lambda: other.link.entered("context-a", "user-bob"),
        lambda: other.link.exited("context-a", "user-joe"),
        lambda: other.link.closed("context-a"),
        lambda: other.link.gate("context-a", False, None),
    ):
        with pytest.raises(Refusal):
            report()
    assert rig.director.users() == ["user-joe"]
    check(rig.director)


def test_a_link_that_has_left_reports_nothing_more() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    side.link.leave()
    for report in (
        lambda: side.open("context-a"),
        lambda: side.enter("context-a", "user-joe"),
        lambda: side.link.address("tcp", "x:1"),
        lambda: side.link.will_serve("context", -1, False),
        lambda: side.link.load(1.0),
    ):
        with pytest.raises(Refusal):
            report()
    check(rig.director)


def test_a_context_of_a_family_that_the_server_does_not_serve_is_open_there() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("other-a")
    side.enter("other-a", "user-joe")
    assert rig.granted("other-a").hostport == "cs1:1"
    assert rig.denied("other-b") == "unable to find suitable server"


def test_a_user_reported_twice_is_there_once() -> None:
    rig = Rig()
    side = rig.server("cs1", capacity=2)
    side.open("context-a")
    side.enter("context-a", "user-joe", "user-joe")
    assert rig.count("users") == 1
    rig.granted("context-a")
    check(rig.director)


def test_a_user_in_two_contexts_is_found_in_both_until_they_leave() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-a")
    other.open("context-b")
    one.enter("context-a", "user-joe")
    other.enter("context-b", "user-joe")
    assert rig.director.find_user("user-joe").contexts == ("context-a", "context-b")
    one.link.exited("context-a", "user-joe")
    assert rig.director.find_user("user-joe").contexts == ("context-b",)
    check(rig.director)
