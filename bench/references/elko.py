"""Bare Twisted servers that do no more than the network part of what the broker does: what it is compared with.

    python -m bench.references.elko echo|answer|fanout|register

Each listens on a free port of 127.0.0.1, and prints its number.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count
from typing import Any, ClassVar

import msgspec
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import LineReceiver
from twisted.protocols.policies import TimeoutMixin

from bench.processes import own_reactor
from bench.references.router import BACKLOG

OF_A_VISIT = 6
"""Newlines in what a visitor sends: three messages with two each."""

ANSWER = b'{"to":"broker","op":"pong","tag":"0"}\n\n'


class Echo(LineReceiver):
    """Sends each line back: one message in, one out."""

    delimiter = b"\n\n"

    def lineReceived(self, line: bytes) -> None:
        self.sendLine(line)  # type: ignore[no-untyped-call]


class Answer(Protocol):
    """Answers the last message of a visit, and waits for the other side to close."""

    newlines = 0

    def dataReceived(self, data: bytes) -> None:
        self.newlines += data.count(b"\n")
        if self.newlines == OF_A_VISIT:
            assert self.transport is not None
            self.transport.write(ANSWER)


class Register(LineReceiver, TimeoutMixin):
    """A registry in the usual way of Twisted, with the least that a server for this protocol must do.

    It parses each message, limits the connections of an address, ends those that do not authenticate in time, keeps the
    services of each provider in an index by name, and withdraws them at the end of the connection. It has no watches,
    waits, rights, health checks, journal or record on the disk, does not validate the parameters, and is not fair.
    """

    delimiter = b"\n\n"
    MAX_LENGTH = 1 << 20
    DEADLINE = 30.0
    """Seconds until a connection must authenticate."""
    MOST = 10_000
    """Connections of one address."""

    ids = count(1)
    addresses: ClassVar[Counter[str]] = Counter()
    index: ClassVar[dict[str, dict[int, Any]]] = {}
    provider = 0

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.host: str = self.transport.getPeer().host  # type: ignore[attr-defined]
        self.addresses[self.host] += 1
        if self.addresses[self.host] > self.MOST:
            self.transport.loseConnection()
        self.offered: list[str] = []
        self.setTimeout(self.DEADLINE)  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:
        assert self.transport is not None
        try:
            message = msgspec.json.decode(line)
            op = message["op"]
            if op == "auth":
                self.provider = next(self.ids)
                self.label = message.get("label")
                self.setTimeout(None)  # type: ignore[no-untyped-call]
            elif not self.provider:
                self.transport.loseConnection()
            elif op == "willserve":
                for service in message["services"]:
                    self.index.setdefault(service["service"], {})[self.provider] = service
                    self.offered.append(service["service"])
            elif op == "ping":
                reply = {"to": message["to"], "op": "pong", "tag": message["tag"]}
                self.sendLine(msgspec.json.encode(reply))  # type: ignore[no-untyped-call]
        except (msgspec.DecodeError, LookupError, TypeError):
            self.transport.loseConnection()

    def connectionLost(self, reason: object = None) -> None:
        self.setTimeout(None)  # type: ignore[no-untyped-call]
        self.addresses[self.host] -= 1
        if not self.addresses[self.host]:
            del self.addresses[self.host]
        for name in self.offered:
            same = self.index[name]
            same.pop(self.provider, None)
            if not same:
                del self.index[name]


class FanOut(LineReceiver):
    """Sends each line to all who said ``watch``."""

    delimiter = b"\n\n"
    watchers: ClassVar[list[FanOut]] = []

    def lineReceived(self, line: bytes) -> None:
        if line == b"watch":
            self.watchers.append(self)
            self.sendLine(b"ok")  # type: ignore[no-untyped-call]
        else:
            for watcher in self.watchers:
                watcher.sendLine(line)  # type: ignore[no-untyped-call]


SERVERS: dict[str, type[Protocol]] = {"echo": Echo, "answer": Answer, "register": Register, "fanout": FanOut}


def serve(factory: Factory) -> None:
    """Listen on a free port, print its number, and run until the process is killed."""
    reactor = own_reactor()
    factory.noisy = False
    port = reactor.listenTCP(0, factory, BACKLOG, "127.0.0.1")
    print(port.getHost().port, flush=True)
    reactor.run()


if __name__ == "__main__":
    serve(Factory.forProtocol(SERVERS[sys.argv[1]]))
