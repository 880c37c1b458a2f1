"""Text protocols over a byte stream (TCP, TLS, unix): one `LineProtocol` for each connection, one factory a listener.

The way of a message: `LineProtocol.dataReceived` → `Reader.feed` → session → registry → session → `LineProtocol.write`.

Rules:
- Input is handled by the scheduler (`turns.py`), a quantum of time at a go.
- Output is gathered while input is handled, and written at once when that is done. What another connection must receive
  first (`write_first`) is written before.
- While a peer does not read, nothing more of it is handled or read. What it must be told meanwhile (notices) is kept up
  to a limit; over it, or when it has read nothing for a time, it is disconnected.
- A close is orderly: what is still to be sent goes first, then the end of output; input is read and thrown away until
  the peer closes too, since closing a socket with unread input resets it and may lose the last words. All that has a
  deadline.
- The peer's end of input is not the end of output: it gets the answers to what it sent.
- A connection that begins as a browser's does is turned away before anything of it is handled (`wire/opening.py`): any
  web page can make a browser send lines of the page's choice to a port of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any
from typing import Protocol as TypingProtocol

import attrs
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.direct import nothing_waits, plain_socket, send_now, unsent
from broker.net.limits import MAX_SHOWN, Bucket, Complaints, Deadlines, Rates
from broker.net.scheduled import STRIKES, Scheduled
from broker.net.turns import Turns
from broker.session.peer import Reader, Session
from broker.wire.opening import Opening, opening

BATCH = 65_536
"""Bytes of output after which it is written, and a quantum ends: one full send, and no more than a few ms of work."""

OPENING = 8_192
"""Bytes of a first line of which it is not known yet whether it is a request of HTTP: browsers' request lines are no
longer. A message begins with a brace, and so is known to be none at once."""

NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port does not speak HTTP.\n"
)

CLOSE_WITHIN = 2.0
"""Seconds that a peer may take to close, after all of our output was sent. It needs one round trip."""

STOP_WITHIN = 5.0
"""Seconds that all connections together may take to close when the listener stops."""

HALF_CLOSED = 60.0
"""Seconds for which a peer that sends no more may still wait for answers to its finds."""

SHORT = 4_096
"""Bytes of a read that an ordinary peer sends: a registration or some finds. What has more waits for the rounds."""

CHEAP, UNWATCHED = 0.000_02, 8
"""Seconds that a message takes at most where the clock is looked at only after so many: looking costs a tenth of a
microsecond, and a ping one."""

UNFINISHED = 256 * 1024 * 1024
"""Bytes of unfinished lines and blocks that a listener's connections may hold together; ordinary ones hold none."""

REFUSALS_AT_ONCE = 100
REFUSALS_A_SECOND = 10.0
"""A peer whose messages are refused more often than this is not speaking the protocol, and is disconnected."""

DEBUG_AT_ONCE = 100
DEBUG_A_SECOND = 10.0
"""Lines a peer may write to the log by `debug`; those above are counted, not logged."""


@attrs.frozen
class Limits:
    """What the peers of one listener may take; see the configuration for meanings and units."""

    connections: int = 20_000
    rate: float = 100.0
    burst: float = 1_000
    authenticate_within: float = 0.0
    write_buffer: int = 4 * 1024 * 1024
    stalled_after: float = 30.0
    http_timeout: float = 15.0
    http_select_wait: float = 60.0
    rtcp_timeout: float = 60.0
    rtcp_disconnected: float = 30.0
    rtcp_backlog: int = 64_000


