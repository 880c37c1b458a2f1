"""RTCP sessions: numbers, what is kept and sent again, and when a session ends.

The file is longer than others: it has all tests of `broker.wires.elko.transports.rtcp`.
"""

from __future__ import annotations

import re

import pytest
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from zope.interface.verify import verifyObject

from broker.core.errors import Reason
from broker.core.memory_budget import BY_ADDRESS, SHORT, Share
from broker.net.admission import STOP_WITHIN
from broker.net.line_protocol import LineProtocol
from broker.net.refusal_log import REFUSALS_AT_ONCE
from broker.wires.elko.codec.rtcp_messages import RtcpReader
from broker.wires.elko.transports.rtcp import FIRST_REQUEST, RtcpFactory, RtcpSession, RtcpSocket
from broker.wires.elko.transports.transport_limits import TransportLimits
from broker.wires.elko.transports.virtual_transport import ID_BITS
from tests.net.holders import Holding, fill
from tests.net.test_line_protocol_sockets import Server
from tests.net.words import COST
from tests.wires.elko.transports.virtual_links import CarriedLink, Carrier, WordHub, garbage


class Rtcp(Carrier):
    """A listener of RTCP."""

    quiet_after = 200

    def __init__(self, limits: TransportLimits | None = None, half_close: bool = True) -> None:
        hub = WordHub(limits, half_close)
        super().__init__(hub, RtcpFactory(hub.factory, hub.limits))

    def ask(self, link: CarriedLink, text: str) -> str:
        """The answer to a text, in the next turn at the latest."""
        link.send(text)
        self.hub.later()
        return link.said()

    def start(self) -> tuple[CarriedLink, str]:
        """A connection with a session, and that one's id."""
        link = self.connect()
        match = re.fullmatch(r"start (\d+)\n", link.ask("start\n"))
        assert match is not None
        return link, match[1]


@pytest.fixture
def rtcp() -> Rtcp:
    return Rtcp()


def test_it_is_what_the_transport_asks_for(rtcp: Rtcp) -> None:
    link = rtcp.connect()
    assert verifyObject(IHalfCloseableProtocol, link.protocol)
    assert verifyObject(IPushProducer, link.protocol)
    assert (link.wire.producer, link.wire.streaming) == (link.protocol, True)


# numbers


