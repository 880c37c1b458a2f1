"""Liveness probes: valid answers, deadlines, and released resources.

The file is longer than others: it has all tests of `broker.net.probes`.
"""

from __future__ import annotations

import gc
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from broker.config.checks_settings import Checks
from broker.core.errors import Refusal
from broker.net.outgoing_addresses import Outgoing
from broker.net.probes import AT_ONCE, LIMITS, MAX_ANSWER, MOST, RETRY, Probes
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from tests.garbage import no_collection, set_aside
from tests.net.process import descriptors
from tests.net.pyzmq_peers import Peer, PlainRouter
from tests.net.waiting import reactor, there_are, turn, until
from tests.net.zmtp.conversation import GREETING, SIGNATURE
from tests.net.zmtp_peers import RawListener, RawPeer, command, greeting, message, part, ready

HOST = "127.0.0.1"

PING = [b"", b"ping", b"time", b"Hello!"]

LONG = 60.0
"""Seconds that no test takes."""

SHORT = 0.3
"""Seconds for a question without an answer."""

PING_COMMAND = b"\x04\x09\x04PING\0\0me"
"""A heartbeat of ZMTP 3.1."""

MOST_IN_KERNEL = 32 * 1024 * 1024
"""Bytes that the kernel does not hold for one connection, with those that the broker takes."""


def make(clock: Any) -> Probes:
    """Probes in the time of that clock."""
    outgoing = Outgoing(Checks().networks, list, lambda kind: None)
    return Probes(reactor, clock, Scheduler(reactor), RefusalLog(Counters(), reactor), outgoing, "test")


class Probing(TestCase):
    """A test case with probes in the reactor's time, and plain peers; all are closed in the end."""

    def setUp(self) -> None:
        self.peers: zmq.Context[Any] = zmq.Context()
        self.addCleanup(self.peers.destroy, 0)
        self.told: list[bool | None] = []
        self.probes = self.make(reactor)

    def make(self, clock: Any) -> Probes:
        """Probes in the time of that clock, closed in the end. Their sockets are in the reactor."""
        probes = make(clock)
        self.addCleanup(probes.close)
        return probes

    def open(self) -> int:
        """The number of questions that are open."""
        return len(self.probes._open)

    def ask(self, port: int, seconds: float = LONG, frames: list[bytes] = PING, host: str = HOST) -> None:
        self.probes.ask(host, port, frames, seconds, self.told.append, local=True)

    async def answer(self, port: int, seconds: float = LONG, host: str = HOST) -> bool | None:
        """Ask, and wait until it is answered or not."""
        count = len(self.told)
        self.ask(port, seconds, host=host)
        await until(there_are(count + 1, self.told))
        return self.told[count]

    def ended(self) -> tuple[int, int, int]:
        """The numbers of questions answered, not answered, and put off."""
        counts = self.probes.counts()
        return counts["test_probes.answered"], counts["test_probes.unanswered"], counts["test_probes.put_off"]

    def serve(self) -> PlainRouter:
        """A ROUTER that keeps messages."""
        server = PlainRouter(self.peers)
        self.addCleanup(server.close)
        return server

    def echo(self) -> PlainRouter:
        """A ROUTER that sends each message back."""
        server = self.serve()
        server.react = server.echo
        return server

    def outsider(self, kind: int) -> tuple[Peer, int]:
        """A plain socket that the reactor does not look at, and its port."""
        peer = Peer(self.peers, "inproc://nobody", kind=kind)
        self.addCleanup(peer.close)
        return peer, peer.socket.bind_to_random_port("tcp://127.0.0.1")

    async def answers(self, server: PlainRouter) -> None:
        """See that a peer is served while the reactor turns."""
        server.react = server.echo
        peer = Peer(self.peers, f"tcp://{HOST}:{server.port}")
        self.addCleanup(peer.close)
        peer.send(*PING)
        self.assertEqual(await peer.receive(), [PING])

    def listener(self) -> RawListener:
        listener = RawListener()
        self.addCleanup(listener.close)
        return listener

    async def asked(self, seconds: float = LONG) -> RawPeer:
        """A raw service that was asked, and has not answered."""
        listener = self.listener()
        self.ask(listener.port, seconds)
        raw = await listener.accept()
        await raw.handshake(kind=b"ROUTER")
        await until(lambda: b"Hello!" in raw.look())
        return raw


