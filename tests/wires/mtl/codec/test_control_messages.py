"""Decoding of requests, the answers to malformed ones, and encoding of replies."""

from __future__ import annotations

import json
from base64 import b64encode

import msgspec
import pytest

from broker.core.errors import Reason
from broker.wires.mtl.codec import control_messages
from broker.wires.mtl.codec.control_messages import (
    MAX_COMMAND,
    MAX_REQUEST,
    MAX_RESOURCES,
    AuthorizeRequest,
    ControlRequest,
    InvalidRequest,
    OpenRequest,
    ProfileRequest,
    ReaderRequest,
    ReplyStatus,
    WriterRequest,
    decode,
)

PROTOCOL = {"name": "MTL", "version": 1}
GOOD: dict[str, dict[str, object]] = {
    "Connection.Open": {"protocol": PROTOCOL, "virtual-host": "test-env"},
    "Connection.Authorize": {"mechanism": "PLAIN", "response": "AGEAYg=="},
    "Connection.Profile": {"profile": "test"},
    "Connection.Reader": {"resources": ["a"], "confirm": "none"},
    "Connection.Writer": {"resources": ["a"], "confirm": "full"},
}


def version(value: object) -> dict[str, object]:
    """A protocol of another version."""
    return {**PROTOCOL, "version": value}


def ask(command: str, members: object) -> ControlRequest:
    return decode(command.encode(), json.dumps(members).encode())


