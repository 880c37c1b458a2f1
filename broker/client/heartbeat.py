"""Whether the broker is there: Pings into silence, and the verdict when nothing comes back.

Rules:
- Who has said nothing, or heard nothing, for one heartbeat sends a Ping. Any message is a sign of life, in both
  directions.
- After some heartbeats without a word of the broker it is dead.
- A client that was asleep itself does not hold that against the broker: what it slept does not count, and what came
  meanwhile is still to be read before it is over. Nor does the time count in which it did not listen.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

TOLERANCE = 0.001
"""Seconds by which a call may come early: times are rounded."""


class Heartbeat:
    """Watches over one flow. ``ping`` is called to send a Ping, ``dead`` once, when there is nobody any more."""

    def __init__(
        self,
        clock: IReactorTime,
        beat: float,
        dead_after: int,
        ping: Callable[[], object],
        dead: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._beat = beat
        self._patience = beat * dead_after
        self._ping = ping
        self._dead = dead
        self._deaf = False
        self._last_chance = False
        self._heard = self._said = clock.seconds()
        self._pinged = self._heard - beat
        self._due = self._heard
        self._next: IDelayedCall | None = None
        self._wait()

    def heard(self) -> None:
        """The broker said something."""
        self._heard = self._clock.seconds()
        self._last_chance = False

    def said(self) -> None:
        """The client said something."""
        self._said = self._clock.seconds()

    def listens(self, listens: bool) -> None:
        """Whether the client listens at all."""
        self._deaf = not listens
        self.heard()

    def stop(self) -> None:
        """The flow is over."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _wait(self) -> None:
        beat = max(min(self._heard, self._said), self._pinged) + self._beat
        self._due = min(beat, self._heard + self._patience)
        self._next = self._clock.callLater(max(0.0, self._due - self._clock.seconds()), self._check)

    def _check(self) -> None:
        self._next = None
        now = self._clock.seconds()
        slept = now - self._due
        if self._deaf:
            self._heard = now
        elif slept > self._beat / 2:
            self._heard += slept
        if now + TOLERANCE >= self._heard + self._patience:
            if slept <= self._beat / 2 or self._last_chance:
                self._dead()
                return
            self._last_chance = True
            self._heard = now + self._beat - self._patience
        if now + TOLERANCE >= max(min(self._heard, self._said), self._pinged) + self._beat:
            self._pinged = now
            self._ping()
        self._wait()
