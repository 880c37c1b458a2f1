"""Runs of many histories by their seeds, for `python -m` of a module of random histories.

A failure prints the seed, the reason and the last events, and ends the run with status 1. The last line has the number
of histories in a minute, and in a minute of CPU time, which other load of the machine hardly changes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial


def main(program: str, about: str | None, one: Callable[[int, int], str], steps: int) -> int:
    """Run the histories that the command line asks for. ``one`` runs that of a seed with a number of steps, and returns
    the text of a failure, or nothing; more than one process imports it by its name."""
    command = f"python -m {program}"
    options = argparse.ArgumentParser(prog=command, description=about)
    options.add_argument("--seeds", default="1-1000", help="seeds, such as 1-1000 or 7")
    options.add_argument("--steps", type=int, default=steps, help="actions of a history")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    options.add_argument("--all", action="store_true", help="go on after a failure, and show first lines only")
    chosen = options.parse_args()
    first, _, last = chosen.seeds.partition("-")
    work = range(int(first), int(last or first) + 1)
    begun, count, failures = time.monotonic(), 0, 0
    used = _cpu()
    with multiprocessing.Pool(chosen.jobs) if chosen.jobs > 1 else _Here() as pool:
        results = pool.imap_unordered(partial(_of_seed, one, chosen.steps), work, *([8] if chosen.jobs > 1 else []))
        for seed, failure in results:
            count += 1
            if failure:
                failures += 1
                print(failure.partition("\n")[0] if chosen.all else failure, flush=True)
                if not chosen.all:
                    print(f"again: {command} --seeds {seed} --steps {chosen.steps}")
                    break
    seconds = time.monotonic() - begun
    used = _cpu() - used
    rates = f"{60 * count / seconds:.0f} a minute, {60 * count / used:.0f} a minute of CPU time"
    print(f"{count} histories, {failures} failures, {seconds:.1f} s: {rates}")
    return 1 if failures else 0


def _of_seed(one: Callable[[int, int], str], steps: int, seed: int) -> tuple[int, str]:
    return seed, one(seed, steps)


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
