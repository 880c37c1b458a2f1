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
from twisted.internet.defer import Deferred

from broker.net.peer_interfaces import Part, Sent
from broker.wires.mtl.codec.data_messages import Content
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side


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
    """Reader flow: Contents are sent to its client. It is hashable, and lasts as long as the lease of the client.

    ``place`` belongs to the profile: its state of the flow.
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

        A Content that is not sent (FULL, GONE) has used its sequence too, so that the client sees a gap. After FULL,
        `Profile.room` is called when there is room again.
        """


class ProfileWriter(Protocol):
    """Writer flow: its client sends Contents. It is hashable, and lasts as long as the lease of the client."""

    grant: Grant
    identity: bytes
    address: str
    place: Any

    def __hash__(self) -> int: ...

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """Confirm a Content, or all up to it. No-op if the flow is not confirmed."""

    def misdirect(self, sequence: int) -> None:
        """Refuse a Content whose resource belongs to another broker: a Response 421 with its sequence."""

    def reject(self, sequence: int, *, recycle: bool) -> None:
        """Refuse a Content: for now with ``recycle`` (the client sends it again), else for good.

        If the flow is not confirmed, the client is sent a Response 400 for a Content refused for good, and nothing for
        one refused for now.
        """


def payer_of(flow: ProfileReader | ProfileWriter) -> str:
    """Return the address that what a flow has stored counts for; empty for a user: see `StoredMemory`."""
    return "" if flow.grant.principal.user else flow.address


class DataFlows(Protocol):
    """The data flows, as profiles use them."""

    def fan_out(self, readers: Collection[Any], tail: bytes, body: Part) -> None:
        """Fan out: send the same Content to many readers, each with its own next sequence. Faster than single sends.

        Readers without room miss it, which is counted; those that miss too many are ended.
        """

    def end(self, flow: ProfileReader | ProfileWriter, why: str, announce: bool = False) -> None:
        """End the flow of a client with its lease and all that it has summoned. Its next command is answered by 403.

        ``why`` names a counter. With ``announce`` the client is sent a Response 403 with the sequence 0 before.
        """


class Profile(Protocol):
    """One profile. It serves all virtual hosts, and separates them by ``grant.principal.host``."""

    name: str
    """Name by which clients choose it, in small letters."""

    confirms: Mapping[Side, tuple[ConfirmMode, ...]]
    """Confirmations that each side may choose; the first is the default."""

    sole: str | None
    """The only resource of the profile, None if there may be several."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        """Raise `Refusal` if there is no such resource (PARAMETER), or if the principal may not use it (FORBIDDEN).

        Called for each resource of a lease when it is issued; of a lease for all, when a resource is first used.
        """

    def prepare(self, principal: Principal, side: Side, resources: Collection[str]) -> Deferred[None] | None:
        """Prepare resources that a lease or a Summon names. Returns None if they can be used at once.

        The Deferred fires when they can be used, or fails with `Refusal`. `check` decides about them all the same.
        """

    def granted(self, grant: Grant) -> Mapping[str, str]:
        """Return further members of the reply to a client that is issued this lease."""

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        """Process the first use of a lease."""

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        """Process the end of a flow, which must not be used afterwards. `dismiss` is not called for its resources."""

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        """The client has summoned that resource, and has the answer: Contents may be sent at once.

        ``body`` is that of the Summon, which a profile may read.
        """

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        """Stop sending Contents of that resource. Unconfirmed ones stay unconfirmed."""

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """Record a heartbeat of the flow's client, a Ping or a Pong, if the flow is a provider in the registry."""

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        """Return the id of the flow in the registry; None if it is no provider."""

    def room(self, reader: ProfileReader) -> None:
        """Resume a reader that has room again after a refusal, for many Contents."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        """Process a Content of a resource. ``content.tail`` lacks the name if the client left it out."""

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """Process the Confirm of a Content, or of all up to it. Ignore sequences that are not outstanding."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """Process the Reject of a Content, or of all up to it. With ``recycle``, it is to be sent again."""

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the profile, by ``FAMILY.NAME``."""

    def close(self) -> None:
        """Finish what the stop of the broker must not interrupt, and cancel all timers."""
