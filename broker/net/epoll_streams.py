"""Event dispatcher for accepted connections: an epoll set that the reactor treats as one reader.

The reactor wraps each event of each descriptor in a context for the log, which costs more than the read itself: ten
nested calls, while each connection of a reconnecting farm has four events. `Streams` takes all events of a listener's
connections in one event of the reactor, and calls `doRead` and `doWrite` itself.

Rules:
- Only public seams of Twisted are used: the ``transport`` and ``reactor`` of a listening port, `IReadDescriptor` and
  `IReactorFDSet`.
- Semantics match the reactor: readiness is level-triggered, a descriptor is read before it is written, and an exception
  from a method is logged and ends that connection alone.
- The port itself is in the set, too. A closed port without connections leaves nothing behind.
- A descriptor about to be closed is not removed from the set: the kernel removes it, which saves a system call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, SO_LINGER, SOL_SOCKET
from typing import Any, Protocol

from twisted.internet import tcp, unix
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv6Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorFDSet, IReadDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

try:
    from select import EPOLLIN, EPOLLOUT, epoll
except ImportError:  # epoll exists on Linux only
    EPOLLIN, EPOLLOUT, epoll = 1, 4, None  # type: ignore[misc, assignment]

_DONE, _LOST = Failure(ConnectionDone()), Failure(ConnectionLost())
"""Preallocated: constructing a failure costs more than a read."""

_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close resets the connection."""

ACCEPTS = 20
"""Connections accepted in one turn of the reactor: some 100 µs each, and twice that with TLS."""


CROWDED_READ = 8_192
"""Bytes of a read while the scheduler is crowded: 20,000 connections hold 160 MiB. It exceeds the read of an ordinary
peer (`broker.net.unfinished_input.SHORT`): a longer read that is cut must not look like one of those."""


class Crowd(Protocol):
    """The queue of connections with unhandled input."""

    crowded: bool


class _Stream(FileDescriptor):
    """Connection that notifies its dispatcher of its close."""

    reactor: Streams
    protocol: Any

    def connectionLost(self, reason: Failure) -> None:
        self.reactor.forget(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

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


@implementer(IReadDescriptor, IReactorFDSet)
class Streams:
    """A listening port and its connections. The reactor sees one descriptor; each connection sees a reactor."""

    log = Logger()

    def __init__(self, reactor: Any, port: Any) -> None:
        self._reactor = reactor
        self._port = port
        self._room: Callable[[], int] = getattr(port.factory, "room", lambda: ACCEPTS)
        self._epoll = epoll()
        self._members: dict[int, Any] = {}
        self._events: dict[int, int] = {}
        """Registered events by descriptor: EPOLLIN, EPOLLOUT or both."""
        self._dispatching = False
        self._at_end: list[Callable[[], object]] = []
        self.fileno = self._epoll.fileno
        self.callLater = reactor.callLater

    # to the reactor

    def logPrefix(self) -> str:
        return "streams"

    def doRead(self) -> None:
        """Dispatch all ready events, then make the calls requested by `at_end`."""
        self._dispatching = True
        members, events = self._members, self._events
        for fd, event in self._epoll.poll(0, len(members) or 1):
            member = members.get(fd)
            if member is None:
                with suppress(OSError):  # closed by an earlier member, or failed and never closed
                    self._epoll.unregister(fd)
                continue
            try:
                why = None
                if member is self._port:
                    # Twisted raises this number by 20 with each turn that reaches it. It cannot be lowered within a
                    # turn: a port that stops reading at the connection limit would go on accepting.
                    member.numberAccepts = min(member.numberAccepts, ACCEPTS, self._room())
                readable = event & ~EPOLLOUT  # includes errors and hang-ups: the read determines the cause
                if readable:
                    why = member.doRead() if events[fd] & EPOLLIN else CONNECTION_LOST
                if why is None and event & EPOLLOUT and fd in members:  # the read may have closed it
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
        """Close all members when the reactor stops."""
        for member in self.removeAll():
            try:
                member.connectionLost(reason)
            except Exception as error:
                self._failed(member, error)

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
        return members

    def getReaders(self) -> list[Any]:
        return [self._members[fd] for fd, events in self._events.items() if events & EPOLLIN]

    def getWriters(self) -> list[Any]:
        return [self._members[fd] for fd, events in self._events.items() if events & EPOLLOUT]

    def forget(self, member: Any) -> None:
        """Forget a member that is closed at once: the close removes its descriptor from the set."""
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


def dispatch(reactor: Any, port: Any) -> None:
    """Move a port, and its future connections, to a common dispatcher.

    On systems without epoll, the reactor keeps dispatching them.
    """
    if epoll is None:
        return
    port.stopReading()
    port.reactor = Streams(reactor, port)
    port.transport = UnixStream if isinstance(port, unix.Port) else TcpStream
    port.startReading()
