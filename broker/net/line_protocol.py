"""Text protocols over a byte stream: one `LineProtocol` for each connection, one `LineFactory` for each listener.

The factory's ``converse`` creates the reader, which decodes bytes to messages, and the session, which answers them.
`broker.net.connection` and `broker.net.admission` implement the rest.

Invariant: no input is handled before the connection is identified as text (`broker.net.first_bytes`), since any web
page can make a browser send lines of the page's choice to a port of this machine.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.place_table import Pool
from broker.core.rates import Bucket
from broker.net.admission import ConnectionFactory
from broker.net.connection import StreamConnection
from broker.net.connection_limits import ConnectionLimits
from broker.net.connection_states import OPENING
from broker.net.first_bytes import Opening, opening
from broker.net.peer_interfaces import MessageReader, PeerSession
from broker.net.refusal_log import MAX_SHOWN, RefusalLog
from broker.net.scheduler import Scheduler

MAX_OPENING = 8_192
"""Bytes of a first line that may still become an HTTP request: request lines of browsers are not longer. A message
begins with a brace, and is identified at once."""

NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port does not speak HTTP.\n"
)

DEBUG_AT_ONCE = 100
DEBUG_A_SECOND = 10.0
"""Rate limit for the lines that a peer writes to the log by `debug`; lines beyond it are counted, not logged."""


class LineProtocol(StreamConnection):
    """One connection. It is the `broker.net.peer_interfaces.Peer` of its session."""

    factory: LineFactory
    log = Logger()

    # Class attributes as defaults: an idle connection has no instance entries for them, which saves memory.
    life = OPENING
    _opening = b""  # input before the protocol is identified
    _debugs: Bucket | None = None

    def __init__(self, factory: LineFactory, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        super().__init__(factory, host, port, local, turned_away)
        self.reader, self._session = factory.converse(self)
        self.receive = self._session.receive

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        # they refer to this connection: without the cycle, no garbage collection is needed
        del self._session, self.receive

    def connection_ready(self) -> None:
        self._session.begin()

    def malformed(self, malformed: Malformed) -> None:
        self._session.malformed(malformed)

    def refuse(self, refusal: Refusal) -> None:
        self._session.refuse(refusal)

    def input_ended(self) -> bool:
        return self._session.input_ended()

    @property
    def needed(self) -> bool:
        return self._session.needed

    def lost(self) -> None:
        self._session.lost()

    def opened(self, data: bytes) -> bytes:
        """Identify the protocol; see `StreamConnection.opened`. HTTP and binary openings are refused."""
        if self.factory.guarded and (self._opening or not data.startswith(b"{")):
            data = self._opening + data
            # NUL bytes are telnet's own: it sends CR NUL for a bare CR.
            verdict = opening(data.translate(None, b"\0"))
            self._opening = data if verdict is Opening.UNDECIDED else b""
            if verdict is not Opening.TEXT:
                if verdict is Opening.HTTP:
                    self.refused(Refusal(Reason.SYNTAX, "a request of HTTP, on a port that does not speak it"))
                    self.write(NOT_HTTP)
                    self.close()
                elif verdict in (Opening.BINARY, Opening.PROXY):
                    self.refused(Refusal(Reason.SYNTAX, f"the connection begins with {verdict.value}"))
                    self.close()
                elif len(data) > MAX_OPENING:
                    self._session.refuse(Refusal(Reason.TOO_LARGE, "the first line is too long, and no message"))
                return b""
        self.life = self.life.on_identified
        return data

    def debug(self, label: str, text: str) -> None:
        """Log a line that the peer sent for the log."""
        now = self.factory.clock.seconds()
        if self._debugs is None:
            self._debugs = Bucket(DEBUG_AT_ONCE, now)
        if self._debugs.take(DEBUG_A_SECOND, DEBUG_AT_ONCE, now):
            shown = text[:MAX_SHOWN]
            self.log.info("debug from {label} at {address}: {text}", label=label, address=self.address, text=shown)
        else:
            self.factory.refusal_log.count(f"{self.factory.wire}_debug", "not-logged")


class LineFactory(ConnectionFactory):
    """One listener of a text protocol.

    ``converse`` creates the reader and the session of a new peer. With ``guarded``, browser connections are refused
    here; otherwise the protocol checks for them.
    """

    def __init__(
        self,
        wire: str,
        converse: Callable[[LineProtocol], tuple[MessageReader, PeerSession]],
        limits: ConnectionLimits,
        turns: Scheduler,
        refusal_log: RefusalLog,
        clock: IReactorTime,
        half_close: bool = True,
        guarded: bool = True,
        pool: Pool | None = None,
        forwards: bool = False,
    ) -> None:
        super().__init__(wire, limits, turns, refusal_log, clock, half_close, pool)
        self.converse = converse
        self.forwards = forwards
        self.guarded = guarded

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> LineProtocol:
        return LineProtocol(self, host, port, local, turned_away)
