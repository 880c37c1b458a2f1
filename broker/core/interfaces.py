"""Interfaces between the core and the wires: registry, topics, leases, store and control.

The file is longer than others: it is the list of everything in the core that sessions may use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from broker.core.model import (
    NOBODY,
    Change,
    Check,
    Kind,
    LastValue,
    Launcher,
    Load,
    LoadDetails,
    Owner,
    Policy,
    Provider,
    PublishedHeaders,
    Rights,
    Service,
    TopicInfo,
)

InThread = Callable[..., Deferred[Any]]
"""Calls a function with arguments in a thread, and returns a Deferred of its result."""


class IWait(Interface):
    """Handle of a standing query."""

    def cancel() -> None:
        """End the query: no further callbacks. Idempotent."""


class IRegistry(Interface):
    """Registry of providers and services, shared by all wires.

    A method completes its change before it notifies: no callback runs in the middle of a change. All methods are for
    the reactor thread.
    """

    revision: int = Attribute("Number of changes so far; each change raises it by one.")

    unnumbered: int = Attribute(
        "Number of changes so far that have no revision, since no watcher needs them: of the reason of a check whose "
        "state stays, of the broker of a provider, and of the order of its services."
    )

    epoch: int = Attribute(
        "Random number of this registry, 1 to 2**53 - 1. Revisions begin at 0 with each registry, so only those of the "
        "same epoch can be compared."
    )

    def join(label: str, wire: str, address: str, owner: Owner = NOBODY, payer: str = "") -> int:
        """Register a peer as a provider. Returns its id: from 1 upwards, never reused, not even after a restart.

        ``wire`` is the name of its protocol, ``address`` its remote address; for ``owner`` see `Provider`. Its services
        count as memory of ``payer``: see `StoredMemory` and `broker.core.memory_budget`.
        """

    def relabel(provider: int, label: str) -> None:
        """Change the label of a provider. Watchers are notified if it differs."""

    def leave(provider: int, why: str = ...) -> None:
        """Remove a provider and withdraw all its services. No-op for one that left already.

        ``why`` is "left" (by default), "withdrawn" or "expired"; see `Change`.
        """

    def offer(services: Sequence[Service], rights: Rights, instead_of: int | None = ...) -> None:
        """Add services of one registered provider (``Service.provider``), each a distinct object.

        With ``instead_of``, the limit of all services counts as it is after that provider has left, which follows.

        For each service, in order, the waits are notified first, then the watchers. The same service may be offered
        more than once. Invalid services are left out, the others are added; then `Refusals` is raised, with a reason
        for each that was left out.
        """

    def check(service: Service, rights: Rights, instead_of: int | None = ..., payer: str = ...) -> None:
        """Raise the `Refusal` with which `offer` would leave out the service, apart from limits of number.

        With ``instead_of``, the limit of all services counts too, as it is after the services of that name of that
        provider are withdrawn: a lower one, of a reload, must not cost the former service. So does the memory of the
        address that pays for them, if the new service is of that provider, too; or the memory of ``payer``, if another
        address pays for the new service.
        """

    def withdraw(provider: int, names: Iterable[str]) -> None:
        """Remove all services of the provider with one of these names, in every protocol. Unknown names are ignored."""

    def amend(service: Service) -> None:
        """Replace the provider's service of that name and protocol, the first of several, by this one.

        It may differ in ``info``, ``lasting``, ``interval``, ``zone``, ``tags`` and ``meta`` only, and keeps its place
        in every order. Watchers are notified if it differs, and so is `wait`, whose caller may have a filter; monitors
        are not, since the endpoint is the same. Raises `Refusal` for any
        other difference; then nothing has changed.
        """

    def load(provider: int, load: float, details: LoadDetails | None = ...) -> None:
        """Set a provider's load. Raises `Refusal` PARAMETER for an invalid one (`checked_load`).

        ``details`` are those of this report (`broker.core.model.load_details` checks them); by default none. They
        replace those of the report before.
        """

    def beat(provider: int, sent: float | None = None) -> None:
        """Record a heartbeat of a provider: `Provider.heard` becomes the present time. No-op for a provider that left.

        ``sent`` is the time of the peer's own clock in the heartbeat, in seconds since the epoch; None if it is unknown
        or too inexact. A heartbeat is no change: it has no revision and is in no ring.
        """

    def find(name: str, protocol: str, restored: bool = False) -> tuple[Service, ...]:
        """Return the present services of that name and protocol, in the order in which they were offered.

        Services with a failing health check come after the others or are left out, by the policy of their check (see
        `set_check`). With ``restored``, all are followed by the marked services from before a restart that no live one
        has replaced.
        """

    def wait(name: str, seconds: float | None) -> Deferred[Service]:
        """Wait for a service of that name, in any protocol, to be offered or amended; ``None`` waits without a limit.

        Fires with the first one: an amended service may begin to match a filter. Fails with a `Refusal` NO_SUCH_SERVICE
        at the deadline, or at once with LIMIT if there are too many waits. Cancel the Deferred when the peer
        disconnects.
        """

    def monitor(
        name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> IWait:
        """Call ``offered`` for each service of that name, in any protocol, as it is offered.

        ``ended`` is called once at the deadline (never if ``seconds`` is None or the wait was cancelled). Raises
        `Refusal` LIMIT if there are too many waits.
        """

    def services(name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        """Return all live services, the broker's own included; or those of a name, or of a name and a protocol.

        Hidden services are included: see `find`.
        """

    def check_of(service: Service) -> Check | None:
        """Return the result of the health checks of a service; None if it is not checked, or not registered."""

    def set_check(service: Service, check: Check | None, policy: Policy = ...) -> None:
        """Set the result of the health checks of a registered service; None if it is not checked any more.

        While the check fails, `find` obeys the policy; a hidden service (`Policy.HIDE`) is shown last, however, if more
        than the permitted share of the services of its name and protocol fails: then the failures reveal more about the
        network than about the services. No-op for a service that is not registered.

        Waits and monitors that began while a service was hidden receive it when it is shown again; earlier ones do not,
        since they received it, or were answered with it, before.
        """

    def doubt(provider: int, reason: str | None) -> None:
        """Mark all services of a provider as doubtful, with the reason as a sentence; None ends the doubt.

        Doubtful services come last in finds, and are neither hidden nor withdrawn. A failing check counts before the
        doubt. No-op for a provider that has left.
        """

    def silent_providers() -> tuple[int, int]:
        """Return the number of own providers whose first service is doubtful or failing, and that of all with one."""

    def by_check(services: Sequence[Service]) -> Sequence[Service]:
        """Return services in the order of finds: without the hidden ones, those with a failing check last.

        For wires that gather services of several names or protocols. Otherwise the order stays; without any failing
        check the argument itself is returned, at no cost.
        """

    def policy_of(service: Service) -> Policy:
        """Return the effective place of a service in finds: SHOW unless its check fails or it is doubtful."""

    def services_named(name: str) -> Iterator[Service]:
        """Yield all services of a name, by protocol.

        Those of a protocol are the live ones, also those that finds leave out, and then the marked ones from before a
        restart that no live one has replaced.
        """

    def services_of(provider: int) -> Sequence[Service]:
        """Return the services of a provider, 0 for the broker itself; none if it has left. Cheaper than `provider`."""

    def names(restored: bool = False) -> Sequence[str]:
        """Return the names of all services, each once. With ``restored``, also those from before a restart."""

    def protocols(name: str, restored: bool = False) -> Sequence[str]:
        """Return the protocols of the services of a name, each once, in the order in which they were offered.

        With ``restored``, also those of services from before a restart.
        """

    def loads() -> Sequence[Load]:
        """Return the loads of all providers but the broker itself, those without services included."""

    def provider(provider: int) -> Provider | None:
        """Return a snapshot of a provider; None if there is none of that id."""

    def remembered_owner(wire: str, entry: str) -> Owner:
        """Return the owner of the restored provider with that entry on its wire; `NOBODY` if there is none."""

    def remembered_holder(wire: str, entry: str) -> str:
        """Return the name of the other broker that has the restored provider with that entry on its wire; empty if
        there is none."""

    def end_remembered(wire: str, entry: str) -> bool:
        """Remove the restored services of this broker's provider with that entry on its wire, since its owner withdraws
        them. Returns False if there are none."""

    def remembered_provider(provider: int) -> Provider | None:
        """Return a restored provider, with all services of before; None if there is none of that id."""

    def wire_and_label(provider: int) -> tuple[str, str] | None:
        """Return the present wire and label of a provider; None if it has left. Cheaper than `provider`."""

    def load_of(provider: int) -> float | None:
        """Return the load that a provider has reported last, 0 before; None if it has left. Cheaper than `provider`."""

    def rates_of(provider: int) -> tuple[float, float] | None:
        """Return the requests and the errors a second between the last two reports of a provider that had them; None
        before, and for a provider of another broker, of which reports may be left out."""

    def holder(provider: int) -> str | None:
        """Return the name of the member of the cluster that holds a provider, empty for this broker itself; None if the
        provider has left."""

    def ids() -> Sequence[int]:
        """Return the ids of all providers but the broker itself, in order, as a copy.

        Some that have left may be among them, so that 100,000 ids cost 0.1 ms.
        """

    def providers() -> Sequence[Provider]:
        """Return all providers but the broker itself, in order of their ids."""

    def named(name: str) -> Sequence[int]:
        """Return the ids of the providers with that label, with a service at that host:port, or with that id.

        No value objects are made: 10,000 providers with ten services each take some 10 ms.
        """

    def watch(changed: Callable[[Change], None], kinds: Collection[Kind] = ..., own: bool = ...) -> IWait:
        """Call ``changed`` with every later change of these kinds (by default all), in order, until cancelled.

        With ``own``, only with changes of providers that this broker holds; others are held by other members of the
        cluster.
        """

    def watch_loads(on_report: Callable[[int, float, LoadDetails | None], None], own: bool = ...) -> IWait:
        """Call ``on_report`` with a provider, its load and the details at each report, in order with all changes, until
        cancelled. ``own``: see `watch`.

        Equivalent to `watch` of LOAD at a third of the cost, for consumers of every load.
        """

    def watch_beats(on_report: Callable[[int, float | None], None]) -> IWait:
        """Call ``on_report`` at each heartbeat with the provider and the time that it sent, until cancelled. See
        `beat`.

        The call comes before `beat` returns, and so possibly before queued notifications of earlier changes.
        """

    def watch_reasons(on_report: Callable[[int, Service], None]) -> IWait:
        """Call ``on_report`` with a provider and its service that fails its check or is doubtful, when it is so for
        another reason than before, in order with all changes, until cancelled. Such a change has no revision.
        """

    def changes_since(
        epoch: int, revision: int, kinds: Collection[Kind] = ..., most: int | None = None
    ) -> Sequence[Change] | None:
        """Return the changes of these kinds (by default all) after ``revision`` of the registry with that ``epoch``.

        With ``most``, only the first so many of them, at a cost of some 1 µs for each beside some 0.5 ms.

        None if they are unavailable: another epoch, a revision in the future, or one that is too old. The caller takes
        a snapshot instead. Loads do not displace other changes.
        """

    def recent(kinds: Collection[Kind], most: int) -> Sequence[Change]:
        """Return the last ``most`` changes of these kinds that are still known, in order."""


class ILaunchers(Interface):
    """Table of the programs that administrators may start."""

    def launch(name: str) -> str:
        """Start the program of that name, and return the status text: ``start NAME`` or ``fail NAME WHY``."""

    def describe() -> Sequence[Launcher]:
        """Return all launchers, in the order of the configuration."""

    def switch_off(name: str) -> None:
        """Mark the program of that name as no longer wanted. Unknown names are ignored."""


class IControl(Interface):
    """Control of the broker process by an administrator, as far as protocols have it.

    `broker.core.operator_interfaces.IOperations` has the rest.
    """

    def reload() -> object:
        """Read the configuration again, and apply the keys that a reload may change."""

    def shutdown(kill: bool) -> object:
        """Shut the process down gracefully; with ``kill``, end it at once."""


class INotifications(Interface):
    """Notifications of operators about events, by webhooks and commands of the configuration."""

    def event(kind: str, name: str, about: Mapping[str, object] = ...) -> None:
        """Report an event, which the rules of the configuration may send to recipients.

        ``kind`` is one of `broker.core.model.EVENTS`, ``name`` its subject: a service, a listener. ``about`` has
        details, as values of JSON. Never raises, and never blocks.
        """


# memory


SERVICES_PART = 0.75
"""Part of the limit of an address that its stored bytes may take with services: 7,000 services of providers that offer
several each. The rest is for connections, which would be closed otherwise as soon as they send long messages."""


class StoredMemory(Protocol):
    """The share of the memory budget for state that outlives its connection; see `broker.core.memory_budget`.

    ``payer`` is the address of the stranger that had it stored; empty for an authenticated user, who is not counted.
    """

    def may_store(self, payer: str, size: int, part: float = ...) -> bool:
        """Return True if ``size`` more bytes for that address are within the limits, and all that is stored for it
        within that ``part`` of the limit of an address."""

    def admit_stored(self, payer: str, size: int, part: float = ...) -> None:
        """Raise `Refusal` LIMIT unless `may_store`."""

    def store(self, payer: str, size: int) -> None:
        """Add bytes to those stored for an address, or subtract them. Ask `may_store` before."""


# topics


class Outlet(Protocol):
    """Delivery path of one wire to its subscribers. Exists as long as the wire; compared by identity.

    Each outlet has its own queues for slow subscribers, their bound and the count of dropped messages: the mc0 wire
    leaves them to the queue that the ROUTER has for each connection, up to the high-water mark.
    """

    def deliver(
        self, subscribers: Collection[Any], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Send a message to each of ``subscribers``, at least one, in the order in which they subscribed.

        The outlet handles subscribers that cannot be reached. It may subscribe, unsubscribe and publish before it
        returns. ``subscribers`` does not change during the call, so the outlet skips those that have ended meanwhile;
        it must not keep the collection afterwards.
        """


