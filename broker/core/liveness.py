"""Leases: who must be looked at when, in a time in which the broker itself was alive.

A peer is thought gone when nothing was heard of it for a while. If the broker's own loop stood still for that while, it
could not hear: what the peer sent lies unread, and the timers run before it is read. So silence is measured in *life
time*, which does not count what the broker slept through; a farm survives a broker that was stopped, swapped out,
suspended with its machine, or kept busy by something else.

Rules:
- While anything is held there is a tick every `TICK` seconds, by one timer. With nothing held there is no timer, and
  life time stands still.
- At a tick, life time goes on by what the clock did since the last one, up to `LATEST`: in a loop that is slow, but
  turns, silence takes no longer than on the clock. What is beyond is a stall: it is added up in ``stalled``, and a long
  one is logged. A clock that is set forward looks the same.
- At a tick that is late by more than `TOLERANCE`, leases are checked for the time in which they would have been checked
  by a punctual one: what came in meanwhile lies unread. It is read before the next tick, which checks for all of it.
- `Leases.moment` is life time between two ticks. The next tick counts no less than it did, also when the clock is set
  back; when the last lease ends before it, life time stands still there. So it never falls.
- A clock that is set back costs no life time, and adds none. Twisted's timers do not run until it has caught up; `look`
  and `hold` notice, and set the timer again.
- Each lease lies in the slot of the time at which it is due, so that a tick touches those that are due and hardly any
  others. Nothing moves when a peer is heard: its lease finds out when it is checked, and goes into a later slot.
- What is held when it is due already is checked at the next tick, also if that is done, or returned, by a check.
- A cancelled lease leaves its slot at once, so that holding and cancelling in turn piles up nothing.
- A check that fails is our defect: it is logged and ends its lease, and the others go on.

There is no bound on leases here: sessions hold them, one or two each, and are bounded themselves.
"""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import ILease, ILeases, Leased

TICK = 0.025
"""Seconds between ticks: an eighth of the shortest interval that a wire agrees to, 0.2 s. A peer that sends every
0.5 s, and is missed after three of them, is thought gone within a fifth of an interval. The work of a tick in which
nothing is due takes a few microseconds; what 40 of them a second cost is the waking: 3 % of a core on a virtual machine
that is slow at it, where half as many cost 2 %."""

TOLERANCE = 0.025
"""Seconds by which a tick may be late and leases still be checked for all of the time since the last one: several turns
of a busy loop. With `TICK` it is how long a message may lie unread that a check should have known of."""

LATEST = 0.25
"""Seconds between two ticks that count in full. A loop that still turns four times a second, on a machine that starves
it, ends a silent peer as soon as the clock says, within the 5 intervals that a wire promises; where it counted less,
silence would last a multiple of them. Beyond it the broker stood still, and cannot tell silence from its own."""

SLACK_EXACT = TICK + TOLERANCE
"""Seconds; see `ILeases.slack_exact`. For a message that lies unread at a tick that is just not late."""

SLACK = LATEST + SLACK_EXACT
"""Seconds; see `ILeases.slack`. Also for a stamp that is as old as the last tick, in a loop that is slow."""

LONG_STALL = 1.0
"""Seconds; a longer stall is logged. No work of a sound broker takes so long."""

WARN_EVERY = 60.0
"""Seconds between two log lines on stalls, which come in rows."""


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
        self._moment = 0.0
        """The last that `moment` gave."""
        self._until = 0.0
        """Life time at the last tick that leases were checked for; less than ``now`` if the tick was late."""
        self._at = 0.0
        """The clock at the last tick, or at the beginning of ticking."""
        self._timer: IDelayedCall | None = None
        self._held = 0
        self._slots: dict[int, dict[Lease, None]] = {}
        self._slot = 0
        """The number of the slot of ``until``: there is none before it."""
        self._warned: float | None = None

    def __len__(self) -> int:
        return self._held

    def hold(self, leased: Leased, due: float) -> Lease:
        lease = Lease(self, leased, due)
        self._place(lease)
        self._held += 1
        if self._timer is None:
            self._start(self._clock.seconds())
        else:
            self.look()
        return lease

    def moment(self) -> float:
        if self._timer is None:
            return self.now
        passed = min(self._clock.seconds() - self._at, LATEST)
        self._moment = moment = max(self._moment, self.now, self.now + passed)
        return moment

    def look(self) -> None:
        if self._timer is not None:
            now = self._clock.seconds()
            if now < self._at:
                self._timer.cancel()
                self._start(now)

    def forget(self, lease: Lease) -> None:
        """A lease is over."""
        self._held -= 1
        same = self._slots.get(lease.slot)
        # Those that are being checked lie in no slot.
        if same is not None and same.pop(lease, self) is None and not same:
            del self._slots[lease.slot]
        if self._held == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.now = max(self.now, self._moment)

    def _place(self, lease: Lease) -> None:
        """Put a lease into its slot, or into the present one if its own is past."""
        lease.slot = slot = max(self._slot, int(lease.due / TICK))
        self._slots.setdefault(slot, {})[lease] = None

    def _start(self, now: float) -> None:
        """Set the timer for the next tick; ``now`` is the clock."""
        self._at = now
        self._timer = self._clock.callLater(TICK, self._tick)

    def _tick(self) -> None:
        at = self._at
        now = self._clock.seconds()
        # The timer is set before the checks, so that it also runs if one of them holds something or ends the last.
        self._start(now)
        self._count(now - at, now)
        due = self._due()
        for lease in due:
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

    def _count(self, passed: float, now: float) -> None:
        """So much of the clock's time has passed since the last tick."""
        stall = passed - LATEST
        if stall > 0:
            self.stalled += stall
            passed = LATEST
            if stall > LONG_STALL and (self._warned is None or not 0 <= now - self._warned < WARN_EVERY):
                self._warned = now
                self.log.warn(
                    "the broker stood still for {seconds:.1f} s, {all:.1f} s in all; no lease ends for that",
                    seconds=stall,
                    all=self.stalled,
                )
        read = self.now
        if passed > 0:
            self.now += passed
        self.now = max(self.now, self._moment)
        self._until = min(self.now, read + TICK + TOLERANCE)

    def _due(self) -> list[Lease]:
        """Take out of their slots all leases that are due."""
        now = self._until
        slot = int(now / TICK)
        due: list[Lease] = []
        for number in range(self._slot, slot):
            due += self._slots.pop(number, ())
        self._slot = slot
        present = self._slots.get(slot)
        if present is not None:
            early = [lease for lease in present if lease.due <= now]
            for lease in early:
                del present[lease]
            if not present:
                del self._slots[slot]
            due += early
        return due
