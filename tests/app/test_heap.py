"""Trims of the heap: their interval, which grows with their duration, and the allocator that they need."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from broker.app.process_start import (
    BURST,
    BUSY,
    BUSY_SHARE,
    BUSY_WORK,
    CHECK,
    INTERVAL,
    LARGEST_SHARE,
    LONGEST_INTERVAL,
    HeapTrim,
)
from broker.core.turns import Turns
from tests.garbage import set_aside
from tests.integration.daemon import environment


class Stopwatch:
    """Each two readings are ``took`` seconds apart."""

    def __init__(self) -> None:
        self.took = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.took
        return self._now


def test_free_lists_are_cleared_after_a_burst() -> None:
    clock, falls = Clock(), [BURST, BURST + 1]
    heap = HeapTrim(clock, falls.pop, lambda: 0, lambda: Turns(clock))
    heap.start()
    if not clock.getDelayedCalls():
        pytest.skip("the C library has no malloc_trim")
    try:
        gc.freeze()
        clock.advance(INTERVAL)
        assert gc.get_freeze_count() == 0
        gc.freeze()
        clock.advance(INTERVAL)
        assert gc.get_freeze_count() > 0
    finally:
        heap.stop()
        set_aside()  # again: the trim makes a full collection look at all tests


def test_the_program_is_restarted_once_with_the_allocator_of_the_c_library(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from broker.app.process_start import use_system_heap\n"
        "print(os.getpid(), sys.getallocatedblocks() == 0, sys.argv[1:], flush=True)\n"
        "use_system_heap()\n"
        "print('runs')\n"
    )

    def run(**extra: str) -> list[str]:
        command = [sys.executable, "-W", "error", str(program), "an argument"]
        done = subprocess.run(command, env=environment(**extra), capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    first, *rest = run()
    pid = first.split()[0]
    if rest == ["runs"]:
        pytest.skip("the C library has no malloc_trim")
    assert first == f"{pid} False ['an argument']"
    assert rest == [f"{pid} True ['an argument']", "runs"]
    assert len(run(PYTHONMALLOC="pymalloc")) == 2


def test_the_heap_is_trimmed_less_often_the_longer_it_takes() -> None:
    clock, watch = Clock(), Stopwatch()
    heap = HeapTrim(clock, lambda: 0, lambda: 0, lambda: Turns(clock), watch)
    heap.start()
    if not clock.getDelayedCalls():
        pytest.skip("the C library has no malloc_trim")
    clock.advance(INTERVAL)
    clock.advance(INTERVAL)
    assert heap.trims == 2
    watch.took = 1.6 * INTERVAL * LARGEST_SHARE
    clock.advance(INTERVAL)
    clock.advance(1.5 * INTERVAL)
    assert heap.trims == 3
    watch.took = 1.0
    clock.advance(0.1 * INTERVAL)
    clock.advance(LONGEST_INTERVAL)
    assert (heap.trims, heap.longest) == (5, 1.0)
    heap.stop()
    heap.stop()
    assert clock.getDelayedCalls() == []


def test_the_heap_is_trimmed_often_while_peers_release_much() -> None:
    clock, watch = Clock(), Stopwatch()
    released, looked = [0], []

    def fallen() -> int:
        looked.append(clock.seconds())
        return 0

    heap = HeapTrim(clock, fallen, lambda: released[0], lambda: Turns(clock), watch)
    heap.start()
    if not clock.getDelayedCalls():
        pytest.skip("the C library has no malloc_trim")
    for _ in range(4):
        released[0] += BUSY
        clock.advance(CHECK)
    assert heap.trims == 4
    released[0] += BUSY - 1
    clock.advance(CHECK)
    assert heap.trims == 4
    watch.took = 3 * CHECK * BUSY_SHARE
    trims = []
    for _ in range(7):
        released[0] += BUSY
        clock.advance(CHECK)
        trims.append(heap.trims)
    assert trims == [5, 5, 5, 6, 6, 6, 7]
    assert looked == [6.0], "the free lists are cleared at the usual pace"
    heap.stop()


def test_the_heap_is_trimmed_often_during_much_background_work() -> None:
    clock = Clock()
    turns = Turns(clock)
    heap = HeapTrim(clock, lambda: 0, lambda: 0, lambda: turns, Stopwatch())
    heap.start()
    if not clock.getDelayedCalls():
        pytest.skip("the C library has no malloc_trim")
    for work, trims in ((BUSY_WORK, 1), (0.9 * BUSY_WORK, 1), (0.2 * BUSY_WORK, 2), (0.0, 2)):
        with turns:
            clock.rightNow += work
        clock.advance(CHECK - work)
        assert heap.trims == trims
    heap.stop()


@pytest.mark.long
def test_the_broker_is_imported_once_by_a_start() -> None:
    """Its imports are half of the work of a start, which comes after the restart of the interpreter."""
    program = "import sys; sys.argv[1:] = ['elkobroker', '--no-such-option']; import broker.twistd; print('once')"
    command = [sys.executable, "-v", "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["once"]
    assert done.stderr.count("import 'broker.app.configuration'") == 1
