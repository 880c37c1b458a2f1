"""Sessions of a member: the states of its membership, and the steps from one to the next.

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
- A session that cannot write the key, since etcd has no space, reads all keys instead. Without a lease there is no
  session then, but the keys of the others are read and watched all the same.
- Loads and beats wait for the watch, too, though nothing in the table decides them: that takes some milliseconds, or
  `SILENCE` at most, the others keep the last loads meanwhile, and what is written has one order.
- Credentials that are refused end the start; later, they are a trouble.

The file is longer than others: the steps between the states call all parts of a member, and these call the steps.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import attrs
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Compare, Denied, EtcdError, NoSpace, Put
from broker.cluster.ids import IdPrefetch, Ids
from broker.cluster.key_table import Bad, Table, Touched
from broker.cluster.layout import Keys
from broker.cluster.loads import OwnLoads
from broker.cluster.members import Members, Upkeep
from broker.cluster.membership import LOOK, Membership, SavedMembership
from broker.cluster.mirror import Mirror, Shared
from broker.cluster.owner_claims import Claims
from broker.cluster.publisher import Publisher, Unit
from broker.cluster.record import Record
from broker.cluster.registrations import Registrations
from broker.cluster.settings import DENIED_RETRY, SESSION_RETRY, SESSION_STABLE, SILENCE, ClusterFailed, Environment
from broker.cluster.watch_feed import Feed, Reopening, WatchHeartbeat
from broker.core.cluster.cluster_interfaces import Key, Registration
from broker.core.rates import LogLimit

# Parts of a member, joined: the calls from one part to another, and what they need of the membership.

LEASE_ENDED = "the lease has ended"
"""Reason of an interruption."""

ADOPTED_WITHIN = 30.0
"""Seconds for which the others wait for the listeners of an adopted broker that has joined: it publishes none where all
of them are on loopback, and its claims take a second or two."""


class Session(Protocol):
    """The side of the sessions for the parts."""

    def is_member(self) -> bool:
        """Return True if this broker is a member."""

    def going(self) -> bool:
        """Return True if the membership has not ended."""

    def is_doubtful(self) -> bool:
        """Return True while leases of other members may end because of an interruption that this one shares."""

    def interrupt(self, reason: str) -> None:
        """End the present session."""

    def lease_lost(self) -> None:
        """The lease has ended."""

    def renewed(self, error: EtcdError | None) -> None:
        """The lease was renewed, or not."""

    def silent(self) -> None:
        """The watch is dead, although it is open."""

    def watch_ended(self, text: str) -> None:
        """The watch has ended."""

    def changed(self, touched: Touched) -> None:
        """The watch has changed the table."""

    def differing(self, touched: Touched) -> None:
        """A new table has other registrations and loads."""

    def replaced(self, before: Table) -> None:
        """There is a new table, and all that differs has been passed on."""


class Parts:
    """Parts of a member. ``session`` receives what concerns the session."""

    def __init__(self, environment: Environment, session: Session) -> None:
        etcd, registry, clock = environment.etcd, environment.registry, environment.clock
        settings, rng, turns = environment.settings, environment.rng, environment.turns
        self.name = settings.name
        self._registry = registry
        self._session = session
        self._keys = keys = Keys(settings.farm)
        self.meta_key = keys.meta
        self.kept = kept = SavedMembership(environment.memory)
        self.epoch = kept.saved.epoch
        """Epoch of etcd's data, as they were read last."""
        self.bad = Bad()
        self._restoring = False
        """True while `publish_restored` is still to be written."""
        name, name_key = settings.name, keys.member(settings.name)
        shared = self.shared = Shared(Table(keys, self.bad))
        self.members = Members(shared, settings, self._own_health)
        self.membership = Membership(
            etcd,
            clock,
            rng,
            keys,
            name,
            settings.ttl,
            self.members.value,
            kept.saved.instance,
            kept.saved.lease,
            session.lease_lost,
            session.renewed,
        )
        self.publisher = Publisher(
            etcd,
            clock,
            turns,
            name_key,
            settings.gather,
            lambda error: session.interrupt(str(error)),
            lambda: session.interrupt(LEASE_ENDED),
            lambda: self.reopening.begin(),
            lambda: self.own.lost_touch(),
        )
        self.mirror = Mirror(shared, registry, clock, turns, name, lambda: self.own)
        self.own = Registrations(
            shared,
            registry,
            self.publisher,
            keys,
            name,
            clock,
            settings.ttl,
            settings.load_interval,
            self.lease,
            lambda: self.members.here.draining,
            self._show,
        )
        self.loads = OwnLoads(
            shared, registry, clock, self.publisher, keys, name, settings.load_interval, self.lease, self._is_mirrored
        )
        self.beats = WatchHeartbeat(
            clock, self.publisher, keys, name, settings.beat, self.lease, self.own_sizes, session.silent
        )
        self.ids = Ids(etcd, clock, rng, keys, name_key, kept.saved, kept.ids, self._known_ids)
        self.prefetch = IdPrefetch(self.ids, self.lease, session.going)
        self.claims = Claims(
            shared,
            etcd,
            keys,
            name,
            self._member_lease,
            lambda: session.interrupt(LEASE_ENDED),
            lambda revision: self.feed.reached(revision),
            lambda: self.feed.revision,
        )
        self.record = Record(shared, registry, clock, turns, name, environment.memory)
        self.feed = Feed(
            shared,
            etcd,
            clock,
            turns,
            keys,
            name,
            settings.ttl,
            self.bad,
            session.changed,
            session.differing,
            session.replaced,
            session.watch_ended,
            session.is_doubtful,
            self.record.held,
            lambda: self.members.alive(),
            lambda: self.beats.awake,
        )
        self.feed.revision = kept.saved.revision
        self.reopening = Reopening(
            clock, rng, lambda: self.publisher.full, lambda: self.feed.watching, self.feed.reopen
        )
        self.upkeep = Upkeep(etcd, clock, lambda: self.feed.revision, self._is_first, self.remember)

    async def adopt(self) -> None:
        """Write the registrations from before this broker was a member, so that all members find them for the grace."""
        for each in self._registry.remembered():
            self.publisher.mark(("s", each.key), partial(self._build_adopted, each))
        # The key of this member has just been created.
        self.publisher.full = False
        self.publisher.resume(self.membership.lease, self.membership.revision)
        await self.publisher.idle()
        self.publisher.pause()

    def _show(self, keys: Iterable[Key]) -> None:
        self.mirror.apply_soon(keys)
        self.record.note(keys)

    def lease(self) -> int:
        """Return the present lease, 0 without one."""
        return self.membership.lease

    @property
    def left_out(self) -> int:
        """Number of services of other brokers that are not found, since there are too many."""
        count: int = self._registry.left_out
        return count

    def own_sizes(self) -> tuple[int, int]:
        """Return the numbers of own providers and of their services."""
        sizes: tuple[int, int] = self._registry.own_sizes()
        return sizes

    def remember(self) -> None:
        """Keep name and lease, and the data of etcd that were read last."""
        self.kept.membership(self.membership.instance, self.membership.lease, self.epoch, self.feed.revision)

    def publish_meta(self) -> None:
        """Create the deleted ``meta`` as it was. A new member would create it with another epoch, as if all data were
        lost."""
        self.publisher.mark("meta", self._build_meta)

    def publish_member(self) -> None:
        """Write the key of this member again, together with what `publish_restored` has marked."""
        self.publisher.mark("member", self._build_restored if self._restoring else self._build_member)

    def is_published(self) -> bool:
        """Return False if another program has overwritten the key of this member."""
        entry = self.shared.table.members.get(self.name)
        return entry is not None and entry.member.instance == self.members.here.instance

    def publish_restored(self) -> None:
        """Write in the key of this member that all its registrations are written, after what is marked now."""
        if not self.membership.restored:
            self._restoring = True
            self.publisher.mark("member", self._build_restored, last=True)

    def stop(self) -> None:
        """End all parts, without I/O."""
        self.own.stop()
        self.loads.stop()
        self.publisher.pause()
        self.beats.stop()
        self.upkeep.stop()
        self.reopening.stop()
        self.feed.stop()
        self.mirror.stop()
        self.record.stop()
        self.membership.leave()

    # internal

    def _member_lease(self) -> int:
        """The lease while this broker is a member; 0 otherwise."""
        return self.membership.lease if self._session.is_member() else 0

    def _is_mirrored(self, id: int) -> bool:
        return self._registry.holder(id) not in (None, "")

    def _build_meta(self) -> Unit | None:
        if self.shared.table.meta is not None:
            return None
        key = self._keys.meta
        return Unit(Put(key, layout.meta_value(self.epoch), 0), Compare("CREATE", key, 0))

    def _build_adopted(self, registration: Registration) -> Unit:
        key = self._keys.registration(registration.key)
        value = layout.registration_value(registration, self.name)
        return Unit(Put(key, value, self.lease()), Compare("CREATE", key, 0))

    def _build_member(self, restored: bool = False) -> Unit:
        value = layout.member_value(self.members.here, restored or self.membership.restored)
        return Unit(Put(self._keys.member(self.name), value, self.lease()))

    def _build_restored(self) -> Unit:
        def done(revision: int, held: bool) -> None:
            self.membership.restored, self._restoring = True, False

        return attrs.evolve(self._build_member(True), done=done)

    def _own_health(self) -> tuple[float | None, int, int]:
        return (self.beats.lag, *self.own_sizes())

    def _is_first(self) -> bool:
        members = self.shared.table.members
        return bool(members) and min(members) == self.name

    def _known_ids(self) -> int:
        table = self.shared.table
        return max(table.ids, table.highest + 1, self.ids.highest)


