"""UDP socket in the reactor: bounded reads, and counted errors.

Rules:
- The scheduler serves it as a shared connection (`broker.net.scheduler`).
- `UdpSocket.close` alone ends it: an ICMP error is ignored, a failing datagram costs that datagram, and after any other
  error the socket is read again after `RETRY`.
- An oversized datagram is passed on truncated to one byte more than the longest: its length shows the receiver that it
  is invalid.
- Datagrams dropped by the kernel are counted too, but the kernel reports them only with the next datagram that it
  keeps.
- One line a minute is logged for each kind of error, whatever peers and networks do.
- The port is exclusive: neither the address nor the port is shared.
- At a wildcard address, an answer leaves from the address that was asked. The kernel would choose one by the route to
  the peer, and resolvers and firewalls discard an answer from an address that they did not ask.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.rates import LogLimit
from broker.net.scheduled_input import Direction
from broker.net.scheduler import Scheduler

BUFFER = 4 * 1024 * 1024
"""Receive buffer in bytes, requested from the kernel. Linux grants twice that, and takes some 830 for a small datagram:
so there is room for 10,000, a fifth of a second at 50,000 a second. The default has room for 256."""

LEAST_BUFFER = 1024 * 1024
"""Bytes of receive buffer below which a warning is logged. 1 MiB has room for 2,500 small datagrams: two heartbeats of
each of a thousand services, which is two seconds of a busy reactor."""

LOOK = 32
"""Datagrams between two clock reads: some 100 µs, compared to which a clock read is negligible."""

RETRY = 1.0
"""Seconds until the next read after a failed one."""

_LINUX = sys.platform.startswith("linux")

_SO_RCVBUFFORCE = 33
_SO_RXQ_OVFL = 40
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO = 49
"""Linux options that Python does not name on every system."""

_DROPS = 4
"""Bytes of the kernel's drop counter, which wraps to 0 beyond its maximum."""

_REPORT_ASKED = {
    socket.AF_INET: (socket.IPPROTO_IP, _IP_PKTINFO),
    socket.AF_INET6: (socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO),
}
"""Linux options that report the address to which a datagram was sent, by family. A socket of IPv6 receives datagrams of
IPv4 as well, and reports their address as a mapped one."""

_IN6_PKTINFO = 20
"""Bytes of the longer one of both control messages: an IPv6 address and the number of an interface."""

_NOTES = socket.CMSG_SPACE(_DROPS) + socket.CMSG_SPACE(_IN6_PKTINFO)
"""Bytes of all control messages of a datagram."""

_TOLD = frozenset(
    {
        errno.EACCES, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH,
        errno.EMSGSIZE, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ENOPROTOOPT, errno.EOPNOTSUPP,
        errno.EPERM, errno.EPROTO,
    }
)  # fmt: skip
"""Read errors that concern an earlier datagram of the broker (ICMP). More datagrams may follow them."""

_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.EINVAL, errno.ENETUNREACH})
"""Errors of a source address that the host does not have: which one depends on the family and on the address."""

_Receive = Callable[[bytes, tuple[str, int]], object]


class ReturnAddress(tuple[str, int]):
    """The source of a datagram to a wildcard address: equal to the plain tuple. `UdpSocket.send` answers it from the
    address that was asked, by the control messages of ``via``."""

    via: list[tuple[int, int, bytes]]


