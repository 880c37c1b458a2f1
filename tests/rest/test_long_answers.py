"""JSON in steps: the same text as in one, with bounded work in each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.rest.messages import PIECE, answer_in_steps, in_steps

LONG = 3 * PIECE + 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        {"a": [1, "b", {"c": None}], "d": []},
        {"topic": "t", "text": "\1" * LONG},
        {"text": "ü€😀" * LONG, "headers": {"a": '"' * LONG}},
        {"base64": bytes(LONG)},
        [{"text": "x" * (PIECE - 1), "size": 1}] * 20,
    ],
)
def test_json_in_steps_is_that_of_one_step(value: Any) -> None:
    pieces = list(in_steps(value))
    assert b"".join(pieces) == msgspec.json.encode(value)
    assert max(map(len, pieces)) <= 8 * PIECE, "at most six characters for each one"


def test_a_short_answer_is_whole_and_a_long_one_is_in_pieces() -> None:
    assert answer_in_steps({"text": "a"}, 201).body == b'{"text":"a"}'
    body = answer_in_steps({"text": "a" * LONG}).body
    assert not isinstance(body, bytes)
    assert b"".join(body) == b'{"text":"%b"}' % (b"a" * LONG)
