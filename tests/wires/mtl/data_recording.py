"""The data flow of MTL without sockets: real flows, leases, profile and codec over a ROUTER of lists, and a clock that
tests turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from broker.access.rights import EVERY_ENTRY
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.model import Rights
from broker.net.peer_interfaces import Part, Sender
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.field_table import EMPTY, MAX_EXTENDED
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.topic_profile import RESOURCE, FanOutProfile
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.data_clients import DataClient, ReaderFlow, WriterFlow
from broker.wires.mtl.sessions.data_flow import DataFlow
from broker.wires.mtl.sessions.data_leases import DataLeases, FlowContext
from broker.wires.mtl.sessions.profile_interface import DataFlows, Grant, Profile, ProfileReader, ProfileWriter
from tests.recording.farm import CoreFarm, registry_at
from tests.recording.router import RecordingRouter

DEFAULTS = Mtl()

REPLIES = 100
"""Answers that wait for one connection where there is no room for a message."""


class Everything:
    """Rights to everything."""

    offers = Rights()
    reading = EVERY_ENTRY

    def may(self, side: Side, profile: str, resource: str) -> bool:
        return True


class Keeping(Profile):
    """A profile with any number of resources, all but those that begin with "no", and both ways to confirm.

    It writes down what it is called for. Those who have summoned a resource are sent what comes for it, one by one if
    ``one_by_one`` says so; what is confirmed is so at once, unless ``confirming`` says otherwise.
    """

    name = "keeping"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {side: tuple(ConfirmMode) for side in Side}

    def __init__(self, flows: DataFlows) -> None:
        self.flows = flows
        self.calls: list[tuple[Any, ...]] = []
        self.flow: dict[str, Any] = {}
        """The last flow that joined, by side."""
        self.readers: dict[str, dict[ProfileReader, None]] = {}
        self.one_by_one = False
        self.confirming = True
        self.snapshot = 0
        """The number of Contents that a Summon sends at once."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if resource.startswith("no"):
            raise Refusal(Reason.FORBIDDEN, "not that")

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        self.flow[flow.grant.side.value] = flow
        self.calls.append(("joined", flow.grant.side.value))

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        self.calls.append(("left", flow.grant.side.value))
        for readers in self.readers.values():
            readers.pop(flow, None)  # type: ignore[arg-type]

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        self.calls.append(("summon", resource))
        self.readers.setdefault(resource, {})[reader] = None
        for number in range(self.snapshot):
            reader.send(wire.make_tail(resource), b"%d" % number)

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        self.calls.append(("dismiss", resource))
        del self.readers[resource][reader]

    def room(self, reader: ProfileReader) -> None:
        self.calls.append(("room",))

    def content(self, writer: ProfileWriter, resource: str, content: wire.Content) -> None:
        self.calls.append(("content", resource, content.sequence))
        if self.confirming:
            writer.confirm(content.sequence)
        self.give(resource, content.body)

    def give(self, resource: str, body: bytes) -> None:
        """Send a Content to all who want it."""
        readers = self.readers.get(resource, {})
        if self.one_by_one:
            for reader in readers:
                reader.send(wire.make_tail(resource), body)
        elif readers:
            self.flows.fan_out(readers, wire.make_tail(resource), body)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        self.calls.append(("confirmed", sequence, multiple))

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        self.calls.append(("rejected", sequence, multiple, recycle))


