"""Interfaces of a cluster: what the core, the wires and the operators' side require of the other brokers.

A broker is a *member* of a cluster under a unique name. The *holder* of a provider is the broker at which the provider
is registered; `broker.core.model.Provider.broker` names it. A broker without a cluster uses `Single`, which
implements all of this without any other broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, succeed
from zope.interface import Attribute, Interface, implementer

from broker.core.interfaces import IWait
from broker.core.model import FailingService, LoadDetails, NotReady, Owner, Provider, Service


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
    """Owner of a durable queue: the name of a member. ``endpoint`` is its MTL control endpoint, empty if unknown.
    ``lasting``: the claim does not end with the lease of its owner."""

    owner: str
    endpoint: str = ""
    lasting: bool = False


class INeighbours(Interface):
    """This broker and those that it has links to. All methods are for the reactor thread."""

    name: str = Attribute("Name of this broker; empty in single mode.")

    def members() -> Sequence[Member]:
        """Return all members, this broker included, in the order of their names; none in single mode."""

    def member(name: str) -> Member | None:
        """Return the member of that name."""

    def watch_members(changed: Callable[[str, Member | None], None]) -> IWait:
        """Call ``changed`` with the name and the new value of each member that changes, None if it is gone."""


class IMembers(INeighbours):
    """Members of the cluster, this broker included."""

    clustered: bool = Attribute("False in single mode.")

    def health() -> Sequence[MemberHealth]:
        """Return the state of all members for operators."""

    def describe(listeners: Mapping[str, str], draining: bool) -> None:
        """Publish the endpoints of this broker's listeners, and that it drains."""

    def written() -> Deferred[str]:
        """Fires once all that was registered here before the call is written for the other brokers, with a token of
        that revision, empty in single mode; fails with `broker.core.errors.Refusal` UNAVAILABLE after a while."""

    def caught_up(after: str = ...) -> Deferred[None]:
        """Fires once this broker finds all that other brokers had written before the call, or before `written` fired
        with the token ``after``; fails likewise, and with INVALID for a text that is no token."""

    def obstacles() -> Sequence[NotReady]:
        """Return the reasons for which this broker is not ready, such as missing data of the other brokers."""

    def degradations() -> Sequence[NotReady]:
        """Return the reasons for which this broker is degraded, such as an etcd that cannot be reached."""

    def counts() -> Mapping[str, int]:
        """Return counters and gauges by name."""


