"""The broker as process 1 of a container: the orphans of the programs that it launches become its children."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.configurations import OFF, listener
from tests.integration.daemon import Daemon
from tests.patience import until

RUNNER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Runs a command as the first process of a namespace."""

LAUNCHER = """
[launchers]
start = "initial"
[[launchers.table]]
name = "parent"
script = "sh -c 'sleep 0.1 & sleep 0.1 & exit 0'"
initial = true
"""
"""A program that leaves two orphans behind."""


def children(process: int) -> list[int]:
    """The child processes of a process, zombies included."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_it_reaps_orphans(tmp_path: Path) -> None:
    if subprocess.run([*RUNNER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("processes may not be put into a namespace of their own")
    config = tmp_path / "x.toml"
    config.write_text(LAUNCHER + OFF + listener("main"))
    with Daemon(tmp_path, "--config", str(config), runner=RUNNER) as daemon:
        daemon.wait_for(r"parent.*ended")
        [broker] = children(daemon.process.pid)
        assert re.search(r"^NSpid:\t\d+\t1$", Path(f"/proc/{broker}/status").read_text(), re.MULTILINE)
        until(lambda: children(broker) == [])
