"""Directors of several brokers: one decides, the others are warm, and none is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.defer import maybeDeferred

from broker.core.director.director_interfaces import Denied, DirectorSettings, DoReserve, Granted, Request
from broker.core.director.farm_record import RECORD_SECONDS
from broker.core.director.linked_director import ANSWER_SECONDS, CHANNEL, State
from broker.core.director.returning import SETTLE, WITHIN
from broker.core.errors import Reason, Refusal
from tests.core.director.linked import Brokers
from tests.core.director.rig import check
from tests.examples import sampled


def checked(brokers: Brokers) -> None:
    for director in brokers.directors.values():
        check(director)


def test_one_becomes_active_and_decides_about_the_requests_at_all() -> None:
    brokers = Brokers("a", "b", "c")
    servers = [brokers.server("cs1"), brokers.server("cs2")]
    assert brokers.warm() == "a"
    assert [brokers.directors[name].decider for name in "abc"] == ["a", "a", "a"]
    granted = [brokers.granted(name, "context-inn", f"user-{name}") for name in "abc"]
    [hostport] = {each.hostport for each in granted}
    server = brokers.at(granted[0])
    assert hostport == server.hostport
    # Over the connection to the active one alone, before the answers.
    assert server.lines["a"].heard == [
        DoReserve("context-inn", f"user-{name}", each.reservation) for name, each in zip("abc", granted, strict=True)
    ]
    assert [server.lines[name].heard for name in "bc"] == [[], []]
    assert all(server.enter(each) for each in granted)
    assert sum(each.opened for each in servers) == 1
    assert [brokers.count(name, "forwarded") for name in "abc"] == [0, 1, 1]
    assert [brokers.count(name, "granted") for name in "abc"] == [3, 0, 0]
    # What was granted elsewhere is used here, too.
    assert [brokers.count(name, "reservations") for name in "abc"] == [0, 0, 0]
    checked(brokers)


@pytest.mark.parametrize("seed", sampled(range(30)))
def test_users_that_ask_two_directors_at_once_open_a_context_once(seed: int) -> None:
    brokers = Brokers("a", "b", "c", seed=seed, slowest=0.05)
    servers = [brokers.server(f"cs{number}") for number in range(4)]
    if seed % 3:
        brokers.warm()  # otherwise there is no active one yet
    if seed % 3 == 2:
        brokers.kill("a")
    random = brokers.claims.random
    for race in range(10):
        names = random.sample(sorted(brokers.directors), 2)
        answers = [brokers.ask(name, f"context-r{race}", f"user-u{name}") for name in names]
        brokers.settle()
        one, two = (brokers.at(each[0]) for each in answers)
        assert one is two
        assert all(brokers.at(each[0]).enter(each[0]) for each in answers)  # type: ignore[arg-type]
    assert sum(each.opened for each in servers) == 10
    assert not any(each.closed_as_duplicates for each in servers)
    checked(brokers)


def test_the_end_of_the_active_director_loses_no_user() -> None:
    brokers = Brokers("a", "b", "c")
    servers = [brokers.server("cs1"), brokers.server("cs2")]
    assert brokers.warm() == "a"
    there = [brokers.granted(broker, f"context-{number}", f"user-{number}") for number, broker in enumerate("abcabc")]
    assert all(brokers.at(each).enter(each) for each in there)
    # On the way when it ends: one that the other directors have not heard of, and one that "b" has forwarded.
    late = [brokers.granted("a", "context-late", "user-late"), brokers.granted("b", "context-soon", "user-soon")]
    brokers.kill("a")
    # At once, without a claim.
    again = [brokers.granted(broker, "context-0", f"user-new-{broker}") for broker in "bc"]
    assert all(brokers.at(each) is brokers.at(there[0]) for each in again)
    assert all(brokers.at(each).enter(each) for each in late)
    for broker in "bc":
        director = brokers.directors[broker]
        assert {user.rpartition("-")[0] for user in director.users()} == {
            *(f"user-{number}" for number in range(6)),
            "user-late",
            "user-soon",
        }
    assert not any(each.closed_as_duplicates for each in servers)
    brokers.expire("a")
    brokers.settle(2)
    assert brokers.active() == "b"
    assert brokers.directors["c"].decider == "b"
    assert brokers.at(brokers.granted("c", "context-late", "user-c")) is brokers.at(late[0])
    checked(brokers)


def test_what_another_one_granted_counts_after_its_end() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1")
    brokers.server("cs2")
    server.open("context-cell", maxcap=1)
    brokers.warm()
    brokers.granted("b", "context-cell", "user-joe")
    new = brokers.granted("b", "context-new", "user-joe")
    brokers.kill("a")
    [denied] = brokers.ask("b", "context-cell", "user-ann")
    assert isinstance(denied, Denied)
    assert denied.text == "requested context full"
    # Not opened yet: the next user goes to the same server.
    [granted] = brokers.ask("b", "context-new", "user-ann")
    assert brokers.at(granted) is brokers.at(new)
    checked(brokers)


def test_reservations_of_several_connections_stay_apart_at_the_other_directors() -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    assert brokers.warm() == "a"
    for broker in "aab":
        brokers.granted(broker, "context-inn", most=1)
    # Anonymous users have one reservation for a context each.
    assert [brokers.count(name, "reservations") for name in "ab"] == [3, 3]
    checked(brokers)


def test_a_director_that_does_not_answer_is_not_waited_for() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1")
    brokers.warm()
    brokers.network.held.add(("b", "a"))
    answers = brokers.ask("b", "context-inn", "user-joe")
    brokers.settle(ANSWER_SECONDS - 0.1)
    assert not answers
    brokers.settle(0.2)
    [granted] = answers
    assert isinstance(granted, Granted)
    assert server.lines["b"].heard == [DoReserve("context-inn", "user-joe", granted.reservation)]
    # The next ones are answered at once, for a while.
    [granted] = brokers.ask("b", "context-inn", "user-ann")
    assert isinstance(granted, Granted)
    assert brokers.count("b", "unanswered") == 1
    brokers.network.release("b", "a")
    brokers.settle(ANSWER_SECONDS)
    # The answer that comes late is not given to anybody.
    assert len(answers) == 1
    assert brokers.directors["b"].decider == "a"
    checked(brokers)


def test_the_end_of_the_link_decides_what_waits() -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.warm()
    brokers.network.held.add(("b", "a"))
    answers = brokers.ask("b", "context-inn", "user-joe", by="joe")
    assert brokers.directors["b"].reserved("joe") == 1
    brokers.network.down("a", "b")
    [granted] = answers
    assert isinstance(granted, Granted)
    assert brokers.directors["b"].reserved("joe") == 1


def test_a_server_of_one_director_only_is_used_by_that_one() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1", "b")
    assert brokers.warm() == "a"
    granted = brokers.granted("b", "context-inn", "user-joe")
    assert server.enter(granted)
    [denied] = brokers.ask("a", "context-inn", "user-ann")
    assert isinstance(denied, Denied)
    assert brokers.count("b", "unanswered") == 0


def test_other_refusals_are_answered_as_they_are() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1")
    brokers.warm()
    server.open("context-inn", maxcap=1)
    brokers.granted("b", "context-inn", "user-joe")
    answers = brokers.ask("b", "context-inn", "user-ann")
    brokers.settle()
    [denied] = answers
    assert isinstance(denied, Denied)
    assert (denied.context, denied.text) == ("context-inn", "requested context full")
    with pytest.raises(Refusal, match="has more than 255 characters"):
        brokers.directors["b"].reserve(Request("joe", "tcp", "context-" + 300 * "x", None, False, 9))


def test_the_limits_of_a_user_and_of_a_connection_hold_for_all_directors() -> None:
    brokers = Brokers("a", "b", "c", settings=DirectorSettings(user_reservations=3))
    brokers.server("cs1")
    brokers.warm()
    for number, name in enumerate("bcbcb"):
        brokers.granted(name, f"context-{number}", "user-joe", by=number)
    assert brokers.count("a", "reservations") == 3  # the oldest ones were replaced
    for number in range(2):
        brokers.granted("b", f"context-{number}", by="gate", most=2)
    answers = brokers.ask("b", "context-x", by="gate", most=2)
    brokers.settle()
    [refusal] = answers
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.text) == (
        Reason.LIMIT,
        "too many reservations: this connection has 2 unused ones (director.listeners.limits.reservations)",
    )
    # Those of anonymous users belong to their connections.
    brokers.granted("c", "context-0", by="gate", most=2)
    brokers.granted("c", "context-0", by="gate", most=2)
    assert brokers.count("a", "reservations") == 3 + 2 + 1
    checked(brokers)
    brokers.clock.pump([1.0] * 40)
    assert [brokers.count(name, "reservations") for name in "abc"] == [0, 0, 0]


def test_requests_of_one_connection_that_wait_are_limited() -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.warm()
    brokers.network.held.add(("b", "a"))
    for number in range(3):
        assert not brokers.ask("b", f"context-{number}", by="joe", most=3)
    [refusal] = brokers.ask("b", "context-x", by="joe", most=3)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.LIMIT
    assert "3 requests of this connection wait" in refusal.text


def test_requests_beyond_the_queue_of_the_link_are_decided_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.director.linked_director.MAX_ASKED", 20)
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.warm()
    brokers.network.held.add(("b", "a"))
    answers = [brokers.ask("b", "context-inn", f"user-{number}") for number in range(21)]
    assert [number for number, each in enumerate(answers) if each] == [20]
    brokers.network.release("b", "a")
    brokers.settle()
    assert all(isinstance(each, Granted) for [each] in answers)


def test_a_requester_that_has_gone_gets_nothing() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1")
    brokers.warm()
    for held in (("b", "a"), ("a", "b")):
        brokers.network.held.add(held)
        answer = brokers.directors["b"].reserve(Request("joe", "tcp", "context-inn", "user-joe", False, 9))
        assert not isinstance(answer, Granted)
        answer.addErrback(lambda failure: None)
        answer.cancel()
        brokers.settle(ANSWER_SECONDS + 0.1)
        brokers.network.release(*held)
        brokers.settle(ANSWER_SECONDS)
    assert not server.lines["b"].heard
    assert brokers.directors["b"].reserved("joe") == 0


def test_in_a_partition_each_side_places_users_and_one_context_is_closed_after_it() -> None:
    brokers = Brokers("a", "b", "c")
    servers = {label: brokers.server(label) for label in ("cs1", "cs2")}
    brokers.warm()
    for other in "ab":
        brokers.network.down(other, "c")
    # Each has placed its user before one of them arrives.
    servers["cs1"].lines["c"].link.load(1.0)
    servers["cs2"].lines["a"].link.load(1.0)
    room = "context-inn"
    granted = [brokers.granted(name, room, f"user-{name}") for name in "ac"]
    assert [each.hostport for each in granted] == ["cs1:1", "cs2:1"]
    assert all(brokers.at(each).enter(each) for each in granted)
    brokers.settle()
    # The one with the lower address, at both directors alike; the one whose reservation opened it closes it.
    assert (servers["cs1"].closed_as_duplicates, servers["cs2"].closed_as_duplicates) == ([room], [])
    for other in "ab":
        brokers.network.up(other, "c")
    brokers.settle()
    assert brokers.directors["c"].decider == "a"
    assert {brokers.directors[name].find_context(room).provider for name in "abc"} == {"cs2"}
    assert brokers.at(brokers.granted("c", room, "user-c")) is servers["cs2"]
    checked(brokers)


def test_a_director_without_etcd_forwards_and_the_active_one_gives_way() -> None:
    brokers = Brokers("a", "b", "c")
    brokers.server("cs1")
    assert brokers.warm() == "a"
    # A standby that is cut off still has its link.
    brokers.claims.cut = {"c"}
    brokers.settle(5)
    assert brokers.directors["c"].decider == "a"
    # The active one: when its lease ends, another one claims, and it forwards.
    brokers.claims.cut = {"a"}
    brokers.claims.end("a")
    brokers.settle(5)
    assert brokers.active() == "b"
    assert [brokers.directors[name].decider for name in "abc"] == ["b", "b", "b"]
    # Without any etcd the linked ones agree on one of them all the same.
    brokers.claims.cut = {"a", "b", "c"}
    brokers.claims.end("b")
    brokers.settle(2)
    assert {brokers.directors[name].decider for name in "abc"} == {"a"}
    brokers.claims.cut = set()
    brokers.settle(3)
    assert brokers.active() == "a"
    assert sorted(director.state for director in brokers.directors.values()) == [1, 1, 2]


def test_a_director_that_is_restarted_lets_the_warm_ones_decide() -> None:
    brokers = Brokers("a", "b")
    server = brokers.server("cs1")
    brokers.warm()
    brokers.kill("a")
    back = brokers.start("a")
    # Its claim from before is under a lease that it still has.
    brokers.settle(2)
    assert brokers.active() == "b"
    assert (back.state, back.decider) == (State.STARTING, "b")
    # It has no server yet.
    assert server.enter(brokers.granted("a", "context-inn", "user-joe"))
    server.connect("a")
    brokers.settle(WITHIN)
    assert (back.state, brokers.active()) == (State.STANDBY, "b")


def test_after_a_restart_of_all_brokers_a_request_that_waits_for_its_server_gets_one_place(tmp_path: Path) -> None:
    brokers = Brokers("a", "b")

    def keep_records() -> None:
        for name, director in brokers.directors.items():
            director.keep_record(brokers.clock, maybeDeferred, str(tmp_path / name), WITHIN)

    keep_records()
    server = brokers.server("cs1")
    server.open("context-inn")
    brokers.settle(RECORD_SECONDS + 1)
    for name in "ab":
        brokers.kill(name)
        brokers.expire(name)
    brokers.start("a", link=False)
    brokers.start("b")
    keep_records()
    brokers.settle()
    assert (brokers.directors["b"].state, brokers.directors["b"].decider) == (State.STARTING, "a")
    answers = brokers.ask("b", "context-inn", "user-joe")
    brokers.settle(ANSWER_SECONDS + 1)
    assert answers == []
    server.connect("a", "b")
    brokers.settle(SETTLE + 1)
    assert brokers.at(*answers) is server
    assert [name for _, _, name in server.admits.values()] == ["b"]
    assert [brokers.count(name, "reservations") for name in "ab"] == [1, 1]


def test_a_director_that_stops_gives_the_claim_away() -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.warm()
    answers = brokers.ask("b", "context-inn", "user-joe")
    brokers.directors["a"].retire()
    brokers.settle(2)
    assert brokers.active() == "b"
    assert isinstance(answers[0], Granted)
    # It is alone then: its connections end in order.
    assert isinstance(brokers.ask("a", "context-inn", "user-ann")[0], Granted)
    assert brokers.offers["b"][-1] == []
    assert [each.hostport for each in brokers.directors["a"].elsewhere()] == ["b:9010"]


def test_the_listeners_of_each_are_announced_at_all() -> None:
    brokers = Brokers("a", "b", "c")
    assert sorted(brokers.offers["a"][-1]) == ["b:9010", "c:9010"]
    told = len(brokers.offers["a"])
    # A link that ends withdraws nothing: Context Servers would connect once more to each director.
    brokers.network.down("a", "b")
    brokers.network.up("a", "b")
    brokers.settle()
    assert len(brokers.offers["a"]) == told
    # After a restart they have to connect again, for which they must find it again.
    brokers.kill("b")
    brokers.start("b")
    brokers.settle()
    assert [sorted(each) for each in brokers.offers["a"][told:]] == [["c:9010"], ["b:9010", "c:9010"]]
    brokers.kill("c")
    brokers.settle()
    assert sorted(brokers.offers["a"][-1]) == ["b:9010", "c:9010"]
    brokers.expire("c")
    assert brokers.offers["a"][-1] == ["b:9010"]
    # A broker without etcd is no member; while its link is open its director is there.
    told = len(brokers.offers["a"])
    brokers.table.set("b", None)
    assert len(brokers.offers["a"]) == told
    brokers.network.down("a", "b")
    assert brokers.offers["a"][-1] == []


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xff"],
        [b"[]"],
        [b'["what"]'],
        [b'["ask",1]'],
        [b'["ask","1",2,"tcp","context-inn",null,false,9]'],
        [b"[" * 100_000],
    ],
)
def test_unreadable_messages_are_counted(frames: list[bytes]) -> None:
    brokers = Brokers("a", "b")
    brokers.network.send("b", "a", CHANNEL, frames)
    brokers.settle()
    assert brokers.count("a", "invalid") == 1


@pytest.mark.parametrize(
    "text",
    [
        '["ask",1,2,"tcp","context-inn",null,false,9]',
        '["grant",7,"context-inn","cs1:1","1"]',
        '["deny",7,null,"no","what"]',
        '["bye"]',
        '["hello",1,77,[]]',
        '["hello",1,0,[["director-user","x:1","tcp",null,"more"]],"more"]',
    ],
)
def test_messages_of_a_newer_or_unknown_director_do_no_harm(text: str) -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.network.send("b", "a", CHANNEL, [text.encode()])
    brokers.settle()
    assert brokers.count("a", "invalid") == 0
    assert isinstance(brokers.ask("a", "context-inn", "user-joe")[0], Granted)


def test_the_end_leaves_no_timer() -> None:
    brokers = Brokers("a", "b")
    brokers.server("cs1")
    brokers.warm()
    brokers.network.held.add(("b", "a"))
    brokers.ask("b", "context-inn", "user-joe")
    for name in ("a", "b"):
        brokers.directors[name].stop()
        brokers.directors[name].stop()
    brokers.clock.pump([1.0] * 40)
    assert brokers.clock.getDelayedCalls() == []
