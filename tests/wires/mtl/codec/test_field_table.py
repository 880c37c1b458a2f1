"""Decoding, refusal and encoding of field tables, compared with pamqp.

The file is longer than others: it has all tests of `broker.wires.mtl.codec.field_table`.
"""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from typing import Any

import pamqp.decode
import pamqp.encode
import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.mtl.codec.field_table import (
    EMPTY,
    MAX_DEPTH,
    MAX_EXTENDED,
    MAX_KEY,
    MAX_TABLE,
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


def table(*entries: bytes) -> bytes:
    data = b"".join(entries)
    return len(data).to_bytes(4) + data


def entry(key: bytes, value: bytes) -> bytes:
    """A value with its tag, under a key."""
    return len(key).to_bytes(1) + key + value


def long(tag: bytes, data: bytes) -> bytes:
    """A value that says how long it is."""
    return tag + len(data).to_bytes(4) + data


def one(value: bytes) -> bytes:
    """The table of one value."""
    return table(entry(b"k", value))


def fault_of(data: bytes) -> Fault:
    """The reason for which both `check` and `decode` refuse a table."""
    faults = []
    for read in (check, decode):
        with pytest.raises(IllFormed) as caught:
            read(data)
        assert caught.value.reason is Reason.SYNTAX
        assert not caught.value.reason.fatal
        assert caught.value.text == caught.value.summary
        faults.append(caught.value.fault)
    assert faults[0] is faults[1]
    return faults[0]


# Vectors


@pytest.mark.parametrize(
    ("hex", "properties"),
    [
        ("00000000", {}),
        ("00000009 01 61 53 00000002 6263", {"a": "bc"}),
        ("0000000f 01 74 74 01 01 6e 6c fffffffffffffffe", {"t": True, "n": -2}),
    ],
)
def test_the_vectors_are_read_and_written(hex: str, properties: dict[str, Value]) -> None:
    data = bytes.fromhex(hex)
    check(data)
    assert decode(data) == properties
    assert encode(properties) == data


TYPES: list[tuple[bytes, Value]] = [
    (b"t\0", False),
    (b"t\1", True),
    (b"b\x80", -128),
    (b"b\x7f", 127),
    (b"B\xff", 255),
    (b"s\x80\0", -32_768),
    (b"u\xff\xff", 65_535),
    (b"I\x80\0\0\0", -(2**31)),
    (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"l" + b"\xff" * 8, -1),
    (b"l\x7f" + b"\xff" * 7, 2**63 - 1),
    (b"L" + b"\xff" * 8, -1),
    (b"L\x80" + b"\0" * 7, -(2**63)),
    (b"f\x3f\xc0\0\0", 1.5),
    (b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a", 0.1),
    (b"d\x7f\xf0\0\0\0\0\0\0", math.inf),
    (b"D\x02\0\0\x04\xe2", Decimal("12.50")),
    (b"D\0\0\0\0\0", Decimal(0)),
    (b"D\xff\xff\xff\xff\xff", Decimal("4294967295E-255")),
    (b"T\0\0\x01\xa2\0\0\0\1", Timestamp(0x1A200000001)),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),
    (b"S\0\0\0\0", ""),
    (b"S\0\0\0\x05\xc3\xa9\0\n!", "é\0\n!"),
    (b"x\0\0\0\0", b""),
    (b"x\0\0\0\3\0\xff\x80", b"\0\xff\x80"),
    (b"V", None),
    (b"F\0\0\0\0", {}),
    (b"F\0\0\0\x09\1aS\0\0\0\2bc", {"a": "bc"}),
    (b"A\0\0\0\0", []),
    (b"A\0\0\0\x0bVt\1F\0\0\0\0B\x07V", [None, True, {}, 7, None]),
]


def test_these_are_all_types() -> None:
    """W08."""
    assert {value[:1] for value, _ in TYPES} == {bytes([tag]) for tag in b"tbBsuIilLfdDTSxVFA"}
    assert len({value[:1] for value, _ in TYPES}) == 18


@pytest.mark.parametrize(("value", "expected"), TYPES)
def test_each_type_is_read(value: bytes, expected: Value) -> None:
    data = one(value)
    check(data)
    result = decode(data)["k"]
    assert type(result) is type(expected)
    assert result == expected
    if isinstance(result, Decimal):
        assert result.as_tuple() == expected.as_tuple()  # type: ignore[union-attr]


@pytest.mark.parametrize(("value", "expected"), TYPES)
def test_each_type_is_read_in_lists_and_tables_and_beside_others(value: bytes, expected: Value) -> None:
    inner = entry(b"a", value) + entry(b"b", value)
    data = table(entry(b"A", long(b"A", value * 3)), entry(b"F", long(b"F", inner)), entry(b"z", b"V"))
    check(data)
    assert decode(data) == {"A": [expected] * 3, "F": {"a": expected, "b": expected}, "z": None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, b"t\1"),
        (False, b"t\0"),
        (0, b"l" + bytes(8)),
        (-(2**63), b"l\x80" + bytes(7)),
        (1, b"l" + bytes(7) + b"\1"),
        (0.1, b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a"),
        ("é", b"S\0\0\0\2\xc3\xa9"),
        (b"\xff", b"x\0\0\0\1\xff"),
        (None, b"V"),
        (Timestamp(1), b"T" + bytes(7) + b"\1"),
        (Decimal("12.50"), b"D\x02\0\0\x04\xe2"),
        (Decimal("1E+9"), b"D\0\x3b\x9a\xca\0"),
        (Decimal("4294967295E-255"), b"D\xff\xff\xff\xff\xff"),
        ([], b"A\0\0\0\0"),
        ([1, [None]], b"A\0\0\0\x0fl" + bytes(7) + b"\1A\0\0\0\1V"),
        ({}, b"F\0\0\0\0"),
        ({"a": "bc"}, b"F\0\0\0\x09\1aS\0\0\0\2bc"),
    ],
)
def test_each_value_is_written_as_one_type(value: Value, expected: bytes) -> None:
    assert encode({"k": value}) == one(expected)


