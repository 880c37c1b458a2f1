"""ZeroMQ sockets and the reactor: nothing gets stuck in them, and no number of messages keeps it from turning."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import zmq
from broker.net.zcontext import Options, ZContext
from broker.net.zsocket import BATCH, BATCH_SHIFT, MANY, ZSocket
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread

from broker.net.turns import MESSAGES, MESSAGES_ALONE, Turns
from broker.session.router import Sent
from tests.net.words import TickingClock
from tests.net.zmq_peers import (
    BULKY,
    RawPeer,
    Receiver,
    Server,
    Stage,
    message,
    reactor,
    readable,
    there_are,
    turn,
    until,
)
from tests.patience import PATIENCE

MEBIBYTE = 1024 * 1024

FEW = 8
"""Messages that may be handled before the clock is looked at."""


class TestSignals(Stage):
    """libzmq's descriptor says once that something came, and whoever sends may take that away."""

    async def swallow(self, send: Callable[[Server], Sent]) -> tuple[Server, Sent]:
        """Let a message come in unnoticed, and send before it is read."""
        server = self.serve(high_water=1)
        await self.choked(server, b"slow")
        peer = await self.known(server, b"me")
        while readable(server.socket):
            await turn()
        peer.send(b"beat")
        # The reactor does not turn meanwhile, since it would read the message.
        end = time.monotonic() + PATIENCE
        while not readable(server.socket):
            self.assertLess(time.monotonic(), end)
        while readable(server.socket):  # libzmq looks for signals once in a millisecond only
            sent = send(server)
            self.assertLess(time.monotonic(), end)
        return server, sent

    async def test_a_message_that_came_before_a_sending_is_read(self) -> None:
        server, sent = await self.swallow(lambda server: server.socket.send(b"me", [b"NOOP"]))
        self.assertIs(sent, Sent.SENT)
        await until(there_are(1, server.messages))

    async def test_a_message_that_came_before_a_sending_to_many_is_read(self) -> None:
        for identity, size in ((b"nobody", 1), (b"slow", 1), (b"me", 1), (b"me", MEBIBYTE)):
            server, _ = await self.swallow(partial(send_to, identity, size))
            await until(there_are(1, server.messages))

    async def test_a_message_that_came_before_a_sending_to_nobody_is_read(self) -> None:
        server, sent = await self.swallow(lambda server: server.socket.send(b"nobody", [b"NOOP"]))
        self.assertIs(sent, Sent.GONE)
        await until(lambda: server.messages)

    async def test_a_message_that_came_before_a_sending_to_a_slow_peer_is_read(self) -> None:
        server, sent = await self.swallow(lambda server: server.socket.send(b"slow", [BULKY]))
        self.assertIs(sent, Sent.FULL)
        await until(lambda: server.messages)

    async def test_a_message_that_came_before_a_breath_is_read(self) -> None:
        for wait in (False, True):
            server, _ = await self.swallow(partial(breathe, wait))
            await until(there_are(1, server.messages))

    async def test_a_message_that_came_before_a_large_one_to_nobody_is_read(self) -> None:
        server, sent = await self.swallow(partial(send_to, b"nobody", MEBIBYTE))
        self.assertIs(sent, Sent.GONE)
        await until(lambda: server.messages)

    async def test_nothing_gets_stuck_between_three_hundred_peers_and_timers_on_both_sides(self) -> None:
        """The original brokers fail at this: their heartbeats and their reads disturb each other."""
        server = self.serve()
        farm = ZContext(reactor)
        self.addCleanup(farm.close)
        heard: Counter[bytes] = Counter()
        told: Counter[bytes] = Counter()
        sent: Counter[bytes] = Counter()

        class Node:
            def __init__(self, number: int) -> None:
                self.socket = ZSocket(farm, Options(kind=zmq.DEALER), Turns(reactor), f"node {number}")
                self.socket.connect(server.address, self.receive)

            def receive(self, identity: bytes, frames: list[Any], source: int) -> None:
                heard[bytes(frames[-1])] += 1

            def beat(self) -> None:
                sent[b"beat"] += self.socket.send(b"", [b"beat"]) is Sent.SENT

        nodes = [Node(number) for number in range(300)]
        for node in nodes:
            node.beat()
        await until(lambda: len(set(server.identities)) == 300)
        receivers = [Receiver(identity) for identity in set(server.identities)]
        publisher = self.peer(server, b"publisher")
        server.forget()

        def react(identity: bytes, frames: list[Any], source: int) -> None:
            if identity == b"publisher":
                told[b"news"] += len(receivers) - len(server.socket.send_all(receivers, frames, 1.0))
            server.forget()
            told[b"came"] += 1

        server.react = react

        def noops() -> None:
            for receiver in receivers:
                told[b"noop"] += server.socket.send(receiver.identity, [b"", b"noop"]) is Sent.SENT
            server.socket.send(b"nobody", [b"", b"noop"])

        def beats() -> None:
            for node in random.sample(nodes, 60):
                node.beat()

        def news() -> None:
            publisher.send(b"", b"news")
            sent[b"news"] += 1

        sent.clear()
        timers = [LoopingCall(each) for each in (noops, beats, news)]
        for timer, seconds in zip(timers, (0.05, 0.02, 0.03), strict=True):
            self.addCleanup(stop, timer)
            timer.start(seconds)
        end = reactor.seconds() + 3.0
        await until(lambda: reactor.seconds() >= end)
        for timer in timers:
            timer.stop()
        # Nothing is sent any more that would wake up what got stuck.
        await until(lambda: told[b"came"] == sent[b"beat"] + sent[b"news"])
        await until(lambda: (heard[b"noop"], heard[b"news"]) == (told[b"noop"], told[b"news"]))
        self.assertEqual(told[b"news"], sent[b"news"] * 300)
        self.assertGreater(min(told[b"noop"], told[b"news"], sent[b"beat"]), 1_000)