class ITopics(Interface):
    """Publish/subscribe, with one namespace of topics for all wires. A topic is a byte string, compared for equality.

    All methods are for the reactor thread.
    """

    subscriptions: int = Attribute("Number of subscriptions, to all topics and of all outlets together.")

    every: Callable[[bytes, Sequence[bytes], Sequence[bytes]], None] | None = Attribute(
        "Called with topic, headers and body of each message after its delivery, also of those from elsewhere."
    )

    def subscribe(topic: bytes, outlet: Outlet, subscriber: Hashable, payer: str = ...) -> bytes:
        """Subscribe: from now on the outlet delivers messages of the topic to this subscriber. Idempotent.

        A new topic counts as memory of ``payer`` until it ends: see `StoredMemory`.

        Returns the broker's own copy of the name, equal to ``topic``: callers that keep it share one copy. Raises
        `Refusal` LIMIT if the tables are full.
        """

    def unsubscribe(topic: bytes, outlet: Outlet, subscriber: Hashable) -> None:
        """Undo `subscribe`. No-op if not subscribed."""

    def publish(
        topic: bytes,
        headers: Sequence[bytes],
        body: Sequence[bytes],
        source: Outlet | None = ...,
        wire: str = ...,
        payer: str = ...,
    ) -> int:
        """Publish a message to all subscribers, the publisher included if it is one of them, except those of the outlet
        ``source``: that of the other brokers, for a message that came from one. ``wire`` is the publisher's, ``payer``
        the address that a last value counts for if the headers do not have one.

        Returns the number of recipients. A message that is published during the delivery of another one is queued until
        that delivery is complete; then the result is the present number of subscribers.
        """

    def last(topic: bytes) -> LastValue | None:
        """Return the newest message that was kept of a topic, for a new subscriber; None if there is none."""

    def may_retain(topic: bytes, headers: PublishedHeaders, body: int) -> bool:
        """Return True if there is room for a message with these headers and a body of that length as the last value of
        the topic."""

    def space(name: str) -> ITopics:
        """Return the topics of another namespace, which has the same bounds of last values."""

    def counts() -> Mapping[str, int]:
        """Return the number of last values in all namespaces, ``retained``, their size, ``retained-bytes``, and the
        number of those that were removed for others, ``evicted``."""

    def join(remote: Outlet, interest: Callable[[bytes, bool], None]) -> None:
        """Register the outlet of the other brokers, once.

        ``interest`` is called with a topic and True when the topic gets its first subscriber of another outlet, and
        with False when it loses its last one; at once for all topics that have some. It must not change the topics.
        """

    def own(topic: bytes, wanted: Callable[[bool], None]) -> None:
        """Register the owner of one of the broker's own topics. ``wanted`` is called with True when the topic gets its
        first subscriber, and with False when it loses its last one; with True at once if it has some.

        ``wanted`` is called before `subscribe` returns and must not publish: the subscriber would receive a message
        before the reply to its request.
        """

    def describe() -> Sequence[TopicInfo]:
        """Return all topics with subscribers, in order of their names, at a cost of some 3 µs for each topic."""

    def names() -> Sequence[bytes]:
        """Return the names of all topics with subscribers, as a copy."""

    def info(topic: bytes) -> TopicInfo | None:
        """Return one topic; None without subscribers."""


