"""Changes of the registry: their revisions, two rings with the recent ones, and their watchers.

A watcher that resumes, or that reads at its own pace, calls `Watches.since`. If the ring no longer has all changes that
it lacks, the call returns None, and the watcher takes a snapshot instead. So no change is buffered for a single
watcher.

Notifier: delivers each change to its listeners, one after the other, in the order of the changes.

A listener may change the registry during a notification. The notifications of that change are queued behind all pending
ones, so every listener receives changes in order. A cancelled listener receives nothing more. An exception in a
listener is a defect of the broker: it is logged, and the others are still notified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import Change, Kind, Load, LoadDetails, Service
from broker.wall_clock import wall_of


class Listener(Protocol):
    """Receiver of notifications."""

    def receive(self, news: Any) -> None:
        """Process one notification. No-op once the listener is cancelled."""


class Notifier:
    """Queue of pending notifications."""

    log = Logger()

    def __init__(self) -> None:
        self._queue: deque[tuple[Sequence[Listener], Any]] = deque()
        self._busy = False

    def add(self, listener: Listener, news: object) -> None:
        """Queue a notification for one listener."""
        self._queue.append(((listener,), news))

    def add_all(self, listeners: Sequence[Listener], news: object) -> None:
        """Queue a notification for several listeners, in their order."""
        self._queue.append((listeners, news))

    def deliver(self) -> None:
        """Deliver all pending notifications. A nested call from a listener returns at once: the outer call
        continues."""
        queue = self._queue
        if self._busy or not queue:
            return
        self._busy = True
        while queue:
            listeners, news = queue.popleft()
            for listener in listeners:
                try:
                    listener.receive(news)
                except Exception:
                    # Log the type only: the notification itself may contain a password.
                    self.log.failure("a listener of the registry failed on a {news}", news=type(news).__name__)
        self._busy = False


RING = 4_096
"""Entries that each ring keeps, or up to a piece more. Loads have a ring of their own, because a busy farm reports
thousands in a second, and these would push out a change of a service within a few seconds."""

RING_BYTES = 4 * 1024 * 1024
"""Bytes of the packed entries of a ring: four times as many as those of a usual farm take. Services with long
descriptions are discarded earlier."""

PIECE = 64
"""Entries that are packed at once, in 0.05 ms, and unpacked by a reader in 0.1 ms. The last one or two pieces are not
packed: watchers that follow read those."""

FULL_RING = RING + PIECE
"""Entries after which a ring has discarded the first one."""

_new = tuple.__new__

E = TypeVar("E", bound=tuple[Any, ...])


@implementer(IWait)
class Watch:
    """Watcher of changes of some kinds."""

    def __init__(
        self,
        tables: Sequence[dict[Kind, tuple[Watch, ...]]],
        changed: Callable[[Change], None],
        kinds: Collection[Kind],
    ) -> None:
        self._tables = tables
        self._kinds = kinds
        self.receive = changed
        """Callback for changes of these kinds."""

    def cancel(self) -> None:
        # The notifier may still hold this watcher in its queue, so the callback becomes a no-op too.
        self.receive = _ignore
        for table in self._tables:
            for kind in self._kinds:
                table[kind] = tuple(watch for watch in table[kind] if watch is not self)


def _ignore(change: Change) -> None:
    """Callback of a cancelled watcher."""


@implementer(IWait)
class ReportWatch:
    """Watcher of loads, heartbeats or reasons of checks. It receives plain values instead of a `Change`, which costs
    less.

    ``remove`` removes it from its table.
    """

    log = Logger()

    def __init__(self, on_report: Callable[..., None], remove: Callable[[ReportWatch], None]) -> None:
        self._on_report: Callable[..., None] | None = on_report
        self._remove = remove

    def receive(self, news: tuple[Any, ...]) -> None:
        """Deliver a report of a provider or service."""
        if self._on_report is not None:
            self._on_report(*news)

    def report(self, provider: int, value: Any) -> None:
        """Deliver a report outside of the notifier's queue. An exception in the watcher is logged here."""
        try:
            if self._on_report is not None:
                self._on_report(provider, value)
        except Exception:
            self.log.failure("a watcher of the registry failed on a heartbeat")

    def cancel(self) -> None:
        self._on_report = None
        self._remove(self)


