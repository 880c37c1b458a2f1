"""Admission control for one listener: connection limits, accept rate limits, deadlines and orderly shutdown.

Invariants: `ConnectionFactory.connections` holds each connected protocol. A connection has a place in the listener's
table (`broker.core.place_table`) only if admission did not refuse it, and until it begins to close. The port accepts
at any time: without a place, a newcomer is sent the reason.

Read on in `broker.net.connection` (one connection) and `broker.net.refusal_log` (refusals and deadlines).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import Factory, Protocol

from broker.access.identity import is_local, network_of, plain
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.place_table import PlaceTable, Pool
from broker.core.rates import Rates
from broker.core.turns import for_each
from broker.net.connection import StreamConnection
from broker.net.connection_limits import ConnectionLimits
from broker.net.proxies import is_proxied
from broker.net.refusal_log import Deadlines, RefusalLog
from broker.net.scheduled_input import Direction
from broker.net.scheduler import Scheduler

STOP_WITHIN = 5.0
"""Deadline in seconds for all connections together to close when the listener stops."""

SENT_WITHIN = 1.0
"""Seconds from the stop of the listener until connections are aborted that have sent all output, and whose peers do not
close: one round trip and an answer to TLS's alert take less. The others are looked at again after the same time."""

DRAINING = "the broker is draining: connect to another one"
DISCONNECTED = "an operator closed this connection"
"""Texts of refusals."""

C = TypeVar("C", bound=StreamConnection)

TapSeen = Callable[[StreamConnection, Direction, Any], object]
"""Called with a connection, a direction, and a message of a tapped connection."""