# leases


class Leased(Protocol):
    """Object with a deadline."""

    def check(self, now: float) -> float | None:
        """Process everything due at ``now``. Returns the next deadline, or None to end the lease. Both are in lifetime.

        ``now`` may be less than `ILeases.now`, and so less than the timestamp of a message: in a slow loop it is the
        time up to which all input has been read.
        """


class ILease(Interface):
    """Deadline that is supervised until it is cancelled or a check ends it."""

    def cancel() -> None:
        """End the lease: no further checks. Idempotent, and allowed in a check."""


class ILeases(Interface):
    """Deadlines on the *lifetime clock*, which excludes stalls of the broker itself.

    *Lifetime* is its reading, in seconds.

    All methods are for the reactor thread.
    """

    now: float = Attribute(
        "Lifetime in seconds at the last `look`. Monotonic; constant while there are no leases. Comparable with its "
        "own earlier values only. The scheduler calls `look` at the beginning of each quantum, so for input "
        "it is as old as the quantum. Code that runs outside of a quantum (results of threads, timers, the end of a "
        "connection, room for output) calls `look` first, or takes `moment`."
    )

    slack: float = Attribute(
        "Seconds to add to the interval that a peer must keep. The timestamp of a message is as old as the last look, "
        "and the next message may be unread at a late tick; with this no punctual peer is considered silent."
    )

    slack_exact: float = Attribute("Slack for timestamps by `moment`, which are exact: less than ``slack``.")

    def moment() -> float:
        """Advance and return ``now``, for exact timestamps. With these, ``slack_exact`` suffices."""

    stalled: float = Attribute("Seconds of all stalls of the broker together, which lifetime does not count.")

    def hold(leased: Leased, due: float) -> ILease:
        """Supervise ``leased``: check it not before ``due`` and at most one tick after it, two in a slow loop.

        A lease that is already due is checked at the next tick. An exception in a check is logged and ends the lease.
        """

    def look() -> None:
        """Advance ``now`` to the present moment. The cost is one reading of the clock.

        Detects a clock that was set back, which would keep all timers of Twisted from running until it has caught up.
        """
