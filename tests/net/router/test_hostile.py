"""Peers that are noise, half handshakes, endless messages: each ends in its own connection being closed."""

from __future__ import annotations

from functools import partial

import pytest
import zmq
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from broker.core.memory_budget import MemoryBudget, MemoryLimits
from broker.net.connection_limits import ConnectionLimits
from broker.net.peer_interfaces import Sent
from broker.net.scheduler import Scheduler
from broker.net.zmtp.frames import FrameLimits
from tests.examples import sampled
from tests.net.process import script
from tests.net.router.rig import MEBIBYTE, Pair, Rig
from tests.net.waiting import reactor, there_are, turn, until
from tests.net.zmtp_peers import SIGNATURE, RawPeer, greeting, message, ready

DEALER = ready({b"Socket-Type": b"DEALER", b"Identity": b"noise"})

NOISE = {
    "another protocol": b"GET / HTTP/1.0\r\n\r\n",
    "zeros": bytes(200),
    "a frame of ZMTP 1 without flags": b"\x01\0\0\0",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "another mechanism": greeting(b"PLAIN"),
    "the mechanism of other servers": greeting(b"CURVE"),
    "a mechanism that does not exist": greeting(b"\xff" * 20),
    "a message in place of the handshake": greeting() + message(b"x"),
    "a publisher": greeting() + ready({b"Socket-Type": b"PUB"}),
    "an identity of 256 bytes": greeting() + ready({b"Socket-Type": b"DEALER", b"Identity": b"x" * 256}),
    "a property that is longer than its command": greeting() + b"\x04\x0d\x05READY\x01x\x7f\xff\xff\xffx",
    "a command that is too long": greeting() + b"\x06\x40" + bytes(7),
    "a frame of four exabytes": greeting() + DEALER + b"\x02\x40" + bytes(7),
    "a frame of a negative length": greeting() + DEALER + b"\x02" + b"\xff" * 8,
    "flags that are reserved": greeting() + DEALER + b"\xf8\x01x",
    "a PING without a time to live": greeting() + DEALER + b"\x04\x05\x04PING",
}
"""Input that causes an immediate close."""

HALVES = {
    "half an identity of ZMTP 1": b"\x09\0abc",
    "nothing": b"",
    "a byte": b"\xff",
    "a signature": SIGNATURE,
    "half a greeting": greeting()[:40],
    "a greeting": greeting(),
    "half a handshake": greeting() + DEALER[:10],
    "a byte of ZMTP 2": SIGNATURE + b"\x01\x05",
}


