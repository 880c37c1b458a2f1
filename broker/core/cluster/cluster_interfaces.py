"""Interfaces of a cluster: what the core, the wires and the operators' side require of the other brokers.

A broker is a *member* of a cluster under a unique name. The *holder* of a provider is the broker at which the provider
is registered; `broker.core.model.Provider.broker` names it. A broker without a cluster uses `Single`, which
implements all of this without any other broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, succeed
from zope.interface import Attribute, Interface, implementer

from broker.core.interfaces import IWait
from broker.core.model import FailingService, LoadDetails, NotReady, Provider


@attrs.frozen
class Member:
    """A broker of the cluster.

    - ``name``: unique in the cluster. ``instance``: random text, another one after each start with a new lease.
    - ``link``: endpoint for links of other brokers, ``host:port``; ``key``: the CURVE public key of that endpoint in
      Z85, empty without CURVE.
    - ``listeners``: endpoints for peers, by the titles of listeners, such as ``{"mtl": "tcp://10.0.0.1:5975"}``.
    - ``version``: version of the program. ``draining``: the broker sends its peers away.
    """

    name: str
    instance: str
    link: str = ""
    key: str = ""
    listeners: Mapping[str, str] = attrs.field(factory=dict)
    version: str = ""
    draining: bool = False


@attrs.frozen
class MemberHealth:
    """State of a member for operators.

    ``lag`` is the time from a write to its arrival in the watch, in seconds, as that member measures it; None if it is
    unknown. ``providers`` and ``services`` are the numbers of its own. ``here`` is True for this broker itself;
    ``linked`` is True if a link to the member is open.
    """

    member: Member
    here: bool
    linked: bool
    lag: float | None
    providers: int
    services: int


@attrs.frozen
class QueueClaim:
    """Owner of a durable queue: the name of a member. ``endpoint`` is its MTL control endpoint, empty if unknown."""

    owner: str
    endpoint: str = ""


class IMembers(Interface):
    """Members of the cluster, this broker included. All methods are for the reactor thread."""

    name: str = Attribute("Name of this broker; empty in single mode.")

    clustered: bool = Attribute("False in single mode.")

    def members() -> Sequence[Member]:
        """Return all members, this broker included, in the order of their names; none in single mode."""

    def member(name: str) -> Member | None:
        """Return the member of that name."""

    def watch_members(changed: Callable[[str, Member | None], None]) -> IWait:
        """Call ``changed`` with the name and the new value of each member that changes, None if it is gone."""

    def health() -> Sequence[MemberHealth]:
        """Return the state of all members for operators."""

    def describe(listeners: Mapping[str, str], draining: bool) -> None:
        """Publish the endpoints of this broker's listeners, and that it drains."""

    def degradations() -> Sequence[NotReady]:
        """Return the reasons for which this broker is degraded, such as an etcd that cannot be reached."""

    def counts() -> Mapping[str, int]:
        """Return counters and gauges by name."""