class State(enum.Enum):
    """State of the membership; see the module."""

    JOINING = "joining"
    MEMBER = "member"
    AWAY = "away"
    FENCED = "fenced"
    STOPPED = "stopped"


class Sessions:
    """Sessions of a member, with its parts; `Session`. The arguments are those of
    `broker.cluster.cluster.Cluster`.

    ``count`` is the number of sessions so far, ``losses`` that of leases that ended meanwhile; ``trouble`` says why
    this broker is no member.
    """

    log = Logger()

    def __init__(self, environment: Environment, failed: Callable[[ClusterFailed], None]) -> None:
        self.state = State.JOINING
        self.trouble = "etcd has not answered yet"
        self.count = 0
        self.losses = 0
        self._name = environment.settings.name
        self._etcd = environment.etcd
        self._clock = environment.clock
        self._turns = environment.turns
        self._rng = environment.rng
        self._failed = failed
        self._keys_lost = False
        """True from the loss of the lease until all keys are read again; so the others' may have ended meanwhile."""
        self._leaseless = False
        """True from the loss of the lease until the next one, once all keys have been read for want of space."""
        self._single = False
        """True for a broker that has not been a member before, until its registrations of that time are in etcd."""
        self._data_lost = False
        """True from the notice of a loss of etcd's data until all has been read again."""
        self._logged: LogLimit[str] = LogLimit(environment.clock)
        self._interruption: Deferred[str] | None = None
        self._interrupted = ""
        self._started: Deferred[None] | None = None
        self._running: Deferred[None] | None = None
        self._patience: IDelayedCall | None = None
        self.parts = Parts(environment, self)
        self._single = not self.parts.epoch
        self._awaited = environment.settings.adopts if self._single else ""
        """A broker that ran alone and has not joined yet."""

    # begin and end

    def start(self, patience: float) -> Deferred[None]:
        """See `broker.cluster.cluster.Cluster.start`."""
        if self.state is State.STOPPED:  # while the embedded etcd was being started
            return fail(CancelledError())
        started = self._started = Deferred(lambda _: None)
        self._patience = self._clock.callLater(patience, self._without_etcd)
        self._running = Deferred.fromCoroutine(self._run()).addErrback(self._defect)
        return started

    def halt(self) -> None:
        """End all parts, without I/O."""
        self.parts.stop()
        if self._patience is not None and self._patience.active():
            self._patience.cancel()
        self._patience = None

    def stop(self) -> None:
        """Begin no further session, and end the present one."""
        self.state = State.STOPPED
        self.halt()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    def end_start(self) -> None:
        """Cancel a start that has not ended, after `stop`."""
        started, self._started = self._started, None
        if started is not None:
            started.cancel()

    # sessions

    async def _run(self) -> None:
        failures = 0
        if self.parts.ids.in_hand:
            await self.parts.ids.prepare()
        while self.going():
            since = self._clock.seconds()
            retry = SESSION_RETRY
            try:
                self.trouble = await self._session()
                if self._clock.seconds() - since >= SESSION_STABLE:
                    failures = 0
            except ClusterFailed as error:
                self._fail(error)
                return
            except Denied as error:
                if self._started is not None:
                    self._fail(ClusterFailed(f"etcd refuses this broker: {error}"))
                    return
                self.trouble, retry = str(error), DENIED_RETRY
            except NoSpace as error:
                self.trouble = f"etcd has no space: {error}"
            except EtcdError as error:
                self.trouble = str(error)
            if self.count == 0:
                self._start_interrupted()
            self.parts.beats.stop()
            self.parts.publisher.pause()
            if not self.going():
                return
            if self.state is State.MEMBER:
                self.state = State.AWAY
                self.log.warn("cluster: the connection to the cluster is lost: {why}", why=self.trouble)
            failures += 1
            await deferLater(self._clock, retry.after(failures, self._rng.random()))

    def is_member(self) -> bool:
        return self.state is State.MEMBER

    def going(self) -> bool:
        return self.state not in (State.FENCED, State.STOPPED)

    def is_doubtful(self) -> bool:
        return self._keys_lost or self.parts.membership.is_doubtful()

    async def _session(self) -> str:
        """Be a member until something interrupts that. Returns the reason."""
        self._interrupted = ""
        parts = self.parts
        database = await parts.membership.database(parts.epoch, parts.feed.revision, parts.ids.initial)
        if database.replaced:
            self.log.warn("cluster: the data of etcd were replaced or lost: all is written again")
            parts.ids.discard()
        resume = not database.replaced and bool(parts.membership.lease)
        try:
            same = await parts.membership.enter(resume)
        except NoSpace as error:
            parts.publisher.no_space(str(error))
            if not database.replaced:
                await parts.feed.start(database, not self._leaseless)
                self._leaseless = True
            raise
        self._leaseless = False
        parts.members.entered(parts.membership.instance)
        if not self.going():
            return "stopped"
        parts.epoch, self._data_lost = database.epoch, self._data_lost or database.replaced
        if not same:
            self.losses += self.count > 0
            self._keys_lost = True
            parts.claims.lost()
        parts.remember()
        try:
            await parts.prefetch.fill(wait=not parts.ids.ready)
        except NoSpace:
            if not parts.ids.in_hand:  # those from before the start
                raise
        first = self.count == 0
        adopts = self._single
        if adopts:
            # A watch from before this session, without space, would take them for keys without a session.
            parts.feed.close()
            await parts.adopt()
            if parts.publisher.pending:
                return self._interrupted or "etcd has no space"
            self._single = False
        # The session in which the loss was noticed may have been interrupted before this.
        replaced, lost = self._data_lost, self._keys_lost
        whole = lost or not parts.membership.written
        await parts.feed.start(attrs.evolve(database, replaced=replaced), whole)
        await self._caught_up()
        if not self.going():
            return "stopped"
        await self._adopted()
        if not self.going():
            return "stopped"
        if self._interrupted:
            return self._interrupted
        if first and (same or adopts):
            parts.own.remember()
        await self._turns.run(parts.own.reconcile((lost or replaced) and not adopts))
        if not self.going():
            return "stopped"
        if self._interrupted:
            return self._interrupted
        self._data_lost = self._keys_lost = False
        parts.publisher.resume(parts.membership.lease, parts.membership.revision)
        parts.loads.reconcile()
        parts.publish_restored()
        parts.beats.start()
        if not parts.ids.complete:
            parts.prefetch.refill()
        self.count += 1
        if self._started is not None:
            await parts.publisher.idle()
            await self._applied()
        if not self.going():
            return "stopped"
        if not self._interrupted:
            if self.state is not State.MEMBER:
                self.log.info("cluster: this broker is a member, as {name}", name=self._name)
            self.state = State.MEMBER
            parts.upkeep.start()
            self._begun()
            self._interruption = Deferred()
            await self._interruption
        return self._interrupted

    async def _caught_up(self) -> None:
        """Wait until the table has the write of the member's key by this session. A watch that does not bring it within
        `SILENCE` seconds is dead, or has too much to bring: the next session reads all keys."""

        def late() -> None:
            self.parts.feed.outpaced()
            self.silent()

        limit = self._clock.callLater(SILENCE, late)
        try:
            await self.parts.feed.reached(self.parts.membership.revision)
        finally:
            if limit.active():
                limit.cancel()

    async def _adopted(self) -> None:
        """Wait until the broker that ran alone has published its listeners, or had the time for it: before that, it
        claims its queues, which clients would otherwise request here."""
        joined_at: float | None = None
        while self._awaited and self.going() and not self._interrupted:
            found = self.parts.shared.table.members.get(self._awaited)
            if found is not None:
                joined_at = self._clock.seconds() if joined_at is None else joined_at
                if found.member.listeners or self._clock.seconds() - joined_at >= ADOPTED_WITHIN:
                    self._awaited = self.parts.membership.waiting = ""
                    return
            waiting = f"the broker {self._awaited}, which this cluster adopts, has not joined it yet"
            self.parts.membership.waiting = waiting
            await deferLater(self._clock, LOOK)

    def interrupt(self, reason: str) -> None:
        if not self._interrupted:
            self._interrupted = reason
        self.parts.publisher.pause()
        waiting, self._interruption = self._interruption, None
        if waiting is not None:
            waiting.callback(reason)

    def watch_ended(self, text: str) -> None:
        if self.parts.publisher.full and self._interruption is not None and self.parts.feed.complete:
            # The next session would read all keys, since it cannot write.
            self.parts.reopening.ended()
        else:
            self.interrupt(text)

    def silent(self) -> None:
        self.log.warn("cluster: the watch of etcd is silent; the next endpoint is used")
        self._etcd.change_endpoint()
        self.interrupt("the watch of etcd was silent")
        self.parts.feed.close()

    def lease_lost(self) -> None:
        self.interrupt(LEASE_ENDED)

    def renewed(self, error: EtcdError | None) -> None:
        if error is not None and self.state is State.MEMBER:
            self.log.info("cluster: the lease was not renewed: {why}", why=str(error))

    # changes of the table

    def changed(self, touched: Touched) -> None:
        """Apply changes of the watch."""
        parts = self.parts
        parts.reopening.heard()
        if touched.meta:
            table = parts.shared.table
            if table.meta is None:
                if self._logged.due("meta"):
                    self.log.warn("cluster: another program deleted the key meta of etcd: it is written again")
                parts.publish_meta()
            elif not table.has_epoch(parts.epoch):  # or of another layout: the next session finds out which
                self.interrupt("the data of etcd were replaced")
        if self._name in touched.members and not parts.is_published():
            parts.publish_member()
        parts.members.touched(touched.members)
        parts.claims.touched(touched.claims)
        # Most messages have beats only.
        if touched.registrations or touched.loads:
            parts.own.touched(touched.registrations)
            parts.mirror.apply(touched.registrations, touched.loads)
            parts.record.note(touched.registrations)
        if self._name in touched.beats:
            parts.beats.arrived(touched.beats[self._name])

    def differing(self, touched: Touched) -> None:
        """Apply a part of the difference to a new table."""
        self.parts.mirror.apply(touched.registrations, touched.loads)
        self.parts.record.note(touched.registrations)

    def replaced(self, before: Table) -> None:
        """Apply the rest of a new table."""
        self.parts.members.reconcile()
        self.parts.claims.reconcile(before)
        self.parts.mirror.when_applied(self.parts.record.read)

    async def present_revision(self) -> int:
        """Return the present revision of etcd, by a linearizable read. Fails as `IEtcd` does."""
        return (await self._etcd.range(self.parts.meta_key)).revision

    # the start

    def _without_etcd(self) -> None:
        self._patience = None
        if self._started is not None and self.parts.ids.in_hand and not self.parts.membership.waiting:
            self.log.warn("cluster: this broker starts without the cluster: {why}", why=self.trouble)
            self._start_interrupted()
            self._begun()

    def _start_interrupted(self) -> None:
        """Etcd is away at the start: the others may have lost their leases, too, and the record is what is known."""
        self.parts.membership.interrupted()
        self.parts.record.holding = self.parts.record.serving

    def _begun(self) -> None:
        started, self._started = self._started, None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if started is not None:
            started.callback(None)

    def _applied(self) -> Deferred[None]:
        applied: Deferred[None] = Deferred()
        self.parts.mirror.when_applied(lambda: applied.callback(None))
        return applied

    def _fail(self, error: ClusterFailed) -> None:
        self.state = State.FENCED
        self.trouble = str(error)
        self.halt()
        started, self._started = self._started, None
        if started is not None:
            started.errback(error)
        else:
            self._failed(error)

    def _defect(self, failure: Failure) -> None:
        if failure.check(CancelledError) and not self.going():
            return
        self.log.failure("cluster: the membership has failed", failure)
        self._fail(ClusterFailed(f"the membership has failed, by a defect: {failure.getErrorMessage()}"))
