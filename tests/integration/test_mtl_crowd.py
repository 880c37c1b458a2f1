"""Many at once and much that is wrong, from outside: what MTL promises holds for who behaves, whatever others do."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import zmq

from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.field_table import IllFormed
from tests.integration.daemon import Daemon
from tests.integration.mtl_peers import (
    CANARY,
    CONFIRM,
    CONTENT,
    DISMISS,
    LEASE,
    MTL,
    PING,
    PONG,
    REJECT,
    RESPONSE,
    SUMMON,
    Bare,
    Command,
    Content,
    Flow,
    Peers,
    Response,
    head,
    peers_of,
    read,
    reply_of,
    short,
    tail,
)
from tests.patience import PATIENCE

GROWTH = 40_000
"""Kilobytes that the daemon may have grown by in a test: one message too many kept of each would be more."""


def memory(daemon: Daemon) -> int:
    """Kilobytes that the daemon has in memory."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.fixture(autouse=True)
def _it_does_not_grow(mtl: Daemon) -> Iterator[None]:
    before = memory(mtl)
    yield
    assert memory(mtl) - before < GROWTH


# many readers


@attrs.define(eq=False)
class Visitor:
    """A reader that comes and goes: it summons, reads some Contents, and dismisses."""

    flow: Flow
    visits: int
    here: bool = False
    """Its last Summon was answered, and no Dismiss since."""
    last: int = 0
    asked: int = 0
    seen: int = 0

    def come(self) -> None:
        """Summon."""
        self.seen = 0
        self.asked = self.flow.send(SUMMON, short("resource"))

    def take(self, command: Command) -> None:
        """Take what it is sent."""
        if isinstance(command, Content):
            assert self.here, "a Content that was not summoned, or was dismissed"
            self.last += 1
            assert command.sequence == self.last
            self.seen += 1
            if self.seen == 3:
                self.asked = self.flow.send(DISMISS, short("resource"))
        elif isinstance(command, Response):
            assert command == Response(self.asked, "200")
            self.here = not self.here
            if not self.here:
                self.visits -= 1
                if self.visits:
                    self.come()
        else:
            assert command == Bare(PING)
            self.flow.say(bytes([PONG]), b"")


def test_S06_S07_two_hundred_readers_come_and_go_while_three_write(mtl: Daemon, peers: Peers) -> None:
    visitors: dict[object, Visitor] = {}
    for _ in range(4):
        control = peers.control().opened("test")
        for _ in range(50):
            control.send("Connection.Reader", {"resources": ["resource"]})
        for _ in range(50):
            flow = peers.flow()
            visitors[flow.socket] = visitor = Visitor(flow, visits=4)
            visitor.asked = flow.send(LEASE, short(control.receive().body["lease"]))
    for visitor in visitors.values():
        assert visitor.flow.receive() == Response(visitor.asked, "200")
        visitor.come()
    over = threading.Event()

    def write() -> None:
        with peers_of(mtl) as others:
            writers = [others.writer("test", "resource") for _ in range(3)]
            while not over.wait(0.05):
                for writer in writers:
                    writer.write(b"x" * 100)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        poller = zmq.Poller()
        for socket in visitors:
            poller.register(socket, zmq.POLLIN)
        while any(visitor.visits for visitor in visitors.values()):
            ready = poller.poll(int(PATIENCE * 1000))
            assert ready, "nothing comes any more"
            for socket, _ in ready:
                visitor = visitors[socket]
                while visitor.flow.socket.poll(0):
                    visitor.take(visitor.flow.next())
        for visitor in visitors.values():
            assert visitor.flow.heard() == []
    finally:
        over.set()
        thread.join()


# whatever bytes


Frames = list[bytes]

Mutation = Callable[[random.Random, bytes], bytes]

BYTES: list[Mutation] = [
    lambda dice, data: data[: dice.randrange(len(data) + 1)],
    lambda dice, data: data + dice.randbytes(dice.randrange(1, 9)),
    lambda dice, data: _at(dice, data, b""),
    lambda dice, data: _at(dice, data, dice.randbytes(1)),
    lambda dice, data: _at(dice, data, bytes([dice.choice(b'\0\1\2\5\x7f\x80\xff"{}[],:')])),
    lambda dice, data: dice.randbytes(dice.randrange(40)),
    lambda dice, data: data * 2,
]


