"""Keys of former versions: each is one error that names its successor.

Users, passwords and rights at each listener are in the users file now; keys that were never set are constants.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from broker.config.toml_values import join, pattern_of, statements

OF_USERS = (
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
"""Keys that the users file replaces; ``[*]`` is any index."""

_IN_USERS_FILE = (
    "is no key any more: users and rights are in the users file (access.file). "
    "'brokerctl user import FILE' writes it from this file"
)

CONSTANTS = {
    "access.audit_files": "10 rotated files are kept",
    "cluster.gather": "it is 0.03 s",
    "cluster.load_interval": "it is 1 s",
    "dns.stalled_after": "it is 30 s",
    "http.burst": "it is 1000 connections",
    "http.kept_open": "it is 75 s",
    "http.request_within": "it is 30 s",
    "http.stalled_after": "it is 30 s",
    "http.write_buffer": "it is 4 MiB",
    "mtl.most_window": "it is 1000",
}
"""The constant by the key that it replaces."""

_PATTERN = pattern_of(OF_USERS)


def why_removed(key: str) -> str | None:
    """Return the error of a removed key; None for any other."""
    if key in CONSTANTS:
        return f"is no key any more: {CONSTANTS[key]}. Remove it"
    return _IN_USERS_FILE if is_of_users(key) else None


def is_of_users(key: str) -> bool:
    """Return True for a key that the users file replaces."""
    return _PATTERN.fullmatch(key) is not None


def without_users(text: str) -> str:
    """Return a valid TOML text without the keys that the users file replaces, and without their tables."""
    kept, at = [], 0
    text = text.replace("\r\n", "\n")
    in_their_table = False
    for each in statements(text):
        theirs = any(map(is_of_users, each.names))
        if each.header:
            in_their_table = theirs
        if theirs or in_their_table:
            kept.append(text[at : text.rfind("\n", 0, each.start) + 1])
            at = each.end
    return "".join([*kept, text[at:]])


def keys_of_users(text: str) -> list[str]:
    """Return the keys in a valid TOML text that the users file replaces, dotted."""
    return list(_keys_of_users("", tomllib.loads(text)))


def _keys_of_users(here: str, value: Any) -> Iterator[str]:
    if here and is_of_users(here):
        yield here
    elif isinstance(value, dict | list):
        for part, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _keys_of_users(join(here, part), below)
