"""Listening ports and accepted connections that the broker's reactor calls directly.

Twisted's reactors wrap each event of each descriptor in a context for the log, which costs more than the read itself:
ten nested calls, while each connection of a reconnecting farm has four events. `Streams` is the part of
`broker.net.reactor.Reactor` that calls `doRead` and `doWrite` of its members itself.

Rules:
- Towards a port and a connection, only public seams of Twisted are used: the ``transport`` and ``reactor`` of a
  listening port, and `IReactorFDSet`.
- Semantics match the reactor: readiness is level-triggered, a descriptor is read before it is written, and an exception
  from a method is logged and ends that connection alone.
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
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorFDSet
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

try:
    from select import EPOLLIN, EPOLLOUT
except ImportError:  # epoll exists on Linux only
    EPOLLIN, EPOLLOUT = 1, 4  # type: ignore[misc]

_DONE, _LOST = Failure(ConnectionDone()), Failure(ConnectionLost())
"""Preallocated: constructing a failure costs more than a read."""

_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close resets the connection."""

ACCEPTS = 20
"""Connections accepted in one turn of the reactor: some 100 µs each, and twice that with TLS."""


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


class _Accepting:
    """A port in the set. One turn of the reactor accepts a bounded number of its connections."""

    def __init__(self, port: Any) -> None:
        self.port = port
        self.fileno = port.fileno
        self.connectionLost = port.connectionLost

    def doRead(self) -> Any:
        port = self.port
        # Twisted raises this number by 20 with each turn that reaches it.
        port.numberAccepts = min(port.numberAccepts, ACCEPTS)
        return port.doRead()


@implementer(IReactorFDSet)
class Streams:
    """Ports and their connections in the epoll set of a reactor. Each of them sees it as a reactor."""

    log = Logger()

    def __init__(self, poller: Any, call_later: Callable[..., Any]) -> None:
        self._epoll = poller
        self._members: dict[int, Any] = {}
        self._events: dict[int, int] = {}
        """Registered events by descriptor: EPOLLIN, EPOLLOUT or both."""
        self._dispatching = False
        self._at_end: list[Callable[[], object]] = []
        self.callLater = call_later

    # to the reactor

    def dispatch(self, ready: list[tuple[int, int]], other: Callable[[int, int], bool]) -> None:
        """Serve the ready members, then make the calls requested by `at_end`.

        ``other`` serves a descriptor that is no member, and returns False if it does not know it either.
        """
        self._dispatching = True
        members, registered = self._members, self._events
        for fd, event in ready:
            member = members.get(fd)
            if member is None:
                if not other(fd, event):
                    with suppress(OSError):  # closed by an earlier member, or failed and never closed
                        self._epoll.unregister(fd)
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

    # inside

    def _add(self, member: Any, event: int) -> None:
        fd: int = member.fileno()
        events = self._events.get(fd)
        if events is None:
            self._epoll.register(fd, event)
            self._members[fd] = _Accepting(member) if isinstance(member, tcp.Port) else member
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
