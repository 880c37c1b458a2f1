"""A missing package makes a run of the tests fail, unless it cannot be had. The last lines of a run name all skips."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import PACKAGES

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "etc" / "setup.sh"

CONFTEST = """
from pathlib import Path
from tests import packages
from tests.packages import pytest_sessionfinish, pytest_terminal_summary
packages.PACKAGES["no-such-program"] = "no-such-package"
packages.NOTE = Path(__file__).with_name("note")
"""

TESTS = """
import pytest
from tests.packages import LACKING, REFUSED, program

def test_that_passes():
    pass

def test_that_needs_a_program():
    program("no-such-program")

def test_that_needs_a_right():
    pytest.skip(f"{REFUSED}: network namespaces (no)")

@pytest.mark.skipif(True, reason="no Python 9 here")
@pytest.mark.parametrize("case", [1, 2])
def test_that_needs_something_else(case):
    pass

def test_that_would_be_skipped_on_any_machine():
    pytest.skip(f"{LACKING}: it has no such message")
"""


OTHERWISE = {"initdb", "prometheus", "java", "chromium"}
"""Programs that come with another one, and those that the script looks for in ways of their own."""


def test_the_script_installs_each_package_that_tests_need() -> None:
    listed = re.findall(r"([\w-]+):([\w-]+)", SCRIPT.read_text().partition("for each in ")[2].partition("; do")[0])
    named = {name: package for name, package in PACKAGES.items() if name not in OTHERWISE}
    assert named.items() <= dict(listed).items()


def run(folder: Path) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--rootdir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([*command, str(folder)], env=environment, cwd=folder, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("noted", [True, False])
def test_a_skip_for_a_package_fails_the_run_unless_it_cannot_be_had(tmp_path: Path, noted: bool) -> None:
    if noted:
        (tmp_path / "note").write_text("other\nno-such-package\n")
    status, output = run(tmp_path)
    assert "1 passed, 5 skipped" in output
    last = output.strip().splitlines()[-4:]
    assert "2 tests skipped: no Python 9 here" in last
    assert "no such message" not in output
    if noted:
        assert status == 0
        assert any("1 tests skipped: no-such-package (the program no-such-program) cannot be" in each for each in last)
    else:
        assert status == 1
        assert any("1 tests skipped, so the run fails: no-such-package" in each for each in last)
    assert any("1 tests skipped: the kernel refuses network namespaces (no)" in each for each in last)