class Noise(Rig):
    async def test_noise_is_closed_at_once_and_counted(self) -> None:
        server = self.serve()
        good = await self.known(server, b"good")
        for number, (name, data) in enumerate(NOISE.items(), 1):
            raw = self.raw(server)
            raw.send(data)
            try:
                await raw.wait_closed(10.0)
            except AssertionError:
                self.fail(f"{name} was not closed")
            raw.close()
            refused = sum(count for name, count in self.counters.all().items() if name.startswith("test_refused"))
            self.assertEqual(refused, number, name)
        good.send(b"", b"still here")
        await until(lambda: server.messages)
        self.assertEqual(server.heard, [(b"good", [b"", b"still here"])])
        await until(lambda: server.open == 1)

    async def test_a_wrong_socket_and_a_wrong_identity_are_refused_with_a_reason(self) -> None:
        server = self.serve()
        for properties, text in (
            ({b"Socket-Type": b"PUB"}, b"a ROUTER does not talk to 'PUB'"),
            ({b"Socket-Type": b"REQ", b"Identity": b"x" * 256}, b"an identity has more than 255 bytes"),
        ):
            raw = self.raw(server)
            raw.send(greeting() + ready(properties))
            await raw.wait_closed()
            self.assertIn(b"\x05ERROR" + bytes((len(text),)) + text, raw.data)

    async def test_failed_handshakes_are_counted_each_and_logged_once(self) -> None:
        server = self.serve()
        with capturedLogs() as logs:
            for _ in range(20):
                raw = self.raw(server)
                raw.send(b"GET / HTTP/1.1\r\n\r\n")
                await raw.wait_closed()
                raw.close()
        self.assertEqual(self.refusals(Reason.HANDSHAKE), 20)
        lines = [event for event in logs if event.get("reason")]
        self.assertEqual([(event["reason"], event["address"]) for event in lines], [("handshake", "127.0.0.1")])

    async def test_half_a_handshake_ends_when_its_time_is_over(self) -> None:
        server = self.serve(limits=ConnectionLimits(authenticate_within=0.3))
        raws = []
        for data in HALVES.values():
            raws.append(self.raw(server))
            raws[-1].send(data)
        began = reactor.seconds()
        await until(lambda: server.open == len(raws))
        done = await self.known(server, b"done")
        for raw in raws:
            await raw.wait_closed()
            raw.close()
        self.assertGreater(reactor.seconds() - began, 0.25)
        self.assertEqual(self.refusals(Reason.HANDSHAKE), len(raws))
        done.send(b"still here")
        await until(lambda: server.messages)

    async def test_everything_may_come_byte_by_byte(self) -> None:
        server = self.serve()
        raw = self.raw(server)
        for data, answer in ((greeting(), b"NULL"), (DEALER, b"READY"), (message(b"", b"x" * 300), b"")):
            for byte in data:
                raw.send(bytes([byte]))
                await turn()
            await until(partial(answered, raw, answer))
        await until(lambda: server.messages)
        self.assertEqual(server.heard, [(b"noise", [b"", b"x" * 300])])

    async def test_all_may_come_at_once(self) -> None:
        server = self.serve()
        raw = self.raw(server)
        raw.send(greeting() + DEALER + message(b"", b"1") + message(b"2"))
        await until(lambda: len(server.messages) == 2)
        self.assertEqual(server.messages, [[b"", b"1"], [b"2"]])
        self.assertIs(server.router.send(b"noise", [b"x"]), Sent.SENT)
        await until(lambda: raw.look().endswith(message(b"x")))

    async def test_messages_before_noise_are_received(self) -> None:
        server = self.serve()
        server.react = server.echo
        raw = self.raw(server)
        raw.send(greeting() + DEALER + message(b"one") + message(b"two") + b"\xff\xff" + message(b"three"))
        await raw.wait_closed()
        self.assertEqual(server.told, [(b"noise", [b"one"], 1), (b"noise", [b"two"], 1), 1])
        self.assertTrue(raw.data.endswith(message(b"one") + message(b"two")), "their answers are sent")
        self.assertEqual(self.refusals(Reason.SYNTAX), 1)


def answered(raw: RawPeer, answer: bytes) -> bool:
    return answer in raw.look()


