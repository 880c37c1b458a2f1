"""Requests of administrators: watches, messages to contexts and users, lists, dumps."""

from __future__ import annotations

import pytest

from broker.core.director.director_interfaces import (
    ALL,
    Close,
    ContextDump,
    ContextPlace,
    DoReserve,
    ProviderDump,
    Reinit,
    Relay,
    Say,
    Shutdown,
    UserPlace,
)
from broker.core.director.farm_state import MAX_WATCHES
from broker.core.errors import Reason, Refusal
from tests.core.director.rig import Peer, Rig, Side, check

# watches


def test_a_watch_tells_the_present_place_and_then_each_change() -> None:
    rig = Rig()
    side = rig.server("cs1")
    admin = rig.admin()
    assert rig.director.watch_context(admin, "context-a") == ContextPlace("context-a")
    assert rig.director.watch_user(admin, "user-1") == UserPlace("user-1")
    side.open("context-a")
    side.enter("context-a", "user-1")
    side.link.exited("context-a", "user-1")
    side.link.closed("context-a")
    assert admin.take() == [
        ContextPlace("context-a", "cs1"),
        UserPlace("user-1", ("context-a",)),
        UserPlace("user-1"),
        ContextPlace("context-a"),
    ]
    side.open("context-a")
    side.enter("context-a", "user-1")
    assert rig.director.watch_context(admin, "context-a") == ContextPlace("context-a", "cs1")
    assert rig.director.watch_user(admin, "user-1") == UserPlace("user-1", ("context-a",))


def test_who_watches_the_set_of_clones_hears_after_who_watches_the_clone() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    admin = rig.admin()
    rig.director.watch_context(admin, "context-c")
    rig.director.watch_context(admin, "context-c-1")
    one.open("context-c-1", maxcap=4, basecap=1)
    other.open("context-c-2", maxcap=4, basecap=1)
    one.link.closed("context-c-1")
    other.link.closed("context-c-2")
    assert admin.take() == [
        ContextPlace("context-c-1", "cs1"),
        ContextPlace("context-c", None, ("context-c-1",)),
        ContextPlace("context-c", None, ("context-c-1", "context-c-2")),
        ContextPlace("context-c-1"),
        ContextPlace("context-c", None, ("context-c-2",)),
        ContextPlace("context-c"),
    ]


def test_a_watch_of_a_user_has_all_clones() -> None:
    rig = Rig()
    one, other = rig.server("cs1"), rig.server("cs2")
    one.open("context-a")
    other.open("context-b")
    admin = rig.admin()
    rig.director.watch_user(admin, "user-bob")
    rig.director.watch_user(admin, "user-bob-1")
    one.enter("context-a", "user-bob-1")
    other.enter("context-b", "user-bob-2")
    one.link.exited("context-a", "user-bob-1")
    assert admin.take() == [
        UserPlace("user-bob-1", ("context-a",)),
        UserPlace("user-bob", ("context-a",)),
        UserPlace("user-bob", ("context-a", "context-b")),
        UserPlace("user-bob-1"),
        UserPlace("user-bob", ("context-b",)),
    ]


def test_a_context_with_several_clones_of_a_user_is_named_once() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    side.enter("context-a", "user-bob", "user-bob-1", "user-bob-2")
    assert rig.director.find_user("user-bob") == UserPlace("user-bob", ("context-a",))


def test_watching_twice_takes_two_calls_to_end_and_tells_once() -> None:
    rig = Rig()
    side = rig.server("cs1")
    admin = rig.admin()
    rig.director.watch_context(admin, "context-a")
    rig.director.watch_context(admin, "context-a")
    side.open("context-a")
    assert len(admin.take()) == 1
    rig.director.unwatch_context(admin, "context-a")
    side.link.closed("context-a")
    assert len(admin.take()) == 1
    rig.director.unwatch_context(admin, "context-a")
    rig.director.unwatch_context(admin, "context-a")
    rig.director.unwatch_user(admin, "user-never")
    side.open("context-a")
    assert admin.take() == []


def test_all_who_watch_get_the_same_object() -> None:
    rig = Rig()
    side = rig.server("cs1")
    side.open("context-a")
    admins = [rig.admin(str(n)) for n in range(3)]
    for admin in admins:
        rig.director.watch_user(admin, "user-1")
    side.enter("context-a", "user-1")
    first, *others = [admin.take()[0] for admin in admins]
    assert all(other is first for other in others)


