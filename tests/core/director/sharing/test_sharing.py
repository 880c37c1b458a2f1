"""Directors of two and three brokers: the state of each is that of all.

The file is longer than others: all its tests use the same network of directors.
"""

from __future__ import annotations

import pytest

from broker.core.director.director_interfaces import (
    SERVER_FAILING,
    Close,
    ContextPlace,
    Denied,
    DirectorSettings,
    DoReserve,
    Reinit,
    Relay,
    Say,
    Shutdown,
    UserPlace,
)
from broker.core.director.sharing.records import DELIVERY_SECONDS, HELD_SECONDS, MESSAGE_WORK, WINDOW
from broker.core.model import Policy
from tests.core.director.rig import check
from tests.core.director.sharing.network import Brokers, Side, view


class Watcher:
    def __init__(self) -> None:
        self.places: list[object] = []

    def hear(self, place: object) -> None:
        self.places.append(place)


def same(brokers: Brokers) -> None:
    """All directors know the same, and their tables are consistent."""
    first, *others = brokers.directors.values()
    check(first)
    for other in others:
        check(other)
        assert view(other) == view(first)


def test_a_user_enters_at_one_broker_and_is_found_at_the_other() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("a", "cs1")
    brokers.settle()
    watcher = Watcher()
    assert brokers.directors["b"].watch_user(watcher, "user-joe") == UserPlace("user-joe")
    server.open("context-inn", "user-joe-7")
    brokers.settle()
    assert brokers.directors["b"].find_user("user-joe").contexts == ("context-inn",)
    assert brokers.directors["b"].find_context("context-inn") == ContextPlace("context-inn", "cs1")
    assert watcher.places == [UserPlace("user-joe", ("context-inn",))]
    server.link.exited("context-inn", "user-joe-7")
    server.link.closed("context-inn")
    brokers.settle()
    assert watcher.places[-1] == UserPlace("user-joe")
    assert not brokers.directors["b"].find_context("context-inn").open
    same(brokers)


def test_all_reports_reach_the_others() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("a", "cs1", {"tcp": "cs1:1", "ws": "cs1:2"}, capacity=7, families=("context", "shop"))
    server.open("context-inn", "user-a", "user-b", maxcap=3, basecap=2)
    server.link.gate("context-inn", False, "cleaning")
    server.link.load(0.5)
    server.link.relabel("renamed")
    server.link.address("tcp", "cs1:9")
    brokers.settle()
    same(brokers)
    [dump] = brokers.directors["b"].dump(1, None, None).pieces
    assert (dump.label, dump.load, dump.broker) == ("renamed", 0.5, "a")  # type: ignore[union-attr]
    answer = brokers.reserve("b", "context-inn", "user-c")
    assert isinstance(answer, Denied)
    assert answer.text == "cleaning"
    server.link.gate("context-inn", True, None)
    server.link.judged(Policy.HIDE)
    brokers.server("b", "cs2", families=("shop",))
    brokers.settle()
    assert brokers.granted("b", "shop-1").hostport == "cs2:1"


def test_a_director_that_comes_later_gets_all() -> None:
    brokers = Brokers("a")
    for number in range(3):
        server = brokers.server("a", f"cs{number}", capacity=100)
        for room in range(40):
            server.open(f"context-{number}-{room}", *(f"user-{number}-{room}-{user}" for user in range(20)))
        server.link.gate(f"context-{number}-7", False, "closed")
    brokers.start("b")
    brokers.settle()
    same(brokers)
    assert brokers.count("b", "users") == 3 * 40 * 20
    denied = brokers.reserve("b", "context-1-7")
    assert isinstance(denied, Denied)
    assert denied.text == "closed"
    assert brokers.count("b", "reports_refused") == 0


