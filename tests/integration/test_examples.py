"""The examples and the programs of the client guide that stay: each registers once, and stays found and passing."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_guide import PROGRAMS
from tests.integration.daemon import ROOT, Daemon, environment
from tests.integration.http_api import ask
from tests.integration.mc0_clients import counters
from tests.patience import until

CONFIG = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
endpoint = "tcp://127.0.0.1:0"
[mtl]
endpoint = "tcp://127.0.0.1:0"
[[checks.rules]]
services = ["*"]
kind = "ping"
wires = ["elko"]
interval = 1.0
timeout = 1.0
"""

MINUTE = 60.0
"""Seconds of the long run."""

SEVERAL = 8
"""Signs of life of each program in the short run: more than a silence that ends a registration has."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "x.toml").write_text(CONFIG)
    with Daemon(tmp_path, "--config", "x.toml") as running:
        yield running


def services(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """The services of clients, by name."""
    rows = ask(daemon, "GET", "/v1/services?limit=100")[1]["rows"]
    return {row["service"]: row for row in rows if row["provider"]}


@pytest.mark.long
def test_programs_that_stay_register_once(daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ports = {
        "9080": str(daemon.http_port()),
        "5246": str(daemon.dbp_port()),
        "61616": str(daemon.mc0_port()),
        "5975": daemon.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ")[1],
    }
    default = re.compile(rf"\b({'|'.join(ports)})\b")
    commands = [
        [str(ROOT / "examples/provider.py"), "--broker", f"127.0.0.1:{daemon.port()}", "--service", "elko"],
        [str(ROOT / "examples/service.py"), "--name", "dbp", "--port", ports["5246"]],
    ]
    for name in ("dbp.py", "offer_http.py", "mc0.py"):
        (tmp_path / name).write_text(default.sub(lambda found: ports[found[1]], PROGRAMS[name]))
        commands.append([name])
    with ExitStack() as stack:
        running = []
        for command in commands:
            program = subprocess.Popen(
                [sys.executable, *command],
                cwd=tmp_path,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(program.communicate)
            stack.callback(program.kill)
            running.append(program)
        names = {"elko", "dbp", "rohan", "bank"}
        until(lambda: names <= services(daemon).keys())
        before = {name: row["provider"] for name, row in services(daemon).items()}
        if request.config.getoption("--long"):
            end = time.monotonic() + MINUTE
            until(lambda: time.monotonic() > end)
        until(lambda: _signs(daemon) >= SEVERAL)
        until(lambda: services(daemon)["elko"]["check"] == "passing")
        assert {name: row["provider"] for name, row in services(daemon).items()} == before
        assert [program.args for program in running if program.poll() is not None] == []
        counted = counters(daemon)
        assert (counted["dbp_services.registered"], counted["http_services.registered"]) == (2, 1)
        assert counted["mc0_sessions.begun"] == 1
        assert not any(counted.get(f"dbp_services.{end}") for end in ("expired", "replaced", "disconnected"))
        checked = services(daemon)["elko"]
        assert "failing" not in str(checked)


def _signs(daemon: Daemon) -> int:
    """The signs of life of the program with fewest."""
    counted = counters(daemon)
    return min(counted.get("dbp_heartbeats.udp", 0) // 2, counted.get("http_services.renewed", 0))
