"""Streams: events in chunks, and WebSockets."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from twisted.logger import capturedLogs
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.events import Request as Handshake

from broker.core.errors import Reason
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.websocket import MAX_MESSAGE, PING_EVERY
from broker.net.refusal_log import REFUSALS_AT_ONCE
from broker.rest.messages import Outlet, Request, Stream
from tests.net.http.http_peers import Link, Site


class Feed:
    """A producer of streams. Each has one outlet."""

    def __init__(self) -> None:
        self.outlets: list[Outlet] = []
        self.ended = 0
        self.rooms = 0
        self.received: list[str] = []

    def respond(self, request: Request) -> Stream:
        return Stream(self._begin, self._room, self.received.append, upgrades=True)

    def _begin(self, outlet: Outlet) -> Any:
        self.outlets.append(outlet)
        outlet.write(b"first\n\n")
        return self._end

    def _room(self) -> None:
        self.rooms += 1

    def _end(self) -> None:
        self.ended += 1


@pytest.fixture
def feed() -> Feed:
    return Feed()


class Client:
    """A client of a WebSocket."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.link: Link = site.connect()
        self.ws = WSConnection(ConnectionType.CLIENT)
        self.link.send(self.ws.send(Handshake(host="h", target="/")))

    def send(self, *events: Event) -> None:
        self.link.send(b"".join(self.ws.send(event) for event in events))

    def events(self) -> list[Event]:
        self.ws.receive_data(self.link.raw())
        return list(self.ws.events())


# events


