"""HTTP: whatever arrives, in whatever pieces, is answered by HTTP or closed; nothing fails, and nothing is left."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Outlet, Stream
from tests.net.http.http_peers import Site
from tests.wires.http.recording import HttpFarm


def _stream(call: Call) -> Stream:
    def begin(outlet: Outlet) -> Any:
        outlet.write(b"data: x\n\n")
        return lambda: None

    return Stream(begin, upgrades=True)


STREAM = Endpoint("GET", "/stream", "stream", "", _stream, operation=None)

METHODS = ["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "get", "G@T", ""]
TARGETS = [
    "/", "/v1/services/bank", "/v1/services/bank?wait=5", "/v1/services/bank?near=load&limit=1", "/stream",
    "/v1/services/bank/a", "/v1/services/bank/a/renew", "/v1/services/%2F/%FF", "/v1/services/" + "n" * 300 + "/a",
    "/v1/discovery/prometheus?pattern=[", "/v1/services/bank?wait=nan", "/v1/services/bank?x", "*", "//", "/%",
    "http://evil/", "http://", "/\x80", "/ x", "/?" + "&" * 200,
]  # fmt: skip
HEADERS = [
    "Host: localhost", "Host: evil", "Host:", "Host: [::1", "Content-Length: 0", "Content-Length: 5",
    "Content-Length: 99999999", "Content-Length: -1", "Transfer-Encoding: chunked", "Transfer-Encoding: identity",
    "Connection: close", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: x", "Expect: 100-continue", "Origin: null",
    "Sec-Fetch-Site: cross-site", "Authorization: Basic !", "Authorization: Bearer x", "Authorization:",
    "If-None-Match: *",    "Content-Type: text/plain", "Cookie: a=b;;=", " folded", "X", "X : y", "X: \x00", "X: \xff",
    "X: " + "y" * 20_000,
]  # fmt: skip
BODIES = [
    b"", b"{}", b'{"hostport":"h:1"}', b'{"hostport":"h:1","ttl":1e999,"load":-1}', b"[" * 3_000, b'"\xff"', b"hello",
    b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"0\r\nX: y\r\n\r\n", b"\x81\x85\0\0\0\0hello", b"\x89\x80\0\0\0\0",
    b"\x88\x80\0\0\0\0",
]  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is nearly right: some of its parts are wrong, or its body is that of another one."""
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=6))
    if draw(st.booleans()):
        headers.insert(0, "Host: localhost")
    body = draw(st.sampled_from(BODIES))
    if draw(st.booleans()):
        headers.append(f"Content-Length: {len(body)}")
    version = draw(st.sampled_from(["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/2", ""]))
    line = f"{draw(st.sampled_from(METHODS))} {draw(st.sampled_from(TARGETS))} {version}"
    end = draw(st.sampled_from(["\r\n"] * 8 + ["\n", "\r"]))
    return end.join([line, *headers, "", ""]).encode("latin-1") + body


messages = st.lists(requests() | st.binary(max_size=40), min_size=1, max_size=4)


@given(messages, st.lists(st.integers(1, 400), min_size=1, max_size=5))
@example([b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x" * 100], [1])
def test_anything_is_answered_or_closed(data: list[bytes], sizes: list[int]) -> None:
    http = HttpFarm(endpoints=[STREAM])
    site = Site(http.dispatch.answer)
    link = site.connect()
    whole = b"".join(data)
    with capturedLogs() as logged:
        number = 0
        while whole and not (link.wire.disconnecting or link.wire.aborted):
            size = sizes[number % len(sizes)]
            number += 1
            if link.wire.producerState == "producing":
                link.send(whole[:size])
                whole = whole[size:]
            elif number > 1_000:
                break  # it waits for an answer
            site.turn()
        site.turn(20)
        said = link.raw()
        http.clock.advance(10)
        if link.protocol in site.factory.connections:
            link.lose()
        site.clock.pump([1] * 100)
    assert [event for event in logged if "log_failure" in event or event["log_level"] >= LogLevel.error] == []
    assert http.failures == 0
    assert not said or said.startswith(b"HTTP/1.")
    assert b" 500 " not in said.split(b"\r\n", 1)[0]
    assert site.factory.connections == set()
    assert site.factory.waiting.total() == 0
    assert site.factory.memory.held == 0
    assert site.clock.getDelayedCalls() == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["hostport", "protocol", "label", "ttl", "load", "requests", "in_flight", "latency_ms", "info", "other"]
GOOD: dict[str, Any] = {"hostport": "h:1", "protocol": "tcp", "ttl": 5, "load": 0.5}


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.sampled_from(["put", "renew"]))
def test_any_body_is_registered_or_a_problem(changes: dict[str, Any], kind: str) -> None:
    http = HttpFarm()
    path = "/v1/services/bank/a"
    assert http.ask("PUT", path, GOOD).status == 201
    body = {**(GOOD if kind == "put" else {}), **changes}
    answered = http.ask(*(("PUT", path) if kind == "put" else ("POST", f"{path}/renew")), json.dumps(body).encode())
    assert answered.status in (200, 400)
    assert http.failures == 0
    assert len(http.find("bank")) == 1


@given(
    st.text(min_size=1, max_size=20),
    st.dictionaries(st.sampled_from(["wait", "near", "limit", "protocol", "x"]), st.text()),
)
def test_any_query_is_answered(name: str, query: dict[str, str]) -> None:
    http = HttpFarm()
    answered = http.ask("GET", f"/v1/services/{quote(name, safe='')}", query=query)
    http.clock.advance(1_000)
    assert answered.status in (200, 400, 404)
    assert http.failures == 0
