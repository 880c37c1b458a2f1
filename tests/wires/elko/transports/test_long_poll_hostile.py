"""HTTP: limits of each peer, allowed pages, and malformed requests."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from broker.core.memory_budget import BY_ADDRESS
from broker.net.http.request import RequestBounds
from broker.net.refusal_log import REFUSALS_AT_ONCE
from broker.wires.elko.transports.long_poll import FULL, MAX_BODY, REQUEST_WITHIN
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.net.holders import Holding, fill
from tests.net.words import COST
from tests.wires.elko.transports.long_poll_peers import Web
from tests.wires.elko.transports.virtual_links import CarriedLink

PAGE = "https://game.example.org"


@pytest.fixture
def web() -> Web:
    return Web()


# bounds


def test_output_for_a_peer_that_never_asks_is_bounded() -> None:
    web = Web(TransportLimits(write_buffer=200_000, http_timeout=3_600))
    peer = web.start()
    [line] = web.hub.factory.connections
    for _ in range(100):
        if not line.life.closing:
            line.write(b"1" * 10_000 + b"\n\n")
            web.hub.later()
    assert web.hub.refused(Reason.NOT_READING) == 1
    assert peer.say("late") == {"error": "sessionIDError"}
    web.quiet()


@pytest.mark.parametrize("other", [5, 12])
def test_another_time_without_progress_counts_for_present_connections(other: int) -> None:
    web = Web(TransportLimits(authenticate_within=0, stalled_after=9))
    peer = web.start()
    link = peer.wait()
    link.wire.full_at = 500
    [line] = web.hub.factory.connections
    line.write(b"x" * 1_000 + b"\n\n")
    web.hub.pass_seconds(2)
    web.factory.limit(TransportLimits(authenticate_within=0, stalled_after=other))
    web.hub.pass_seconds(other - 3)
    assert not link.wire.aborted
    web.hub.pass_seconds(2)
    assert link.wire.aborted


def test_a_peer_that_asks_late_gets_all_in_pieces() -> None:
    web = Web()
    peer = web.start()
    [line] = web.hub.factory.connections
    sent = [f"{number:05}".encode() * 2_000 for number in range(30)]
    for data in sent:
        line.write(b'"' + data + b'"\n\n')
        web.hub.later()
    heard: list[str] = []
    sizes = []
    while len(heard) < len(sent):
        got = peer.hear() or []
        sizes.append(sum(map(len, got)))
        heard += got
        web.hub.later()
    assert [text.encode() for text in heard] == sent
    assert max(sizes) < 3 * FULL


def test_what_a_busy_session_is_sent_waits_and_its_answer_too(web: Web) -> None:
    peer = web.start()
    web.hub.heard.cost = COST
    peer.say(*["word"] * 2_000)
    peer.link.request(f"/xmit/{peer.session}/2", "after")
    assert peer.link.responses() == []
    assert web.connect().get(f"/xmit/{peer.session}/3", "too early") == {"error": "sequenceError"}
    web.hub.clock.pump([0] * 50)
    assert peer.link.responses() == [(200, '{ "seqnum": "3" }\n')]
    assert web.hub.words() == [*["word"] * 2_000, "after"]


@pytest.mark.parametrize(
    ("turns", "answer"),
    [(0, '{ "seqnum": "3" }\n'), (1, '{ "error": "sequenceError" }\n')],
    ids=["withheld", "delivered"],
)
def test_a_withheld_request_may_be_repeated_when_its_connection_was_lost(web: Web, turns: int, answer: str) -> None:
    peer, again = web.start(), web.connect()
    web.hub.heard.cost = COST
    peer.say(*["word"] * 2_000)
    peer.link.request(f"/xmit/{peer.session}/2", "after")
    assert peer.link.responses() == []
    peer.link.lose()
    web.hub.clock.pump([0] * turns)
    again.request(f"/xmit/{peer.session}/2", "after")
    web.hub.clock.pump([0] * 50)
    assert again.responses() == [(200, answer)]
    assert web.hub.words() == [*["word"] * 2_000, "after"]


def test_a_withheld_answer_is_an_error_when_the_session_ends(web: Web) -> None:
    peer = web.start()
    web.hub.heard.cost = COST
    peer.say(*["word"] * 2_000)
    peer.link.request(f"/xmit/{peer.session}/2", "after")
    [line] = web.hub.factory.connections
    line.abort()
    web.hub.clock.pump([0] * 5)
    assert peer.link.responses() == [(200, '{ "error": "sessionIDError" }\n')]


def test_a_body_at_the_limit_and_one_over_it(web: Web) -> None:
    peer = web.start()
    assert "seqnum" in peer.say("x" * MAX_BODY)
    peer.link.request(f"/xmit/{peer.session}/2", "x" * (MAX_BODY + 1))
    assert peer.link.said().startswith("HTTP/1.1 413 ")
    assert peer.link.wire.disconnecting
    assert web.hub.refused(Reason.TOO_LARGE) == 1


def test_a_body_in_chunks_is_counted_as_it_comes(web: Web) -> None:
    peer = web.start()
    head = f"POST /xmit/{peer.session}/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.link.send(head, "5\r\nsay 1\r\n", "0\r\n\r\n")
    assert peer.link.responses() == [(200, '{ "seqnum": "2" }\n')]
    link = web.connect()
    link.send(head)
    for _ in range(MAX_BODY // 65_536):
        link.send("10000\r\n", "x" * 65_536, "\r\n")
        link.next_turn()
    assert web.hub.factory.memory.held == MAX_BODY
    assert link.ask("1\r\nx\r\n").startswith("HTTP/1.1 413 ")
    assert web.hub.factory.memory.held == 0


def test_what_all_bodies_hold_together_is_bounded(web: Web) -> None:
    link = web.connect()
    link.send("POST /xmit/1/1 HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", "x" * 5_000)
    web.hub.later()
    memory = web.hub.factory.memory
    assert memory.held == 5_000
    others = fill(memory)
    link.send("x")
    web.hub.later()
    assert [other.evicted for other in others] == [True] + [False] * (len(others) - 1)
    link.lose()
    for other in others:
        other.drop()
    web.quiet()


def test_over_the_bound_the_body_that_began_first_costs_its_connection(web: Web) -> None:
    old, young = web.connect(), web.connect()
    for link in (old, young):
        link.send("POST /xmit/1/1 HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", "x" * 5_000)
        web.hub.later()
    other = Holding(web.hub.factory.memory)
    other.hold(BY_ADDRESS - 9_000)
    assert old.said().startswith("HTTP/1.1 413 ")
    assert young.said() == ""
    other.drop()
    young.send("x" * 5_000)
    web.hub.later()
    assert young.said().startswith("HTTP/1.1 200 ")
    assert web.hub.factory.memory.held == 0
    web.quiet()


def test_a_large_form_is_not_parsed_by_anybody_else(web: Web) -> None:
    peer = web.start()
    form = "Content-Type: application/x-www-form-urlencoded"
    peer.link.request(f"/xmit/{peer.session}/1", "a=1&" * 200_000, form)
    assert peer.link.responses() == [(400, "the body is no form, or one with too many fields\n")]


def test_a_request_must_come_in_time(web: Web) -> None:
    slow, idle = web.connect(), web.connect()
    for byte in "GET /con":
        slow.send(byte)
        web.hub.pass_seconds(3)
    assert slow.responses() == []
    web.hub.pass_seconds(int(REQUEST_WITHIN) - 20)
    assert slow.responses() == [(408, "a request was begun, and not completed within 30 s\n")]
    web.hub.pass_seconds(int(RequestBounds().kept_open))
    assert idle.wire.disconnecting


def test_a_proxy_of_60_seconds_sees_no_close_and_no_late_answer() -> None:
    web = Web(TransportLimits(authenticate_within=0))
    peer = web.start()
    waiting, kept = peer.wait(), web.connect()
    web.hub.pass_seconds(59)
    assert peer.hear(waiting) == []
    web.hub.pass_seconds(5)
    assert not kept.wire.disconnecting


def test_the_oldest_session_that_has_not_authenticated_gives_way() -> None:
    web = Web(TransportLimits(connections=2))
    web.factory.sockets.table.limit = 100
    known = web.start()
    known.say("hello", "wait")
    stranger = web.start()
    newcomer = web.start()
    assert "<too-many-connections>" in stranger.wait().responses()[0][1]
    assert known.say("say x") == newcomer.say("hello", "wait") | {"seqnum": "3"}
    link = web.connect()
    link.request("/connect")
    [(status, text)] = link.responses()
    assert (status, "all places are taken" in text) == (503, True)
    assert len(web.factory.sessions) == 3, "a refused session has no id; the one that gave way has its last words"
    assert known.link.get(f"/disconnect/{known.session}") == {}
    web.hub.pass_seconds(3)
    assert "sessionid" in link.get("/connect")


def test_a_crowd_of_sessions_ends_no_session_of_another_address() -> None:
    web = Web(TransportLimits(connections=20, rate=0))
    honest = web.start()
    link = CarriedLink(web.factory, "198.51.100.1")
    for _ in range(200):
        assert "sessionid" in link.get("/connect")
    assert honest.say("say x") == {"seqnum": "2"}
    assert "x" in honest.wait().responses()[0][1]
    link.lose()


def test_an_idle_connection_gives_way_and_one_that_awaits_its_answer_does_not() -> None:
    web = Web(TransportLimits(connections=3))
    peer = web.start()
    waiting = peer.wait()
    idle = web.connect()
    newcomer = web.connect()
    assert peer.link.wire.disconnecting, "the oldest one without a request"
    assert not idle.wire.disconnecting
    assert "sessionid" in newcomer.get("/connect")
    assert waiting.responses() == []
    assert not waiting.wire.disconnecting


def test_a_connection_without_a_session_gives_way_before_one_that_has_carried_one() -> None:
    web = Web(TransportLimits(connections=2))
    peer = web.start()
    peer.say("hello")
    silent = web.connect()
    newcomer = web.connect()
    assert silent.wire.disconnecting
    assert not peer.link.wire.disconnecting
    assert "sessionid" in newcomer.get("/connect")


def test_sessions_that_begin_too_often_are_refused() -> None:
    web = Web(TransportLimits(rate=1, burst=2))
    web.start()
    web.start()
    link = web.connect()
    link.request("/connect")
    [(status, text)] = link.responses()
    assert (status, text) == (503, "closing: this address connects too often (rate)\n")
    assert len(web.factory.sessions) == 2
    assert web.hub.refused(Reason.TOO_MANY_CONNECTIONS) == 1


# what is no request


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/admin", 404),
        ("GET", "/select/1/x", 404),
        ("PUT", "/connect", 405),
        ("HEAD", "/connect", 405),
        ("GET", "/xmit/1/1", 405),
        ("DELETE", "/nothing", 405),
    ],
)
def test_what_http_has_an_answer_for(web: Web, method: str, path: str, status: int) -> None:
    link = web.connect()
    link.request(path, method=method)
    text = link.said()
    assert text.startswith(f"HTTP/1.1 {status} ")
    assert ("Allow: GET, POST, OPTIONS" in text) is (status == 405)
    assert not link.wire.disconnecting


@pytest.mark.parametrize(
    "data",
    [
        "nonsense\r\n\r\n",
        '{"to":"broker","op":"auth"}\n\n',
        "GET /connect HTTP/1.1\r\nbad header\r\n\r\n",
        "GET /connect HTTP/1.1\r\nX: " + "y" * 20_000 + "\r\n\r\n",
        "GET /connect HTTP/1.1\r\n" + "X: y\r\n" * 600 + "\r\n",
        "POST /xmit/1/1 HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /xmit/1/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        "POST /xmit/1/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        "GET /connect HTTP/3.14\r\n\r\n",
        "\x16\x03\x01\x02",
        "\r\n" * 1_000,
    ],
)
def test_what_is_not_even_http_does_no_harm(web: Web, data: str) -> None:
    link = web.connect()
    with capturedLogs() as logged:
        link.send(data)
        web.hub.later()
    assert not [event for event in logged if "log_failure" in event]
    assert web.hub.factory.connections == set()
    refused = web.hub.refused(Reason.TOO_LARGE if len(data) > 3_000 else Reason.SYNTAX)
    # A TLS hello is refused at once, and waits for no line.
    assert refused == ("\n" in data or data.startswith("\x16"))
    web.quiet()


def test_a_connection_that_asks_for_nothing_good_too_often_is_closed(web: Web) -> None:
    link = web.connect()
    for _ in range(REFUSALS_AT_ONCE):
        link.request("/nothing")
        link.next_turn()
    assert not link.wire.disconnecting
    link.said()
    link.request("/nothing")
    link.next_turn()
    assert "Connection: close" in link.said()
    assert link.wire.disconnecting
    assert web.hub.refused(Reason.UNKNOWN_TARGET) == REFUSALS_AT_ONCE + 1


def test_a_session_that_is_out_of_sequence_too_often_is_closed(web: Web) -> None:
    peer = web.start()
    for _ in range(REFUSALS_AT_ONCE + 1):
        peer.link.request(f"/xmit/{peer.session}/7", "say 7")
    assert (peer.hear(), peer.heard) == ([], -1)


# web pages


@pytest.mark.parametrize(
    ("allowed", "origin", "status", "shared_with"),
    [
        ([], None, 200, None),
        ([], PAGE, 403, None),
        ([], "null", 403, None),
        ([PAGE], None, 200, None),
        ([PAGE], PAGE, 200, PAGE),
        ([PAGE], "https://evil.example.org", 403, None),
        (["*"], "https://any.example.org", 200, "*"),
        (["*"], None, 200, "*"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_only_pages_that_are_listed_may_ask_and_read(
    allowed: list[str], origin: str | None, status: int, shared_with: str | None, method: str
) -> None:
    web = Web(origins=allowed)
    link = web.connect()
    link.request("/connect", None, *([] if origin is None else [f"Origin: {origin}"]), method=method)
    text = link.said()
    assert text.startswith(f"HTTP/1.1 {status} ")
    assert (f"Access-Control-Allow-Origin: {shared_with}\r\n" in text) is (shared_with is not None)
    assert ("Vary: Origin\r\n" in text) is (shared_with not in (None, "*"))
    assert web.hub.refused(Reason.HANDSHAKE) == (status == 403)
    assert len(web.factory.sessions) == (status == 200 and method == "GET")


def test_a_preflight_says_what_a_page_may_send() -> None:
    web = Web(origins=["*"])
    link = web.connect()
    link.request("/connect", None, "Access-Control-Request-Headers: content-type, x-y", method="OPTIONS")
    text = link.said()
    assert "Access-Control-Max-Age: 31536000\r\n" in text
    assert "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n" in text
    assert "Access-Control-Allow-Headers: content-type, x-y\r\n" in text


@pytest.mark.parametrize("header", ["Origin", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "X-Real-IP"])
def test_a_page_and_who_comes_through_a_proxy_are_not_local(header: str) -> None:
    web = Web(origins=["*"])
    link = CarriedLink(web.factory, "127.0.0.1")
    session = link.get("/connect")["sessionid"]
    [line] = web.hub.factory.connections
    assert line.local
    link.get("/connect", None, f"{header}: https://game.example.org")
    assert sorted(each.local for each in web.hub.factory.connections) == [False, True]
    assert link.get(f"/xmit/{session}/1", "say 1", f"{header}: https://game.example.org") == {"seqnum": "2"}
    assert not line.local


def test_what_is_too_large_or_no_request_is_answered_with_a_sentence(web: Web) -> None:
    for text, status in (
        (f"POST /connect HTTP/1.1\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n", 413),
        ("nonsense\r\n\r\n", 400),
        (f"GET /{'x' * 20_000} HTTP/1.1\r\n\r\n", 431),
    ):
        link = web.connect()
        link.send(text)
        [(answered, sentence)] = link.responses()
        assert answered == status
        assert len(sentence.split()) > 5
        assert link.wire.disconnecting
        link.lose()
    web.quiet()


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("Sec-Fetch-Site: cross-site", False),
        ("Sec-Fetch-Site: same-site", False),
        ("Sec-Fetch-Site: none", True),
        ("Sec-Fetch-Site: same-origin", True),
        ("X-Other: cross-site", True),
    ],
)
def test_a_browser_that_hides_the_origin_gets_no_session(web: Web, header: str, allowed: bool) -> None:
    link = web.connect()
    link.request("/connect", None, header)
    [(status, _)] = link.responses()
    assert status == (200 if allowed else 403)
    assert len(web.factory.sessions) == allowed


def test_headers_that_are_no_ascii_are_refused_and_cause_no_traceback(web: Web) -> None:
    link = web.connect()
    with capturedLogs() as logged:
        link.protocol.dataReceived(b"GET /connect HTTP/1.1\r\nHost: x\r\nOrigin: \xed\r\nSec-Fetch-Site: \xff\r\n\r\n")
        [(status, _)] = link.responses()
    assert status == 403
    assert [event for event in logged if "log_failure" in event] == []


def test_sessions_of_a_trusted_proxy_count_by_its_clients() -> None:
    web = Web(TransportLimits(rate=1, burst=2))
    web.hub.turns.proxies.use(["192.0.2.1"])
    link = web.connect()
    for client, statuses in (("198.51.100.7", [200, 200, 503]), ("127.0.0.1", [200, 200, 503])):
        for status in statuses:
            link.request("/connect", None, f"Forwarded: for={client}")
            assert link.responses()[0][0] == status
    assert {each.host for each in web.hub.factory.connections} == {"198.51.100.7", "127.0.0.1"}
    assert not any(each.local for each in web.hub.factory.connections)
