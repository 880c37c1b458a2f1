"""Run many histories: python -m tests.cluster.simulation --seeds 1-1000 [--steps 40] [--jobs 2].

A failure prints the seed, the reason and the last events, and ends the run with status 1. The last line has the number
of histories in a minute, and in a minute of CPU time, which other load of the machine hardly changes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.cluster.simulation.history import History
from tests.cluster.simulation.invariants import Broken


def one(what: tuple[int, int]) -> tuple[int, str]:
    """Run the history of a seed. Returns the seed and a failure's text."""
    seed, steps = what
    try:
        History(seed, steps).run()
    except Broken as error:
        return seed, str(error)
    return seed, ""


def main() -> int:
    """Run the histories that the command line asks for."""
    options = argparse.ArgumentParser(prog="python -m tests.cluster.simulation", description=__doc__)
    options.add_argument("--seeds", default="1-1000", help="seeds, such as 1-1000 or 7")
    options.add_argument("--steps", type=int, default=40, help="actions of a history")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    options.add_argument("--all", action="store_true", help="go on after a failure, and show first lines only")
    chosen = options.parse_args()
    first, _, last = chosen.seeds.partition("-")
    work = [(seed, chosen.steps) for seed in range(int(first), int(last or first) + 1)]
    begun, count, failures = time.monotonic(), 0, 0
    used = _cpu()
    with multiprocessing.Pool(chosen.jobs) if chosen.jobs > 1 else _Here() as pool:
        for seed, failure in pool.imap_unordered(one, work, *([8] if chosen.jobs > 1 else [])):
            count += 1
            if failure:
                failures += 1
                print(failure.partition("\n")[0] if chosen.all else failure, flush=True)
                if not chosen.all:
                    print(f"again: python -m tests.cluster.simulation --seeds {seed} --steps {chosen.steps}")
                    break
    seconds = time.monotonic() - begun
    used = _cpu() - used
    rates = f"{60 * count / seconds:.0f} a minute, {60 * count / used:.0f} a minute of CPU time"
    print(f"{count} histories, {failures} failures, {seconds:.1f} s: {rates}")
    return 1 if failures else 0


def _cpu() -> float:
    """Return the CPU time of this process and of those that it has ended, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Here:
    """A pool of this process."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap_unordered = staticmethod(map)


if __name__ == "__main__":
    sys.exit(main())