class ChangeRing(Generic[E]):
    """Ring of the last `RING` entries, or less if these are long: tuples that begin with their revision.

    All but the last ones are packed, a piece into one object. They would be eight small objects each, which lie between
    those of their time: after a burst of thousands of services, 4,096 changes kept the pages of 25 MiB in use.

    ``lost`` is the highest revision that was discarded, 0 at first. ``form`` is the type of an entry; ``make`` makes an
    entry of an unpacked tuple.
    """

    def __init__(self, form: Any, make: Callable[[tuple[Any, ...]], E]) -> None:
        self.lost = 0
        self._last: list[E] = []
        """The entries that are not packed."""
        self._pieces: deque[tuple[int, bytes | list[E]]] = deque()
        """Packed pieces, and those that cannot be packed, with the revision of their last entry."""
        self._bytes = 0
        self._pack = msgspec.msgpack.Encoder().encode
        self._unpack = msgspec.msgpack.Decoder(list[form]).decode
        self._make = make

    def add(self, entry: E) -> None:
        """Append an entry. May discard the oldest ones."""
        last = self._last
        last.append(entry)
        if len(last) == 2 * PIECE:
            self._seal(last[:PIECE])
            del last[:PIECE]

    def after(self, revision: int) -> Iterator[E]:
        """Yield the entries after a revision, in order."""
        for end, piece in self._pieces:
            if end > revision:
                yield from (entry for entry in self._entries(piece) if entry[0] > revision)
        yield from (entry for entry in self._last if entry[0] > revision)

    def backward(self) -> Iterator[E]:
        """Yield the entries, the last one first."""
        yield from reversed(self._last)
        for _, piece in reversed(self._pieces):
            yield from reversed(self._entries(piece))

    def _entries(self, piece: bytes | list[E]) -> list[E]:
        return [self._make(entry) for entry in self._unpack(piece)] if isinstance(piece, bytes) else piece

    def _seal(self, entries: list[E]) -> None:
        piece: bytes | list[E] = entries
        try:
            piece = self._pack(entries)
            self._bytes += len(piece)
        except UnicodeEncodeError:  # half of a surrogate pair, of a peer
            pass
        pieces = self._pieces
        pieces.append((entries[-1][0], piece))
        # Of the last entries a piece is left.
        while len(pieces) > RING // PIECE - 1 or self._bytes > RING_BYTES:
            self.lost, piece = pieces.popleft()
            if isinstance(piece, bytes):
                self._bytes -= len(piece)


_LoadEntry = tuple[int, int, str, float, LoadDetails | None, float]
"""Revision, provider, label, load, details and time. A `Change` is made of an entry only on request."""


