"""Input and output of the lenient reader. The tables of blocks hold input to the original server."""

from __future__ import annotations

import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.lenient import EXCERPT, MAX_DEPTH, MAX_DIGITS, BracketBalance, objects, objects_in_steps


def value(text: str) -> object:
    """The value that ``text`` stands for."""
    (members,) = objects("{v:" + text + "}")
    assert list(members) == ["v"]
    return members["v"]


def refused(text: str) -> str:
    """The reason for which ``text`` is refused."""
    with pytest.raises(Malformed) as caught:
        list(objects(text))
    assert caught.value.reason is Reason.SYNTAX
    assert not caught.value.reason.fatal
    return caught.value.text


def ping(tag: str) -> dict[str, object]:
    return {"to": "broker", "op": "ping", "tag": tag}


# Text that the original accepts

DELIVERED = [
    ('{to:"broker", op:"ping", tag:"crlf"}', [ping("crlf")]),
    ('{to:"broker", op:"ping", tag:"two"}{to:"broker", op:"ping", tag:"more"}', [ping("two"), ping("more")]),
    ('{to:"broker", op:"ping", tag:"two"} {to:"broker", op:"ping", tag:"lines"}', [ping("two"), ping("lines")]),
    ('{to:"broker",  op:"ping",  tag:"multi line string"}', [ping("multi line string")]),
    ('   {to:"broker", op:"ping", tag:"blank lines"}   ', [ping("blank lines")]),
    ("{to:'broker', 'op':'ping', \"tag\":'single quotes'}", [ping("single quotes")]),
    ('{to:"broker", op:"ping", tag:"trailing comma",}', [ping("trailing comma")]),
    ('/* comment */ {to:"broker", /* x */ op:"ping", tag:"comments"} /* tail */', [ping("comments")]),
    ('{to:"broker", op:"ping", $x_1:1, tag:"dollar"}', [ping("dollar") | {"$x_1": 1}]),
    ('{to:"broker", op:"ping", tag:"dup 1", tag:"dup 2"}', [ping("dup 2")]),
    (
        r'{to:"broker", op:"ping", tag:"esc \u00e9 \x41 \n \t \b \f \r \" \\ \/ \q \' end"}',
        [ping("esc é A \n \t \b \f \r \" \\ / q ' end")],
    ),
    (r'{to:"broker", op:"ping", tag:"octal \101 \0 \7"}', [ping("octal \u0e8b 3 3")]),
    ('{to:"broker", op:"ping", tag:"utf8 é 中 end"}', [ping("utf8 é 中 end")]),
    (r'{to:"broker", op:"ping", tag:"emoji \ud83d\ude00 end"}', [ping("emoji 😀 end")]),
    (r'{to:"broker", op:"ping", tag:"lone \ud83d end"}', [ping("lone ? end")]),
    (r'{to:"broker", op:"ping", tag:"ctl \u0001\u001f\u007f\u2028 end"}', [ping("ctl \x01\x1f\x7f\u2028 end")]),
    ('{to:"broker", op:"ping", tag:"tab\tinside and del\x7f"}', [ping("tab\tinside and del\x7f")]),
    ('{"to":"broker","op":"ping","tag":"a/b"}', [ping("a/b")]),
    (
        '{"to":"broker","op":"ping","tag":"x","n":[1,2,{"a":[true,false,null]},],"m":{},"e":[],"f":-1.5e+3,'
        '"h":0xFF,"o":017,"p":+5,"q":.5,"r":5.}',
        [
            ping("x")
            | {"n": [1, 2, {"a": [True, False, None]}], "m": {}, "e": [], "f": -1500.0}
            | {"h": 255, "o": 15, "p": 5, "q": 0.5, "r": 5.0}
        ],
    ),
    ('\t{to:"broker", op:"ping", tag:"garbage after"} junk', [ping("garbage after")]),
    ('{to:"broker", op:"ping", n:-}', [{"to": "broker", "op": "ping", "n": 0}]),
    (r'{to:"broker", op:"ping", tag:"\uzzzz"}', [ping("\ueeef")]),
    ('{to:5, op:"ping"}', [{"to": 5, "op": "ping"}]),
    ('{to:null, op:"ping"}', [{"to": None, "op": "ping"}]),
    ("{}", [{}]),
    ('{to:"broker", op:"ping", tag:{}}', [{"to": "broker", "op": "ping", "tag": {}}]),
    ('{to:"broker", op:"wontserve", services:[null]}', [{"to": "broker", "op": "wontserve", "services": [None]}]),
    (
        r'{to:"broker", op:"auth", label:"q\" b\\ n\n t\t u\u0001 s/ e\u00e9 \u4e2d \ud83d\ude00"}',
        [{"to": "broker", "op": "auth", "label": 'q" b\\ n\n t\t u\x01 s/ eé 中 😀'}],
    ),
]