class Lengths(Rig):
    async def test_a_frame_of_the_largest_length_passes_and_a_longer_one_is_refused(self) -> None:
        server = self.serve(zmtp=FrameLimits.of_frame(10_000))
        other, peer = await self.known(server, b"other"), await self.known(server, b"me")
        peer.send(b"", bytes(10_000), bytes(10_000))
        await until(there_are(1, server.told))
        peer.send(b"", bytes(10_001))
        await peer.wait_closed()
        self.assertEqual(server.told, [(b"me", [b"", bytes(10_000), bytes(10_000)], 2), 2])
        self.assertEqual(self.refusals(Reason.TOO_LARGE), 1)
        other.send(b"still here")
        await until(there_are(3, server.told))

    async def test_a_peer_that_sent_too_much_may_come_again(self) -> None:
        server = self.serve(zmtp=FrameLimits.of_frame(10_000))
        peer = self.peer(server, b"me", reconnect_ivl=10)
        peer.send(b"", bytes(10_001))
        await until(lambda: server.ends)

        def heard_again() -> bool:
            # Messages that the peer sends before it notices the close are lost.
            peer.send(b"", b"again")
            return bool(server.messages)

        await until(heard_again)
        self.assertEqual(server.heard[0], (b"me", [b"", b"again"]))

    async def test_an_endless_message_is_refused_at_its_limit(self) -> None:
        limits = FrameLimits(frame=MEBIBYTE, message=4 * MEBIBYTE, frames=8_192)
        server = self.serve(zmtp=limits)
        good = await self.known(server, b"good")
        for number, size in enumerate((0, 33, MEBIBYTE), 1):
            peer = await self.known(server, b"endless")
            frames = [bytes(size)] * (10_000 if size < 100 else 6)
            peer.raw.send(peer.encoded(*frames))
            await peer.wait_closed()
            peer.close()
            self.assertEqual(self.refusals(Reason.TOO_LARGE), number)
            good.send(b"%d" % size)
            await until(lambda: [b"%d" % size] in server.messages)  # noqa: B023 (it is called in this round)
        self.assertEqual(server.identities, [b"good"] * 3)
        self.assertEqual(server.router.memory.held, 0)

    async def test_unfinished_messages_of_an_address_are_bounded(self) -> None:
        limits = MemoryLimits(address=10 * MEBIBYTE)
        server = self.serve(turns=Scheduler(reactor, memory=MemoryBudget(limits)))
        good = await self.known(server, b"good")
        peers = []
        for number in range(15):
            peer = await self.known(server, b"%d" % number)
            peers.append(peer)
            peer.raw.send(peer.encoded(bytes(MEBIBYTE))[:-1])
            await until(lambda: not peer.raw.unsent)  # noqa: B023 (it is called in this round)
        await until(lambda: self.refusals(Reason.TOO_LARGE) >= 5)
        self.assertLessEqual(server.router.memory.held, 10 * MEBIBYTE)
        for peer in peers[:4]:
            await peer.wait_closed()  # those that began first
        good.send(bytes(MEBIBYTE))
        await until(lambda: server.messages)
        self.assertEqual(server.identities, [b"good"])
        for peer in peers:
            peer.close()
        await until(lambda: server.open == 1)
        self.assertEqual(server.router.memory.held, 0)

    async def test_connections_are_read_as_the_queue_of_all_allows(self) -> None:
        server = self.serve()
        await self.known(server)
        (peer,) = server.router.connections
        self.assertIs(peer.transport.crowd, server.router.turns)

    @pytest.mark.long
    async def test_a_message_that_is_begun_and_not_continued_is_closed(self) -> None:
        server = self.serve(limits=ConnectionLimits(stalled_after=0.2))
        good = await self.known(server, b"good")
        good.send(b"whole")
        for whole in ([b"x" * 10], [b"x" * 100_000], [b"x"] * 5):
            peer = await self.known(server, b"half")
            peer.raw.send(peer.encoded(*whole)[:-1])
            await peer.wait_closed()
            peer.close()
        self.assertEqual(self.refusals(Reason.TOO_SLOW), 3)
        self.assertEqual(server.identities, [b"good"])
        good.send(b"still here")
        await until(lambda: len(server.messages) == 2)


@pytest.mark.long
class LengthsPython(Lengths):
    form = "python"


class LengthsCompiled(Lengths):
    form = "compiled"


