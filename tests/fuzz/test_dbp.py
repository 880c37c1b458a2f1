"""The DBP codec: whatever comes, only messages and Malformed come out, and all that is kept or sent can be read."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Malformed
from broker.core.service_info import MAX_INFO
from broker.wires.dbp.codec import dbp_datagrams, dbp_messages
from broker.wires.dbp.codec.dbp_datagrams import Ignored, read
from broker.wires.dbp.codec.dbp_messages import (
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
from broker.wires.dbp.codec.listings import (
    MAX_HOST,
    MAX_NAME,
    BadInfo,
    details,
    listing,
    merge_infos,
    take_name,
    unknown,
)
from tests.wires.dbp.codec.examples import AFTER_A_SHORT_REPLY, CONVERSATIONS, TIME, exchanges, frames, read_as_hermes

COMMANDS = [b"u_U", b"UwU", b"UoU", b"<3", b"</3", b"u.u", b"ping", b"o_O", b"OwO", b"(O_O)", b"OmO"]
NEEDS_A_BODY = [b"u_U", b"UwU", b"UoU"]
KINDS = Request | Question | Registration | Update | Beat | Bye | Ack | Ping | Unexpected
NOW = 1795246621.35

# JSON, as it may stand in an info.

keys = st.one_of(
    st.sampled_from(
        ["name", "interfaces", "router", "reg_time", "ip", "port", "heartbeat", "interval_ms", "load", "é"]
    ),
    st.text(max_size=3),
)
names = st.one_of(
    st.sampled_from(["Rohan", "Error", "mmi.service", "", " ", "n" * MAX_NAME, "n" * (MAX_NAME + 1)]),
    st.text(max_size=5),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
objects = st.dictionaries(keys, values, max_size=5)
named = st.builds(lambda object, name: {**object, "name": name}, objects, names)


@st.composite
def written(draw: st.DrawFn, of: st.SearchStrategy[Any]) -> bytes:
    """A value as JSON, or nearly (Python writes NaN), in one of the ways in which it may be written."""
    value, spaced, escaped = draw(of), draw(st.booleans()), draw(st.booleans())
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


# Messages. Those that mean something are likelier than chance would have it.

times = st.one_of(
    st.sampled_from(
        [TIME, struct.pack("<d", NOW), struct.pack(">d", NOW), b"1795246621.350000", b"1e9", b"", b"T" * 300]
    ),
    st.floats(allow_nan=False).map(lambda seconds: repr(seconds).encode()),
    st.binary(max_size=9),
)
good_times = st.sampled_from([TIME, struct.pack("<d", NOW), struct.pack(">d", NOW), b"1795246621.350000"])
bodies = st.one_of(
    written(named), written(objects), written(values), names.map(lambda name: name.encode("utf-8", "surrogatepass")),
    st.binary(max_size=6), st.just(b""), st.just(b"x" * 300),
)  # fmt: skip
commands = st.one_of(st.sampled_from(COMMANDS), st.sampled_from(COMMANDS), st.binary(max_size=6), st.just(b"<\\3"))
delimiters = st.sampled_from([b"", b"", b"", b"", b"", b"x"])


def messages_of(commands: st.SearchStrategy[bytes], times: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.builds(
        lambda delimiter, command, time, body: [delimiter, command, time, *body],
        delimiters,
        commands,
        times,
        st.lists(bodies, max_size=4),
    )


recorded = st.sampled_from(
    [asked for name in CONVERSATIONS for asked, _, _ in exchanges(name)]
    + [frames(text) for text in AFTER_A_SHORT_REPLY]
)


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """A recorded message in which frames were dropped, doubled, swapped, cut, spoilt or replaced."""
    sent = list(draw(recorded))
    for _ in range(draw(st.integers(1, 3))):
        if not sent:
            break
        at = draw(st.integers(0, len(sent) - 1))
        match draw(st.integers(0, 6)):
            case 0:
                del sent[at]
            case 1:
                sent.insert(at, sent[at])
            case 2:
                to = draw(st.integers(0, len(sent) - 1))
                sent[at], sent[to] = sent[to], sent[at]
            case 3:
                sent[at] = sent[at][: draw(st.integers(0, 80))]
            case 4:
                place = draw(st.integers(0, len(sent[at])))
                sent[at] = sent[at][:place] + draw(st.binary(max_size=2)) + sent[at][place + draw(st.integers(0, 2)) :]
            case 5:
                sent[at] = draw(st.one_of(times, bodies))
            case _:
                sent.insert(at, draw(st.one_of(times, bodies)))
    return sent


frame_lists = st.one_of(
    messages_of(st.sampled_from([b"UwU", b"UoU"]), good_times),
    messages_of(st.sampled_from(COMMANDS), good_times),
    messages_of(commands, times),
    mutated(),
    st.lists(st.one_of(bodies, times, commands), max_size=7),
)


def result_of(sent: Sequence[bytes]) -> Message | Malformed:
    try:
        return parse(sent)
    except Malformed as malformed:
        return malformed


def is_name(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(data) <= MAX_NAME


# A second reading of what is a time, and of what has the shape of a message.

DECIMAL = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


def form_of(data: bytes) -> Form | None:
    if len(data) == 4:
        return Form.FLOAT32
    if len(data) == 8 and any(not 32 <= byte < 127 for byte in data):
        plausible = [1e9 <= struct.unpack(order, data)[0] < 1e10 for order in ("<d", ">d")]
        return Form.FLOAT64_BIG if plausible == [False, True] else Form.FLOAT64
    text = data.decode("latin-1")
    decimal = len(text) <= 32 and DECIMAL.fullmatch(text) and math.isfinite(float(text))
    return Form.TEXT if decimal else None


@given(st.one_of(times, st.binary(max_size=40)))
def test_a_time_has_a_form_or_is_none(data: bytes) -> None:
    try:
        form, seconds = read_time(data)
    except BadTime:
        assert form_of(data) is None
    else:
        assert form is form_of(data)
        assert seconds is None or math.isfinite(seconds)


@given(st.floats(1e9, 1e10, exclude_max=True), st.sampled_from(Form))
def test_a_time_that_is_written_is_read(now: float, form: Form) -> None:
    found, seconds = read_time(write_time(form, now))
    if form in (Form.FLOAT64, Form.FLOAT64_BIG) and found is not form:
        # Its bytes make sense in both orders, or are text: rare, and Hermes is not concerned.
        assert form_of(write_time(form, now)) is found
        return
    assert found is form
    assert seconds is not None
    assert abs(seconds - now) <= {Form.FLOAT32: 512.0, Form.TEXT: 1e-6}.get(form, 0.0)


@given(frame_lists)
def test_frames_are_a_message_or_malformed_as_a_second_reading_says(sent: list[bytes]) -> None:
    result = result_of(sent)
    assert isinstance(result, KINDS | Invalid | Denied | BadRequest)
    form = form_of(sent[2]) if len(sent) > 2 and sent[0] == b"" and sent[1] in COMMANDS else None
    shaped = form is not None and (len(sent) > 3 or sent[1] not in NEEDS_A_BODY)
    if not shaped:
        assert isinstance(result, Invalid)
    elif sent[1] == b"<3":
        good = len(sent) == 3 or sent[3] == b"" or is_name(sent[3])
        assert isinstance(result, Beat if good else Invalid)
    elif sent[1] == b"u_U":
        asked = [*sent[3:], b""]
        asked = asked[: asked.index(b"")]
        mmi = asked[:1] and asked[0].startswith(b"mmi.")
        assert isinstance(result, (Question if mmi else Request) if all(map(is_name, asked)) else BadRequest)
        if isinstance(result, Request):
            assert [name.encode() for name in result.names] == list(dict.fromkeys(asked))
    else:
        kinds = {b"UwU": Registration | Denied, b"UoU": Update | Denied, b"</3": Bye, b"u.u": Ack, b"ping": Ping}
        assert isinstance(result, kinds.get(sent[1], Unexpected))
    if isinstance(result, KINDS | Denied | BadRequest):
        assert result.form is form
    if isinstance(result, Malformed):
        assert not result.reason.fatal
        assert result.text.isascii()
        assert result.text.isprintable()
        assert len(result.text) < 600


@given(frame_lists)
def test_what_is_kept_is_what_was_sent_and_everybody_can_read_it(sent: list[bytes]) -> None:
    result = result_of(sent)
    if isinstance(result, Registration | Update):
        object = json.loads(sent[3])
        name = object.pop("name", None)
        assert result.name == name
        assert len(result.info) <= MAX_INFO
        assert repr(json.loads(result.info)) == repr(object)
        if name is not None:
            assert is_name(name.encode())
            assert repr(json.loads(listing([(name, result.info)]))) == repr({name: object})
    if isinstance(result, Registration):
        assert result.name not in ("", "Error")
        assert not result.name.startswith("mmi.")
        assert result.hermes == ("interfaces" in object and "reg_time" in object)


@given(written(named))
def test_an_object_of_plain_values_with_a_good_name_is_taken(data: bytes) -> None:
    object = json.loads(data)
    name = object["name"]
    plain_values = all(word not in data for word in (b"NaN", b"Infinity", b"\\ud", b"\\uD", b"\xed"))
    good = isinstance(name, str) and is_name(name.encode("utf-8", "surrogatepass"))
    if plain_values and good and name != "Error" and not name.startswith("mmi."):
        taken, info, _ = take_name(data, registering=True)
        assert taken == name
        assert list(json.loads(info)) == [key for key in object if key != "name"]


def info_of(data: bytes) -> bytes | None:
    try:
        return take_name(data, registering=False)[1]
    except BadInfo:
        return None


@given(written(objects), written(objects))
def test_an_update_does_what_it_does_to_a_dict(first: bytes, second: bytes) -> None:
    info, changes = info_of(first), info_of(second)
    if info is not None and changes is not None:
        expected = {**json.loads(info), **json.loads(changes)}
        assert repr(json.loads(merge_infos(info, changes))) == repr(expected)
        assert merge_infos(info, b"{}") == info
        assert info_of(info) == info


@given(st.one_of(written(objects), written(values), st.binary(max_size=20)))
def test_details_of_anything_are_in_their_ranges(data: bytes) -> None:
    found = details(data)
    assert found.host is None or 0 < len(found.host) <= MAX_HOST
    assert found.port is None or (type(found.port) is int and 0 < found.port < 65_536)
    assert found.interval is None or (math.isfinite(found.interval) and found.interval > 0)
    assert found.liveness is None or (type(found.liveness) is int and found.liveness > 0)
    assert found.load is None or (math.isfinite(found.load) and found.load >= 0)


@given(frame_lists)
def test_every_answer_is_read_by_hermes(sent: list[bytes]) -> None:
    result = result_of(sent)
    match result:
        case Invalid():
            return
        case Denied(form=form, hermes=hermes):
            made, body = dbp_messages.denied(form, NOW, result.text, bool(hermes)), result.text.encode()
        case BadRequest(form=form):
            made = dbp_messages.reply(form, NOW, listing((), result.error))
            body = json.dumps({"Error": result.text}).encode()
        case Request(form=form, names=names):
            made = dbp_messages.reply(form, NOW, listing((), unknown(*names)))
            body = json.dumps(unknown(*names)).encode()
        case Registration(form=form):
            made, body = dbp_messages.approved(form, NOW, True), b""
        case Ping(form=form):
            made, body = dbp_messages.pong(form, NOW, "broker"), b"broker"
        case Question() | Update() | Beat() | Bye() | Ack() | Unexpected():
            form = result.form
            made, body = dbp_messages.disconnect(form, NOW, True), b""
        case _:
            raise AssertionError(result)
    assert read_time(made[2])[0] is form
    if form is Form.FLOAT32:
        assert read_as_hermes(list(made)) == (made[1], body)


@given(frame_lists)
def test_what_was_given_is_left_as_it_was(sent: list[bytes]) -> None:
    before = list(sent)
    result_of(sent)
    assert sent == before


# Datagrams


def binary(sent: list[bytes]) -> bytes:
    last = len(sent) - 1
    return b"".join(bytes([at < last, min(len(frame), 255)]) + frame for at, frame in enumerate(sent))


@st.composite
def spoilt(draw: st.DrawFn, of: st.SearchStrategy[bytes]) -> bytes:
    data = draw(of)
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]


texts = st.builds(
    lambda lead, words: lead + b" ".join(words),
    st.sampled_from([b"", b" "]),
    st.lists(
        st.one_of(st.sampled_from([b"<3", b"</3", b"u.u", b"SHALOM", b"1795246621.35"]), bodies, times), max_size=4
    ),
)
good_datagrams = st.sampled_from(
    [b" <3 1795246621.350000 Rohan", b"</3 1 a b", b" u.u 1", b"Rohan <3 1795246621", b"SHALOM 5246 <3 1 x",
     binary([b"", b"<3", TIME, b"Rohan"]), binary([b"", b"</3", b"1795246621"])]
)  # fmt: skip
any_datagram = st.one_of(
    st.binary(max_size=40), texts, frame_lists.map(binary), spoilt(good_datagrams), spoilt(spoilt(good_datagrams))
)


@given(any_datagram)
def test_a_datagram_is_a_message_or_ignored(data: bytes) -> None:
    try:
        result = read(data)
    except Ignored as malformed:
        assert malformed.text.isascii()
        assert malformed.text.isprintable()
        assert malformed.beacon == data.startswith((b"SHALOM ", b"GONDOR_CALLS_FOR_AID"))
    else:
        assert isinstance(result, Beat | Bye | Ack)
        assert isinstance(result.form, Form)
        assert result.sent is None or math.isfinite(result.sent)
        if not isinstance(result, Ack):
            assert result.name is None or is_name(result.name.encode())


real_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_NAME // 4)


@given(st.floats(0, 1e10), real_names)
def test_a_heartbeat_is_read_as_it_was_sent_in_every_style(now: float, name: str) -> None:
    text = write_time(Form.TEXT, now)
    result = read(dbp_datagrams.heartbeat(now, name))
    assert result == Beat(Form.TEXT, float(text), name)
    assert read(dbp_datagrams.heartbeat(now, name)[1:]) == result
    assert read(binary([b"", b"<3", text, name.encode()])) == result
    for form in Form:
        sent = dbp_messages.heartbeat(form, now, name)
        assert read(binary(list(sent))) == parse(sent)


@given(
    real_names.filter(lambda name: " <3" not in name and not name.startswith(("SHALOM ", " ", "<3 ", "</3 ", "u.u ")))
)
def test_an_old_heartbeat_has_the_name_before_the_command(name: str) -> None:
    if name not in ("SHALOM", "<3", "</3", "u.u") and not name.startswith(("GONDOR_CALLS_FOR_AID", "\x01\0")):
        assert read(name.encode() + b" <3") == Beat(Form.TEXT, None, name)
        assert read(name.encode() + b" <3 1795246621.35") == Beat(Form.TEXT, NOW, name)