@pytest.mark.parametrize(("text", "expected"), DELIVERED)
def test_what_the_original_delivers(text: str, expected: list[dict[str, object]]) -> None:
    assert list(objects(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "hello", "/", "//", "/* unterminated", "// {a:1}", '"str', "'str", '"str\\', '"\\u12"', "12", "0x",
        "1e", "1.", ".", "-", "true", "\u3000",
    ],
)  # fmt: skip
def test_what_the_end_cuts_off_between_objects_is_ignored(text: str) -> None:
    assert list(objects(text)) == []
    assert list(objects("{a:1} " + text)) == [{"a": 1}]


# Text that the original refuses. The place is that of the unexpected token

REFUSED = [
    ("[1,2]", "expected '{' at position 0, near: [1,2]"),
    ('"str"', "expected '{' at position 0, near: \"str\""),
    ("{", "expected a key or '}' at position 1, near: {"),
    ("}", "expected '{' at position 0, near: }"),
    ("{to", "expected ':' at position 3, near: {to"),
    ("{to:", "expected a value at position 4, near: {to:"),
    ("{to:}", "expected a value at position 4, near: {to:}"),
    ('{to:"broker" op:"ping"}', "expected ',' or '}' at position 13, near: {to:\"broker\" op:\"ping\"}"),
    ('{to:"broker", op:ping}', 'expected a value at position 17, near: {to:"broker", op:ping}'),
    ("{,}", "expected a key or '}' at position 1, near: {,}"),
    ('{op:"ping", tag:"open}', 'string without its closing quote at position 16, near: {op:"ping", tag:"open}'),
    ("{n:[1 2]}", "expected ',' or ']' at position 6, near: {n:[1 2]}"),
    ("{n:[,]}", "expected a value at position 4, near: {n:[,]}"),
    ("{true:1}", "expected a key or '}' at position 1, near: {true:1}"),
    ("{null:1}", "expected a key or '}' at position 1, near: {null:1}"),
    ("{5:1}", "expected a key or '}' at position 1, near: {5:1}"),
    ("{n:1.2.3}", "expected ',' or '}' at position 6, near: {n:1.2.3}"),
    ("{n:0x}", "expected a hexadecimal digit at position 5, near: {n:0x}"),
    ("{n:1e}", "expected a digit at position 5, near: {n:1e}"),
    ("{n:.}", "expected a digit at position 4, near: {n:.}"),
    ("{n:NaN}", "expected a value at position 3, near: {n:NaN}"),
    ("{a-b:1}", "expected ':' at position 2, near: {a-b:1}"),
    ("{é:1}", "expected a key or '}' at position 1, near: {é:1}"),
    ('\ufeff{to:"broker"}', "expected '{' at position 0, near: ?{to:\"broker\"}"),
    (r'{tag:"\u12"}', 'string without its closing quote at position 5, near: {tag:"\\u12"}'),
    # more of the same kinds
    ("{a:1,,}", "expected a key or '}' at position 5, near: {a:1,,}"),
    ("{a:1]", "expected ',' or '}' at position 4, near: {a:1]"),
    ("{a:[1}", "expected ',' or ']' at position 5, near: {a:[1}"),
    ("{'a' 1}", "expected ':' at position 5, near: {'a' 1}"),
    ("{a:1 /* b", "comment without its closing */ at position 5, near: {a:1 /* b"),
    ("{a:/b}", "expected a value at position 3, near: {a:/b}"),
    ("{a:\u00a01}", "expected a value at position 3, near: {a:?1}"),
    ("hello ", "expected '{' at position 0, near: hello "),
    ("12 ", "expected '{' at position 0, near: 12 "),
    (".e5", "expected '{' at position 0, near: .e5"),
    (
        '{op:"ping", // note  tag:"x"}',
        "expected a key or '}' before the comment, which takes the rest of the block, at position 12, "
        'near: {op:"ping", // note  tag:"x"}',
    ),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_the_original_refuses(text: str, why: str) -> None:
    assert refused(text) == why


def test_objects_before_an_error_are_yielded() -> None:
    found = objects_in_steps('{op:"one"} }{{op:"lost"}')
    assert next(found) == {"op": "one"}
    with pytest.raises(Malformed) as caught:
        next(found)
    assert caught.value.text == 'expected \'{\' at position 11, near: {op:"one"} }{{op:"lost"}'


def test_excerpt_is_bounded_and_printable() -> None:
    why = refused("{a:'" + "x" * 1000 + "' \x1b[2J\u202e" + "y" * 1000)
    _, near = why.split(" near: ")
    assert len(near) == 2 * EXCERPT
    assert near == "x" * 18 + "' ?[2J?" + "y" * 15


# Strings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'it\\'s \"so\"'", 'it\'s "so"'),
        ("'\x01\x7f\u2028'", "\x01\x7f\u2028"),
        ("'/* no // comment */'", "/* no // comment */"),
        (r"'\u00e'x'", "\u00dfx"),  # four characters, whatever they are: 00e and an apostrophe, 0x00e0 - 1
        (r"'\x4g'", "\x3f"),
        (r"'\xZZ'", "\uffef"),
        (r"'\X41\8\9\a\U'", "X4189aU"),
        (r"'\7\77\777\7777\77777\777777\7777777'", "\x33\u01cb\u0e8b\u748b\ua48b\u248b\u248b"),
        (r"'\08'", "38"),
        (r"'\ud83d\ude00'", "😀"),
        (r"'\ud83dx\ude00'", "?x?"),
        (r"'\ude00\ud83d'", "??"),
        (r"'\ud83d\ud83d\ude00'", "?😀"),
        (r"'\ud83d\u00e9'", "?é"),
        ("'\\😀\\é'", "😀é"),
        ("''", ""),
    ],
)
def test_strings(text: str, expected: str) -> None:
    assert value(text) == expected


