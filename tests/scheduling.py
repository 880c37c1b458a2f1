"""Which tests run in the same process, where there are several (pytest-xdist)."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file, which share fixtures; and all that run on Spark, of which there is one session then."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]
