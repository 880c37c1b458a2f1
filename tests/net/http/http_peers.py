"""An HTTP listener in memory, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import connectionDone

from broker.core.errors import Reason
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.http_listener import HttpFactory
from broker.net.http.request import HttpLimits, RequestBounds, RequestIds
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.rest.messages import Request, Response
from tests.net.words import Wire
from tests.ticking_clock import TickingClock


def echo(request: Request) -> Response:
    """The method, path and body of a request."""
    return Response(200, b" ".join([request.method.encode(), request.path.encode(), request.body]), "text/plain")


@attrs.define
class Answer:
    """A response as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes


class Site:
    """A listener whose requests are recorded, and answered by ``respond``."""

    def __init__(
        self,
        respond: Callable[[Request], Any] = echo,
        connections: ConnectionLimits | None = None,
        requests: RequestBounds | None = None,
        **limits: int,
    ) -> None:
        self.clock = TickingClock()
        self.counters = Counters()
        self.requests: list[Request] = []
        self.respond = respond
        self.limits = HttpLimits(connections or ConnectionLimits(), requests or RequestBounds(), **limits)
        turns = Scheduler(self.clock)
        refusal_log = RefusalLog(self.counters, self.clock)
        self.factory = HttpFactory(
            "http", self._answer, self.limits, turns, refusal_log, self.clock, RequestIds("start")
        )
        self._ports = count(4000)

    def connect(self, host: str = "192.0.2.1") -> Link:
        return Link(self, host, next(self._ports))

    def refused(self, reason: Reason) -> int:
        return self.counters.all().get(f"http_refused.{reason.code}", 0)

    def turn(self, times: int = 1) -> None:
        """Let the scheduler take its turns."""
        self.clock.pump([0] * times)

    def quiet(self) -> None:
        """Let all deadlines pass, and assert that nothing is left."""
        self.clock.pump([1] * 100)
        assert self.factory.connections == set()
        assert self.factory.waiting.total() == 0
        assert self.factory.memory.held == 0
        assert self.clock.getDelayedCalls() == []

    def _answer(self, request: Request) -> Any:
        self.requests.append(request)
        return self.respond(request)


class _Wire(Wire):
    """A transport whose sequences are writes like others."""

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))


class Link:
    """One connection of a client."""

    def __init__(self, site: Site, host: str, port: int) -> None:
        self._site = site
        address = IPv4Address("TCP", host, port)
        self.protocol: Any = site.factory.buildProtocol(address)
        self.wire = _Wire()
        self.wire.peerAddr = address
        self.protocol.makeConnection(self.wire)

    def send(self, data: bytes) -> None:
        """Bytes arrive in one read."""
        self.protocol.dataReceived(data)

    def ask(self, line: str, *headers: str, body: bytes = b"") -> None:
        """A request arrives. ``line`` is its method and target."""
        head = [f"{line} HTTP/1.1", *([] if any(h.lower().startswith("host:") for h in headers) else ["Host: h"])]
        head += headers
        if body:
            head.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)

    def raw(self) -> bytes:
        """The output since the last call."""
        self._site.turn()
        data: bytes = self.wire.value()
        self.wire.clear()
        self.wire.writes.clear()
        return data

    def answers(self) -> list[Answer]:
        """The complete responses since the last call."""
        data, found = self.raw(), []
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = b""
            if headers.get("transfer-encoding") == "chunked":
                body, data = _unchunked(data)
            elif "content-length" in headers:
                size = int(headers["content-length"])
                body, data = data[:size], data[size:]
            found.append(Answer(int(first.split()[1]), headers, body))
        return found

    def answer(self) -> Answer:
        """The one response since the last call."""
        [found] = self.answers()
        return found

    def lose(self) -> None:
        self.protocol.connectionLost(connectionDone)
        self.wire.producer = None

    @property
    def closed(self) -> bool:
        """True if the listener closed the connection, in order or not."""
        if self.wire.disconnecting or self.wire.aborted:
            if self.protocol in self._site.factory.connections:
                self.lose()
            return True
        return False


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            return body, data.removeprefix(b"\r\n")
        body, data = body + data[:size], data[size:].removeprefix(b"\r\n")
