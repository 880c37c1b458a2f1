"""The listener of HTTP: answers whole, in pieces and late; limits, deadlines, eviction, the end."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from broker.core.memory_budget import SHORT
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.channel import DRIPS, FEW
from broker.net.http.request import RequestBounds
from broker.net.refusal_log import REFUSALS_AT_ONCE
from broker.net.scheduler import QUANTUM, TURN
from broker.rest.messages import Request, Response
from tests.garbage import no_collection
from tests.net.http.http_peers import Site


def test_a_request_is_a_value_and_its_answer_a_response() -> None:
    site = Site()
    link = site.connect("127.0.0.1")
    link.ask("PUT /a%2Fb?x=1&x=2", "X-Y: a", "x-y: b", body=b"text")
    [request] = site.requests
    assert (request.method, request.path, request.query, request.body) == ("PUT", "/a%2Fb", {"x": ["1", "2"]}, b"text")
    assert (request.headers["x-y"], request.address, request.local, request.secure) == (
        "a, b",
        "127.0.0.1",
        True,
        False,
    )
    answer = link.answer()
    assert (answer.status, answer.body) == (200, b"PUT /a%2Fb text")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "date" in answer.headers
    link.lose()
    site.quiet()


@pytest.mark.parametrize("header", ["Origin: http://h", "Sec-Fetch-Site: none", "X-Forwarded-For: 1.2.3.4"])
def test_a_page_or_a_proxy_on_this_machine_is_not_local(header: str) -> None:
    site = Site()
    site.connect("127.0.0.1").ask("GET /", header)
    site.connect("192.0.2.1").ask("GET /")
    assert [each.local for each in site.requests] == [False, False]


def slow_site() -> tuple[Site, list[Deferred[Response]]]:
    """A site, and the responses that its requests wait for."""
    waiting: list[Deferred[Response]] = []

    def respond(request: Request) -> Deferred[Response]:
        waiting.append(Deferred())
        return waiting[-1]

    return Site(respond), waiting


def test_pipelined_requests_are_answered_in_order() -> None:
    site, waiting = slow_site()
    link = site.connect()
    link.send(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
    site.turn(3)
    assert [each.path for each in site.requests] == ["/1"]
    waiting[0].callback(Response(body=b"one"))
    site.turn(3)
    waiting[1].callback(Response(body=b"two"))
    assert [each.body for each in link.answers()] == [b"one", b"two"]
    assert [each.path for each in site.requests] == ["/1", "/2"]


def test_a_client_that_was_answered_before_comes_before_new_ones() -> None:
    site = Site()
    old, *new = [site.connect() for _ in range(4)]
    old.ask("GET /served")
    site.clock.tick = TURN  # the first one takes all time of this turn
    for number, link in enumerate((*new, old)):
        link.ask(f"GET /{number}")
    site.clock.tick = 0.0
    site.clock.turn()
    assert [each.path for each in site.requests] == ["/served", "/0", "/3", "/1", "/2"]


@pytest.mark.parametrize("head", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_an_incomplete_body_is_freed_with_its_connection(head: str) -> None:
    """Without a collection of garbage: a full one is as good as never made."""
    site = Site()
    link = site.connect()
    link.ask("PUT /x", head)
    link.send(b"ff\r\n" + bytes(255) + b"\r\n")
    site.turn(3)
    request = link.protocol.request
    freed = weakref.ref(request)
    del request
    with no_collection():
        link.lose()
        assert freed() is None
    site.quiet()


@pytest.mark.parametrize("size", [1, 7, 100, 511, 512, 513, 4_096, 100_000])
def test_any_number_of_pipelined_requests_keeps_its_order(size: int) -> None:
    site = Site()
    link = site.connect()
    data = b"".join(b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" % n for n in range(100))
    for at in range(0, len(data), size):
        while link.wire.producerState == "paused":
            site.turn()
        link.send(data[at : at + size])
    site.turn(200)
    assert [each.path for each in site.requests] == [f"/{n}" for n in range(100)]
    assert [each.body for each in link.answers()] == [b"POST /%d abc" % n for n in range(100)]


def test_a_body_in_pieces_is_sent_one_piece_in_each_step() -> None:
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"" if number == 1 else f"piece {number} ".encode()

    site = Site(lambda request: Response(body=pieces()))
    link = site.connect()
    link.ask("GET /")
    answer = link.answer()
    assert (answer.body, answer.headers["transfer-encoding"]) == (b"piece 0 piece 2 ", "chunked")
    assert made == [0, 1, 2]
    link.ask("GET /")
    assert link.answer().body == b"piece 0 piece 2 "


def test_a_body_in_pieces_may_come_after_a_wait() -> None:
    site, waiting = slow_site()
    link = site.connect()
    for _ in range(2):
        link.ask("GET /")
        site.turn(5)
        waiting.pop().callback(Response(body=iter([b"piece 0 ", b"", b"piece 1"])))
        site.turn(10)
        assert link.answer().body == b"piece 0 piece 1"


def test_a_body_in_pieces_waits_while_the_peer_does_not_read() -> None:
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(100):
            made.append(number)
            yield b"x" * 1_000

    site = Site(lambda request: Response(body=pieces()))
    link = site.connect()
    link.wire.full_at = 500
    link.ask("GET /")
    site.turn(50)
    assert len(made) < 5
    link.wire.full_at = float("inf")
    link.protocol.resumeProducing()
    site.turn(50)
    assert len(made) == 100
    assert len(link.answer().body) == 100_000


def test_the_head_of_an_answer_in_pieces_renders_none() -> None:
    def pieces() -> Iterator[bytes]:
        raise AssertionError("a HEAD has no body")
        yield b""

    site = Site(lambda request: Response(body=pieces()))
    link = site.connect()
    link.ask("HEAD /")
    assert link.answer().status == 200
    link.ask("HEAD /")
    assert link.answer().status == 200


def test_an_iterator_that_raises_ends_the_connection() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    site = Site(lambda request: Response(body=pieces()))
    link = site.connect()
    with capturedLogs() as logged:
        link.ask("GET /")
        site.turn(5)
    assert link.wire.aborted
    assert len([event for event in logged if "log_failure" in event]) == 1


def test_a_late_answer_and_a_failure() -> None:
    site = Site(lambda request: succeed(Response(body=b"done")) if request.path == "/" else fail(ZeroDivisionError()))
    link = site.connect()
    link.ask("GET /")
    assert link.answer().body == b"done"
    with capturedLogs() as logged:
        link.ask("GET /x")
    assert link.answer().status == 500
    assert len([event for event in logged if "log_failure" in event]) == 1
    link.lose()
    site.quiet()


def test_the_loss_of_a_peer_cancels_what_it_waits_for() -> None:
    waiting: Deferred[Response] = Deferred()
    site = Site(lambda request: waiting)
    link = site.connect()
    link.ask("GET /")
    assert site.factory.waiting == {"192.0.2.1": 1}
    assert link.wire.producerState == "producing", "a connection that waits is read, so that its loss is noticed"
    link.lose()
    assert waiting.called
    site.quiet()


def test_answers_that_wait_are_bounded() -> None:
    waiting: list[Deferred[Response]] = []

    def respond(request: Request) -> Deferred[Response]:
        waiting.append(Deferred())
        return waiting[-1]

    site = Site(respond, waiting=3, waiting_per_address=2)
    links = [site.connect(host) for host in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3")]
    for link in links:
        link.ask("GET /")
    assert [[each.status for each in link.answers()] for link in links] == [[], [], [503], [], [503]]
    waiting[0].callback(Response())
    links[4].ask("GET /")
    assert links[4].answers() == []
    for link in links:
        link.lose()
    site.quiet()


def test_a_slow_head_and_a_slow_body_end_at_the_deadline() -> None:
    site = Site(requests=RequestBounds(within=10, kept_open=20))
    head, body, idle = site.connect(), site.connect(), site.connect()
    head.send(b"GET / HT")
    body.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n")
    for _ in range(9):
        site.clock.advance(1)
        head.send(b"x")
        body.send(b"x")
    assert not head.closed
    site.clock.pump([1] * 3)
    for link in (head, body):
        answer = link.answer()
        assert (answer.status, json.loads(answer.body)["code"]) == (408, "too-slow")
        assert link.closed
    assert site.refused(Reason.TOO_SLOW) == 2
    assert not idle.closed
    site.clock.pump([1] * 10)
    assert idle.closed
    for link in (head, body, idle):
        link.lose()
    site.quiet()


def test_an_empty_line_begins_no_request() -> None:
    site = Site(requests=RequestBounds(within=10, kept_open=20))
    link = site.connect()
    link.ask("GET /")
    assert link.answer().status == 200
    link.send(b"\r\n")
    site.clock.pump([1] * 15)
    assert not link.closed
    link.ask("GET /")
    assert link.answer().status == 200
    site.clock.pump([1] * 21)
    assert link.answers() == []
    assert link.closed
    assert site.refused(Reason.TOO_SLOW) == 0


def test_an_idle_connection_outlasts_those_of_proxies() -> None:
    site = Site()
    idle = site.connect()
    site.clock.pump([1] * 65)
    assert not idle.wire.disconnecting


def test_bodies_are_bounded() -> None:
    site = Site(requests=RequestBounds(body=1_000))
    link = site.connect()
    link.ask("POST /", body=b"x" * 1_000)
    assert link.answer().status == 200
    link.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
    answer = link.answer()
    assert (answer.status, answer.headers["content-type"]) == (413, "application/problem+json")
    assert link.closed
    assert site.refused(Reason.TOO_LARGE) == 1
    assert len(site.requests) == 1


def test_the_client_of_a_good_length_may_go_on() -> None:
    site = Site()
    link = site.connect()
    link.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert link.raw() == b"HTTP/1.1 100 Continue\r\n\r\n"
    link.send(b"text")
    assert link.answer().body == b"POST / text"


def test_a_peer_that_reads_nothing_is_disconnected() -> None:
    site = Site(lambda request: Response(body=b"x" * 1_000), requests=RequestBounds(stalled_after=10))
    link = site.connect()
    link.wire.full_at = 500
    link.ask("GET /")
    site.clock.pump([1] * 12)
    assert link.wire.aborted
    assert site.refused(Reason.NOT_READING) == 1


def test_at_the_limit_the_connection_makes_room_whose_request_is_the_longest_ago() -> None:
    site = Site(
        lambda request: Deferred() if request.path == "/wait" else Response(),
        connections=ConnectionLimits(connections=3),
    )
    waiting, idle, recent = site.connect(), site.connect(), site.connect()
    waiting.ask("GET /wait")
    site.clock.advance(1)
    recent.ask("GET /")
    newcomer = site.connect()
    assert [link.closed for link in (waiting, idle, recent)] == [False, True, False]
    assert site.factory.table.displaced == 1
    newcomer.ask("GET /")
    assert newcomer.answer().status == 200


def test_a_crowd_of_one_address_makes_room_by_its_own_connections() -> None:
    site = Site(connections=ConnectionLimits(connections=20, rate=0))
    good = site.connect("192.0.2.2")
    crowd = [site.connect("198.51.100.1") for _ in range(100)]
    assert not good.wire.aborted
    assert crowd[0].closed
    good.ask("GET /good")
    assert good.answer().status == 200


def test_a_crowd_that_is_being_served_makes_room_by_its_newcomers() -> None:
    site = Site(
        lambda request: Deferred() if request.path == "/wait" else Response(), ConnectionLimits(connections=20, rate=0)
    )
    good = site.connect("192.0.2.2")
    for _ in range(100):
        site.connect("198.51.100.1").ask("GET /wait")
    assert site.factory.table.turned_away >= 80
    assert not good.wire.aborted
    good.ask("GET /good")
    assert good.answer().status == 200


def test_slow_connections_make_room_where_none_is_idle() -> None:
    site = Site(connections=ConnectionLimits(connections=3))
    slow = [site.connect() for _ in range(3)]
    for link in slow:
        link.send(b"GET")
    newcomer = site.connect()
    assert [link.closed for link in slow] == [True, False, False]
    newcomer.ask("GET /")
    assert newcomer.answer().status == 200


def test_connections_of_one_address_are_bounded() -> None:
    site = Site(connections=ConnectionLimits(connections_per_address=1))
    first, second, other = site.connect(), site.connect(), site.connect("192.0.2.2")
    assert second.answer().status == 503
    assert second.closed
    for link in (first, other):
        link.ask("GET /")
        assert link.answer().status == 200
    assert site.refused(Reason.TOO_MANY_CONNECTIONS) == 1


def test_a_connection_with_too_many_errors_is_closed() -> None:
    site = Site(lambda request: Response(404))
    link = site.connect()
    for _ in range(REFUSALS_AT_ONCE):
        link.ask("GET /")
        assert link.answer().headers.get("connection") is None
    link.ask("GET /")
    assert link.answer().headers["connection"] == "close"
    assert link.closed


def test_the_end_of_the_listener_answers_what_waits() -> None:
    waiting: Deferred[Response] = Deferred()
    site = Site(lambda request: waiting)
    link, idle = site.connect(), site.connect()
    link.ask("GET /")
    closed = site.factory.close()
    ended = link.answer()
    assert (ended.status, ended.headers["retry-after"]) == (503, "5")
    problem = json.loads(ended.body)
    assert (problem["code"], problem["detail"]) == ("unavailable", "try again later: the listener closes")
    assert link.closed
    assert idle.closed
    assert closed.called


def test_the_address_of_an_operator_disconnects() -> None:
    site = Site()
    link = site.connect()
    assert not site.factory.disconnect("192.0.2.1:1")
    assert site.factory.disconnect(link.protocol.address)
    assert link.closed


def test_a_drain_keeps_connections() -> None:
    site = Site()
    link = site.connect()
    site.factory.drain()
    link.ask("GET /")
    assert link.answer().status == 200
    late = site.connect()
    late.ask("GET /")
    assert late.answer().status == 200


def test_the_transport_of_a_test_is_no_tls() -> None:
    assert not hasattr(StringTransport(), "getPeerCertificate")


@pytest.mark.parametrize(
    "begin",
    [
        [b"GET / HTTP/1.1\r\nHost: h\r\n", *[b"X: y\r\n"] * (DRIPS + 1), b"\r"],
        [b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (SHORT + 2), bytes(SHORT + 1)],
    ],
    ids=["in many small pieces", "with a long body"],
)
def test_a_request_that_arrives_in_many_reads_waits_for_the_rounds(begin: list[bytes]) -> None:
    site = Site()
    slow, good = site.connect(), site.connect()
    for piece in begin:
        slow.send(piece)
        site.turn()
    slow.send(b"\n")
    good.send(b"GET /good HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [each.path for each in site.requests] == ["/good"]
    assert slow.answer().status == 200


def _costly(site: Site) -> Callable[[Request], Response]:
    """Answers of which each takes longer than a quantum."""

    def respond(request: Request) -> Response:
        site.clock.rightNow += 2 * QUANTUM
        return Response(body=b"done")

    return respond


def _crowd(site: Site) -> None:
    """Peers of many addresses, each with more requests in one read than some turns handle."""
    for number in range(20):
        site.connect(f"198.51.100.{number}").send(b"GET /crowd HTTP/1.1\r\nHost: h\r\n\r\n" * 20)


def test_a_peer_whose_one_request_takes_the_quantum_is_read_again_at_once() -> None:
    site = Site()
    site.respond = _costly(site)
    good = site.connect("192.0.2.2")
    _crowd(site)
    for _ in range(3):
        site.clock.turn()
        site.clock.turn()  # the time for immediate service begins again
        assert good.wire.producerState != "paused"
        good.ask("GET /good")
        assert site.requests[-1].path == "/good"


def test_a_peer_whose_answer_came_late_is_read_again_at_once() -> None:
    late: list[Deferred[Response]] = []
    site = Site()
    costly = _costly(site)

    def respond(request: Request) -> Response | Deferred[Response]:
        if request.path != "/late":
            return costly(request)
        late.append(Deferred())
        return late[-1]

    site.respond = respond
    good = site.connect("192.0.2.2")
    _crowd(site)
    for _ in range(3):
        site.clock.turn()
        site.clock.turn()
        good.ask("GET /late")
        late.pop().callback(Response(body=b"now"))
        assert b"now" in good.wire.value()
        good.wire.clear()
        assert good.wire.producerState != "paused"


def test_many_requests_at_once_wait_for_the_rounds() -> None:
    site = Site()
    hasty, good = site.connect(), site.connect()
    hasty.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * (FEW + 1))
    site.turn(2)
    site.requests.clear()
    hasty.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    good.send(b"GET /good HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [each.path for each in site.requests] == ["/good"]
    site.turn()
    hasty.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert len(site.requests) == 3, "one that stops is ordinary again"


def test_the_address_of_a_connection_has_the_brackets_of_ipv6() -> None:
    assert Site().connect("2001:db8::7").protocol.address == "[2001:db8::7]:4000"


def test_a_client_of_a_trusted_proxy_counts_by_its_own_address() -> None:
    site = Site(lambda request: Deferred(), ConnectionLimits(connections_per_address=1), waiting_per_address=1)
    site.factory.turns.proxies.use(["192.0.2.1"])
    links = [site.connect() for _ in range(3)]
    for link, client in zip(links, ("198.51.100.7", "198.51.100.8", "198.51.100.7"), strict=True):
        link.ask("GET /", f"X-Forwarded-For: 203.0.113.1, {client}")
    assert [request.address for request in site.requests] == ["198.51.100.7", "198.51.100.8", "198.51.100.7"]
    assert not any(request.local for request in site.requests)
    assert links[2].answer().status == 503, "the share of its address"
    direct = site.connect("203.0.113.5")
    direct.ask("GET /", "X-Forwarded-For: 198.51.100.9")
    assert site.requests[-1].address == "203.0.113.5"
    assert site.connect("203.0.113.5").answer().status == 503


def test_a_body_counts_for_the_client_behind_a_proxy_before_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(requests=RequestBounds(200_000))
    refused: list[str] = []
    monkeypatch.setattr(site.factory.refusal_log, "add", lambda wire, host, *about, **more: refused.append(host))
    site.factory.turns.proxies.use(["192.0.2.1"])
    link = site.connect()
    link.ask("GET /", "X-Forwarded-For: 198.51.100.7")
    assert link.answer().status == 200
    link.ask("PUT /", "X-Forwarded-For: 198.51.100.8", "Content-Length: 100000")
    link.send(b"x" * 50_000)
    memory = site.factory.memory
    assert [memory.of(host) >= 50_000 for host in ("198.51.100.7", "198.51.100.8")] == [False, True]
    link.send(b"x" * 50_000)
    assert link.answer().status == 200
    link.ask("PUT /", "X-Forwarded-For: 198.51.100.9", "Content-Length: 300000")
    assert link.answer().status == 413
    assert refused == ["198.51.100.9"]
