"""Messages between a ROUTER and peers of libzmq: identities, frames, senders."""

from __future__ import annotations

import random

import pytest
import zmq

from broker.net.peer_interfaces import Sender, Sent
from tests.net.router.rig import MEBIBYTE, Rig, To, numbers, senders
from tests.net.waiting import there_are, until
from tests.net.zmtp_peers import SIGNATURE, message


class Messages(Rig):
    async def test_a_message_has_an_identity_frames_and_the_number_of_its_connection(self) -> None:
        server = self.serve()
        self.peer(server, b"me").send(b"", b"NOOP", b"ID", b"1")
        await until(there_are(1, server.told))
        self.assertEqual(server.told, [(b"me", [b"", b"NOOP", b"ID", b"1"], 1)])

    async def test_messages_of_one_connection_have_one_number(self) -> None:
        server = self.serve()
        one, other = await self.known(server, b"one"), await self.known(server, b"other")
        for peer in (one, other, one, other):
            peer.send(b"x")
        await until(lambda: len(server.messages) == 4)
        self.assertEqual({each[::2] for each in map(tuple, server.told)}, {(b"one", 1), (b"other", 2)})

    async def test_frames_of_all_lengths_are_in_any_place_and_are_bytes(self) -> None:
        server = self.serve()
        peer = self.peer(server, b"me")
        sizes = (0, 1, 33, 222, 223, 255, 256, 4_095, 4_096, 4_097, 65_535, 65_536, MEBIBYTE)
        messages = [
            [bytes([number]) * size for number, size in enumerate(sizes[at:] + sizes[:at])] for at in range(len(sizes))
        ]
        server.react = server.echo
        for frames in messages:
            peer.send(*frames)
        self.assertEqual(await peer.receive(len(messages)), messages)
        self.assertEqual(server.messages, messages)
        self.assertEqual({type(frame) for frames in server.messages for frame in frames}, {bytes})

    async def test_a_message_of_16_mebibytes(self) -> None:
        server = self.serve()
        server.react = server.echo
        peer = self.peer(server, b"me")
        body = random.Random(1).randbytes(16 * MEBIBYTE)
        peer.send(b"", body)
        self.assertEqual(await peer.receive(), [[b"", body]])

    async def test_messages_of_two_thousand_frames(self) -> None:
        server = self.serve()
        server.react = server.echo
        frames = [b"%d" % number * (number % 100) for number in range(2_000)]
        peer = self.peer(server, b"me")
        peer.send(*frames)
        self.assertEqual(await peer.receive(), [frames])

    async def test_empty_frames_are_kept(self) -> None:
        server = self.serve()
        server.react = server.echo
        peer = self.peer(server, b"me")
        messages = [[b""] * count for count in (1, 2, 5)]
        for frames in messages:
            peer.send(*frames)
        self.assertEqual(await peer.receive(3), messages)

    async def test_an_identity_may_be_any_bytes_that_do_not_begin_with_zero(self) -> None:
        server = self.serve()
        identities = [b"\xff\xfe\x00\x00", b" \n\x1b[2J", bytes(range(1, 256)), b"x" * 255, b"x"]
        peers = [self.peer(server, identity) for identity in identities]
        for peer in peers:
            peer.send(b"here")
        await until(there_are(len(peers), server.told))
        self.assertEqual(sorted(server.identities), sorted(identities))
        for identity in identities:
            self.assertIs(server.router.send(identity, [identity]), Sent.SENT)
        for identity, peer in zip(identities, peers, strict=True):
            self.assertEqual(await peer.receive(), [[identity]])

    async def test_peers_without_an_identity_are_given_one_each_which_begins_with_zero(self) -> None:
        server = self.serve()
        peers = [self.peer(server) for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.send(b"%d" % number)
        await until(there_are(3, server.told))
        self.assertEqual(len(set(server.identities)), 3)
        self.assertEqual({(len(identity), identity[0]) for identity in server.identities}, {(5, 0)})
        for identity, [frame] in server.heard:
            server.router.send(identity, [b"you are", frame])
        for number, peer in enumerate(peers):
            self.assertEqual(await peer.receive(), [[b"you are", b"%d" % number]])

    async def test_the_identities_of_another_router_are_others(self) -> None:
        servers = [self.serve() for _ in range(2)]
        for server in servers:
            self.peer(server).send(b"x")
            await until(there_are(1, server.told))
        self.assertNotEqual(servers[0].identities, servers[1].identities)

    async def test_a_req_socket_and_a_router_are_clients_too(self) -> None:
        server = self.serve()
        server.react = lambda identity, frames, _: server.router.reply(identity, [b"", b"OK", b"ID", frames[-1]])
        peer = self.peer(server, kind=zmq.REQ)
        for number in (b"1", b"2"):
            peer.send(b"NOOP", b"ID", number)
            await until(lambda: peer.socket.poll(0))
            self.assertEqual(peer.socket.recv_multipart(), [b"OK", b"ID", number])
        router = self.peer(server, b"r", kind=zmq.ROUTER, probe_router=1)
        await until(lambda: b"r" in server.identities)
        router.close()

    async def test_the_messages_of_a_peer_keep_their_order_over_many_quanta(self) -> None:
        server = self.serve()
        peer = self.peer(server, b"me", sndhwm=0)
        count = 5_000
        for number in range(count):
            peer.send(b"%d" % number, bytes(number % 600))
        await until(lambda: len(server.told) == count)
        self.assertEqual(list(numbers(server.messages)), list(range(count)))

    async def test_a_message_is_passed_on_to_many(self) -> None:
        server = self.serve()
        body = random.Random(1).randbytes(10_000)
        readers = [await self.known(server, b"reader %d" % number) for number in range(20)]
        receivers = [To(b"reader %d" % number) for number in range(20)]

        def pass_on(identity: bytes, frames: list[bytes], connection: int) -> None:
            self.assertEqual(server.router.send_all(receivers, [b"", b"MESSAGE", *frames], 1.0), [])
            self.assertEqual(server.router.send_all(receivers, [b"", b"AGAIN", frames[0], frames[0]], 2.0), [])
            self.assertIs(server.router.reply(identity, frames), Sent.SENT)

        server.react = pass_on
        publisher = self.peer(server, b"publisher")
        publisher.send(body, b"short", body[:300])
        self.assertEqual(await publisher.receive(), [[body, b"short", body[:300]]])
        for reader in readers:
            self.assertEqual(
                await reader.receive(2), [[b"", b"MESSAGE", body, b"short", body[:300]], [b"", b"AGAIN", body, body]]
            )

    async def test_a_message_that_makes_the_conversation_fail_costs_that_message(self) -> None:
        server = self.serve()

        def fail(identity: bytes, frames: list[bytes], connection: int) -> None:
            if frames == [b"fail"]:
                raise ZeroDivisionError("as it is meant to")

        server.react = fail
        peer = await self.known(server, b"me")
        for frames in ([b"fail"], [b"fail"], [b"", b"x"]):
            peer.send(*frames)
        await until(there_are(3, server.told))
        self.assertEqual(server.messages[2], [b"", b"x"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1, "one line a minute")
        self.assertEqual(server.router.send(b"me", [b"go on"]), Sent.SENT)
        self.assertEqual(await peer.receive(), [[b"go on"]])
        self.assertEqual(server.ends, [])


@pytest.mark.long
class MessagesPython(Messages):
    form = "python"


class MessagesCompiled(Messages):
    form = "compiled"


class Senders(Rig):
    async def test_the_sender_is_known_while_its_message_is_received(self) -> None:
        server = self.serve()
        seen = senders(server)
        for kind, name in ((zmq.REQ, "REQ"), (zmq.DEALER, "DEALER")):
            seen.clear()
            self.peer(server, kind=kind).send(b"hello")
            await until(there_are(1, seen))
            self.assertEqual(seen, [Sender("127.0.0.1", "", name)])
        with self.assertRaises(AssertionError):
            server.router.sender()

    async def test_each_message_has_its_own_sender(self) -> None:
        server = self.serve()
        seen: set[tuple[bytes, str]] = set()
        server.react = lambda identity, *_: seen.add((identity, server.router.sender().socket_type))
        dealer, req = self.peer(server, b"d"), self.peer(server, b"r", kind=zmq.REQ, req_relaxed=1)
        for _ in range(20):
            dealer.send(b"x")
            req.send(b"x")
        await until(there_are(40, server.told))
        self.assertEqual(seen, {(b"d", "DEALER"), (b"r", "REQ")})

    async def test_a_peer_of_zmtp_2_has_an_address_and_a_socket_type(self) -> None:
        server = self.serve()
        seen = senders(server)
        raw = self.raw(server)
        version_2, dealer = b"\x01", b"\x05"
        raw.send(SIGNATURE + version_2 + dealer + message(b"me") + message(b"hello"))
        await until(there_are(1, seen))
        self.assertEqual(server.heard, [(b"me", [b"hello"])])
        self.assertEqual(seen, [Sender("127.0.0.1", "", "DEALER")])

    async def test_a_peer_does_not_have_the_key_or_the_address_that_it_claims(self) -> None:
        server = self.serve()
        seen = senders(server)
        for claims in ({"User_Id": b"the key of another"}, {"User_Id": b"\xff"}, {"Peer_Address": b"192.0.2.1"}):
            raw = self.raw(server)
            await raw.handshake(b"me", **claims)
            raw.send(message(b"", b"x"))
            await until(there_are(1, seen))
            self.assertEqual(seen, [Sender("127.0.0.1", "", "DEALER")])
            seen.clear()
            raw.close()
            await until(lambda: server.open == 0)
