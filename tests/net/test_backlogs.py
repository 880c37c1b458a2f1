"""The bytes that wait for peers which do not read: counted, bounded, and given back."""

from __future__ import annotations

import tempfile

import zmq
from broker.net.backlogs import LARGE, MAX_BACKLOG, Backlogs

from broker.session.router import Sent
from tests.net.zmq_peers import Receiver, Server, Stage, script, until
from tests.patience import PATIENCE

MEBIBYTE = 1024 * 1024

KERNEL = 32 * MEBIBYTE
"""More bytes than the kernel takes of one connection."""


class Sending:
    """Messages that libzmq has; they are done when nobody refers to them any more."""

    def __init__(self, backlogs: Backlogs) -> None:
        self._backlogs = backlogs
        self._frames: dict[str, zmq.Frame] = {}

    def send(self, name: str, identity: bytes, size: int) -> None:
        frame = self._frames[name] = zmq.Frame(b"x", track=True, copy=False)
        assert frame.tracker is not None
        self._backlogs.add(identity, frame.tracker, size)

    def done(self, name: str) -> None:
        tracker = self._frames.pop(name).tracker
        assert tracker is not None
        tracker.wait(PATIENCE)


def test_nothing_waits_at_first() -> None:
    assert Backlogs().has_room(b"me", MAX_BACKLOG)


def test_one_message_of_any_size_may_wait() -> None:
    backlogs = Backlogs()
    sending = Sending(backlogs)
    assert backlogs.has_room(b"me", 2 * MAX_BACKLOG)
    sending.send("a", b"me", 2 * MAX_BACKLOG)
    assert not backlogs.has_room(b"me", LARGE)
    sending.done("a")
    assert backlogs.has_room(b"me", 2 * MAX_BACKLOG)


def test_messages_may_wait_up_to_the_bound_and_not_a_byte_more() -> None:
    backlogs = Backlogs()
    sending = Sending(backlogs)
    sending.send("a", b"me", MAX_BACKLOG - 1_000_000)
    sending.send("b", b"me", 500_000)
    assert backlogs.has_room(b"me", 500_000)
    assert not backlogs.has_room(b"me", 500_001)
    sending.send("c", b"me", 500_000)
    assert not backlogs.has_room(b"me", 1)


