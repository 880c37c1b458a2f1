"""The commands of the director's administrators: find and watch, list and dump, and steer the servers."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Reason
from tests.wires.elko.director_recording import DirectorFarm, closes, opens, policy
from tests.wires.recording import Client


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


def context(name: str, provider: str | None = None, clones: list[str] | None = None) -> dict[str, Any]:
    """The description of a context."""
    found: dict[str, Any] = {"to": "admin", "op": "context", "context": name, "open": provider is not None}
    if provider is not None:
        found["provider"] = provider
    return found if clones is None else {**found, "clones": clones}


def user(name: str, *contexts: str) -> dict[str, Any]:
    """The description of a user."""
    found: dict[str, Any] = {"to": "admin", "op": "user", "user": name, "on": bool(contexts)}
    return {**found, "contexts": list(contexts)} if contexts else found


def op(name: str, **parameters: Any) -> dict[str, Any]:
    """The order to a server."""
    return {"to": "provider", "op": name, **parameters}


# find and watch


def test_where_contexts_are(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    opens(server, "context-a")
    opens(server, "context-c-1")
    opens(server, "context-c-2")
    assert admin.ask("admin", "find", context="context-a") == [context("context-a", "cs1")]
    assert admin.ask("admin", "find", context="context-c-1") == [context("context-c-1", "cs1")]
    assert admin.ask("admin", "find", context="context-none") == [context("context-none")]
    [found] = admin.ask("admin", "find", context="context-c")
    assert found == context("context-c", clones=["context-c-1", "context-c-2"])
    assert list(found) == ["to", "op", "context", "open", "clones"]


def test_where_users_are(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    opens(server, "context-a", "user-bob-1", "user-alice")
    opens(server, "context-b", "user-bob-2", "user-alice")
    assert admin.ask("admin", "find", user="user-bob-2") == [user("user-bob-2", "context-b")]
    assert admin.ask("admin", "find", user="user-none") == [user("user-none")]
    for name in ("user-bob", "user-alice"):
        [found] = admin.ask("admin", "find", user=name)
        assert sorted(found.pop("contexts")) == ["context-a", "context-b"]
        assert found == {"to": "admin", "op": "user", "user": name, "on": True}


def test_a_watch_tells_the_present_state_and_each_change(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    assert admin.ask("admin", "watch", context="context-c") == [context("context-c")]
    assert admin.ask("admin", "watch", context="context-c-1") == [context("context-c-1")]
    assert admin.ask("admin", "watch", user="user-bob") == [user("user-bob")]
    opens(server, "context-c-1", "user-bob-7")
    assert admin.take() == [
        context("context-c-1", "cs1"),
        context("context-c", clones=["context-c-1"]),
        user("user-bob", "context-c-1"),
    ]
    server.say("provider", "user", context="context-c-1", user="user-bob-7", on=False)
    assert admin.take() == [user("user-bob")]
    closes(server, "context-c-1")
    assert admin.take() == [context("context-c-1"), context("context-c")]


def test_when_a_server_goes_its_users_are_told_before_its_contexts(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    opens(server, "context-a", "user-1")
    admin.say("admin", "watch", context="context-a")
    admin.say("admin", "watch", user="user-1")
    admin.take()
    server.drop()
    assert admin.take() == [user("user-1"), context("context-a")]


def test_as_many_unwatches_as_watches_end_it(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    for _ in range(2):
        admin.say("admin", "watch", context="context-a")
    admin.take()
    assert admin.ask("admin", "unwatch", context="context-a") == []
    opens(server, "context-a")
    assert admin.take() == [context("context-a", "cs1")]
    assert admin.ask("admin", "unwatch", context="context-a") == []
    assert admin.ask("admin", "unwatch", context="context-never") == []
    assert admin.ask("admin", "unwatch", user="user-never") == []
    closes(server, "context-a")
    assert admin.take() == []


def test_each_watcher_is_told_the_same_bytes(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    admins = [farm.admin() for _ in range(3)]
    for admin in admins:
        admin.say("admin", "watch", user="user-1")
        admin.take()
    opens(server, "context-a", "user-1")
    told = [admin.peer.written[-1] for admin in admins]
    assert told[0] is told[1] is told[2]


@pytest.mark.parametrize("end", ["drop", "half-close"])
def test_who_is_gone_watches_no_more(farm: DirectorFarm, end: str) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    admin.say("admin", "watch", user="user-1")
    admin.take()
    if end == "drop":
        admin.drop()
    else:
        assert admin.session.input_ended() is False
    opens(server, "context-a", "user-1")
    assert admin.take() == []


def test_one_administrator_may_watch_so_much_and_may_go_on_when_it_unwatches(farm: DirectorFarm) -> None:
    admin = farm.admin(rules=policy(waits=2))
    admin.say("admin", "watch", context="a")
    admin.say("admin", "watch", user="b")
    admin.take()
    [told] = admin.ask("admin", "watch", user="c")
    assert (
        told["msg"]
        == "watch: this peer watches 2 contexts and users, and may watch no more (director.listeners.limits.watches)"
    )
    assert admin.reasons == [Reason.LIMIT.code]
    admin.say("admin", "unwatch", context="never-watched")
    assert admin.ask("admin", "watch", user="c")[0]["op"] == "debug"
    admin.say("admin", "unwatch", context="a")
    assert admin.ask("admin", "watch", user="c") == [user("c")]


@pytest.mark.parametrize("name", ["", "n" * 100_000])
def test_names_that_are_none_are_not_watched(farm: DirectorFarm, name: str) -> None:
    admin = farm.admin()
    for kind in ("context", "user"):
        assert admin.ask("admin", "watch", **{kind: name})[0]["op"] == "debug"
    assert admin.reasons == [Reason.PARAMETER.code] * 2
    assert not admin.closed


# lists


def test_lists_have_everything(farm: DirectorFarm) -> None:
    admin = farm.admin()
    for name in ("contexts", "providers", "users"):
        assert admin.ask("admin", f"list{name}") == [{"to": "admin", "op": f"list{name}", name: []}]
    for label, load in (("cs1", 0.5), ("cs2", 0.1)):
        server = farm.server(label)
        server.say("provider", "load", factor=load)
        opens(server, f"context-{label}", f"user-{label}", 'user-"odd"\n')
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["cs2", "cs1"]
    assert sorted(admin.ask("admin", "listcontexts")[0]["contexts"]) == ["context-cs1", "context-cs2"]
    assert sorted(admin.ask("admin", "listusers")[0]["users"]) == ['user-"odd"\n', "user-cs1", "user-cs2"]


# what servers are told


@pytest.fixture
def servers(farm: DirectorFarm) -> dict[str, Client]:
    """Three servers, with two clones of a context and two of a user."""
    found = {label: farm.server(label) for label in ("a", "b", "c")}
    opens(found["a"], "context-c-1", "user-bob-1")
    opens(found["b"], "context-c-2", "user-bob-2", "user-eve")
    return found


def heard(servers: dict[str, Client]) -> dict[str, list[dict[str, Any]]]:
    """The messages to servers since the last call."""
    return {label: told for label, server in servers.items() if (told := server.take())}


MSG = {"to": "user-bob", "op": "greet"}
MORE: dict[str, dict[str, Any]] = {"say": {"text": "hello"}, "relay": {"msg": MSG}}
"""The members beside those that name the subject."""


@pytest.mark.parametrize("verb", ["close", "say", "relay"])
@pytest.mark.parametrize(
    ("to", "labels"),
    [
        ({"context": "context-c"}, ["a", "b"]),
        ({"context": "context-c-1"}, ["a"]),
        ({"user": "user-bob"}, ["a", "b"]),
        ({"user": "user-eve"}, ["b"]),
    ],
)
def test_close_say_and_relay_reach_the_servers_concerned(
    farm: DirectorFarm, servers: dict[str, Client], verb: str, to: dict[str, str], labels: list[str]
) -> None:
    more = MORE.get(verb, {})
    assert farm.admin().ask("admin", verb, **to, **more) == []
    told = heard(servers)
    assert told == {label: [op(verb, **to, **more)] for label in labels}
    assert list(told[labels[0]][0]) == ["to", "op", *to, *more]


@pytest.mark.parametrize("verb", ["close", "say", "relay", "find", "watch", "unwatch"])
@pytest.mark.parametrize(
    ("to", "text"),
    [
        ({}, "context or user is missing"),
        ({"context": None, "user": None}, "context or user is missing"),
        ({"context": "context-c-1", "user": "user-bob-1"}, "context and user are mutually exclusive"),
    ],
)
def test_a_message_concerns_a_context_or_a_user(
    farm: DirectorFarm, servers: dict[str, Client], verb: str, to: dict[str, Any], text: str
) -> None:
    admin = farm.admin()
    more = MORE.get(verb, {})
    assert admin.ask("admin", verb, **to, **more) == [{"to": "error", "op": "debug", "msg": f"{verb}: {text}"}]
    assert heard(servers) == {}
    assert not admin.closed


@pytest.mark.parametrize("verb", ["close", "say", "relay"])
@pytest.mark.parametrize("to", [{"context": "context-none"}, {"user": "user-none"}, {"context": "context"}])
def test_who_is_nowhere_can_be_told_nothing(
    farm: DirectorFarm, servers: dict[str, Client], verb: str, to: dict[str, str]
) -> None:
    admin = farm.admin()
    more = MORE.get(verb, {})
    [told] = admin.ask("admin", verb, **to, **more)
    assert (told["to"], told["op"]) == ("error", "debug")
    assert admin.reasons == [Reason.NOT_REGISTERED.code]
    assert heard(servers) == {}


@pytest.mark.parametrize(
    ("provider", "labels"),
    [("a", ["a"]), ("b:9000", ["b"]), ("all", ["a", "b", "c"]), ("none", []), (None, [])],
)
@pytest.mark.parametrize(
    ("verb", "more", "told"),
    [
        ("reinit", {}, {}),
        ("shutdown", {}, {}),
        ("shutdown", {"kill": False}, {}),
        ("shutdown", {"kill": True}, {"kill": True}),
    ],
)
def test_servers_are_reinitialized_and_shut_down(
    farm: DirectorFarm,
    servers: dict[str, Client],
    provider: str | None,
    labels: list[str],
    verb: str,
    more: dict[str, Any],
    told: dict[str, Any],
) -> None:
    assert farm.admin().ask("admin", verb, provider=provider, **more) == []
    assert heard(servers) == {label: [op(verb, **told)] for label in labels}
    assert farm.control.calls == []


def test_the_director_itself_is_steered_after_the_servers(farm: DirectorFarm, servers: dict[str, Client]) -> None:
    admin = farm.admin()
    admin.say("admin", "reinit", provider="a", director=True)
    assert heard(servers) == {"a": [op("reinit")]}
    admin.say("admin", "shutdown", director=True, kill=True)
    assert heard(servers) == {}
    assert farm.control.calls == ["reinitialize", "shut_down"]


@pytest.mark.parametrize(
    ("verb", "parameters", "text"),
    [
        ("dump", {}, "dump: object missing required field `depth`"),
        ("dump", {"depth": "1"}, "dump: expected `int | float`, got `str` at `$.depth`"),
        ("find", {"context": 5}, "find: expected `str | null`, got `int` at `$.context`"),
        ("say", {"context": "c"}, "say: object missing required field `text`"),
        ("relay", {"context": "c", "msg": "text"}, "relay: expected `object`, got `str` at `$.msg`"),
        ("reinit", {"director": "yes"}, "reinit: expected `bool | null`, got `str` at `$.director`"),
        ("shutdown", {"kill": 1}, "shutdown: expected `bool | null`, got `int` at `$.kill`"),
        ("watch", {"user": []}, "watch: expected `str | null`, got `array` at `$.user`"),
    ],
)
def test_ill_typed_parameters_are_told(farm: DirectorFarm, verb: str, parameters: dict[str, Any], text: str) -> None:
    admin = farm.admin()
    assert admin.ask("admin", verb, **parameters) == [{"to": "error", "op": "debug", "msg": text}]
    assert not admin.closed
