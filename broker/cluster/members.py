"""Members: the brokers of the farm as they are known here, their state, and watchers of them.

Rules:
- The value of this member is the one that it publishes, also before the first join and while etcd is away.
- Watchers receive each change once, after the table has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs
from twisted.logger import Logger

from broker.cluster.claims import Subscription
from broker.cluster.layout import MAX_LISTENERS
from broker.cluster.mirror import Shared
from broker.cluster.settings import ClusterSettings
from broker.core.cluster.interfaces import Member, MemberHealth
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

    def value(self, instance: str) -> Member:
        """Return the value of this member under an instance."""
        return attrs.evolve(self._here, instance=instance)

    def entered(self, instance: str) -> None:
        """Take note that this member holds its name under an instance; links identify it by that."""
        if instance != self._here.instance:
            self._here = self.value(instance)
            self._tell(self._here.name, self._here)

    def describe(self, listeners: Mapping[str, str], draining: bool) -> bool:
        """Set the endpoints of this member, and whether it drains. Returns whether that is a change."""
        listeners = dict(list(listeners.items())[:MAX_LISTENERS])
        new = attrs.evolve(self._here, listeners=listeners, draining=draining)
        changed = new != self._here
        self._here = new
        if changed:
            self._tell(new.name, new)
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

    def health(self, linked: Collection[str]) -> Sequence[MemberHealth]:
        """Return the state of all members; ``linked`` are those with an open link."""
        found = []
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
            self._tell(name, now)

    def reconcile(self) -> None:
        """Take note of another table."""
        self.touched({**self._known, **self._shared.table.members})

    def _tell(self, name: str, member: Member | None) -> None:
        for callback in tuple(self._callbacks.values()):
            try:
                callback(name, member)  # type: ignore[operator]
            except Exception:
                self.log.failure("cluster: a watcher of members failed")
