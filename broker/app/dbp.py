"""The wiring of DBP: its ROUTER, its UDP socket, the beacon, and what is kept of services across a restart.

Order at the start: the sockets, so that a taken port is known before anything else happens; what is restored; then
messages are read, and the beacon calls. At the stop everybody is told, and the sockets go last.
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
from broker.net.zcontext import Options, ZContext
from broker.net.zmonitor import Connections
from broker.net.zsocket import ZSocket
from broker.session.dbp.beacon import Beacon
from broker.session.dbp.catalogue import WIRE, Catalogue, Terms
from broker.session.dbp.commands import Commands
from broker.session.dbp.datagrams import Datagrams
from broker.session.dbp.listing import Listing
from broker.session.dbp.voice import BROKER, Voice
from broker.wire.dbp.datagrams import MAX_DATAGRAM


@attrs.define
class DbpListener:
    """The running wire. ``address`` is where the ROUTER is bound, ``udp_port`` where heartbeats go."""

    socket: ZSocket
    connections: Connections
    udp: UdpSocket
    probes: Probes
    catalogue: Catalogue
    listing: Listing
    commands: Commands
    datagrams: Datagrams
    beacon: Beacon
    address: str
    udp_address: str

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
        self.beacon.stop()
        self.catalogue.part_all()
        self.listing.close()
        self.probes.close()
        self.connections.close()
        self.socket.shutdown()
        self.udp.close()


def open_dbp(
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
    """Open the wire. ``known`` are the providers from before a restart. Raises OSError with nothing left open."""
    name = BROKER if suffix is None else f"{BROKER}-{suffix}"
    where = parse(config.endpoint)
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
    probes = Probes(context, turns, clock, WIRE)
    voice = Voice(socket, udp, probes, leases, clock, complaints, Rates(clock), Rates(clock), name, config.beacon_port)
    catalogue = Catalogue(registry, leases, voice, complaints, _terms(config), beats)
    listing = Listing(registry, clock)
    commands = Commands(socket, catalogue, listing, voice, leases, clock, complaints)
    datagrams = Datagrams(catalogue, voice, leases, complaints)
    what = config.endpoint
    try:
        address = socket.bind(where.address, commands.receive)
        port = int(address.rpartition(":")[2])
        host = where.where.rpartition(":")[0]
        heartbeats = port if config.udp_port is None else config.udp_port
        what = f"udp {host}:{heartbeats}"
        udp_port = udp.bind(host, heartbeats, datagrams.receive)
    except (OSError, zmq.ZMQError) as error:
        connections.close()
        socket.shutdown()
        udp.close()
        listing.close()
        raise OSError(f"cannot listen on {what}: {zmq.strerror(error.errno or 0)}") from None
    catalogue.restore(known)
    beacon = Beacon(udp, clock, effective_dbp_beacon(config), config.beacon_port, port, udp_port, name)
    beacon.start()
    return DbpListener(
        socket, connections, udp, probes, catalogue, listing, commands, datagrams, beacon, address, f"{host}:{udp_port}"
    )


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
