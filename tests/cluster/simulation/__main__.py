"""Run many histories: python -m tests.cluster.simulation --seeds 1-1000 [--steps 40] [--jobs 2].

A failure prints the seed, the reason and the last events, and ends the run with status 1.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time

from tests.cluster.simulation.history import History
from tests.cluster.simulation.invariants import Broken


def one(what: tuple[int, int]) -> tuple[int, str]:
    """Run the history of a seed. Returns the seed and a failure's text."""
    seed, steps = what
    gc.disable()
    try:
        History(seed, steps).run()
    except Broken as error:
        return seed, str(error)
    finally:
        gc.enable()
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
    print(f"{count} histories, {failures} failures, {seconds:.1f} s: {60 * count / seconds:.0f} a minute")
    return 1 if failures else 0


class _Here:
    """A pool of this process."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap_unordered = staticmethod(map)


if __name__ == "__main__":
    sys.exit(main())
