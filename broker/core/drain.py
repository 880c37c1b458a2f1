"""The drain: new peers are refused, present ones are sent away, and the daemon waits until all have gone.

States of a drain, and the events that change them:

    state      meaning                                  event: state that follows
    off        everybody is served                      drain: draining
    draining   peers were asked to leave                none left: drained; deadline: overdue; undrain: off
    drained    no peer is left                          undrain: off; drain: draining, with a new deadline
    overdue    some peers are left after the deadline   none left: drained; undrain: off; drain: draining

Rules:
- A drain changes nothing else: listeners stay open, the registry and the journal go on, operators are served.
- A further `drain` sends away those that are left again, and begins the time again.
- A stop of the daemon during a drain closes the remaining connections as any stop does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.errors import Reason, Refusal

CHECK = 0.5
"""Seconds between two counts of the remaining peers: a count costs a step for each connection."""

MOST_SECONDS = 86_400.0
"""Longest time of a drain, in seconds."""


DrainState = Literal["off", "draining", "drained", "overdue"]


@attrs.frozen
class Drain:
    """State of a drain.

    - ``off``: the daemon serves everybody.
    - ``draining``: new peers are refused, and present ones were asked to leave. ``drained``: all have left.
    - ``overdue``: the deadline has passed, and some peers are still connected.

    ``seconds`` is the time until the deadline, 0.0 in any other state than ``draining``. ``remaining`` has the number
    of peers that are still connected, by wire; wires without any are absent.
    """

    state: DrainState = "off"
    seconds: float = 0.0
    remaining: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def text(self) -> str:
        """The state as a line of text."""
        left = _listed(self.remaining)
        time = f", {self.seconds:.0f} s left" if self.state == "draining" else ""
        return f"drain: {self.state}{time}{f'; peers: {left}' if left else ''}"


def _listed(remaining: Mapping[str, int]) -> str:
    return ", ".join(f"{wire} {count}" for wire, count in remaining.items())


class Draining:
    """The drain of the wires. ``away`` sends all peers away, ``back`` ends that, ``remaining`` counts them by wire.

    ``changed`` is called at the start and at the end of a drain.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        away: Callable[[], object],
        back: Callable[[], object],
        remaining: Callable[[], Mapping[str, int]],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self._away = away
        self._back = back
        self._remaining = remaining
        self._changed = changed
        self.state: DrainState = "off"
        self._deadline = 0.0
        self._timer: IDelayedCall | None = None

    def drain(self, seconds: float) -> Drain:
        """Begin, or begin again. Raises `Refusal` PARAMETER for a time out of range."""
        if not 0 <= seconds <= MOST_SECONDS:
            raise Refusal(Reason.PARAMETER, f"the deadline is between 0 and {MOST_SECONDS:g} seconds")
        self._cancel()
        self.log.info(
            "drain: new peers are refused, and present ones are sent away, within {seconds:g} s", seconds=seconds
        )
        self.state = "draining"
        self._deadline = self._clock.seconds() + seconds
        # Before the peers leave: the brokers to which they go must know already that this one drains.
        self._changed()
        self._away()
        self._check()
        return self.describe()

    def undrain(self) -> Drain:
        """End the drain. No-op without one."""
        if self.state != "off":
            self._cancel()
            self.state = "off"
            self._back()
            self._changed()
            self.log.info("drain: undone, all peers are served again")
        return self.describe()

    def describe(self) -> Drain:
        """Return the state."""
        left = max(0.0, self._deadline - self._clock.seconds()) if self.state == "draining" else 0.0
        return Drain(self.state, round(left, 3), {} if self.state == "off" else self._remaining())

    def stop(self) -> None:
        """Stop counting: the daemon stops."""
        self._cancel()

    def _check(self) -> None:
        self._timer = None
        remaining = self._remaining()
        if not remaining:
            self.state = "drained"
            self.log.info("drain: all peers have left")
            return
        if self.state == "draining" and self._clock.seconds() >= self._deadline:
            self.state = "overdue"
            self.log.warn("drain: the deadline has passed, and peers are left: {left}", left=_listed(remaining))
        self._timer = self._clock.callLater(CHECK, self._check)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
