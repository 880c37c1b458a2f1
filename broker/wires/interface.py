"""The interface of a wire: all that the daemon, the console, the HTTP API and the command line know of it.

A wire is a folder of `broker.wires` whose module ``wire`` has a `Wire`, and one entry in `broker.app.wires`.
The life of a wire::

    Wire.section      the table of the configuration is read and checked; nothing is open
    Wire.open()       makes an `OpenWire`: state is restored, and nothing listens yet. A `CannotListen` is retried
    OpenWire.bind()   opens the listener of one title. A `CannotListen` is retried
    OpenWire.reload() takes the keys that may change, after the whole new configuration was found valid
    stop_listening()  no more connections are accepted
    close()           peers are told, connections are closed in good order; `abandon()` where the reactor does not run

The daemon calls `stop_listening` on all wires, writes the last records of the store and the journal, and then closes
all wires side by side: peers that are disconnected by the stop are remembered as present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred

from broker.config.section import Section
from broker.config.values import Broker
from broker.core.interfaces import IControl, ILaunchers, ILeases, IRegistry, ITopics
from broker.core.model import Service, Snapshot
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.net.tls import Certificates
from broker.wires.counter import Counter
from broker.wires.dialect import Dialect
from broker.wires.views import AnyView

V = TypeVar("V", bound=attrs.AttrsInstance)


@attrs.frozen(eq=False)
class Context:
    """What a wire is opened in.

    - ``broker``: the section ``[broker]``: the suffix of service names, and whether peers are told what was wrong.
    - ``state``: the state directory; ``known``: what the store remembers from before this start.
    - ``registry``, ``topics``, ``leases``, ``launchers``: the core.
    - ``recorder``: stores sessions that outlast a restart.
    - ``scheduler``, ``complaints``: fair scheduling of input; counters and bounded log lines of what peers did wrong.
    - ``clock``: the reactor, for time and sockets. ``in_thread``: calls a function in the thread of the disk.
    - ``room``: connections that each listener may have, so that there are descriptors for all.
    - ``control``: the orders of administrators to the daemon.
    - ``offer_own``: registers the broker's own services again, after `OpenWire.services` has changed.
    - ``forget``: removes the listener of a title from those that are retried, after it was closed on purpose.
    """

    broker: Broker
    state: str
    known: Snapshot
    registry: IRegistry
    topics: ITopics
    leases: ILeases
    launchers: ILaunchers
    recorder: Any
    scheduler: Turns
    complaints: Complaints
    clock: Any
    in_thread: Callable[..., Deferred[Any]]
    room: int
    control: IControl
    offer_own: Callable[[], None]
    forget: Callable[[str], None]


class OpenWire(Protocol):
    """A wire that runs, whether its listeners are bound or not."""

    def bind(self, title: str) -> str:
        """Open the listener of a title of the section's bindings, and log that. Returns the address.

        Raises `broker.net.endpoints.CannotListen` with none of its sockets open; it may be tried again.
        """

    def places(self) -> Iterable[Mapping[str, object]]:
        """Return the open listeners as operators see them: wire, name, address, connections, full."""

    def services(self) -> Iterable[Service]:
        """Return the listeners that are open as services of the broker itself, provider 0."""

    def counts(self) -> Mapping[str, int]:
        """Return what the wire itself counts, and how many of its things there are, by the names of `Counter`."""

    def views(self) -> Sequence[AnyView]:
        """Return the tables that operators see."""

    def dialects(self) -> Sequence[Dialect]:
        """Return the wire's own commands for operators."""

    def certificates(self) -> Sequence[Certificates]:
        """Return the certificates of open listeners over TLS, which a reload reads again."""

    def reload(self, config: Any, broker: Broker) -> None:
        """Take the keys that a reload may change, also for listeners that are not open yet."""

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when that is so."""

    def close(self) -> Deferred[Any]:
        """Close in good order. Fires when the state is on the disk and all connections are closed."""

    def abandon(self) -> None:
        """Let go of everything where the reactor does not run: the start failed."""


class PlainWire:
    """Defaults of `OpenWire` for a wire without services of its own, commands for operators, and TLS."""

    def services(self) -> Iterable[Service]:
        """Return nothing: the wire is not found in the registry."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """Return nothing: all is counted by the connections."""
        return {}

    def dialects(self) -> Sequence[Dialect]:
        """Return nothing: there are views only."""
        return ()

    def certificates(self) -> Sequence[Certificates]:
        """Return nothing: no listener has TLS."""
        return ()


@attrs.frozen(eq=False)
class Wire(Generic[V]):
    """A wire of the broker.

    - ``section``: its table of the configuration; the name of the wire is that of the table.
    - ``enabled``: reports whether the configuration switches it on.
    - ``open``: makes it. Raises `broker.net.endpoints.CannotListen` with nothing left open.
    - ``counters``: the families of all that it counts, its own and those of its connections.
    - ``descriptors``: file descriptors that it takes besides connections, given those of the process.
    """

    section: Section[V]
    enabled: Callable[[V], bool]
    open: Callable[[V, Context], OpenWire]
    counters: tuple[Counter, ...] = ()
    descriptors: Callable[[V, int], int] = lambda config, all: 0

    @property
    def name(self) -> str:
        """The name of the wire: that of its table."""
        return self.section.name