class Watches:
    """Revisions, recent changes and watchers of a registry.

    Notifications go through ``notifier``; ``clock`` gives the time of each change.
    """

    def __init__(self, notifier: Notifier, clock: IReactorTime) -> None:
        self.revision = 0
        self._seconds = wall_of(clock)
        self._notifier = notifier
        self._watchers: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Few, and rarely changed. Tuples: a queued notification keeps the watchers of its time."""
        self._watchers_of_all: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Those of them that watch the providers of other members of the cluster as well."""
        self.load_watchers: tuple[ReportWatch, ...] = ()
        self._load_watchers_of_all: tuple[ReportWatch, ...] = ()
        self.beat_watchers: tuple[ReportWatch, ...] = ()
        self.reason_watchers: tuple[ReportWatch, ...] = ()
        """Tuples, because each report hands them to the notifier, and they must not change during delivery."""
        self._changes: ChangeRing[Change] = ChangeRing(
            tuple[int, Kind, int, Service | str, str, float], partial(_new, Change)
        )
        self._loads: ChangeRing[_LoadEntry] = ChangeRing(_LoadEntry, tuple)

    def add(self, changed: Callable[[Change], None], kinds: Collection[Kind], own: bool = False) -> Watch:
        """Add a watcher; see `IRegistry.watch`."""
        tables = (self._watchers,) if own else (self._watchers, self._watchers_of_all)
        watch = Watch(tables, changed, kinds)
        for table in tables:
            for kind in kinds:
                table[kind] += (watch,)
        return watch

    def add_for_loads(
        self, on_report: Callable[[int, float, LoadDetails | None], None], own: bool = False
    ) -> ReportWatch:
        """Add a watcher of loads; see `IRegistry.watch_loads`."""

        def remove(watch: ReportWatch) -> None:
            self.load_watchers = tuple(each for each in self.load_watchers if each is not watch)
            self._load_watchers_of_all = tuple(each for each in self._load_watchers_of_all if each is not watch)

        watch = ReportWatch(on_report, remove)
        self.load_watchers += (watch,)
        if not own:
            self._load_watchers_of_all += (watch,)
        return watch

    def add_for_beats(self, on_report: Callable[[int, float | None], None]) -> ReportWatch:
        """Add a watcher of heartbeats; see `IRegistry.watch_beats`."""

        def remove(watch: ReportWatch) -> None:
            self.beat_watchers = tuple(each for each in self.beat_watchers if each is not watch)

        watch = ReportWatch(on_report, remove)
        self.beat_watchers += (watch,)
        return watch

    def add_for_reasons(self, on_report: Callable[[int, Service], None]) -> ReportWatch:
        """Add a watcher of reasons; see `IRegistry.watch_reasons`."""

        def remove(watch: ReportWatch) -> None:
            self.reason_watchers = tuple(each for each in self.reason_watchers if each is not watch)

        watch = ReportWatch(on_report, remove)
        self.reason_watchers += (watch,)
        return watch

    def record(self, kind: Kind, provider: int, subject: Service | str, why: str = "") -> Change:
        """Assign a revision to a change, and keep it in the ring."""
        self.revision = revision = self.revision + 1
        # As `Change(...)`, without the call of its constructor in Python: there are four for each short connection.
        change = _new(Change, (revision, kind, provider, subject, why, self._seconds()))
        self._changes.add(change)
        return change

    def record_load(
        self, provider: int, label: str, load: float, details: LoadDetails | None = None, mirrored: bool = False
    ) -> Change | None:
        """Assign a revision to a load, keep it, and queue it for the watchers of loads.

        Loads are the most frequent changes, so a `Change` is made only if a watcher needs one, and is returned for
        `announce`. ``mirrored``: of another member's provider.
        """
        self.revision = revision = self.revision + 1
        at = self._seconds()
        self._loads.add((revision, provider, label, load, details, at))
        load_watchers = self._load_watchers_of_all if mirrored else self.load_watchers
        if load_watchers:
            self._notifier.add_all(load_watchers, (provider, load, details))
        if (self._watchers_of_all if mirrored else self._watchers)[Kind.LOAD]:
            return Change(revision, Kind.LOAD, provider, Load(provider, label, load, details), at=at)
        return None

    def announce(self, change: Change, mirrored: bool = False) -> None:
        """Queue a change for the present watchers of its kind. ``mirrored``: of another member's provider."""
        watchers = (self._watchers_of_all if mirrored else self._watchers)[change.kind]
        if watchers:
            self._notifier.add_all(watchers, change)

    def since(self, revision: int, kinds: Collection[Kind], most: int | None = None) -> Sequence[Change] | None:
        """Return the first changes of these kinds after a revision, None if not all are kept; see `IRegistry`."""
        if not 0 <= revision <= self.revision:
            return None
        if revision < self._changes.lost and any(kind is not Kind.LOAD for kind in kinds):
            return None
        if revision < self._loads.lost and Kind.LOAD in kinds:
            return None
        found: list[Change] = []
        if any(kind is not Kind.LOAD for kind in kinds):
            found += islice((each for each in self._changes.after(revision) if each.kind in kinds), most)
        if Kind.LOAD in kinds:
            found += map(_load, islice(self._loads.after(revision), most))
        # The rings are in order each, and not with each other.
        found.sort(key=itemgetter(0))
        return found[:most]

    def recent(self, kinds: Collection[Kind], most: int) -> Sequence[Change]:
        """Return the last changes of these kinds that are kept; see `IRegistry`."""
        found: list[Change] = []
        if any(kind is not Kind.LOAD for kind in kinds):
            found += islice((each for each in self._changes.backward() if each.kind in kinds), most)
        if Kind.LOAD in kinds:
            found += map(_load, islice(self._loads.backward(), most))
        found.sort(key=itemgetter(0))
        return found[-most:]


