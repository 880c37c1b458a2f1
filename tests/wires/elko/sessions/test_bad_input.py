"""Bad input: each class of it has its answer, and leaves the rest working."""

from __future__ import annotations

from typing import Any

import pytest

from broker.wires.elko.codec.blocks import MAX_BLOCK
from broker.wires.elko.sessions.authentication import Policy
from tests.wires.recording import Client, ElkoFarm, desc, found, told


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


@pytest.fixture
def client(farm: ElkoFarm) -> Client:
    """A peer with both roles, which offers a bank."""
    client = farm.client("me")
    client.say("admin", "auth")
    client.offer(desc("bank"))
    return client


BAD: list[tuple[str, bytes, str, str]] = [
    ("malformed JSON", b'{"to":"broker" "op":"ping"}\n', "syntax", "position 15"),
    ("no JSON", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "syntax", "position"),
    ("unknown target", b'{"to":"nobody","op":"ping"}\n', "unknown-target", "'nobody'"),
    ("no target", b'{"op":"ping"}\n', "unknown-target", "to (a string) is missing"),
    ("unknown op", b'{"to":"broker","op":"dance"}\n', "unknown-op", "'dance'"),
    ("no op", b'{"to":"broker"}\n', "unknown-op", "no op"),
    ("op of another object", b'{"to":"admin","op":"load","factor":1}\n', "unknown-op", "'load'"),
    ("wrong type", b'{"to":"broker","op":"load","factor":"1"}\n', "parameter", "factor"),
    ("missing parameter", b'{"to":"broker","op":"find"}\n', "parameter", "service"),
    (
        "deep inside",
        b'{"to":"broker","op":"willserve","services":[{"service":1}]}\n',
        "parameter",
        "services[0].service",
    ),
]


@pytest.mark.parametrize(("data", "reason", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_it_is_answered_with_what_was_wrong_and_the_rest_works(
    client: Client, data: bytes, reason: str, text: str
) -> None:
    client.send(data)
    [diagnostic] = client.take()
    assert list(diagnostic) == ["to", "op", "msg"]
    assert (diagnostic["to"], diagnostic["op"]) == ("error", "debug")
    assert text in diagnostic["msg"]
    assert client.reasons == [reason]
    assert not client.closed
    assert client.find("bank") == [found(told("bank", 1))]


@pytest.mark.parametrize(("data", "reason"), [(row[1], row[2]) for row in BAD], ids=[row[0] for row in BAD])
def test_without_diagnostics_it_is_only_counted(farm: ElkoFarm, data: bytes, reason: str) -> None:
    client = farm.client(policy=Policy(diagnostics=False))
    client.send(data)
    assert client.take() == []
    assert client.reasons == [reason]
    assert not client.closed


@pytest.mark.parametrize("diagnostics", [True, False])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"to":"broker","op":"ping","tag":"\xff"}\n', "encoding"),
        (b"x" * (MAX_BLOCK + 1), "too-large"),
        (b'{"to":"broker","op":"ping","tag":"' + b"x" * MAX_BLOCK + b'"}\n', "too-large"),
        (b"{\n" + b'"a":1,\n' * 150_000, "too-large"),
    ],
)
def test_what_cannot_be_read_on_closes(farm: ElkoFarm, diagnostics: bool, data: bytes, reason: str) -> None:
    client = farm.client(policy=Policy(diagnostics=diagnostics))
    client.offer(desc("bank"))
    client.send(data)
    assert client.closed
    assert client.reasons == [reason]
    assert [message["op"] for message in client.take()] == (["debug"] if diagnostics else [])
    assert list(farm.registry.services()) == []


def test_the_answer_to_a_fatal_one_is_the_last_word(client: Client) -> None:
    client.send(b'{"to":"broker","op":"ping","tag":"\xff"}\n{"to":"broker","op":"ping"}\n')
    assert [message["op"] for message in client.take()] == ["debug"]


@pytest.mark.parametrize(
    "data",
    [
        b'{"to":"' + b"n" * 100_000 + b'","op":"ping"}\n',
        b'{"to":"broker","op":"' + b"o" * 100_000 + b'"}\n',
        b'{"to":"broker" "' + b"x" * 100_000 + b'"}\n',
        b'{"to":"admin","op":"auth","auth":{"mode":"' + b"m" * 100_000 + b'"}}\n',
    ],
)
def test_an_answer_does_not_repeat_what_is_long(client: Client, data: bytes) -> None:
    client.send(data)
    [diagnostic] = client.take()
    assert len(diagnostic["msg"]) < 300


def test_whoever_goes_on_is_closed(farm: ElkoFarm) -> None:
    client = farm.client(patience=3)
    for _ in range(5):
        client.send(b"{to}\n")
    assert client.closed
    messages = client.take()
    assert len(messages) == 4
    assert "too much is refused" in messages[-1]["msg"]


def test_one_bad_peer_does_not_hurt_another(farm: ElkoFarm, client: Client) -> None:
    other = farm.client()
    assert other.find("shop", wait=-1) == []
    for data in (b"{to}\n", b"\xff\n"):
        client.send(data)
    client.take()
    farm.client().offer(desc("shop"))
    assert other.take() == [found(told("shop", 3))]


@pytest.mark.parametrize("op", ["find", "willserve", "wontserve", "load", "auth", "ping", "debug"])
@pytest.mark.parametrize("value", [None, True, 5, 1.5, "x", [], {}, [None], [[]], {"mode": None}, [{"service": None}]])
def test_no_value_anywhere_makes_a_session_fail(client: Client, op: str, value: Any) -> None:
    names = ("service", "services", "factor", "auth", "label", "tag", "msg", "wait", "monitor", "protocol")
    for name in names:
        client.say("client", op, **{name: value})
        if client.closed:  # a second auth, or what it means to be wrong
            assert op == "auth"
            return
    client.take()
    assert client.ask("broker", "ping") == [{"to": "broker", "op": "pong"}]
