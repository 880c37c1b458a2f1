"""Texts of servers, made harmless for terminals.

A control character may move the cursor, rename the window or type into the shell, and an override of the direction
hides what a text says. Both are shown as escapes instead.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls of C0 and C1, invisible characters, overrides of the direction, line separators, lone surrogates, tags."""

_IN_JSON = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", ""))


def clean(text: str) -> str:
    """Return a text in one line with its unprintable characters as escapes of Python: ``\\x1b``."""
    return _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text)


def clean_json(text: str) -> str:
    """Return encoded JSON with its unprintable characters as escapes of JSON; its line ends and its value stay."""
    return _IN_JSON.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
