"""Trims of the heap: their interval, which grows with their duration."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from broker.app.heap import INTERVAL, LARGEST_SHARE, LONGEST_INTERVAL, HeapTrim


class Stopwatch:
    """Each two readings are ``took`` seconds apart."""

    def __init__(self) -> None:
        self.took = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.took
        return self._now


def test_the_heap_is_trimmed_less_often_the_longer_it_takes() -> None:
    clock, watch = Clock(), Stopwatch()
    heap = HeapTrim(clock, watch)
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
