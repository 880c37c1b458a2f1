"""A broker that sends arbitrary messages: the client drops them, recovers where it must, and continues."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import attrs
from twisted.internet.task import deferLater

from broker.client.mtl import Delivery
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.field_table import encode
from tests.client.scripted import QUICK, READY, Stage

MESSAGES = 1_500

ROUND = 100
"""Messages after which the client has its turn."""


def messages(chance: random.Random) -> Iterator[list[bytes]]:
    """Good commands, mutated commands, and noise."""
    table = encode({"event": "up", "n": 1, "deep": {"a": [1, b"x", None]}})
    good = [
        lambda number: data_messages.content(number, "jobs", table, b"body"),
        lambda number: data_messages.content(number, "reply", table, b""),
        lambda number: data_messages.confirm(number, chance.random() < 0.5),
        lambda number: data_messages.reject(number, chance.random() < 0.5, chance.random() < 0.5),
        lambda number: data_messages.response(number, chance.choice([b"200", b"400", b"500", b"999"])),
        lambda number: data_messages.PING,
        lambda number: data_messages.PONG,
        lambda number: data_messages.lease(number, "x"),
        lambda number: data_messages.summon(number, "x"),
    ]
    for _ in range(MESSAGES):
        number = chance.choice([0, 1, 2, 3, chance.randrange(300), 2**64 - 1])
        frames = [bytes(frame) for frame in chance.choice(good)(number)]
        kind = chance.random()
        if kind < 0.3:
            at = chance.randrange(len(frames[0]))
            frames[0] = frames[0][:at] + chance.randbytes(chance.randrange(3)) + frames[0][at + 1 :]
        elif kind < 0.4:
            frames = [chance.randbytes(chance.randrange(40)) for _ in range(chance.randrange(1, 5))]
        yield frames


class Noise(Stage):
    async def test_data_flows_survive_anything(self) -> None:
        chance = random.Random(11)
        taken: list[Delivery] = []
        client = self.client(settings=attrs.evolve(QUICK, heartbeat=0.2))
        reader, writer = await client.both(
            "queue", ["jobs"], ["jobs"], taken.append, read_confirm="full", write_confirm="full", resend=True
        )
        await reader.summon("jobs")
        for count, frames in enumerate(messages(chance)):
            identity = next(reversed(self.broker.leased), None)
            if identity is not None:
                self.broker.data.send(identity, *frames)
            if count % ROUND == 0:
                await writer.room()
                writer.send(b"x").addErrback(lambda failure: None)
                await deferLater(self.reactor, 0.01)
        # and all is well in the end
        self.broker.wrong.clear()
        await self.until(lambda: reader.up)
        before = len(taken)
        self.broker.give("jobs", b"the last")
        await self.until(lambda: any(delivery.body == b"the last" for delivery in taken[before:]))
        await writer.settled()
        await writer.send(b"y")
        self.assertEqual(reader.flow.closed, False)

    async def test_the_control_flow_survives_anything(self) -> None:
        chance = random.Random(11)
        texts = [json.dumps(READY[1]).encode(), b"{}", b'{"status": "x", "mechanisms": []}', b"[]", b""]
        left = [100]

        def answer(frames: list[bytes]) -> None:
            if not left[0]:
                self.broker._receive(frames)
                return
            left[0] -= 1
            body = bytearray(chance.choice(texts))
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
            # nothing that is an answer: 2xx only where its members are not there
            code = chance.choice([b"200", b"202", b"402", b"503", b"999", b"", b"20", chance.randbytes(3)])
            self.broker.control.send(frames[0], *chance.choice([[b""], [], [b"x"]]), code, bytes(body))

        settings = attrs.evolve(QUICK, least_pause=0.001, most_pause=0.002)
        client = self.client(settings=settings)
        watched = self.broker.control
        watched._receive = answer
        opened: Any = await client.open()
        self.assertEqual((left, opened.profiles), ([0], tuple(READY[1]["profiles"])))
