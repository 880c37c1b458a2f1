"""ZeroMQ endpoints: where a ZeroMQ socket is bound.

The syntax is ZeroMQ's own. Taken are::

    tcp://ADDRESS:PORT      tcp://[IPV6]:PORT
    tcp://*:PORT            all IPv4 addresses of the machine
    tcp://[::]:PORT         all its addresses
    ipc://PATH              a unix socket
    ipc://@NAME             a unix socket in Linux's abstract namespace, which has no file

ADDRESS is a number or ``localhost``. libzmq would also take the name of a network interface; it is not taken here,
since who can reach such a socket is not known before it is bound. Port 0, or ``*``, is any free port.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal

import attrs

from broker.config.endpoint import MAX_UNIX_PATH, BadEndpoint, Endpoint

Kind = Literal["tcp", "ipc"]

_KINDS = ("tcp", "ipc")
_TCP = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^\[\]]*)):(?P<port>[^:\[\]]*)")
_PORT = re.compile(r"[0-9]{1,5}")


@attrs.frozen
class ZEndpoint:
    """A checked endpoint.

    ``host`` is the address of a tcp endpoint: ``*``, ``localhost`` or a number without brackets. ``port`` is None for
    ipc, and ``path`` is None for tcp; that of the abstract namespace begins with ``@``.
    """

    kind: Kind
    host: str = ""
    port: int | None = None
    path: str | None = None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect: 127.0.0.0/8, ::1, localhost, or a unix socket."""
        return self.kind == "ipc" or _ip(self.host).is_loopback

    @property
    def wildcard(self) -> bool:
        """Whether it is bound to all addresses of the machine."""
        return self.kind == "tcp" and _ip(self.host).is_unspecified

    @property
    def where(self) -> str:
        """The bound address, to be shown: ``127.0.0.1:61616``, ``[::1]:61616`` or a path."""
        if self.path is not None:
            return self.path
        return f"{_bracketed('0.0.0.0' if self.host == '*' else self.host)}:{self.port}"

    @property
    def address(self) -> str:
        """What libzmq binds. It begins with ``tcp://[`` where the socket must have IPv6 switched on."""
        if self.kind == "ipc":
            return f"ipc://{self.path}"
        host = "127.0.0.1" if self.host == "localhost" else _bracketed(self.host)
        return f"tcp://{host}:{self.port or '*'}"

    def overlaps(self, other: ZEndpoint | Endpoint) -> bool:
        """Whether the two cannot both be bound. Port 0 is a free port, and a different one each time.

        libzmq binds ``[::]`` to the IPv4 addresses too. Whether a listener at ``::`` takes them is a setting of the
        kernel; it is not taken for granted.
        """
        if self.path is not None:
            same_kind = other.kind == "ipc" or (other.kind == "unix" and not self.path.startswith("@"))
            return same_kind and self.path == other.path
        if other.port is None or self.port != other.port or self.port == 0:
            return False
        mine = _ip(self.host)
        others = _ip(other.host if isinstance(other, ZEndpoint) else other.interface)
        return (
            mine == others
            or _covers(mine, others, both=True)
            or _covers(others, mine, both=isinstance(other, ZEndpoint))
        )


def parse(text: str) -> ZEndpoint:
    """The endpoint that ``text`` describes. Raises `BadEndpoint`."""
    kind, slashes, rest = text.partition("://")
    if not slashes or kind not in _KINDS:
        raise BadEndpoint(f"{text!r} is no ZeroMQ endpoint; it begins with tcp:// or ipc://")
    return _tcp(rest) if kind == "tcp" else _ipc(rest)


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
        ip = ip_address(shown.strip("[]"))
    except ValueError:
        raise BadEndpoint(
            f"the address must be *, localhost or an IP address, not {shown!r}; "
            "names of hosts and of network interfaces are not taken"
        ) from None
    if (ip.version == 6) != (plain is None):
        raise BadEndpoint(f"an IPv6 address goes in brackets, and no other: not {shown!r}")
    return str(_plain(ip))


def _ipc(path: str) -> ZEndpoint:
    if path in ("", "@"):
        raise BadEndpoint("ipc:// needs a path" if not path else "ipc://@ needs a name")
    if path == "*":
        raise BadEndpoint("ipc://* would be a path that nobody can know; name one")
    if "\0" in path or len(path.encode(errors="replace")) > MAX_UNIX_PATH:
        raise BadEndpoint(f"the path of a unix socket has at most {MAX_UNIX_PATH} bytes, and no zero byte")
    return ZEndpoint("ipc", path=path)


def _ip(host: str) -> IPv4Address | IPv6Address:
    """The address that a host stands for; that of all IPv4 addresses where there is none."""
    if host in ("", "*"):
        return IPv4Address("0.0.0.0")
    return IPv4Address("127.0.0.1") if host == "localhost" else _plain(ip_address(host))


def _plain(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as an IPv6 one is the same."""
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _covers(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address, both: bool) -> bool:
    """Whether ``one`` is the wildcard of addresses like ``other``; where ``both``, that of IPv6 is IPv4's too."""
    return one.is_unspecified and (one.version == other.version or (both and one.version == 6))
