"""UDP sockets in the reactor: input, counters, output, and fairness under a flood.

The file is longer than others: it has all tests of `broker.net.udp`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import TestCase

from broker.core.rates import LINE_EVERY
from broker.net.scheduler import MESSAGES_ALONE, TURN, Scheduler
from broker.net.udp import BUFFER, LEAST_BUFFER, LOOK, RETRY, UdpSocket, risen
from tests.net.waiting import reactor, there_are, turn, until
from tests.patience import PATIENCE
from tests.ticking_clock import TickingClock

LOOPBACK = "127.0.0.1"

LONGEST = 1_024
"""Bytes that a datagram may have in most tests."""

LARGEST = 65_507
"""Bytes of the largest datagram that UDP over IPv4 has."""

IP_RECVERR = 11
"""The Linux option that reports ICMP errors of a socket's datagrams."""

SMALL_BUFFER = 8_192
"""Bytes of a receive buffer that holds a few datagrams only."""

MANY = MESSAGES_ALONE + 100
"""Datagrams that are not read in one go, and for which there is room even where the system grants no large buffer."""

FLOOD = 50_000
"""Datagrams of a flood that does not end by itself before."""


class TurningClock(TickingClock):
    """A reactor that is turned by hand: it has time, and reads from who asked for that."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        if reader in self.readers:
            self.readers.remove(reader)

    def read(self) -> None:
        """A round of a reactor in which all descriptors are readable."""
        for reader in self.readers[:]:
            reader.doRead()


class Inbox:
    """A socket under test that is bound, and what it received. ``react`` is called with each datagram besides."""

    def __init__(
        self, clock: Any, longest: int = LONGEST, wanted: int = BUFFER, host: str = LOOPBACK, name: str = "test"
    ) -> None:
        self.datagrams: list[bytes] = []
        self.sources: list[tuple[str, int]] = []
        self.react: Callable[[bytes, tuple[str, int]], object] = _ignore
        self.turns = Scheduler(clock)
        self.socket = UdpSocket(clock, self.turns, name, longest, wanted)
        self.port = self.socket.bind(host, 0, self._receive)
        self.address = (LOOPBACK, self.port)

    def _receive(self, data: bytes, source: tuple[str, int]) -> None:
        self.datagrams.append(data)
        self.sources.append(source)
        self.react(data, source)

    def count(self, what: str) -> int:
        return self.socket.counts()[f"test_{what}"]


def _ignore(data: bytes, source: tuple[str, int]) -> None:
    pass


def plain() -> socket.socket:
    """A socket of a peer, bound, which never blocks."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.setblocking(False)
    peer.bind((LOOPBACK, 0))
    return peer


def closed_port() -> int:
    """A port without a listener."""
    with plain() as peer:
        port: int = peer.getsockname()[1]
        return port


def same(of: UdpSocket) -> socket.socket:
    """That socket once more, to look at it and to close without closing it."""
    return socket.socket(fileno=os.dup(of.fileno()))


def option(of: UdpSocket, name: int) -> int:
    """The kernel's data on that socket."""
    with same(of) as other:
        return other.getsockopt(socket.SOL_SOCKET, name)


class Udp(TestCase):
    """A test case with sockets in trial's reactor; all are closed in the end."""

    def inbox(self, **options: Any) -> Inbox:
        inbox = Inbox(reactor, **options)
        self.addCleanup(inbox.socket.close)
        return inbox

    def peer(self) -> socket.socket:
        peer = plain()
        self.addCleanup(peer.close)
        return peer