def test_what_is_done_makes_room() -> None:
    backlogs = Backlogs()
    sending = Sending(backlogs)
    for name in ("a", "b", "c", "d"):
        sending.send(name, b"me", MAX_BACKLOG // 4)
    assert not backlogs.has_room(b"me", 1)
    sending.done("a")
    assert backlogs.has_room(b"me", MAX_BACKLOG // 4)
    assert not backlogs.has_room(b"me", MAX_BACKLOG // 4 + 1)
    for name in ("b", "c", "d"):
        sending.done(name)
    assert backlogs.has_room(b"me", MAX_BACKLOG)


def test_peers_do_not_take_room_from_each_other() -> None:
    backlogs = Backlogs()
    sending = Sending(backlogs)
    sending.send("a", b"me", MAX_BACKLOG)
    assert not backlogs.has_room(b"me", 1)
    assert backlogs.has_room(b"you", MAX_BACKLOG)


def test_what_waits_for_a_peer_counts_after_its_session_has_ended() -> None:
    """Its connection may be there still, and so may be what was sent through it."""
    backlogs = Backlogs()
    sending = Sending(backlogs)
    sending.send("a", b"me", MAX_BACKLOG)
    backlogs.forget(b"me")
    assert not backlogs.has_room(b"me", LARGE)


def test_a_peer_that_is_forgotten_has_room_when_nothing_waits_for_it_any_more() -> None:
    backlogs = Backlogs()
    sending = Sending(backlogs)
    backlogs.forget(b"nobody")
    sending.send("a", b"me", MAX_BACKLOG)
    backlogs.forget(b"me")
    sending.done("a")
    assert backlogs.has_room(b"me", MAX_BACKLOG)


class TestBacklogs(Stage):
    def fill(self, server: Server, identity: bytes, size: int = MEBIBYTE) -> int:
        """Publish to a peer that does not read, until it gets nothing more. Returns how many messages it got."""
        receivers = [Receiver(identity)]
        count = 0
        while not (failed := server.socket.send_all(receivers, [b"", b"%d" % count, bytes(size)], 1.0)):
            count += 1
            self.assertLess(count * size, 2 * MAX_BACKLOG + KERNEL)
        self.assertEqual(failed, [(receivers[0], Sent.FULL)])
        return count

    async def test_a_slow_peer_has_so_many_bytes_waiting_and_gets_more_when_it_reads(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow", rcvhwm=1)
        quick = await self.known(server, b"quick")
        count = self.fill(server, b"slow")
        self.assertGreaterEqual(count * MEBIBYTE, MAX_BACKLOG - MEBIBYTE)
        self.assertEqual(server.socket.send_all([Receiver(b"quick")], [b"", bytes(MEBIBYTE)], 1.0), [])
        await quick.receive()
        received = await slow.receive(count)
        self.assertEqual([int(frames[1]) for frames in received], list(range(count)))
        everybody = [Receiver(b"slow"), Receiver(b"quick")]
        await until(lambda: not server.socket.send_all(everybody, [b"", b"again", bytes(MEBIBYTE)], 1.0))
        self.assertEqual((await slow.receive(count + 1))[-1], [b"", b"again", bytes(MEBIBYTE)])

    async def test_small_messages_still_go_to_a_peer_for_which_large_ones_wait(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow", rcvhwm=1)
        count = self.fill(server, b"slow")
        self.assertEqual(server.socket.send_all([Receiver(b"slow")], [b"", b"small"], 1.0), [])
        self.assertIs(server.socket.send(b"slow", [b"", b"OK"]), Sent.SENT)
        self.assertEqual((await slow.receive(count + 2))[-2:], [[b"", b"small"], [b"", b"OK"]])

    async def test_messages_of_many_frames_count_too(self) -> None:
        server = self.serve()
        slow = await self.known(server, b"slow", rcvhwm=1)
        receivers = [Receiver(b"slow")]
        frames = [bytes(1_000)] * 1_000
        count = 0
        while not server.socket.send_all(receivers, frames, 1.0):
            count += 1
            self.assertLess(count * 1_000_000, 2 * MAX_BACKLOG + KERNEL)
        self.assertEqual(await slow.receive(count), [frames] * count)

    async def test_empty_frames_count_too(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            # The kernel takes less of a unix socket.
            server = self.serve(f"ipc://{directory}/socket")
            await self.known(server, b"slow", rcvhwm=1)
            receivers = [Receiver(b"slow")]
            count = 0
            while not server.socket.send_all(receivers, [b""] * 10_000, 1.0):
                count += 1
                self.assertLess(count * 10_000 * 64, 2 * MAX_BACKLOG)

    async def test_a_peer_that_went_with_much_waiting_for_it_has_room_when_it_comes_back(self) -> None:
        server = self.serve(handover=True)
        slow = await self.known(server, b"slow", rcvhwm=1)
        self.fill(server, b"slow")
        slow.close()
        await until(lambda: server.socket.send(b"slow", [b"x"]) is Sent.GONE)
        again = await self.known(server, b"slow", rcvhwm=1)
        everything = [b"", bytes(MAX_BACKLOG)]
        await until(lambda: not server.socket.send_all([Receiver(b"slow")], everything, 1.0))
        self.assertEqual(await again.receive(), [everything])

    async def test_answers_are_counted_too(self) -> None:
        """The ID of a message is as long as the peer likes, and comes back in the answer."""
        server = self.serve()
        await self.known(server, b"slow", rcvhwm=1)
        count = 0
        while server.socket.send(b"slow", [b"", b"OK", b"ID", bytes(MEBIBYTE)]) is Sent.SENT:
            count += 1
            self.assertLess(count * MEBIBYTE, MAX_BACKLOG + KERNEL)


MEMORY = """
import random
from tests.net import zmq_peers as stage

class Memory(stage.Stage):
    async def test(self):
        server = self.serve()
        slow = [await self.known(server, b"%d" % number, rcvhwm=1) for number in range(20)]
        receivers = [stage.Receiver(b"%d" % number) for number in range(20)]
        publisher = await self.known(server, b"publisher")
        dropped = []
        server.react = lambda identity, frames, source: dropped.extend(server.socket.send_all(receivers, frames, 1.0))
        before = most = stage.resident()
        for number in range(300):
            server.forget()
            publisher.send(b"", b"", random.randbytes(1 << 20))
            await stage.until(lambda: server.messages)
            most = max(most, stage.resident())
        server.forget()
        print(len(dropped) > 20 * 150, most - before)

import unittest
result = unittest.TestResult()
Memory("test").run(result)
for _, text in result.errors + result.failures:
    print(text)
"""


def test_what_waits_for_many_peers_is_in_memory_once() -> None:
    dropped, _, most = script(MEMORY).strip().partition(" ")
    assert dropped == "True", most
    # The peers are in the same process: their share is what the kernel does not hold, and a message each.
    assert int(most) < 2 * MAX_BACKLOG + 20 * 3 * MEBIBYTE
