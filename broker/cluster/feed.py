"""Feed: keeps the table of etcd's keys up to date, from pages of a range and from a watch.

Rules:
- A resynchronisation reads all keys in pages at one revision into a new table, with a turn of the reactor between two
  pages. The new table takes the place of the old one at once, and the watch begins at the next revision; the
  difference goes to the registry in slices. So the registry is never empty in between.
- If that revision is compacted in the meantime, the resynchronisation begins again.
- A watch that has ended continues at the next revision, if the data of etcd are the same and the revision is close;
  otherwise all is read again. So it is after the lease was lost: what is written then depends on the others' keys.
- Events of one message are applied together.
- If the data of etcd were lost, the other members' entries are held until the watch has been open for `HOLD` TTLs:
  these members need a moment to write them again. The time begins again with each watch, since etcd that this member
  cannot reach may be away for the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from broker.cluster.etcd.interface import (
    Compacted,
    Ended,
    EtcdError,
    Event,
    FutureRevision,
    IEtcd,
    IEtcdWatch,
    RangeResult,
    Unavailable,
)
from broker.cluster.layout import Keys
from broker.cluster.membership import Database
from broker.cluster.mirror import Shared
from broker.cluster.table import Bad, Table, Touched

PAGES = (200, 40, 8)
"""Keys in a page: 200 hold the reactor for some 5 ms. A page that fails, since its values are large, is read with the
next smaller number."""

CLOSE = 5_000
"""Limit of the revisions for which a watch continues: more of them are more expensive than the pages."""

DIFFERENCE = 500
"""Entries that are compared in one turn of the reactor, less than a millisecond."""

HOLD = 2
"""TTLs for which the entries of the other members are held after a loss of etcd's data: the time in which they notice
it, at the latest by their keepalive, and have written all again."""

RESTARTS = 5
"""Attempts to read all keys at one revision; compaction is rare."""


class _Receiver:
    """Receiver of one watch."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed

    def stop(self) -> None:
        self._feed = None

    def events(self, revision: int, events: Sequence[Event]) -> None:
        if self._feed is not None:
            self._feed.take(revision, events)

    def ended(self, reason: Ended, text: str) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.lost_watch(reason, text)