def test_a_snapshot_is_as_fast_as_its_recipient_and_changes_meanwhile_are_kept() -> None:
    brokers = Brokers("a")
    server = brokers.server("a", "cs1")
    for room in range(40):
        server.open(f"context-{room}", *(f"user-{room}u{user}" for user in range(MESSAGE_WORK)))
    brokers.network.held.add(("b", "a"))
    brokers.start("b")
    brokers.settle()
    assert brokers.network.sent < 5  # nobody has said that there is a director
    brokers.network.held.clear()
    brokers.network.release("b", "a")
    brokers.network.held.add(("b", "a"))
    brokers.settle()
    # Acknowledgements wait: the snapshot does, too.
    assert 0 < brokers.count("b", "contexts") <= WINDOW + 1
    server.link.exited("context-39", "user-39u0")
    server.link.closed("context-38")
    server.open("context-new", "user-new")
    server.link.entered("context-0", "user-late")
    server.link.exited("context-0", "user-0u0")
    brokers.network.release("b", "a")
    brokers.settle()
    same(brokers)
    assert brokers.network.largest < 64 * 1024


def test_messages_reach_servers_of_other_brokers_once() -> None:
    brokers = Brokers("a", "b", "c")
    one, two = brokers.server("a", "cs1"), brokers.server("b", "cs2")
    one.open("context-inn", "user-joe-1")
    two.open("context-inn-1", "user-joe-2")
    brokers.settle()
    there = brokers.directors["c"]
    assert there.say("context-inn", None, "hello") == 1
    assert there.say(None, "user-joe", "you") == 2
    assert there.close(None, "user-joe-2") == 1
    assert there.reinit("all") == 2
    assert there.shutdown("cs2", True) == 1
    assert there.relay("context-inn", None, {"op": "bell", "big": 10**30}, None) == 1
    # A server's own relay goes to the other server only.
    assert brokers.directors["a"].relay(None, "user-joe", {"op": "x"}, one.link) == 1
    brokers.settle()
    assert one.take() == [
        Say("context-inn", None, "hello"),
        Say(None, "user-joe", "you"),
        Reinit(),
        Relay("context-inn", None, {"op": "bell", "big": 10**30}),
    ]
    assert sorted(map(str, two.take())) == sorted(
        map(
            str,
            [
                Say(None, "user-joe", "you"),
                Close(None, "user-joe-2"),
                Reinit(),
                Shutdown(True),
                Relay(None, "user-joe", {"op": "x"}),
            ],
        )
    )
    brokers.settle()
    assert brokers.count("c", "orders_lost") == 0


def test_a_reservation_at_one_broker_for_a_server_at_the_other() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("b", "cs1", capacity=1)
    brokers.settle()
    granted = brokers.granted("a", "context-inn", "user-joe")
    assert granted.delivered is not None
    answered: list[bool] = []
    granted.delivered.addCallback(answered.append)
    assert answered == []
    brokers.settle()
    assert answered == [True]
    assert server.take() == [DoReserve("context-inn", "user-joe", granted.reservation)]
    # It takes up the room of the server at both.
    for name in ("a", "b"):
        assert brokers.count(name, "reservations") == 1
        assert isinstance(brokers.reserve(name, "context-inn", "user-ann"), Denied)
    server.open("context-inn", "user-joe-5", yours=True)
    brokers.settle()
    for name in ("a", "b"):
        assert brokers.count(name, "used") == 1
        assert brokers.count(name, "reservations") == 0
    same(brokers)
    # The timers of delivery and reservations are over.
    brokers.clock.advance(60)
    assert brokers.clock.getDelayedCalls() == []


def test_a_reservation_that_cannot_be_delivered_is_denied() -> None:
    brokers = Brokers("a", "b")
    brokers.server("b", "cs1")
    brokers.settle()
    brokers.network.held.add(("a", "b"))
    granted = brokers.granted("a", "context-inn", "user-joe")
    answered: list[bool] = []
    assert granted.delivered is not None
    granted.delivered.addCallback(answered.append)
    brokers.clock.advance(DELIVERY_SECONDS + 0.1)
    assert answered == [False]
    assert brokers.count("a", "reservations") == 0
    # The end of the link answers at once.
    granted = brokers.granted("a", "context-inn", "user-joe")
    assert granted.delivered is not None
    granted.delivered.addCallback(answered.append)
    brokers.network.down("a", "b")
    assert answered == [False, False]


