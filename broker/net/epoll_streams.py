"""Listening ports and accepted connections that the broker's reactor calls directly.

Twisted's reactors wrap each event of each descriptor in a context for the log, which costs more than the read itself:
ten nested calls, while each connection of a reconnecting farm has four events. `Streams` is the part of
`broker.net.reactor.Reactor` that calls `doRead` and `doWrite` of its members itself.

Rules:
- Towards a port and a connection, only public seams of Twisted are used: ``transport``, ``reactor`` and
  ``numberAccepts`` of a listening port, and `IReactorFDSet`.
- Semantics match the reactor: readiness is level-triggered, a descriptor is read before it is written, and an exception
  from a method is logged and ends that connection alone.
- Ends of connections have a part of each turn (`EndBudget`); those beyond it wait in one queue. All aborts pass through
  it: the kernel takes up to 0.4 ms to discard the unread input of one connection, and the memory budget or a deadline
  may abort hundreds at once.
- A descriptor about to be closed is not removed from the set: the kernel removes it, which saves a system call.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from socket import SHUT_RDWR, SO_LINGER, SOL_SOCKET
from typing import Any, Protocol

from twisted.internet import tcp, unix
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv6Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorFDSet
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

try:
    from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
except ImportError:  # epoll exists on Linux only
    EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP = 1, 4, 8, 0x10, 0x2000  # type: ignore[misc]

ENDED = EPOLLERR | EPOLLHUP | EPOLLRDHUP
"""Events of a connection that its peer has closed, or that was reset."""

_DONE, _LOST, _ABORTED = Failure(ConnectionDone()), Failure(ConnectionLost()), Failure(ConnectionAborted())
"""Preallocated: constructing a failure costs more than a read."""

_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close resets the connection."""

ACCEPTS = 40
"""Connections of one port that are accepted in one turn of the reactor."""

ACCEPT_SECONDS = 0.004
"""CPU time in seconds of one turn for the accepts of all ports together: connected peers come before newcomers. An
accept takes some 100 µs, and up to twice that over TLS, or where another peer gives way. The time must exceed what
the accepted ones cause, since the queue of the kernel is served in its order, and that of the broker by addresses:
beside 1,000 peers that begin handshakes of TLS again and again, 10 to 18 % of the newcomers were served within a second
with 2 or 3 ms, and 92 to 100 % with 4."""

BATCH = 4
"""Accepts between two readings of the CPU time. A port accepts as many in each turn in any case."""

END_SECONDS = 0.003
"""CPU time in seconds of one turn for the ends of connections, of which the last may take longer: an end withdraws all
that its peer has offered, some 20 µs for each service. When a thousand servers vanish, others are still answered."""

CROWDED_READ = 8_192
"""Bytes of a read while the scheduler is crowded: 20,000 connections hold 160 MiB. It exceeds the read of an ordinary
peer (`broker.core.memory_budget.SHORT`): a longer read that is cut must not look like one of those."""


class Crowd(Protocol):
    """The queue of connections with unhandled input."""

    crowded: bool


