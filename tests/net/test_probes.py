"""Questions to peers whether they live: what counts as an answer, when each ends, and what is left behind."""

from __future__ import annotations

import gc
import resource
import select
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

from broker.net.probes import AT_ONCE, MAX_ANSWER, MOST, RETRY, Probes
from broker.net.turns import Turns
from broker.net.zcontext import ZContext
from broker.net.zsocket import ZSocket
from tests.net.zmq_peers import (
    Peer,
    RawListener,
    Server,
    Stage,
    descriptors,
    message,
    reactor,
    readable,
    there_are,
    turn,
    until,
)
from tests.patience import PATIENCE

HOST = "127.0.0.1"

PING = [b"", b"ping", b"time", b"Hello!"]

LONG = 60.0
"""Seconds that no test takes."""

SHORT = 0.3
"""Seconds for a question that nobody will answer."""


class Probing(Stage):
    """A test case with probes in the reactor's time."""

    def setUp(self) -> None:
        super().setUp()
        self.told: list[bool | None] = []
        self.probes = self.make(reactor)

    def make(self, clock: Any) -> Probes:
        """Probes in the time of that clock, closed in the end. Their sockets are in the reactor."""
        probes = Probes(self.context, self.turns, clock, "test")
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

    def sockets(self) -> list[ZSocket]:
        """The sockets of questions that are open."""
        return [each for each in self.context.factory.connections if each.socketType == zmq.DEALER]

    def echo(self, **options: Any) -> Server:
        """A ROUTER that answers with what it is asked."""
        server = self.serve(**options)
        server.react = lambda identity, frames, source: server.socket.send(identity, frames)
        return server

    def outsider(self, kind: int) -> tuple[Peer, int]:
        """A plain socket outside of the reactor, and its port."""
        peer = Peer(self.peers, "inproc://nobody", kind=kind)
        self._plain.append(peer)
        return peer, peer.socket.bind_to_random_port("tcp://127.0.0.1")

    def listener(self) -> RawListener:
        listener = RawListener()
        self.addCleanup(listener.close)
        return listener


class TestAnswers(Probing):
    async def test_who_answers_lives(self) -> None:
        self.assertIs(await self.answer(self.echo().port), True)
        self.assertEqual(self.ended(), (1, 0, 0))
        self.assertEqual(self.sockets(), [])

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
            server.react = lambda identity, asked, source: server.socket.send(identity, frames)  # noqa: B023
            self.assertIs(await self.answer(server.port), True)

    async def test_it_is_told_once_however_much_comes_back(self) -> None:
        server = self.serve()

        def answer(identity: bytes, frames: list[Any], source: int) -> None:
            for _ in range(500):
                server.socket.send(identity, frames)

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
        [socket] = self.sockets()
        wait(lambda: select.select([socket.fileno()], [], [], 0)[0])
        while readable(socket):  # what it has to say of the connection
            socket.socket.get(zmq.EVENTS)
        peer.send(*peer.inbox[0])
        wait(lambda: readable(socket))
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

        server, silent = self.echo(), self.serve(name="silent")
        self.probes.ask(HOST, server.port, PING, LONG, fail)
        self.probes.ask(HOST, silent.port, PING, SHORT, fail)
        await until(there_are(2, self.told))
        self.assertEqual(self.told, [True, False])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
        self.assertEqual(self.sockets(), [])
        self.assertIs(await self.answer(server.port), True)


