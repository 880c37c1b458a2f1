"""Which tests run in the same process, where there are several (pytest-xdist), and which of them compiles which."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import pytest
from _pytest.assertion import rewrite
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"


class Numbers(list[str]):
    """The names of the tests that a process collected, by the numbers it has for them."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._numbers = {name: number for number, name in enumerate(self)}

    def index(self, name: str, *_: SupportsIndex) -> int:
        """Return the number of a test. xdist asks for each; a search takes a third of a millisecond."""
        return self._numbers[name]


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file, which share fixtures; and all that run on Spark, of which there is one session then."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        # The names of a process that collected others than the first ones are left out.
        if node in self.registered_collections:
            self.registered_collections[node] = Numbers(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        file = self._split_scope(self.registered_collections[node][item_index])
        # After each test xdist counts the tests that a process has left, in all files that it was given.
        if all(units[file].values()):
            del units[file]

    def _reschedule(self, node: Any) -> None:
        # A process that has come in place of one that ended may be without its tests yet.
        if node in self.registered_collections:
            super()._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """Return the test during which a process ended, if one did.

        It has failed: xdist would give it to the next process, which would end as well.
        """
        units = self.assigned_work.get(node, {}).values()
        running = ((unit, name) for unit in units for name, completed in unit.items() if not completed)
        unit, crashed = next(running, (dict[str, bool](), None))
        if crashed is not None:
            unit[crashed] = True
        super().remove_node(node)
        return crashed


def compile_share(config: pytest.Config, number: int, count: int) -> None:
    """Compile each test file whose place in the order is ``number`` modulo ``count``, as pytest does at its import.

    All processes collect all tests. In a new checkout each would otherwise compile all files, which takes 25 s of CPU
    time, more than the rest of the collection; so each compiles its share first.
    """
    paths = [Path(each.partition("::")[0]) for each in config.args]
    files = sorted(file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path]))
    for file in files[number::count] if not sys.dont_write_bytecode else ():
        cached = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, cached) is None and rewrite.try_makedirs(cached.parent):
            digest, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, cached)
