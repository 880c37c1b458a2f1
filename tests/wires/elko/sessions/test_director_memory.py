"""Memory of the director for a peer: it counts for the address of the peer, unless the peer has a user."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.errors import Reason
from tests.access.memory import MemoryAccess
from tests.wires.elko.director_recording import DirectorFarm, closes, opens, reserve
from tests.wires.recording import Client

ROOM = 20_000


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


@pytest.fixture
def server(farm: DirectorFarm) -> Client:
    """A Context Server whose address has little room."""
    server = farm.server("s1")
    server.peer.room = ROOM
    return server


def reported(server: Client, report: Callable[[int], None]) -> int:
    """Report until a report is refused. Returns the number of the others."""
    for number in range(1_000):
        report(number)
        if server.peer.refusals:
            assert server.peer.refusals.pop().reason is Reason.LIMIT
            server.take()
            assert not server.closed
            return number
    raise AssertionError("nothing was refused")


def test_users_count_until_they_leave(farm: DirectorFarm, server: Client) -> None:
    opens(server, "context-1")
    empty = server.peer.held

    def enter(number: int) -> None:
        server.say("provider", "user", context="context-1", user=f"user-{number}-clone".ljust(100, "x"), on=True)

    users = reported(server, enter)
    assert 20 < users < ROOM / 100
    assert ROOM - 1_000 < server.peer.held <= ROOM
    enter(0)  # again
    assert not server.peer.refusals
    server.say("provider", "user", context="context-1", user="user-0-clone".ljust(100, "x"), on=False)
    assert reported(server, lambda number: enter(users + number)) == 1
    closes(server, "context-1")
    assert server.peer.held < empty


def test_contexts_and_the_reasons_of_closed_gates_count(server: Client) -> None:
    def report(number: int) -> None:
        server.say("provider", "context", context=f"context-{number}", open=True, yours=False)

    contexts = reported(server, report)
    assert contexts > 5
    for number in range(1, contexts):
        closes(server, f"context-{number}")
    before = server.peer.held
    server.say("provider", "gate", context="context-0", open=False, reason="x" * 900)
    assert server.peer.held > before + 900
    server.say("provider", "gate", context="context-0", open=True)
    assert server.peer.held == before
    closes(server, "context-0")
    assert server.peer.held == 0


def test_a_refused_reason_leaves_that_before_it_counted(server: Client) -> None:
    opens(server, "context-1")
    server.say("provider", "gate", context="context-1", open=False, reason="x" * 900)
    before = server.peer.room = server.peer.held
    server.say("provider", "gate", context="context-1", open=False, reason="x" * 1000)
    assert [refusal.reason for refusal in server.peer.refusals] == [Reason.LIMIT]
    assert server.peer.held == before


def test_reservations_count_until_they_are_used(farm: DirectorFarm) -> None:
    server = farm.server("s1")
    gatekeeper = farm.user()
    gatekeeper.peer.room = 5_000
    answers = [reserve(gatekeeper, "context-1", user=f"user-{number}") for number in range(6)]
    assert ["reservation" in answer for answer in answers] == [True] * 5 + [False]
    assert "memory" in answers[-1]["deny"]
    server.take()
    opens(server, "context-1", "user-0")
    assert "reservation" in reserve(gatekeeper, "context-1", user="user-6")


def test_watches_count_until_they_end(farm: DirectorFarm) -> None:
    admin = farm.admin()
    admin.peer.room = 2_500
    for number in range(3):
        admin.say("admin", "watch", user=f"user-{number}")
    assert [refusal.reason for refusal in admin.peer.refusals] == [Reason.LIMIT]
    held = admin.peer.held
    admin.say("admin", "unwatch", user="user-0")
    assert 0 < admin.peer.held < held


@pytest.mark.parametrize("name", ["", "x" * 5_000])
def test_a_refused_watch_does_not_count(farm: DirectorFarm, name: str) -> None:
    admin = farm.admin()
    admin.say("admin", "watch", user="user-1")
    held = admin.peer.held
    admin.say("admin", "watch", context=name)
    assert [refusal.reason for refusal in admin.peer.refusals] == [Reason.PARAMETER]
    assert admin.peer.held == held
    admin.say("admin", "unwatch", user="user-1")
    assert admin.peer.held == 0


def test_a_server_with_a_user_does_not_count(farm: DirectorFarm) -> None:
    farm.access = MemoryAccess(tokens={"secret": "server"})
    server = farm.connect()
    server.peer.room = 0
    server.say("provider", "auth", auth={"mode": "password", "code": "secret"})
    server.say("provider", "address", protocol="tcp", hostport="s1:9000")
    opens(server, "context-1", "user-1")
    assert server.peer.refusals == []