def test_properties_are_written_in_their_order() -> None:
    assert list(decode(encode({"b": 1, "a": 2, "c": 3}))) == ["b", "a", "c"]


def test_a_timestamp_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Timestamp(1).milliseconds = 2  # type: ignore[misc]


# Malformed tables


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.TABLE_LENGTH),
        (b"\0\0\0", Fault.TABLE_LENGTH),
        (b"\0\0\0\0\0", Fault.TABLE_LENGTH),
        (b"\0\0\0\1", Fault.TABLE_LENGTH),
        (b"\xff\xff\xff\xff", Fault.TABLE_LENGTH),
        (table(entry(b"k", b"V")) + b"\0", Fault.TABLE_LENGTH),
        (one(b"Z"), Fault.TABLE_TAG),
        (one(b"\0"), Fault.TABLE_TAG),
        (one(b"v"), Fault.TABLE_TAG),
        (one(long(b"A", b"Z")), Fault.TABLE_TAG),
        (one(b"t\2"), Fault.TABLE_BOOLEAN),
        (one(b"t\xff"), Fault.TABLE_BOOLEAN),
        (one(long(b"A", b"t\2")), Fault.TABLE_BOOLEAN),
        (table(b"\0V"), Fault.TABLE_KEY),
        (table(entry(b"a", b"V"), b"\0V"), Fault.TABLE_KEY),
        (table(b"\0"), Fault.TABLE_KEY),
        (table(entry(b"a", b"V"), entry(b"b", b"V"), entry(b"a", b"t\1")), Fault.TABLE_KEY),
        (one(long(b"F", entry(b"a", b"V") * 2)), Fault.TABLE_KEY),
        (table(entry(b"\xff", b"V")), Fault.TABLE_TEXT),
        (table(entry(b"\xed\xa0\x80", b"V")), Fault.TABLE_TEXT),
        (one(long(b"S", b"\x80")), Fault.TABLE_TEXT),
        (one(long(b"S", b"\xc3")), Fault.TABLE_TEXT),
        (one(long(b"S", b"\xed\xa0\x80")), Fault.TABLE_TEXT),
        (one(long(b"A", long(b"S", b"\xc0\x80"))), Fault.TABLE_TEXT),
        (table(b"\1"), Fault.TABLE_CUT),
        (table(b"\1a"), Fault.TABLE_CUT),
        (table(b"\xffa"), Fault.TABLE_CUT),
        (table(b"\2aV"), Fault.TABLE_CUT),
        (one(b"l" + bytes(7)), Fault.TABLE_CUT),
        (one(b"t"), Fault.TABLE_CUT),
        (one(b"D" + bytes(4)), Fault.TABLE_CUT),
        (one(b"T" + bytes(7)), Fault.TABLE_CUT),
        (one(b"S\0\0\0"), Fault.TABLE_CUT),
        (one(b"S\0\0\0\2a"), Fault.TABLE_CUT),
        (one(b"S\xff\xff\xff\xff"), Fault.TABLE_CUT),
        (one(b"x\0\0\0\1"), Fault.TABLE_CUT),
        (one(b"F\0\0\0\1"), Fault.TABLE_CUT),
        (one(b"F\0\0\0\3\1aB"), Fault.TABLE_CUT),
        (one(b"A\0\0\0\1l" + bytes(8)), Fault.TABLE_CUT),
        (one(b"A\0\0\0\2S\0\0\0\0"), Fault.TABLE_CUT),
        (one(b"A\0\0\0\1t\1"), Fault.TABLE_CUT),
        (one(b"F\0\0\0\3\1at\1"), Fault.TABLE_CUT),
    ],
)
def test_what_is_no_table_is_refused(data: bytes, fault: Fault) -> None:
    """W11."""
    assert fault_of(data) is fault


