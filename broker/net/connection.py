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
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection_output import ConnectionOutput
from broker.net.connection_states import BLOCKED, BULK, ENDED, IDLE, OPEN, OPENING, SERVING, STRANGER, ReadState
from broker.net.epoll_streams import TcpStream
from broker.net.fast_write import nothing_waits, plain_socket, unsent
from broker.net.interfaces.peer import Reader
from broker.net.rate_limits import Bucket
from broker.net.scheduled_input import STRIKES
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
class StreamConnection(ConnectionOutput, Protocol):
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
    reads: ReadState = STRANGER
    _socket: Connection | None = None  # the connection below everything else
    _unsent = 0  # bytes that were unsent when its time to read or to close began
    _pending = 0  # bytes of an unfinished message, as accounted
    _refusals: Bucket | None = None

    def __init__(
        self, factory: ConnectionFactory, host: str, port: int, local: bool, turned_away: Refusal | None
    ) -> None:
        super().__init__()
        self.factory = factory
        self.host = host
        self.port = port
        self.local = local
        self.turned_away = turned_away
        """The reason for which the factory refused this connection when it was accepted."""

    # given by a subclass

    def opened(self, data: bytes) -> bytes:
        """All that was read since the beginning, once it is known to be of this protocol; nothing before, nor if not.

        Called for each read in the state `OPENING`, in which a protocol begins that sets ``life`` so in its class. The
        event `IDENTIFIED` ends that state.
        """
        self.life = self.life.on_identified
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
        authenticated = self.reads is not STRANGER
        if self._direct and not authenticated:
            self.transport.bufferSize = SHORT  # a peer has little to send before it authenticates
        self.factory.connected(self, authenticated)
        if self.turned_away is not None:
            self.refuse(self.turned_away)
        else:
            self.connection_ready()

    def dataReceived(self, data: bytes) -> None:
        if len(data) >= READ or self.reads is BULK:
            self._adapt(len(data))
        life = self.life
        if life is not OPEN:
            if life.closing:
                self._throw_away()
                return
            if life is OPENING:
                data = self.opened(data)
                if not data:
                    return
        if self._rest is not None or self.output is BLOCKED:
            self.take(data)
            return
        # As `take`, without its calls: this is done for each read.
        self._rest = self.reader.feed(data)
        self._queued = True
        ordinary = len(data) <= SHORT and self._pending <= SHORT and self._strikes < STRIKES
        if self._refusals is not None:
            ordinary = ordinary and self._forgiven()
        # An ordinary peer sends little, causes little work, and was not refused anything of late.
        self.factory.turns.serve(self, ordinary, self.reads is STRANGER)
        if self._rest is not None:
            self._stop_reading()

    def readConnectionLost(self) -> None:
        self.life = self.life.on_end_of_input
        if self.life.closing:
            self.transport.loseConnection()
        elif self._rest is None:
            self._end_of_input()

    def writeConnectionLost(self) -> None:
        """Our own end of output: all is sent. `connectionLost` follows when the peer closes too."""
        self.factory.closes.add(self, CLOSE_WITHIN)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.life = self.life.on_lose
        self.quantum = self.quantum.on_stop
        self.drop()
        self._out.clear()
        self.lost()
        self._let_go()
        self.factory.disconnected(self)

    def pauseProducing(self) -> None:
        self.output = self.output.on_pause
        self.quantum = self.quantum.on_stop
        self._watch_progress()
        self._stop_reading()

    def resumeProducing(self) -> None:
        self.output = self.output.on_resume
        self.factory.stalls.discard(self)
        self.flush()
        # The flush may have blocked the output again, and a quantum that goes on ends with the same steps.
        if self.output is not BLOCKED and not self.life.closing and self.quantum is IDLE:
            self.go_on()

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    # from the scheduler

    def steps(self, data: bytes) -> Iterator[Any]:
        """The items in ``data``: handled as they are asked for, in `serve`."""
        return self.reader.feed(data)

    def held_up(self) -> bool:
        """True if the peer does not read."""
        return self.output is BLOCKED

    def serve(self) -> bool:
        """Handle input until the quantum is over. Returns True if there is more."""
        rest = self._rest
        if rest is None or self.output is BLOCKED:
            self._queued = False
            if self.life.closing:
                self.transport.resumeProducing()
            return False
        self.quantum = self.quantum.on_begin
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
                    if not self.life.closing:
                        self.refuse(Refusal(Reason.INTERNAL, "the broker failed on this message; its log says more"))
                completed = True
            if self.quantum is not SERVING:
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
        self.quantum = self.quantum.on_end
        if self._out or turns.first:
            self.flush()
        pending = self.reader.pending
        if pending > SHORT or self._pending:
            self._account(pending, completed)
        if self._rest is None:
            self._queued = False
            life = self.life
            if (self._stopped_reading or life.input_ended) and not life.closing and self.output is not BLOCKED:
                self._read_on()
            return False
        self._stop_reading()
        self._queued = self.output is not BLOCKED
        return self._queued

    # from the session, or the subclass itself

    @property
    def address(self) -> str:
        """The address of the peer, with its port if it has one."""
        return f"{self.host}:{self.port}" if self.port else self.host

    def close(self) -> None:
        """Send output that waits, and close in good order."""
        if self.life.closing:
            return
        if self._out:
            self.factory.turns.flush_first()
            if self.life.closing:
                return  # its own output was among that, and its transport gave it up
        input_ended = self.life.input_ended
        # Before the last write, in which a transport may abort.
        self.life = self.life.on_close
        self.quantum = self.quantum.on_stop
        if self._out:
            self.transport.write(b"".join(self._out))
        self.lost()
        if input_ended and self._direct and nothing_waits(self.transport):
            # All is said in both directions: a close by the reactor would take another turn.
            self.transport.connectionLost(connectionDone)
            return
        self._out.clear()
        self.drop()
        self._let_go()
        self.factory.logins.discard(self)
        self.transport.unregisterProducer()
        if input_ended or not self.factory.half_close:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()
        if self._stopped_reading and not input_ended:
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
        self.reads = self.reads.on_authenticate
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
        self.life = self.life.on_abort
        self.quantum = self.quantum.on_stop
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

    def _adapt(self, size: int) -> None:
        """Make larger reads while a peer fills them, and no other waits: a read costs as much as ten messages."""
        if self._direct and self.reads is not STRANGER:
            full = size >= READ and not self.factory.turns.busy
            self.reads = self.reads.on_full_read if full else self.reads.on_partial_read
            self.transport.bufferSize = BULK_READ if self.reads is BULK else READ

    def _throw_away(self) -> None:
        """Read no more until the next turn: input after a close costs time, too."""
        if not self._queued:
            self._queued = True
            self.transport.pauseProducing()
            self.turns.serve_later(self)

    def _end_of_input(self) -> None:
        if self.life is not ENDED:
            return
        if not self.input_ended():
            self.close()
        elif not self.life.closing:
            self.life = self.life.on_linger
            self.factory.lingering.add(self, HALF_CLOSED)

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
        if not self.life.closing:
            self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Tell the transport to read on."""
        self.transport.resumeProducing()

    def _read_on(self) -> None:
        super()._read_on()
        self._end_of_input()
