"""`brokerctl cluster init` and `adopt` as they are documented: three machines, and the printed commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.client.blocking import Client
from tests.cluster.farm.network import Network
from tests.cluster.queue_load import QUICK
from tests.integration.daemon import environment, twistd
from tests.packages import program
from tests.patience import PATIENCE, until

CTL = [sys.executable, "-m", "broker.brokerctl"]
NAMES = ("broker-a", "broker-b", "broker-c")


def run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    return ended.stdout


ALONE = """
[http]
endpoint = "tcp:9080"
[mtl]
endpoint = "tcp://*:5975"
[[mtl.queues]]
queues = ["jobs"]
durable = true
"""
"""The configuration of a broker by itself."""


class Farm:
    """Three machines."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.directory = directory
        self.network = network
        self.hosts = {name: network.hosts[name] for name in NAMES}
        self.said = ""
        self.passwords: dict[str, str] = {}
        self.trust: ssl.SSLContext | None = None
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def make(self, *command: str) -> None:
        """A command that writes the files of the machines."""
        machines = [f"{name}={host.address}" for name, host in self.hosts.items()]
        self.said = run(*CTL, "cluster", *command, *machines, "--out", str(self.directory / "cluster"))

    def init(self) -> None:
        """Brokers with users and TLS."""
        self.make("init")
        self.passwords = dict(re.findall(r"^password of (\w+): (\S+)$", self.said, re.MULTILINE))
        self.trust = ssl.create_default_context(cafile=str(self.directory / "cluster" / NAMES[0] / "ca.pem"))

    def start(self, name: str) -> None:
        """The printed command."""
        [printed] = re.findall(r"^    (twistd .*)$", self.said, re.MULTILINE)
        files = self.directory / "cluster" / name
        config = files / "elkobroker.toml"
        config.write_text(config.read_text().replace("/etc/elkobroker", str(files)))
        self.run(name, *printed.replace("/etc/elkobroker", str(files)).split()[1:])

    def run(self, name: str, *words: str) -> None:
        """Start a broker; its state is in a directory of the test."""
        dies_too = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        command = [*self.hosts[name].runner, *dies_too, twistd(), "--pidfile=", *words]
        variables = environment(STATE_DIRECTORY=str(self.directory / f"{name}.state"))
        variables["PATH"] = f"{Path(program('etcd')).parent}:{variables.get('PATH', '')}"
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, cwd=self.directory, env=variables, stdout=log, stderr=log)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE)

    def call(self, name: str, method: str, path: str, body: object = None, user: str = "service") -> tuple[int, Any]:
        login = b64encode(f"{user}:{self.passwords.get(user, '')}".encode()).decode()
        request = urllib.request.Request(
            f"http{'s' if self.trust else ''}://{self.hosts[name].address}:9080{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"} | ({"authorization": f"Basic {login}"} if self.trust else {}),
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=self.trust) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None

    def found(self, name: str, service: str) -> list[str]:
        status, answer = self.call(name, "GET", f"/v1/services/{service}")
        return [each["hostport"] for each in answer["services"]] if status == 200 else []

    def owners(self, name: str) -> dict[str, str]:
        """The owners of queues, as a broker knows them."""
        status, answer = self.call(name, "GET", "/v1/views/cluster/claims", user="admin")
        return {each["queue"]: each["owner"] for each in answer["rows"]} if status == 200 else {}

    def reasons(self, name: str) -> set[str]:
        """The parts that are away, of the reasons for which a broker is degraded."""
        status, answer = self.call(name, "GET", "/readyz", user="admin")
        text = str(answer["degraded"]) if status == 200 else ""
        return set(re.findall(r"[\w.:-]+ is (?:missing|away)", text.replace("https://", "")))

    def ctl(self, name: str) -> tuple[int, Any]:
        """Exit code and members of the printed `brokerctl cluster`."""
        secret = self.directory / "password"
        secret.write_text(self.passwords["admin"])
        secret.chmod(0o600)
        [printed] = re.findall(r"^brokerctl (.*)$", self.said, re.MULTILINE)
        words = printed.replace(self.hosts[NAMES[0]].address, self.hosts[name].address).split()
        command = [*CTL, "--password-file", str(secret), *words, "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
        if not ended.stdout:
            return ended.returncode, ended.stderr
        members = json.loads(ended.stdout)["members"]
        return ended.returncode, [each["member"] for each in members if each["here"] or each["linked"]]


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with ExitStack() as stack:
        made = Farm(tmp_path, stack.enter_context(Network(list(NAMES))))
        try:
            yield made
        finally:
            for name in tuple(made.running):
                made.stop(name)
            for log in sorted(tmp_path.glob("*.log")):
                print(f"--- {log.name} ---", log.read_text(errors="replace")[-3000:], sep="\n")


@pytest.mark.long
def test_a_broker_alone_becomes_one_of_three_machines(farm: Farm, tmp_path: Path) -> None:
    first, *others = NAMES
    etc = {name: tmp_path / f"{name}.etc" for name in NAMES}
    for each in etc.values():
        each.mkdir()
    config = etc[first] / "elkobroker.toml"
    config.write_text(ALONE)
    farm.run(first, "-n", "elkobroker", "--open", "--config", str(config))
    body = {"hostport": "10.0.0.1:80", "ttl": 600}
    until(lambda: farm.call(first, "PUT", "/v1/services/bank/1", body)[0] in (200, 201), "the broker alone serves")
    with Client(f"tcp://{farm.hosts[first].address}:5975", settings=QUICK) as client:
        client.write("queue", ["jobs"]).send(b"before", timeout=PATIENCE)
    farm.make("adopt", str(config))
    for name in (*others, first):
        if name == first:
            farm.stop(name)
        said = f"{tmp_path / 'cluster' / name}: copy its files"
        assert said in farm.said
        shutil.copytree(tmp_path / "cluster" / name, etc[name], dirs_exist_ok=True)
        farm.run(name, "-n", "elkobroker", "--open", "--config", str(etc[name] / "elkobroker.toml"))
    for name in NAMES:
        until(lambda name=name: farm.found(name, "bank") == ["10.0.0.1:80"], f"{name} finds")  # type: ignore[misc]
    until(lambda: farm.owners(others[0]).get("jobs") == first, "its queue is claimed")
    with Client(f"tcp://{farm.hosts[others[0]].address}:5975", settings=QUICK) as client:
        content = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take(PATIENCE)
        assert content.body == b"before"
        content.confirm()
    # What comes back at another machine is registered there, once.
    until(lambda: farm.call(others[1], "PUT", "/v1/services/bank/1", body)[0] in (200, 201), "it is back")
    for name in NAMES:
        until(lambda name=name: farm.found(name, "bank") == ["10.0.0.1:80"], f"{name} finds")  # type: ignore[misc]
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text(errors="replace")


@pytest.mark.long
def test_three_machines_as_printed(farm: Farm, tmp_path: Path) -> None:
    farm.init()
    for name in NAMES:
        farm.start(name)
    for name in NAMES:
        until(lambda name=name: farm.ctl(name) == (0, list(NAMES)), f"{name} sees all")  # type: ignore[misc]
    # Clients log in, from other machines, too; strangers may nothing.
    assert farm.call("broker-a", "PUT", "/v1/services/bank/1", {"hostport": "10.0.0.1:80", "ttl": 600})[0] == 201
    for name in NAMES:
        until(lambda name=name: farm.found(name, "bank") == ["10.0.0.1:80"], f"{name} finds")  # type: ignore[misc]
    farm.passwords["stranger"] = "guess"
    assert farm.call("broker-a", "GET", "/v1/services/bank", user="stranger")[0] == 401
    # A machine without a certificate of the cluster does not reach etcd.
    etcd = f"https://{farm.hosts['broker-a'].address}:2379/v3/maintenance/status"
    with pytest.raises(OSError, match=r"(?i)certificate|ssl|reset|eof"):
        urllib.request.urlopen(urllib.request.Request(etcd, b"{}"), timeout=5, context=farm.trust)
    # One machine is lost: the others go on; it comes back.
    farm.stop("broker-a", signal.SIGKILL)
    os.kill(int((tmp_path / "broker-a.state" / "etcd.pid").read_text()), signal.SIGKILL)
    assert farm.call("broker-b", "PUT", "/v1/services/shop/1", {"hostport": "10.0.0.2:80", "ttl": 600})[0] == 201
    until(lambda: farm.found("broker-c", "shop") == ["10.0.0.2:80"], "broker-c finds")
    # The others name what is missing, and what it takes away.
    address = farm.hosts["broker-a"].address
    until(lambda: farm.ctl("broker-b")[0] == 1, "broker-b is degraded")
    missing = {"broker-a is missing", f"{address}:2379 is away"}
    until(lambda: missing <= farm.reasons("broker-b"), "the reasons are named")
    farm.start("broker-a")
    until(lambda: farm.found("broker-a", "shop") == ["10.0.0.2:80"], "broker-a finds again")
    until(lambda: farm.ctl("broker-a") == (0, list(NAMES)), "all is well")
    # A machine that is cut off says so, by its exit code.
    for other in ("broker-a", "broker-b"):
        farm.network.cut("broker-c", other)
    until(lambda: farm.ctl("broker-c")[0] == 1, "broker-c is degraded")
    assert farm.found("broker-c", "shop") == ["10.0.0.2:80"]
    for other in ("broker-a", "broker-b"):
        farm.network.heal("broker-c", other)
    until(lambda: farm.ctl("broker-c") == (0, list(NAMES)), "broker-c is back")
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text(errors="replace")
