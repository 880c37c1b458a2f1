"""Conversion of query parameters and JSON bodies into the frozen attrs classes of an endpoint.

Rules:
- An unknown parameter, a missing one, a value of the wrong type and a value out of bounds are a `Problem` 400, which
  names the parameter.
- A parameter may be repeated only if its type is an array.
- Query parameters are texts, and are converted; in JSON, a number in a string is an error.
- Numbers are finite: ``nan`` and ``inf`` are errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import attrs
import msgspec

from broker.core.errors import Reason
from broker.web.problem import Problem

T = TypeVar("T")

MAX_SHOWN = 100
"""Characters of a peer's text in a problem."""


def query(type_: type[T], given: Mapping[str, Sequence[str]]) -> T:
    """Return the parameters of a query. Raises `Problem` 400."""
    arrays = _fields(type_)
    values: dict[str, Any] = {}
    for name, texts in given.items():
        if name not in arrays:
            raise _unknown("parameter", name, arrays)
        if not arrays[name] and len(texts) > 1:
            raise Problem(400, f"the parameter {name} is given more than once")
        values[name] = list(texts) if arrays[name] else texts[0]
    return _converted(values, type_, strict=False)


def body(type_: type[T] | None, given: bytes, content_type: str | None) -> T | None:
    """Return the JSON body, or None for an endpoint without one. Raises `Problem` 400 or 415.

    An empty body is an empty object. The Content-Type may be missing or wrong: ``curl -d`` sends that of URL-encoded
    forms, and ``fetch`` in a browser text/plain. A page of another site may send these without being asked; its
    requests are refused by their Origin and Sec-Fetch-Site (`broker.web.sites`).
    """
    if type_ is None:
        if given:
            raise Problem(400, "this request has no body")
        return None
    media = (content_type or "").partition(";")[0].strip().lower()
    if given and media == "multipart/form-data":
        raise Problem(415, "the body must be JSON: Content-Type: application/json", Reason.SYNTAX)
    try:
        values = msgspec.json.decode(given or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", Reason.SYNTAX) from None
    if not isinstance(values, dict):
        raise Problem(400, "the body must be a JSON object", Reason.SYNTAX)
    fields = _fields(type_)
    for name in values:
        if name not in fields:
            raise _unknown("member", name, fields)
    return _converted(values, type_, strict=True)


def _read_fields(type_: Any) -> Mapping[str, bool]:
    """Return the fields of an attrs class by name, and True for those that are arrays."""
    hints = get_type_hints(type_)
    return {field.name: _is_array(hints[field.name]) for field in attrs.fields(type_)}


_fields: Callable[[Any], Mapping[str, bool]] = cache(_read_fields)


def _is_array(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (tuple, list, Sequence):
        return True
    return any(_is_array(each) for each in get_args(hint))


def _unknown(kind: str, name: str, known: Mapping[str, bool]) -> Problem:
    given = f"; known: {', '.join(known)}" if known else ""
    return Problem(400, f"unknown {kind} {name[:MAX_SHOWN]!r}{given}")


def _converted(values: dict[str, Any], type_: type[T], strict: bool) -> T:
    try:
        result = msgspec.convert(values, type_, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Problem(400, str(error).replace("`", "").replace("$.", "")) from None
    for field in attrs.fields(type_):  # type: ignore[arg-type]
        value = getattr(result, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise Problem(400, f"{field.name} must be a finite number")
    return result
