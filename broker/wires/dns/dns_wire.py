"""The wiring of DNS: a UDP socket and a TCP listener at one address and port, over one responder."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access.principal import Principal
from broker.config.daemon_settings import Broker
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.rates import Rates
from broker.net.admission import ConnectionFactory
from broker.net.connection import StreamConnection
from broker.net.connection_limits import ConnectionLimits
from broker.net.listeners import CannotListen, bound, close_now, listen, occupancy
from broker.net.udp import UdpSocket
from broker.wires.dns.codec.dns_query import MAX_QUERY, Frames
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.sessions.responder import WIRE, Datagrams, Responder, ResponseLimit, StreamSession
from broker.wires.dns.zone import ServiceNames, Zone, host_port
from broker.wires.interface import NetworkParts, PlainWire, WireContext
from broker.wires.tables import AnyView, Column, Row, View

# The views of DNS: the names that it answers, and its connections.


def dns_views(names: ServiceNames, registry: IRegistry, connections: Iterable[DnsConnection]) -> Sequence[AnyView]:
    """Return the views."""

    def name(entry: tuple[bytes, str, str]) -> Row:
        folded, name, protocol = entry
        services = registry.find(name, protocol, restored=True)
        open_ones = [service for service in services if service.auth is None]
        places = [host_port(service.hostport) for service in open_ones]
        return {
            "name": folded.decode("utf-8", "replace"),
            "service": name,
            "protocol": protocol,
            "answered": len(open_ones),
            "secret": len(services) - len(open_ones),
            "textual": sum(where is None or where.port is None for where in places),
        }

    return [
        View(
            name="dns names",
            help="Shows the names of services, and the answers of DNS. A pattern selects names.",
            columns=(
                Column("name", "The name as it is compared, without case"),
                Column("service", "The name in the registry"),
                Column("protocol", "Its protocol"),
                Column("answered", "Services that are answered", "services"),
                Column("secret", "Services that are left out, since they have a secret", "services"),
                Column("textual", "Those of them without SRV: they have no port, or no host", "services"),
            ),
            items=lambda: names,
            row=name,
            keys=lambda entry: (entry[0].decode("utf-8", "replace"), entry[1]),
            title="DNS names",
            shown=lambda reading, entry: reading.shows(entry[1]),
        ),
        View(
            name="dns connections",
            help="Shows the open connections of DNS over TCP. A pattern selects addresses.",
            columns=(
                Column("address", "The address of the client"),
                Column("queries", "Queries so far", "queries"),
            ),
            items=lambda: sorted(connections, key=lambda each: each.address),
            row=lambda each: {"address": each.address, "queries": each.queries},
            keys=lambda each: (each.address,),
            title="DNS connections",
        ),
    ]


PORTS_TRIED = 10
"""Ports that are tried where any will do: one that is free for UDP may be taken by a TCP connection."""


class DnsConnection(StreamConnection):
    """A connection. It ends when no whole query came for the time of ``Dns.idle``."""

    factory: DnsFactory

    def __init__(self, factory: DnsFactory, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        super().__init__(factory, host, port, local, turned_away)
        self.reader = Frames()
        self._session = StreamSession(factory.responder, self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        del self._session  # it refers to the connection, and would wait for the garbage collector with it

    @property
    def queries(self) -> int:
        """Queries so far."""
        return self._session.queries

    @property
    def stranger(self) -> bool:
        """See `Scheduled`: DNS has no authentication."""
        return not self.served

    def receive(self, message: bytes) -> None:
        """Take one message."""
        self.factory.queries += 1
        self.factory.active(self)
        self._session.receive(message)

    def refuse(self, refusal: Refusal) -> None:
        """Report a refusal."""
        self._session.refuse(refusal)

    def debug(self, label: str, text: str) -> None:
        """Nothing: DNS has no message for the log."""

    def too_slow(self) -> None:
        """Close the connection, which is idle. One that holds a part of a query is refused."""
        if self.reader.pending:
            self.refuse(Refusal(Reason.TOO_SLOW, "a query that was begun, and not completed in time"))
        else:
            self.close()


class DnsFactory(ConnectionFactory):
    """The TCP listener. The deadlines of logins are those of idle connections here."""

    def __init__(self, responder: Responder, limits: ConnectionLimits, network: NetworkParts) -> None:
        super().__init__(WIRE, limits, network.scheduler, network.refusal_log, network.clock, pool=network.pool)
        self.responder = responder
        self.queries = 0

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> DnsConnection:
        return DnsConnection(self, host, port, local, turned_away)

    def active(self, connection: DnsConnection) -> None:
        """Begin the idle time of a connection again."""
        self.logins.discard(connection)  # to stand behind the others
        self.logins.add(connection, self.limits.authenticate_within)

    def connected(self, connection: StreamConnection, authenticated: bool = False) -> None:
        """Register a connection. DNS has no authentication: the one that is idle for the longest time gives way."""
        super().connected(connection, authenticated)
        self.table.authenticated(connection)


@attrs.define(eq=False)
class OpenDns(PlainWire):
    """DNS as it runs; see `broker.wires.interface.OpenWire`. ``address`` is empty before `bind`."""

    log = Logger()

    config: Dns
    context: WireContext
    names: ServiceNames
    responder: Responder
    limit: ResponseLimit
    udp: UdpSocket
    datagrams: Datagrams
    factory: DnsFactory
    port: IListeningPort | None = None
    address: str = ""

    def bind(self, title: str) -> str:
        """Bind both sockets. UDP comes first: it has no connection that would be lost if TCP cannot be bound."""
        where, at = self.config.place, self.config.host
        for left in reversed(range(1 if where.port else PORTS_TRIED)):
            try:
                number = self.udp.bind(at, where.port or 0, self.datagrams.receive)
            except OSError as error:
                raise CannotListen(f"cannot listen on udp {where.where}: {error.strerror or error}") from None
            try:
                port: Any = listen(
                    self.context.network.clock,
                    attrs.evolve(where, args=(str(number),)),
                    self.factory,
                    self.factory.turns.proxies,
                )
                break
            except CannotListen:
                self.udp.close()
                if not left:
                    raise
        self.port = port
        self.address = bound(port)
        self.log.info("dns on {where} (udp and tcp)", where=self.address)
        return self.address

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the listener."""
        if self.port is None:
            return []
        return [{"wire": WIRE, "name": WIRE, "address": self.address, **occupancy(self.factory)}]

    def counts(self) -> Mapping[str, int]:
        """Return the counts of the sessions and the sockets."""
        counts = {
            "dns_queries.tcp": self.factory.queries,
            "dns_connections.open": len(self.factory.connections),
            "dns_names.known": len(self.names),
        }
        for each in (self.responder, self.limit, self.datagrams, self.udp):
            counts.update(each.counts())
        return counts

    def views(self) -> Sequence[AnyView]:
        """Return names and connections."""
        connections: Any = self.factory.connections
        return dns_views(self.names, self.context.core.registry, connections)

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the TCP listener."""
        return [self.factory]

    def udp_sockets(self) -> Sequence[UdpSocket]:
        """Return the UDP socket."""
        return [self.udp]

    def drain(self) -> None:
        """Answer queries by REFUSED, so that resolvers ask another server, and close all connections."""
        self.responder.draining = True
        super().drain()

    def undrain(self) -> None:
        """Answer queries from the registry again."""
        self.responder.draining = False
        super().undrain()

    def reload(self, config: Dns, broker: Broker) -> None:
        """Take another domain, other times and other limits."""
        self.config = attrs.evolve(config, endpoint=self.config.endpoint)
        self.responder.dns = self.limit.dns = self.config
        self.factory.limit(_limits(config))

    def stop_listening(self) -> Deferred[Any]:
        """Close both sockets."""
        self._close_sockets()
        return succeed(None)

    def close(self) -> Deferred[Any]:
        """Stop. Fires when all connections are closed."""
        self._close_sockets()
        self.names.stop()
        return self.factory.close()

    def abandon(self) -> None:
        """Stop where the reactor does not run."""
        self.close()

    def _close_sockets(self) -> None:
        self.udp.close()
        if self.port is not None:
            close_now(self.port)
            self.port = None
            self.address = ""


def open_dns(config: Dns, context: WireContext) -> OpenDns:
    """Make the wire, without opening its sockets."""
    clock = context.network.clock
    names = ServiceNames(context.core.registry)
    access = context.accounts.access
    # A query has no user: it finds what peers without a user may find here.
    may = (lambda name: access.allows(Principal(), WIRE, "find", name)) if access.users else None
    members = context.cluster.members

    def brokers() -> Sequence[Mapping[str, str]]:
        return [each.listeners for each in members.members()]

    responder = Responder(Zone(context.core.registry, names, may, brokers), config, clock, _any_of)
    limit = ResponseLimit(Rates(clock.seconds), Rates(clock.seconds), config)
    udp = UdpSocket(clock, context.network.scheduler, WIRE, MAX_QUERY)
    datagrams = Datagrams(responder, limit, udp, context.network.refusal_log)
    factory = DnsFactory(responder, _limits(config), context.network)
    return OpenDns(config, context, names, responder, limit, udp, datagrams, factory)


def _any_of(count: int) -> int:
    """Return a number below ``count``: a third of the time of `random.randrange`, and as even for so few."""
    return int(random.random() * count)


def _limits(config: Dns) -> ConnectionLimits:
    return ConnectionLimits(
        connections=config.connections,
        connections_per_address=config.connections_per_address,
        authenticate_within=config.idle,
    )
