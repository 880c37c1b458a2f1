"""The director after a restart: requests wait for recorded servers, and are placed where their contexts are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from broker.core.damage import checksum
from broker.core.director.director_interfaces import Granted, Request
from broker.core.director.farm_record import FRESH_SECONDS, RECORD_SECONDS, RecordedServer, decode, encode, read
from broker.core.director.returning import AT_ONCE, LOOK_EVERY, MAX_WAITING, SETTLE, WITHIN
from broker.core.errors import Reason
from tests.core.director.rig import Rig, Side


def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    return maybeDeferred(function, *arguments)


class Restarted:
    """A director that keeps its record in a file, and its successors."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "director.json")
        self.rig = Rig()
        self.start()

    def start(self) -> None:
        self.rig.director.keep_record(self.rig.clock, in_thread, self.path, WITHIN)

    def restart(self, after: float = 1.0) -> Rig:
        """The broker is killed, once the record is written, and starts again."""
        self.rig.clock.advance(RECORD_SECONDS)
        before = self.rig.clock.seconds()
        self.rig = Rig()
        self.rig.clock.advance(before + after)
        self.start()
        return self.rig

    def asks(self, context: str, user: str = "user-joe", by: object = None, most: int = 10) -> list[Any]:
        """A user asks for a context. The list gets the answer when there is one."""
        answers: list[Any] = []
        request = Request(object() if by is None else by, "tcp", context, user, False, most)
        maybeDeferred(self.rig.director.reserve, request).addBoth(
            lambda answer: answers.append(answer.value if isinstance(answer, Failure) else answer)
        )
        return answers

    def wait(self, seconds: float) -> None:
        self.rig.clock.pump([LOOK_EVERY / 2] * round(2 * seconds / LOOK_EVERY))


