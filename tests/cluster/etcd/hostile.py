"""A server for tests that answers requests of HTTP with any bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure


@attrs.frozen
class Asked:
    """A request: its path below ``/v3/``, its fields in lower case, and its JSON body."""

    path: str
    fields: dict[str, str]
    body: Any


Answer = Callable[["Conversation", Asked], object]


class Conversation(Protocol):
    """One connection. An answer writes what it likes; ``lost`` is True after its end."""

    transport: Any
    factory: Server
    lost = False

    def connectionMade(self) -> None:
        self._data = b""
        self.factory.conversations.append(self)

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode().split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._data = rest[length:]
        asked = Asked(first.split()[1].removeprefix("/v3/"), fields, json.loads(rest[:length]))
        self.factory.asked.append(asked)
        self.factory.answer(self, asked)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = True

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.transport.write(data)

    def whole(self, body: bytes, status: str = "200 OK", *fields: str) -> None:
        """Write a whole answer."""
        lines = [f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}", "", ""]
        self.transport.write("\r\n".join(lines).encode() + body)

    def chunked(self) -> None:
        """Begin an answer in chunks, as that to a watch."""
        self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        """Write a chunk."""
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def without_end(self, piece: bytes) -> None:
        """Write a piece again and again, as fast as it is read."""
        server = self

        class Producer:
            def resumeProducing(self) -> None:
                server.transport.write(piece)

            def stopProducing(self) -> None:
                pass

        self.transport.registerProducer(Producer(), False)


class Server(Factory):
    """A server on loopback. ``asked`` are the requests so far."""

    protocol = Conversation  # type: ignore[assignment]
    noisy = False

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.conversations: list[Conversation] = []
        listening: Any = reactor
        self._port = listening.listenTCP(0, self, interface="127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port.getHost().port}"

    async def stop(self) -> None:
        """Stop it, and close its connections."""
        await self._port.stopListening()
        for each in self.conversations:
            if not each.lost:
                each.transport.abortConnection()
