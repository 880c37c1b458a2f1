"""Structuring: plain data from TOML to frozen values, strictly, with every error at once.

Nothing is converted: ``"5"`` is no number, ``true`` is not 1, and a single value is no array. Only an integer
is accepted for a number with a fraction. An unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from broker.config.toml_lines import join

MAX_INTEGER = 2**63 - 1
"""The largest integer of TOML. tomllib accepts larger ones, which neither a float nor an error message can hold."""

Path = tuple[str | int, ...]

V = TypeVar("V")


class _Wrong(ValueError):
    """A value of the wrong type; the message gives the expected one."""


@attrs.frozen
class _Problem:
    path: Path
    text: str
    missing: Any = None
    """The type of a missing value; None for any other problem."""
    unknown: bool = False
    """True for a key that there is not."""


_BLANK = {str: "", int: 0, float: 0.0, bool: False}
_WANTED = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
_GIVEN = {
    str: "a string",
    int: "an integer",
    float: "a number with a fraction",
    bool: "a boolean",
    list: "an array",
    dict: "a table",
}


def structure(
    data: dict[str, Any], values: type[V], removed: Callable[[str], str | None] = lambda key: None
) -> tuple[V, list[tuple[str, str]]]:
    """Return the ``values`` that ``data`` describes, and its problems as pairs of dotted key and text.

    A wrong value is replaced by its default, so that the rest can still be checked. ``data`` is consumed. ``removed``
    returns the text for a key that former versions had, None for any other.
    """
    problems = _mended(data, values)
    # A required value of the wrong type was removed, and now is missing: that is no second error. Nor is a value that a
    # placeholder lacks.
    while _mended(data, values):
        pass
    wrong = [(_dotted(problem.path), problem) for problem in problems]
    return _CONVERTER.structure(data, values), [
        (key, (removed(key) if problem.unknown else None) or problem.text) for key, problem in wrong
    ]


def _mended(data: dict[str, Any], values: type) -> list[_Problem]:
    """Return the problems of ``data``, which is changed so that it has none."""
    try:
        _CONVERTER.structure(data, values)
    except (ClassValidationError, IterableValidationError) as error:
        problems = list(_problems(error, ()))
        for problem in problems:
            _mend(data, problem)
        return problems
    return []


def _dotted(path: Path) -> str:
    key = ""
    for part in path:
        key = join(key, part)
    return key


def _mend(data: Any, problem: _Problem) -> None:
    """Remove the innermost named value of the problem, or insert the missing one."""
    path = problem.path
    while isinstance(path[-1], int):
        path = path[:-1]
    for part in path[:-1]:
        if isinstance(part, str) and part not in data:
            return
        data = data[part]
    if problem.missing is not None:
        data[path[-1]] = _blank(problem.missing)
    else:
        data.pop(path[-1], None)


def _blank(type_: Any) -> Any:
    """Return a placeholder for a missing required value, so that the rest can be checked."""
    if _is_a(type_, Literal):
        return get_args(type_)[0]
    return {} if attrs.has(type_) else _BLANK.get(type_, [])


def _problems(error: BaseException, path: Path, type_: Any = None) -> Iterator[_Problem]:
    if isinstance(error, ClassValidationError):
        named, other = error.group_exceptions()
        for inner, member in named:
            yield from _problems(inner, (*path, member.name), member.type)
        for inner in other:
            yield from _problems(inner, path)
    elif isinstance(error, IterableValidationError):
        for inner, element in error.group_exceptions()[0]:
            yield from _problems(inner, (*path, element.index))
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(error.cl)]
        for name in sorted(error.extra_fields):
            near = get_close_matches(name, known, 1)
            text = "unknown key" + (f"; did you mean {near[0]!r}?" if near else "")
            yield _Problem((*path, name), text, unknown=True)
    elif isinstance(error, KeyError):
        yield _Problem(path, "is missing", missing=type_)
    elif isinstance(error, _Wrong):
        yield _Problem(path, str(error))
    else:
        raise error


def _wrong(wanted: str, value: object) -> _Wrong:
    return _Wrong(f"must be {wanted}, not {_GIVEN.get(type(value), 'a date or time')}")


def _plain(value: Any, type_: type) -> Any:
    if type(value) is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise _Wrong("is too large a number")
    if type(value) is type_:
        return value
    if type_ is float and type(value) is int:
        return float(value)
    raise _wrong(_WANTED[type_], value)


def _literal(value: Any, type_: Any) -> Any:
    allowed = get_args(type_)
    choices = " or ".join(f'"{choice}"' for choice in allowed)
    if not isinstance(value, str):
        raise _wrong(choices, value)
    if value not in allowed:
        near = get_close_matches(value, allowed, 1)
        raise _Wrong(f"must be {choices}" + (f'; did you mean "{near[0]}"?' if near else ""))
    return value


def _tuple(value: Any, type_: Any) -> tuple[Any, ...]:
    element = get_args(type_)[0]
    if isinstance(value, dict) and attrs.has(element):
        raise _Wrong("must be an array of tables: write its header with two brackets, [[...]]")
    if not isinstance(value, list):
        raise _wrong("an array", value)
    done, errors = [], []
    for index, item in enumerate(value):
        try:
            done.append(_CONVERTER.structure(item, element))
        except Exception as error:
            error.add_note(IterableValidationNote(f"element {index}", index, element))
            errors.append(error)
    if errors:
        raise IterableValidationError("wrong elements", errors, type_)
    return tuple(done)


def _table(type_: type) -> Callable[[Any, Any], Any]:
    members: Callable[[Any, Any], Any] = make_dict_structure_fn(
        type_, _CONVERTER, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
    )

    def structured(value: Any, type_: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("a table", value)
        return members(value, type_)

    return structured


def _is_a(type_: Any, form: object) -> bool:
    origin: object = get_origin(type_)
    return origin is form


_CONVERTER = Converter(detailed_validation=True, forbid_extra_keys=True)
for _type in _WANTED:
    _CONVERTER.register_structure_hook(_type, _plain)
_CONVERTER.register_structure_hook_func(lambda type_: _is_a(type_, Literal), _literal)
_CONVERTER.register_structure_hook_func(lambda type_: _is_a(type_, tuple), _tuple)
_CONVERTER.register_structure_hook_factory(attrs.has, _table)
