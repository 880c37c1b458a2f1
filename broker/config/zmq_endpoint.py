"""ZeroMQ endpoints: the address of a listener that speaks ZMTP.

The syntax is ZeroMQ's own, and for sockets that systemd passes that of `broker.config.endpoint`. Accepted forms::

    tcp://ADDRESS:PORT      tcp://[IPV6]:PORT
    tcp://*:PORT            all IPv4 addresses of the machine
    tcp://[::]:PORT         all its addresses
    ipc://PATH              a unix socket
    ipc://@NAME             a unix socket in Linux's abstract namespace, which has no file
    systemd:domain=INET|INET6|UNIX:index=N
    systemd:domain=INET|INET6|UNIX:name=NAME

ADDRESS is a number or ``localhost``. ZeroMQ also accepts the name of a network interface, which is refused here:
the machines that reach such a socket are unknown before it is bound. Port 0, or ``*``, is any free port.
"""

from __future__ import annotations

import re
from typing import Literal

import attrs

from broker.access.identity import address_of
from broker.config import endpoint
from broker.config.endpoint import MAX_UNIX_PATH, BadEndpoint, Endpoint

Kind = Literal["tcp", "ipc", "systemd"]

_TCP = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^\[\]]*)):(?P<port>[^:\[\]]*)")
_PORT = re.compile(r"[0-9]{1,5}")


@attrs.frozen
class ZEndpoint:
    """A checked endpoint.

    ``host`` is the address of a tcp endpoint: ``*``, ``localhost`` or a number without brackets. ``port`` is None for
    the other kinds. ``path`` is that of an ipc endpoint, else None; one of the abstract namespace begins with ``@``.
    ``passed`` is the endpoint of a socket that systemd passes, else None.
    """

    kind: Kind
    host: str = ""
    port: int | None = None
    path: str | None = None
    passed: Endpoint | None = None

    @property
    def stream(self) -> Endpoint:
        """The endpoint by which `broker.net.listeners.listen` opens it."""
        if self.passed is not None:
            return self.passed
        if self.path is not None:
            return Endpoint("unix", ("\0" + self.path[1:] if self.path.startswith("@") else self.path,))
        if self.host == "*":
            return Endpoint("tcp", (str(self.port),))
        host = "127.0.0.1" if self.host == "localhost" else self.host
        return Endpoint("tcp", (str(self.port),), {"interface": host})

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect: 127.0.0.0/8, ::1, localhost, or a unix socket.

        The address of a socket passed by systemd is unknown, and so is not taken for local.
        """
        return self.stream.loopback

    @property
    def wildcard(self) -> bool:
        """True if it is bound to all addresses of the machine."""
        return self.stream.wildcard

    @property
    def where(self) -> str:
        """The bound address, for display: ``127.0.0.1:61616``, ``[::1]:61616``, a path, or systemd's socket."""
        return self.stream.where

    @property
    def shown(self) -> str:
        """The address as ``--check`` prints it, with its kind."""
        return self.where if self.kind == "systemd" else f"{self.kind} {self.where}"

    def overlaps(self, other: ZEndpoint | Endpoint) -> bool:
        """Return True if the two cannot both be bound. Port 0 is a free port, and a different one each time."""
        return self.stream.overlaps(other.stream if isinstance(other, ZEndpoint) else other)


def parse(text: str) -> ZEndpoint:
    """Return the endpoint that ``text`` describes. Raises `BadEndpoint`."""
    if text.startswith("tcp://"):
        return _tcp(text.removeprefix("tcp://"))
    if text.startswith("ipc://"):
        return _ipc(text.removeprefix("ipc://"))
    if text.startswith("systemd:"):
        return ZEndpoint("systemd", passed=endpoint.parse(text))
    raise BadEndpoint(f"{text!r} is no ZeroMQ endpoint; it begins with tcp:// or ipc://, or with systemd:")


def _tcp(text: str) -> ZEndpoint:
    match = _TCP.fullmatch(text)
    if match is None:
        raise BadEndpoint(f"tcp:// needs ADDRESS:PORT, not {text!r}")
    port = "0" if match["port"] == "*" else match["port"]
    if not _PORT.fullmatch(port) or int(port) > 65_535:
        raise BadEndpoint(f"port must be a number between 0 and 65535, not {port!r}")
    return ZEndpoint("tcp", _host(match["host"], match["six"]), int(port))


def _host(plain: str | None, bracketed: str | None) -> str:
    if plain in ("*", "localhost"):
        return plain
    shown = f"[{bracketed}]" if plain is None else plain
    try:
        ip = address_of(bracketed or plain or "")
    except ValueError:
        raise BadEndpoint(
            f"the address must be *, localhost or an IP address, not {shown!r}; "
            "names of hosts and of network interfaces are not taken"
        ) from None
    if (":" in shown) != (plain is None):
        raise BadEndpoint(f"an IPv6 address goes in brackets, and no other: not {shown!r}")
    return str(ip)


def _ipc(path: str) -> ZEndpoint:
    if path in ("", "@"):
        raise BadEndpoint("ipc:// needs a path" if not path else "ipc://@ needs a name")
    if path == "*":
        raise BadEndpoint("ipc://* would be a path that nobody can know; name one")
    if "\0" in path or len(path.encode(errors="replace")) > MAX_UNIX_PATH:
        raise BadEndpoint(f"the path of a unix socket has at most {MAX_UNIX_PATH} bytes, and no zero byte")
    return ZEndpoint("ipc", path=path)
