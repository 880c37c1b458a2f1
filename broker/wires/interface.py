"""The interface of a wire, used by the daemon, the console, the HTTP API and the command line.

A wire is a folder of `broker.wires` whose module ``NAME_entry`` has a `Wire`, and one entry in `broker.app.wires`.
Lifecycle of a wire::

    Wire.section      the table of the configuration is read and checked; nothing is open
    Wire.open()       creates an `OpenWire`: state is restored, no port listens. A `CannotListen` is retried
    OpenWire.bind()   opens the listener of one title. A `CannotListen` is retried
    OpenWire.reload() applies the reloadable keys, after validation of the whole new configuration
    OpenWire.drain()  new peers are refused, and present ones are sent away; `undrain()` ends that
    stop_listening()  no more connections are accepted
    close()           peers are notified, connections close in order; `abandon()` if the reactor does not run

The daemon calls `stop_listening` on all wires, writes the last records of the store and the journal, and then closes
all wires in parallel: the store keeps peers that the shutdown disconnects as present.

Read on in `broker.wires.tables` (the operator's side).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred

from broker.config.key import Section, Settings
from broker.core.cluster.cluster_interfaces import SINGLE, ILinks, IMembers, IQueueOwners
from broker.core.interfaces import IControl, ILaunchers, ILeases, IRegistry, ITopics
from broker.core.model import NotReady, Service, Snapshot
from broker.core.silent_peers import Silence

# Types only: ``--check`` imports this module, and no module that runs.
if TYPE_CHECKING:
    from broker.access.logins import Logins
    from broker.access.principal import Access, Audit
    from broker.config.daemon_settings import Broker
    from broker.core.checks.check_rules import Pinger
    from broker.core.checks.check_schedule import Schedule
    from broker.core.damage import Damages
    from broker.core.place_table import Pool
    from broker.net.admission import ConnectionFactory
    from broker.net.outgoing_addresses import Outgoing
    from broker.net.refusal_log import RefusalLog
    from broker.net.scheduler import Scheduler
    from broker.net.tls import Certificates
    from broker.net.udp import UdpSocket
    from broker.rest.http_endpoint import Endpoint, Routes
    from broker.wires.tables import AnyView, Counter, Dialect

V = TypeVar("V", bound=Settings)


@attrs.frozen(eq=False, kw_only=True)
class CoreParts:
    """Parts of the core that wires use. ``recorder`` stores sessions that outlast a restart, ``in_thread`` calls a
    function in the thread of the disk, and ``damages`` has the findings of damaged state: a wire adds its own."""

    registry: IRegistry
    topics: ITopics
    leases: ILeases
    launchers: ILaunchers
    recorder: Any
    in_thread: Callable[..., Deferred[Any]]
    damages: Damages


@attrs.frozen(eq=False)
class NetworkParts:
    """Parts of the network: the reactor, for time and sockets; the descriptors for the connections of all listeners;
    the fair scheduler of input; and the refusal log."""

    clock: Any
    pool: Pool
    scheduler: Scheduler
    refusal_log: RefusalLog


@attrs.frozen(eq=False)
class ClusterParts:
    """The cluster: other brokers, the ownership of durable queues, and the links between brokers; by default none.

    - ``reached``: returns the address under which other machines reach a listener's ``host:port``; None if they cannot.
    - ``join_topics``: connects the topics of a namespace of its own, a virtual host, with those of the other brokers.
    """

    members: IMembers = SINGLE
    owners: IQueueOwners = SINGLE
    links: ILinks = SINGLE
    reached: Callable[[str], str | None] = lambda address: address
    join_topics: Callable[[str, ITopics], None] = lambda name, topics: None


class Checks(Protocol):
    """Health checks: the schedule, for servers that are not in the registry; the rule on outgoing connections to
    addresses that peers chose; and the rule for peers whose leases end."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def outgoing(self) -> Outgoing: ...

    @property
    def silence(self) -> Silence: ...


class Accounts(Protocol):
    """Users and rights; the limits on passwords, one instance for all listeners; and the log of administrative acts."""

    @property
    def access(self) -> Access: ...

    @property
    def logins(self) -> Logins: ...

    @property
    def audit(self) -> Audit: ...


@attrs.frozen(eq=False)
class WireContext:
    """The environment of an open wire.

    - ``broker``: the section ``[broker]``: the suffix of service names, and the switch for error details to peers.
    - ``state``: the state directory; ``known``: the store's snapshot from before this start.
    - ``control``: administrators' commands to the daemon.
    - ``offer_own``: registers the broker's own services again, after `OpenWire.services` has changed.
    - ``forget``: removes the listener of a title from the retries, after it was closed on purpose.
    - ``routes``: the HTTP endpoints of the daemon and of all wires, for the wire with an HTTP listener.
    """

    broker: Broker
    state: str
    known: Snapshot
    core: CoreParts
    network: NetworkParts
    checks: Checks
    accounts: Accounts
    control: IControl
    offer_own: Callable[[], None]
    forget: Callable[[str], None]
    routes: Routes
    cluster: ClusterParts = attrs.field(factory=ClusterParts)