def test_keys() -> None:
    text = "{a:1, $:2, _:3, a9$_é中:4, 'b c':5, \"d\\x65\":6, truex:7, 'true':8, '':9, '\\ud83d':10}"
    assert list(objects(text)) == [
        {"a": 1, "$": 2, "_": 3, "a9$_é中": 4, "b c": 5, "de": 6, "truex": 7, "true": 8, "": 9, "?": 10}
    ]


# Numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("-0", 0), ("7", 7), ("-7", -7), ("+7", 7), ("-", 0), ("+", 0),
        ("017", 15), ("-017", -15), ("09", 9), ("019", 17), ("00", 0),
        ("0xff", 255), ("0XaB", 171), ("-0x10", -16), ("+0x10", 16),
        ("9223372036854775808", 2**63), ("0xffffffffffffffffff", 2**72 - 1),
    ],
)  # fmt: skip
def test_integers(text: str, expected: int) -> None:
    found = value(text)
    assert type(found) is int
    assert found == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".5", 0.5), ("5.", 5.0), ("-.5", -0.5), ("+1.5", 1.5), ("1e3", 1000.0), ("1E+3", 1000.0), ("1e-3", 0.001),
        ("5.e1", 50.0), (".5e1", 5.0), ("017.5", 17.5), ("09e1", 90.0), ("1e-999", 0.0), ("-1.5e+3", -1500.0),
    ],
)  # fmt: skip
def test_doubles(text: str, expected: float) -> None:
    found = value(text)
    assert type(found) is float
    assert found == expected


@pytest.mark.parametrize(
    "text", ["-e5", "+e5", ".e5", "-.", "-.e5", "1e+", "1.5e-", "0xg", "--1", "+-1", "0x1.5", "1a"]
)
def test_what_is_no_number(text: str) -> None:
    assert "expected" in refused("{v:" + text + "}")