class TestNoAnswers(Probing):
    async def test_who_does_not_answer_in_time_does_not_live(self) -> None:
        server = self.serve()
        began = reactor.seconds()
        self.assertIs(await self.answer(server.port, SHORT), False)
        self.assertGreaterEqual(reactor.seconds() - began, SHORT)
        self.assertEqual(server.messages, [PING])
        self.assertEqual((self.ended(), self.sockets()), ((0, 1, 0), []))

    async def test_an_answer_that_comes_too_late_is_none(self) -> None:
        server = self.serve()
        self.assertIs(await self.answer(server.port, SHORT), False)
        server.socket.send(server.identities[0], PING)
        self.assertIs(await self.answer(self.echo(name="other").port), True)
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
        server.react = lambda identity, frames, source: server.socket.send(identity, [bytes(MAX_ANSWER + 1)])
        self.assertIs(await self.answer(server.port, SHORT), False)

    async def test_half_an_answer_is_none(self) -> None:
        listener = self.listener()
        self.ask(listener.port, 1.0)
        raw = await listener.accept()
        await raw.handshake(kind=b"ROUTER")
        raw.send(message(b"", b"pong")[:-1])
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
            opened.append(len(self.sockets()))
            await turn()
        self.assertLessEqual(max(after - before for before, after in pairwise(opened)), AT_ONCE)


class TestCrowds(Probing):
    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.probes = self.make(self.clock)

    def numbered(self, server: Server) -> list[int]:
        """The numbers of the questions that arrived."""
        return [int(frames[1]) for frames in server.messages]

    async def opened(self, count: int) -> None:
        """Let the clock turn until so many are open."""
        while len(self.sockets()) < count:
            self.clock.advance(0)
            await turn()

    async def test_no_more_than_the_most_are_open_and_all_are_answered(self) -> None:
        server = self.echo()
        most = 0
        count = 3 * MOST
        for _ in range(count):
            self.ask(server.port)
        while len(self.told) < count:
            most = max(most, len(self.sockets()))
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
            opened = self.sockets()
            self.clock.advance(RETRY / 2)
        self.assertEqual((opened, self.told, self.ended()), ([], [None], (0, 0, 1)))
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
        self.assertEqual(self.sockets(), [])
        self.assertEqual([call for call in reactor.getDelayedCalls() if "robes" in str(call)], [])
        for identity in server.identities:
            server.socket.send(identity, PING)
        await until(lambda: descriptors() <= before)
        self.assertEqual(self.told, [])

    async def test_after_the_close_nothing_is_asked(self) -> None:
        self.probes.close()
        self.ask(self.echo().port, 0)
        for _ in range(3):
            await turn()
        self.assertEqual((self.told, self.probes.counts()["test_probes.asked"]), ([], 0))
        self.assertEqual(self.sockets(), [])

    async def test_all_may_be_closed_when_one_is_answered(self) -> None:
        server = self.echo()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, LONG, close)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, self.sockets()), ([True], []))

    async def test_all_may_be_closed_when_the_time_of_one_is_over(self) -> None:
        server = self.serve()

        def close(alive: bool | None) -> None:
            self.told.append(alive)
            self.probes.close()

        for _ in range(20):
            self.probes.ask(HOST, server.port, PING, SHORT, close)
        await until(lambda: self.told)
        await self.answers(server)
        self.assertEqual((self.told, self.sockets()), ([False], []))

    async def test_the_context_may_be_closed_before(self) -> None:
        server = self.serve()
        for _ in range(5):
            self.ask(server.port, LONG)
        await until(there_are(5, server.messages))
        self.context.close()
        self.probes.close()
        self.assertEqual(self.told, [])

    async def test_hundreds_that_are_answered_or_not_leave_no_descriptor(self) -> None:
        server, silent = self.echo(), self.serve(name="silent")
        await self.answer(server.port)
        await until(lambda: len(self.sockets()) == 0)
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
    context = ZContext(reactor)
    yield Probes(context, Turns(reactor), Clock(), "test")
    context.close()


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
    context = ZContext(reactor)
    probes = Probes(context, Turns(reactor), Clock(), "test")
    try:
        probes.ask(host, 1, PING, 1.0, print)
    except ValueError:
        pass
    else:
        assert len(host.split(".")) == 4
        assert all(0 <= int(part) <= 255 for part in host.split("."))
    context.close()


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
