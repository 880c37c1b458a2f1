"""Reservations as sessions handle them: how many a peer may have, and in which order peers are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.core.director.director_interfaces import DirectorSettings
from broker.core.errors import Reason
from tests.wires.elko.director_recording import DirectorFarm, closes, opens, policy, reserve
from tests.wires.recording import Client


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm(DirectorSettings(user_reservations=2))


# how many


def test_a_user_that_asks_again_gets_a_new_token_of_which_the_server_is_told(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    opens(server, "context-a", maxcap=1)
    user = farm.user()
    tokens = [reserve(user, "context-a", user="user-joe")["reservation"] for _ in range(3)]
    assert [order["reservation"] for order in server.take()] == tokens
    assert len(set(tokens)) == 3
    assert reserve(farm.user(), "context-a", user="user-bob")["deny"] == "requested context full"
    assert farm.director.counts()["reservations"] == 1


@pytest.mark.parametrize("role", ["director", "admin"])
def test_a_connection_over_its_limit_is_denied_and_counted_and_stays(farm: DirectorFarm, role: str) -> None:
    server = farm.server("cs1")
    client = farm.authenticated(role, rules=policy(reservations=2), patience=1)
    for name in ("user-1", "user-2"):
        reserve(client, "context-a", user=name)
    server.take()
    for _ in range(5):
        assert reserve(client, "context-a", user="user-3", tag="1") == {
            "to": "director",
            "op": "reserve",
            "context": "context-a",
            "user": "user-3",
            "deny": "too many reservations: this connection has 2 unused ones (director.listeners.limits.reservations)",
            "tag": "1",
        }
    assert server.take() == []
    assert client.reasons == [Reason.LIMIT.code] * 5
    assert not client.closed
    assert "hostport" in reserve(client, "context-a", user="user-2")
    server.say("provider", "context", context="context-a", open=True, yours=True)
    server.say("provider", "user", context="context-a", user="user-1-77", on=True)
    assert "hostport" in reserve(client, "context-a", user="user-3")


def test_the_limit_of_a_listener_does_not_bind_servers(farm: DirectorFarm) -> None:
    server = farm.authenticated("provider", rules=policy(reservations=1))
    server.say("provider", "address", protocol="tcp", hostport="cs1:1")
    server.say("provider", "willserve", context="context")
    for _ in range(3):
        server.say("provider", "reserve", protocol="tcp", context="context-a")
    assert [message["op"] for message in server.take()] == ["doreserve", "reserve"] * 3
    assert farm.director.counts()["reservations"] == 3


def test_a_user_over_the_limit_is_denied_and_counted(farm: DirectorFarm) -> None:
    farm.server("cs1")
    client = farm.user()
    for context in ("context-a", "context-b"):
        reserve(client, context, user="user-joe")
    answer = reserve(client, "context-c", user="user-joe")
    assert answer["deny"] == "too many reservations: this user has 2 unused ones (director.user_reservations)"
    assert client.reasons == [Reason.LIMIT.code]
    assert "hostport" in reserve(farm.user(), "context-c", user="user-joe")


def test_a_reservation_outlives_the_connection_that_asked(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    client = farm.user()
    reserve(client, "context-a", user="user-joe")
    client.drop()
    assert farm.director.counts()["reservations"] == 1
    server.take()
    opens(server, "context-a", "user-joe-1")
    assert farm.director.counts()["used"] == 1


# the order of what several connections are sent


class Order:
    """All that is written to these peers, in the order of the writes."""

    def __init__(self, **clients: Client) -> None:
        self._clients = clients
        self.seen: list[str] = []
        for name, client in clients.items():
            self._record(name, client)

    def _record(self, name: str, client: Client) -> None:
        written = client.peer.written
        seen = self.seen

        class Written(list[bytes]):
            def append(self, data: bytes) -> None:
                [op] = [word for word in data.decode().split('"') if word in OPS][:1]
                seen.append(f"{name} {op}")
                super().append(data)

        client.peer.written = Written(written)


OPS = ("doreserve", "reserve", "close", "context", "user", "say", "relay", "reinit", "shutdown")


def an_open_context(farm: DirectorFarm, server: Client) -> None:
    opens(server, "context-a")


def a_clone(farm: DirectorFarm, server: Client) -> None:
    opens(server, "context-a-1", maxcap=5, basecap=2)


def a_placement(farm: DirectorFarm, server: Client) -> None:
    reserve(farm.user(), "context-a", user="user-other")
    server.take()


def one_that_was_reserved_before(farm: DirectorFarm, server: Client) -> None:
    reserve(farm.user(), "context-a", user="user-joe")
    server.take()


def one_that_closed(farm: DirectorFarm, server: Client) -> None:
    opens(server, "context-a")
    reserve(farm.user(), "context-a", user="user-joe")
    closes(server, "context-a")
    server.take()


def nothing(farm: DirectorFarm, server: Client) -> None:
    """The context is to be opened."""


@pytest.mark.parametrize(
    "before", [nothing, an_open_context, a_clone, a_placement, one_that_was_reserved_before, one_that_closed]
)
@pytest.mark.parametrize("role", ["director", "admin", "provider"])
def test_the_server_is_told_before_the_peer_that_asked(
    farm: DirectorFarm, before: Callable[[DirectorFarm, Client], None], role: str
) -> None:
    server = farm.server("cs1")
    before(farm, server)
    peer = farm.authenticated(role)
    order = Order(peer=peer, server=server)
    peer.say("director", "reserve", protocol="tcp", context="context-a", user="user-joe")
    assert order.seen == ["server doreserve", "peer reserve"]


def test_several_requests_in_one_read_are_told_each_before_its_answer(farm: DirectorFarm) -> None:
    server, user = farm.server("cs1"), farm.user()
    order = Order(user=user, server=server)
    request = b'{"to":"director","op":"reserve","protocol":"tcp","context":"context-a"}\n\n'
    user.send(3 * request)
    assert order.seen == ["server doreserve", "user reserve"] * 3


@pytest.mark.parametrize("parameters", [{"context": "other-a"}, {"context": ""}])
def test_of_what_is_denied_the_server_is_not_told(farm: DirectorFarm, parameters: dict[str, Any]) -> None:
    server, user = farm.server("cs1"), farm.user()
    order = Order(user=user, server=server)
    user.say("director", "reserve", protocol="tcp", **parameters)
    assert order.seen == ["user reserve"]


def test_watchers_are_told_what_a_request_found_out_before_it_is_answered(farm: DirectorFarm) -> None:
    # The contexts of a large server that is gone are put away in turns, and one that is asked for at once.
    admin, user = farm.admin(), farm.user()
    gone, server = farm.server("cs1"), farm.server("cs2")
    opens(gone, "context-a")
    for n in range(1_600):
        gone.say("provider", "user", context="context-a", user=f"user-{n}-1", on=True)
    admin.ask("admin", "watch", context="context-a")
    gone.drop()
    order = Order(admin=admin, user=user, server=server)
    user.say("director", "reserve", protocol="tcp", context="context-a")
    assert order.seen == ["admin context", "server doreserve", "user reserve"]


def test_the_loser_of_a_duplicate_is_told_to_close_before_watchers_hear_of_the_winner(farm: DirectorFarm) -> None:
    admin = farm.admin()
    low, high = farm.server("cs1"), farm.server("cs2")
    opens(low, "context-a", yours=True)
    admin.ask("admin", "watch", context="context-a")
    order = Order(admin=admin, low=low, high=high)
    high.say("provider", "context", context="context-a", open=True, yours=True)
    assert order.seen == ["admin context", "low close", "admin context"]
