"""Exponential back-off with jitter: pauses between attempts of the daemon, the client and brokerctl."""

from __future__ import annotations

from collections.abc import Callable
from random import random

import attrs

MAX_EXPONENT = 64
"""Consecutive failures that still lengthen a pause. A higher power of a large factor overflows a float."""


@attrs.frozen
class Backoff:
    """Exponential back-off in seconds: ``first``, multiplied by ``factor`` after each further failure, at most
    ``most``.

    ``jitter`` is the random part of a pause, from 0.0 to 1.0. It spreads the retries of peers that failed at the same
    moment.
    """

    first: float
    most: float
    factor: float = 2.0
    jitter: float = 0.0

    def after(self, failures: int, fraction: float = 1.0) -> float:
        """Return the pause after that many consecutive failures, at least one, in seconds.

        ``fraction`` is a random number from 0.0 to 1.0, which places the pause within the jitter.
        """
        length = min(self.first * self.factor ** min(failures - 1, MAX_EXPONENT), self.most)
        return length * (1.0 - self.jitter * (1.0 - fraction))


class Pauses:
    """The pauses of one peer that connects again. ``fraction`` returns random numbers from 0.0 to 1.0.

    Half of a pause is random: peers that lost the same broker at the same moment do not return together.
    """

    def __init__(self, first: float, most: float, fraction: Callable[[], float] = random) -> None:
        self._backoff = Backoff(first, most, jitter=0.5)
        self._fraction = fraction
        self._failures = 0

    def next(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        self._failures += 1
        return self._backoff.after(self._failures, self._fraction())

    def reset(self) -> None:
        """Return to the shortest pause, after an attempt that succeeded."""
        self._failures = 0