@implementer(IReadDescriptor)
class UdpSocket:
    """One socket, over IPv4 or IPv6. Nothing is received before `bind`, which sets the receiver.

    ``longest`` is the longest valid datagram; ``wanted`` is the receive buffer to request. Both in bytes.
    """

    log = Logger()

    strikes = 0
    buffer = 0
    """Bytes of receive buffer granted by the kernel."""

    def __init__(self, reactor: Any, turns: Scheduler, name: str, longest: int, wanted: int = BUFFER) -> None:
        self._clock = reactor
        self._turns = turns
        self._name = name
        self._longest = longest
        self._wanted = wanted
        self._socket: socket.socket | None = None
        self._receive: _Receive = _lose
        self._untapped: _Receive | None = None
        """The receiver, while a tap replaces it."""
        self._queued = False
        self._wakeup: IDelayedCall | None = None
        self._received = self._oversized = self._failed = self._sent = 0
        self._unsent: Counter[str] = Counter()
        self._dropped: int | None = None
        """None if the kernel does not report drops."""
        self._reports_asked = False
        """True if the kernel reports the address to which each datagram was sent."""
        self._drops_logged = 0
        """The kernel's drop counter at the last read."""
        self._logged: LogLimit[str] = LogLimit(reactor)
        self._numeric: str | None = None
        """The host to which the last datagram was sent."""
        self._warned = False
        """The small receive buffer was logged: the socket may be bound more than once."""

    # opening and closing

    def bind(self, host: str, port: int, receive: _Receive) -> int:
        """Bind to that IPv4 or IPv6 address. Returns the bound port. Raises OSError."""
        assert self._socket is None
        opened = socket.socket(_family(host), socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self.buffer = _enlarge(opened, self._wanted)
            self._dropped = 0 if _counts_drops(opened) else None
            self._reports_asked = ip_address(host or "0.0.0.0").is_unspecified and _reports_asked(opened)
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
        self._drops_logged = 0
        self.untap()
        self._receive = receive
        self._socket = opened
        self._clock.addReader(self)
        return got

    def close(self) -> None:
        """Close the socket. Nothing is received afterwards."""
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
        """Return the descriptor; -1 if there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        """Return the name of the socket in the reactor's log lines."""
        return self._name

    def doRead(self) -> None:
        """Schedule a read."""
        if not self._queued:
            self._queued = True
            self._turns.serve_shared(self)

    def connectionLost(self, reason: Failure) -> None:
        """Handle removal by the reactor, after an error without a datagram: the socket is retried."""
        self._rest()

    def serve(self) -> bool:
        """Read and handle one quantum. Returns True if there may be more."""
        turns = self._turns
        self._queued = False
        left = turns.messages()
        notes = self._reports_asked
        read: Callable[[socket.socket, int], None] = (
            self._read_noted if notes or self._dropped is not None else self._read
        )
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
            if not notes:
                read = self._read
        return False

    def _read_noted(self, opened: socket.socket, count: int) -> None:
        """Read up to ``count`` datagrams, and the kernel's notes on the first, or on each at a wildcard address."""
        noted = count if self._reports_asked else 1
        for _ in range(noted):
            data, notes, _, source = opened.recvmsg(self._longest + 1, _NOTES)
            for level, kind, value in notes:
                if level == socket.SOL_SOCKET:
                    if kind == _SO_RXQ_OVFL:
                        self._note_drops(int.from_bytes(value, sys.byteorder))
                else:
                    source = ReturnAddress(source)
                    source.via = [(level, kind, _from_asked(value))]
            self._take(data, source)
            if self._socket is None:
                return
        self._read(opened, count - noted)

    def _note_drops(self, drops: int) -> None:
        by = risen(self._drops_logged, drops)
        if by and self._dropped is not None:
            self._dropped += by
            self._drops_logged = drops

    def _read(self, opened: socket.socket, count: int) -> None:
        """Read and handle up to ``count`` datagrams. Raises BlockingIOError if none is left."""
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
        """Log an exception within the rate limit: any sender can repeat the cause, and a traceback fills a page."""
        self._failed += 1
        if self._logged.due("failure"):
            self.log.failure("a datagram to {name} made the broker fail", name=self._name)

    def took(self, seconds: float) -> None:
        """No-op: many peers share the socket, so that no single one is to blame."""

    def flush(self) -> None:
        """No-op: nothing is gathered."""

    def abort(self) -> None:
        """Retry later: an internal failure must not close the socket."""
        self._rest()

    def _rest(self) -> None:
        """Stop reading for `RETRY` seconds: the socket may stay readable without delivering anything."""
        if self._socket is not None:
            self._clock.removeReader(self)
            if self._wakeup is None:
                self._wakeup = self._clock.callLater(RETRY, self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self._clock.addReader(self)

    # sending

    def send(self, data: bytes, to: tuple[str, int]) -> bool:
        """Send one datagram to an address and port as the receiver of `bind` gets them.

        Returns True if the kernel took it, which does not prove delivery.
        """
        if self._socket is None:
            self._unsent["closed"] += 1
            return False
        try:
            if to[0] != self._numeric:
                # A name would block the reactor in a lookup. A link-local address may have a scope suffix.
                socket.inet_pton(self._socket.family, to[0].partition("%")[0])
                self._numeric = to[0]
            if type(to) is ReturnAddress:
                _send_from_asked(self._socket, data, to)
            else:
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

    # from a trace

    def tap(self, seen: Callable[[str, Direction, bytes, tuple[Any, ...]], object]) -> None:
        """Report each datagram to ``seen``, with the name of the socket, the direction and the address, until `untap`.

        The tap shadows the receiver and `send` of this one object: without it, a datagram costs nothing more.
        """
        self.untap()
        receive = self._untapped = self._receive

        def received(data: bytes, source: tuple[str, int]) -> object:
            seen(self._name, "in", data, source)
            return receive(data, source)

        def send(data: bytes, to: tuple[str, int]) -> bool:
            seen(self._name, "out", data, to)
            return UdpSocket.send(self, data, to)

        self._receive = received
        self.__dict__["send"] = send

    def untap(self) -> None:
        """Report no more datagrams. No-op without a tap."""
        if self._untapped is not None:
            self._receive, self._untapped = self._untapped, None
            del self.__dict__["send"]

    # counts

    def counts(self) -> Mapping[str, int]:
        """Return the counters of events that are too frequent for the common counters."""
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
    """Return the increase of a wrapping kernel counter.

    Datagrams received on two processors may carry its values out of order: an apparent increase of half the range or
    more is an older value, and counts as 0.
    """
    full = 1 << 8 * _DROPS
    by = (now - before) % full
    return by if by < full // 2 else 0


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _enlarge(opened: socket.socket, wanted: int) -> int:
    """Request a receive buffer. Returns the granted size in bytes."""
    with contextlib.suppress(OSError):  # other systems refuse a size beyond their maximum
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
    granted = _granted(opened)
    if _LINUX and granted < wanted:
        with contextlib.suppress(OSError):  # only the superuser may exceed the limit
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted)
        granted = _granted(opened)
    return granted


def _granted(opened: socket.socket) -> int:
    buffer = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return buffer // 2 if _LINUX else buffer  # Linux reports twice the request, for its own overhead


def _counts_drops(opened: socket.socket) -> bool:
    """Enable the kernel's drop counter on received datagrams. Returns True if it is available."""
    if not _LINUX:
        return False
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    except OSError:
        return False
    return True


def _reports_asked(opened: socket.socket) -> bool:
    """Enable the kernel's notes on the address to which datagrams were sent. Returns True if they are available."""
    if not _LINUX:
        return False
    try:
        opened.setsockopt(*_REPORT_ASKED[opened.family], 1)
    except OSError:
        return False
    return True


def _from_asked(asked: bytes) -> bytes:
    """Return the control message by which an answer leaves from the address in the one of its question.

    The interface is left to the route, except for a link-local address, which means nothing without one.
    """
    if len(asked) == _IN6_PKTINFO:
        return asked if asked[0] == 0xFE and asked[1] & 0xC0 == 0x80 else asked[:16] + bytes(4)
    return bytes(4) + asked[4:8] + bytes(4)  # the local address, also where the question went to a broadcast address


def _send_from_asked(opened: socket.socket, data: bytes, to: ReturnAddress) -> None:
    """Send from the address that was asked, or from another one if that is none of this host: a multicast group, or an
    address that was removed since. Raises OSError."""
    try:
        opened.sendmsg((data,), to.via, 0, to)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        opened.sendto(data, to)


def _lose(data: bytes, source: tuple[str, int]) -> None:
    """Discard a datagram that arrives before the receiver is set."""
