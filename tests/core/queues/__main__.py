"""Run many histories of queues: python -m tests.core.queues --seeds 1-1000 [--steps 300] [--jobs 2]."""

from __future__ import annotations

import sys
import traceback

from tests import histories
from tests.core.queues.queue_history import QueueHistory


def one(seed: int, steps: int) -> str:
    """Run the history of a seed. Returns the text of a failure."""
    try:
        QueueHistory(seed, steps).run()
    except Exception as error:  # a defect ends one history, not the run
        reason = " ".join(str(error).split())[:300]
        return f"seed {seed}: {type(error).__name__}: {reason}\n{traceback.format_exc()}"
    return ""


if __name__ == "__main__":
    sys.exit(histories.main("tests.core.queues", __doc__, one, 300))
