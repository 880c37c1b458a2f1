"""The first bytes of a connection: which of them are text, and which a browser sends."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.first_bytes import Opening, is_text, opening

REQUESTS = [
    b"GET / HTTP/1.1",
    b"FOO / HTTP/1.1",
    b"patch / HTTP/1.1",
    b"PoSt /a?b=c HTTP/1.0",
    b"help / HTTP/1.1",
    b"shutdown self=true http/1.1",
    b"find bank HTTP/1.1 \t",
    b"FOO /\tHtTp/1.1",
    b"FOO / HTTP / 1 . 1",
    b"FOO / HTTP/2",
    b"FOO / HTTP/1.",
    b"FOO / HTTP/12.34",
    b"PRI * HTTP/2.0",
    b"CONNECT 127.0.0.1:9001 HTTP/1.1",
    b"! / HTTP/1.1",
    b"' / HTTP/1.1",
    b"| / HTTP/1.1",
    b"GET /",
    b"PRI * ",
    b"HTTP/1.1",
    b"\xef\xbb\xbfFOO / HTTP/1.1",
    b"\xef\xbb\xbfGET /",
    b"FOO /\xe9 HTTP/1.1",
]
TEXTS = [
    b"help",
    b"get",
    b"gets bank",
    b"find service=bank wait=5",
    b"find bank protocol=http/1.1",
    b"find bank label=HTTP/1.1x",
    b"find bank HTTP/x",
    b"find bank HTTP",
    b"HTTP/1.1 200 OK",
    b"find bank XHTTP/1.1",
    b"director find user-joe",
    b'{"to":"admin","op":"ping","tag":"x HTTP/1.1',
    b"{op:ping} HTTP/1.1",
    b'"help',
    b"[1,2]",
    b"/* x */ {op:'ping'}",
    b"h\xc3\xa9lp",
    b"\xe9lp",
    b"caf\xe9\tau lait",
]
BINARY = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x80\x2e\x01\x03\x01",
    b"\x00\x03\x00\x50\x21\x12\xa4\x42",
    b"\x00",
    b"\x00FOO / HTTP/1.1",
    b"\x1b[A",
    b"help\x7f",
    b"hel\bp",
    b"\x0b",
    b" \x0c",
]
ENDS = [b"\n", b"\r\n", b"\r"]
LEADS = [b"", b"\r\n", b"\n\n\r\r\n", b"  ", b"\t \r\n "]


def pieces(data: bytes) -> list[Opening]:
    """The verdicts as the bytes come one by one."""
    return [opening(data[:length]) for length in range(len(data) + 1)]


@pytest.mark.parametrize("line", REQUESTS)
def test_a_request_of_http_is_known_by_its_whole_first_line(line: bytes) -> None:
    for lead, end in product(LEADS, ENDS):
        data = lead + line + end
        assert opening(data + b"shutdown self=true\n") is Opening.HTTP, data
        *before, last = pieces(lead + line + end[:1])
        assert last is Opening.HTTP, data
        assert set(before) == {Opening.UNDECIDED}, data


@pytest.mark.parametrize("line", TEXTS)
def test_another_line_is_text(line: bytes) -> None:
    for lead, end in product(LEADS, ENDS):
        data = lead + line + end
        assert opening(data) is Opening.TEXT, data
        assert opening(data + b"FOO / HTTP/1.1\n\x00") is Opening.TEXT, data
        assert set(pieces(lead + line)) <= {Opening.UNDECIDED, Opening.TEXT}, data


@pytest.mark.parametrize("data", [b"{", b" \n{", b'"', b"[", b"/", b"(", b"="])
def test_what_no_method_begins_with_is_text_at_once(data: bytes) -> None:
    assert opening(data) is Opening.TEXT


@pytest.mark.parametrize("data", [b"", b" ", b"\r\n\t ", b"h", b"help", b"GET / HTTP/1.1"])
def test_without_a_whole_first_line_nothing_is_decided(data: bytes) -> None:
    assert opening(data) is Opening.UNDECIDED


@pytest.mark.parametrize("lead", [b"", b"\r\n", b"help "])
@pytest.mark.parametrize("data", BINARY)
def test_control_characters_are_no_text(data: bytes, lead: bytes) -> None:
    assert opening(lead + data) is Opening.BINARY
    assert opening(lead + data + b"\nhelp\n") is Opening.BINARY
    assert not is_text(data)


def test_what_is_text_beyond_the_first_line() -> None:
    assert is_text(bytes(range(32, 127)) + b"\t\r\n" + bytes(range(128, 256)))
    assert [byte for byte in range(256) if not is_text(bytes([byte]))] == [
        *(byte for byte in range(32) if byte not in b"\t\r\n"),
        127,
    ]


@given(st.binary(max_size=40) | st.lists(st.sampled_from([*REQUESTS, *TEXTS, *BINARY, *ENDS, b" "])).map(b"".join))
def test_a_verdict_is_final(data: bytes) -> None:
    verdicts = pieces(data)
    assert [a for a, b in pairwise(verdicts) if a is not b and a is not Opening.UNDECIDED] == []


def test_a_header_of_the_proxy_protocol_is_recognised() -> None:
    assert opening(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n") is Opening.PROXY
    assert opening(b"PROXYING\n") is Opening.TEXT
