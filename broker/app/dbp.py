"""The wiring of DBP: its ROUTER, its UDP socket, the beacon, and what is kept of services across a restart.

Order at the start: what is restored, so that the first answer has it; the sockets; the beacon. At the stop all peers
are told, and the sockets are closed last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import zmq

from broker.config import values
from broker.config.validate_dbp import effective_dbp_beacon, effective_dbp_offer
from broker.config.zendpoint import parse
from broker.core.interfaces import Beats, ILeases, IRegistry
from broker.core.model import Provider, Rights
from broker.net.limits import Complaints, Rates
from broker.net.probes import Probes
from broker.net.turns import Turns
from broker.net.udp import UdpSocket
from broker.net.zclient import Dealers
from broker.net.zcontext import Options, ZContext
from broker.net.zmonitor import Connections
from broker.net.zsocket import ZSocket, unbound
from broker.session.dbp.beacon import Beacon
from broker.session.dbp.catalogue import WIRE, Catalogue, Terms
from broker.session.dbp.commands import Commands
from broker.session.dbp.datagrams import Datagrams
from broker.session.dbp.listing import Listing
from broker.session.dbp.voice import BROKER, Voice
from broker.wire.dbp.datagrams import MAX_DATAGRAM


@attrs.define
class DbpListener:
    """The wire. ``address`` is where the ROUTER is bound, ``udp_address`` where heartbeats go; empty before."""

    config: values.Dbp
    name: str
    clock: Any
    socket: ZSocket
    connections: Connections
    udp: UdpSocket
    probes: Probes
    catalogue: Catalogue
    listing: Listing
    commands: Commands
    datagrams: Datagrams
    beacon: Beacon | None = None
    address: str = ""
    udp_address: str = ""

    def bind(self) -> str:
        """Bind both sockets, and begin to call. Returns the ROUTER's address.

        Raises `CannotListen` with neither bound; it may be tried again. UDP comes first: no peer of it has a connection
        that would be lost if the ROUTER cannot be bound.
        """
        config = self.config
        where = parse(config.endpoint)
        host = where.where.rpartition(":")[0]
        heartbeats = config.udp_port if config.udp_port is not None else where.port or 0
        what = f"udp {host}:{heartbeats}"
        try:
            udp_port = self.udp.bind(host, heartbeats, self.datagrams.receive)
            what = config.endpoint
            # Nodes send their heartbeats to the port of the ROUTER, where the configuration names no other.
            chosen = where.port == 0 and config.udp_port is None
            address = attrs.evolve(where, port=udp_port).address if chosen else where.address
            self.address = self.socket.bind(address, self.commands.receive)
        except (OSError, zmq.ZMQError) as error:
            self.udp.close()
            raise unbound(what, error) from None
        self.udp_address = f"{host}:{udp_port}"
        port = int(self.address.rpartition(":")[2])
        addresses = effective_dbp_beacon(config)
        self.beacon = Beacon(self.udp, self.clock, addresses, config.beacon_port, port, udp_port, self.name)
        self.beacon.start()
        return self.address

    def use(self, config: values.Dbp) -> None:
        """Take what may change while it runs."""
        self.catalogue.use(_terms(config))

    def counts(self) -> Mapping[str, int]:
        """All that is counted where it happens."""
        counts: dict[str, int] = {}
        for each in (self.commands, self.datagrams, self.udp, self.probes):
            counts.update(each.counts())
        return counts

    def close(self) -> None:
        """Tell everybody, and stop."""
        if self.beacon is not None:
            self.beacon.stop()
        self.catalogue.part_all()
        self.listing.close()
        self.probes.close()
        self.connections.close()
        self.socket.shutdown()
        self.udp.close()


def make_dbp(
    config: values.Dbp,
    suffix: str | None,
    context: ZContext,
    registry: IRegistry,
    leases: ILeases,
    complaints: Complaints,
    turns: Turns,
    clock: Any,
    known: Iterable[Provider],
    beats: Beats | None,
) -> DbpListener:
    """Make the wire, without binding it. ``known`` are the providers from before a restart."""
    name = BROKER if suffix is None else f"{BROKER}-{suffix}"
    options = Options(high_water=config.high_water, max_message=config.max_message, handover=True)
    socket = ZSocket(context, options, turns, WIRE)
    connections = Connections(
        context,
        socket,
        turns,
        complaints,
        clock,
        WIRE,
        options.handshake,
        lambda descriptor: commands.closed(descriptor),
    )
    udp = UdpSocket(clock, turns, WIRE, MAX_DATAGRAM)
    probes = Probes(Dealers(clock), clock, WIRE)
    voice = Voice(socket, udp, probes, leases, clock, complaints, Rates(clock), Rates(clock), name, config.beacon_port)
    catalogue = Catalogue(registry, leases, voice, complaints, _terms(config), beats)
    listing = Listing(registry, clock)
    commands = Commands(socket, catalogue, listing, voice, leases, clock, complaints)
    datagrams = Datagrams(catalogue, voice, leases, complaints)
    catalogue.restore(known)
    return DbpListener(config, name, clock, socket, connections, udp, probes, catalogue, listing, commands, datagrams)


def _terms(config: values.Dbp) -> Terms:
    return Terms(
        rights=Rights(effective_dbp_offer(config)),
        services=config.services,
        check_address=config.check_address,
        interval=config.interval,
        least_interval=config.least_interval,
        most_interval=config.most_interval,
        liveness=config.liveness,
        fall_back=config.fall_back,
        probe=config.probe,
    )
