"""A machine with a systemd of its own as process 1: a minimal Debian, booted by systemd-nspawn without a network."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import pytest

from tests.packages import REFUSED, program
from tests.patience import PATIENCE, until

RELEASE = "bookworm"
"""The release of Debian on which packages are tried."""

PACKAGES = "systemd,systemd-sysv,dbus,python3,ca-certificates,curl"
"""Programs of a small server, by which the broker is installed and requested."""


def make_root(folder: Path, packages: str = PACKAGES, release: str = RELEASE) -> Path:
    """Install a minimal Debian into a folder. Skips the test where its packages cannot be had."""
    root = folder / "root"
    # A mirror may be a snapshot: the index of a release under development is valid for a week only.
    options = ["--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"', f"--include={packages}"]
    command = [program("mmdebstrap"), *options, release, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mmdebstrap makes no Debian here: {' '.join(done.stderr.split()[-20:])}")
    return root


class SystemdHost:
    """A running machine. What it writes is gone at its end; ``shared`` is a folder that it may read, at /shared."""

    def __init__(self, root: Path, shared: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        name = f"elkobroker-{os.getpid()}"
        options = [
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--private-network",
            "--volatile=overlay",
            "--console=pipe",
        ]
        self._nspawn = subprocess.Popen(
            [
                program("systemd-nspawn"),
                *options,
                f"--directory={root}",
                f"--machine={name}",
                f"--bind-ro={shared}:/shared",
                "--boot",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            until(self._is_up)
        except BaseException:
            self.stop()
            raise

    def _is_up(self) -> bool:
        if self._nspawn.poll() is not None:
            self._log.seek(0)
            pytest.skip(f"{REFUSED}: systemd-nspawn: {self._log.read()[-300:].decode(errors='replace')}")
        return self.run("systemctl is-system-running").stdout.strip() in ("running", "degraded")

    def __enter__(self) -> SystemdHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Switch the machine off."""
        if self._nspawn.poll() is None:
            self._nspawn.terminate()
            try:
                self._nspawn.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        self._log.close()

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell as root; its output, with the errors in it, is text."""
        # The first child, which prepares the machine, is not the one that is process 1 of it.
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        leader = children[-1] if children else str(self._nspawn.pid)
        enter = ["nsenter", "--target", leader, "--mount", "--uts", "--ipc", "--net", "--pid"]
        clean = [
            "env",
            "-i",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LANG=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ]
        return subprocess.run(
            [*enter, *clean, "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def done(self, command: str) -> str:
        """Run a command that must succeed, and return its output."""
        finished = self.run(command)
        assert finished.returncode == 0, f"{command}: {finished.stdout}\n{self.journal()}"
        return finished.stdout

    def journal(self) -> str:
        """The last lines of the broker's log."""
        return self.run("journalctl --no-pager --lines 30 --unit elkobroker").stdout

    def wait_until_active(self) -> None:
        """Wait until the broker runs. A failure shows its log."""
        try:
            until(lambda: self.run("systemctl is-active elkobroker").stdout == "active\n", "an active broker")
        except AssertionError as error:
            error.add_note(self.journal())
            raise

    def write(self, path: str, text: str) -> None:
        """Replace a file, with the owner and mode of one that is there."""
        self.done(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
