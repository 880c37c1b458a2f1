"""The orderly end of a ROUTER."""

from __future__ import annotations

import pytest

from broker.net import admission
from broker.net.peer_interfaces import Sent
from tests.net.router.rig import MEBIBYTE, Rig, To, numbers
from tests.net.waiting import turn, until


class Ends(Rig):
    async def test_the_last_messages_arrive_and_the_conversation_is_told_nothing_more(self) -> None:
        server = self.serve()
        peers = [await self.known(server, b"%d" % number) for number in range(3)]
        receivers = [To(b"%d" % number) for number in range(3)]
        for number in range(500):
            server.router.send_all(receivers, [b"%d" % number, bytes(4_000)], 1.0)
        closed = server.listener.close()
        for peer in peers:
            peer.raw.send(peer.encoded(b"late"))
        for peer in peers:
            await peer.wait_closed()
            self.assertEqual(list(numbers(peer.inbox)), list(range(500)))
            peer.close()
        await closed
        self.assertEqual((server.told, server.open), ([], 0))

    async def test_peers_of_libzmq_have_the_last_messages(self) -> None:
        server = self.serve()
        peer = self.peer(server, b"me")
        peer.send(b"hello")
        await until(lambda: server.messages)
        for number in range(500):
            server.router.send(b"me", [b"%d" % number, bytes(4_000)])
        closed = server.listener.close()
        self.assertEqual(list(numbers(await peer.receive(500))), list(range(500)))
        await closed

    async def test_a_close_while_a_message_is_received(self) -> None:
        server, other = self.serve(), self.serve(wire="other")
        ended: list[object] = []

        def close(*_: object) -> None:
            for each in (server, other):
                each.listener.close().addCallback(ended.append)

        server.react = close
        peer, bystander = await self.known(server, b"me"), await self.known(other, b"other")
        peer.raw.send(b"".join(peer.encoded(b"%d" % number) for number in range(20)))
        for each in (peer, bystander):
            await each.wait_closed()
            each.close()
        await until(lambda: len(ended) == 2)
        self.assertEqual((server.told, other.told), ([(b"me", [b"0"], 1)], []))

    async def test_after_the_end_each_peer_is_gone(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        closed = server.listener.close()
        self.assertIs(server.router.send(b"me", [b"x"]), Sent.GONE)
        self.assertIs(server.router.reply(b"me", [b"x"]), Sent.GONE)
        receiver = To(b"me")
        self.assertEqual(server.router.send_all([receiver], [b"x"], 1.0), [(receiver, Sent.GONE)])
        self.assertEqual(server.router.send_each([receiver], b"", b"", b"x", 1.0), [(receiver, Sent.GONE)])
        peer.close()
        await closed

    async def test_a_peer_that_does_not_read_delays_the_end_by_its_time_at_most(self) -> None:
        self.patch(admission, "STOP_WITHIN", 0.5)
        server = self.serve(high_water=20)
        await self.known(server, b"slow")
        server.choke(b"slow", bytes(MEBIBYTE))
        await server.listener.close()
        self.assertEqual(server.open, 0)

    async def test_an_address_is_free_again(self) -> None:
        server = self.serve()
        for _ in range(5):
            (await self.known(server)).close()
            await until(lambda: server.open == 0)  # noqa: B023 (it is called in this round)
            await server.listener.close()
            await turn()
            server = self.serve(server.address)
        await self.answers(server)


@pytest.mark.long
class EndsPython(Ends):
    form = "python"


class EndsCompiled(Ends):
    form = "compiled"
