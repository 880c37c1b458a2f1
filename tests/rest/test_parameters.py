"""Conversion of queries and bodies into the classes of endpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import attrs
import pytest
from msgspec import Meta

from broker.rest.http_endpoint import convert_body, convert_query
from broker.rest.problem import Problem


@attrs.frozen
class Query:
    pattern: str = "*"
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    where: tuple[str, ...] = ()
    near: Literal["load"] | None = None
    wait: float = 0.0


@attrs.frozen
class Body:
    hostport: str
    load: Annotated[float, Meta(ge=0)] | None = None
    info: dict[str, Any] | None = None


def test_defaults_and_values() -> None:
    assert convert_query(Query, {}) == Query()
    given = {"limit": ["7"], "where": ["a=1", "b=2"], "near": ["load"], "wait": ["1.5"], "pattern": ["null"]}
    assert convert_query(Query, given) == Query("null", 7, ("a=1", "b=2"), "load", 1.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"limits": ["1"]}, "unknown parameter 'limits'; known: pattern, limit"),
        ({"limit": ["1", "2"]}, "limit is given more than once"),
        ({"limit": ["11"]}, "limit"),
        ({"limit": ["x"]}, "limit"),
        ({"near": ["far"]}, "near"),
        ({"wait": ["nan"]}, "wait must be a finite number"),
        ({"wait": ["inf"]}, "wait must be a finite number"),
    ],
)
def test_wrong_parameters_are_named(given: dict[str, list[str]], words: str) -> None:
    with pytest.raises(Problem, match=words) as caught:
        convert_query(Query, given)
    assert caught.value.status == 400


def test_a_body_is_an_object_of_json() -> None:
    assert convert_body(Body, b'{"hostport":"h:1","load":2,"info":{"a":[1]}}', None) == Body("h:1", 2.0, {"a": [1]})
    assert convert_body(None, b"", None) is None


@pytest.mark.parametrize(
    ("given", "content_type", "status"),
    [
        (b"", None, 400),
        (b"{}", None, 400),
        (b"[]", None, 400),
        (b"{", None, 400),
        (b"\xff", None, 400),
        (b"[" * 100_000, None, 400),
        (b'{"hostport":1}', None, 400),
        (b'{"hostport":"h","load":"1"}', None, 400),
        (b'{"hostport":"h","load":-1}', None, 400),
        (b'{"hostport":"h","load":1e999}', None, 400),
        (b'{"hostport":"h","other":1}', None, 400),
        (b'{"hostport":"h"}', "multipart/form-data; boundary=x", 415),
    ],
)
def test_wrong_bodies_are_problems(given: bytes, content_type: str | None, status: int) -> None:
    with pytest.raises(Problem) as caught:
        convert_body(Body, given, content_type)
    assert caught.value.status == status


def test_an_endpoint_without_a_body_refuses_one() -> None:
    with pytest.raises(Problem):
        convert_body(None, b"{}", None)
