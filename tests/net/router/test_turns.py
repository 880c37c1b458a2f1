"""Fairness: no number of messages keeps the reactor from turning, or other peers from their answers."""

from __future__ import annotations

import itertools
from collections import Counter
from threading import Event
from typing import Any

import zmq
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from broker.core.memory_budget import SHORT
from broker.net.connection import UNWATCHED
from broker.net.scheduler import Scheduler
from tests.net.router.rig import Rig, Server, Speaker
from tests.net.waiting import reactor, until
from tests.ticking_clock import TickingClock


class Fairness(Rig):
    async def test_a_quantum_ends_when_its_time_is_over(self) -> None:
        clock, server, peer = await self.ticking()
        peer.raw.send(b"".join(peer.encoded(b"%d" % number) for number in range(200)))
        seen = [len(server.messages)]
        while len(server.messages) < 200:
            await until(lambda: not peer.raw.unsent)
            clock.turn()
            seen.append(len(server.messages))
            await self.turn()
        most = max(later - earlier for earlier, later in itertools.pairwise(seen))
        self.assertLessEqual(most, 2 * UNWATCHED, "messages that take a second each")

    async def test_a_read_counts_until_all_of_it_had_its_turn(self) -> None:
        clock, server, peer = await self.ticking()
        memory = server.router.memory
        for number in range(1, 4):
            peer.raw.send(b"".join(peer.encoded(b"x" * 2 * SHORT) for _ in range(4)))
            held = [0]
            while len(server.messages) < 4 * number:
                clock.turn()
                await self.turn()
                held.append(memory.held)
            clock.turn()  # which finds the end of the read
            self.assertTrue(SHORT < max(held) < 4 * 3 * SHORT, held)
            self.assertEqual(memory.held, 0, "nothing waits any more")

    async def test_nothing_of_a_connection_is_received_after_its_end_in_a_quantum(self) -> None:
        clock, server, peer = await self.ticking()
        peer.raw.send(b"".join(peer.encoded(b"%d" % number) for number in range(200)))
        while len(server.messages) < 2:
            clock.turn()
            await self.turn()
        before = len(server.messages)
        server.router.connections.copy().pop().close()
        for _ in range(10):
            clock.turn()
            await self.turn()
        self.assertEqual(len(server.messages), before)
        self.assertEqual(server.told[-1], 1)

    async def test_a_quiet_peer_is_answered_while_many_flood(self) -> None:
        server = self.serve()
        in_turn: Counter[int] = Counter()
        turn = 0
        received = 0

        def react(identity: bytes, frames: list[bytes], connection: int) -> None:
            nonlocal received
            in_turn[turn] += 1
            received += 1
            server.told.clear()
            if identity == b"quiet":
                server.router.reply(identity, frames)

        server.react = react
        quiet = self.peer(server, b"quiet")
        quiet.send(b"0")
        await quiet.receive()
        enough = Event()
        flooding: Deferred[None] = deferToThread(flood, server.address, 20, enough)
        self.addCleanup(lambda: flooding)
        self.addCleanup(enough.set)
        await until(lambda: received > 10_000)
        before = received
        for number in range(1, 51):
            quiet.send(b"%d" % number)
            self.assertEqual((await quiet.receive(number + 1))[-1], [b"%d" % number])
        self.assertGreater(received - before, 1_000)
        enough.set()
        await flooding

    async def ticking(self) -> tuple[TickingClock, Server, Speaker]:
        """A ROUTER whose scheduler sees a second go by each time that it looks at the clock."""
        clock = TickingClock()
        server = self.serve(turns=Scheduler(clock))
        peer = self.speaker(server, b"me")

        def shaken() -> bool:
            clock.turn()
            peer.look()
            return peer.machine.encoder is not None

        await until(shaken)
        clock.tick = 1.0
        return clock, server, peer

    async def turn(self) -> None:
        """Let the reactor turn, which reads and writes."""
        done: Deferred[None] = Deferred()
        reactor.callLater(0, done.callback, None)
        await done


class FairnessPython(Fairness):
    form = "python"

    async def test_a_quiet_peer_is_answered_while_many_flood(self) -> None:
        """Without keys only: the others show it."""


def flood(address: str, peers: int, enough: Event) -> None:
    """Send from so many peers until it is enough."""
    with zmq.Context() as context:
        sockets: list[zmq.Socket[Any]] = [context.socket(zmq.DEALER) for _ in range(peers)]
        for socket in sockets:
            socket.linger = 0
            socket.connect(address)
        while not enough.is_set():
            for socket in sockets:
                try:
                    for _ in range(50):
                        socket.send(b"flood", zmq.NOBLOCK)
                except zmq.Again:
                    pass
        for socket in sockets:
            socket.close()
