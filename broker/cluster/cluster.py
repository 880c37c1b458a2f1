"""Cluster: this broker as a member of a farm. It joins the parts of this package.

States:
- *joining*: not a member yet in this run. - *member*: name and lease are held, the table is complete, and the watch is
  open. - *away*: one of these is lost, and is being restored. - *fenced*: another broker has the name, or this one
  cannot be a member; for good. - *stopped*.

Rules:
- A *session* reads ``meta``, holds the name under the lease, brings the table up to date, and publishes what etcd
  lacks. It lasts until something interrupts it: the end of the watch, silence, a failed transaction, or the end of the
  lease. Then the next session begins, after a pause that grows.
- After the end of a session nothing is published until the table has the next session's own write of the member's key:
  values are never built from a table that is older than the session.
- Nothing is removed from the registry because etcd is away: the table stays as it was read last.
- Credentials that are refused end the start; later, they are a trouble.
- Time comes from the clock, chance from ``rng``, and nothing depends on the time of day.

The file is longer than others: the steps of a session join all parts of the package, in an order that has to be read
as a whole.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.cluster import layout
from broker.cluster.beats import SILENCE, Beats
from broker.cluster.claims import Claims
from broker.cluster.departed import Departed
from broker.cluster.etcd.interface import Compare, Denied, EtcdError, IEtcd, NoSpace, Put
from broker.cluster.feed import Feed
from broker.cluster.ids import Ids
from broker.cluster.layout import Keys
from broker.cluster.loads import OwnLoads
from broker.cluster.members import Members
from broker.cluster.membership import Membership
from broker.cluster.mirror import Mirror, Shared
from broker.cluster.own import OwnProviders
from broker.cluster.publisher import Publisher, Unit
from broker.cluster.reopening import Reopening
from broker.cluster.settings import ClusterFailed, ClusterMemory, ClusterSettings
from broker.cluster.table import Bad, Table, Touched
from broker.cluster.upkeep import Upkeep
from broker.core.backoff import Backoff
from broker.core.cluster.interfaces import IMembers, IQueueOwners, Member, MemberHealth, QueueClaim
from broker.core.interfaces import IWait
from broker.core.model import BROKER, NotReady

RETRY = Backoff(first=0.1, most=2.0, factor=2.0, jitter=0.5)
"""Pause before another session. A recovering etcd gives one TTL to come back in, so it stays short."""

DENIED_RETRY = Backoff(first=2.0, most=30.0, factor=2.0, jitter=0.2)
"""Pause after refused credentials: an operator has to act, and each attempt costs etcd a tenth of a second."""

STABLE = 10.0
"""Seconds after which a session counts as a success, and the pauses are short again."""

FLUSH = 2.0
"""Limit in seconds for writing the last changes at the stop."""


class State(enum.Enum):
    """State of the membership; see the module."""

    JOINING = "joining"
    MEMBER = "member"
    AWAY = "away"
    FENCED = "fenced"
    STOPPED = "stopped"


@implementer(IMembers, IQueueOwners)
class Cluster:
    """Membership of this broker in a farm: `IMembers` and `IQueueOwners`.

    ``registry`` is an `IRegistry` and an `IMirror`. ``failed`` is called after the start if this broker may not remain
    a member. ``linked``, an attribute, returns the names of the brokers with an open link.
    """

    log = Logger()

    clustered = True

    def __init__(
        self,
        etcd: IEtcd,
        registry: Any,
        clock: IReactorTime,
        memory: ClusterMemory,
        settings: ClusterSettings,
        random: random.Random,
        failed: Callable[[ClusterFailed], None],
    ) -> None:
        self.name = settings.name
        self.state = State.JOINING
        self.linked: Callable[[], Collection[str]] = tuple
        self._etcd = etcd
        self._registry = registry
        self._clock = clock
        self._memory = memory
        self._remembered = memory.load()
        self._settings = settings
        self._rng = random
        self._failed = failed
        self._keys = keys = Keys(settings.farm)
        self._bad = Bad()
        name, name_key = settings.name, keys.member(settings.name)
        shared = self._shared = Shared(Table(keys, self._bad))
        self._members = Members(shared, settings, self._own_health)
        self._membership = Membership(
            etcd,
            clock,
            random,
            keys,
            name,
            settings.ttl,
            self._members.value,
            self._remembered.instance,
            self._remembered.lease,
            self._lease_lost,
            self._renewal,
        )
        self._publisher = Publisher(
            etcd,
            clock,
            name_key,
            settings.gather,
            self._interrupt_by,
            lambda: self._interrupt("the lease has ended"),
            lambda: self._reopening.begin(),
        )
        self._departed = Departed(clock, name, settings.ttl, lambda id: self._own.ended(id))
        self._mirror = Mirror(shared, registry, clock, name, lambda id: self._own.successor(id), self._departed.get)
        mirrored = self._mirror.shown.__contains__
        self._own = OwnProviders(
            shared,
            registry,
            self._publisher,
            keys,
            name,
            self._lease,
            self._mirror.live,
            mirrored,
            self._departed,
            lambda: self._members.here.draining,
            self._mirror.show,
            clock,
            settings.load_interval,
        )
        self._loads = OwnLoads(
            shared, registry, clock, self._publisher, keys, name, settings.load_interval, self._lease, mirrored
        )
        self._beats = Beats(
            clock, self._publisher, keys, name, settings.beat, self._lease, self._own_sizes, self._silent
        )
        self._ids = Ids(etcd, clock, random, keys, name_key, self._remembered, self._remember_ids, self._known_ids)
        self._ids.on_low(self._refill)
        self._claims = Claims(
            shared, etcd, keys, name, self._member_lease, lambda: self._interrupt("the lease has ended")
        )
        self._feed = Feed(
            shared, etcd, clock, keys, name, settings.ttl, self._bad, self._changed, self._replaced, self._watch_ended
        )
        self._feed.revision = self._remembered.revision
        self._reopening = Reopening(
            clock, random, lambda: self._publisher.full, lambda: self._feed.watching, self._feed.reopen
        )
        self._upkeep = Upkeep(etcd, clock, lambda: self._feed.revision, self._is_first, self._remember)
        self._epoch = self._remembered.epoch
        self._keys_lost = False
        """True from the loss of the lease until all keys are read again."""
        self._data_lost = False
        """True from the notice of a loss of etcd's data until all has been read again."""
        self._trouble = "etcd has not answered yet"
        self._interruption: Deferred[str] | None = None
        self._interrupted = ""
        self._started: Deferred[None] | None = None
        self._running: Deferred[None] | None = None
        self._grace_timer: IDelayedCall | None = None
        self._patience: IDelayedCall | None = None
        self._filling = False
        self._sessions = 0
        self._losses = 0

    # start and stop

    def next_id(self) -> int:
        """Return an id for a provider, unique in the farm. Raises `Refusal` UNAVAILABLE if none is in hand."""
        return self._ids.next_id()

    def start(self, patience: float = 5.0) -> Deferred[None]:
        """Join the farm. Fires when this broker is a member and its own entries are written; or after ``patience``
        seconds if etcd cannot be reached and provider ids are in hand. Fails with `ClusterFailed`."""
        started = self._started = Deferred(lambda _: None)
        self._patience = self._clock.callLater(patience, self._without_etcd)
        self._running = Deferred.fromCoroutine(self._run()).addErrback(self._defect)
        return started

    def stop(self, keep: bool) -> Deferred[None]:
        """End the membership. With ``keep`` the entries stay until the TTL, for a restart; otherwise they go at once.
        Idempotent; fires when that is done, and never fails."""
        if self.state is State.STOPPED:
            return maybeDeferred(lambda: None)
        return Deferred.fromCoroutine(self._stop(keep)).addErrback(
            lambda failure: self.log.failure("cluster: the end of the membership failed", failure)
        )

    def has_entries(self) -> bool:
        """Return whether own providers are in the registry, live ones or departed ones."""
        return self._own_sizes()[0] > 0 or len(self._departed) > 0

    # IMembers

    def members(self) -> Sequence[Member]:
        return self._members.members()

    def member(self, name: str) -> Member | None:
        return self._members.member(name)

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        return self._members.watch(changed)

    def health(self) -> Sequence[MemberHealth]:
        return self._members.health(self.linked())

    def describe(self, listeners: Mapping[str, str], draining: bool) -> None:
        if self._members.describe(listeners, draining):
            self._publisher.mark("member", self._build_member)

    def troubles(self) -> Sequence[NotReady]:
        found = []
        if self.state in (State.JOINING, State.AWAY):
            reason = self._membership.waiting or (
                f"the cluster cannot be reached: {self._trouble}. Known services are found, and services that register "
                "here are found at the other brokers later"
            )
            found.append(NotReady("cluster", reason))
        elif self.state is State.FENCED:
            found.append(NotReady("cluster", self._trouble))
        if self._publisher.full:
            found.append(
                NotReady(
                    "etcd",
                    "etcd has no space, so that changes do not reach the other brokers: compact and defragment it, and "
                    "end its alarm",
                )
            )
        return found

    def counts(self) -> Mapping[str, int]:
        return {
            "cluster.transactions": self._publisher.transactions,
            "cluster.operations": self._publisher.operations,
            "cluster.refused": self._publisher.refused,
            "cluster.events": self._feed.events,
            "cluster.resyncs": self._feed.resyncs,
            "cluster.resumed": self._feed.resumed,
            "cluster.sessions": self._sessions,
            "cluster.lost-leases": self._losses,
            "cluster.repairs": self._own.repairs,
            "cluster.bad-values": self._bad.count,
            "cluster.compactions": self._upkeep.compactions,
            "cluster.database_bytes": self._upkeep.size,
        }

    # IQueueOwners

    def claim(self, space: str, name: str, lasting: bool = False) -> Deferred[QueueClaim]:
        return self._claims.claim(space, name, lasting)

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        return self._claims.claim_of(space, name)

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return self._claims.claims()

    def release(self, space: str, name: str) -> Deferred[None]:
        return self._claims.release(space, name)

    def watch_claims(self, changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        return self._claims.watch(changed)

    # sessions

    async def _run(self) -> None:
        failures = 0
        if self._ids.in_hand:
            await self._ids.prepare()
        while self._going:
            since = self._clock.seconds()
            retry = RETRY
            try:
                self._trouble = await self._session()
                if self._clock.seconds() - since >= STABLE:
                    failures = 0
            except ClusterFailed as error:
                self._fail(error)
                return
            except Denied as error:
                if self._started is not None:
                    self._fail(ClusterFailed(f"etcd refuses this broker: {error}"))
                    return
                self._trouble, retry = str(error), DENIED_RETRY
            except NoSpace as error:
                self._trouble = f"etcd has no space: {error}"
            except EtcdError as error:
                self._trouble = str(error)
            self._beats.stop()
            self._publisher.pause()
            if not self._going:
                return
            if self.state is State.MEMBER:
                self.state = State.AWAY
                self.log.warn("cluster: the connection to the cluster is lost: {why}", why=self._trouble)
            failures += 1
            await deferLater(self._clock, retry.after(failures, self._rng.random()))

    @property
    def _going(self) -> bool:
        return self.state not in (State.FENCED, State.STOPPED)

    async def _session(self) -> str:
        """Be a member until something interrupts that. Returns the reason."""
        self._interrupted = ""
        database = await self._membership.database(self._epoch, self._feed.revision, self._ids.initial)
        if database.replaced:
            self.log.warn("cluster: the data of etcd were replaced or lost: all is written again")
            self._ids.discard()
        resume = not database.replaced and bool(self._membership.lease)
        same = await self._membership.enter(resume)
        self._members.entered(self._membership.instance)
        if not self._going:
            return "stopped"
        self._epoch, self._data_lost = database.epoch, self._data_lost or database.replaced
        if not same:
            self._losses += self._sessions > 0
            self._keys_lost = True
            self._claims.lost()
        self._remember()
        await self._fill(wait=not self._ids.in_hand)
        first = self._sessions == 0
        # The session in which the loss was noticed may have been interrupted before this.
        replaced, lost = self._data_lost, self._keys_lost
        await self._feed.start(attrs.evolve(database, replaced=replaced), whole=lost)
        await self._caught_up()
        if not self._going:
            return "stopped"
        if self._interrupted:
            return self._interrupted
        self._data_lost = self._keys_lost = False
        if first and same:
            self._remember_providers()
        self._publisher.resume(self._membership.lease, self._membership.revision)
        self._mirror.apply(self._own.reconcile(lost, replaced))
        self._loads.reconcile()
        self._beats.start()
        if not self._ids.complete:
            self._refill()
        self._sessions += 1
        if self._started is not None:
            await self._publisher.idle()
            await self._applied()
        if not self._going:
            return "stopped"
        if not self._interrupted:
            if self.state is not State.MEMBER:
                self.log.info("cluster: this broker is a member, as {name}", name=self.name)
            self.state = State.MEMBER
            self._upkeep.start()
            self._begun()
            self._interruption = Deferred()
            await self._interruption
        return self._interrupted

    async def _caught_up(self) -> None:
        """Wait until the table has the write of the member's key by this session. A watch that does not bring it within
        `SILENCE` seconds is dead."""
        limit = self._clock.callLater(SILENCE, self._silent)
        try:
            await self._feed.reached(self._membership.revision)
        finally:
            if limit.active():
                limit.cancel()

    def _interrupt(self, reason: str) -> None:
        """End the present session."""
        if not self._interrupted:
            self._interrupted = reason
        waiting, self._interruption = self._interruption, None
        if waiting is not None:
            waiting.callback(reason)

    def _interrupt_by(self, error: EtcdError) -> None:
        self._interrupt(str(error))

    def _watch_ended(self, text: str) -> None:
        if self._publisher.full and self._interruption is not None and self._feed.complete:
            # The next session cannot begin, and this one still has the lease, and deletes what goes.
            self._reopening.ended()
        else:
            self._interrupt(text)

    def _silent(self) -> None:
        self.log.warn("cluster: the watch of etcd is silent; the next endpoint is used")
        self._etcd.change_endpoint()
        self._interrupt("the watch of etcd was silent")
        self._feed.close()

    def _lease_lost(self) -> None:
        self._interrupt("the lease has ended")
        self._publisher.pause()

    def _renewal(self, error: EtcdError | None) -> None:
        if error is not None and self.state is State.MEMBER:
            self.log.info("cluster: the lease was not renewed: {why}", why=str(error))

    # changes of the table

    def _changed(self, touched: Touched) -> None:
        """Apply changes of the watch."""
        self._reopening.heard()
        if touched.meta:
            meta = self._shared.table.meta
            if meta is None:
                self.log.warn("cluster: another program deleted the key meta of etcd: it is written again")
                self._publisher.mark("meta", self._build_meta)
            elif self._is_other(meta.value):
                self._interrupt("the data of etcd were replaced")
        self._members.touched(touched.members)
        self._claims.touched(touched.claims)
        outlived = self._own.touched(tuple(touched.providers))
        self._mirror.apply((*outlived, *touched.providers), touched.loads)
        if self.name in touched.beats and self.name in self._shared.table.beats:
            self._beats.arrived(self._shared.table.beats[self.name])

    def _replaced(self, before: Table, touched: Touched) -> None:
        """Apply the difference to a new table."""
        self._members.reconcile()
        self._claims.reconcile(before)
        self._own.reread(tuple(touched.providers))
        self._mirror.apply(touched.providers, touched.loads)

    def _is_other(self, meta: bytes) -> bool:
        """Return whether a value of ``meta`` is of other data, or of another layout: the next session tells which."""
        try:
            value = layout.decode(meta, layout.MetaValue)
            return value.epoch != self._epoch or value.layout != layout.LAYOUT
        except layout.Foreign:
            return True

    # own state

    def _lease(self) -> int:
        return self._membership.lease

    def _member_lease(self) -> int:
        """The lease while this broker is a member; 0 otherwise."""
        return self._membership.lease if self.state is State.MEMBER else 0

    def _build_meta(self) -> Sequence[Unit]:
        """Create the deleted ``meta`` as it was. A new member would create it with another epoch, as if all data were
        lost."""
        if self._shared.table.meta is not None:
            return ()
        key = self._keys.meta
        value = layout.encode(layout.MetaValue(layout.LAYOUT, self._epoch))
        return [Unit((Put(key, value, 0),), (Compare("CREATE", key, 0),))]

    def _build_member(self) -> Sequence[Unit]:
        value = layout.member_value(self._members.here)
        return [Unit((Put(self._keys.member(self.name), value, self._lease()),))]

    def _own_sizes(self) -> tuple[int, int]:
        """Return the numbers of own providers and of their services."""
        sizes = self._registry.sizes()
        own = len(self._registry.services_of(BROKER))
        return (
            max(0, sizes["providers"] - len(self._mirror.shown)),
            max(0, sizes["services"] - self._mirror.services - own),
        )

    def _own_health(self) -> tuple[float | None, int, int]:
        return (self._beats.lag, *self._own_sizes())

    def _is_first(self) -> bool:
        return bool(self._shared.table.members) and min(self._shared.table.members) == self.name

    # ids

    def _known_ids(self) -> int:
        table = self._shared.table
        return max(table.ids, table.highest + 1, self._ids.highest)

    def _refill(self) -> None:
        if not self._filling and self._going:
            Deferred.fromCoroutine(self._fill(wait=False)).addErrback(self._unfilled)

    async def _fill(self, wait: bool) -> None:
        """Take blocks of ids. Without ``wait`` it goes on in the background, and a failure is no matter yet."""
        if self._filling or self._ids.complete or not self._lease():
            return
        self._filling = True
        try:
            if wait:
                await self._ids.fill(self._lease())
        finally:
            self._filling = False
        if not wait:
            self._filling = True
            Deferred.fromCoroutine(self._ids.fill(self._lease())).addErrback(self._unfilled).addBoth(self._filled)

    def _filled(self, _: object) -> None:
        self._filling = False

    def _unfilled(self, failure: Failure) -> None:
        if failure.check(EtcdError, CancelledError) is None:
            self.log.failure("cluster: a block of provider ids could not be taken", failure)

    # memory

    def _remember_ids(self, next: int, end: int, spare: tuple[int, int]) -> Any:
        return self._save(next_id=next, end_id=end, spare=spare)

    def _remember(self) -> None:
        self._save(
            instance=self._membership.instance,
            lease=self._membership.lease,
            epoch=self._epoch,
            revision=self._feed.revision,
        )

    def _save(self, **changes: Any) -> Any:
        new = attrs.evolve(self._remembered, **changes)
        if new == self._remembered:
            return None
        self._remembered = new
        return self._memory.save(new)

    def _remember_providers(self) -> None:
        """Keep the entries of the run before for the grace period."""
        self._own.remember()
        self._grace_timer = self._clock.callLater(self._settings.grace, self._own.forget)

    # begin and end

    def _without_etcd(self) -> None:
        self._patience = None
        if self._started is not None and self._ids.in_hand and not self._membership.waiting:
            self.log.warn("cluster: this broker starts without the cluster: {why}", why=self._trouble)
            self._begun()

    def _begun(self) -> None:
        started, self._started = self._started, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if started is not None:
            started.callback(None)

    def _applied(self) -> Deferred[None]:
        applied: Deferred[None] = Deferred()
        self._mirror.when_applied(lambda: applied.callback(None))
        return applied

    def _fail(self, error: ClusterFailed) -> None:
        self.state = State.FENCED
        self._trouble = str(error)
        self._halt()
        started, self._started = self._started, None
        if started is not None:
            started.errback(error)
        else:
            self._failed(error)

    def _defect(self, failure: Failure) -> None:
        if failure.check(CancelledError) and not self._going:
            return
        self.log.failure("cluster: the membership has failed", failure)
        self._fail(ClusterFailed(f"the membership has failed, by a defect: {failure.getErrorMessage()}"))

    def _halt(self) -> None:
        """End all parts, without I/O."""
        self._own.stop()
        self._loads.stop()
        self._publisher.pause()
        self._beats.stop()
        self._upkeep.stop()
        self._reopening.stop()
        self._feed.stop()
        self._mirror.stop()
        self._membership.leave()
        for timer in (self._grace_timer, self._patience):
            if timer is not None and timer.active():
                timer.cancel()
        self._grace_timer = self._patience = None

    async def _stop(self, keep: bool) -> None:
        # From now on the peers' departures are no changes of the farm: the stop causes them.
        self._own.stop()
        self._loads.stop()
        self._beats.stop()
        if keep and self.state is State.MEMBER:
            await self._flushed()
        member = self.state is State.MEMBER
        self.state = State.STOPPED
        self._halt()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self._ids.stop()
        if not keep:
            try:
                if member or self._membership.lease:
                    await self._membership.end()
            except EtcdError as error:
                self.log.info("cluster: the entries of this broker go after the TTL: {why}", why=str(error))
        self._remember()
        started, self._started = self._started, None
        if started is not None:
            started.errback(ClusterFailed("the broker is stopping"))

    def _flushed(self) -> Deferred[None]:
        """Fires when all changes are written, or after a while."""
        done: Deferred[None] = Deferred()

        def once(_: object = None) -> None:
            if not done.called:
                if limit.active():
                    limit.cancel()
                done.callback(None)

        limit = self._clock.callLater(FLUSH, once)
        self._publisher.idle().addCallback(once)
        return done
