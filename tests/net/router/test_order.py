"""The order of output: a message that a request causes is written no later than the answer to that request.

Each write of the ROUTER is noted. When all is read, the sizes of the messages show in which write each of them ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from broker.net.peer_interfaces import Sent
from broker.net.router import router_peer as peers
from broker.net.router.backlog import LARGE
from broker.net.zmtp.curve_frames import OVERHEAD
from broker.net.zmtp.frames import SHORT
from tests.net.router.rig import BULKY, Rig, Server, Speaker, To
from tests.net.waiting import there_are, until

PUBLISHERS = 12

ANSWER = b"answer to "


class Order(Rig):
    """Each peer publishes to all others, and has an answer to each request."""

    async def start(self, count: int = PUBLISHERS, **options: Any) -> Server:
        server = self.serve(**options)
        self.speakers: list[Speaker] = [await self.known(server, b"%d" % number) for number in range(count)]
        self.receivers = [To(b"%d" % number) for number in range(count)]
        self.server = server
        server.react = self.publish
        self.writes: list[tuple[bytes, int]] = []
        """The peers that were written to, and the octets that each had had then."""
        self.octets: Counter[bytes] = Counter()
        for name in ("flush", "flush_ahead"):
            self.patch(peers.RouterPeer, name, self.noting(getattr(peers.RouterPeer, name)))
        return server

    def noting(self, original: Callable[[peers.RouterPeer], None]) -> Callable[[peers.RouterPeer], None]:
        """A method that writes what waits for a peer, and notes how much that was."""

        def write(connection: peers.RouterPeer) -> None:
            before = sum(map(len, connection.out))
            original(connection)
            self.octets[connection.identity] += before - sum(map(len, connection.out))
            self.writes.append((connection.identity, self.octets[connection.identity]))

        return write

    def publish(self, identity: bytes, frames: list[bytes], connection: int) -> None:
        request, _ = frames
        if request.startswith(b"put"):
            others = [each for each in self.receivers if each.identity != identity]
            assert self.server.router.send_all(others, frames, 1.0) == []
        assert self.server.router.reply(identity, [ANSWER + request]) is Sent.SENT

    def size(self, frames: list[bytes]) -> int:
        """The octets of a message."""
        sizes = [len(frame) + (OVERHEAD if self.form else 0) for frame in frames]
        return sum(size + (2 if size < SHORT else 9) for size in sizes)

    def moments(self) -> dict[tuple[bytes, bytes], int]:
        """The number of the write in which each message ended, by its receiver and its first frame."""
        moments: dict[tuple[bytes, bytes], int] = {}
        for speaker, receiver in zip(self.speakers, self.receivers, strict=True):
            identity = receiver.identity
            mine = [(number, octets) for number, (whose, octets) in enumerate(self.writes) if whose == identity]
            end = self.octets[identity] - sum(map(self.size, speaker.inbox))
            for frames in speaker.inbox:
                end += self.size(frames)
                while mine[0][1] < end:
                    del mine[0]
                moments[identity, frames[0]] = mine[0][0]
        return moments

    async def finish(self, requests: int) -> None:
        """Wait until all is answered and read, and check the order."""
        await until(there_are(requests, self.server.told))
        asked = [(identity, frames[0]) for identity, frames in self.server.heard]
        for speaker, receiver in zip(self.speakers, self.receivers, strict=True):
            mine = receiver.identity
            expected = [
                ANSWER + request if identity == mine else request
                for identity, request in asked
                if identity == mine or request.startswith(b"put")
            ]
            await speaker.receive(len(expected))
            self.assertEqual([frames[0] for frames in speaker.inbox], expected)
        moments = self.moments()
        late = [
            f"{identity!r} has the answer to {request!r} before {other.identity!r} has the message"
            for identity, request in asked
            if request.startswith(b"put")
            for other in self.receivers
            if other.identity != identity and moments[other.identity, request] > moments[identity, ANSWER + request]
        ]
        self.assertEqual(late[:5], [])

    async def test_many_publishers_in_one_turn(self) -> None:
        await self.start()
        for round in range(30):
            for number, speaker in enumerate(self.speakers):
                speaker.send(b"put %d %d" % (number, round), b"")
        await self.finish(30 * PUBLISHERS)

    async def test_publishers_that_ask_something_else_before(self) -> None:
        await self.start()
        for round in range(30):
            for number, speaker in enumerate(self.speakers):
                speaker.raw.send(
                    speaker.encoded(b"ask %d %d" % (number, round), b"")
                    + speaker.encoded(b"put %d %d" % (number, round), b"")
                )
        await self.finish(60 * PUBLISHERS)

    async def test_publishers_with_more_than_a_quantum(self) -> None:
        await self.start(4)
        for number, speaker in enumerate(self.speakers):
            speaker.raw.send(
                b"".join(speaker.encoded(b"put %d %d" % (number, round), b"x" * 100) for round in range(500))
            )
        await self.finish(500 * 4)

    async def test_large_messages_that_go_out_early(self) -> None:
        await self.start()
        for round in range(10):
            for number, speaker in enumerate(self.speakers):
                body = bytes(LARGE) if (number + round) % 4 == 0 else b""
                speaker.send(b"put %d %d" % (number, round), body)
        await self.finish(10 * PUBLISHERS)

    async def test_queues_that_are_full_in_a_turn(self) -> None:
        await self.start(high_water=5)
        for number, speaker in enumerate(self.speakers):
            speaker.raw.send(b"".join(speaker.encoded(b"put %d %d" % (number, round), b"") for round in range(20)))
        await self.finish(20 * PUBLISHERS)

    async def test_a_peer_that_does_not_read_changes_nothing_for_others(self) -> None:
        server = await self.start(4)
        await self.known(server, b"slow")
        server.choke(b"slow", BULKY)
        for round in range(50):
            for number, speaker in enumerate(self.speakers):
                server.router.send(b"slow", [b"x"])
                speaker.send(b"put %d %d" % (number, round), b"")
        await self.finish(200)


@pytest.mark.long
class OrderPython(Order):
    form = "python"


class OrderCompiled(Order):
    form = "compiled"
