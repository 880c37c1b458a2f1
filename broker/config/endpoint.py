"""Endpoints: the addresses of listeners, as in Twisted and as in ZeroMQ.

Endpoint strings: the address of a listener.

The syntax is that of Twisted's endpoint strings: parts between colons, ``name=value`` for named ones, a backslash
escapes a colon, an equals sign or a backslash. Accepted forms::

    tcp:PORT[:interface=ADDRESS][:backlog=N]
    tls:PORT:certificate=FILE:key=FILE[:passphrase_file=FILE][:ca=FILE[:crl=FILE]][:interface=ADDRESS][:backlog=N]
    unix:PATH[:mode=OCTAL][:backlog=N]
    systemd:domain=INET|INET6|UNIX:index=N
    systemd:domain=INET|INET6|UNIX:name=NAME

ZeroMQ endpoints: the address of a listener that speaks ZMTP.

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
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv6Address
from typing import Literal

import attrs

from broker.access.identity import address_of, is_address, joined

Kind = Literal["tcp", "tls", "unix", "systemd"]

BACKLOG = 1_024
"""Length of the accept queue, in connections. With the customary 50, two thousand peers that reconnect at once lose
connection requests and retry seconds later."""

MAX_BACKLOG = 65_535
"""The limit of the kernel (somaxconn) is far below."""

MAX_UNIX_PATH = 107
"""Bytes of a unix socket's path: the kernel's field has 108, the last one zero."""

DOMAINS = ("INET", "INET6", "UNIX")

_POSITIONAL: dict[Kind, tuple[str, ...]] = {
    "tcp": ("port", "interface", "backlog"),
    "tls": ("port",),
    "unix": ("path", "mode", "backlog"),
    "systemd": (),
}
_NAMED: dict[Kind, tuple[str, ...]] = {
    "tcp": ("interface", "backlog"),
    "tls": ("certificate", "key", "passphrase_file", "ca", "crl", "interface", "backlog"),
    "unix": ("mode", "backlog"),
    "systemd": ("domain", "index", "name"),
}
_NUMBER = re.compile(r"[0-9]{1,9}")


class BadEndpoint(ValueError):
    """A text that is no valid endpoint; the message gives the reason."""


@attrs.frozen
class Endpoint:
    """A checked endpoint.

    ``args`` is ``(port,)`` for tcp and tls, ``(path,)`` for unix and empty for systemd; ``kwargs`` has the named parts
    that were given, interface, mode and backlog included where Twisted's positional form was used.
    """

    kind: Kind
    args: tuple[str, ...] = ()
    kwargs: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def port(self) -> int | None:
        """The port of a tcp or tls endpoint; 0 lets the kernel choose."""
        return int(self.args[0]) if self.kind in ("tcp", "tls") else None

    @property
    def interface(self) -> str:
        """The address that a tcp or tls endpoint is bound to; empty for all IPv4 addresses."""
        return self.kwargs.get("interface", "")

    @property
    def path(self) -> str | None:
        """The path of a unix endpoint. One that begins with a zero byte is a name in Linux's abstract namespace, which
        only `broker.config.endpoint` makes."""
        return self.args[0] if self.kind == "unix" else None

    @property
    def mode(self) -> int | None:
        """The permissions of a unix socket, None if not given."""
        return int(self.kwargs["mode"], 8) if "mode" in self.kwargs else None

    @property
    def backlog(self) -> int:
        """Length of the accept queue, in connections."""
        return int(self.kwargs.get("backlog", BACKLOG))

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect: 127.0.0.0/8, ::1, localhost, or a unix socket.

        The address of a socket passed by systemd is unknown, and so is not taken for local.
        """
        if self.kind == "unix":
            return True
        if self.kind == "systemd":
            return False
        return _ip(self).is_loopback

    @property
    def wildcard(self) -> bool:
        """True if it is bound to all addresses of the machine."""
        if self.kind not in ("tcp", "tls"):
            return False
        return _ip(self).is_unspecified

    @property
    def where(self) -> str:
        """The bound address, for display: ``127.0.0.1:9000``, ``[::1]:9000``, a path, or systemd's socket."""
        if self.kind == "unix":
            return shown_path(self.args[0])
        if self.kind == "systemd":
            return f"systemd socket {self.kwargs.get('name') or self.kwargs['index']}"
        return joined(self.interface or "0.0.0.0", self.port or 0)

    @property
    def shown(self) -> str:
        """The address as ``--check`` prints it: with its kind where that is not TCP."""
        return f"{self.kind} {self.where}" if self.kind in ("tls", "unix") else self.where

    def overlaps(self, other: Endpoint) -> bool:
        """Return True if the two cannot both be bound. Port 0 is a free port, a different one each time."""
        if self.port is not None and other.port is not None:
            if self.port != other.port or self.port == 0 or _ip(self).version != _ip(other).version:
                return False
            return self.wildcard or other.wildcard or _ip(self) == _ip(other)
        if self.kind != other.kind:
            return False
        return self.args == other.args and _socket(self) == _socket(other)


