"""Questions to peers whether they live: what counts as an answer, when each ends, and what is left behind."""

from __future__ import annotations

import gc
import resource
import time
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

from broker.net.probes import AT_ONCE, MOST, RETRY, Probes
from broker.net.zclient import MAX_ANSWER, Dealer, Dealers
from tests.net.process import descriptors, script
from tests.net.pyzmq_peers import Peer, PlainRouter
from tests.net.waiting import reactor, there_are, turn, until
from tests.net.zmtp_peers import RawListener, message
from tests.patience import PATIENCE

HOST = "127.0.0.1"

PING = [b"", b"ping", b"time", b"Hello!"]

LONG = 60.0
"""Seconds that no test takes."""

SHORT = 0.3
"""Seconds for a question that nobody will answer."""


class Probing(TestCase):
    """A test case with probes in the reactor's time, and plain peers; all are closed in the end."""

    def setUp(self) -> None:
        self.peers: zmq.Context[Any] = zmq.Context()
        self.addCleanup(self.peers.destroy, 0)
        self.told: list[bool | None] = []
        self.probes = self.make(reactor)

    def make(self, clock: Any) -> Probes:
        """Probes in the time of that clock, closed in the end. Their sockets are in the reactor."""
        self.dealers = Dealers(reactor)
        probes = Probes(self.dealers, clock, "test")
        self.addCleanup(probes.close)
        return probes

    def ask(self, port: int, seconds: float = LONG, frames: list[bytes] = PING, host: str = HOST) -> None:
        self.probes.ask(host, port, frames, seconds, self.told.append)

    async def answer(self, port: int, seconds: float = LONG, host: str = HOST) -> bool | None:
        """Ask, and wait until it is answered or not."""
        count = len(self.told)
        self.ask(port, seconds, host=host)
        await until(there_are(count + 1, self.told))
        return self.told[count]

    def ended(self) -> tuple[int, int, int]:
        """How many questions were answered, not answered, and put off."""
        counts = self.probes.counts()
        return counts["test_probes.answered"], counts["test_probes.unanswered"], counts["test_probes.put_off"]

    def dealer(self) -> Dealer:
        """The socket of the one question that is open."""
        [question] = self.probes._open
        assert question.dealer is not None
        return question.dealer

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


class TestAnswers(Probing):
    async def test_who_answers_lives(self) -> None:
        self.assertIs(await self.answer(self.echo().port), True)
        self.assertEqual(self.ended(), (1, 0, 0))
        self.assertEqual(len(self.dealers), 0)

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
        before = descriptors()
        raw.send(message(b"", b"pong"))
        raw.close()
        # The reactor does not turn until libzmq has closed its side too.
        wait(lambda: descriptors() <= before - 2)
        await until(lambda: self.told)
        self.assertEqual(self.told, [True])

    async def test_what_came_while_the_broker_was_busy_is_an_answer(self) -> None:
        clock = Clock()
        self.probes = self.make(clock)
        peer, port = self.outsider(zmq.ROUTER)
        self.ask(port, 1.0)
        clock.advance(0)
        wait(lambda: peer.look())
        dealer = self.dealer()
        peer.send(*peer.inbox[0])
        wait(dealer.answered)
        clock.advance(5.0)
        self.assertEqual((self.told, self.ended()), ([True], (1, 0, 0)))

    async def test_another_question_may_be_asked_when_one_is_answered(self) -> None:
        port = self.echo().port

        def again(alive: bool | None) -> None:
            self.told.append(alive)
            if len(self.told) < 20:
                self.probes.ask(HOST, port, PING, LONG, again)

        self.probes.ask(HOST, port, PING, LONG, again)
        await until(there_are(20, self.told))
        self.assertEqual(self.told, [True] * 20)

    async def test_what_fails_when_it_is_told_costs_that_question_only(self) -> None:
        def fail(alive: bool | None) -> None:
            self.told.append(alive)
            raise ZeroDivisionError("as it is meant to")

        server, silent = self.echo(), self.serve()
        self.probes.ask(HOST, server.port, PING, LONG, fail)
        self.probes.ask(HOST, silent.port, PING, SHORT, fail)
        await until(there_are(2, self.told))
        self.assertEqual(self.told, [True, False])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual(len(self.dealers), 0)
        self.assertIs(await self.answer(server.port), True)