class _Stream(FileDescriptor):
    """Connection that notifies its dispatcher of its close."""

    reactor: Streams
    protocol: Any
    _aborting: bool

    def connectionLost(self, reason: Failure) -> None:
        self.reactor.forget(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def abortConnection(self) -> None:
        """Discard the output, and reset the connection in a later turn (`Streams.abort`). Idempotent."""
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.dataBuffer, self._tempDataBuffer, self.offset, self._tempDataLen = b"", [], 0, 0
        self.reactor.abort(self)
        self.doRead = self.doWrite = self.startReading = self.startWriting = _do_nothing  # type: ignore[method-assign]

    def readConnectionLost(self, reason: Failure) -> None:
        """Handle the end of input. An exception of the protocol ends the connection, as in other methods."""
        protocol = self.protocol
        if IHalfCloseableProtocol.providedBy(protocol):
            protocol.readConnectionLost()
        else:
            self.connectionLost(reason)


class TcpStream(_Stream, tcp.Server):
    """An accepted connection over TCP. Its log texts are created on demand."""

    def __init__(
        self,
        sock: Any,
        protocol: Any,
        client: tuple[Any, ...],
        server: tcp.Port,
        sessionno: int,
        reactor: Streams,
    ) -> None:
        tcp.Connection.__init__(self, sock, protocol, reactor)
        if len(client) != 2:
            self._addressType = IPv6Address
        self.server = server
        self.client = client
        self.sessionno = sessionno
        self.hostname = client[0]
        self.startReading()  # type: ignore[no-untyped-call]
        self.connected = 1

    crowd: Crowd | None = None
    """While it is crowded, reads are small."""

    # Pauses are often followed by a resume before the next event. So the descriptor leaves the set only when an event
    # does arrive, which saves two system calls in the common case.
    _pausing = False
    _out_of_set = False

    def pauseProducing(self) -> None:
        """Stop reading."""
        self._pausing = True

    def resumeProducing(self) -> None:
        """Resume reading."""
        self._pausing = False
        if self._out_of_set:
            self._out_of_set = False
            if self.connected and not self.disconnecting:
                self.startReading()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket, and report the end to the protocol.

        Replaces the method of Twisted, with the same effects: the dispatcher has forgotten the descriptor already, and
        the test for an abort takes one comparison.
        """
        if not hasattr(self, "socket"):
            return  # Twisted may call it twice, after an abort
        self.reactor.forget(self)
        self.disconnected, self.connected = 1, 0
        if self.producer is not None:
            self.producer.stopProducing()
            self.producer = None
        sock, protocol = self.socket, self.protocol
        with suppress(OSError):  # the peer has reset the connection
            try:
                if isinstance(reason.value, ConnectionAborted):
                    sock.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
                else:
                    sock.shutdown(SHUT_RDWR)
            finally:
                sock.close()
        del self.protocol, self.socket, self.fileno
        protocol.connectionLost(reason)

    @property
    def logstr(self) -> str:  # type: ignore[override]
        return f"{self._getLogPrefix(self.protocol)},{self.sessionno},{self.hostname}"

    @property
    def repstr(self) -> str:  # type: ignore[override]
        return f"<{self.protocol.__class__.__name__} #{self.sessionno} on {self.server.getHost().port}>"

    def doRead(self) -> Any:
        if self._pausing:
            self._out_of_set = True
            self.stopReading()  # type: ignore[no-untyped-call]
            return None
        try:
            size = self.bufferSize
            if size > CROWDED_READ and self.crowd is not None and self.crowd.crowded:
                size = CROWDED_READ
            data = self.socket.recv(size)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self.protocol.dataReceived(data)
        return None


class UnixStream(_Stream, unix.Server):
    """An accepted connection over a unix socket."""


class AcceptBudget:
    """The CPU time for accepts in one turn, `ACCEPT_SECONDS`. The ports that had newcomers in the turn before have even
    shares of it. ``cpu`` returns the CPU time of the thread in seconds."""

    def __init__(self, cpu: Callable[[], float]) -> None:
        self.cpu = cpu
        self._ports = 0
        self._share = ACCEPT_SECONDS

    def next_turn(self) -> None:
        """Begin a turn."""
        self._share = ACCEPT_SECONDS / max(self._ports, 1)
        self._ports = 0

    def begin(self) -> float:
        """Begin the accepts of one port. Returns the CPU time at which they end."""
        self._ports += 1
        return self.cpu() + self._share


class EndBudget:
    """The CPU time for ends of connections in one turn, `END_SECONDS`. ``cpu`` returns that of the thread, in
    seconds."""

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self._spent = 0.0
        self.open = True
        """True while ends may be handled."""

    def next_turn(self) -> None:
        """Begin a turn."""
        self._spent = 0.0
        self.open = True

    def handle(self, end: Callable[[], object]) -> None:
        """Handle an end."""
        start = self._cpu()
        try:
            end()
        finally:
            self._spent += self._cpu() - start
            self.open = self._spent < END_SECONDS


class _Accepting:
    """A port in the set. One turn of the reactor accepts as many of its connections as the budget allows."""

    def __init__(self, port: Any, budget: AcceptBudget) -> None:
        self.port = port
        self.fileno = port.fileno
        self.connectionLost = port.connectionLost
        self._budget = budget

    def doRead(self) -> None:
        port, budget = self.port, self._budget
        end = budget.begin()
        for _ in range(ACCEPTS // BATCH):
            port.numberAccepts = BATCH
            port.doRead()
            # Twisted raises the number if it was reached, and else reduces it to that of the accepts.
            if port.numberAccepts <= BATCH or port.disconnecting or budget.cpu() >= end:
                break


@implementer(IReactorFDSet)
class Streams:
    """Ports and their connections in the epoll set of a reactor. Each of them sees it as a reactor."""

    log = Logger()

    def __init__(
        self, poller: Any, call_later: Callable[..., Any], cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self.accepts = AcceptBudget(cpu)
        self.ends = EndBudget(cpu)
        self._epoll = poller
        self._members: dict[int, Any] = {}
        self._events: dict[int, int] = {}
        """Registered events by descriptor: EPOLLIN, EPOLLOUT or both."""
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._waiting: OrderedDict[int, Any] = OrderedDict()
        """Descriptors of connections whose ends wait for a turn, in order, with the connection itself if it is aborted.
        They are out of the epoll set meanwhile, where they would be in the way of others."""
        self._dispatching = False
        self._at_end: list[Callable[[], object]] = []
        self.callLater = call_later

    # to the reactor

    @property
    def ends_wait(self) -> bool:
        """True while ends of connections wait for a turn: the reactor must not wait for events then."""
        return bool(self._waiting)

    def dispatch(self, ready: list[tuple[int, int]], other: Callable[[int, int], bool]) -> None:
        """Serve the ready members, then make the calls requested by `at_end`.

        ``other`` serves a descriptor that is no member, and returns False if it does not know it either.
        """
        self._dispatching = True
        self.accepts.next_turn()
        members, registered, ends = self._members, self._events, self.ends
        ends.next_turn()
        for fd, event in chain(self._ended(), ready) if self._waiting else ready:
            member = members.get(fd)
            if member is None:
                if not other(fd, event):
                    with suppress(OSError):  # closed by an earlier member, or failed and never closed
                        self._epoll.unregister(fd)
                continue
            if event & ENDED and not ends.open:
                self._epoll.unregister(fd)
                self._waiting[fd] = None
                continue
            try:
                why = None
                readable = event & ~EPOLLOUT  # includes errors and hang-ups: the read determines the cause
                if readable:
                    why = member.doRead() if registered[fd] & EPOLLIN else CONNECTION_LOST
                if why is None and event & EPOLLOUT and fd in members:  # the read may have closed it
                    readable = 0
                    why = member.doWrite()
                if why is not None:
                    ends.handle(partial(self._disconnect, member, why, bool(readable)))
            except Exception as error:
                self._failed(member, error)
        self._dispatching = False
        if self._at_end:
            calls, self._at_end = self._at_end, []
            for call in calls:
                try:
                    call()
                except Exception:
                    self.log.failure("a call at the end of a turn failed")

    # to a member

    def at_end(self, call: Callable[[], object]) -> bool:
        """Make a call after all ready members were served. Returns False outside a dispatch.

        It costs a fraction of a timer of the reactor.
        """
        if self._dispatching:
            self._at_end.append(call)
        return self._dispatching

    def addReader(self, member: Any) -> None:
        self._add(member, EPOLLIN)

    def addWriter(self, member: Any) -> None:
        self._add(member, EPOLLOUT)

    def removeReader(self, member: Any) -> None:
        self._remove(member, EPOLLIN)

    def removeWriter(self, member: Any) -> None:
        self._remove(member, EPOLLOUT)

    def removeAll(self) -> list[Any]:
        members = list(self._members.values())
        for member in members:
            self._remove(member, EPOLLIN | EPOLLOUT)
        return [_registrant(member) for member in members]

    def getReaders(self) -> list[Any]:
        return [_registrant(self._members[fd]) for fd, events in self._events.items() if events & EPOLLIN]

    def getWriters(self) -> list[Any]:
        return [_registrant(self._members[fd]) for fd, events in self._events.items() if events & EPOLLOUT]

    def forget(self, member: Any) -> None:
        """Forget a member that is closed at once: the close removes its descriptor from the set."""
        self._leave(member.fileno())

    def abort(self, stream: Any) -> None:
        """Remove a connection from the set, and end it with `ConnectionAborted` in a turn that has time for it."""
        self._remove(stream, EPOLLIN | EPOLLOUT)
        self._waiting[stream.fileno()] = stream

    # inside

    def _add(self, member: Any, event: int) -> None:
        fd: int = member.fileno()
        events = self._events.get(fd)
        if events is None:
            self._epoll.register(fd, _mask(event))
            self._members[fd] = _Accepting(member, self.accepts) if isinstance(member, tcp.Port) else member
            self._events[fd] = event
        elif not events & event:
            if fd not in self._waiting:
                self._epoll.modify(fd, _mask(events | event))
            self._events[fd] = events | event

    def _remove(self, member: Any, event: int) -> None:
        fd: int = member.fileno()
        events = self._events.get(fd)
        if events is None or not events & event:
            return
        waiting = fd in self._waiting
        if events & ~event:
            if not waiting:
                self._epoll.modify(fd, _mask(events & ~event))
            self._events[fd] = events & ~event
        else:
            if not waiting:
                self._epoll.unregister(fd)
            self._leave(fd)

    def _leave(self, fd: int) -> None:
        self._waiting.pop(fd, None)
        if self._members.pop(fd, None) is not None:
            del self._events[fd]

    def _ended(self) -> Iterator[tuple[int, int]]:
        """Handle the ends that wait, as time permits: end aborted connections, and put others back into the set and
        yield them with their events."""
        while self._waiting and self.ends.open:
            fd, aborted = self._waiting.popitem(last=False)
            if aborted is None:
                self._epoll.register(fd, _mask(self._events[fd]))
                yield fd, EPOLLIN | EPOLLRDHUP
                continue
            try:
                self.ends.handle(partial(aborted.connectionLost, _ABORTED))
            except Exception as error:
                self._failed(aborted, error)

    def _disconnect(self, member: Any, why: Any, reading: bool) -> None:
        """Disconnect a member for the reason that its method returned, as the reactor does."""
        if reading and why is CONNECTION_DONE:
            member.readConnectionLost(_DONE)
            if member.connected:  # most are closed by it
                self.removeReader(member)
        else:
            reason = _DONE if why is CONNECTION_DONE else _LOST if why is CONNECTION_LOST else Failure(why)
            member.connectionLost(reason)

    def _failed(self, member: Any, error: Exception) -> None:
        self.log.failure("a connection failed, and is closed")
        try:
            member.connectionLost(Failure(error))
        except Exception:
            self.log.failure("a connection failed while it was closed")


def _do_nothing() -> None:
    """Do nothing: an aborted connection is neither read nor written, nor added to the set."""


def _mask(events: int) -> int:
    """Return the events to register: a reader differs from one whose peer has closed."""
    return events | EPOLLRDHUP if events & EPOLLIN else events


def _registrant(member: Any) -> Any:
    """Return the descriptor that was added to the set."""
    return member.port if isinstance(member, _Accepting) else member


def dispatch(reactor: Any, port: Any) -> None:
    """Move a port, and its future connections, to the streams of the reactor.

    A reactor of Twisted's has none, and keeps dispatching them.
    """
    streams = getattr(reactor, "streams", None)
    if streams is None:
        return
    port.stopReading()
    port.reactor = streams
    port.transport = UnixStream if isinstance(port, unix.Port) else TcpStream
    port.startReading()


# Direct writes to the kernel, bypassing the reactor.
#
# Twisted's `write` registers the socket for writing, sends in the next turn, and deregisters it: two system calls and a
# turn for each answer. An idle socket takes almost every answer whole, so a direct send is tried first. These functions
# access the buffers of plain TCP and Unix connections (`twisted.internet.tcp.Connection`), and apply to those only; the
# rest that the kernel does not take goes through the reactor.


def plain_socket(transport: Any) -> Connection | None:
    """Return the transport itself, or the connection below it (TLS), if that is a plain socket; otherwise None."""
    if isinstance(transport, Connection):
        return transport
    below = getattr(transport, "transport", None)
    return below if isinstance(below, Connection) else None


def unsent(connection: Connection | None) -> int:
    """Return the number of bytes that the kernel has not taken; 0 if that is unknown."""
    if connection is None:
        return 0
    waiting: int = len(connection.dataBuffer) - connection.offset + connection._tempDataLen
    return waiting


def nothing_waits(transport: Connection) -> bool:
    """Return True if the kernel has taken all output."""
    return not transport.dataBuffer and not transport._tempDataLen


def send_now(transport: Connection, data: bytes) -> bytes:
    """Send as much as the kernel takes, if no earlier output waits. Returns the rest, which is still to be written.

    The rest of a memoryview is a memoryview: nothing is copied.
    """
    if transport.dataBuffer or transport._tempDataLen:
        return data
    try:
        sent: int = transport.socket.send(data)
    except OSError:
        return data  # no room, or connection lost: the reactor's own write detects which
    return data[sent:] if sent < len(data) else b""


def await_room(transport: Connection) -> None:
    """Pause the producer of a transport that has output left, as if the transport were full: it resumes the producer
    when the kernel has taken that output.

    Twisted pauses beyond ``bufferSize``, which is the size of a read as well. A thousand peers that do not read could
    each have that much in a transport; so the rest stays with the producer.
    """
    producer: Any = transport.producer
    if producer is not None and not transport.producerPaused:
        transport.producerPaused = True
        producer.pauseProducing()


def push(connection: Connection | None) -> None:
    """Send buffered output now instead of in the next turn, as far as the kernel takes it.

    No-op for a closing connection: the reactor closes it after the last send, and must observe that send.
    """
    if connection is None or connection.disconnecting or connection._writeDisconnecting or nothing_waits(connection):
        return
    connection.doWrite()
