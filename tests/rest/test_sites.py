"""Checks against requests of other sites' pages."""

from __future__ import annotations

import sys

import pytest

from broker.rest.messages import Request
from broker.rest.sites import LONGEST, known_host, same_site


@pytest.mark.parametrize(
    ("host", "known"),
    [
        (None, True),
        ("localhost", True),
        ("LOCALHOST:9080", True),
        ("localhost.:9080", True),
        ("127.0.0.1:9080", True),
        ("[::1]:9080", True),
        ("192.0.2.1", True),
        ("broker.example.com:9080", True),
        ("evil.example.com", False),
        ("localhost.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("127.0.0.1@evil.com", False),
        ("evil.com/127.0.0.1", False),
        ("", False),
        ("[::1", False),
        ("localhost:x", False),
        ("localhost, evil.com", False),
    ],
)
def test_a_host_is_an_address_or_a_configured_name(host: str | None, known: bool) -> None:
    headers = {} if host is None else {"host": host}
    assert known_host(Request("GET", "/", headers=headers), {"broker.example.com"}) is known
    assert known_host(Request("GET", "/", headers=headers), {"*"})


def test_a_host_that_is_longer_than_a_name_is_unknown_and_not_kept() -> None:
    host = "x" * (LONGEST + 1)
    before = sys.getrefcount(host)
    assert not known_host(Request("GET", "/", headers={"host": host}), {"broker.example.com"})
    assert sys.getrefcount(host) == before


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({}, True),
        ({"host": "h:1", "origin": "http://h:1"}, True),
        ({"host": "H:1", "origin": "https://h:1"}, True),
        ({"host": "h:1", "origin": "http://h:2"}, False),
        ({"host": "h:1", "origin": "null"}, False),
        ({"host": "h:1", "origin": "file://h:1"}, False),
        ({"origin": "http://"}, False),
        ({"host": "h", "origin": "http://H:80"}, True),
        ({"host": "h:80", "origin": "http://h"}, True),
        ({"host": "h", "origin": "https://h:443"}, True),
        ({"host": "h:80", "origin": "https://h"}, False),
        ({"host": "h", "origin": "http://h:443"}, False),
        ({"host": "h.:1", "origin": "http://h:1"}, True),
        ({"host": "[::1]:1", "origin": "http://[0:0:0:0:0:0:0:1]:1"}, True),
        ({"host": "[::1]:1", "origin": "http://[::2]:1"}, False),
        ({"host": "h:1", "origin": "http://user@h:1"}, False),
        ({"host": "h:1", "origin": "http://h:1/"}, False),
        ({"host": "h:1", "origin": "http://h:x"}, False),
        ({"host": "h:1", "origin": "http://[::1"}, False),
        ({"host": "h:1, x", "origin": "http://h:1, x"}, False),
        ({"host": "127.0.0.1:9080", "origin": "http://farm.example", "sec-fetch-site": "same-origin"}, True),
        ({"host": "127.0.0.1:9080", "origin": "http://192.0.2.1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "127.0.0.1:9080", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}, False),
        ({"host": "127.0.0.1:9080", "origin": "http://farm.example"}, False),
        ({"host": "127.0.0.1:9080", "origin": "http://farm.example", "sec-fetch-site": "none"}, False),
        ({"host": "h:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "h:1", "sec-fetch-site": "none"}, True),
        ({"host": "h:1", "sec-fetch-site": "same-site"}, False),
        ({"host": "h:1", "sec-fetch-site": "cross-site", "origin": "http://h:1"}, False),
    ],
)
def test_a_page_must_be_the_listeners_own(headers: dict[str, str], same: bool) -> None:
    assert same_site(Request("POST", "/", headers=headers), {"farm.example"}) is same
