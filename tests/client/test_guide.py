"""The client guide: its programs run against the real broker, and print what the guide shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import zmq

from broker.client.credentials import Password
from broker.client.errors import Unreachable
from tests.console_blocks import as_shown, command_of, printed
from tests.integration.daemon import ROOT, Daemon, environment
from tests.patience import PATIENCE

GUIDE = (ROOT / "docs" / "clients.md").read_text()

PROGRAMS = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", GUIDE, re.M | re.S))
"""The programs of the guide, by the name in their first line."""

COMMANDS = [
    (command.split()[1:], output) for command, output in printed("docs/clients.md", "", "", ("pip", "python -m"))
]
ARGUMENTS = {name: words for (name, *words), _ in COMMANDS}
"""The arguments of a program that a command of the guide runs."""

SHOWN = {name: output for (name, *_), output in COMMANDS}
"""The output that is shown for a program."""

CONFIGURATION = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
endpoint = "tcp://127.0.0.1:0"
[mtl]
endpoint = "tcp://127.0.0.1:0"
[dns]
enabled = true
endpoint = "tcp:0:interface=127.0.0.1"
[director]
[[director.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
"""


@attrs.define
class Programs:
    """The guide's programs in a folder, where each default port is that of a running broker."""

    folder: Path
    daemon: Daemon

    @contextmanager
    def running(self, name: str) -> Iterator[Output]:
        """Run a program that does not end by itself, as the guide does."""
        process = subprocess.Popen(
            [sys.executable, name, *ARGUMENTS.get(name, [])],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Output(process)
        finally:
            process.kill()
            process.communicate()

    def output(self, name: str) -> str:
        """Run a program to its end, and return its output."""
        with self.running(name) as output:
            text, _ = output.process.communicate(timeout=PATIENCE)
            assert output.process.returncode == 0, text
            return text


@attrs.define
class Output:
    """The output of a running program."""

    process: subprocess.Popen[str]

    def lines(self, count: int) -> str:
        """Return the next lines."""
        assert self.process.stdout is not None
        limit = threading.Timer(PATIENCE, self.process.kill)
        limit.start()
        try:
            return "".join(self.process.stdout.readline() for _ in range(count))
        finally:
            limit.cancel()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """All programs, and a broker with all wires."""
    folder = tmp_path_factory.mktemp("guide")
    [durable] = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.M | re.S)
    (folder / "elkobroker.toml").write_text(CONFIGURATION + durable)
    with Daemon(folder, "--config", str(folder / "elkobroker.toml")) as daemon:
        ports = {
            "5975": daemon.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ")[1],
            "9000": str(daemon.port()),
            "9010": daemon.wait_for(r"director listener \S+ on \S+:(\d+) ")[1],
            "5246": str(daemon.dbp_port()),
            "61616": str(daemon.mc0_port()),
            "9053": daemon.wait_for(r"dns on \S+:(\d+) ")[1],
            "9080": str(daemon.http_port()),
        }
        for name, text in PROGRAMS.items():
            (folder / name).write_text(
                re.sub(r"\b(5975|9000|9010|5246|61616|9053|9080)\b", lambda m: ports[m[1]], text)
            )
        yield Programs(folder, daemon)
        daemon.signal(signal.SIGTERM)
        daemon.ended()
        assert "Traceback" not in "".join(daemon.log)


def test_every_program_is_run_here() -> None:
    # put.py, ask.py and offer.py have their output in the tests of their counterparts.
    assert set(SHOWN) == {*PROGRAMS} - {"offer.py", "test_programs.py"}


@pytest.mark.long
def test_a_worker_on_a_durable_queue(programs: Programs) -> None:
    assert programs.output("put.py") == SHOWN["put.py"]
    with programs.running("worker.py") as worker:
        assert worker.lines(2) == SHOWN["worker.py"]
        worker.process.send_signal(signal.SIGTERM)
        assert worker.lines(1) == "finished\n"
        assert worker.process.wait(PATIENCE) == 0


def test_a_service_and_its_caller(programs: Programs) -> None:
    with programs.running("upper.py") as server:
        assert server.lines(1) == SHOWN["upper.py"]
        assert programs.output("ask.py") == SHOWN["ask.py"]


@pytest.mark.long
def test_a_watcher(programs: Programs) -> None:
    with programs.running("watch.py") as watcher, programs.running("offer.py") as offer:
        shown = watcher.lines(1)
        offer.process.communicate("\n", timeout=PATIENCE)
        assert shown + watcher.lines(1) == SHOWN["watch.py"]


@pytest.mark.parametrize("name", ["asyncio_jobs.py", "twisted_jobs.py", "elko.py", "director.py"])
def test_a_program_that_ends(programs: Programs, name: str) -> None:
    assert programs.output(name) == SHOWN[name]


def test_a_program_that_finds_by_dns(programs: Programs) -> None:
    with programs.daemon.connect() as provider:
        bank = {"type": "servicedesc", "service": "bank", "hostport": "bank.example.com:7000"}
        provider.send(to="client", op="willserve", services=[bank])
        provider.done()
        assert programs.output("find.py") == SHOWN["find.py"]


@pytest.mark.parametrize("name", ["dbp.py", "mc0.py", "offer_http.py"])
def test_a_program_that_stays(programs: Programs, name: str) -> None:
    with programs.running(name) as program:
        shown = program.lines(SHOWN[name].count("\n"))
        assert re.sub(r"provider \d+", "provider 1", shown) == SHOWN[name]


def test_several_brokers() -> None:
    functions: dict[str, Any] = {}
    [text] = [each for each in snippets() if "with_a_list" in each]
    exec(text, functions)
    with functions["with_a_list"]() as client:
        assert client.client.endpoint == "tcp://broker-a.example:5975"
    with functions["with_a_name"]() as client:
        assert client.client.endpoint == "tcp://brokers.example:5975"


def snippets() -> list[str]:
    """The pieces of the guide that are no whole programs."""
    return re.findall(r"^```python\n(from .*?)^```", GUIDE, re.M | re.S)


def test_credentials_and_keys() -> None:
    [text] = [each for each in snippets() if "with_password" in each]
    functions: dict[str, Any] = {}
    exec(text, functions)
    with functions["with_password"]() as client:
        assert client.client.credentials == Password("anna", "pencil")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    with functions["with_keys"](public, public, secret) as client, pytest.raises((TimeoutError, Unreachable)):
        client.open(0.01)  # the keys are well-formed, and nobody answers


@pytest.mark.long
def test_the_guides_own_tests(programs: Programs) -> None:
    command = command_of("docs/clients.md", "python -m pytest -q test_programs.py")
    done = subprocess.run(
        [sys.executable, *command.split()[1:], "-p", "no:cacheprovider"],
        cwd=programs.folder,
        env={**environment(), "PYTHONPATH": os.pathsep.join((str(ROOT), str(programs.folder)))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    shown = as_shown("docs/clients.md", "python -m pytest -q test_programs.py", done.stdout)
    assert shown, done.stdout + done.stderr
