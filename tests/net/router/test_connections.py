"""The connections of a ROUTER: their numbers, their ends, and the identities that go from one to another."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.errors import Reason
from broker.core.place_table import CLOSING
from broker.net.connection_limits import ConnectionLimits
from broker.net.peer_interfaces import Sender, Sent
from broker.net.router.router_peer import RouterPeer
from tests.net.router.rig import OWN, Allowed, Pair, Rig, To, numbers
from tests.net.waiting import there_are, turn, until
from tests.net.zmtp_peers import greeting, message, ready


class Connections(Rig):
    async def test_a_peer_is_let_in_before_it_says_anything(self) -> None:
        server = self.serve()
        silent = await self.known(server, b"silent")
        self.assertIs(server.router.send(b"silent", [b"hello"]), Sent.SENT)
        self.assertEqual(await silent.receive(), [[b"hello"]])
        self.assertEqual(server.told, [])

    async def test_the_end_of_a_connection_is_told_once_by_its_number(self) -> None:
        server = self.serve()
        peers = [await self.known(server, b"%d" % number) for number in range(3)]
        for peer in peers:
            peer.send(b"x")
        await until(there_are(3, server.told))
        self.assertEqual(sorted(server.connections), [1, 2, 3])
        for number in (1, 0, 2):
            peers[number].close()
            await until(lambda: number + 1 in server.ends)  # noqa: B023 (it is called in this round)
        self.assertEqual(server.ends, [2, 1, 3])
        self.assertEqual((self.count("accepted"), self.count("closed"), server.open), (3, 3, 0))
        self.assertIs(server.router.send(b"0", [b"x"]), Sent.GONE)

    async def test_a_connection_that_said_nothing_ends_too(self) -> None:
        server = self.serve()
        silent = await self.known(server)
        self.raw(server).close()
        await until(lambda: self.count("closed") == 1)
        self.assertEqual(server.ends, [], "it was not let in")
        silent.close()
        await until(lambda: server.ends)
        self.assertEqual(server.told, [1])

    async def test_a_connection_that_says_nothing_is_told_after_the_end_of_the_one_before(self) -> None:
        server = self.serve()
        opened: list[object] = []
        server.ended = opened.append
        server.router.serve(server, opened=lambda *which: opened.append((*which, server.router.sender().address)))
        self._kept.append(await self.known(server, b"me"))
        self._kept.append(await self.known(server, b"me"))
        self.assertEqual(opened, [(b"me", 1, "127.0.0.1"), 1, (b"me", 2, "127.0.0.1")])

    async def test_the_number_of_a_connection_is_never_used_again(self) -> None:
        server = self.serve()
        for number in range(1, 21):
            peer = await self.known(server, b"me")
            peer.send(b"x")
            await until(lambda: number in server.connections)  # noqa: B023 (it is called in this round)
            peer.close()
            await until(lambda: number in server.ends)  # noqa: B023 (it is called in this round)
        self.assertEqual(server.connections, list(range(1, 21)))
        self.assertEqual(server.ends, list(range(1, 21)))

    async def test_a_connection_ends_after_the_last_message_of_a_peer_that_sends_and_closes_at_once(self) -> None:
        server = self.serve()
        count = 2_000
        for connection in range(1, 6):
            peer = await self.known(server, b"me")
            for number in range(count):
                peer.send(b"%d" % number)
            await until(lambda: not peer.raw.unsent)  # noqa: B023 (it is called in this round)
            peer.close()
            await until(lambda: connection in server.ends)  # noqa: B023 (it is called in this round)
            self.assertEqual(list(numbers(server.messages)), list(range(count)))
            self.assertEqual(server.told[-1], connection)
            server.told.clear()

    async def test_the_same_of_a_peer_of_libzmq(self) -> None:
        server = self.serve()
        peer = self.peer(server, b"me", sndhwm=0)
        peer.socket.linger = -1
        for number in range(1_000):
            peer.send(b"%d" % number)
        peer.socket.close()
        await until(lambda: server.ends)
        self.assertEqual(list(numbers(server.messages)), list(range(1_000)))
        self.assertEqual(server.told[-1], 1)

    async def test_of_five_hundred_that_come_and_go_none_stays(self) -> None:
        server = self.serve()
        for _ in range(10):
            raws = [self.raw(server) for _ in range(50)]
            for raw in raws:
                raw.close()
        await until(lambda: self.count("closed") == 500)
        self.assertEqual((self.count("accepted"), server.open), (500, 0))

    async def test_peers_that_break_off_leave_nothing_behind(self) -> None:
        server = self.serve()
        dealer = ready({b"Socket-Type": b"DEALER", b"Identity": b"noise"})
        for data in (b"", greeting(), greeting() + dealer, greeting() + dealer + message(b"half a message")[:-1]):
            for _ in range(25):
                raw = self.raw(server)
                raw.send(data)
                raw.close()
        await until(lambda: self.count("closed") == 100)
        self.assertEqual((server.open, server.messages), (0, []))
        self.assertIs(server.router.send(b"noise", [b"x"]), Sent.GONE)
        await self.answers(server)

    async def test_a_message_that_breaks_off_is_not_received(self) -> None:
        server = self.serve()
        peer = await self.known(server, b"me")
        peer.send(b"", b"whole")
        peer.raw.send(peer.encoded(b"", b"half")[:-1])
        await until(there_are(1, server.told))
        peer.close()
        await until(lambda: server.ends)
        again = await self.known(server, b"me")
        again.send(b"", b"again")
        await until(there_are(3, server.told))
        self.assertEqual(server.told, [(b"me", [b"", b"whole"], 1), 1, (b"me", [b"", b"again"], 2)])

    async def test_an_exception_at_an_end_is_logged_and_costs_no_connection(self) -> None:
        server = self.serve(limits=ConnectionLimits(connections_per_address=3))

        def fail(connection: int) -> None:
            raise ZeroDivisionError("as it is meant to")

        server.ended = fail
        for _ in range(2):
            replaced, peer = await self.known(server, b"me"), await self.known(server, b"me")
            await replaced.wait_closed()
            replaced.close()
            peer.close()
            await until(lambda: server.open == 0)
        self.assertEqual(server.ends, [1, 2, 3, 4])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        await self.answers(server)

    async def test_connections_in_all_and_of_an_address(self) -> None:
        server = self.serve(limits=ConnectionLimits(connections=5, connections_per_address=3))
        peers = [await self.known(server) for _ in range(3)]
        refused = self.raw(server)
        await refused.wait_closed()
        refused.close()
        self.assertEqual(self.refusals(Reason.TOO_MANY_CONNECTIONS), 1)
        peers.pop().close()
        await until(lambda: server.open == 2)
        await self.known(server)

        server = self.serve(limits=ConnectionLimits(connections=3))
        strangers = [self.raw(server) for _ in range(5)]
        peers = [await self.known(server) for _ in range(3)]
        for stranger in strangers:
            await stranger.wait_closed()
        await self.known(server)  # the longest idle one gives way
        await until(lambda: server.ends == [1])
        server.needy = True
        refused = self.raw(server)
        await refused.wait_closed()
        for peer in peers[1:]:
            peer.send(b"x")
        await until(lambda: len(server.messages) == 2)
        server.needy = False
        await self.known(server)

    async def test_peers_that_are_turned_away_and_do_not_close_keep_no_other_address_out(self) -> None:
        # By this clock no deadline of a close is ever over.
        server = self.serve(limits=ConnectionLimits(connections=6, connections_per_address=3), clock=Clock())
        for number in range(3):
            await self.known(server, b"peer %d" % number)
        for _ in range(20 + CLOSING):
            self.raw(server)
        other = await self.speaker(server, b"other", source="127.0.0.2").shake()
        other.send(b"hello")
        await until(lambda: server.messages)
        self.assertEqual(server.heard, [(b"other", [b"hello"])])
        await until(lambda: self.refusals(Reason.TOO_MANY_CONNECTIONS) == 20 + CLOSING)
        await until(lambda: server.open <= 6 + CLOSING)
        self.assertEqual(server.ends, [])

    async def test_a_peer_of_libzmq_comes_in_by_itself_once_there_is_room(self) -> None:
        server = self.serve(limits=ConnectionLimits(connections_per_address=1))
        first = await self.known(server)
        self.peer(server, b"late", reconnect_ivl=10).send(b"hello")
        await until(lambda: self.refusals(Reason.TOO_MANY_CONNECTIONS) >= 2)
        self.assertEqual(server.messages, [])
        first.close()
        await until(lambda: server.messages)
        self.assertEqual(server.heard, [(b"late", [b"hello"])])

    async def test_two_routers_are_counted_apart(self) -> None:
        one, other = self.serve(wire="one"), self.serve(wire="other")
        await self.known(one)
        self.assertEqual((one.open, other.open), (1, 0))
        self.assertEqual(self.counters.all(), {"one_connections.accepted": 1})


@pytest.mark.long
class ConnectionsPython(Connections):
    form = "python"


class ConnectionsCompiled(Connections):
    form = "compiled"


class Takeover(Rig):
    """With CURVE both peers have the same key."""

    async def test_a_newcomer_replaces_the_connection_that_has_its_identity(self) -> None:
        server = self.serve()
        old = await self.known(server, b"same")
        old.send(b"old")
        await until(there_are(1, server.told))
        new = await self.known(server, b"same")
        self.assertEqual(server.told, [(b"same", [b"old"], 1), 1], "it ends before the first message of the next one")
        new.send(b"new")
        await until(there_are(3, server.told))
        self.assertEqual(server.told[2], (b"same", [b"new"], 2))
        server.router.send(b"same", [b"for the newcomer"])
        self.assertEqual(await new.receive(), [[b"for the newcomer"]])
        await old.wait_closed()
        self.assertEqual(old.look(), [])
        self.assertEqual(self.refusals(Reason.REPLACED), 1)
        old.close()
        await until(lambda: server.open == 1)
        self.assertEqual(server.ends, [1])
        new.close()
        await until(lambda: server.ends == [1, 2])

    async def test_a_newcomer_replaces_a_connection_that_is_being_cut(self) -> None:
        server = self.serve()
        old = await self.known(server, b"same")
        [cut] = server.router.connections
        let_in, told = server.router.let_in, []

        def cut_before(peer: RouterPeer, identity: bytes) -> bool:
            cut.not_reading()
            let_in(peer, identity)
            told.extend(server.ends)
            return True

        self.patch(server.router, "let_in", cut_before)
        await self.known(server, b"same")
        self.assertEqual(told, [1], "it ends before the first message of the next one")
        await old.wait_closed()
        self.assertEqual(server.ends, [1])
        self.assertIs(server.router.send(b"same", [b"x"]), Sent.SENT)

    async def test_the_messages_of_a_replaced_connection_that_wait_are_not_received(self) -> None:
        server = self.serve()
        old = await self.known(server, b"same")
        old.send(b"first")
        await until(there_are(1, server.told))
        new = await self.known(server, b"same")
        old.raw.send(message(b"late") * 100)
        new.send(b"new")
        await until(lambda: [b"new"] in server.messages)
        for _ in range(5):
            await turn()
        self.assertEqual(server.told, [(b"same", [b"first"], 1), 1, (b"same", [b"new"], 2)])

    async def test_an_identity_goes_from_hand_to_hand_many_times(self) -> None:
        server = self.serve()
        server.react = server.echo
        peers = []
        for number in range(50):
            peers.append(await self.known(server, b"same"))
            peers[-1].send(b"%d" % number)
            self.assertEqual(await peers[-1].receive(), [[b"%d" % number]])
        self.assertEqual(server.ends, list(range(1, 50)))
        for peer in peers[:-1]:
            await peer.wait_closed()
        self.assertEqual(server.connections, list(range(1, 51)))

    async def test_peers_of_libzmq_replace_each_other(self) -> None:
        server = self.serve()
        server.react = server.echo
        old = self.peer(server, b"same", reconnect_ivl=-1)
        old.send(b"old")
        await old.receive()
        new = self.peer(server, b"same")
        new.send(b"new")
        self.assertEqual(await new.receive(), [[b"new"]])
        self.assertEqual(server.ends, [1])

    async def test_a_conversation_may_send_when_it_is_told_of_an_end(self) -> None:
        server = self.serve()
        sent: list[Sent] = []
        server.ended = lambda connection: sent.append(server.router.send(b"same", [b"x"]))
        await self.known(server, b"same")
        new = await self.known(server, b"same")
        self.assertEqual(sent, [Sent.GONE])
        self.assertIs(server.router.send(b"same", [b"y"]), Sent.SENT)
        self.assertEqual(await new.receive(), [[b"y"]])

    async def test_a_claim_is_asked_for_identities_that_no_connection_has(self) -> None:
        asked: list[tuple[bytes, str]] = []

        def claim(identity: bytes, sender: Sender) -> bool:
            asked.append((identity, sender.key))
            return identity != b"kept"

        server = self.serve(claim=claim, limits=ConnectionLimits(authenticate_within=1.0))
        key = OWN.shown if self.form else ""
        first = await self.known(server, b"free")
        self.assertEqual(asked, [(b"free", key)])
        await self.known(server, b"free")
        await self.known(server)
        self.assertEqual(asked, [(b"free", key)], "not for one that is taken over, nor for a generated one")
        refused = self.speaker(server, b"kept")
        await refused.wait_closed()
        self.assertEqual(asked[1:], [(b"kept", key)])
        self.assertIs(server.router.send(b"kept", [b"x"]), Sent.GONE)
        self.assertEqual((self.refusals(Reason.IDENTITY_TAKEN), server.ends), (1, [1]))
        first.close()


@pytest.mark.long
class TakeoverPython(Takeover):
    form = "python"


class TakeoverCompiled(Takeover):
    form = "compiled"


class OtherKeys(Rig):
    """Peers with keys of their own."""

    form = "python"

    async def test_another_key_does_not_get_an_identity_nor_a_message_of_its_owner(self) -> None:
        server = self.serve(limits=ConnectionLimits(authenticate_within=1.0))
        owner = await self.known(server, b"mine")
        thief = self.speaker(server, b"mine", Pair.new())
        await thief.until(lambda: self.refusals(Reason.IDENTITY_TAKEN) == 1)
        before = bytes(thief.raw.look())
        for number in range(20):
            self.assertIs(server.router.send(b"mine", [b"%d" % number]), Sent.SENT)
            self.assertEqual(server.router.send_all([To(b"mine")], [b"%d" % number], 1.0), [])
        await owner.receive(40)
        self.assertFalse(thief.raw.closed, "it is told nothing")
        await thief.wait_closed()
        self.assertEqual(bytes(thief.raw.look()), before)
        self.assertEqual(server.told, [])
        owner.send(b"still here")
        await until(there_are(1, server.told))

    async def test_another_key_gets_an_identity_that_is_free_again(self) -> None:
        server = self.serve()
        (await self.known(server, b"mine")).close()
        await until(lambda: server.ends)
        await self.known(server, b"mine", Pair.new())

    @pytest.mark.long
    async def test_a_refused_key_is_told_nothing_and_logged_once(self) -> None:
        allowed = Allowed({Pair.new().shown: "web1"})
        server = self.serve(keys=allowed, limits=ConnectionLimits(authenticate_within=1.0))
        stranger = Pair.new()
        with capturedLogs() as logs:
            for number in range(1, 4):
                peer = self.speaker(server, b"me", stranger)
                await peer.until(lambda: self.refusals(Reason.KEY_NOT_ALLOWED) == number)  # noqa: B023 (it is called in this round)
                before = bytes(peer.raw.look())
                await peer.wait_closed()
                self.assertEqual(bytes(peer.raw.look()), before)
        lines = [event for event in logs if event.get("reason")]
        self.assertEqual([event["reason"] for event in lines], [Reason.KEY_NOT_ALLOWED.code])
        self.assertEqual(lines[0]["address"], f"127.0.0.1 with key {stranger.shown}")
        self.assertEqual(server.told, [])

    async def test_a_peer_of_libzmq_comes_in_by_itself_once_its_key_is_allowed(self) -> None:
        allowed = Allowed()
        server = self.serve(keys=allowed, limits=ConnectionLimits(authenticate_within=1.0))
        pair = Pair.new()
        peer = self.peer(server, b"new", pair, reconnect_ivl=10)
        peer.send(b"hello")
        await until(lambda: self.refusals(Reason.KEY_NOT_ALLOWED) == 1)
        self.assertEqual(server.told, [])
        allowed[pair.shown] = "new"
        await until(there_are(1, server.told))
        self.assertEqual(server.heard, [(b"new", [b"hello"])])

    async def test_the_connections_of_revoked_keys_are_closed_at_once(self) -> None:
        pairs = [Pair.new() for _ in range(3)]
        server = self.serve()
        peers = [await self.known(server, b"%d" % number, pair) for number, pair in enumerate(pairs)]
        again = await self.known(server, b"again", pairs[0])
        server.router.revoke([pairs[0].shown, pairs[1].shown])
        self.assertEqual(sorted(server.told), [1, 2, 4])
        for number in range(2):
            self.assertIs(server.router.send(b"%d" % number, [b"x"]), Sent.GONE)
        for peer in (*peers[:2], again):
            await peer.wait_closed()
        self.assertEqual(self.refusals(Reason.KEY_NOT_ALLOWED), 3)
        peers[2].send(b"still here")
        await until(lambda: server.messages)

    async def test_what_a_revoked_key_still_sends_is_not_received(self) -> None:
        server = self.serve()
        pair = Pair.new()
        server.react = lambda *_: server.router.revoke([pair.shown])
        peer = await self.known(server, b"me", pair)
        peer.raw.send(b"".join(peer.encoded(b"%d" % number) for number in range(20)))
        await peer.wait_closed()
        self.assertEqual(server.told, [(b"me", [b"0"], 1), 1])


class OtherKeysCompiled(OtherKeys):
    form = "compiled"
