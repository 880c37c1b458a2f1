"""Transport of a client: the sockets below the control flow and the data flows, and the endpoints of brokers.

`broker.client.dealer.ZeroMQ` is the real one. `broker.client.testing.FakeBroker` is one in memory.

Endpoints of the brokers that a client may use: one after the other, until one of them opens a session;
and the endpoint of a data flow.

Rules:
- The client stays with a broker until it is lost, and then tries the next one in the order given, in a circle.
- A host name with several addresses stands for all of them. It is looked up again before each attempt.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from broker.client.errors import Lost


class FrameSocket(Protocol):
    """A connection that carries messages of frames. Its callbacks are called in the reactor, never from `send`."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Returns False if there is no room; the callback ``room`` is then called later."""

    def pause(self) -> None:
        """Stop receiving until `resume`."""

    def resume(self) -> None:
        """Receive again."""

    def close(self, linger: int = 0) -> None:
        """Close the socket and stop all callbacks. Sent messages may still go out for ``linger`` milliseconds."""


class Transport(Protocol):
    """Factory of sockets, which belongs to one client."""

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> FrameSocket:
        """Connect to an endpoint. Raises ValueError for an invalid one.

        ``receive`` is called with the frames of each message, ``room`` when there is room again after a
        `FrameSocket.send` that found none, and ``failed`` with a text for people when the socket has become unusable.
        """

    def fault(self, endpoint: str, seconds: float) -> str:
        """Return the reason why no broker is at an endpoint, empty if none is known. The call may block so long."""

    def close(self) -> None:
        """Release what the transport holds, after all sockets are closed."""


class Endpoints:
    """The endpoints of a client, at least one; ``in_thread`` calls a function in a thread. Raises ValueError without
    any."""

    def __init__(self, given: str | Sequence[str], in_thread: Callable[..., Deferred[Any]]) -> None:
        self._given = (given,) if isinstance(given, str) else tuple(given)
        if not self._given:
            raise ValueError("a client needs the endpoint of a broker")
        self._in_thread = in_thread
        self._all: Sequence[str] = self._given
        self._at = 0

    @property
    def given(self) -> Sequence[str]:
        """The endpoints as they were given."""
        return self._given

    @property
    def all(self) -> Sequence[str]:
        """The endpoints with an address in place of each name that has several."""
        return self._all

    @property
    def current(self) -> str:
        """The endpoint in use, or the next one to be tried."""
        return self._all[self._at]

    @property
    def several(self) -> bool:
        """True if there is more than one."""
        return len(self._all) > 1

    def next(self) -> bool:
        """Change to the next endpoint. Returns True if all were tried since the first one."""
        self._at = (self._at + 1) % len(self._all)
        return self._at == 0

    async def look_up(self) -> None:
        """Look up the host names. The endpoint in use stays in use if it is still there. Raises `Lost`."""
        if not any(map(_name, self._given)):
            return
        current = self.current
        found: list[str] = []
        for endpoint in self._given:
            name = _name(endpoint)
            if name is None:
                found.append(endpoint)
                continue
            host, port = name
            try:
                answers = await self._in_thread(socket.getaddrinfo, host, port, socket.AF_INET, socket.SOCK_STREAM)
            except OSError as error:
                if len(self._given) == 1:
                    raise Lost(f"cannot look up {host}: {error.strerror or error}") from None
                continue
            addresses = dict.fromkeys(answer[4][0] for answer in answers)
            # A single address is left to libzmq, which looks it up again by itself.
            found += [endpoint] if len(addresses) == 1 else [f"tcp://{address}:{port}" for address in addresses]
        self._all = tuple(dict.fromkeys(found)) or self._given
        self._at = self._all.index(current) if current in self._all else min(self._at, len(self._all) - 1)


def data_endpoint(control: str, port: int, endpoint: str | None = None) -> str:
    """Return the endpoint of the data flow: the one in the reply, else the port at the control flow's host, else the
    same.

    Raises `Lost` if the broker's reply makes no sense.
    """
    if endpoint is not None:
        return endpoint
    if port == 0:
        return control
    scheme, _, where = control.partition("://")
    host, colon, _ = where.rpartition(":")
    if scheme != "tcp" or not colon:
        raise Lost(f"the broker gives port {port} for data, but {control} has no ports")
    # libzmq's syntax "tcp://SOURCE;HOST:PORT": the part before ";" is the local address
    return f"tcp://{host.rpartition(';')[2]}:{port}"


def _name(endpoint: str) -> tuple[str, int] | None:
    """Return host name and port of an endpoint that has a name; None for an address and all other endpoints."""
    scheme, _, where = endpoint.partition("://")
    host, _, port = where.rpartition(":")
    # With a source address, "SOURCE;HOST:PORT", the endpoint is libzmq's own business.
    if scheme != "tcp" or not port.isdecimal() or ";" in host or host in ("", "localhost"):
        return None
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return host, int(port)
    return None
