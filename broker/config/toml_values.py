"""TOML: the lines of its keys, and its tables as values of the classes that declare them.

Structuring: plain data from TOML to frozen values, strictly, with every error at once.

Nothing is converted: ``"5"`` is no number, ``true`` is not 1, and a single value is no array. Only an integer
is accepted for a number with a fraction. An unknown key is an error.

TOML text: the line numbers of its keys, which tomllib does not give, and values as they are written.

The text must be valid: the scanner locates keys and checks nothing.

Rules:
- A key has the line where it begins; a table that of its first header, or of the first key that implies it.
- The content of an inline table or an array has the line of the key that it belongs to.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn

# Dotted keys for display: ``elko.listeners[0].allow``, ``launchers."odd key"``.

MAX_SHOWN = 80
"""Characters of a name that are displayed: names of the configuration have fewer than 30."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LAST = re.compile(r'(?:\.?(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*")|\[[^\]]*\])\Z', re.DOTALL)


def join(key: str, part: str | int) -> str:
    """Return the key of a member of ``key``: a name in a table, or an index in an array. The root is ``""``."""
    if isinstance(part, int):
        return f"{key}[{part}]"
    if len(part) > MAX_SHOWN:
        part = part[:MAX_SHOWN] + "..."
    name = part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False)
    return f"{key}.{name}" if key else name


def parent(key: str) -> str:
    """Return the key that contains ``key``; ``""`` for a name at the top of the file."""
    last = _LAST.search(key)
    return "" if last is None else key[: last.start()]


def table(key: str) -> str:
    """Return the table of ``key``, or of the array that contains it."""
    while key.endswith("]"):
        key = parent(key)
    return parent(key)


def pattern_of(keys: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of dotted keys; ``[*]`` in them is any index or name, ``*`` any rest."""
    each = (re.escape(key).replace(r"\[\*\]", r"\[[^\]]*\]").replace(r"\*", ".*") for key in keys)
    return re.compile("|".join(each), re.DOTALL)


MAX_DEPTH = 8
"""Parts of a key that are recorded: the deepest key of the configuration has four, ``elko.listeners.limits.waits``."""

_STRING = r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'"
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_HEADER = re.compile(rf"(\[\[?)((?:{_STRING}|[^\"'\]\n])*)\]\]?")
_KEY = re.compile(rf"((?:{_STRING}|[^\"'=\n])*)=")
_VALUE = re.compile(
    r'"""(?:\\.|(?!""")[^\\])*"{3,5}'
    r"|'''(?:(?!''').)*'{3,5}"
    rf"|{_STRING}"
    r"|#[^\n]*"
    r"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>\n)"
    r"|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)


@attrs.frozen
class Statement:
    """A header, or a key with its value, in a text with newlines only.

    ``names`` are the dotted keys of the tables that it implies, and at last its own. ``start`` and ``end`` are its
    first character and the one after its line.
    """

    names: tuple[str, ...]
    line: int
    start: int
    end: int
    header: bool


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a valid TOML text without carriage returns."""
    arrays: dict[str, int] = {}
    here = ""
    at, line, counted = 0, 1, 0
    while True:
        at = _skip(_BLANK, text, at)
        line, counted = line + text.count("\n", counted, at), at
        header, key = _HEADER.match(text, at), _KEY.match(text, at)
        if header is not None:
            names = _opened(_parts(header[2]), header[1] == "[[", arrays)
            here = names[-1] if names else ""
            end = text.find("\n", header.end()) + 1 or len(text)
        elif key is not None:
            name, names = here, []
            for part in _parts(key[1]):
                name = join(name, part)
                names.append(name)
            end = _after_value(text, key.end())
        else:
            return
        yield Statement(tuple(names), line, at, end, header is not None)
        at = end


def lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of every key and table of a valid TOML text."""
    found: dict[str, int] = {}
    for each in statements(text.replace("\r\n", "\n")):
        for name in each.names:
            found.setdefault(name, each.line)
    return found


def line_of(found: Mapping[str, int], key: str) -> int | None:
    """Return the line of ``key``, or of the nearest table or array around it that has one."""
    while key:
        if key in found:
            return found[key]
        key = parent(key)
    return None


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _parts(key: str) -> list[str]:
    """Return the parts of a dotted key; tomllib resolves quotes and escapes."""
    parts: list[str] = []
    try:
        table: object = tomllib.loads(f"{key.strip()} = 0")
    except (ValueError, RecursionError):  # from Python 3.14 on, a key has at most 1,000 parts
        return parts
    while isinstance(table, dict) and len(parts) < MAX_DEPTH:
        ((name, table),) = table.items()
        parts.append(name)
    return parts


def _opened(parts: list[str], element: bool, arrays: dict[str, int]) -> list[str]:
    """Return the keys of the tables that a header opens; ``element``: the header adds one to an array of tables."""
    here, names = "", []
    for number, part in enumerate(parts, 1):
        here = join(here, part)
        names.append(here)
        if element and number == len(parts):
            arrays[here] = arrays.get(here, 0) + 1
        if here in arrays:
            here = join(here, arrays[here] - 1)
            names.append(here)
    return names


def _after_value(text: str, at: int) -> int:
    depth = 0
    while (token := _VALUE.match(text, at)) is not None:
        at = token.end()
        if token.lastgroup == "open":
            depth += 1
        elif token.lastgroup == "close":
            depth -= 1
        elif token.lastgroup == "end" and depth <= 0:
            return at
    return len(text)


def toml(value: Any) -> str:
    """Return a text, a number, a truth value or a sequence of them as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A string of JSON is one of TOML, in which DEL is escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return str(value)


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


_BLANK_VALUES = {str: "", int: 0, float: 0.0, bool: False}
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
    return {} if attrs.has(type_) else _BLANK_VALUES.get(type_, [])


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
