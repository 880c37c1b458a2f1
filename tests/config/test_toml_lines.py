"""Which line a key is on."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.toml_values import MAX_DEPTH, join, line_of, lines, parent, table

TEXT = '''\
# a comment with [brackets] and = signs
top = 1
dotted.key . "with dots. = ] #".end = 2 # comment
'literal "key"' = """
[not a header]
not = "a key"
\\""" still in it"""""
'empty'=\'\'\'
[no]\'\'\'
array = [ # comment ]
  "a]", # [
  { x = 1, y = "}" },
]
inline = { a = { b = 1 }, c = "x" }
  [ table . sub ]
after = "\\\\"
quoted = "\\"[" # "
[[many]]
one = 1
[[many]]

two = 2
[many.child]
three = 3
[[many.child.inner]]
[[many.child.inner]]
four = '\\'
[[many]]
last = 1979-05-27 07:32:00'''

LINES = {
    "top": 2,
    "dotted": 3,
    "dotted.key": 3,
    'dotted.key."with dots. = ] #"': 3,
    'dotted.key."with dots. = ] #".end': 3,
    '"literal \\"key\\""': 4,
    "empty": 8,
    "array": 10,
    "inline": 14,
    "table": 15,
    "table.sub": 15,
    "table.sub.after": 16,
    "table.sub.quoted": 17,
    "many": 18,
    "many[0]": 18,
    "many[0].one": 19,
    "many[1]": 20,
    "many[1].two": 22,
    "many[1].child": 23,
    "many[1].child.three": 24,
    "many[1].child.inner": 25,
    "many[1].child.inner[0]": 25,
    "many[1].child.inner[1]": 26,
    "many[1].child.inner[1].four": 27,
    "many[2]": 28,
    "many[2].last": 29,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_kind_of_key(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    tomllib.loads(text)
    assert lines(text) == LINES


def test_what_has_no_line_of_its_own_has_that_of_what_contains_it() -> None:
    found = lines(TEXT)
    assert line_of(found, "inline.a.b") == 14
    assert line_of(found, "array[1].x") == 10
    assert line_of(found, "many[1].child.absent") == 23
    assert line_of(found, "many[2].child") == 28
    assert line_of(found, 'inline."odd ] key"[3]') == 14
    assert line_of(found, "absent.key") is None
    assert line_of(found, "") is None


def test_keys() -> None:
    key = join(join(join("", "elko"), "listeners"), 3)
    assert key == "elko.listeners[3]"
    assert [parent(key), parent(parent(key)), parent("elko"), parent("")] == ["elko.listeners", "elko", "", ""]
    assert [table("a.b[0].c[1]"), table("a.b[0]"), table("a")] == ["a.b[0]", "a", ""]
    odd = join("a", 'x.y"[\\')
    assert (parent(odd), parent(join(odd, "b"))) == ("a", odd)


def test_a_very_deep_key_is_cut() -> None:
    assert len(lines(".".join(["a"] * 1_000) + " = 1")) == MAX_DEPTH
    assert len(lines(".".join(["a"] * 5_000) + " = 1")) in (MAX_DEPTH, 0)  # 0: the limit of tomllib


WORDS = st.sampled_from(["a", "b", '"c d"', "'e.f'", '"\\u00e9"'])
VALUES = st.sampled_from(
    [
        "1",
        '"x # ["',
        "'] ='",
        '"""\n[q]\nz = 1\n"""',
        "[1,\n[2], # ]\n]",
        "{ a = 1, b = [1] }",
        "'''''x'''''",
        "true",
        '""',
    ]
)
STATEMENTS = st.one_of(
    st.tuples(st.lists(WORDS, min_size=1, max_size=3).map(".".join), VALUES).map(" = ".join),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f"[{'.'.join(words)}]"),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f"[[ {' . '.join(words)} ]] # ]"),
    st.sampled_from(["", "# [x]", "\t"]),
)


def named(value: Any, key: str) -> list[str]:
    """The keys of all tables and of what they hold, arrays not looked into."""
    if isinstance(value, dict):
        return [each for name in value for each in (join(key, name), *named(value[name], join(key, name)))]
    return []


@given(st.lists(STATEMENTS, max_size=12))
def test_each_statement_is_on_its_own_line(statements: list[str]) -> None:
    """Statements are added one by one where the reader takes them: the new keys are on the line that came last."""
    text, known = "", set[str]()
    for statement in statements:
        longer = f"{text}{statement}\n"
        try:
            data = tomllib.loads(longer)
        except tomllib.TOMLDecodeError:
            continue
        found = lines(longer)
        here = text.count("\n") + 1
        for key in set(named(data, "")) - known:
            assert line_of(found, key) == here
        known = set(named(data, ""))
        assert {key: line for key, line in found.items() if line < here} == lines(text)
        text = longer
