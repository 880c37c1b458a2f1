"""DBP without sockets: the real sessions, registry, leases and codec over a ROUTER, a UDP socket and probes of lists.

Peers write their time as they like: messages are given as frames, with ``T`` for a time in the peer's own form.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Any

import attrs
from twisted.internet.task import Clock

from broker.core.counters import Counters
from broker.core.liveness import TICK, Leases
from broker.core.model import Provider
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.net.interfaces.router import Part, R, Sender, Sent
from broker.net.rate_limits import Complaints, Rates
from broker.wires.dbp.codec.datagrams import MAX_DATAGRAM
from broker.wires.dbp.sessions.beacon import Beacon
from broker.wires.dbp.sessions.catalogue import Catalogue, Terms
from broker.wires.dbp.sessions.commands import Commands
from broker.wires.dbp.sessions.datagrams import Datagrams
from broker.wires.dbp.sessions.listing import Listing
from broker.wires.dbp.sessions.outbound import Voice
from broker.wires.dbp.sessions.service_state import Entry

START = 1_795_246_600.0
"""What the clock says at the beginning: seconds of the epoch."""

NAME = "elkobroker"
BEACON_PORT = 5245

HERE = "127.0.0.1"
THERE = "192.0.2.7"
ELSEWHERE = "192.0.2.8"


class T:
    """A time frame, of the form in which the peer writes."""


FLOAT32 = struct.pack("<f", START)
TEXT = b"1795246600.000000"


class RecordingRouter:
    """A ROUTER that keeps what is sent to each identity.

    For identities in ``full`` no message has room, and for those in ``stuck`` no answer either.
    """

    def __init__(self) -> None:
        self.inboxes: dict[bytes, list[list[bytes]]] = {}
        self.full: set[bytes] = set()
        self.stuck: set[bytes] = set()
        self._sender: Sender | None = None

    def send(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        return Sent.FULL if identity in self.full else self.reply(identity, frames)

    def reply(self, identity: bytes, frames: Sequence[Part]) -> Sent:
        inbox = self.inboxes.get(identity)
        if inbox is None:
            return Sent.GONE
        if identity in self.stuck:
            return Sent.FULL
        assert all(type(frame) is bytes for frame in frames)
        inbox.append(list(frames))
        return Sent.SENT

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        raise AssertionError("DBP sends nothing to many")

    def sender(self) -> Sender:
        assert self._sender is not None, "this may only be asked while a message is received"
        return self._sender

    def key(self) -> str:
        return self.sender().key

    def deliver(self, sender: Sender, receive: Callable[[], None]) -> None:
        """A message of that sender is received."""
        self._sender = sender
        try:
            receive()
        finally:
            self._sender = None


class RecordingUdp:
    """Keeps what is sent, by where to."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, tuple[str, int]]] = []

    def send(self, data: bytes, to: tuple[str, int]) -> bool:
        assert len(data) <= MAX_DATAGRAM
        self.sent.append((data, to))
        return True

    def take(self, to: tuple[str, int]) -> list[bytes]:
        """What was sent there since the last call."""
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
    """Keeps the questions. ``alive`` are the places that answer, after a moment; elsewhere the time runs out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.alive: set[tuple[str, int]] = set()
        self.asked: list[Probe] = []

    def ask(
        self, host: str, port: int, frames: Sequence[bytes], seconds: float, answered: Callable[[bool | None], object]
    ) -> None:
        probe = Probe((host, port), list(frames), seconds, self._clock.seconds(), answered)
        self.asked.append(probe)
        lives = probe.place in self.alive
        self._clock.callLater(min(0.001, seconds) if lives else seconds, answered, lives)


class DbpFarm:
    """The wire over its real neighbours. ``open`` has the number of each open connection, by identity."""

    def __init__(
        self,
        terms: Terms | None = None,
        known: Iterable[Provider] = (),
        clock: Clock | None = None,
        registry: Registry | None = None,
        beacon: Sequence[str] = (),
    ) -> None:
        self.clock = _clock() if clock is None else clock
        self.counters = Counters()
        self.complaints = Complaints(self.counters, self.clock)
        self.registry = registry or Registry(
            self.clock, count(1).__next__, Restored((), 60.0, self.clock, lambda ids: None)
        )
        self.leases = Leases(self.clock)
        self.router = RecordingRouter()
        self.udp = RecordingUdp()
        self.probes = RecordingProbes(self.clock)
        self.open: dict[bytes, int] = {}
        self.voice = Voice(
            self.router,
            self.udp,
            self.probes,
            self.leases,
            self.clock,
            self.complaints,
            Rates(self.clock),
            Rates(self.clock),
            NAME,
            BEACON_PORT,
        )
        self.catalogue = Catalogue(self.registry, self.leases, self.voice, self.complaints, terms or Terms())
        self.listing = Listing(self.registry, self.clock)
        self.commands = Commands(
            self.router, self.catalogue, self.listing, self.voice, self.leases, self.clock, self.complaints
        )
        self.datagrams = Datagrams(self.catalogue, self.voice, self.complaints)
        self.beacon = Beacon(self.udp, self.clock, beacon, BEACON_PORT, 5246, 5246, NAME)
        self.catalogue.restore(known)
        self.beacon.start()
        self._identities = count(1)
        self._numbers = count(1)

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
        self.disconnect(identity)
        number = self.open[identity] = next(self._numbers)
        self.router.inboxes[identity] = []
        return number

    def disconnect(self, identity: bytes) -> None:
        """End the connection with that identity, if there is one."""
        number = self.open.pop(identity, None)
        if number is not None:
            del self.router.inboxes[identity]
            self.commands.closed(number)

    # what there is

    def entry(self, name: str) -> Entry:
        """The registered service of that name."""
        entry = self.catalogue.get(name)
        assert entry is not None
        return entry

    def hostports(self, name: str) -> list[str]:
        """Where the registry says that a service is."""
        return [service.hostport for service in self.registry.find(name, "tcp")]

    def counted(self, name: str) -> int:
        """The counter NAME.REASON."""
        return {**self.counters.all(), **self.commands.counts(), **self.datagrams.counts()}.get(name, 0)

    def wait(self, seconds: float, step: float = TICK) -> None:
        """Let the time pass as it does for a loop that is never busy for longer than ``step``."""
        self.clock.pump([step] * round(seconds / step))


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
        farm.leases.look()  # as the scheduler does
        farm.router.deliver(
            Sender(self.address, "", self.socket_type),
            lambda: farm.commands.receive(self.identity, list(frames), self.number),
        )

    def take(self) -> list[list[bytes]]:
        """The messages that came since the last call, without their empty frames."""
        inbox = self.farm.router.inboxes[self.identity]
        taken = list(inbox)
        inbox.clear()
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
        """What a request for these names is answered, or for all."""
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


def _clock() -> Clock:
    clock = Clock()
    clock.advance(START)
    return clock