def test_without_a_link_nobody_is_sent_to_a_server_there() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("b", "cs1")
    server.open("context-inn", "user-joe")
    brokers.settle()
    brokers.network.down("a", "b")
    assert brokers.directors["a"].find_user("user-joe").on
    denied = brokers.reserve("a", "context-inn")
    assert isinstance(denied, Denied)
    assert denied.text in (SERVER_FAILING, "server full")
    assert isinstance(brokers.reserve("a", "context-other"), Denied)
    brokers.server("a", "cs2")
    assert brokers.granted("a", "context-other").hostport == "cs2:1"
    check(brokers.directors["a"])
    brokers.clock.advance(HELD_SECONDS)
    brokers.settle()
    assert not brokers.directors["a"].find_user("user-joe").on
    assert brokers.directors["a"].providers() == ["cs2"]
    assert brokers.granted("a", "context-inn").hostport == "cs2:1"
    check(brokers.directors["a"])


def test_a_link_that_returns_changes_only_what_has_changed() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("b", "cs1")
    server.open("context-inn", "user-joe", "user-ann")
    server.open("context-bar", "user-bob")
    brokers.settle()
    watcher = Watcher()
    for user in ("user-joe", "user-ann", "user-bob", "user-new"):
        brokers.directors["a"].watch_user(watcher, user)
    brokers.network.down("a", "b")
    server.link.exited("context-inn", "user-ann")
    server.link.closed("context-bar")
    server.link.entered("context-inn", "user-new")
    brokers.clock.advance(HELD_SECONDS / 2)
    assert watcher.places == []
    brokers.network.up("a", "b")
    brokers.settle()
    assert sorted(watcher.places, key=str) == sorted(
        [UserPlace("user-new", ("context-inn",)), UserPlace("user-ann"), UserPlace("user-bob")], key=str
    )
    same(brokers)
    assert brokers.granted("a", "context-inn").hostport == "cs1:1"
    brokers.clock.advance(HELD_SECONDS)
    same(brokers)
    assert brokers.directors["a"].find_user("user-joe").on


def test_a_server_with_a_connection_to_each_director_counts_once() -> None:
    brokers = Brokers("a", "b", "c")
    sides = [brokers.server(name, "cs1", capacity=5) for name in ("a", "b")]
    brokers.settle()
    brokers.server("c", "other", families=())
    granted = brokers.granted("c", "context-inn", "user-joe")
    brokers.settle()
    told = [side.take() for side in sides]
    assert [order for orders in told for order in orders] == [DoReserve("context-inn", "user-joe", granted.reservation)]
    for side in sides:
        side.open("context-inn", "user-joe-1", yours=bool(told.pop(0)))
    brokers.settle()
    same(brokers)
    for name in ("a", "b", "c"):
        assert brokers.count(name, "providers") == 2
        assert brokers.count(name, "users") == 1
        assert brokers.count(name, "hidden_contexts") == 0
        assert brokers.count(name, "used") == 1
    assert brokers.directors["a"].say("context-inn", None, "hi") == 1
    assert brokers.directors["c"].say("context-inn", None, "ho") == 1
    brokers.settle()
    heard = [order for side in sides for order in side.take()]
    assert sorted(map(str, heard)) == sorted(map(str, (Say("context-inn", None, "hi"), Say("context-inn", None, "ho"))))
    sides[0].link.leave()
    brokers.settle()
    assert brokers.directors["c"].find_user("user-joe").on
    same(brokers)


def opened_twice(brokers: Brokers, first: Side, second: Side) -> None:
    """Users of two brokers are sent to two servers with the same context, before either director knows of the other."""
    brokers.network.slowest = 0.2
    one, two = brokers.granted("a", "context-inn", "user-ann"), brokers.granted("b", "context-inn", "user-bob")
    assert (one.hostport, two.hostport) == ("cs1:1", "cs2:1")
    first.take(), second.take()
    first.open("context-inn", "user-ann-1", yours=True)
    second.open("context-inn", "user-bob-1", yours=True)
    brokers.settle(3)


