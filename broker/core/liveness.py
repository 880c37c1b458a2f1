"""Leases: deadlines of peers, in a time in which the broker itself was alive.

A peer is thought gone when nothing was heard of it for a while. If the broker's own loop stood still for that while, it
could not hear: what the peer sent lies unread, and the timers run before it is read. So silence is measured in *life
time*, which does not count what the broker slept through; a farm survives a broker that was stopped, swapped out,
suspended with its machine, or kept busy by something else.

Rules:
- One timer is set for the lease that is due next. While none is due nothing runs. With nothing held there is no timer,
  and life time stands still.
- Before a lease is checked there are two wake-ups, *ticks*: the first `AHEAD` of its time, and the second at it, at
  least `TICK` later. At a tick leases are checked for no more than `TICK` and `TOLERANCE` after the one before. So the
  first checks nothing. What lay unread, for whatever reason, is read between the two.
- ``now`` goes on at each tick, and at each `look`: the scheduler looks when it begins to serve a connection, so that
  the stamp of a message is of the moment at which it is read.
- Between two looks life time goes on by what the clock did: a broker that wakes in time cannot tell that it was stopped
  from having been idle. If it wakes later than it should by more than `LATEST`, it stood still, perhaps since the last
  look: of all that time `LATEST` counts, and the next tick comes after `TICK`. In a loop that is slow, but turns,
  silence takes no longer than on the clock. The rest is added up in ``stalled``, and a long stall is logged. A clock
  that is set forward looks the same.
- So a stop that ends before the next lease is due is not noticed, and counts. What peers sent meanwhile is read before
  that lease is checked; a peer that was stopped as well, on a machine that was suspended, loses that time.
- A tick that is late checks what a punctual one would have checked: what came in meanwhile lies unread. It is read
  before the next tick, which checks the rest.
- A clock that is set back costs no life time, and adds none. Twisted's timers do not run until it has caught up; `look`
  and `hold` notice, and set the timer again.
- Each lease lies in the slot of the time at which it is due, so that a tick touches those that are due and hardly any
  others. Nothing moves when a peer is heard: its lease finds out when it is checked, and goes into a later slot.
- A lease that is due already when it is held, or returned by a check, is checked at the next tick.
- A cancelled lease leaves its slot at once, so that holding and cancelling in turn piles up nothing.
- A check that fails is our defect: it is logged and ends its lease, and the others go on.

There is no bound on leases here: sessions hold them, one or two each, and are bounded themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import ILease, ILeases, Leased

TICK = 0.025
"""Seconds of a slot, and the least between two ticks: an eighth of the shortest interval that a wire agrees to, 0.2 s.
A peer that sends every 0.5 s, and is missed after three of them, is thought gone within a fifth of an interval."""

TOLERANCE = 0.025
"""Seconds by which a tick may be late and leases still be checked for all of the time since the last one: several turns
of a busy loop. With `TICK` it is how long a message may lie unread that a check should have known of."""

AHEAD = TICK + 0.8 * TOLERANCE
"""Seconds from the first tick to the one at which a lease is due. More than `TICK`, so that a first tick that is a
little late does not delay the second; less than `TICK` and `TOLERANCE`, so that the second is for all of the time."""

LEAST_WAIT = TICK / 10
"""Seconds: the shortest wait for a first tick. A much shorter one may be none at all in the numbers of the clock, which
has about a quarter of a microsecond to a step."""

LATEST = 0.25
"""Seconds by which a tick may be late and all of the time since the last look count. A loop that still turns four times
a second, on a machine that starves it, ends a silent peer as soon as the clock says, within the 5 intervals that a wire
promises; where it counted less, silence would last a multiple of them. Beyond it the broker stood still, and cannot
tell silence from its own."""

SLACK_EXACT = TICK + TOLERANCE
"""Seconds; see `ILeases.slack_exact`. For a message that lies unread at a tick that is just not late."""

SLACK = LATEST + SLACK_EXACT
"""Seconds; see `ILeases.slack`. Also for a stamp that is as old as the last look, in a loop that is slow."""

LONG_STALL = 1.0
"""Seconds; a longer stall is logged. No work of a sound broker takes so long."""

WARN_EVERY = 60.0
"""Seconds between two log lines on stalls, which come in rows."""

FEW = 64
"""Numbers of empty slots that are kept, and as many as there are slots that are not empty."""


@implementer(ILease)
class Lease:
    """One thing held. ``slot`` is the number of the slot in which it lies."""

    __slots__ = ("_leases", "due", "leased", "slot")

    def __init__(self, leases: Leases, leased: Leased, due: float) -> None:
        self._leases = leases
        self.leased: Leased | None = leased
        self.due = due
        self.slot = 0

    def cancel(self) -> None:
        if self.leased is not None:
            self.leased = None
            self._leases.forget(self)


@implementer(ILeases)
class Leases:
    """See `ILeases` for what each method promises."""

    log = Logger()
    slack = SLACK
    slack_exact = SLACK_EXACT

    def __init__(self, clock: IReactorTime) -> None:
        self.now = 0.0
        self.stalled = 0.0
        self._clock = clock
        self._at = 0.0
        """The clock at the last look."""
        self._read = 0.0
        """Life time at the last tick, or when the next one was set."""
        self._until = 0.0
        """Life time that leases were last checked for; less than ``now`` if the tick was late, or the first of two."""
        self._timer: IDelayedCall | None = None
        self._wake = 0.0
        """The clock for which the timer is set."""
        self._first = False
        """True if that is the first tick of two."""
        self._next = 0
        """The number of the slot for which it is set."""
        self._ticking = False
        self._stood = False
        """True from a stall to the next tick that is set."""
        self._held = 0
        self._slots: dict[int, dict[Lease, None]] = {}
        self._order: list[int] = []
        """A heap of the numbers of all slots, and of some that are empty again."""
        self._slot = 0
        """The number of the slot of ``until``: there is none before it."""
        self._warned: float | None = None

    def __len__(self) -> int:
        return self._held

    def __iter__(self) -> Iterator[Lease]:
        for slot in self._slots.values():
            yield from slot

    @property
    def slots(self) -> int:
        """The number of slots of time that hold leases."""
        return len(self._slots)

    def hold(self, leased: Leased, due: float) -> Lease:
        lease = Lease(self, leased, due)
        self._place(lease)
        self._held += 1
        if self._held == 1 and not self._ticking:
            self._at = self._clock.seconds()
            self._set()
        else:
            self.look()
            if lease.slot < self._next and not self._ticking:
                self._set()
        return lease

    def moment(self) -> float:
        self.look()
        return self.now

    def look(self) -> None:
        if self._timer is not None or self._ticking:
            now = self._clock.seconds()
            passed = now - self._at
            # Nearly always: it went on, and the timer is not due.
            if passed >= 0 and now <= self._wake:
                self._at = now
                self.now += passed
            else:
                self._count(passed, now)

    def forget(self, lease: Lease) -> None:
        """A lease is over."""
        if self._held == 1:
            self.look()
        self._held -= 1
        same = self._slots.get(lease.slot)
        # Those that are being checked lie in no slot.
        if same is not None and same.pop(lease, self) is None and not same:
            del self._slots[lease.slot]
            if len(self._order) > FEW + 2 * len(self._slots):
                self._order = list(self._slots)
                heapify(self._order)
        if self._held == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _place(self, lease: Lease) -> None:
        """Put a lease into its slot, or into the present one if its own is past."""
        lease.slot = slot = max(self._slot, int(lease.due / TICK))
        same = self._slots.get(slot)
        if same is None:
            same = self._slots[slot] = {}
            heappush(self._order, slot)
        same[lease] = None

    def _set(self) -> None:
        """Set the timer for the next tick, if anything is held."""
        order = self._order
        while order and order[0] not in self._slots:
            heappop(order)
        if not order:
            return
        self._next = order[0]
        wait = (order[0] + 1) * TICK - self.now
        first = wait >= AHEAD + LEAST_WAIT
        wait = TICK if self._stood else wait - AHEAD if first else max(wait, TICK)
        self._stood = False
        if self._timer is not None:
            if not self._first and self._at <= self._wake <= self._at + wait:
                return  # it is checked at the tick that is to come
            self._timer.cancel()
        self._first = first
        self._read = self.now
        self._wake = self._at + wait
        self._timer = self._clock.callLater(wait, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticking = True
        now = self._clock.seconds()
        self._count(now - self._at, now)
        self._until = min(self.now, self._read + TICK + TOLERANCE)
        for lease in self._due():
            leased = lease.leased
            if leased is None:
                continue  # one that a check before it has cancelled
            try:
                again = leased.check(self._until)
                if again is not None and lease.leased is not None:
                    lease.due = again
                    self._place(lease)
                    continue
            except Exception:
                self.log.failure("a check of a {leased} failed, and was its last", leased=type(leased).__name__)
            lease.cancel()
        self._ticking = False
        self._set()

    def _count(self, passed: float, now: float) -> None:
        """So much of the clock's time has passed since the last look; ``now`` is the clock."""
        self._at = now
        if passed < 0:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._set()
            return
        if passed > LATEST and now > self._wake + LATEST:
            stall = passed - LATEST
            passed = LATEST
            self.stalled += stall
            self._stood = True
            if stall > LONG_STALL and (self._warned is None or not 0 <= now - self._warned < WARN_EVERY):
                self._warned = now
                self.log.warn(
                    "the broker stood still for {seconds:.1f} s, {all:.1f} s in all; no lease ends for that",
                    seconds=stall,
                    all=self.stalled,
                )
        self.now += passed

    def _due(self) -> list[Lease]:
        """Take out of their slots all leases that are due."""
        now = self._until
        self._slot = slot = int(now / TICK)
        due: list[Lease] = []
        order = self._order
        while order and order[0] < slot:
            due += self._slots.pop(heappop(order), ())
        present = self._slots.get(slot)
        if present is not None:
            early = [lease for lease in present if lease.due <= now]
            for lease in early:
                del present[lease]
            if not present:
                del self._slots[slot]
            due += early
        return due
