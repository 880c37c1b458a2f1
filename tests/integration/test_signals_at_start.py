"""Signals that arrive while the real twistd starts, and those of a terminal, with a real one."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.twistd import ONLY_SHOWS
from tests.examples import sampled
from tests.integration.daemon import StartedDaemon, environment, twistd
from tests.patience import until

OPTIONS = ("--port=0", "--console-port=0", *(f"--{wire}-port=off" for wire in ("mc0", "dbp", "mtl", "http")))


def has(pid: int, mask: str, number: signal.Signals) -> bool:
    """Return True once a mask of a process has a signal: ``SigBlk`` of the blocked ones, ``SigCgt`` of handlers."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(mask):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


@pytest.mark.long
def test_signals_that_arrive_before_the_start_are_handled_at_the_start(tmp_path: Path) -> None:
    with StartedDaemon(tmp_path) as daemon:
        until(lambda: has(daemon.process.pid, "SigBlk", signal.SIGUSR1))
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
            daemon.signal(number)
        daemon.wait_for("the log was opened again")
        for number in (signal.SIGUSR2, signal.SIGTSTP):
            daemon.wait_for(f"{number.name} has no effect")
        daemon.wait_for("there is no configuration file")
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        daemon.wait_for("stopped")


@pytest.mark.long
def test_sigterm_during_the_start_stops_it_in_order(tmp_path: Path) -> None:
    with StartedDaemon(tmp_path) as daemon:
        until(lambda: has(daemon.process.pid, "SigCgt", signal.SIGTERM))
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        daemon.wait_for("stopped")


@pytest.mark.parametrize("option", sampled(sorted(ONLY_SHOWS)))
def test_a_command_that_only_shows_something_holds_no_signals(tmp_path: Path, option: str) -> None:
    script = (
        f"import signal, sys; sys.argv = ['twistd', 'elkobroker', '{option}']; import broker.twistd;"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    command = [sys.executable, "-c", script]
    shown = subprocess.run(command, env=environment(), cwd=tmp_path, check=True, capture_output=True, text=True)
    assert shown.stdout == "set()\n"


LEADER = '''
"""A shell, as far as it matters here: the leader of a session with a terminal, with one job."""
import fcntl, json, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
flags = termios.tcgetattr(0)
flags[3] |= termios.TOSTOP
termios.tcsetattr(0, termios.TCSANOW, flags)
job = subprocess.Popen(sys.argv[3:], preexec_fn=os.setpgrp)
if sys.argv[2] == "foreground":
    os.tcsetpgrp(0, job.pid)
says = os.fdopen(int(sys.argv[1]), "w", buffering=1)
print("job", job.pid, file=says)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    print("stopped" if os.WIFSTOPPED(status) else "ended", file=says)
    if not os.WIFSTOPPED(status):
        break
'''


class Terminal:
    """A terminal with ``stty tostop``, and the daemon as a job in its background or foreground.

    ``text`` is what the terminal shows, ``states`` the job's.
    """

    def __init__(self, directory: Path, place: str) -> None:
        self.master, slave = pty.openpty()
        self._says, end = os.pipe()
        command = [twistd(), "-n", "--pidfile=", "elkobroker", *OPTIONS, f"--state={directory / 'state'}"]
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, str(end), place, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[end],
            cwd=directory,
            env=environment(),
        )
        os.close(slave)
        os.close(end)
        self.text = ""
        self.states: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow, args=(self.master, self._show)),
            threading.Thread(target=self._follow, args=(self._says, self._note)),
        ]
        for thread in self._threads:
            thread.start()
        self.job = int(until(lambda: self.states)[0].split()[1])

    def end(self) -> None:
        """End the job and the leader."""
        if self.leader.poll() is None:
            os.kill(self.job, signal.SIGKILL)
        self.leader.wait()
        for thread in self._threads:
            thread.join()
        os.close(self.master)
        os.close(self._says)

    def _show(self, data: bytes) -> None:
        self.text += data.decode()

    def _note(self, data: bytes) -> None:
        self.states += data.decode().splitlines()

    def _follow(self, file: int, what: Callable[[bytes], None]) -> None:
        try:
            while data := os.read(file, 4_096):
                what(data)
        except OSError:
            pass  # the end of a terminal


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    made = Terminal(tmp_path, request.param)
    yield made
    made.end()


@pytest.mark.long
@pytest.mark.parametrize("terminal", ["background"], indirect=True)
def test_a_terminal_does_not_stop_a_broker_in_its_background(terminal: Terminal) -> None:
    until(lambda: "console on" in terminal.text)
    os.kill(terminal.job, signal.SIGTSTP)
    until(lambda: "SIGTSTP has no effect" in terminal.text)
    for number in (signal.SIGTTOU, signal.SIGTTIN):
        os.kill(terminal.job, number)
    os.kill(terminal.job, signal.SIGTERM)
    assert terminal.leader.wait() == 0
    until(lambda: terminal.states[-1] == "ended")
    assert terminal.states[1:] == ["ended"]
    assert "Server Shut Down" in terminal.text


@pytest.mark.long
@pytest.mark.parametrize("terminal", ["foreground"], indirect=True)
def test_control_z_stops_a_broker_in_the_foreground(terminal: Terminal) -> None:
    until(lambda: "console on" in terminal.text)
    os.write(terminal.master, b"\x1a")
    until(lambda: "stopped" in terminal.states)
    os.kill(terminal.job, signal.SIGCONT)
    os.kill(terminal.job, signal.SIGTERM)
    assert terminal.leader.wait() == 0
