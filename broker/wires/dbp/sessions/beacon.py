"""Periodic broadcasts: the beacon, by which nodes find the broker, and the broker's heartbeat.

Rules:
- Both are sent once a second.
- Nodes use the source of the beacon as the broker's address, and its content as the ROUTER's port. They read only the
  first datagram that arrives, so only beacons are sent to the beacon's port.
- The heartbeat is sent to the same addresses, at the port for heartbeats.

See docs/protocols/dbp.md, "Beacon".
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.wall_clock import wall
from broker.wires.dbp.codec import datagrams
from broker.wires.dbp.sessions.outbound import Udp

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
        self._beacon = datagrams.beacon(port)
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
        heartbeat = datagrams.heartbeat(wall(self._clock), self.name)
        for address in self._addresses:
            self._udp.send(self._beacon, (address, self._beacon_port))
            self._udp.send(heartbeat, (address, self._udp_port))