def test_who_is_forgotten_hears_nothing_more() -> None:
    rig = Rig()
    side = rig.server("cs1")
    gone, stays = rig.admin("gone"), rig.admin("stays")
    for admin in (gone, stays):
        rig.director.watch_context(admin, "context-a")
        rig.director.watch_user(admin, "user-1")
    rig.director.forget(gone)
    rig.director.forget(gone)
    side.open("context-a")
    side.enter("context-a", "user-1")
    assert gone.take() == []
    assert len(stays.take()) == 2
    rig.director.forget(stays)
    assert not rig.director._presence.watched_contexts._watchers
    assert not rig.director._presence.watched_users._names


def test_watches_are_limited_by_administrator() -> None:
    rig = Rig()
    admin = rig.admin()
    for number in range(MAX_WATCHES):
        rig.director.watch_context(admin, f"context-{number}")
    with pytest.raises(Refusal) as refusal:
        rig.director.watch_context(admin, "context-more")
    assert refusal.value.reason is Reason.LIMIT
    rig.director.watch_context(admin, "context-0")
    rig.director.watch_context(rig.admin("other"), "context-more")
    rig.director.unwatch_context(admin, "context-1")
    rig.director.watch_context(admin, "context-more")
    for name in ("", "u" * 256):
        with pytest.raises(Refusal):
            rig.director.watch_user(admin, name)
        with pytest.raises(Refusal):
            rig.director.watch_context(admin, name)


def test_what_a_listener_does_is_told_after_what_it_hears() -> None:
    rig = Rig()
    side = rig.server("cs1")

    class Nosy(Peer):
        def receive(self, news: object) -> None:
            super().receive(news)
            if news == ContextPlace("context-a", "cs1"):
                rig.granted("context-a", "user-joe")

    nosy, other = Nosy(rig.log, "nosy"), rig.admin("other")
    rig.director.watch_context(nosy, "context-a")
    rig.director.watch_context(other, "context-a")
    side.open("context-a")
    assert [(name, type(news)) for name, news in rig.log] == [
        ("nosy", ContextPlace),
        ("other", ContextPlace),
        ("cs1", DoReserve),
    ]


# messages to servers


def crowd(rig: Rig) -> tuple[Side, Side, Side]:
    """Three servers: one with a context and a clone, one with two clones, one with nothing. Bob is in all but it."""
    one, two, three = (rig.server(f"cs{n}") for n in (1, 2, 3))
    one.open("context-a")
    one.open("context-c-1")
    two.open("context-c-2")
    two.open("context-c-3")
    one.enter("context-a", "user-bob-1")
    two.enter("context-c-2", "user-bob-2")
    two.enter("context-c-3", "user-bob-3")
    two.enter("context-c-3", "user-joe")
    return one, two, three


@pytest.mark.parametrize(
    ("context", "user", "told"),
    [
        ("context-a", None, "1"),
        ("context-c-2", None, "2"),
        ("context-c", None, "12"),
        (None, "user-joe", "2"),
        (None, "user-bob", "12"),
        (None, "user-bob-1", "1"),
        ("context-c", "user-bob", "2"),
        ("context-a", "user-bob-1", "1"),
    ],
)
def test_each_server_concerned_is_told_once(context: str | None, user: str | None, told: str) -> None:
    rig = Rig()
    sides = crowd(rig)
    for send, order in (
        (lambda: rig.director.say(context, user, "hi"), Say(context, user, "hi")),
        (lambda: rig.director.close(context, user), Close(context, user)),
        (lambda: rig.director.relay(context, user, {"a": 1}, None), Relay(context, user, {"a": 1})),
    ):
        assert send() == len(told)
        assert [side.take() for side in sides] == [[order] if str(n) in told else [] for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("context", "user", "reason", "text"),
    [
        (None, None, Reason.PARAMETER, "request message missing context or user"),
        ("context-x", None, Reason.NOT_REGISTERED, "context context-x not found"),
        (None, "user-x", Reason.NOT_REGISTERED, "user user-x not found"),
        ("context-a", "user-joe", Reason.NOT_REGISTERED, "user user-joe is not in context context-a"),
        ("context-c", "user-bob-1", Reason.NOT_REGISTERED, "user user-bob-1 is not in context context-c"),
        ("c" * 256, None, Reason.PARAMETER, "the name of a context has more than 255 characters"),
    ],
)
def test_a_message_to_nobody_is_refused(context: str | None, user: str | None, reason: Reason, text: str) -> None:
    rig = Rig()
    sides = crowd(rig)
    for send in (
        lambda: rig.director.say(context, user, "hi"),
        lambda: rig.director.close(context, user),
        lambda: rig.director.relay(context, user, {}, sides[0].link),
    ):
        with pytest.raises(Refusal) as refusal:
            send()
        assert (refusal.value.reason, refusal.value.text) == (reason, text)
    assert rig.log == []