def parse(text: str) -> Endpoint:
    """Return the endpoint that ``text`` describes. Raises `BadEndpoint`."""
    parts, kwargs = split(text)
    kind = parts.pop(0)
    if kind not in _POSITIONAL:
        raise BadEndpoint(f"{kind!r} is no kind of endpoint; use tcp:, tls:, unix: or systemd:")
    names = _POSITIONAL[kind]
    colons = r"; write the colons of an IPv6 address as \:" if kind in ("tcp", "tls") else ""
    if len(parts) > len(names):
        raise BadEndpoint(f"too many parts in {text!r}{colons}")
    for name in kwargs:
        if name not in _NAMED[kind]:
            near = get_close_matches(name, _NAMED[kind], 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(_NAMED[kind])}"
            raise BadEndpoint(f"{kind}: has no {name!r}{hint}")
    for name, value in list(zip(names, parts, strict=False))[1:]:
        if name in kwargs:
            raise BadEndpoint(f"{name} is given twice{colons}")
        kwargs[name] = value
    if names and not (parts and parts[0]):
        raise BadEndpoint(f"{kind}: needs a {names[0]}")
    endpoint = Endpoint(kind, tuple(parts[:1]), kwargs)
    _CHECKS[kind](endpoint)
    if "backlog" in kwargs:
        _number("backlog", kwargs["backlog"], 1, MAX_BACKLOG)
    return endpoint


def shown_path(path: str) -> str:
    """Return the path of a unix socket for display: a name in the abstract namespace as ``@NAME``."""
    return "@" + path[1:] if path.startswith("\0") else path


