"""Sessions over HTTP: numbers, waiting, and all the ways to end."""

from __future__ import annotations

import json

import pytest

from broker.core.errors import Reason
from broker.net.admission import STOP_WITHIN
from broker.net.line_protocol import LineProtocol
from broker.wires.elko.transports.long_poll import LongPollSession
from broker.wires.elko.transports.transport_limits import TransportLimits
from broker.wires.elko.transports.virtual_transport import ID_BITS
from tests.net.words import COST
from tests.wires.elko.transports.long_poll_peers import Web
from tests.wires.elko.transports.virtual_links import garbage


@pytest.fixture
def web() -> Web:
    return Web()


# conversations


def test_a_conversation(web: Web) -> None:
    peer = web.start()
    peer.say("hello", "say 1", "say 2")
    assert peer.hear() == [1, 2]
    waiting = peer.wait()
    assert peer.hear(waiting) is None
    peer.say("say 3")
    assert peer.hear(waiting) == [3]
    assert (peer.sent, peer.heard) == (3, 3)
    assert web.hub.words() == ["hello", "say 1", "say 2", "say 3"]


def test_messages_have_the_id_of_their_request_in_whatever_turn_they_are_handled(web: Web) -> None:
    peer = web.start()
    [line] = web.hub.factory.connections
    web.hub.heard.cost = COST
    ids: list[tuple[str, str]] = []
    receive = line.receive

    def received(word: str) -> None:
        ids.append((word, line.request_id))
        receive(word)

    line.receive = received
    many = "\n".join(["word"] * 2_000)
    peer.link.get(f"/xmit/{peer.session}/1", many, "X-Request-ID: one")
    assert 0 < len(ids) < 2_000
    peer.link.request(f"/xmit/{peer.session}/2", "after", "X-Request-ID: two")
    web.hub.clock.pump([0] * 50)
    assert [each for each in ids if each[0]] == [*[("word", "one")] * 2_000, ("after", "two")]
    assert line.request_id == ""


def test_a_form_is_as_good_as_a_body(web: Web) -> None:
    peer = web.start()
    form = "Content-Type: application/x-www-form-urlencoded"
    answer = peer.link.get(f"/xmit/{peer.session}/1", "msg=say+%5B1%5D", form)
    assert answer == {"seqnum": "2"}
    assert peer.hear() == [[1]]


def test_a_body_ends_what_it_leaves_open(web: Web) -> None:
    peer = web.start()
    peer.say("one", "tw")
    peer.say("o")
    assert web.hub.words() == ["one", "tw", "o"]


def test_requests_may_come_on_one_connection_all_at_once(web: Web) -> None:
    peer = web.start()
    pieces = []
    for number, word in enumerate(("say 1", "say 2"), 1):
        pieces.append(f"POST /xmit/{peer.session}/{number} HTTP/1.1\r\nContent-Length: 5\r\n\r\n{word}")
        pieces.append(f"GET /select/{peer.session}/{number} HTTP/1.1\r\n\r\n")
    peer.link.send(*pieces)
    assert [json.loads(text) for _, text in peer.link.responses()] == [
        {"seqnum": "2"},
        {"msgs": [1], "seqnum": "2"},
        {"seqnum": "3"},
        {"msgs": [2], "seqnum": "3"},
    ]


def test_a_select_that_nothing_comes_for_is_answered_in_the_end() -> None:
    web = Web(TransportLimits(http_select_wait=20, http_timeout=5))
    peer = web.start()
    waiting = peer.wait()
    web.hub.pass_seconds(19)
    assert peer.hear(waiting) is None
    web.hub.pass_seconds(2)
    assert (peer.hear(waiting), peer.heard) == ([], 2)
    peer.say("say 1")
    assert peer.hear() == [1]


def test_a_second_select_takes_the_place_of_the_first(web: Web) -> None:
    peer = web.start()
    first, second = peer.wait(), peer.wait()
    assert peer.hear(first) == ["sequenceError"]
    peer.say("say 1")
    assert peer.hear(second) == [1]


def test_what_comes_after_a_select_was_lost_waits_for_the_next(web: Web) -> None:
    peer = web.start()
    peer.wait().lose()
    peer.say("say 1")
    assert peer.hear() == [1]


@pytest.mark.parametrize("number", [0, 2, 99])
def test_numbers_out_of_sequence_are_refused_and_change_nothing(web: Web, number: int) -> None:
    peer = web.start()
    assert peer.link.get(f"/xmit/{peer.session}/{number}", "say 0") == {"error": "sequenceError"}
    assert peer.hear(peer.wait(number)) == ["sequenceError"]
    peer.say("say 1")
    web.hub.later()
    assert peer.hear() == [1]
    assert web.hub.refused(Reason.PARAMETER) == 2


def test_a_session_that_nobody_has(web: Web) -> None:
    link = web.connect()
    for path, body in (("/xmit/123/1", "say 1"), ("/select/123/1", None), ("/disconnect/123", None)):
        assert link.get(path, body) == {"error": "sessionIDError"}
    assert web.hub.words() == []


def test_ids_are_long_and_never_the_same(web: Web) -> None:
    ids = {int(web.start().session) for _ in range(50)}
    assert len(ids) == 50
    assert max(ids).bit_length() > ID_BITS - 10


# ends


def test_a_disconnect_ends_the_session_when_all_is_handled(web: Web) -> None:
    peer = web.start()
    peer.say("say 1")
    assert peer.hear() == [1]
    waiting = peer.wait()
    peer.say(*["word"] * 500)
    assert peer.link.get(f"/disconnect/{peer.session}") == {}
    assert (peer.hear(waiting), peer.heard) == ([], -1)
    assert peer.say("late") == {"error": "sessionIDError"}
    web.hub.clock.pump([0] * 20)
    assert web.hub.words() == ["say 1", *["word"] * 500]
    assert web.hub.sessions[0].losses > 0
    assert not peer.link.wire.disconnecting
    web.quiet()


