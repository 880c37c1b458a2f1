"""ZeroMQ endpoints: their meaning, the endpoints by which they are opened, and errors in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import endpoint
from broker.config.endpoint import BACKLOG, BadEndpoint, Endpoint, ZEndpoint, parse_zmq

GOOD = [
    ("tcp://127.0.0.1:61616", "127.0.0.1:61616", True, False),
    ("tcp://127.1.2.3:0", "127.1.2.3:0", True, False),
    ("tcp://127.0.0.1:*", "127.0.0.1:0", True, False),
    ("tcp://localhost:65535", "127.0.0.1:65535", True, False),
    ("tcp://192.0.2.1:061", "192.0.2.1:61", False, False),
    ("tcp://*:5555", "0.0.0.0:5555", False, True),
    ("tcp://0.0.0.0:0", "0.0.0.0:0", False, True),
    ("tcp://[::1]:5555", "[::1]:5555", True, False),
    ("tcp://[0:0::1]:0", "[::1]:0", True, False),
    ("tcp://[::]:5555", "[::]:5555", False, True),
    ("tcp://[2001:db8::1]:5555", "[2001:db8::1]:5555", False, False),
    ("tcp://[fe80::1%eth0]:5555", "[fe80::1%eth0]:5555", False, False),
    ("tcp://[::ffff:127.0.0.1]:5555", "127.0.0.1:5555", True, False),
    ("tcp://[::ffff:0.0.0.0]:5555", "0.0.0.0:5555", False, True),
    ("ipc:///run/mc0.sock", "/run/mc0.sock", True, False),
    ("ipc://a b:c", "a b:c", True, False),
    ("ipc://@mc0", "@mc0", True, False),
    ("ipc://" + "é" * 53, "é" * 53, True, False),
    ("systemd:domain=INET:name=mc0", "systemd socket mc0", False, False),
    ("systemd:domain=UNIX:index=1", "systemd socket 1", False, False),
]


@pytest.mark.parametrize(("text", "where", "loopback", "wildcard"), GOOD)
def test_where_an_endpoint_is(text: str, where: str, loopback: bool, wildcard: bool) -> None:
    found = parse_zmq(text)
    assert (found.where, found.loopback, found.wildcard) == (where, loopback, wildcard)


def test_the_parts() -> None:
    assert parse_zmq("tcp://[::1]:5") == ZEndpoint("tcp", "::1", 5)
    assert parse_zmq("tcp://*:*") == ZEndpoint("tcp", "*", 0)
    assert parse_zmq("ipc://@x") == ZEndpoint("ipc", path="@x")
    passed = Endpoint("systemd", (), {"domain": "INET6", "name": "mc0"})
    assert parse_zmq("systemd:domain=INET6:name=mc0") == ZEndpoint("systemd", passed=passed)


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("tcp://*:5", Endpoint("tcp", ("5",))),
        ("tcp://*:*", Endpoint("tcp", ("0",))),
        ("tcp://localhost:5", Endpoint("tcp", ("5",), {"interface": "127.0.0.1"})),
        ("tcp://192.0.2.1:5", Endpoint("tcp", ("5",), {"interface": "192.0.2.1"})),
        ("tcp://[::]:5", Endpoint("tcp", ("5",), {"interface": "::"})),
        ("tcp://[::ffff:127.0.0.1]:5", Endpoint("tcp", ("5",), {"interface": "127.0.0.1"})),
        ("ipc://a b:c", Endpoint("unix", ("a b:c",))),
        ("ipc://@mc0", Endpoint("unix", ("\0mc0",))),
        ("systemd:domain=UNIX:index=1", Endpoint("systemd", (), {"domain": "UNIX", "index": "1"})),
    ],
)
def test_the_endpoint_by_which_it_is_opened(text: str, stream: Endpoint) -> None:
    found = parse_zmq(text).stream
    assert found == stream
    assert (found.backlog, found.mode) == (BACKLOG, None)


NOT_TAKEN = "names of hosts and of network interfaces are not taken"
BAD = [
    ("", "'' is no ZeroMQ endpoint; it begins with tcp:// or ipc://, or with systemd:"),
    ("61616", "is no ZeroMQ endpoint"),
    ("tcp:61616:interface=127.0.0.1", "is no ZeroMQ endpoint"),
    ("TCP://*:1", "is no ZeroMQ endpoint"),
    ("inproc://x", "is no ZeroMQ endpoint"),
    ("udp://*:1", "is no ZeroMQ endpoint"),
    ("systemd:name=mc0", "systemd: needs domain=INET|INET6|UNIX"),
    ("systemd:domain=INET", "either index=N or name=NAME"),
    ("systemd:domain=INET:name=a:backlog=1", "systemd: has no 'backlog'"),
    ("systemd://mc0", "too many parts"),
    ("tcp://", "tcp:// needs ADDRESS:PORT, not ''"),
    ("tcp://127.0.0.1", "tcp:// needs ADDRESS:PORT, not '127.0.0.1'"),
    ("tcp://[::1]", "tcp:// needs ADDRESS:PORT, not '[::1]'"),
    ("tcp://[::1]5555", "tcp:// needs ADDRESS:PORT"),
    ("tcp://x[::1]:5", "tcp:// needs ADDRESS:PORT"),
    ("tcp://*:", "port must be a number between 0 and 65535, not ''"),
    ("tcp://*:65536", "port must be a number between 0 and 65535, not '65536'"),
    ("tcp://*:-1", "port must be a number"),
    ("tcp://*:5_5", "port must be a number"),
    ("tcp://*:٩", "port must be a number"),
    ("tcp://*:1 ", "port must be a number"),
    ("tcp://*:1/", "port must be a number"),
    ("tcp://:5555", f"the address must be *, localhost or an IP address, not ''; {NOT_TAKEN}"),
    ("tcp://eth0:5555", f"not 'eth0'; {NOT_TAKEN}"),
    ("tcp://broker.example.org:5555", f"not 'broker.example.org'; {NOT_TAKEN}"),
    ("tcp://127.0.0.l:5555", "the address must be"),
    ("tcp://127.1:5555", "the address must be"),
    ("tcp://[]:5555", "not '[]'"),
    ("tcp://[*]:5555", "not '[*]'"),
    ("tcp://[localhost]:5555", "not '[localhost]'"),
    ("tcp://192.0.2.1;127.0.0.1:5555", "not '192.0.2.1;127.0.0.1'"),
    ("tcp://::1:5555", "an IPv6 address goes in brackets, and no other: not '::1'"),
    ("tcp://[127.0.0.1]:5555", "an IPv6 address goes in brackets, and no other: not '[127.0.0.1]'"),
    ("ipc://", "ipc:// needs a path"),
    ("ipc://@", "ipc://@ needs a name"),
    ("ipc://*", "a path that nobody can know"),
    ("ipc://" + "x" * 108, "at most 107 bytes"),
    ("ipc://@" + "x" * 107, "at most 107 bytes"),
    ("ipc://" + "é" * 54, "at most 107 bytes"),
    ("ipc://a\0b", "no zero byte"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        parse_zmq(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("tcp://*:1", "tcp://*:1", True),
        ("tcp://*:1", "tcp://*:2", False),
        ("tcp://*:0", "tcp://*:0", False),
        ("tcp://*:1", "tcp://127.0.0.1:1", True),
        ("tcp://*:1", "tcp://0.0.0.0:1", True),
        ("tcp://localhost:1", "tcp://127.0.0.1:1", True),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.2:1", False),
        # as for listeners: it is a setting of the kernel
        ("tcp://[::]:1", "tcp://*:1", False),
        ("tcp://[::]:1", "tcp://127.0.0.1:1", False),
        ("tcp://[::]:1", "tcp://[::1]:1", True),
        ("tcp://[::1]:1", "tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", "tcp://*:1", False),
        ("tcp://*:1", "ipc://1", False),
        ("ipc://a", "ipc://a", True),
        ("ipc://a", "ipc://b", False),
        ("ipc://a", "ipc://@a", False),
        ("ipc://@a", "ipc://@a", True),
        ("systemd:domain=INET:name=a", "systemd:domain=INET:name=a", True),
        ("systemd:domain=INET:name=a", "systemd:domain=INET:name=b", False),
        ("systemd:domain=INET:name=a", "tcp://*:1", False),
    ],
)
def test_which_cannot_both_be_bound(one: str, other: str, overlap: bool) -> None:
    assert parse_zmq(one).overlaps(parse_zmq(other)) is overlap
    assert parse_zmq(other).overlaps(parse_zmq(one)) is overlap


@pytest.mark.parametrize(
    ("one", "listener", "overlap"),
    [
        ("tcp://127.0.0.1:1", "tcp:1:interface=127.0.0.1", True),
        ("tcp://127.0.0.1:1", "tls:1:certificate=/c:key=/k:interface=localhost", True),
        ("tcp://127.0.0.1:1", "tcp:1", True),
        ("tcp://*:1", "tcp:1:interface=127.0.0.1", True),
        ("tcp://127.0.0.1:1", "tcp:1:interface=127.0.0.2", False),
        ("tcp://127.0.0.1:1", "tcp:2:interface=127.0.0.1", False),
        ("tcp://*:0", "tcp:0", False),
        # a setting of the kernel
        ("tcp://[::]:1", "tcp:1", False),
        ("tcp://[::]:1", r"tcp:1:interface=\:\:1", True),
        ("tcp://[::1]:1", r"tcp:1:interface=\:\:", True),
        ("tcp://[::1]:1", "tcp:1", False),
        ("tcp://127.0.0.1:1", r"tcp:1:interface=\:\:", False),
        ("tcp://127.0.0.1:1", r"tcp:1:interface=\:\:ffff\:127.0.0.1", True),
        ("tcp://*:1", "unix:1", False),
        ("tcp://*:1", "systemd:domain=INET:index=1", False),
        ("ipc:///a", "unix:/a:mode=660", True),
        ("ipc:///a", "unix:/b", False),
        ("ipc://@a", "unix:@a", False),
        ("ipc://a", "tcp:1", False),
        ("ipc://a", "systemd:domain=UNIX:name=a", False),
        ("systemd:domain=UNIX:name=a", "systemd:domain=UNIX:name=a", True),
    ],
)
def test_which_cannot_be_bound_beside_a_listener(one: str, listener: str, overlap: bool) -> None:
    assert parse_zmq(one).overlaps(endpoint.parse(listener)) is overlap


@given(st.one_of(st.text(), st.text(st.sampled_from("tcpi:/*@[]0159.%"), max_size=30), st.text().map("ipc://".__add__)))
def test_any_text_is_an_endpoint_or_a_bad_one(text: str) -> None:
    try:
        found = parse_zmq(text)
    except BadEndpoint:
        return
    assert found.where
    if found.passed is None:
        assert parse_zmq(f"{found.kind}://{found.where}").where == found.where
    assert found.overlaps(found) is (found.port != 0)


@given(st.ip_addresses(), st.integers(0, 65_535))
def test_every_address_and_port_is_taken(ip: object, port: int) -> None:
    found = parse_zmq(f"tcp://[{ip}]:{port}" if ":" in str(ip) else f"tcp://{ip}:{port}")
    assert found.port == port
