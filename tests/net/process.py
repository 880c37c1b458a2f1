"""The resources of this process, and programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.patience import PATIENCE


def script(text: str, *arguments: str, patience: float = PATIENCE) -> str:
    """Run a Python program in a process of its own, which must end well. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=patience,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def descriptors() -> int:
    """Count the open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
