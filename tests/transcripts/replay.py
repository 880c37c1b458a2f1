"""Plays what the clients of a recording did to our broker, in memory, and writes down what it says.

The registry, the sessions and the connections are the real ones; time is a `Clock` that goes as the recording went, so
that waits end when they did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from zope.interface import implementer

from broker.access.principal import Access
from broker.access.rights import AnonymousAccess
from broker.config import daemon_settings
from broker.core.director import director as core
from broker.core.interfaces import IControl
from broker.core.model import BROKER, Auth, Launcher, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.net.child_processes import Launchers
from broker.net.connection_limits import ConnectionLimits
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.codec.director_messages import VOCABULARY as DIRECTOR_VOCABULARY
from broker.wires.elko.elko_settings import BrokerLimits, DirectorLimits
from broker.wires.elko.elko_settings import Director as DirectorConfig
from broker.wires.elko.sessions import director_session as elko_director
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession, BrokerWiring
from broker.wires.elko.sessions.descriptor_cache import ChangeNotices
from tests.access.memory import MemoryAccess
from tests.transcripts.recordings import BEFORE_AUTH, OF_BROKER, Event, Recording

CLOSED = "closed"
"""The mark of the orderly end of a connection, where a message stands otherwise."""

ABORTED = "aborted"
"""The same for a connection that was reset."""

PASSWORD = "figleaf"
"""The password of the recordings' listener of that name."""


@attrs.frozen
class Setting:
    """The rules of the listener ``open``, and the launcher table."""

    policy: Policy = attrs.field(factory=Policy)
    launchers: tuple[Launcher, ...] = ()


@attrs.frozen
class Said:
    """One message of the broker, as text, or `CLOSED` or `ABORTED`.

    ``at`` is in seconds from the start, ``step`` the number of the recording's events before it.
    """

    at: float
    step: int
    conn: str
    text: str


class Transport(StringTransport):
    """One end of a connection in memory, which tells how our end closed it."""

    closed: str | None = None

    def loseWriteConnection(self) -> None:
        self.closed = self.closed or CLOSED

    def loseConnection(self) -> None:
        super().loseConnection()
        self.closed = self.closed or CLOSED

    def abortConnection(self) -> None:
        super().abortConnection()
        self.closed = ABORTED


@implementer(IControl)
class NoControl:
    """The process itself, which no recording reinitializes or shuts down."""

    def reload(self) -> None:
        raise AssertionError("reloaded")

    reinitialize = reload

    def shutdown(self, kill: bool = False) -> None:
        raise AssertionError("shut down")

    shut_down = shutdown


def _nothing(*_: object) -> None:
    pass


def _own_services() -> list[Service]:
    """The listeners of the original, as it announced them."""
    return [
        Service(f"broker-{role}", f"127.0.0.1:{port}", BROKER, protocol, label, auth)
        for port, protocol, roles, label, auth in (
            (19080, "tcp", ("admin", "client"), None, None),
            (19081, "tcp", ("admin", "client"), None, Auth("password", PASSWORD)),
            (19082, "http", ("admin", "client"), None, None),
            (19083, "rtcp", ("admin", "client"), None, None),
            (19084, "ws", ("admin", "client"), None, None),
            (19085, "tcp", ("client",), "clientonly", None),
            (19086, "tcp", ("admin",), None, None),
        )
        for role in roles
    ]


class Broker:
    """Our broker with the listeners of the recordings, without sockets."""

    def __init__(self, setting: Setting) -> None:
        self.clock = Clock()
        self._turns = Scheduler(self.clock)
        self._refusal_log = RefusalLog(Counters(), self.clock)
        self._restored = Restored((), daemon_settings.Broker().grace, self.clock, _nothing)
        registry = Registry(self.clock, itertools.count(1).__next__, self._restored)
        launchers = Launchers(setting.launchers, {}, _nothing, _nothing)
        self._wiring = BrokerWiring(registry, ChangeNotices(registry), launchers, NoControl())
        self.listeners = {
            "open": self._listener(setting.policy),
            "password": self._listener(Policy(), MemoryAccess(tokens={PASSWORD: "server"})),
        }
        registry.offer_own(_own_services())

    def _listener(self, policy: Policy, access: Access | None = None) -> LineFactory:
        within = 0.0 if policy.allow_before_auth else BrokerLimits().authenticate_within
        return LineFactory(
            "elko",
            partial(self._converse, AccessControl(policy, access or AnonymousAccess())),
            ConnectionLimits(authenticate_within=within),
            self._turns,
            self._refusal_log,
            self.clock,
        )

    def _converse(self, door: AccessControl, peer: Peer) -> tuple[MessageReader, PeerSession]:
        return blocks.BlockReader(VOCABULARY), BrokerSession(self._wiring, door, peer)


