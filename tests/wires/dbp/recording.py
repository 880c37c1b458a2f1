"""DBP without sockets: the real sessions, registry, leases and codec over a ROUTER, a UDP socket and probes of lists.

Peers write their time as they like: messages are given as frames, with ``T`` for a time in the peer's own form.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import attrs
from twisted.internet.task import Clock

from broker.access.rights import EVERYTHING
from broker.core.liveness import TICK
from broker.core.model import Provider, Rights
from broker.core.operator_interfaces import topic_message
from broker.core.rates import Rates
from broker.core.registry import Registry
from broker.core.topics import Topics
from broker.net.outgoing_addresses import Outgoing
from broker.net.peer_interfaces import Part, Sender
from broker.wires.common.registry_topics import rights_of
from broker.wires.common.routes import Routes
from broker.wires.dbp.codec.dbp_datagrams import MAX_DATAGRAM
from broker.wires.dbp.codec.dbp_messages import begins
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.sessions.catalogue import Catalogue
from broker.wires.dbp.sessions.commands import CommandHandler, DatagramHandler
from broker.wires.dbp.sessions.listing import Listing, TopicValues
from broker.wires.dbp.sessions.outbound import Beacon, DbpOutbound
from broker.wires.dbp.sessions.service_state import ServiceEntry
from tests.recording.farm import START, CoreFarm, registry_at
from tests.recording.router import RecordingRouter

NAME = "elkobroker"
BEACON_PORT = 5245

HERE = "127.0.0.1"
THERE = "192.0.2.7"
ELSEWHERE = "192.0.2.8"


class T:
    """A time frame, of the form in which the peer writes."""


FLOAT32 = struct.pack("<f", START)
TEXT = b"1795246600.000000"


class RecordingUdp:
    """Keeps what is sent, by where to."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, tuple[str, int]]] = []

    def send(self, data: bytes, to: tuple[str, int]) -> bool:
        assert len(data) <= MAX_DATAGRAM
        self.sent.append((data, to))
        return True

    def take(self, to: tuple[str, int]) -> list[bytes]:
        """The datagrams to an address since the last call."""
        taken = [data for data, there in self.sent if there == to]
        self.sent = [(data, there) for data, there in self.sent if there != to]
        return taken


@attrs.define
class Probe:
    """One question to a service."""

    place: tuple[str, int]
    frames: list[bytes]
    seconds: float
    asked: float
    answer: Callable[[bool | None], object]