ALL = table(*[entry(b"%d" % number, value) for number, (value, _) in enumerate(TYPES)])


def test_every_truncation_of_a_table_is_refused() -> None:
    """W11, X03."""
    assert len(decode(ALL)) == len(TYPES)
    for end in range(len(ALL)):
        assert fault_of(ALL[:end]) is Fault.TABLE_LENGTH


def test_a_truncation_that_says_how_long_it_is_is_refused_within_an_entry() -> None:
    """W11, X03."""
    boundaries = {4}
    for number, (value, _) in enumerate(TYPES):
        boundaries.add(max(boundaries) + len(entry(b"%d" % number, value)))
    for end in range(4, len(ALL) + 1):
        data = table(ALL[4:end])
        if end in boundaries:
            check(data)
            assert encode(decode(data)) is not None
        else:
            assert fault_of(data) is Fault.TABLE_CUT


def test_each_tag_is_known_or_refused() -> None:
    known = {value[0]: value for value, _ in TYPES}
    for tag in range(256):
        if tag in known:
            check(one(known[tag]))
        else:
            assert fault_of(one(bytes([tag]) + bytes(16))) is Fault.TABLE_TAG


def test_keys_of_every_length_and_any_text_are_read() -> None:
    keys = [b"k" * 255, b" ", b"\0", b"\n", "é".encode(), b"content-type"]
    data = table(*[entry(key, b"V") for key in keys])
    check(data)
    assert list(decode(data)) == [key.decode() for key in keys]


def test_the_same_key_may_be_in_tables_within_each_other() -> None:
    assert decode(one(long(b"F", entry(b"k", long(b"F", entry(b"k", b"V")))))) == {"k": {"k": {"k": None}}}


# Limits


def nested(depth: int, lists: bool) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = long(b"A", value) if lists else long(b"F", entry(b"k", value))
    return one(value)


@pytest.mark.parametrize("lists", [True, False])
def test_tables_and_lists_are_in_each_other_up_to_the_limit(lists: bool) -> None:
    """W11."""
    allowed = nested(MAX_DEPTH, lists)
    check(allowed)
    assert encode(decode(allowed)) == allowed
    assert fault_of(nested(MAX_DEPTH + 1, lists)) is Fault.TABLE_DEPTH
    assert fault_of(nested(5_000, lists)) is Fault.TABLE_DEPTH


def test_too_deep_properties_are_not_written() -> None:
    value: Value = None
    for _ in range(MAX_DEPTH):
        value = {"k": value}
    encode({"k": value})
    tables: list[Value] = [{"k": value}, [value], [{"k": value}]]
    for deeper in tables:
        with pytest.raises(ValueError, match="nested deeper than 8"):
            encode({"k": deeper})
    lists: list[Value] = []
    for _ in range(MAX_DEPTH - 1):
        lists = [lists]
    encode({"k": lists})
    with pytest.raises(ValueError, match="nested deeper than 8"):
        encode({"k": [lists]})
    endless: list[Value] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 8"):
        encode({"k": endless})


