"""RTCP, HTTP and WebSocket: whatever comes, in whatever pieces, nothing but what their rules say comes of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from broker.core.errors import Malformed, Reason
from broker.net.http.request import RequestIds
from broker.net.web_origins import Origins
from broker.wires.elko.codec import long_poll_messages, rtcp_messages
from broker.wires.elko.codec.blocks import MAX_BLOCK
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from tests.wires.elko.transports.virtual_links import HANDSHAKE, CarriedLink, WordHub, masked, web_hub

TOKENS = [
    b"start\n", b"resume ", b"ack ", b"end ", b"error", b"\n", b"\n\n", b"\r", b"\0", b" ", b"0", b"1", b"2", b"17",
    b"1 0\n", b"2 1\n", b"{}", b"say x", b"wait\n", b"\xff", b"x" * 300,
]  # fmt: skip
streams = st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces."""
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(at)]


def read(pieces: list[bytes]) -> list[object]:
    reader = rtcp_messages.RtcpReader()
    found: list[object] = []
    for piece in pieces:
        items = reader.feed(piece)
        found += [(item.reason, item.text) if isinstance(item, Malformed) else item for item in items]
        assert reader.pending <= MAX_BLOCK
    return found


@given(streams, st.lists(st.integers(0, 1000), max_size=6))
def test_requests_of_rtcp_do_not_depend_on_the_pieces(data: bytes, places: list[int]) -> None:
    assert read(cut(data, places)) == read([data]) == read([bytes([byte]) for byte in data])


@given(st.text(max_size=60), st.sampled_from(["/", "/admin", "/a/b/"]))
def test_any_path_is_a_request_or_none(uri: str, root: str) -> None:
    for path in (uri, f"{root.rstrip('/')}/{uri}"):
        request = long_poll_messages.request(path, root)
        assert request is None or isinstance(request, long_poll_messages.Request)


@given(st.binary(max_size=80), st.sampled_from(["", "application/x-www-form-urlencoded", "a;b"]))
def test_any_body_is_blocks_or_malformed(body: bytes, content_type: str) -> None:
    try:
        blocks = long_poll_messages.messages(body, content_type)
    except Malformed as malformed:
        assert malformed.reason is Reason.SYNTAX
    else:
        assert blocks == b"" or blocks.endswith(b"\n\n")


@given(
    st.lists(
        st.one_of(streams, st.sampled_from([b"start\n", b"1 0\nsay a\n\n", b"2 1\nclose\n\n", b"end 0\n"])), max_size=8
    )
)
def test_connections_of_rtcp_survive_anything(pieces: list[bytes]) -> None:
    with capturedLogs() as logged:
        hub = WordHub()
        factory = RtcpFactory(hub.factory, hub.limits)
        links = [CarriedLink(factory) for _ in range(2)]
        for number, piece in enumerate(pieces):
            link = links[number % 2]
            if not link.wire.disconnecting and not link.wire.aborted:
                link.protocol.dataReceived(piece)
            hub.clock.advance(0.1)
        for link in links:
            link.lose()
        hub.pass_seconds(200)
    assert [event for event in logged if "log_failure" in event] == []
    assert (factory.sessions, hub.factory.connections, factory.sockets.open, hub.factory.memory.held) == (
        {},
        set(),
        set(),
        0,
    )
    assert hub.clock.getDelayedCalls() == []


FRAMES = st.tuples(st.integers(0, 255), st.binary(max_size=200)).map(lambda frame: masked(*frame))
TEXTS = st.sampled_from([b"say x\n", b"hello\n", b"\xff", "\u00e9".encode(), b"close\n", b"", b"big 9000\n"])
RIGHT = st.tuples(st.sampled_from([0x01, 0x81, 0x00, 0x80, 0x88, 0x89, 0x8A, 0x82]), TEXTS).map(lambda f: masked(*f))


@given(
    st.one_of(st.just(HANDSHAKE), st.binary(max_size=40).map(lambda data: HANDSHAKE[:-2] + data)),
    st.lists(st.one_of(FRAMES, RIGHT, st.binary(max_size=20)), max_size=12),
    st.lists(st.integers(0, 5000), max_size=6),
)
def test_websockets_survive_anything(handshake: bytes, frames: list[bytes], places: list[int]) -> None:
    with capturedLogs() as logged:
        hub = web_hub()
        link = hub.connect()
        for piece in (handshake, *cut(b"".join(frames), places)):
            if link.wire.disconnecting or link.wire.half_closed or link.wire.aborted:
                break
            link.protocol.dataReceived(piece)
            hub.clock.advance(0)
        link.lose()
        hub.pass_seconds(40)
    assert [event for event in logged if "log_failure" in event] == []
    assert (hub.factory.connections, hub.clock.getDelayedCalls()) == (set(), [])


BODIES = ["say 1", "close", "bad", "big 70000", "wait", "a\n" * 600, "??", ""]
STEPS = st.one_of(
    st.tuples(st.just("connect"), st.integers(0, 2)),
    st.tuples(st.just("xmit"), st.integers(0, 2), st.integers(0, 1), st.sampled_from(BODIES)),
    st.tuples(st.just("select"), st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.just("disconnect"), st.integers(0, 2)),
    st.tuples(st.just("raw"), st.integers(0, 2), st.binary(max_size=40)),
    st.tuples(st.just("lose"), st.integers(0, 2)),
    st.tuples(st.just("pass"), st.sampled_from([0, 0, 1, 20])),
)


@given(st.lists(STEPS, max_size=25))
def test_sessions_over_http_survive_anything(steps: list[tuple[Any, ...]]) -> None:
    with capturedLogs() as logged:
        hub = WordHub()
        factory = LongPollFactory(hub.factory, hub.limits, "/", Origins([]), RequestIds("start"))
        links: dict[int, CarriedLink] = {}
        numbers = {"xmit": 1, "select": 1}
        for what, which, *more in steps:
            if what == "pass":
                hub.clock.advance(0)
                hub.pass_seconds(which)
                for gone in [key for key, link in links.items() if link.wire.disconnecting or link.wire.aborted]:
                    links.pop(gone).lose()
                continue
            link = links.get(which) or CarriedLink(factory)
            links[which] = link
            if link.wire.disconnecting or what == "lose":
                link.lose()
                del links[which]
                continue
            session = next(iter(factory.sessions), "1")
            if what == "connect":
                link.request("/connect")
                numbers = dict.fromkeys(numbers, 1)
            elif what in numbers:
                number = numbers[what] + more[0]
                link.request(f"/{what}/{session}/{number}", *more[1:])
                numbers[what] += 1
            elif what == "disconnect":
                link.request(f"/disconnect/{session}")
            else:
                link.protocol.dataReceived(more[0])
        for link in links.values():
            link.lose()
        hub.pass_seconds(120)
    assert [event for event in logged if "log_failure" in event] == []
    assert (factory.sessions, factory.sockets.open, hub.factory.connections) == ({}, set(), set())
    assert (hub.factory.memory.held, hub.clock.getDelayedCalls()) == (0, [])
