"""The profile "test" of RFC 11: what any writer sends goes to all readers, at once or never.

Rules:
- There is one resource, ``resource``, in each virtual host. Contents are never confirmed.
- A Content goes to all who have summoned the resource, with its properties as they are. It always names the resource.
- Nothing is kept: who summons later does not get it, and who reads too slowly misses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.errors import Reason, Refusal
from broker.wires.mtl.codec.data import Content, make_tail
from broker.wires.mtl.sessions.principals import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.profile_interface import DataFlows, Grant, ProfileReader, ProfileWriter

RESOURCE = "resource"

_NAMED = make_tail(RESOURCE, b"")
"""What a tail begins with that names it; one that does not, begins with one byte less."""


class FanOutProfile:
    """See `Profile`. The ``place`` of a flow are the readers of its virtual host."""

    name = "test"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE,),
    }
    sole: str | None = RESOURCE

    def __init__(self, flows: DataFlows) -> None:
        self._flows = flows
        self._readers: dict[str, dict[ProfileReader, None]] = {}
        """By virtual host: those who have summoned the resource."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if resource != RESOURCE:
            raise Refusal(Reason.PARAMETER, f"the profile {self.name} has one resource, {RESOURCE}")

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

    def room(self, reader: ProfileReader) -> None:
        """Nothing waits for it."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        readers = writer.place
        if readers:
            tail = content.tail if content.resource else _NAMED + content.tail[1:]
            self._flows.fan_out(readers, tail, content.body)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """None is awaited."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """None is awaited."""

    def counts(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is kept."""
