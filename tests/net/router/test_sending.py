"""Sending to one peer, to many, and to many with a number for each."""

from __future__ import annotations

from typing import Any

import pytest

from broker.net.peer_interfaces import NUMBER, Sent
from broker.net.router.backlog import LARGE
from tests.net.router.rig import BULKY, MEBIBYTE, Rig, Server, To, numbers
from tests.net.waiting import turn, until

AROUND = (b"\x05", b"\x08resource")
"""The first frame of a numbered message, before and after its number."""

SIZES = (0, 1, 254, 255, 256, 4_095, 4_096, 4_097, 10_000, LARGE - 1, LARGE, 2 * LARGE, MEBIBYTE)


def header(number: int) -> bytes:
    return number.to_bytes(NUMBER, "big").join(AROUND)


class Sending(Rig):
    async def test_no_connection_has_the_identity(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        self.assertIs(server.router.send(b"nobody", [b"", b"NOOP"]), Sent.GONE)
        self.assertIs(server.router.send(b"", [b"", b"NOOP"]), Sent.GONE)
        self.assertIs(server.router.reply(b"nobody", [b"", b"OK"]), Sent.GONE)
        server.router.send(b"me", [b"", b"NOOP"])
        self.assertEqual(await peer.receive(), [[b"", b"NOOP"]])

    async def test_the_receivers_that_miss_a_message_are_named_and_the_others_are_stamped(self) -> None:
        server = self.serve(high_water=10)
        quick = await self.known(server, b"quick")
        await self.known(server, b"slow")
        server.choke(b"slow")
        for size in (10, 1_000, 100_000):
            there, slow, gone = To(b"quick"), To(b"slow"), [To(b"gone %d" % number) for number in range(5)]
            failed = server.router.send_all([*gone[:3], slow, there, *gone[3:]], [b"", bytes(size)], 5.0)
            self.assertEqual(
                failed,
                [*((each, Sent.GONE) for each in gone[:3]), (slow, Sent.FULL)]
                + [(each, Sent.GONE) for each in gone[3:]],
            )
            self.assertEqual([each.sent for each in (there, slow, *gone)], [5.0, *[0.0] * 6])
            self.assertEqual((await quick.receive())[-1], [b"", bytes(size)])
            quick.inbox.clear()

    async def test_messages_of_all_lengths_reach_any_number_of_receivers(self) -> None:
        server = self.serve()
        identities = [b"\x01" * 6, b"\xff", b"a\x00b", *(b"%d" % number for number in range(9))]
        peers = [await self.known(server, identity) for identity in identities]
        receivers = [To(identity) for identity in identities]
        everything: list[list[bytes]] = []
        for size in SIZES:
            for count in (1, 3, 12):
                message = [b"", b"%d" % count, bytes(size), b"\x00\xff", b""]
                everything.append(message)
                self.assertEqual(server.router.send_all(receivers[-count:], message, 1.0), [])
        for number, peer in enumerate(peers):
            expected = [frames for frames in everything if int(frames[1]) >= len(peers) - number]
            self.assertEqual(await peer.receive(len(expected)), expected)

    async def test_without_receivers_nothing_is_sent(self) -> None:
        server = self.serve()
        nobody: list[To] = []
        for size in (10, MEBIBYTE):
            self.assertEqual(server.router.send_all(nobody, [b"", bytes(size)], 1.0), [])
            self.assertEqual(server.router.send_each(nobody, *AROUND, bytes(size), 1.0), [])
        await self.answers(server)

    async def test_all_ways_of_sending_keep_their_order(self) -> None:
        server = self.serve()
        peers = [await self.known(server, b"%d" % number) for number in range(3)]
        receivers = [To(b"%d" % number) for number in range(3)]
        for number in range(0, 400, 4):
            body = bytes(number * 300)
            for identity in (b"0", b"1", b"2"):
                server.router.send(identity, [b"%d" % number, body])
            server.router.send_all(receivers, [b"%d" % (number + 1), body], 1.0)
            for identity in (b"0", b"1", b"2"):
                server.router.reply(identity, [b"%d" % (number + 2), body])
            server.router.send_each(receivers, b"%d " % (number + 3), b"", body, 1.0)
        for peer in peers:
            received = await peer.receive(400)
            self.assertEqual(
                [int(frames[0].rstrip(bytes(range(26))).split()[0]) for frames in received], list(range(400))
            )

    async def test_a_wrong_part_does_not_spoil_the_next_message(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        receivers = [To(b"me")]
        wrong: Any = 5
        with self.assertRaises(TypeError):
            server.router.send(b"me", [b"", wrong, b"x"])
        with self.assertRaises(TypeError):
            server.router.reply(b"me", [b"", wrong, b"x"])
        for body in (b"x", bytes(MEBIBYTE)):
            with self.assertRaises(TypeError):
                server.router.send_all(receivers, [b"", wrong, body], 1.0)
        with self.assertRaises(TypeError):
            server.router.send_each(receivers, *AROUND, wrong, 1.0)
        server.router.send(b"me", [b"", b"last"])
        self.assertEqual(await peer.receive(), [[b"", b"last"]])

    # numbers

    async def test_each_receiver_gets_its_own_next_number_and_the_same_body(self) -> None:
        server = self.serve()
        identities = [b"%d" % number for number in range(12)]
        peers = [await self.known(server, identity) for identity in identities]
        starts = [0, 1, 255, 2**32 - 1, 2**64 - 40, *range(7)]
        receivers = [To(identity, start) for identity, start in zip(identities, starts, strict=True)]
        expected: list[list[list[bytes]]] = [[] for _ in peers]
        for size in SIZES:
            for count in (1, 2, 12):
                body = bytes([size % 251]) * size
                self.assertEqual(server.router.send_each(receivers[:count], *AROUND, body, 3.0), [])
                for number in range(count):
                    starts[number] += 1
                    expected[number].append([header(starts[number]), body])
        self.assertEqual([receiver.sequence for receiver in receivers], starts)
        self.assertEqual({receiver.sent for receiver in receivers}, {3.0})
        for peer, messages in zip(peers, expected, strict=True):
            self.assertEqual(await peer.receive(len(messages)), messages)

    async def test_the_number_may_stand_anywhere_in_a_frame_of_any_length(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        receivers = [To(b"me", 258)]
        given = [(b"", b""), (b"a", b"b")]
        for size in (247, 248, 256, 5_000, LARGE):
            given += [(b"x" * size, b""), (b"", b"x" * size), (b"x" * size, b"y" * 300)]
        expected = []
        for body in (b"", b"z" * 300, b"z" * LARGE):
            for before, after in given:
                self.assertEqual(server.router.send_each(receivers, before, after, body, 1.0), [])
                number = receivers[0].sequence.to_bytes(NUMBER, "big")
                expected.append([before + number + after, body])
        self.assertEqual(await peer.receive(len(expected)), expected)

    async def test_those_that_miss_a_message_have_used_their_number(self) -> None:
        server = self.serve(high_water=10)
        await self.known(server, b"slow")
        server.choke(b"slow")
        for size in (10, 1_000, LARGE):
            peer = await self.known(server, b"there")
            there, slow, gone = To(b"there"), To(b"slow"), To(b"gone")
            for _ in range(2):
                failed = server.router.send_each([gone, slow, there], *AROUND, bytes(size), 5.0)
                self.assertEqual(failed, [(gone, Sent.GONE), (slow, Sent.FULL)])
            self.assertEqual([each.sent for each in (there, slow, gone)], [5.0, 0.0, 0.0])
            self.assertEqual([each.sequence for each in (there, slow, gone)], [2] * 3)
            self.assertEqual(await peer.receive(2), [[header(1), bytes(size)], [header(2), bytes(size)]])

    async def test_a_gap_in_the_numbers_shows_a_slow_receiver_what_it_missed(self) -> None:
        server = self.serve(high_water=100)
        slow = await self.known(server, b"slow")
        receiver = To(b"slow")
        missed = 0
        while missed < 10:
            missed += len(server.router.send_each([receiver], b"", b"", BULKY, 1.0))
            self.assertLess(receiver.sequence, 1_000)
        got = receiver.sequence - missed
        received = await slow.receive(got)
        self.assertEqual([int.from_bytes(frames[0], "big") for frames in received], list(range(1, got + 1)))
        self.assertEqual(server.router.send_each([receiver], b"", b"", b"again", 1.0), [])
        last = (await slow.receive(got + 1))[-1]
        self.assertEqual(int.from_bytes(last[0], "big"), got + 11)

    async def miss(self, server: Server, identity: bytes) -> int:
        """Let a peer that does not read miss a message for its length, as the memory has room for shorter ones only.
        Returns the number of those that wait for it."""
        count = 0
        while server.router.send(identity, [bytes(MEBIBYTE)]) is Sent.SENT:
            count += 1
            await turn()
        return count

    async def test_no_room_is_told_within_a_fan_out(self) -> None:
        server = self.serve(all_sizes=8 * MEBIBYTE)
        slow, quick = await self.known(server, b"slow"), await self.known(server, b"quick")
        before = await self.miss(server, b"slow")
        receivers = [To(b"quick"), To(b"slow")]
        server.roomy = lambda identity: server.router.send_each(receivers[1:], *AROUND, b"owed", 1.0)
        # Both have an answer in this turn: the fan-out writes that of the slow peer before its message for the other.
        for name in (b"slow", b"quick"):
            self.assertIs(server.router.reply(name, [b"answer"]), Sent.SENT)
        self.assertEqual(server.router.send_each(receivers, *AROUND, bytes(LARGE), 1.0), [])
        self.assertEqual(server.rooms, [])
        self.assertEqual(await quick.receive(2), [[b"answer"], [header(1), bytes(LARGE)]])
        await until(lambda: server.rooms)
        got = (await slow.receive(before + 3))[before:]
        self.assertEqual(got, [[b"answer"], [header(1), bytes(LARGE)], [header(2), b"owed"]])

    async def test_no_room_is_told_within_an_answer(self) -> None:
        count = 100
        server = self.serve(all_sizes=8 * MEBIBYTE, high_water=count)
        await self.known(server, b"slow")
        quick = await self.known(server, b"quick")
        await self.miss(server, b"slow")
        server.roomy = lambda identity: server.router.send(b"quick", [b"%d" % (count + 1)])
        self.assertIs(server.router.reply(b"slow", [b"answer"]), Sent.SENT)
        for number in range(count):
            send = server.router.send if number else server.router.reply
            self.assertIs(send(b"quick", [b"%d" % number]), Sent.SENT)
        self.assertIs(server.router.reply(b"quick", [b"%d" % count]), Sent.SENT)
        self.assertEqual(server.rooms, [])
        self.assertEqual(list(numbers(await quick.receive(count + 2))), list(range(count + 2)))

    async def test_a_peer_that_has_read_everything_is_not_full(self) -> None:
        server = self.serve(high_water=1)
        peer = self.peer(server, b"me")
        peer.send(b"hello")
        await until(lambda: server.messages)
        for number in range(100):
            self.assertIs(server.router.send(b"me", [b"%d" % number]), Sent.SENT)
        # The reactor does not turn meanwhile.
        self.assertEqual(list(numbers(await peer.receive(100))), list(range(100)))


@pytest.mark.long
class SendingPython(Sending):
    form = "python"


class SendingCompiled(Sending):
    form = "compiled"
