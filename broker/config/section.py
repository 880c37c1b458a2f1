"""One table of the configuration, as the component that it configures describes it.

A section is the whole of what the configuration knows of a wire (or of another component): its frozen values with
their defaults, its checks, the places where it listens, what ``--check`` prints, the keys that a reload may change, and
its part of the example file. `broker.config.schema` puts the sections together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

import attrs

from broker.config import key
from broker.config.endpoint import BadEndpoint, Endpoint
from broker.config.files import Named
from broker.config.problem import Problem

V = TypeVar("V", bound=attrs.AttrsInstance)

Resolves = Callable[[str], bool]
"""Reports whether this machine resolves a host name. It blocks."""


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
    """A command-line option that moves the component to another port of 127.0.0.1, or switches it off.

    ``use`` returns the values with that port; None stands for "off". It raises `ValueError` with a text where the
    configuration file leaves no room for the option.
    """

    name: str
    help: str
    use: Callable[[Any, int | None], Any]


class Settings:
    """The base class of a table's values: the methods have what a declaration of single keys does not say."""

    __slots__ = ()

    def normal(self) -> Self:
        """Return the values in the form in which they are checked and shown."""
        return self

    def problems(self, here: str) -> Iterable[Problem]:
        """Return what is wrong with valid keys together; ``here`` is the dotted key of the table."""
        return ()

    def bindings(self) -> Iterable[Binding]:
        """Return the sockets of an enabled component. Raises `BadEndpoint` where an endpoint is none."""
        return ()

    def summary(self) -> Iterable[str]:
        """Return the lines of ``--check``. The values are valid."""
        return ()

    def warnings(self, resolves: Resolves) -> Iterable[str]:
        """Return what may surprise, a sentence each. The values are valid."""
        return ()


S = TypeVar("S", bound=Settings)


def moved(endpoint: str, **others: Any) -> Callable[[Any, int | None], Any]:
    """Return the function of a `PortOption` that puts the port into ``endpoint``, and gives ``others`` their values."""

    def use(values: Any, port: int | None) -> Any:
        if port is None:
            return attrs.evolve(values, enabled=False)
        return attrs.evolve(values, enabled=True, endpoint=endpoint.format(port), **others)

    return use


def section(name: str, default: S, option: PortOption | None = None) -> Section[Any]:
    """Return the section of a table whose keys are declared by `broker.config.key.key`.

    ``default`` has its values where the file has no such table; ``option`` is the command-line option, if there is one.
    """
    values: Any = type(default)

    def bindings(given: Any) -> Iterable[Binding]:
        try:
            yield from given.bindings()
        except BadEndpoint:
            return  # it is a problem of that key

    def example() -> str:
        from broker.config import document

        return document.example(name, default)  # type: ignore[arg-type]

    return Section(
        name,
        values,
        default,
        lambda given: key.problems(name, given),
        bindings,
        values.summary,
        values.warnings,
        tuple(key.reloadable(values)),
        {each.name: each.key.replaceable for each in key.declared(values) if each.key.replaceable},
        tuple(each.name for each in key.declared(values) if each.entry is not None and key.is_named(each.entry)),
        lambda given, named: key.read(name, given.normal(), named),
        option,
        example,
    )


def _nothing(values: Any) -> Iterable[Any]:
    return ()


def _no_warnings(values: Any, resolves: Resolves) -> Iterable[str]:
    return ()


def _same(values: Any, files: Named) -> Any:
    return values


@attrs.frozen(eq=False)
class Section(Generic[V]):
    """A table of the configuration file.

    - ``name``: the name of the table, and of the attribute of the configuration.
    - ``values``: the frozen attrs class that the table becomes.
    - ``default``: its value where the file has no such table.
    - ``problems``: all that is wrong with valid types, by dotted keys from the root.
    - ``bindings``: the sockets of an enabled component; none where the endpoint is no endpoint.
    - ``summary``: the lines of ``--check``; ``warnings``: what may surprise, a sentence each.
    - ``reloadable``: keys that take effect at a reload, relative to the table; ``[*]`` is any name, ``*`` any rest.
    - ``replaceable``: keys likewise whose value takes effect at a reload in the place of another one, but needs a
      restart where there was none before, or is none now; each with the reason, for operators.
    - ``named``: arrays of tables that a reload compares by their ``name``, relative to the table.
    - ``read``: the values with the secrets of the files that they name.
    - ``option``: the command-line option, if there is one.
    - ``example``: returns its part of the example file.
    """

    name: str
    values: type[V]
    default: V
    problems: Callable[[V], Iterable[Problem]] = _nothing
    bindings: Callable[[V], Iterable[Binding]] = _nothing
    summary: Callable[[V], Iterable[str]] = _nothing
    warnings: Callable[[V, Resolves], Iterable[str]] = _no_warnings
    reloadable: tuple[str, ...] = ()
    replaceable: Mapping[str, str] = attrs.field(factory=dict)
    named: tuple[str, ...] = ()
    read: Callable[[V, Named], V] = _same
    option: PortOption | None = None
    example: Callable[[], str] = str

    @property
    def is_declared(self) -> bool:
        """True if the keys are declared by `broker.config.key.key`."""
        return issubclass(self.values, Settings)