class TestReceiving(Udp):
    async def test_a_datagram_comes_with_its_source(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        peer.sendto(b" <3 1.5 me", inbox.address)
        await until(there_are(1, inbox.datagrams))
        self.assertEqual(inbox.datagrams, [b" <3 1.5 me"])
        self.assertEqual(inbox.sources, [peer.getsockname()])

    async def test_over_ipv6_the_source_is_answered(self) -> None:
        peer = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.setblocking(False)
        try:
            peer.bind(("::1", 0))
        except OSError:
            self.skipTest("this machine has no IPv6 loopback")
        inbox = self.inbox(host="::1")
        peer.sendto(b"here", ("::1", inbox.port))
        await until(there_are(1, inbox.datagrams))
        self.assertEqual(inbox.sources, [peer.getsockname()])
        self.assertTrue(inbox.socket.send(b"there", inbox.sources[0]))
        self.assertFalse(inbox.socket.send(b"lost", ("localhost", inbox.port)))
        self.assertEqual(peer.recv(64), b"there")

    async def test_at_a_wildcard_address_each_is_answered_from_where_it_was_asked(self) -> None:
        for host in self.wildcards():
            inbox, peer = self.inbox(host=host), self.peer()
            for number in range(2, LOOK * 2):
                peer.sendto(b"ask", (f"127.0.0.{number}", inbox.port))
            await until(there_are(LOOK * 2 - 2, inbox.datagrams))
            for source in inbox.sources:
                self.assertTrue(inbox.socket.send(b"answer", source))
            asked = [peer.recvfrom(64)[1] for _ in inbox.sources]
            self.assertEqual(asked, [(f"127.0.0.{number}", inbox.port) for number in range(2, LOOK * 2)])

    async def test_at_a_wildcard_address_a_broadcast_is_answered_from_an_address_of_the_host(self) -> None:
        for host in self.wildcards():
            inbox, peer = self.inbox(host=host), self.peer()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            peer.sendto(b"ask", ("127.255.255.255", inbox.port))
            await until(there_are(1, inbox.datagrams))
            self.assertTrue(inbox.socket.send(b"answer", inbox.sources[0]))
            self.assertEqual(peer.recvfrom(64), (b"answer", inbox.address))

    def wildcards(self) -> list[str]:
        """The wildcard addresses of this machine; that of IPv6 takes datagrams of IPv4 besides."""
        return ["0.0.0.0", "::"] if socket.has_dualstack_ipv6() else ["0.0.0.0"]

    async def test_many_datagrams_keep_their_order_over_many_quanta(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        sent = [b"%d" % number for number in range(MANY * 4)]
        for begin in range(0, len(sent), MANY):
            for datagram in sent[begin : begin + MANY]:
                peer.sendto(datagram, inbox.address)
            await until(there_are(begin + MANY, inbox.datagrams))
        self.assertEqual(inbox.datagrams, sent)
        self.assertEqual(inbox.count("datagrams.received"), len(sent))
        self.assertEqual(inbox.count("datagrams.dropped"), 0)

    async def test_empty_datagrams_are_datagrams(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        for datagram in (b"", b"", b"x", b""):
            peer.sendto(datagram, inbox.address)
        await until(there_are(4, inbox.datagrams))
        self.assertEqual(inbox.datagrams, [b"", b"", b"x", b""])

    async def test_the_largest_datagram_comes_whole_where_it_is_allowed(self) -> None:
        inbox, peer = self.inbox(longest=LARGEST), self.peer()
        largest = os.urandom(LARGEST)
        peer.sendto(largest, inbox.address)
        await until(there_are(1, inbox.datagrams))
        self.assertEqual(inbox.datagrams, [largest])
        self.assertEqual(inbox.count("datagrams.oversized"), 0)

    async def test_what_is_too_long_is_counted_and_comes_one_byte_too_long(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        for size in (LONGEST, LONGEST + 1, LARGEST, LONGEST, 1):
            peer.sendto(b"x" * size, inbox.address)
        await until(there_are(5, inbox.datagrams))
        self.assertEqual([len(data) for data in inbox.datagrams], [LONGEST, LONGEST + 1, LONGEST + 1, LONGEST, 1])
        self.assertEqual(inbox.count("datagrams.oversized"), 2)
        self.assertEqual(inbox.count("datagrams.received"), 5)

    async def test_one_that_makes_the_broker_fail_costs_only_itself(self) -> None:
        inbox, peer = self.inbox(), self.peer()

        def fail(data: bytes, source: tuple[str, int]) -> None:
            if data == b"bad":
                raise BlockingIOError(errno.EAGAIN, "as it is meant to")

        inbox.react = fail
        sent = [b"bad", b"1", b"bad", b"bad", b"2"] * LOOK
        with capturedLogs() as logs:
            for datagram in sent:
                peer.sendto(datagram, inbox.address)
            await until(there_are(len(sent), inbox.datagrams))
        self.assertEqual(inbox.datagrams, sent)
        self.assertEqual(inbox.count("datagrams.failed"), 3 * LOOK)
        self.assertEqual(len([event for event in logs if "log_failure" in event]), 1)
        self.assertEqual(len(self.flushLoggedErrors(BlockingIOError)), 1)

    async def test_a_socket_that_is_closed_in_the_middle_gives_nothing_more(self) -> None:
        peer = self.peer()
        for last in (1, 2, LOOK, LOOK + 1):
            inbox = self.inbox()

            def close(data: bytes, source: tuple[str, int], inbox: Inbox = inbox, last: int = last) -> None:
                if len(inbox.datagrams) == last:
                    inbox.socket.close()

            inbox.react = close
            for _ in range(MANY):
                peer.sendto(b"x", inbox.address)
            with capturedLogs() as logs:
                await until(partial(self.closed, inbox))
                for _ in range(5):
                    await turn()
            self.assertEqual(warnings(logs, LogLevel.error), [])
            self.assertEqual(len(inbox.datagrams), last)
            self.assertNotIn(inbox.socket, reactor.getReaders())

    def closed(self, inbox: Inbox) -> bool:
        return inbox.socket.fileno() == -1


class TestFloods(Udp):
    async def test_a_flood_that_never_ends_keeps_nobody_waiting(self) -> None:
        inbox = self.inbox()

        def again(data: bytes, source: tuple[str, int]) -> None:
            if len(inbox.datagrams) < FLOOD:
                inbox.socket.send(data, inbox.address)

        inbox.react = again
        for _ in range(MANY):
            inbox.socket.send(b"x", inbox.address)
        for turns in range(1, 21):
            before = len(inbox.datagrams)
            await turn()
            # One quantum that is served at once, and one in the rounds.
            self.assertLessEqual(len(inbox.datagrams) - before, 2 * MESSAGES_ALONE, f"turn {turns}")
        self.assertLess(len(inbox.datagrams), FLOOD)
        self.assertGreater(len(inbox.datagrams), MESSAGES_ALONE)

    async def test_another_socket_is_heard_during_a_flood(self) -> None:
        flooded, other, peer = self.inbox(), self.inbox(), self.peer()

        def again(data: bytes, source: tuple[str, int]) -> None:
            if len(flooded.datagrams) < FLOOD:
                flooded.socket.send(data, flooded.address)

        flooded.react = again
        for _ in range(MANY):
            flooded.socket.send(b"x", flooded.address)
        await until(lambda: len(flooded.datagrams) > MESSAGES_ALONE)
        peer.sendto(b"still there?", other.address)
        await until(there_are(1, other.datagrams))
        self.assertLess(len(flooded.datagrams), FLOOD)

    async def test_what_the_kernel_had_no_room_for_is_counted(self) -> None:
        inbox, peer = self.inbox(wanted=SMALL_BUFFER), self.peer()
        sent = 500
        for _ in range(sent):
            peer.sendto(b"x", inbox.address)
        await until(inbox.datagrams.__len__)
        for _ in range(5):
            await turn()
        self.assertLess(len(inbox.datagrams), sent)
        for _ in range(2):  # the drops are told of with the next one that is kept, once
            peer.sendto(b"last", inbox.address)
            sent += 1
            await until(lambda: inbox.datagrams[-1] == b"last")
            inbox.datagrams[-1] = b""
            self.assertEqual(inbox.count("datagrams.received") + inbox.count("datagrams.dropped"), sent)


class TestSending(Udp):
    async def test_it_sends_from_the_port_at_which_it_listens(self) -> None:
        inbox, other = self.inbox(), self.inbox()
        self.assertTrue(inbox.socket.send(b" u.u 1.5", other.address))
        self.assertTrue(inbox.socket.send(b"", other.address))
        await until(there_are(2, other.datagrams))
        self.assertEqual(other.datagrams, [b" u.u 1.5", b""])
        self.assertEqual(other.sources, [inbox.address] * 2)
        self.assertEqual((inbox.count("datagrams.sent"), inbox.count("datagrams.unsent")), (2, 0))

    async def test_a_broadcast_on_loopback_reaches_who_listens_to_all_addresses(self) -> None:
        inbox, listener = self.inbox(), self.inbox(host="")
        self.assertTrue(inbox.socket.send(b"SHALOM 5246", ("127.255.255.255", listener.port)))
        await until(there_are(1, listener.datagrams))
        self.assertEqual(listener.datagrams, [b"SHALOM 5246"])
        self.assertEqual(listener.sources, [inbox.address])

    async def test_sending_where_nobody_listens_does_not_stop_the_reading(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        nowhere = (LOOPBACK, closed_port())
        for number in range(20):
            self.assertTrue(inbox.socket.send(b"anybody?", nowhere))
            peer.sendto(b"%d" % number, inbox.address)
            await until(there_are(number + 1, inbox.datagrams))

    async def test_an_error_of_the_network_that_a_read_meets_does_not_end_it(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        with capturedLogs() as logs:
            peer.sendto(b"before", inbox.address)
            self.refuse(inbox)
            peer.sendto(b"behind", inbox.address)
            inbox.socket.doRead()
            await until(there_are(2, inbox.datagrams))
        self.assertEqual(inbox.datagrams, [b"before", b"behind"])
        self.assertEqual(warnings(logs, LogLevel.error), [])

    async def test_an_error_of_the_network_that_the_next_send_meets_is_its_answer(self) -> None:
        inbox, other = self.inbox(), self.inbox()
        self.refuse(inbox)
        self.assertFalse(inbox.socket.send(b"lost", other.address))
        self.assertTrue(inbox.socket.send(b"here", other.address))
        await until(there_are(1, other.datagrams))
        self.assertEqual(other.datagrams, [b"here"])
        self.assertEqual(inbox.count("unsent.ECONNREFUSED"), 1)

    async def test_a_reactor_that_takes_it_out_over_such_an_error_has_it_back(self) -> None:
        inbox, peer = self.inbox(), self.peer()
        self.refuse(inbox)
        await until(lambda: inbox.socket not in reactor.getReaders())
        with same(inbox.socket) as other:
            other.recvmsg(0, 512, socket.MSG_ERRQUEUE)  # it would be taken out again and again
        peer.sendto(b"here", inbox.address)
        await until(there_are(1, inbox.datagrams))
        self.assertIn(inbox.socket, reactor.getReaders())

    def refuse(self, inbox: Inbox) -> None:
        """Cause an error of an earlier datagram, with the report enabled: it is off by default."""
        with same(inbox.socket) as other:
            other.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            self.assertTrue(inbox.socket.send(b"anybody?", (LOOPBACK, closed_port())))
            poll = select.poll()
            poll.register(other, 0)
            self.assertTrue(poll.poll(PATIENCE * 1000))


# With a clock


@pytest.fixture
def clock() -> TurningClock:
    return TurningClock()


@pytest.fixture
def inbox(clock: TurningClock) -> Iterator[Inbox]:
    inbox = Inbox(clock)
    yield inbox
    inbox.socket.close()


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with plain() as peer:
        yield peer


def warnings(logs: Sequence[Mapping[str, Any]], level: Any = LogLevel.warn) -> list[Mapping[str, Any]]:
    return [event for event in logs if event["log_level"] == level]


def test_a_turn_ends_with_the_look_at_the_clock_that_finds_it_over(
    clock: TurningClock, inbox: Inbox, peer: socket.socket
) -> None:
    for _ in range(LOOK * 4):
        peer.sendto(b"x", inbox.address)
    clock.tick = TURN * 2
    clock.read()
    served = [len(inbox.datagrams)]
    for _ in range(3):
        clock.turn()
        served.append(len(inbox.datagrams))
    assert served == [LOOK, LOOK * 2, LOOK * 3, LOOK * 4]


def test_one_that_waits_for_its_turn_is_not_put_in_the_queue_again(
    clock: TurningClock, inbox: Inbox, peer: socket.socket
) -> None:
    for _ in range(MANY):
        peer.sendto(b"x", inbox.address)
    for _ in range(10):
        clock.read()
    assert len(inbox.datagrams) == MESSAGES_ALONE
    clock.turn()
    assert len(inbox.datagrams) == MANY


def test_one_that_is_closed_while_it_waits_for_its_turn_gives_nothing_more(
    clock: TurningClock, inbox: Inbox, peer: socket.socket
) -> None:
    for _ in range(MANY):
        peer.sendto(b"x", inbox.address)
    clock.read()
    inbox.socket.close()
    inbox.socket.close()
    clock.turn()
    assert len(inbox.datagrams) == MESSAGES_ALONE
    assert (clock.readers, clock.getDelayedCalls()) == ([], [])


def test_an_error_that_stays_is_logged_once_a_minute_and_read_over_every_second(
    clock: TurningClock, inbox: Inbox, peer: socket.socket
) -> None:
    kept = os.dup(inbox.socket.fileno())
    with open(os.devnull, "rb") as no_socket:
        os.dup2(no_socket.fileno(), inbox.socket.fileno(), inheritable=False)
    with capturedLogs() as logs:
        for seconds in range(int(LINE_EVERY)):
            assert clock.readers == [inbox.socket], f"after {seconds} seconds"
            clock.read()
            assert clock.readers == []
            clock.advance(RETRY / 2)
            assert clock.readers == []
            clock.advance(RETRY / 2)
        assert len(warnings(logs, LogLevel.error)) == 1
        clock.read()
        assert len(warnings(logs, LogLevel.error)) == 2
    os.dup2(kept, inbox.socket.fileno(), inheritable=False)
    os.close(kept)
    peer.sendto(b"better", inbox.address)
    clock.advance(RETRY)
    clock.read()
    assert inbox.datagrams == [b"better"]


def test_a_socket_that_is_closed_while_it_rests_stays_out_of_the_reactor(clock: TurningClock, inbox: Inbox) -> None:
    inbox.socket.abort()
    assert (clock.readers, len(clock.getDelayedCalls())) == ([], 1)
    inbox.socket.abort()
    assert len(clock.getDelayedCalls()) == 1
    inbox.socket.close()
    inbox.socket.abort()
    assert (clock.readers, clock.getDelayedCalls()) == ([], [])


def test_a_failing_datagram_is_logged_once_a_minute(clock: TurningClock, inbox: Inbox, peer: socket.socket) -> None:
    def fail(data: bytes, source: tuple[str, int]) -> None:
        raise ZeroDivisionError("as it is meant to")

    inbox.react = fail
    logged = []
    with capturedLogs() as logs:
        for pause in (0.0, LINE_EVERY - 1, 1.0, -10 * LINE_EVERY):  # the last is a clock that is set back
            clock.rightNow += pause
            peer.sendto(b"x", inbox.address)
            inbox.socket.serve()
            logged.append(len([event for event in logs if "log_failure" in event]))
    assert logged == [1, 1, 2, 3]
    assert inbox.count("datagrams.failed") == 4


@pytest.mark.parametrize(
    ("data", "to", "kind"),
    [
        (bytes(LARGEST + 1), (LOOPBACK, 9), "EMSGSIZE"),
        (b"x", (LOOPBACK, 0), "EINVAL"),
        (b"x", ("localhost", 9), "address"),
        (b"x", ("", 9), "address"),
        (b"x", ("::1", 9), "address"),
    ],
)
def test_what_cannot_be_sent_is_an_answer_and_a_count_and_a_line_a_minute(
    clock: TurningClock, inbox: Inbox, data: bytes, to: tuple[str, int], kind: str
) -> None:
    logged = []
    with capturedLogs() as logs:
        for pause in (0.0, LINE_EVERY - 1, 1.0):
            clock.advance(pause)
            assert inbox.socket.send(data, to) is False
            logged.append(len(warnings(logs)))
    assert logged == [1, 1, 2]
    assert inbox.count("datagrams.unsent") == inbox.count(f"unsent.{kind}") == 3
    assert inbox.count("datagrams.sent") == 0


def test_each_kind_of_error_has_a_line_of_its_own(inbox: Inbox) -> None:
    with capturedLogs() as logs:
        for _ in range(3):
            inbox.socket.send(b"x", (LOOPBACK, 0))
            inbox.socket.send(bytes(LARGEST + 1), (LOOPBACK, 9))
    assert len(warnings(logs)) == 2


def test_what_is_sent_before_it_is_open_or_after_it_was_closed_is_not_sent(clock: TurningClock) -> None:
    unopened = UdpSocket(clock, Scheduler(clock), "test", LONGEST)
    assert unopened.fileno() == -1
    assert unopened.send(b"x", (LOOPBACK, 9)) is False
    assert unopened.serve() is False
    inbox = Inbox(clock)
    inbox.socket.close()
    assert inbox.socket.send(b"x", (LOOPBACK, 9)) is False
    assert inbox.count("unsent.closed") == inbox.count("datagrams.unsent") == 1


def test_a_port_that_is_taken_is_an_error_and_nothing_stays_open(clock: TurningClock, inbox: Inbox) -> None:
    other = UdpSocket(clock, Scheduler(clock), "other", LONGEST)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as caught:
        other.bind(LOOPBACK, inbox.port, _ignore)
    assert caught.value.errno == errno.EADDRINUSE
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert (other.fileno(), clock.readers) == (-1, [inbox.socket])
    inbox.socket.close()
    assert other.bind(LOOPBACK, inbox.port, _ignore) == inbox.port
    other.close()


def test_nobody_can_take_a_share_of_its_port(inbox: Inbox) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError) as caught:
            thief.bind(inbox.address)
    assert caught.value.errno == errno.EADDRINUSE


def test_its_descriptor_does_not_block_nor_outlive_an_exec(inbox: Inbox) -> None:
    assert os.get_blocking(inbox.socket.fileno()) is False
    assert os.get_inheritable(inbox.socket.fileno()) is False
    assert option(inbox.socket, socket.SO_BROADCAST) == 1


def test_the_buffer_is_what_the_kernel_says(inbox: Inbox) -> None:
    assert inbox.socket.buffer * 2 == option(inbox.socket, socket.SO_RCVBUF)


@pytest.mark.parametrize("wanted", [SMALL_BUFFER, 100_000])
def test_a_buffer_that_is_too_small_is_warned_of(clock: TurningClock, wanted: int) -> None:
    with capturedLogs() as logs:
        inbox = Inbox(clock, wanted=wanted)
    inbox.socket.close()
    (warning,) = warnings(logs)
    assert warning["buffer"] == inbox.socket.buffer == wanted
    assert "net.core.rmem_max" in warning["log_format"]


def test_a_buffer_that_is_large_enough_is_not_warned_of(clock: TurningClock) -> None:
    with capturedLogs() as logs:
        inbox = Inbox(clock)
    inbox.socket.close()
    # Some systems grant less, and only the superuser more.
    assert bool(warnings(logs)) == (inbox.socket.buffer < LEAST_BUFFER)
    assert inbox.socket.buffer <= BUFFER


@given(before=st.integers(0, 2**32 - 1), by=st.integers(0, 2**31 - 1))
def test_the_count_of_drops_goes_on_when_the_kernels_own_begins_again(before: int, by: int) -> None:
    assert risen(before, (before + by) % 2**32) == by


@given(before=st.integers(0, 2**32 - 1), behind=st.integers(1, 2**31))
def test_an_older_count_of_drops_is_none(before: int, behind: int) -> None:
    assert risen(before, (before - behind) % 2**32) == 0
