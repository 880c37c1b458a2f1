"""Leases: deadlines of peers, on a clock that excludes stalls of the broker itself.

A peer is considered dead after a period of silence. If the broker's own loop stalls during that period, the peer's
messages are unread, and timers run before they are read. So silence is measured on the *lifetime clock*, which does
not count stalls: a farm survives a broker that was stopped, swapped out, suspended with its machine, or starved of CPU.

Rules:
- One timer is set, for the lease that is due next. With no leases there is no timer, and lifetime does not advance.
- A check is preceded by two wake-ups, *ticks*: the first `AHEAD` of the deadline, and the second at it, at least `TICK`
  later. A tick checks leases for at most `TICK` and `TOLERANCE` after the tick before, so the first one checks nothing,
  and unread input is read between the two.
- ``now`` advances at each tick, and at each `look`: the scheduler looks when it begins to serve a connection, so that
  the timestamp of a message is the moment at which it is read.
- Between two looks lifetime advances with the clock: after a timely wake-up a stop is indistinguishable from idleness.
  A wake-up that is late by more than `LATEST` is a stall, which may have begun at the last look: of all that time
  `LATEST` counts, and the next tick follows after `TICK`. In a slow loop that still turns, silence takes no longer than
  on the clock. The rest is added to ``stalled``, and a long stall is logged. A clock that is set forward has the same
  effect.
- So a stop that ends before the next deadline is undetected, and counts. Messages that arrived meanwhile are read
  before that lease is checked; a peer that was stopped as well, on a suspended machine, loses that time.
- A late tick checks only what a punctual one would have checked, since input is unread. It is read before the next
  tick, which checks the rest.
- A clock that is set back neither adds nor removes lifetime. Twisted's timers do not run until it has caught up;
  `look` and `hold` detect this, and set the timer again.
- Each lease is in the slot of its deadline, so that a tick touches those that are due and hardly any others. A message
  of a peer moves nothing: its lease is moved to a later slot at its next check.
- A lease that is due already when it is held, or returned by a check, is checked at the next tick.
- A cancelled lease leaves its slot at once, so that repeated holding and cancelling accumulates nothing.
- An exception in a check is a defect of the broker: it is logged and ends that lease only.

The number of leases is not bounded here: sessions hold one or two each, and are bounded themselves. ADR 0024 has the
measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import ILease, ILeases, Leased

TICK = 0.025
"""Length of a slot, and the shortest time between two ticks, in seconds: an eighth of the shortest interval that a wire
agrees to, 0.2 s. A peer with an interval of 0.5 s that misses three heartbeats is considered dead within a fifth of an
interval."""

TOLERANCE = 0.025
"""Lateness of a tick, in seconds, up to which it checks all of the time since the last one: several turns of a busy
loop. Together with `TICK` it is the longest time for which a relevant message may be unread at a check."""

AHEAD = TICK + 0.8 * TOLERANCE
"""Seconds from the first tick to the one at which a lease is due. More than `TICK`, so that a slightly late first tick
does not delay the second; less than `TICK` and `TOLERANCE`, so that the second covers all of the time."""

LEAST_WAIT = TICK / 10
"""Shortest wait for a first tick, in seconds. A much shorter one may be rounded to zero: the clock's floats have a
resolution of about a quarter of a microsecond."""

LATEST = 0.25
"""Lateness of a tick, in seconds, up to which all of the time since the last look counts. A loop that still turns four
times a second on a starved machine detects a silent peer when the clock does, within the 5 intervals that a wire
promises; a smaller value would multiply that time. Beyond it the broker has stalled, and the silence may be its own."""

SLACK_EXACT = TICK + TOLERANCE
"""See `ILeases.slack_exact`; in seconds. Allows for a message that is unread at a tick that is just not late."""

SLACK = LATEST + SLACK_EXACT
"""See `ILeases.slack`; in seconds. Allows also for a timestamp as old as the last look, in a slow loop."""

LONG_STALL = 1.0
"""Stalls longer than this are logged, in seconds. No job of a sound broker takes so long."""

WARN_EVERY = 60.0
"""Seconds between two log lines on stalls, which come in series."""

FEW = 64
"""Empty slots that may stay in the heap, beside as many as there are slots in use."""


@implementer(ILease)
class Lease:
    """A held lease. ``slot`` is the number of its slot."""

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
    """Implementation of `ILeases` as a wheel of time slots."""

    log = Logger()
    slack = SLACK
    slack_exact = SLACK_EXACT

    def __init__(self, clock: IReactorTime) -> None:
        self.now = 0.0
        self.stalled = 0.0
        self._clock = clock
        self._at = 0.0
        """Clock at the last look."""
        self._read = 0.0
        """Lifetime at the last tick, or when the next one was set."""
        self._until = 0.0
        """Lifetime up to which leases were last checked; less than ``now`` if the tick was late, or the first of
        two."""
        self._timer: IDelayedCall | None = None
        self._wake = 0.0
        """Clock time for which the timer is set."""
        self._first = False
        """True if that is the first of the two ticks."""
        self._next = 0
        """Number of the slot for which the timer is set."""
        self._ticking = False
        self._stood = False
        """True from a stall to the next tick that is set."""
        self._held = 0
        self._slots: dict[int, dict[Lease, None]] = {}
        self._order: list[int] = []
        """Heap of the numbers of all slots, and of some that are empty again."""
        self._slot = 0
        """Number of the slot of ``until``: no slot before it is in use."""
        self._warned: float | None = None

    def __len__(self) -> int:
        return self._held

    def __iter__(self) -> Iterator[Lease]:
        for slot in self._slots.values():
            yield from slot

    @property
    def slots(self) -> int:
        """The number of slots in use."""
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
            # The usual case: the clock went forward, and the timer is not overdue.
            if passed >= 0 and now <= self._wake:
                self._at = now
                self.now += passed
            else:
                self._count(passed, now)

    def forget(self, lease: Lease) -> None:
        """Remove a lease that has ended."""
        if self._held == 1:
            self.look()
        self._held -= 1
        same = self._slots.get(lease.slot)
        # Leases that are being checked are in no slot.
        if same is not None and same.pop(lease, self) is None and not same:
            del self._slots[lease.slot]
            if len(self._order) > FEW + 2 * len(self._slots):
                # The heap keeps the numbers of empty slots, since their removal is linear. It is rebuilt when most are
                # empty.
                self._order = list(self._slots)
                heapify(self._order)
        if self._held == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _place(self, lease: Lease) -> None:
        """Put a lease into its slot, or into the present one if its own has passed."""
        lease.slot = slot = max(self._slot, int(lease.due / TICK))
        same = self._slots.get(slot)
        if same is None:
            same = self._slots[slot] = {}
            heappush(self._order, slot)
        same[lease] = None

    def _set(self) -> None:
        """Set the timer for the next tick, if there are leases."""
        order = self._order
        while order and order[0] not in self._slots:
            heappop(order)
        if not order:
            return
        self._next = order[0]
        wait = (order[0] + 1) * TICK - self.now
        first = wait >= AHEAD + LEAST_WAIT
        # After a stall one tick suffices: it gives unread input the time to be read before the next check.
        wait = TICK if self._stood else wait - AHEAD if first else max(wait, TICK)
        self._stood = False
        if self._timer is not None:
            if not self._first and self._at <= self._wake <= self._at + wait:
                return  # the tick that is set already checks it
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
        # A late tick must not check beyond the input that a punctual one would have left unread.
        self._until = min(self.now, self._read + TICK + TOLERANCE)
        for lease in self._due():
            leased = lease.leased
            if leased is None:
                continue  # cancelled by an earlier check of this tick
            try:
                again = leased.check(self._until)
                if again is not None and lease.leased is not None:
                    lease.due = again
                    self._place(lease)
                    continue
            except Exception:
                self.log.failure("the check of a {leased} failed; its lease ends", leased=type(leased).__name__)
            lease.cancel()
        self._ticking = False
        self._set()

    def _count(self, passed: float, now: float) -> None:
        """Advance the lifetime clock after ``passed`` seconds of the clock; ``now`` is the clock."""
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
                    "the broker stalled for {seconds:.1f} s, {all:.1f} s in all; no lease expires because of it",
                    seconds=stall,
                    all=self.stalled,
                )
        self.now += passed

    def _due(self) -> list[Lease]:
        """Remove all due leases from their slots, and return them."""
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
