"""Hosts and networks of addresses, and owners of registrations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.identity import LOCAL, host_of, is_local, network_of, owner_of, plain, same_host

HERE = [
    "127.0.0.1",
    "127.255.255.254",
    "127.0.0.1:5",
    "::1",
    "[::1]:5",
    "::ffff:127.0.0.9",
    "[::ffff:127.0.0.9]:65535",
    "0:0:0:0:0:0:0:1",
    "::FFFF:7F00:1",
    "localhost",
    "localhost:80",
    "unix",
    "uid 1000 here",
    "/run/elkobroker.sock",
]


@pytest.mark.parametrize("address", HERE)
def test_all_addresses_of_this_machine_are_one_host(address: str) -> None:
    assert is_local(address)
    assert host_of(address) == LOCAL
    assert owner_of("", address) == owner_of("anonymous", "127.0.0.1") == "address 127.0.0.1"


@pytest.mark.parametrize(
    ("address", "host", "network"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:80", "192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1", "192.0.2.1"),
        ("::FFFF:C000:201", "192.0.2.1", "192.0.2.1"),
        ("127.0.0.2", LOCAL, "127.0.0.2"),
        # The last group of an address is no port, though it is decimal.
        ("2001:db8::1", "2001:db8::1", "2001:db8::/64"),
        ("2001:DB8:0:0:1:2:3:4", "2001:db8::1:2:3:4", "2001:db8::/64"),
        ("[2001:db8::1]:80", "2001:db8::1", "2001:db8::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::1%eth0", "fe80::/64"),
        ("unix", LOCAL, "unix"),
        ("uid 1000 here", LOCAL, "uid 1000 here"),
        ("name.example.org", "name.example.org", "name.example.org"),
        ("name.example.org:80", "name.example.org", "name.example.org"),
        ("localhost.example.org:1", "localhost.example.org", "localhost.example.org"),
        ("", "", ""),
    ],
)
def test_an_address_has_one_host_and_one_network(address: str, host: str, network: str) -> None:
    assert (host_of(address), network_of(address)) == (host, network)
    assert is_local(address) == (host == LOCAL)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::1", "::1"),
        ("uid 1000 here", "uid 1000 here"),
        ("name.example.org", "name.example.org"),
    ],
)
def test_a_mapped_address_is_shown_as_the_address_that_it_stands_for(address: str, shown: str) -> None:
    assert plain(address) == shown


def test_hosts_of_other_machines_are_told_apart_by_address() -> None:
    assert same_host("192.0.2.1:1", "::ffff:192.0.2.1")
    assert not same_host("192.0.2.1", "192.0.2.2")
    assert not same_host("2001:db8::1", "2001:db8::2")
    assert not same_host("127.0.0.1", "192.0.2.1")


def test_the_owner_is_the_user_then_the_key_then_the_host() -> None:
    assert owner_of("ann", "192.0.2.1", "K") == owner_of("ann", "::1") == "user ann"
    assert owner_of("", "192.0.2.1", "K") == owner_of("anonymous", "::1", "K") == "key K"
    assert owner_of("", "::ffff:192.0.2.1") == "address 192.0.2.1"


@given(st.text())
def test_any_text_has_a_host_and_a_network(text: str) -> None:
    assert host_of(host_of(text)) == host_of(text) or ":" in text
    assert isinstance(network_of(text), str)
    assert same_host(text, text)
