"""A UDP socket in the reactor: whatever comes in is read in bounded pieces, and what goes wrong is counted.

Rules:
- It takes its turns like the other sockets that many peers share (`broker.net.scheduler`).
- Nothing but `UdpSocket.close` ends it: an error that the network told of costs nothing, a failing datagram costs that
  datagram, and after any other error it is read again after `RETRY`.
- A datagram that is too long is given on like the others, cut to one byte more than the longest: who receives it sees
  by its length that it is none.
- What the kernel had no room for is counted too, but the kernel tells of it with the next datagram that it keeps.
- Whatever peers and networks do, one line a minute is logged on each kind of error.
- Nobody else may have its port: neither the address nor the port is shared.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.net.rate_limits import Seldom
from broker.net.scheduler import Turns

BUFFER = 4 * 1024 * 1024
"""Bytes asked of the kernel for what was not read yet. Linux grants twice that, and takes some 830 for a small one: so
there is room for 10,000, a fifth of a second at 50,000 a second. Without asking there is room for 256."""

LEAST_BUFFER = 1024 * 1024
"""Bytes below which there is a warning. With 1 MiB there is room for 2,500 small datagrams: two heartbeats of each of a
thousand services, which is two seconds of a busy reactor."""

LOOK = 32
"""Datagrams after which a look at the clock costs nothing by comparison: some 100 µs."""

RETRY = 1.0
"""Seconds until a socket whose read failed is read again."""

_LINUX = sys.platform.startswith("linux")

_SO_RCVBUFFORCE = 33
_SO_RXQ_OVFL = 40
"""Options of Linux that Python has no names for."""

_DROPS = 4
"""Bytes of the kernel's count of drops, which begins again at 0 behind the largest that they hold."""

_TOLD = frozenset(
    {
        errno.EACCES, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
        errno.EMSGSIZE, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ENOPROTOOPT, errno.EOPNOTSUPP,
        errno.EPERM, errno.EPROTO,
    }
)  # fmt: skip
"""Errors of a read that concern an earlier datagram of the broker. There may be datagrams behind them."""

_Receive = Callable[[bytes, tuple[str, int]], object]