def refused(command: str | bytes, body: object) -> InvalidRequest:
    """The result of decoding a request; a body is JSON already, or made so."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as caught:
        decode(command if isinstance(command, bytes) else command.encode(), data)
    invalid = caught.value
    assert not invalid.reason.fatal
    code, reply = invalid.reply
    assert code == invalid.status.code
    said = json.loads(reply)
    assert list(said)[:2] == ["status", "reason"]
    assert (said["status"], said["reason"]) == (invalid.status.text, invalid.text)
    assert len(reply) < 300
    return invalid


# Requests


@pytest.mark.parametrize(
    ("command", "members", "expected"),
    [
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": "test-env"}, OpenRequest("test-env")),
        ("Connection.Open", {"protocol": PROTOCOL}, OpenRequest("/")),
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": ""}, OpenRequest("")),
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": "É\n" + "x" * 300}, OpenRequest("É\n" + "x" * 300)),
        ("Connection.Open", {"protocol": {**PROTOCOL, "more": [1]}, "agent": {"a": None}}, OpenRequest("/")),
        ("Connection.Authorize", {"mechanism": "PLAIN", "response": "AGEAYg=="}, AuthorizeRequest("PLAIN", b"\0a\0b")),
        ("Connection.Authorize", {"mechanism": "Scram-sha-256"}, AuthorizeRequest("SCRAM-SHA-256", None)),
        ("Connection.Authorize", {"mechanism": "external", "response": None}, AuthorizeRequest("EXTERNAL", None)),
        ("Connection.Authorize", {"mechanism": "external", "response": ""}, AuthorizeRequest("EXTERNAL", b"")),
        ("Connection.Authorize", {"mechanism": "é", "x": 1}, AuthorizeRequest("é", None)),
        ("Connection.Profile", {"profile": "test"}, ProfileRequest("test")),
        ("Connection.Profile", {"profile": "TEST", "x": 1}, ProfileRequest("test")),
        ("Connection.Profile", {"profile": ""}, ProfileRequest("")),
        ("Connection.Profile", {"profile": "\u212a"}, ProfileRequest("\u212a")),
        ("Connection.Reader", {"resources": []}, ReaderRequest((), None, None)),
        ("Connection.Reader", {"resources": ["a", "B"], "confirm": "none"}, ReaderRequest(("a", "B"), "none", None)),
        ("Connection.Reader", {"resources": list("bab"), "confirm": "full"}, ReaderRequest(("b", "a"), "full", None)),
        ("Connection.Reader", {"resources": [], "window": 1}, ReaderRequest((), None, 1)),
        ("Connection.Reader", {"resources": [], "window": None, "x": {}}, ReaderRequest((), None, None)),
        ("Connection.Reader", {"resources": [], "window": 2**64}, ReaderRequest((), None, 2**64)),
        ("Connection.Reader", {"resources": ["é" * 127, "x" * 255]}, ReaderRequest(("é" * 127, "x" * 255), None, None)),
        ("Connection.Writer", {"resources": []}, WriterRequest((), None)),
        ("Connection.Writer", {"resources": ["a"], "confirm": "full", "window": "x"}, WriterRequest(("a",), "full")),
    ],
)  # fmt: skip
def test_a_request_is_read(command: str, members: dict[str, object], expected: ControlRequest) -> None:
    """A02, A06, A17, A19, P01, P03, L04, L10."""
    result = ask(command, members)
    assert type(result) is type(expected)
    assert result == expected


@pytest.mark.parametrize("command", GOOD)
def test_commands_are_case_insensitive(command: str) -> None:
    """G07."""
    expected = ask(command, GOOD[command])
    for variant in (command.lower(), command.upper(), command.swapcase()):
        assert ask(variant, GOOD[command]) == expected


@pytest.mark.parametrize("command", GOOD)
def test_of_a_member_that_comes_twice_the_last_value_counts(command: str) -> None:
    """E08."""
    inner = json.dumps(GOOD[command])[1:-1]
    wrong = ", ".join(f'"{member}": 7' for member in GOOD[command])
    assert decode(command.encode(), f"{{{wrong}, {inner}}}".encode()) == ask(command, GOOD[command])
    assert refused(command, f"{{{inner}, {wrong}}}".encode()).status is ReplyStatus.BAD_REQUEST


def test_requests_cannot_be_changed() -> None:
    for command, members in GOOD.items():
        result = ask(command, members)
        for field in msgspec.structs.fields(result):
            with pytest.raises(AttributeError):
                setattr(result, field.name, None)


def test_any_response_is_decoded() -> None:
    """A06."""
    response = bytes(range(256)) * 100
    members = {"mechanism": "X", "response": b64encode(response).decode()}
    assert ask("Connection.Authorize", members) == AuthorizeRequest("X", response)


# Refused requests


@pytest.mark.parametrize(
    ("command", "members", "text"),
    [
        ("Connection.Open", {}, "object missing required field `protocol`"),
        ("Connection.Open", {"protocol": None}, "protocol: expected `object`, got `null`"),
        ("Connection.Open", {"protocol": "MTL"}, "protocol: expected `object`, got `str`"),
        ("Connection.Open", {"protocol": {"name": "MTL"}}, "protocol: object missing required field `version`"),
        ("Connection.Open", {"protocol": {"version": 1}}, "protocol: object missing required field `name`"),
        ("Connection.Open", {"protocol": {"name": "mtl", "version": 1}}, "protocol: its name is not MTL"),
        ("Connection.Open", {"protocol": {"name": "AMQP", "version": 2}}, "protocol: its name is not MTL"),
        ("Connection.Open", {"protocol": version("1")}, "protocol.version: expected `int`, got `str`"),
        ("Connection.Open", {"protocol": version(1.0)}, "protocol.version: expected `int`, got `float`"),
        ("Connection.Open", {"protocol": version(True)}, "protocol.version: expected `int`, got `bool`"),
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": 5}, "virtual-host: expected `str`, got `int`"),
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": None}, "virtual-host: expected `str`, got `null`"),
        ("Connection.Open", {"protocol": PROTOCOL, "virtual-host": ["/"]}, "virtual-host: expected `str`, got `array`"),
        ("Connection.Authorize", {}, "object missing required field `mechanism`"),
        ("Connection.Authorize", {"mechanism": 1}, "mechanism: expected `str`, got `int`"),
        ("Connection.Authorize", {"mechanism": "X", "response": 1}, "response: expected `bytes | null`, got `int`"),
        ("Connection.Authorize", {"mechanism": "X", "response": "A"}, "response: invalid base64 encoded string"),
        ("Connection.Authorize", {"mechanism": "X", "response": "AA"}, "response: invalid base64 encoded string"),
        ("Connection.Authorize", {"mechanism": "X", "response": "AA=A"}, "response: invalid base64 encoded string"),
        ("Connection.Authorize", {"mechanism": "X", "response": "AA-_"}, "response: invalid base64 encoded string"),
        ("Connection.Authorize", {"mechanism": "X", "response": "AAAA\n"}, "response: invalid base64 encoded string"),
        ("Connection.Authorize", {"mechanism": "X", "response": "é"}, "response: invalid base64 encoded string"),
        ("Connection.Profile", {}, "object missing required field `profile`"),
        ("Connection.Profile", {"profile": None}, "profile: expected `str`, got `null`"),
        ("Connection.Profile", {"profile": ["test"]}, "profile: expected `str`, got `array`"),
        ("Connection.Profile", {"Profile": "test"}, "object missing required field `profile`"),
    ],
)  # fmt: skip
def test_a_missing_or_mistyped_member_is_answered(command: str, members: dict[str, object], text: str) -> None:
    """A11, A14, A15, P05."""
    invalid = refused(command, members)
    assert invalid.status is ReplyStatus.BAD_REQUEST
    assert invalid.reason is Reason.PARAMETER
    assert invalid.text == text
    assert invalid.op == command


@pytest.mark.parametrize("command", ["Connection.Reader", "Connection.Writer"])
@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, "object missing required field `resources`"),
        ({"confirm": "none"}, "object missing required field `resources`"),
        ({"resources": None}, "resources: expected `array`, got `null`"),
        ({"resources": "a"}, "resources: expected `array`, got `str`"),
        ({"resources": {}}, "resources: expected `array`, got `object`"),
        ({"resources": ["a", 1]}, "resources[1]: expected `str`, got `int`"),
        ({"resources": [["a"]]}, "resources[0]: expected `str`, got `array`"),
        ({"resources": [], "confirm": None}, "confirm: expected `str`, got `null`"),
        ({"resources": [], "confirm": True}, "confirm: expected `str`, got `bool`"),
        ({"resources": [], "confirm": "maybe"}, "confirm: it is neither none nor full"),
        ({"resources": [], "confirm": "Full"}, "confirm: it is neither none nor full"),
        ({"resources": [], "confirm": ""}, "confirm: it is neither none nor full"),
        ({"resources": [], "confirm": "none | full"}, "confirm: it is neither none nor full"),
        ({"resources": [], "confirm": "x" * 60_000}, "confirm: it is neither none nor full"),
        ({"resources": [], "confirm": "\ud800"}, "confirm: it is neither none nor full"),
    ],
)
def test_bad_resources_and_confirmation_models_are_answered(
    command: str, members: dict[str, object], text: str
) -> None:
    """L06, L07."""
    invalid = refused(command, members)
    assert invalid.status is ReplyStatus.BAD_REQUEST
    assert invalid.text == text
    assert invalid.op == command


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a\0", "\n", "\x7f", "\ud800", "\u200b", "x" * 60_000])
@pytest.mark.parametrize("command", ["Connection.Reader", "Connection.Writer"])
def test_a_resource_that_no_short_string_can_name_is_answered(command: str, name: str) -> None:
    """L08."""
    for resources in ([name], ["a", name, "b"]):
        invalid = refused(command, {"resources": resources})
        assert invalid.status is ReplyStatus.BAD_REQUEST
        assert invalid.text == "resources: a name must have 1 to 255 bytes, all of them printable"


@pytest.mark.parametrize("digits", ["0", "2", "-1", "18446744073709551617", "1" * 5_000, "-" + "1" * 5_000])
def test_another_version_is_answered_with_ours(digits: str) -> None:
    """A14, E08."""
    invalid = refused("Connection.Open", b'{"protocol":{"name":"MTL","version":%b}}' % digits.encode())
    assert invalid.status is ReplyStatus.NOT_IMPLEMENTED
    assert json.loads(invalid.reply[1]) == {
        "status": "Not implemented",
        "reason": "protocol: its version is not 1",
        "protocol": {"name": "MTL", "version": 1},
    }


@pytest.mark.parametrize(
    "command",
    [
        b"", b"\0", b"\xff\xfe", b"Connection", b"Connection.Close", b"Connection.Open ", b"Connection.Open\0", b" ",
        b"Connection.Data", b"x" * MAX_COMMAND, "\u212aonnection.Open".encode(), "Connect\u0131on.Open".encode(),
    ],
)  # fmt: skip
def test_an_unknown_command_is_answered(command: bytes) -> None:
    """E06, E09."""
    invalid = refused(command, {})
    assert invalid.status is ReplyStatus.NOT_IMPLEMENTED
    assert invalid.reason is Reason.UNKNOWN_OP
    assert invalid.text == "there is no such command"
    assert refused(command, []).status is ReplyStatus.NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "body", [b"[]", b"[{}]", b"42", b'"x"', b"null", b"true", b"1e999", b"9" * 5_000, b'"\\ud800"']
)
@pytest.mark.parametrize("command", GOOD)
def test_json_that_is_no_object_is_answered(command: str, body: bytes) -> None:
    """E05, E07, E08."""
    invalid = refused(command, body)
    assert invalid.status is ReplyStatus.BAD_REQUEST
    assert invalid.text == "the body is not an object"


def nested(depth: int) -> bytes:
    return b'{"profile":"test","x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_what_is_over_a_limit_is_answered() -> None:
    """E08, E09, E11."""
    assert refused(b"x" * (MAX_COMMAND + 1), {}).status is ReplyStatus.TOO_LARGE
    assert refused(b"x" * 65_536, {}).status is ReplyStatus.TOO_LARGE
    assert decode(b"Connection.Profile", nested(32)) == ProfileRequest("test")
    assert refused("Connection.Profile", nested(33)).text == "the body is nested deeper than 32"
    assert refused("Connection.Profile", nested(30_000)).status is ReplyStatus.TOO_LARGE
    names = [f"{number}" for number in range(MAX_RESOURCES)]
    assert ask("Connection.Writer", {"resources": names}) == WriterRequest(tuple(names), None)
    invalid = refused("Connection.Writer", {"resources": [*names, "0"]})
    assert invalid.status is ReplyStatus.TOO_LARGE
    assert invalid.text == "resources: there are more than 1000"
    padded = b'{"profile":"test"}'.ljust(MAX_REQUEST)
    assert decode(b"Connection.Profile", padded) == ProfileRequest("test")
    assert refused("Connection.Profile", padded + b" ").status is ReplyStatus.TOO_LARGE
    assert refused("Connection.Profile", b"x" * (8 * 2**20)).text == "the body has more than 65536 bytes"


# Surrogates that stand alone, and numbers of thousands of digits


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("Connection.Open", rb'{"protocol":{"name":"MTL","version":1},"virtual-host":"\ud800"}'),
        ("Connection.Open", rb'{"protocol":{"name":"\ud800","version":1}}'),
        ("Connection.Open", rb'{"protocol":{"\ud800":1,"name":"MTL","version":1}}'),
        ("Connection.Authorize", rb'{"mechanism":"\udfff"}'),
        ("Connection.Authorize", rb'{"mechanism":"X","response":"\ud800"}'),
        ("Connection.Profile", rb'{"profile":"\ud800"}'),
        ("Connection.Profile", rb'{"profile":"test","\ud800":1}'),
        ("Connection.Reader", rb'{"resources":["\ud800"]}'),
    ],
)
def test_a_surrogate_that_stands_alone_is_answered(command: str, body: bytes) -> None:
    """E08."""
    assert refused(command, body).status is ReplyStatus.BAD_REQUEST


@pytest.mark.parametrize(
    "value", [rb'"\ud800"', rb'[{"\ud800":"\udfff"}]', b"9" * 5_000, b"1e9999", b"[" * 31 + b"]" * 31]
)
def test_in_a_member_that_is_not_known_they_are_ignored(value: bytes) -> None:
    """A17, E08."""
    assert decode(b"Connection.Profile", b'{"profile":"test","unknown":%b}' % value) == ProfileRequest("test")


# Dropped requests


# Replies


@pytest.mark.parametrize(
    ("reply", "code", "body"),
    [
        (control_messages.OK, b"200", {"status": "OK"}),
        (control_messages.ready(["test", "queue"]), b"201", {"status": "Ready", "profiles": ["test", "queue"]}),
        (
            control_messages.ready([], {"header": 71_680}),
            b"201",
            {"status": "Ready", "profiles": [], "limits": {"header": 71_680}},
        ),
        (control_messages.unauthorized(["PLAIN"]), b"401", {"status": "Unauthorized", "mechanisms": ["PLAIN"]}),
        (
            control_messages.unauthorized([], "the password is wrong"),
            b"401",
            {"status": "Unauthorized", "reason": "the password is wrong", "mechanisms": []},
        ),
        (
            control_messages.challenged("SCRAM-SHA-256", b"\0r=a"),
            b"402",
            {"status": "Challenged", "mechanism": "SCRAM-SHA-256", "challenge": "AHI9YQ=="},
        ),
        (control_messages.challenged("X", b""), b"402", {"status": "Challenged", "mechanism": "X", "challenge": ""}),
        (control_messages.data_lease(5976, "token"), b"202", {"status": "Data Lease", "port": 5976, "lease": "token"}),
        (
            control_messages.data_lease(5976, "token", more={"reply": "there", "lease": "no", "status": "no"}),
            b"202",
            {"status": "Data Lease", "port": 5976, "lease": "token", "reply": "there"},
        ),
        (
            control_messages.data_lease(0, "token", window=100, endpoint="tcp://broker:5976"),
            b"202",
            {"status": "Data Lease", "port": 0, "lease": "token", "window": 100, "endpoint": "tcp://broker:5976"},
        ),
        (control_messages.error(ReplyStatus.NOT_IMPLEMENTED), b"501", {"status": "Not implemented"}),
        (control_messages.error(ReplyStatus.BAD_REQUEST, "open"), b"400", {"status": "Bad Request", "reason": "open"}),
        (control_messages.error(ReplyStatus.FORBIDDEN, "é\ud800"), b"403", {"status": "Forbidden", "reason": "é?"}),
        (control_messages.error(ReplyStatus.TOO_MANY, more={"x": 1}), b"429", {"status": "Too Many Requests", "x": 1}),
    ],
)
def test_a_reply_is_a_code_and_an_object_with_its_status_first(
    reply: tuple[bytes, bytes], code: bytes, body: dict[str, object]
) -> None:
    """G03, G06, A03, A04, A07, P01, L02, L05, E07."""
    assert reply[0] == code
    assert list(json.loads(reply[1]).items()) == list(body.items())


def test_a_status_is_three_digits_and_a_text() -> None:
    """G03."""
    for status in ReplyStatus:
        assert len(status.code) == 3
        assert b"200" <= status.code <= b"503"
    assert [(status.code, status.text) for status in ReplyStatus if status.code >= b"4"] == [
        (b"400", "Bad Request"),
        (b"401", "Unauthorized"),
        (b"402", "Challenged"),
        (b"403", "Forbidden"),
        (b"413", "Payload Too Large"),
        (b"421", "Misdirected Request"),
        (b"429", "Too Many Requests"),
        (b"500", "Internal Error"),
        (b"501", "Not implemented"),
        (b"503", "Unavailable"),
    ]
