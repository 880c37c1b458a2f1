"""Keys that former versions had for users, passwords and rights at each listener: the users file has these now."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from broker.config.keys import join, pattern_of
from broker.config.toml_lines import statements

GONE = (
    "elko.listeners[*].auth",
    "elko.listeners[*].code",
    "elko.listeners[*].code_file",
    "elko.listeners[*].offer",
    "director.listeners[*].auth",
    "director.listeners[*].code",
    "director.listeners[*].code_file",
    "mc0.auth",
    "mc0.client_keys",
    "mc0.any_key",
    "mc0.rules",
    "mtl.auth",
    "mtl.users",
    "mtl.anonymous",
    "mtl.client_keys",
    "mtl.any_key",
    "mtl.rules",
    "dbp.auth",
    "dbp.offer",
    "dns.auth",
    "http.auth",
    "http.offer",
    "console.auth",
    "console.password",
    "console.password_file",
)
"""The keys; ``[*]`` is any index."""

WHY = (
    "is no key any more: users and rights are in the users file (access.file). "
    "'brokerctl user import FILE' writes it from this file"
)
"""The error of such a key."""

_PATTERN = pattern_of(GONE)


def is_gone(key: str) -> bool:
    """Return True for such a key."""
    return _PATTERN.fullmatch(key) is not None


def without(text: str) -> str:
    """Return a valid TOML text without the statements of such keys, and without their tables."""
    kept, at = [], 0
    text = text.replace("\r\n", "\n")
    in_gone_table = False
    for each in statements(text):
        gone = any(map(is_gone, each.names))
        if each.header:
            in_gone_table = gone
        if gone or in_gone_table:
            kept.append(text[at : text.rfind("\n", 0, each.start) + 1])
            at = each.end
    return "".join([*kept, text[at:]])


def found(text: str) -> list[str]:
    """Return those of such keys that a valid TOML text has, as dotted keys."""
    return list(_found("", tomllib.loads(text)))


def _found(here: str, value: Any) -> Iterator[str]:
    if here and is_gone(here):
        yield here
    elif isinstance(value, dict | list):
        for part, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _found(join(here, part), below)
