"""An earlier version of the project, in a checkout of its own for as long as a benchmark runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common.servers import CHECKOUT

COMMIT = "d972ced"
"""The version that queues, and one message at a time, are compared with."""


@contextmanager
def checkout(commit: str = COMMIT) -> Iterator[Path]:
    """A worktree of that commit, in a temporary directory. It runs in the virtual environment of this process.

    SIGTERM ends the process in good order from now on, so that the worktree is removed then, too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        path = Path(name) / "checkout"
        _git("worktree", "add", "--quiet", "--detach", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(CHECKOUT), *arguments], check=True, stdout=subprocess.DEVNULL)
