"""Clients behind trusted proxies: the PROXY protocol on any stream listener, and the header fields of HTTP.

Rules:
- ``broker.trusted_proxies`` has the networks of proxies. A connection from elsewhere is passed on unread:
  a PROXY header is no message of any protocol here, and is refused as such; ``Forwarded`` and ``X-Forwarded-For`` are
  ignored, except that a local peer with one of them is not trusted as local (`broker.net.web_origins`).
- A connection from a trusted proxy may begin with a PROXY header, version 1 or 2: it comes before TLS. The connection
  is then that of the client, for limits, places, logins and the log. A connection without a header is the proxy's own.
- The proxy sends the header at once, so that a connection that is silent for `HEADER_WITHIN` has none.
- A client behind a proxy is never exempt from limits as a local peer is, whatever its address.
- Over HTTP the client is the last address of ``Forwarded`` or ``X-Forwarded-For`` that is no trusted proxy's: the
  client wrote the part before it. A proxy writes one of these fields, and may pass on the other one as the client
  wrote it: where they name different clients, neither counts.
- A client whose address the proxy does not give, or that is ambiguous, has the proxy's address, and is a client still.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure

from broker.access.identity import address_of, network_of, plain
from broker.core.errors import Reason, Refusal

PROXY_FIELDS = (b"forwarded", b"x-forwarded-for")
"""The fields of HTTP by which a proxy names its client, in lower case: the arguments of `TrustedProxies.client`."""

HEADER_WITHIN = 1.0
"""Seconds within which a PROXY header begins: haproxy and nginx send it with the connection. Peers on the proxy's own
host that wait for the broker's first words, at the console, get them after that time."""

MAX_HEADER = 4_096
"""Bytes of a PROXY header: one of version 2 may have extensions, of which a certificate's names are the longest."""

