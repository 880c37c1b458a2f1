"""The life of one connection over a byte stream (TCP, TLS, unix), whatever is spoken on it.

`StreamConnection` is the base of every protocol that listens on a stream. The way of a message: `dataReceived` →
``reader.feed`` → `receive` → the session → `write`.

Rules:
- Input is handled by the scheduler (`scheduler.py`), a quantum of time at a go.
- Output is gathered while input is handled, and written at once when that is done. What another connection must receive
  first (`write_first`) is written before.
- While a peer does not read, nothing more of it is handled or read. What it must be told meanwhile (notices) is kept up
  to a limit; over it, or when it has read nothing for a time, it is disconnected.
- A close is orderly: output that waits goes first, then the end of output; input is read and thrown away until
  the peer closes too, since closing a socket with unread input resets it and may lose the last words. All that has a
  deadline.
- The peer's end of input is not the end of output: it gets the answers to its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.epoll_streams import TcpStream
from broker.net.fast_write import nothing_waits, plain_socket, send_now, unsent
from broker.net.interfaces.peer import Reader
from broker.net.rate_limits import Bucket
from broker.net.scheduled_input import STRIKES, Scheduled
from broker.net.unfinished_input import SHORT

if TYPE_CHECKING:
    from broker.net.admission import ConnectionFactory


class NoReader:
    """The reader of a connection that is closed: an unfinished message is freed with the other reader."""

    pending = 0

    def feed(self, data: bytes) -> Iterator[Any]:
        """Nothing."""
        return iter(())


NO_READER = NoReader()

BATCH = 65_536
"""Bytes of output after which it is written, and a quantum ends: one full send, and no more than a few ms of work."""

READ, BULK_READ = Connection.bufferSize, 4 * Connection.bufferSize
"""Bytes of a read from a peer that has authenticated, and from one that fills its reads while no other has to wait."""

CLOSE_WITHIN = 2.0
"""Seconds that a peer may take to close, after all of our output was sent. It needs one round trip."""

HALF_CLOSED = 60.0
"""Seconds for which a peer that sends no more may still wait for answers to its finds."""

CHEAP, UNWATCHED = 0.000_02, 8
"""Seconds that a message takes at most where the clock is looked at only after so many: looking costs a tenth of a
microsecond, and a ping one."""

REFUSALS_AT_ONCE = 100
REFUSALS_A_SECOND = 10.0
"""A peer whose messages are refused more often than this is not speaking the protocol, and is disconnected."""


@implementer(IHalfCloseableProtocol, IPushProducer)
class StreamConnection(Scheduled, Protocol):
    """One connection, whose protocol is spoken by a subclass.

    A subclass sets ``reader`` and ``receive`` in its constructor (or has a method ``receive``), and overrides the
    methods under "given by a subclass". A message costs one step of the reader's iterator and one call of
    ``receive``.
    """

    factory: ConnectionFactory
    transport: Any  # an ITCPTransport that is a producer and a consumer

    reader: Reader
    """Bytes to items, of which each is a whole message. What ``feed`` returns is read as far as the quantum lasts, and
    the rest in later turns. An item of the class `Malformed` is given to `malformed`. `None` is a step that completes
    no message, and is given to nothing."""

    receive: Callable[[Any], None]
    """Handles one item. An exception costs this item alone: it is logged, and `refuse` is called."""

    source = ""
    """The address for which it counts in the limit of its listener, as the factory knew it when it was accepted. It
    stays, while ``host`` may become another name for the peer. Empty where the factory does not count it."""

    # Class attributes: most connections never change them, which makes an idle one small.
    _out_size = 0
    _direct = False  # a plain socket: output may be given to the kernel at once
    _serving = False  # handling messages: output is gathered
    _enough = False  # this quantum wrote a batch, and ends
    _flushing = False  # will be flushed in the next turn
    _first = False  # will be flushed before anything else is written
    _authenticated = False
    _paused = False  # the peer does not read
    _bulk = False  # the last read was full: larger ones are made
    _input_ended = False
    _lingering = False  # for answers, after the end of input
    _closing = False
    _begun = True  # the first input is known to be of this protocol, see `opened`
    _socket: Connection | None = None  # the connection below everything else
    _unsent = 0  # bytes that were unsent when its time to read or to close began
    _pending = 0  # bytes of an unfinished message, as accounted
    _refusals: Bucket | None = None

    def __init__(
        self, factory: ConnectionFactory, host: str, port: int, local: bool, turned_away: Refusal | None
    ) -> None:
        self.factory = factory
        self.host = host
        self.port = port
        self.local = local
        self.turned_away = turned_away
        """The reason for which the factory refused this connection when it was accepted."""
        self._out: list[bytes] = []

    # given by a subclass

    def opened(self, data: bytes) -> bytes:
        """All that was read since the beginning, once it is known to be of this protocol; nothing before, nor if not.

        Called for each read until it sets ``_begun``; a protocol that wants this begins with ``_begun = False``.
        """
        self._begun = True
        return data

    def connection_ready(self) -> None:
        """The connection is made, and was not turned away. Nothing has been read yet."""

    def malformed(self, malformed: Malformed) -> None:
        """Take input that the reader could not read."""
        self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Report a refusal to the peer, and close if it is fatal, or one too many."""
        if not self.refused(refusal) or refusal.reason.fatal:
            self.close()

    def input_ended(self) -> bool:
        """The peer will send no more, and all that it sent was handled. Returns True if answers are still to come.

        Then the connection stays for `HALF_CLOSED` at most; otherwise it is closed.
        """
        return False

    def lost(self) -> None:
        """The connection is gone, or is about to be closed: its last words may be written. May be called twice."""

    # from the transport

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._socket = plain_socket(self.transport)
        self._direct = self._socket is self.transport
        if isinstance(self._socket, TcpStream):
            self._socket.crowd = self.factory.turns
        if self._direct and not self._authenticated:
            self.transport.bufferSize = SHORT  # a peer has little to send before it authenticates
        self.factory.connected(self, self._authenticated)
        if self.turned_away is not None:
            self.refuse(self.turned_away)
        else:
            self.connection_ready()

    def dataReceived(self, data: bytes) -> None:
        if len(data) >= READ or self._bulk:
            self._adapt(len(data))
        if self._closing:
            self._throw_away()
            return
        if not self._begun:
            data = self.opened(data)
            if not data:
                return
        if self._rest is not None or self._paused:
            self.take(data)
            return
        # As `take`, without its calls: this is done for each read.
        self._rest = self.reader.feed(data)
        self._queued = True
        ordinary = len(data) <= SHORT and self._pending <= SHORT and self._strikes < STRIKES
        if self._refusals is not None:
            ordinary = ordinary and self._forgiven()
        # An ordinary peer sends little, causes little work, and was not refused anything of late.
        self.factory.turns.serve(self, ordinary, not self._authenticated)
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
        self.lost()
        self._let_go()
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
        """The items in ``data``: handled as they are asked for, in `serve`."""
        return self.reader.feed(data)

    def held_up(self) -> bool:
        """True if the peer does not read."""
        return self._paused

    def serve(self) -> bool:
        """Handle input until the quantum is over. Returns True if there is more."""
        rest = self._rest
        if rest is None or self._paused:
            self._queued = False
            if self._closing:
                self.transport.resumeProducing()
            return False
        self._serving = True
        self._enough = False
        receive, turns = self.receive, self.factory.turns
        left = turns.left
        before, step, unwatched = turns.given, 1, 1
        completed = False
        for item in rest:
            if item is not None:
                try:
                    if item.__class__ is Malformed:
                        self.malformed(item)
                    else:
                        receive(item)
                except Exception:
                    self.failed()
                    if not self._closing:
                        self.refuse(Refusal(Reason.INTERNAL, "the broker failed on this message; its log says more"))
                completed = True
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
            self._rest = self.reader.feed(self._held) if self._held else None
            self._held = b""
        self._serving = False
        if self._out or turns.first:
            self.flush()
        pending = self.reader.pending
        if pending > SHORT or self._pending:
            self._account(pending, completed)
        if self._rest is None:
            self._queued = False
            if (self._stopped_reading or self._input_ended) and not self._closing and not self._paused:
                self._read_on()
            return False
        self._stop_reading()
        self._queued = not self._paused
        return self._queued

    def flush(self) -> None:
        """Write gathered output, unless the peer does not read. Output that others must receive first goes before."""
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

    # from the session, or the subclass itself

    @property
    def address(self) -> str:
        """The address of the peer, with its port if it has one."""
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def behind(self) -> bool:
        """True if the peer has still to read much of its output."""
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
        """Send output that waits, and close in good order."""
        if self._closing:
            return
        if self._out:
            self.factory.turns.flush_first()
            self.transport.write(b"".join(self._out))
        self._closing = True
        self.lost()
        if self._input_ended and self._direct and nothing_waits(self.transport):
            self.transport.connectionLost(connectionDone)
            return
        self._out.clear()
        self.drop()
        self._let_go()
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
        """Count and log a refusal. Returns False if the peer has collected too many."""
        self.factory.complaints.add(self.factory.wire, self.host, refusal)
        now = self.factory.clock.seconds()
        if self._refusals is None:
            self._refusals = Bucket(REFUSALS_AT_ONCE, now)
        return self._refusals.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, now)

    def authenticated(self) -> None:
        """The peer has authenticated: it may stay, and larger reads are made. May be called before `connectionMade`."""
        self._authenticated = True
        self.factory.logins.discard(self)
        if self._direct:
            self.transport.bufferSize = Connection.bufferSize

    # from the limits and deadlines

    def evict(self, refusal: Refusal) -> None:
        """Refuse its unfinished message: too much is held, and this message began first."""
        self.refuse(refusal)

    def too_slow(self) -> None:
        """It did not authenticate in time."""
        self.refuse(Refusal(Reason.TOO_SLOW_TO_AUTHENTICATE, "no auth in time: closing"))

    def not_reading(self) -> None:
        """Disconnect it, since it does not read."""
        refusal = Refusal(Reason.NOT_READING, "it does not read what it is sent: disconnected")
        self.factory.complaints.add(self.factory.wire, self.host, refusal)
        self._closing = True
        self._out.clear()
        self._let_go()
        self.abort()

    def stalled(self) -> None:
        """Its time to read is over: it gets as much again if it read something."""
        if self._unsent == unsent(self._socket):
            self.not_reading()
        else:
            self._watch_progress()

    def unclosed(self) -> None:
        """Its time to close is over; it gets as much again if it still reads."""
        if not self.factory.stopping and unsent(self._socket) and self._unsent != unsent(self._socket):
            self._close_in_time()
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, and lose unsent output."""
        self.transport.abortConnection()

    # inside

    def _take(self) -> bytes:
        """Take a batch of gathered output, or all of it: a peer that reads slowly costs no copies of the rest."""
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

    def _adapt(self, size: int) -> None:
        """Make larger reads while a peer fills them, and no other waits: a read costs as much as ten messages."""
        self._bulk = self._direct and self._authenticated and size >= READ and not self.factory.turns.busy
        if self._direct and self._authenticated:
            self.transport.bufferSize = BULK_READ if self._bulk else READ

    def _throw_away(self) -> None:
        """Read no more until the next turn: input after a close costs time, too."""
        if not self._queued:
            self._queued = True
            self.transport.pauseProducing()
            self.turns.serve_later(self)

    def _end_of_input(self) -> None:
        if self._lingering:
            return
        if self.input_ended():
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

    def _forgiven(self) -> bool:
        """True if the peer was not refused anything of late."""
        assert self._refusals is not None
        if not self._refusals.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self.factory.clock.seconds()):
            return False
        self._refusals = None
        return True

    def _let_go(self) -> None:
        """Free the unfinished message: nothing more is read."""
        self.reader = NO_READER  # the other one may know us, and would wait for the garbage collector with us
        if self._pending:
            self._pending = 0
            self.factory.unfinished.drop(self)

    def _account(self, pending: int, completed: bool) -> None:
        """Account for unfinished input, of a new message if one was ``completed``. This may close the connection."""
        self._pending = pending if pending > SHORT else 0
        self.factory.unfinished.hold(self, pending, completed)

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
