"""The real broker for clients: one that can be stopped and started again at the same endpoints."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

from broker.client.blocking import Client
from broker.client.mtl import Settings
from tests.access.users import ELSEWHERE, give_password, put, right
from tests.integration.daemon import Daemon, environment
from tests.patience import PATIENCE

QUICK = Settings(timeout=20.0, heartbeat=1.0, least_pause=0.05, most_pause=0.5)

CONFIGURATION = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
enabled = false
[dbp]
enabled = false
[mtl]
heartbeat = 0.5
"""


@attrs.define
class Farm:
    """A broker with this configuration of MTL, and clients of it."""

    directory: Path
    mtl: str
    daemon: Daemon = attrs.field(init=False)
    places: tuple[str, str] = ("tcp://127.0.0.1:0", "")

    def start(self) -> None:
        """Start the broker; the first time at free ports."""
        place, data = self.places
        keys = f'endpoint = "{place}"\n' if "endpoint =" not in self.mtl else ""
        if data:
            keys += f"data_port = {data.rpartition(':')[2]}\n"
        path = self.directory / "elkobroker.toml"
        path.write_text(f"{CONFIGURATION}{keys}{self.mtl}\n")
        self.daemon = Daemon(self.directory, "--config", str(path))
        found = self.daemon.wait_for(r"mtl on (\S+) \((?:data (\S+);)?")
        if found[1].startswith("tcp"):
            self.places = (found[1], found[2])
        else:
            self.places = (found[1], "")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.daemon.signal(how)
        self.daemon.ended()
        with self.daemon:
            pass

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    def client(self, *arguments: Any, **more: Any) -> Client:
        return Client(self.places[0], *arguments, settings=QUICK, **more)

    def password(self, name: str, password: str) -> None:
        """Give a user, who may do everything over MTL, another password."""
        path = self.directory / "users.toml"
        if not path.exists():
            put(path, ELSEWHERE + right("*", "*", "mtl"))
        give_password(path, name, password)

    def run(self, command: str, *arguments: str, says: str = "") -> str:
        """Run one of the broker's commands with this input, and return its output."""
        ended = subprocess.run(
            [sys.executable, "-m", f"broker.{command}", *arguments],
            cwd=self.directory,
            env=environment(),
            input=says,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout
