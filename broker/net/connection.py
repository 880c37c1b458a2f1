"""One connection over a byte stream (TCP, TLS, Unix socket), independent of its protocol.

`StreamConnection` is the base of every protocol that listens on a stream. Path of a message: `dataReceived` →
``reader.feed`` → `receive` → the session → `write`.

Rules:
- The scheduler (`scheduler.py`) runs all input handling, one quantum of time per turn.
- Output is gathered during a quantum and written at its end. Output that another connection must receive first
  (`write_first`) is written before.
- Backpressure: while a peer does not read, its input is neither handled nor read. Notices for it are kept up to a
  limit; over the limit, or without any progress until a deadline, it is disconnected.
- A close is orderly: pending output first, then the end of output; input is read and discarded until the peer closes
  too, since closing a socket with unread input resets it and may lose the last output. Each step has a deadline.
- The peer's end of input is not the end of output: answers to its requests are still sent (half-close).

Read on in `broker.net.connection_states` (states), `broker.net.connection_output` (output) and `broker.net.admission`
(limits and deadlines). The file is longer than others: its methods make the transitions of one connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener, IPushProducer, ISSLTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.access.identity import with_port
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.memory_budget import SHORT, Share
from broker.core.rates import Bucket
from broker.net.connection_output import ConnectionOutput
from broker.net.connection_states import BLOCKED, BULK, ENDED, IDLE, LOST, OPEN, OPENING, SERVING, STRANGER, ReadState
from broker.net.epoll_streams import TcpStream, nothing_waits, plain_socket, unsent
from broker.net.peer_interfaces import MessageReader
from broker.net.refusal_log import REFUSALS_A_SECOND, REFUSALS_AT_ONCE
from broker.net.scheduled_input import STRIKES, Seen, TappedOutput, TappedReader
from broker.net.silent_hosts import unacknowledged
from broker.net.tls import client_names

if TYPE_CHECKING:
    from broker.net.admission import ConnectionFactory


class NoReader:
    """Null reader of a closed connection. It replaces the reader that holds an unfinished message, which frees the
    memory."""

    pending = 0

    def feed(self, data: bytes) -> Iterator[Any]:
        """Return an empty iterator."""
        return iter(())


NO_READER = NoReader()

READ, BULK_READ = Connection.bufferSize, 4 * Connection.bufferSize
"""Bytes of a read: for an authenticated peer, and for a peer that fills its reads while no other connection waits."""

CLOSE_WITHIN = 2.0
"""Deadline in seconds for the peer to close after all output was sent. One round trip is enough."""

HALF_CLOSED = 60.0
"""Seconds for which a half-closed connection waits for answers to the peer's finds."""

CHEAP, UNWATCHED = 0.000_02, 8
"""Cost in seconds below which a message is cheap, and the number of cheap messages between two clock reads: a clock
read costs a tenth of a microsecond, and a ping one."""


NOT_READING = Refusal(Reason.NOT_READING, "it does not read what it is sent: disconnected")


@implementer(IHalfCloseableProtocol, IHandshakeListener, IPushProducer)
class StreamConnection(ConnectionOutput, Protocol):
    """One connection. A subclass implements its protocol.

    A subclass sets ``reader`` and ``receive`` in its constructor (or has a method ``receive``), and overrides the
    methods under "given by a subclass". A message costs one step of the reader's iterator and one call of ``receive``.
    """

    factory: ConnectionFactory
    transport: Any  # an ITCPTransport that is a producer and a consumer

    reader: MessageReader = NO_READER
    """Decoder from bytes to items. The iterator that ``feed`` returns is advanced until the quantum ends, and continued
    in later turns. Each item is a whole message; a `Malformed` goes to `malformed`. `None` is a step without a
    message."""

    receive: Callable[[Any], None]
    """Handler of one item. An exception costs this item alone: it is logged, and `refuse` is called."""

    source = ""
    """The network that this connection counts for in the listener's table, as known at accept time. It stays fixed,
    while ``host`` may become another name for the peer. Empty if the connection does not count."""
    heard = 0.0
    """The end of the quantum in which the last whole message was handled, or the time of the accept."""

    # Class attributes as defaults: an idle connection has no instance entries for them, which saves memory.
    reads: ReadState = STRANGER
    _unsent = 0  # unsent bytes when the read or close deadline began
    _pending = 0  # bytes of an unfinished message, and of a read that waits, as accounted
    _unserved = 0  # bytes of a read of which a part at least waits for its turn
    _refusals: Bucket | None = None
    vanished = False  # see `broker.net.peer_interfaces.Peer`
    _state = 0  # bytes of the session's state, as accounted

    def __init__(
        self, factory: ConnectionFactory, host: str, port: int, local: bool, turned_away: Refusal | None
    ) -> None:
        super().__init__()
        self.factory = factory
        self.host = host
        self.port = port
        self.local = local
        self.turned_away = turned_away
        """The refusal by admission control, or None."""

    # given by a subclass

    def opened(self, data: bytes) -> bytes:
        """Identify the protocol. Return all input so far once it is identified, and b"" before that and for any other.

        Called for each read in the state `OPENING`, which a protocol selects by ``life`` in its class. The event
        `IDENTIFIED` ends that state.
        """
        self.life = self.life.on_identified
        return data

    def connection_ready(self) -> None:
        """Connection set up, over TLS with the handshake, and admitted. No input has been read."""

    def malformed(self, malformed: Malformed) -> None:
        """Handle input that the reader could not decode."""
        self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Report a refusal to the peer, and close if it is fatal or exceeds the rate limit."""
        if not self.refused(refusal) or refusal.reason.fatal:
            self.close()

    def input_ended(self) -> bool:
        """Handle the peer's end of output, after all its input. Return True if answers are still due.

        With True the connection stays half-closed for at most `HALF_CLOSED` seconds; otherwise it is closed.
        """
        return False

    @property
    def stranger(self) -> bool:
        """See `Scheduled`."""
        return self.reads is STRANGER or not self.served

    @property
    def crowd(self) -> int:
        """See `broker.core.place_table.Placed`: virtual transports have it."""
        crowd: int = getattr(self.transport, "crowd", 0)
        return crowd

    @property
    def needed(self) -> bool:
        """True while the peer offers services or waits for an event: its place is given to no newcomer."""
        return False

    def lost(self) -> None:
        """Connection lost or about to close; last output may still be written. May be called twice."""

    # from the transport

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        self._socket = plain_socket(self.transport)
        self._direct = self._socket is self.transport
        if isinstance(self._socket, TcpStream):
            self._socket.crowd = self.factory.turns
        authenticated = self.reads is not STRANGER
        if self._direct and not authenticated:
            self.transport.bufferSize = SHORT  # before authentication a peer needs only short reads
        self.factory.connected(self, authenticated)
        if self.turned_away is not None:
            self.refuse(self.turned_away)
        elif self._direct or not ISSLTransport.providedBy(self.transport):
            self.connection_ready()

    def handshakeCompleted(self) -> None:
        if self.turned_away is None:
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
            self._unserved_read(len(data))
            return
        # An inlined `take`: this runs for each read.
        self._rest = self.reader.feed(data)
        self._queued = True
        ordinary = len(data) <= SHORT and self._pending <= SHORT and self.strikes < STRIKES
        if self._refusals is not None:
            ordinary = ordinary and self._forgiven()
        # An ordinary peer sends little, causes little work, and has no recent refusals.
        self.factory.turns.serve(self, ordinary, self.stranger)
        if self._rest is not None:
            self._stop_reading()
            self._unserved_read(len(data))

    def readConnectionLost(self) -> None:
        self.life = self.life.on_end_of_input
        if self.life.closing:
            self.transport.loseConnection()
        elif self._rest is None:
            self._end_of_input()

    def writeConnectionLost(self) -> None:
        """Start the close deadline: all output is sent. `connectionLost` follows when the peer closes too."""
        self.factory.closes.add(self, CLOSE_WITHIN)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.vanished = not self.life.closing and not self.life.input_ended
        self.life = self.life.on_lose
        self.quantum = self.quantum.on_stop
        self.drop()
        self._out.clear()
        self.lost()
        self._let_go()
        self.factory.memory.forget(self)
        self.factory.disconnected(self)

    def pauseProducing(self) -> None:
        self.output = self.output.on_pause
        self.quantum = self.quantum.on_stop
        self.hold_output()
        self._watch_progress()
        self._stop_reading()

    def resumeProducing(self) -> None:
        self.output = self.output.on_resume
        self.factory.stalls.discard(self)
        self.factory.memory.drop(self, Share.OUTPUT)
        self.flush()
        # The flush may have blocked the output again, and a quantum that goes on ends with the same steps.
        if self.output is not BLOCKED and not self.life.closing and self.quantum is IDLE:
            self.go_on()

    def stopProducing(self) -> None:
        """No-op: `connectionLost` follows."""

    # from the scheduler

    def steps(self, data: bytes) -> Iterator[Any]:
        """Return the iterator over the items in ``data``; `serve` advances it."""
        return self.reader.feed(data)

    def held_up(self) -> bool:
        """Return True under backpressure: the peer does not read."""
        return self.output is BLOCKED

    def serve(self) -> bool:
        """Handle input until the quantum ends. Returns True if input remains."""
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
        # The clock is read after each message, or after several while messages are cheap.
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
                        self.refuse(
                            Refusal(Reason.INTERNAL, "the broker failed on this message; its log has the reason")
                        )
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
        if completed:
            self.heard = turns.end
            self.served = True
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
        return with_port(self.host, self.port)

    @property
    def certificate(self) -> tuple[str, ...]:
        """The names of the peer's verified client certificate, common name and DNS names; empty without one."""
        return client_names(self.transport)

    @property
    def unacknowledged(self) -> bool:
        """True if the host of the peer has not acknowledged all output; False if that is unknown."""
        return self._socket is not None and unacknowledged(self._socket.socket)

    @property
    def request_id(self) -> str:
        """The id of the request of HTTP that brought the present messages; "" on a transport without requests."""
        return getattr(self.transport, "request_id", "")

    def close(self) -> None:
        """Write pending output, and close in order."""
        if self.life.closing:
            return
        if self._out:
            self.factory.turns.flush_first()
            if self.life.closing:
                return  # the flush included this connection's own output, and its transport gave up
        input_ended = self.life.input_ended
        self.factory.table.leave(self)
        # The state changes before the last write, since the transport may abort within it.
        self.life = self.life.on_close
        self.quantum = self.quantum.on_stop
        if self._out:
            self.transport.write(b"".join(self._out))
        self.lost()
        if input_ended and self._direct and nothing_waits(self.transport):
            # Both directions are finished: closing by the reactor would take one more turn.
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
            self.transport.resumeProducing()  # reading resumes to detect the end of input
        self._close_in_time()

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns False if the rate limit for refusals is exceeded."""
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal, self)
        now = self.factory.clock.seconds()
        if self._refusals is None:
            self._refusals = Bucket(REFUSALS_AT_ONCE, now)
        return self._refusals.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, now)

    def authenticated(self) -> None:
        """Mark the peer as authenticated: its login deadline ends, and reads grow. May be called before
        `connectionMade`."""
        self.reads = self.reads.on_authenticate
        self.factory.logins.discard(self)
        self.factory.table.authenticated(self)
        self.factory.consider_tap(self)  # a handshake may have replaced the reader
        if self._direct:
            self.transport.bufferSize = Connection.bufferSize

    def hold(self, size: int) -> bool:
        """See `broker.net.peer_interfaces.Peer`."""
        memory, grown = self.factory.memory, size - self._state
        if grown > 0 and not memory.fits(self.host, grown):
            return False
        self._state = size
        memory.hold(self, Share.SESSIONS, size)
        return True

    def go_on_with(self, steps: Iterator[None]) -> None:
        """See `broker.net.peer_interfaces.Peer`."""
        rest = self._rest
        if self.quantum is IDLE or rest is None:
            for _ in steps:
                pass
            return
        self._rest = chain(steps, rest)
        self.quantum = self.quantum.on_stop

    # from a trace

    def tap(self, seen: Seen) -> None:
        """Report each message to ``seen`` until `untap`. Idempotent."""
        self.tap_input(seen)
        if not isinstance(self._out, TappedOutput):
            self._out = TappedOutput(self._out, seen)

    def tap_input(self, seen: Seen) -> None:
        """Report each received message."""
        if self.reader is not NO_READER and not isinstance(self.reader, TappedReader):
            self.reader = TappedReader(self.reader, seen)

    def untap(self) -> None:
        """Report no more messages. No-op without a tap."""
        if isinstance(self.reader, TappedReader):
            self.reader = self.reader.inner
        if isinstance(self._out, TappedOutput):
            self._out = list(self._out)

    # from the limits and deadlines

    @property
    def trusted(self) -> bool:
        """See `broker.core.memory_budget.Consumer`."""
        return self.reads is not STRANGER

    def give_way(self, refusal: Refusal) -> None:
        """Refuse and close: the place is given to a newcomer."""
        self.factory.send_away(self, refusal)

    def evict(self, refusal: Refusal) -> None:
        """Refuse the unfinished message, or disconnect the peer that does not read: see `MemoryBudget`."""
        if refusal.reason is Reason.NOT_READING:
            self.not_reading(refusal)
        else:
            self.refuse(refusal)

    def too_slow(self) -> None:
        """Refuse the connection at its login deadline."""
        self.refuse(Refusal(Reason.TOO_SLOW_TO_AUTHENTICATE, "no auth in time: closing"))

    def not_reading(self, refusal: Refusal = NOT_READING) -> None:
        """Disconnect the peer, since it does not read."""
        if self.life is LOST:
            return
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal, self)
        self.factory.memory.drop(self, Share.OUTPUT)
        self.life = self.life.on_abort
        self.quantum = self.quantum.on_stop
        self._out.clear()
        self._let_go()
        self.abort()

    def stalled(self) -> None:
        """Handle the read deadline, which is renewed if the peer made progress."""
        if self._unsent == unsent(self._socket):
            self.not_reading()
        else:
            self._watch_progress()

    def unclosed(self) -> None:
        """Handle the close deadline, which is renewed if the peer made progress."""
        if not self.factory.stopping and unsent(self._socket) and self._unsent != unsent(self._socket):
            self._close_in_time()
        else:
            self.abort()

    @property
    def all_sent(self) -> bool:
        """True if the connection is closing and the kernel has all its output."""
        return self.life.closing and self._socket is not None and not unsent(self._socket)

    def abort(self) -> None:
        """Close at once. Unsent output is lost."""
        self.transport.abortConnection()

    # inside

    def _adapt(self, size: int) -> None:
        """Adapt the read size: larger while the peer fills its reads and no other waits. A read costs as much as ten
        messages."""
        if self._direct and self.reads is not STRANGER:
            full = size >= READ and not self.factory.turns.busy
            self.reads = self.reads.on_full_read if full else self.reads.on_partial_read
            self.transport.bufferSize = BULK_READ if self.reads is BULK else READ

    def _throw_away(self) -> None:
        """Stop reading until the next turn: to discard input after a close takes time as well."""
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
        """Return True if the peer has no recent refusals."""
        assert self._refusals is not None
        if not self._refusals.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self.factory.clock.seconds()):
            return False
        self._refusals = None
        return True

    def _let_go(self) -> None:
        """Release the reader, and with it the unfinished message."""
        # the old reader may refer to this connection: without the cycle, no garbage collection is needed
        self.reader = NO_READER
        if self._pending:
            self._pending = 0
            self.factory.memory.drop(self, Share.INPUT)

    def _unserved_read(self, size: int) -> None:
        """Account for a read that waits for its turn, if it is a long one. This may close the connection."""
        if self._rest is not None and size > SHORT:
            self._unserved += size
            self._account(self.reader.pending, False)

    def _account(self, pending: int, completed: bool) -> None:
        """Account for unfinished input, of a new message if one was ``completed``. This may close the connection."""
        if self._rest is None:
            self._unserved = 0
        pending += self._unserved
        self._pending = pending if pending > SHORT else 0
        self.factory.memory.hold(self, Share.INPUT, pending, completed)

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        if not self.life.closing:
            self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads."""
        self.transport.resumeProducing()

    def _read_on(self) -> None:
        super()._read_on()
        self._end_of_input()
