"""Exponential back-off with jitter."""

from __future__ import annotations

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
