"""Exponential back-off: the pauses between attempts at something that fails."""

from __future__ import annotations

import attrs

MAX_EXPONENT = 64
"""Failures in a row that still lengthen a pause: a higher power of a large factor is no float any more."""


@attrs.frozen
class Backoff:
    """Pauses in seconds: ``first``, then ``factor`` times as long after each further failure, ``most`` at most.

    ``jitter`` is the part of a pause that is left to chance, from 0.0 to 1.0, so that those who failed at the same
    moment do not all try again at the same moment.
    """

    first: float
    most: float
    factor: float = 2.0
    jitter: float = 0.0

    def after(self, failures: int, fraction: float = 1.0) -> float:
        """Return the pause after that many failures in a row, at least one.

        ``fraction`` is a random number from 0.0 to 1.0, which places the pause within the jitter.
        """
        length = min(self.first * self.factor ** min(failures - 1, MAX_EXPONENT), self.most)
        return length * (1.0 - self.jitter * (1.0 - fraction))