def _at(dice: random.Random, data: bytes, what: bytes) -> bytes:
    """Put something in the place of a byte."""
    place = dice.randrange(len(data) + 1)
    return data[:place] + what + data[place + 1 :]


def mutated(dice: random.Random, frames: Frames) -> Frames:
    """Something like these frames; sometimes just these."""
    frames = list(frames)
    for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
        place = dice.randrange(len(frames))
        kind = dice.randrange(10)
        if kind == 0:
            frames.insert(place, dice.choice([b"", b"x", frames[place]]))
        elif kind == 1 and len(frames) > 1:
            del frames[place]
        else:
            frames[place] = dice.choice(BYTES)(dice, frames[place])
    return frames


REQUESTS: list[tuple[bytes, object]] = [
    (b"Connection.Open", {"protocol": MTL, "virtual-host": "/"}),
    (b"Connection.Open", {"protocol": MTL}),
    (b"Connection.Authorize", {"mechanism": "PLAIN", "response": "AGFsaWNlAHNlY3JldA=="}),
    (b"Connection.Profile", {"profile": "test"}),
    (b"Connection.Profile", {"profile": "queue"}),
    (b"Connection.Reader", {"resources": ["resource"], "confirm": "none", "window": 10}),
    (b"Connection.Writer", {"resources": [], "confirm": "full"}),
    (CANARY.encode(), {"deep": [[[{}]]], "numbers": [1, -2.5e3], "text": "é\ud83d\ude00"}),
]


def is_request(frames: Frames) -> bool:
    """Return True if these frames are to be answered: an envelope that ends with an empty frame, a command and JSON."""
    if b"" not in frames[:17]:
        return False
    rest = frames[frames.index(b"") + 1 :]
    if len(rest) != 2:
        return False
    try:
        json.loads(rest[1].decode(), parse_constant=lambda text: json.loads("no " + text))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("tagged", [False, True], ids=["one session", "many sessions"])
def test_E07_Z01_requests_are_answered_and_what_is_none_is_not(peers: Peers, tagged: bool) -> None:
    dice = random.Random(11)
    control = peers.control()
    bystander = peers.control().opened("test")
    for number in range(500):
        command, body = dice.choice(REQUESTS)
        frames = mutated(dice, [b"", command, json.dumps(body).encode()])
        if tagged:
            frames.insert(0, b"%d" % number)
        canary = [b"canary %d" % number, b"", CANARY.encode(), b"{}"]
        control.socket.send_multipart(frames)
        control.socket.send_multipart(canary)
        received = control.socket.recv_multipart()
        if is_request(frames):
            envelope = frames[: frames.index(b"") + 1]
            assert received[:-2] == envelope, frames
            reply_of(*received[-2:])
            received = control.socket.recv_multipart()
        assert received[:3] == [*canary[:2], b"501"], frames
    assert bystander.lease("Reader").code == "202"


