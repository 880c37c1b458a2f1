"""Connections: order of reads and writes, orderly close, and limits of each peer.

The file is longer than others: it has all tests of `broker.net.line_protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol, IPushProducer
from twisted.logger import LogLevel, capturedLogs
from zope.interface.verify import verifyObject

from broker.core.errors import Malformed, Reason
from broker.core.memory_budget import BY_ADDRESS, SHORT
from broker.core.place_table import RECENT
from broker.net.admission import STOP_WITHIN
from broker.net.connection import CLOSE_WITHIN, HALF_CLOSED
from broker.net.connection_limits import ConnectionLimits
from broker.net.connection_output import BATCH
from broker.net.line_protocol import DEBUG_AT_ONCE, MAX_OPENING, LineProtocol
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.refusal_log import MAX_SHOWN, REFUSALS_AT_ONCE
from broker.net.scheduler import TURN
from tests.net.holders import Holding
from tests.net.words import ALONE, COST, SHARE, Hub, Link, WordReader, WordSession


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def link(hub: Hub) -> Link:
    return hub.connect()


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def fired(deferred: Deferred[None]) -> list[None]:
    """A list that is no longer empty when it has fired."""
    results: list[None] = []
    deferred.addCallback(results.append)
    return results


# web pages


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_request_of_a_browser_is_turned_away_and_nothing_in_it_is_taken(hub: Hub, link: Link, method: str) -> None:
    link.protocol.dataReceived(f"{method} / HTTP/1.1\r\nHost: here\r\n\r\nsay hello\n".encode())
    [answer] = link.take()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert link.wire.half_closed
    assert hub.words() == []
    assert link.session.losses == 1


@pytest.mark.parametrize("request_line", ["FOO /{} HTTP/1.1", "patch / http/1.0", "GET /", "x HTTP/9"])
def test_no_request_is_taken_whatever_its_method_and_however_it_comes(hub: Hub, request_line: str) -> None:
    data = f"{request_line}\r\nHost: here\r\n\r\nsay hello\n".encode()
    for at in range(1, len(data)):
        link = hub.connect()
        link.protocol.dataReceived(data[:at])
        link.protocol.dataReceived(data[at:])
        assert b"".join(link.take()).startswith(b"HTTP/1.1 400 ")
        assert link.wire.half_closed
    assert hub.words() == []


def test_the_bytes_of_a_tls_handshake_close(hub: Hub, link: Link) -> None:
    link.protocol.dataReceived(b"\x16\x03\x01\x02\nsay hello\n")
    assert (hub.words(), link.wire.half_closed, hub.refused(Reason.SYNTAX)) == ([], True, 1)


def test_a_first_line_that_never_ends_closes(hub: Hub, link: Link) -> None:
    link.protocol.dataReceived(b"x" * MAX_OPENING)
    assert not link.wire.half_closed
    link.protocol.dataReceived(b"x")
    assert link.wire.half_closed


def test_a_first_line_may_come_in_pieces(hub: Hub, link: Link) -> None:
    for piece in ("", "\n", " sa", "y he", "llo\nsay more\n"):
        link.protocol.dataReceived(piece.encode())
    assert hub.words() == ["", " say hello", "say more"]


def test_the_name_of_a_method_is_a_word_like_others_later_on(hub: Hub, link: Link) -> None:
    link.send("POSTCARD", "GET well")
    assert hub.words() == ["POSTCARD", "GET well"]


# connecting


def test_it_is_what_the_transport_asks_for(link: Link) -> None:
    assert verifyObject(IHalfCloseableProtocol, link.protocol)
    assert verifyObject(IPushProducer, link.protocol)
    assert link.wire.producer is link.protocol
    assert link.wire.streaming


@pytest.mark.parametrize(
    ("address", "shown", "local"),
    [
        (IPv4Address("TCP", "192.0.2.1", 5), "192.0.2.1:5", False),
        (IPv4Address("TCP", "127.0.0.1", 5), "127.0.0.1:5", True),
        (IPv4Address("TCP", "127.9.9.9", 5), "127.9.9.9:5", True),
        (IPv4Address("TCP", "12.7.0.1", 5), "12.7.0.1:5", False),
        (IPv6Address("TCP", "::1", 5), "[::1]:5", True),
        (IPv6Address("TCP", "::ffff:127.0.0.1", 5), "127.0.0.1:5", True),
        (IPv6Address("TCP", "2001:db8::1", 5), "[2001:db8::1]:5", False),
        (IPv6Address("TCP", "::11", 5), "[::11]:5", False),
        (UNIXAddress(None), "unix", True),
        (UNIXAddress("/run/x"), "unix", True),
    ],
)
def test_where_a_peer_comes_from(hub: Hub, address: IAddress, shown: str, local: bool) -> None:
    link = hub.connect(address=address)
    assert (link.protocol.address, link.protocol.local) == (shown, local)


# reading and writing


def test_messages_come_in_order_over_all_reads(hub: Hub, link: Link) -> None:
    link.protocol.dataReceived(b"a\nb\nc")
    link.protocol.dataReceived(b"d")
    link.protocol.dataReceived(b"\n")
    assert hub.words() == ["a", "b", "cd"]


def test_the_answers_to_one_read_are_one_write(link: Link) -> None:
    link.send(*(f"say {number};" for number in range(10)))
    assert link.take() == [b"0;1;2;3;4;5;6;7;8;9;"]
    link.send("nothing")
    assert link.take() == []


def test_much_output_is_written_while_it_comes_and_ends_the_quantum(hub: Hub, link: Link) -> None:
    link.send(f"big {BATCH - 1}", "say a", "say b", f"big {BATCH}", "say c")
    assert [len(data) for data in link.take()] == [BATCH]
    assert not link.wire.reading
    hub.later()
    assert [len(data) for data in link.take()] == [BATCH + 1, 1]
    assert link.wire.reading


def test_notices_of_one_turn_are_one_write(hub: Hub, link: Link) -> None:
    other = hub.connect()
    for data in (b"a", b"b", b"c"):
        link.protocol.write(data)
        other.protocol.write(data)
    assert link.take() == []
    hub.later()
    assert link.take() == [b"abc"]
    assert other.take() == [b"abc"]
    link.protocol.write(b"d")
    hub.later()
    assert link.take() == [b"d"]
    assert hub.clock.getDelayedCalls() == []


def test_many_notices_are_written_in_batches_in_the_next_turn(hub: Hub, link: Link) -> None:
    count = 3 * BATCH // 1_000
    for number in range(count):
        link.protocol.write(b"%03d" % number + b"n" * 997)
    assert link.take() == []
    hub.later()
    written = link.take()
    assert all(len(data) <= 2 * BATCH for data in written)
    assert [data[:3] for part in written for data in _cut(part, 1_000)] == [b"%03d" % n for n in range(count)]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_what_a_peer_does_not_read_stays_in_pieces(link: Link) -> None:
    link.protocol.pauseProducing()
    for _ in range(BATCH // 100):
        link.protocol.write(b"n" * 1_000)
    link.protocol.resumeProducing()
    first, *rest = link.take()
    assert BATCH <= len(first) < BATCH + 1_000
    assert sum(map(len, rest)) + len(first) == BATCH // 100 * 1_000


def test_a_costly_message_without_an_answer_ends_the_quantum(hub: Hub, link: Link) -> None:
    hub.clock.tick = TURN
    link.send("one", "two", "say three", "four")
    hub.clock.tick = 0
    assert hub.words() == ["one"]
    hub.later()
    assert hub.words() == ["two", "say three", "four"]


def test_notices_before_an_answer_go_out_before_it(hub: Hub, link: Link) -> None:
    link.protocol.write(b"notice ")
    link.send("say answer")
    assert link.take() == [b"notice answer"]
    hub.later()
    assert link.take() == []


# fairness


def test_a_quantum_is_handled_at_once_and_the_rest_in_turns(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE * 2 + 10))
    assert hub.words() == numbers(ALONE)
    assert not link.wire.reading
    hub.later()
    assert hub.words() == numbers(ALONE, ALONE)
    hub.later()
    assert hub.words() == numbers(10, ALONE * 2)
    assert link.wire.reading
    assert hub.clock.getDelayedCalls() == []


def test_exactly_a_quantum_is_all(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE))
    assert hub.words() == numbers(ALONE)
    for _ in range(2):
        hub.later()
    assert link.wire.reading
    assert hub.clock.getDelayedCalls() == []
    link.send("more")
    assert hub.words() == ["more"]


def test_the_output_of_each_quantum_is_one_write(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*(["say x"] * (ALONE * 3)))
    for _ in range(3):
        hub.later()
    assert link.take() == [b"x" * ALONE] * 3


def test_connections_with_much_to_do_take_turns_quantum_by_quantum(hub: Hub) -> None:
    hub.heard.cost = COST
    links = [hub.connect(port=port) for port in (1, 2, 3)]
    for link in links:
        link.send(*numbers(ALONE * 3))
    hub.words()
    hub.later()
    rounds = [(address[-1], len(list(words))) for address, words in groupby(hub.heard, lambda heard: heard[0])]
    assert rounds == [("1", SHARE), ("2", SHARE), ("3", SHARE), ("1", SHARE), ("2", SHARE)]


def test_a_peer_that_sends_little_is_answered_at_once(hub: Hub) -> None:
    hub.heard.cost = COST
    for port in range(20):
        hub.connect(port=port).send(*numbers(ALONE * 50))
    polite = hub.connect(port=99)
    polite.send("say hello")
    assert polite.take() == [b"hello"]


def test_a_turn_ends_in_time_however_much_there_is_to_do(hub: Hub) -> None:
    hub.heard.cost = COST
    for port in range(50):
        hub.connect(port=port).send(*numbers(ALONE * 4 + 1))
    handled = len(hub.words())
    while hub.turns.busy:
        hub.later()
        in_turn = len(hub.words())
        assert 0 < in_turn <= TURN / COST + SHARE + 1
        handled += in_turn
    assert handled == (ALONE * 4 + 1) * 50


def test_a_peer_that_was_served_before_comes_before_new_ones(hub: Hub) -> None:
    """On a listener without authentication a thousand reconnecting peers would be as ordinary as a connected one."""
    links = [hub.connect(port=port) for port in range(1, 5)]
    for link in links:
        link.protocol.authenticated()
    *new, old = links
    old.send("served")
    hub.heard.cost = TURN
    for link in (*new, old):
        link.send("again")
    hub.heard.cost = 0
    hub.later()
    assert [address[-1] for address, _ in hub.heard] == ["4", "1", "4", "2", "3"]


def test_what_arrives_although_reading_was_stopped_is_kept_in_order(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE + 1))
    link.protocol.dataReceived(b"late")
    link.protocol.dataReceived(b"r\nlast\n")
    assert hub.words() == numbers(ALONE)
    hub.later()
    assert hub.words() == [str(ALONE), "later", "last"]
    assert link.wire.reading


@pytest.mark.parametrize("goodbye", ["close", "lose"])
def test_what_is_still_to_be_handled_is_dropped_with_the_connection(hub: Hub, link: Link, goodbye: str) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE + 5))
    link.protocol.dataReceived(b"held\n")
    link.protocol.close() if goodbye == "close" else link.lose()
    hub.words()
    hub.later()
    assert hub.words() == []


def test_the_steps_of_a_message_come_before_the_next_one_and_its_turn_may_end_after_each(hub: Hub) -> None:
    long, short = hub.connect(port=1), hub.connect(port=2)
    hub.heard.cost = 2 * TURN
    long.send("steps 3", "after")
    short.send("word")
    words = hub.words()
    while hub.clock.getDelayedCalls():
        hub.later()
        words += hub.words()
    assert [each for each in words if each != "word"] == ["steps 3", "step 0", "step 1", "step 2", "after"]
    assert words.index("word") < words.index("step 1")
    assert long.wire.reading


@pytest.mark.parametrize("goodbye", ["close", "lose"])
def test_the_steps_that_are_left_are_discarded_with_the_connection(hub: Hub, link: Link, goodbye: str) -> None:
    hub.heard.cost = TURN
    link.send("steps 3", "after")
    link.protocol.close() if goodbye == "close" else link.lose()
    hub.words()
    hub.later()
    assert hub.words() == []


# peers that do not read


def test_while_it_does_not_read_nothing_of_it_is_handled_or_read(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE + 5))
    link.stall()
    hub.words()
    for _ in range(3):
        hub.later()
    assert hub.words() == []
    assert not link.wire.reading
    link.drain()
    hub.later()
    assert hub.words() == numbers(5, ALONE)
    assert link.wire.reading


def test_it_stops_at_the_message_whose_answer_was_too_much(hub: Hub, link: Link) -> None:
    link.wire.full_at = BATCH
    link.send("a", f"big {BATCH}", "b", "c")
    assert hub.words() == ["a", f"big {BATCH}"]
    assert not link.wire.reading
    link.drain()
    hub.later()
    assert hub.words() == ["b", "c"]
    assert link.wire.reading


def test_it_is_behind_while_it_has_much_to_read(hub: Hub, link: Link) -> None:
    link.send("a")
    link.protocol.write(b"b")
    assert not link.protocol.behind
    link.protocol.write(b"x" * BATCH)
    assert link.protocol.behind
    hub.later()
    assert not link.protocol.behind
    link.stall()
    assert link.protocol.behind
    link.drain()
    assert not link.protocol.behind


def test_what_it_must_be_told_meanwhile_is_kept_and_told_when_it_reads(hub: Hub, link: Link) -> None:
    link.stall()
    for data in (b"a", b"b"):
        link.protocol.write(data)
        hub.later()
    assert link.take() == []
    link.drain()
    assert link.take() == [b"ab"]
    assert link.wire.reading


def test_over_the_bound_it_is_disconnected(link: Link) -> None:
    hub = Hub(ConnectionLimits(write_buffer=1_000))
    link, other = hub.connect(port=1), hub.connect(port=2)
    link.stall()
    link.protocol.write(b"n" * 1_000)
    assert not link.wire.aborted
    link.protocol.write(b"n")
    assert link.wire.aborted
    assert hub.refused(Reason.NOT_READING) == 1
    other.protocol.write(b"n" * 2_000)
    hub.later()
    assert other.take() == [b"n" * 2_000], "one that reads has no such bound"
    assert not other.wire.aborted


def test_it_is_counted_once() -> None:
    hub = Hub(ConnectionLimits(write_buffer=1_000))
    link = hub.connect()
    link.stall()
    for _ in range(10):
        link.protocol.write(b"n" * 1_000)
    link.lose()
    assert hub.refused(Reason.NOT_READING) == 1


def test_the_bound_counts_from_nothing_after_it_has_read(hub: Hub) -> None:
    hub = Hub(ConnectionLimits(write_buffer=1_000))
    link = hub.connect()
    for _ in range(5):
        link.stall()
        link.protocol.write(b"n" * 900)
        link.drain()
    assert not link.wire.aborted


def test_one_that_reads_nothing_for_a_time_is_disconnected() -> None:
    hub = Hub(ConnectionLimits(stalled_after=5))
    link = hub.connect()
    link.stall()
    hub.pass_seconds(4)
    assert not link.wire.aborted
    hub.pass_seconds(2)
    assert link.wire.aborted
    assert hub.refused(Reason.NOT_READING) == 1


@pytest.mark.parametrize("other", [5, 12])
def test_another_time_without_progress_counts_for_present_peers(other: int) -> None:
    hub = Hub(ConnectionLimits(stalled_after=9))
    link = hub.connect()
    link.stall()
    hub.pass_seconds(2)
    hub.factory.limit(ConnectionLimits(stalled_after=other))
    hub.pass_seconds(other - 3)
    assert not link.wire.aborted
    hub.pass_seconds(2)
    assert link.wire.aborted
    assert hub.refused(Reason.NOT_READING) == 1


def test_one_that_reads_in_time_is_not() -> None:
    hub = Hub(ConnectionLimits(authenticate_within=0, stalled_after=5))
    link = hub.connect()
    for _ in range(5):
        link.stall()
        hub.pass_seconds(4)
        link.drain()
        hub.pass_seconds(4)
    assert not link.wire.aborted


# closing


def test_a_close_sends_what_is_left_then_the_end_and_waits_for_the_peers(hub: Hub, link: Link) -> None:
    link.protocol.write(b"notice ")
    link.send("say last", "close", "say never")
    assert link.take() == [b"notice last"]
    assert link.wire.half_closed
    assert not link.wire.disconnecting
    assert link.session.losses == 1
    assert hub.words() == ["say last", "close"]
    link.send("say never")
    link.protocol.write(b"never")
    hub.later()
    assert (link.take(), hub.words()) == ([], [])
    link.protocol.writeConnectionLost()
    link.protocol.readConnectionLost()
    assert link.wire.disconnecting
    link.lose()
    hub.pass_seconds(60)
    assert not link.wire.aborted
    assert hub.factory.connections == set()
    assert hub.clock.getDelayedCalls() == []


def test_a_second_close_is_none(link: Link) -> None:
    link.protocol.close()
    link.protocol.close()
    assert link.session.losses == 1


def test_a_peer_that_does_not_close_is_cut_off(hub: Hub, link: Link) -> None:
    link.protocol.close()
    link.protocol.writeConnectionLost()
    hub.pass_seconds(int(CLOSE_WITHIN) - 1)
    assert not link.wire.aborted
    hub.pass_seconds(3)
    assert link.wire.aborted


def test_a_peer_that_does_not_read_the_last_words_is_cut_off() -> None:
    hub = Hub(ConnectionLimits(stalled_after=5))
    link = hub.connect()
    link.stall()
    link.protocol.close()
    hub.pass_seconds(4)
    assert not link.wire.aborted
    hub.pass_seconds(3)
    assert link.wire.aborted


def test_a_close_while_reading_was_stopped_reads_on_to_see_the_peers_end(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE + 5))
    assert not link.wire.reading
    link.protocol.close()
    assert link.wire.reading


def test_a_close_of_a_peer_that_does_not_read_sends_what_was_kept(link: Link) -> None:
    link.stall()
    link.protocol.write(b"last")
    link.protocol.close()
    assert link.take() == [b"last"]
    assert link.wire.half_closed


def test_a_transport_that_cannot_end_its_output_alone_is_closed() -> None:
    link = Hub(half_close=False).connect()
    link.send("say last", "close")
    assert link.take() == [b"last"]
    assert link.wire.disconnecting
    assert not link.wire.half_closed


def test_a_lost_connection_is_forgotten(hub: Hub, link: Link) -> None:
    link.protocol.write(b"notice")
    link.stall()
    link.lose()
    assert link.session.losses == 1
    assert hub.factory.connections == set()
    link.protocol.write(b"never")
    hub.later()
    hub.pass_seconds(100)
    assert link.take() == []
    assert not link.wire.aborted
    assert hub.clock.getDelayedCalls() == []


# the end of input


def test_the_end_of_input_closes_after_all_was_answered(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*["say x"] * (ALONE + 5))
    link.protocol.readConnectionLost()
    assert link.session.ends == 0
    hub.later()
    assert b"".join(link.take()) == b"x" * (ALONE + 5)
    assert link.session.ends == 1
    assert link.wire.disconnecting


def test_who_expects_an_answer_gets_it(hub: Hub, link: Link) -> None:
    link.send("wait")
    link.protocol.readConnectionLost()
    assert not link.wire.disconnecting
    hub.pass_seconds(int(HALF_CLOSED) - 1)
    link.protocol.write(b"answer")
    link.protocol.close()
    assert link.take() == [b"answer"]
    assert link.wire.disconnecting


def test_but_not_for_ever(hub: Hub, link: Link) -> None:
    link.send("wait")
    link.protocol.readConnectionLost()
    hub.pass_seconds(int(HALF_CLOSED) + 2)
    assert link.wire.disconnecting


def test_nor_longer_because_it_reads_slowly(hub: Hub, link: Link) -> None:
    link.send("wait")
    link.protocol.readConnectionLost()
    for _ in range(int(HALF_CLOSED) // 10 + 1):
        link.stall()
        hub.pass_seconds(5)
        link.drain()
        hub.pass_seconds(5)
    assert link.session.ends == 1
    assert link.wire.disconnecting


def test_the_end_of_input_of_one_that_does_not_read_waits_until_its_messages_were_handled(hub: Hub, link: Link) -> None:
    hub.heard.cost = COST
    link.send(*numbers(ALONE + 5))
    link.stall()
    link.protocol.readConnectionLost()
    hub.later()
    assert link.session.ends == 0
    link.drain()
    hub.later()
    assert link.session.ends == 1
    assert hub.words() == numbers(ALONE + 5)


# who is refused too much


def test_who_is_refused_too_much_is_closed(hub: Hub, link: Link) -> None:
    for _ in range(REFUSALS_AT_ONCE):
        link.send("?")
        hub.later()
    assert not link.wire.half_closed
    link.send("?", "never")
    hub.later()
    assert link.wire.half_closed
    assert hub.words() == []
    assert hub.refused(Reason.SYNTAX) == REFUSALS_AT_ONCE + 1


def test_a_few_refusals_a_second_are_borne(hub: Hub, link: Link) -> None:
    for _ in range(60):
        for _ in range(10):
            link.send("bad")
        hub.pass_seconds(1)
    assert not link.wire.half_closed


def test_one_line_a_minute_is_logged(hub: Hub) -> None:
    links = [hub.connect(port=port) for port in range(5)]
    with capturedLogs() as logs:
        for link in links:
            link.send("bad", "bad", "?")
    assert sorted(str(event["reason"]) for event in logs) == ["parameter", "syntax"]
    assert hub.refused(Reason.PARAMETER) == 10


def test_what_is_fatal_closes(hub: Hub, link: Link) -> None:
    link.send("??", "never")
    assert link.take() == [b"<encoding>"]
    assert link.wire.half_closed
    assert hub.words() == []


# defects


def test_a_message_that_makes_the_broker_fail_costs_itself(hub: Hub, link: Link) -> None:
    with capturedLogs() as logs:
        link.send("fail", "say on")
    assert link.take() == [b"<internal>on"]
    assert hub.refused(Reason.INTERNAL) == 1
    [failure] = [event for event in logs if event["log_level"] is LogLevel.critical]
    assert failure["log_failure"].type is ZeroDivisionError
    assert failure["address"] == "192.0.2.1"


def test_so_does_one_that_cannot_be_read(hub: Hub) -> None:
    class Failing(WordSession):
        def malformed(self, malformed: Malformed) -> None:
            raise ZeroDivisionError("as it is meant to")

    def converse(peer: LineProtocol) -> tuple[MessageReader, PeerSession]:
        return WordReader(), Failing(peer, [])

    link = Hub(converse=converse).connect()
    with capturedLogs() as logs:
        link.send("?", "say on")
    assert link.take() == [b"<internal>on"]
    assert len([event for event in logs if event["log_level"] is LogLevel.critical]) == 1


def test_a_reader_that_fails_costs_its_connection_and_not_the_others(hub: Hub) -> None:
    class Failing(WordReader):
        def feed(self, data: bytes) -> Iterator[str | Malformed]:
            for word in super().feed(data):
                if word == "break":
                    raise ZeroDivisionError("as it is meant to")
                yield word

    heard: list[tuple[str, str]] = []
    hub = Hub(converse=lambda peer: (Failing(), WordSession(peer, heard)))
    bad, good = hub.connect(port=1), hub.connect(port=2)
    with capturedLogs():
        bad.send(*numbers(ALONE + 1), "break", "x")
        good.send(*numbers(ALONE + 5))
        for _ in range(5):
            hub.later()
    assert bad.wire.aborted
    assert [word for address, word in heard if address.endswith(":2")] == numbers(ALONE + 5)


# the log


def test_a_debug_line_is_logged_and_cut(link: Link) -> None:
    with capturedLogs() as logs:
        link.send("debug " + "x" * (SHORT - 10))
    [event] = logs
    assert event["log_level"] is LogLevel.info
    assert event["text"] == "x" * MAX_SHOWN
    assert (event["label"], event["address"]) == ("me", "192.0.2.1:4000")


def test_debug_lines_are_bounded_and_those_above_are_counted(hub: Hub, link: Link) -> None:
    with capturedLogs() as logs:
        for _ in range(DEBUG_AT_ONCE + 7):
            link.send("debug x")
    assert len(logs) == DEBUG_AT_ONCE
    assert hub.counters.get("test_debug", "not-logged") == 7
    hub.pass_seconds(1)
    with capturedLogs() as logs:
        link.send("debug x")
    assert len(logs) == 1


# time to authenticate


def test_who_does_not_say_who_it_is_in_time_is_closed() -> None:
    hub = Hub(ConnectionLimits(authenticate_within=5))
    stranger, known = hub.connect(port=1), hub.connect(port=2)
    known.send("hello")
    hub.pass_seconds(4)
    assert not stranger.wire.half_closed
    hub.pass_seconds(2)
    assert stranger.take() == [b"<too-slow-to-authenticate>"]
    assert stranger.wire.half_closed
    hub.pass_seconds(60)
    assert not known.wire.half_closed
    assert hub.refused(Reason.TOO_SLOW_TO_AUTHENTICATE) == 1


def test_talking_is_not_authenticating() -> None:
    hub = Hub(ConnectionLimits(authenticate_within=5))
    link = hub.connect()
    for _ in range(6):
        link.send("say x")
        hub.pass_seconds(1)
    assert link.wire.half_closed


@pytest.mark.parametrize("other", [4, 8])
def test_another_time_to_authenticate_counts_for_present_peers(other: int) -> None:
    hub = Hub(ConnectionLimits(authenticate_within=5))
    stranger, known = hub.connect(port=1), hub.connect(port=2)
    known.send("hello")
    hub.pass_seconds(2)
    hub.factory.limit(ConnectionLimits(authenticate_within=other))
    hub.pass_seconds(other - 3)
    assert not stranger.wire.half_closed
    hub.pass_seconds(1)
    assert stranger.take() == [b"<too-slow-to-authenticate>"]
    hub.pass_seconds(60)
    assert not known.wire.half_closed


def test_without_a_time_one_may_take_it(hub: Hub, link: Link) -> None:
    hub.pass_seconds(1_000)
    assert not link.wire.half_closed


def test_who_is_being_closed_is_not_too_slow() -> None:
    hub = Hub(ConnectionLimits(authenticate_within=5))
    link = hub.connect()
    hub.pass_seconds(4)
    link.send("??")
    hub.pass_seconds(1)
    assert hub.refused(Reason.ENCODING) == 1
    assert hub.refused(Reason.TOO_SLOW_TO_AUTHENTICATE) == 0


# how many, and how often


def test_at_the_limit_the_oldest_peer_that_has_not_authenticated_gives_way() -> None:
    hub = Hub(ConnectionLimits(connections=3, authenticate_within=0))
    known, oldest, younger = hub.connect(), hub.connect(), hub.connect()
    known.send("hello")
    newcomer = hub.connect()
    assert oldest.take() == [b"<too-many-connections>"]
    assert oldest.wire.half_closed
    for link in (known, younger, newcomer):
        link.send("say x")
        assert link.take() == [b"x"]
    assert hub.counters.get("test_accept", "displaced") == 1


def test_of_peers_that_have_authenticated_the_longest_idle_one_that_waits_for_nothing_gives_way() -> None:
    hub = Hub(ConnectionLimits(connections=4, authenticate_within=0))
    links = [hub.connect() for _ in range(4)]
    for link in links:
        link.send("hello")
    links[0].send("wait")
    hub.pass_seconds(1)
    links[1].send("say x")
    hub.connect()
    assert [link.wire.half_closed for link in links] == [False, False, True, False]


def test_a_newcomer_is_refused_where_all_peers_are_needed() -> None:
    hub = Hub(ConnectionLimits(connections=2, authenticate_within=0))
    links = [hub.connect() for _ in range(2)]
    for link in links:
        link.send("hello", "wait")
    newcomer = hub.connect()
    assert newcomer.take() == [b"<too-many-connections>"]
    assert newcomer.wire.half_closed
    assert not any(link.wire.half_closed for link in links)
    assert hub.counters.get("test_accept", "refused") == 1
    assert "new ones are refused" in hub.factory.table.trouble
    hub.pass_seconds(int(RECENT))
    assert hub.factory.table.trouble == ""
    links[0].lose()
    assert not hub.connect().wire.half_closed


def test_the_place_of_a_connection_that_closes_is_free_at_once() -> None:
    hub = Hub(ConnectionLimits(connections=1))
    first = hub.connect()
    first.send("close")
    second = hub.connect()
    assert not second.wire.half_closed
    assert hub.counters.get("test_accept", "displaced") == 0


def test_a_limit_that_was_raised_counts() -> None:
    hub = Hub(ConnectionLimits(connections=1))
    first = hub.connect()
    hub.factory.limit(ConnectionLimits(connections=2))
    second = hub.connect()
    assert not first.wire.half_closed
    hub.factory.limit(ConnectionLimits(connections=1))
    third = hub.connect()
    assert [link.wire.half_closed for link in (first, second, third)] == [True, False, False]


def test_an_address_that_connects_too_often_is_turned_away_and_told() -> None:
    hub = Hub(ConnectionLimits(rate=1, burst=2))
    assert [hub.connect(host="192.0.2.1").wire.half_closed for _ in range(2)] == [False, False]
    away = hub.connect(host="192.0.2.1")
    assert away.take() == [b"<too-many-connections>"]
    assert away.wire.half_closed
    away.send("say x")
    assert hub.words() == []
    assert not hub.connect(host="192.0.2.2").wire.half_closed
    assert hub.refused(Reason.TOO_MANY_CONNECTIONS) == 1
    hub.pass_seconds(1)
    assert not hub.connect(host="192.0.2.1").wire.half_closed
    assert hub.connect(host="192.0.2.1").wire.half_closed


@pytest.mark.parametrize(
    "address", [IPv4Address("TCP", "127.0.0.1", 5), IPv6Address("TCP", "::1", 5), UNIXAddress(None)]
)
def test_this_machine_may_connect_as_often_as_it_likes(address: IAddress) -> None:
    hub = Hub(ConnectionLimits(rate=1, burst=1))
    assert not any(hub.connect(address=address).wire.half_closed for _ in range(10))


def test_without_a_rate_so_may_all() -> None:
    hub = Hub(ConnectionLimits(rate=0, burst=1))
    assert not any(hub.connect().wire.half_closed for _ in range(10))


def test_an_address_has_so_many_connections_and_further_ones_are_refused() -> None:
    hub = Hub(ConnectionLimits(connections_per_address=2))
    first, _ = hub.connect(port=1), hub.connect(port=2)
    for port in (3, 4):
        away = hub.connect(port=port)
        assert away.take() == [b"<too-many-connections>"]
        assert away.wire.half_closed
    assert hub.refused(Reason.TOO_MANY_CONNECTIONS) == 2
    assert not hub.connect(host="192.0.2.2").wire.half_closed
    first.lose()  # those that were turned away do not count, although they are still closing
    assert not hub.connect(port=5).wire.half_closed
    assert hub.connect(port=6).wire.half_closed
    away.lose()
    assert hub.connect(port=7).wire.half_closed


def test_a_network_of_ipv6_has_the_share_of_an_address() -> None:
    hub = Hub(ConnectionLimits(connections_per_address=2))

    def refused(host: str) -> bool:
        kind = IPv6Address if ":" in host else IPv4Address
        return hub.connect(address=kind("TCP", host, 5)).wire.half_closed

    assert not any(map(refused, ("2001:db8::1", "2001:db8::ffff:2")))
    assert refused("2001:db8:0:0:1:2:3:4")
    assert not refused("2001:db8:0:1::1")
    # All IPv4 addresses are mapped into one /64, and each has its own share.
    assert not any(map(refused, ("::ffff:192.0.2.1", "::ffff:192.0.2.2", "192.0.2.1")))
    assert refused("192.0.2.1")
    assert refused("::ffff:192.0.2.1")


@pytest.mark.parametrize(
    "address", [IPv4Address("TCP", "127.0.0.1", 5), IPv6Address("TCP", "::1", 5), UNIXAddress(None)]
)
def test_the_addresses_of_this_machine_have_so_many_connections_as_well(address: IAddress) -> None:
    hub = Hub(ConnectionLimits(connections_per_address=1))
    first = hub.connect(address=address)
    assert hub.connect(address=address).wire.half_closed
    first.lose()
    assert not hub.connect(address=address).wire.half_closed


def test_connections_from_before_a_limit_for_each_address_count() -> None:
    hub = Hub()
    links = [hub.connect(port=port) for port in range(3)]
    hub.factory.limit(ConnectionLimits(connections_per_address=3))
    assert hub.connect().wire.half_closed
    links[0].lose()
    assert not hub.connect().wire.half_closed
    hub.factory.limit(ConnectionLimits())
    assert not hub.connect().wire.half_closed


# stopping


def test_a_listener_that_stops_closes_all_and_says_when_they_are_gone(hub: Hub) -> None:
    links = [hub.connect(), hub.connect()]
    links[0].protocol.write(b"notice")
    done = fired(hub.factory.close())
    assert links[0].take() == [b"notice"]
    assert [link.wire.half_closed for link in links] == [True, True]
    links[0].lose()
    assert done == []
    links[1].lose()
    assert len(done) == 1


def test_without_connections_it_is_done_at_once(hub: Hub, link: Link) -> None:
    link.lose()
    assert len(fired(hub.factory.close())) == 1


def test_those_that_do_not_close_are_cut_off_soon(hub: Hub) -> None:
    links = [hub.connect(), hub.connect()]
    links[0].stall()
    done = fired(hub.factory.close())
    hub.pass_seconds(int(STOP_WITHIN) + 1)
    assert [link.wire.aborted for link in links] == [True, True]
    for link in links:
        link.lose()
    assert len(done) == 1


def test_a_peer_that_has_read_all_at_the_last_moment_has_no_more_time_than_the_others(hub: Hub) -> None:
    hub.pass_seconds(1)
    link = hub.connect()
    link.stall()
    done = fired(hub.factory.close())
    hub.clock.advance(STOP_WITHIN - 0.5)
    link.drain()
    link.protocol.writeConnectionLost()
    hub.clock.advance(0.5)
    assert link.wire.aborted
    link.lose()
    assert len(done) == 1


def test_who_was_refused_something_waits_for_its_turn_until_that_is_forgiven(hub: Hub, link: Link) -> None:
    link.send("bad")
    link.send("one")
    assert hub.words() == ["bad"]
    hub.later()
    assert hub.words() == ["one"]
    hub.pass_seconds(1)
    link.send("two")
    assert hub.words() == ["two"]


def began(hub: Hub, link: Link, data: bytes = b"x" * (SHORT + 1)) -> Link:
    """``link``, of which an unfinished line has been read."""
    link.protocol.dataReceived(b"hello\n" + data)
    hub.later()
    return link


def test_over_the_bound_of_an_address_the_line_that_began_first_costs_its_connection(hub: Hub) -> None:
    links = [began(hub, hub.connect(port=number)) for number in range(1, 4)]
    memory = hub.factory.memory
    assert memory.held == 3 * (SHORT + 1)
    Holding(memory, trusted=True).hold(BY_ADDRESS - 3 * (SHORT + 1))
    links[1].protocol.dataReceived(b"x")
    hub.later()
    assert [link.wire.half_closed for link in links] == [True, False, False]
    assert b"".join(links[0].take()) == b"<too-large>"
    assert hub.refused(Reason.TOO_LARGE) == 1
    assert links[0].protocol.reader.pending == 0, "it is held no longer, although the peer has not closed yet"
    held = memory.held
    for link in links:
        link.lose()
    assert memory.held == held - (SHORT + 2) - (SHORT + 1)


def test_over_the_bound_of_one_address_only_that_one_is_concerned(hub: Hub) -> None:
    elsewhere = began(hub, hub.connect(host="192.0.2.2"))
    first, second = began(hub, hub.connect(port=1)), began(hub, hub.connect(port=2))
    Holding(hub.factory.memory, trusted=True).hold(BY_ADDRESS - 2 * (SHORT + 1))
    second.protocol.dataReceived(b"x")
    hub.later()
    assert [link.wire.half_closed for link in (elsewhere, first, second)] == [False, True, False]


def test_a_line_that_is_completed_makes_the_next_one_young(hub: Hub) -> None:
    busy, idle = began(hub, hub.connect(port=1)), began(hub, hub.connect(port=2))
    began(hub, busy, b"\n" + b"x" * (SHORT + 1))
    Holding(hub.factory.memory, trusted=True).hold(BY_ADDRESS - 2 * SHORT)
    assert [link.wire.half_closed for link in (busy, idle)] == [False, True]


def test_short_unfinished_lines_are_not_accounted_for(hub: Hub, link: Link) -> None:
    began(hub, link, b"x" * SHORT)
    assert hub.factory.memory.held == 0
    began(hub, link, b"\n" + b"x" * 9_000)
    assert hub.factory.memory.held == 9_000
    began(hub, link, b"\n")
    assert hub.factory.memory.held == 0


def test_a_long_read_is_accounted_for_until_it_is_served(hub: Hub, link: Link) -> None:
    memory = hub.factory.memory
    lines = b"x\n" * SHORT
    link.protocol.dataReceived(lines)
    assert memory.held == len(lines), "it waits for the rounds"
    while memory.held:
        hub.later()
    link.protocol.pauseProducing()
    link.protocol.dataReceived(lines)
    assert memory.held == len(lines), "its peer does not read"
    link.lose()
    assert memory.held == 0


# what others must receive first


class Ordered:
    """Two connections whose writes go into one list, in the order in which they are made."""

    def __init__(self, hub: Hub) -> None:
        self.writes: list[tuple[str, bytes]] = []
        self.server, self.user = hub.connect(port=1), hub.connect(port=2)
        for name, link in (("server", self.server), ("user", self.user)):
            link.wire.write = partial(self._write, name)  # type: ignore[method-assign]

    def _write(self, name: str, data: bytes) -> None:
        self.writes.append((name, data))


class Reserving(WordSession):
    """Reports each word to ``server`` before the answer; the word ``end`` closes the connection after that."""

    server: LineProtocol | None = None

    def receive(self, word: str) -> None:
        if self.server is not None:
            self.server.write_first(b"order ")
        self.peer.write(b"answer ")
        if word == "end":
            self.peer.close()


@pytest.fixture
def ordered() -> Ordered:
    hub = Hub(converse=lambda peer: (WordReader(), Reserving(peer, [])))
    ordered = Ordered(hub)
    ordered.user.session.server = ordered.server.protocol
    return ordered


def test_what_another_must_receive_first_is_written_first(ordered: Ordered) -> None:
    ordered.user.send("one", "two")
    assert ordered.writes == [("server", b"order order "), ("user", b"answer answer ")]


def test_it_is_written_first_also_by_one_that_closes(ordered: Ordered) -> None:
    ordered.user.send("end")
    assert ordered.writes == [("server", b"order "), ("user", b"answer ")]


def test_one_that_does_not_read_delays_nobody_and_gets_it_later(ordered: Ordered) -> None:
    ordered.server.stall()
    ordered.user.send("one")
    assert ordered.writes == [("user", b"answer ")]
    ordered.server.drain()
    assert ordered.writes == [("user", b"answer "), ("server", b"order ")]


def test_it_goes_before_what_waits_for_others_since_earlier(ordered: Ordered) -> None:
    ordered.user.protocol.write(b"notice ")
    ordered.server.protocol.write_first(b"order ")
    ordered.user.protocol.factory.clock.turn()  # type: ignore[attr-defined]
    assert ordered.writes == [("server", b"order "), ("user", b"notice ")]


# authentication before the connection is made


def test_one_that_is_authenticated_from_the_beginning_has_no_deadline() -> None:
    class Trusted(WordSession):
        def __init__(self, peer: Peer, heard: list[tuple[str, str]]) -> None:
            super().__init__(peer, heard)
            peer.authenticated()

    heard: list[tuple[str, str]] = []
    hub = Hub(ConnectionLimits(authenticate_within=30), converse=lambda peer: (WordReader(), Trusted(peer, heard)))
    link = hub.connect()
    hub.pass_seconds(40)
    assert not link.wire.disconnecting
    link.send("hello")
    assert heard[-1][1] == "hello"


def test_what_comes_after_a_close_is_thrown_away_a_read_at_a_turn(hub: Hub, link: Link) -> None:
    link.send("hello", "close")
    for _ in range(3):
        assert link.wire.reading
        link.send("more")
        assert not link.wire.reading
        hub.later()
    assert link.wire.reading
    assert hub.words() == ["hello", "close"]
    link.lose()
    hub.later()
    assert not hub.turns.busy
