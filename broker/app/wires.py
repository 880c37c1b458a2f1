"""The wires of the daemon: the list of all, and the life cycle of the enabled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList

from broker.blocking import unavoidable
from broker.config.key import Binding
from broker.core.errors import Reason, Refusal
from broker.core.model import NotReady, Provider, Service
from broker.wires.dbp.dbp_entry import WIRE as DBP
from broker.wires.dns.dns_entry import WIRE as DNS
from broker.wires.elko.elko_entry import BROKER, DIRECTOR
from broker.wires.http.http_entry import WIRE as HTTP
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.mc0.mc0_entry import WIRE as MC0
from broker.wires.mtl.mtl_entry import WIRE as MTL

# Types only: ``--check`` imports this module, and no module that runs.
if TYPE_CHECKING:
    from broker.config.load import Config
    from broker.core.checks.check_rules import Pinger
    from broker.net.admission import ConnectionFactory
    from broker.net.listeners import ListenerRetries
    from broker.net.refusal_log import Counters
    from broker.net.tls import Certificates
    from broker.net.udp import UdpSocket
    from broker.rest.http_endpoint import Routes
    from broker.wires.tables import AnyView, Dialect

WIRES: tuple[Wire[Any], ...] = (BROKER, DIRECTOR, MC0, DBP, MTL, DNS, HTTP)
"""All wires, in the order in which their listeners are opened."""


def streams(config: Config) -> int:
    """Return the number of sockets of the wires that take connections."""
    return sum(not binding.datagrams for wire in WIRES for binding in wire.section.bindings(getattr(config, wire.name)))


def descriptors(config: Config, every: int) -> int:
    """Return the file descriptors that wires take besides connections, of ``every`` that the process may have."""
    enabled = ((wire, getattr(config, wire.name)) for wire in WIRES)
    return sum(wire.descriptors(section, every) for wire, section in enabled if wire.enabled(section))


class RunningWires:
    """The enabled wires. Each is made once, and adds its HTTP endpoints to ``routes`` then; binding its listeners is
    retried until they are open."""

    def __init__(self, counters: Counters, routes: Routes) -> None:
        self._counters = counters
        self._routes = routes
        self._config: Config
        self._open: dict[str, OpenWire] = {}
        self._draining = False

    def add(self, retries: ListenerRetries, config: Config, context: WireContext) -> None:
        """Make the wires by ``retries``, and open their listeners. If that fails, `abandon` closes what is open."""
        self._config = config
        for wire in WIRES:
            section = getattr(config, wire.name)
            if not wire.enabled(section):
                continue
            make = partial(self._make, wire, context)
            # The sockets of one title are one listener: the first one's address is shown.
            titles: dict[str, Binding] = {}
            for binding in wire.section.bindings(section):
                titles.setdefault(binding.title, binding)
            for binding in titles.values():
                bind = partial(self._bind, wire, binding.title)
                retries.add(binding.title, binding.where.where, bind, make, binding.required)
            if not titles:
                # Nothing listens, and so nothing would be retried.
                make()

    def reload(self, config: Config) -> None:
        """Apply the keys that a reload may change, also to wires that are not made yet."""
        self._config = config
        for name, wire in self._open.items():
            wire.reload(getattr(config, name), config.broker)

    def views(self) -> dict[str, AnyView]:
        """Return the tables that operators see, by name."""
        return {view.name: view for wire in self._open.values() for view in wire.views()}

    def dialects(self) -> list[Dialect]:
        """Return the commands of the wires for operators."""
        return [dialect for wire in self._open.values() for dialect in wire.dialects()]

    def pinger(self, name: str) -> Pinger | None:
        """Return the ping of a wire by its name; None if it has none, or is not made."""
        wire = self._open.get(name)
        return None if wire is None else wire.pinger()

    def left(self, provider: Provider) -> float | None:
        """Return the seconds until a provider ends without a further sign of life; None without a lease here."""
        wire = self._open.get(provider.wire)
        return None if wire is None else wire.left(provider.id)

    def listener_rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the open listeners as operators see them."""
        for wire in self._open.values():
            yield from wire.listener_rows()

    def services(self) -> Iterator[Service]:
        """Yield the open listeners as services of the broker itself."""
        for wire in self._open.values():
            yield from wire.services()

    def certificates(self) -> list[Certificates]:
        """Return the certificates of open listeners over TLS."""
        return [each for wire in self._open.values() for each in wire.certificates()]

    def open_ones(self) -> Mapping[str, OpenWire]:
        """Return the open wires by name."""
        return self._open

    def degradations(self) -> Iterator[NotReady]:
        """Yield the reasons for which wires are not ready, besides listeners and certificates."""
        for wire in self._open.values():
            yield from wire.degradations()

    def shortcomings(self) -> Iterator[NotReady]:
        """Yield the reasons for which wires are degraded, but ready."""
        for wire in self._open.values():
            yield from wire.shortcomings()

    def drain(self) -> None:
        """Refuse new peers of all wires, and send the present ones away; also of wires that are made later."""
        self._draining = True
        for wire in self._open.values():
            wire.drain()

    def undrain(self) -> None:
        """Accept peers of all wires again."""
        self._draining = False
        for wire in self._open.values():
            wire.undrain()

    def connection_factories(self) -> Iterator[ConnectionFactory]:
        """Yield the connections of all wires, by listener."""
        for wire in self._open.values():
            yield from wire.connection_factories()

    def udp_sockets(self) -> Iterator[UdpSocket]:
        """Yield the UDP sockets of all wires."""
        for wire in self._open.values():
            yield from wire.udp_sockets()

    def remaining(self) -> dict[str, int]:
        """Return the number of peers by wire; wires without any are absent."""
        counts = {name: wire.peers() for name, wire in self._open.items()}
        return {name: count for name, count in counts.items() if count}

    def disconnect(self, wire: str, session: str) -> bool:
        """Close a session of a wire. Raises `Refusal` PARAMETER if that wire is not open."""
        found = self._open.get(wire)
        if found is None:
            raise Refusal(Reason.PARAMETER, f"there is no wire {wire[:40]!r}, but {', '.join(self._open) or 'none'}")
        return found.disconnect(session)

    def action(self, wire: str, name: str) -> Callable[..., Any]:
        """Return the function of an action that a wire carries out. Raises `Refusal` if that wire is not open."""
        found = self._open.get(wire)
        if found is None:
            raise Refusal(Reason.UNKNOWN_TARGET, f"{name} is an action of the wire {wire}, which is not open")
        return found.actions()[name]

    def stop_listening(self) -> Deferred[Any]:
        """Stop accepting connections. Fires when that is done."""
        return DeferredList([wire.stop_listening() for wire in self._open.values()], consumeErrors=True)

    def close(self) -> Deferred[Any]:
        """Close all wires orderly and concurrently. Fires when that is done."""
        closing = [wire.close() for wire in self._open.values()]
        self._open.clear()
        return DeferredList(closing, consumeErrors=True)

    def abandon(self) -> None:
        """Close all without the reactor: the start failed."""
        for wire in self._open.values():
            wire.abandon()
        self._open.clear()

    def _make(self, wire: Wire[Any], context: WireContext) -> None:
        if wire.name not in self._open:
            with unavoidable("a wire that could not be made at the start is made again, and reads its store"):
                made = self._open[wire.name] = wire.open(getattr(self._config, wire.name), context)
            self._counters.include(made.counts)
            self._routes.add(made.endpoints())
            if self._draining:
                made.drain()

    def _bind(self, wire: Wire[Any], title: str) -> str:
        return self._open[wire.name].bind(title)
