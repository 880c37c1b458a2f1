"""The wheel on a machine without a compiler, by each supported Python that this one has."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import attrs
import pytest

from tests.console_blocks import printed
from tests.install.systemd_host import make_root
from tests.integration.daemon import installed_environment
from tests.patience import PATIENCE
from tests.test_packaging import wheel_of_the_checkout

pytestmark = pytest.mark.long

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
OPTIONS = [f"--{wire}-port=0" for wire in ("mc0", "dbp", "mtl", "http", "console")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of_the_checkout(tmp_path_factory.mktemp("wheel"))


LATEST = {"3.14": "sid"}
"""Releases of Debian that have a later Python than most machines."""


@attrs.frozen
class Environment:
    """A virtual environment of this machine, or of one whose files are in ``root``."""

    commands: Path
    root: Path | None = None

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return a command line that runs a command of the environment."""
        prefix = [] if self.root is None else ["chroot", str(self.root)]
        return [*prefix, str(self.commands / name), *arguments]

    def path_of(self, file: Path) -> Path:
        """Return the path by which the commands open a file of this machine."""
        if self.root is None:
            return file
        shutil.copy(file, self.root)
        return Path("/", file.name)


def environment_of(python: str, folder: Path) -> Environment:
    """Make a virtual environment by a version of Python. Skips the test if none can be had."""
    venv = folder / "venv"
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{python}.*/bin/python")
    for found in [f"python{python}", *map(str, pyenv)]:
        command = [found, "-m", "venv", str(venv)]
        if shutil.which(found) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return Environment(venv / "bin")
    if python not in LATEST or os.geteuid() != 0:
        pytest.skip(f"no Python {python} with venv here")
    root = make_root(folder, f"ca-certificates,python{python},python{python}-venv", LATEST[python])
    # The resolver and the certificates of this machine, for pip.
    for path in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", path).exists():
            shutil.copy(Path("/", path), root / path)
    subprocess.run(["chroot", str(root), f"python{python}", "-m", "venv", "/venv"], check=True)
    return Environment(Path("/venv/bin"), root)


def pip_install(environment: Environment, *what: str) -> subprocess.CompletedProcess[str]:
    options = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    command = environment.command("python", "-m", "pip", "install", *options, *what)
    return subprocess.run(command, env=installed_environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("python", SUPPORTED)
def test_the_daemon_of_a_wheel_runs_without_a_compiler(wheel: Path, tmp_path: Path, python: str) -> None:
    environment = environment_of(python, tmp_path)
    done = pip_install(environment, f"{environment.path_of(wheel)}[daemon]")
    if "No matching distribution" in done.stderr:
        pytest.skip(f"PyPI has no wheel here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    env = installed_environment(CC="/no/compiler")
    daemon = subprocess.Popen(
        environment.command("twistd", "-n", "--pidfile=", "elkobroker", "--port=0", *OPTIONS, "--state=state"),
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert daemon.stdout is not None
    with daemon, daemon.stdout:
        log = []
        for line in daemon.stdout:
            log.append(line)
            if " console on " in line:
                break
        http = re.search(r"http on (127\.0\.0\.1:\d+) ", "".join(log))
        assert http is not None, "".join(log)
        with urllib.request.urlopen(f"http://{http[1]}/", timeout=PATIENCE) as page:
            assert b"<title>" in page.read()
        ctl = environment.command("brokerctl", "--url", f"http://{http[1]}", "status")
        status = subprocess.run(ctl, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (status.returncode, "ready" in status.stdout) == (0, True), status.stderr
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(PATIENCE) == -signal.SIGTERM


def test_pip_installs_the_library_and_the_broker_as_the_guide_prints_it(wheel: Path, tmp_path: Path) -> None:
    commands = environment_of("3.11", tmp_path).commands
    (tmp_path / "constraints").write_text(f"elkobroker=={wheel.name.split('-')[1]}\n")
    variables = installed_environment(
        PATH=f"{commands}:{os.environ['PATH']}",
        PIP_FIND_LINKS=str(wheel.parent),
        PIP_CONSTRAINT=str(tmp_path / "constraints"),
    )
    library, broker = printed("docs/clients.md", "## Installation", "## A worker")
    for (command, _), module in ((library, "broker.client.blocking"), (broker, "broker.app.configuration")):
        done = subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True, check=False)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"PyPI has no wheel here: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        subprocess.run([str(commands / "python"), "-c", f"import {module}"], env=variables, check=True)
    listed = subprocess.run(
        [str(commands / "twistd"), "--help"], env=variables, capture_output=True, text=True, check=True
    )
    assert "elkobroker" in listed.stdout


def test_an_unsupported_python_gets_a_sentence_and_nothing(wheel: Path, tmp_path: Path) -> None:
    environment = environment_of("3.10", tmp_path)
    done = pip_install(environment, "--no-deps", str(wheel))
    assert done.returncode == 1
    assert "requires a different Python: 3.10" in done.stderr
    assert not (environment.commands / "brokerctl").exists()