def _load(entry: _LoadEntry) -> Change:
    return Change(entry[0], Kind.LOAD, entry[1], Load(*entry[1:5]), at=entry[5])


# Waits: standing queries for services of a name, which end at the first match or go on as monitors.

MAX_WAITS = 50_000
"""Limit of waits in all: 5 for each of 10,000 providers (real servers have 1 to 3). Full, they take 40 MB, and
twice that with deadlines."""


@implementer(IWait)
class Wait:
    """Standing query of one peer: a wait or a monitor."""

    __slots__ = ("_offered", "_timer", "_waits", "amended", "name", "number")

    def __init__(self, waits: Waits, name: str, number: int, offered: Callable[[Service], None], amended: bool) -> None:
        self.name = name
        self.number = number
        self.amended = amended
        """True to receive amended services too."""
        self._waits = waits
        self._offered: Callable[[Service], None] | None = offered
        self._timer: IDelayedCall | None = None

    def receive(self, service: Service) -> None:
        """Deliver a service of that name. No-op once cancelled."""
        if self._offered is not None:
            self._offered(service)

    def end_after(self, seconds: float, clock: IReactorTime, ended: Callable[[], None]) -> None:
        """Set the deadline: cancel the wait after that many seconds, then call ``ended``."""

        def end() -> None:
            self.cancel()
            ended()

        self._timer = clock.callLater(seconds, end)

    def cancel(self) -> None:
        if self._offered is None:
            return
        self._offered = None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._waits.remove(self)


class Waits:
    """Table of all waits by name, in order of arrival."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._by_name: dict[str, dict[Wait, None]] = {}
        self._count = 0
        self.begun = 0
        """Number of waits that have ever begun. Each has the next number."""

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        name: str,
        seconds: float | None,
        offered: Callable[[Service], None],
        ended: Callable[[], None],
        amended: bool = False,
    ) -> Wait:
        """Add a wait; see `IRegistry.monitor`. With ``amended`` it receives amended services too."""
        if self._count >= MAX_WAITS:
            raise Refusal(Reason.LIMIT, f"the broker holds {MAX_WAITS} waiting finds, and takes no more")
        self.begun += 1
        wait = Wait(self, name, self.begun, offered, amended)
        self._by_name.setdefault(name, {})[wait] = None
        self._count += 1
        if seconds is not None:
            wait.end_after(seconds, self._clock, ended)
        return wait

    def remove(self, wait: Wait) -> None:
        """Remove a wait that has ended."""
        same_name = self._by_name[wait.name]
        del same_name[wait]
        self._count -= 1
        if not same_name:
            del self._by_name[wait.name]

    def of(self, name: str, after: int = 0, amended: bool = False) -> Sequence[Wait]:
        """Return the present waits for a name, by default all, else those that began after the wait with a number, or
        those that receive amended services.

        A copy: a callback may cancel or add waits.
        """
        waits = self._by_name.get(name)
        if waits is None:
            return ()
        if amended:
            return tuple(wait for wait in waits if wait.amended)
        return tuple(wait for wait in waits if wait.number > after) if after else tuple(waits)
