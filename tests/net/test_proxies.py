"""Clients behind trusted proxies: headers of the PROXY protocol, and the fields of HTTP that name clients."""

from __future__ import annotations

import socket
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import connectionDone

from broker.core.errors import Reason
from broker.net.connection_limits import ConnectionLimits
from broker.net.proxies import (
    HEADER_WITHIN,
    MAX_HEADER,
    MAX_UNDECIDED,
    SIGNATURE,
    BadHeader,
    ProxyFactory,
    TrustedProxies,
    header,
    is_proxied,
)
from tests.net.words import Hub, Wire

PROXY = "192.0.2.9"


def version_2(client: str, port: int = 4000, command: int = 0x21, more: bytes = b"") -> bytes:
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    address = socket.inet_pton(family, client)
    rest = address + address + struct.pack("!HH", port, 80) + more
    kind = 0x21 if ":" in client else 0x11
    return SIGNATURE + bytes((command, kind)) + struct.pack("!H", len(rest)) + rest


HEADERS = [
    (b"PROXY TCP4 198.51.100.7 192.0.2.1 4000 80\r\n", ("198.51.100.7", 4000)),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 4000 80\r\n", ("2001:db8::7", 4000)),
    (b"PROXY TCP6 ::ffff:198.51.100.7 ::1 4000 80\r\n", ("198.51.100.7", 4000)),
    (b"PROXY UNKNOWN\r\n", ("", 0)),
    (b"PROXY UNKNOWN ffff::1 ffff::1 1 2\r\n", ("", 0)),
    (version_2("198.51.100.7"), ("198.51.100.7", 4000)),
    (version_2("2001:db8::7", more=b"\4\0\3abc"), ("2001:db8::7", 4000)),
    (version_2("198.51.100.7", command=0x20), None),
    (SIGNATURE + b"\x21\0\0\0", ("", 0)),
    (SIGNATURE + b"\x20\0\0\0", None),
]


@pytest.mark.parametrize(("data", "client"), HEADERS)
def test_a_header_is_read_whatever_its_pieces(data: bytes, client: tuple[str, int] | None) -> None:
    for end in range(1, len(data)):
        assert header(data[:end]) is None
    found = header(data + b"more")
    assert found is not None
    address, rest = found
    assert rest == b"more"
    assert (None if address is None else (address.host, address.port)) == client
    assert address is None or is_proxied(address)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 198.51.100.7 192.0.2.1 4000\r\n",
        b"PROXY TCP4 bank 192.0.2.1 4000 80\r\n",
        b"PROXY TCP4 198.51.100.7 192.0.2.1 70000 80\r\n",
        b"PROXY UDP4 198.51.100.7 192.0.2.1 4000 80\r\n",
        b"PROXY TCP4 " + b"x" * 200,
        version_2("198.51.100.7", command=0x31),
        version_2("198.51.100.7", command=0x22),
        version_2("198.51.100.7", more=bytes(MAX_HEADER)),
        SIGNATURE + b"\x21\x11\0\4" + bytes(4),
    ],
)
def test_a_wrong_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadHeader):
        header(data)


