"""Declaration of the keys of the configuration, and the texts that are derived from a declaration.

A table of the file is a frozen attrs class, and each of its fields is declared by `key`; the annotation is the type.
The functions here derive from that: the checks of single keys, the values with the secrets of files, and the keys that
a reload applies. `broker.config.document` derives the example file and the tables of the documentation.

One table of the configuration, as the component that it configures describes it.

A section is the whole configuration of a wire (or of another component): its frozen values with
their defaults, its checks, the places where it listens, what ``--check`` prints, the keys that a reload may change, and
its part of the example file. `broker.config.load` puts the sections together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

import attrs

from broker.config import files, key_checks
from broker.config.endpoint import BadEndpoint, Endpoint
from broker.config.files import Named
from broker.config.key_checks import Problem

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
    - ``secret_file``: the content of the file at the path is a secret.
    - ``holds``: the value is the path of a file that has the value of the key of that name; ``reader`` reads it.
    - ``example``: the value in the example file, where there is no default, or one without meaning.
    """

    doc: str = ""
    unit: str = ""
    within: tuple[float, float] | None = None
    check: Check | None = None
    reload: bool = False
    replaceable: str = ""
    secret: bool = False
    path: bool = False
    secret_file: bool = False
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
    secret_file: bool = False,
    holds: str = "",
    reader: Callable[[Path], str] = files.secret,
    example: Any = None,
) -> T:
    """Declare a key; `Key` has the meaning of the parameters."""
    declaration = Key(doc, unit, within, check, reload, replaceable, secret, path, secret_file, holds, reader, example)
    field: Any = attrs.field(default=default, repr=not secret, metadata={_DECLARATION: declaration})
    return field  # type: ignore[no-any-return]


def seconds_key(default: T, doc: str, within: tuple[float, float] | None = None, check: Check | None = None) -> T:
    """Declare a time that a reload applies."""
    return key(default, doc, unit="s", within=within, check=check, reload=True)


def bytes_key(default: T, doc: str, within: tuple[float, float] | None = None, check: Check | None = None) -> T:
    """Declare a size that a reload applies."""
    return key(default, doc, unit="bytes", within=within, check=check, reload=True)


def curve_key(doc: str) -> str | None:
    """Declare the secret key of a ROUTER, without which its connections are not encrypted."""
    return key(None, doc, check=key_checks.curve, secret=True, example="change.me." * 4)


def curve_key_file() -> str | None:
    """Declare the file of ``secret_key``."""
    return key(
        None,
        "File that begins with the secret key, relative to this file.",
        holds="secret_key",
        reader=files.curve_secret,
        example="broker.private",
    )


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
    declaration = field.metadata.get(_DECLARATION) or Key()
    return Declared(
        field.name,
        type_,
        field.default,
        declaration,
        kind if inner is not type_ else None,
        kind if inner is type_ else None,
    )


def problems(here: str, values: attrs.AttrsInstance) -> Iterator[Problem]:
    """Yield the problems of the single keys of a table, then of its keys together, by its method ``problems``.

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


def _single(here: str, value: Any, declared_key: Declared) -> Iterator[Problem]:
    if declared_key.entry is not None:
        for index, entry in enumerate(value):
            yield from problems(f"{here}[{index}]", entry)
    elif declared_key.table is not None:
        yield from problems(here, value)
    if value is None:
        return
    if declared_key.key.within is not None:
        yield from key_checks.in_range(here, value, *declared_key.key.within)
    if declared_key.key.path:
        yield from key_checks.path(here, value)
    if declared_key.key.check is not None:
        yield from declared_key.key.check(here, value)


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


def secret_files(table: type[attrs.AttrsInstance], here: str) -> Iterator[str]:
    """Yield the dotted keys of a table that name files with secrets; ``here`` is that of the table."""
    for each in declared(table):
        inner = each.entry or each.table
        if inner is not None:
            yield from secret_files(inner, f"{here}.{each.name}")
        elif each.key.holds or each.key.secret_file:
            yield f"{here}.{each.name}"


def is_named(entry: type[attrs.AttrsInstance]) -> bool:
    """Return True for entries of an array that are identified by their ``name``, not by their order."""
    return hasattr(attrs.fields(entry), "name")


Resolves = Callable[[str], bool]
"""Returns True if this machine resolves a host name. It blocks."""


@attrs.frozen
class Binding:
    """A socket that a component listens on.

    ``key`` is the dotted key of its address in the configuration, ``title`` the name of the listener in logs and in
    the state of the daemon. Several sockets of one title are opened and closed together. A ``required`` listener
    fails the start when it cannot be opened. ``datagrams``: UDP instead of a stream. ``members``: its peers are other
    brokers of the cluster, which have keys of their own, and no users.
    """

    key: str
    title: str
    where: Endpoint
    required: bool = False
    datagrams: bool = False
    members: bool = False

    def overlaps(self, other: Binding) -> bool:
        """Return True if the two cannot both be bound."""
        return self.datagrams == other.datagrams and self.where.overlaps(other.where)


@attrs.frozen
class PortOption:
    """A command-line option that moves the component to another port on 127.0.0.1, or switches it off.

    ``use`` returns the values with that port; None stands for "off". It raises `ValueError` with a text where the
    configuration file leaves no room for the option.
    """

    name: str
    help: str
    use: Callable[[Any, int | None], Any]


@attrs.frozen
class Settings:
    """The base class of a table's values: the methods have the rules beyond the declarations of single keys."""

    def normal(self) -> Self:
        """Return the values in the form in which they are checked and shown."""
        return self

    def problems(self, here: str) -> Iterable[Problem]:
        """Return the problems of valid keys together; ``here`` is the dotted key of the table."""
        return ()

    def bindings(self) -> Iterable[Binding]:
        """Return the sockets of an enabled component. Raises `BadEndpoint` where an endpoint is none."""
        return ()

    def summary(self) -> Iterable[str]:
        """Return the lines of ``--check``. The values are valid."""
        return ()

    def warnings(self, resolves: Resolves) -> Iterable[str]:
        """Return warnings, a sentence each. The values are valid."""
        return ()


S = TypeVar("S", bound=Settings)


def moved(endpoint: str, **others: Any) -> Callable[[Any, int | None], Any]:
    """Return the function of a `PortOption` that puts the port into ``endpoint``, and gives ``others`` their values."""

    def use(values: Any, port: int | None) -> Any:
        if port is None:
            return attrs.evolve(values, enabled=False)
        return attrs.evolve(values, enabled=True, endpoint=endpoint.format(port), **others)

    return use


@attrs.frozen(eq=False)
class Section(Generic[S]):
    """A table of the configuration file, whose keys are declared by `broker.config.key.key`.

    - ``name``: the name of the table, and of the attribute of the configuration.
    - ``default``: its value where the file has no such table.
    - ``option``: the command-line option, if there is one.
    """

    name: str
    default: S
    option: PortOption | None = None

    @property
    def values(self) -> type[S]:
        """The class that the table becomes."""
        return type(self.default)

    def problems(self, values: S) -> Iterable[Problem]:
        """Return all that is wrong with valid types, by dotted keys from the root."""
        return problems(self.name, values)

    def bindings(self, values: S) -> Iterator[Binding]:
        """Yield the sockets of an enabled component; none where the endpoint is none, which is a problem of its key."""
        with suppress(BadEndpoint):
            yield from values.bindings()

    def read(self, values: S, named: Named) -> S:
        """Return the values with the secrets of the files that they name, and with absolute paths."""
        return read(self.name, values.normal(), named)
