"""Errors of values as sentences."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import attrs
import msgspec
import pytest
from msgspec import Meta

from broker.validation import sentence


@attrs.frozen
class Inner:
    port: Annotated[int, Meta(ge=1, le=9)]


@attrs.frozen
class Value:
    name: Annotated[str, Meta(min_length=1, max_length=3)]
    level: Literal["low", "high"] | None = None
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name is missing"),
        ({"name": 1}, "name must be text, not a whole number"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "abcd"}, "name must have at most 3 characters"),
        ({"name": "a", "level": "loud"}, "level cannot be 'loud'"),
        ({"name": "a", "inner": {}}, "inner.port is missing"),
        ({"name": "a", "inner": {"port": 0}}, "inner.port must be at least 1"),
        ({"name": "a", "inner": {"port": 10}}, "inner.port must be at most 9"),
        ({"name": "a", "inner": {"port": "x"}}, "inner.port must be a whole number, not text"),
        ([], "the value must be an object, not a list"),
    ],
)
def test_an_error_is_a_sentence(given: Any, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(given, Value)
    assert sentence(error.value) == said
