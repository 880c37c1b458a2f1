"""`make install`: a virtual environment, units and a configuration, from which the real daemon starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console_blocks import command_of
from tests.integration.daemon import installed_environment
from tests.packages import program
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

PRINT_HELPER = "from broker.net.zmtp.helpers import FRAMING; print(FRAMING.name)"
"""Code that prints `compiled` where the helpers of ZMTP are."""

PLACES = {"PREFIX": "opt", "CONFIG": "etc", "LOCAL": "local", "SYSTEM": "lib"}


def install(
    where: Path, *words: str, checkout: Path | None = None, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script of a checkout, by default of the copied one, with all places in the directory."""
    env = {**os.environ, **{name: str(where / place) for name, place in PLACES.items()}, "PYTHON": python, **variables}
    command = ["sh", "etc/install.sh", *words]
    cwd = checkout or where / "checkout"
    # As that of root on a hardened system.
    return subprocess.run(command, cwd=cwd, env=env, umask=0o077, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an installation, with opt, etc and lib in it."""
    where = tmp_path_factory.mktemp("installed")
    checkout = where / "checkout"
    # A build leaves files in the tree that it builds.
    ignore = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info", "_sealing.*", ".*_cache")
    shutil.copytree(ROOT, checkout, ignore=ignore, symlinks=True)
    # An environment of a Python that an upgrade of the system has removed.
    (where / "opt/bin").mkdir(parents=True)
    (where / "opt/bin/python").symlink_to("python3.0")
    (where / "opt/pyvenv.cfg").write_text("version = 3.0.0\n")
    done = install(where)
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    assert done.returncode == 0, done.stderr
    return where


def run_installed(installed: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the installation: not from the checkout, nor with its path."""
    command = [str(installed / "opt/bin" / program), *arguments]
    return subprocess.run(
        command, cwd=installed, env=installed_environment(), capture_output=True, text=True, check=False
    )


def test_the_installed_daemon_accepts_the_installed_configuration(installed: Path) -> None:
    file = installed / "etc/elkobroker.toml"
    done = run_installed(installed, "twistd", "-n", "--pidfile=", "elkobroker", "--config", str(file), "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "listener main: bound to 127.0.0.1:9000" in done.stdout


def test_the_installed_daemon_has_compiled_helpers(installed: Path) -> None:
    program("cc")
    done = run_installed(installed, "python", "-c", PRINT_HELPER)
    assert done.stdout == "compiled\n", done.stderr


@pytest.mark.parametrize(
    ("words", "python", "sentence"),
    [
        ((), "false", "install: Python 3.11 or later with venv is needed: apt-get install python3 python3-venv\n"),
        ((), sys.executable, "install: {} has files and is no virtual environment: nothing is installed\n"),
        (("uninstall",), sys.executable, "install: {} is no virtual environment: nothing is removed\n"),
    ],
)
def test_what_cannot_be_done_gets_a_sentence_and_nothing_is_touched(
    tmp_path: Path, words: tuple[str, ...], python: str, sentence: str
) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/of-others").touch()
    done = install(tmp_path, *words, checkout=ROOT, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence.format(tmp_path / "opt"))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["opt", "opt/of-others"]


@pytest.mark.parametrize("words", [(), ("uninstall",)])
@pytest.mark.parametrize("place", ["opt", "opt/etc", "link/etc"])
def test_a_configuration_inside_the_environment_is_refused(tmp_path: Path, words: tuple[str, ...], place: str) -> None:
    config, prefix = tmp_path / place, tmp_path / "opt"
    (tmp_path / "link").symlink_to("opt")
    prefix.mkdir()
    (prefix / "pyvenv.cfg").touch()
    config.mkdir(exist_ok=True)
    (config / "elkobroker.toml").write_text("of the operator")
    done = install(tmp_path, *words, checkout=ROOT, python="false", CONFIG=str(config))
    sentence = f"install: {config} is inside {prefix}, which is replaced and removed as a whole: choose another place\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    assert (config / "elkobroker.toml").read_text() == "of the operator"


def test_an_environment_around_the_state_is_refused(tmp_path: Path) -> None:
    state = "/var/lib/elkobroker"
    done = install(tmp_path, checkout=ROOT, python="false", PREFIX=state)
    assert done.returncode == 1
    assert f"install: {state} is inside {state}, which is replaced and removed as a whole" in done.stderr


def test_the_commands_are_on_the_path_with_manual_pages_and_completions(installed: Path) -> None:
    local = installed / "local"
    for command in ("brokerctl", "brokerkeys"):
        run = [str(local / "bin" / command), "--help"]
        done = subprocess.run(run, cwd=installed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (local / f"share/man/man1/{command}.1").read_text().startswith(".")
    for completion in (
        "bash-completion/completions/brokerctl",
        "zsh/site-functions/_brokerctl",
        "fish/vendor_completions.d/brokerctl.fish",
    ):
        assert "brokerctl" in (local / "share" / completion).read_text()


def test_the_user_of_the_broker_reads_all_that_is_installed(installed: Path) -> None:
    paths = [path for place in ("opt", "local", "lib") for path in (installed / place).rglob("*")]
    needed = {path: 0o005 if path.is_dir() else 0o004 for path in paths if not path.is_symlink()}
    assert [str(path) for path, bits in needed.items() if path.stat().st_mode & bits != bits] == []
    assert (installed / "etc/elkobroker.toml").stat().st_mode & 0o777 == 0o640


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


def test_the_jobs_are_installed_as_the_page_prints_it(installed: Path) -> None:
    command = command_of("docs/operations.md", "/opt/elkobroker/bin/pip install '.[daemon,spark]'")
    real = ["sh", "-c", command.replace("/opt/elkobroker", f"{installed}/opt")]
    done = subprocess.run(
        real, cwd=installed / "checkout", env=installed_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    helped = run_installed(installed, "python", "-m", "spark.capacity", "run", "--help")
    assert helped.stdout.startswith("usage: "), helped.stderr


def test_uninstall_leaves_the_configuration_and_what_others_installed(installed: Path) -> None:
    # The last test of the file: what the others look at is gone then.
    foreign = installed / "local/bin/brokerkeys"
    foreign.unlink()
    foreign.write_text("of another package\n")
    again = install(installed)
    assert again.returncode == 0, again.stderr
    assert f"{foreign} is a file of another origin and stays" in again.stdout
    done = install(installed, "uninstall")
    assert done.returncode == 0, done.stderr
    left = {
        str(path.relative_to(installed))
        for place in PLACES.values()
        for path in (installed / place).rglob("*")
        if not path.is_dir()
    }
    assert left == {"etc/elkobroker.toml", "etc/elkobroker.toml.example", "local/bin/brokerkeys"}
    assert foreign.read_text() == "of another package\n"
