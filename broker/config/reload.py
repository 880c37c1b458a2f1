"""Comparison of two configurations: the keys that differ, and those of them that need a restart.

Arrays of tables that a section lists as ``named`` (listeners, launchers) are compared by name, and shown so:
``elko.listeners[main].allow``. One that came or went is shown without a key of its own: ``elko.listeners[lan]``. Other
arrays depend on their order: they are compared, and shown, as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from broker.config.schema import Config, Schema


def changes(old: Config, new: Config, schema: Schema) -> list[str]:
    """Return the dotted keys whose values differ, in the order of the configuration. No value is shown."""
    return list(_changes("", old, new, _named(schema)))


def refused(old: Config, new: Config, schema: Schema) -> list[str]:
    """Return those of `changes` that need a restart."""
    pattern = _pattern(reloadable(schema))
    return [key for key in changes(old, new, schema) if not pattern.fullmatch(key)]


def reloadable(schema: Schema) -> list[str]:
    """Return the keys that take effect at a reload; ``[*]`` is any name, ``*`` any rest. All others need a restart."""
    return [f"{section.name}.{key}" for section in schema.sections for key in section.reloadable]


def _pattern(keys: Iterable[str]) -> re.Pattern[str]:
    each = (re.escape(key).replace(r"\[\*\]", r"\[[^\]]*\]").replace(r"\*", ".*") for key in keys)
    return re.compile("|".join(each), re.DOTALL)


def _named(schema: Schema) -> frozenset[str]:
    return frozenset(f"{section.name}.{key}" for section in schema.sections for key in section.named)


def _changes(here: str, old: Any, new: Any, named: frozenset[str]) -> Iterator[str]:
    if old == new:
        return
    if attrs.has(type(old)):
        for field in attrs.fields(type(old)):
            key = f"{here}.{field.name}" if here else field.name
            yield from _changes(key, getattr(old, field.name), getattr(new, field.name), named)
    elif here in named:
        yield from _named_changes(here, old, new, named)
    else:
        yield here


def _named_changes(here: str, old: Sequence[Any], new: Sequence[Any], named: frozenset[str]) -> Iterator[str]:
    before: Mapping[str, Any] = {each.name: each for each in old}
    after: Mapping[str, Any] = {each.name: each for each in new}
    for name in {**before, **after}:
        key = f"{here}[{name}]"
        if name in before and name in after:
            yield from _changes(key, before[name], after[name], named)
        else:
            yield key
