"""Full disks for tests: files that may not become longer, and a small disk that can really be filled."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@contextmanager
def no_room(size: int = 0) -> Iterator[None]:
    """No file of this process can be written behind ``size`` bytes: the errors are those of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def small_disk(directory: Path, megabytes: int) -> list[str]:
    """The beginning of a command line whose process has a disk of that size in that directory."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("a disk of its own cannot be mounted here")
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mount, str(directory)]


def on_a_small_disk(directory: Path, megabytes: int, script: str) -> str:
    """Run a Python script, whose argument is a directory on a disk of that size. Returns what it printed.

    The disk is in a mount namespace of the script's own, which needs no privilege where the kernel allows that.
    """
    ended = subprocess.run(
        [*small_disk(directory, megabytes), sys.executable, "-c", script, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