class Failing:
    """A socket that cannot be asked for its state."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.close = socket.close

    def get(self, option: int) -> int:
        raise zmq.ZMQError(zmq.EFAULT)


class TestNoAnswers(Probing):
    async def test_who_does_not_answer_in_time_does_not_live(self) -> None:
        server = self.serve()
        began = reactor.seconds()
        self.assertIs(await self.answer(server.port, SHORT), False)
        self.assertGreaterEqual(reactor.seconds() - began, SHORT)
        self.assertEqual(server.messages, [PING])
        self.assertEqual((self.ended(), len(self.dealers)), ((0, 1, 0), 0))

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
        for host in ("255.255.255.255", "224.0.0.1", "0.0.0.0", "127.255.255.255"):
            self.assertIs(await self.answer(9, SHORT, host), False)
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

    async def test_a_socket_that_fails_has_no_answer_and_harms_no_other_question(self) -> None:
        server = self.serve()
        self.ask(server.port, SHORT)
        await until(there_are(1, server.messages))
        dealer = self.dealer()
        dealer.socket = Failing(dealer.socket)
        server.send(server.identities[0], PING)
        self.assertIs(await self.answer(self.echo().port), True)
        await until(there_are(2, self.told))
        self.assertEqual((self.told, self.ended(), len(self.dealers)), ([True, False], (1, 1, 0), 0))

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
            opened.append(len(self.dealers))
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
        while len(self.dealers) < count:
            self.clock.advance(0)
            await turn()

    async def test_no_more_than_the_most_are_open_and_all_are_answered(self) -> None:
        server = self.echo()
        most = 0
        count = 3 * MOST
        for _ in range(count):
            self.ask(server.port)
        while len(self.told) < count:
            most = max(most, len(self.dealers))
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
        self.clock.advance(9.9)
        for number in range(5):
            server.forget()
            self.clock.advance(1.0)
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
            opened = len(self.dealers)
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
            self.ask(server.port, 2 * SHORT)
        await until(there_are(MOST, server.messages))
        self.probes.close()
        self.probes.close()
        self.assertEqual(len(self.dealers), 0)
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
        self.assertEqual(len(self.dealers), 0)

    async def test_all_may_be_closed_when_one_is_answered(self) -> None:
        server = self.echo()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, LONG, close)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, len(self.dealers)), ([True], 0))

    async def test_all_may_be_closed_when_the_time_of_one_is_over(self) -> None:
        server = self.serve()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, SHORT, close)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, len(self.dealers)), ([False], 0))

    async def test_hundreds_that_are_answered_or_not_leave_no_descriptor(self) -> None:
        server, silent = self.echo(), self.serve()
        await self.answer(server.port)
        await until(lambda: len(self.dealers) == 0)
        before = descriptors()
        for _ in range(4):
            self.told.clear()
            for _ in range(50):
                self.ask(server.port)
                self.ask(silent.port, SHORT)
            await until(there_are(100, self.told))
            self.assertEqual(sorted(self.told), [False] * 50 + [True] * 50)
        await until(lambda: descriptors() <= before)

    async def test_what_has_ended_leaves_nothing_to_the_garbage_collector(self) -> None:
        server = self.echo()
        await self.answer(server.port)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        for _ in range(100):
            self.ask(server.port)
        await until(there_are(101, self.told))
        self.assertLess(gc.collect(), 500)


@pytest.fixture
def probes() -> Any:
    probes = Probes(Dealers(reactor), Clock(), "test")
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
    probes = Probes(Dealers(reactor), Clock(), "test")
    try:
        probes.ask(host, 1, PING, 1.0, print)
    except ValueError:
        pass
    else:
        assert len(host.split(".")) == 4
        assert all(0 <= int(part) <= 255 for part in host.split("."))
    probes.close()


def test_without_descriptors_there_are_no_dealers() -> None:
    with no_descriptors(), pytest.raises(OSError):
        Dealers(reactor)


SCARCE = """
import os, resource
import zmq
from twisted.internet import reactor
from broker.net.zclient import Dealers

dealers = Dealers(reactor)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for left in range(8):
    used = []
    try:
        while True:
            used.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(left):
        os.close(used.pop())
    try:
        dealers.open("tcp://127.0.0.1:9", [b"x"], print).shutdown()
        print(left, "opened")
    except zmq.ZMQError:
        print(left, "refused")
    for each in used:
        os.close(each)
dealers.close()
"""


def test_the_first_question_harms_nothing_however_few_descriptors_are_left() -> None:
    """libzmq aborts the process if it starts its threads with two to four descriptors left: they are started before."""
    outcomes = script(SCARCE).splitlines()
    assert len(outcomes) == 8
    assert outcomes[0] == "0 refused"
    assert outcomes[-1] == "7 opened"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the system give no more of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait(condition: Callable[[], object]) -> None:
    """Wait until it holds, while the reactor stands still."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.001)
