"""The DEALER socket in the reactor: no message is missed, other events have their turn, and CURVE keys are used."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import zmq
from twisted.internet.task import deferLater

from broker.client.dealer import QUANTUM, Dealer, ZeroMQ
from broker.client.mtl import Keys
from tests.client.scripted import LOOK_EVERY, QUICK, Router, ScriptedBroker, Stage


class Sockets(Stage):
    def setUp(self) -> None:
        super().setUp()
        self.context: zmq.Context[Any] = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self.received: list[list[bytes]] = []
        self.rooms = 0
        self.failures: list[str] = []
        self.at_peer: list[list[bytes]] = []
        self.peer = Router(self.reactor, self.context, self.at_peer.append)
        self.addCleanup(self.peer.close)
        self.where = "inproc://peer"
        self.peer.socket.bind(self.where)

    def dealer(self, where: str | None = None, keys: Keys | None = None, **settings: Any) -> Dealer:
        def room() -> None:
            self.rooms += 1

        transport = ZeroMQ(keys, attrs.evolve(QUICK, **settings), self.context)
        dealer = transport.connect(self.reactor, where or self.where, self.receive, room, self.failures.append)
        self.addCleanup(dealer.close)
        return dealer

    def receive(self, frames: list[bytes]) -> None:
        self.received.append(frames)

    async def known(self, dealer: Dealer) -> bytes:
        """Return the identity of a dealer at the peer."""
        self.assertTrue(dealer.send((b"hello", b"")))
        await self.until(lambda: self.at_peer)
        return self.at_peer.pop()[0]

    async def test_nothing_is_overlooked_while_both_sides_talk(self) -> None:
        dealer = self.dealer()
        identity = await self.known(dealer)
        for number in range(1_000):
            self.peer.send(identity, b"%d" % number)
            dealer.send((b"%d" % number,))
            if number % 100 == 0:
                await deferLater(self.reactor, 0)
        await self.until(lambda: len(self.received) == len(self.at_peer) == 1_000)
        self.assertEqual(self.received, [[b"%d" % number] for number in range(1_000)])

    async def test_a_flood_lets_others_have_their_turn(self) -> None:
        dealer = self.dealer()
        identity = await self.known(dealer)
        dealer.pause()
        for number in range(5 * QUANTUM):
            self.peer.send(identity, b"%d" % number)
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(self.received))
            if len(self.received) < 5 * QUANTUM:
                self.reactor.callLater(0, turn)

        dealer.resume()
        turn()
        await self.until(lambda: len(self.received) == 5 * QUANTUM)
        steps = [after - before for before, after in pairwise(turns)]
        self.assertLessEqual(max(steps), QUANTUM)

    async def test_a_pause_is_a_pause(self) -> None:
        dealer = self.dealer()
        identity = await self.known(dealer)
        dealer.pause()
        self.peer.send(identity, b"x")
        other: list[list[bytes]] = []
        another = ZeroMQ(None, QUICK, self.context).connect(self.reactor, self.where, other.append, print, print)
        self.addCleanup(another.close)
        other_identity = await self.known(another)
        self.peer.send(other_identity, b"y")
        await self.until(lambda: other)
        self.assertEqual(self.received, [])
        dealer.resume()
        dealer.resume()
        await self.until(lambda: self.received == [[b"x"]])

    async def test_who_finds_no_room_is_told_when_there_is(self) -> None:
        self.peer.socket.rcvhwm = 1
        self.peer.socket.bind("inproc://narrow")
        dealer = self.dealer("inproc://narrow", high_water=2)
        await self.known(dealer)
        self.peer.deaf = True
        while dealer.send((b"x",)):
            pass
        self.assertFalse(dealer.send((b"x",)))
        await deferLater(self.reactor, 0)
        self.assertEqual(self.rooms, 0)
        self.peer.deaf = False
        self.peer.look_soon()
        await self.until(lambda: self.rooms)
        self.assertTrue(dealer.send((b"y",)))

    async def test_who_fails_over_a_message_gets_the_next(self) -> None:
        dealer = self.dealer()
        identity = await self.known(dealer)
        dealer.messageReceived = self.fails_first
        self.peer.send(identity, b"x")
        self.peer.send(identity, b"y")
        await self.until(lambda: self.received == [[b"y"]])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def fails_first(self, frames: list[bytes]) -> None:
        if frames == [b"x"]:
            raise RuntimeError
        self.received.append(frames)

    async def test_who_closes_in_the_middle_of_it_all_hears_no_more(self) -> None:
        dealer = self.dealer()
        identity = await self.known(dealer)

        def close(frames: list[bytes]) -> None:
            self.received.append(frames)
            dealer.close()

        dealer.messageReceived = close
        for _ in range(10):
            self.peer.send(identity, b"x")
        await self.until(lambda: self.received)
        self.assertFalse(dealer.send((b"x",)))
        dealer.resume()
        dealer.close()
        self.assertEqual(len(self.received), 1)

    async def test_a_socket_that_fails_says_so(self) -> None:
        dealer = self.dealer()
        await self.known(dealer)
        dealer.socket.close(0)
        dealer.doRead()
        self.assertEqual(len(self.failures), 1)
        self.assertFalse(dealer.send((b"x",)))

    async def test_what_is_too_long_is_not_received(self) -> None:
        self.peer.socket.bind("tcp://127.0.0.1:*")
        endpoint: Any = self.peer.socket.last_endpoint
        dealer = self.dealer(endpoint.decode(), max_body=1_000)
        identity = await self.known(dealer)
        self.peer.send(identity, bytes(200_000))
        # libzmq cuts the connection, and does not make another one: there is nowhere to send to
        while dealer.send((b"still there?",)):
            await deferLater(self.reactor, LOOK_EVERY)
        self.assertEqual(self.received, [])

    def test_what_is_no_endpoint_or_no_key_is_said_so(self) -> None:
        for where, keys in (
            ("nonsense", None),
            ("tcp://x", None),
            ("", None),
            ("tcp://127.0.0.1:1", Keys("short", "x" * 40, "x" * 40)),
        ):
            with self.assertRaises(ValueError):
                self.dealer(where or " ", keys)
        self.assertNotIn("secret", repr(Keys("a", "b", "secret")))


class Encrypted(Stage):
    async def test_both_flows_are_encrypted(self) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        own_public, own_secret = (key.decode() for key in zmq.curve_keypair())
        self.broker.close()
        self.broker = ScriptedBroker(self.reactor, secret_key=secret)
        self.addCleanup(self.broker.close)
        client = self.client(keys=Keys(public, own_public, own_secret))
        await (await client.writer("queue", ["jobs"], confirm="full")).send(b"x")
        # a client without a key, or with that of another broker, is not answered
        strangers = [self.client(), self.client(keys=Keys(own_public, own_public, own_secret))]
        waiting = [stranger.open() for stranger in strangers]
        await (await client.writer("queue", ["jobs"], confirm="full")).send(b"y")
        self.assertEqual(len(self.broker.sessions), 1)
        for each in waiting:
            each.addErrback(lambda failure: None)
