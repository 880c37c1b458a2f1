"""Finders: one at each broker, which looks at the whole registry again and again while faults happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from twisted.internet import reactor as _reactor
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from tests.cluster.farm.hosts import ELKO, Broker

reactor: Any = _reactor

EVERY = 0.5
"""Seconds between two looks."""

Entry = tuple[str, str, int]
"""A service: its name, its place, and the id of its provider."""


class _Looking(LineOnlyReceiver):
    transport: Any
    delimiter = b"\n"
    MAX_LENGTH = 10_000_000

    def __init__(self, finder: Finder) -> None:
        self.finder = finder

    def connectionMade(self) -> None:
        self.transport.write(b'{"to":"admin","op":"auth"}\n\n')
        self.finder.connected(self)

    def look(self) -> None:
        self.transport.write(b'{"to":"admin","op":"servicedesc"}\n\n')

    def lineReceived(self, line: bytes) -> None:
        if b'"servicedesc"' in line:
            found = msgspec.json.decode(line)["desc"]
            services = [(each["service"], each["hostport"], each["provider"]) for each in found if each["provider"]]
            self.finder.saw(services, sum(1 for each in found if each.get("restored")))
        elif b'"ping"' in line:
            self.transport.write(line.replace(b'"ping"', b'"pong"') + b"\n\n")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.finder.disconnected(self)


class Finder:
    """Looks at one broker. ``services`` is what it saw last, at ``seen``; ``up`` is the time of its connection, or 0.

    ``look`` is called with this finder after each look.
    """

    def __init__(self, broker: Broker, look: Callable[[Finder], object]) -> None:
        self.broker = broker
        self.services: list[Entry] = []
        self.restored = 0
        self.seen = self.asked = self.up = 0.0
        self.looks = 0
        self._look = look
        self._connection: _Looking | None = None
        self._over = False

    def start(self) -> None:
        """Connect, and look until `stop`."""
        if self._over:
            return
        endpoint = TCP4ClientEndpoint(reactor, self.broker.address, ELKO, timeout=1.5)
        connecting = endpoint.connect(Factory.forProtocol(lambda: _Looking(self)))
        connecting.addErrback(lambda _: reactor.callLater(0.3, self.start))

    def stop(self) -> None:
        """End."""
        self._over = True
        if self._connection is not None:
            self._connection.transport.abortConnection()

    def connected(self, connection: _Looking) -> None:
        self._connection = connection
        self.up = time.monotonic()
        self._ask()

    def disconnected(self, connection: _Looking) -> None:
        self._connection = None
        self.up = 0.0
        if not self._over:
            reactor.callLater(0.3, self.start)

    def saw(self, services: list[Entry], restored: int) -> None:
        self.services = services
        self.restored = restored
        self.seen = time.monotonic()
        self.looks += 1
        self._look(self)
        reactor.callLater(EVERY, self._ask)

    def _ask(self) -> None:
        if self._connection is not None:
            self.asked = time.monotonic()
            self._connection.look()
