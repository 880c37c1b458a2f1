"""Endpoint strings: what they say, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet import endpoints

from broker.config.endpoint import BACKLOG, BadEndpoint, Endpoint, parse, split

GOOD = [
    ("tcp:9000", "0.0.0.0:9000", False, True),
    ("tcp:0:interface=", "0.0.0.0:0", False, True),
    ("tcp:9000:interface=0.0.0.0", "0.0.0.0:9000", False, True),
    (r"tcp:9000:interface=\:\:", "[::]:9000", False, True),
    ("tcp:9000:interface=127.0.0.1", "127.0.0.1:9000", True, False),
    ("tcp:9000:interface=127.1.2.3:backlog=5", "127.1.2.3:9000", True, False),
    ("tcp:9000:127.0.0.1:5", "127.0.0.1:9000", True, False),
    (r"tcp:9000:interface=\:\:1", "[::1]:9000", True, False),
    ("tcp:65535:interface=localhost", "localhost:65535", True, False),
    ("tcp:9000:interface=192.0.2.1", "192.0.2.1:9000", False, False),
    (r"tcp:9000:interface=fe80\:\:1%eth0", "[fe80::1%eth0]:9000", False, False),
    ("tls:9000:certificate=/c:key=/k", "0.0.0.0:9000", False, True),
    ("tls:9000:certificate=/c:key=/k:ca=/a:interface=127.0.0.1", "127.0.0.1:9000", True, False),
    ("unix:/run/elko.sock", "/run/elko.sock", True, False),
    (r"unix:a\:b:mode=660", "a:b", True, False),
    ("systemd:domain=INET:index=0", "systemd socket 0", False, False),
    ("systemd:domain=UNIX:name=elko", "systemd socket elko", False, False),
    ("systemd:domain=INET6:name=elko", "systemd socket elko", False, False),
]


@pytest.mark.parametrize(("text", "where", "loopback", "wildcard"), GOOD)
def test_where_an_endpoint_is(text: str, where: str, loopback: bool, wildcard: bool) -> None:
    endpoint = parse(text)
    assert (endpoint.where, endpoint.loopback, endpoint.wildcard) == (where, loopback, wildcard)


def test_the_parts() -> None:
    assert parse("tcp:9000:192.0.2.1:7") == parse("tcp:9000:interface=192.0.2.1:backlog=7")
    net = parse("tcp:9000:192.0.2.1:7")
    assert (net.kind, net.port, net.interface, net.backlog, net.path) == ("tcp", 9000, "192.0.2.1", 7, None)
    unix = parse("unix:/x:mode=0660")
    assert (unix.kind, unix.port, unix.path, unix.mode, unix.backlog) == ("unix", None, "/x", 0o660, BACKLOG)
    assert parse("unix:/x").mode is None
    tls = parse("tls:1:certificate=/a=b:key=/k")
    assert tls == Endpoint("tls", ("1",), {"certificate": "/a=b", "key": "/k"})
    assert hash(tls) == hash(parse("tls:1:certificate=/a=b:key=/k"))


@pytest.mark.parametrize(
    "path",
    [
        "x" * 107,
        "é" * 53 + "x",
        # A byte of a command line that is no text.
        "\udcff",
    ],
)
def test_the_longest_paths_and_the_oddest(path: str) -> None:
    assert parse(f"unix:{path}").path == path


BAD = [
    ("", "'' is no kind of endpoint"),
    (":", "'' is no kind of endpoint"),
    ("9000", "'9000' is no kind of endpoint"),
    ("ssl:9000", "use tcp:, tls:, unix: or systemd:"),
    ("tcp=9000", "begins with its kind"),
    ("tcp", "tcp: needs a port"),
    ("tcp:", "tcp: needs a port"),
    ("tcp:interface=127.0.0.1", "tcp: needs a port"),
    ("tcp:65536", "port must be a number between 0 and 65535, not '65536'"),
    ("tcp:-1", "port must be a number"),
    ("tcp:9_0", "port must be a number"),
    ("tcp:٩", "port must be a number"),
    ("tcp:elko", "port must be a number"),
    ("tcp:9000:interface=::1", r"write the colons of an IPv6 address as \:"),
    ("tcp:9000:interface=127.0.0.l", "interface must be an IP address or localhost, not '127.0.0.l'"),
    ("tcp:9000:interfce=127.0.0.1", "tcp: has no 'interfce'; did you mean 'interface'?"),
    ("tcp:9000:zzz=1", "tcp: has no 'zzz'; it has interface, backlog"),
    ("tcp:9000:127.0.0.1:interface=127.0.0.1", "interface is given twice"),
    ("tcp:9000:backlog=1:backlog=2", "backlog is given twice"),
    ("tcp:9000:backlog=0", "backlog must be a number between 1 and"),
    ("tcp:9000\\", "a backslash at the end"),
    ("tls:9000:key=/k", "tls: needs certificate=FILE"),
    ("tls:9000:certificate=/c", "tls: needs key=FILE"),
    ("tls:9000:certificate=c.pem:key=/k", "certificate must be an absolute path, not 'c.pem'"),
    ("tls:9000:certificate=/c:key=/k:ca=", "ca must be an absolute path"),
    ("tls:9000:192.0.2.1:certificate=/c:key=/k", "too many parts"),
    ("unix:", "unix: needs a path"),
    ("unix:" + "x" * 108, "at most 107 bytes"),
    ("unix:" + "é" * 54, "at most 107 bytes"),
    ("unix:a\0b", "no zero byte"),
    ("unix:" + "\udcff" * 108, "at most 107 bytes"),
    ("unix:/x:mode=999", "mode must be three octal digits"),
    ("systemd:index=0", "systemd: needs domain=INET|INET6|UNIX"),
    ("systemd:domain=INET5:index=0", "systemd: needs domain=INET|INET6|UNIX"),
    ("systemd:domain=INET", "either index=N or name=NAME"),
    ("systemd:domain=INET:index=0:name=elko", "either index=N or name=NAME"),
    ("systemd:domain=INET:index=x", "index must be a number"),
    ("systemd:domain=INET:name=", "an empty name"),
    ("systemd:elko:domain=INET", "too many parts"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        parse(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("tcp:9000", "tcp:9000", True),
        ("tcp:9000", "tcp:9001", False),
        ("tcp:0", "tcp:0", False),
        ("tcp:9000", "tls:9000:certificate=/c:key=/k", True),
        ("tcp:9000", "tcp:9000:interface=127.0.0.1", True),
        ("tcp:9000:interface=127.0.0.1", "tcp:9000:interface=127.0.0.2", False),
        ("tcp:9000:interface=127.0.0.1", "tcp:9000:interface=localhost", True),
        (r"tcp:9000:interface=\:\:1", r"tcp:9000:interface=0\:0\:\:1", True),
        (r"tcp:9000:interface=\:\:", r"tcp:9000:interface=\:\:1", True),
        (r"tcp:9000:interface=\:\:1", "tcp:9000", False),
        ("unix:/a", "unix:/a:mode=600", True),
        ("unix:/a", "unix:/b", False),
        ("unix:9000", "tcp:9000", False),
        ("systemd:domain=INET:index=0", "systemd:domain=INET:index=00", True),
        ("systemd:domain=INET:index=0", "systemd:domain=INET:index=1", False),
        ("systemd:domain=INET:name=a", "systemd:domain=INET:name=a", True),
        ("systemd:domain=INET:name=a", "systemd:domain=INET:index=0", False),
    ],
)
def test_which_cannot_both_be_bound(one: str, other: str, overlap: bool) -> None:
    assert parse(one).overlaps(parse(other)) is overlap
    assert parse(other).overlaps(parse(one)) is overlap


@given(st.text(st.sampled_from("ab:=\\"), max_size=12))
@example(r"a:b=c=d:\::e\=f")
def test_the_parts_are_those_that_twisted_finds(text: str) -> None:
    try:
        found = split(text)
    except BadEndpoint:
        return
    assert found == endpoints._parse(text)


@given(st.one_of(st.text(), st.text(st.sampled_from("tcplsunixemd:=\\0159./"), max_size=40)))
def test_any_text_is_an_endpoint_or_a_bad_one(text: str) -> None:
    try:
        endpoint = parse(text)
    except BadEndpoint:
        return
    assert endpoint.where
    assert endpoint.overlaps(endpoint) is (endpoint.port != 0)
