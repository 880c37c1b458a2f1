"""The MTL codec: for any input, only values and Malformed come out, what is taken is exactly what the rules allow,
and what is sent is read.

The file is longer than others: the codec and the rules that it is compared with are checked over the same strategies.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pamqp.decode
from hypothesis import example, given
from hypothesis import strategies as st

from broker.net.peer_interfaces import envelope_size
from broker.wires.mtl.codec import control_messages, data_messages
from broker.wires.mtl.codec.control_messages import (
    AuthorizeRequest,
    InvalidRequest,
    OpenRequest,
    ProfileRequest,
    ReaderRequest,
    WriterRequest,
)
from broker.wires.mtl.codec.data_messages import (
    MAX_HEADER,
    Command,
    Confirm,
    Content,
    Dismiss,
    Lease,
    Ping,
    Pong,
    Reject,
    RequestFrames,
    Response,
    Summon,
    Tails,
    is_data,
    split_request,
)
from broker.wires.mtl.codec.field_table import (
    EMPTY,
    MAX_EXTENDED,
    Fault,
    IllFormed,
    Timestamp,
    Value,
    check,
    decode,
    encode,
    members,
    with_members,
    without_members,
)

# Tables

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(["a", "b", "ttl", "user-id", "redelivered"])
keys = st.one_of(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4))
decimals = st.builds(
    lambda number, scale: Decimal(f"{number}E-{scale}"), st.integers(0, 2**32 - 1), st.integers(0, 255)
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=8),
    st.integers(0, 2**64 - 1).map(Timestamp),
    decimals,
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
properties = st.dictionaries(keys, values, max_size=5)


def shallow(value: Value) -> int:
    """The nesting depth of a value."""
    if isinstance(value, dict):
        return 1 + max(map(shallow, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(shallow, value), default=0)
    return 0


properties = properties.filter(lambda given: shallow(given) <= 9)


def with_length(entries: bytes) -> bytes:
    return len(entries).to_bytes(4) + entries


short_bytes = st.binary(max_size=3)


def raw_entries(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    raw_keys = st.one_of(st.sampled_from([b"a", b"b", b"c", b"ttl"]), st.sampled_from([b"", b"\xff"]), short_bytes)
    entries = st.builds(lambda key, value: len(key).to_bytes(1) + key + value, raw_keys, inner)
    return st.lists(entries, max_size=4).map(b"".join)


raw_values = st.recursive(
    st.one_of(
        st.sampled_from([b"t\0", b"t\1", b"V", b"b\x80", b"D" + bytes(5), b"T" + bytes(8), b"l" + bytes(8), b"u\1\2"]),
        st.sampled_from([b"t\2", b"Z", b"", b"l\0", b"f\0\0\0\1", b"d" + b"\xff" * 8, b"A\0\0", b"S\xff\xff\xff\xff"]),
        st.builds(lambda tag, text: tag + with_length(text), st.sampled_from([b"S", b"x"]), short_bytes),
        texts.map(lambda text: b"S" + with_length(text.encode())),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: b"A" + with_length(b"".join(items))),
        raw_entries(inner).map(lambda entries: b"F" + with_length(entries)),
    ),
    max_leaves=6,
)


@st.composite
def spoilt(draw: st.DrawFn, of: st.SearchStrategy[bytes]) -> bytes:
    """The same with a few bytes more, less or otherwise."""
    sent = draw(of)
    at = draw(st.integers(0, len(sent)))
    return sent[:at] + draw(short_bytes) + sent[at + draw(st.integers(0, 3)) :]


tables = st.one_of(
    raw_entries(raw_values).map(with_length),
    properties.map(encode),
    spoilt(properties.map(encode)),
    spoilt(properties.map(encode)).map(lambda table: with_length(table[4:])),
    raw_entries(raw_values),
    st.binary(max_size=30).map(with_length),
    st.binary(max_size=20),
)

# A second reading of tables: what they are made of, taken off the front one after the other.

SIZES = {"b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "T": 8, "D": 5, "V": 0}


class Wrong(Exception):
    """The error of the second decoding."""


class Bytes:
    """Bytes to take from the front of."""

    def __init__(self, rest: bytes) -> None:
        self.rest = rest

    def take(self, count: int) -> bytes:
        if count > len(self.rest):
            raise Wrong
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def long(self) -> bytes:
        return self.take(int.from_bytes(self.take(4)))


def look_at_value(source: Bytes, depth: int) -> None:
    tag = source.take(1).decode("latin-1")
    if tag == "t":
        if source.take(1) not in (b"\0", b"\1"):
            raise Wrong
    elif tag == "S":
        source.long().decode()
    elif tag == "x":
        source.long()
    elif tag == "F":
        look_at_entries(Bytes(source.long()), depth + 1)
    elif tag == "A":
        if depth == 8:
            raise Wrong
        items = Bytes(source.long())
        while items.rest:
            look_at_value(items, depth + 1)
    elif tag in SIZES:
        source.take(SIZES[tag])
    else:
        raise Wrong


def look_at_entries(source: Bytes, depth: int) -> None:
    seen = set()
    if depth > 8:
        raise Wrong
    while source.rest:
        key = source.take(source.take(1)[0]).decode()
        if not key or key in seen:
            raise Wrong
        seen.add(key)
        look_at_value(source, depth)


def is_table(table: bytes) -> bool:
    try:
        source = Bytes(table)
        entries = Bytes(source.long())
        look_at_entries(entries, 0)
    except (Wrong, UnicodeDecodeError):
        return False
    return not source.rest


def taken(table: bytes) -> bool:
    """True if `check` accepts it."""
    try:
        check(table)
    except IllFormed as malformed:
        assert malformed.fault.value.startswith("table-")
        return False
    return True


@given(tables)
def test_a_table_is_taken_or_not_as_a_second_reading_says_and_checked_as_it_is_decoded(table: bytes) -> None:
    good = is_table(table)
    assert taken(table) is good
    try:
        decode(table)
    except IllFormed:
        assert not good
    else:
        assert good


@given(properties)
def test_properties_that_are_written_are_read(given: dict[str, Value]) -> None:
    table = encode(given)
    assert taken(table)
    result = decode(table)
    assert repr(result) == repr(given)
    assert encode(result) == table


@given(tables.filter(is_table))
def test_a_table_that_is_written_again_says_the_same(table: bytes) -> None:
    result = decode(table)
    if all(len(key.encode()) <= 128 for key in result):
        assert repr(decode(encode(result))) == repr(result)


def without_what_pamqp_reads_otherwise(value: Value) -> Any:
    """A value without times and decimal numbers, of which pamqp has fewer."""
    match value:
        case Timestamp() | Decimal():
            return None
        case list():
            return [without_what_pamqp_reads_otherwise(item) for item in value]
        case dict():
            return {key: without_what_pamqp_reads_otherwise(item) for key, item in value.items()}
    return value


@given(properties.map(without_what_pamqp_reads_otherwise))
def test_pamqp_reads_what_is_written(given: dict[str, Value]) -> None:
    table = encode(given)
    assert pamqp.decode.field_table(table) == (len(table), given)


@given(tables.filter(is_table), st.dictionaries(names, scalars, max_size=3))
def test_replacing_properties_does_what_it_does_to_a_dict(table: bytes, more: dict[str, Value]) -> None:
    before = decode(table)
    rest = {key: value for key, value in before.items() if key not in more}
    after = with_members(table, more)
    check(after, MAX_EXTENDED)
    assert repr(decode(after)) == repr({**rest, **more})
    less = without_members(table, *more)
    assert repr(decode(less)) == repr(rest)
    assert with_members(less, more) == after
    assert repr(members(table, *more)) == repr({key: before[key] for key in before if key in more})


# Data commands

sequences = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
strings = st.one_of(
    st.sampled_from([b"", b"resource", b"x" * 255, b"\0", b"\xff", "é".encode()]), texts.map(str.encode), short_bytes
).map(lambda text: text[:255])
fields = st.one_of(
    strings.map(lambda text: len(text).to_bytes(1) + text),
    st.builds(lambda text, table: len(text).to_bytes(1) + text + table, strings, tables),
    st.sampled_from([b"", b"\0", b"\1", b"\0\1", b"\1\1", b"\2", b"\1\2"]),
    short_bytes,
)
shaped = st.builds(
    lambda kind, sequence, rest: bytes([kind]) + sequence.to_bytes(8) + rest, st.integers(0, 11), sequences, fields
)
headers = st.one_of(shaped, shaped, spoilt(shaped), st.sampled_from([b"", b"\x08", b"\x09"]), st.binary(max_size=20))
bodies_of_data = st.one_of(st.sampled_from([b"", b"200", b"403", b"abc", "٣".encode() + b"1"]), st.binary(max_size=4))


def is_string(text: bytes) -> bool:
    try:
        return len(text) > 0 and len(text) == 1 + text[0] and text[1:].decode().isprintable()
    except UnicodeDecodeError:
        return False


NAMING: dict[bytes, type[Command]] = {b"\1": Lease, b"\3": Summon, b"\4": Dismiss}


def kind_of(header: bytes, body: bytes) -> type[Command] | None:
    """A second reading of a command: which one it is, if any."""
    kind, rest = header[:1], header[9:]
    if header in (b"\x08", b"\x09"):
        return Ping if header == b"\x08" else Pong
    if len(header) < 9:
        return None
    if kind in NAMING and is_string(rest):
        return NAMING[kind]
    if kind == b"\2" and not rest and len(body) == 3 and all(digit in b"0123456789" for digit in body):
        return Response
    if kind == b"\5" and rest and is_string(rest[: 1 + rest[0]]) and is_table(rest[1 + rest[0] :]):
        return Content
    if kind == b"\6" and len(rest) == 1 and set(rest) <= {0, 1}:
        return Confirm
    if kind == b"\7" and len(rest) == 2 and set(rest) <= {0, 1}:
        return Reject
    return None


def written(command: Command, body: bytes) -> tuple[bytes, object]:
    """The frames of a command that was read; ``body`` where it has none of its own."""
    match command:
        case Lease(sequence, lease):
            return data_messages.lease(sequence, lease)[0], body
        case Response(sequence, code):
            return data_messages.response(sequence, code)
        case Summon(sequence, resource):
            return data_messages.summon(sequence, resource)[0], body
        case Dismiss(sequence, resource):
            return data_messages.dismiss(sequence, resource)[0], body
        case Content():
            assert data_messages.content_header(command.sequence, command.tail) == data_messages.content(
                command.sequence, command.resource, command.table, b""
            )[0]  # fmt: skip
            return data_messages.content(command.sequence, command.resource, command.table, command.body)
        case Confirm(sequence, multiple):
            return data_messages.confirm(sequence, multiple)[0], body
        case Reject(sequence, multiple, recycle):
            return data_messages.reject(sequence, multiple, recycle)[0], body
        case Ping():
            return data_messages.PING[0], body
    return data_messages.PONG[0], body


REMEMBERED = Tails()
"""One memory for all that comes, as in the broker."""


@given(headers, bodies_of_data)
@example(b"\5" + bytes(8) + b"\0" + EMPTY, b"")
def test_a_header_is_a_command_or_dropped_as_a_second_reading_says(header: bytes, body: bytes) -> None:
    expected = kind_of(header, body)
    for tails in (REMEMBERED, REMEMBERED, Tails()):
        try:
            result = data_messages.parse((header, body), tails)
        except IllFormed as malformed:
            assert expected is None
            assert malformed.text.isascii()
            assert len(malformed.text) < 100
        else:
            assert type(result) is expected
            assert written(result, body) == (header, body)


@given(st.lists(st.one_of(headers, bodies_of_data), max_size=4))
def test_frames_are_a_command_or_dropped(frames: list[bytes]) -> None:
    before = list(frames)
    try:
        data_messages.parse(frames, REMEMBERED)
    except IllFormed:
        pass
    else:
        assert len(frames) == 2
        assert is_data(frames)
    assert frames == before
    assert len(b"".join(frames)) < MAX_HEADER


# The control flow

keys_of_requests = st.sampled_from(
    [
        "protocol",
        "name",
        "version",
        "virtual-host",
        "mechanism",
        "response",
        "profile",
        "resources",
        "confirm",
        "window",
    ]
)
json_scalars = st.one_of(
    st.sampled_from(["MTL", "none", "full", "test", "AA==", "a", "", "\ud800", "x" * 256, "\0", 0, 1, 2**70, 1.5]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
)
json_values = st.recursive(
    json_scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys_of_requests | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "protocol": st.one_of(
            st.just({"name": "MTL", "version": 1}),
            st.fixed_dictionaries({"name": json_scalars, "version": json_scalars}),
        ),
        "virtual-host": json_scalars,
        "mechanism": st.sampled_from(["PLAIN", "scram-sha-256", 5]),
        "response": json_scalars,
        "profile": json_scalars,
        "resources": st.lists(st.one_of(st.sampled_from(["a", "b"]), json_scalars), max_size=3) | json_scalars,
        "confirm": st.sampled_from(["none", "full"]) | json_scalars,
        "window": json_scalars,
        "more": json_values,
    },
)


@st.composite
def as_json(draw: st.DrawFn) -> bytes:
    """A value as JSON, or nearly: Python writes NaN."""
    value, escaped = draw(st.one_of(likely, likely, json_values)), draw(st.booleans())
    return json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


TOKENS = [
    *'[]{},:"',
    "[]",
    "{}",
    '{"a":',
    '"a"',
    "1",
    "-0.5e1",
    "true",
    "null",
    " ",
    "\n",
    "NaN",
    "01",
    "\\",
    r'"\ud800"',
    "\ufeff",
]
json_like = st.lists(st.sampled_from(TOKENS), max_size=12).map(lambda tokens: "".join(tokens).encode())
deep = st.builds(
    lambda depth, inner, closed: b'[{"a":' * depth + inner + b"}]" * closed,
    st.integers(14, 20),
    st.one_of(as_json(), json_like),
    st.integers(14, 20),
)
request_bodies = st.one_of(
    as_json(), spoilt(as_json()), json_like, deep, spoilt(deep), st.binary(max_size=10), st.sampled_from([b"", b"{}"])
)
COMMANDS = ["Connection.Open", "Connection.Authorize", "Connection.Profile", "Connection.Reader", "Connection.Writer"]
commands = st.one_of(
    st.sampled_from(COMMANDS),
    st.sampled_from(COMMANDS).map(str.upper),
    st.sampled_from(["Connection.Close", "", "x" * 65]),
).map(str.encode) | st.binary(max_size=4)  # fmt: skip


def no_constant(text: str) -> object:
    raise ValueError(text)


def is_json(body: bytes) -> bool:
    """Python's own reading, without what it adds to JSON."""
    try:
        json.loads(body.decode(), parse_constant=no_constant)
    except ValueError:
        return False
    return True


