"""The commands `make ...` of the pages, in clones of the checkout: one that is set up from nothing, and one with the
packages of the Python that runs the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.console_blocks import command_of, printed
from tests.integration.daemon import installed_environment
from tests.packages import ALONE, need_namespaces
from tests.patience import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]

OF_MAKE = frozenset({"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "ETCD", "LONG", "PORT", "SINCE", "WORKERS"})
"""Variables of the `make` that runs these tests, which those in the tests would take over."""

JOURNAL = ".local/state/elkobroker/journal"
"""The journal of `make run`, in the home of its user."""

SMALL = "test_backoff or test_the_metadata_is_complete or test_gone_names"
"""Some tests, of which the second is marked `long`: a run of them has the length of the checks before it."""


def variables(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in installed_environment(**more).items() if name not in OF_MAKE}
    return {name: value for name, value in kept.items() if not name.startswith("PYTEST_") or name in more}


def clone(folder: Path) -> Path:
    """Clone the checkout, with its branch as `main`. Skips the test where this is no checkout."""
    checkout = folder / "checkout"
    command = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(checkout)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this is no checkout")
    git(checkout, "checkout", "--quiet", "-B", "main")
    return checkout


def git(checkout: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=N", "-c", "user.email=n@example.org", *words], cwd=checkout, check=True)


def run(checkout: Path, command: str, **more: str) -> str:
    """Run a command in a clone, and return its output. A failure shows it."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=checkout,
        env=variables(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


# the set-up of these tests


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which `make` finds the packages of this Python, as if it had set them up."""
    made = clone(tmp_path_factory.mktemp("make"))
    installed, environment = Path(sys.prefix), made / ".venv"
    environment.mkdir()
    for each in installed.iterdir():
        if not each.name.startswith("installed-"):
            (environment / each.name).symlink_to(each)
    for compiled in (ROOT / "broker/net/zmtp").glob("_*.so"):
        shutil.copy(compiled, made / "broker/net/zmtp")
    [state] = re.findall(r"^state=.*", (made / "etc/setup.sh").read_text(), re.MULTILINE)
    for extra in ("docs", "test"):
        run(made, f'{state}; echo "$state" >.venv/installed-{extra}')
    if (ROOT / ".mypy_cache").exists():
        shutil.copytree(ROOT / ".mypy_cache", made / ".mypy_cache")
    return made


def test_make_check(checkout: Path) -> None:
    said = run(checkout, command_of("CONTRIBUTING.md", "make check"), PYTHONPATH=str(checkout))
    assert said.count("Success: no issues found") == 2
    assert re.search(r"Contracts: \d+ kept, 0 broken", said)


def run_small_tests(checkout: Path, command: str) -> str:
    """Run `make test` for the small tests. The others are not even read."""
    folders = (each for each in (checkout / "tests").iterdir() if each.is_dir() and each.name not in ("core", "net"))
    options = [f"--ignore={each}" for each in folders]
    chosen = " ".join([*options, f"-k '{SMALL}'", "-p no:cacheprovider", f"--basetemp={checkout.parent}/tests"])
    return run(checkout, command, PYTHONPATH=str(checkout), PYTEST_ADDOPTS=chosen)


def passed(said: str) -> int:
    return int(re.findall(r"^(\d+) passed", said, re.MULTILINE)[-1])


def test_make_test_of_all_tests_and_of_some(checkout: Path) -> None:
    everyday = passed(run_small_tests(checkout, command_of("CONTRIBUTING.md", "make test")))
    every = command_of("CONTRIBUTING.md", "make test LONG=1")
    assert every == command_of("docs/releasing.md", "make test LONG=1")
    assert passed(run_small_tests(checkout, every)) == everyday + 1
    some = passed(
        run_small_tests(checkout, command_of("CONTRIBUTING.md", 'make test ARGS="tests/core tests/net" WORKERS=2'))
    )
    assert 0 < some < everyday


def test_make_mutants(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "checkout", "--quiet", "-b", "change")
    (checkout / "broker/sample.py").write_text("def twice(number: int) -> int:\n    return 2 * number\n")
    test = "from broker.sample import twice\n\n\ndef test_twice() -> None:\n    assert twice(3) == 6\n"
    (checkout / "tests/test_sample.py").write_text(test)
    git(checkout, "add", "broker/sample.py", "tests/test_sample.py")
    git(checkout, "commit", "--quiet", "--message", "Add a sample")
    said = run(checkout, command_of("CONTRIBUTING.md", 'make mutants SINCE=main ARGS="--number 50"'))
    assert "0 survive" in said
    assert "tests/test_sample.py::test_twice" in (checkout / "dist/mutants.md").read_text()
    git(checkout, "checkout", "--quiet", "main")


def test_make_docs(checkout: Path) -> None:
    run(checkout, command_of("CONTRIBUTING.md", "make docs"))
    assert "index.html" in (checkout / "dist/site/index.html").read_text()


def test_make_plan(checkout: Path) -> None:
    run(checkout, command_of("docs/tutorial.md", "make plan"), PYTHONPATH=str(checkout))
    assert "<title>" in (checkout / "plan/report.html").read_text()


def test_a_plan_of_the_journal_of_make_run(checkout: Path, tmp_path: Path) -> None:
    here = {"PYTHONPATH": str(checkout), "HOME": str(tmp_path)}
    run(
        checkout, f".venv/bin/python -m tests.spark.demo --journal-only --days 2 --journal {tmp_path}/{JOURNAL}", **here
    )
    _, (command, _) = printed("docs/tutorial.md", "## Make a capacity plan", "## Run it in production")
    run(checkout, command, **here)
    assert "<title>" in (tmp_path / "plan/report.html").read_text()


# from nothing


@contextmanager
def running(checkout: Path, command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a broker in a network of its own, in which the default ports are free."""
    folder.mkdir()
    alone = subprocess.Popen(
        [*ALONE, "sh", "-c", command],
        cwd=checkout,
        env=variables(HOME=str(folder), XDG_STATE_HOME=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with alone:
        try:
            yield alone
        finally:
            os.killpg(alone.pid, signal.SIGTERM)


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of one's own needs root")
def test_make_run_and_the_commands_of_its_environment(tmp_path: Path) -> None:
    need_namespaces()
    checkout = clone(tmp_path)
    # `make run` begins with it, in a network with packages.
    done = subprocess.run(
        ["sh", "etc/setup.sh", "run"], cwd=checkout, env=variables(), capture_output=True, text=True, check=False
    )
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    assert done.returncode == 0, done.stderr
    shown = [
        (command_of("README.md", "make run"), r"elko listener 'main' on \S+:9000 "),
        (command_of("docs/tutorial.md", "make run"), r"http on 127\.0\.0\.1:9080 "),
        (command_of("docs/tutorial.md", 'make run ARGS="--director-port 9010"'), r"director listener \S+ on \S+:9010 "),
    ]
    for number, (command, line) in enumerate(shown):
        with running(checkout, command, tmp_path / str(number)) as broker:
            assert broker.stdout is not None
            log = ""
            while not re.search(line, log):
                log += broker.stdout.readline()
                assert log.endswith("\n"), log
        until(lambda: not (checkout / "twistd.pid").exists(), "the end of the broker")
    for command, _ in printed("docs/tutorial.md", "## Run it in production"):
        assert run(checkout, command)