class Keys(Rig):
    form = "python"

    async def test_peers_without_the_right_keys_cost_others_nothing(self) -> None:
        server = self.serve(limits=ConnectionLimits(authenticate_within=1.0))
        good = self.peer(server, b"good")
        good.send(b"0")
        await until(lambda: server.messages)
        public, _ = zmq.curve_keypair()
        self.peer(server, b"wrong server", curve_serverkey=public, reconnect_ivl=10).send(b"let me in")
        plain = self.raw(server)
        plain.send(greeting() + DEALER)
        await plain.wait_closed()
        zeros = self.raw(server)
        zeros.send(greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\x00" + bytes(192))
        await zeros.wait_closed()
        await until(lambda: self.refusals(Reason.HANDSHAKE) >= 4)
        good.send(b"1")
        await until(lambda: len(server.messages) == 2)
        self.assertEqual(server.identities, [b"good"] * 2)

    async def test_a_frame_that_does_not_open_ends_the_connection(self) -> None:
        server = self.serve()
        good = await self.known(server, b"good", Pair.new())
        for number in range(3):
            peer = await self.known(server, b"me")
            peer.send(b"right")
            await until(lambda: len(server.messages) == number + 1)  # noqa: B023 (it is called in this round)
            octets = peer.encoded(b"wrong")
            raw = (octets[:-1] + bytes((octets[-1] ^ 1,)), message(b"plain"), octets + octets)[number]
            peer.raw.send(raw)
            await peer.wait_closed()
        self.assertEqual(self.refusals(Reason.SYNTAX), 3)
        self.assertEqual([frames for frames in server.messages if frames != [b"right"]], [[b"wrong"]])
        good.send(b"still here")
        await until(lambda: [b"still here"] in server.messages)


class KeysCompiled(Keys):
    form = "compiled"


FUZZ = """
import random, sys, unittest
from broker.net.connection_limits import ConnectionLimits
from broker.net.zmtp.frames import FrameLimits
from tests.net.router.rig import Rig
from tests.net.waiting import turn, until
from tests.net.zmtp_peers import RawPeer, greeting, message, ready

rng = random.Random(int(sys.argv[1]))

def garbled(data):
    data = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 2, 5, 50])):
        at = rng.randrange(len(data))
        what = rng.randrange(4)
        if what == 0:
            data[at] = rng.randrange(256)
        elif what == 1 and len(data) > 8:
            del data[at : at + rng.randrange(8)]
        elif what == 2:
            data[at:at] = rng.randbytes(rng.randrange(8))
        else:
            data += data[at : at + 100]
    return bytes(data)

class Fuzz(Rig):
    async def test(self):
        server = self.serve(limits=ConnectionLimits(authenticate_within=0.2), zmtp=FrameLimits.of_frame(1_000))
        server.react = lambda identity, frames, connection: server.router.reply(identity, frames)
        hello = ready({b"Socket-Type": b"DEALER", b"Identity": b"x"})
        messages = message(b"", b"NOOP", b"ID", b"1") + message(b"y" * 300) * 3
        for _ in range(200):
            raw = RawPeer(server.port)
            for data in (greeting(), hello, messages):
                # In half of the cases it is all right so far, to get further.
                raw.send(data if rng.random() < 0.5 else garbled(data))
                for _ in range(rng.randrange(20)):
                    await turn()
                    raw.look()
            raw.close()
        await until(lambda: server.open == 0)
        await self.answers(server)
        ends = server.ends
        print(len(server.messages) > 30, len(ends) == len(set(ends)) > 30)

result = unittest.TestResult()
Fuzz("test").run(result)
for _, text in result.errors + result.failures:
    print(text)
"""


@pytest.mark.parametrize("seed", sampled(range(3)))
def test_no_input_makes_the_router_fail(seed: int) -> None:
    assert script(FUZZ, str(seed)) == "True True\n"


ENDLESS = """
import os, sys, threading, unittest
from broker.net.zmtp.frames import FrameLimits
from tests.net.process import resident
from tests.net.router.rig import Rig
from tests.net.waiting import until
from tests.net.zmtp_peers import part

size = int(sys.argv[1])

class Endless(Rig):
    async def test(self):
        server = self.serve(zmtp=FrameLimits(frame=1 << 20, message=4 << 20))
        raw = self.raw(server)
        await raw.handshake(b"me")
        piece = part(bytes(size)) * max(1, 65_536 // (size + 2))
        before = most = resident()
        sent = 0
        def looked():
            nonlocal most, sent
            for _ in range(16):
                if len(raw._unsent) < 2 << 20:
                    raw.send(piece)
                    sent += len(piece)
            most = max(most, resident())
            raw.look()
            return raw.closed or sent > 200 << 20
        await until(looked)
        await until(lambda: server.ends)
        print(raw.closed, most - before, flush=True)
        os._exit(0)

result = unittest.TestResult()
Endless("test").run(result)
for _, text in result.errors + result.failures:
    print(text)
"""


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 33, MEBIBYTE])
def test_an_endless_message_takes_no_more_memory_than_the_limit(size: int) -> None:
    closed, _, most = script(ENDLESS, str(size)).partition(" ")
    assert closed == "True", most
    # The sender, in the same process, has some MiB ready.
    assert int(most) < 4 * MEBIBYTE + 2 * MEBIBYTE + 6 * MEBIBYTE
