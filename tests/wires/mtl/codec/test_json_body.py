"""Recognition of JSON bodies of any length, depth and content."""

from __future__ import annotations

import json

import pytest

from broker.wires.mtl.codec.control_messages import MAX_DEPTH, TooDeep, is_json, read_json
from broker.wires.mtl.codec.field_table import Fault, IllFormed

JSON: list[tuple[str, object]] = [
    ("{}", {}),
    (" \t\r\n{ } \n", {}),
    ("[]", []),
    ("[{}]", [{}]),
    ("42", 42),
    ("-0", 0),
    ("null", None),
    ("true", True),
    ('"x"', "x"),
    ('{"a":1,"b":[1,2.5,-3e2,"x",true,false,null,{}]}', {"a": 1, "b": [1, 2.5, -300.0, "x", True, False, None, {}]}),
    ('{"a":1,"a":2}', {"a": 2}),
    ('{"":""}', {"": ""}),
    (r'"\"\\\/\b\f\n\r\t\u00e9"', '"\\/\b\f\n\r\té'),
    (r'"\ud83d\ude00"', "😀"),
    (r'"\ud800"', "\ud800"),
    (r'{"\udc00":"\ud800x"}', {"\udc00": "\ud800x"}),
    ('"\x7f\u2028"', "\x7f\u2028"),
    ('"]}"', "]}"),
    ("1e999", float("inf")),
    ("0.5E-3", 0.0005),
]

NO_JSON = [
    "", " ", "\n", "x", "{", "}", "[", "]", '"', "{]", "[}", "[[}]", "{[}]", '{"a"}', '{"a":}', '{"a":1,}', "[1,]",
    "[1}", '{"a":1]', '[{"a":1]}', "[[1}]", "[1]]", "[[1]", '{"a":1}}', '{"a":{"b":1}', "[,1]", "[,]",
    "[1 2]", "[[][]]", "{}{}", "[],[]", "{},1", "1 2", "truefalse", "true1", "tru", "True", "None",
    "nul", "{a:1}", "{'a':1}", '{"a":1 "b":2}', '{"a":1:2}', '{"a":"b":1}', '["a":1]', '[1,"a":2]', '{"a":1,2}',
    "{1:2}", "{[]:1}", ":", ",", ";", ".", "01", "-", "-01", "+1", ".5", "5.", "1.e5", "1e", "1e+", "0x10", "1_000",
    "--1", "- 1", "1 .5", "NaN", "Infinity", "-Infinity", '{"a":NaN}', '{"a":[-Infinity]}', '"\n"', '"\x00"', '"\x1f"',
    '{"a":"\t"}', r'"\x41"', r'"\u12"', r'"\u12g4"', r'"\u+123"', '"\\', '"abc', '{"a', '{"a":"', "\ufeff{}",
    "{}\ufeff", "{}\0", "\0{}", "\x0b{}", "\x0c[]", "\xa0{}", "\u2028{}", "/* */{}", "{}//", "\x01", "[\x02]",
    "{\x03\x02}", "\x02", "\u0663", "[\u0663]", "\uff11",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), JSON)
def test_json_is_read(text: str, value: object) -> None:
    """E08."""
    assert read_json(text.encode()) == value
    assert is_json(text)


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_dropped(text: str) -> None:
    """E02, E04."""
    with pytest.raises(IllFormed) as caught:
        read_json(text.encode())
    assert caught.value.fault is Fault.JSON
    assert not is_json(text)


@pytest.mark.parametrize(
    "data",
    [b"\xff", b'{"a":"\xff"}', b'{"\xc3":1}', b'"\xed\xa0\x80"', b'"\xc0\x80"', "{}".encode("utf-16"), b"\x80[" * 100],
)
def test_what_is_not_utf_8_is_dropped(data: bytes) -> None:
    """E03."""
    with pytest.raises(IllFormed) as caught:
        read_json(data)
    assert caught.value.fault is Fault.ENCODING


def lists(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


def objects(depth: int, inner: str = "1") -> str:
    return '{"a":' * depth + inner + "}" * depth


@pytest.mark.parametrize("nested", [lists, objects])
def test_json_may_be_nested_up_to_the_limit(nested) -> None:
    """E08."""
    text = nested(MAX_DEPTH)
    assert read_json(text.encode()) == json.loads(text)
    assert is_json(nested(MAX_DEPTH + 1))
    for depth in (MAX_DEPTH + 1, 1_000, 10_000):
        with pytest.raises(TooDeep):
            read_json(nested(depth).encode())


def test_brackets_in_strings_and_beside_each_other_are_not_nested() -> None:
    in_string = json.dumps({"a": "[{" * 1_000 + '"\\'})
    assert read_json(in_string.encode()) == json.loads(in_string)
    beside = "[" + "[],{}," * 10_000 + "1]"
    assert read_json(beside.encode()) == json.loads(beside)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, pytest.param(5_000, marks=pytest.mark.long)])
def test_what_is_no_json_is_none_however_deep(depth: int) -> None:
    """E02, E08."""
    for text in NO_JSON:
        for body in (objects(depth, text), lists(depth) + text + ",", text + "," + objects(depth)):
            with pytest.raises(IllFormed):
                read_json(body.encode())


@pytest.mark.parametrize(("text", "value"), JSON)
def test_json_is_json_however_deep(text: str, value: object) -> None:
    for nested in (lists, objects):
        for inner in (text, f"[{text},{text}]", f'{{"a" : {text} , "b":\n{text}}}'):
            with pytest.raises(TooDeep):
                read_json(nested(MAX_DEPTH + 1, inner).encode())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        "]" * 60_000,
        "[" * 30_000 + "]" * 29_999,
        '{"":[' * 10_000,
        '["' * 30_000,
        "[" * 40 + '"' * 60_001,
    ],
    ids=["open", "closed", "open_and_closed", "both_kinds", "strings", "quotes"],
)
def test_brackets_that_do_not_match_are_no_json_however_many(text: str) -> None:
    """E08."""
    with pytest.raises(IllFormed) as caught:
        read_json(text.encode())
    assert caught.value.fault is Fault.JSON


@pytest.mark.parametrize("digits", [20, 21, 4_301, 5_000, 65_000])
def test_a_number_may_have_any_number_of_digits(digits: int) -> None:
    """E08."""
    for text in ("9" * digits, "-" + "9" * digits):
        value = read_json(text.encode())
        assert isinstance(value, int)
        assert abs(value) >= 10**18
        assert (value < 0) is text.startswith("-")
    assert read_json(b"9" * digits + b".5") == float("9" * digits + ".5")
    assert read_json(b'{"a":1e' + b"9" * digits + b"}") == {"a": float("inf")}


def test_other_whole_numbers_are_exact() -> None:
    for number in (2**63, -(2**63), 10**18, 1, -1):
        assert read_json(str(number).encode()) == number