class Model:
    """A peer of the profile "test" that reads and writes, as it should be served. ``token`` is one of its leases."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._summoned = True
        self._sequence = 0

    def answers(self, frames: Frames) -> list[Command]:
        """Return the expected responses to these frames. The fuzz tests have a decoder of their own."""
        try:
            command = data_messages.parse(frames, data_messages.Tails())
        except IllFormed:
            return []
        if isinstance(command, data_messages.Ping):
            return [Bare(PONG)]
        if isinstance(command, data_messages.Lease):
            return [Response(command.sequence, "200" if command.lease == self._token else "403")]
        if isinstance(command, data_messages.Content):
            if command.resource not in ("", "resource"):
                return [Response(command.sequence, "400")]
            if not self._summoned:
                return []
            self._sequence += 1
            return [Content(self._sequence, "resource", bytes(command.table), bytes(command.body))]
        if not isinstance(command, data_messages.Summon | data_messages.Dismiss):
            return []
        summon = isinstance(command, data_messages.Summon)
        if command.resource != "resource" or self._summoned is summon:
            return [Response(command.sequence, "400")]
        self._summoned = summon
        return [Response(command.sequence, "200")]


def test_Z02_data_commands_are_served_as_if_nothing_had_come_between(peers: Peers) -> None:
    dice = random.Random(5)
    control = peers.control().opened("test")
    flow = peers.flow()
    tokens = [control.token(side) for side in ("Reader", "Writer")]
    assert [flow.lease(token) for token in tokens] == ["200", "200"]
    assert flow.summon("resource") == "200"
    flow.sequence = 1 << 60  # which no mutation comes to
    everything = {"a": "text", "b": 7, "c": True, "d": {"e": [1, "x", None]}, "f": 2.5}
    commands = [
        [head(LEASE, 1, short(tokens[0])), b""],
        [head(LEASE, 2, short("nonsense")), b""],
        *([head(kind, 3, short("resource")), b""] for kind in (SUMMON, SUMMON, DISMISS)),
        *([head(CONTENT, 4, tail("resource", everything)), b"body"] for _ in range(3)),
        [head(CONTENT, 5, tail("")), b""],
        [head(CONTENT, 6, tail("nonsense")), b""],
        [head(CONFIRM, 7, b"\1"), b""],
        [head(REJECT, 8, b"\0\1"), b""],
        [head(RESPONSE, 9), b"200"],
        [bytes([PING]), b""],
        [bytes([PONG]), b""],
    ]
    model = Model(tokens[0])
    for _ in range(1_000):
        frames = mutated(dice, dice.choice(commands))
        flow.say(*frames)
        canary = flow.send(SUMMON, short("the canary"))
        expected = [*model.answers(frames), Response(canary, "400")]
        received = [read(flow.socket.recv_multipart())]
        while received[-1] != expected[-1]:
            received.append(read(flow.socket.recv_multipart()))
        assert [each for each in received if each != Bare(PING)] == expected, frames


@attrs.define(eq=False)
class Worker:
    """A reader of a queue that answers at random, and what it should have."""

    flow: Flow
    out: dict[int, bytes] = attrs.field(factory=dict)
    """By sequence."""
    last: int = 0

    def take(self) -> None:
        """Take what it is sent."""
        for command in self.flow.heard():
            assert isinstance(command, Content)
            self.last += 1
            assert command.sequence == self.last
            self.out[self.last] = command.body

    def answer(self, dice: random.Random) -> list[bytes]:
        """Answer something, that was sent or not. Returns the messages that are settled by this."""
        sequence = dice.choice([*self.out, 0, 10_000, dice.randint(0, self.last)])
        multiple, again = dice.random() < 0.1, dice.random() < 0.3
        kind = dice.choice([CONFIRM, REJECT])
        header = head(kind, sequence, bytes([multiple]) if kind == CONFIRM else bytes([multiple, again]))
        if dice.random() < 0.2:
            self.flow.say(_at(dice, header, b"")[:9], b"")  # too short
            return []
        self.flow.say(header, dice.randbytes(3))
        if multiple and sequence <= self.last:
            covered = [each for each in self.out if each <= sequence]
        else:
            covered = [each for each in self.out if each == sequence]
        bodies = [self.out.pop(each) for each in covered]
        return bodies if kind == CONFIRM or not again else []


def test_Z03_whatever_a_queue_is_answered_it_loses_and_doubles_nothing(peers: Peers) -> None:
    dice = random.Random(7)
    writer = peers.writer("queue", "fuzz")
    bodies = {b"%d" % number for number in range(200)}
    assert writer.settled(*map(writer.write, sorted(bodies))) == []
    workers = [Worker(peers.reader("queue", "fuzz", window=20)) for _ in range(3)]
    left = set(bodies)
    while left:
        for worker in workers:
            worker.take()
            held = [body for each in workers for body in each.out.values()]
            assert len(held) == len(set(held))
            assert left.issuperset(held)
            for _ in range(5):
                settled = worker.answer(dice)
                assert left.issuperset(settled)
                left.difference_update(settled)
    for worker in workers:
        worker.take()
        assert not worker.out