def test_a_conversation(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    assert link.ask("1 0\nsay one\n\n") == "1 1\none\n\n"
    assert link.ask("2 1\nsay two\nsay three\n\n") == "2 2\ntwo\n\n3 2\nthree\n\n"
    assert link.ask("3 3\nhello\n\n") == ""
    assert link.ask("4 3\nsay four\n\n") == "4 4\nfour\n\n"


def test_several_blocks_in_one_read_are_answered_under_the_last_number(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    assert link.ask("1 0\nsay one\n\n2 0\nsay two\n\n") == "1 2\none\n\n2 2\ntwo\n\n"


@pytest.mark.parametrize("number", [0, 1, 3, 999_999_999_999])
def test_another_number_than_the_next_is_refused_and_the_session_goes_on(rtcp: Rtcp, number: int) -> None:
    link, _ = rtcp.start()
    link.ask("1 0\nsay one\n\n")
    assert link.ask(f"{number} 1\nsay wrong\n\n") == "error sequenceError\n"
    assert rtcp.ask(link, "2 1\nsay right\n\n") == "2 2\nright\n\n"
    assert rtcp.hub.refused(Reason.PARAMETER) == 1


def test_before_a_session_there_is_none(rtcp: Rtcp) -> None:
    link = rtcp.connect()
    for text in ("1 0\nsay hello\n\n", "ack 0\n", "end 0\n"):
        assert link.ask(text) == "error noSession\n"
    assert link.ask("error whatever\n") == ""
    assert link.ask("resume 123 0\n") == "error noSuchSession\n"
    assert rtcp.hub.words() == []
    assert link.ask("start\n").startswith("start ")
    for text in ("start\n", "resume 123 0\n"):
        assert link.ask(text) == "error sessionInProgress\n"


def test_ids_are_long_and_never_the_same(rtcp: Rtcp) -> None:
    ids = {int(rtcp.start()[1]) for _ in range(50)}
    assert len(ids) == 50
    assert max(ids).bit_length() > ID_BITS - 10


def test_a_number_that_is_acknowledged_before_it_is_sent_does_no_harm(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    assert link.ask("1 99\nsay one\n\n") == "1 1\none\n\n"
    assert link.ask("ack 99\n", "2 99\nsay two\n\n") == "2 2\ntwo\n\n"


# coming back


def test_a_session_goes_on_over_another_connection_with_what_was_missed(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    assert link.ask("1 0\nsay one\nsay two\nsay three\n\n").count("\n\n") == 3
    link.lose()
    [connection] = rtcp.hub.factory.connections
    connection.write(b"while away\n\n")
    rtcp.hub.later()
    again = rtcp.connect()
    assert again.ask(f"resume {session} 1\n") == (f"resume {session} 1\n2 1\ntwo\n\n3 1\nthree\n\n4 1\nwhile away\n\n")
    assert again.ask("2 4\nsay back\n\n") == "5 2\nback\n\n"
    again.lose()
    third = rtcp.connect()
    assert third.ask(f"resume {session} 5\n") == f"resume {session} 2\n"
    assert rtcp.hub.sessions[0].losses == 0


def test_a_session_is_taken_from_the_connection_that_has_it(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    other = rtcp.connect()
    assert other.ask(f"resume {session} 0\n") == f"resume {session} 0\n"
    assert link.wire.half_closed
    link.send("1 0\nsay stolen\n\n")
    link.lose()
    assert other.ask("1 0\nsay mine\n\n") == "1 1\nmine\n\n"
    assert rtcp.hub.words() == ["say mine"]
    rtcp.hub.pass_seconds(int(TransportLimits().rtcp_disconnected) + 2)
    assert session in rtcp.factory.sessions


def test_what_was_acknowledged_is_not_sent_again_even_if_it_is_asked_for(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    link.ask("1 0\nsay one\nsay two\n\n")
    link.ask("ack 2\n")
    link.lose()
    for last in (0, 1, 3):
        assert rtcp.connect().ask(f"resume {session} {last}\n") == "error sequenceError\n"
    assert rtcp.connect().ask(f"resume {session} 2\n") == f"resume {session} 1\n"


def test_a_session_that_nobody_resumes_ends(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    link.lose()
    rtcp.hub.pass_seconds(int(TransportLimits().rtcp_disconnected) - 1)
    assert rtcp.hub.sessions[0].losses == 0
    rtcp.hub.pass_seconds(3)
    assert rtcp.hub.sessions[0].losses == 1
    assert rtcp.connect().ask(f"resume {session} 0\n") == "error noSuchSession\n"
    assert rtcp.hub.counters.get("test_rtcp", "gone") == 1


# silence


def test_the_broker_says_something_when_nothing_was_sent_for_half_of_the_time(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    for _ in range(5):
        link.ask("ack 0\n")
        rtcp.hub.pass_seconds(31)
        assert link.said() == "ack 0\n"
    link.ask("1 0\nhello\n\n")
    rtcp.hub.pass_seconds(31)
    assert link.said() == "ack 1\n"


def test_a_peer_that_says_nothing_is_gone(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    rtcp.hub.pass_seconds(int(TransportLimits().rtcp_timeout) - 1)
    assert not link.wire.aborted
    rtcp.hub.pass_seconds(3)
    assert link.wire.aborted
    link.lose()
    assert rtcp.connect().ask(f"resume {session} 0\n") == "error noSuchSession\n"


def test_a_connection_that_begins_nothing_is_closed(rtcp: Rtcp) -> None:
    link = rtcp.connect()
    link.send("error still thinking\n")
    rtcp.hub.pass_seconds(int(FIRST_REQUEST) - 1)
    assert not link.wire.half_closed
    rtcp.hub.pass_seconds(3)
    assert (link.wire.half_closed, rtcp.hub.refused(Reason.TOO_SLOW)) == (True, 1)


def test_a_session_in_which_nobody_authenticates_is_closed() -> None:
    rtcp = Rtcp(TransportLimits(authenticate_within=10))
    link, session = rtcp.start()
    rtcp.hub.pass_seconds(12)
    assert link.said() == "1 0\n<too-slow-to-authenticate>\n\n"
    assert link.wire.half_closed
    assert session not in rtcp.factory.sessions


# the end


def test_an_end_is_an_end_when_all_is_answered(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    assert link.ask("1 0\nsay last words\n\nend 0\n") == "1 1\nlast words\n\n"
    rtcp.hub.later()
    assert (link.wire.half_closed, rtcp.hub.sessions[0].ends, rtcp.hub.sessions[0].losses > 0) == (True, 1, True)
    assert rtcp.connect().ask(f"resume {session} 0\n") == "error noSuchSession\n"
    link.lose()
    rtcp.quiet()


def test_a_session_that_ends_waits_for_no_answer(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    link.send("1 0\nwait\n\nend 0\n")
    assert not link.wire.half_closed
    rtcp.hub.pass_seconds(3)
    assert link.wire.half_closed
    assert rtcp.hub.factory.connections == set()


def test_an_end_may_be_said_twice(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    link.send("1 0\nwait\n\nend 0\nend 0\n")
    rtcp.hub.pass_seconds(1)
    link.send("end 0\n")
    rtcp.hub.pass_seconds(10)
    assert link.wire.half_closed
    rtcp.quiet()


def test_what_came_before_something_fatal_is_handled(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    link.send("1 0\nsay here\n\n" + "x" * 300)
    assert link.said() == "1 1\nhere\n\n"
    assert link.wire.half_closed


@pytest.mark.parametrize("half_close", [True, False])
def test_a_session_that_the_broker_closes(half_close: bool) -> None:
    rtcp = Rtcp(half_close=half_close)
    link, session = rtcp.start()
    assert link.ask("1 0\nsay bye\nclose\nsay lost\n\n") == "1 1\nbye\n\n"
    rtcp.hub.later()
    assert link.wire.half_closed if half_close else link.wire.disconnecting
    assert rtcp.connect().ask(f"resume {session} 0\n") == "error noSuchSession\n"
    link.lose()
    rtcp.quiet()


def test_a_session_that_is_about_to_end_is_not_resumed(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    link.lose()
    other = rtcp.connect()
    [connection] = rtcp.hub.factory.connections
    connection.close()
    other.send(f"resume {session} 0\n")
    assert other.said() == "error noSuchSession\n"
    other.send("1 0\nsay lost\n\n")
    rtcp.hub.later()
    assert other.said() == "error noSession\n"
    other.lose()
    rtcp.quiet()


def test_the_end_of_input_is_the_end_of_the_connection_only(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    link.protocol.readConnectionLost()
    assert link.wire.disconnecting
    link.lose()
    assert rtcp.connect().ask(f"resume {session} 0\n") == f"resume {session} 0\n"


# bounds


def test_a_peer_that_acknowledges_nothing_ends() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, session = rtcp.start()
    link.send("1 0\nbig 9000\n\n")
    link.send("2 0\nbig 9000\n\n")
    assert not link.wire.aborted
    link.send("3 0\nsay one more\n\n")
    rtcp.hub.later()
    assert (link.wire.aborted, rtcp.hub.refused(Reason.NOT_READING)) == (True, 1)
    assert session not in rtcp.factory.sessions
    link.lose()
    rtcp.quiet()


def test_a_peer_that_acknowledges_may_hear_any_amount() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, _ = rtcp.start()
    for number in range(1, 50):
        assert len(link.ask(f"{number} {number - 1}\nbig 9000\n\n")) > 9_000


def test_one_large_message_is_no_backlog() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, _ = rtcp.start()
    assert len(link.ask("1 0\nbig 500000\n\n")) > 500_000
    assert rtcp.ask(link, "2 1\nsay fine\n\n") == "2 2\nfine\n\n"


def test_behind_one_large_message_the_backlog_is_as_long_as_ever() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, _ = rtcp.start()
    rtcp.ask(link, "1 0\nbig 500000\n\n")
    [connection] = rtcp.hub.factory.connections
    assert connection.behind
    rtcp.ask(link, "2 0\nbig 6000\n\n")
    assert rtcp.ask(link, "3 0\nsay fine\n\n") == "3 3\nfine\n\n"
    rtcp.ask(link, "4 1\nsay there\n\n")
    assert not connection.behind
    rtcp.ask(link, "5 1\nbig 6000\n\n")
    link.send("6 1\nsay one more\n\n")
    rtcp.hub.later()
    assert link.wire.aborted


def test_a_second_large_message_is_a_backlog() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, _ = rtcp.start()
    link.ask("1 0\nbig 500000\n\n")
    link.ask("2 0\nbig 500000\n\n")
    link.send("3 0\nsay one more\n\n")
    rtcp.hub.later()
    assert (link.wire.aborted, rtcp.hub.refused(Reason.NOT_READING)) == (True, 1)


def test_what_a_peer_that_is_away_is_told_is_bounded() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, session = rtcp.start()
    link.lose()
    [connection] = rtcp.hub.factory.connections
    for _ in range(20):
        if connection in rtcp.hub.factory.connections:
            connection.write(b"x" * 1_000 + b"\n\n")
            rtcp.hub.later()
    assert rtcp.connect().ask(f"resume {session} 0\n") == "error noSuchSession\n"


def test_nonsense_is_counted_and_too_much_of_it_closes(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    assert link.ask("nonsense\n" * REFUSALS_AT_ONCE) == ""
    assert not link.wire.half_closed
    link.send("nonsense\n")
    assert link.wire.half_closed
    assert rtcp.hub.refused(Reason.SYNTAX) == REFUSALS_AT_ONCE + 1
    rtcp.quiet()


def test_requests_that_need_a_session_may_not_come_too_often_without_one(rtcp: Rtcp) -> None:
    link = rtcp.connect()
    assert link.ask("ack 0\n" * REFUSALS_AT_ONCE) == "error noSession\n" * REFUSALS_AT_ONCE
    assert not link.wire.half_closed
    link.send("ack 0\n")
    link.next_turn()
    assert link.wire.half_closed


def test_a_page_that_has_a_browser_send_requests_here_gets_nowhere(rtcp: Rtcp) -> None:
    link = rtcp.connect()
    link.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n\r\n", "start\n1 0\nsay here\n\n")
    assert (link.said(), link.wire.half_closed) == ("", True)
    assert (rtcp.hub.words(), rtcp.factory.sessions, rtcp.hub.refused(Reason.SYNTAX)) == ([], {}, 1)


def test_a_peer_that_acknowledges_what_it_does_not_read_is_not_read_either() -> None:
    rtcp = Rtcp(TransportLimits(rtcp_backlog=10_000))
    link, session = rtcp.start()
    link.wire.full_at = 5_000
    link.send("1 0\nbig 9000\n\n")
    assert not link.wire.reading
    link.stall()
    link.drain()
    rtcp.hub.later()
    assert link.wire.reading
    link.send("2 1\nbig 9000\n\n")
    assert not link.wire.reading
    link.lose()
    assert rtcp.connect().ask(f"resume {session} 2\n") == f"resume {session} 2\n"


@pytest.mark.parametrize("text", ["x" * 300, "1 0\n" + "x" * 1_048_577])
def test_what_is_too_large_closes(rtcp: Rtcp, text: str) -> None:
    for link in (rtcp.connect(), rtcp.start()[0]):
        link.send(text)
        assert link.wire.half_closed
        assert link.protocol._reader.pending == 0
        link.lose()
    assert rtcp.hub.refused(Reason.TOO_LARGE) == 2
    rtcp.quiet()


def test_what_all_hold_together_is_bounded(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    link.send("1 0\n" + "x" * 5_000)
    rtcp.hub.later()
    memory = rtcp.hub.factory.memory
    assert memory.held == 5_000
    others = fill(memory)
    link.send("x")
    rtcp.hub.later()
    assert [other.evicted for other in others] == [True] + [False] * (len(others) - 1)
    assert not link.wire.half_closed
    link.lose()
    for other in others:
        other.drop()
    rtcp.quiet()


def test_over_the_bound_the_block_that_began_first_costs_its_connection(rtcp: Rtcp) -> None:
    (busy, _), (idle, _) = rtcp.start(), rtcp.start()
    memory = rtcp.hub.factory.memory
    for link in (busy, idle):
        link.send("1 0\n" + "x" * 5_000)
        rtcp.hub.later()
    busy.send("\n\n2 0\n" + "x" * 5_000)  # the end of that block, and another one
    rtcp.hub.later()
    assert memory.held == 10_000
    other = Holding(memory)
    other.hold(BY_ADDRESS - 9_000)
    assert [link.wire.half_closed for link in (busy, idle)] == [False, True]
    other.drop()
    busy.lose()
    idle.lose()
    assert memory.held == 0
    rtcp.quiet()


def test_over_the_bound_a_peer_that_reads_nothing_is_disconnected_with_the_reason(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    rtcp.hub.factory.memory.hold(link.protocol, Share.OUTPUT, BY_ADDRESS + 1)
    assert (link.wire.aborted, rtcp.hub.refused(Reason.NOT_READING)) == (True, 1)
    link.lose()
    rtcp.quiet()


def test_a_connection_is_not_read_while_its_session_has_enough(rtcp: Rtcp) -> None:
    link, session = rtcp.start()
    rtcp.hub.heard.cost = COST
    link.send("1 0\n", "word\n" * 2_000, "\n")
    assert not link.wire.reading
    link.lose()
    other = rtcp.connect()
    other.send(f"resume {session} 0\n")
    assert not other.wire.reading
    while rtcp.hub.turns.busy:
        rtcp.hub.later()
    assert other.wire.reading
    assert len(rtcp.hub.words()) == 2_000


def test_the_oldest_session_that_has_not_authenticated_gives_way() -> None:
    rtcp = Rtcp(TransportLimits(connections=2))
    rtcp.factory.sockets.table.limit = 100
    link, _ = rtcp.start()
    link.send("1 0\nhello\nwait\n\n")
    stranger, _ = rtcp.start()
    newcomer, _ = rtcp.start()
    assert "<too-many-connections>" in stranger.said()
    assert stranger.wire.half_closed
    assert not link.wire.half_closed
    newcomer.send("1 0\nhello\nwait\n\n")
    third = rtcp.connect()
    assert third.said() + third.ask("start\n") == "error tooManySessions\n"
    assert third.wire.half_closed
    rtcp.hub.later()
    assert len(rtcp.factory.sessions) == 2


def test_a_connection_without_a_session_gives_way() -> None:
    rtcp = Rtcp(TransportLimits(connections=2))
    first, _ = rtcp.start()
    second = rtcp.connect()
    third, _ = rtcp.start()
    assert second.wire.half_closed
    assert second.said() == "error tooManySessions\n"
    assert not first.wire.half_closed
    assert not third.wire.half_closed


def test_a_connection_whose_peer_ends_its_output_has_no_place_while_it_closes() -> None:
    rtcp = Rtcp(TransportLimits(connections=2))
    links = [rtcp.start()[0], rtcp.connect()]
    assert len(rtcp.factory.table) == len(links)
    for left, link in enumerate(reversed(links)):
        link.protocol.readConnectionLost()
        assert link.wire.disconnecting
        assert len(rtcp.factory.table) == 1 - left
    rtcp.quiet()


def test_sessions_that_begin_too_often_are_refused() -> None:
    rtcp = Rtcp(TransportLimits(rate=1, burst=2))
    rtcp.start()
    rtcp.start()
    link = rtcp.connect()
    assert link.ask("start\n") == "error tooManySessions\n"
    assert link.wire.half_closed
    assert len(rtcp.factory.sessions) == 2
    assert rtcp.hub.refused(Reason.TOO_MANY_CONNECTIONS) == 1


def test_little_is_read_at_a_time_from_a_socket(rtcp: Rtcp) -> None:
    server = Server(rtcp.hub)
    try:
        server.port.factory = rtcp.factory
        server.hub.factory.connections = rtcp.factory.sockets.open  # type: ignore[assignment]
        server.connect()
        [socket] = rtcp.factory.sockets.open
        assert socket.transport.bufferSize == SHORT  # type: ignore[attr-defined]
    finally:
        server.close()


# stopping


def test_all_is_closed_in_good_order(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    idle, (away, _) = rtcp.connect(), rtcp.start()
    away.lose()
    closed: list[None] = []
    rtcp.factory.close().addCallback(closed.append)
    rtcp.hub.later()
    assert link.wire.half_closed
    assert idle.wire.half_closed
    assert closed == []
    link.lose()
    idle.lose()
    assert closed == [None]
    rtcp.quiet()


def test_who_does_not_close_is_aborted(rtcp: Rtcp) -> None:
    link, _ = rtcp.start()
    rtcp.factory.close()
    rtcp.hub.pass_seconds(int(STOP_WITHIN) + 3)
    assert link.wire.aborted


def test_nothing_is_left_of_sessions_that_ended_in_any_way(rtcp: Rtcp) -> None:
    links = [rtcp.start()[0] for _ in range(5)]
    links[0].send("1 0\nclose\n\n")
    links[1].send("end 0\n")
    links[2].send("1 0\nhello\n\n")
    for link in links:
        link.lose()
    rtcp.quiet()
    assert [session.losses > 0 for session in rtcp.hub.sessions] == [True] * 5


def test_an_ended_session_leaves_nothing_for_the_garbage_collector(rtcp: Rtcp) -> None:
    def run() -> None:
        for text in ("1 0\nclose\n\n", "end 0\n", "x" * 300, "1 0\nhello\n\n"):
            link, _ = rtcp.start()
            link.send(text)
            rtcp.hub.later()
            link.lose()
        rtcp._links.clear()
        rtcp.hub.sessions.clear()
        rtcp.hub.pass_seconds(100)

    assert garbage(run, RtcpSession, RtcpSocket, LineProtocol, RtcpReader) == []