class TestAnswers(Probing):
    async def test_who_answers_lives(self) -> None:
        self.assertIs(await self.answer(self.echo().port), True)
        self.assertEqual(self.ended(), (1, 0, 0))
        self.assertEqual(self.open(), 0)

    async def test_it_is_not_told_before_the_question_returns(self) -> None:
        port = self.echo().port
        self.ask(port)
        self.ask(port, 0)
        self.assertEqual(self.told, [])
        await until(there_are(2, self.told))

    async def test_the_frames_arrive_as_they_were_given(self) -> None:
        server = self.echo()
        await self.answer(server.port)
        self.assertEqual(server.messages, [PING])

    async def test_a_rep_socket_answers(self) -> None:
        peer, port = self.outsider(zmq.REP)
        self.ask(port)
        await until(lambda: peer.socket.poll(0))
        self.assertEqual(peer.socket.recv_multipart(), PING[1:])
        self.assertEqual(self.told, [])
        peer.send(b"pong")
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_a_dealer_answers(self) -> None:
        peer, port = self.outsider(zmq.DEALER)
        self.ask(port)
        await until(lambda: peer.look())
        self.assertEqual(peer.inbox, [PING])
        for _ in range(2):  # it has another connection, which nobody reads, and gives to both in turn
            peer.send(b"pong")
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_a_service_of_zmtp_2_answers(self) -> None:
        """As libzmq 3.2 speaks it: the socket type and the identity as a frame, and no commands."""
        listener = self.listener()
        self.ask(listener.port)
        raw = await listener.accept()
        raw.send(SIGNATURE + b"\x01\x06\0\0")
        await until(lambda: b"Hello!" in raw.look())
        self.assertEqual(bytes(raw.data), SIGNATURE + b"\x03" + b"\x05\0\0" + message(*PING))
        raw.send(message(b"", b"pong"))
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_a_heartbeat_is_answered_and_is_no_answer(self) -> None:
        raw = await self.asked()
        raw.send(PING_COMMAND)
        await until(lambda: raw.look().endswith(command(b"\x04PONGme")))
        self.assertEqual(self.told, [])
        raw.send(message(b"", b"pong"))
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_an_answer_counts_however_its_octets_come(self) -> None:
        listener = self.listener()
        self.ask(listener.port)
        raw = await listener.accept()
        for octet in greeting() + ready({b"Socket-Type": b"REP"}):
            raw.send(bytes((octet,)))
            await turn()
        await until(lambda: b"Hello!" in raw.look())
        for octet in message(b"", b"pong"):
            self.assertEqual(self.told, [])
            raw.send(bytes((octet,)))
            await turn()
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_whatever_comes_back_is_an_answer(self) -> None:
        for frames in ([b""], [b"\xff\xfe"], [b"", b"</3"], [b"x"] * 5_000, [bytes(MAX_ANSWER)] * 3, [b"", b"", b""]):
            server = self.serve()
            server.react = lambda identity, asked: server.send(identity, frames)  # noqa: B023
            self.assertIs(await self.answer(server.port), True)

    async def test_it_is_told_once_however_much_comes_back(self) -> None:
        server = self.serve()

        def answer(identity: bytes, frames: list[bytes]) -> None:
            for _ in range(500):
                server.send(identity, frames)

        server.react = answer
        self.assertIs(await self.answer(server.port), True)
        await self.answer(server.port)
        self.assertEqual(self.told, [True, True])

    async def test_what_came_just_before_the_connection_ended_is_an_answer(self) -> None:
        listener = self.listener()
        self.ask(listener.port)
        raw = await listener.accept()
        await raw.handshake(kind=b"ROUTER")
        await until(lambda: b"Hello!" in raw.look())
        raw.send(message(b"", b"pong"))
        raw.close()
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_what_came_while_the_broker_was_busy_is_an_answer(self) -> None:
        peer, port = self.outsider(zmq.ROUTER)
        self.ask(port, 1.0)
        await until(lambda: peer.look())

        def busy() -> None:
            peer.send(*peer.inbox[0])  # libzmq's thread sends it
            time.sleep(1.2)

        before_timers(busy)
        await until(lambda: self.told)
        self.assertEqual((self.told, self.ended()), ([True], (1, 0, 0)))

    async def test_a_question_gets_the_time_for_which_the_broker_stood_still_at_its_end(self) -> None:
        """Also where the handshake had not begun: with the time of the clock alone no answer could have come."""
        server = self.echo()
        self.ask(server.port, 1.0)
        await turn()
        before_timers(lambda: time.sleep(1.5))
        await until(lambda: self.told)
        self.assertEqual((self.told, self.ended()), ([True], (1, 0, 0)))

    async def test_that_time_is_given_once_and_no_more_than_the_question_had(self) -> None:
        clock = Clock()
        self.probes = self.make(clock)
        self.ask(self.serve().port, 1.0)
        clock.advance(0)
        clock.advance(100.0)
        clock.advance(0.9)
        self.assertEqual(self.told, [])
        clock.advance(0.1)
        self.assertEqual(self.told, [False])

    async def test_another_question_may_be_asked_when_one_is_answered(self) -> None:
        port = self.echo().port

        def again(alive: bool | None) -> None:
            self.told.append(alive)
            if len(self.told) < 20:
                self.probes.ask(HOST, port, PING, LONG, again, local=True)

        self.probes.ask(HOST, port, PING, LONG, again, local=True)
        await until(there_are(20, self.told))
        self.assertEqual(self.told, [True] * 20)

    async def test_what_fails_when_it_is_told_costs_that_question_only(self) -> None:
        def fail(alive: bool | None) -> None:
            self.told.append(alive)
            raise ZeroDivisionError("as it is meant to")

        server, silent = self.echo(), self.serve()
        self.probes.ask(HOST, server.port, PING, LONG, fail, local=True)
        self.probes.ask(HOST, silent.port, PING, SHORT, fail, local=True)
        await until(there_are(2, self.told))
        self.assertEqual(self.told, [True, False])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual(self.open(), 0)
        self.assertIs(await self.answer(server.port), True)


