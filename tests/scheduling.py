"""Which tests run in the same process, where there are several (pytest-xdist), and which of them compiles which."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file, which share fixtures; and all that run on Spark, of which there is one session then."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]

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