def test_a_relay_does_not_come_back_to_its_server_over_any_link() -> None:
    rig = Rig()
    one, two, _ = crowd(rig)
    again = rig.server("cs1")
    for sender in (one, again):
        assert rig.director.relay("context-c", None, "m", sender.link) == 1
        assert rig.director.relay("context-a", None, "m", sender.link) == 0
    assert two.take() == [Relay("context-c", None, "m")] * 2
    assert one.take() == again.take() == []


def test_servers_are_named_by_label_or_address_or_all_together() -> None:
    rig = Rig()
    sides = [rig.server("cs1"), rig.server("cs1", addresses={"tcp": "other:1"}), rig.server("cs2")]
    assert rig.director.reinit("cs1") == 2
    assert rig.director.shutdown("other:1", True) == 1
    assert rig.director.shutdown(ALL, False) == 3
    assert rig.director.reinit("nobody") == 0
    assert [side.take() for side in sides] == [
        [Reinit(), Shutdown()],
        [Reinit(), Shutdown(True), Shutdown()],
        [Shutdown()],
    ]


# lists and dumps


def test_lists() -> None:
    rig = Rig()
    sides = crowd(rig)
    sides[1].link.load(0.5)
    sides[0].link.load(0.7)
    assert rig.director.providers() == ["cs3", "cs2", "cs1"]
    assert rig.director.contexts() == ["context-a", "context-c-1", "context-c-2", "context-c-3"]
    assert rig.director.users() == ["user-bob-1", "user-bob-2", "user-bob-3", "user-joe"]


def described(rig: Rig, depth: int, provider: str | None = None, context: str | None = None) -> list[object]:
    dump = rig.director.dump(depth, provider, context)
    return [(dump.providers, dump.contexts, dump.users), *dump.pieces]


def test_a_dump_is_as_deep_as_it_is_asked_for() -> None:
    rig = Rig()
    side = rig.server("cs1", families=("context", "other"), addresses={"tcp": "a:1", "http": "b:1"}, capacity=9)
    side.link.load(0.25)
    side.open("context-a")
    side.enter("context-a", "user-1", "user-2")
    whole = ProviderDump("cs1", 1, 2, 0.25, 9, ("a:1", "b:1"), ("tcp", "http"), ("context", "other"))
    assert described(rig, -1) == described(rig, 0) == [(1, 1, 2)]
    assert described(rig, 1) == [(1, 1, 2), whole]
    assert described(rig, 2) == [(1, 1, 2), whole, ContextDump("context-a", 2, ())]
    users = ContextDump("context-a", 2, ("user-1", "user-2"))
    assert described(rig, 3) == described(rig, 99) == [(1, 1, 2), whole, users]


def test_a_dump_may_be_of_some_servers_or_of_some_contexts() -> None:
    rig = Rig()
    crowd(rig)

    def brief(*where: str | None) -> list[object]:
        counts, *pieces = described(rig, 2, *where)
        return [counts, *[getattr(piece, "label", None) or piece.context for piece in pieces]]  # type: ignore[attr-defined]

    assert brief("cs2", None) == [(1, 2, 3), "cs2", "context-c-2", "context-c-3"]
    assert brief("cs3:1", None) == [(1, 0, 0), "cs3"]
    assert brief("nobody", None) == [(0, 0, 0)]
    assert brief(None, "context-c") == [(2, 3, 3), "cs1", "context-c-1", "cs2", "context-c-2", "context-c-3"]
    assert brief("cs1", "context-c") == [(1, 1, 0), "cs1", "context-c-1"]
    assert brief(None, "context-a") == [(1, 1, 1), "cs1", "context-a"]
    assert brief(None, "context-x") == [(0, 0, 0)]
    assert described(rig, 1, None, "context-a")[1].contexts == 1  # type: ignore[attr-defined]


def test_hidden_contexts_are_not_shown() -> None:
    rig = Rig()
    low, high = rig.server("a"), rig.server("b")
    for side in (low, high):
        side.open("context-a")
        side.enter("context-a", "user-1")
    assert described(rig, 0) == [(2, 1, 1)]
    pieces = described(rig, 2)
    assert [type(piece) for piece in pieces[1:]] == [ProviderDump, ProviderDump, ContextDump]
    check(rig.director)


def test_what_goes_while_a_dump_is_taken_is_left_out() -> None:
    rig = Rig()
    one, two, three = crowd(rig)
    pieces = rig.director.dump(3, None, None).pieces
    assert next(pieces).label == "cs1"  # type: ignore[union-attr]
    assert next(pieces).context == "context-a"  # type: ignore[union-attr]
    one.link.closed("context-c-1")
    one.open("context-new")
    two.link.leave()
    rig.server("cs4")
    three.open("context-b")
    assert [getattr(piece, "label", None) or piece.context for piece in pieces] == ["cs3", "context-b"]  # type: ignore[union-attr]
