"""Reports of Context Servers to the director, and the handling of malformed ones."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Reason
from tests.wires.elko.director_recording import DirectorFarm, closes, opens, reserve
from tests.wires.recording import Client


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


def dump(farm: DirectorFarm, depth: int = 3, **of: str) -> dict[str, Any]:
    """A dump, as an administrator gets it."""
    admin = farm.admin()
    admin.say("admin", "dump", depth=depth, **of)
    farm.settle()
    [answer] = admin.take()
    admin.drop()
    assert isinstance(answer, dict)
    return answer


def diagnostics(server: Client) -> list[str]:
    """The only answer to a server's message."""
    told = server.take()
    assert all((message["to"], message["op"]) == ("error", "debug") for message in told)
    return [message["msg"] for message in told]


def test_reports_have_no_answers_and_are_seen_in_the_dump(farm: DirectorFarm) -> None:
    server = farm.authenticated("session", "cs1")
    for op, parameters in (
        ("address", {"protocol": "tcp", "hostport": "old:1"}),
        ("address", {"protocol": "tcp", "hostport": "cs1:1"}),
        ("address", {"protocol": "http", "hostport": "cs1:2/root"}),
        ("willserve", {"context": "context", "capacity": 5}),
        ("willserve", {"context": "rc", "restricted": True, "capacity": 7}),
        ("load", {"factor": 0.25}),
        ("context", {"context": "context-a", "open": True, "yours": True, "maxcap": 3, "basecap": 2}),
        ("user", {"context": "context-a", "user": "user-x", "on": True}),
        ("user", {"context": "context-a", "user": "user-y", "on": True}),
        ("user", {"context": "context-a", "user": "user-x", "on": False}),
    ):
        assert server.ask("session", op, **parameters) == []
    answer = dump(farm)
    [provider] = answer["providers"]
    hostports = dict(zip(provider.pop("protocols"), provider.pop("hostports"), strict=True))
    assert hostports == {"tcp": "cs1:1", "http": "cs1:2/root"}
    assert sorted(provider.pop("serving")) == ["context", "rc"]
    assert provider == {
        "type": "providerdesc",
        "provider": "cs1",
        "numcontexts": 1,
        "numusers": 1,
        "load": 0.25,
        "capacity": 7,
        "contexts": [{"type": "contextdesc", "context": "context-a", "numusers": 1, "users": ["user-y"]}],
    }