MAX_UNDECIDED = 256
"""Connections of one listener that wait for the rest of their first bytes. The oldest of more is the proxy's own."""

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""The first bytes of version 2."""

_V1 = b"PROXY "
_LONGEST_V1 = 107
_HEAD_V2 = 16
_V2_LENGTHS = {0x11: 12, 0x21: 36}
"""Bytes of the addresses, by address family and transport: TCP over IPv4, and over IPv6."""

_PAIR = re.compile(r'[;,\s]*([\w-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^";,\s]*)\s*(?=[;,]|$)')
"""A parameter of ``Forwarded``. The text behind a quoted value is checked: a quote that the client left open would
otherwise end in the part of the proxy."""


class _Proxied:
    """Mark of the address of a client behind a proxy."""


class ProxiedIPv4(_Proxied, IPv4Address):
    """The IPv4 address of a client behind a proxy."""


class ProxiedIPv6(_Proxied, IPv6Address):
    """The IPv6 address of a client behind a proxy."""


UNKNOWN = ProxiedIPv4("TCP", "", 0)
"""The client of a header that gives no address over TCP."""


class BadHeader(ValueError):
    """A PROXY header that cannot be understood."""


class TrustedProxies:
    """The networks of trusted proxies, which a reload replaces. Raises ValueError for a text that is no network."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks: tuple[IPv4Network | IPv6Network, ...] = ()
        self.use(networks)

    def use(self, networks: Iterable[str]) -> None:
        """Trust other networks, for new connections and requests."""
        self._networks = tuple(map(ip_network, networks))

    def trusts(self, host: str) -> bool:
        """Return True if a peer of that address is a trusted proxy."""
        if not self._networks:
            return False
        try:
            address = address_of(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def source_of(self, host: str) -> str:
        """Return the network that a connection of HTTP counts for; empty for a trusted proxy, whose clients count."""
        return "" if self.trusts(host) else network_of(host)

    def client(self, peer: str, forwarded: Sequence[str], x_forwarded_for: Sequence[str]) -> str | None:
        """Return the address of the client that sent an HTTP request through that peer.

        None without such header fields, or if the peer is not a trusted proxy; the peer's own address if the client is
        not known. The sequences are the values of the header fields.
        """
        if not self.trusts(peer):
            return None
        chains = [_forwarded(forwarded), [text.strip() for text in ",".join(x_forwarded_for).split(",")]]
        clients = {self._last(chain) for chain in chains if any(chain)}
        if not clients:
            return None
        return (clients.pop() if len(clients) == 1 else None) or plain(peer)

    def _last(self, chain: Sequence[str]) -> str | None:
        """Return the last address that is no trusted proxy's; None if something else stands there."""
        client = None
        for text in reversed(chain):
            try:
                client = str(address_of(text))
            except ValueError:
                return None  # "unknown", or a name that the proxy made up
            if not self.trusts(client):
                break
        return client


def proxied(host: str, port: int = 0) -> ProxiedIPv4 | ProxiedIPv6:
    """Return the address of a client behind a proxy."""
    kind = ProxiedIPv6 if ":" in host else ProxiedIPv4
    return kind("TCP", host, port)


def is_proxied(address: IAddress | None) -> bool:
    """Return True for the address of a client behind a proxy."""
    return isinstance(address, _Proxied)


def header(data: bytes) -> tuple[ProxiedIPv4 | ProxiedIPv6 | None, bytes] | None:
    """Return the client of a PROXY header and the bytes behind it; None while more bytes are needed.

    The client is None for a connection of the proxy itself, and for one without a header; it is `UNKNOWN` if the header
    does not give its address. Raises `BadHeader`.
    """
    if data.startswith(_V1[: len(data)]):
        return _version_1(data)
    if data.startswith(SIGNATURE[: len(data)]):
        return _version_2(data)
    return None, data


class ProxyFactory(WrappingFactory[Any]):
    """Wrapper of the factory of a port: connections of trusted proxies may have a PROXY header."""

    noisy = False

    def __init__(self, factory: Any, proxies: TrustedProxies, clock: Any) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self._proxies = proxies
        self.clock = clock
        self.undecided: OrderedDict[_Undecided, None] = OrderedDict()

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if not self._proxies.trusts(getattr(addr, "host", "")):
            return self.wrappedFactory.buildProtocol(addr)
        return _Undecided(self, addr)

    def wait(self, connection: _Undecided) -> None:
        """Count a connection whose first bytes are awaited."""
        self.undecided[connection] = None
        if len(self.undecided) > MAX_UNDECIDED:
            next(iter(self.undecided)).give_up()


class _Undecided(Protocol):
    """A connection from a trusted proxy until its first bytes have come."""

    transport: Any

    def __init__(self, factory: ProxyFactory, address: IAddress | None) -> None:
        self._proxy = factory
        self._address = address
        self._data = b""
        self._timer: IDelayedCall | None = None

    def connectionMade(self) -> None:
        self._timer = self._proxy.clock.callLater(HEADER_WITHIN, self._waited)
        self._proxy.wait(self)

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        try:
            found = header(self._data)
        except BadHeader as error:
            self._refuse(str(error))
            return
        if found is not None:
            client, self._data = found
            self.decide(client)
        elif len(self._data) > MAX_HEADER:
            self._refuse("its header is too long")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._forget()

    def _waited(self) -> None:
        # In the next turn: input that came while the process stalled is read before.
        self._timer = self._proxy.clock.callLater(0, self.give_up)

    def give_up(self) -> None:
        """Pass the connection on as the proxy's own, unless it has begun a header."""
        if self._data.startswith((_V1, SIGNATURE)):
            self._refuse("it does not end")
        else:
            self.decide(None)

    def decide(self, client: ProxiedIPv4 | ProxiedIPv6 | None) -> None:
        """Pass the connection on, as that of the client, or of the proxy itself."""
        self._forget()
        transport = self.transport
        if client is UNKNOWN:
            client = proxied(plain(getattr(self._address, "host", "")), getattr(self._address, "port", 0))
        if client is not None:
            # Callers that ask the transport for its peer get the client, too.
            transport.client = (client.host, client.port, 0, 0)[: 4 if ":" in client.host else 2]
            transport._addressType = type(client)
            transport.hostname = client.host
        inner = self._proxy.wrappedFactory.buildProtocol(self._address if client is None else client)
        if inner is None:
            transport.abortConnection()
            return
        transport.protocol = inner
        inner.makeConnection(transport)
        if self._data:
            inner.dataReceived(self._data)

    def _forget(self) -> None:
        self._proxy.undecided.pop(self, None)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _refuse(self, text: str) -> None:
        self._forget()
        factory = self._proxy.wrappedFactory
        factory = getattr(factory, "wrappedFactory", factory)  # that of TLS counts for the protocol within
        host = plain(getattr(self._address, "host", ""))
        factory.refusal_log.add(factory.wire, host, Refusal(Reason.SYNTAX, f"a PROXY header is wrong: {text}"))
        self.transport.abortConnection()


def _forwarded(values: Sequence[str]) -> list[str]:
    """Return the addresses of ``Forwarded`` (RFC 7239), without ports."""
    text = ", ".join(values).strip(" \t,;")
    nodes, end = [], 0
    while end < len(text):
        pair = _PAIR.match(text, end)
        if pair is None:
            return ["malformed"]
        end = pair.end()
        if pair[1].lower() == "for":
            nodes.append(pair[2].strip('"'))
    return [node[1:].partition("]")[0] if node.startswith("[") else node.partition(":")[0] for node in nodes]


def _version_1(data: bytes) -> tuple[ProxiedIPv4 | ProxiedIPv6 | None, bytes] | None:
    line, end, rest = data.partition(b"\r\n")
    if not end:
        if len(data) >= _LONGEST_V1:
            raise BadHeader("its line does not end")
        return None
    words = line.decode("ascii", "replace").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return UNKNOWN, rest
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6") or not words[4].isdecimal() or int(words[4]) > 65_535:
        raise BadHeader("it is no line of version 1")
    return _client(words[2], int(words[4])), rest


def _version_2(data: bytes) -> tuple[ProxiedIPv4 | ProxiedIPv6 | None, bytes] | None:
    if len(data) < _HEAD_V2:
        return None
    length = _HEAD_V2 + int.from_bytes(data[14:16])
    if data[12] not in (0x20, 0x21):
        raise BadHeader("its version or command is unknown")
    if length > MAX_HEADER:
        raise BadHeader("it is too long")
    if len(data) < length:
        return None
    size = _V2_LENGTHS.get(data[13])
    if data[12] == 0x20:  # LOCAL
        return None, data[length:]
    if size is None:
        return UNKNOWN, data[length:]
    if length < _HEAD_V2 + size:
        raise BadHeader("it is too short for its addresses")
    addresses = data[_HEAD_V2 : _HEAD_V2 + size]
    half = (size - 4) // 2
    return _client(str(ip_address(addresses[:half])), int.from_bytes(addresses[-4:-2])), data[length:]


def _client(host: str, port: int) -> ProxiedIPv4 | ProxiedIPv6:
    try:
        return proxied(str(address_of(host)), port)
    except ValueError:
        raise BadHeader("it has no address") from None
