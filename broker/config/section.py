"""One table of the configuration, as the component that it configures describes it.

A section is the whole of what the configuration knows of a wire (or of another component): its frozen values with
their defaults, its checks, the places where it listens, what ``--check`` prints, the keys that a reload may change, and
its part of the example file. `broker.config.schema` puts the sections together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import attrs

from broker.config.endpoint import Endpoint
from broker.config.problem import Problem

V = TypeVar("V", bound=attrs.AttrsInstance)

Resolves = Callable[[str], bool]
"""Reports whether this machine resolves a host name. It blocks."""


@attrs.frozen
class Binding:
    """A socket that a component listens on.

    ``key`` is the dotted key of its address in the configuration, ``title`` the name of the listener in logs and in
    the state of the daemon. Several sockets of one title are opened and closed together. A ``required`` listener
    fails the start when it cannot be opened. ``datagrams``: UDP instead of a stream.
    """

    key: str
    title: str
    where: Endpoint
    required: bool = False
    datagrams: bool = False

    def overlaps(self, other: Binding) -> bool:
        """Return True if the two cannot both be bound."""
        return self.datagrams == other.datagrams and self.where.overlaps(other.where)


class Files(Protocol):
    """The files that a configuration names, relative to its own directory."""

    def secret(self, key: str, given: str | None, path: str | None, read: Callable[[Path], str] = ...) -> str | None:
        """Return ``given``, or the secret in the file ``path``, the value of ``key``. A failure is a problem of
        ``key``, and the result None."""

    def absolute(self, path: str | None) -> str | None:
        """Return the path made absolute; None and the empty path stay."""


@attrs.frozen
class PortOption:
    """A command-line option that moves the component to another port of 127.0.0.1, or switches it off.

    ``use`` returns the values with that port; None stands for "off". It raises `ValueError` with a text where the
    configuration file leaves no room for the option.
    """

    name: str
    help: str
    use: Callable[[Any, int | None], Any]


def _nothing(values: Any) -> Iterable[Any]:
    return ()


def _no_warnings(values: Any, resolves: Resolves) -> Iterable[str]:
    return ()


def _same(values: Any, files: Files) -> Any:
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
    - ``wants_users``: the dotted keys whose values need a users file (``access.file``).
    - ``option``: the command-line option, if there is one.
    - ``example``: the file that has its part of the example file, if it has a file of its own.
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
    read: Callable[[V, Files], V] = _same
    wants_users: Callable[[V], Iterable[str]] = _nothing
    option: PortOption | None = None
    example: Path | None = None
