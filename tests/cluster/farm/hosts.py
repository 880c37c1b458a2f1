"""etcd and brokers on hosts of their own: configured, started, killed, paused and cut off."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from tests.cluster.farm.network import Host, Network
from tests.cluster.real_etcd import Member
from tests.integration.daemon import environment, twistd
from tests.patience import PATIENCE

ELKO, HTTP, DBP, MTL, MC0, LINK = 9000, 9080, 5246, 5975, 61616, 7946
"""Ports of each broker."""

CONFIG = """
[broker]
grace = {grace}
[console]
enabled = false
[[elko.listeners]]
endpoint = "tcp:{elko}:interface={address}"
[elko.listeners.limits]
rate = 0.0
[mc0]
endpoint = "tcp://{address}:{mc0}"
[dbp]
endpoint = "tcp://{address}:{dbp}"
beacon = []
[mtl]
endpoint = "tcp://{address}:{mtl}"
{queues}
[http]
endpoint = "tcp:{http}:interface={address}"
rate = 0.0
[journal]
enabled = false
[cluster]
etcd = [{etcd}]
name = "{name}"
ttl = {ttl}
link = "tcp://{address}:{link}"
"""


class Broker:
    """One broker on a host. ``before`` is the beginning of its command line on the host, such as faketime."""

    def __init__(self, host: Host, directory: Path, settings: dict[str, object], before: tuple[str, ...] = ()) -> None:
        self.host = host
        self.name = host.name
        self.address = host.address
        self.directory = directory / host.name
        self.directory.mkdir()
        self.log = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._before = before
        ports = {"elko": ELKO, "http": HTTP, "dbp": DBP, "mtl": MTL, "mc0": MC0, "link": LINK}
        self._config = self.directory / "elkobroker.toml"
        self._config.write_text(CONFIG.format(address=host.address, name=host.name, **ports, **settings))

    def start(self) -> None:
        """Start it; it listens once it has joined the cluster."""
        dies_too = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        command = [*self.host.runner, *dies_too, *self._before, twistd(), "-n", "--pidfile=", "elkobroker"]
        command += ["--open", "--config", str(self._config), "--state", str(self.directory / "state")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.directory, env=environment(), stdout=log, stderr=log)

    @property
    def running(self) -> bool:
        """True if the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop it in order (SIGTERM)."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE)

    def defects(self) -> list[str]:
        """Return the lines of its log that no fault excuses."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = text.splitlines()
        return [line for line in lines if "Traceback" in line or " critical " in line or "Unhandled" in line]


class Hosts:
    """Members of etcd and brokers, each on a host of its own; all of them have ended at the exit."""

    def __init__(
        self,
        directory: Path,
        etcds: int = 3,
        brokers: tuple[str, ...] = ("a", "b", "c"),
        ttl: int = 6,
        grace: float = 15.0,
        queues: str = "",
        before: dict[str, tuple[str, ...]] | None = None,
        etcd_options: tuple[str, ...] = (),
    ) -> None:
        names = [f"etcd{number}" for number in range(1, etcds + 1)]
        self.network = Network([*names, *brokers])
        at = {name: self.network.hosts[name] for name in names}
        self.etcds = {
            name: Member(
                name, directory / name, f"http://{host.address}:2379", f"http://{host.address}:2380", host.runner
            )
            for name, host in at.items()
        }
        together = ",".join(f"{each.name}={each.peer}" for each in self.etcds.values())
        for each in self.etcds.values():
            local = each.url.replace(at[each.name].address, "127.0.0.1")
            each.options = ["--listen-client-urls", f"{each.url},{local}", "--advertise-client-urls", each.url]
            each.options += ["--listen-peer-urls", each.peer, "--initial-advertise-peer-urls", each.peer]
            each.options += ["--initial-cluster", together, "--initial-cluster-state", "new", *etcd_options]
        etcd = ", ".join(f'"{each.url}"' for each in self.etcds.values())
        settings = {"etcd": etcd, "ttl": ttl, "grace": grace, "queues": queues}
        self.brokers = {
            name: Broker(self.network.hosts[name], directory, settings, (before or {}).get(name, ()))
            for name in brokers
        }

    def __enter__(self) -> Hosts:
        self.network.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for broker in self.brokers.values():
            broker.kill()
        for member in self.etcds.values():
            member.kill()
            if (member.directory / "data").exists():
                member.wipe()
        self.network.__exit__(None, None, None)
