"""Finders: one at each broker, which finds all names and lists the registry again and again while faults happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
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

RECORDED = "history-"
"""Beginning of the names of services with a recorded history, which finders do not look at."""

Entry = tuple[str, str, int]
"""A service: its name, its place, and the id of its provider."""

Place = tuple[str, str]
"""The name of a service, and its place."""


class _Looking(LineOnlyReceiver):
    transport: Any
    delimiter = b"\n"
    MAX_LENGTH = 10_000_000

    def __init__(self, finder: Finder) -> None:
        self.finder = finder

    def connectionMade(self) -> None:
        self.found: set[Place] = set()
        self.transport.write(b'{"to":"admin","op":"auth"}\n\n{"to":"client","op":"auth"}\n\n')
        self.finder.connected(self)

    def look(self, finds: bytes) -> None:
        self.found = set()
        self.transport.write(finds + b'{"to":"admin","op":"servicedesc"}\n\n')

    def lineReceived(self, line: bytes) -> None:
        if b'"op":"find"' in line:
            self.found.update(
                (each["service"], each["hostport"]) for each in msgspec.json.decode(line)["desc"] if "hostport" in each
            )
        elif b'"op":"servicedesc"' in line:
            listed = msgspec.json.decode(line)["desc"]
            services = [
                (each["service"], each["hostport"], each["provider"])
                for each in listed
                if each["provider"] and not each["service"].startswith(RECORDED)
            ]
            self.finder.saw(services, self.found)
        elif b'"ping"' in line:
            self.transport.write(line.replace(b'"ping"', b'"pong"') + b"\n\n")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.finder.disconnected(self)


class Finder:
    """Looks at one broker. ``services`` is what it listed last, at ``seen``, and ``found`` what finds of all ``names``
    returned just before; ``up`` is the time of its connection, or 0.

    ``look`` is called with this finder after each look.
    """

    def __init__(self, broker: Broker, names: Iterable[str], look: Callable[[Finder], object]) -> None:
        self.broker = broker
        self.services: list[Entry] = []
        self.found: set[Place] = set()
        self._finds = b"".join(b'{"to":"client","op":"find","service":"%b"}\n\n' % each.encode() for each in names)
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

    def saw(self, services: list[Entry], found: set[Place]) -> None:
        self.services = services
        self.found = found
        self.seen = time.monotonic()
        self.looks += 1
        self._look(self)
        reactor.callLater(EVERY, self._ask)

    def _ask(self) -> None:
        if self._connection is not None:
            self.asked = time.monotonic()
            self._connection.look(self._finds)
