"""Bad input at the director: each class of it has its answer, and leaves the rest working.

Bad reports of servers, and bad names, are in the tests of the operations.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.wires.elko.codec.director_messages import VOCABULARY
from tests.examples import sampled
from tests.wires.elko.director_recording import DirectorFarm, opens
from tests.wires.recording import Client

OPS = [str(each.__struct_config__.tag) for each in VOCABULARY.messages if each.__struct_config__.tag != "disconnect"]
FIELDS = sorted({field for each in VOCABULARY.messages for field in each.__struct_encode_fields__} - {"to", "op"})


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


def everything(farm: DirectorFarm, **connection: Any) -> Client:
    """A peer with all roles, which has a context open."""
    client = farm.connect(**connection)
    for to in ("provider", "director", "admin"):
        client.say(to, "auth")
    client.say("provider", "address", protocol="tcp", hostport="h:1")
    opens(client, "context-a", "user-x")
    return client


BAD: list[tuple[str, bytes, str, str]] = [
    ("malformed JSON", b'{"to":"admin" "op":"listusers"}\n', "syntax", "position 14"),
    ("no JSON", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "syntax", "position"),
    ("unknown target", b'{"to":"client","op":"ping"}\n', "unknown-target", "'client'"),
    ("no target", b'{"op":"listusers"}\n', "unknown-target", "to (a string) is missing"),
    ("unknown op", b'{"to":"admin","op":"servicedesc"}\n', "unknown-op", "'servicedesc'"),
    ("no op", b'{"to":"admin"}\n', "unknown-op", "no op"),
    ("op of another object", b'{"to":"admin","op":"load","factor":1}\n', "unknown-op", "'load'"),
    ("wrong type", b'{"to":"provider","op":"load","factor":"1"}\n', "parameter", "factor"),
    ("missing parameter", b'{"to":"director","op":"reserve","context":"c"}\n', "parameter", "protocol"),
    ("both of two", b'{"to":"admin","op":"find","context":"c","user":"u"}\n', "parameter", "mutually exclusive"),
    ("none of two", b'{"to":"admin","op":"say","text":"t"}\n', "parameter", "context or user is missing"),
    ("nobody there", b'{"to":"admin","op":"close","user":"user-none"}\n', "not-registered", "user-none"),
]


@pytest.mark.parametrize(("data", "reason", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_it_is_answered_with_what_was_wrong_and_the_rest_works(
    farm: DirectorFarm, data: bytes, reason: str, text: str
) -> None:
    client = everything(farm)
    client.send(data)
    [diagnostic] = client.take()
    assert list(diagnostic) == ["to", "op", "msg"]
    assert (diagnostic["to"], diagnostic["op"]) == ("error", "debug")
    assert text in diagnostic["msg"]
    assert client.reasons == [reason]
    assert not client.closed
    assert client.ask("admin", "find", user="user-x")[0]["contexts"] == ["context-a"]


LONG = "n" * 100_000


@pytest.mark.parametrize(
    ("to", "op", "parameters"),
    [
        (LONG, "ping", {}),
        ("admin", LONG, {}),
        ("provider", "user", {"context": LONG, "user": "u", "on": True}),
        ("provider", "user", {"context": "context-a", "user": LONG, "on": False}),
        ("provider", "context", {"context": LONG, "open": False, "yours": False}),
        ("provider", "gate", {"context": LONG, "open": False}),
        ("provider", "relay", {"context": LONG, "msg": {}}),
        ("admin", "say", {"user": LONG, "text": ""}),
        ("admin", "close", {"context": LONG}),
        ("admin", "watch", {"context": LONG}),
    ],
)
def test_a_diagnostic_does_not_repeat_what_is_long(
    farm: DirectorFarm, to: str, op: str, parameters: dict[str, Any]
) -> None:
    client = everything(farm)
    client.say(to, op, **parameters)
    [diagnostic] = client.take()
    assert diagnostic["op"] == "debug"
    assert len(diagnostic["msg"]) < 400


@pytest.mark.parametrize("op", sampled(OPS))
@pytest.mark.parametrize("to", ["director", "provider", "session", "admin"])
def test_no_value_anywhere_makes_a_session_fail(farm: DirectorFarm, to: str, op: str) -> None:
    values: list[Any] = [None, True, 5, -1.5, 10**30, "x", "", [], {}, [None], {"a": {}}]
    for name in FIELDS:
        client = everything(farm)
        for value in values:
            client.say(to, op, **{name: value})
            if client.closed:
                assert op == "auth"
                break
            client.say(to, op, **{**dict.fromkeys(FIELDS, "context-a"), name: value})
            client.say(to, op, **{**dict.fromkeys(FIELDS, True), "context": "context-a", "user": "u", name: value})
        farm.settle()
        client.take()
        if not client.closed:
            assert client.ask("admin", "ping") == [{"to": "admin", "op": "pong"}]
            client.drop()
