"""Feed: keeps the table of etcd's keys up to date, from pages of a range and from a watch.

Rules:
- A resynchronisation reads all keys in pages at one revision into a new table, with a turn of the reactor between two
  pages. The new table takes the place of the old one at once; the difference goes to the registry in slices, and the
  watch begins at the next revision. So the registry is never empty in between.
- If that revision is compacted in the meantime, the resynchronisation begins again.
- A watch that has ended continues at the next revision, if the data of etcd are the same and the revision is close;
  otherwise all is read again. So it is after the lease was lost: what is written then depends on the others' keys. So
  it is, too, after a watch that did not bring what it had missed in time, such as the end of a lease of many keys.
- Events come in slices. When all of a revision have come, the keys that a member without its lease has left are touched
  in slices, too: as a rule there are none, since etcd has deleted them.
- If this member was interrupted, or etcd has lost its data, entries of other members whose leases end are held
  (`broker.cluster.key_table`) until the watch has been open for `HOLD` TTLs at most: these members need a moment to
  write them again. The time begins again with the watch after an interruption, since etcd that this member cannot reach
  may be away for the others, too. For a member without a key in etcd and without a sign of life at its link, it ends
  with the doubt.
- So are those of a member that has beaten within `EARLY` of the TTL: without an end of the member, a former leader of
  etcd that returns from a partition may revoke leases that another one has renewed. If its link shows no life, the time
  ends after `HELD_LOOK` seconds. A member that leaves deletes its beat first.

Heartbeat of the watch: each member puts a counter every `beat` seconds, and waits for it in its own watch.

Rules:
- The time from the transaction with a beat to its arrival is the member's *lag*.
- A beat that was written and does not arrive within `SILENCE` seconds proves that the watch is dead, although its
  connection may be open. Nothing else does: etcd sends progress without a quorum too. The seconds are counted by ticks,
  since in a stall of this process nothing arrives.
- Without an answer of etcd nothing is proven: then the publisher has the trouble.

Reopening of the watch while etcd has no space: then no beat can be written, and nothing else proves a watch alive.

Rules:
- A session reads all keys without space. So the watch is opened again within the session, or between two of them, at
  the next revision.
- A watch without any event for a pause may be dead. It is replaced by one at another endpoint, since a live one loses
  nothing by that. The pauses grow, because a farm without changes has no events.
- A watch that has ended is replaced soon.
- It ends when etcd has space again: from then on the beats prove the watch alive.

The file is longer than others: the beats and the reopening decide about the watch of the feed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.backoff import Backoff
from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import (
    Compacted,
    Ended,
    EtcdError,
    Event,
    FutureRevision,
    IEtcd,
    IEtcdWatch,
    Put,
    RangeResult,
    Unavailable,
)
from broker.cluster.key_table import Bad, Entry, Table, Touched
from broker.cluster.layout import BeatValue, Keys
from broker.cluster.membership import DOUBT, Database
from broker.cluster.mirror import Shared
from broker.cluster.publisher import Publisher, Unit
from broker.cluster.settings import SILENCE, WATCH_ENDED, WATCH_SILENT
from broker.core.cluster.cluster_interfaces import Key
from broker.core.turns import PIECE, Turns, pieces, removed

PAGES = (200, 40, 8)
"""Keys in a page: 200 hold the reactor for some 5 ms. A page that fails, since its values are large, is read with the
next smaller number."""

CLOSE = 5_000
"""Limit of the revisions for which a watch continues: more of them are more expensive than the pages."""

HOLD = 10
"""Maximum time for which entries of other members are held, in TTLs: all of them may have lost etcd, and some may
need that long to reach it again and to write all their entries."""

EARLY = 0.5
"""Share of the TTL within which a member has beaten whose lease ends too early: it is renewed every quarter of the TTL,
so that a member that has ended was silent for three quarters. The time of an own standstill does not count."""

HELD_LOOK = 1.0
"""Seconds between two looks at the members whose entries are held."""

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
    """Feed of the member ``name``. ``changed`` is called with the touched keys of each slice. With a new table,
    ``differing`` is called with pieces of its difference to the one before, and then ``replaced`` with that one;
    ``ended`` when the watch has ended. ``doubtful`` returns True while leases of others may end because of an
    interruption that this member shares, ``recorded`` the entries that are held after the first reading, ``alive`` the
    members whose links show life, ``awake`` a time from which on this broker may have stood still."""

    log = Logger()

    def __init__(
        self,
        shared: Shared,
        etcd: IEtcd,
        clock: IReactorTime,
        turns: Turns,
        keys: Keys,
        name: str,
        ttl: int,
        bad: Bad,
        changed: Callable[[Touched], None],
        differing: Callable[[Touched], None],
        replaced: Callable[[Table], None],
        ended: Callable[[str], None],
        doubtful: Callable[[], bool],
        recorded: Callable[[], Mapping[Key, Entry]],
        alive: Callable[[], Collection[str]],
        awake: Callable[[], float],
    ) -> None:
        self._shared = shared
        self._etcd = etcd
        self._clock = clock
        self._turns = turns
        self._keys = keys
        self._name = name
        self._ttl = ttl
        self._bad = bad
        self._changed = changed
        self._differing = differing
        self._replaced = replaced
        self._ended = ended
        self._doubtful = doubtful
        self._recorded = recorded
        self._alive = alive
        self._awake = awake
        self._watch: IEtcdWatch | None = None
        self._receiver: _Receiver | None = None
        self._complete = False
        """True if the table is that of ``revision``."""
        self.revision = 0
        """Last revision that was read."""
        self._holding = False
        """True while the table may have entries that are held."""
        self._hold_timer: IDelayedCall | None = None
        self._dropping: Deferred[None] | None = None
        self._hold_end = self._hold_look = 0.0
        """Times of the end of all that is held, and of the first look at its members."""
        self._leases: dict[str, int] = {}
        """Members whose leases have ended, with the revisions, of which more events may come."""
        self._beats: dict[str, float] = {}
        """Times of the last beats of the members."""
        self._taken = -inf
        """Time of the last events."""
        self._left: deque[tuple[Key, int]] = deque()
        """Keys of such members that are still to be touched, with the revisions."""
        self._touching: Deferred[None] | None = None
        self._waiting: list[tuple[int, Deferred[None]]] = []
        """Revisions for which `reached` waits."""
        self._ended_in_doubt = False
        """True if leases were doubtful when the last watch ended: those that ended before the next one began are."""
        self._doubtful_to = 0
        """Revision up to which events are from such a time."""
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
                if self._ended_in_doubt:
                    self._doubtful_to = database.revision
                self._open(self._doubtful())
            return
        self.close()
        self._complete = False
        table, revision = await self._read()
        if not table.has_epoch(database.epoch):
            # Without the others' entries in hand, nothing would be held: the next session takes note of the loss.
            raise Unavailable("the data of etcd were lost or replaced while they were read")
        self.resyncs += 1
        before = self._shared.table
        recorded = self._recorded()
        ended = database.replaced or self._doubtful()
        anew = ended or bool(recorded)
        self._holding = self._holding or anew
        if self._holding:
            await self._turns.run(table.hold(before, self._name, ended, recorded))
        self.revision = revision
        self._shared.table = table
        await self._turns.run(self._replace(before, table, database.replaced))
        self._complete = True
        self._replaced(before)
        self._open(anew)

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
        self._open(self._doubtful())
        return True

    def take(self, revision: int, events: Sequence[Event]) -> None:
        """Apply events of the watch."""
        touched = Touched()
        table = self._shared.table
        doubtful = revision <= self._doubtful_to or self._doubtful()
        held, now = len(table.held), self._clock.seconds()
        # The events may be from any moment since then.
        since, self._taken = max(self._taken, self._awake()), now

        def hold(name: str) -> bool:
            early = since - self._beats.pop(name, -inf) < EARLY * self._ttl and name in table.beats
            return name != self._name and (doubtful or early)

        for event in events:
            self.events += 1
            if event.value is None:
                table.delete(event.key, event.revision, touched, hold)
            else:
                table.put(event.value, touched)
        self._beats.update((name, now) for name in touched.beats if name in table.members)
        self.revision = max(self.revision, revision)
        if len(table.held) > held:
            self._hold(doubtful)
        elif touched.due:
            self._drop_after(0)
        self._note(touched)
        self._fire(self.revision)

    def reached(self, revision: int) -> Deferred[None]:
        """Fires when the table has the changes up to a revision, or when the watch is closed or has ended."""
        found: Deferred[None] = Deferred()
        self._waiting.append((revision, found))
        self._fire(None if self._watch is None else self.revision)
        return found

    def lost_watch(self, reason: Ended, text: str) -> None:
        """The watch has ended."""
        self._ended_in_doubt = self._doubtful()
        self._watch = self._receiver = None
        self._stop_hold()
        if reason is Ended.COMPACTED:
            self._complete = False
        self._ended(text or "the watch has ended")
        self._fire(None)

    def outpaced(self) -> None:
        """The watch takes too long to bring what it has missed: next time, all keys are read instead."""
        self._complete = False

    def close(self) -> None:
        """End the watch. Idempotent."""
        watch, receiver = self._watch, self._receiver
        self._watch = self._receiver = None
        if receiver is not None:
            receiver.stop()
        if watch is not None:
            self._ended_in_doubt = self._doubtful()
            watch.cancel()
        self._stop_hold()
        self._fire(None)

    def stop(self) -> None:
        """End for good."""
        self.close()
        if self._touching is not None:
            self._touching.cancel()

    # internal

    def _open(self, anew: bool) -> None:
        """Open the watch. With ``anew`` the time for which entries are held begins again."""
        receiver = self._receiver = _Receiver(self)
        watch = self._etcd.watch(self._keys.prefix, self._keys.end, self.revision + 1, receiver)
        if self._receiver is receiver:
            self._watch = watch
            if self._holding and anew:
                self._hold(True)
            elif self._holding:
                self._drop_after(max(0.0, self._hold_look - self._clock.seconds()))

    def _hold(self, doubtful: bool) -> None:
        """Hold what is held now for `HOLD` TTLs; if its member shows no life, for the doubt or `HELD_LOOK` seconds."""
        self._holding = True
        now = self._clock.seconds()
        look = DOUBT[0] * self._ttl + DOUBT[1] if doubtful else HELD_LOOK
        self._hold_end, self._hold_look = now + HOLD * self._ttl, max(self._hold_look, now + look)
        self._drop_after(self._hold_look - now)

    def _fire(self, revision: int | None) -> None:
        """Fire the Deferreds that wait for revisions up to this one; None, the end of the watch, fires all."""
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
                    with self._turns:
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

    def _replace(self, before: Table, after: Table, replaced: bool) -> Iterator[None]:
        """Pass on the registrations and loads that differ between two tables, in steps. The entries of the old one are
        discarded on the way."""
        left = [*(key for key, _ in self._left), *chain.from_iterable(map(before.of, self._leases))]
        self._left.clear()
        self._leases.clear()
        for keys in pieces((*after.entries, *after.standbys)):
            self._compare([key for key in keys if key not in before.entries], before, after, replaced)
            yield
        for keys in removed(list(before.entries)):
            self._compare(keys, before, after, replaced)
            for key in keys:
                before.discard(key)
            yield
        # In neither table, some of them, and still found; the others are compared once more.
        left += before.standbys
        for keys in removed(left):
            self._differing(Touched(dict.fromkeys(keys, 0)))
            yield

    def _compare(self, keys: Sequence[Key], before: Table, after: Table, replaced: bool) -> None:
        touched = Touched()
        for key in keys:
            old, new = before.valid(key), after.valid(key)
            standbys = before.standbys.get(key) != after.standbys.get(key)
            if replaced or standbys or (old and old.version) != (new and new.version):
                touched.registrations[key] = 0 if new is None else new.modified
            if new is not None and before.load(new.broker, new.provider) != after.load(new.broker, new.provider):
                touched.loads[new.broker, new.provider] = None
        self._differing(touched)

    def _drop_after(self, seconds: float) -> None:
        """Drop what is to be dropped after so many seconds, or now if something is due."""
        self._stop_hold()
        due = any(self._shared.table.held.values())
        self._hold_timer = self._clock.callLater(0 if due else seconds, self._drop)

    def _stop_hold(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if self._dropping is not None:
            self._dropping.cancel()

    def _drop(self) -> None:
        self._hold_timer = None
        self._dropping = Deferred.fromCoroutine(self._drop_in_steps())
        self._dropping.addBoth(self._dropped)

    async def _drop_in_steps(self) -> None:
        """Drop what is due, at the end all, and before that what is held of members that show no life."""
        over = self._clock.seconds() >= self._hold_end
        due = [name for (name, _), due in self._shared.table.held.items() if due or over]
        await self._drop_held(due, lambda _: over)
        if self._lifeless():
            # The watch, which may have just been opened again, may still have to bring the return of one.
            await self.reached((await self._etcd.range(self._keys.meta)).revision)
            await self._drop_held(self._lifeless(), lambda name: not self._shared.table.has_key(name))

    def _lifeless(self) -> list[str]:
        """Return the members that are held, have no key, and show no life, after the time of a doubt."""
        if self._clock.seconds() < self._hold_look or self._doubtful():
            return []
        table, alive = self._shared.table, self._alive()
        return [name for name, _ in table.held if not table.has_key(name) and name not in alive]

    async def _drop_held(self, names: Iterable[str], undue: Callable[[str], bool]) -> None:
        table = self._shared.table
        drops = (table.drop_held(each, partial(undue, each), lambda: self.revision) for each in dict.fromkeys(names))
        await self._turns.run(map(self._note, chain.from_iterable(drops)))

    def _dropped(self, result: Failure | None) -> None:
        self._dropping = None
        if result is not None and not result.check(EtcdError):
            self._defect(result)
            return
        self._holding = bool(self._shared.table.held)
        if self._holding:
            self._drop_after(max(HELD_LOOK, self._hold_look - self._clock.seconds()))

    def _note(self, touched: Touched) -> None:
        """Pass on what was touched, and touch what members have left whose leases ended."""
        self._leases.update(touched.leases)
        for name in [name for name, since in self._leases.items() if since <= self.revision]:
            since = self._leases.pop(name)
            self._left += ((key, since) for key in self._shared.table.of(name))
        self._changed(touched)
        if self._left and self._touching is None:
            self._touching = self._turns.run(self._touch())
            self._touching.addBoth(self._touched)

    def _touch(self) -> Iterator[None]:
        """Touch what members have left, in steps."""
        while self._left:
            touched = Touched()
            for _ in range(min(PIECE, len(self._left))):
                key, since = self._left.popleft()
                touched.registrations[key] = max(since, touched.registrations.get(key, 0))
            self._changed(touched)
            yield

    def _touched(self, result: Failure | None) -> None:
        self._touching = None
        if result is not None:
            self._defect(result)

    def _defect(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self.log.failure("cluster: changes of other members could not be processed", failure)


class WatchHeartbeat:
    """Beats of the member ``name``. ``sizes`` returns the numbers of own providers and services; ``silent`` is called
    if the watch is dead."""

    def __init__(
        self,
        clock: IReactorTime,
        publisher: Publisher,
        keys: Keys,
        name: str,
        interval: float,
        lease: Callable[[], int],
        sizes: Callable[[], tuple[int, int]],
        silent: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._publisher = publisher
        self._keys = keys
        self._name = name
        self._interval = interval
        self._lease = lease
        self._sizes = sizes
        self._silent = silent
        self._counter = 0
        self._sent: float | None = None
        """Time of the transaction with the newest beat, None once it has arrived."""
        self._unheard: int | None = None
        """Ticks since etcd first answered a transaction with a beat that has not arrived; None without one."""
        self.lag: float | None = None
        """Time in seconds that the last beat took; None if it is unknown."""
        self._timer: IDelayedCall | None = None
        self._due = inf
        self.awake = -inf
        """Time of the last beat that was not late: this broker may have stood still since, as without CPU time."""

    def start(self) -> None:
        """Beat now and every interval. Idempotent: a further call discards beats that were under way."""
        self.stop()
        self._due = inf
        self._tick()

    def stop(self) -> None:
        """Beat no more."""
        self._sent = self._unheard = self.lag = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arrived(self, value: BeatValue) -> None:
        """The own key has this value in the watch."""
        if value.counter == self._counter and self._sent is not None:
            self.lag = self._clock.seconds() - self._sent
            self._sent = None
        self._unheard = None

    # internal

    def _tick(self) -> None:
        now = self._clock.seconds()
        self._timer = self._clock.callLater(self._interval, self._tick)
        if now - self._due < self._interval:
            self.awake = now
        self._due = now + self._interval
        if self._sent is not None:
            self.lag = max(self.lag or 0.0, now - self._sent)
        if self._unheard is not None:
            self._unheard += 1
            if self._unheard * self._interval > SILENCE:
                self._silent()
                return
        self._publisher.mark("beat", self._build)

    def _build(self) -> Unit:
        self._counter += 1
        self._sent = self._clock.seconds()
        providers, services = self._sizes()
        value = BeatValue(self._counter, self.lag, providers, services)
        counter = self._counter

        def done(revision: int, held: bool) -> None:
            # The event mostly comes before the answer.
            if self._sent is not None and counter == self._counter:
                self._note_answer()

        return Unit(Put(self._keys.beat(self._name), layout.encode(value), self._lease()), None, done)

    def _note_answer(self) -> None:
        if self._unheard is None:
            self._unheard = 0


class Reopening:
    """Reopening of a watch. ``needed`` returns whether etcd has no space, ``open`` whether a watch is open;
    ``reopen`` replaces it."""

    def __init__(
        self,
        clock: IReactorTime,
        rng: random.Random,
        needed: Callable[[], bool],
        open: Callable[[], bool],
        reopen: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._needed = needed
        self._open = open
        self._reopen = reopen
        self._timer: IDelayedCall | None = None
        self._heard = False
        """True after an event since the last look."""
        self._silent = 0
        """Consecutive pauses without an event."""
        self._ended = 0
        """Consecutive ends without an event."""

    def begin(self) -> None:
        """Begin the alarm: etcd has no space. Idempotent."""
        if self._timer is None:
            self._heard, self._silent, self._ended = False, 0, 0
            self._wait(WATCH_SILENT, 1)

    def heard(self) -> None:
        """The watch has brought an event."""
        self._heard, self._ended = True, 0

    def ended(self) -> None:
        """The watch has ended, while etcd has no space."""
        self._ended += 1
        self._wait(WATCH_ENDED, self._ended)

    def stop(self) -> None:
        """Reopen no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _wait(self, pause: Backoff, failures: int) -> None:
        self.stop()
        self._timer = self._clock.callLater(pause.after(failures, self._rng.random()), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._open() and not self._needed():
            return
        if self._heard and self._open():
            self._silent = 0
        else:
            self._silent += self._open()
            self._reopen()
        self._heard = False
        self._wait(WATCH_SILENT, self._silent + 1)
