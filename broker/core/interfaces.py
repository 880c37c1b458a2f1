"""Interfaces between the core and the wires: the registry, topics, leases, stores and control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from broker.core.model import (
    Change,
    Kind,
    KnownSession,
    Launcher,
    Load,
    Provider,
    Rights,
    Service,
    Snapshot,
    TopicInfo,
)


class IWait(Interface):
    """A standing query that can be ended."""

    def cancel() -> None:
        """End it. Nothing is told any more; doing so twice is harmless."""


class IRegistry(Interface):
    """The one registry behind every wire.

    Changes are made first and told afterwards: no method calls a peer in the middle of a change. All methods are for
    the reactor thread.
    """

    revision: int = Attribute("The number of changes so far; each change raises it by one.")

    epoch: int = Attribute(
        "Random number of this registry, 1 to 2**53 - 1. Revisions begin at 0 with each registry, so only those of the "
        "same epoch can be compared."
    )

    def join(label: str, wire: str, address: str) -> int:
        """Register a peer as a provider. Returns its id: from 1 upwards, never used again, not even after a restart.

        ``wire`` names the format that it speaks, ``address`` where it comes from.
        """

    def relabel(provider: int, label: str) -> None:
        """Give a provider another label."""

    def leave(provider: int, why: str = ...) -> None:
        """The provider is gone: withdraw all its services. Harmless for one that left already.

        ``why`` is "left" (by default), "withdrawn" or "expired"; see `Change`.
        """

    def offer(services: Sequence[Service], rights: Rights) -> None:
        """Add services of one provider that joined (``Service.provider`` names it), each a distinct object.

        For each service, in order, first the waits are told, then the watchers. The same service may be offered more
        than once. Services that may not be added are left out, the others are added; then `Refusals` is raised, with a
        reason for each that was left out.
        """

    def check(service: Service, rights: Rights) -> None:
        """Raise the `Refusal` with which `offer` leaves out such a service, however much room there is."""

    def withdraw(provider: int, names: Iterable[str]) -> None:
        """Remove all services of the provider with one of these names, in every protocol. Unknown names are ignored."""

    def amend(service: Service) -> None:
        """Replace the provider's service of that name and protocol, the first of several, by this one.

        It may differ in ``info``, ``lasting`` and ``interval`` only, and keeps its place in every order. Watchers are
        told if it differs at all; waits for the name are not, since it is where it was. Raises `Refusal` when it may
        not be changed so; then nothing has changed.
        """

    def load(provider: int, load: float) -> None:
        """Set a provider's load. Raises `Refusal` PARAMETER for one that is none (`checked_load`)."""

    def beat(provider: int, sent: float | None = None) -> None:
        """Record a heartbeat of a provider: `Provider.heard` is now. No-op for a provider that left.

        ``sent`` is the time of the peer's own clock in the heartbeat, in seconds of the epoch; None where it is unknown
        or too inexact. A heartbeat is no change: it has no revision and is in no ring.
        """

    def find(name: str, protocol: str, restored: bool = False) -> tuple[Service, ...]:
        """Return the services of that name and protocol that there are now, in the order in which they were offered.

        With ``restored`` those from before a restart follow that no live one has replaced, each marked so.
        """

    def wait(name: str, seconds: float | None) -> Deferred[Service]:
        """Wait for a service of that name, in any protocol, to be offered; ``None`` waits for ever.

        Fires with the first one offered, fails with a `Refusal` NO_SUCH_SERVICE when the time is up, or with LIMIT at
        once when too many wait. Cancel the Deferred when the peer goes.
        """

    def monitor(
        name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> IWait:
        """Call ``offered`` for each service of that name, in any protocol, as it is offered.

        ``ended`` is called once when the time is up (never, if ``seconds`` is None or the wait was cancelled). Raises
        `Refusal` LIMIT when too many wait.
        """

    def services(name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        """Every live service, the broker's own included; or those of a name, or of a name and a protocol."""

    def loads() -> Sequence[Load]:
        """The loads of all providers but the broker itself, those that offer nothing included."""

    def provider(provider: int) -> Provider | None:
        """The provider of that id as it is now; None when there is none."""

    def wire_and_label(provider: int) -> tuple[str, str] | None:
        """The wire and the label that the provider has now, or None when it is gone. It costs less than `provider`."""

    def providers() -> Sequence[Provider]:
        """All providers but the broker itself, in order of their ids."""

    def watch(changed: Callable[[Change], None], kinds: Collection[Kind] = ...) -> IWait:
        """Call ``changed`` with every later change of these kinds (by default all), in order, until cancelled."""

    def watch_loads(told: Callable[[int, float], None]) -> IWait:
        """Call ``told`` with a provider and its load at each report, in order with all changes, until cancelled.

        That is `watch` of LOAD at a third of the cost, for those who want each of a great many.
        """

    def watch_beats(told: Callable[[int, float | None], None]) -> IWait:
        """Call ``told`` with a provider and the time that it sent at each heartbeat, until cancelled. See `beat`.

        It is called before `beat` returns, and so out of order with changes that are still to be told.
        """

    def changes_since(epoch: int, revision: int, kinds: Collection[Kind] = ...) -> Sequence[Change] | None:
        """Return the changes of these kinds (by default all) after ``revision`` of the registry with that ``epoch``.

        None where they are not known: another epoch, a revision that is not reached yet, or one that is too old. The
        caller takes a snapshot instead. Loads do not push other changes out of the memory.
        """


class ILaunchers(Interface):
    """The table of programs that administrators may start."""

    def launch(name: str) -> str:
        """Start the program of that name, and return the status text: ``start NAME`` or ``fail NAME WHY``."""

    def describe() -> Sequence[Launcher]:
        """All launchers, in the order of the configuration."""

    def switch_off(name: str) -> None:
        """The program of that name is no longer wanted. Unknown names are ignored."""


class IControl(Interface):
    """Control of the broker process by an administrator."""

    def reinitialize() -> None:
        """Read the configuration again."""

    def shut_down(kill: bool) -> None:
        """End the process: in good order, or with ``kill`` at once."""


# what outlasts a restart


class IStore(Interface):
    """The state that outlasts a restart: provider ids, providers, sessions of subscribers, switches of launchers.

    Methods block on the disk or the network, and any thread may call them. Each write is one transaction, and is safe
    when its method returns: all of it, or nothing, which raises `broker.core.database.StateError`.
    """

    def open() -> Snapshot:
        """Take the store for this broker alone, and return what was stored. Raises `StateError` with nothing held."""

    def look() -> Snapshot:
        """Return what was stored without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the store first.
        """

    def reserve(next_provider: int) -> None:
        """Store that provider ids below this one may have been given out. It never lowers the number."""

    def record(
        rows: Sequence[Provider],
        gone: Sequence[int],
        next_provider: int,
        sessions: Sequence[KnownSession] = ...,
        sessions_gone: Sequence[bytes] = ...,
    ) -> None:
        """Store providers and sessions, delete those with the ids ``gone`` and ``sessions_gone``, and `reserve`."""

    def switch(name: str, on: bool) -> None:
        """Store whether the launcher of that name is wanted."""

    def close(next_provider: int) -> None:
        """Store the exact next id, and let go of the store, even if that fails. No-op when it is not open."""


# topics


class Outlet(Protocol):
    """One wire's way to its subscribers. It lasts as long as the wire; two are the same if they are one object.

    What waits for a subscriber that reads slowly, the bound of that and the count of what is dropped belong to the
    outlet: the mc0 wire leaves them to the queue that the ROUTER keeps for each connection, up to the high-water mark.
    """

    def deliver(
        self, subscribers: Collection[Any], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Send a message to each of ``subscribers``, at least one, in the order in which they subscribed.

        The outlet sees to it itself when one of them cannot be reached. It may subscribe, unsubscribe and publish
        before it returns. ``subscribers`` stays as it is until then, so those who end meanwhile are for the outlet to
        skip; afterwards it is not to be kept.
        """


class ITopics(Interface):
    """Publish and subscribe, one space of topics for every wire. A topic is a string of bytes, equal or not.

    All methods are for the reactor thread.
    """

    subscriptions: int = Attribute("The number of subscriptions, to all topics and of all outlets together.")

    def subscribe(topic: bytes, outlet: Outlet, subscriber: Hashable) -> bytes:
        """From now on the outlet delivers to this subscriber what is published to the topic.

        Doing so twice is the same as once. Returns the name of the topic as the broker keeps it, equal to ``topic``:
        who keeps that instead shares one copy with all others. Raises `Refusal` LIMIT when the tables are full.
        """

    def unsubscribe(topic: bytes, outlet: Outlet, subscriber: Hashable) -> None:
        """Undo `subscribe`. No-op if not subscribed."""

    def publish(topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> int:
        """Give a message to all who are subscribed, the publisher included if it is one of them.

        Returns how many it was given to. A message that is published while another is delivered waits until that one
        has reached everybody; then the returned number is how many are subscribed at present.
        """

    def own(topic: bytes, wanted: Callable[[bool], None]) -> None:
        """A topic of the broker itself: ``wanted`` hears True when it has its first subscriber, and False when it has
        none any more; True at once if it has some.

        ``wanted`` is called before `subscribe` returns, and so must not publish in that moment: the subscriber would
        get a message before the answer to its request.
        """

    def describe() -> Sequence[TopicInfo]:
        """All topics that have subscribers, in order of their names. For people: it costs some 3 µs a topic."""


# leases


class Leased(Protocol):
    """Object with a deadline."""

    def check(self, now: float) -> float | None:
        """Do what is due at ``now``. Returns when it is due again, or None: the lease is over. Both are life time.

        ``now`` may be less than `ILeases.now`, and so than the stamp of a message: in a loop that is slow, it is the
        time up to which all that came in has been read.
        """


class ILease(Interface):
    """Something held, until it is cancelled or a check ends it."""

    def cancel() -> None:
        """End it: there is no further check. Harmless when it is over already, and in a check."""


class ILeases(Interface):
    """Deadlines in *life time*: the clock's, without the time in which the broker itself stood still.

    All methods are for the reactor thread.
    """

    now: float = Attribute(
        "Seconds of life time at the last `look`. Never falls; stands still while nothing is held. Compare it with its "
        "own earlier values only. The scheduler looks when it begins to serve a connection, so for all that input "
        "causes it is as old as the quantum. All that begins elsewhere (results of threads, timers, the end of a "
        "connection, room for output) calls `look` first, or takes `moment`."
    )

    slack: float = Attribute(
        "Seconds to add to the interval that a peer must keep. The stamp of a message is as old as the last look, and "
        "the next message may lie unread while a late tick counts; with this no peer that is in time is thought silent."
    )

    slack_exact: float = Attribute("The same for stamps by `moment`, which are exact: a smaller part of ``slack``.")

    def moment() -> float:
        """Look, and return ``now``: for exact stamps. With these, ``slack_exact`` is enough."""

    stalled: float = Attribute("Seconds that did not count, in all: those in which the broker stood still.")

    def hold(leased: Leased, due: float) -> ILease:
        """Have ``leased`` checked, not before ``due`` and not more than a tick after it, or two in a loop that is slow;
        at the next tick if that is past. A check that fails is logged and ends the lease.
        """

    def look() -> None:
        """Have ``now`` go on to this moment. It costs a look at the clock.

        Notices a clock that was set back, which keeps every timer of Twisted from running until it has caught up.
        """