class IQueueOwners(Interface):
    """Ownership of durable queues: one member at a time. All methods are for the reactor thread."""

    def claim(space: str, name: str, lasting: bool = ..., shared: bool = ...) -> Deferred[QueueClaim]:
        """Claim a queue without an owner. Fires with its owner after the attempt: this broker, or another member.

        Fails with `broker.core.errors.Refusal` UNAVAILABLE if that is unknown, because etcd cannot be reached. A claim
        lasts until `release`, or until the lease of this broker ends (`watch_claims`). A ``lasting`` claim has no lease
        and lasts until `release`: the messages of the queue are on the disk of this broker only.
        Its endpoint is empty while the owner is away. A claim of this broker from before a restart is its own.
        ``shared``: the messages are in a store of all brokers, so that a lasting claim, which is from before, does not
        count while its owner is away.
        """

    def claim_of(space: str, name: str) -> QueueClaim | None:
        """Return the owner of a queue as far as it is known here; None without one."""

    def claims() -> Sequence[tuple[str, str, QueueClaim]]:
        """Return all claims that are known here, as space, name and owner, in the order of space and name."""

    def release(space: str, name: str) -> Deferred[None]:
        """End the claim of this broker. No-op for a queue of another owner. Fails with `broker.core.errors.Refusal`
        UNAVAILABLE if etcd cannot be reached."""

    def watch_claims(changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        """Call ``changed`` with space, name and new owner of each queue whose owner changes, until cancelled.

        A queue that this broker owned has another owner or none if its lease ended: then it must not write any more.
        """


class LinkReceiver(Protocol):
    """Receiver of the messages of one channel of the links between brokers."""

    def up(self, broker: str) -> None:
        """A link to a broker is open. Messages sent from now on arrive there in order; messages from before are lost.

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


Key = tuple[str, str, str, str]
"""Key of a registration, at all brokers alike: the wire, the name of the service, its protocol, and its place."""


def key_of(wire: str, service: Service, owner: Owner) -> Key:
    """Return the key of a registration.

    Its place is the host:port of the service; or, for an ``owner`` with an entry, that entry, whatever the protocol:
    the wire identifies the service by that entry, so its endpoint may change.
    """
    if owner.entry:
        return wire, _text(service.name), "", _text(owner.entry)
    return wire, _text(service.name), _text(service.protocol), _text(service.hostport)


def _text(text: str) -> str:
    """Return a text with question marks in place of isolated surrogates, which UTF-8 cannot represent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@attrs.frozen
class Registration:
    """Registration of one service by a provider, whose ``services`` are left out here.

    ``order`` is its place in the order of the provider's offers; a later one is greater, and some may be missing.
    ``failing`` is the report of a failing health check at the holder, None without one.
    """

    key: Key
    provider: Provider
    service: Service
    order: int
    failing: FailingService | None = None


class OwnRegistrations(Protocol):
    """Receiver of the changes of own registrations. The registry calls it before the watchers of a change, and it calls
    no method of the registry."""

    def acted(self, key: Key) -> None:
        """A session has offered or changed the service at a key."""

    def refreshed(self, key: Key) -> None:
        """The value at a key has changed without an act of the session: its label, or the state of its check."""

    def restated(self, key: Key) -> None:
        """A service whose check fails already has another reason or policy."""

    def ended(self, last: Registration, why: str) -> Registration | None:
        """The last session at a key has ended, for the reason of `broker.core.model.Change`, or has withdrawn the
        service. Returns the registration that is found from now on as if another broker held it; None without one."""

    def forgotten(self, key: Key) -> None:
        """The service at a key, which no session had offered since the start, is withdrawn, or is offered at another
        key, or by a session."""

    def none_remembered(self) -> None:
        """No service from before the start is restored any more: all have come back, or the grace period has
        ended."""


class IMirror(Interface):
    """The side of the registry for the registrations of a cluster. All methods are for the reactor thread."""

    own_registrations: OwnRegistrations | None = Attribute("Receiver of the changes of own registrations.")
    left_out: int = Attribute("Number of services of other brokers that are not found, since there are too many.")

    def mirror(
        present: Sequence[Registration] = ...,
        gone: Sequence[tuple[Key, str]] = ...,
        superseded: Collection[Key] = ...,
        counting: Collection[Key] = ...,
    ) -> None:
        """Change what other brokers hold, and which own registrations count, in one step.

        ``present`` are registrations that are found unless an own one at their key counts; ``gone`` are keys without
        one, with the reason (see `broker.core.model.Change`). Own registrations at ``superseded`` keys do not count
        while another broker has one there, until they are among ``counting``, or until the session acts. All changes
        are complete before the first notification; a change of the holder of a key is one step.
        """

    def mirror_loads(loads: Sequence[tuple[str, int, float, LoadDetails | None]]) -> None:
        """Set the loads of providers: member, id, load, `LoadDetails` or None. Those that the member does not hold are
        ignored."""

    def serve_recorded(registrations: Sequence[Registration] | None) -> None:
        """Serve these registrations of other brokers as restored ones until `serve_read`; None without a record of
        them. What this broker remembers stays restored until then, too."""

    def serve_read() -> None:
        """The keys have been read: serve the registrations of other brokers as they are there. The grace period of
        what this broker remembers begins."""

    def remembered() -> Sequence[Registration]:
        """Return the registrations of this broker from before its start that have not come back."""

    def remember(registrations: Sequence[Registration]) -> None:
        """Serve these registrations of this broker from before its start as restored ones, as far as they are not: a
        kill may have come before their write to the store. The grace period begins again with each."""

    def own(key: Key) -> Registration | None:
        """Return this broker's registration at a key; if there are several, the one changed last."""

    def own_sizes() -> tuple[int, int]:
        """Return the numbers of own providers and of their services."""

    def mirrored_at(key: Key) -> str | None:
        """Return the member whose registration `mirror` has set at a key; None without one."""

    def mirrored(broker: str | None = ...) -> Sequence[int]:
        """Return the ids of the providers that are found at a member, or at all other members."""


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

    def written(self) -> Deferred[str]:
        return succeed("")

    def caught_up(self, after: str = "") -> Deferred[None]:
        return succeed(None)

    def obstacles(self) -> Sequence[NotReady]:
        return ()

    def degradations(self) -> Sequence[NotReady]:
        return ()

    def counts(self) -> Mapping[str, int]:
        return {}

    def claim(self, space: str, name: str, lasting: bool = False, shared: bool = False) -> Deferred[QueueClaim]:
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