@pytest.fixture
def farm(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


def place(answers: list[Any]) -> str:
    [answer] = answers
    assert isinstance(answer, Granted), answer
    return answer.hostport


def test_a_user_waits_for_the_server_of_a_recorded_context(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    farm.rig.server("two")
    rig = farm.restart()
    other = rig.server("two")  # returns first, and must not open the inn a second time
    answers = farm.asks("context-inn")
    farm.wait(5)
    assert answers == []
    assert rig.director.counts()["waiting"] == 1
    one = rig.server("one")
    one.open("context-inn")
    farm.wait(2 * LOOK_EVERY)
    assert place(answers) == "one:1"
    # The server has received the reservation before the user is answered.
    assert [type(order).__name__ for order in one.heard] == ["DoReserve"]
    assert other.heard == []


def test_a_user_of_another_context_waits_only_if_no_server_is_there(farm: Restarted) -> None:
    farm.rig.server("one")
    rig = farm.restart()
    answers = farm.asks("context-new")
    farm.wait(5)
    assert answers == []
    rig.server("one")
    farm.wait(2 * LOOK_EVERY)
    assert place(answers) == "one:1"
    assert place(farm.asks("context-newer", "user-ann")) == "one:1"


def test_a_context_that_has_closed_meanwhile_is_placed_as_any_other(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    rig = farm.restart()
    answers = farm.asks("context-inn")
    rig.server("one")
    farm.wait(SETTLE / 2)
    assert answers == []
    farm.wait(SETTLE)
    assert place(answers) == "one:1"


def test_clones_are_known_by_their_set(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn-1", basecap=5)
    rig = farm.restart()
    rig.server("two")
    answers = farm.asks("context-inn")
    farm.wait(1)
    assert answers == []
    rig.server("one").open("context-inn-1", basecap=5)
    farm.wait(2 * LOOK_EVERY)
    assert place(answers) == "one:1"


def test_nobody_waits_for_longer_than_servers_take_to_return(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    farm.restart()
    answers = farm.asks("context-inn")
    farm.wait(WITHIN + 1)
    assert [type(answer).__name__ for answer in answers] == ["Denied"]
    assert len(farm.asks("context-inn")) == 1


def test_a_record_that_is_not_fresh_is_ignored(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    farm.restart(FRESH_SECONDS + 1)
    assert len(farm.asks("context-inn")) == 1


def test_without_a_record_nobody_waits(farm: Restarted) -> None:
    assert len(farm.asks("context-inn")) == 1


def test_the_stop_leaves_the_record_as_it_was(farm: Restarted) -> None:
    server: Side = farm.rig.server("one")
    server.open("context-inn")
    farm.wait(2)
    farm.rig.director.stop_record()
    server.link.leave()
    farm.wait(2)
    [known] = read(farm.path, farm.rig.clock.seconds())
    assert known.contexts == ("context-inn",)


def test_the_age_of_a_record_is_by_the_time_of_day(farm: Restarted) -> None:
    clock: Any = farm.rig.clock
    clock.wall = lambda: clock.seconds() + 2 * FRESH_SECONDS  # the system clock was set since the start
    farm.rig.server("one").open("context-inn")
    farm.wait(2)
    [known] = read(farm.path, clock.wall())
    assert known.contexts == ("context-inn",)


def test_a_server_that_leaves_is_forgotten(farm: Restarted) -> None:
    server = farm.rig.server("one")
    farm.wait(2)
    server.link.leave()
    farm.wait(2)
    assert list(read(farm.path, farm.rig.clock.seconds())) == []


def test_a_requester_has_as_many_waiting_as_it_may_have_reservations(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    farm.restart()
    by = object()
    assert farm.asks("context-inn", by=by, most=1) == []
    assert len(farm.asks("context-inn", "user-ann", by=by, most=1)) == 1


def test_waiting_requests_count_as_reservations_of_their_requester(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    rig = farm.restart()
    by = object()
    waiting = [farm.asks("context-inn", user, by=by) for user in ("user-ann", "user-joe")]
    assert rig.director.reserved(by) == 2
    rig.server("one").open("context-inn")
    farm.wait(2 * LOOK_EVERY)
    assert [place(each) for each in waiting] == ["one:1", "one:1"]
    assert rig.director.reserved(by) == 2


@pytest.mark.parametrize(("context", "user"), [("context-" + "x" * 255, "user-joe"), ("context-inn", "u" * 256)])
def test_a_request_with_a_name_that_is_too_long_does_not_wait(farm: Restarted, context: str, user: str) -> None:
    farm.rig.server("one").open("context-inn")
    farm.restart()
    [refusal] = farm.asks(context, user)
    assert refusal.reason is Reason.PARAMETER


def test_waiting_requests_are_bounded_and_released_in_turns(farm: Restarted) -> None:
    farm.rig.server("one").open("context-inn")
    rig = farm.restart()
    waiting = [farm.asks("context-inn", f"user-{number}") for number in range(MAX_WAITING)]
    assert len(farm.asks("context-inn", "user-beyond")) == 1
    rig.server("one").open("context-inn")
    rig.clock.rightNow += LOOK_EVERY
    rig.turn()
    assert sum(map(len, waiting)) == AT_ONCE
    farm.wait(1)
    assert all(len(each) == 1 for each in waiting)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"version":2}',
        b'{"version":1,"at":"x","servers":[]}',
        b'{"version":1,"at":1,"servers":[{"label":1,"addresses":{},"families":{},"contexts":[]}]}',
    ],
)
def test_a_damaged_record_is_ignored(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "director.json"
    for content in (data, b"%d\n%b" % (checksum(data), data)):
        path.write_bytes(content)
        assert list(read(str(path), 0.0)) == []


def test_a_record_with_any_bit_changed_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "director.json"
    whole = encode([RecordedServer("one", {"tcp": "h:1"}, {"context": False}, ("context-inn",))], 0.0)
    path.write_bytes(whole)
    assert [server.label for server in read(str(path), 0.0)] == ["one"]
    for place in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        assert list(read(str(path), 0.0)) == [], place


def test_a_record_says_what_was_written(farm: Restarted) -> None:
    farm.rig.server("one", families=("context", "shop"), addresses={"tcp": "h:1", "ws": "h:2"}).open("context-inn")
    farm.wait(2)
    with open(farm.path, "rb") as file:
        at, [server] = decode(file.read())
    assert (server.label, server.addresses, server.families) == (
        "one",
        {"tcp": "h:1", "ws": "h:2"},
        {"context": False, "shop": False},
    )
    assert decode(encode([server], at))[1][0].contexts == ("context-inn",)
