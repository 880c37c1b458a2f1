"""Text protocols over a byte stream: one `LineProtocol` for each connection, one `LineFactory` for each listener.

The factory's ``converse`` gives the protocol: a reader, which makes messages of bytes, and a session, which
answers them. All else is in `connection.py` and `admission.py`.

A connection that begins as a browser's does is turned away before anything of it is handled (`net/http_guard.py`): any
web page can make a browser send lines of the page's choice to a port of this machine.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.admission import ConnectionFactory
from broker.net.connection import StreamConnection
from broker.net.connection_states import OPENING
from broker.net.http_guard import Opening, opening
from broker.net.interfaces.limits import ConnectionLimits
from broker.net.interfaces.peer import Reader, Session
from broker.net.rate_limits import MAX_SHOWN, Bucket, Complaints
from broker.net.scheduler import Turns

MAX_OPENING = 8_192
"""Bytes of a first line that may still become a request of HTTP: browsers' request lines are no
longer. A message begins with a brace, and so is known to be none at once."""

NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port does not speak HTTP.\n"
)

DEBUG_AT_ONCE = 100
DEBUG_A_SECOND = 10.0
"""Lines a peer may write to the log by `debug`; those above are counted, not logged."""


class LineProtocol(StreamConnection):
    """One connection. To its session it is the `broker.net.interfaces.peer.Peer`."""

    factory: LineFactory
    log = Logger()

    # Class attributes: most connections never change them, which makes an idle one small.
    life = OPENING
    _opening = b""  # input before that is known
    _debugs: Bucket | None = None

    def __init__(self, factory: LineFactory, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        super().__init__(factory, host, port, local, turned_away)
        self.reader, self._session = factory.converse(self)
        self.receive = self._session.receive

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        del self._session, self.receive  # they know us, and would wait for the garbage collector with us

    def malformed(self, malformed: Malformed) -> None:
        self._session.malformed(malformed)

    def refuse(self, refusal: Refusal) -> None:
        self._session.refuse(refusal)

    def input_ended(self) -> bool:
        return self._session.input_ended()

    def lost(self) -> None:
        self._session.lost()

    def opened(self, data: bytes) -> bytes:
        """All that was read since the beginning, once it is known to be no browser's; nothing before, nor if it is."""
        if self.factory.guarded and (self._opening or not data.startswith(b"{")):
            data = self._opening + data
            verdict = opening(data.translate(None, b"\0"))
            self._opening = data if verdict is Opening.UNDECIDED else b""
            if verdict is not Opening.TEXT:
                if verdict is Opening.HTTP:
                    self.refused(Refusal(Reason.SYNTAX, "a request of HTTP, on a port that does not speak it"))
                    self.write(NOT_HTTP)
                    self.close()
                elif verdict is Opening.BINARY:
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
            self.factory.complaints.count(f"{self.factory.wire}_debug", "not-logged")


class LineFactory(ConnectionFactory):
    """One listener of a text protocol.

    ``converse`` makes the reader and the session of a new peer. ``guarded`` says that connections which begin as a
    browser's do are refused here; otherwise the protocol does that.
    """

    def __init__(
        self,
        wire: str,
        converse: Callable[[LineProtocol], tuple[Reader, Session]],
        limits: ConnectionLimits,
        turns: Turns,
        complaints: Complaints,
        clock: IReactorTime,
        half_close: bool = True,
        guarded: bool = True,
    ) -> None:
        super().__init__(wire, limits, turns, complaints, clock, half_close)
        self.converse = converse
        self.guarded = guarded

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> LineProtocol:
        return LineProtocol(self, host, port, local, turned_away)
