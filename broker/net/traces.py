"""Traces: the messages from and to some peers in the log, for a while.

Rules:
- A trace is of an address: a host, or ``host:port`` for one connection. It covers present and later connections of all
  wires and of the console, and datagrams.
- It ends by itself. The lines of one trace in a second are bounded; those beyond are counted, and the count is logged.
- Messages are shown decoded, cut to `MAX_SHOWN` characters. Passwords, and whatever may contain one, are replaced.
- Without a trace there is no tap in any connection (`taps`), so that nothing is slower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.identity import address_of, is_address, plain, with_port
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.operator_interfaces import Trace
from broker.core.rates import Bucket
from broker.net.admission import ConnectionFactory
from broker.net.connection import StreamConnection
from broker.net.scheduled_input import Direction
from broker.net.udp import UdpSocket

MAX_TRACES = 10
"""Traces at a time: each line is for a person to read."""

MAX_SECONDS = 3_600.0
"""Longest trace, in seconds. At the rate limit it writes some 180 MB."""

MAX_ADDRESS = 300
"""Characters of an address: a host name has at most 253."""

LINES_PER_SECOND = 100.0
"""Lines of one trace in a second, on average and at once: more than a person follows, and some milliseconds of CPU."""

MAX_SHOWN = 500
"""Characters of a message in one line."""

HIDDEN = "(hidden)"

_SECRETS = re.compile(
    r"""(?P<name>(?:["'](?:code|password|passwd|secret|token|response|challenge|auth)["']\s*:|"""
    r"""\b(?:code|password|passwd|secret|token|response|challenge|auth)\s*[:=])\s*)"""
    r"""(?P<value>b?"(?:[^"\\]|\\.)*"?|b?'(?:[^'\\]|\\.)*'?|[^\s"',{}\[\]]+)""",
    re.IGNORECASE,
)
"""A member or argument whose value may be a secret; an object as the value is searched in turn."""

_TICKET = re.compile(r"(/ticket/)[^/\s]+")
"""A path to a socket or file: the right to it lasts as long as it exists."""

_AUTHORIZATION = re.compile(r"(?i)(authorization:\s*)[^\r\n\\]+")


@attrs.define(eq=False)
class _Running:
    address: str
    end: float
    timer: IDelayedCall
    bucket: Bucket
    lines: int = 0
    dropped: int = 0
    reported: int = 0


class Traces:
    """All traces. ``connection_factories`` and ``sockets`` return the connections and the UDP sockets of all wires."""

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        connection_factories: Callable[[], Iterable[ConnectionFactory]],
        sockets: Callable[[], Iterable[UdpSocket]],
    ) -> None:
        self._clock = clock
        self._connection_factories = connection_factories
        self._sockets = sockets
        self._running: dict[str, _Running] = {}

    def trace(self, address: str, seconds: float) -> Trace:
        """Log the messages from and to the peers at an address; see `broker.app.operations.Operations.trace`."""
        address = _canonical(address)
        if not address or len(address) > MAX_ADDRESS or not address.isprintable() or " " in address:
            raise Refusal(Reason.PARAMETER, "an address is a host, or host:port")
        if not 0 < seconds <= MAX_SECONDS:
            raise Refusal(Reason.PARAMETER, f"a trace takes up to {MAX_SECONDS:g} seconds")
        running = self._running.get(address)
        if running is None and len(self._running) >= MAX_TRACES:
            raise Refusal(Reason.LIMIT, f"there are {MAX_TRACES} traces already")
        now = self._clock.seconds()
        timer = self._clock.callLater(seconds, self.untrace, address)
        if running is None:
            running = _Running(address, now + seconds, timer, Bucket(LINES_PER_SECOND, now))
            self._running[address] = running
        else:
            running.timer.cancel()
            running.timer, running.end = timer, now + seconds
        self.log.info("trace of {address} for {seconds:g} s", address=address, seconds=seconds)
        self._tap()
        return self._describe(running)

    def untrace(self, address: str) -> bool:
        """End a trace. Returns False if there is none."""
        address = _canonical(address)
        running = self._running.pop(address, None)
        if running is None:
            return False
        if running.timer.active():
            running.timer.cancel()
        self.log.info(
            "trace of {address} ended: {lines} lines, and {dropped} beyond the limit",
            address=address,
            lines=running.lines,
            dropped=running.dropped,
        )
        self._tap()
        return True

    def describe(self) -> Sequence[Trace]:
        """Return the traces under way."""
        return [self._describe(each) for each in self._running.values()]

    def stop(self) -> None:
        """End all traces."""
        for address in list(self._running):
            self.untrace(address)

    def _describe(self, running: _Running) -> Trace:
        left = max(0.0, running.end - self._clock.seconds())
        return Trace(running.address, round(left, 3), running.lines, running.dropped)

    def _tap(self) -> None:
        """Set or remove taps, as the present traces need them."""
        for factory in self._connection_factories():
            if self._running:
                factory.tap(self._is_traced, self._seen)
            else:
                factory.untap()
        for socket in self._sockets():
            if self._running:
                socket.tap(self._datagram)
            else:
                socket.untap()

    def _is_traced(self, connection: StreamConnection) -> bool:
        return self._of(connection.host, connection.address) is not None

    def _of(self, host: str, address: str) -> _Running | None:
        return self._running.get(plain(host)) or self._running.get(address)

    def _seen(self, connection: StreamConnection, direction: Direction, item: Any) -> None:
        running = self._of(connection.host, connection.address)
        if running is not None:
            about = {"conversation": connection.conversation}
            request_id = getattr(connection, "request_id", "")  # of HTTP
            if request_id:
                about["request_id"] = request_id
            self._line(running, connection.factory.wire, connection.address, direction, item, about)

    def _datagram(self, name: str, direction: Direction, data: bytes, peer: tuple[Any, ...]) -> None:
        address = with_port(plain(peer[0]), peer[1])
        running = self._of(peer[0], address)
        if running is not None:
            self._line(running, name, address, direction, data, {})

    def _line(
        self, running: _Running, wire: str, address: str, direction: Direction, item: Any, about: Mapping[str, Any]
    ) -> None:
        if not running.bucket.take(LINES_PER_SECOND, LINES_PER_SECOND, self._clock.seconds()):
            running.dropped += 1
            return
        if running.dropped > running.reported:
            self.log.info(
                "trace {address}: {count} messages were left out: at most {most:g} a second are logged",
                address=running.address,
                count=running.dropped - running.reported,
                most=LINES_PER_SECOND,
            )
            running.reported = running.dropped
        running.lines += 1
        self.log.info(
            "trace {direction} {wire} {address}: {text}",
            direction=direction,
            wire=wire,
            address=address,
            text=text_of(item),
            **about,
        )


def _canonical(address: str) -> str:
    """Return an address, with or without a port, as those of connections are written; any other text unchanged."""
    host, bracket, port = address.removeprefix("[").partition("]")
    if not is_address(host) or (bracket and not address.startswith("[")):
        return address
    return f"[{address_of(host)}]{port}" if port and ":" in host else f"{address_of(host)}{port}"


def text_of(item: Any) -> str:
    """Return a message as it is shown: decoded, without secrets, and cut. Never raises."""
    try:
        text = _decoded(item)
    except Exception as error:  # a trace must never cost the message
        text = f"({type(item).__name__} cannot be shown: {type(error).__name__})"
    # Cut before and after: a secret may be longer than what is shown, and the search costs time.
    text = _SECRETS.sub(rf"\g<name>{HIDDEN}", text[: 8 * MAX_SHOWN])
    text = _TICKET.sub(rf"\g<1>{HIDDEN}", _AUTHORIZATION.sub(rf"\g<1>{HIDDEN}", text))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text) - MAX_SHOWN} more)"


def _decoded(item: Any) -> str:
    if isinstance(item, Malformed):
        return f"malformed: {item.text}"
    if isinstance(item, bytes | bytearray | memoryview):
        return _octets(bytes(item[: 8 * MAX_SHOWN]))
    if isinstance(item, list | tuple):
        return " | ".join(_decoded(each) for each in item)
    if isinstance(item, msgspec.Struct):
        return f"{type(item).__name__} {msgspec.json.encode(item).decode()}"
    return repr(item)


def _octets(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text.rstrip("\r\n"))