class IQueueOwners(Interface):
    """Ownership of durable queues: one member at a time. All methods are for the reactor thread."""

    def claim(space: str, name: str, lasting: bool = ...) -> Deferred[QueueClaim]:
        """Claim a queue without an owner. Fires with its owner after the attempt: this broker, or another member.

        Fails with `broker.core.errors.Refusal` UNAVAILABLE if that is unknown, because etcd cannot be reached. A claim
        lasts until `release`, or until the lease of this broker ends (`watch_claims`). A ``lasting`` claim has no lease
        and lasts until `release`: the messages of the queue are on the disk of this broker only.
        Its endpoint is empty while the owner is away. A claim of this broker from before a restart is its own.
        """

    def claim_of(space: str, name: str) -> QueueClaim | None:
        """Return the owner of a queue as far as it is known here; None without one."""

    def claims() -> Sequence[tuple[str, str, QueueClaim]]:
        """Return all claims that are known here, as space, name and owner, in the order of space and name."""

    def release(space: str, name: str) -> Deferred[None]:
        """End the claim of this broker. No-op for a queue of another owner."""

    def watch_claims(changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        """Call ``changed`` with space, name and new owner of each queue whose owner changes, until cancelled.

        A queue that this broker owned has another owner or none if its lease ended: then it must not write any more.
        """


class LinkReceiver(Protocol):
    """Receiver of the messages of one channel of the links between brokers."""

    def up(self, broker: str) -> None:
        """A link to a broker is open. Messages sent from now on arrive there in order; what was sent before is lost.

        A receiver that replicates state sends all of it now."""

    def down(self, broker: str) -> None:
        """The link to a broker has ended: messages may be lost until the next `up`."""

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """A message from a broker. Messages of one broker are in the order in which it sent them on all channels."""


class ILinks(Interface):
    """Links between brokers: one authenticated connection for each pair, for messages of named channels.

    A channel is *lossy* or not. Messages of a lossy channel are dropped and counted when the queue of a link is full;
    on any other channel a full queue ends the link, so that both sides get `down` and `up`, and send their state again.
    All methods are for the reactor thread. Messages are sent to direct neighbours only, and are not forwarded.
    """

    def serve(channel: str, receiver: LinkReceiver, lossy: bool = ...) -> None:
        """Register the receiver of a channel, before the links are opened. At most one for each channel."""

    def send(broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        """Send a message to a broker. False if there is no link to it, or the message was dropped."""

    def broadcast(channel: str, frames: Sequence[bytes]) -> None:
        """Send a message to all brokers with an open link."""

    def brokers() -> Sequence[str]:
        """Return the names of the brokers with an open link."""


class IMirror(Interface):
    """The side of the registry for providers of other members. All methods are for the reactor thread."""

    def mirror(
        present: Sequence[Provider], gone: Sequence[tuple[int, str]] = ..., replaced: Mapping[int, int] = ...
    ) -> None:
        """Add or replace providers that other members hold, and remove others, in one step.

        ``present`` are values with a holder; services that are equal to present ones keep
        their place, the others are offered, amended or withdrawn. ``gone`` are ids with the reason (see
        `broker.core.model.Change`). ``replaced`` has ids of providers, own ones or others', with the ids of their
        successors: finds return the services of the successor only, and no moment has both or none. A replaced own
        provider whose session still lives is found again when its successor goes. All changes are complete before the
        first notification; loads and failing health checks are those of ``present``.
        """

    def mirror_loads(loads: Sequence[tuple[int, float, LoadDetails | None]]) -> None:
        """Set the loads of providers that other members hold: id, load, `LoadDetails` or None. Unknown ids are
        ignored."""

    def failing(provider: int) -> Sequence[FailingService]:
        """Return the services of an own provider whose health checks fail, as other members mirror them."""

    def superseded(provider: int) -> Provider | None:
        """Return an own provider whose session lives while it has a successor; None for all others."""

    def mirrored(broker: str | None = ...) -> Sequence[int]:
        """Return the ids of the providers that a member holds, or those of all other members."""


# Single mode: the interfaces of a cluster for a broker without one.


@implementer(IWait)
class _Nothing:
    """A watch without changes."""

    def cancel(self) -> None:
        """Do nothing."""


@implementer(IMembers, IQueueOwners, ILinks)
class Single:
    """`IMembers`, `IQueueOwners` and `ILinks` without any other broker: this broker owns every queue."""

    name = ""
    clustered = False

    def members(self) -> Sequence[Member]:
        return ()

    def member(self, name: str) -> Member | None:
        return None

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        return _Nothing()

    def health(self) -> Sequence[MemberHealth]:
        return ()

    def describe(self, listeners: Mapping[str, str], draining: bool) -> None:
        pass

    def degradations(self) -> Sequence[NotReady]:
        return ()

    def counts(self) -> Mapping[str, int]:
        return {}

    def claim(self, space: str, name: str, lasting: bool = False) -> Deferred[QueueClaim]:
        return succeed(QueueClaim(""))

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        return QueueClaim("")

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return ()

    def release(self, space: str, name: str) -> Deferred[None]:
        return succeed(None)

    def watch_claims(self, changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        return _Nothing()

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        pass

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        return False

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        pass

    def brokers(self) -> Sequence[str]:
        return ()


SINGLE: Any = Single()
"""The one instance: it has no state."""