class MtlFarm(CoreFarm):
    """The data flow over its real neighbours, with a profile of each kind."""

    def __init__(self, config: Mtl = DEFAULTS) -> None:
        super().__init__()
        self.router = RecordingRouter(max_replies=REPLIES)
        self.config = config
        self.start()

    def start(self) -> None:
        """The broker begins, and knows nothing of its clients."""
        self.restart_core()
        self.data_leases = DataLeases(self.leases, self.config)
        self.silence = self.make_silence(self.core_registry(), self.leases, self.clock)
        context = FlowContext(self.leases, self.data_leases, self.refusal_log, self.config, self.silence)
        self.data = DataFlow(self.router, context)
        self.router.serve(self.data)
        self.test = FanOutProfile(self.data)
        self.keeping = Keeping(self.data)

    def core_registry(self) -> IRegistry:
        """The registry of its providers."""
        return registry_at(self.clock)

    def principal(self, user: str = "", host: str = "/", key: str = "") -> Principal:
        return Principal(user, host, Everything(), key)

    def lease(
        self,
        side: Side,
        *resources: str,
        profile: Profile | None = None,
        confirm: ConfirmMode = ConfirmMode.NONE,
        principal: Principal | None = None,
    ) -> str:
        """Issue a lease for these resources, as the control flow does. Returns its token."""
        grant = Grant(principal or self.principal(), side, profile or self.test, resources, confirm, 100)
        return self.data_leases.issue(grant, "session")

    def peer(self, identity: bytes | None = None, key: str = "", address: str = "192.0.2.7") -> MtlPeer:
        """A DEALER that has connected, with an identity that the ROUTER gave it unless it has one of its own."""
        return MtlPeer(self, identity, key, address)

    def reader(self, *resources: str, **lease: Any) -> MtlPeer:
        """One with a lease for reading; by default for the resource of the test profile, which it has summoned."""
        peer = self.peer()
        peer.lease(self.lease(Side.READER, *resources, **lease))
        if not resources and not lease:
            assert peer.ask(*wire.summon(2, RESOURCE)) == [wire.Response(2, wire.OK)]
        return peer

    def writer(self, *resources: str, **lease: Any) -> MtlPeer:
        """One with a lease for writing."""
        peer = self.peer()
        peer.lease(self.lease(Side.WRITER, *resources, **lease))
        return peer

    def counts(self) -> Mapping[str, int]:
        return self.data.counts()

    def ends(self) -> dict[str, int]:
        """The number of flows that ended, by reason."""
        prefix = "mtl_flows."
        counts = {name.removeprefix(prefix): number for name, number in self.counters.all().items() if prefix in name}
        return {name: number for name, number in counts.items() if name not in ("reader", "writer")}


_numbers = count(1)


class MtlPeer:
    """A client with one DEALER: what it sends, and what it is sent."""

    def __init__(self, farm: MtlFarm, identity: bytes | None, key: str, address: str) -> None:
        self._farm = farm
        self._chosen = identity
        self.sender = Sender(address, key, "DEALER")
        self.tails = wire.Tails(MAX_EXTENDED)
        self.connect()

    # its connection

    def connect(self) -> None:
        """Connect. It has a new identity then, unless it has chosen one."""
        self.identity = self._chosen or b"\0" + next(_numbers).to_bytes(4)
        line = self._farm.router.connect(self.identity)
        assert line is not None
        self.line = line

    def drop(self) -> None:
        """The connection ends, and what waited in it is lost."""
        assert self.connected
        self._farm.router.close(self.identity)

    @property
    def connected(self) -> bool:
        return self._farm.router.lines.get(self.identity) is self.line

    def stop_reading(self, after: int = 0) -> None:
        """From now on so many more messages may wait for it. That is too little to be called room."""
        self.line.have_room(after)

    def read_on(self, room: int | None = None) -> None:
        """It reads again, and there is room for so many more messages, or for any number."""
        self._farm.router.read(self.identity, room)

    # messages sent and received

    def say(self, *frames: Part) -> None:
        """Send one message. The scheduler looks at the clock when it begins to serve a connection."""
        assert self.connected
        self._farm.leases.look()
        with self._farm.router.receiving(self.sender):
            self._farm.data.receive(self.identity, list(frames), self.line.number)

    def ask(self, *frames: Part) -> list[wire.Command]:
        """Send one message. Returns the answers, and all messages before them."""
        self.say(*frames)
        return self.take()

    def take(self) -> list[wire.Command]:
        """The commands that came since the last call."""
        return [wire.parse(frames, self.tails) for frames in self.take_frames()]

    def take_frames(self) -> list[tuple[bytes, ...]]:
        """The same as frames."""
        return [tuple(frames) for frames in self.line.read()]

    def bodies(self) -> list[bytes]:
        """The bodies of the Contents that came since the last call; nothing else did."""
        taken = self.take()
        assert {type(command) for command in taken} <= {wire.Content}
        return [command.body for command in taken if isinstance(command, wire.Content)]

    def lease(self, token: str, sequence: int = 1) -> None:
        """Use a lease, which is accepted."""
        assert self.ask(*wire.lease(sequence, token)) == [wire.Response(sequence, wire.OK)]

    def put(self, sequence: int, body: bytes = b"x", resource: str = RESOURCE, table: bytes = EMPTY) -> None:
        """Send a Content."""
        self.say(*wire.content(sequence, resource, table, body))

    # what the broker has of it

    @property
    def client(self) -> DataClient | None:
        found = [client for client in self._farm.data.clients() if client.identity == self.identity]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def reading(self) -> ReaderFlow:
        """Its reader flow."""
        assert self.client is not None
        assert self.client.reader is not None
        return self.client.reader

    @property
    def writing(self) -> WriterFlow:
        """Its writer flow."""
        assert self.client is not None
        assert self.client.writer is not None
        return self.client.writer
