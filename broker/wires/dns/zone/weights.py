"""SRV weights from reported loads."""

from __future__ import annotations

from collections.abc import Sequence

IDLE = 1_000
"""The weight of a place without load among places with load. Of 65,535 that a weight may be; three digits tell loads
apart that differ by a thousandth of their mean."""

LEAST = 1
"""The least weight, and that of a restored place among live ones. With 0, clients hardly ever choose a place."""


def weights(loads: Sequence[float | None]) -> list[int]:
    """Return the weight of each place: ``1000 / (1 + load / mean)``, rounded, at least 1.

    The mean is that of the loads that are known. So the unit of the loads does not matter: a place without load gets
    1000, one with the mean load 500, one with three times the mean 250, and each has its share of the new clients.
    A load of None is unknown, that of a restored place: it gets 1.
    """
    known = [load for load in loads if load is not None]
    # Divided before they are added: the sum of two large loads may be infinite.
    mean = sum(load / len(known) for load in known)
    return [LEAST if load is None else _weight(load, mean) for load in loads]


def _weight(load: float, mean: float) -> int:
    if not mean:
        return IDLE
    return max(LEAST, round(IDLE / (1 + load / mean)))
