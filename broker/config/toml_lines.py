"""TOML text: the line numbers of its keys, which tomllib does not give, and values as they are written.

The text must be valid: the scanner locates keys and checks nothing.

Rules:
- A key has the line where it begins; a table that of its first header, or of the first key that implies it.
- The content of an inline table or an array has the line of the key that it belongs to.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

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
    except ValueError:
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
