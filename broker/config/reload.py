"""Comparison of two configurations: the keys that differ, those of them that a reload applies, and the merged result.

Arrays of tables with a key ``name`` (listeners, launchers) are compared by name, and shown so:
``elko.listeners[main].allow``. One that came or went is shown without a key of its own: ``elko.listeners[lan]``. Other
arrays depend on their order: they are compared, and shown, as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from broker.config.key import declared, is_named, reloadable_keys
from broker.config.load import Config, Schema
from broker.config.toml_values import join, pattern_of

HIDDEN = "(hidden)"
NOT_SET = "(not set)"
ABSENT = "(absent)"
"""Texts in the place of a value: a secret, a key without a value, an entry that only the other configuration has."""


@attrs.frozen
class Difference:
    """A key whose values differ, with the values as texts: see `_shown`.

    ``reloadable``: a reload applies it. ``why`` is the reason why it does not, if a reload applies other values of the
    key.
    """

    key: str
    old: str
    new: str
    reloadable: bool
    why: str = ""


@attrs.frozen
class Setting:
    """A key with its value as a text: see `_shown`. ``reloadable``: a reload applies a changed value."""

    key: str
    value: str
    reloadable: bool


def differences(old: Config, new: Config, schema: Schema) -> list[Difference]:
    """Return the keys whose values differ, in the order of the configuration. Secrets are hidden."""
    table = _Table.of(schema)
    found = []
    for key, before, after, secret in table.walk("", old, new):
        applies = table.applies(key, before, after)
        why = "" if applies else table.replaceable.get(key, "")
        found.append(Difference(key, _shown(before, secret), _shown(after, secret), applies, why))
    return found


def changes(old: Config, new: Config, schema: Schema) -> list[str]:
    """Return the dotted keys whose values differ, in the order of the configuration."""
    return [each.key for each in differences(old, new, schema)]


def refused(old: Config, new: Config, schema: Schema) -> list[str]:
    """Return those of `changes` that need a restart."""
    return [each.key for each in differences(old, new, schema) if not each.reloadable]


def merged(old: Config, new: Config, schema: Schema) -> Config:
    """Return ``new`` with the values of ``old`` for all keys that need a restart. It may have problems of its own."""
    result: Config = _Table.of(schema).merge("", old, new)
    return result


def settings(config: Config, schema: Schema) -> list[Setting]:
    """Return all keys with their values, in the order of the configuration. Secrets are hidden."""
    table = _Table.of(schema)
    return [
        Setting(key, _shown(value, secret), table.applies(key, value, value))
        for key, value, secret in table.leaves("", config)
    ]


def reloadable(schema: Schema) -> list[str]:
    """Return the keys that take effect at a reload; ``[*]`` is any name, ``*`` any rest. All others need a restart."""
    return [f"{section.name}.{key}" for section in schema.sections for key in reloadable_keys(section.values)]


@attrs.frozen
class _Table:
    """The reloadable keys, as a pattern; those whose value is only replaced, each with the reason; and the arrays
    compared by name."""

    pattern: re.Pattern[str]
    replaceable: Mapping[str, str]
    named: frozenset[str]

    @classmethod
    def of(cls, schema: Schema) -> _Table:
        found = [
            (f"{each.name}.{declared_key.name}", declared_key)
            for each in schema.sections
            for declared_key in declared(each.values)
        ]
        named = frozenset(
            key for key, declared_key in found if declared_key.entry is not None and is_named(declared_key.entry)
        )
        replaceable = {key: declared_key.key.replaceable for key, declared_key in found if declared_key.key.replaceable}
        return cls(pattern_of(reloadable(schema)), replaceable, named)

    def reloadable(self, key: str) -> bool:
        return self.pattern.fullmatch(key) is not None

    def applies(self, key: str, old: Any, new: Any) -> bool:
        """Return True if a reload applies the new value of a key in the place of the old one."""
        if key in self.replaceable:
            return old is not None and new is not None
        return self.reloadable(key)

    def walk(self, here: str, old: Any, new: Any, secret: bool = False) -> Iterator[tuple[str, Any, Any, bool]]:
        """Yield the keys below ``here`` that differ, with both values, and True for a secret."""
        if old == new:
            return
        if attrs.has(type(old)):
            for field in attrs.fields(type(old)):
                before, after = getattr(old, field.name), getattr(new, field.name)
                yield from self.walk(join(here, field.name), before, after, not field.repr)
        elif here in self.named:
            before, after = _by_name(old), _by_name(new)
            for name in {**before, **after}:
                key = f"{here}[{name}]"
                if name in before and name in after:
                    yield from self.walk(key, before[name], after[name])
                else:
                    yield key, before.get(name, ABSENT_ENTRY), after.get(name, ABSENT_ENTRY), False
        else:
            yield here, old, new, secret

    def merge(self, here: str, old: Any, new: Any) -> Any:
        """Return ``new``, with the values of ``old`` where a key below ``here`` needs a restart."""
        if old == new:
            return new
        if attrs.has(type(old)):
            fields = attrs.fields(type(old))
            values = {
                each.name: self.merge(join(here, each.name), getattr(old, each.name), getattr(new, each.name))
                for each in fields
            }
            return attrs.evolve(new, **values)
        if here in self.named:
            before, after = _by_name(old), _by_name(new)
            entries = [
                self.merge(f"{here}[{name}]", before[name], entry) if name in before else entry
                for name, entry in after.items()
                if name in before or self.reloadable(f"{here}[{name}]")
            ]
            kept = (name for name in before if name not in after and not self.reloadable(f"{here}[{name}]"))
            return (*entries, *(before[name] for name in kept))
        return new if self.applies(here, old, new) else old

    def leaves(self, here: str, value: Any, secret: bool = False) -> Iterator[tuple[str, Any, bool]]:
        """Yield all keys below ``here`` with their values, and True for a secret."""
        if attrs.has(type(value)):
            for field in attrs.fields(type(value)):
                yield from self.leaves(join(here, field.name), getattr(value, field.name), not field.repr)
        elif here in self.named:
            for each in value:
                yield from self.leaves(f"{here}[{each.name}]", each)
        else:
            yield here, value, secret


ABSENT_ENTRY = object()
"""The value of an entry that one configuration does not have."""


def _by_name(entries: Sequence[Any]) -> Mapping[str, Any]:
    return {each.name: each for each in entries}


def _shown(value: Any, secret: bool) -> str:
    """Return a value as it is written in the file, but a secret, which is hidden. A table is written on one line."""
    if value is ABSENT_ENTRY:
        return ABSENT
    if value is None:
        return NOT_SET
    if secret:
        return HIDDEN if value else NOT_SET
    if isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    if attrs.has(type(value)):
        fields = ((field, getattr(value, field.name)) for field in attrs.fields(type(value)))
        members = (f"{field.name} = {_shown(each, not field.repr)}" for field, each in fields if each is not None)
        return f"{{{', '.join(members)}}}"
    if isinstance(value, Iterable):
        return f"[{', '.join(_shown(each, False) for each in value)}]"
    return repr(value)