@implementer(IReadDescriptor)
class UdpSocket:
    """One socket, over IPv4 or IPv6. Nothing comes in before it is bound, and then goes to who was named there.

    ``longest`` is how many bytes a datagram may have; ``wanted`` is the receive buffer to ask for, in bytes.
    """

    log = Logger()

    buffer = 0
    """Bytes of the receive buffer that the kernel granted."""

    def __init__(self, reactor: Any, turns: Turns, name: str, longest: int, wanted: int = BUFFER) -> None:
        self._clock = reactor
        self._turns = turns
        self._name = name
        self._longest = longest
        self._wanted = wanted
        self._socket: socket.socket | None = None
        self._receive: _Receive = _lose
        self._queued = False
        self._wakeup: IDelayedCall | None = None
        self._received = self._oversized = self._failed = self._sent = 0
        self._unsent: Counter[str] = Counter()
        self._dropped: int | None = None
        """None where the kernel does not tell."""
        self._told = 0
        """The kernel's count of dropped datagrams at the last look."""
        self._logged: Seldom[str] = Seldom(reactor)
        self._warned = False
        """The receive buffer is a small one, and the log has it: it may be bound more than once."""

    # opening and closing

    def bind(self, host: str, port: int, receive: _Receive) -> int:
        """Listen at that IPv4 or IPv6 address. Returns the port that it got. Raises OSError."""
        assert self._socket is None
        opened = socket.socket(_family(host), socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self.buffer = _enlarge(opened, self._wanted)
            self._dropped = 0 if _tells_drops(opened) else None
            opened.bind((host, port))
            got: int = opened.getsockname()[1]
        except BaseException:
            opened.close()
            raise
        if self.buffer < LEAST_BUFFER and not self._warned:
            self._warned = True
            self.log.warn(
                "the system granted {name} a receive buffer of {buffer} bytes only, so datagrams may be lost while the"
                " broker is busy; to raise it: sysctl -w net.core.rmem_max={wanted}",
                name=self._name, buffer=self.buffer, wanted=BUFFER,
            )  # fmt: skip
        self._told = 0
        self._receive = receive
        self._socket = opened
        self._clock.addReader(self)
        return got

    def close(self) -> None:
        """Close. Nothing is received any more."""
        if self._socket is None:
            return
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        self._clock.removeReader(self)
        self._socket.close()
        self._socket = None

    # receiving

    def fileno(self) -> int:
        """The descriptor; -1 if there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        """The name of the socket in the reactor's log lines."""
        return self._name

    def doRead(self) -> None:
        """There is something to read."""
        if not self._queued:
            self._queued = True
            self._turns.serve_shared(self)

    def connectionLost(self, reason: Failure) -> None:
        """The reactor took it out, over an error that came without a datagram. It goes on."""
        self._rest()

    def serve(self) -> bool:
        """Read and handle the next quantum. Returns whether there may be more."""
        turns = self._turns
        self._queued = False
        left = turns.messages()
        read: Callable[[socket.socket, int], None] = self._read if self._dropped is None else self._read_counting
        while self._socket is not None:
            try:
                read(self._socket, min(left, LOOK))
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _TOLD:
                    if self._logged.due(f"read {error.errno}"):
                        self.log.error("the socket of {name} failed: {error}", name=self._name, error=str(error))
                    self._rest()
                    return False
            left -= LOOK
            if left <= 0 or turns.over():
                self._queued = self._socket is not None
                return self._queued
            read = self._read
        return False

    def _read_counting(self, opened: socket.socket, count: int) -> None:
        """Read up to so many, and see from the first what the kernel dropped before it."""
        data, told, _, source = opened.recvmsg(self._longest + 1, socket.CMSG_SPACE(_DROPS))
        for level, kind, value in told:
            if level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL and self._dropped is not None:
                drops = int.from_bytes(value, sys.byteorder)
                by = risen(self._told, drops)
                if by:
                    self._dropped += by
                    self._told = drops
        self._take(data, source)
        if self._socket is not None:
            self._read(opened, count - 1)

    def _read(self, opened: socket.socket, count: int) -> None:
        """Read and handle up to so many. Raises BlockingIOError if there are no more."""
        recvfrom, take, size = opened.recvfrom, self._take, self._longest + 1
        for _ in range(count):
            take(*recvfrom(size))
            if self._socket is None:
                return

    def _take(self, data: bytes, source: tuple[str, int]) -> None:
        self._received += 1
        if len(data) > self._longest:
            self._oversized += 1
        try:
            self._receive(data, source)
        except Exception:
            self._failure()

    def _failure(self) -> None:
        """Anybody can send what makes the broker fail as often as he likes, and a failure takes a page of the log."""
        self._failed += 1
        if self._logged.due("failure"):
            self.log.failure("a datagram to {name} made the broker fail", name=self._name)

    def took(self, seconds: float) -> None:
        """Ignore the time: many peers share the socket."""

    def flush(self) -> None:
        """Nothing is gathered."""

    def abort(self) -> None:
        """A defect of ours must not end it: it goes on."""
        self._rest()

    def _rest(self) -> None:
        """Read nothing for a while: it may seem to be readable all the time."""
        if self._socket is not None:
            self._clock.removeReader(self)
            if self._wakeup is None:
                self._wakeup = self._clock.callLater(RETRY, self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self._clock.addReader(self)

    # sending

    def send(self, data: bytes, to: tuple[str, int]) -> bool:
        """Send one datagram to an address of the socket's family and a port, as `bind`'s function was given them.

        Returns True if the kernel took it; more is not known.
        """
        if self._socket is None:
            self._unsent["closed"] += 1
            return False
        try:
            # A name would be looked up, and everything would wait for that. A link-local address has a scope behind it.
            socket.inet_pton(self._socket.family, to[0].partition("%")[0])
            self._socket.sendto(data, to)
        except OSError as error:
            kind = "address" if error.errno is None else errno.errorcode.get(error.errno, str(error.errno))
            self._unsent[kind] += 1
            if self._logged.due(f"send {kind}"):
                host, port = to[:2]
                self.log.warn(
                    "{name} could not send to {host}:{port}: {error}; more of the kind within a minute is only counted",
                    name=self._name, host=host, port=port, error=error.strerror or str(error),
                )  # fmt: skip
            return False
        self._sent += 1
        return True

    # counts

    def counts(self) -> Mapping[str, int]:
        """Counters of events that are too frequent to be counted elsewhere."""
        datagrams = {
            "received": self._received,
            "oversized": self._oversized,
            "failed": self._failed,
            "sent": self._sent,
            "unsent": self._unsent.total(),
        }
        if self._dropped is not None:
            datagrams["dropped"] = self._dropped
        counts = {f"{self._name}_datagrams.{what}": count for what, count in datagrams.items()}
        counts.update((f"{self._name}_unsent.{kind}", count) for kind, count in self._unsent.items())
        return counts


def risen(before: int, now: int) -> int:
    """By how much a count of the kernel rose, which begins again at 0 when it is full.

    Datagrams that come by two processors at once may bring theirs in the wrong order: a count that seems to have risen
    by half of its range or more is an older one, and has not risen.
    """
    full = 1 << 8 * _DROPS
    by = (now - before) % full
    return by if by < full // 2 else 0


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _enlarge(opened: socket.socket, wanted: int) -> int:
    """Ask for a receive buffer. Returns what was granted."""
    with contextlib.suppress(OSError):  # other systems refuse what is more than they grant
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
    granted = _granted(opened)
    if _LINUX and granted < wanted:
        with contextlib.suppress(OSError):  # only the superuser may have more than the limit
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted)
        granted = _granted(opened)
    return granted


def _granted(opened: socket.socket) -> int:
    buffer = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return buffer // 2 if _LINUX else buffer  # Linux tells of its own overhead too: twice what was asked


def _tells_drops(opened: socket.socket) -> bool:
    """Have the kernel tell with each datagram how many it had no room for. Returns whether it will."""
    if not _LINUX:
        return False
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    except OSError:
        return False
    return True


def _lose(data: bytes, source: tuple[str, int]) -> None:
    """Discard a datagram that arrives before the receiver is set: there is none."""
