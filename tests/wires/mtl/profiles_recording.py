"""The profiles of MTL over real flows, and the real topics and registry, which may be those of other wires' farms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import attrs

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.interfaces import IRegistry, ITopics
from broker.core.memory_budget import MemoryBudget
from broker.core.model import Rights
from broker.core.topics import Topics
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.registry_profile import RegistryBounds, RegistryProfile
from broker.wires.mtl.profiles.request_dispatch import ServiceBounds
from broker.wires.mtl.profiles.service_profile import ServiceProfile
from broker.wires.mtl.profiles.topic_profile import TopicProfile
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Permissions, Principal, Side
from broker.wires.mtl.sessions.profile_interface import Grant, Profile
from tests.recording.farm import registry_at
from tests.wires.mtl.data_recording import DEFAULTS, MtlFarm, MtlPeer

HOST = "/"
"""The virtual host that is shared with other wires."""

OTHER = "/other"

ENDPOINTS = {"broker-b": "tcp://192.0.2.2:5975"}
"""Control endpoints of other brokers."""


@attrs.frozen
class Permits:
    """Permissions by shell patterns of PROFILE:RESOURCE."""

    read: tuple[str, ...] = ("*",)
    write: tuple[str, ...] = ("*",)
    offers: Rights = attrs.field(factory=Rights)
    reading: RegistryReading = EVERY_ENTRY

    def may(self, side: Side, profile: str, resource: str) -> bool:
        if side is Side.WRITER and resource.startswith("elkobroker."):
            return False
        return any(
            fnmatchcase(f"{profile}:{resource}", each) for each in (self.read if side is Side.READER else self.write)
        )


@attrs.frozen
class Got:
    """A Content that came. ``says`` are its properties."""

    resource: str
    says: Mapping[str, Any]
    body: bytes
    sequence: int = attrs.field(eq=False)

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def event(self) -> str:
        """The name of the event."""
        event = self.says["event"]
        assert isinstance(event, str)
        return event


@attrs.frozen
class Bounds:
    """Bounds of the profiles."""

    service: ServiceBounds = attrs.field(factory=ServiceBounds)
    registry: RegistryBounds = attrs.field(factory=RegistryBounds)


BOUNDS = Bounds()


class ProfilesFarm(MtlFarm):
    """The data flow with the profiles. ``registry`` and ``topics`` are those of the shared virtual host."""

    def __init__(
        self,
        registry: IRegistry | None = None,
        topics: ITopics | None = None,
        config: Mtl = DEFAULTS,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._registry = registry
        self._shared = topics
        super().__init__(config)

    def start(self) -> None:
        self.core = self._registry or registry_at(self.clock)
        super().start()
        self.memory = MemoryBudget()
        shared = Topics(memory=self.memory) if self._shared is None else self._shared
        self.spaces: dict[str, ITopics] = {HOST: shared}
        self.topic = TopicProfile(self.data, self.space, self.refusal_log, shared)
        self.registry = RegistryProfile(self.data, self.core, self.leases, self.refusal_log, self._bounds.registry)
        self.service = ServiceProfile(
            self.data,
            self.core,
            self.leases,
            self.refusal_log,
            HOST,
            self.config.window_bytes,
            self.memory,
            self._bounds.service,
            lambda broker: ENDPOINTS.get(broker, ""),
        )
        self.told: dict[str, str] = {}
        """The members that came with the last lease."""

    def core_registry(self) -> IRegistry:
        return self.core

    def space(self, host: str) -> ITopics:
        """The topics of a virtual host."""
        return self.spaces.setdefault(host, self.spaces[HOST].space(host))

    def user(self, name: str, rights: Permissions, host: str = HOST) -> Principal:
        """A principal with these rights."""
        return Principal(name, host, rights)

    def lease(
        self,
        side: Side,
        *resources: str,
        profile: Profile | None = None,
        confirm: ConfirmMode | None = None,
        principal: Principal | None = None,
        window: int = 100,
    ) -> str:
        """Issue a lease for these resources, as the control flow does. Returns its token."""
        profile = profile or self.test
        principal = principal or self.principal()
        choice = profile.confirms[side]
        confirm = confirm or choice[0]
        assert confirm in choice
        for resource in resources:
            profile.check(principal, side, resource)
        grant = Grant(principal, side, profile, resources, confirm, window)
        token = self.data_leases.issue(grant, object())
        self.told = dict(profile.granted(grant))
        return token

    def counts(self) -> Mapping[str, int]:
        profiles = (self.topic, self.registry, self.service)
        own = {key: value for profile in profiles for key, value in profile.counts().items()}
        return {**super().counts(), **own}


def summon(peer: MtlPeer, resource: str, sequence: int = 1_000, body: bytes = b"") -> list[Got]:
    """Summon a resource, which works; the Contents that came behind the answer."""
    answer, *contents = peer.ask(*wire.summon(sequence, resource, body))
    assert answer == wire.Response(sequence, wire.OK)
    return [as_got(content) for content in contents]


def dismiss(peer: MtlPeer, resource: str, sequence: int = 1_000) -> None:
    """Dismiss a resource, which works; nothing else came meanwhile."""
    assert peer.ask(*wire.dismiss(sequence, resource)) == [wire.Response(sequence, wire.OK)]


def got(peer: MtlPeer) -> list[Got]:
    """The Contents that came since the last time. Nothing else did."""
    return [as_got(content) for content in peer.take()]


def as_got(content: wire.Command) -> Got:
    """One of them."""
    assert isinstance(content, wire.Content)
    says = field_table.decode(content.table, field_table.MAX_EXTENDED)
    return Got(content.resource, says, content.body, content.sequence)


def put(peer: MtlPeer, sequence: int, resource: str, body: bytes | object = b"", /, **says: field_table.Value) -> None:
    """Send a Content, of bytes or of JSON. Underscores in the names of properties are hyphens."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    properties = field_table.encode({name.replace("_", "-"): value for name, value in says.items()})
    peer.say(*wire.content(sequence, resource, properties, data))


def confirmed(*sequences: int) -> list[wire.Command]:
    """Confirms of these Contents."""
    return [wire.Confirm(sequence, False) for sequence in sequences]


def rejected(sequence: int, recycle: bool = False) -> list[wire.Command]:
    """The Reject of that Content."""
    return [wire.Reject(sequence, False, recycle)]


def refused(sequence: int) -> list[wire.Command]:
    """The answer to that Content for a writer without confirmation."""
    return [wire.Response(sequence, wire.BAD_REQUEST)]
