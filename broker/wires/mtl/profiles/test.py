"""The profile "test" of RFC 11: fan-out of each Content to all readers, at once or never.

Rules:
- There is one resource, ``resource``, in each virtual host. Contents are never confirmed.
- A Content is fanned out to all readers that have summoned the resource, with unchanged properties. It always names
  the resource.
- Nothing is stored: later readers do not get it, and slow ones miss it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker.core.errors import Reason, Refusal
from broker.wires.mtl.codec.data import Content, make_tail
from broker.wires.mtl.sessions.principals import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.profile_interface import DataFlows, Grant, ProfileReader, ProfileWriter

RESOURCE = "resource"

_NAMED = make_tail(RESOURCE, b"")
"""Prefix of a tail with the name. A tail without it has an empty name there, one zero byte."""


class FanOutProfile:
    """See `broker.wires.mtl.sessions.profile_interface.Profile`. ``place`` has the readers of the virtual host."""

    name = "test"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE,),
    }
    sole: str | None = RESOURCE

    def __init__(self, flows: DataFlows) -> None:
        self._flows = flows
        self._readers: dict[str, dict[ProfileReader, None]] = {}
        """Readers that have summoned the resource, by virtual host."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if resource != RESOURCE:
            raise Refusal(Reason.PARAMETER, f"the profile {self.name} has one resource, {RESOURCE}")

    def prepare(self, principal: Principal, side: Side, resources: Collection[str]) -> None:
        """No-op: resources need no preparation."""

    def granted(self, grant: Grant) -> Mapping[str, str]:
        return {}

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place = self._readers.setdefault(flow.grant.principal.host, {})

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place.pop(flow, None)

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        reader.place[reader] = None

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        del reader.place[reader]

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """No-op: flows of this profile are no providers."""

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        return None

    def room(self, reader: ProfileReader) -> None:
        """No-op: no Content waits."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        readers = writer.place
        if readers:
            tail = content.tail if content.resource else _NAMED + content.tail[1:]
            self._flows.fan_out(readers, tail, content.body)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """No-op: Contents are not confirmed."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """No-op: Contents are not confirmed."""

    def counts(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        """No-op: nothing is stored."""