def test_a_session_without_requests_ends() -> None:
    web = Web(TransportLimits(http_timeout=15))
    peer = web.start()
    web.hub.pass_seconds(14)
    peer.say("hello")
    web.hub.pass_seconds(14)
    assert web.hub.sessions[0].losses == 0
    web.hub.pass_seconds(3)
    assert web.hub.sessions[0].losses == 1
    assert peer.say("late") == {"error": "sessionIDError"}
    assert web.hub.counters.get("test_http", "expired") == 1


def test_a_session_whose_select_waits_is_alive_until_that_is_lost() -> None:
    web = Web(TransportLimits(authenticate_within=0, http_timeout=15, http_select_wait=3_600))
    peer = web.start()
    waiting = peer.wait()
    web.hub.pass_seconds(100)
    assert web.hub.sessions[0].losses == 0
    waiting.lose()
    web.hub.pass_seconds(17)
    assert web.hub.sessions[0].losses == 1


def test_a_session_that_asks_no_more_after_an_answer_ends() -> None:
    web = Web(TransportLimits(http_timeout=15))
    peer = web.start()
    waiting = peer.wait()
    [line] = web.hub.factory.connections
    line.write(b"1\n\n")
    web.hub.later()
    assert peer.hear(waiting) == [1]
    web.hub.pass_seconds(17)
    assert web.hub.sessions[0].losses == 1


def test_a_disconnect_behind_a_select_that_is_displaced_does_no_harm(web: Web) -> None:
    peer = web.start()
    first = peer.wait()
    first.request(f"/disconnect/{peer.session}")
    second = peer.wait()
    web.hub.later()
    assert peer.hear(second) == []
    assert peer.heard == -1
    assert [json.loads(text) for _, text in first.responses()] == [{"error": "sequenceError"}, {}]
    web.quiet()


def test_the_last_words_are_for_the_select_that_waits(web: Web) -> None:
    peer = web.start()
    waiting = peer.wait()
    peer.say("say 1", "close", "say 2")
    assert (peer.hear(waiting), peer.heard) == ([1], 2)
    assert (peer.hear(), peer.heard) == ([], -1)
    web.hub.later()
    assert peer.hear(peer.wait(3)) == ["sessionIDError"]


def test_the_last_words_are_kept_for_the_next_select(web: Web) -> None:
    peer = web.start()
    peer.say("say 1", "close")
    assert peer.say("say 2") == {"error": "sequenceError"}
    assert (peer.hear(), peer.heard) == ([1], -1)
    web.hub.later()
    assert peer.hear(peer.wait(2)) == ["sessionIDError"]
    web.quiet()


def test_the_last_words_are_not_kept_for_ever(web: Web) -> None:
    peer = web.start()
    peer.say("say 1", "close")
    web.hub.pass_seconds(18)
    assert peer.hear() == ["sessionIDError"]


def test_a_session_in_which_nobody_authenticates_is_told_so() -> None:
    web = Web(TransportLimits(authenticate_within=10, http_timeout=100))
    peer = web.start()
    waiting = peer.wait()
    web.hub.pass_seconds(11)
    web.hub.later()
    [(status, text)] = waiting.responses()
    assert (status, "<too-slow-to-authenticate>" in text) == (200, True)
    assert web.hub.refused(Reason.TOO_SLOW_TO_AUTHENTICATE) == 1


# stopping


def test_all_is_closed_in_good_order(web: Web) -> None:
    peer = web.start()
    waiting, idle = peer.wait(), web.connect()
    closed: list[None] = []
    web.factory.close().addCallback(closed.append)
    assert (peer.hear(waiting), peer.heard) == ([], -1)
    web.hub.later()
    assert all(link.wire.disconnecting for link in (peer.link, waiting, idle))
    assert closed == []
    for link in (peer.link, waiting, idle):
        link.lose()
    assert closed == [None]
    web.quiet()


def test_a_session_between_two_selects_may_ask_once_more(web: Web) -> None:
    peer = web.start()
    peer.say("say 1")
    closed: list[None] = []
    web.factory.close().addCallback(closed.append)
    link = peer.wait()
    assert (peer.hear(link), peer.heard) == ([1], -1)
    web.hub.later()
    for each in (peer.link, link):
        each.lose()
    assert closed == [None]


def test_who_does_not_close_is_aborted(web: Web) -> None:
    peer = web.start()
    web.factory.close()
    web.hub.pass_seconds(2 * int(STOP_WITHIN) + 4)
    assert peer.link.wire.aborted


def test_an_ended_session_leaves_nothing_for_the_garbage_collector(web: Web) -> None:
    def run() -> None:
        for end in ("close", "hello", "??"):
            peer = web.start()
            waiting = peer.wait()
            peer.say(end)
            web.hub.later()
            peer.link.lose()
            waiting.lose()
        peer = web.start()
        peer.link.get(f"/disconnect/{peer.session}")
        peer.link.lose()
        web._links.clear()
        web.hub.sessions.clear()
        web.hub.pass_seconds(100)

    assert garbage(run, LongPollSession, LineProtocol) == []


def test_a_stop_does_not_wait_for_a_session_that_is_to_be_told_nothing(web: Web) -> None:
    peer = web.start()
    closed: list[None] = []
    web.factory.close().addCallback(closed.append)
    peer.link.lose()
    web.hub.pass_seconds(1)
    assert closed == [None]
    web.quiet()