class RecordingProbes:
    """Keeps the questions that the rule on outgoing connections permits. ``alive`` are the places that answer, after a
    moment; elsewhere the time runs out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.refused: list[str] = []
        self.outgoing = Outgoing(["0.0.0.0/0"], lambda: ["127.0.0.1:5246", "0.0.0.0:9000"], self.refused.append)
        self.alive: set[tuple[str, int]] = set()
        self.asked: list[Probe] = []

    def ask(
        self,
        host: str,
        port: int,
        frames: Sequence[bytes],
        seconds: float,
        answered: Callable[[bool | None], object],
        local: bool = False,
    ) -> None:
        self.outgoing.permitted([host], port, local)
        probe = Probe((host, port), list(frames), seconds, self._clock.seconds(), answered)
        self.asked.append(probe)
        lives = probe.place in self.alive
        self._clock.callLater(min(0.001, seconds) if lives else seconds, answered, lives)


ALL = Rights()
"""Every name may be registered."""


class DbpFarm(CoreFarm):
    """The wire over its real neighbours."""

    step = TICK

    def __init__(
        self,
        dbp: Dbp | None = None,
        known: Iterable[Provider] = (),
        clock: Clock | None = None,
        registry: Registry | None = None,
        beacon: Sequence[str] = (),
        rights: Rights = ALL,
    ) -> None:
        super().__init__(clock)
        self.registry = registry or registry_at(self.clock)
        self.router = RecordingRouter()
        self.routes = routes = Routes(self.router, "dbp", begins, self.refusal_log)
        self.udp = RecordingUdp()
        self.probes = RecordingProbes(self.clock)
        self.sources: Rates[Any] = Rates(self.clock.seconds)
        self.addresses: Rates[Any] = Rates(self.clock.seconds)
        self.outbound = DbpOutbound(
            routes,
            self.udp,
            self.probes,
            self.leases,
            self.clock,
            self.refusal_log,
            self.sources,
            self.addresses,
            NAME,
            BEACON_PORT,
        )
        self.silence = self.make_silence(self.registry, self.leases, self.clock)
        self.catalogue = Catalogue(
            self.registry,
            self.leases,
            self.outbound,
            self.refusal_log,
            dbp or Dbp(),
            rights,
            self.silence,
        )
        self.listing = Listing(self.registry, self.clock)
        self.topics = Topics()
        self.values = TopicValues(self.topics, rights_of(EVERYTHING), topic_message)
        self.commands = CommandHandler(
            routes, self.catalogue, self.listing, self.values, self.outbound, self.leases, self.clock, self.refusal_log
        )
        self.datagrams = DatagramHandler(self.catalogue, self.outbound, self.refusal_log)
        self.beacon = Beacon(self.udp, self.clock, beacon, BEACON_PORT, 5246, 5246, NAME)
        routes.serve(self.commands)
        self.catalogue.restore(known)
        self.beacon.start()
        self._identities = count(1)

    def use(self, dbp: Dbp, rights: Rights = ALL) -> None:
        """Apply other settings, as a reload does."""
        self.catalogue.use(dbp, rights)

    # peers

    def dealer(self, address: str = THERE, identity: bytes | None = None, time: bytes = TEXT) -> DbpPeer:
        """A peer of the document: a DEALER that writes its times in text."""
        return DbpPeer(self, identity or b"\0%04d" % next(self._identities), address, "DEALER", time)

    def req(self, address: str = THERE, time: bytes = TEXT) -> DbpPeer:
        """A peer of the document that uses a REQ."""
        return DbpPeer(self, b"\0%04d" % next(self._identities), address, "REQ", time)

    def hermes(self, address: str = HERE) -> DbpPeer:
        """A node of Hermes."""
        return self.req(address, FLOAT32)

    def datagram(self, data: bytes, source: tuple[str, int] = (THERE, 40_000)) -> list[bytes]:
        """A datagram comes; returns what was sent to its source since the last time."""
        self.leases.look()  # as the scheduler does
        self.datagrams.receive(data, source)
        return self.udp.take(source)

    # connections

    def connect(self, identity: bytes) -> int:
        """Open a connection, which replaces the one with that identity. Returns its number."""
        line = self.router.connect(identity)
        assert line is not None
        return line.number

    def disconnect(self, identity: bytes) -> None:
        """End the connection with that identity, if there is one."""
        if identity in self.router.lines:
            self.router.close(identity)

    @property
    def open(self) -> dict[bytes, int]:
        """The number of each open connection, by identity."""
        return {identity: line.number for identity, line in self.router.lines.items()}

    # what there is

    def entry(self, name: str) -> ServiceEntry:
        """The registered service of that name."""
        entry = self.catalogue.get(name)
        assert entry is not None
        return entry

    def hostports(self, name: str) -> list[str]:
        """The hostports of a service in the registry."""
        return [service.hostport for service in self.registry.find(name, "tcp")]

    def counts(self) -> Mapping[str, int]:
        return {**self.commands.counts(), **self.datagrams.counts()}


class DbpPeer:
    """The one socket of a node: it sends, and keeps what comes. ``number`` is that of its last connection."""

    def __init__(self, farm: DbpFarm, identity: bytes, address: str, socket_type: str, time: bytes) -> None:
        self.farm = farm
        self.identity = identity
        self.address = address
        self.socket_type = socket_type
        self.time = time
        self.number = farm.connect(identity)

    def connect(self) -> None:
        """Connect again, with the same identity. A connection that is still open is replaced."""
        self.number = self.farm.connect(self.identity)

    def close(self) -> None:
        """End the connection."""
        self.farm.disconnect(self.identity)

    def send(self, *frames: bytes | str | type[T] | dict[str, Any]) -> None:
        """Send frames, with the empty one before them. Text is encoded, an object becomes JSON, `T` the time."""
        self.send_raw(b"", *map(self._frame, frames))

    def send_raw(self, *frames: Part) -> None:
        """Send just these frames."""
        farm = self.farm
        if self.closed:
            return  # the peer writes to a connection that the broker has closed
        farm.leases.look()  # as the scheduler does
        with farm.router.receiving(Sender(self.address, "", self.socket_type)):
            farm.routes.receive(self.identity, list(frames), self.number)

    def stop_reading(self, answers: bool = True) -> None:
        """Have no room from now on: neither for messages nor, without ``answers``, for the answers to requests."""
        line = self.farm.router.lines[self.identity]
        line.have_room(0)
        if not answers:
            line.replies = 0

    def read_on(self) -> None:
        """Read again."""
        self.farm.router.read(self.identity)

    def take_raw(self) -> list[list[bytes]]:
        """The messages that came since the last call, whole."""
        ended = self.farm.router.ended.get(self.number)
        return (self.farm.router.lines[self.identity] if ended is None else ended).take()

    @property
    def closed(self) -> bool:
        """True if the broker has closed its connection."""
        return self.number in self.farm.router.ended

    def take(self) -> list[list[bytes]]:
        """The messages that came since the last call, without their empty frames."""
        taken = self.take_raw()
        assert all(frames[0] == b"" for frames in taken)
        return [frames[1:] for frames in taken]

    def ask(self, *frames: bytes | str | type[T] | dict[str, Any]) -> list[list[bytes]]:
        """Send a message, and return what came back, and whatever had come before."""
        self.send(*frames)
        return self.take()

    def register(self, name: str, **info: Any) -> list[list[bytes]]:
        """Send a registration; returns what came back."""
        return self.ask("UwU", T, {"name": name, **info})

    def registered(self, name: str, **info: Any) -> DbpPeer:
        """Register, and be approved."""
        [reply] = self.register(name, **info)
        assert reply[0] == b"OwO"
        return self

    def find(self, *names: str) -> Any:
        """The answer to a request for these names, or for all."""
        [reply] = self.ask("u_U", T, *(names or ("",)))
        assert reply[0] == b"o_O"
        return json.loads(reply[2])

    def _frame(self, frame: bytes | str | type[T] | dict[str, Any]) -> bytes:
        if frame is T:
            return self.time
        if isinstance(frame, dict):
            return json.dumps(frame).encode()
        assert isinstance(frame, str | bytes)
        return frame.encode() if isinstance(frame, str) else frame
