"""The beacon, by which nodes find the broker, and its heartbeat to all.

Rules:
- Once a second. Nodes take the broker's address from where the beacon comes from, and the ROUTER's port out of it; they
  read the first datagram that they get and nothing after it, so the port of the beacon gets beacons only.
- The heartbeat, in the form that the document has, goes to the same addresses at the port of heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.wires.dbp.codec import datagrams
from broker.wires.dbp.sessions.outbound import Udp

EVERY = 1.0
"""Seconds, as the original's; a node that looks for a broker waits for ten."""


class Beacon:
    """Tells ``addresses`` that the ROUTER of the broker ``name`` is at ``port``."""

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
        self._name = name
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Begin, with the first one at once."""
        if self._addresses:
            self._tell()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = self._clock.callLater(EVERY, self._tell)
        heartbeat = datagrams.heartbeat(self._clock.seconds(), self._name)
        for address in self._addresses:
            self._udp.send(self._beacon, (address, self._beacon_port))
            self._udp.send(heartbeat, (address, self._udp_port))