class OpenWire(Protocol):
    """An open wire, with or without bound listeners."""

    def bind(self, title: str) -> str:
        """Open the listener of a title of the section's bindings, and log its address. Returns the address.

        Raises `broker.net.listeners.CannotListen` with none of its sockets open; the call may be repeated.
        """

    def listener_rows(self) -> Iterable[Mapping[str, object]]:
        """Return the open listeners for operators: wire, name, address, connections, full."""

    def services(self) -> Iterable[Service]:
        """Return the open listeners as services of the broker itself, provider 0."""

    def counts(self) -> Mapping[str, int]:
        """Return the values of the wire's own counters and gauges, by the names of `Counter`."""

    def views(self) -> Sequence[AnyView]:
        """Return the wire's tables for operators."""

    def dialects(self) -> Sequence[Dialect]:
        """Return the wire's own commands for operators."""

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the functions of the operators' actions that the wire carries out, by name."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the wire's own HTTP endpoints, which are registered once, when the wire is made."""

    def pinger(self) -> Pinger | None:
        """Return the ping of the wire, by which health checks find out if a peer still answers; None if it has none."""

    def left(self, provider: int) -> float | None:
        """Return the seconds until a provider ends without a further sign of life; None without a lease."""

    def certificates(self) -> Sequence[Certificates]:
        """Return the certificates of open TLS listeners, which a reload reads again."""

    def reload(self, config: Any, broker: Broker) -> None:
        """Apply the reloadable keys, also to listeners that are not open yet."""

    def degradations(self) -> Iterable[NotReady]:
        """Return the reasons for which the wire is not ready, besides listeners and certificates."""

    def shortcomings(self) -> Iterable[NotReady]:
        """Return the reasons for which the wire is degraded, but ready."""

    def connection_factories(self) -> Iterable[ConnectionFactory]:
        """Return the connections of the wire, one `ConnectionFactory` for each listener, open or not."""

    def udp_sockets(self) -> Iterable[UdpSocket]:
        """Return the UDP sockets of the wire, open or not."""

    def drain(self) -> None:
        """Refuse new peers with a reason, and send the present ones away by the means of the protocol. Idempotent."""

    def undrain(self) -> None:
        """Accept peers again. No-op without a drain."""

    def peers(self) -> int:
        """Return the number of peers that are served now; a drain waits until it is 0."""

    def disconnect(self, key: str) -> bool:
        """Close the session with that key of the view of sessions, or that address. Returns False without one."""

    def stop_listening(self) -> Deferred[Any]:
        """Stop accepting connections. Fires when all ports are closed."""

    def close(self) -> Deferred[Any]:
        """Close in order. Fires when the state is on disk and all connections are closed."""

    def abandon(self) -> None:
        """Release all resources after a failed start, without a running reactor."""


class PlainWire:
    """Default methods of `OpenWire` for a wire without own services, operator commands and TLS."""

    def services(self) -> Iterable[Service]:
        """Return no services: the wire is not in the registry."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """Return no counters: the connections count everything."""
        return {}

    def dialects(self) -> Sequence[Dialect]:
        """Return no commands: the wire has views only."""
        return ()

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return no functions."""
        return {}

    def endpoints(self) -> Sequence[Endpoint]:
        """Return no endpoints: the wire is not operated over HTTP besides its views."""
        return ()

    def pinger(self) -> Pinger | None:
        """Return no ping: the protocol has none, or ends silent peers itself."""
        return None

    def left(self, provider: int) -> float | None:
        """Return None: providers end with their connections."""
        return None

    def certificates(self) -> Sequence[Certificates]:
        """Return no certificates: no listener has TLS."""
        return ()

    def degradations(self) -> Iterable[NotReady]:
        """Return no reasons: a wire with open listeners is ready."""
        return ()

    def shortcomings(self) -> Iterable[NotReady]:
        """Return no reasons."""
        return ()

    def connection_factories(self) -> Iterable[ConnectionFactory]:
        """Return no connections."""
        return ()

    def udp_sockets(self) -> Iterable[UdpSocket]:
        """Return no sockets: the wire has connections only."""
        return ()

    def drain(self) -> None:
        """Refuse new connections, and close the present ones in order."""
        for each in self.connection_factories():
            each.drain()

    def undrain(self) -> None:
        """Accept connections again."""
        for each in self.connection_factories():
            each.undrain()

    def peers(self) -> int:
        """Return the number of connections; those that were refused at once do not count."""
        return sum(each.turned_away is None for carrier in self.connection_factories() for each in carrier.connections)

    def disconnect(self, key: str) -> bool:
        """Close the connections from that address, ``host:port``."""
        # Not any() of a generator, which would stop at the first listener with such a connection.
        return sum(each.disconnect(key) for each in self.connection_factories()) > 0


@attrs.frozen(eq=False)
class Wire(Generic[V]):
    """A wire of the broker.

    - ``section``: its table of the configuration; the name of the wire is that of the table.
    - ``enabled``: returns True if the configuration enables it.
    - ``open``: imports what the wire needs, and creates the `OpenWire`. Raises `broker.net.listeners.CannotListen` with
      nothing left open.
    - ``counters``: the families of all its counters, including those of its connections.
    - ``descriptors``: its file descriptors besides connections, as a function of the process limit.
    """

    section: Section[V]
    enabled: Callable[[V], bool]
    open: Callable[[V, WireContext], OpenWire]
    counters: tuple[Counter, ...] = ()
    descriptors: Callable[[V, int], int] = lambda config, all: 0

    @property
    def name(self) -> str:
        """The name of the wire: that of its table."""
        return self.section.name
