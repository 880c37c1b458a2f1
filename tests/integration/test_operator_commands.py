"""The commands of the pages that an operator types as root, as they are printed, in an /etc that is discarded."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import pytest

from tests.console_blocks import command_of, printed, shows
from tests.integration.daemon import ROOT, environment, twistd
from tests.packages import REFUSED
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="an /etc of one's own needs root"),
]

MACHINE = """
ip link set lo up
mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" overlay /etc
mkdir /etc/elkobroker && echo elkobroker:x:64999: >>/etc/group && echo ready && exec cat
"""
"""A mount namespace with the folder and the group that the packages of the broker make, until its input ends."""

OLD = '[[elko.listeners]]\nauth = "password"\ncode = "figleaf"\n'


@attrs.define
class Machine:
    """A machine on which the broker's commands are installed."""

    process: subprocess.Popen[str]
    programs: Path
    folder: Path
    """The current one."""

    def start(self, command: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command: on a terminal, or else with its output in a pipe."""
        enter = ["nsenter", "--target", str(self.process.pid), "--mount", "--net"]
        enter += [] if terminal is None else ["setsid", "--ctty", "--wait"]
        path = f"{self.programs}:{os.environ['PATH']}"
        output = subprocess.PIPE if terminal is None else terminal
        return subprocess.Popen(
            [*enter, "sh", "-c", f"cd {self.folder}\n{command}"],
            env=environment(PATH=path, XDG_STATE_HOME=str(self.programs / "state")),
            stdin=terminal,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: str) -> str:
        """Run a command that must succeed, and return its output."""
        with self.start(command) as process:
            said = process.communicate(timeout=PATIENCE)[0].decode()
        assert process.returncode == 0, f"{command}: {said}"
        return said

    def type(self, command: str, *answers: str) -> str:
        """Run a command on a terminal, answer its prompts, and return what is shown there."""
        ours, theirs = pty.openpty()
        with self.start(command, theirs) as process, open(ours, "r+b", buffering=0) as terminal:
            os.close(theirs)
            said = b""
            for answer in answers:
                before = len(said)
                while not said[before:].rstrip(b" ").endswith(b":"):
                    said += terminal.read(1_000)
                terminal.write(f"{answer}\n".encode())
            with suppress(OSError):  # the end of a terminal
                while more := terminal.read(1_000):
                    said += more
        assert process.returncode == 0, f"{command}: {said.decode()}"
        return said.decode()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "bin").mkdir()
    python = sys.executable
    for name, line in (
        ("brokerctl", f'{python} -m broker.brokerctl "$@"'),
        ("brokerkeys", f'{python} -m broker.brokerkeys "$@"'),
        ("twistd", f'{twistd()} "$@"'),
        ("sudo", '"$@"'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "etc").mkdir()
    command = ["unshare", "--mount", "--net", "sh", "-e", "-c", MACHINE, str(tmp_path / "etc")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"{REFUSED}: an /etc of one's own: {process.stderr.read()}")
        yield Machine(process, tmp_path / "bin", tmp_path)
        process.communicate()


def run_all(machine: Machine, page: str, shown: Sequence[tuple[str, str]]) -> None:
    """Run commands of a page, and compare their outputs."""
    for command, output in shown:
        said = machine.type(command, "pencil", "pencil") if "passwd" in command else machine.run(command)
        assert not output or shows(output, said), f"{command}: {said}"


def test_users(machine: Machine) -> None:
    machine.run("brokerkeys new node-1")
    run_all(machine, "docs/security.md", printed("docs/security.md", "", "## From a former configuration"))
    assert machine.run("stat --format '%a %U %G' /etc/elkobroker/users.toml") == "640 root elkobroker\n"


def test_a_former_configuration(machine: Machine) -> None:
    (machine.folder / "elkobroker.toml").write_text(OLD)
    run_all(machine, "docs/security.md", printed("docs/security.md", "## From a former configuration"))


def test_keys_of_bridges(machine: Machine) -> None:
    machine.folder = Path("/etc/elkobroker")
    run_all(machine, "docs/bridges.md", printed("docs/bridges.md", "", "", ("brokerctl bridges",)))


def test_keys_of_mc0(machine: Machine) -> None:
    run_all(machine, "docs/protocols/mc0.md", printed("docs/protocols/mc0.md"))


def test_files_of_a_new_cluster(machine: Machine) -> None:
    run_all(machine, "docs/cluster.md", printed("docs/cluster.md", "", "### From one broker to a cluster"))


def test_files_of_a_cluster_with_an_existing_broker(machine: Machine) -> None:
    machine.run("echo '[http]' >/etc/elkobroker/elkobroker.toml")
    run_all(machine, "docs/cluster.md", printed("docs/cluster.md", "### From one broker to a cluster", "## Operation"))


def test_a_daemon_in_the_foreground(machine: Machine) -> None:
    """Its configuration is the example."""
    machine.run(f"cp {ROOT}/etc/elkobroker.toml /etc/elkobroker")
    command = command_of("docs/configuration.md", "twistd -n elkobroker --config /etc/elkobroker/elkobroker.toml")
    with machine.start(f"exec {command}") as daemon:
        assert daemon.stdout is not None
        log = b""
        while b" http on 127.0.0.1:9080 " not in log:
            log += daemon.stdout.readline()
            assert log.endswith(b"\n"), log
        daemon.terminate()
