"""What the broker says to services by itself: heartbeats, good-byes, and questions whether they live.

Rules:
- A service hears of the broker where the broker hears of it: by UDP at the source of its last datagram; over its
  connection if it beats there, or has sent no datagram yet; and there not if it was sent something anyway.
- A REQ socket is never sent anything that it has not asked for: it would take it for the reply to its next question.
- Nothing is sent to the port of the beacon: Hermes' nodes break of it.
- Who was sent away, or went, is told nothing any more.
- A silent service is asked by ZeroMQ at its own address, one question at a time, also if it has two names: Hermes'
  end when two questions come at once. They know "ping", others know heartbeats; whatever comes back is life.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from broker.core.interfaces import ILeases
from broker.net.interfaces.router import Complaints, Router, Sent
from broker.wires.dbp.codec import datagrams, replies
from broker.wires.dbp.codec.times import Form
from broker.wires.dbp.sessions.addresses import probed
from broker.wires.dbp.sessions.service_state import Connection, Entry, Source

SOURCE_RATE, SOURCE_BURST = 0.2, 1
"""DISCONNECTs a second to one source, and at once. The document has silence after the first; but that may be lost."""

ADDRESS_RATE, ADDRESS_BURST = 100, 1_000
"""The same for one address: a thousand services of one machine come back in the seconds after a restart, and who forges
an address to have others flooded gets little out of it."""

RECENTLY = 0.9
"""Intervals within which whatever a connection was sent is as good as a heartbeat."""


BROKER = "elkobroker"
"""What the broker calls itself, with a suffix if it has one; so do others on the same network."""


def is_broker(name: str | None) -> bool:
    """Whether that is what brokers call themselves: no service may."""
    return name is not None and (name == BROKER or name.startswith(f"{BROKER}-"))


class Udp(Protocol):
    """The UDP socket."""

    def send(self, data: bytes, to: Source) -> bool:
        """Send one datagram; returns whether it went out."""


class Rates(Protocol):
    """Token buckets in a bounded table."""

    def take(self, key: Hashable, rate: float, burst: float) -> bool:
        """Whether one more of this key is within ``rate`` a second and ``burst`` at once."""


class Probes(Protocol):
    """Who asks services at their own addresses."""

    def ask(
        self, host: str, port: int, frames: Sequence[bytes], seconds: float, answered: Callable[[bool | None], object]
    ) -> None:
        """Send one message there. ``answered`` is told, later and once, whether anything came back in that time; None
        if it could not be sent.
        """


class Voice:
    """Speaks for the broker, which is called ``name``. ``beacon_port`` is where nothing may go.

    ``sources`` and ``addresses`` are the rates at which strangers are sent away.
    """

    def __init__(
        self,
        router: Router,
        udp: Udp,
        probes: Probes,
        leases: ILeases,
        clock: IReactorTime,
        complaints: Complaints,
        sources: Rates,
        addresses: Rates,
        name: str,
        beacon_port: int,
    ) -> None:
        self._router = router
        self._udp = udp
        self._probes = probes
        self._leases = leases
        self._clock = clock
        self._complaints = complaints
        self._sources = sources
        self._addresses = addresses
        self.name = name
        self._beacon_port = beacon_port
        self._asking: set[tuple[str, int]] = set()
        """Where questions are open."""

    def answer(self, connection: Connection, frames: replies.Sent) -> None:
        """Answer a request over its connection."""
        self._note(connection, self._router.reply(connection.identity, frames))

    def _tell(self, connection: Connection, frames: replies.Sent) -> None:
        """Send what was not asked for over a connection."""
        self._note(connection, self._router.send(connection.identity, frames))

    def _note(self, connection: Connection, sent: Sent) -> None:
        if sent is Sent.SENT:
            connection.told = self._leases.now
        else:
            self._complaints.count("dbp_dropped", sent.value)

    def send(self, data: bytes, to: Source) -> None:
        """Send a datagram."""
        if to[1] != self._beacon_port:
            self._udp.send(data, to)

    def turn_away(self, source: Source) -> None:
        """Tell a stranger that it is not registered, unless it, or others at its address, were told just now."""
        if self._sources.take(source, SOURCE_RATE, SOURCE_BURST) and self._addresses.take(
            source[0], ADDRESS_RATE, ADDRESS_BURST
        ):
            self.send(datagrams.disconnect(self._clock.seconds()), source)

    def hush(self, source: Source) -> None:
        """Who spoke from there has said good-bye: what it sent just before need not be answered."""
        self._sources.take(source, SOURCE_RATE, SOURCE_BURST)

    def beat(self, entry: Entry) -> None:
        """Tell a service that the broker lives."""
        if entry.parted:
            return
        now = self._clock.seconds()
        if entry.source is not None:
            self.send(datagrams.heartbeat(now, self.name), entry.source)
        connection = entry.connection
        if connection is None or connection.req or not (entry.beaten or entry.source is None):
            return
        if self._leases.now - connection.told >= RECENTLY * entry.interval:
            self._tell(connection, replies.heartbeat(connection.form, now, self.name))

    def part(self, entry: Entry) -> None:
        """Tell a service, wherever it can be told, that it is not registered any more."""
        now = self._clock.seconds()
        if entry.source is not None:
            self.send(datagrams.disconnect(now), entry.source)
        connection = entry.connection
        if connection is not None and not connection.req:
            self._tell(connection, replies.disconnect(connection.form, now, connection.hermes))
            connection.deaf = True

    def probe(self, entry: Entry, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Ask a service whether it lives. Returns False, and asks nothing, if that cannot be done now."""
        place = probed(entry.details, entry.address)
        if place is None or place in self._asking or entry.parted:
            return False

        def ended(alive: bool | None) -> None:
            self._asking.discard(place)
            answered(alive)

        self._asking.add(place)
        now = self._clock.seconds()
        if entry.details.hermes:
            frames = replies.ping(Form.FLOAT32, now)
        else:
            frames = replies.heartbeat(entry.form, now, self.name)
        self._probes.ask(*place, frames, seconds, ended)
        return True
