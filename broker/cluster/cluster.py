"""Cluster: this broker as a member of a farm, for the rest of the daemon.

`broker.cluster.member_sessions` has the states of the membership, the parts of this package and what joins them.

Rules:
- Nothing is removed from the registry because etcd is away: the table stays as it was read last.
- Time and chance come from the environment, and nothing depends on the time of day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.defer import TimeoutError as Timeout
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.cluster.etcd.etcd_interface import EtcdError
from broker.cluster.member_sessions import Sessions, State
from broker.cluster.settings import ClusterFailed, Environment
from broker.core.cluster.cluster_interfaces import IMembers, IQueueOwners, Member, MemberHealth, QueueClaim
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import NotReady

CONSISTENT = 3.0
"""Limit in seconds for a consistent request: longer than a change of etcd's leader takes."""

MAX_DIGITS = 19
"""Digits of a revision of etcd, which has 63 bits."""

FLUSH = 2.0
"""Limit in seconds for writing the last changes at the stop."""


@implementer(IMembers, IQueueOwners)
class Cluster:
    """Membership of this broker in a farm: `IMembers` and `IQueueOwners`.

    ``failed`` is called after the start if this broker may not remain a member.
    """

    log = Logger()

    clustered = True

    def __init__(self, environment: Environment, failed: Callable[[ClusterFailed], None]) -> None:
        self.name = environment.settings.name
        self._clock = environment.clock
        self._sessions = Sessions(environment, failed)
        self._parts = self._sessions.parts

    @property
    def state(self) -> State:
        """State of the membership."""
        return self._sessions.state

    # start and stop

    def next_id(self) -> int:
        """Return an id for a provider, unique in the farm. Raises `Refusal` UNAVAILABLE if none is in hand."""
        return self._parts.ids.next_id()

    def start(self, patience: float = 5.0) -> Deferred[None]:
        """Join the farm. Fires when this broker is a member and its own entries are written; or after ``patience``
        seconds if etcd cannot be reached and provider ids are in hand. Fails with `ClusterFailed`, or with
        CancelledError if `stop` comes first."""
        return self._sessions.start(patience)

    def stop(self, keep: bool) -> Deferred[None]:
        """End the membership. With ``keep`` the entries stay until the TTL, for a restart; otherwise they go at once.
        Idempotent; fires when that is done, and never fails."""
        if self.state is State.STOPPED:
            return maybeDeferred(lambda: None)
        return Deferred.fromCoroutine(self._stop(keep)).addErrback(
            lambda failure: self.log.failure("cluster: the end of the membership failed", failure)
        )

    def follow_links(self, linked: Callable[[], Collection[str]], alive: Callable[[], Collection[str]]) -> None:
        """Follow the links to other brokers: these functions return the names of those with an open one, and of those
        that are alive, as far as the links show."""
        self._parts.members.linked, self._parts.members.alive = linked, alive

    def has_entries(self) -> bool:
        """Return True if own providers are in the registry, live ones or departed ones."""
        return self._parts.own_sizes()[0] > 0 or self._parts.own.departing > 0

    # IMembers

    def members(self) -> Sequence[Member]:
        return self._parts.members.members()

    def member(self, name: str) -> Member | None:
        return self._parts.members.member(name)

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        return self._parts.members.watch(changed)

    def health(self) -> Sequence[MemberHealth]:
        return self._parts.members.health()

    def describe(self, listeners: Mapping[str, str], draining: bool) -> None:
        if self._parts.members.describe(listeners, draining):
            # A broker that sees the endpoints has seen the claims of the queues on the disk of this one.
            self._parts.claims.settled().addCallback(lambda _: self._parts.publish_member())

    def written(self) -> Deferred[str]:
        parts = self._parts
        written = self._within(parts.publisher.idle, lambda: not parts.publisher.pending)
        return written.addCallback(lambda _: f"{parts.epoch}-{max(parts.publisher.written, parts.feed.revision)}")

    def caught_up(self, after: str = "") -> Deferred[None]:
        epoch, _, number = after.rpartition("-")
        if after and not (epoch and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS):
            return fail(Refusal(Reason.PARAMETER, "that is no revision: the answer of a consistent PUT has one"))
        # The revisions of other data of etcd, from before a loss, say nothing: all that is there now has to be read.
        known = int(number) if epoch == self._parts.epoch else None
        return self._within(lambda: Deferred.fromCoroutine(self._catch_up(known)), lambda: True)

    def obstacles(self) -> Sequence[NotReady]:
        record = self._parts.record
        if not record.serving or record.age is not None or self.state in (State.FENCED, State.STOPPED):
            return []
        reason = (
            f"the cluster cannot be reached: {self._sessions.trouble}. The services of the other brokers are unknown: "
            "they have not been read since the start, and there is no record of them"
        )
        return [NotReady("cluster", reason)]

    def degradations(self) -> Sequence[NotReady]:
        found = []
        record = self._parts.record
        if self.state in (State.JOINING, State.AWAY):
            known = "Known services are found"
            if record.serving and record.age is not None:
                known = f"Services of other brokers are found as restored, as of {record.age:.0f} s before the start"
            reason = self._parts.membership.waiting or (
                f"the cluster cannot be reached: {self._sessions.trouble}. {known}, and services that "
                "register here are found at the other brokers later"
            )
            found.append(NotReady("cluster", reason))
        elif self.state is State.FENCED:
            found.append(NotReady("cluster", self._sessions.trouble))
        if self._parts.publisher.full:
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
            "cluster.transactions": self._parts.publisher.transactions,
            "cluster.operations": self._parts.publisher.operations,
            "cluster.refused": self._parts.publisher.refused,
            "cluster.events": self._parts.feed.events,
            "cluster.resyncs": self._parts.feed.resyncs,
            "cluster.resumed": self._parts.feed.resumed,
            "cluster.sessions": self._sessions.count,
            "cluster.lost-leases": self._sessions.losses,
            "cluster.repairs": self._parts.own.repairs,
            "cluster.bad-values": self._parts.bad.count,
            "cluster.compactions": self._parts.upkeep.compactions,
            "cluster.database_bytes": self._parts.upkeep.size,
            "cluster.left-out": self._parts.left_out,
        }

    # IQueueOwners

    def claim(self, space: str, name: str, lasting: bool = False, shared: bool = False) -> Deferred[QueueClaim]:
        return self._parts.claims.claim(space, name, lasting, shared)

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        return self._parts.claims.claim_of(space, name)

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        return self._parts.claims.claims()

    def release(self, space: str, name: str) -> Deferred[None]:
        return self._parts.claims.release(space, name)

    def watch_claims(self, changed: Callable[[str, str, QueueClaim | None], None]) -> IWait:
        return self._parts.claims.watch(changed)

    # internal

    async def _catch_up(self, revision: int | None) -> None:
        if revision is None:
            revision = await self._sessions.present_revision()
        await self._parts.feed.reached(revision)
        if self._parts.feed.revision < revision:
            # Without space, a watch that has ended is replaced within the session.
            raise Refusal(Reason.UNAVAILABLE, "the watch of etcd has ended")
        applied: Deferred[None] = Deferred()
        self._parts.mirror.when_applied(lambda: applied.callback(None))
        await applied

    def _within(self, wait: Callable[[], Deferred[None]], done: Callable[[], bool]) -> Deferred[None]:
        """Return the end of a wait: a failure UNAVAILABLE if it takes `CONSISTENT` seconds, or is not ``done``."""

        def ended(_: object) -> None:
            if self.state is not State.MEMBER or not done():
                raise Refusal(Reason.UNAVAILABLE, "etcd cannot be reached")

        def failed(failure: Failure) -> None:
            failure.trap(Timeout, EtcdError)
            raise Refusal(Reason.UNAVAILABLE, f"the cluster did not answer within {CONSISTENT:g} s")

        if self.state is not State.MEMBER:
            return fail(Refusal(Reason.UNAVAILABLE, "etcd cannot be reached"))
        return wait().addTimeout(CONSISTENT, self._clock).addCallbacks(ended, failed)

    async def _stop(self, keep: bool) -> None:
        # From now on the peers' departures are no changes of the farm: the stop causes them.
        self._parts.own.begin_stop()
        self._parts.loads.stop()
        self._parts.beats.stop()
        if keep and self.state is State.MEMBER:
            await self._flushed()
        member = self.state is State.MEMBER
        self._sessions.stop()
        self._parts.ids.stop()
        if not keep:
            try:
                if member or self._parts.membership.lease:
                    await self._parts.membership.end()
            except EtcdError as error:
                self.log.info("cluster: the entries of this broker go after the TTL: {why}", why=str(error))
        self._parts.remember()
        self._sessions.end_start()

    def _flushed(self) -> Deferred[None]:
        """Fires when all changes are written, or after a while."""
        done: Deferred[None] = Deferred()

        def once(_: object = None) -> None:
            if not done.called:
                if limit.active():
                    limit.cancel()
                done.callback(None)

        limit = self._clock.callLater(FLUSH, once)
        self._parts.publisher.idle().addCallback(once)
        return done