class Feed:
    """Feed of the member ``name``. ``changed`` is called with the touched keys of each message; ``replaced`` with the
    table before when there is a new one, and with the differing providers and loads; ``ended`` when the watch has
    ended."""

    log = Logger()

    def __init__(
        self,
        shared: Shared,
        etcd: IEtcd,
        clock: IReactorTime,
        keys: Keys,
        name: str,
        ttl: int,
        bad: Bad,
        changed: Callable[[Touched], None],
        replaced: Callable[[Table, Touched], None],
        ended: Callable[[str], None],
    ) -> None:
        self._shared = shared
        self._etcd = etcd
        self._clock = clock
        self._keys = keys
        self._name = name
        self._ttl = ttl
        self._bad = bad
        self._changed = changed
        self._replaced = replaced
        self._ended = ended
        self._watch: IEtcdWatch | None = None
        self._receiver: _Receiver | None = None
        self._complete = False
        """True if the table is that of ``revision``."""
        self.revision = 0
        """Last revision that was read."""
        self._holding = False
        """True while the table has entries of the time before a loss of etcd's data."""
        self._hold_timer: IDelayedCall | None = None
        self._waiting: list[tuple[int, Deferred[None]]] = []
        """Revisions for which `reached` waits."""
        self.resyncs = 0
        self.resumed = 0
        """Watches that continued at the next revision."""
        self.events = 0

    @property
    def watching(self) -> bool:
        """True while a watch is open."""
        return self._watch is not None

    @property
    def complete(self) -> bool:
        """True if a watch may continue at the next revision."""
        return self._complete

    async def start(self, database: Database, whole: bool = False) -> None:
        """Bring the table up to date, and watch. With ``whole`` the table is up to date when this fires; otherwise the
        watch may still have changes to bring. Fails as `IEtcd` does."""
        near = 0 <= database.revision - self.revision <= CLOSE
        if not whole and self._complete and not database.replaced and near:
            if self._watch is None:
                self.resumed += 1
                self._open()
            return
        self.close()
        self._complete = False
        table, revision = await self._read()
        if not table.has_epoch(database.epoch):
            # Without the others' entries in hand, nothing would be held: the next session takes note of the loss.
            raise Unavailable("the data of etcd were lost or replaced while they were read")
        self.resyncs += 1
        before = self._shared.table
        self._holding = self._holding or database.replaced
        if self._holding:
            table.hold(before, self._name, database.replaced)
        touched = await self._difference(before, table, database.replaced)
        self.revision = revision
        self._shared.table = table
        self._complete = True
        self._replaced(before, touched)
        self._open()

    def reopen(self) -> bool:
        """Replace the watch, or begin one after its end: at the next revision, and at another endpoint than a watch
        that is open. Returns False if all has to be read again instead."""
        if not self._complete:
            return False
        watch = self._watch
        if self._receiver is not None:
            self._receiver.stop()
        if watch is not None:
            self._etcd.change_endpoint(watch)
            watch.cancel()
        self._watch = self._receiver = None
        self.resumed += 1
        self._open()
        return True

    def take(self, revision: int, events: Sequence[Event]) -> None:
        """Apply events of the watch."""
        touched = Touched()
        table = self._shared.table
        for event in events:
            self.events += 1
            if event.value is None:
                table.delete(event.key, touched)
            else:
                table.put(event.value, touched)
        self.revision = max(self.revision, revision)
        self._changed(touched)
        self._fire(self.revision)

    def reached(self, revision: int) -> Deferred[None]:
        """Fires when the table has the changes up to a revision, or when the watch is closed or has ended."""
        found: Deferred[None] = Deferred()
        self._waiting.append((revision, found))
        self._fire(None if self._watch is None else self.revision)
        return found

    def lost_watch(self, reason: Ended, text: str) -> None:
        """The watch has ended."""
        self._watch = self._receiver = None
        self._stop_hold()
        if reason is Ended.COMPACTED:
            self._complete = False
        self._ended(text or "the watch has ended")
        self._fire(None)

    def close(self) -> None:
        """End the watch. Idempotent."""
        watch, receiver = self._watch, self._receiver
        self._watch = self._receiver = None
        if receiver is not None:
            receiver.stop()
        if watch is not None:
            watch.cancel()
        self._stop_hold()
        self._fire(None)

    def stop(self) -> None:
        """End for good."""
        self.close()

    # internal

    def _open(self) -> None:
        receiver = self._receiver = _Receiver(self)
        watch = self._etcd.watch(self._keys.prefix, self._keys.end, self.revision + 1, receiver)
        if self._receiver is receiver:
            self._watch = watch
            if self._holding:
                self._stop_hold()
                self._hold_timer = self._clock.callLater(HOLD * self._ttl, self._drop)

    def _fire(self, revision: int | None) -> None:
        """Fire what waits for revisions up to this one; all of it without a watch, None."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        due = [found for least, found in waiting if revision is None or least <= revision]
        self._waiting = [(least, found) for least, found in waiting if found not in due]
        for found in due:
            if not found.called:
                found.callback(None)

    async def _read(self) -> tuple[Table, int]:
        """Return a table of all keys, and its revision."""
        for attempt in range(RESTARTS):
            table = Table(self._keys, self._bad)
            touched = Touched()
            try:
                page = await self._page(self._keys.prefix, 0)
                revision = page.revision
                while True:
                    for kv in page.keys:
                        table.put(kv, touched)
                    if not page.more or not page.keys:
                        return table, revision
                    await deferLater(self._clock, 0)
                    page = await self._page(page.keys[-1].key + b"\0", revision)
            except (Compacted, FutureRevision):
                if attempt == RESTARTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _page(self, key: bytes, revision: int) -> RangeResult:
        for size in PAGES:
            try:
                return await self._etcd.range(key, self._keys.end, size, revision)
            except (Compacted, FutureRevision):
                raise
            except EtcdError:
                if size == PAGES[-1]:
                    raise
        raise AssertionError("unreachable")

    async def _difference(self, before: Table, after: Table, replaced: bool) -> Touched:
        """Return the providers and loads that differ between two tables."""
        touched = Touched()
        ids = list({**before.entries, **after.entries})
        for start in range(0, len(ids), DIFFERENCE):
            for id in ids[start : start + DIFFERENCE]:
                old, new = before.valid(id), after.valid(id)
                if replaced or old is None or new is None or old.modified != new.modified:
                    touched.providers[id] = None
                    for entry in (old, new):
                        if entry is not None and entry.value is not None and entry.value.replaces:
                            touched.providers.update(dict.fromkeys(entry.value.replaces))
                if new is not None and before.load(id) != after.load(id):
                    touched.loads[id] = None
            await deferLater(self._clock, 0)
        return touched

    def _stop_hold(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    def _drop(self) -> None:
        self._hold_timer = None
        self._holding = False
        touched = self._shared.table.drop_held()
        if touched.providers or touched.members:
            self._changed(touched)
