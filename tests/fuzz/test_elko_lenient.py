"""The lenient reader and what it must hold for every text: round trips, agreement, and that only Malformed escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.lenient import EXCERPT, BracketBalance, objects
from tests.examples import examples

pytestmark = pytest.mark.long

BLOCK = 1 << 20
"""Characters of the longest block that a peer may send."""

MANY = settings(max_examples=examples(100), deadline=None)

# Values. Brackets, quotes, comment marks and escapes are likelier in strings than chance would have it.

characters = st.one_of(st.sampled_from("{}[]'\"/*\\ ,:u0x"), st.characters(exclude_categories=["Cs"]))
strings = st.text(characters, max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    strings,
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4), max_leaves=5
)
messages = st.dictionaries(strings, values, max_size=4)

# The same values in the lenient syntax, each choice drawn. A space in what is rendered may become the end of a line.

gaps = st.sampled_from(["", "", " ", "  ", "\t", "/**/", "/* } ] ' \" { [ */", " /*/ //*/ "])
Choose = Callable[[st.SearchStrategy[str]], str]


def written(value: object, choose: Choose) -> str:
    if isinstance(value, dict):
        members = [f"{key(k, choose)}{choose(gaps)}:{choose(gaps)}{written(v, choose)}" for k, v in value.items()]
        return "{" + listed(members, choose) + "}"
    if isinstance(value, list):
        return "[" + listed([written(element, choose) for element in value], choose) + "]"
    if isinstance(value, str):
        return quoted(value, choose)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return choose(st.sampled_from([repr(value), repr(value).upper(), re.sub(r"\b0\.", ".", repr(value))]))
    assert isinstance(value, int)
    sign = "-" if value < 0 else choose(st.sampled_from(["", "+"]))
    return sign + choose(
        st.sampled_from([f"{abs(value)}", f"{abs(value):#x}", f"0X{abs(value):X}", f"0{abs(value):o}"])
    )


def listed(items: list[str], choose: Choose) -> str:
    comma = choose(st.sampled_from(["", ","])) if items else ""
    return choose(gaps) + f"{choose(gaps)},{choose(gaps)}".join(items) + choose(gaps) + comma + choose(gaps)


def key(name: str, choose: Choose) -> str:
    bare = name.isascii() and name.isidentifier() and name not in ("true", "false", "null")
    return name if bare and choose(st.sampled_from(["bare", "quoted"])) == "bare" else quoted(name, choose)


def quoted(string: str, choose: Choose) -> str:
    quote = choose(st.sampled_from("\"'"))
    return quote + "".join(character(c, quote, choose) for c in string) + quote


def character(c: str, quote: str, choose: Choose) -> str:
    units = c.encode("utf-16-be")
    hexadecimal = [f"{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)]
    ways = ["".join(f"\\u{unit}" for unit in hexadecimal)]
    if c <= "\xff":
        ways.append(f"\\x{ord(c):02X}")
    if c not in "bfnrtux01234567":
        ways.append("\\" + c)
    if c not in (quote, "\\"):
        ways += [c, c]
    return choose(st.sampled_from(ways))


@MANY
@given(st.lists(messages, max_size=3), st.data())
def test_what_is_written_leniently_is_read_back(expected: list[dict[str, object]], data: st.DataObject) -> None:
    text = data.draw(gaps) + "".join(written(message, data.draw) + data.draw(gaps) for message in expected)
    assert list(objects(text)) == expected


@MANY
@given(messages, st.booleans(), st.sampled_from([None, 1]))
def test_strict_json_means_the_same(message: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(message, ensure_ascii=ascii_only, indent=indent)
    (found,) = objects(text)
    assert repr(found) == repr(json.loads(text))  # which also tells 1 from 1.0 and 0.0 from -0.0


@MANY
@given(st.text(st.characters(categories=["Cs"]) | st.characters(), max_size=8))
def test_no_string_has_surrogates(string: str) -> None:
    (found,) = objects(json.dumps({string: string}))
    for text in (*found.keys(), *found.values()):
        assert isinstance(text, str)
        text.encode()


# Texts that are not, or not quite, objects

pieces = st.sampled_from(
    [
        "{", "}", "[", "]", ",", ":", '"', "'", "\\", "\\u", "\\ud83d", "\\ude00", "\\x4", "\\1", "7", "0", "0x", ".",
        "e", "-", "+", "a", "true", "null", "$", "é", "/", "/*", "*/", "//", "*", " ", "\t", "\xa0", "\ufeff", "{a:",
        "{a:1}", "[1,", "'x'", '"y"', "1.5", "😀",
    ]
)  # fmt: skip
soup = st.lists(pieces, max_size=16).map("".join)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Lenient text, with a few cuts and insertions."""
    text = "".join(written(message, draw) + draw(gaps) for message in draw(st.lists(messages, max_size=2)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(pieces | st.just("")) + text[at + draw(st.integers(0, 2)) :]
    return text


texts = st.one_of(st.text(max_size=40), soup, mutated())


def count(text: str) -> int | None:
    """The number of objects in ``text``; None if it is malformed. Anything but Malformed escapes."""
    try:
        return sum(1 for _ in objects(text))
    except Malformed as malformed:
        assert malformed.reason is Reason.SYNTAX
        assert len(malformed.text) < 120 + 2 * EXCERPT
        return None


@MANY
@given(texts)
def test_only_malformed_escapes(text: str) -> None:
    count(text)


@MANY
@given(texts)
def test_balance_agrees_with_the_reader(text: str) -> None:
    """A text is complete if another object may follow it. If the reader finds an error, either answer will do."""
    balance = BracketBalance()
    lines = text.split(" ")
    for line, so_far in zip(lines, accumulate(lines, "{} {}".format), strict=True):
        complete = balance.feed(line)
        found, with_another = count(so_far), count(so_far + " {}")
        if found and with_another == found + 1:
            assert complete
        elif with_another is not None:
            assert not complete


@MANY
@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_balance_is_true_exactly_where_all_is_complete(found: list[dict[str, object]], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", " ", "\t "]))
    open_at: set[int] = set()  # the places in the text where an object or a comment between objects is open
    for message in found:
        for part in (written(message, data.draw), data.draw(st.sampled_from(["", " ", "/* { */", "/* a */"]))):
            if part != " ":
                open_at.update(range(len(text) + 1, len(text) + len(part)))
            text += part
    first = text.index("{")
    spaces = [at for at, c in enumerate(text) if c == " "]
    ends = [at for at in spaces if data.draw(st.booleans())]
    balance = BracketBalance()
    for start, end in zip([-1, *ends], [*ends, len(text)], strict=True):
        assert balance.feed(text[start + 1 : end]) == (end > first and end not in open_at)


def filled(piece: str, before: str = "", after: str = "") -> str:
    return before + piece * (BLOCK // len(piece)) + after


SHAPES = {
    "empty objects": filled("{}"),
    "members": filled("a:1,", "{", "}"),
    "elements": filled("1,", "{a:[", "]}"),
    "empty strings": filled("'',", "{a:[", "]}"),
    "deep arrays": filled("[" * 32 + "]" * 32 + ",", "{a:[", "]}"),
    "open arrays": filled("[", "{a:"),
    "open objects": filled("{a:"),
    "escapes": filled("\\n", "{a:'", "'}"),
    "lone surrogates": filled("\\ud83d", "{a:'", "'}"),
    "one octal escape": filled("7", "{a:'\\", "'}"),
    "octal escapes": filled("\\7", "{a:'", "'}"),
    "backslashes": filled("\\", "{a:'"),
    "escaped quotes": filled('\\"', '{a:"'),
    "other quotes": filled("'\"", "{"),
    "long symbol": filled("a", "{", ":1}"),
    "long word": filled("a"),
    "long integer": filled("9", "{a:", "}"),
    "long octal integer": filled("0", "{a:", "}"),
    "long hexadecimal integer": filled("f", "{a:0x", "}"),
    "integers at their limit": filled("7" * 255 + ",", "{a:[", "]}"),
    "octal integers at their limit": filled("0" * 255 + ",", "{a:[", "]}"),
    "long fraction": filled("1", "{a:.", "}"),
    "long exponent": filled("0", "{a:1e", "}"),
    "points": filled(".", "{a:"),
    "blanks": filled(" "),
    "comments": filled("/**/"),
    "comments inside": filled("/**/", "{", "}"),
    "open comments": filled("/* "),
    "comments that do not close": filled("/*/"),
    "stars": filled("*", "{/*"),
    "slashes inside": filled("/ ", "{"),
    "line comments": filled("//", "{"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_full_block_of_any_shape_is_read_to_its_end(shape: str) -> None:
    """These finish in well under a second each; were one of them quadratic in the length, it would take hours."""
    count(SHAPES[shape])
    BracketBalance().feed(SHAPES[shape])


@pytest.mark.parametrize("shape", ["escapes", "backslashes", "stars", "open comments", "blanks", "open objects"])
def test_a_full_block_of_short_lines_is_read_to_its_end(shape: str) -> None:
    text = SHAPES[shape]
    balance = BracketBalance()
    for at in range(0, len(text), 8):
        balance.feed(text[at : at + 8])
