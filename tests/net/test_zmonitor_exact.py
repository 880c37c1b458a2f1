"""Connections that are watched exactly: which messages come after which news.

The reactor stands still in these tests, which read messages and news in the worst order.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from broker.net.zmonitor import GENERATED

from tests.net.zmq_peers import Server, Stage, greeting, message, ready
from tests.patience import PATIENCE

CLOSED = "closed"

TOO_SOON = 0.2
"""Seconds in which a message comes that comes at all."""


class TestExactConnections(Stage):
    def start(self) -> Server:
        """A server that writes down what it is told, in order."""
        self.told: list[tuple[Any, int]] = []
        server = self.serve(watch=True, exact=True, closed=lambda connection: self.told.append((CLOSED, connection)))
        server.react = lambda identity, frames, source: self.told.append((frames[-1], source))
        return server

    def connect(self, server: Server, *says: bytes, identity: bytes = b"") -> socket.socket:
        """A connection of its own, through which these messages are sent."""
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        self.addCleanup(raw.close)
        raw.sendall(greeting() + ready({b"Socket-Type": b"DEALER", b"Identity": identity}))
        got = b""
        while b"READY" not in got or b"ROUTER" not in got:  # what is not read would be lost with all that was sent
            got += raw.recv(1_000)
        raw.sendall(b"".join(map(message, says)))
        return raw

    def messages(self, server: Server, count: int) -> None:
        """Read messages, and no news, until there are so many in all."""
        self._spin(server.socket.serve, lambda: len(server.messages) >= count)

    def news(self, server: Server, count: int) -> None:
        """Read news, and no messages, until so many ends of connections were told."""
        self._spin(server.connections._events.read_all, lambda: sum(what == CLOSED for what, _ in self.told) >= count)

    def again(self, server: Server, identity: bytes, *says: bytes) -> None:
        """Connect with an identity that another connection had, until libzmq lets it have that, and read what it says.

        A connection that comes too soon is never heard.
        """
        before = len(server.messages)
        end = time.monotonic() + PATIENCE
        while len(server.messages) < before + len(says):
            raw = self.connect(server, *says, identity=identity)
            tried = time.monotonic()
            while len(server.messages) < before + len(says) and time.monotonic() < tried + TOO_SOON:
                server.socket.serve()
            if len(server.messages) == before:
                raw.close()
            self.assertLess(time.monotonic(), end)

    def _spin(self, read: Callable[[], object], done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            read()
            self.assertLess(time.monotonic(), end)
            time.sleep(0.0005)  # the reactor must not turn

    def test_the_end_of_a_connection_is_told_before_the_next_one_says_anything(self) -> None:
        server = self.start()
        for number in range(50):
            raw = self.connect(server, b"%d" % number)
            self.messages(server, number + 1)
            raw.close()
        sources = server.sources
        self.assertLess(len(set(sources)), len(sources), "no descriptor was used again")
        last: dict[int, Any] = {}
        for what, source in self.told:
            if what != CLOSED:
                self.assertIn(last.get(source), (None, CLOSED))
            last[source] = what

    def test_messages_of_a_connection_that_has_spoken_keep_their_descriptor_when_it_is_over(self) -> None:
        server = self.start()
        raw = self.connect(server, b"first")
        self.messages(server, 1)
        raw.sendall(message(b"second") + message(b"third"))
        raw.close()
        self.news(server, 1)
        self.messages(server, 3)
        [source] = set(server.sources)
        self.assertGreaterEqual(source, 0)
        self.assertEqual([what for what, _ in self.told], [b"first", CLOSED, b"second", b"third"])

    def test_a_message_has_no_descriptor_if_its_connection_was_over_before_it_said_anything(self) -> None:
        server = self.start()
        self.connect(server, b"first", b"second").close()
        self.news(server, 1)
        self.messages(server, 2)
        self.assertEqual(server.sources, [-1, -1])
        self.connect(server, b"third")
        self.messages(server, 3)
        self.assertEqual(server.sources[2], self.told[0][1], "the next one has it")

    def test_who_copies_an_identity_that_was_given_does_not_get_its_descriptor(self) -> None:
        server = self.start()
        raw = self.connect(server, b"victim")
        self.messages(server, 1)
        [identity], [source] = server.identities, server.sources
        self.assertEqual(identity[:1], GENERATED)
        raw.close()
        self.news(server, 1)
        self.again(server, identity, b"forged", b"again")
        self.assertEqual(server.identities, [identity] * 3)
        self.assertNotIn(source, server.sources[1:])

    def test_who_chose_an_identity_and_comes_again_has_a_descriptor_again(self) -> None:
        server = self.start()
        raw = self.connect(server, b"one", identity=b"me")
        self.messages(server, 1)
        raw.close()
        self.news(server, 1)
        self.again(server, b"me", b"two", b"three")
        self.assertEqual(len(set(server.sources[1:])), 1)
        self.assertNotIn(-1, server.sources)
