"""ZeroMQ sockets in the reactor: what is sent to many, with a number of its own for each of them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from broker.net.backlogs import LARGE
from broker.net.zsocket import MANY, SHARED

from broker.net.turns import Turns
from broker.session.router import NUMBER, Sent
from tests.net.words import TickingClock
from tests.net.zmq_peers import BULKY, Receiver, Server, Stage, message, readable, there_are, turn, until
from tests.patience import PATIENCE

KERNEL = 400
"""More bulky messages than the kernel takes of one connection."""

BLANK = bytes(NUMBER)
FRAME = b"\x05" + BLANK + b"\x08resource"


class Numbered(Receiver):
    """Somebody whose messages are numbered."""

    def __init__(self, identity: bytes, sequence: int = 0) -> None:
        super().__init__(identity)
        self.sequence = sequence


def header(number: int) -> bytes:
    return b"\x05" + number.to_bytes(NUMBER) + b"\x08resource"


class TestSendingToEach(Stage):
    async def test_each_receiver_gets_its_own_next_number_and_the_same_body(self) -> None:
        server = self.serve()
        identities = [b"\x00" * 6, b"\xff", b"a\x00b", *(b"%d" % number for number in range(9))]
        peers = [await self.known(server, identity) for identity in identities]
        starts = [0, 1, 255, 2**32 - 1, 2**64 - 40, *range(7)]
        receivers = [Numbered(identity, start) for identity, start in zip(identities, starts, strict=True)]
        expected: list[list[list[bytes]]] = [[] for _ in peers]
        for size in (0, 1, SHARED - 1, SHARED, 1_000, 10_000, LARGE - 1, LARGE):
            for count in (1, 2, 12):
                body = bytes([size % 251]) * size
                self.assertEqual(server.socket.send_each(receivers[:count], FRAME, 1, body, 3.0), [])
                for number in range(count):
                    starts[number] += 1
                    expected[number].append([header(starts[number]), body])
        self.assertEqual([receiver.sequence for receiver in receivers], starts)
        self.assertEqual({receiver.sent for receiver in receivers}, {3.0})
        for peer, messages in zip(peers, expected, strict=True):
            self.assertEqual(await peer.receive(len(messages)), messages)

    async def test_the_number_may_stand_anywhere(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        receivers = [Numbered(b"me", 258)]
        for frame, at in ((BLANK, 0), (b"x" * 300 + BLANK, 300), (b"a" + b"\xff" * NUMBER + b"b", 1)):
            server.socket.send_each(receivers, frame, at, b"", 1.0)
        number = bytes(NUMBER - 2) + b"\1"
        self.assertEqual(
            await peer.receive(3),
            [[number + b"\3", b""], [b"x" * 300 + number + b"\4", b""], [b"a" + number + b"\5b", b""]],
        )

    async def test_the_frame_that_is_given_stays_as_it_is(self) -> None:
        server = self.serve()
        await self.known(server, b"me")
        frame = bytes(bytearray(FRAME))
        server.socket.send_each([Numbered(b"me"), Numbered(b"me")], frame, 1, b"", 1.0)
        self.assertEqual(frame, FRAME)

    async def test_those_that_cannot_be_sent_to_are_named_and_have_used_their_number_up(self) -> None:
        server = self.serve(high_water=10)
        await self.choked(server, b"slow")
        for size in (10, 1_000, LARGE):
            there, held = Numbered(b"there %d" % size), Numbered(b"held %d" % size)
            slow, gone = Numbered(b"slow"), Numbered(b"gone")
            held.held = True
            peers = [await self.known(server, each.identity) for each in (there, held)]
            for _ in range(2):
                failed = server.socket.send_each([gone, slow, held, there], FRAME, 1, bytes(size), 5.0)
                self.assertEqual(failed, [(gone, Sent.GONE), (slow, Sent.FULL), (held, Sent.HELD)])
            self.assertEqual([each.sent for each in (there, held, slow, gone)], [5.0, 0.0, 0.0, 0.0])
            self.assertEqual([each.sequence for each in (there, held, slow, gone)], [2] * 4)
            self.assertEqual(await peers[0].receive(2), [[header(1), bytes(size)], [header(2), bytes(size)]])
            held.held = False
            server.socket.send_each([held], FRAME, 1, b"now", 6.0)
            self.assertEqual(await peers[1].receive(), [[header(3), b"now"]])

    async def test_a_gap_in_the_numbers_tells_a_slow_receiver_what_it_missed(self) -> None:
        server = self.serve(high_water=100)
        slow = await self.known(server, b"slow", rcvhwm=1)
        receiver = Numbered(b"slow")
        missed = 0
        while missed < 10:
            missed += len(server.socket.send_each([receiver], BLANK, 0, BULKY, 1.0))
            self.assertLess(receiver.sequence, 100 + KERNEL)
        got = receiver.sequence - missed
        received = await slow.receive(got)
        self.assertEqual([int.from_bytes(frames[0]) for frames in received], list(range(1, got + 1)))
        await until(lambda: not server.socket.send_each([receiver], BLANK, 0, b"again", 1.0))
        last = (await slow.receive(got + 1))[-1]
        self.assertGreater(int.from_bytes(last[0]), got + 10)

    async def test_large_bodies_are_counted_for_each_receiver(self) -> None:
        """libzmq alone would take a thousand of them."""
        server = self.serve()
        slow = await self.known(server, b"slow", rcvhwm=1, rcvbuf=10_000)
        quick = await self.known(server, b"quick")
        receivers = [Numbered(b"slow"), Numbered(b"quick")]
        body = bytes(4 * 1024 * 1024)
        count = 0
        failed: list[tuple[Numbered, Sent]] = []
        while not failed:
            failed = server.socket.send_each(receivers, FRAME, 1, body, 1.0)
            count += 1
            await quick.receive(count)
            self.assertLess(count, 40)
        self.assertEqual(failed, [(receivers[0], Sent.FULL)])
        self.assertEqual([each.sequence for each in receivers], [count, count])
        slow.close()

    async def test_a_body_that_was_received_is_passed_on(self) -> None:
        server = self.serve()
        readers = [await self.known(server, b"reader %d" % number) for number in range(5)]
        receivers = [Numbered(b"reader %d" % number) for number in range(5)]
        server.react = lambda identity, frames, source: server.socket.send_each(receivers, FRAME, 1, frames[-1], 1.0)
        sizes = (0, SHARED, 10_000, LARGE)
        writer = self.peer(server, b"writer")
        for size in sizes:
            writer.send(b"", bytes(size))
        for reader in readers:
            self.assertEqual(
                await reader.receive(len(sizes)),
                [[header(number), bytes(size)] for number, size in enumerate(sizes, 1)],
            )

    async def test_to_nobody_nothing_is_sent(self) -> None:
        server = self.serve()
        for size in (0, 10_000, LARGE):
            self.assertEqual(server.socket.send_each([], FRAME, 1, bytes(size), 1.0), [])
        await self.answers(server)

    async def test_what_is_wrong_does_not_spoil_the_next_message(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        wrong: Any = [5]
        with self.assertRaises(TypeError):
            server.socket.send_each([Numbered(b"me")], FRAME, 1, wrong, 1.0)
        for number, at in ((2**64 - 1, 1), (0, len(FRAME))):
            with self.assertRaises(Exception):  # noqa: B017 (struct's own)
                server.socket.send_each([Numbered(b"me", number)], FRAME, at, b"", 1.0)
        wrong = 7
        with self.assertRaises(TypeError):
            server.socket.send_each([Numbered(wrong)], FRAME, 1, b"", 1.0)
        server.socket.send(b"me", [b"", b"last"])
        await until(lambda: [b"", b"last"] in peer.look())
        self.assertEqual(peer.inbox[-1], [b"", b"last"])

    async def test_after_a_close_everybody_is_gone(self) -> None:
        server = self.serve()
        await self.known(server, b"me")
        server.socket.shutdown()
        receiver = Numbered(b"me")
        self.assertEqual(server.socket.send_each([receiver], FRAME, 1, b"", 1.0), [(receiver, Sent.GONE)])

    async def test_a_message_that_came_before_a_sending_to_each_is_read(self) -> None:
        """libzmq's descriptor says once that something came, and whoever sends may take that away."""
        for identity, size in ((b"nobody", 1), (b"me", 1), (b"me", LARGE)):
            server = self.serve()
            await self.swallow(server, Numbered(identity), size)
            await until(there_are(1, server.messages))

    async def swallow(self, server: Server, receiver: Numbered, size: int) -> None:
        """Let a message come in unnoticed, and send before it is read."""
        peer = await self.known(server, b"me")
        while readable(server.socket):
            await turn()
        peer.send(b"beat")
        # The reactor does not turn meanwhile, since it would read the message.
        end = time.monotonic() + PATIENCE
        while not readable(server.socket):
            self.assertLess(time.monotonic(), end)
        while readable(server.socket):  # libzmq looks for signals once in a millisecond only
            server.socket.send_each([receiver], FRAME, 1, bytes(size), 1.0)
            self.assertLess(time.monotonic(), end)

    async def test_a_turn_in_which_much_is_sent_ends_when_its_time_is_over(self) -> None:
        for size in (1, LARGE):
            clock = TickingClock()
            clock.tick = 1.0
            server = self.serve(turns=Turns(clock))
            raw = self.raw(server)
            await raw.handshake()
            crowd = [Numbered(b"%d" % number) for number in range(MANY + 1)]
            server.react = partial(send_to, server, crowd, bytes(size))
            raw.send(message(b"", b"x") * 20)
            while len(server.messages) < 20:
                before = len(server.messages)
                clock.turn()
                self.assertLessEqual(len(server.messages), before + 1)
                await turn()


def send_to(server: Server, receivers: list[Numbered], body: bytes, *_: object) -> None:
    server.socket.send_each(receivers, FRAME, 1, body, 1.0)
