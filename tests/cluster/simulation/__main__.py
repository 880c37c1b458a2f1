"""Run many histories: python -m tests.cluster.simulation --seeds 1-1000 [--steps 40] [--jobs 2]."""

from __future__ import annotations

import sys

from tests import histories
from tests.cluster.simulation.history import History
from tests.cluster.simulation.invariants import Broken


def one(seed: int, steps: int) -> str:
    """Run the history of a seed. Returns the text of a failure."""
    try:
        History(seed, steps).run()
    except Broken as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(histories.main("tests.cluster.simulation", __doc__, one, 40))
