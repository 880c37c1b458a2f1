"""Reservations for users of the director, and the right to ask for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker.core.director.director_interfaces import DirectorSettings
from broker.core.errors import Reason
from broker.core.model import MAX_TEXT
from tests.access.memory import MemoryAccess
from tests.wires.elko.director_recording import DirectorFarm, opens, policy, reserve

TOKEN = re.compile(r"[1-9][0-9]*")
PARAMETERS: dict[str, dict[str, Any]] = {
    "find": {"user": "u"},
    "load": {"factor": 1},
    "reserve": {"protocol": "tcp", "context": "c"},
}
"""The parameters that some ops need."""


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


def test_a_reservation_is_told_to_the_server_and_to_who_asked(farm: DirectorFarm) -> None:
    server, user = farm.server("cs1"), farm.user("joe")
    answer = reserve(user, "context-a", user="user-joe")
    assert list(answer) == ["to", "op", "context", "user", "hostport", "reservation"]
    token = answer.pop("reservation")
    assert answer == {
        "to": "director",
        "op": "reserve",
        "context": "context-a",
        "user": "user-joe",
        "hostport": "cs1:9000",
    }
    [order] = server.take()
    assert list(order) == ["to", "op", "context", "user", "reservation"]
    assert order == {
        "to": "provider",
        "op": "doreserve",
        "context": "context-a",
        "user": "user-joe",
        "reservation": token,
    }


def test_a_reservation_is_decimal_text_of_at_least_128_bits_and_never_the_same(farm: DirectorFarm) -> None:
    farm.server("cs1")
    tokens = [reserve(farm.user(), "context-a")["reservation"] for _ in range(20)]
    assert all(TOKEN.fullmatch(token) for token in tokens)
    assert len(set(tokens)) == 20
    assert max(int(token).bit_length() for token in tokens) >= 127


def test_an_anonymous_reservation_names_no_user(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    answer = reserve(farm.user(), "context-a")
    assert "user" not in answer
    [order] = server.take()
    assert list(order) == ["to", "op", "context", "reservation"]


@pytest.mark.parametrize("tag", ["t1", ""])
def test_the_tag_comes_back_last(farm: DirectorFarm, tag: str) -> None:
    farm.server("cs1")
    user = farm.user()
    assert list(reserve(user, "context-a", tag=tag).items())[-1] == ("tag", tag)
    assert reserve(user, "other-a", tag=tag) == {
        "to": "director",
        "op": "reserve",
        "context": "other-a",
        "deny": "unable to find suitable server",
        "tag": tag,
    }


def test_a_tag_that_is_too_long_to_be_kept_is_denied(farm: DirectorFarm) -> None:
    server, user = farm.server("cs1"), farm.user()
    assert "reservation" in reserve(user, "context-a", tag="t" * MAX_TEXT)
    server.take()
    answer = reserve(user, "context-a", tag="t" * (MAX_TEXT + 1))
    assert answer["deny"] == "reserve: tag has more than 1024 characters"
    assert (user.reasons, user.closed, server.take()) == (["parameter"], False, [])


@pytest.mark.parametrize(
    ("role", "to", "name"),
    [
        ("director", "director", "director"),
        ("director", "provider", "provider"),
        ("director", "session", "provider"),
        ("admin", "director", "director"),
        ("provider", "provider", "provider"),
        ("provider", "director", "director"),
        ("session", "session", "provider"),
    ],
)
def test_every_role_may_reserve_and_the_answer_names_the_object(
    farm: DirectorFarm, role: str, to: str, name: str
) -> None:
    farm.server("cs1")
    assert reserve(farm.authenticated(role), "context-a", to)["to"] == name


def test_a_server_that_reserves_at_itself_is_told_before_it_is_answered(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    server.say("provider", "reserve", protocol="tcp", context="context-a", tag="x")
    order, answer = server.take()
    assert (order["op"], answer["op"]) == ("doreserve", "reserve")
    assert order["reservation"] == answer["reservation"]


@pytest.mark.parametrize("role", ["director", "admin"])
def test_what_is_restricted_is_for_servers_only(farm: DirectorFarm, role: str) -> None:
    server = farm.server("cs1")
    opens(server, "context-r", restricted=True)
    server.say("provider", "willserve", context="rcontext", restricted=True)
    for context in ("context-r", "rcontext-new"):
        assert reserve(farm.authenticated(role), context)["deny"] == "unable to find suitable server"
        server.say("provider", "reserve", protocol="tcp", context=context)
        assert [message["op"] for message in server.take()] == ["doreserve", "reserve"]


def test_a_clone_is_named_to_both_where_its_set_was_asked_for(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    opens(server, "context-c-1", maxcap=4, basecap=1)
    assert reserve(farm.user(), "context-c")["context"] == "context-c-1"
    [order] = server.take()
    assert order["context"] == "context-c-1"


def test_the_base_capacity_is_the_capacity_where_none_is_given(farm: DirectorFarm) -> None:
    server, user = farm.server("cs1"), farm.user()
    opens(server, "context-c-1", "user-x", maxcap=1)
    assert reserve(user, "context-c")["context"] == "context-c", "the only clone is full: a new one"
    opens(server := farm.server("cs2"), "context-d-1", "user-y", maxcap=1, basecap=-1)
    assert reserve(user, "context-d") == {
        "to": "director",
        "op": "reserve",
        "context": "context-d-1",
        "deny": "requested context full",
    }


def test_capacities_with_a_fraction_are_cut(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    server.say("provider", "context", context="context-a", open=True, yours=False, maxcap=1.9)
    server.say("provider", "user", context="context-a", user="user-x", on=True)
    assert reserve(farm.user(), "context-a")["deny"] == "requested context full"


def test_a_closed_gate_denies_with_its_reason(farm: DirectorFarm) -> None:
    server, user = farm.server("cs1"), farm.user()
    opens(server, "context-a")
    server.say("provider", "gate", context="context-a", open=False, reason="closed for cleaning")
    assert reserve(user, "context-a")["deny"] == "closed for cleaning"
    server.say("provider", "gate", context="context-a", open=False)
    assert reserve(user, "context-a")["deny"] == "context closed to new entries"
    server.say("provider", "gate", context="context-a", open=True)
    assert "hostport" in reserve(user, "context-a")


# Bad input


@pytest.mark.parametrize(
    ("context", "user"), [("", None), ("c" * 10_000, None), ("context-a", ""), ("c", "u" * 10_000)]
)
def test_names_that_are_none_are_denied_and_counted(farm: DirectorFarm, context: str, user: str | None) -> None:
    farm.server("cs1", family="c")
    client = farm.user()
    answer = reserve(client, context, user=user, tag="1")
    assert (answer["context"], answer["tag"]) == (context, "1")
    assert answer["deny"]
    assert client.reasons == [Reason.PARAMETER.code]


def test_who_asks_for_nonsense_without_end_is_disconnected(farm: DirectorFarm) -> None:
    client = farm.user(patience=3)
    for _ in range(4):
        client.say("director", "reserve", protocol="tcp", context="")
    assert client.closed
    assert len(client.take()) == 4, "the last one was answered too"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"context": "c"}, "reserve: object missing required field `protocol`"),
        ({"protocol": "tcp"}, "reserve: object missing required field `context`"),
        ({"protocol": 1, "context": "c"}, "reserve: expected `str`, got `int` at `$.protocol`"),
        ({"protocol": "tcp", "context": ["c"]}, "reserve: expected `str`, got `array` at `$.context`"),
        ({"protocol": "tcp", "context": "c", "user": True}, "reserve: expected `str | null`, got `bool` at `$.user`"),
    ],
)
def test_ill_typed_parameters_are_told(farm: DirectorFarm, parameters: dict[str, Any], text: str) -> None:
    client = farm.user()
    assert client.ask("director", "reserve", **parameters) == [{"to": "error", "op": "debug", "msg": text}]
    assert not client.closed


# Roles, and the ops common to all objects


@pytest.mark.parametrize("to", ["director", "provider", "session", "admin"])
@pytest.mark.parametrize("op", ["reserve", "ping", "load", "listusers"])
def test_anything_but_auth_first_closes(farm: DirectorFarm, to: str, op: str) -> None:
    client = farm.connect()
    parameters = PARAMETERS.get(op, {})
    [told] = client.ask(to, op, **parameters)
    assert told["msg"].startswith(f"the first message must be auth, not {op!r}")
    assert client.closed
    assert client.reasons == [Reason.NOT_AUTHENTICATED.code]


PROVIDER_OPS: dict[str, dict[str, Any]] = {
    "address": {"protocol": "tcp", "hostport": "h:1"},
    "context": {"context": "c", "open": True, "yours": True},
    "gate": {"context": "c", "open": True},
    "load": {"factor": 1.0},
    "relay": {"context": "c", "msg": {}},
    "user": {"context": "c", "user": "u", "on": True},
    "willserve": {"context": "c"},
}
ADMIN_OPS: dict[str, dict[str, Any]] = {
    "close": {"context": "c"},
    "dump": {"depth": 0},
    "find": {"context": "c"},
    "listcontexts": {},
    "listproviders": {},
    "listusers": {},
    "reinit": {},
    "relay": {"context": "c", "msg": {}},
    "say": {"context": "c", "text": ""},
    "shutdown": {},
    "unwatch": {"context": "c"},
    "watch": {"context": "c"},
}


@pytest.mark.parametrize("role", ["director", "admin"])
@pytest.mark.parametrize("to", ["provider", "session"])
@pytest.mark.parametrize("op", PROVIDER_OPS)
def test_what_providers_say_closes_for_others(farm: DirectorFarm, role: str, to: str, op: str) -> None:
    client = farm.authenticated(role)
    assert client.ask(to, op, **PROVIDER_OPS[op])[0]["msg"] == f"{op}: not authenticated to {to!r}"
    assert client.closed


@pytest.mark.parametrize("role", ["director", "provider", "session"])
@pytest.mark.parametrize("op", ADMIN_OPS)
def test_what_administrators_say_closes_for_others(farm: DirectorFarm, role: str, op: str) -> None:
    client = farm.authenticated(role)
    assert client.ask("admin", op, **ADMIN_OPS[op])[0]["msg"] == f"{op}: not authenticated to 'admin'"
    assert client.closed


@pytest.mark.parametrize(
    ("to", "op", "text"),
    [
        ("user", "ping", "there is no object 'user'"),
        ("director", "load", "the object 'director' has no op 'load'"),
        ("provider", "find", "the object 'provider' has no op 'find'"),
        ("error", "reserve", "the object 'error' has no op 'reserve'"),
        ("director", "frob", "there is no op 'frob'"),
    ],
)
def test_unknown_objects_and_ops_are_told(farm: DirectorFarm, to: str, op: str, text: str) -> None:
    client = farm.user()
    assert client.ask(to, op, **PARAMETERS.get(op, {})) == [{"to": "error", "op": "debug", "msg": text}]
    assert not client.closed


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("director", "director"),
        ("provider", "provider"),
        ("session", "provider"),
        ("admin", "admin"),
        ("error", "error"),
    ],
)
def test_every_object_answers_a_ping(farm: DirectorFarm, to: str, name: str) -> None:
    assert farm.user().ask(to, "ping", tag="p") == [{"to": name, "op": "pong", "tag": "p"}]
    assert farm.user().ask(to, "ping") == [{"to": name, "op": "pong"}]


def test_all_roles_may_be_had_at_once_but_each_only_once(farm: DirectorFarm) -> None:
    client = farm.connect()
    for to in ("director", "session", "admin"):
        assert client.ask(to, "auth") == []
    assert client.ask("admin", "listproviders")[0]["providers"] == ["<anonymous>"]
    assert client.ask("provider", "auth")[0]["msg"] == "auth: already authenticated to 'provider'"
    assert client.closed


def test_the_listener_says_which_roles_it_serves_and_lets_users_in(farm: DirectorFarm) -> None:
    client = farm.connect(policy(roles=frozenset(("user",))))
    assert client.ask("admin", "auth")[0]["msg"] == "auth: the role 'admin' is not served on this listener"
    assert client.closed
    farm.access = MemoryAccess(tokens={"figleaf": "server"})
    client = farm.connect()
    [refused] = client.ask("provider", "auth", auth={"mode": "password", "code": "x"})
    assert refused["msg"] == "the token is wrong, or revoked"
    assert client.closed
    client = farm.connect()
    assert client.ask("provider", "auth", auth={"type": "auth", "mode": "password", "code": "figleaf"}) == []
    assert not client.closed
    assert client.peer.logins == 1


def test_too_many_servers_are_turned_away() -> None:
    farm = DirectorFarm(DirectorSettings(providers=1))
    first, second = farm.authenticated("provider"), farm.connect()
    assert "takes no more" in second.ask("provider", "auth")[0]["msg"]
    assert second.closed
    first.drop()
    assert farm.authenticated("provider").closed is False