@implementer(IHalfCloseableProtocol, IPushProducer)
class LineProtocol(Scheduled, Protocol):
    """One connection. To its session it is the `broker.session.peer.Peer`."""

    factory: LineFactory
    transport: Any  # an ITCPTransport that is a producer and a consumer
    log = Logger()

    # Class attributes: most connections never change them, which makes an idle one small.
    _out_size = 0
    _direct = False  # a plain socket: output may be given to the kernel at once
    _serving = False  # handling messages: output is gathered
    _enough = False  # this quantum wrote a batch, and ends
    _flushing = False  # will be flushed in the next turn
    _first = False  # will be flushed before anything else is written
    _authenticated = False
    _paused = False  # the peer does not read
    _input_ended = False
    _lingering = False  # for answers, after the end of input
    _closing = False
    _begun = False  # the first line is none of a browser's
    _opening = b""  # what was read before that is known
    _socket: Connection | None = None  # the connection below everything else
    _unsent = 0  # how much was unsent when its time to read or to close began
    _pending = 0  # bytes of an unfinished line or block, as accounted
    _refusals: Bucket | None = None
    _debugs: Bucket | None = None

    def __init__(self, factory: LineFactory, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        self.factory = factory
        self.host = host
        self.port = port
        self.local = local
        self._turned_away = turned_away
        self._out: list[bytes] = []
        self._reader, self._session = factory.converse(self)

    # from the transport

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._socket = plain_socket(self.transport)
        self._direct = self._socket is self.transport
        if self._direct and not self._authenticated:
            self.transport.bufferSize = SHORT  # nobody has much to say before it says who it is
        self.factory.connected(self, self._authenticated)
        if self._turned_away is not None:
            self._session.refuse(self._turned_away)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            self._throw_away()
            return
        if not self._begun:
            data = self._opened(data)
            if not data:
                return
        if self._rest is not None or self._paused:
            self.take(data)
            return
        # As `take`, without its calls: this is done for each read.
        self._rest = self._reader.feed(data)
        self._queued = True
        self.factory.turns.serve(self, self._ordinary(data), not self._authenticated)
        if self._rest is not None:
            self._stop_reading()

    def readConnectionLost(self) -> None:
        self._input_ended = True
        if self._closing:
            self.transport.loseConnection()
        elif self._rest is None:
            self._end_of_input()

    def writeConnectionLost(self) -> None:
        """Our own end of output: all is sent. `connectionLost` follows when the peer closes too."""
        self.factory.closes.add(self, CLOSE_WITHIN)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self.drop()
        self._out.clear()
        self._session.lost()
        self.factory.unfinished -= self._pending
        self._pending = 0
        del self._session, self._reader  # they know us, and would wait for the garbage collector with us
        self.factory.disconnected(self)

    def pauseProducing(self) -> None:
        self._paused = True
        self._watch_progress()
        self._stop_reading()

    def resumeProducing(self) -> None:
        self._paused = False
        self.factory.stalls.discard(self)
        self.flush()
        if not self._paused and not self._closing and not self._serving:
            self.go_on()

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    # from the scheduler

    def steps(self, data: bytes) -> Iterator[Any]:
        """The messages in ``data``: handled as they are asked for, in `serve`."""
        return self._reader.feed(data)

    def held_up(self) -> bool:
        """True if the peer does not read."""
        return self._paused

    def serve(self) -> bool:
        """Handle what was read until the quantum is over. Returns whether there is more."""
        rest = self._rest
        if rest is None or self._paused:
            self._queued = False
            if self._closing:
                self.transport.resumeProducing()
            return False
        self._serving = True
        self._enough = False
        session, turns = self._session, self.factory.turns
        left = turns.left
        before, step, unwatched = left(), 1, 1
        for item in rest:
            try:
                if item.__class__ is Malformed:
                    session.malformed(item)
                else:
                    session.receive(item)
            except Exception:
                self.factory.complaints.failed(self.factory.wire, self.host)
                session.refuse(Refusal(Reason.INTERNAL, "the broker failed on this message; its log says more"))
            if self._enough or self._paused or self._closing:
                break
            unwatched -= 1
            if not unwatched:
                now = left()
                if now <= 0:
                    break
                step = unwatched = UNWATCHED if before - now < step * CHEAP else 1
                before = now
        else:
            self._rest = self._reader.feed(self._held) if self._held else None
            self._held = b""
        self._serving = False
        if self._out or turns.first:
            self.flush()
        if self._closing or self._reader.pending != self._pending:
            self._account()
        if self._rest is None:
            self._queued = False
            if (self._stopped_reading or self._input_ended) and not self._closing and not self._paused:
                self._read_on()
            return False
        self._stop_reading()
        self._queued = not self._paused
        return self._queued

    def flush(self) -> None:
        """Write what was gathered, unless the peer does not read. What others must receive first goes before."""
        hurried, self._first, self._flushing = self._first, False, False
        if self.factory.turns.first:
            self.factory.turns.flush_first()
        while self._out and not self._paused and not self._closing:
            data = self._take()
            if self._direct:
                data = send_now(self.transport, data)
            if data:
                self.transport.write(data)
        if hurried and not self._direct:
            push = getattr(self.transport, "push", None)
            if push is not None:
                push()

    # from the session

    @property
    def address(self) -> str:
        """Where the peer comes from."""
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def behind(self) -> bool:
        """Whether it has still to read much of what it was sent."""
        return self._paused or self._out_size >= BATCH or getattr(self.transport, "behind", False)

    def write(self, data: bytes) -> None:
        """Send one encoded message."""
        self._out.append(data)
        self._out_size += len(data)
        if self._serving and self._out_size < BATCH:
            return
        if self._closing:
            self._out.clear()
        elif self._paused:
            if self._out_size > self.factory.limits.write_buffer:
                self.not_reading()
        elif self._serving:
            self._enough = True
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self.factory.turns.flush_later(self)

    def write_first(self, data: bytes) -> None:
        """Send one encoded message before all that any connection is sent from now on."""
        self.write(data)
        if self._out and not self._first and not self._paused:
            self._first = True
            self.factory.turns.flush_before(self)

    def close(self) -> None:
        """Send what is still to be sent, and close in good order."""
        if self._closing:
            return
        if self._out:
            self.factory.turns.flush_first()
            self.transport.write(b"".join(self._out))
        self._closing = True
        self._session.lost()
        if self._input_ended and self._direct and nothing_waits(self.transport):
            self.transport.connectionLost(connectionDone)
            return
        self._out.clear()
        self.drop()
        self.factory.logins.discard(self)
        self.transport.unregisterProducer()
        if self._input_ended or not self.factory.half_close:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()
        if self._stopped_reading and not self._input_ended:
            self.transport.resumeProducing()  # to see the end of input
        self._close_in_time()

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns whether the peer may go on: one that collects them may not."""
        self.factory.complaints.add(self.factory.wire, self.host, refusal)
        now = self.factory.clock.seconds()
        if self._refusals is None:
            self._refusals = Bucket(REFUSALS_AT_ONCE, now)
        return self._refusals.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, now)

    def debug(self, label: str, text: str) -> None:
        """Log what the peer sent for the log."""
        now = self.factory.clock.seconds()
        if self._debugs is None:
            self._debugs = Bucket(DEBUG_AT_ONCE, now)
        if self._debugs.take(DEBUG_A_SECOND, DEBUG_AT_ONCE, now):
            shown = text[:MAX_SHOWN]
            self.log.info("debug from {label} at {address}: {text}", label=label, address=self.address, text=shown)
        else:
            self.factory.complaints.count(f"{self.factory.wire}_debug", "not-logged")

    def authenticated(self) -> None:
        """It said who it is: it may stay. A session may know that before the connection is made."""
        self._authenticated = True
        self.factory.logins.discard(self)
        if self._direct:
            self.transport.bufferSize = Connection.bufferSize

    # from the deadlines

    def too_slow(self) -> None:
        """It did not authenticate in time."""
        self._session.refuse(Refusal(Reason.TOO_SLOW_TO_AUTHENTICATE, "no auth in time: closing"))

    def not_reading(self) -> None:
        """It does not read what it is sent."""
        refusal = Refusal(Reason.NOT_READING, "it does not read what it is sent: disconnected")
        self.factory.complaints.add(self.factory.wire, self.host, refusal)
        self._closing = True
        self._out.clear()
        self.abort()

    def stalled(self) -> None:
        """Its time to read is over: it gets as much again if it read something."""
        if self._unsent == unsent(self._socket):
            self.not_reading()
        else:
            self._watch_progress()

    def unclosed(self) -> None:
        """Its time to close is over; the same if it still reads what was to be sent before."""
        if not self.factory.stopping and unsent(self._socket) and self._unsent != unsent(self._socket):
            self._close_in_time()
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, and lose what was not sent."""
        self.transport.abortConnection()

    # inside

    def _take(self) -> bytes:
        """A batch of what was gathered, or all of it. (A peer that does not read shall not cost copies of the rest.)"""
        out = self._out
        if self._out_size <= 2 * BATCH:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
        else:
            sizes = accumulate(len(part) for part in out)
            count = next((i for i, size in enumerate(sizes, 1) if size >= BATCH), len(out))
            data = b"".join(out[:count])
            del out[:count]
        self._out_size -= len(data)
        return data

    def _throw_away(self) -> None:
        """Read no more until the next turn: what comes after a close costs its time, too."""
        if not self._queued:
            self._queued = True
            self.transport.pauseProducing()
            self.turns.serve_later(self)

    def _opened(self, data: bytes) -> bytes:
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
                elif len(data) > OPENING:
                    self._session.refuse(Refusal(Reason.TOO_LARGE, "the first line is too long, and no message"))
                return b""
        self._begun = True
        return data

    def _end_of_input(self) -> None:
        if self._lingering:
            return
        if self._session.input_ended():
            self._lingering = True
            self.factory.lingering.add(self, HALF_CLOSED)
        else:
            self.close()

    def _watch_progress(self) -> None:
        self._unsent = unsent(self._socket)
        self.factory.stalls.add(self, self.factory.limits.stalled_after)

    def _close_in_time(self) -> None:
        self._unsent = unsent(self._socket)
        self.factory.closes.add(self, self.factory.limits.stalled_after)

    def _ordinary(self, data: bytes) -> bool:
        """Whether the peer sends little, causes little work, and was not refused anything of late."""
        if len(data) > SHORT or self._pending > SHORT or self._strikes >= STRIKES:
            return False
        if self._refusals is not None:
            if not self._refusals.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self.factory.clock.seconds()):
                return False
            self._refusals = None
        return True

    def _account(self) -> None:
        """Keep the sum of unfinished input, and refuse more where it is over the limit."""
        pending = 0 if self._closing else self._reader.pending
        if pending != self._pending:
            factory = self.factory
            factory.unfinished += pending - self._pending
            grown = pending > max(self._pending, SHORT)
            self._pending = pending
            if grown and factory.unfinished > UNFINISHED:
                text = "too much unfinished input is held for all peers together: closing"
                self._session.refuse(Refusal(Reason.TOO_LARGE, text))

    def pause_reading(self) -> None:
        """Tell the transport to read no more for now."""
        if not self._closing:
            self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Tell the transport to read on."""
        self.transport.resumeProducing()

    def _read_on(self) -> None:
        super()._read_on()
        if self._input_ended:
            self._end_of_input()


class LineFactory(Factory):
    """One listener: its limits, and its connections.

    ``wire`` names what is spoken, in counters and the log; ``converse`` makes the reader and the session of a new peer.
    ``half_close`` says that the transport can end its output alone (TCP and unix can, TLS cannot); ``guarded`` that
    connections which begin as a browser's do are turned away here. Otherwise what is spoken sees to that.
    """

    noisy = False

    def __init__(
        self,
        wire: str,
        converse: Callable[[LineProtocol], tuple[Reader, Session]],
        limits: Limits,
        turns: Turns,
        complaints: Complaints,
        clock: IReactorTime,
        half_close: bool = True,
        guarded: bool = True,
    ) -> None:
        self.wire = wire
        self.guarded = guarded
        self.converse = converse
        self.limits = limits
        self.turns = turns
        self.complaints = complaints
        self.clock = clock
        self.half_close = half_close
        self.connections: set[LineProtocol] = set()
        self.port: Accepting | None = None
        self.logins: Deadlines[LineProtocol] = Deadlines(clock, LineProtocol.too_slow)
        self.stalls: Deadlines[LineProtocol] = Deadlines(clock, LineProtocol.stalled)
        self.closes: Deadlines[LineProtocol] = Deadlines(clock, LineProtocol.unclosed)
        self.lingering: Deadlines[LineProtocol] = Deadlines(clock, LineProtocol.close)
        self._rates: Rates[str] = Rates(clock)
        self.unfinished = 0
        self._full = False
        self.stopping = False
        self._emptied: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        host, port, local = _where(addr)
        limits = self.limits
        turned_away = None
        if not local and limits.rate and not self._rates.take(host, limits.rate, limits.burst):
            turned_away = Refusal(Reason.TOO_MANY_CONNECTIONS, "this address connects too often: closing")
        return LineProtocol(self, host, port, local, turned_away)

    def connected(self, connection: LineProtocol, authenticated: bool = False) -> None:
        """One more; while there are as many as may be, further ones wait in the kernel's queue."""
        self.connections.add(connection)
        if self.limits.authenticate_within and not authenticated:
            self.logins.add(connection, self.limits.authenticate_within)
        if len(self.connections) >= self.limits.connections and self.port is not None and not self._full:
            self._full = True
            self.complaints.count(f"{self.wire}_accept", "paused")
            self.port.stopReading()

    def disconnected(self, connection: LineProtocol) -> None:
        """One fewer."""
        self.connections.discard(connection)
        for deadlines in (self.logins, self.stalls, self.closes, self.lingering):
            deadlines.discard(connection)
        if self._full:
            self._accept_again()
        if self._emptied is not None and not self.connections:
            self._emptied.callback(None)
            self._emptied = None

    def limit(self, limits: Limits) -> None:
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
        for connection in list(self.connections):
            connection.close()
            self.closes.add(connection, STOP_WITHIN)
        return emptied


class Accepting(TypingProtocol):
    """A listening port that can be told not to accept for a while."""

    def stopReading(self) -> None: ...
    def startReading(self) -> None: ...


def _where(addr: IAddress | None) -> tuple[str, int, bool]:
    """Host, port (0 if none) and whether it is this machine."""
    if isinstance(addr, IPv4Address | IPv6Address):
        host = addr.host
        return host, addr.port, host.startswith(("127.", "::ffff:127.")) or host == "::1"
    return "unix", 0, isinstance(addr, UNIXAddress)
