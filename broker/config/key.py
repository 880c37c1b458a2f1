"""Declaration of the keys of the configuration, and what is derived from a declaration.

A table of the file is a frozen attrs class, and each of its fields is declared by `key`; the annotation is the type.
The functions here derive from that: the checks of single keys, the values with the secrets of files, and the keys that
a reload applies. `broker.config.document` derives the example file and the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import attrs

from broker.config import checks, files
from broker.config.errors import Problem

T = TypeVar("T")
A = TypeVar("A", bound=attrs.AttrsInstance)

Check = Callable[[str, Any], Iterable[Problem]]
"""A function of a dotted key and its value that returns the problems of the value."""

_DECLARATION = "key"


@attrs.frozen
class Key:
    """The declaration of a key.

    - ``doc``: the meaning, in sentences; the description of an array of tables is the docstring of their class.
    - ``unit``: of a number: ``s``, ``bytes``.
    - ``within``: the minimum and the maximum of a number.
    - ``check``: the other checks of the value alone. It is not called for a key without a value.
    - ``reload``: a reload applies another value, and of an array of tables other entries.
    - ``replaceable``: a reload applies another value in the place of one, but needs a restart where there was none
      before, or is none now: the reason, for operators.
    - ``secret``: the value is not shown.
    - ``path``: the value is a path, which becomes absolute; it is relative to the configuration file.
    - ``holds``: the value is the path of a file that has the value of the key of that name; ``reader`` reads it.
    - ``example``: the value in the example file, where the default is none, or says nothing.
    """

    doc: str = ""
    unit: str = ""
    within: tuple[float, float] | None = None
    check: Check | None = None
    reload: bool = False
    replaceable: str = ""
    secret: bool = False
    path: bool = False
    holds: str = ""
    reader: Callable[[Path], str] = files.secret
    example: Any = None


@attrs.frozen
class Declared:
    """A key of a table: its name, type, default and declaration.

    ``entry`` is the class of the tables of an array, ``table`` that of a table inside this one; None for other keys.
    """

    name: str
    type: Any
    default: Any
    key: Key
    entry: type[attrs.AttrsInstance] | None
    table: type[attrs.AttrsInstance] | None


REQUIRED: Any = attrs.NOTHING
"""The default of a key that the file must give."""


def key(
    default: T,
    doc: str = "",
    *,
    unit: str = "",
    within: tuple[float, float] | None = None,
    check: Check | None = None,
    reload: bool = False,
    replaceable: str = "",
    secret: bool = False,
    path: bool = False,
    holds: str = "",
    reader: Callable[[Path], str] = files.secret,
    example: Any = None,
) -> T:
    """Declare a key; `Key` has the meaning of the parameters."""
    told = Key(doc, unit, within, check, reload, replaceable, secret, path, holds, reader, example)
    field: Any = attrs.field(default=default, repr=not secret, metadata={_DECLARATION: told})
    return field  # type: ignore[no-any-return]


def declared(table: type[attrs.AttrsInstance]) -> tuple[Declared, ...]:
    """Return the keys of a table. Those that the class has in ``KEYS_LAST`` come last."""
    known = _KNOWN.get(table)
    if known is None:
        last = getattr(table, "KEYS_LAST", ())
        fields = sorted(attrs.fields(table), key=lambda field: field.name in last)
        hints = get_type_hints(table)
        known = _KNOWN[table] = tuple(_declared(field, hints[field.name]) for field in fields)
    return known


_KNOWN: dict[type, tuple[Declared, ...]] = {}
"""No `functools.cache`: mypy takes a class with attributes for an argument without a hash."""


def _declared(field: attrs.Attribute[Any], type_: Any) -> Declared:
    inner = get_args(type_)[0] if get_origin(type_) is tuple else type_
    kind = inner if isinstance(inner, type) and attrs.has(inner) else None
    told = field.metadata.get(_DECLARATION) or Key()
    return Declared(
        field.name, type_, field.default, told, kind if inner is not type_ else None, kind if inner is type_ else None
    )


def problems(here: str, values: attrs.AttrsInstance) -> Iterator[Problem]:
    """Yield what is wrong with the single keys of a table, then with its keys together, by its method ``problems``.

    A key that is wrong by itself is not compared with others.
    """
    wrong = set()
    for each in declared(type(values)):
        for problem in _single(f"{here}.{each.name}", getattr(values, each.name), each):
            wrong.add(problem.key)
            yield problem
    together = getattr(values, "problems", None)
    if together is not None:
        yield from (problem for problem in together(here) if not wrong.intersection((problem.key, problem.other)))


def _single(here: str, value: Any, told: Declared) -> Iterator[Problem]:
    if told.entry is not None:
        for index, entry in enumerate(value):
            yield from problems(f"{here}[{index}]", entry)
    elif told.table is not None:
        yield from problems(here, value)
    if value is None:
        return
    if told.key.within is not None:
        yield from checks.in_range(here, value, *told.key.within)
    if told.key.path:
        yield from checks.path(here, value)
    if told.key.check is not None:
        yield from told.key.check(here, value)


def read(here: str, values: A, named: files.Named) -> A:
    """Return the values of a table with absolute paths, and with the secrets of the files that they name."""
    changed: dict[str, Any] = {}
    for each in declared(type(values)):
        value = getattr(values, each.name)
        place = f"{here}.{each.name}"
        if each.entry is not None:
            changed[each.name] = tuple(read(f"{place}[{index}]", entry, named) for index, entry in enumerate(value))
        elif each.key.path:
            changed[each.name] = named.absolute(value)
        elif each.key.holds:
            held = each.key.holds
            changed[held] = named.secret(place, getattr(values, held), value, each.key.reader)
    evolved: A = attrs.evolve(values, **changed)  # type: ignore[misc]
    return evolved


def reloadable_keys(table: type[attrs.AttrsInstance]) -> Iterator[str]:
    """Yield the keys that a reload applies, relative to the table; ``[*]`` is any name, ``*`` any rest."""
    for each in declared(table):
        if each.entry is not None and is_named(each.entry):
            if each.key.reload:
                yield f"{each.name}*"
            else:
                yield from (f"{each.name}[*].{key}" for key in reloadable_keys(each.entry))
        elif each.table is not None:
            yield from (f"{each.name}.{key}" for key in reloadable_keys(each.table))
        elif each.key.reload:
            yield each.name


def is_named(entry: type[attrs.AttrsInstance]) -> bool:
    """Return True for entries of an array that are identified by their ``name``, not by their order."""
    return hasattr(attrs.fields(entry), "name")
