"""Three real brokers, each with a member of etcd of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cluster.brokers import Broker
from tests.packages import program
from tests.patience import until
from tests.ports import free_port


class Machines:
    """Brokers on this machine, as if on machines of their own."""

    def __init__(self, directory: Path, stack: ExitStack, *names: str) -> None:
        self.directory = directory
        self.stack = stack
        self.members = [f"{name}=127.0.0.1:{free_port()}" for name in names]
        self.running: dict[str, Broker] = {}

    def start(self, name: str, more: str = "") -> Broker:
        place = self.directory / name
        place.mkdir(exist_ok=True)
        file = place / "broker.toml"
        members = ", ".join(f'"{each}"' for each in self.members)
        file.write_text(
            f'[cluster]\netcd = ["embedded"]\nmembers = [{members}]\nname = "{name}"\nttl = 5\n'
            f'etcd_program = "{program("etcd")}"\n{more}'
            '[elko]\n[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n'
        )
        broker = self.running[name] = Broker(
            place, "--config", str(file), "--mc0-port", "off", "--dbp-port", "off", "--mtl-port", "off"
        )
        self.stack.enter_context(broker)
        return broker

    def pid(self, name: str) -> int:
        """The id of the process of a member of etcd."""
        return int((self.directory / name / "state" / "etcd.pid").read_text())

    def sees(self, name: str, *members: str) -> None:
        until(lambda: self.running[name].members() == list(members), f"{name} sees {members}")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        made = Machines(tmp_path, stack, "a", "b", "c")
        yield made
    # The brokers were killed at the end, which leaves their members.
    for name in made.running:
        with suppress(OSError):
            os.kill(made.pid(name), signal.SIGKILL)


def runs(pid: int) -> bool:
    """True for a process that has not ended; one that was not reaped has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_three_brokers_are_a_cluster_without_another_program(machines: Machines) -> None:
    a, b, c = (machines.start(name) for name in "abc")
    for broker in (a, b, c):
        broker.wait_for("console on")
    for name in "abc":
        machines.sees(name, "a", "b", "c")
    # Clients get the list of all brokers from each, that one first.
    servers = [f"http://127.0.0.1:{broker.http_port()}" for broker in (a, b, c)]
    until(lambda: b.get("/v1/whoami")["servers"] == [servers[1], servers[0], servers[2]], "b lists the brokers")
    a.offer("bank", "10.0.0.1:80")
    until(lambda: c.found("bank") == ["10.0.0.1:80"], "the service is found at c")
    # One of them is killed with its member. The other two go on; the next start replaces the member that is left.
    left = machines.pid("a")
    a.process.send_signal(signal.SIGKILL)
    a.process.wait()
    b.offer("shop", "10.0.0.2:80")
    until(lambda: c.found("shop") == ["10.0.0.2:80"], "two members are enough")
    back = machines.start("a")
    back.wait_for("console on")
    assert machines.pid("a") != left
    assert not runs(left)
    until(lambda: back.found("shop") == ["10.0.0.2:80"], "the one that is back reads the keys")
    # A member alone ends: its broker says so, uses the others, and starts it again.
    os.kill(machines.pid("b"), signal.SIGKILL)
    b.wait_for(r"the embedded etcd ended by signal 9 \(SIGKILL\); .* it is started again in 1 s")
    b.offer("farm", "10.0.0.3:80")
    until(lambda: back.found("farm") == ["10.0.0.3:80"], "b writes to another member")
    until(lambda: not b.degraded(), "the member of b is back")
    # An orderly stop ends the member.
    pid = machines.pid("c")
    c.process.terminate()
    c.ended()
    assert not runs(pid)
    assert not any("raceback" in line for broker in (a, b, c, back) for line in broker.log)


def test_a_member_that_cannot_run_is_a_reason_of_the_state(machines: Machines, tmp_path: Path) -> None:
    a = machines.start("a")
    b = machines.start("b")
    a.wait_for("console on")
    b.wait_for("console on")
    # No program can be run in its place: its data are no directory.
    os.kill(machines.pid("a"), signal.SIGKILL)
    a.wait_for("the embedded etcd ended by signal 9")
    reasons = a.degraded()
    if reasons:  # it may be back already
        assert "embedded etcd" in str(reasons), reasons
    until(lambda: "embedded etcd" not in str(a.degraded()), "it is back")
    # The third broker is expected, and was not started.
    assert "the broker c is missing since" in str(a.degraded())


def test_a_member_that_is_left_is_replaced_also_if_its_directory_cannot_be_used_at_first(
    machines: Machines, tmp_path: Path
) -> None:
    del machines.members[1:]
    a = machines.start("a")
    a.wait_for("console on")
    left = machines.pid("a")
    a.process.kill()
    a.process.wait()
    state = tmp_path / "a" / "state"
    (state / "etcd").rename(state / "away")
    (state / "etcd").touch()  # as a link to a disk that is not mounted yet
    back = machines.start("a")
    back.wait_for("etcd cannot be used: .* it is started again in 1 s")
    (state / "etcd").unlink()
    (state / "away").rename(state / "etcd")
    until(lambda: not runs(left), "the former member has ended")
    until(lambda: not back.degraded(), "the new one serves")
    assert machines.pid("a") != left


@pytest.mark.long
def test_a_machine_that_lost_its_data_joins_again(machines: Machines, tmp_path: Path) -> None:
    for name in "abc":
        machines.start(name)
    for name in "abc":
        machines.sees(name, "a", "b", "c")
    machines.running["b"].offer("bank", "10.0.0.1:80")
    a = machines.running["a"]
    a.process.terminate()
    a.ended()
    shutil.rmtree(tmp_path / "a" / "state")
    # As it is, it says what is wrong.
    again = machines.start("a")
    again.wait_for("has already been bootstrapped")
    again.wait_for("the embedded etcd ended with exit code")
    again.process.terminate()
    again.ended()
    [port, other] = [int(each.rpartition(":")[2]) for each in machines.members[:2]]
    ctl = [program("etcdctl"), "--endpoints", f"http://127.0.0.1:{other}", "member"]

    def etcdctl(*words: str) -> str:
        variables = {**os.environ, "ETCDCTL_API": "3"}
        ended = subprocess.run([*ctl, *words], capture_output=True, text=True, env=variables)
        return ended.stdout if ended.returncode == 0 else ""

    [id] = [line.split(",")[0] for line in etcdctl("list").splitlines() if ", a," in line]
    until(lambda: etcdctl("remove", id), "the former member is removed")
    # etcd refuses a member while the others have not been connected for some seconds.
    until(lambda: etcdctl("add", "a", f"--peer-urls=http://127.0.0.1:{port + 1}"), "the new member is added")
    shutil.rmtree(tmp_path / "a" / "state")
    back = machines.start("a", "etcd_joins = true\n")
    machines.sees("a", "a", "b", "c")
    assert back.found("bank") == ["10.0.0.1:80"]
