"""Decoding of DBP frames, errors for malformed ones, and encoding of replies.

The file is longer than others: it has all tests of `broker.wires.dbp.codec.dbp_messages`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence

import pytest

from broker.core.errors import Malformed, Reason
from broker.core.service_info import MAX_INFO
from broker.wires.dbp.codec import dbp_messages
from broker.wires.dbp.codec.dbp_messages import (
    MAX_NAMES,
    MAX_SHOWN,
    MAX_TIME,
    Ack,
    BadRequest,
    BadTime,
    Beat,
    Bye,
    Denied,
    Form,
    Invalid,
    Message,
    Ping,
    Question,
    Registration,
    Request,
    Unexpected,
    Update,
    parse,
    read_time,
    write_time,
)
from broker.wires.dbp.codec.listings import MAX_NAME, listing, merge_infos, unknown
from tests.wires.dbp.codec.examples import (
    AFTER_A_SHORT_REPLY,
    CONVERSATIONS,
    MEMBERS,
    ROHAN,
    SECONDS,
    TIME,
    TO_A_SERVICE,
    exchanges,
    frames,
    read_as_hermes,
)

F32 = Form.FLOAT32
NOW = 1795246621.35


def say(text: str) -> Message:
    return parse(frames(text))


def refused(sent: str | Sequence[bytes]) -> Malformed:
    with pytest.raises(Malformed) as caught:
        parse(frames(sent) if isinstance(sent, str) else sent)
    return caught.value


# Times


@pytest.mark.parametrize(
    ("data", "form", "seconds"),
    [
        (TIME, F32, SECONDS),
        (b"1234", F32, struct.unpack("<f", b"1234")[0]),
        (b"\0\0\xc0\x7f", F32, None),
        (struct.pack("<d", NOW), Form.FLOAT64, NOW),
        (struct.pack(">d", NOW), Form.FLOAT64_BIG, NOW),
        (b"\x1d\xd7\xa5\xb6R\xc0\xdaA", Form.FLOAT64, 1795246810.5912545),
        (b"\x41\xd0\0\0\0\0\xd0\x41", Form.FLOAT64, struct.unpack("<d", b"\x41\xd0\0\0\0\0\xd0\x41")[0]),
        (struct.pack("<d", 0.0), Form.FLOAT64, 0.0),
        (struct.pack("<d", math.inf), Form.FLOAT64, None),
        (struct.pack("<q", 1795246621), Form.FLOAT64, struct.unpack("<d", struct.pack("<q", 1795246621))[0]),
        (b"1795246621", Form.TEXT, 1795246621.0),
        (b"1795246621.350000", Form.TEXT, NOW),
        (b"1795246621.", Form.TEXT, 1795246621.0),
        (b"1795246621350", Form.TEXT, 1795246621350.0),
        (b"1.79524662135e+09", Form.TEXT, NOW),
        (b"12345678", Form.TEXT, 12345678.0),
        (b"0", Form.TEXT, 0.0),
        (b"1" * MAX_TIME, Form.TEXT, float("1" * MAX_TIME)),
    ],
)
def test_a_time_is_read_in_each_form(data: bytes, form: Form, seconds: float | None) -> None:
    found, read = read_time(data)
    assert found is form
    assert read == pytest.approx(seconds, abs=1e-6)
    assert parse([b"", b"u.u", data]) == Ack(form, read)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"T", b"now", b"-1", b"+1", b".5", b" 1", b"1 ", b"1\n", b"1\0", b"1_000", b"0x100", b"1e", b"1e999",
        b"inf", b"nan", b"Sat Nov ", b"12:34:56", b"Sat Nov 21 07:37:01 2026", b"\xff\xff\xff", b"\xb2",
        b"1" * (MAX_TIME + 1), b"1" * 1_000_000,
    ],
    ids=lambda data: repr(data)[:24],
)  # fmt: skip
def test_what_is_no_time_makes_a_message_invalid(data: bytes) -> None:
    with pytest.raises(BadTime):
        read_time(data)
    for command in (b"u_U", b"UwU", b"UoU", b"<3", b"</3", b"u.u", b"ping", b"o_O"):
        malformed = refused([b"", command, data, b"{}"])
        assert type(malformed) is Invalid
        assert (malformed.reason, malformed.op) == (Reason.SYNTAX, command.decode())


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (F32, TIME),
        (Form.FLOAT64, struct.pack("<d", NOW)),
        (Form.FLOAT64_BIG, struct.pack(">d", NOW)),
        (Form.TEXT, b"1795246621.350000"),
    ],
)
def test_a_time_is_written_in_the_form_it_is_read_in(form: Form, data: bytes) -> None:
    assert write_time(form, NOW) == data
    assert read_time(data)[0] is form


# Messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u_U|T|", Request(F32, SECONDS, ())),
        ("u_U|T||Rohan", Request(F32, SECONDS, ())),
        ("u_U|T|Rohan", Request(F32, SECONDS, ("Rohan",))),
        ("u_U|T|Rohan|Mordor|Rohan", Request(F32, SECONDS, ("Rohan", "Mordor"))),
        ("u_U|T|Rohan||Mordor", Request(F32, SECONDS, ("Rohan",))),
        ("u_U|T|Th\xc3\xa9oden, \0", Request(F32, SECONDS, ("Théoden, \0",))),
        ("u_U|T|Error", Request(F32, SECONDS, ("Error",))),
        ("u_U|125.5|mmi", Request(Form.TEXT, 125.5, ("mmi",))),
        ("u_U|T|mmi.service|Rohan", Question(F32, SECONDS, "mmi.service", "Rohan")),
        ("u_U|T|mmi.service|Rohan|x", Question(F32, SECONDS, "mmi.service", "Rohan")),
        ("u_U|T|mmi.service", Question(F32, SECONDS, "mmi.service", "")),
        ("u_U|T|mmi.service||Rohan", Question(F32, SECONDS, "mmi.service", "")),
        ("u_U|T|mmi.|mmi.", Question(F32, SECONDS, "mmi.", "mmi.")),
        ("u_U|T|a|mmi.service", Request(F32, SECONDS, ("a", "mmi.service"))),
        ('UwU|T|{"name": "a"}', Registration(F32, SECONDS, "a", b"{}", False)),
        ('UwU|T| {"name" : "a"} |x', Registration(F32, SECONDS, "a", b"{}", False)),
        (f"UwU|T|{ROHAN}", Registration(F32, SECONDS, "Rohan", f"{{{MEMBERS}null}}".encode(), True)),
        ('UwU|T|{"interfaces":1,"name":"a"}', Registration(F32, SECONDS, "a", b'{"interfaces": 1}', False)),
        ('UoU|T|{"name": "a", "x": 1}', Update(F32, SECONDS, "a", b'{"x": 1}')),
        ('UoU|T|{"x": 1}', Update(F32, SECONDS, None, b'{"x": 1}')),
        ("UoU|T|{}", Update(F32, SECONDS, None, b"{}")),
        ('UoU|T|{"name": "Error"}', Update(F32, SECONDS, "Error", b"{}")),
        ("<3|T", Beat(F32, SECONDS, None)),
        ("<3|T|", Beat(F32, SECONDS, None)),
        ("<3|1795246621.350000|Rohan", Beat(Form.TEXT, NOW, "Rohan")),
        ("<3|T|Rohan|x", Beat(F32, SECONDS, "Rohan")),
        ("</3|T", Bye(F32, SECONDS, None)),
        ("</3|T|", Bye(F32, SECONDS, None)),
        ("</3|T|Rohan", Bye(F32, SECONDS, "Rohan")),
        ("</3|T|\xff", Bye(F32, SECONDS, None)),
        ("u.u|T", Ack(F32, SECONDS)),
        ("u.u|T||x", Ack(F32, SECONDS)),
        ("ping|T|Hello!", Ping(F32, SECONDS)),
        ("ping|T", Ping(F32, SECONDS)),
        ("o_O|T|{}", Unexpected(F32, SECONDS, b"o_O")),
        ("OwO|T", Unexpected(F32, SECONDS, b"OwO")),
        ("(O_O)|T|no", Unexpected(F32, SECONDS, b"(O_O)")),
        ("OmO|T|no", Unexpected(F32, SECONDS, b"OmO")),
    ],
)
def test_a_message_is_read(text: str, expected: Message) -> None:
    result = say(text)
    assert type(result) is type(expected)
    assert result == expected


def test_messages_cannot_be_changed() -> None:
    for text in ("u_U|T|", "u_U|T|mmi.a", f"UwU|T|{ROHAN}", "UoU|T|{}", "<3|T", "</3|T", "u.u|T", "ping|T", "o_O|T"):
        with pytest.raises(AttributeError):
            setattr(say(text), "sent", 1.0)  # noqa: B010


# Malformed messages


@pytest.mark.parametrize(
    ("sent", "reason", "text", "op"),
    [
        ([], Reason.SYNTAX, "the message has fewer than three frames", None),
        ([b""], Reason.SYNTAX, "the message has fewer than three frames", None),
        ([b"", b"<3"], Reason.SYNTAX, "the message has fewer than three frames", None),
        ([b"x", b"<3", TIME], Reason.SYNTAX, "the message does not begin with an empty frame", None),
        ([b"u_U", TIME, b"Rohan"], Reason.SYNTAX, "the message does not begin with an empty frame", None),
        ([b"", b"", TIME, b"Error"], Reason.UNKNOWN_OP, "unknown command ''", ""),
        ([b"", b"<\\3", TIME, b""], Reason.UNKNOWN_OP, r"unknown command '<\\3'", r"<\\3"),
        ([b"", b"^o^", TIME, b""], Reason.UNKNOWN_OP, "unknown command '^o^'", "^o^"),
        ([b"", b"pong", TIME, b""], Reason.UNKNOWN_OP, "unknown command 'pong'", "pong"),
        ([b"", b"MDPC01", b"echo", b"x"], Reason.UNKNOWN_OP, "unknown command 'MDPC01'", "MDPC01"),
        ([b"", b"uwu", TIME, b"{}"], Reason.UNKNOWN_OP, "unknown command 'uwu'", "uwu"),
        ([b"", b"<3\0", TIME], Reason.UNKNOWN_OP, r"unknown command '<3\x00'", r"<3\x00"),
        ([b"", b"\xff\n", TIME], Reason.UNKNOWN_OP, r"unknown command '\xff\n'", r"\xff\n"),
        ([b"", b"u_U", TIME], Reason.SYNTAX, "the message has no body", "u_U"),
        ([b"", b"UwU", TIME], Reason.SYNTAX, "the message has no body", "UwU"),
        ([b"", b"UoU", TIME], Reason.SYNTAX, "the message has no body", "UoU"),
        (
            [b"", b"<3", TIME, b"\xff"],
            Reason.PARAMETER,
            "the name in the heartbeat is none that a service can have",
            "<3",
        ),
    ],
)
def test_what_has_not_the_shape_is_invalid(sent: list[bytes], reason: Reason, text: str, op: str | None) -> None:
    malformed = refused(sent)
    assert type(malformed) is Invalid
    assert (malformed.reason, malformed.text, malformed.op) == (reason, text, op)


def test_of_a_long_command_only_the_start_is_shown() -> None:
    malformed = refused([b"", b"<3" + b"\xff" * 10_000, TIME])
    assert malformed.op == "<3" + r"\xff" * (MAX_SHOWN - 2)


@pytest.mark.parametrize("command", ["UwU", "UoU"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "the service information is no JSON object"),
        ("not json", "the service information is no JSON object"),
        ('["a"]', "the service information is no JSON object"),
        ('"a"', "the service information is no JSON object"),
        ("null", "the service information is no JSON object"),
        ('{"name": "a"} x', "the service information is no JSON object"),
        ('{"name": "a", "x": NaN}', "the service information is no JSON object"),
        ('{"name": "a", "x": {"y": "\xff"}}', "the service information is no JSON object"),
        ('{"name": "a", "x": "\\ud800"}', "the service information is no JSON object"),
        ('{"name": "a", "x": [1,]}', "the service information is no JSON object"),
        ('{"name": "a", "x": "' + "x" * MAX_INFO + '"}', f"the service information has more than {MAX_INFO} bytes"),
        ('{"name": "a", "x": ' + "[" * 100 + "]" * 100 + "}", "the service information is nested deeper than 100"),
        (
            '{"name": "a", "x": ' + "1" * 1_001 + "}",
            "the service information has a number of more than 1000 digits",
        ),
        ('{"name": 7}', "the name of the service is no text"),
        ('{"name": null}', "the name of the service is no text"),
        ('{"name": ["a"]}', "the name of the service is no text"),
        ('{"name": ""}', "the name of the service is empty"),
        ('{"name": "' + "n" * (MAX_NAME + 1) + '"}', f"the name of the service has more than {MAX_NAME} bytes"),
        ('{"name": "' + "\\u00e9" * 128 + '"}', f"the name of the service has more than {MAX_NAME} bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_object_that_is_not_taken_is_denied_with_a_reason(command: str, body: str, text: str) -> None:
    malformed = refused(f"{command}|125.5|{body}")
    assert type(malformed) is Denied
    assert (malformed.reason, malformed.text, malformed.op) == (Reason.PARAMETER, text, command)
    assert (malformed.form, malformed.hermes) == (Form.TEXT, False if command == "UwU" else None)


@pytest.mark.parametrize("command", ["UwU", "UoU"])
def test_a_very_deep_object_is_denied(command: str) -> None:
    malformed = refused(f'{command}|125.5|{{"name": "a", "x": {"[" * 5_000}{"]" * 5_000}}}')
    # Up to Python 3.13, the decoder has a limit of its own.
    texts = ("the service information is no JSON object", "the service information is nested deeper than 100")
    assert type(malformed) is Denied
    assert malformed.text in texts


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"port": 1}', "the service information has no name"),
        ('{"name": "Error"}', "no service may be called Error, nor mmi. or lvc: and more"),
        ('{"name": "mmi.service"}', "no service may be called Error, nor mmi. or lvc: and more"),
        ('{"name": "lvc:weather"}', "no service may be called Error, nor mmi. or lvc: and more"),
    ],
)
def test_a_registration_needs_a_name_that_does_not_stand_in_the_way_of_others(body: str, text: str) -> None:
    malformed = refused(f"UwU|T|{body}")
    assert type(malformed) is Denied
    assert (malformed.text, malformed.form) == (text, F32)


@pytest.mark.parametrize("name", ["error", "Errors", "mmi", "MMI.service", "lvc", "LVC:weather", " ", "e" * MAX_NAME])
def test_other_names_are_taken(name: str) -> None:
    assert say(f'UwU|T|{{"name": "{name}"}}') == Registration(F32, SECONDS, name, b"{}", False)


@pytest.mark.parametrize("name", ['""', "7", '"Error"', f'"{"n" * 300}"'])
def test_a_denial_tells_whether_it_was_hermes_who_registered(name: str) -> None:
    for command in ("UwU", "UoU"):
        for members, hermes in ((MEMBERS + "null", True), ('"interfaces": {}', False), ('"reg_time": ""', False)):
            if (command, name) != ("UoU", '"Error"'):
                malformed = refused(f'{command}|T|{{{members}, "name": {name}}}')
                assert type(malformed) is Denied
                assert malformed.hermes is (hermes if command == "UwU" else None)
    long = refused(f"UwU|T|{{{MEMBERS}null}}")
    assert type(long) is Denied
    assert long.hermes


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ("\xff\xfe", r"No Registered Service With the Name \xff\xfe"),
        ("a|\xff", r"No Registered Service With the Name \xff"),
        ("mmi.service|\xff", r"No Registered Service With the Name \xff"),
        ("n" * 256, "No Registered Service With the Name " + "n" * MAX_SHOWN),
        ("|".join(["a"] * (MAX_NAMES + 1)), f"More Than {MAX_NAMES} Names in One Request"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_request_for_what_cannot_be_is_answered(names: str, error: str) -> None:
    malformed = refused(f"u_U|T|{names}")
    assert type(malformed) is BadRequest
    assert malformed.form is F32
    assert json.loads(listing((), malformed.error)) == {"Error": error}
    assert malformed.text == error


def test_a_request_may_have_so_many_names() -> None:
    names = [f"n{number}" for number in range(MAX_NAMES)]
    assert say("|".join(["u_U", "T", *names])) == Request(F32, SECONDS, tuple(names))
    assert say("|".join(["u_U", "T", *names, "", "x"])) == Request(F32, SECONDS, tuple(names))


def test_nothing_that_is_refused_is_fatal_to_more_than_its_connection() -> None:
    for text in ("x|T", "<3|", "u_U|T", "UwU|T|", "u_U|T|\xff"):
        assert not refused(text).reason.fatal


# Long frames


def test_frames_of_any_length_are_refused_as_shorter_ones_are() -> None:
    long = b"1" * 1_000_000
    assert type(refused([b"", b"<3", long])) is Invalid
    assert type(refused([b"", b"<3", TIME, long])) is Invalid
    assert parse([b"", b"</3", TIME, long]) == Bye(F32, SECONDS, None)
    assert type(refused([b"", b"u_U", TIME, long])) is BadRequest
    denied = refused([b"", b"UwU", TIME, b'{"name": "' + long])
    assert type(denied) is Denied
    assert denied.text == f"the service information has more than {MAX_INFO} bytes"


# Encoding


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (dbp_messages.reply(F32, NOW, b"{}"), "o_O|T|{}"),
        (dbp_messages.reply(Form.TEXT, NOW, b"{}"), "o_O|1795246621.350000|{}"),
        (dbp_messages.approved(F32, NOW, True), "OwO|T|"),
        (dbp_messages.approved(F32, NOW, False), "OwO|T|{}||"),
        (
            dbp_messages.approved(Form.TEXT, NOW, False, dbp_messages.agreement(1000, 3)),
            'OwO|1795246621.350000|{"heartbeat": 1000, "liveness": 3}||',
        ),
        (dbp_messages.denied(F32, NOW, "name already taken", True), "OmO|T|name already taken"),
        (dbp_messages.denied(F32, NOW, "name already taken", False), "(O_O)|T|name already taken"),
        (dbp_messages.denied(F32, NOW, "é\ud800", False), "(O_O)|T|\xc3\xa9\\ud800"),
        (dbp_messages.ack(F32, NOW, True), "u.u|T|"),
        (dbp_messages.ack(F32, NOW, False), "u.u|T"),
        (dbp_messages.disconnect(F32, NOW, True), "</3|T|"),
        (dbp_messages.disconnect(F32, NOW, False), "</3|T"),
        (dbp_messages.heartbeat(F32, NOW, "broker"), "<3|T|broker"),
        (dbp_messages.ping(F32, NOW), "ping|T|"),
        (dbp_messages.pong(F32, NOW, "broker"), "pong|T|broker"),
    ],
)
def test_replies_have_these_frames(sent: tuple[bytes, ...], text: str) -> None:
    assert list(sent) == frames(text)


@pytest.mark.parametrize("form", Form)
def test_a_reply_has_the_time_in_the_form_asked_for(form: Form) -> None:
    sent = [
        dbp_messages.reply(form, NOW, b"{}"),
        *(dbp_messages.approved(form, NOW, hermes) for hermes in (True, False)),
        *(dbp_messages.denied(form, NOW, "no", hermes) for hermes in (True, False)),
        *(dbp_messages.ack(form, NOW, hermes) for hermes in (True, False)),
        *(dbp_messages.disconnect(form, NOW, hermes) for hermes in (True, False)),
        dbp_messages.heartbeat(form, NOW, "b"),
        dbp_messages.ping(form, NOW),
        dbp_messages.pong(form, NOW, "b"),
    ]
    assert {reply[2] for reply in sent} == {write_time(form, NOW)}
    assert {reply[0] for reply in sent} == {b""}


def test_what_is_sent_to_hermes_is_what_it_takes() -> None:
    registered = [frames(text) for text, taken in TO_A_SERVICE.items() if taken]
    assert list(dbp_messages.approved(F32, NOW, True)) in registered
    assert list(dbp_messages.approved(F32, NOW, False, b'{"heartbeat": 1000}')) in registered
    not_registered = [frames(text) for text, taken in TO_A_SERVICE.items() if not taken]
    for hermes in (True, False):
        assert list(dbp_messages.denied(F32, NOW, "name already taken", hermes)) in not_registered
    for sent in (
        dbp_messages.reply(F32, NOW, b"{}"),
        dbp_messages.approved(F32, NOW, True),
        dbp_messages.approved(F32, NOW, False),
        dbp_messages.denied(F32, NOW, "no", True),
        dbp_messages.denied(F32, NOW, "no", False),
        dbp_messages.ack(F32, NOW, True),
        dbp_messages.disconnect(F32, NOW, True),
        dbp_messages.heartbeat(F32, NOW, "b"),
        dbp_messages.ping(F32, NOW),
        dbp_messages.pong(F32, NOW, "b"),
    ):
        assert read_as_hermes(list(sent)) == (sent[1], sent[3])


def test_what_the_broker_says_of_itself_is_read_by_another() -> None:
    assert parse(dbp_messages.heartbeat(Form.TEXT, NOW, "b")) == Beat(Form.TEXT, NOW, "b")
    assert parse(dbp_messages.disconnect(Form.TEXT, NOW, False)) == Bye(Form.TEXT, NOW, None)
    assert parse(dbp_messages.ack(Form.TEXT, NOW, True)) == Ack(Form.TEXT, NOW)
    assert parse(dbp_messages.ping(Form.TEXT, NOW)) == Ping(Form.TEXT, NOW)
    for sent in (
        dbp_messages.reply(Form.TEXT, NOW, b"{}"),
        dbp_messages.approved(Form.TEXT, NOW, False),
        dbp_messages.denied(Form.TEXT, NOW, "no", True),
        dbp_messages.denied(Form.TEXT, NOW, "no", False),
    ):
        assert parse(sent) == Unexpected(Form.TEXT, NOW, sent[1])


# Recordings


def answer(sent: list[bytes], catalogue: dict[str, bytes]) -> tuple[bytes, ...]:
    """The answers to a Hermes node, from a catalogue that its messages change."""
    try:
        message = parse(sent)
    except Denied as malformed:
        return dbp_messages.denied(malformed.form, NOW, malformed.text, bool(malformed.hermes))
    except BadRequest as malformed:
        return dbp_messages.reply(malformed.form, NOW, listing((), malformed.error))
    match message:
        case Registration():
            catalogue[message.name] = message.info
            return dbp_messages.approved(message.form, NOW, True)
        case Update(name=str(name)) if name in catalogue:
            catalogue[name] = merge_infos(catalogue[name], message.info)
            return dbp_messages.ack(message.form, NOW, True)
        case Update():
            return dbp_messages.denied(message.form, NOW, "not registered", False)
        case Request(names=()):
            return dbp_messages.reply(message.form, NOW, listing(catalogue.items()))
        case Request(names=names):
            missing = [name for name in names if name not in catalogue]
            found = [(name, catalogue[name]) for name in names if name in catalogue]
            return dbp_messages.reply(message.form, NOW, listing(found, unknown(*missing) if missing else None))
        case Ping():
            return dbp_messages.pong(message.form, NOW, "Rohan")
    raise AssertionError(message)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_recorded_conversation_is_understood_and_its_replies_are_made(name: str) -> None:
    catalogue: dict[str, bytes] = {}
    for asked, mark, recorded in exchanges(name):
        made = list(answer(asked, catalogue))
        if mark == "<":
            assert made == recorded
        else:
            assert read_as_hermes(made)[0] in (b"o_O", b"OmO", b"(O_O)")
            assert made != recorded


def test_where_hermes_takes_the_first_name_all_are_answered() -> None:
    catalogue = {"Rohan": b"{}", "Mordor": b'{"x": 1}'}
    assert list(answer(frames("u_U|T|Rohan|Mordor"), catalogue)) == frames('o_O|T|{"Rohan": {}, "Mordor": {"x": 1}}')
    assert list(answer(frames("u_U|T|x|Rohan|y"), catalogue)) == frames(
        'o_O|T|{"Rohan": {}, "Error": "No Registered Service With the Name x; No Registered Service With the Name y"}'
    )


def test_what_a_node_repeats_after_a_short_reply_is_read_as_before() -> None:
    for text in AFTER_A_SHORT_REPLY:
        assert say(text) == say("|".join(text.split("|")[:3]))


def test_the_examples_of_the_document_are_read() -> None:
    # "DBP/Info Request", "DBP/Service Registration", "DBP/Heartbeats"; its times are "current epoch time".
    assert say("u_U|1617000000|weather") == Request(Form.TEXT, 1617000000.0, ("weather",))
    minimum = '{"name": "w", "ip": "10.0.0.1", "port": 6000, "function": "f", "heartbeat": 1000}'
    result = say(f"UwU|1617000000|{minimum}")
    assert isinstance(result, Registration)
    assert (result.name, result.hermes) == ("w", False)
    assert json.loads(result.info) == {key: value for key, value in json.loads(minimum).items() if key != "name"}
    assert say('UoU|1617000000|{"port": 6001}') == Update(Form.TEXT, 1617000000.0, None, b'{"port": 6001}')
    assert say("<3|1617000000|w") == Beat(Form.TEXT, 1617000000.0, "w")
    assert say("<3|1617000000") == Beat(Form.TEXT, 1617000000.0, None)
    assert say("</3|1617000000") == Bye(Form.TEXT, 1617000000.0, None)
    assert say("u.u|1617000000") == Ack(Form.TEXT, 1617000000.0)
