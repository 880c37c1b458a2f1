"""The division of tests among processes: a test that ends its process has failed, and all others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.daemon import environment
from tests.patience import PATIENCE

SCHEDULER = """
from tests.scheduling import Together

def pytest_xdist_make_scheduler(config, log):
    return Together(config, log)
"""

TESTS = """
import os

def test_a():
    pass

def test_b():
    os._exit(1)

def test_c():
    pass
"""


@pytest.mark.long
def test_a_test_that_ends_its_process_fails_once_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SCHEDULER)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n2", f"--rootdir={tmp_path}", str(tmp_path)]
    # Each of four processes would import all plugins, one after the other: a minute on a busy machine.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment() | alone, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "2 failed, 4 passed" in done.stdout
