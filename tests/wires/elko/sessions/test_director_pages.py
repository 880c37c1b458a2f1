"""Dumps and lists, long ones too: they are written page by page, and keep their place among the answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from broker.wires.elko.sessions.director_pages import MAX_ASKED, MAX_BEHIND, PAGE, READ_POLL_INTERVAL
from tests.wires.elko.director_recording import DirectorFarm, opens
from tests.wires.recording import Client

HELD = 0.05
"""Seconds for which a page may hold up everybody else."""


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


@pytest.fixture
def small(farm: DirectorFarm) -> DirectorFarm:
    """A farm of two servers, one of which has nothing."""
    server = farm.server("cs1", capacity=9)
    opens(server, "context-a", "user-1", "user-2")
    opens(server, "context-c-1", "user-3")
    opens(server, "context-c-2")
    server.say("provider", "load", factor=1)
    farm.server("idle")
    return farm


def large(farm: DirectorFarm, servers: int = 5, contexts: int = 100, users: int = 10) -> None:
    """A farm whose dump has many pages."""
    for number in range(servers):
        server = farm.server(f"cs{number}")
        for context in range(contexts):
            name = f"context-{number}-{context}"
            opens(server, name, *(f"user-{name}-{user}" for user in range(users)))


def provider(
    label: str, numcontexts: int, numusers: int, load: float, capacity: int = -1, **more: Any
) -> dict[str, Any]:
    return {
        "type": "providerdesc",
        "provider": label,
        "numcontexts": numcontexts,
        "numusers": numusers,
        "load": load,
        "capacity": capacity,
        "hostports": [f"{label}:9000"],
        "protocols": ["tcp"],
        "serving": ["context"],
        **more,
    }


def context(name: str, *users: str, shown: bool = True) -> dict[str, Any]:
    desc = {"type": "contextdesc", "context": name, "numusers": len(users)}
    return {**desc, "users": list(users)} if shown else desc


HEAD = {"to": "admin", "op": "dump"}
COUNTS = {"numproviders": 2, "numcontexts": 3, "numusers": 3}


@pytest.mark.parametrize("depth", [-1, 0, 0.9])
def test_a_dump_of_no_depth_only_counts(small: DirectorFarm, depth: float) -> None:
    [answer] = small.admin().ask("admin", "dump", depth=depth)
    assert answer == {**HEAD, **COUNTS}
    assert list(answer) == ["to", "op", "numproviders", "numcontexts", "numusers"]


def test_a_dump_of_depth_one_has_the_servers(small: DirectorFarm) -> None:
    [answer] = small.admin().ask("admin", "dump", depth=1)
    providers = [provider("idle", 0, 0, 0.0), provider("cs1", 3, 3, 1.0, 9)]
    assert answer == {**HEAD, **COUNTS, "providers": providers}
    assert list(answer["providers"][0]) == list(providers[0])


def test_a_dump_of_depth_two_has_the_contexts(small: DirectorFarm) -> None:
    contexts = [
        context("context-a", "user-1", "user-2", shown=False),
        context("context-c-1", "user-3", shown=False),
        context("context-c-2", shown=False),
    ]
    providers = [provider("idle", 0, 0, 0.0), provider("cs1", 3, 3, 1.0, 9, contexts=contexts)]
    assert small.admin().ask("admin", "dump", depth=2) == [{**HEAD, **COUNTS, "providers": providers}]


@pytest.mark.parametrize("depth", [3, 4, 1e300])
def test_a_dump_of_depth_three_has_the_users(small: DirectorFarm, depth: float) -> None:
    contexts = [context("context-a", "user-1", "user-2"), context("context-c-1", "user-3"), context("context-c-2")]
    providers = [provider("idle", 0, 0, 0.0), provider("cs1", 3, 3, 1.0, 9, contexts=contexts)]
    [answer] = small.admin().ask("admin", "dump", depth=depth)
    for each in answer["providers"][1]["contexts"]:
        each["users"].sort()
    assert answer == {**HEAD, **COUNTS, "providers": providers}


def test_a_dump_of_an_empty_farm(farm: DirectorFarm) -> None:
    counts = {"numproviders": 0, "numcontexts": 0, "numusers": 0}
    assert farm.admin().ask("admin", "dump", depth=3) == [{**HEAD, **counts}]


@pytest.mark.parametrize(
    ("of", "counts", "labels"),
    [
        ({"provider": "cs1"}, (1, 3, 3), ["cs1"]),
        ({"provider": "idle:9000"}, (1, 0, 0), ["idle"]),
        ({"provider": "none"}, (0, 0, 0), []),
        ({"context": "context-a"}, (1, 1, 2), ["cs1"]),
        ({"context": "context-none"}, (0, 0, 0), []),
        ({"context": "context-a", "provider": "idle"}, (0, 0, 0), []),
    ],
)
def test_a_dump_of_a_part(
    small: DirectorFarm, of: dict[str, str], counts: tuple[int, int, int], labels: list[str]
) -> None:
    [answer] = small.admin().ask("admin", "dump", depth=3, **of)
    assert (answer["numproviders"], answer["numcontexts"], answer["numusers"]) == counts
    assert [each["provider"] for each in answer.get("providers", [])] == labels


def test_a_large_dump_is_whole_and_takes_many_turns(farm: DirectorFarm) -> None:
    large(farm, contexts=400)
    admin = farm.admin()
    assert admin.ask("admin", "dump", depth=3) == [], "it is not sent before it is complete"
    turns = 0
    while not admin.peer.written:
        farm.clock.turn()
        turns += 1
    [answer] = admin.take()
    assert (answer["numproviders"], answer["numcontexts"], answer["numusers"]) == (5, 2_000, 20_000)
    contexts = [each for one in answer["providers"] for each in one["contexts"]]
    assert len(contexts) == 2_000
    assert {len(each["users"]) for each in contexts} == {10}
    assert turns > 5
    assert farm.clock.getDelayedCalls() == []


@pytest.mark.long
def test_no_turn_is_long(farm: DirectorFarm) -> None:
    large(farm, contexts=2_000, users=4)
    admin = farm.admin()
    longest = 0.0
    for op, parameters in (("dump", {"depth": 3}), ("listusers", {}), ("listcontexts", {})):
        begun = time.process_time()
        admin.say("admin", op, **parameters)
        longest = max(longest, time.process_time() - begun)
        while not admin.peer.written:
            begun = time.process_time()
            farm.clock.turn()
            longest = max(longest, time.process_time() - begun)
        assert len(admin.take()) == 1
    assert longest < HELD


def test_answers_come_in_the_order_of_the_questions(farm: DirectorFarm) -> None:
    large(farm)
    server, admin = farm.server("other"), farm.admin()
    admin.say("admin", "watch", context="context-late")
    admin.take()
    for op, parameters in (
        ("dump", {"depth": 3}),
        ("ping", {"tag": "1"}),
        ("listusers", {}),
        ("dump", {"depth": 0}),
        ("find", {"user": "user-none"}),
        ("listproviders", {}),
        ("ping", {"tag": "2"}),
    ):
        assert admin.ask("admin", op, **parameters) == []
    opens(server, "context-late")
    farm.settle()
    ops = [message["op"] for message in admin.take()]
    assert ops == ["dump", "pong", "listusers", "dump", "user", "listproviders", "pong", "context"]
    assert admin.ask("admin", "ping", tag="3") == [{"to": "admin", "op": "pong", "tag": "3"}]


def test_a_change_in_the_middle_of_a_dump_does_no_harm(farm: DirectorFarm) -> None:
    large(farm)
    extra, admin = farm.server("extra"), farm.admin()
    opens(extra, "context-extra", "user-extra")
    admin.say("admin", "dump", depth=3)
    extra.drop()
    for number in range(100):
        farm.clock.turn()
        opens(farm.server(f"new{number}"), f"context-new-{number}")
    farm.settle()
    [answer] = admin.take()
    assert {f"cs{number}" for number in range(5)} <= {each["provider"] for each in answer["providers"]}


def test_receivers_take_turns(farm: DirectorFarm) -> None:
    large(farm)
    greedy, modest = farm.admin(), farm.admin()
    for _ in range(3):
        greedy.say("admin", "dump", depth=3)
    modest.say("admin", "dump", depth=3)
    while not modest.peer.written:
        farm.clock.turn()
    assert [each["op"] for each in greedy.take()] == ["dump"], "its second one comes after the other's first"
    farm.settle()
    assert len(greedy.take()) == 2


def test_a_receiver_that_is_behind_gets_the_next_answer_when_it_has_read_and_keeps_nobody_waiting(
    farm: DirectorFarm,
) -> None:
    large(farm)
    slow, slower, quick = farm.admin(), farm.admin(), farm.admin()
    for each in (slow, slower, slow, slower):
        each.say("admin", "dump", depth=3)
    slow.peer.behind = slower.peer.behind = True  # from the first on
    slow.say("admin", "ping")
    farm.settle()
    assert [answer["op"] for answer in slow.take()] == ["dump"]
    quick.say("admin", "dump", depth=3)
    farm.settle()
    assert [answer["op"] for answer in quick.take()] == ["dump"]
    farm.clock.advance(1)
    assert slow.take() == []
    slow.peer.behind = False
    farm.clock.advance(READ_POLL_INTERVAL)
    assert [answer["op"] for answer in slow.take()] == ["dump", "pong"]
    assert slower.take() == []
    slower.peer.behind = False
    farm.clock.advance(READ_POLL_INTERVAL)
    assert len(slower.take()) == 2
    assert not farm.clock.getDelayedCalls()


def test_a_receiver_that_is_behind_and_goes_is_forgotten(farm: DirectorFarm) -> None:
    large(farm)
    slow = farm.admin()
    slow.peer.behind = True
    slow.say("admin", "dump", depth=3)
    slow.session.lost()
    farm.clock.advance(READ_POLL_INTERVAL)
    assert not farm.clock.getDelayedCalls()


@pytest.mark.long
def test_only_so_many_answers_may_be_asked_for(farm: DirectorFarm) -> None:
    large(farm)
    admin = farm.admin()
    for _ in range(MAX_ASKED):
        admin.say("admin", "dump", depth=3)
    admin.say("admin", "dump", depth=3)
    assert admin.reasons == [Reason.LIMIT.code]
    farm.settle()
    ops = [message["op"] for message in admin.take()]
    assert ops == ["dump"] * MAX_ASKED + ["debug"]
    assert not admin.closed


def test_only_so_much_may_wait_behind_an_answer(farm: DirectorFarm) -> None:
    large(farm)
    admin, tag = farm.admin(), "x" * 500_000
    admin.say("admin", "dump", depth=3)
    for _ in range(MAX_BEHIND // len(tag) + 1):
        admin.say("admin", "ping", tag=tag)
    assert admin.closed
    assert admin.reasons == [Reason.NOT_READING.code]
    farm.settle()
    assert admin.take() == []


def test_a_receiver_that_goes_does_not_keep_the_others_waiting(farm: DirectorFarm) -> None:
    large(farm)
    gone, waiting = farm.admin(), farm.admin()
    gone.say("admin", "dump", depth=3)
    waiting.say("admin", "dump", depth=3)
    gone.drop()
    farm.settle()
    assert gone.take() == []
    assert len(waiting.take()) == 1


@pytest.mark.long
@pytest.mark.parametrize("end", ["half-close", "disconnect"])
def test_who_says_good_bye_is_still_answered(farm: DirectorFarm, end: str) -> None:
    large(farm)
    admin = farm.admin()
    admin.say("admin", "dump", depth=3)
    if end == "half-close":
        assert admin.session.input_ended() is True
    else:
        admin.say("admin", "disconnect")
        admin.say("admin", "listusers")
        admin.say("director", "ping")
    assert not admin.closed
    farm.settle()
    assert [message["op"] for message in admin.take()] == ["dump"]
    assert admin.closed


@pytest.mark.long
def test_a_defect_costs_the_answers_of_one_receiver_only(farm: DirectorFarm) -> None:
    large(farm)
    one, other = farm.admin(), farm.admin()
    one.say("admin", "dump", depth=3)
    other.say("admin", "listproviders")
    broken = one.session._outbox  # type: ignore[attr-defined]
    broken._parts = (int(text).to_bytes() for text in ["no number"])
    with capturedLogs() as logged:
        farm.settle()
    assert [event["log_failure"].type for event in logged if "log_failure" in event] == [ValueError]
    assert one.take() == []
    assert len(other.take()) == 1
    assert one.ask("admin", "ping") == [{"to": "admin", "op": "pong"}]


def test_a_page_is_about_as_long_as_it_says(farm: DirectorFarm) -> None:
    large(farm)
    admin: Client = farm.admin()
    admin.say("admin", "dump", depth=3)
    turns = 1
    while not admin.peer.written:
        farm.clock.turn()
        turns += 1
    assert PAGE / 2 < len(admin.peer.written[0]) / turns < 2 * PAGE
