"""The admission of connections to one listener: their number, their rates, their deadlines, and the orderly stop."""

from __future__ import annotations

from operator import methodcaller
from typing import Protocol as TypingProtocol

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import Factory, Protocol

from broker.core.errors import Reason, Refusal
from broker.net.connection import StreamConnection
from broker.net.interfaces.limits import ConnectionLimits
from broker.net.rate_limits import Complaints, Deadlines, Rates
from broker.net.scheduler import Turns
from broker.net.unfinished_input import UnfinishedInput

STOP_WITHIN = 5.0
"""Seconds that all connections together may take to close when the listener stops."""


class ConnectionFactory(Factory):
    """One listener: its limits, and its connections, which a subclass makes.

    ``wire`` names the protocol, in counters and the log; ``half_close`` says that the transport can end its output
    alone (TCP and unix can, TLS cannot).
    """

    noisy = False

    def __init__(
        self,
        wire: str,
        limits: ConnectionLimits,
        turns: Turns,
        complaints: Complaints,
        clock: IReactorTime,
        half_close: bool = True,
    ) -> None:
        self.wire = wire
        self.limits = limits
        self.turns = turns
        self.complaints = complaints
        self.clock = clock
        self.half_close = half_close
        self.connections: set[StreamConnection] = set()
        self.port: Accepting | None = None
        self.logins: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("too_slow"))
        self.stalls: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("stalled"))
        self.closes: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("unclosed"))
        self.lingering: Deadlines[StreamConnection] = Deadlines(clock, methodcaller("close"))
        self._rates: Rates[str] = Rates(clock)
        self._by_address: dict[str, int] = {}  # connections that were not turned away; no address has none
        self.unfinished = UnfinishedInput()
        self._full = False
        self.stopping = False
        self._emptied: Deferred[None] | None = None
        self._end_of_stop: IDelayedCall | None = None

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> StreamConnection:
        """A new connection from there. One that is ``turned_away`` refuses that itself when it is made."""
        raise NotImplementedError

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        host, port, local = _where(addr)
        limits = self.limits
        turned_away = None
        if limits.connections_per_address and self._by_address.get(host, 0) >= limits.connections_per_address:
            turned_away = Refusal(Reason.TOO_MANY_CONNECTIONS, "this address has too many connections: closing")
        elif not local and limits.rate and not self._rates.take(host, limits.rate, limits.burst):
            turned_away = Refusal(Reason.TOO_MANY_CONNECTIONS, "this address connects too often: closing")
        connection = self.make(host, port, local, turned_away)
        if turned_away is None:
            connection.source = host
        return connection

    def connected(self, connection: StreamConnection, authenticated: bool = False) -> None:
        """One more; while there are as many as may be, further ones wait in the kernel's queue.

        But a connection that is being closed gives its place away: a peer which is turned away, and does not close,
        would otherwise keep peers of other addresses out for as long as an orderly close may take.
        """
        self.connections.add(connection)
        if connection.source:
            self._by_address[connection.source] = self._by_address.get(connection.source, 0) + 1
        if self.limits.authenticate_within and not authenticated:
            self.logins.add(connection, self.limits.authenticate_within)
        if len(self.connections) >= self.limits.connections and self.port is not None and not self._full:
            closing = self.closes.first()
            if closing is not None:
                self.closes.discard(closing)
                closing.abort()
                return
            self._full = True
            self.complaints.count(f"{self.wire}_accept", "paused")
            text = f"all {self.limits.connections} connections of the listener are taken: further ones wait"
            self.complaints.add(self.wire, connection.host, Refusal(Reason.TOO_MANY_CONNECTIONS, text))
            self.port.stopReading()

    def disconnected(self, connection: StreamConnection) -> None:
        """One fewer."""
        self.connections.discard(connection)
        if connection.source:
            self._left(connection.source)
        for deadlines in (self.logins, self.stalls, self.closes, self.lingering):
            deadlines.discard(connection)
        if self._full:
            self._accept_again()
        if self._emptied is not None and not self.connections:
            if self._end_of_stop is not None:
                self._end_of_stop.cancel()
                self._end_of_stop = None
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def _left(self, host: str) -> None:
        remaining = self._by_address[host] - 1
        if remaining:
            self._by_address[host] = remaining
        else:
            del self._by_address[host]

    def limit(self, limits: ConnectionLimits) -> None:
        """Other limits from now on."""
        self.limits = limits
        self._accept_again()

    def _accept_again(self) -> None:
        if self._full and self.port is not None and len(self.connections) < self.limits.connections:
            self._full = False
            self.port.startReading()

    def close(self) -> Deferred[None]:
        """Close all connections in good order. Fires when they are closed, some seconds later at most."""
        self.port = None
        self.stopping = True
        if not self.connections:
            return succeed(None)
        emptied: Deferred[None] = Deferred()
        self._emptied = emptied
        self._end_of_stop = self.clock.callLater(STOP_WITHIN, self._cut_off)
        for connection in list(self.connections):
            connection.close()
        return emptied

    def _cut_off(self) -> None:
        """The time of the stop is over."""
        self._end_of_stop = None
        for connection in list(self.connections):
            connection.abort()


class Accepting(TypingProtocol):
    """A listening port that can be told not to accept for a while."""

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


def _where(addr: IAddress | None) -> tuple[str, int, bool]:
    """Host, port (0 if none), and True for this machine."""
    if isinstance(addr, IPv4Address | IPv6Address):
        host = addr.host
        return host, addr.port, host.startswith(("127.", "::ffff:127.")) or host == "::1"
    return "unix", 0, isinstance(addr, UNIXAddress)