@given(request_bodies)
@example(b"")
def test_json_is_told_from_what_is_none_as_python_does(body: bytes) -> None:
    expected = is_json(body)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None:
        assert control_messages.is_json(text) is expected
    try:
        result = control_messages.read_json(body)
    except control_messages.TooDeep:
        assert expected
    except IllFormed as malformed:
        assert not expected
        assert malformed.fault is (Fault.ENCODING if text is None else Fault.JSON)
    else:
        assert expected
        exact = all(len(number) < 20 for number in _numbers(body))
        if exact:
            assert repr(result) == repr(json.loads(body))


def _numbers(body: bytes) -> Sequence[str]:
    found: list[str] = []
    json.loads(body, parse_int=lambda text: found.append(text))  # type: ignore[arg-type, func-returns-value]
    return found


@given(commands, request_bodies)
def test_a_request_is_read_or_answered_or_dropped(command: bytes, body: bytes) -> None:
    known = command.decode("latin-1").lower() in map(str.lower, COMMANDS)
    try:
        result = control_messages.decode(command, body)
    except IllFormed:
        assert not is_json(body)
    except InvalidRequest as invalid:
        assert is_json(body)
        code, reply = invalid.reply
        assert code in (b"400", b"413", b"501")
        assert len(reply) < 300
        said = json.loads(reply)
        assert said["status"] == invalid.status.text
        assert said["reason"] == invalid.text
        assert invalid.text.isprintable()
        if not known:
            assert code in (b"413", b"501")
    else:
        assert is_json(body)
        assert known
        asked = json.loads(body)
        match result:
            case OpenRequest(host):
                assert asked.get("virtual-host", "/") == host
                assert (asked["protocol"]["name"], asked["protocol"]["version"]) == ("MTL", 1)
            case AuthorizeRequest(mechanism, response):
                assert mechanism.encode() == asked["mechanism"].encode().upper()
                assert (response is None) is (asked.get("response") is None)
            case ProfileRequest(profile):
                assert profile.encode() == asked["profile"].encode().lower()
            case ReaderRequest(resources, confirm) | WriterRequest(resources, confirm):
                assert list(resources) == list(dict.fromkeys(asked["resources"]))
                assert all(0 < len(name.encode()) < 256 and name.isprintable() for name in resources)
                assert confirm == asked.get("confirm")
        if isinstance(result, ReaderRequest) and result.window is not None:
            assert result.window >= 1


routing = st.lists(st.one_of(st.just(b""), st.just(b""), st.binary(max_size=5), st.just(b"x" * 600)), max_size=6)


@given(routing)
@example([b"x"] * 17 + [b"", b"", b""])
def test_frames_are_a_request_or_dropped(frames: list[bytes]) -> None:
    try:
        request = split_request(frames, envelope_size(frames))
    except IllFormed:
        at = frames.index(b"") if b"" in frames else None
        assert at is None or at > 16 or len(frames) != at + 3 or sum(map(len, frames[:at])) > 1_024
    else:
        assert isinstance(request, RequestFrames)
        assert [*request.envelope, request.command, request.body] == frames
        assert b"" not in request.envelope[:-1]
        assert request.envelope[-1] == b""
        assert not is_data(frames)


@given(st.floats())
def test_every_float_keeps_its_bits(number: float) -> None:
    result = decode(encode({"k": number}))["k"]
    assert isinstance(result, float)
    assert struct.pack(">d", result) == struct.pack(">d", number) or math.isnan(number)
