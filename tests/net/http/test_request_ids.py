"""Ids of requests: of the client or of the listener, in answers of every kind, and in log lines."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from broker.core.errors import Reason, Refusal
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.request import RequestBounds
from broker.rest.messages import MAX_ID, Request, Response
from tests.net.http.http_peers import Site
from tests.net.http.test_streams import Feed

UUID = "1f6bd0c4-5f0e-4b5a-9f1c-0a3d6f1f2b11"


@pytest.mark.parametrize("given", [UUID, "a", "00-4bf92f3577b34da6_a.b", "x" * MAX_ID])
def test_an_id_of_the_client_is_in_the_request_and_in_its_answer(given: str) -> None:
    site = Site()
    link = site.connect()
    link.ask("GET /", f"x-request-id: {given}")
    assert link.answer().headers["x-request-id"] == given
    assert [each.id for each in site.requests] == [given]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["X-Request-ID:"],
        ["X-Request-ID: " + "x" * (MAX_ID + 1)],
        ["X-Request-ID: a b"],
        ["X-Request-ID: a\tb"],
        ["X-Request-ID: a/b"],
        ["X-Request-ID: [x]"],
        ["X-Request-ID: \xe9"],
        ["X-Request-ID: a", "X-Request-ID: b"],
    ],
)
def test_without_a_good_id_the_listener_makes_one(lines: list[str]) -> None:
    site = Site()
    link = site.connect()
    link.ask("GET /1", *lines)
    link.ask("GET /2", *lines)
    site.turn(3)
    assert [each.headers["x-request-id"] for each in link.answers()] == ["start-1", "start-2"]
    assert [each.id for each in site.requests] == ["start-1", "start-2"]


def test_the_id_of_one_request_is_not_that_of_the_next() -> None:
    site = Site()
    link = site.connect()
    link.ask("GET /", "X-Request-ID: mine")
    link.ask("GET /")
    site.turn(3)
    assert [each.headers["x-request-id"] for each in link.answers()] == ["mine", "start-1"]


def test_a_refused_query_has_its_id_in_the_problem() -> None:
    link = Site().connect()
    link.ask("GET /?x=%FF", "X-Request-ID: mine")
    answer = link.answer()
    assert (answer.status, answer.headers["x-request-id"]) == (400, "mine")
    assert json.loads(answer.body)["request_id"] == "mine"


def test_a_body_over_the_limit_is_refused_with_the_id() -> None:
    link = Site(requests=RequestBounds(body=10)).connect()
    link.send(b"POST / HTTP/1.1\r\nHost: h\r\nX-Request-ID: mine\r\nContent-Length: 11\r\n\r\n")
    answer = link.answer()
    assert (answer.status, answer.headers["x-request-id"], json.loads(answer.body)["request_id"]) == (
        413,
        "mine",
        "mine",
    )


def test_input_that_is_no_request_is_refused_with_an_id() -> None:
    link = Site().connect()
    link.send(b"what is this\r\n\r\n")
    answer = link.answer()
    assert (answer.status, answer.headers["x-request-id"], json.loads(answer.body)["request_id"]) == (
        400,
        "start-1",
        "start-1",
    )


def test_a_connection_over_the_limit_is_refused_with_an_id() -> None:
    site = Site(connections=ConnectionLimits(connections_per_address=1))
    site.connect()
    answer = site.connect().answer()
    assert (answer.status, answer.headers["x-request-id"]) == (503, "start-1")


def test_a_stream_has_the_id_in_its_head() -> None:
    link = Site(Feed().respond).connect()
    link.ask("GET /", "X-Request-ID: mine")
    assert b"\r\nx-request-id: mine\r\n" in link.raw().lower()


def test_the_answer_to_an_upgrade_has_the_id() -> None:
    link = Site(Feed().respond).connect()
    upgrade = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    link.ask("GET /", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "X-Request-ID: mine")
    head = link.raw().partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 101 ")
    assert b"\r\nx-request-id: mine" in head


# log lines


def test_what_a_request_causes_is_logged_with_its_id() -> None:
    site = Site()
    seen: list[str] = []

    def respond(request: Request) -> Response:
        seen.append(site.factory.turns.request_id)
        return Response()

    site.respond = respond
    site.connect().ask("GET /", "X-Request-ID: mine")
    assert seen == ["mine"]
    assert site.factory.turns.request_id == ""


def test_a_late_failure_is_logged_with_its_id() -> None:
    waiting: Deferred[Response] = Deferred()
    site = Site(lambda request: waiting)
    link = site.connect()
    link.ask("GET /", "X-Request-ID: mine")
    with capturedLogs() as events:
        waiting.errback(ZeroDivisionError())
    assert [event["request_id"] for event in events] == ["mine"]
    answer = link.answer()
    assert (answer.status, json.loads(answer.body)["request_id"]) == (500, "mine")


def test_a_refusal_outside_a_quantum_is_logged_with_its_id() -> None:
    site = Site()
    with capturedLogs() as events:
        site.factory.refusal_log.add("http", "192.0.2.1", Refusal(Reason.LIMIT, "full"), request_id="mine")
        site.factory.refusal_log.add("http", "192.0.2.2", Refusal(Reason.LIMIT, "full"))
    assert [event.get("request_id") for event in events] == ["mine", None]