class TestTurns(Stage):
    """No number of messages keeps the reactor from turning."""

    def setUp(self) -> None:
        super().setUp()
        self.turn_now = 0
        self.in_turn: Counter[int] = Counter()
        """Messages received, by turn of the reactor."""
        self._turning: Any = None
        self._count_turn()
        self.addCleanup(lambda: self._turning.cancel())

    def _count_turn(self) -> None:
        self.turn_now += 1
        self._turning = reactor.callLater(0, self._count_turn)

    def count(self, identity: bytes, frames: list[Any], source: int) -> None:
        self.in_turn[self.turn_now] += 1

    async def test_a_turn_reads_two_quanta_at_most_however_much_there_is(self) -> None:
        server = self.serve(high_water=100_000)
        server.react = self.count
        peers = [await self.known(server, b"%d" % number, sndhwm=0) for number in range(10)]
        self.in_turn.clear()
        count = 2_000
        for _ in range(count):
            for peer in peers:
                peer.send(b"", b"flood")
        await until(there_are(count * len(peers), server.messages))
        # One when the descriptor speaks up, and one in what is left of earlier turns.
        self.assertLessEqual(max(self.in_turn.values()), 2 * MESSAGES_ALONE)
        self.assertGreater(max(self.in_turn.values()), MESSAGES)
        self.assertEqual(sum(self.in_turn.values()), count * len(peers))

    async def test_while_others_have_something_to_do_too_the_quantum_is_smaller(self) -> None:
        server = self.serve(high_water=100_000)
        server.react = self.count
        peer = await self.known(server, b"me", sndhwm=0)
        work = Endless()
        self.turns.serve_later(work)
        self.in_turn.clear()
        for _ in range(5_000):
            peer.send(b"", b"flood")
        await until(there_are(5_000, server.messages))
        self.assertLessEqual(max(self.in_turn.values()), 2 * MESSAGES)
        self.assertGreaterEqual(work.served, len(self.in_turn) - 1)
        work.ended = True

    async def crowd(self, messages: bytes) -> tuple[Server, TickingClock, RawPeer]:
        """A socket whose work takes a second each time that the clock is looked at, with messages that wait for it."""
        clock = TickingClock()
        clock.tick = 1.0
        server = self.serve(turns=Turns(clock))
        raw = self.raw(server)
        await raw.handshake(b"me")
        raw.send(messages)  # small ones in one piece, so that all are there when the first one is
        await until(lambda: not raw.unsent)
        clock.turn()
        while not server.messages:
            await turn()
            clock.turn()
        return server, clock, raw

    async def test_a_turn_ends_when_its_time_is_over(self) -> None:
        server, clock, _ = await self.crowd(message(b"", b"x") * 1_000)
        while len(server.messages) < 1_000:
            before = len(server.messages)
            clock.turn()
            self.assertLess(before, len(server.messages))
            self.assertLessEqual(len(server.messages), before + BATCH)

    async def test_a_turn_in_which_much_is_sent_ends_when_its_time_is_over(self) -> None:
        crowd = [Receiver(b"%d" % number) for number in range(MANY + 1)]
        server, clock, raw = await self.crowd(message(b"", b"x"))
        server.react = lambda identity, frames, source: server.socket.send_all(crowd, [b"", b"x"], 1.0)
        raw.send(message(b"", b"x") * 20)
        while len(server.messages) < 21:
            before = len(server.messages)
            clock.turn()
            self.assertLessEqual(len(server.messages), before + 1)
            await turn()

    async def test_a_turn_whose_messages_take_long_ends_soon_after_its_time_is_over(self) -> None:
        server, clock, _ = await self.crowd(message(b"", b"x") * 1_000)
        for _ in range(10):
            before = len(server.messages)
            clock.turn()
            self.assertLess(before, len(server.messages))
            self.assertLessEqual(len(server.messages), before + FEW)

    async def test_a_turn_with_long_messages_has_few_of_them(self) -> None:
        server, clock, raw = await self.crowd(message(b"", b"x"))
        body = bytes(100_000)
        raw.send(message(b"", b"PUT", b"TOPIC", b"t", b"", body) * 50)
        await until(lambda: not raw.unsent)
        while len(server.messages) < 51:
            before = len(server.messages)
            clock.turn()
            self.assertLessEqual(len(server.messages) - before, (1 << BATCH_SHIFT) * BATCH // len(body) + 1)
            await turn()

    async def test_a_turn_with_messages_of_many_frames_has_few_of_them(self) -> None:
        server, _, _ = await self.crowd(message(*[b""] * 5_000) * 60)
        self.assertLessEqual(sum(map(len, server.messages)), 2 * 5_000)

    async def test_a_quiet_peer_is_answered_while_many_flood(self) -> None:
        server = self.serve()

        def react(identity: bytes, frames: list[Any], source: int) -> None:
            self.count(identity, frames, source)
            server.forget()
            if identity == b"quiet":
                server.socket.send(identity, frames)

        server.react = react
        quiet = self.peer(server, b"quiet")
        quiet.send(b"0")
        await quiet.receive()
        enough = Event()
        flooding = deferToThread(flood, server.address, 20, enough)
        self.addCleanup(lambda: flooding)
        self.addCleanup(enough.set)
        await until(lambda: sum(self.in_turn.values()) > 10_000)
        self.in_turn.clear()
        for number in range(1, 51):
            quiet.send(b"%d" % number)
            self.assertEqual((await quiet.receive(number + 1))[-1], [b"%d" % number])
        during = sum(self.in_turn.values())
        enough.set()
        await flooding
        self.assertGreater(during, 1_000)
        self.assertLessEqual(max(self.in_turn.values()), 2 * MESSAGES_ALONE)


def breathe(wait: bool, server: Server) -> Sent:
    """Let a server see who has room."""
    server.socket.breathe(wait)
    return Sent.SENT


def send_to(identity: bytes, size: int, server: Server) -> Sent:
    """Send so many bytes to many, of which there is one."""
    failed = server.socket.send_all([Receiver(identity)], [bytes(size)], 1.0)
    return failed[0][1] if failed else Sent.SENT


def stop(timer: LoopingCall) -> None:
    if timer.running:
        timer.stop()


class Endless:
    lane = host = "endless"

    """Something that always has more to do."""

    def __init__(self) -> None:
        self.served = 0
        self.ended = False

    def serve(self) -> bool:
        self.served += 1
        return not self.ended

    def took(self, seconds: float) -> None:
        pass

    def flush(self) -> None:
        pass

    def abort(self) -> None:
        pass


def flood(address: str, peers: int, enough: Event) -> int:
    """Send from so many peers until it is enough. Returns how many messages."""
    sent = 0
    with zmq.Context() as context:
        sockets = [context.socket(zmq.DEALER) for _ in range(peers)]
        for socket in sockets:
            socket.linger = 0
            socket.connect(address)
        while not enough.is_set():
            for socket in sockets:
                try:
                    for _ in range(50):
                        socket.send(b"flood", zmq.NOBLOCK)
                        sent += 1
                except zmq.Again:
                    pass
        for socket in sockets:
            socket.close()
    return sent
