"""The messages that wait for peers which do not read: their number, their bytes, and the room that comes again."""

from __future__ import annotations

import math
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET

import pytest

from broker.core.errors import Reason
from broker.core.memory_budget import Share
from broker.net.peer_interfaces import Sent
from broker.net.router.backlog import ANSWERS, APART, BACKLOG, HIGH_WATER, LARGE
from tests.net.holders import Holding
from tests.net.process import script
from tests.net.router.rig import BULKY, KERNEL, MEBIBYTE, Rig, Server, To, numbers
from tests.net.waiting import until
from tests.net.zmtp_peers import message


class Backlogs(Rig):
    async def test_so_many_messages_wait_and_come_in_order_when_the_peer_reads(self) -> None:
        server = self.serve(high_water=100)
        slow, quick = await self.known(server, b"slow"), await self.known(server, b"quick")
        receivers = [To(b"slow"), To(b"quick")]
        count = 0
        failed: list[tuple[To, Sent]] = []
        while not failed:
            failed = server.router.send_all(receivers, [b"%d" % count, BULKY], float(count))
            count += 1
            await quick.receive(count)
        self.assertEqual(failed, [(receivers[0], Sent.FULL)])
        self.assertGreater(count, 100)
        self.assertEqual([each.sent for each in receivers], [count - 2, count - 1])
        self.assertIs(server.router.send(b"slow", [b"message"]), Sent.FULL)
        self.assertIs(server.router.send(b"quick", [b"message"]), Sent.SENT)
        self.assertEqual(list(numbers(await slow.receive(count - 1))), list(range(count - 1)))
        self.assertIs(server.router.send(b"slow", [b"again"]), Sent.SENT)
        self.assertEqual((await slow.receive(count))[-1], [b"again"])

    async def test_messages_of_two_long_frames_count_while_a_slow_peer_reads_on(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow")
        [connection] = server.router.connections
        for end, option in ((connection.transport.socket, SO_SNDBUF), (slow.raw.socket, SO_RCVBUF)):
            end.setsockopt(SOL_SOCKET, option, 65_536)  # the kernel takes no more as the peer reads
        long, sent, waiting = bytes(APART), 0, 0
        while len(slow.inbox) < 3_000:
            while server.router.send(b"slow", [b"%d" % sent, long, long]) is Sent.SENT:
                sent += 1
            waiting = max(waiting, sent - len(slow.inbox))
            await slow.receive(len(slow.inbox) + 1)
        self.assertLess(waiting, 1.5 * HIGH_WATER)

    async def test_the_default_is_a_thousand_messages(self) -> None:
        server = self.serve()
        await self.known(server, b"slow")
        count = server.choke(b"slow")
        self.assertGreaterEqual(count, 1_000)

    async def test_answers_go_beyond_in_order(self) -> None:
        server = self.serve(high_water=10)
        slow = await self.known(server, b"slow")
        count = server.choke(b"slow")
        answers = 0
        while server.router.reply(b"slow", [b"%d" % (count + answers)]) is Sent.SENT:
            answers += 1
            self.assertLessEqual(answers, ANSWERS)
        self.assertEqual(answers, ANSWERS)
        self.assertIs(server.router.send(b"slow", [b"x"]), Sent.FULL)
        self.assertEqual(list(numbers(await slow.receive(count + answers))), list(range(count + answers)))

    async def test_room_is_told_once_when_half_is_read(self) -> None:
        server = self.serve(high_water=100)
        slow = await self.known(server, b"slow")
        await self.known(server, b"other")
        count = server.choke(b"slow")
        for _ in range(3):
            self.assertIs(server.router.send(b"slow", [b"x"]), Sent.FULL)
        waiting: list[int] = []

        def fill(identity: bytes) -> None:
            more = 0
            while server.router.send(identity, [b"%d" % (count + more), BULKY]) is Sent.SENT:
                more += 1
            waiting.append(more)

        server.roomy = fill
        await slow.until(lambda: server.rooms)
        self.assertEqual(server.rooms, [b"slow"])
        self.assertGreaterEqual(waiting[0], 50)
        server.roomy = lambda identity: None
        await slow.receive(count + waiting[0])
        await until(lambda: len(server.rooms) == 2)
        self.assertIs(server.router.send(b"slow", [b"last"]), Sent.SENT)
        await slow.receive(count + waiting[0] + 1)
        self.assertEqual(server.rooms, [b"slow"] * 2)
        self.assertEqual(list(numbers(slow.inbox[:-1])), list(range(count + waiting[0])))

    async def test_no_room_is_told_where_only_an_answer_was_refused(self) -> None:
        server = self.serve(high_water=10)
        slow = await self.known(server, b"slow")
        count = 0
        while server.router.reply(b"slow", [b"%d" % count, BULKY]) is Sent.SENT:
            count += 1
        await slow.receive(count)
        server.router.send(b"slow", [b"x"])
        await slow.receive(count + 1)
        self.assertEqual(server.rooms, [])

    async def test_no_room_is_told_of_a_peer_that_is_gone(self) -> None:
        server = self.serve(high_water=10)
        slow = await self.known(server, b"slow")
        server.choke(b"slow")
        slow.close()
        await until(lambda: server.ends)
        self.assertEqual(server.told, [1])
        self.assertIs(server.router.send(b"slow", [b"x"]), Sent.GONE)

    async def test_an_exception_of_room_is_logged_and_the_peer_is_served(self) -> None:
        server = self.serve(high_water=10)
        slow = await self.known(server, b"slow")
        count = server.choke(b"slow")

        def fail(identity: bytes) -> None:
            raise ZeroDivisionError("as it is meant to")

        server.roomy = fail
        await slow.receive(count)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIs(server.router.send(b"slow", [b"x"]), Sent.SENT)
        self.assertEqual((await slow.receive(count + 1))[-1], [b"x"])

    async def test_so_many_bytes_wait_for_a_peer(self) -> None:
        server = self.serve()
        slow, quick = await self.known(server, b"slow"), await self.known(server, b"quick")
        count = self.fill(server, b"slow", MEBIBYTE)
        self.assertGreaterEqual(count * MEBIBYTE, BACKLOG - MEBIBYTE)
        self.assertLess(count * MEBIBYTE, BACKLOG + KERNEL)
        self.assertEqual(server.router.send_all([To(b"quick")], [b"", bytes(MEBIBYTE)], 1.0), [])
        await quick.receive()
        self.assertEqual([int(frames[1]) for frames in await slow.receive(count)], list(range(count)))
        both = [To(b"slow"), To(b"quick")]
        self.assertEqual(server.router.send_all(both, [b"", b"again", bytes(MEBIBYTE)], 1.0), [])
        self.assertEqual((await slow.receive(count + 1))[-1], [b"", b"again", bytes(MEBIBYTE)])
        self.assertEqual(server.rooms, [b"slow"])

    async def test_room_is_not_told_while_most_bytes_wait_still(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow")
        count = self.fill(server, b"slow", MEBIBYTE)
        rest: list[int] = []
        server.roomy = lambda identity: rest.append(self.fill(server, b"slow", MEBIBYTE))
        await slow.until(lambda: rest)
        self.assertGreaterEqual(rest[0], BACKLOG // 2 // MEBIBYTE - 1)
        server.roomy = lambda identity: None
        await slow.receive(count + rest[0])

    async def test_messages_of_many_frames_count(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow")
        receivers, frames = [To(b"slow")], [bytes(1_000)] * 1_000
        count = 0
        while not server.router.send_all(receivers, frames, 1.0):
            count += 1
            self.assertLess(count * 1_000_000, BACKLOG + KERNEL)
        self.assertEqual(await slow.receive(count), [frames] * count)

    async def test_a_peer_that_comes_back_has_room(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow")
        self.fill(server, b"slow", MEBIBYTE)
        slow.close()
        await until(lambda: server.ends)
        again = await self.known(server, b"slow")
        self.assertEqual(server.router.send_all([To(b"slow")], [b"", bytes(BACKLOG // 4)], 1.0), [])
        self.assertEqual(await again.receive(), [[b"", bytes(BACKLOG // 4)]])

    async def test_a_replaced_connection_leaves_its_backlog_behind(self) -> None:
        server = self.serve()
        old = await self.known(server, b"slow")
        count = self.fill(server, b"slow", MEBIBYTE)
        await self.known(server, b"slow")
        await old.wait_closed()
        self.assertLess(len(old.inbox), count - BACKLOG // 2 // MEBIBYTE)

    async def test_all_slow_peers_share_a_bound(self) -> None:
        server = self.serve(all_sizes=2 * BACKLOG)
        counts = []
        for number in range(4):
            await self.known(server, b"%d" % number)
            counts.append(self.fill(server, b"%d" % number, MEBIBYTE) * MEBIBYTE)
        self.assertLess(sum(counts), 2 * BACKLOG + 4 * KERNEL)
        self.assertLessEqual(server.router.memory.held, 2 * BACKLOG)
        await self.answers(server)

    async def test_what_many_slow_peers_share_counts_once(self) -> None:
        server = self.serve(all_sizes=BACKLOG)
        names = [b"%d" % number for number in range(20)]
        for name in names:
            await self.known(server, name)
        for _ in range(20):
            failed = server.router.send_all([To(name) for name in names], [b"", bytes(MEBIBYTE)], 1.0)
            # With CURVE, a message is sealed for each peer.
            self.assertTrue(self.form or not failed)
        held = server.router.memory.held
        self.assertTrue(10 * MEBIBYTE < held <= BACKLOG, held)

    @pytest.mark.long
    async def test_what_slow_peers_share_counts_until_the_last_of_them_has_read_it_or_left(self) -> None:
        if self.form:
            return  # with CURVE, a message is sealed for each peer
        for size, count in ((MEBIBYTE, 30), (2 * LARGE, 240), (1_000, 30_000)):
            await self.shared(size, count)

    async def shared(self, size: int, count: int) -> None:
        """Let peers share so many messages of that size, and read or leave one after the other."""
        server = self.serve(all_sizes=8 * BACKLOG, high_water=count)
        names = [b"%d" % number for number in range(6)]
        peers = [await self.known(server, name) for name in names]
        for number in range(count):
            failed = server.router.send_all([To(name) for name in names], [b"", b"%d" % number, bytes(size)], 1.0)
            self.assertEqual(failed, [])
        memory = server.router.memory
        await until(lambda: memory.held > size * count // 2)
        held = memory.held
        await peers[0].receive(count)
        peers.pop(0).close()
        while peers:
            await until(lambda: server.open == len(peers))
            # The parts of short messages are counted again for one peer at a time.
            least = 0.9 if size >= APART or len(peers) == 1 else 0.6
            self.assertTrue(least < memory.held / held < 1.1, f"{memory.held} of {held} bytes, {len(peers)} peers")
            peers.pop(0).close()
        await until(lambda: server.open == 0)
        self.assertEqual(memory.held, 0)

    async def test_bytes_do_not_count_any_more_when_they_are_read_or_their_connection_ends(self) -> None:
        server = self.serve(all_sizes=2 * BACKLOG)
        for turn in range(2):
            peers = [await self.known(server, b"%d %d" % (turn, number)) for number in range(2)]
            counts = [self.fill(server, b"%d %d" % (turn, number), MEBIBYTE) for number in range(2)]
            for count in counts:
                self.assertGreaterEqual(count * MEBIBYTE, BACKLOG - MEBIBYTE, "what is gone counts still")
            if turn % 2:
                for peer, count in zip(peers, counts, strict=True):
                    await peer.receive(count)
            for peer in peers:
                peer.close()
            await until(lambda: server.open == 0)

    async def test_a_peer_that_was_slow_once_takes_no_share_of_others(self) -> None:
        server = self.serve(all_sizes=2 * BACKLOG)
        for number in range(6):  # one long message, and nothing that waits behind it
            peer = await self.known(server, b"%d" % number)
            server.router.send(b"%d" % number, [bytes(8 * MEBIBYTE)])
            await peer.receive()
        await self.known(server, b"slow")
        await self.known(server, b"other")
        self.fill(server, b"slow", MEBIBYTE)
        count = self.fill(server, b"other", MEBIBYTE)
        self.assertGreaterEqual(count * MEBIBYTE, BACKLOG - MEBIBYTE)

    async def test_a_large_message_is_sealed_for_no_more_peers_than_may_wait(self) -> None:
        server = self.serve(all_sizes=20 * MEBIBYTE)
        names = [b"%d" % number for number in range(24)]
        peers = [await self.known(server, name) for name in names]
        body = bytes(8 * MEBIBYTE)
        failed = server.router.send_all([To(name) for name in names], [body], 1.0)
        missed = {receiver.identity for receiver, why in failed if why is Sent.FULL}
        self.assertEqual(len(missed), len(failed))
        # The same bytes wait for all without CURVE, and a copy for each with it.
        self.assertEqual(bool(missed), bool(self.form))
        for name, peer in zip(names, peers, strict=True):
            if name not in missed:
                self.assertEqual(await peer.receive(), [[body]])

    async def test_a_large_message_counts_once_for_a_blocked_peer(self) -> None:
        server = self.serve(all_sizes=12 * MEBIBYTE)
        slow = await self.known(server, b"slow")
        [connection] = server.router.connections
        for end, option in ((connection.transport.socket, SO_SNDBUF), (slow.raw.socket, SO_RCVBUF)):
            end.setsockopt(SOL_SOCKET, option, 4_096)
        for size in (1, 8):
            self.assertEqual(server.router.send_all([To(b"slow")], [bytes(size * MEBIBYTE)], 1.0), [])
        self.assertLess(server.router.memory.held, 10 * MEBIBYTE)

    async def test_no_end_is_told_within_a_fan_out(self) -> None:
        server = self.serve(all_sizes=7 * MEBIBYTE, high_water=200)
        slow = await self.known(server, b"slow")
        [connection] = server.router.connections
        for end, option in ((connection.transport.socket, SO_SNDBUF), (slow.raw.socket, SO_RCVBUF)):
            end.setsockopt(SOL_SOCKET, option, 4_096)
        unfinished = await self.speaker(server, b"unfinished", source="127.0.0.2").shake()
        unfinished.raw.send(unfinished.encoded(bytes(6 * MEBIBYTE))[:-1])
        memory = server.router.memory
        # All of its bytes: if some were still to be read, the queue below would fit, and there would be no eviction.
        await until(lambda: not unfinished.raw.unsent and memory.shares()[Share.INPUT] >= 6 * MEBIBYTE - 1)
        # The bytes that wait for a peer count once it blocks: at the write of its long queue, before the next message.
        for _ in range(201):
            server.router.send_all([To(b"slow")], [bytes(20_000)], 1.0)
        self.assertEqual((memory.evicted, server.ends), ({Share.INPUT: 1}, []))
        await until(lambda: server.ends == [2])
        self.assertEqual(self.refusals(Reason.TOO_LARGE), 1)

    async def test_no_session_of_another_listener_ends_within_a_send(self) -> None:
        server = self.serve(all_sizes=7 * MEBIBYTE, high_water=200)
        slow = await self.known(server, b"slow")
        [connection] = server.router.connections
        for end, option in ((connection.transport.socket, SO_SNDBUF), (slow.raw.socket, SO_RCVBUF)):
            end.setsockopt(SOL_SOCKET, option, 4_096)
        memory = server.router.memory
        unfinished = Holding(memory)
        unfinished.hold(6 * MEBIBYTE)
        for _ in range(201):
            server.router.send(b"slow", [bytes(20_000)])
        self.assertEqual((memory.evicted, unfinished.evicted), ({Share.INPUT: 1}, False))
        unfinished.hold(6 * MEBIBYTE + 1)
        self.assertLess(memory.held, 6 * MEBIBYTE)
        await until(lambda: unfinished.evicted)
        self.assertEqual([each.reason for each in unfinished.refusals], [Reason.TOO_LARGE])

    async def test_a_slow_peer_delays_no_other(self) -> None:
        server = self.serve(high_water=10)
        await self.known(server, b"slow")
        server.choke(b"slow")
        server.react = server.echo
        quick = self.peer(server, b"quick")
        for number in range(200):
            server.router.send(b"slow", [b"x"])
            quick.send(b"%d" % number)
            self.assertEqual((await quick.receive(number + 1))[-1], [b"%d" % number])

    async def test_the_input_of_a_peer_that_does_not_read_is_received(self) -> None:
        server = self.serve(high_water=10)
        slow = await self.known(server, b"slow")
        count = server.choke(b"slow")
        for number in range(500):
            slow.raw.send(slow.encoded(b"%d" % number))
        # Not looked at, but by the kernel.
        while slow.raw._unsent:
            slow.raw.socket.setblocking(True)
            slow.raw.socket.sendall(bytes(slow.raw._unsent))
            slow.raw._unsent.clear()
        await until(lambda: len(server.messages) == 500)
        slow.raw.socket.setblocking(False)
        self.assertEqual(list(numbers(await slow.receive(count))), list(range(count)))

    def fill(self, server: Server, identity: bytes, size: int) -> int:
        """Publish to a peer that does not read, until it gets nothing more. Returns how many messages it got."""
        receivers = [To(identity)]
        for count in range(math.ceil((BACKLOG + KERNEL) / size) + 1):
            # Each message is another object: those that share their bytes would count by their parts.
            failed = server.router.send_all(receivers, [b"", b"%d" % count, bytes(size)], 1.0)
            if failed:
                self.assertEqual(failed, [(receivers[0], Sent.FULL)])
                return count
        self.fail("it is never full")


@pytest.mark.long
class BacklogsPython(Backlogs):
    form = "python"


class BacklogsCompiled(Backlogs):
    form = "compiled"


class Pongs(Rig):
    async def test_a_flood_of_pings_is_answered_within_the_bound(self) -> None:
        server = self.serve(high_water=50)
        raw = self.raw(server)
        await raw.handshake(b"me")
        server.router.send(b"me", [bytes(KERNEL)])
        ping = bytes((4, len(b"\x04PING\0\0ctx"))) + b"\x04PING\0\0ctx"
        raw.socket.setblocking(True)
        raw.socket.sendall(ping * 10_000 + message(b"", b"done"))
        await until(lambda: server.messages)
        raw.socket.setblocking(False)
        dropped = self.counters.get("test_dropped", "pong")
        self.assertGreater(dropped, 10_000 - 50 - ANSWERS - 1)
        self.assertEqual(server.rooms, [])
        pong = b"\x04PONGctx"
        await until(lambda: raw.look().count(pong) == 10_000 - dropped)
        self.assertEqual(self.refusals(Reason.SYNTAX), 0)


MEMORY = """
import os, random, sys, unittest
from tests.net.process import resident
from tests.net.router.rig import Rig, To
from tests.net.waiting import until

size, count, peers = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

class Memory(Rig):
    form = sys.argv[1]

    async def test(self):
        server = self.serve()
        slow = [await self.known(server, b"%d" % number) for number in range(peers)]
        receivers = [To(b"%d" % number) for number in range(peers)]
        before = most = resident()
        for number in range(count):
            server.router.send_all(receivers, [b"", random.randbytes(size)], 1.0)
            most = max(most, resident())
        print(most - before, flush=True)
        os._exit(0)  # to close in good order takes seconds

result = unittest.TestResult()
Memory("test").run(result)
for _, text in result.errors + result.failures:
    print(text)
"""


@pytest.mark.long
def test_a_message_that_waits_for_many_peers_is_in_memory_once() -> None:
    assert LARGE < MEBIBYTE
    for size, count in ((MEBIBYTE, 100), (16 * MEBIBYTE, 2)):
        most = int(script(MEMORY, "", str(size), str(count), "20"))
        # The kernel's buffers are not counted here; of each peer 128 KiB are copied.
        assert most < count * size + 3 * size + 20 * MEBIBYTE // 2, f"{most} bytes for {count} messages of {size}"
