"""Descriptors of the tests of the journal: each test releases its own.

A test ends as a broker does that is killed: its journals are still open. Connections of later tests of the same process
would get descriptors beyond those that select() can watch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.journals import close_all


@pytest.fixture(autouse=True)
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Close all journals after the test, and fail if one of them keeps a descriptor."""
    below = tmp_path_factory.getbasetemp()
    before = _descriptors(below)
    yield
    close_all()
    # Threads of an earlier test may have closed some of its own meanwhile.
    assert not _descriptors(below) - before


def _descriptors(below: Path) -> Counter[str]:
    """Return how often each file below that directory is open, and the null device, of which the reserve consists."""
    opened: Counter[str] = Counter()
    with os.scandir("/proc/self/fd") as found:
        for file in found:
            path = os.readlink(file.path)
            if path == os.devnull or Path(path).is_relative_to(below):
                opened[path] += 1
    return opened
