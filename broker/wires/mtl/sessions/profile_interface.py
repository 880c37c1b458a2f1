"""The interface between the data flows and the profiles.

The data flows (`broker.wires.mtl.sessions.data_flow`) handle leases, Summon and Dismiss with their order, sequences,
heartbeats and the end of connections. A profile defines its resources and routes Contents. It is called for valid
commands only: the lease covers the resource, the flow has the right side, and an answer to a Content comes only where
answers were agreed.

`Grant` is here since it names its profile, and a profile takes grants: in two modules, they would import each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import attrs

from broker.net.interfaces.router import Part, Sent
from broker.wires.mtl.codec.data import Content
from broker.wires.mtl.sessions.principals import ConfirmMode, Principal, Side


@attrs.frozen(eq=False)
class Grant:
    """Permission that a data lease gives.

    An empty ``resources`` covers all resources of the profile. ``window`` is the limit of unconfirmed Contents; it
    applies to readers whose Contents are confirmed.
    """

    principal: Principal
    side: Side
    profile: Profile
    resources: tuple[str, ...]
    confirm: ConfirmMode
    window: int

    def covers(self, resource: str) -> bool:
        """Return True if the lease itself covers the resource. The permissions of the user are another matter."""
        return not self.resources or resource in self.resources


class ProfileReader(Protocol):
    """A flow that Contents go to. It is hashable, and lasts as long as the client's lease.

    ``place`` is for the profile: whatever it wants to find with the flow.
    """

    grant: Grant
    identity: bytes
    address: str
    sent: float
    sequence: int
    place: Any

    def __hash__(self) -> int: ...

    def send(self, tail: bytes, body: Part) -> Sent:
        """Send one Content, with the next sequence; afterwards ``sequence`` is that. See `DataFlows.fan_out` for many.

        A Content that is not sent (FULL, GONE) has used its number up too, so that the client sees a gap. After FULL,
        `Profile.room` is called when there is room again.
        """


class ProfileWriter(Protocol):
    """A flow that Contents come from. It is hashable, and lasts as long as the client's lease."""

    grant: Grant
    identity: bytes
    address: str
    place: Any

    def __hash__(self) -> int: ...

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """Confirm a Content, or all up to it. Nothing happens where the flow is not confirmed."""

    def reject(self, sequence: int, *, recycle: bool) -> None:
        """Refuse a Content: with ``recycle`` "not now, send it again", else "never".

        Where the flow is not confirmed, the client gets a Response 400 for a Content that is refused for good, and
        nothing for one that is only not taken now.
        """


class DataFlows(Protocol):
    """All data flows, as far as profiles need them."""

    def fan_out(self, readers: Collection[Any], tail: bytes, body: Part) -> None:
        """Send the same Content to many readers, each with its own next sequence: the fast way.

        Readers that are too slow for it miss it, which is counted; those that miss too much are ended.
        """

    def end(self, flow: ProfileReader | ProfileWriter, why: str) -> None:
        """End the flow of a client: its lease is over, what it had summoned is dismissed, and it hears 403 from now on.

        ``why`` is a word for counters.
        """


class Profile(Protocol):
    """One profile. It serves all virtual hosts, and keeps them apart by ``grant.principal.host``."""

    name: str
    """As clients choose it, in small letters."""

    confirms: Mapping[Side, tuple[ConfirmMode, ...]]
    """How the Contents of each side may be confirmed: the first is what who says nothing gets."""

    sole: str | None
    """The one resource that there is, or None where there may be several."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        """Raise `Refusal` if there can be no such resource (PARAMETER), or if it is not for this principal (FORBIDDEN).

        Called for each resource of a lease when it is asked for; of a lease for all, when a resource is first used.
        """

    def granted(self, grant: Grant) -> Mapping[str, str]:
        """What a client must be told beside its lease, as members of the reply."""

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        """A client began to use its lease."""

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        """The flow is over: `dismiss` is not called for what it had summoned. It must not be used afterwards."""

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        """Contents of that resource are wanted, and the client knows that they come: they may be sent at once.

        ``body`` is that of the Summon, which a profile may read.
        """

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        """No Contents of that resource are wanted any more: none may be sent. What is unconfirmed stays so."""

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """Record a heartbeat of the flow's client, a Ping or a Pong, if the flow is a provider in the registry."""

    def room(self, reader: ProfileReader) -> None:
        """A reader for which a Content was refused has room again, for many Contents."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        """A Content came. ``resource`` is its name. Where the client left it out, ``content.tail`` does not have it."""

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """The client took a Content safely, or all up to it. Numbers that are not outstanding are ignored."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """The client does not take a Content, or all up to it; with ``recycle`` it is to be sent again."""

    def counts(self) -> Mapping[str, int]:
        """What is too frequent to be counted elsewhere."""

    def close(self) -> None:
        """The broker stops: settle what must be settled."""