@pytest.mark.parametrize("text", ["1e999", "-1e999", "1" * 400 + ".0"])
def test_a_number_beyond_the_doubles_is_refused(text: str) -> None:
    assert refused("{v:" + text + "}").startswith("number out of range at position 3, near: {v:")


@pytest.mark.parametrize(
    ("sign", "prefix", "digit", "radix"), [("-", "", "9", 10), ("", "0x", "f", 16), ("", "", "0", 8)]
)
def test_integers_are_limited_in_digits(sign: str, prefix: str, digit: str, radix: int) -> None:
    most = value(sign + prefix + digit * MAX_DIGITS)
    assert most == int(sign + digit * MAX_DIGITS, radix)
    assert isinstance(most, int)
    float(most)  # the reason of the limit: this does not overflow
    assert "number out of range at position 3" in refused("{v:" + sign + prefix + digit * (MAX_DIGITS + 1) + "}")


# Nesting


@pytest.mark.parametrize(("opening", "closing"), [("{a:", "}"), ("[", "]")])
def test_nesting_is_limited(opening: str, closing: str) -> None:
    def nested(depth: int) -> str:
        return "{a:" + opening * (depth - 1) + "0" + closing * (depth - 1) + "}"

    assert len(list(objects(nested(MAX_DEPTH)))) == 1
    assert BracketBalance().feed(nested(MAX_DEPTH))
    assert f"expected at most {MAX_DEPTH} levels of nesting at position" in refused(nested(MAX_DEPTH + 1))
    assert not BracketBalance().feed(nested(MAX_DEPTH + 1))


# Balance


@pytest.mark.parametrize(
    "lines",
    [
        ["{}"],
        ['{to:"broker", op:"ping"}'],
        ["{a:1}{b:2}"],
        [" ", "{a:1} /* tail */ "],
        ["/* {", "{ */ {a:1}"],
        ["{a:1, /* }", "*/ b:2}"],
        ["{", "a", ":", "[", "{", "}", "]", "}"],
        ["{a:'}", "{', b:\"'}", '"}'],
        [r"{a:'\'}'", "}"],
        ["{a:'x\\", "'}"],  # the backslash takes the space between the lines
        ["{a:'\\u00", "''}"],  # \u takes the space and the first apostrophe
        ["{a:'\\u", "", "", "'x'}"],
        ["{a:'\\x", "''}"],
        ["{a:'* /', b:'//', c:\"/*\"}"],
        ["{a:1 b:2}"],  # an error, and complete: nothing that follows could mend it
        ["{a:1 / 2}"],
    ],
)
def test_complete_at_the_last_line_only(lines: list[str]) -> None:
    balance = BracketBalance()
    completes = [balance.feed(line) for line in lines]
    assert completes == [False] * (len(lines) - 1) + [True]


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "/* a */", "hello", "12", "'a'", "[1]", "{", "}", "{a:'}", "{a:\"'}", "{a:1} {", "{a:1} /* b",
        "{a:1} // b", "// {a:1}", "{a:1 // b}", "{a:1} junk", "junk {a:1}", "{a:1} 'b'", "{a:1} ]", "{a:1}}", "{a:[}",
        "{a:[}]", "{a:1} /", "{a:1} / {b:1}", "{a:1},", "\ufeff{a:1}", "{a:'\\'}", "/*/ {a:1}",
    ],
)  # fmt: skip
def test_not_complete(line: str) -> None:
    assert not BracketBalance().feed(line)


@pytest.mark.parametrize(
    "line", ["{a:1} junk", "{a:1} // b", "{a:1}}", "{a:[}", "hello", "[", "{" * (MAX_DEPTH + 1), "/"]
)
def test_never_complete_again(line: str) -> None:
    balance = BracketBalance()
    for following in [line, "{a:1}", "]}", "*/", "'", '"', "{b:2}"]:
        assert not balance.feed(following)


def test_complete_again_after_each_object() -> None:
    balance = BracketBalance()
    lines = {"{a:1}": True, "": True, "{b:": False, "2}": True, "/*": False, "*/": True}
    assert {line: balance.feed(line) for line in lines} == lines


def test_a_slash_and_a_star_on_two_lines_are_no_comment() -> None:
    balance = BracketBalance()
    assert [balance.feed(line) for line in ["{a:1 /", "* }", "/* *", "/ */"]] == [False, True, False, True]
