"""Bare Twisted servers that do no more than the network part of what the broker does: what it is compared with.

    python -m bench.elko.reference echo|answer|fanout

Each listens on a free port of 127.0.0.1, and prints its number.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import LineReceiver

BACKLOG = 1_024
"""Connections that wait to be accepted: the broker has as many, and with fewer connects are measured in seconds."""

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


SERVERS: dict[str, type[Protocol]] = {"echo": Echo, "answer": Answer, "fanout": FanOut}


def main() -> None:
    """Run one of them until it is killed."""
    from twisted.internet import reactor as default_reactor

    reactor: Any = default_reactor
    factory = Factory.forProtocol(SERVERS[sys.argv[1]])
    factory.noisy = False
    port = reactor.listenTCP(0, factory, BACKLOG, "127.0.0.1")
    print(port.getHost().port, flush=True)
    reactor.run()


if __name__ == "__main__":
    main()
