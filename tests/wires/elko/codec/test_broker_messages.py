"""Which messages there are, which parameters they take, what is said of those that are none, and how replies look."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.blocks import Auth, AuthDesc, Debug, Disconnect, Message, Ping, Pong, PongOut, encode
from broker.wires.elko.codec.broker_messages import (
    VOCABULARY,
    AuthDescOut,
    Find,
    Found,
    Launch,
    LauncherDescRequest,
    LauncherDescs,
    LauncherOut,
    LaunchStatus,
    LoadDescOut,
    LoadDescRequest,
    LoadDescs,
    LoadReport,
    Reinit,
    ReinitOut,
    ServiceDesc,
    ServiceDescOut,
    ServiceDescRequest,
    ServiceDescs,
    Shutdown,
    ShutdownOut,
    Watch,
    WillServe,
    WontServe,
)
from tests.wires.elko.codec import reading

read, say = partial(reading.read, VOCABULARY), partial(reading.say, VOCABULARY)


@pytest.mark.parametrize(
    ("op", "parameters", "message"),
    [
        ("auth", {}, Auth("x")),
        ("auth", {"auth": None, "label": None}, Auth("x")),
        ("auth", {"auth": {"mode": "open"}, "label": "l"}, Auth("x", AuthDesc("open"), "l")),
        (
            "auth",
            {"auth": {"type": "bogus", "mode": "password", "code": "c", "id": "i", "zzz": 1}},
            Auth("x", AuthDesc("password", "c", "i")),
        ),
        ("disconnect", {}, Disconnect("x")),
        ("ping", {}, Ping("x")),
        ("ping", {"tag": ""}, Ping("x", "")),
        ("pong", {"tag": "t"}, Pong("x", "t")),
        ("debug", {"msg": "m"}, Debug("x", "m")),
        ("find", {"service": "s"}, Find("x", "s")),
        (
            "find",
            {"service": "s", "protocol": "p", "wait": 3, "monitor": True, "tag": "t"},
            Find("x", "s", "p", 3, True, "t"),
        ),
        ("find", {"service": "s", "wait": 2.5}, Find("x", "s", None, 2.5)),
        ("willserve", {}, WillServe("x")),
        ("willserve", {"services": None}, WillServe("x", None)),
        ("willserve", {"services": []}, WillServe("x", [])),
        (
            "willserve",
            {"services": [{"service": "s"}, {"type": "t", "service": "u", "hostport": "h", "provider": -1, "zz": 0}]},
            WillServe("x", [ServiceDesc("s"), ServiceDesc("u", "h", provider=-1)]),
        ),
        (
            "willserve",
            {"services": [{"service": "s", "label": "l", "protocol": "p", "failure": "f", "auth": {"mode": "m"}}]},
            WillServe("x", [ServiceDesc("s", None, "p", "l", AuthDesc("m"), "f")]),
        ),
        ("wontserve", {}, WontServe("x")),
        ("wontserve", {"services": ["a", "b"]}, WontServe("x", ["a", "b"])),
        ("load", {"factor": 2}, LoadReport("x", 2.0)),
        ("load", {"factor": -0.5}, LoadReport("x", -0.5)),
        ("loaddesc", {}, LoadDescRequest("x")),
        ("loaddesc", {"service": "s", "server": "v"}, LoadDescRequest("x", "s", "v")),
        ("reinit", {"server": "all", "self": True}, Reinit("x", "all", True)),
        ("servicedesc", {"service": "s", "protocol": "p"}, ServiceDescRequest("x", "s", "p")),
        ("shutdown", {}, Shutdown("x")),
        (
            "shutdown",
            {"server": "s", "self": True, "kill": False, "cluster": True},
            Shutdown("x", "s", True, False, True),
        ),
        ("watch", {"services": True, "load": False}, Watch("x", True, False)),
        ("launch", {"name": "n"}, Launch("x", "n")),
        ("launcherdesc", {}, LauncherDescRequest("x")),
    ],
)
def test_every_message_and_its_parameters(op: str, parameters: dict[str, Any], message: Message) -> None:
    assert say(op, **parameters) == message


def test_unknown_parameters_are_ignored() -> None:
    assert say("ping", junk={"a": [None, 1.5]}, self_=True, _0="x") == Ping("x")


def test_the_order_of_the_members_does_not_matter() -> None:
    assert read('{"tag":"t","op":"ping","to":"x"}') == Ping("x", "t")


@pytest.mark.parametrize(
    ("op", "parameters", "place"),
    [
        ("auth", {"auth": "open"}, "auth"),
        ("auth", {"auth": {}}, "mode"),
        ("auth", {"auth": {"mode": 5}}, "mode"),
        ("auth", {"auth": {"mode": "password", "code": 5}}, "code"),
        ("auth", {"label": 7}, "label"),
        ("ping", {"tag": 5}, "tag"),
        ("debug", {}, "msg"),
        ("debug", {"msg": None}, "msg"),
        ("find", {}, "service"),
        ("find", {"service": None}, "service"),
        ("find", {"service": "s", "wait": "5"}, "wait"),
        ("find", {"service": "s", "wait": True}, "wait"),
        ("find", {"service": "s", "monitor": 1}, "monitor"),
        ("find", {"service": "s", "monitor": "true"}, "monitor"),
        ("find", {"service": "s", "tag": 1}, "tag"),
        ("find", {"service": "s", "protocol": ["tcp"]}, "protocol"),
        ("willserve", {"services": {}}, "services"),
        ("willserve", {"services": "bank"}, "services"),
        ("willserve", {"services": [None]}, "services[0]"),
        ("willserve", {"services": [{"service": "a"}, {"hostport": "h:1"}]}, "services[1]"),
        ("willserve", {"services": [{"service": "a", "auth": "open"}]}, "services[0].auth"),
        ("wontserve", {"services": "bank"}, "services"),
        ("wontserve", {"services": ["bank", 1]}, "services[1]"),
        ("load", {}, "factor"),
        ("load", {"factor": "0.5"}, "factor"),
        ("load", {"factor": None}, "factor"),
        ("loaddesc", {"server": 1}, "server"),
        ("reinit", {"self": "true"}, "self"),
        ("shutdown", {"kill": 1}, "kill"),
        ("shutdown", {"cluster": "x"}, "cluster"),
        ("watch", {"services": "yes"}, "services"),
        ("watch", {"load": 0}, "load"),
        ("launch", {}, "name"),
    ],
)
def test_a_missing_or_ill_typed_parameter_is_named(op: str, parameters: dict[str, Any], place: str) -> None:
    malformed = say(op, **parameters)
    assert isinstance(malformed, Malformed)
    assert malformed.reason is Reason.PARAMETER
    assert malformed.op == op
    assert malformed.text.startswith(f"{op}: ")
    assert place in malformed.text


@pytest.mark.parametrize("provider", [-1.0, 3.0])
def test_an_integer_may_be_written_as_a_float(provider: float) -> None:
    assert isinstance(say("willserve", services=[{"service": "s", "provider": provider}]), WillServe)


@pytest.mark.parametrize("op", ["dance", "Ping", "PING", "", "ping ", "x" * 10_000])
def test_an_unknown_op(op: str) -> None:
    malformed = say(op)
    assert isinstance(malformed, Malformed)
    assert malformed.reason is Reason.UNKNOWN_OP
    assert repr(op[:40]) in malformed.text
    assert len(malformed.text) < 200


@pytest.mark.parametrize(
    "text", ['{"to":"x"}', '{"to":"x","op":null}', '{"to":"x","op":5}', '{"to":"x","op":["ping"]}', "{}"]
)
def test_no_op(text: str) -> None:
    malformed = read(text)
    assert isinstance(malformed, Malformed)
    assert (malformed.reason, malformed.op) == (Reason.UNKNOWN_OP, None)


@pytest.mark.parametrize(
    "text", ['{"op":"ping"}', '{"to":null,"op":"ping"}', '{"to":5,"op":"ping"}', '{"to":{},"op":"ping"}']
)
def test_no_target(text: str) -> None:
    malformed = read(text)
    assert isinstance(malformed, Malformed)
    assert (malformed.reason, malformed.op) == (Reason.UNKNOWN_TARGET, "ping")


def test_what_is_wrong_with_a_message_ends_no_connection() -> None:
    for text in ('{"to":"x"}', '{"op":"ping"}', '{"to":"x","op":"load"}', '{"to":"x","op":"dance"}', "{to}"):
        malformed = read(text)
        assert isinstance(malformed, Malformed)
        assert not malformed.reason.fatal


# what is sent, byte for byte


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (PongOut("broker"), '{"to":"broker","op":"pong"}'),
        (PongOut("admin", tag=""), '{"to":"admin","op":"pong","tag":""}'),
        (
            Found(to="client", desc=[ServiceDescOut("s", failure="no such service")], tag="t"),
            '{"to":"client","op":"find","desc":[{"type":"servicedesc","service":"s","failure":"no such service"}],'
            '"tag":"t"}',
        ),
        (Found(to="broker", desc=[]), '{"to":"broker","op":"find","desc":[]}'),
        (
            ServiceDescs(
                desc=[ServiceDescOut("s", "h:1", "tcp", "l", AuthDescOut("password", "i", "c"), None, 0)], on=False
            ),
            '{"to":"admin","op":"servicedesc","desc":[{"type":"servicedesc","service":"s","hostport":"h:1",'
            '"protocol":"tcp","label":"l","auth":{"type":"auth","mode":"password","id":"i","code":"c"},"provider":0}],'
            '"on":false}',
        ),
        (
            Found(to="broker", desc=[ServiceDescOut("s", "h:1", "tcp", provider=5, restored=True)]),
            '{"to":"broker","op":"find","desc":[{"type":"servicedesc","service":"s","hostport":"h:1","protocol":"tcp",'
            '"provider":5,"restored":true}]}',
        ),
        (
            LoadDescs(desc=[LoadDescOut("l", 1.0, 3), LoadDescOut("m", 0.001, 4)]),
            '{"to":"admin","op":"loaddesc","desc":[{"type":"loaddesc","label":"l","load":1.0,"provider":3},'
            '{"type":"loaddesc","label":"m","load":0.001,"provider":4}]}',
        ),
        (ReinitOut("client"), '{"to":"client","op":"reinit"}'),
        (ShutdownOut("broker"), '{"to":"broker","op":"shutdown"}'),
        (ShutdownOut("broker", kill=True), '{"to":"broker","op":"shutdown","kill":true}'),
        (LaunchStatus(status="start x"), '{"to":"admin","op":"launch","status":"start x"}'),
        (
            LauncherDescs(launchers=[LauncherOut("a", "b c", False), LauncherOut("d", "e", True, True)]),
            '{"to":"admin","op":"launcherdesc","launchers":[{"type":"launcher","name":"a","script":"b c","on":false},'
            '{"type":"launcher","name":"d","script":"e","on":true,"initial":true}]}',
        ),
    ],
)
def test_what_is_sent(message: msgspec.Struct, text: str) -> None:
    assert encode(message) == f"{text}\n\n".encode()
