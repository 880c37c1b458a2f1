"""Numbers of generated cases: all of them in the long run, a tenth in the everyday one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

SHARE = 10
"""The everyday run tries one of so many cases. It ends in minutes, and the long run, which CI does, tries all."""


def examples(complete: int) -> int:
    """Return how many examples of a property this run tries. ``complete`` is the number of the long run.

    `tests.conftest` chooses a profile before it imports the tests. Its own number is for properties without one.
    """
    return max(1, complete * settings().max_examples // 100)


def sampled(complete: Sequence[object]) -> list[Any]:
    """Return the parameters of a test. Those after the first tenth are marked long."""
    everyday = -(-len(complete) // SHARE)
    return [*complete[:everyday], *(pytest.param(each, marks=pytest.mark.long) for each in complete[everyday:])]
