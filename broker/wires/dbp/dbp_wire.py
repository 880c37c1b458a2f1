"""Assembly and lifecycle of DBP: its ROUTER, its UDP socket, the beacon, and the services that survive a restart.

Order at the start: recorded services, so that the first answer contains them; the sockets; the beacon. At the stop, all
services are sent a DISCONNECT, and the sockets are closed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger

from broker.access.principal import Principal
from broker.access.rights import Grants, RegistryReading
from broker.config.daemon_settings import Broker
from broker.core.checks.check_rules import Pinger
from broker.core.interfaces import ILeases
from broker.core.model import Rights
from broker.core.operator_interfaces import topic_message
from broker.core.rates import Rates
from broker.net.admission import ConnectionFactory
from broker.net.listeners import CannotListen
from broker.net.probes import Probes
from broker.net.udp import UdpSocket
from broker.wires.common.registry_topics import rights_of
from broker.wires.common.router_listener import RouterListener, make_router
from broker.wires.common.routes import Routes
from broker.wires.dbp.codec.dbp_datagrams import MAX_DATAGRAM
from broker.wires.dbp.codec.dbp_messages import begins
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.catalogue import WIRE, Catalogue
from broker.wires.dbp.sessions.commands import CommandHandler, DatagramHandler
from broker.wires.dbp.sessions.listing import Listing, TopicValues
from broker.wires.dbp.sessions.other_brokers import RemoteServices
from broker.wires.dbp.sessions.outbound import BROKER, Beacon, DbpOutbound
from broker.wires.dbp.sessions.service_state import ServiceEntry, hostport
from broker.wires.interface import PlainWire, WireContext
from broker.wires.tables import ID, AnyView, Column, Row, View

# View of DBP for operators: its services, their heartbeat contracts and signs of life.

COLUMNS = (
    Column("service", "Name of the service"),
    Column("provider", "Id of the service in the registry", ID),
    Column("hostport", "Address of the service"),
    Column("address", "Address from which it was registered"),
    Column("contract", "True if the service is under a heartbeat contract"),
    Column("interval", "Time between heartbeats", "seconds"),
    Column("liveness", "Intervals of silence after which the service expires"),
    Column("heard", "Time since the last sign of life", "seconds"),
    Column("udp", "Source of its last datagram"),
    Column("connected", "True while it has a connection to the ROUTER"),
    Column("unanswered", "Consecutive probes without an answer"),
    Column("unprobed", "Reason for which it is not probed"),
)


def dbp_views(catalogue: Catalogue, leases: ILeases) -> Sequence[AnyView]:
    """Return the views of the wire."""
    return [
        View(
            "dbp services",
            "Shows the services registered by DBP, the oldest first. A pattern selects names.",
            COLUMNS,
            lambda: list(catalogue),
            partial(_service, leases),
            lambda entry: (entry.name,),
            title="DBP services",
            shown=lambda reading, entry: reading.shows(entry.name),
        )
    ]


def _service(leases: ILeases, entry: ServiceEntry) -> Row:
    about: dict[str, object] = {
        "service": entry.name,
        "provider": entry.provider,
        "hostport": hostport(entry.details, entry.address),
        "address": entry.address,
        "contract": entry.contract,
    }
    if entry.contract:
        heard = round(leases.moment() - entry.heard, 2)
        about |= {"interval": entry.interval, "liveness": entry.liveness, "heard": heard}
    if entry.source is not None:
        about["udp"] = f"{entry.source[0]}:{entry.source[1]}"
    about["connected"] = entry.connection is not None
    if entry.failures:
        about["unanswered"] = entry.failures
    if entry.unprobed:
        about["unprobed"] = entry.unprobed
    return about


PORTS_TRIED = 10
"""Attempts to find a free port, if the configuration leaves it open: one that is free for UDP may be in use for TCP."""


@attrs.define(eq=False)
class OpenDbp(PlainWire):
    """The running wire, an `broker.wires.interface.OpenWire`. ``udp_address`` is the address for heartbeats, empty
    before `bind`."""

    log = Logger()

    config: Dbp
    outbound: DbpOutbound
    clock: Any
    listener: RouterListener
    udp: UdpSocket
    probes: Probes
    catalogue: Catalogue
    listing: Listing
    values: TopicValues
    commands: CommandHandler
    datagrams: DatagramHandler
    leases: ILeases
    grants: Callable[[], Grants]
    """Rights of peers by the users file."""
    beacon: Beacon | None = None
    udp_address: str = ""
    leaving: Deferred[None] | None = None
    """The work that sends all services away, since the last drain."""

    @property
    def address(self) -> str:
        """The address of the ROUTER, empty before `bind`."""
        return self.listener.address

    def bind(self, title: str) -> str:
        """Bind both sockets, and start the beacon, in a drain at its end. Returns the ROUTER's address.

        Raises `CannotListen` with neither bound; `bind` may be repeated then. UDP is bound first: if the ROUTER cannot
        be bound afterwards, no peer loses a connection.
        """
        config = self.config
        where = config.place
        host = where.where.rpartition(":")[0]
        heartbeats = config.heartbeat_port or 0
        # Nodes send their heartbeats to the port of the ROUTER, unless the configuration names another. So a free port
        # must be free for both.
        chosen = where.port == 0 and config.udp_port is None
        for left in reversed(range(PORTS_TRIED if chosen else 1)):
            try:
                udp_port = self.udp.bind(host, heartbeats, self.datagrams.receive)
            except OSError as error:
                raise CannotListen(f"cannot listen on udp {host}:{heartbeats}: {error.strerror or error}") from None
            try:
                self.listener.bind(attrs.evolve(where, port=udp_port) if chosen else where)
                break
            except CannotListen:
                self.udp.close()
                if not left:
                    raise
        self.udp_address = f"{host}:{udp_port}"
        port = int(self.address.rpartition(":")[2])
        self.beacon = Beacon(
            self.udp, self.clock, config.beacons, config.beacon_port, port, udp_port, self.outbound.name
        )
        if not self.listener.router.draining:
            self.beacon.start()
        self.log.info("dbp on {where} (udp {udp}; open)", where=self.address, udp=self.udp_address)
        return self.address

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the rows of the ROUTER and the UDP socket, if they are open."""
        if not self.address:
            return []
        return [self.listener.place(WIRE), {"wire": WIRE, "name": "heartbeats", "address": self.udp_address}]

    def pinger(self) -> Pinger:
        """Return the probe of services, by their ids in the registry."""
        return self.catalogue

    def left(self, provider: int) -> float | None:
        """Return the rest of the agreed intervals of silence of a service under contract."""
        return self.catalogue.left(provider)

    def views(self) -> Sequence[AnyView]:
        """Return the view of registered services."""
        return dbp_views(self.catalogue, self.leases)

    def reload(self, config: Dbp, broker: Broker) -> None:
        """Apply new settings and limits."""
        self._use(config)
        self.listener.router.use(config)
        self.outbound.name = _name(broker)
        if self.beacon is not None:
            self.beacon.name = self.outbound.name

    def review(self) -> None:
        """Apply the present grants of the users file."""
        self._use(self.catalogue.dbp)

    def _use(self, config: Dbp) -> None:
        grants = self.grants()
        self.catalogue.use(config, _rights(grants))
        self.listing.use(RegistryReading.of(grants))
        self.values.rights = rights_of(grants)

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the ROUTER."""
        return [self.listener.router]

    def udp_sockets(self) -> Sequence[UdpSocket]:
        """Return the socket of heartbeats."""
        return [self.udp]

    def drain(self) -> None:
        """Send all services a DISCONNECT, stop the beacon, and close all connections. Idempotent.

        The services leave the registry: by the document, one that gets a DISCONNECT registers elsewhere.
        """
        if self.beacon is not None:
            self.beacon.stop()
        router = self.listener.router
        router.draining = True
        self._stay()
        self.leaving = router.turns.background.run(self._send_away())
        self.leaving.addErrback(lambda failure: failure.trap(CancelledError))

    def _send_away(self) -> Iterator[None]:
        yield from self.catalogue.send_away()
        # In the same step as the end of that: no service registers between, which would get no DISCONNECT.
        super().drain()

    def _stay(self) -> None:
        """Send no further services away."""
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None

    def undrain(self) -> None:
        """Accept registrations again, and announce the broker."""
        self._stay()
        drained = self.listener.router.draining
        super().undrain()
        if drained and self.beacon is not None:
            self.beacon.start()

    def disconnect(self, key: str) -> bool:
        """Send the service of that name a DISCONNECT, and remove it; or close the connections from an address."""
        entry = self.catalogue.get(key)
        if entry is None:
            return super().disconnect(key)
        self.catalogue.dismiss(entry)
        return True

    def counts(self) -> Mapping[str, int]:
        """Return the counters that the parts of the wire keep themselves."""
        counts: dict[str, int] = {}
        for each in (self.commands, self.datagrams, self.udp, self.probes):
            counts.update(each.counts())
        return counts

    def stop_listening(self) -> Deferred[None]:
        """Do nothing: `close` closes both sockets together, after all services were sent a DISCONNECT."""
        return succeed(None)

    def close(self) -> Deferred[None]:
        """Send all services a DISCONNECT, and close the wire. Fires when all connections are closed."""
        if self.beacon is not None:
            self.beacon.stop()
        if self.catalogue.elsewhere is not None:
            self.catalogue.elsewhere.close()
        self._stay()
        self.catalogue.part_all()
        self.listing.close()
        self.probes.close()
        self.udp.close()
        return self.listener.close()

    def abandon(self) -> None:
        """Close the wire where the reactor does not run."""
        self.close()


def open_dbp(config: Dbp, context: WireContext) -> OpenDbp:
    """Return the wire, not listening yet."""
    clock = context.network.clock
    leases, refusal_log = context.core.leases, context.network.refusal_log
    router = make_router(WIRE, config, None, None, context.network)
    udp = UdpSocket(clock, context.network.scheduler, WIRE, MAX_DATAGRAM)
    probes = Probes(clock, clock, context.network.scheduler, refusal_log, context.checks.outgoing, WIRE)
    routes = Routes(router, WIRE, begins, refusal_log)
    outbound = DbpOutbound(
        routes,
        udp,
        probes,
        leases,
        clock,
        refusal_log,
        Rates(clock.seconds),
        Rates(clock.seconds),
        _name(context.broker),
        config.beacon_port,
    )
    access = context.accounts.access
    # DBP has no authentication: all its peers are without a user.
    grants = partial(access.grants, Principal(), WIRE)
    catalogue = Catalogue(
        context.core.registry,
        leases,
        outbound,
        refusal_log,
        config,
        _rights(grants()),
        context.checks.silence,
    )
    listing = Listing(context.core.registry, clock, RegistryReading.of(grants()))
    values = TopicValues(context.core.topics, rights_of(grants()), topic_message)
    commands = CommandHandler(routes, catalogue, listing, values, outbound, leases, clock, refusal_log)
    datagrams = DatagramHandler(catalogue, outbound, refusal_log)
    routes.serve(commands)
    if context.cluster.members.clustered:
        catalogue.elsewhere = RemoteServices(
            context.core.registry, context.cluster.links, catalogue, refusal_log, Rates(clock.seconds)
        )
    catalogue.restore(context.known.providers)
    listener = RouterListener(router, clock)
    wire = OpenDbp(
        config,
        outbound,
        clock,
        listener,
        udp,
        probes,
        catalogue,
        listing,
        values,
        commands,
        datagrams,
        leases,
        grants,
    )
    if access.users:
        access.changed.append(wire.review)
    return wire


def _name(broker: Broker) -> str:
    """Return the name of the broker in heartbeats and beacons."""
    return BROKER if broker.service is None else f"{BROKER}-{broker.service}"


def _rights(grants: Grants) -> Rights:
    return Rights(grants.patterns("offer"))
