"""Units of time, and the times in which the broker is there.

Rules:
- Times are microseconds since 1970.
- A killed broker leaves no last record, and its unacknowledged records are not there. All providers register again
  within `RETURN` after it is back.
"""

from datetime import UTC, datetime

import attrs
import numpy as np
from numpy.typing import NDArray

from tests.spark.generator.farm import Faults

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SECOND = 1_000_000
"""Microseconds, the unit of time of the journal."""

HOUR = 3600 * SECOND
DAY = 24 * HOUR

END = datetime(2026, 6, 1, tzinfo=UTC)
"""Default end of a generated month. A fixed date, so that runs can be compared."""

ALIVE = 60
"""Seconds between two signs of life of the broker."""

RETURN = 30
"""Seconds within which all providers have registered again after the broker came back."""


@attrs.frozen
class Boot:
    """One life of the broker."""

    name: str
    start: int
    end: int
    how: str
    """End of the life: ``killed``, ``stopped``, ``runs``."""


def boots_of(chance: np.random.Generator, start: int, until: int, faults: Faults) -> list[Boot]:
    """The broker's lives: it is killed or restarted at times spread over the whole, a minute after a full one."""
    count = faults.kills + faults.restarts
    hows = ["killed"] * faults.kills + ["stopped"] * faults.restarts
    chance.shuffle(hows)
    boots = []
    at = start
    for number, how in enumerate(hows):
        stop = start + (until - start) * (number + 1) // (count + 1) + int(chance.uniform(0, HOUR))
        boots.append(Boot(_stamp(at), at, stop, how))
        # Somebody has to notice that it was killed.
        at = stop + int(chance.uniform(120, 1200) if how == "killed" else chance.uniform(3, 20)) * SECOND
    boots.append(Boot(_stamp(at), at, until, "runs"))
    return boots


def _stamp(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y%m%dT%H%M%S")
