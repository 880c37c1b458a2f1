"""Fairness: no number of messages or peers keeps the reactor from turning, or other peers from their answers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

import zmq
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from broker.core.errors import Reason
from broker.core.memory_budget import SHORT
from broker.core.turns import SHARE
from broker.net.connection import UNWATCHED
from broker.net.peer_interfaces import Sent
from broker.net.router.router import IDLE
from broker.net.scheduler import Scheduler
from tests.net.router.rig import Rig, Server, Speaker
from tests.net.waiting import reactor, turn, until
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


MANY = 40
"""Peers: several times those of one turn."""

IN_TURN = 10
"""Peers at most that are closed or checked in one turn: each takes a tenth of the share, or more."""


class ManyPeers(Rig):
    """A ROUTER with peers that are closed or checked together. Only the test lets the turns of its scheduler pass."""

    async def start(self) -> tuple[TickingClock, Server, list[Speaker]]:
        clock = TickingClock()
        server = self.serve(turns=Scheduler(clock), clock=clock)
        peers = [self.speaker(server, b"%d" % number) for number in range(MANY)]

        def shaken() -> bool:
            clock.turn()
            for peer in peers:
                peer.look()
            return len(server.router._peers) == MANY and all(peer.machine.encoder for peer in peers)

        await until(shaken)
        self.addCleanup(self.let_go, clock, server)
        clock.tick = 1.2 * SHARE / IN_TURN
        return clock, server, peers

    def counted(self, clock: TickingClock, count: Callable[[], int]) -> list[int]:
        """The results of a count, now and after each turn until it has all peers."""
        counts = [count()]
        while counts[-1] < MANY:
            assert len(counts) < 10 * MANY
            clock.turn()
            counts.append(count())
        return counts

    def in_turns(self, counts: list[int]) -> None:
        """Check that each turn did its part."""
        self.assertLessEqual(max(later - earlier for earlier, later in itertools.pairwise([0, *counts])), IN_TURN)

    async def nothing_comes(self, clock: TickingClock, server: Server, peers: list[Speaker]) -> None:
        """Check that messages are not received, also those of peers whose connections are still open."""
        for peer in peers:
            peer.send(b"more")
        await turn()
        await turn()
        clock.turn()
        self.assertEqual(server.messages, [])

    async def let_go(self, clock: TickingClock, server: Server) -> None:
        """Abort all connections, and let the turns pass that their ends take."""
        for connection in list(server.router.connections):
            connection.abort()

        def gone() -> bool:
            clock.turn()
            return not server.router.connections

        await until(gone)

    async def test_revoked_peers_are_served_no_more_and_closed_in_several_turns(self) -> None:
        clock, server, peers = await self.start()
        server.router.revoke([connection.key for connection in server.router._peers.values()])
        self.assertEqual(len(server.ends), MANY)
        for number in range(MANY):
            self.assertIs(server.router.send(b"%d" % number, [b"x"]), Sent.GONE)
        before = self.refusals(Reason.KEY_NOT_ALLOWED)
        await self.nothing_comes(clock, server, peers)
        self.in_turns([before, *self.counted(clock, lambda: self.refusals(Reason.KEY_NOT_ALLOWED))])
        for peer in peers:
            await peer.wait_closed()
        self.assertEqual(len(server.ends), MANY)

    async def test_the_identity_of_a_revoked_peer_is_free_before_its_close(self) -> None:
        clock, server, peers = await self.start()
        server.router.revoke([connection.key for connection in server.router._peers.values()])
        self.assertLess(self.refusals(Reason.KEY_NOT_ALLOWED), MANY)
        again = self.speaker(server, b"%d" % (MANY - 1))

        def shaken() -> bool:
            clock.turn()
            again.look()
            return again.machine.encoder is not None

        await until(shaken)
        self.counted(clock, lambda: self.refusals(Reason.KEY_NOT_ALLOWED))
        for peer in peers:
            await peer.wait_closed()
        self.assertEqual((len(server.ends), len(server.router._peers)), (MANY, 1))

    async def test_a_drain_receives_nothing_more_and_closes_in_several_turns(self) -> None:
        clock, server, peers = await self.start()
        server.router.drain()
        before = self.refusals(Reason.DRAINING)
        await self.nothing_comes(clock, server, peers)
        self.in_turns([before, *self.counted(clock, lambda: self.refusals(Reason.DRAINING))])
        for peer in peers:
            await peer.wait_closed()

    async def test_silent_peers_are_checked_and_closed_in_several_turns(self) -> None:
        clock, server, peers = await self.start()
        connections: list[Any] = list(server.router.connections)
        for number in range(1, 4):
            for connection in connections:
                connection.silence = number - 1
            clock.rightNow += 2 * IDLE
            self.in_turns(self.counted(clock, lambda: sum(each.silence == number for each in connections)))  # noqa: B023
            for _ in range(2 * MANY):  # the output, and the end of the round
                clock.turn()
        self.assertEqual(self.refusals(Reason.SILENT), MANY)
        for peer in peers:
            await peer.wait_closed()


class ManyPeersPython(ManyPeers):
    form = "python"


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
