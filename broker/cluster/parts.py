"""Parts of a member, joined: the calls from one part to another, and what they need of the membership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.cluster import layout
from broker.cluster.beats import Beats
from broker.cluster.claims import Claims
from broker.cluster.departed import Departed
from broker.cluster.etcd.interface import Compare, EtcdError, Put
from broker.cluster.feed import Feed
from broker.cluster.ids import Ids
from broker.cluster.kept import Kept
from broker.cluster.layout import Keys
from broker.cluster.loads import OwnLoads
from broker.cluster.members import Members
from broker.cluster.membership import Membership
from broker.cluster.mirror import Mirror, Shared
from broker.cluster.own import OwnProviders
from broker.cluster.publisher import Publisher, Unit
from broker.cluster.reopening import Reopening
from broker.cluster.settings import Environment
from broker.cluster.supply import Supply
from broker.cluster.table import Bad, Table, Touched
from broker.cluster.upkeep import Upkeep
from broker.core.model import BROKER

LEASE_ENDED = "the lease has ended"
"""Reason of an interruption."""


class Session(Protocol):
    """The side of the sessions for the parts; see `broker.cluster.sessions`."""

    def is_member(self) -> bool:
        """Return whether this broker is a member."""

    def going(self) -> bool:
        """Return whether the membership has not ended."""

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

    def replaced(self, before: Table, touched: Touched) -> None:
        """There is a new table."""


class Parts:
    """Parts of a member. ``session`` receives what concerns the session."""

    def __init__(self, environment: Environment, session: Session) -> None:
        etcd, registry, clock = environment.etcd, environment.registry, environment.clock
        settings, rng = environment.settings, environment.rng
        self.name = settings.name
        self._registry = registry
        self._session = session
        self._keys = keys = Keys(settings.farm)
        self.kept = kept = Kept(environment.memory)
        self.epoch = kept.saved.epoch
        """Epoch of etcd's data, as they were read last."""
        self.bad = Bad()
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
            name_key,
            settings.gather,
            lambda error: session.interrupt(str(error)),
            lambda: session.interrupt(LEASE_ENDED),
            lambda: self.reopening.begin(),
        )
        self.departed = Departed(clock, name, settings.ttl, lambda id: self.own.ended(id))
        self.mirror = Mirror(
            shared,
            registry,
            clock,
            name,
            lambda id: self.own.successor(id),
            self.departed.get,
            lambda id: self.own.is_ended(id),
        )
        mirrored = self.mirror.shown.__contains__
        self.own = OwnProviders(
            shared,
            registry,
            self.publisher,
            keys,
            name,
            self.lease,
            self.mirror.live,
            mirrored,
            self.departed,
            lambda: self.members.here.draining,
            self.mirror.show,
            clock,
            settings.load_interval,
        )
        self.loads = OwnLoads(
            shared, registry, clock, self.publisher, keys, name, settings.load_interval, self.lease, mirrored
        )
        self.beats = Beats(clock, self.publisher, keys, name, settings.beat, self.lease, self.own_sizes, session.silent)
        self.ids = Ids(etcd, clock, rng, keys, name_key, kept.saved, kept.ids, self._known_ids)
        self.supply = Supply(self.ids, self.lease, session.going)
        self.claims = Claims(shared, etcd, keys, name, self._member_lease, lambda: session.interrupt(LEASE_ENDED))
        self.feed = Feed(
            shared,
            etcd,
            clock,
            keys,
            name,
            settings.ttl,
            self.bad,
            session.changed,
            session.replaced,
            session.watch_ended,
        )
        self.feed.revision = kept.saved.revision
        self.reopening = Reopening(
            clock, rng, lambda: self.publisher.full, lambda: self.feed.watching, self.feed.reopen
        )
        self.upkeep = Upkeep(etcd, clock, lambda: self.feed.revision, self._is_first, self.remember)

    def lease(self) -> int:
        """Return the present lease, 0 without one."""
        return self.membership.lease

    def own_sizes(self) -> tuple[int, int]:
        """Return the numbers of own providers and of their services."""
        sizes = self._registry.sizes()
        own = len(self._registry.services_of(BROKER))
        return (
            max(0, sizes["providers"] - len(self.mirror.shown)),
            max(0, sizes["services"] - self.mirror.services - own),
        )

    def remember(self) -> None:
        """Keep name and lease, and the data of etcd that were read last."""
        self.kept.membership(self.membership.instance, self.membership.lease, self.epoch, self.feed.revision)

    def publish_meta(self) -> None:
        """Create the deleted ``meta`` as it was. A new member would create it with another epoch, as if all data were
        lost."""
        self.publisher.mark("meta", self._build_meta)

    def publish_member(self) -> None:
        """Write the key of this member again."""
        self.publisher.mark("member", self._build_member)

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
        self.membership.leave()

    # internal

    def _member_lease(self) -> int:
        """The lease while this broker is a member; 0 otherwise."""
        return self.membership.lease if self._session.is_member() else 0

    def _build_meta(self) -> Sequence[Unit]:
        if self.shared.table.meta is not None:
            return ()
        key = self._keys.meta
        return [Unit((Put(key, layout.meta_value(self.epoch), 0),), (Compare("CREATE", key, 0),))]

    def _build_member(self) -> Sequence[Unit]:
        value = layout.member_value(self.members.here)
        return [Unit((Put(self._keys.member(self.name), value, self.lease()),))]

    def _own_health(self) -> tuple[float | None, int, int]:
        return (self.beats.lag, *self.own_sizes())

    def _is_first(self) -> bool:
        members = self.shared.table.members
        return bool(members) and min(members) == self.name

    def _known_ids(self) -> int:
        table = self.shared.table
        return max(table.ids, table.highest + 1, self.ids.highest)