@pytest.mark.parametrize("seed", range(20))
def test_two_directors_that_open_the_same_context_at_once_agree(seed: int) -> None:
    brokers = Brokers("a", "b", "c", seed=seed)
    first, second = brokers.server("a", "cs1"), brokers.server("b", "cs2")
    # Each is the less loaded one where the request is made, before the loads are known elsewhere.
    brokers.network.held.update([("a", "b"), ("b", "a")])
    first.link.load(0.1)
    second.link.load(0.1)
    for pair in (("a", "b"), ("b", "a")):
        brokers.network.release(*pair)
    for name, label in (("a", "cs1"), ("b", "cs2")):
        selection = brokers.directors[name]._farm.selection
        server = brokers.directors[name]._farm.server_at("tcp", f"{label}:1")
        assert server is not None
        selection.load(server, 0.0)
    opened_twice(brokers, first, second)
    # The server with the lower address loses, at all three, and is told once, by its own director.
    assert first.take() == [Close("context-inn", None, dup=True)]
    assert second.take() == []
    for name in ("a", "b", "c"):
        assert brokers.directors[name].find_context("context-inn").provider == "cs2"
        assert brokers.count(name, "hidden_contexts") == 1
        assert brokers.directors[name].find_user("user-bob").on
    first.link.closed("context-inn")
    brokers.settle(3)
    same(brokers)
    for name in ("a", "b", "c"):
        assert brokers.count(name, "hidden_contexts") == 0
        assert brokers.granted(name, "context-inn", f"user-{name}").hostport == "cs2:1"


def test_placements_at_two_servers_converge() -> None:
    brokers = Brokers("a", "b")
    brokers.server("a", "cs1")
    brokers.settle()
    brokers.network.held.update([("a", "b"), ("b", "a")])
    brokers.server("b", "cs2")
    assert brokers.granted("a", "context-inn", "user-ann").hostport == "cs1:1"
    brokers.directors["b"]._farm.selection.load(brokers.directors["b"]._farm.server_at("tcp", "cs1:1"), 9.0)  # type: ignore[arg-type]
    assert brokers.granted("b", "context-inn", "user-bob").hostport == "cs2:1"
    for pair in (("a", "b"), ("b", "a")):
        brokers.network.release(*pair)
    brokers.settle()
    assert {brokers.granted(name, "context-inn", f"user-{name}").hostport for name in ("a", "b")} == {"cs2:1"}
    brokers.settle()
    same(brokers)


def test_limits_of_a_user_hold_for_all_directors() -> None:
    brokers = Brokers("a", "b", settings=DirectorSettings(user_reservations=3))
    brokers.server("a", "cs1")
    brokers.settle()
    for number in range(6):
        brokers.granted("ab"[number % 2], f"context-{number}", "user-joe")
        brokers.settle()
    for name in ("a", "b"):
        assert brokers.count(name, "reservations") == 3
        assert brokers.count(name, "replaced") == 3
    check(brokers.directors["a"])
    check(brokers.directors["b"])


@pytest.mark.parametrize("seed", range(10))
def test_a_user_that_asks_two_directors_at_once_counts_once(seed: int) -> None:
    brokers = Brokers("a", "b", "c", seed=seed, slowest=0.1)
    brokers.server("a", "cs1")
    brokers.server("b", "cs2")
    brokers.settle()
    for name in ("a", "b", "a"):
        brokers.granted(name, "context-inn", "user-joe")
    brokers.settle(3)
    held = []
    for name in ("a", "b", "c"):
        check(brokers.directors[name])
        [reservation] = brokers.directors[name]._reservations
        held.append(reservation.origin)
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("seconds", [1.0, HELD_SECONDS - 1.0])
def test_a_director_that_restarts_gets_its_reservations_back(seconds: float) -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("a", "cs1", capacity=2)
    server.open("context-inn", "user-ann", maxcap=2)
    brokers.settle()
    granted = brokers.granted("a", "context-inn", "user-joe")
    brokers.settle()
    brokers.kill("a")
    brokers.clock.advance(seconds)
    brokers.start("a")
    brokers.settle(0.2)
    assert brokers.directors["b"].find_user("user-ann").on
    # The server is back, and its user still on the way.
    server = brokers.server("a", "cs1", capacity=2)
    server.open("context-inn", "user-ann", maxcap=2)
    brokers.settle(0.2)
    for name in ("a", "b"):
        assert brokers.count(name, "reservations") == 1
        denied = brokers.reserve(name, "context-inn", "user-bob")
        assert isinstance(denied, Denied), granted
    same(brokers)
    server.link.entered("context-inn", "user-joe-8")
    brokers.settle()
    for name in ("a", "b"):
        assert brokers.count(name, "reservations") == 0
        assert brokers.count(name, "used") == 1
    brokers.clock.advance(HELD_SECONDS)
    brokers.settle()
    same(brokers)