def test_a_stream_writes_until_the_peer_goes(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    feed.outlets[0].write(b"second\n\n")
    text = link.raw()
    assert b"Content-Type: text/event-stream\r\n" in text
    assert b"X-Accel-Buffering: no\r\n" in text
    assert text.endswith(b"7\r\nfirst\n\n\r\n8\r\nsecond\n\n\r\n")
    assert site.factory.waiting.total() == 1
    link.lose()
    assert feed.ended == 1
    feed.outlets[0].write(b"late")
    feed.outlets[0].close()
    assert feed.ended == 1
    site.quiet()


def test_a_stream_without_websockets_sends_events_to_a_request_for_one(feed: Feed) -> None:
    site = Site(lambda request: attrs.evolve(feed.respond(request), upgrades=False))
    client = Client(site)
    text = client.link.raw()
    assert text.startswith(b"HTTP/1.1 200 OK\r\n")
    assert text.endswith(b"7\r\nfirst\n\n\r\n")
    client.link.lose()
    site.quiet()


def test_a_closed_stream_leaves_the_connection(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    feed.outlets[0].close()
    assert link.answer().body == b"first\n\n"
    assert feed.ended == 1
    link.ask("GET /")
    assert len(feed.outlets) == 2
    link.lose()
    site.quiet()


def test_the_producer_sees_that_the_peer_does_not_read(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    [outlet] = feed.outlets
    assert not outlet.behind
    link.wire.full_at = 100
    outlet.write(b"x" * 100)
    assert outlet.behind
    link.wire.full_at = float("inf")
    link.protocol.resumeProducing()
    assert not outlet.behind
    assert feed.rooms == 1


def _long(taken: list[int]) -> Iterator[bytes]:
    """A piece of 100 parts. ``taken`` gets the number of each part that is made."""
    for number in range(100):
        taken.append(number)
        yield b"%03d" % number * 20


LONG = b"".join(b"%03d" % number * 20 for number in range(100))


def test_a_long_piece_is_written_in_steps_as_the_peer_reads(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    [outlet] = feed.outlets
    link.wire.full_at = 50
    taken: list[int] = []
    outlet.write_in_steps(_long(taken), 50_000)
    assert outlet.behind
    site.turn()
    assert len(taken) == 1, "it waits for the peer"
    assert site.factory.memory.held >= 50_000, "what it still holds counts as output"
    link.wire.full_at = float("inf")
    link.protocol.resumeProducing()
    site.turn()
    assert (len(taken), outlet.behind, feed.rooms) == (100, False, 1)
    outlet.close()
    assert link.answer().body == b"first\n\n" + LONG
    link.ask("GET /")
    assert len(feed.outlets) == 2, "the connection goes on"


def test_a_request_behind_a_stream_waits_for_its_end(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    feed.outlets[0].write_in_steps(_long([]), 1)
    link.ask("GET /")
    site.turn()
    assert len(feed.outlets) == 1
    feed.outlets[0].close()
    site.turn()
    assert len(feed.outlets) == 2


def test_a_long_piece_is_dropped_when_its_stream_ends(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("GET /")
    taken: list[int] = []
    feed.outlets[0].write_in_steps(_long(taken), 1)
    feed.outlets[0].close()
    assert link.answer().body == b"first\n\n"
    assert len(taken) <= 1
    feed.outlets[0].write_in_steps(_long(taken), 1)
    site.turn()
    assert len(taken) <= 1
    link.lose()
    site.quiet()


def test_a_producer_that_ignores_it_costs_the_connection(feed: Feed) -> None:
    site = Site(feed.respond, ConnectionLimits(write_buffer=10_000))
    link = site.connect()
    link.ask("GET /")
    link.wire.full_at = 100
    for _ in range(20):
        feed.outlets[0].write(b"x" * 1_000)
    assert link.wire.aborted
    assert site.refused(Reason.NOT_READING) >= 1
    link.lose()
    assert feed.ended == 1


def test_a_producer_that_raises_ends_the_connection() -> None:
    def begin(outlet: Outlet) -> Any:
        raise ZeroDivisionError

    site = Site(lambda request: Stream(begin))
    link = site.connect()
    with capturedLogs() as logged:
        link.ask("GET /")
    assert link.wire.aborted
    assert len([event for event in logged if "log_failure" in event]) == 1
    link.lose()
    site.quiet()


def test_streams_are_bounded(feed: Feed) -> None:
    site = Site(feed.respond, waiting=1)
    first, second = site.connect(), site.connect()
    first.ask("GET /")
    second.ask("GET /")
    assert second.answer().status == 503
    assert len(feed.outlets) == 1


def test_the_head_of_a_stream_has_no_producer(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask("HEAD /")
    assert link.answer().status == 200
    assert feed.outlets == []
    link.lose()
    site.quiet()


def test_the_end_of_the_listener_ends_streams(feed: Feed) -> None:
    site = Site(feed.respond)
    link, socket = site.connect(), Client(site)
    link.ask("GET /")
    assert [type(event) for event in socket.events()] == [AcceptConnection, TextMessage]
    site.factory.close()
    assert feed.ended == 2
    assert link.closed
    [event] = socket.events()
    assert isinstance(event, CloseConnection)
    assert event.code == 1001


# WebSockets


def test_a_websocket_has_a_message_for_each_piece(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    feed.outlets[0].write("zwei €".encode())
    accepted, first, second = client.events()
    assert isinstance(accepted, AcceptConnection)
    assert isinstance(first, TextMessage)
    assert isinstance(second, TextMessage)
    assert (first.data, second.data) == ("first\n\n", "zwei €")
    client.send(TextMessage("a", message_finished=False), TextMessage("b"), Ping(b"x"))
    site.turn(5)
    assert feed.received == ["ab"]
    [pong] = client.events()
    assert isinstance(pong, Pong)
    client.send(CloseConnection(1000))
    [event] = client.events()
    assert isinstance(event, CloseConnection)
    assert client.link.closed
    assert feed.ended == 1
    site.quiet()


def test_a_long_piece_is_one_message_in_several_frames(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    feed.outlets[0].write_in_steps(_long([]), 1)
    client.send(Ping(b"x"))
    site.turn(5)
    events = client.events()
    parts = [event for event in events if isinstance(event, TextMessage)]
    assert "".join(part.data for part in parts).encode() == LONG
    assert [part.message_finished for part in parts] == [False] * 100 + [True]
    assert len(events) == 102, "a pong is sent, too"


def test_frames_behind_the_handshake_are_handled(feed: Feed) -> None:
    site = Site(feed.respond)
    link = site.connect()
    ws = WSConnection(ConnectionType.CLIENT)
    frame = bytes([0x81, 0x81, 0, 0, 0, 0]) + b"a"
    link.send(ws.send(Handshake(host="h", target="/")) + frame)
    site.turn(5)
    assert feed.received == ["a"]


def test_the_broker_pings_a_quiet_websocket(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    site.clock.pump([1] * int(PING_EVERY + 1))
    assert [type(event) for event in client.events()] == [Ping]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x81\0\0\0\0a", 1003),
        (b"\x81\x01a", 1002),
        (b"\xf1\x81\0\0\0\0a", 1002),
        (b"\x81\x81\0\0\0\0\xff", 1007),
        (b"\x89\xff\0\0\0\0\0\0\xff\xff\0\0\0\0", 1002),
        (b"\x80\x81\0\0\0\0a", 1002),
    ],
)
def test_frames_that_break_the_protocol_close(feed: Feed, data: bytes, code: int) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    with capturedLogs() as logged:
        client.link.send(data)
        site.turn(5)
    [event] = client.events()
    assert isinstance(event, CloseConnection)
    assert event.code == code
    assert client.link.closed
    assert feed.ended == 1
    assert not [event for event in logged if "log_failure" in event]
    site.quiet()


def test_messages_of_the_peer_are_bounded(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    for _ in range(MAX_MESSAGE // 1_000 + 1):
        client.send(TextMessage("x" * 1_000, message_finished=False))
        site.turn(5)
    [event] = client.events()
    assert isinstance(event, CloseConnection)
    assert event.code == 1009


@pytest.mark.parametrize("data", ["", pytest.param("\u20ac", marks=pytest.mark.long)])
def test_many_frames_of_one_message_take_no_memory_beside_its_text(feed: Feed, data: str) -> None:
    site = Site(feed.respond)
    client = Client(site)
    frame = bytes((0, 0x80 | len(data.encode()))) + bytes(4) + data.encode()
    client.link.send(bytes((1, *frame[1:])))
    site.turn(2)
    tracemalloc.start()
    try:
        for _ in range(100):
            client.link.send(frame * 100)
            site.turn(20)
        client.events()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    client.link.send(bytes((0x80, *frame[1:])))
    site.turn(2)
    assert feed.received == [data * 10_002]
    assert kept < 50_000


def test_too_many_pings_end_a_websocket(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    for _ in range(REFUSALS_AT_ONCE + 2):
        if not client.link.wire.disconnecting:
            client.link.send(b"\x89\x80\0\0\0\0")
            site.turn()
    assert isinstance(client.events()[-1], CloseConnection)
    assert client.link.closed


def test_a_peer_that_does_not_read_gets_no_pongs(feed: Feed) -> None:
    site = Site(feed.respond)
    client = Client(site)
    client.events()
    client.link.wire.full_at = 1
    feed.outlets[0].write(b"x" * 10)
    for _ in range(10):
        client.link.send(b"\x89\x80\0\0\0\0")
        site.turn()
    assert len(client.link.raw()) < 20


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET /", ["Upgrade: websocket"], 400),
        ("GET /", ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 8"], 426),
        ("GET /", ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"], 400),
        (
            "POST /",
            ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x"],
            400,
        ),
    ],
)
def test_a_handshake_that_is_none_is_a_problem(feed: Feed, line: str, headers: list[str], status: int) -> None:
    site = Site(feed.respond)
    link = site.connect()
    link.ask(line, *headers)
    answer = link.answer()
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert feed.outlets == []
    link.lose()
    site.quiet()