class TestNoAnswers(Probing):
    async def test_who_does_not_answer_in_time_does_not_live(self) -> None:
        server = self.serve()
        began = reactor.seconds()
        self.assertIs(await self.answer(server.port, SHORT), False)
        self.assertGreaterEqual(reactor.seconds() - began, SHORT)
        self.assertEqual(server.messages, [PING])
        self.assertEqual((self.ended(), self.open()), ((0, 1, 0), 0))

    async def test_an_answer_that_comes_too_late_is_none(self) -> None:
        server = self.serve()
        self.assertIs(await self.answer(server.port, SHORT), False)
        server.send(server.identities[0], PING)
        self.assertIs(await self.answer(self.echo().port), True)
        self.assertEqual(self.told, [False, True])

    async def test_where_nobody_listens_nobody_lives(self) -> None:
        listener = self.listener()
        listener.close()
        self.assertIs(await self.answer(listener.port, SHORT), False)

    async def test_addresses_that_lead_nowhere_do_no_harm(self) -> None:
        self.assertIs(await self.answer(9, SHORT, "127.255.255.255"), False)
        for host in ("255.255.255.255", "224.0.0.1", "0.0.0.0", "169.254.169.254", "192.0.2.1"):
            with self.assertRaises(Refusal):
                self.ask(9, SHORT, host=host)
        self.assertIs(await self.answer(self.echo().port), True)

    async def test_what_is_no_zeromq_does_not_live(self) -> None:
        for data in (b"", b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xff" * 100, bytes(1_000)):
            listener = self.listener()
            self.ask(listener.port, SHORT)
            (await listener.accept()).send(data)
            await until(lambda: self.told)
            self.assertEqual(self.told, [False])
            self.told.clear()
        self.assertIs(await self.answer(self.echo().port), True)

    async def test_a_connection_that_nobody_accepts_does_no_harm(self) -> None:
        self.assertIs(await self.answer(self.listener().port, SHORT), False)

    async def test_an_answer_that_is_too_long_is_none(self) -> None:
        server = self.serve()
        server.react = lambda identity, frames: server.send(identity, [bytes(MAX_ANSWER + 1)])
        self.assertIs(await self.answer(server.port, SHORT), False)

    async def test_half_an_answer_is_none(self) -> None:
        listener = self.listener()
        self.ask(listener.port, 1.0)
        raw = await listener.accept()
        await raw.handshake(kind=b"ROUTER")
        raw.send(message(b"", b"pong")[:-1])
        await until(lambda: self.told)
        self.assertEqual(self.told, [False])

    @pytest.mark.long
    async def test_an_endless_answer_is_bounded_and_none(self) -> None:
        for piece in (part(bytes(60_000)), part(b"") * 10_000, PING_COMMAND * 10_000, command(b"\x05OTHER") * 10_000):
            raw = await self.asked()
            sent = 0
            while not raw.closed:
                if not raw.unsent:
                    raw.send(piece)
                    sent += len(piece)
                self.assertLess(sent, MOST_IN_KERNEL)
                await turn()
        self.assertEqual(self.told, [])

    async def test_an_endless_answer_leaves_no_memory(self) -> None:
        raw = await self.asked(1.0)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        piece = part(bytes(60_000)) * 10
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        while not self.told:
            if not raw.unsent and not raw.closed:
                raw.send(piece)
            await turn()
        self.assertLess(tracemalloc.get_traced_memory()[1] - before, 2 * LIMITS.message + 2 * len(piece))
        self.assertEqual(self.told, [False])

    async def test_a_peer_for_which_the_kernel_has_no_room_is_left(self) -> None:
        listener = self.listener()
        too_large = [b"", bytes(MOST_IN_KERNEL)]
        self.ask(listener.port, LONG, too_large)
        raw = await listener.accept()
        await raw.handshake(kind=b"ROUTER")
        await raw.wait_closed()
        self.assertEqual(self.told, [])
        self.ask(listener.port, SHORT, too_large)
        await until(lambda: self.told)
        self.assertEqual(self.told, [False])

    async def test_a_flood_does_not_hold_up_other_questions(self) -> None:
        floods = [await self.asked() for _ in range(20)]
        server = self.echo()
        for _ in range(20):
            for raw in floods:
                raw.send(part(b"") * 1_000)
            self.assertIs(await self.answer(server.port), True)
        self.assertEqual(self.ended(), (20, 0, 0))

    async def test_who_says_nothing_does_not_live(self) -> None:
        listener = self.listener()
        self.ask(listener.port, SHORT)
        raw = await listener.accept()
        await until(lambda: self.told)
        self.assertEqual(self.told, [False])
        await raw.wait_closed()
        self.assertEqual(bytes(raw.data), SIGNATURE + b"\x03")

    async def test_another_mechanism_has_no_answer(self) -> None:
        _, secret = zmq.curve_keypair()
        peer = Peer(self.peers, "inproc://nobody", kind=zmq.ROUTER, curve_server=True, curve_secretkey=secret)
        self.addCleanup(peer.close)
        self.assertIs(await self.answer(peer.socket.bind_to_random_port("tcp://127.0.0.1"), SHORT), False)
        self.assertEqual(peer.look(), [])

    async def test_a_socket_that_does_not_go_with_a_dealer_is_refused(self) -> None:
        _, port = self.outsider(zmq.PUB)
        self.assertIs(await self.answer(port, SHORT), False)
        listener = self.listener()
        self.ask(listener.port, SHORT)
        raw = await listener.accept()
        raw.send(GREETING + ready({b"Socket-Type": b"SUB"}) + message(b"", b"pong"))
        await raw.wait_closed()
        self.assertIn(b"ERROR", raw.data)
        self.assertNotIn(b"Hello!", raw.data)
        await until(there_are(2, self.told))
        self.assertEqual(self.told, [False, False])

    async def test_a_refusal_in_the_handshake_is_none(self) -> None:
        listener = self.listener()
        self.ask(listener.port, SHORT)
        raw = await listener.accept()
        raw.send(GREETING + command(b"\x05ERROR\x03no!") + message(b"", b"pong"))
        await raw.wait_closed()
        self.assertEqual(self.told, [])
        await until(lambda: self.told)
        self.assertEqual(self.told, [False])

    async def test_a_question_makes_one_connection(self) -> None:
        listener = self.listener()
        self.ask(listener.port, 1.0)
        (await listener.accept()).close()
        await until(lambda: self.told)
        self.assertEqual((self.told, len(listener.look())), ([False], 1))


class TestTurns(Probing):
    async def test_only_some_are_opened_in_each_turn(self) -> None:
        port = self.serve().port
        for _ in range(3 * AT_ONCE):
            self.ask(port)
        opened = [0]
        while opened[-1] < 3 * AT_ONCE:
            opened.append(self.open())
            await turn()
        self.assertLessEqual(max(after - before for before, after in pairwise(opened)), AT_ONCE)


class TestCrowds(Probing):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.probes = self.make(self.clock)

    def numbered(self, server: PlainRouter) -> list[int]:
        """The numbers of the questions that arrived."""
        return [int(frames[1]) for frames in server.messages]

    async def opened(self, count: int) -> None:
        """Let the clock turn until so many are open."""
        while self.open() < count:
            self.clock.advance(0)
            await turn()

    async def test_no_more_than_the_most_are_open_and_all_are_answered(self) -> None:
        server = self.echo()
        most = 0
        count = 3 * MOST
        for _ in range(count):
            self.ask(server.port)
        while len(self.told) < count:
            most = max(most, self.open())
            self.clock.advance(0)
            await turn()
        self.assertLessEqual(most, MOST)
        self.assertEqual((self.told, self.ended()), ([True] * count, (count, 0, 0)))
        self.assertEqual(self.probes.counts()["test_probes.asked"], count)

    async def test_the_others_wait_in_order(self) -> None:
        server = self.serve()
        for number in range(MOST + 5):
            self.ask(server.port, 10.0 + number, [b"", b"%d" % number])
        await self.opened(MOST)
        await until(there_are(MOST, server.messages))
        self.assertEqual(sorted(self.numbered(server)), list(range(MOST)))
        self.clock.advance(9.0)
        for number in range(5):
            server.forget()
            self.clock.advance(1.0)
            self.clock.advance(0)
            self.assertEqual(self.told, [False] * (number + 1))
            await self.opened(MOST)
            await until(there_are(1, server.messages))
            self.assertEqual(self.numbered(server), [MOST + number])

    async def test_those_that_wait_too_long_are_put_off_and_not_sent(self) -> None:
        server = self.serve()
        for number in range(MOST):
            self.ask(server.port, 10.0, [b"", b"%d" % number])
        for number, seconds in ((MOST, 50.0), (MOST + 1, 5.0), (MOST + 2, 50.0), (MOST + 3, 5.0)):
            self.ask(server.port, seconds, [b"", b"%d" % number])
        await self.opened(MOST)
        await until(there_are(MOST, server.messages))
        self.clock.advance(5.0)
        self.assertEqual((self.told, self.ended()), ([None] * 2, (0, 0, 2)))
        self.clock.advance(5.0)
        self.clock.advance(0)
        self.assertEqual(self.ended(), (0, MOST, 2))
        await self.opened(2)
        await until(there_are(MOST + 2, server.messages))
        self.assertEqual(sorted(self.numbered(server)), [*range(MOST + 1), MOST + 2])

    async def test_without_descriptors_questions_wait_until_there_are_some_again(self) -> None:
        port = self.echo().port
        self.ask(port)
        self.ask(port, RETRY / 2)
        with no_descriptors():
            self.clock.advance(0)
            opened = self.open()
            self.clock.advance(RETRY / 2)
        self.assertEqual((opened, self.told, self.ended()), (0, [None], (0, 0, 1)))
        self.clock.advance(RETRY / 2)
        await until(there_are(2, self.told))
        self.assertEqual(self.told, [None, True])


class TestEnds(Probing):
    async def test_after_the_close_nobody_is_told_and_nothing_is_left(self) -> None:
        server = self.serve()
        await turn()  # the reactor opens some of its own
        before = descriptors()
        for _ in range(MOST + 50):
            self.ask(server.port)
        await until(there_are(MOST, server.messages))
        self.probes.close()
        self.probes.close()
        self.assertEqual(self.open(), 0)
        self.assertEqual([call for call in reactor.getDelayedCalls() if "robes" in str(call)], [])
        for identity in server.identities:
            server.send(identity, PING)
        await until(lambda: descriptors() <= before)
        self.assertEqual(self.told, [])

    async def test_after_the_close_nothing_is_asked(self) -> None:
        self.probes.close()
        self.ask(self.echo().port, 0)
        for _ in range(3):
            await turn()
        self.assertEqual((self.told, self.probes.counts()["test_probes.asked"]), ([], 0))
        self.assertEqual(self.open(), 0)

    async def test_all_may_be_closed_when_one_is_answered(self) -> None:
        server = self.echo()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, LONG, close, local=True)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, self.open()), ([True], 0))

    async def test_all_may_be_closed_when_the_time_of_one_is_over(self) -> None:
        server = self.serve()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, SHORT, close, local=True)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, self.open()), ([False], 0))

    @pytest.mark.long
    async def test_hundreds_that_are_answered_or_not_leave_no_descriptor(self) -> None:
        server, silent = self.echo(), self.serve()
        await self.answer(server.port)
        await until(lambda: self.open() == 0)
        before = descriptors()
        for _ in range(4):
            self.told.clear()
            for _ in range(50):
                self.ask(server.port)
                self.ask(silent.port, 1.0)
            await until(there_are(100, self.told))
            self.assertEqual(sorted(self.told), [False] * 50 + [True] * 50)
        await until(lambda: descriptors() <= before)

    async def test_what_has_ended_leaves_nothing_to_the_garbage_collector(self) -> None:
        server = self.echo()
        await self.answer(server.port)
        set_aside()
        with no_collection():
            for _ in range(100):
                self.ask(server.port)
            await until(there_are(101, self.told))
            self.assertLess(gc.collect(), 100)