def test_a_load_below_nothing_is_none(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    server.say("provider", "load", factor=-3)
    assert dump(farm, 1)["providers"][0]["load"] == 0.0


@pytest.mark.parametrize("end", ["drop", "disconnect", "half-close"])
def test_a_server_that_ends_takes_all_it_has_with_it(farm: DirectorFarm, end: str) -> None:
    server = farm.server("cs1")
    opens(server, "context-a", "user-x")
    if end == "drop":
        server.drop()
    elif end == "disconnect":
        server.say("provider", "disconnect")
        assert server.closed
    else:
        assert server.session.input_ended() is False
    assert dump(farm) == {"to": "admin", "op": "dump", "numproviders": 0, "numcontexts": 0, "numusers": 0}
    assert "deny" in reserve(farm.user(), "context-a")


def test_one_server_that_connects_twice_is_one_provider(farm: DirectorFarm) -> None:
    first, second = farm.server("cs1"), farm.server("cs1")
    for link, yours in ((second, False), (first, True)):
        opens(link, "context-a", yours=yours, maxcap=3, basecap=1)
    for link in (second, first):
        link.say("provider", "user", context="context-a", user="user-alice-1", on=True)
    assert first.take() == second.take() == [], "nobody is told to close anything"
    answer = dump(farm)
    assert (answer["numproviders"], answer["numcontexts"], answer["numusers"]) == (1, 1, 1)
    admin = farm.admin()
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["cs1"]
    first.drop()
    assert admin.ask("admin", "listusers")[0]["users"] == ["user-alice-1"]
    second.drop()
    assert admin.ask("admin", "listusers")[0]["users"] == []


def test_two_servers_with_one_context_and_the_loser_is_told_if_it_was_opened_for_us(farm: DirectorFarm) -> None:
    low, high = farm.server("a"), farm.server("b")
    opens(low, "context-x", yours=True)
    high.say("provider", "context", context="context-x", open=True, yours=False)
    assert low.take() == [{"to": "provider", "op": "close", "context": "context-x", "dup": True}]
    assert farm.admin().ask("admin", "find", context="context-x")[0]["provider"] == "b"
    closes(low, "context-x")
    assert farm.admin().ask("admin", "find", context="context-x")[0]["provider"] == "b", "the winner's stays"


def test_relays_go_to_the_other_servers_concerned(farm: DirectorFarm) -> None:
    servers = {name: farm.server(name) for name in "abc"}
    opens(servers["a"], "context-x", "user-bob-1")
    opens(servers["b"], "context-y", "user-bob-2")
    msg = {"to": "user-bob", "op": "greet", "deep": {"list": [1, 2.5, None, "\u00e9"]}}
    assert servers["c"].ask("provider", "relay", context="context-x", msg=msg) == []
    [heard] = servers["a"].take()
    assert list(heard) == ["to", "op", "context", "msg"]
    assert heard == {"to": "provider", "op": "relay", "context": "context-x", "msg": msg}
    assert servers["a"].ask("provider", "relay", user="user-bob", msg=msg) == []
    [heard] = servers["b"].take()
    assert list(heard) == ["to", "op", "user", "msg"]
    assert heard["msg"] == msg
    assert servers["c"].take() == []


# Bad input


def test_reports_that_cannot_be_are_told_counted_and_change_nothing(farm: DirectorFarm) -> None:
    server, other = farm.server("cs1"), farm.server("cs2")
    opens(server, "context-a", "user-x")
    before = dump(farm)
    for op, parameters in (
        ("user", {"context": "context-none", "user": "user-x", "on": True}),
        ("user", {"context": "context-none", "user": "user-x", "on": False}),
        ("user", {"context": "context-a", "user": "user-absent", "on": False}),
        ("context", {"context": "context-none", "open": False, "yours": False}),
        ("gate", {"context": "context-none", "open": False}),
    ):
        [text] = diagnostics_of(server, op, parameters)
        assert text
    [text] = diagnostics_of(other, "user", {"context": "context-a", "user": "user-z", "on": True})
    assert text, "it is the context of another server"
    assert set(server.reasons) == {Reason.NOT_REGISTERED.code}
    assert dump(farm) == before


def diagnostics_of(server: Client, op: str, parameters: dict[str, Any]) -> list[str]:
    server.say("provider", op, **parameters)
    return diagnostics(server)


@pytest.mark.parametrize(
    ("op", "parameters"),
    [
        ("address", {"protocol": "", "hostport": "h:1"}),
        ("address", {"protocol": "tcp", "hostport": ""}),
        ("address", {"protocol": "tcp", "hostport": "h" * 100_000}),
        ("willserve", {"context": ""}),
        ("willserve", {"context": "f" * 100_000}),
        ("context", {"context": "", "open": True, "yours": False}),
        ("context", {"context": "context-" + "c" * 100_000, "open": True, "yours": False}),
        ("user", {"context": "context-a", "user": "", "on": True}),
        ("user", {"context": "context-a", "user": "u" * 100_000, "on": True}),
        ("gate", {"context": "context-a", "open": False, "reason": "r" * 100_000}),
    ],
)
def test_names_that_are_none_are_told(farm: DirectorFarm, op: str, parameters: dict[str, Any]) -> None:
    server = farm.server("cs1")
    opens(server, "context-a")
    before = dump(farm)
    assert len(diagnostics_of(server, op, parameters)) == 1
    assert server.reasons == [Reason.PARAMETER.code]
    assert dump(farm) == before
    assert not server.closed


@pytest.mark.parametrize(
    ("op", "parameters", "text"),
    [
        ("address", {"protocol": "tcp"}, "address: object missing required field `hostport`"),
        ("address", {"protocol": 1, "hostport": "h"}, "address: expected `str`, got `int` at `$.protocol`"),
        ("context", {"context": "c", "open": True}, "context: object missing required field `yours`"),
        ("context", {"context": "c", "open": 1, "yours": True}, "context: expected `bool`, got `int` at `$.open`"),
        (
            "context",
            {"context": "c", "open": True, "yours": True, "maxcap": "1"},
            "context: expected `int | float | null`, got `str` at `$.maxcap`",
        ),
        ("gate", {"context": "c"}, "gate: object missing required field `open`"),
        ("load", {}, "load: object missing required field `factor`"),
        ("load", {"factor": "1"}, "load: expected `float`, got `str` at `$.factor`"),
        ("relay", {"context": "c"}, "relay: object missing required field `msg`"),
        ("relay", {"context": "c", "msg": [1]}, "relay: expected `object`, got `array` at `$.msg`"),
        ("user", {"context": "c", "user": "u"}, "user: object missing required field `on`"),
        ("willserve", {"capacity": 1}, "willserve: object missing required field `context`"),
        ("relay", {"msg": {}}, "relay: context or user is missing"),
        ("relay", {"context": "c", "user": "u", "msg": {}}, "relay: context and user are mutually exclusive"),
    ],
)
def test_what_is_wrong_with_parameters_is_told(
    farm: DirectorFarm, op: str, parameters: dict[str, Any], text: str
) -> None:
    assert diagnostics_of(farm.server("cs1"), op, parameters) == [text]


def test_a_relay_to_nobody_is_told(farm: DirectorFarm) -> None:
    server = farm.server("cs1")
    assert diagnostics_of(server, "relay", {"context": "context-none", "msg": {}})
    assert server.reasons == [Reason.NOT_REGISTERED.code]


def test_a_server_stays_whatever_it_reports_but_is_told_no_more(farm: DirectorFarm) -> None:
    server = farm.authenticated("provider", "cs1", patience=5)
    for number in range(50):
        server.say("provider", "user", context="context-none", user=f"user-{number}", on=True)
    assert len(server.take()) == 5
    assert len(server.peer.refusals) == 50, "all are counted"
    assert not server.closed


def test_a_server_stays_when_it_asks_for_nonsense(farm: DirectorFarm) -> None:
    server = farm.authenticated("provider", "cs1", patience=0)
    server.say("provider", "reserve", protocol="tcp", context="")
    assert "deny" in server.take()[0]
    assert not server.closed


def test_other_peers_go_when_too_much_is_refused(farm: DirectorFarm) -> None:
    for role in ("director", "admin"):
        client = farm.authenticated(role, patience=5)
        for _ in range(6):
            client.say(role, "ping", tag=5)
        assert client.closed


def test_a_server_is_recognised_only_so_often(farm: DirectorFarm) -> None:
    admin = farm.admin()
    links = [farm.authenticated("provider", "cs1") for _ in range(200)]
    for link in links:
        link.say("provider", "address", protocol="tcp", hostport="cs1:9000")
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["cs1"]
    turned_away = [link for link in links if link.closed]
    assert turned_away, "a server that opens connection after connection is stopped"
    assert all(link.reasons == [Reason.TOO_MANY_CONNECTIONS.code] for link in turned_away)
    assert not links[0].closed


def test_strange_names_are_names(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    for context in ("context-\U0001f600", "context- -\u202e", "context--", "context-a-\u00e9-1"):
        opens(server, context, "user-\U0001f600")
        assert admin.ask("admin", "find", context=context)[0]["open"] is True
        closes(server, context)
    assert dump(farm)["numusers"] == 0


def test_the_label_is_that_of_the_last_auth(farm: DirectorFarm) -> None:
    server, admin = farm.server("cs1"), farm.admin()
    server.say("admin", "auth", label="operator")
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["operator"]
    admin.say("admin", "reinit", provider="operator")
    assert [message["op"] for message in server.take()] == ["reinit"]
    server.say("director", "auth")
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["<anonymous>"]


def test_a_server_has_the_label_of_its_newest_connection(farm: DirectorFarm) -> None:
    older, admin = farm.server("cs1"), farm.admin()
    farm.server("cs1-again", "cs1:9000")
    older.say("admin", "auth", label="older")
    assert admin.ask("admin", "listproviders")[0]["providers"] == ["cs1-again"]
