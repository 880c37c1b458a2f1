"""Plays the recordings in `carried/`, of the original over HTTP and RTCP, to our broker in memory.

The messages of both sides are divided into answers: a response of HTTP, a line of RTCP, or a message with its numbers.
The ids of sessions differ each time: they are called ``<1>``, ``<2>`` and so on, in the order in which they were given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.net.http.request import RequestIds
from broker.net.web_origins import Origins
from broker.wires.elko.sessions.authentication import Policy
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.transcripts.recordings import Event, Recording
from tests.transcripts.replay import ABORTED, CLOSED, Broker, Setting, Transport, wait_until

_IDS = re.compile(r'(?:"sessionid": "|^start )(\d+)', re.MULTILINE)
_RESPONSE = re.compile(r"HTTP/1\.1 (\d+ [^\r]+)\r\n((?:[^\r]+\r\n)*)\r\n", re.DOTALL)
_RTCP = re.compile(r"\d+ \d+\n.*?\n\n|[^\n]*\n", re.DOTALL)


@attrs.frozen
class Answer:
    """One message of a side on a connection, or its close; ``at`` is in seconds from the start."""

    at: float
    conn: str
    text: str


class Ids:
    """The ids of sessions by the order in which they were given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def hear(self, text: str) -> None:
        """The broker said this."""
        self.given += [id for id in _IDS.findall(text) if id not in self.given]

    def hidden(self, text: str) -> str:
        """The text with names for ids."""
        for number, id in enumerate(self.given, 1):
            text = text.replace(id, f"<{number}>")
        return text

    def of(self, hidden: str) -> str:
        """The text with ids for names. A request that names a session that was not given stays as it is."""
        return re.sub(r"<(\d+)>", lambda match: self.given[int(match[1]) - 1], hidden)


def answers(text: str, http: bool) -> list[str]:
    """The messages of one write, taken apart, without the spaces that the original has between members of a message."""
    found = list(_responses(text) if http else _RTCP.findall(text))
    return [answer.replace('", "', '","').replace("}, {", "},{").replace('], "', '],"') for answer in found]


def _responses(text: str) -> Iterator[str]:
    while text:
        head = _RESPONSE.match(text)
        assert head is not None, text
        headers = dict(line.split(": ", 1) for line in head[2].split("\r\n")[:-1])
        length = int(headers.pop("Content-Length"))
        headers.pop("X-Request-ID", None)  # the original has none
        shown = [head[1], *(f"{name}: {value}" for name, value in sorted(headers.items()))]
        body, text = text[head.end() : head.end() + length], text[head.end() + length :]
        yield "; ".join(shown) + f"; {body}"


def original(recording: Recording, http: bool) -> list[Answer]:
    """The messages of the original."""
    ids = Ids()
    said = []
    for event in recording.events:
        if event.kind == "<":
            text = event.data.decode()
            ids.hear(text)
            said += [Answer(event.at, event.conn, answer) for answer in answers(ids.hidden(text), http)]
        elif event.closed_by_broker:
            said.append(Answer(event.at, event.conn, CLOSED))
    return said


class _Connection:
    def __init__(self, factory: Any, port: int) -> None:
        address = IPv4Address("TCP", "127.0.0.1", port)
        self.protocol = factory.buildProtocol(address)
        self.transport = Transport(peerAddress=address)
        self.protocol.makeConnection(self.transport)
        self._over = False

    def send(self, data: bytes) -> None:
        if not self._over:
            self.protocol.dataReceived(data)

    def said(self) -> tuple[str, str | None]:
        """The new messages, and the kind of close if there was one; the client closes then, too."""
        text = self.transport.value().decode()
        self.transport.clear()
        closed = None if self._over else self.transport.closed
        if closed:
            self.end()
        return text, closed

    def end(self) -> None:
        """The client closes."""
        if not self._over:
            self._over = True
            self.protocol.connectionLost()


class _Player:
    def __init__(self, clock: Clock, factory: Any, recorded: Recording, http: bool) -> None:
        self._clock = clock
        self._factory = factory
        self._http = http
        self._connections: dict[str, _Connection] = {}
        self._theirs = Ids()
        self._ours = Ids()
        self._recorded = recorded
        self.said: list[Answer] = []

    def play(self) -> None:
        ports = count(40_000)
        for event in self._recorded.events:
            wait_until(self._clock, event.at, self._write_down)
            if event.kind == "open":
                self._connections[event.conn] = _Connection(self._factory, next(ports))
            else:
                self._take(event)
            self._write_down()
        for connection in self._connections.values():
            connection.end()

    def _take(self, event: Event) -> None:
        if event.kind == "<":
            self._theirs.hear(event.data.decode())
        elif event.kind == ">":
            if event.conn not in self._connections:  # HTTP/1.1 clients connect when they have something to say
                self._connections[event.conn] = _Connection(self._factory, 39_999)
            text = self._ours.of(self._theirs.hidden(event.data.decode()))
            self._connections[event.conn].send(text.encode())
        elif event.kind == "close" or event.closed_by_broker:
            self._connections[event.conn].end()

    def _write_down(self) -> None:
        self._clock.advance(0)
        now = self._clock.seconds()
        for name, connection in self._connections.items():
            text, closed = connection.said()
            self._ours.hear(text)
            self.said += [Answer(now, name, answer) for answer in answers(self._ours.hidden(text), self._http)]
            if closed:
                assert closed != ABORTED
                self.said.append(Answer(now, name, CLOSED))


def replay(recording: Recording, http: bool) -> list[Answer]:
    """The messages of our broker to the clients of a recording, in order."""
    broker = Broker(Setting(Policy(allow_before_auth=not http)))
    lines = broker.listeners["open"]
    # As the recorded broker was configured.
    limits = TransportLimits(authenticate_within=0, http_timeout=6, http_select_wait=4)
    lines.limit(limits)
    factory: Any = (
        LongPollFactory(lines, limits, "/admin", Origins(["*"]), RequestIds("start"))
        if http
        else RtcpFactory(lines, limits)
    )
    with capturedLogs() as logged:
        player = _Player(broker.clock, factory, recording, http)
        player.play()
        broker.clock.pump([1] * 60)  # what is left ends by itself
    assert [event for event in logged if "log_failure" in event] == []
    assert (factory.sessions, lines.connections, lines.memory.held) == ({}, set(), 0)
    assert broker.clock.getDelayedCalls() == []
    return player.said