class ConnectionFactory(Factory):
    """One listener: its limits and its connections. A subclass creates the protocols.

    ``wire`` names the protocol in counters and the log. ``half_close`` is True if the transport can end its output
    alone (TCP and Unix sockets can, TLS cannot). ``pool`` has the descriptors of the process; without one, connections
    are virtual, or there is no limit besides that of the listener.
    """

    noisy = False
    forwards = False
    """True for a protocol of HTTP: one connection of a trusted proxy may carry many clients, and counts for none."""

    def __init__(
        self,
        wire: str,
        limits: ConnectionLimits,
        turns: Scheduler,
        refusal_log: RefusalLog,
        clock: IReactorTime,
        half_close: bool = True,
        pool: Pool | None = None,
    ) -> None:
        self.wire = wire
        self.limits = limits
        self.turns = turns
        self.refusal_log = refusal_log
        self.clock = clock
        self.half_close = half_close
        self.connections: set[StreamConnection] = set()
        self.table = PlaceTable(limits.connections, clock.seconds, pool)
        """The places of the connections."""
        self.logins: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("too_slow"))
        self.stalls: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("stalled"))
        self.closes: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("unclosed"))
        self.lingering: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("close"))
        self._rates: Rates[str] = Rates(clock.seconds)
        self.memory = turns.memory
        self.stopping = False
        self._tapped: tuple[Callable[[StreamConnection], bool], TapSeen] | None = None
        self.draining = False
        """True while all new connections are refused: the broker sends its peers away."""
        self._emptied: Deferred[None] | None = None
        self._end_of_stop: IDelayedCall | None = None

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> StreamConnection:
        """Create the protocol of a new connection. With ``turned_away`` set, it sends that refusal when it is
        connected."""
        raise NotImplementedError

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self.accept(addr, self.admit(addr))

    def admit(self, addr: IAddress | None) -> Refusal | None:
        """Decide on a new connection, and reserve its place. Returns the refusal, or None if it is admitted."""
        if self.draining or self.stopping:
            return Refusal(Reason.DRAINING, DRAINING)
        host, _, local = _where(addr)
        source = self.source_of(host)
        return self._over_limits(source, local) or self.seat(self.table, source)

    def source_of(self, host: str) -> str:
        """Return the network that a connection from that address counts for; empty for none."""
        return self.turns.proxies.source_of(host) if self.forwards else network_of(host)

    def _over_limits(self, source: str, local: bool) -> Refusal | None:
        """Return the refusal of a newcomer whose network has or opens too many connections."""
        limits = self.limits
        if not source:
            return None
        if limits.connections_per_address and self.table.of(source) >= limits.connections_per_address:
            return at_limit(
                "closing: this address has too many connections", "connections_per_address", Reason.TOO_MANY_CONNECTIONS
            )
        if not local and limits.rate and not self._rates.take(source, limits.rate, limits.burst):
            return at_limit("closing: this address connects too often", "rate", Reason.TOO_MANY_CONNECTIONS)
        return None

    def count_for_client(self, connection: StreamConnection, client: str) -> Refusal | None:
        """Record that a connection of a trusted proxy is that of a client. Returns the refusal of the client."""
        source = network_of(client)
        refusal = self._over_limits(source, local=False)
        connection.host, connection.port, connection.local = client, 0, False
        if refusal is None:
            self.table.move(connection, source)
        return refusal

    def seat(self, table: PlaceTable, network: str) -> Refusal | None:
        """Make room for a newcomer in a table of the listener. Returns the refusal of one without a place."""
        if not table.full:
            return None
        refusal = table.make_room(network)
        self.refusal_log.count(f"{self.wire}_accept", "displaced" if refusal is None else "refused")
        return refusal

    def accept(self, addr: IAddress | None, turned_away: Refusal | None) -> StreamConnection:
        """Create the protocol of a newcomer, with the decision of `admit`."""
        host, port, local = _where(addr)
        connection = self.make(host, port, local, turned_away)
        if turned_away is None:
            connection.source = self.source_of(host)
        return connection

    def connected(self, connection: StreamConnection, authenticated: bool = False) -> None:
        """Register a connection, and give it its place if it was admitted."""
        self.connections.add(connection)
        if self._tapped is not None:
            self.consider_tap(connection)
        if connection.turned_away is None:
            self.table.take(connection, authenticated)
        else:
            self.table.refused(connection)
        if self.limits.authenticate_within and not authenticated:
            self.logins.add(connection, self.limits.authenticate_within)

    def tap(self, wanted: Callable[[StreamConnection], bool], seen: TapSeen) -> None:
        """Report the messages of the connections that ``wanted`` selects, present and later ones, until `untap`.

        ``seen`` gets the connection, the direction and the message; see `broker.net.scheduled_input`.
        """
        self._tapped = wanted, seen
        for connection in self.connections:
            self.consider_tap(connection)

    def untap(self) -> None:
        """Report no more messages."""
        self._tapped = None
        for connection in self.connections:
            connection.untap()

    def consider_tap(self, connection: StreamConnection) -> None:
        """Tap a connection, or remove its tap, as a trace needs it."""
        if self._tapped is not None:
            wanted, seen = self._tapped
            if wanted(connection):
                connection.tap(partial(seen, connection))
            else:
                connection.untap()

    def disconnected(self, connection: StreamConnection) -> None:
        """Deregister a connection."""
        self.connections.discard(connection)
        self.table.gone(connection)
        for deadlines in (self.logins, self.stalls, self.closes, self.lingering):
            deadlines.discard(connection)
        if self._emptied is not None and not self.connections:
            if self._end_of_stop is not None:
                self._end_of_stop.cancel()
                self._end_of_stop = None
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def limit(self, limits: ConnectionLimits) -> None:
        """Apply new limits. A lower limit of connections closes none. A time to authenticate, if there was none, begins
        for the present peers; if there is none any more, it ends for them. Another time counts from where theirs began,
        and so does another time without progress.
        """
        before, self.limits = self.limits, limits
        self.table.limit = limits.connections
        self.stalls.move(limits.stalled_after - before.stalled_after)
        if not limits.authenticate_within:
            self.logins.stop()
        elif not before.authenticate_within:
            for connection in self.connections:
                if not connection.trusted and not connection.life.closing:
                    self.logins.add(connection, limits.authenticate_within)
        else:
            self.logins.move(limits.authenticate_within - before.authenticate_within)

    def drain(self) -> None:
        """Refuse new connections, and close the present ones in order. Idempotent.

        The port stays open: a refused peer is sent the reason, and a drain is undone without binding the port again,
        which a socket from systemd does not permit.
        """
        self.draining = True
        self.dismiss(list(self.connections), Refusal(Reason.DRAINING, DRAINING))

    def undrain(self) -> None:
        """Accept connections again. The drain goes on for those that were present when it began."""
        self.draining = False

    def disconnect(self, address: str) -> bool:
        """Close the connections from that address, ``host:port``, in order. Returns False if there is none."""
        found = [each for each in self.connections if each.address == address and not each.life.closing]
        for connection in found:
            self.send_away(connection, Refusal(Reason.DISCONNECTED, DISCONNECTED))
        return bool(found)

    def dismiss(self, connections: Collection[StreamConnection], refusal: Refusal) -> None:
        """Send connections away, a few at once, and many in several turns of the reactor."""
        self.each(connections, lambda connection: self.send_away(connection, refusal))

    def each(self, connections: Iterable[C], act: Callable[[C], object]) -> Deferred[None]:
        """Call ``act`` with each connection that is not lost meanwhile: a few at once, and many in several turns.

        20,000 closes take some 0.6 s, so this is background work (`broker.core.turns`). Fires after the last one.
        """

        def step(connection: C) -> None:
            if connection in self.connections:
                try:
                    act(connection)
                except Exception:
                    connection.failed()

        return self.turns.background.run(for_each(connections, step))

    def send_away(self, connection: StreamConnection, refusal: Refusal) -> None:
        """Send a peer the reason for the end of its connection, as far as its protocol can, and close it in order."""
        try:
            connection.refuse(refusal)
        except Exception:  # the other connections are closed all the same
            connection.failed()
        connection.close()

    def close(self) -> Deferred[None]:
        """Close all connections in order. Fires when all are closed, after at most `STOP_WITHIN` seconds, or
        `SENT_WITHIN` where peers read what they are sent."""
        self.stopping = True
        if not self.connections:
            # Set before the connections close, so that sessions and WebSocket close frames report a shutdown.
            return succeed(None)
        emptied: Deferred[None] = Deferred()
        self._emptied = emptied
        deadline = self.clock.seconds() + STOP_WITHIN
        self._end_of_stop = self.clock.callLater(SENT_WITHIN, self._cut_off, deadline)
        for connection in list(self.connections):
            connection.close()
        return emptied

    def _cut_off(self, deadline: float) -> None:
        """Abort the connections that have nothing to send; at the shutdown deadline, all of them."""
        left = deadline - self.clock.seconds()
        over = left <= 0
        self._end_of_stop = None if over else self.clock.callLater(min(SENT_WITHIN, left), self._cut_off, deadline)
        for connection in list(self.connections):
            if over or connection.all_sent:
                connection.abort()


def _where(addr: IAddress | None) -> tuple[str, int, bool]:
    """Return the host, the port (0 if none), and True if the peer is on this machine."""
    if isinstance(addr, IPv4Address | IPv6Address):
        host = plain(addr.host)
        return host, addr.port, is_local(host) and not is_proxied(addr)
    return "unix", 0, isinstance(addr, UNIXAddress)
