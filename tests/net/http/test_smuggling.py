"""Messages whose end is ambiguous, and other malformed HTTP: refused, and nothing behind them is served."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from tests.net.http.http_peers import Site

BEHIND = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"

CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\x0bchunked\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0, 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"0" * 5_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: 1\r\n Content-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n Host: h\r\n\r\n",
        b"GET / HTTP/1.1\nHost: h\n\n",
        b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\tx HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / http/1.1\r\nHost: h\r\n\r\n",
        b"G@T / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        CHUNKED + b"\r\n+0\r\n\r\n",
        CHUNKED + b"\r\n0x0\r\n\r\n",
        CHUNKED + b"\r\n 0\r\n\r\n",
        CHUNKED + b"\r\n-1\r\n\r\n",
        CHUNKED + b"\r\n0\n\r\n\r\n",
        CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n",
        CHUNKED + b"\r\n0;a\nb\r\n\r\n",
        CHUNKED + b"\r\n" + b"f" * 2_000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("pieces", [1, 100_000])
def test_an_ambiguous_message_is_refused_and_nothing_behind_it_is_served(data: bytes, pieces: int) -> None:
    site = Site()
    link = site.connect()
    with capturedLogs() as logged:
        if pieces == 1:
            link.send(data + BEHIND)
        else:
            for at in range(len(data + BEHIND)):
                if not link.closed:
                    link.send((data + BEHIND)[at : at + 1])
                    site.turn()
    site.turn(20)
    assert site.requests == []
    text = link.raw()
    assert text.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert text.count(b"HTTP/1.1 ") == 1
    assert link.closed
    assert site.refused(Reason.SYNTAX) == 1
    assert not [event for event in logged if "log_failure" in event]
    site.quiet()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\n\n",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\nHost: h\n",
        b"\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\n",
    ],
)
def test_a_line_that_ends_with_lf_alone_is_refused_at_once(data: bytes) -> None:
    site = Site()
    link = site.connect()
    link.send(data)
    assert link.answer().status == 400
    assert link.closed
    assert site.requests == []


def test_a_body_has_any_line_ends() -> None:
    site = Site()
    link = site.connect()
    link.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\na\n\n")
    [request] = site.requests
    assert request.body == b"\na\n\n"
    assert link.answer().status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"Cookie: a=" + b"x" * 20_000,
        b"\r\n".join(b"Cookie: a%d=" % n + b"x" * 1_000 for n in range(20)),
        b"\r\n".join(b"X-%d: y" % n for n in range(501)),
    ],
)
def test_a_head_that_is_too_long_is_refused_with_the_limits(head: bytes) -> None:
    site = Site()
    link = site.connect()
    link.send(b"GET / HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n\r\n")
    answer = link.answer()
    assert answer.status == 431
    assert b"more than 16384 bytes or 500 fields" in answer.body
    assert link.closed
    assert site.requests == []
    assert site.refused(Reason.TOO_LARGE) == 1


@pytest.mark.parametrize(
    "line",
    [
        "Host: other",
        "Authorization: Bearer x\r\nAuthorization: Bearer y",
        "Origin: http://a\r\nOrigin: http://h",
        "Content-Type: a/b\r\nContent-Type: c/d",
    ],
)
def test_a_header_that_decides_may_appear_once(line: str) -> None:
    site = Site()
    link = site.connect()
    link.send(f"GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n".encode())
    assert link.answer().status == 400
    assert site.requests == []


def test_a_request_of_http_1_1_has_a_host() -> None:
    site = Site()
    link = site.connect()
    link.send(b"GET / HTTP/1.1\r\n\r\n")
    assert link.answer().status == 400
    link.send(b"GET / HTTP/1.0\r\n\r\n")
    assert link.answer().status == 200
    assert link.closed


def test_the_host_of_an_absolute_target_counts() -> None:
    site = Site()
    link = site.connect()
    link.send(b"GET http://evil.example.com/x?y=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    [request] = site.requests
    assert (request.path, request.headers["host"], request.query) == ("/x", "evil.example.com", {"y": ["1"]})


def test_good_chunks_and_trailers_are_read() -> None:
    site = Site()
    link = site.connect()
    link.send(CHUNKED + b"\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n" + BEHIND)
    site.turn(5)
    assert [(each.path, each.body) for each in site.requests] == [("/", b"abcde"), ("/smuggled", b"")]


@pytest.mark.parametrize(
    ("target", "status"),
    [("/a?x=%FF", 400), ("/a?" + "&".join(f"x{n}=1" for n in range(200)), 400), ("/a?x=1&x=2&y", 200), ("*", 200)],
)
def test_queries(target: str, status: int) -> None:
    site = Site()
    link = site.connect()
    link.ask(f"GET {target}")
    assert link.answer().status == status


def test_a_target_that_is_no_ascii_is_refused() -> None:
    site = Site()
    link = site.connect()
    link.ask("GET /\x80")
    assert link.answer().status == 400
    assert site.requests == []