@given(st.binary(max_size=80), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_a_header_or_none_or_wrong(data: bytes, before: bytes) -> None:
    try:
        found = header(before + data)
    except BadHeader:
        return
    assert found is None or (before + data).endswith(found[1])


@pytest.mark.parametrize(
    ("forwarded", "x_forwarded_for", "client"),
    [
        ([], ["198.51.100.7"], "198.51.100.7"),
        ([], ["203.0.113.1, 198.51.100.7", "192.0.2.8"], "198.51.100.7"),
        ([], ["::ffff:198.51.100.7"], "198.51.100.7"),
        ([], ["192.0.2.7, 192.0.2.8"], "192.0.2.7"),
        ([], ["198.51.100.7, unknown"], PROXY),
        ([], [], None),
        (["for=198.51.100.7;proto=http;by=192.0.2.9"], [], "198.51.100.7"),
        (["for=198.51.100.7"], ["203.0.113.1, 198.51.100.7"], "198.51.100.7"),
        (["for=198.51.100.7"], ["203.0.113.1"], PROXY),
        (["for=unknown"], ["203.0.113.1"], PROXY),
        ([""], [""], None),
        (['for="203.0.113.1', 'for="[2001:db8::7]"'], [], PROXY),
        (['a="', 'for="198.51.100.7:80";by="x"'], [], PROXY),
        (["for=198.51.100.7 bank"], [], PROXY),
        (['by="a, for=203.0.113.1", for=198.51.100.7,'], [], "198.51.100.7"),
        (['For="[2001:db8::7]:4711", for=192.0.2.8'], [], "2001:db8::7"),
        (['for="198.51.100.7:4711"'], [], "198.51.100.7"),
        (["for=_hidden"], [], PROXY),
    ],
)
def test_the_client_of_a_request(forwarded: list[str], x_forwarded_for: list[str], client: str | None) -> None:
    proxies = TrustedProxies(["192.0.2.0/28"])
    assert proxies.client(PROXY, forwarded, x_forwarded_for) == client
    assert proxies.client("203.0.113.5", forwarded, x_forwarded_for) is None, "from elsewhere they are ignored"
    assert TrustedProxies().client(PROXY, forwarded, x_forwarded_for) is None


class Proxied:
    """A listener of words behind a proxy."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.hub = Hub(limits)
        self.factory = ProxyFactory(self.hub.factory, TrustedProxies([PROXY]), self.hub.clock)

    def connect(self, host: str = PROXY) -> Any:
        wire: Any = Wire()
        protocol = self.factory.buildProtocol(IPv4Address("TCP", host, 5000))
        assert protocol is not None
        wire.protocol = protocol
        protocol.makeConnection(wire)
        return wire

    def addresses(self) -> list[str]:
        """Those of the messages since the last call."""
        found = [address for address, _ in self.hub.heard]
        self.hub.heard.clear()
        return found


@pytest.mark.parametrize("data", [data for data, client in HEADERS if client not in (None, ("", 0))])
def test_a_connection_of_a_proxy_is_that_of_its_client(data: bytes) -> None:
    proxied = Proxied()
    wire = proxied.connect()
    for start, end in pairwise((0, 5, 14, len(data))):
        wire.protocol.dataReceived(data[start:end])
    wire.protocol.dataReceived(b"say x\n")
    [connection] = proxied.hub.factory.connections
    assert proxied.addresses() == [connection.address]
    assert connection.port == 4000
    assert connection.host != PROXY
    assert wire.client[0] == connection.host
    assert wire.value() == b"x"


def test_a_connection_of_a_proxy_without_a_header_is_its_own() -> None:
    proxied = Proxied()
    proxied.connect().protocol.dataReceived(b"say x\n")
    assert proxied.addresses() == [f"{PROXY}:5000"]
    silent = proxied.connect()
    proxied.hub.pass_seconds(int(HEADER_WITHIN) + 2)
    silent.protocol.dataReceived(b"say x\n")
    assert proxied.addresses() == [f"{PROXY}:5000"]
    local = proxied.connect()
    local.protocol.dataReceived(version_2(PROXY, command=0x20) + b"say x\n")
    assert proxied.addresses() == [f"{PROXY}:5000"]
    lost = proxied.connect()
    lost.protocol.connectionLost(connectionDone)
    assert not proxied.factory.undecided
    assert proxied.hub.clock.getDelayedCalls() == []


@pytest.mark.parametrize("data", [data for data, client in HEADERS if client == ("", 0)])
def test_a_client_without_an_address_has_that_of_the_proxy_and_is_not_local(data: bytes) -> None:
    proxied = Proxied()
    proxied.factory = ProxyFactory(proxied.hub.factory, TrustedProxies(["127.0.0.1"]), proxied.hub.clock)
    for first, local in ((b"", True), (data, False)):
        proxied.connect("127.0.0.1").protocol.dataReceived(first + b"say x\n")
        assert proxied.addresses() == ["127.0.0.1:5000"]
        assert [each.local for each in proxied.hub.factory.connections if each.local == local]
    assert len(proxied.hub.factory.connections) == 2


def test_a_header_that_does_not_end_in_time_is_refused() -> None:
    proxied = Proxied()
    slow = proxied.connect()
    slow.protocol.dataReceived(b"PROXY TCP4 198.51.100.7 ")
    proxied.hub.pass_seconds(int(HEADER_WITHIN) + 2)
    assert slow.aborted
    assert not proxied.hub.factory.connections


def test_a_header_from_elsewhere_is_refused() -> None:
    proxied = Proxied()
    wire = proxied.connect("203.0.113.5")
    wire.protocol.dataReceived(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\nsay x\n")
    assert (proxied.addresses(), wire.half_closed) == ([], True)
    assert proxied.hub.refused(Reason.SYNTAX) == 1


def test_a_wrong_header_closes_the_connection() -> None:
    proxied = Proxied()
    wire = proxied.connect()
    wire.protocol.dataReceived(b"PROXY TCP4 x y 1 2\r\n")
    assert wire.aborted
    assert proxied.hub.refused(Reason.SYNTAX) == 1
    assert not proxied.hub.factory.connections


def test_limits_count_by_client_and_local_clients_of_a_proxy_are_not_exempt() -> None:
    proxied = Proxied(ConnectionLimits(rate=1, burst=2, connections_per_address=3))
    for client, admitted in (("198.51.100.7", 2), ("198.51.100.8", 2), ("127.0.0.1", 2)):
        wires = [proxied.connect() for _ in range(4)]
        for wire in wires:
            wire.protocol.dataReceived(b"PROXY TCP4 %s 192.0.2.1 4000 80\r\n" % client.encode())
        assert sum(not wire.half_closed for wire in wires) == admitted
    assert not any(each.local for each in proxied.hub.factory.connections)


def test_few_connections_wait_for_their_first_bytes() -> None:
    proxied = Proxied()
    for _ in range(MAX_UNDECIDED + 5):
        proxied.connect()
    assert len(proxied.factory.undecided) == MAX_UNDECIDED
    assert len(proxied.hub.factory.connections) == 5
