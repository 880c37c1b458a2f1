"""WebSockets: handshakes, messages and frames, how they close, and what is refused. The client is wsproto's."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import pytest
from twisted.logger import capturedLogs
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import FrameProtocol

from broker.core.errors import Reason
from broker.core.memory_budget import BY_ADDRESS
from broker.net.admission import STOP_WITHIN
from broker.net.http.websocket import PING_EVERY, end
from broker.net.line_protocol import LineProtocol
from broker.wires.elko.transports.elko_websocket import WebSocket
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.garbage import no_collection, set_aside
from tests.net.holders import Holding
from tests.net.words import Hub, WordSession
from tests.wires.elko.transports.virtual_links import HANDSHAKE, WebLink, WordHub, garbage, masked, web_hub

PAGE = "https://game.example.org"


@pytest.fixture
def hub() -> WordHub:
    return web_hub()


def opened(hub: Hub) -> WebLink:
    link = WebLink(hub)
    assert link.take() == ["accepted"]
    return link


# handshakes


def test_a_handshake_and_a_conversation(hub: WordHub) -> None:
    link = opened(hub)
    link.say("hello", "say one", "say two")
    assert link.take() == ["one", "two"]
    assert hub.words() == ["hello", "say one", "say two"]


def test_a_handshake_may_come_byte_by_byte(hub: WordHub) -> None:
    link = hub.connect()
    for byte in HANDSHAKE + masked(0x81, b"say here"):
        link.protocol.dataReceived(bytes([byte]))
    answer, frame = link.take()
    assert answer.startswith(b"HTTP/1.1 101 ")
    # the accept key of the example in RFC 6455
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
    assert frame == b"\x81\x04here"


@pytest.mark.parametrize(
    ("hub_options", "target", "headers", "status", "why"),
    [
        ({"path": "/elko"}, "/elko", {}, 101, ""),
        ({"path": "/elko"}, "/elko?x=1", {}, 101, ""),
        ({"path": "/elko"}, "/", {}, 404, "there is no WebSocket at '/'"),
        ({"path": "/elko"}, "/elko/", {}, 404, "there is no WebSocket at"),
        ({}, "/", {"Origin": PAGE}, 403, f"the origin '{PAGE}' is not among those that may connect"),
        ({}, "/", {"Origin": "null"}, 403, "the origin 'null'"),
        ({"origins": [PAGE]}, "/", {"Origin": PAGE}, 101, ""),
        ({"origins": [PAGE]}, "/", {"Origin": PAGE.upper()}, 101, ""),
        ({"origins": [PAGE]}, "/", {"Origin": PAGE + ":8443"}, 403, "the origin"),
        ({"origins": [PAGE]}, "/", {}, 101, ""),
        ({"origins": ["*"]}, "/", {"Origin": PAGE}, 101, ""),
    ],
)  # fmt: skip
def test_paths_and_origins(
    hub_options: dict[str, Any], target: str, headers: dict[str, str], status: int, why: str
) -> None:
    hub = web_hub(**hub_options)
    link = WebLink(hub, target, **headers).link
    answer = b"".join(link.take()).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert link.wire.half_closed is (status != 101)
    assert hub.refused(Reason.HANDSHAKE) == (status != 101)
    assert why in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (HANDSHAKE.replace(b"Version: 13", b"Version: 8"), 426),
        (HANDSHAKE.replace(b"GET", b"POST"), 400),
        (HANDSHAKE.replace(b"Host: x\r\n", b""), 400),
        (HANDSHAKE.replace(b"websocket", b"h2c"), 400),
        (HANDSHAKE.replace(b"keep-alive, Upgrade", b"close"), 400),
        (HANDSHAKE.replace(b"Host: x", b"Host: \xff"), 400),
        (HANDSHAKE.replace(b"13\r\n", b"13\r\nSec-WebSocket-Protocol: \xff\r\n"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b'{"to":"broker","op":"auth"}\n\n', 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000, 400),
    ],
)
def test_what_is_no_handshake(hub: WordHub, request_: bytes, status: int) -> None:
    link = hub.connect()
    with capturedLogs() as logged:
        link.protocol.dataReceived(request_)
        hub.later()
    answer = b"".join(link.take())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"Sec-WebSocket-Version: 13\r\n" in answer) is (status == 426)
    assert link.wire.half_closed
    assert (hub.refused(Reason.HANDSHAKE), hub.words()) == (1, [])
    assert not [event for event in logged if "log_failure" in event]


def test_a_handshake_that_does_not_come_in_time() -> None:
    hub = web_hub()
    hub.factory.limit(TransportLimits(authenticate_within=30))
    link = hub.connect()
    link.protocol.dataReceived(HANDSHAKE[:-2])
    hub.pass_seconds(31)
    assert b"".join(link.take()).startswith(b"HTTP/1.1 503 ")
    assert link.wire.half_closed
    assert hub.refused(Reason.TOO_SLOW_TO_AUTHENTICATE) == 1


def test_an_address_that_connects_too_often_is_told_before_it_has_said_anything() -> None:
    hub = web_hub()
    hub.factory.limit(TransportLimits(rate=1, burst=1))
    hub.connect()
    link = hub.connect()
    assert b"".join(link.take()).startswith(b"HTTP/1.1 503 ")
    assert (link.wire.half_closed, hub.refused(Reason.TOO_MANY_CONNECTIONS)) == (True, 1)


# messages


def test_a_message_may_come_in_many_frames_with_others_between_them(hub: WordHub) -> None:
    link = opened(hub)
    link.send(
        TextMessage(data="say o", message_finished=False),
        Ping(b"?"),
        TextMessage(data="n", message_finished=False),
        TextMessage(data="", message_finished=False),
        TextMessage(data="e"),
    )
    assert link.take() == ["pong ?", "one"]


def test_a_character_may_be_cut_by_frames(hub: WordHub) -> None:
    link = opened(hub)
    link.link.protocol.dataReceived(masked(0x01, b"say \xc3"))
    link.link.protocol.dataReceived(masked(0x80, b"\xa9"))
    assert link.take() == ["\u00e9"]


def test_a_message_ends_what_it_leaves_open(hub: WordHub) -> None:
    link = opened(hub)
    link.say("one\ntwo", "three")
    assert hub.words() == ["one", "two", "three"]
    assert link.link.protocol.reader.pending == 0


def test_what_is_held_of_a_message_is_known(hub: WordHub) -> None:
    link = opened(hub)
    link.send(TextMessage(data="x" * 5_000, message_finished=False))
    hub.later()
    assert hub.factory.memory.held == 5_000
    link.send(TextMessage(data="y"))
    hub.later()
    assert hub.factory.memory.held == 0


def test_frames_that_complete_no_message_do_not_make_it_young(hub: WordHub) -> None:
    old, young = opened(hub), opened(hub)
    for link in (old, young):
        link.send(TextMessage(data="x" * 5_000, message_finished=False))
        hub.later()
    old.send(Ping(payload=b""))
    old.send(TextMessage(data="x", message_finished=False))
    hub.later()
    old.take()
    Holding(hub.factory.memory).hold(BY_ADDRESS - 10_000)
    assert [link.link.wire.half_closed for link in (old, young)] == [True, False]
    assert old.take() == ["<too-large>", "closed 1009"]
    assert old.link.session.reader.pending == 0


def test_a_message_makes_the_next_one_young(hub: WordHub) -> None:
    busy, idle = opened(hub), opened(hub)
    for link in (busy, idle):
        link.send(TextMessage(data="x" * 5_000, message_finished=False))
        hub.later()
    end, begin = TextMessage(data="y"), TextMessage(data="x" * 5_000, message_finished=False)
    busy.send(end, begin)
    hub.later()
    Holding(hub.factory.memory).hold(BY_ADDRESS - 9_000)
    assert [link.link.wire.half_closed for link in (busy, idle)] == [False, True]


def test_several_messages_written_at_once_are_a_frame_each(hub: WordHub) -> None:
    link = opened(hub)
    hub.heard.clear()
    socket = hub.sessions[-1]
    socket.write(b'{"a":1}\n\n{"b":"\xc3\xa9"}\n\n')
    socket.write(b'{"c":3}\n\n')
    hub.later()
    assert link.take() == ['{"a":1}', '{"b":"\u00e9"}', '{"c":3}']


def test_a_notice_for_many_is_framed_once_and_reaches_each(hub: WordHub) -> None:
    links = [opened(hub) for _ in range(3)]
    notice = b'{"to":"admin"}\n\n'
    for socket in hub.sessions:
        socket.write(notice)
    hub.later()
    assert [link.take() for link in links] == [['{"to":"admin"}']] * 3
    shared = hub.sessions[0]._shared
    assert shared.framed(notice, hub.sessions[0].ws) is shared.framed(notice, hub.sessions[1].ws)


def test_a_flood_of_empty_frames_takes_its_turns(hub: WordHub) -> None:
    flood, other = opened(hub), opened(hub)
    flood.link.protocol.dataReceived(masked(0x89, b"") * 2_000)
    assert len(flood.take()) < 2_000
    other.say("say still here")
    assert other.take() == ["still here"]
    hub.clock.pump([0] * 20)
    flood.say("say done")
    hub.clock.pump([0] * 20)
    assert flood.take()[-1] == "done"


# keeping it open


def test_pings_are_answered_and_sent(hub: WordHub) -> None:
    link = opened(hub)
    link.send(Ping(b"are you there"))
    assert link.take() == ["pong are you there"]
    hub.pass_seconds(int(2 * PING_EVERY) + 3)
    pings = link.events()
    assert pings == [Ping(), Ping()]
    link.send(*(ping.response() for ping in pings if isinstance(ping, Ping)))
    link.say("say on")
    assert link.take() == ["on"]


def test_a_closed_connection_is_not_pinged(hub: WordHub) -> None:
    link = opened(hub)
    link.link.lose()
    hub.pass_seconds(int(PING_EVERY) + 5)
    assert hub.clock.getDelayedCalls() == []


# closing


def test_what_was_said_before_a_close_is_answered_before_it(hub: WordHub) -> None:
    link = opened(hub)
    session = hub.sessions[-1]._session
    link.send(*(TextMessage(data=f"say {number}") for number in range(500)), CloseConnection(1000))
    hub.clock.pump([0] * 20)
    assert link.take() == [*map(str, range(500)), "closed 1000"]
    assert link.link.wire.half_closed
    assert session.losses == 1


@pytest.mark.parametrize(
    ("word", "code"), [("close", 1000), ("??", 1008), ("disconnect", None)], ids=["by itself", "fatal", "not at all"]
)
def test_a_close_of_the_session_has_a_code(hub: WordHub, word: str, code: int | None) -> None:
    link = opened(hub)
    link.say("say first", word)
    assert [text for text in link.take() if text.startswith("closed")] == ([] if code is None else [f"closed {code}"])
    assert link.link.wire.half_closed is (code is not None)


def test_nothing_is_sent_after_the_close(hub: WordHub) -> None:
    link = opened(hub)
    link.say("close")
    hub.sessions[-1].write(b"late\n\n")
    hub.later()
    assert link.take() == ["closed 1000"]


def test_a_listener_that_stops_says_that_it_goes_away(hub: WordHub) -> None:
    link = opened(hub)
    before = hub.connect()
    closed = hub.factory.close()
    assert link.take() == ["closed 1001"]
    link.link.lose()
    before.lose()
    assert closed.called


def test_a_client_that_does_not_close_is_aborted_in_the_end(hub: WordHub) -> None:
    link = opened(hub)
    hub.factory.close()
    hub.pass_seconds(int(STOP_WITHIN) + 2)
    assert link.link.wire.aborted


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(0x82, b"x"), 1003),
        (masked(0x81, b"\xff"), 1007),
        (masked(0x80, b"x"), 1002),
        (masked(0x83, b"x"), 1002),
        (masked(0xC1, b"x"), 1002),
        (masked(0x89, b"x" * 126), 1002),
        (masked(0x09, b"x"), 1002),
        (masked(0x88, b"x"), 1002),
        (masked(0x88, (999).to_bytes(2, "big")), 1002),
        (b"\x81\x01x", 1002),
        (b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + bytes(4), 1002),
    ],
)
def test_breaches_of_the_protocol_close_with_a_code(hub: WordHub, data: bytes, code: int) -> None:
    link = opened(hub)
    link.say("say before")
    link.link.protocol.dataReceived(data)
    link.link.protocol.dataReceived(masked(0x81, b"say after"))
    assert link.take() == ["before", f"closed {code}"]
    assert (hub.refused(Reason.HANDSHAKE), link.link.wire.half_closed) == (1, True)


def test_a_frame_that_announces_very_much_costs_only_what_comes(hub: WordHub) -> None:
    link = opened(hub)
    link.link.protocol.dataReceived(b"\x81\xff" + (2**62).to_bytes(8, "big") + bytes(4) + b"x" * 5_000)
    hub.later()
    assert hub.factory.memory.held == 5_000


def test_a_binary_message_in_pieces_is_refused_at_the_first(hub: WordHub) -> None:
    link = opened(hub)
    link.send(BytesMessage(data=b"x", message_finished=False))
    assert link.take() == ["closed 1003"]


def test_over_tls_the_close_frame_goes_before_the_end() -> None:
    hub = web_hub(half_close=False)
    link = opened(hub)
    link.say("close")
    assert link.take() == ["closed 1000"]
    assert link.link.wire.disconnecting


def test_a_client_that_does_not_read_is_disconnected(hub: WordHub) -> None:
    hub.factory.limit(TransportLimits(write_buffer=50_000, stalled_after=30))
    link = opened(hub)
    link.link.stall()
    for _ in range(6):
        hub.sessions[-1].write(b"x" * 10_000 + b"\n\n")
    assert (link.link.wire.aborted, hub.refused(Reason.NOT_READING)) == (True, 1)


def test_too_many_refusals_close(hub: WordHub) -> None:
    link = opened(hub)
    link.say(*["bad"] * 102)
    hub.clock.pump([0] * 5)
    assert link.take()[-1] == "closed 1000"
    assert link.link.wire.half_closed


@pytest.mark.parametrize("header", ["Origin", "Sec_Fetch_Site", "Forwarded", "X_Forwarded_For", "X_Real_IP"])
def test_a_page_and_who_comes_through_a_proxy_are_not_local(header: str) -> None:
    hub = web_hub(origins=["*"])
    program = WebLink(hub, host="127.0.0.1")
    page = WebLink(hub, host="127.0.0.1", **{header: "for=192.0.2.1"})
    assert (program.take(), page.take()) == (["accepted"], ["accepted"])
    assert [socket.local for socket in hub.sessions] == [True, False]


@pytest.mark.long
def test_a_closed_connection_leaves_nothing_for_the_garbage_collector(hub: WordHub) -> None:
    def run() -> None:
        for word in ("close", "hello", "??"):
            link = opened(hub)
            link.say(word)
            link.link.lose()
            link.link.wire.producer = None  # a socket that is gone knows nobody
        hub.sessions.clear()
        hub.pass_seconds(100)

    assert garbage(run, WebSocket, WordSession, LineProtocol) == []


@pytest.mark.parametrize("at", range(0, len(HANDSHAKE) + 12, 7))
def test_frames_in_the_packet_of_the_handshake_are_taken(at: int) -> None:
    data = HANDSHAKE + masked(0x81, b"say hello\n") + masked(0x89, b"x")
    hub = web_hub()
    link = hub.connect()
    link.protocol.dataReceived(data[:at])
    link.protocol.dataReceived(data[at:])
    said = b"".join(link.take())
    assert said.endswith(b"\r\n\r\n\x81\x05hello\x8a\x01x")
    assert hub.words() == ["say hello"]


@pytest.mark.parametrize(("site", "allowed"), [("cross-site", False), ("same-origin", True), ("\xff", False)])
def test_a_handshake_without_an_origin_says_where_it_comes_from(site: str, allowed: bool) -> None:
    hub = web_hub()
    link = hub.connect()
    line = f"Sec-Fetch-Site: {site}\r\n".encode("latin-1")
    link.protocol.dataReceived(HANDSHAKE.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n"))
    assert link.take()[0].startswith(b"HTTP/1.1 101 " if allowed else b"HTTP/1.1 403 ")


def test_the_client_of_a_trusted_proxy_counts_by_its_own_address() -> None:
    hub = web_hub()
    hub.factory.forwards = True
    hub.factory.limit(TransportLimits(connections_per_address=1))
    hub.turns.proxies.use(["192.0.2.1"])
    links = [WebLink(hub, X_Forwarded_For=client) for client in ("198.51.100.7", "198.51.100.8", "198.51.100.7")]
    assert [link.take() for link in links[:2]] == [["accepted"], ["accepted"]]
    assert b"503" in links[2].link.take()[0]
    assert {each.host for each in hub.factory.connections} == {"198.51.100.7", "198.51.100.8"}
    elsewhere = WebLink(hub, host="203.0.113.5", X_Forwarded_For="198.51.100.9")
    assert elsewhere.take() == ["accepted"]
    assert "203.0.113.5" in {each.host for each in hub.factory.connections}


# memory


def test_a_connection_that_has_ended_is_freed_without_a_garbage_collection() -> None:
    with no_collection():
        ws = Connection(ConnectionType.SERVER)
        ws.receive_data(masked(0x81, b"say here"))
        assert [event.data for event in ws.events() if isinstance(event, TextMessage)] == ["say here"]
        parser = weakref.ref(ws._proto)
        end(ws)
        del ws
        assert parser() is None


def running() -> int:
    """Return the number of the server's parsers that wait for input."""
    parsers = (each for each in gc.get_objects() if type(each) is FrameProtocol and not each.client)
    return sum(inspect.getgeneratorstate(each._parse_more) != inspect.GEN_CLOSED for each in parsers)


def test_a_connection_ends_its_parser(hub: WordHub) -> None:
    set_aside()
    before = running()
    link = opened(hub)
    link.say("hello")
    assert running() == before + 1
    link.link.lose()
    assert hub.words() == ["hello"]
    assert running() == before