def split(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the positional and the named parts of an endpoint string. Raises `BadEndpoint`."""
    parts: list[str] = []
    named: dict[str, str] = {}
    name: str | None = None
    value = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            value += (escaped := next(characters, ""))
            if not escaped:
                raise BadEndpoint("a backslash at the end of the endpoint")
        elif character == "=" and name is None:
            name, value = value, ""
        elif character == ":":
            _put(parts, named, name, value)
            name, value = None, ""
        else:
            value += character
    _put(parts, named, name, value)
    if not parts:
        raise BadEndpoint("an endpoint begins with its kind: tcp:, tls:, unix: or systemd:")
    return parts, named


def _put(parts: list[str], named: dict[str, str], name: str | None, value: str) -> None:
    if name is None:
        parts.append(value)
    elif name in named:
        raise BadEndpoint(f"{name} is given twice")
    else:
        named[name] = value


def _number(name: str, text: str, least: int, most: int) -> None:
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise BadEndpoint(f"{name} must be a number between {least} and {most}, not {text!r}")


def _check_tcp(endpoint: Endpoint) -> None:
    _number("port", endpoint.args[0], 0, 65_535)
    interface = endpoint.interface
    if interface not in ("", "localhost") and not is_address(interface):
        raise BadEndpoint(f"interface must be an IP address or localhost, not {interface!r}")


def _check_tls(endpoint: Endpoint) -> None:
    _check_tcp(endpoint)
    if "crl" in endpoint.kwargs and "ca" not in endpoint.kwargs:
        raise BadEndpoint("crl has no effect without ca: it lists certificates of that authority")
    for name in ("certificate", "key", "passphrase_file", "ca", "crl"):
        if name in ("certificate", "key") and not endpoint.kwargs.get(name):
            raise BadEndpoint(f"tls: needs {name}=FILE")
        if not endpoint.kwargs.get(name, "/").startswith("/"):
            raise BadEndpoint(f"{name} must be an absolute path, not {endpoint.kwargs[name]!r}")


def _check_unix(endpoint: Endpoint) -> None:
    path = endpoint.args[0]
    if "\0" in path or len(path.encode(errors="replace")) > MAX_UNIX_PATH:
        raise BadEndpoint(f"the path of a unix socket has at most {MAX_UNIX_PATH} bytes, and no zero byte")
    if "mode" in endpoint.kwargs and not re.fullmatch("0?[0-7]{3}", endpoint.kwargs["mode"]):
        raise BadEndpoint(f"mode must be three octal digits, such as 660, not {endpoint.kwargs['mode']!r}")


def _check_systemd(endpoint: Endpoint) -> None:
    kwargs = endpoint.kwargs
    if kwargs.get("domain") not in DOMAINS:
        raise BadEndpoint(f"systemd: needs domain={'|'.join(DOMAINS)}")
    if ("index" in kwargs) == ("name" in kwargs):
        raise BadEndpoint("systemd: needs either index=N or name=NAME, of the sockets that systemd hands over")
    if "index" in kwargs:
        _number("index", kwargs["index"], 0, 1_023)
    elif not kwargs["name"]:
        raise BadEndpoint("systemd: has an empty name")


_CHECKS = {"tcp": _check_tcp, "tls": _check_tls, "unix": _check_unix, "systemd": _check_systemd}


def _ip(endpoint: Endpoint) -> IPv4Address | IPv6Address:
    """Return the address of a tcp or tls endpoint, an IPv4-mapped IPv6 address as the IPv4 address."""
    host = {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(endpoint.interface, endpoint.interface)
    return address_of(host)


def _socket(endpoint: Endpoint) -> tuple[str | None, str | None]:
    index = endpoint.kwargs.get("index")
    return (None if index is None else str(int(index))), endpoint.kwargs.get("name")


ZKind = Literal["tcp", "ipc", "systemd"]

_ZMQ_TCP = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^\[\]]*)):(?P<port>[^:\[\]]*)")
_ZMQ_PORT = re.compile(r"[0-9]{1,5}")


@attrs.frozen
class ZEndpoint:
    """A checked endpoint.

    ``host`` is the address of a tcp endpoint: ``*``, ``localhost`` or a number without brackets. ``port`` is None for
    the other kinds. ``path`` is that of an ipc endpoint, else None; one of the abstract namespace begins with ``@``.
    ``passed`` is the endpoint of a socket that systemd passes, else None.
    """

    kind: ZKind
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


def parse_zmq(text: str) -> ZEndpoint:
    """Return the endpoint that ``text`` describes. Raises `BadEndpoint`."""
    if text.startswith("tcp://"):
        return _zmq_tcp(text.removeprefix("tcp://"))
    if text.startswith("ipc://"):
        return _zmq_ipc(text.removeprefix("ipc://"))
    if text.startswith("systemd:"):
        return ZEndpoint("systemd", passed=parse(text))
    raise BadEndpoint(f"{text!r} is no ZeroMQ endpoint; it begins with tcp:// or ipc://, or with systemd:")


def _zmq_tcp(text: str) -> ZEndpoint:
    match = _ZMQ_TCP.fullmatch(text)
    if match is None:
        raise BadEndpoint(f"tcp:// needs ADDRESS:PORT, not {text!r}")
    port = "0" if match["port"] == "*" else match["port"]
    if not _ZMQ_PORT.fullmatch(port) or int(port) > 65_535:
        raise BadEndpoint(f"port must be a number between 0 and 65535, not {port!r}")
    return ZEndpoint("tcp", _zmq_host(match["host"], match["six"]), int(port))


def _zmq_host(plain: str | None, bracketed: str | None) -> str:
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


def _zmq_ipc(path: str) -> ZEndpoint:
    if path in ("", "@"):
        raise BadEndpoint("ipc:// needs a path" if not path else "ipc://@ needs a name")
    if path == "*":
        raise BadEndpoint("ipc://* would be a path that nobody can know; name one")
    if "\0" in path or len(path.encode(errors="replace")) > MAX_UNIX_PATH:
        raise BadEndpoint(f"the path of a unix socket has at most {MAX_UNIX_PATH} bytes, and no zero byte")
    return ZEndpoint("ipc", path=path)
