"""Members: the brokers of the farm as known to this one, their states, and watchers of them.

Rules:
- The value of this member is the one that it publishes, also before the first join and while etcd is away.
- Watchers receive each change once, after the table has it.

Upkeep of etcd: compaction of its history, and a warning of a large database.

Rules:
- etcd keeps every write until it is compacted, and does not compact by itself unless it is configured to. The first
  member by name requests it every `INTERVAL` seconds, up to the revision of the last time: so a watch that was
  interrupted for less than that continues.
- A database of more than half of etcd's default quota is logged, once until it is smaller again.
- An error is harmless: another attempt follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.cluster.etcd.etcd_interface import EtcdError, IEtcd
from broker.cluster.layout import MAX_LISTENERS
from broker.cluster.mirror import Shared
from broker.cluster.owner_claims import Subscription
from broker.cluster.settings import ClusterSettings
from broker.core.cluster.cluster_interfaces import Member, MemberHealth
from broker.core.interfaces import IWait

Changed = Callable[[str, Member | None], None]


class Members:
    """Members of the farm. ``own`` returns lag, providers and services of this one."""

    log = Logger()

    def __init__(
        self, shared: Shared, settings: ClusterSettings, own: Callable[[], tuple[float | None, int, int]]
    ) -> None:
        self._shared = shared
        self._own = own
        self._here = Member(settings.name, "", settings.link, settings.key, {}, settings.version)
        self._known: dict[str, Member] = {}
        self._callbacks: dict[Subscription, object] = {}
        self.linked: Callable[[], Collection[str]] = tuple
        """Returns the names of the members with an open link."""
        self.alive: Callable[[], Collection[str]] = tuple
        """Returns the names of the members whose links show that they are alive."""

    def value(self, instance: str) -> Member:
        """Return the value of this member under an instance."""
        return attrs.evolve(self._here, instance=instance)

    def entered(self, instance: str) -> None:
        """Record the instance under which this member holds its name; links identify it by that."""
        if instance != self._here.instance:
            self._here = self.value(instance)
            self._notify(self._here.name, self._here)

    def describe(self, listeners: Mapping[str, str], draining: bool) -> bool:
        """Set the endpoints of this member, and whether it drains. Returns whether that is a change."""
        listeners = dict(list(listeners.items())[:MAX_LISTENERS])
        new = attrs.evolve(self._here, listeners=listeners, draining=draining)
        changed = new != self._here
        self._here = new
        if changed:
            self._notify(new.name, new)
        return changed

    @property
    def here(self) -> Member:
        """This member."""
        return self._here

    def members(self) -> Sequence[Member]:
        """Return all members in the order of their names."""
        others = {name: entry.member for name, entry in self._shared.table.members.items()}
        others[self._here.name] = self._here
        return [others[name] for name in sorted(others)]

    def member(self, name: str) -> Member | None:
        """Return the member of that name."""
        if name == self._here.name:
            return self._here
        entry = self._shared.table.members.get(name)
        return None if entry is None else entry.member

    def watch(self, changed: Changed) -> IWait:
        """See `IMembers.watch_members`."""
        return Subscription(self._callbacks, changed)

    def health(self) -> Sequence[MemberHealth]:
        """Return the state of all members."""
        found, linked = [], self.linked()
        for member in self.members():
            if member.name == self._here.name:
                lag, providers, services = self._own()
                found.append(MemberHealth(member, True, False, lag, providers, services))
            else:
                beat = self._shared.table.beats.get(member.name)
                lag, providers, services = (None, 0, 0) if beat is None else (beat.lag, beat.providers, beat.services)
                found.append(MemberHealth(member, False, member.name in linked, lag, providers, services))
        return found

    def touched(self, names: Iterable[str]) -> None:
        """Take note of changes of the table."""
        for name in names:
            if name == self._here.name:
                continue
            entry = self._shared.table.members.get(name)
            now = None if entry is None else entry.member
            if now == self._known.get(name):
                continue
            if now is None:
                del self._known[name]
            else:
                self._known[name] = now
            self._notify(name, now)

    def reconcile(self) -> None:
        """Take note of another table."""
        self.touched({**self._known, **self._shared.table.members})

    def _notify(self, name: str, member: Member | None) -> None:
        for callback in tuple(self._callbacks.values()):
            try:
                callback(name, member)  # type: ignore[operator]
            except Exception:
                self.log.failure("cluster: a watcher of members failed")


INTERVAL = 300.0
"""Seconds between two compactions: at 100 changes/s some 4 MB of history."""

HALF = 1_073_741_824
"""Half of etcd's default quota, in bytes."""


class Upkeep:
    """Upkeep by one member.

    ``revision`` returns the last revision that was read, ``first`` returns True if this member is the first by name,
    ``each`` is called at each interval.
    """

    log = Logger()

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        revision: Callable[[], int],
        first: Callable[[], bool],
        each: Callable[[], None],
    ) -> None:
        self._etcd = etcd
        self._clock = clock
        self._revision = revision
        self._first = first
        self._each = each
        self._before = 0
        self._timer: IDelayedCall | None = None
        self._large = False
        self.size = 0
        """Size of etcd's database in bytes, 0 if it is unknown."""
        self.compactions = 0

    def start(self) -> None:
        """Begin. No-op if it has begun."""
        if self._timer is None:
            self._run()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _run(self) -> None:
        self._timer = self._clock.callLater(INTERVAL, self._run)
        self._each()
        Deferred.fromCoroutine(self._attend()).addErrback(
            lambda failure: self.log.failure("cluster: the upkeep of etcd failed", failure)
        )

    async def _attend(self) -> None:
        before, self._before = self._before, self._revision()
        try:
            status = await self._etcd.status()
            self.size = status.size
            if status.size >= HALF and not self._large:
                self.log.warn(
                    "cluster: the database of etcd has {size} MB, and etcd refuses all writes at its quota, by default "
                    "2,147 MB: compact and defragment it, or raise the quota",
                    size=status.size // 1_000_000,
                )
            self._large = status.size >= HALF
            if before > 0 and self._first():
                await self._etcd.compact(before)
                self.compactions += 1
        except EtcdError as error:
            self.log.info("cluster: the upkeep of etcd is tried again later: {why}", why=str(error))
