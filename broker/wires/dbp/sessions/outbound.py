"""Messages that the broker sends to services: answers, and unsolicited heartbeats, DISCONNECTs, probes and broadcasts.

Rules of messages to one service:
- Heartbeats of the broker use the same transport as the service's own: UDP, to the source of its last datagram; its
  connection, if it sends heartbeats there or has sent no datagram yet, and only if it was sent no other message lately.
- A REQ socket is never sent an unsolicited message: it would mistake that for the reply to its next request.
- No message is sent to the port of the beacon: Hermes' nodes crash on it.
- A service that was sent a DISCONNECT, or has sent one, is sent no more messages.
- A silent service is probed by ZeroMQ at its own address, if that is permitted (`broker.net.outgoing_addresses`), one
  probe at a time, even if it has two names: Hermes' services abort when two requests overlap. They know "ping", others
  know heartbeats; any answer is a sign of life.

Rules of the periodic broadcasts, which are the beacon, by which nodes find the broker, and the broker's heartbeat:
- Both are sent once a second.
- Nodes use the source of the beacon as the broker's address, and its content as the ROUTER's port. They read only the
  first datagram that arrives, so only beacons are sent to the beacon's port.
- The heartbeat is sent to the same addresses, at the port for heartbeats.

See docs/protocols/dbp.md, "Heartbeats", "Disconnect and silence" and "Beacon".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.access.identity import is_local, network_of
from broker.core.interfaces import ILeases
from broker.core.rates import Rates
from broker.net.peer_interfaces import RefusalLog, Router, Sent
from broker.wall_clock import wall
from broker.wires.dbp.codec import dbp_datagrams, dbp_messages
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.sessions.service_state import RouterConnection, ServiceEntry, Source, probed

SOURCE_RATE, SOURCE_BURST = 0.2, 1
"""Rate a second and burst of DISCONNECTs to one unregistered source. The document has silence after the first one, but
that may be lost."""

ADDRESS_RATE, ADDRESS_BURST = 100, 1_000
"""Rate and burst for one address: a thousand services of one machine return in the seconds after a restart, and forged
sources direct only a small flood at a victim."""

RECENTLY = 0.9
"""Intervals within which any message over a connection replaces a heartbeat there."""


BROKER = "elkobroker"
"""Name of the broker, with a suffix if it has one. Other brokers on the same network use the same."""


def is_broker(name: str | None) -> bool:
    """Return True for a name of brokers, which no service may have."""
    return name is not None and (name == BROKER or name.startswith(f"{BROKER}-"))


class Udp(Protocol):
    """The UDP socket."""

    def send(self, data: bytes, to: Source) -> bool:
        """Send one datagram. Returns False if the system refused it."""


class Probes(Protocol):
    """Sender of probes to services at their own addresses."""

    def ask(
        self,
        host: str,
        port: int,
        frames: Sequence[bytes],
        seconds: float,
        answered: Callable[[bool | None], object],
        local: bool = False,
    ) -> None:
        """Send one message. ``answered`` is called once, later: with True for an answer within ``seconds``, False for
        none, and None if the message could not be sent. ``local`` is True if a peer of this machine gave the address.

        Raises `Refusal` if the address is not permitted.
        """


class DbpOutbound:
    """Outbound side of the wire, for the broker of that ``name``. No message is sent to ``beacon_port``.

    ``sources`` and ``addresses`` limit the rate of DISCONNECTs to unregistered sources and their addresses.
    """

    def __init__(
        self,
        router: Router,
        udp: Udp,
        probes: Probes,
        leases: ILeases,
        clock: IReactorTime,
        refusal_log: RefusalLog,
        sources: Rates[Source],
        addresses: Rates[str],
        name: str,
        beacon_port: int,
    ) -> None:
        self._router = router
        self._udp = udp
        self._probes = probes
        self._leases = leases
        self.clock = clock
        self._refusal_log = refusal_log
        self._sources = sources
        self._addresses = addresses
        self.name = name
        self._beacon_port = beacon_port
        self._asking: set[tuple[str, int]] = set()
        """Addresses and ports of unanswered probes."""

    def answer(self, connection: RouterConnection, frames: dbp_messages.Sent) -> None:
        """Answer a request over its connection."""
        self._note(connection, self._router.reply(connection.identity, frames))

    def _send_unsolicited(self, connection: RouterConnection, frames: dbp_messages.Sent) -> None:
        """Send a message that is no answer over a connection."""
        self._note(connection, self._router.send(connection.identity, frames))

    def _note(self, connection: RouterConnection, sent: Sent) -> None:
        if sent is Sent.SENT:
            connection.last_sent = self._leases.now
        else:
            self._refusal_log.count("dbp_dropped", sent.value)

    def end(self, connection: RouterConnection) -> None:
        """Close a connection after its output."""
        self._router.end(connection.identity, connection.number)

    def send(self, data: bytes, to: Source) -> None:
        """Send a datagram, unless to the port of the beacon."""
        if to[1] != self._beacon_port:
            self._udp.send(data, to)

    def turn_away(self, source: Source) -> None:
        """Send a DISCONNECT to an unregistered source, within the rate limits of the source and its address."""
        # The source first: a single repeating source must not use up the tokens of its address.
        if self._sources.take(source, SOURCE_RATE, SOURCE_BURST) and self._addresses.take(
            network_of(source[0]), ADDRESS_RATE, ADDRESS_BURST
        ):
            self.send(dbp_datagrams.disconnect(wall(self.clock)), source)

    def hush(self, source: Source) -> None:
        """Suppress the next DISCONNECT to a source that has just sent one: its late heartbeats need no answer."""
        self._sources.take(source, SOURCE_RATE, SOURCE_BURST)

    def beat(self, entry: ServiceEntry) -> None:
        """Send a service the broker's heartbeat."""
        if entry.parted:
            return
        now = wall(self.clock)
        if entry.source is not None:
            self.send(dbp_datagrams.heartbeat(now, self.name), entry.source)
        connection = entry.connection
        if connection is None or connection.req or not (connection.beaten or entry.source is None):
            return
        if self._leases.now - connection.last_sent >= RECENTLY * entry.interval:
            self._send_unsolicited(connection, dbp_messages.heartbeat(connection.form, now, self.name))

    def part(self, entry: ServiceEntry) -> None:
        """Send DISCONNECT to a service over each transport that leads to it, and close its connection."""
        if entry.parted:
            return
        now = wall(self.clock)
        if entry.source is not None:
            self.send(dbp_datagrams.disconnect(now), entry.source)
        connection = entry.connection
        if connection is not None and not connection.req:
            self._send_unsolicited(connection, dbp_messages.disconnect(connection.form, now, connection.hermes))
            self.end(connection)

    def probe(self, entry: ServiceEntry, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Probe a service. Returns False, without a probe, if that is not possible now. Raises `Refusal` if its
        address is not permitted."""
        place = probed(entry.details, entry.address)
        if place is None or place in self._asking or entry.parted:
            return False

        def ended(alive: bool | None) -> None:
            self._asking.discard(place)
            answered(alive)

        now = wall(self.clock)
        if entry.details.hermes:
            frames = dbp_messages.ping(Form.FLOAT32, now)
        else:
            frames = dbp_messages.heartbeat(entry.form, now, self.name)
        self._probes.ask(*place, frames, seconds, ended, is_local(entry.address))
        self._asking.add(place)
        return True


EVERY = 1.0
"""Seconds between beacons, as of the original broker. A node that searches for a broker waits for ten seconds."""


class Beacon:
    """Sender of the broadcasts to ``addresses``: the beacon with the ROUTER's ``port`` to ``beacon_port``, and the
    heartbeat of the broker ``name`` to ``udp_port``."""

    def __init__(
        self,
        udp: Udp,
        clock: IReactorTime,
        addresses: Sequence[str],
        beacon_port: int,
        port: int,
        udp_port: int,
        name: str,
    ) -> None:
        self._udp = udp
        self._clock = clock
        self._addresses = addresses
        self._beacon_port = beacon_port
        self._beacon = dbp_datagrams.beacon(port)
        self._udp_port = udp_port
        self.name = name
        """Name of the broker in the heartbeat that follows each beacon."""
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Start the timer; the first beacon is sent at once. Without addresses, do nothing."""
        if self._addresses:
            self._broadcast()

    def stop(self) -> None:
        """Stop the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _broadcast(self) -> None:
        self._timer = self._clock.callLater(EVERY, self._broadcast)
        heartbeat = dbp_datagrams.heartbeat(wall(self._clock), self.name)
        for address in self._addresses:
            self._udp.send(self._beacon, (address, self._beacon_port))
            self._udp.send(heartbeat, (address, self._udp_port))