def test_a_table_may_have_so_many_bytes_and_no_more() -> None:
    """W11."""
    filled = one(long(b"x", bytes(MAX_TABLE - 7)))
    larger = one(long(b"x", bytes(MAX_TABLE - 6)))
    assert len(filled) == 4 + MAX_TABLE
    check(filled)
    assert encode(decode(filled)) == filled
    assert fault_of(larger) is Fault.TOO_LARGE
    check(larger, MAX_EXTENDED)
    assert encode(decode(larger, MAX_EXTENDED), MAX_EXTENDED) == larger
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        encode({"k": bytes(MAX_TABLE - 6)})


def test_a_table_of_thousands_of_entries_is_read() -> None:
    data = encode({f"{number:x}": None for number in range(10_000)})
    check(data)
    assert len(decode(data)) == 10_000
    flat = one(long(b"A", b"V" * 60_000))
    check(flat)
    assert len(decode(flat)["k"]) == 60_000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "properties",
    [
        {"": 1},
        {"k" * (MAX_KEY + 1): 1},
        {"é" * (MAX_KEY // 2 + 1): 1},
        {"\ud800": 1},
        {"k": "\ud800"},
        {"k": 2**63},
        {"k": -(2**63) - 1},
        {"k": Timestamp(-1)},
        {"k": Timestamp(2**64)},
        {"k": Decimal(-1)},
        {"k": Decimal("-0")},
        {"k": Decimal("NaN")},
        {"k": Decimal("Infinity")},
        {"k": Decimal(2**32)},
        {"k": Decimal("1E-256")},
        {"k": Decimal("1E+10")},
        {"k": Decimal("1E+999999")},
        {"k": object()},
        {"k": (1,)},
        {"k": [object()]},
        {"k": {"": 1}},
    ],
)
def test_what_no_table_can_hold_is_not_written(properties: dict[str, Value]) -> None:
    with pytest.raises(ValueError):
        encode(properties)
    with pytest.raises(ValueError):
        with_members(EMPTY, properties)


@pytest.mark.parametrize("number", ["1E+10", "1E+999999", "12345678901", "-1", "NaN"])
def test_a_decimal_number_that_cannot_be_written_is_not_worked_out(number: str) -> None:
    with pytest.raises(ValueError, match="cannot be written as scale and unsigned number"):
        encode({"k": Decimal(number)})


def test_the_longest_key_is_written() -> None:
    for key in ("k" * MAX_KEY, "é" * (MAX_KEY // 2)):
        assert decode(encode({key: 1})) == {key: 1}


# Single properties


@pytest.mark.parametrize("name", [str(number) for number in range(len(TYPES))])
def test_one_property_is_read_replaced_and_taken_out_among_all_types(name: str) -> None:
    everything = decode(ALL)
    assert members(ALL, name, "absent") == {name: everything[name]}
    rest = {key: value for key, value in everything.items() if key != name}
    assert decode(without_members(ALL, name)) == rest
    replaced = decode(with_members(ALL, {name: "new"}, redelivered=True))
    assert replaced == {**rest, name: "new", "redelivered": True}
    assert list(replaced)[-2:] == [name, "redelivered"]


def test_what_is_left_keeps_its_bytes() -> None:
    """W08, K05: the other properties are sent again as they came."""
    data = table(entry(b"a", b"B\1"), entry(b"redelivered", b"t\0"), entry(b"b", b"f\x3f\xc0\0\0"))
    expected = table(
        entry(b"a", b"B\1"),
        entry(b"b", b"f\x3f\xc0\0\0"),
        entry(b"redelivered", b"t\1"),
        entry(b"delivery-count", b"l" + bytes(7) + b"\3"),
    )
    assert with_members(data, {"redelivered": True, "delivery-count": 3}) == expected
    assert without_members(expected, "redelivered", "delivery-count", "user-id") == table(
        entry(b"a", b"B\1"), entry(b"b", b"f\x3f\xc0\0\0")
    )


def test_a_value_that_looks_like_the_key_stays() -> None:
    disguise: dict[str, Value] = {
        "a": "\x07user-id",
        "b": b"\x07user-idV",
        "list": ["\x07user-id"],
        "inner": {"user-id": "x"},
    }
    data = encode(disguise)
    assert decode(with_members(data, {"user-id": "me"})) == {**disguise, "user-id": "me"}
    assert without_members(data, "user-id") == data
    assert members(data, "user-id") == {}
    data = encode({**disguise, "user-id": "forged"})
    assert decode(with_members(data, {"user-id": "me"})) == {**disguise, "user-id": "me"}
    assert decode(without_members(data, "user-id")) == disguise
    assert members(data, "user-id") == {"user-id": "forged"}


def test_without_changes_the_table_is_the_same() -> None:
    assert with_members(ALL) == ALL
    assert without_members(ALL) is ALL
    assert without_members(ALL, "absent") is ALL
    assert members(ALL) == {}
    assert with_members(EMPTY, redelivered=True) == encode({"redelivered": True})
    assert without_members(encode({"a": 1}), "a") == EMPTY


def test_the_largest_table_has_room_for_what_the_broker_adds() -> None:
    filled = encode({"k": bytes(MAX_TABLE - 7)})
    extended = with_members(filled, {"user-id": "u" * 255, "delivery-count": 20}, redelivered=True, revision=1)
    check(extended, MAX_EXTENDED)
    assert fault_of(extended) is Fault.TOO_LARGE
    assert members(extended, "delivery-count") == {"delivery-count": 20}
    with pytest.raises(ValueError, match="more than 69632 bytes"):
        with_members(filled, event="e" * 4_096)


# pamqp, which reads and writes the tables of AMQP


def as_pamqp(value: Value) -> object:
    """The value that pamqp decodes from ours."""
    match value:
        case Timestamp(milliseconds):
            seconds = milliseconds / 1000 if milliseconds > 0xFFFFFFFF else milliseconds
            return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
        case bytes():
            return bytearray(value)
        case list():
            return [as_pamqp(item) for item in value]
        case dict():
            return {key: as_pamqp(item) for key, item in value.items()}
    return value


SOME: dict[str, Value] = {
    "content-type": "application/json",
    "é": "é\0",
    "timestamp": Timestamp(1_795_246_621_350),
    "then": Timestamp(1_795_246_621),
    "ttl": -5,
    "load": 0.1,
    "yes": True,
    "no": False,
    "price": Decimal("12.50"),
    "key": b"\0\xff",
    "nothing": None,
    "list": [1, [2, None], {"a": b"x"}, "text"],
    "table": {"a": {"b": {"c": True}}, "d": []},
}


def test_pamqp_reads_what_is_written() -> None:
    data = encode(SOME)
    assert pamqp.decode.field_table(data) == (len(data), as_pamqp(SOME))


BEYOND_PAMQP = [Timestamp(2**64 - 1), Decimal("4294967295E-255")]
"""Its times end with the year 9999, and its decimal numbers have a sign, which RabbitMQ's and ours have not."""


@pytest.mark.parametrize(("value", "expected"), [pair for pair in TYPES if pair[1] not in BEYOND_PAMQP])
def test_pamqp_reads_the_same_of_each_type(value: bytes, expected: Value) -> None:
    data = one(value)
    _, found = pamqp.decode.field_table(data)
    assert found == {"k": as_pamqp(expected)}


def test_what_pamqp_writes_is_read() -> None:
    now = datetime.datetime(2026, 11, 21, 20, 17, 1, tzinfo=datetime.UTC)
    written: dict[str, Any] = {
        "int8": -5, "int16": -300, "uint16": 60_000, "int32": -70_000, "uint32": 2**32 - 1, "int64": 2**40,
        "text": "é", "bytes": bytearray(b"\0\xff"), "yes": True, "nothing": None, "float": 0.1,
        "price": Decimal("12.50"), "list": [1, "a", [None]], "table": {"a": {"b": 1}}, "now": now,
    }  # fmt: skip
    data = pamqp.encode.field_table(written)
    check(data)
    assert decode(data) == {
        **written,
        "bytes": b"\0\xff",
        "float": struct.unpack(">f", struct.pack(">f", 0.1))[0],
        "now": Timestamp(int(now.timestamp())),
    }


def test_a_malformed_table_is_the_codecs_only_exception() -> None:
    with pytest.raises(Malformed):
        check(b"")