class Director:
    """Our director with the listener of the recordings, without sockets."""

    def __init__(self) -> None:
        self.clock = Clock()
        director = core.Director(self.clock)
        wiring = elko_director.DirectorWiring.of(director, NoControl(), self.clock)
        door = AccessControl(Policy(roles=frozenset(("user", "provider", "admin"))))

        def converse(peer: Peer) -> tuple[MessageReader, PeerSession]:
            return blocks.BlockReader(DIRECTOR_VOCABULARY), elko_director.DirectorSession(wiring, door, peer)

        limits = ConnectionLimits(authenticate_within=DirectorLimits().authenticate_within)
        refusal_log = RefusalLog(Counters(), self.clock)
        self.listeners = {
            "open": LineFactory("director", converse, limits, Scheduler(self.clock), refusal_log, self.clock)
        }


class Server(Protocol):
    """The server that clients connect to."""

    @property
    def clock(self) -> Clock: ...
    @property
    def listeners(self) -> Mapping[str, LineFactory]: ...


class _Connection:
    """One connection of the recording, and how much of what our broker sent on it was written down."""

    def __init__(self, listener: LineFactory, port: int) -> None:
        address = IPv4Address("TCP", "127.0.0.1", port)
        protocol = listener.buildProtocol(address)
        assert isinstance(protocol, LineProtocol)
        self.protocol = protocol
        self.transport = Transport(peerAddress=address)
        self.protocol.makeConnection(self.transport)
        self._close_told = False

    def said(self) -> list[str]:
        """The new items."""
        data: bytes = self.transport.value()
        self.transport.clear()
        assert data == b"" or data.endswith(blocks.END), data
        texts = data.decode("utf-8").split("\n\n")[:-1]
        assert all(text and "\n" not in text for text in texts), data
        if self.transport.closed and not self._close_told:
            self._close_told = True
            texts.append(self.transport.closed)
        return texts

    def end(self) -> None:
        """The client closes its socket: what our broker does about it, no client sees."""
        self._close_told = True
        self.protocol.readConnectionLost()
        if self.transport.disconnecting:
            self.protocol.connectionLost()


def wait_until(clock: Clock, at: float, look: Callable[[], None]) -> None:
    """Let time go, one timer after the other, so that each finds the time that it was set for; ``look`` after each."""
    while True:
        due = min((call.getTime() for call in clock.getDelayedCalls()), default=at)
        clock.advance(max(0.0, min(due, at) - clock.seconds()))
        look()
        if due >= at:
            break


class _Player:
    def __init__(self, server: Server) -> None:
        self._broker = server
        self._clock = self._broker.clock
        self._connections: dict[str, _Connection] = {}
        self._step = 0
        self.said: list[Said] = []

    def play(self, events: Sequence[Event]) -> None:
        for step, event in enumerate(events):
            self._step = step
            wait_until(self._clock, event.at, self._write_down)
            self._step = step + 1
            self._take(event)
            self._write_down()
        assert all(c.transport.disconnecting for c in self._connections.values()), "a connection was left open"
        # Timers that check deadlines once a second find nothing to do, and end; and so do reservations.
        wait_until(self._clock, self._clock.seconds() + 2 + DirectorConfig().reservation, self._write_down)
        assert self._clock.getDelayedCalls() == []
        assert all(not listener.connections for listener in self._broker.listeners.values())

    def _take(self, event: Event) -> None:
        if event.kind == "open":
            assert event.conn not in self._connections
            listener = self._broker.listeners[event.note.removeprefix("to listener ")]
            self._connections[event.conn] = _Connection(listener, 40_000 + len(self._connections))
        elif event.kind == ">":
            self._connections[event.conn].protocol.dataReceived(event.data)
        elif event.kind == "halfclose":
            self._connections[event.conn].protocol.readConnectionLost()
        elif event.kind == "close" or event.closed_by_broker:
            self._connections[event.conn].end()

    def _write_down(self) -> None:
        self._clock.advance(0)
        for name, connection in self._connections.items():
            for text in connection.said():
                self.said.append(Said(self._clock.seconds(), self._step, name, text))


def replay(recording: Recording) -> list[Said]:
    """The messages of our broker, or our director, to the clients of the recording, in order."""
    if not recording.name.startswith(OF_BROKER):
        return play_at(Director(), recording.events)
    policy = Policy(allow_before_auth=recording.short in BEFORE_AUTH, diagnostics=recording.diagnostics)
    return play(recording.events, Setting(policy))


def play(events: Sequence[Event], setting: Setting) -> list[Said]:
    """The messages of our broker to clients that do this, in order. In the end every connection is closed."""
    return play_at(Broker(setting), events)


def play_at(server: Server, events: Sequence[Event]) -> list[Said]:
    """The same at any server."""
    with capturedLogs() as logged:
        player = _Player(server)
        player.play(events)
    assert [event for event in logged if "log_failure" in event] == []
    return player.said
