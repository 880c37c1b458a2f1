"""Heartbeats of one data flow: Pings during silence, and detection of a dead broker.

Rules:
- After one heartbeat without input or without output the client sends a Ping. Any message is a sign of life.
- After some heartbeats without input the flow is dead.
- A stall of the client's own process does not count as silence of the broker: its length is added to the deadline, and
  input that arrived meanwhile is read before the flow is given up. Time in which the client does not receive
  (backpressure) does not count either.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

TOLERANCE = 0.001
"""Seconds by which a timer may fire early because of rounding."""


class Heartbeat:
    """Heartbeat timer of one flow. It calls ``ping`` to send a Ping, and ``dead`` once when the broker is silent for
    ``dead_after`` intervals of ``interval`` seconds."""

    def __init__(
        self,
        clock: IReactorTime,
        interval: float,
        dead_after: int,
        ping: Callable[[], object],
        dead: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._interval = interval
        self._limit = interval * dead_after
        self._ping = ping
        self._dead = dead
        self._paused = False
        self._last_chance = False
        self._last_received = self._last_sent = clock.seconds()
        self._last_ping = self._last_received - interval
        self._due = self._last_received
        self._next: IDelayedCall | None = None
        self._wait()

    def received(self) -> None:
        """Record that a message arrived."""
        self._last_received = self._clock.seconds()
        self._last_chance = False

    def sent(self) -> None:
        """Record that a message was sent."""
        self._last_sent = self._clock.seconds()

    def set_receiving(self, receiving: bool) -> None:
        """Suspend the detection while the client does not receive, or resume it."""
        self._paused = not receiving
        self.received()

    def stop(self) -> None:
        """Stop the timer, at the end of the flow."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _wait(self) -> None:
        beat = max(min(self._last_received, self._last_sent), self._last_ping) + self._interval
        self._due = min(beat, self._last_received + self._limit)
        self._next = self._clock.callLater(max(0.0, self._due - self._clock.seconds()), self._check)

    def _check(self) -> None:
        self._next = None
        now = self._clock.seconds()
        # A timer that fires late measures the stall of this process.
        stalled = now - self._due
        if self._paused:
            self._last_received = now
        elif stalled > self._interval / 2:
            self._last_received += stalled
        if now + TOLERANCE >= self._last_received + self._limit:
            if stalled <= self._interval / 2 or self._last_chance:
                self._dead()
                return
            # Input may wait in the socket after a stall: grant one more interval to read it.
            self._last_chance = True
            self._last_received = now + self._interval - self._limit
        if now + TOLERANCE >= max(min(self._last_received, self._last_sent), self._last_ping) + self._interval:
            self._last_ping = now
            self._ping()
        self._wait()