@pytest.fixture
def probes() -> Any:
    probes = make(Clock())
    yield probes
    probes.close()


@pytest.mark.parametrize(
    ("host", "port", "frames"),
    [
        ("localhost", 1, PING),
        ("example.org", 1, PING),
        ("", 1, PING),
        ("::1", 1, PING),
        ("127.1", 1, PING),
        ("127.0.0.01", 1, PING),
        ("127.0.0.1:2", 1, PING),
        ("127.0.0.1;127.0.0.1", 1, PING),
        (" 127.0.0.1", 1, PING),
        ("*", 1, PING),
        ("127.0.0.1", 0, PING),
        ("127.0.0.1", -1, PING),
        ("127.0.0.1", 65_536, PING),
        ("127.0.0.1", 1, []),
    ],
)
def test_what_cannot_be_asked_is_refused(probes: Probes, host: str, port: int, frames: list[bytes]) -> None:
    with pytest.raises(ValueError):
        probes.ask(host, port, frames, 1.0, print)
    assert probes.counts()["test_probes.asked"] == 0


@given(st.text())
def test_no_text_is_asked_that_is_no_address(host: str) -> None:
    probes = make(Clock())
    try:
        probes.ask(host, 1, PING, 1.0, print)
    except ValueError:
        pass
    except Refusal:
        probes.close()
    else:
        assert len(host.split(".")) == 4
        assert all(0 <= int(part) <= 255 for part in host.split("."))
    probes.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the system give no more of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def before_timers(act: Callable[[], object]) -> None:
    """Act in the reactor, in the next turn: the timers that are due by then run before anything is read."""
    reactor.callFromThread(act)
