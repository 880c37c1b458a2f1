"""`make install`: a virtual environment, units and a configuration, from which the real daemon starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.daemon import environment
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an installation, with opt, etc and lib in it."""
    where = tmp_path_factory.mktemp("installed")
    places = {"PREFIX": "opt", "CONFIG": "etc", "SYSTEM": "lib"}
    given = {name: str(where / place) for name, place in places.items()}
    checkout = where / "checkout"
    # A build leaves files in the tree that it builds.
    ignore = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info", "_sealing.*", ".*_cache")
    shutil.copytree(ROOT, checkout, ignore=ignore, symlinks=True)
    done = subprocess.run(
        ["sh", "etc/install.sh"],
        cwd=checkout,
        env={**os.environ, **given, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    assert done.returncode == 0, done.stderr
    return where


def test_the_installed_daemon_accepts_the_installed_configuration(installed: Path) -> None:
    # Not from the checkout, nor with its path.
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    command = [str(installed / "opt/bin/twistd"), "-n", "--pidfile=", "elkobroker"]
    file = str(installed / "etc/elkobroker.toml")
    done = subprocess.run(
        [*command, "--config", file, "--check"], cwd=installed, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "listener main: bound to 127.0.0.1:9000" in done.stdout


def test_brokerctl_is_installed_with_its_manual_page(installed: Path) -> None:
    done = subprocess.run(
        [str(installed / "opt/bin/brokerctl"), "--version"], cwd=installed, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (installed / "opt/share/man/man1/brokerctl.1").read_text().startswith(".")


def test_the_units_name_the_places_of_the_installation(installed: Path) -> None:
    unit = (installed / "lib/systemd/system/elkobroker.service").read_text()
    assert f"ExecStart={installed}/opt/bin/twistd" in unit
    assert f"--config {installed}/etc/elkobroker.toml" in unit
    assert "/opt/elkobroker" not in unit


def test_systemd_knows_the_user_and_the_directory(installed: Path, tmp_path: Path) -> None:
    users, files = shutil.which("systemd-sysusers"), shutil.which("systemd-tmpfiles")
    if users is None or files is None or os.geteuid() != 0:
        pytest.skip("systemd-sysusers and root are needed")
    (tmp_path / "etc").mkdir()
    for command in (
        [users, f"--root={tmp_path}", str(installed / "lib/sysusers.d/elkobroker.conf")],
        [files, f"--root={tmp_path}", "--create", str(installed / "lib/tmpfiles.d/elkobroker.conf")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
    assert "elkobroker" in (tmp_path / "etc/passwd").read_text()
