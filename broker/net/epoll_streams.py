"""Accepted connections with a dispatcher of their own: an epoll set that the reactor sees as one reader.

The reactor wraps each event of each descriptor in a context for the log, which costs more than the read itself: ten
nested calls, where a farm that connects again has four events a connection. `Streams` takes all events of a listener's
connections in one event of the reactor's, and calls `doRead` and `doWrite` itself.

Rules:
- Only public seams of Twisted are used: the ``transport`` and ``reactor`` of a listening port, `IReadDescriptor` and
  `IReactorFDSet`.
- A connection cannot tell the difference: readiness is level-triggered, a descriptor is read before it is written, and
  what a method raises is logged and ends that connection alone.
- The port itself is in the set, too. A port that is closed, and has no connections any more, leaves nothing behind.
- A descriptor that is about to be closed is not taken out of the set: the kernel does that, and spares a system call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from twisted.internet import tcp, unix
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorFDSet, IReadDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

try:
    from select import EPOLLIN, EPOLLOUT, epoll
except ImportError:  # only Linux has it
    EPOLLIN, EPOLLOUT, epoll = 1, 4, None  # type: ignore[misc, assignment]

_DONE, _LOST = Failure(ConnectionDone()), Failure(ConnectionLost())
"""Made once: a failure costs more than a read."""


ACCEPTS = 20
"""Connections accepted in one turn of the reactor: some 100 µs each, and twice that with TLS."""


CROWDED_READ = 8_192
"""Bytes of a read while many connections wait for their turn: 20,000 hold 160 MiB. It is more than an ordinary peer
sends (`broker.net.unfinished_input.SHORT`): a longer read that is cut must not look like one of those."""


class Crowd(Protocol):
    """The queue in which connections wait until what was read is handled."""

    crowded: bool


class _Stream(FileDescriptor):
    """A connection of which its dispatcher hears that it is closed."""

    reactor: Streams
    protocol: Any

    def connectionLost(self, reason: Failure) -> None:
        self.reactor.forget(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def readConnectionLost(self, reason: Failure) -> None:
        """The end of input. What the protocol raises ends the connection, as anything that it raises does."""
        protocol = self.protocol
        if IHalfCloseableProtocol.providedBy(protocol):
            protocol.readConnectionLost()
        else:
            self.connectionLost(reason)


class TcpStream(_Stream, tcp.Server):
    """An accepted connection over TCP. Its texts for the log are made when they are asked for."""

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
    """Makes reads small while it is crowded."""

    # A connection that is told to read no more is often told to read on before the next event comes: so the descriptor
    # leaves the set only when one does come.
    _pausing = False
    _out_of_set = False

    def pauseProducing(self) -> None:
        """Read no more."""
        self._pausing = True

    def resumeProducing(self) -> None:
        """Read on."""
        self._pausing = False
        if self._out_of_set:
            self._out_of_set = False
            if self.connected and not self.disconnecting:
                self.startReading()  # type: ignore[no-untyped-call]

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


@implementer(IReadDescriptor, IReactorFDSet)
class Streams:
    """A listening port and its connections. To the reactor it is a descriptor, to each of them it is the reactor."""

    log = Logger()

    def __init__(self, reactor: Any, port: Any) -> None:
        self._reactor = reactor
        self._port = port
        self._epoll = epoll()
        self._members: dict[int, Any] = {}
        self._events: dict[int, int] = {}
        """The events for which each descriptor is in the set: EPOLLIN, EPOLLOUT or both."""
        self._dispatching = False
        self._at_end: list[Callable[[], object]] = []
        self.fileno = self._epoll.fileno
        self.callLater = reactor.callLater

    # to the reactor

    def logPrefix(self) -> str:
        return "streams"

    def doRead(self) -> None:
        """Handle what the members are ready for, then make the calls that they asked for."""
        self._dispatching = True
        members, events = self._members, self._events
        for fd, event in self._epoll.poll(0, len(members) or 1):
            member = members.get(fd)
            if member is None:
                with suppress(OSError):  # closed by one before it, or it failed and was never closed
                    self._epoll.unregister(fd)
                continue
            try:
                why = None
                if member is self._port:
                    # Twisted raises it by 20 with each turn in which it was reached.
                    member.numberAccepts = min(member.numberAccepts, ACCEPTS)
                readable = event & ~EPOLLOUT  # an error or a hang-up too: reading finds out which it is
                if readable:
                    why = member.doRead() if events[fd] & EPOLLIN else CONNECTION_LOST
                if why is None and event & EPOLLOUT and fd in members:  # reading may have closed it
                    readable = 0
                    why = member.doWrite()
                if why is not None:
                    self._disconnect(member, why, bool(readable))
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

    def connectionLost(self, reason: Failure) -> None:
        """The reactor stops."""
        for member in self.removeAll():
            try:
                member.connectionLost(reason)
            except Exception as error:
                self._failed(member, error)

    # to a member

    def at_end(self, call: Callable[[], object]) -> bool:
        """Make a call when all members that are ready now were served. Returns False at any other time.

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
        return members

    def getReaders(self) -> list[Any]:
        return [self._members[fd] for fd, events in self._events.items() if events & EPOLLIN]

    def getWriters(self) -> list[Any]:
        return [self._members[fd] for fd, events in self._events.items() if events & EPOLLOUT]

    def forget(self, member: Any) -> None:
        """It will be closed at once, which takes its descriptor out of the set."""
        self._leave(member.fileno())

    # inside

    def _add(self, member: Any, event: int) -> None:
        fd: int = member.fileno()
        events = self._events.get(fd)
        if events is None:
            self._epoll.register(fd, event)
            if not self._members:
                self._reactor.addReader(self)
            self._members[fd] = member
            self._events[fd] = event
        elif not events & event:
            self._epoll.modify(fd, events | event)
            self._events[fd] = events | event

    def _remove(self, member: Any, event: int) -> None:
        fd: int = member.fileno()
        events = self._events.get(fd)
        if events is None or not events & event:
            return
        if events & ~event:
            self._epoll.modify(fd, events & ~event)
            self._events[fd] = events & ~event
        else:
            self._epoll.unregister(fd)
            self._leave(fd)

    def _leave(self, fd: int) -> None:
        if self._members.pop(fd, None) is not None:
            del self._events[fd]
            if not self._members:
                self._reactor.removeReader(self)

    def _disconnect(self, member: Any, why: Any, reading: bool) -> None:
        """Do what the reactor does with a descriptor that gives a reason to be disconnected."""
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


def dispatch(reactor: Any, port: Any) -> None:
    """Have a port, and the connections that it accepts from now on, dispatched together.

    Where the system has no epoll, the reactor goes on dispatching them.
    """
    if epoll is None:
        return
    port.stopReading()
    port.reactor = Streams(reactor, port)
    port.transport = UnixStream if isinstance(port, unix.Port) else TcpStream
    port.startReading()
