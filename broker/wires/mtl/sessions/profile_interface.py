"""The interface between the data flows and the profiles.

The data flows (`broker.wires.mtl.sessions.data_flow`) handle leases, Summon and Dismiss with their order, sequences,
heartbeats and the end of connections. A profile defines its resources and routes Contents. It is called for valid
commands only: the lease covers the resource, the flow has the right side, and an answer to a Content comes only where
answers were agreed.

`Grant` is here since it names its profile, and a profile takes grants: in two modules, they would import each other.

Send window: Contents that a reader was sent and has not answered yet.

Rules:
- A Content is outstanding from the time it is sent until its first answer. Further answers are ignored, as are answers
  to sequences that were never sent.
- An answer with ``multiple`` covers all outstanding Contents up to its sequence, even if that one was answered before.
  Its sequence must be one that was sent.
- The window has room while fewer Contents of fewer bytes are outstanding than it allows. So one Content may exceed the
  bytes: otherwise the largest could never be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred

from broker.net.peer_interfaces import Part, Sent
from broker.wires.mtl.codec.data_messages import Content
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side


@attrs.frozen(eq=False)
class Grant:
    """The permission that a data lease grants.

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
    """A reader flow, whose client receives Contents. It is hashable, and lives as long as its client's lease.

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
    """Return the address that what a flow has stored counts for; empty for a user."""
    return flow.grant.principal.payer(flow.address)


class DataFlows(Protocol):
    """The data flows, as profiles use them."""

    def fan_out(self, readers: Collection[Any], tail: bytes, body: Part) -> None:
        """Fan out: send the same Content to many readers, each with its own next sequence. Faster than single sends.

        Readers without room miss it, which is counted; those that miss too many are ended.
        """

    def end(self, flow: ProfileReader | ProfileWriter, why: str, announce: bool = False) -> None:
        """End the flow of a client, its lease and everything it has summoned. Its next command is answered with 403.

        ``why`` names a counter. With ``announce`` the client is sent a Response 403 with the sequence 0 before.
        """


class Profile:
    """One profile. It serves all virtual hosts, and separates them by ``grant.principal.host``.

    The methods that return do what suits a profile whose resources need no preparation, whose flows are no
    providers, and whose readers do not confirm.
    """

    name: str
    """Name by which clients choose it, in small letters."""

    confirms: Mapping[Side, tuple[ConfirmMode, ...]]
    """Confirmations that each side may choose; the first is the default."""

    sole: str | None = None
    """The only resource of the profile, None if there may be several."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        """Raise `Refusal` if there is no such resource (PARAMETER), or if the principal may not use it (FORBIDDEN).

        Called for each resource of a lease when it is issued; of a lease for all, when a resource is first used.
        """
        raise NotImplementedError

    def prepare(
        self, principal: Principal, side: Side, resources: Collection[str], payer: str
    ) -> Deferred[None] | None:
        """Prepare resources that a lease or a Summon names. Returns None if they can be used at once.

        What is stored for it counts for ``payer``: see `payer_of`.

        The Deferred fires when they can be used, or fails with `Refusal`. `check` decides about them all the same.
        """
        return None

    def granted(self, grant: Grant) -> Mapping[str, str]:
        """Return further members of the reply to a client that is issued this lease."""
        return {}

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        """Process the first use of a lease."""
        raise NotImplementedError

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        """Process the end of a flow, which must not be used afterwards. `dismiss` is not called for its resources."""
        raise NotImplementedError

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        """The client has summoned that resource, and has the answer: Contents may be sent at once.

        ``body`` is that of the Summon, which a profile may read.
        """
        raise NotImplementedError

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        """Stop sending Contents of that resource. Unconfirmed ones stay unconfirmed."""
        raise NotImplementedError

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """Record a heartbeat of the flow's client, a Ping or a Pong, if the flow is a provider in the registry."""

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        """Return the id of the flow in the registry; None if it is no provider."""
        return None

    def room(self, reader: ProfileReader) -> None:
        """Resume a reader that has room again after a refusal, for many Contents."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        """Process a Content of a resource. ``content.tail`` lacks the name if the client left it out."""
        raise NotImplementedError

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """Process the Confirm of a Content, or of all up to it. Ignore sequences that are not outstanding."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """Process the Reject of a Content, or of all up to it. With ``recycle``, it is to be sent again."""

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the profile, by ``FAMILY.NAME``."""
        return {}

    def close(self) -> None:
        """Finish what the stop of the broker must not interrupt, and cancel all timers."""


class Sized(Protocol):
    """Anything with a constant size in bytes."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)


class SendWindow(Generic[T]):
    """Outstanding Contents of one reader, by sequence: at most ``most``, and about ``most_bytes``."""

    __slots__ = ("_last", "_most", "_most_bytes", "_outstanding", "bytes")

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._outstanding: dict[int, T] = {}
        self._last = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    def __iter__(self) -> Iterator[T]:
        return iter(self._outstanding.values())

    @property
    def room(self) -> bool:
        """True if another Content may be sent."""
        return len(self._outstanding) < self._most and self.bytes < self._most_bytes

    def add(self, sequence: int, thing: T) -> bool:
        """Add a Content with a sequence above all before. Returns True if there is still room."""
        outstanding = self._outstanding
        outstanding[sequence] = thing
        self._last = sequence
        self.bytes = size = self.bytes + thing.size
        return len(outstanding) < self._most and size < self._most_bytes

    def answered(self, sequence: int, multiple: bool) -> list[T]:
        """Process an answer. Returns the Contents that it is the first answer to, in the order of sending."""
        outstanding = self._outstanding
        if multiple:
            if sequence > self._last:
                return []
            covered = []
            # The dictionary is in the order of sending, which is that of sequences: stop at the first one above.
            for each in outstanding:
                if each > sequence:
                    break
                covered.append(each)
            things = [outstanding.pop(each) for each in covered]
        else:
            thing = outstanding.pop(sequence, None)
            if thing is None:
                return []
            things = [thing]
        for thing in things:
            self.bytes -= thing.size
        return things

    def clear(self) -> list[T]:
        """Empty the window. Returns the outstanding Contents, in the order of sending."""
        things = list(self._outstanding.values())
        self._outstanding.clear()
        self.bytes = 0
        return things


# A function that a lease calls when it is due.


class LeasedCall:
    """The `broker.core.interfaces.Leased` of a function.

    ``check`` is called with the time. It returns the time of the next call, None for no further one.
    """

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self.check = check
