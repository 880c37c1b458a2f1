"""One table of the configuration, as the component that it configures describes it.

A section is the whole of what the configuration knows of a wire (or of another component): its frozen values with
their defaults, its checks, the places where it listens, what ``--check`` prints, the keys that a reload may change, and
its part of the example file. `broker.config.schema` puts the sections together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

import attrs

from broker.config import key
from broker.config.endpoint import BadEndpoint, Endpoint
from broker.config.errors import Problem
from broker.config.files import Named

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


@attrs.frozen
class Settings:
    """The base class of a table's values: the methods have what a declaration of single keys does not say."""

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
        return key.problems(self.name, values)

    def bindings(self, values: S) -> Iterator[Binding]:
        """Yield the sockets of an enabled component; none where the endpoint is none, which is a problem of its key."""
        with suppress(BadEndpoint):
            yield from values.bindings()

    def read(self, values: S, named: Named) -> S:
        """Return the values with the secrets of the files that they name, and with absolute paths."""
        return key.read(self.name, values.normal(), named)