def test_a_director_that_is_shut_down_takes_its_servers_with_it() -> None:
    brokers = Brokers("a", "b")
    brokers.server("a", "cs1").open("context-inn", "user-joe")
    brokers.settle()
    brokers.directors["a"].stop(farewell=True)
    brokers.settle()
    assert brokers.directors["b"].providers() == []
    assert brokers.clock.getDelayedCalls() == []


def test_a_server_that_changes_its_broker_stays_one() -> None:
    brokers = Brokers("a", "b", "c")
    brokers.server("a", "cs1").open("context-inn", "user-joe")
    brokers.settle()
    watcher = Watcher()
    brokers.directors["c"].watch_user(watcher, "user-joe")
    brokers.kill("a")
    brokers.settle()
    server = brokers.server("b", "cs1")
    server.open("context-inn", "user-joe")
    brokers.settle()
    assert brokers.granted("c", "context-inn").hostport == "cs1:1"
    brokers.clock.advance(HELD_SECONDS)
    brokers.settle()
    assert watcher.places == []
    same(brokers)


def test_other_versions_and_invalid_messages_are_ignored() -> None:
    brokers = Brokers("a", "b")
    director = brokers.directors["a"]
    for frames in ([b""], [b"[]"], [b'["future",1]', b'["left",5]'], [b"\xff"], [b"[" * 100_000], [], [b'["grant",1]']):
        director.receive("b", frames)
    assert director.counts()["reports_invalid"] >= 5
    assert director.counts()["reports_refused"] == 1
    director.receive("z", [b'["hello",99,1]', b'["begin"]', b'["joined",1,"x"]'])
    director.receive("nobody", [b'["joined",1,"x"]', b'["told",1,"Reinit"]'])
    assert director.counts()["remote_links"] == 0
    director.receive("b", [b'["joined",1,"x"]', b'["joined",1,"y"]', b'["judged",1,"nonsense"]', b'["told",7,"Fly"]'])
    assert director.counts()["remote_links"] == 1
    assert director.counts()["reports_refused"] == 3
    check(director)


def test_an_address_that_comes_late_decides_alike_at_all() -> None:
    brokers = Brokers("a", "b")
    brokers.server("a", "cs1").open("context-inn", "user-ann")
    late = brokers.server("b", "cs2", addresses={})
    late.open("context-inn", "user-bob", yours=True)
    brokers.settle()
    assert brokers.directors["a"].find_context("context-inn").provider == "cs1"
    late.link.address("tcp", "cs2:1")
    brokers.settle()
    brokers.start("c")
    brokers.settle()
    for director in brokers.directors.values():
        assert director.find_context("context-inn").provider == "cs2"
        check(director)


def test_a_duplicate_is_closed_by_another_broker_if_its_own_one_dies() -> None:
    brokers = Brokers("a", "b")
    sides = [brokers.server(name, "cs1") for name in ("a", "b")]
    rival = brokers.server("b", "cs2")
    brokers.settle()
    brokers.network.held.add(("b", "a"))
    rival.open("context-inn")
    sides[1].open("context-inn", yours=True)
    brokers.settle()
    assert sides[1].take() == []  # that is for the director at a, which does not know yet
    brokers.kill("a")
    assert sides[1].take() == [Close("context-inn", None, dup=True)]
