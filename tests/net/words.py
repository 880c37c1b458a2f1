"""A small protocol to test connections with: lines of words, of which some are commands. And where to connect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection_limits import ConnectionLimits
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import QUANTUM, TURN, Scheduler
from tests.ticking_clock import TickingClock

COST = TURN / 199.5
"""Simulated seconds of work for a word (`Heard.cost`)."""

ALONE = 200
"""Words that one connection handles in one go while no other has anything to do: those of `TURN`."""

SHARE = -int(-QUANTUM // COST)
"""Words that it handles beside others: those of `QUANTUM`."""


class WordReader:
    """Lines. ``?`` is malformed, ``??`` fatally so."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[str | Malformed]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line == b"?":
                yield Malformed(Reason.SYNTAX, "no word")
            elif line == b"??":
                yield Malformed(Reason.ENCODING, "no letters")
            else:
                yield line.decode()


class Heard(list[tuple[str, str]]):
    """Words that were handled, with where they came from. Each takes ``cost`` seconds."""

    def __init__(self, clock: Any) -> None:
        super().__init__()
        self.cost = 0.0
        self._clock = clock

    def append(self, word: tuple[str, str]) -> None:
        super().append(word)
        if self.cost:
            self._clock.rightNow += self.cost


class WordSession:
    """Records messages, and acts on their words."""

    def __init__(self, peer: Peer, heard: list[tuple[str, str]]) -> None:
        self.peer = peer
        self.heard = heard
        self.expecting = False
        self.ends = 0
        self.losses = 0

    def begin(self) -> None: ...

    def receive(self, word: str) -> None:
        command, _, rest = word.partition(" ")
        self.heard.append((self.peer.address, word))
        if command == "say":
            self.peer.write(rest.encode())
        elif command == "big":
            self.peer.write(b"x" * int(rest))
        elif command == "bad":
            self.refuse(Refusal(Reason.PARAMETER, rest or "bad"))
        elif command == "fail":
            raise ZeroDivisionError("as it is meant to")
        elif command == "close":
            self.peer.close()
        elif command == "hello":
            self.peer.authenticated()
        elif command == "debug":
            self.peer.debug("me", rest)
        elif command == "wait":
            self.expecting = True
        elif command == "steps":
            self.peer.go_on_with(self._steps(int(rest)))

    def _steps(self, count: int) -> Iterator[None]:
        for number in range(count):
            self.heard.append((self.peer.address, f"step {number}"))
            yield

    def malformed(self, malformed: Malformed) -> None:
        self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        patient = self.peer.refused(refusal)
        self.peer.write(f"<{refusal.reason.code}>".encode())
        if refusal.reason.fatal or not patient:
            self.peer.close()

    def input_ended(self) -> bool:
        self.ends += 1
        return self.expecting

    @property
    def needed(self) -> bool:
        return self.expecting

    def lost(self) -> None:
        self.losses += 1


class Wire(StringTransport):
    """A transport that keeps each write, and can be half-closed. As with a socket, an abort takes effect later.

    A write of ``full_at`` bytes or more fills it.
    """

    full_at: float = inf

    def __init__(self) -> None:
        super().__init__(lenient=True)
        self.writes: list[bytes] = []
        self.half_closed = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.half_closed
        assert not self.disconnecting
        self.writes.append(data)
        super().write(data)
        if len(data) >= self.full_at:
            assert self.producer is not None
            self.producer.pauseProducing()

    def loseWriteConnection(self) -> None:
        self.half_closed = True

    def abortConnection(self) -> None:
        self.aborted = True

    @property
    def reading(self) -> bool:
        return bool(self.producerState == "producing")


class Link:
    """One connection: the protocol under test, its transport and its session."""

    def __init__(self, protocol: LineProtocol, session: Any) -> None:
        self.protocol = protocol
        self.session = session
        self.wire = Wire()
        protocol.makeConnection(self.wire)

    def send(self, *words: str) -> None:
        """Words arrive, all in one read."""
        self.protocol.dataReceived("".join(f"{word}\n" for word in words).encode())

    def take(self) -> list[bytes]:
        """The output since the last call, write by write."""
        writes = self.wire.writes[:]
        self.wire.writes.clear()
        return writes

    def stall(self) -> None:
        """The peer ceases to read, and the transport is full."""
        self.protocol.pauseProducing()

    def drain(self) -> None:
        """The peer has read all."""
        self.protocol.resumeProducing()

    def lose(self, why: Failure = connectionDone) -> None:
        """The connection is gone."""
        self.protocol.connectionLost(why)


class Hub:
    """A listener and all that it needs."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        half_close: bool = True,
        converse: Callable[[LineProtocol], tuple[MessageReader, PeerSession]] | None = None,
        clock: IReactorTime | None = None,
        cpu: Callable[[], float] | None = None,
    ) -> None:
        self.clock: Any = TickingClock() if clock is None else clock
        self.counters = Counters()
        self.turns = Scheduler(self.clock, cpu=cpu)
        self.refusal_log = RefusalLog(self.counters, self.clock)
        self.heard = Heard(self.clock)
        self.sessions: list[Any] = []
        self._converse = converse or (lambda peer: (WordReader(), WordSession(peer, self.heard)))
        self.factory = LineFactory(
            "test",
            self._conversation,
            ConnectionLimits(authenticate_within=0) if limits is None else limits,
            self.turns,
            self.refusal_log,
            self.clock,
            half_close,
        )

    def connect(self, host: str = "192.0.2.1", port: int = 4000, address: IAddress | None = None) -> Link:
        """A peer connects from there."""
        protocol = self.factory.buildProtocol(IPv4Address("TCP", host, port) if address is None else address)
        assert isinstance(protocol, LineProtocol)
        return Link(protocol, self.sessions[-1])

    def words(self) -> list[str]:
        """The messages handled since the last call, of all connections."""
        words = [word for _, word in self.heard]
        self.heard.clear()
        return words

    def refused(self, reason: Reason) -> int:
        """The value of a counter."""
        return self.counters.get("test_refused", reason.code)

    def later(self) -> None:
        """The next turn of the reactor."""
        self.clock.turn()

    def pass_seconds(self, seconds: int) -> None:
        """Let whole seconds pass, one by one."""
        for _ in range(seconds):
            self.clock.advance(1)

    def _conversation(self, peer: LineProtocol) -> tuple[MessageReader, PeerSession]:
        reader, session = self._converse(peer)
        self.sessions.append(session)
        return reader, session
