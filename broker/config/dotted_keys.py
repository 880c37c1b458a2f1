"""Dotted keys for display: ``elko.listeners[0].allow``, ``launchers."odd key"``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

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
