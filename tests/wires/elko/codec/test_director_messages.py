"""The messages of the director: which there are, which parameters they take, and how what is sent looks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec import UNSET

from broker.core.director import director_interfaces as core
from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec import director_messages as wire
from broker.wires.elko.codec.blocks import COMMON, BlockReader, Message, encode
from broker.wires.elko.sessions.director_session import MessageCache, notification_message
from tests.wires.elko.codec import reading

read, say = partial(reading.read, wire.VOCABULARY), partial(reading.say, wire.VOCABULARY)


@pytest.mark.parametrize(
    ("op", "parameters", "expected"),
    [
        ("reserve", {"protocol": "p", "context": "c"}, wire.Reserve("x", "p", "c")),
        (
            "reserve",
            {"protocol": "p", "context": "c", "user": "u", "tag": "t"},
            wire.Reserve("x", "p", "c", "u", "t"),
        ),
        ("address", {"protocol": "p", "hostport": "h"}, wire.Address("x", "p", "h")),
        ("context", {"context": "c", "open": True, "yours": False}, wire.ContextReport("x", "c", True, False)),
        (
            "context",
            {"context": "c", "open": True, "yours": True, "maxcap": 3, "basecap": -1, "restricted": True},
            wire.ContextReport("x", "c", True, True, 3, -1, True),
        ),
        ("gate", {"context": "c", "open": False}, wire.Gate("x", "c", False)),
        ("gate", {"context": "c", "open": True, "reason": "r"}, wire.Gate("x", "c", True, "r")),
        ("load", {"factor": 1}, wire.LoadReport("x", 1.0)),
        ("relay", {"msg": {"a": [1, None]}, "user": "u"}, wire.Relay("x", {"a": [1, None]}, user="u")),
        ("user", {"context": "c", "user": "u", "on": True}, wire.UserReport("x", "c", "u", True)),
        ("willserve", {"context": "f"}, wire.WillServe("x", "f")),
        ("willserve", {"context": "f", "capacity": 9, "restricted": False}, wire.WillServe("x", "f", 9, False)),
        ("close", {}, wire.Close("x")),
        ("close", {"context": "c", "user": "u"}, wire.Close("x", "c", "u")),
        ("dump", {"depth": 2}, wire.DumpRequest("x", 2)),
        ("dump", {"depth": 0.5, "provider": "p", "context": "c"}, wire.DumpRequest("x", 0.5, "p", "c")),
        ("find", {"user": "u"}, wire.Find("x", None, "u")),
        ("listcontexts", {}, wire.ListContexts("x")),
        ("listproviders", {"junk": 1}, wire.ListProviders("x")),
        ("listusers", {}, wire.ListUsers("x")),
        ("reinit", {"provider": "p", "director": True}, wire.Reinit("x", "p", True)),
        ("say", {"text": "t", "context": None}, wire.Say("x", "t")),
        ("shutdown", {"provider": "p", "director": False, "kill": True}, wire.Shutdown("x", "p", False, True)),
        ("watch", {"context": "c"}, wire.Watch("x", "c")),
        ("unwatch", {"user": "u"}, wire.Unwatch("x", None, "u")),
    ],
)
def test_every_message_and_its_parameters(op: str, parameters: dict[str, Any], expected: Message) -> None:
    assert say(op, **parameters) == expected


def test_every_op_is_known_once() -> None:
    ops = [str(each.__struct_config__.tag) for each in wire.VOCABULARY.messages]
    assert len(ops) == len(set(ops))
    known = {*COMMON, wire.Reserve, wire.Relay, *wire.PROVIDER, *wire.ADMIN}
    assert set(wire.VOCABULARY.messages) == known


@pytest.mark.parametrize(
    ("op", "parameters", "place"),
    [
        ("load", {"factor": None}, "factor"),
        ("load", {"factor": True}, "factor"),
        ("relay", {"msg": None}, "msg"),
        ("relay", {"msg": "{}"}, "msg"),
        ("relay", {}, "msg"),
        ("context", {"context": "c", "open": "true", "yours": True}, "open"),
        ("context", {"context": "c", "open": True, "yours": True, "basecap": [1]}, "basecap"),
        ("dump", {"depth": None}, "depth"),
        ("find", {"context": {}}, "context"),
        ("willserve", {"context": ["a"]}, "context"),
    ],
)
def test_what_a_parameter_may_not_be(op: str, parameters: dict[str, Any], place: str) -> None:
    malformed = say(op, **parameters)
    assert isinstance(malformed, Malformed)
    assert malformed.reason is Reason.PARAMETER
    assert place in malformed.text


@pytest.mark.parametrize("number", ["9" * 5_000, "1e999", "-1e999", "NaN", "Infinity"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    for text in (
        f'{{"to":"x","op":"load","factor":{number}}}',
        f'{{"to":"x","op":"relay","msg":{{"a":{number}}}}}',
        f'{{"to":"x","op":"dump","depth":{number}}}',
    ):
        items = list(BlockReader(wire.VOCABULARY).feed(text.encode() + b"\n\n"))
        assert items
        assert all(isinstance(item, Malformed) for item in items)


TOLD: list[tuple[core.Order | core.ContextPlace | core.UserPlace, str]] = [
    (core.DoReserve("c", "u", "1"), '{"to":"provider","op":"doreserve","context":"c","user":"u","reservation":"1"}'),
    (core.DoReserve("c", None, "1"), '{"to":"provider","op":"doreserve","context":"c","reservation":"1"}'),
    (core.Say("c", None, ""), '{"to":"provider","op":"say","context":"c","text":""}'),
    (core.Say(None, "u", "t"), '{"to":"provider","op":"say","user":"u","text":"t"}'),
    (core.Relay("c", None, {}), '{"to":"provider","op":"relay","context":"c","msg":{}}'),
    (
        core.Relay(None, "u", {"op": "o", 'a"b': None, "n": [None, 2.5, 10**30]}),
        '{"to":"provider","op":"relay","user":"u","msg":{"op":"o","a\\"b":null,"n":[null,2.5,' + str(10**30) + "]}}",
    ),
    (core.Close("c", None), '{"to":"provider","op":"close","context":"c"}'),
    (core.Close(None, "u"), '{"to":"provider","op":"close","user":"u"}'),
    (core.Close("c", None, dup=True), '{"to":"provider","op":"close","context":"c","dup":true}'),
    (core.Reinit(), '{"to":"provider","op":"reinit"}'),
    (core.Shutdown(), '{"to":"provider","op":"shutdown"}'),
    (core.Shutdown(kill=True), '{"to":"provider","op":"shutdown","kill":true}'),
    (core.ContextPlace("c"), '{"to":"admin","op":"context","context":"c","open":false}'),
    (core.ContextPlace("c", "p"), '{"to":"admin","op":"context","context":"c","open":true,"provider":"p"}'),
    (
        core.ContextPlace("c", None, ("c-1", "c-2")),
        '{"to":"admin","op":"context","context":"c","open":false,"clones":["c-1","c-2"]}',
    ),
    (
        core.ContextPlace("c", "p", ("c-1",)),
        '{"to":"admin","op":"context","context":"c","open":true,"provider":"p","clones":["c-1"]}',
    ),
    (core.UserPlace("u"), '{"to":"admin","op":"user","user":"u","on":false}'),
    (core.UserPlace("u", ("a", "b")), '{"to":"admin","op":"user","user":"u","on":true,"contexts":["a","b"]}'),
]


@pytest.mark.parametrize(("told", "text"), TOLD)
def test_how_what_is_told_looks(told: core.Order | core.ContextPlace | core.UserPlace, text: str) -> None:
    assert encode(notification_message(told)) == text.encode() + b"\n\n"


def test_what_several_are_told_is_encoded_once() -> None:
    words = MessageCache()
    one, same = core.Say("c", None, "t"), core.Say("c", None, "t")
    first = words.of(one)
    assert words.of(one) is first
    other = words.of(same)
    assert other == first
    assert other is not first, "only the same object is known to be the same"
    assert words.of(core.Reinit()) != first


def test_answers_to_reserve_have_their_members_in_order() -> None:
    granted = wire.Reserved(to="director", context="c", user="u", hostport="h", reservation="1", tag="t")
    assert encode(granted) == (
        b'{"to":"director","op":"reserve","context":"c","user":"u","hostport":"h","reservation":"1","tag":"t"}\n\n'
    )
    denied = wire.Denied(to="provider", context="c", user=UNSET, deny="no")
    assert encode(denied) == b'{"to":"provider","op":"reserve","context":"c","deny":"no"}\n\n'


def test_characters_that_real_peers_cannot_read_go_out_as_escapes() -> None:
    told = core.Relay("c", None, {"\U0001f600": "\U0001f600\u0001"})
    assert b'{"\\ud83d\\ude00":"\\ud83d\\ude00\\u0001"}' in encode(notification_message(told))
