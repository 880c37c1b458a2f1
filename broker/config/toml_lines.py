"""Line numbers of the keys of a TOML text, which tomllib does not give.

The text must be valid: the scanner locates keys and checks nothing.

Rules:
- A key has the line where it begins; a table that of its first header, or of the first key that implies it.
- The content of an inline table or an array has the line of the key that it belongs to.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from broker.config.keys import join, parent

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


def lines(text: str) -> dict[str, int]:
    """Return the line, from 1, of every key and table of a valid TOML text."""
    text = text.replace("\r\n", "\n")
    found: dict[str, int] = {}
    arrays: dict[str, int] = {}
    here = ""
    at, line, counted = 0, 1, 0
    while True:
        at = _skip(_BLANK, text, at)
        line, counted = line + text.count("\n", counted, at), at
        header, key = _HEADER.match(text, at), _KEY.match(text, at)
        if header is not None:
            here = _open(_parts(header[2]), header[1] == "[[", arrays, found, line)
            at = header.end()
        elif key is not None:
            name = here
            for part in _parts(key[1]):
                name = join(name, part)
                found.setdefault(name, line)
            at = _after_value(text, key.end())
        else:
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


def _open(parts: list[str], element: bool, arrays: dict[str, int], found: dict[str, int], line: int) -> str:
    """Return the key of the table that a header opens; ``element``: the header adds one to an array of tables."""
    here = ""
    for number, part in enumerate(parts, 1):
        here = join(here, part)
        found.setdefault(here, line)
        if element and number == len(parts):
            arrays[here] = arrays.get(here, 0) + 1
        if here in arrays:
            here = join(here, arrays[here] - 1)
            found.setdefault(here, line)
    return here


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
