"""Heartbeats: PINGs of peers are answered, and silent peers get a PING, then a close."""

from __future__ import annotations

from functools import partial

from twisted.internet.task import Clock

from broker.core.errors import Reason
from broker.net.router.router import IDLE
from broker.net.router.router_peer import RouterPeer
from tests.net.router.rig import Rig, Server
from tests.net.waiting import until
from tests.net.zmtp.conversation import GREETING, READY
from tests.net.zmtp_peers import GREETING as LENGTH
from tests.net.zmtp_peers import RawPeer, message, part


def command(name: bytes, data: bytes) -> bytes:
    """A command without encryption."""
    body = bytes((len(name),)) + name + data
    return bytes((4, len(body))) + body


PING = command(b"PING", b"\0\0")


class Pings(Rig):
    async def test_a_ping_is_answered_with_its_context(self) -> None:
        server = self.serve()
        raw = self.raw(server)
        await raw.handshake(b"me")
        for context in (b"", b"c", b"x" * 16):
            raw.send(command(b"PING", b"\0\1" + context))
            await until(lambda: raw.look().endswith(command(b"PONG", context)))  # noqa: B023 (it is called in this round)
        raw.send(part(b"one") + command(b"PING", b"\0\1in a message") + message(b"two"))
        await until(lambda: server.messages)
        await until(lambda: raw.look().endswith(command(b"PONG", b"in a message")))
        self.assertEqual(server.messages, [[b"one", b"two"]])

    async def test_peers_of_libzmq_stay_with_heartbeats_on(self) -> None:
        await keep_alive(self)


class PingsPython(Rig):
    form = "python"

    async def test_peers_of_libzmq_stay_with_heartbeats_on(self) -> None:
        await keep_alive(self)


class PingsCompiled(PingsPython):
    form = "compiled"


async def keep_alive(rig: Rig) -> None:
    """Serve a peer that sends heartbeats, and ends its connection where they are not answered."""
    server = rig.serve()
    server.react = server.echo
    peer = rig.peer(server, b"me", heartbeat_ivl=10, heartbeat_timeout=60_000, heartbeat_ttl=60_000)
    # libzmq sends a PING after 10 ms without traffic.
    for number in range(20):
        peer.send(b"%d" % number)
        await peer.receive(number + 1)
        [connection] = server.router.connections
        assert isinstance(connection, RouterPeer)
        connection.silence = 1
        await until(partial(heard_of, connection))
    rig.assertEqual((server.ends, set(server.connections)), ([], {1}))


def heard_of(connection: RouterPeer) -> bool:
    """True if the ROUTER read something of a peer since it was counted as silent."""
    return connection.silence == 0


class Idle(Rig):
    """The ROUTER has a clock of its own, and connections are real."""

    async def start(self, greeting: bytes = GREETING) -> tuple[Clock, Server, RawPeer]:
        clock = Clock()
        server = self.serve(clock=clock)
        raw = self.raw(server)
        raw.send(greeting + READY)
        await until(lambda: b"READY" in raw.look()[LENGTH:])
        await self.all_handled(server)
        return clock, server, raw

    async def all_handled(self, server: Server) -> None:
        """Wait until the ROUTER has handled all input: on a busy machine that takes more than one quantum."""
        await until(lambda: not any(each._rest for each in server.router.connections))

    async def test_a_silent_peer_is_asked_and_closed_without_an_answer(self) -> None:
        clock, server, raw = await self.start()
        begun = len(raw.data)
        clock.advance(IDLE)
        self.assertEqual(raw.look()[begun:], b"")
        clock.advance(IDLE)
        await until(lambda: raw.look()[begun:] == PING)
        self.assertEqual(server.ends, [])
        clock.advance(IDLE)
        self.assertEqual(server.ends, [1])
        await raw.wait_closed()
        self.assertEqual(self.refusals(Reason.SILENT), 1)
        self.assertEqual([call for call in clock.getDelayedCalls() if call.getTime() >= clock.seconds() + IDLE], [])

    async def test_a_peer_that_answers_stays(self) -> None:
        clock, server, raw = await self.start()
        for number in range(1, 6):
            clock.advance(IDLE)
            clock.advance(IDLE)
            await until(lambda: raw.look().count(PING) == number)  # noqa: B023 (it is called in this round)
            raw.send(command(b"PONG", b"") + message(b"%d" % number))
            await until(lambda: len(server.messages) == number)  # noqa: B023 (it is called in this round)
            await self.all_handled(server)
        self.assertEqual(server.ends, [])

    async def test_a_peer_that_sends_is_not_asked(self) -> None:
        clock, server, raw = await self.start()
        for number in range(1, 6):
            clock.advance(IDLE)
            raw.send(message(b"%d" % number))
            await until(lambda: len(server.messages) == number)  # noqa: B023 (it is called in this round)
        self.assertEqual((raw.look().count(PING), server.ends), (0, []))

    async def test_a_peer_of_zmtp_3_0_is_left_alone(self) -> None:
        clock, server, raw = await self.start(GREETING[:11] + b"\0" + GREETING[12:])
        begun = len(raw.data)
        for _ in range(10):
            clock.advance(IDLE)
        raw.send(message(b"still here"))
        await until(lambda: server.messages)
        self.assertEqual((bytes(raw.look()[begun:]), server.ends), (b"", []))

    async def test_an_end_in_which_the_conversation_closes_another_connection(self) -> None:
        clock, server, raw = await self.start()
        other = await self.known(server, b"other")
        await self.all_handled(server)
        both = list(server.router.connections)

        def close(connection: int) -> None:
            for each in both:
                each.close()

        server.ended = close
        for _ in range(3):
            clock.advance(IDLE)
        self.assertEqual(sorted(server.ends), [1, 2])
        self.assertEqual(self.refusals(Reason.SILENT), 1)
        await raw.wait_closed()
        await other.wait_closed()
