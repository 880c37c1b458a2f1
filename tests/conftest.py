"""Settings of all tests.

- How many examples Hypothesis tries: HYPOTHESIS_PROFILE is ``everyday`` (the default), ``complete`` (that with
  ``--long``), ``long``, or ``mutants``: as everyday, but a failure is not minimized.
- How long a test may take: as long for trial's TestCases as for the others (``faulthandler_timeout`` in
  pyproject.toml).
- Tests marked ``long`` run with ``--long`` only, as `make test LONG=1` passes it: so the everyday run stays short.
- Which tests run in the same process where there are several, and which of them first.
- Tests that are skipped for want of a package make the run fail (tests/packages.py).
- The reactor is the broker's own, as under twistd. Code of the broker that blocks it makes a test fail.
- The collector does not look at the thousands of tests again and again.
- A test after which the process holds gigabytes fails.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings
from twisted.trial import util

from bench.machine import resident
from broker.net.reactor import install
from tests import blocking_guard
from tests.examples import SHARE
from tests.packages import pytest_sessionfinish, pytest_terminal_summary

# A shell without job control ignores them in commands that it starts in the background, and children inherit that:
# programs that tests end by such a signal would stay.
for _number, _action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _action)

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]

install()

FIRST = ("tests/install/", "tests/spark/", "tests/cluster/", "tests/integration/", "tests/client/")
"""The longest, and those that wait for most of their time: one that began last would keep a process waiting for it."""

MOST_RESIDENT = 4 << 30
"""Bytes of memory of a process of tests: four times what it has in the end."""

# Tests start hundreds of processes. If this is set, each of them compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# pytest reads the version of Twisted from the disk before each test, a quarter of its work for a short one.
importlib.metadata.version = cache(importlib.metadata.version)

# No deadline: a busy machine is no defect.
settings.register_profile("everyday", deadline=None, max_examples=100 // SHARE)
settings.register_profile("complete", deadline=None)
settings.register_profile(
    "mutants",
    settings.get_profile("everyday"),
    phases=[each for each in Phase if each not in (Phase.shrink, Phase.explain)],
)
settings.register_profile("long", deadline=None, max_examples=10_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the long tests as well."""
    parser.addoption("--long", action="store_true", help="run the tests marked long as well")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples. Have trial end a test that waits for ever, with a traceback, a little before pytest ends the
    process."""
    blocking_guard.fails_a_test()
    # Imports and tests stay: while they are collected, there is no garbage.
    gc.disable()
    profile = "complete" if config.getoption("--long") else "everyday"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))
    util.DEFAULT_TIMEOUT_DURATION = 0.9 * float(config.getini("faulthandler_timeout"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have several processes divide the compilation of a new checkout."""
    given = getattr(session.config, "workerinput", None)
    if given is not None:
        from tests.scheduling import compile_share

        compile_share(session.config, int(given["workerid"].removeprefix("gw")), given["workercount"])


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report a passed test in one message instead of five to the process that collects the results.

    With ``--durations``, the reports of set-ups are sent as well.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test in which the broker's code blocks the reactor that the test runs, or after which too much memory is
    held: a later test would fail, for which the machine has none left."""
    blocking_guard.found.clear()
    yield
    assert not blocking_guard.found, f"the reactor's thread is blocked by {blocking_guard.found[0]}"
    assert sys.platform != "linux" or resident(os.getpid()) < MOST_RESIDENT


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests, unless they are asked for; begin with the longest if there are several processes."""
    # A test that is named on the command line is asked for.
    if not config.getoption("--long") and not any("::" in each for each in config.args):
        left_out = [item for item in items if item.get_closest_marker("long")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("long")]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((n for n, of in enumerate(FIRST) if item.nodeid.startswith(of)), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have several processes share the tests by what belongs together."""
    from tests.scheduling import Together

    config.option.loadscopereorder = False  # the order is ours
    return Together(config, log)


def pytest_collection_finish() -> None:
    """Take all that there is by now from the collector, which tests call: a million objects, most of which stay."""
    gc.freeze()
    gc.enable()
