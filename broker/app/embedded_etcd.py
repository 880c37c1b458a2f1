"""The embedded etcd: one member beside each broker, a child process with its data in the state directory.

Rules:
- The member is started before the broker joins its cluster, and ended after it has left.
- One that ends is started again, with back-off; until it runs the broker is degraded, and uses the other members.
- A broker that was killed leaves its member behind. The next start ends that one first: two have no place beside each
  other. Its id is in a file beside its data, and its command line must name these.
- Members of the network know each other, and their clients, by certificates of one CA.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.identity import is_address
from broker.backoff import Backoff
from broker.blocking import blocking
from broker.config.cluster_settings import Cluster as Config
from broker.config.cluster_settings import EtcdMember
from broker.core.model import NotReady
from broker.net.child_processes import Child, Programs

DIRECTORY = "etcd"
"""Name of the directory of the data, in the state directory."""

PID_FILE = f"{DIRECTORY}.pid"
"""Name of the file with the id of the process, beside that directory."""

ENDS_WITHIN = 10.0
"""Seconds for the end of a member, which hands its leadership over; then it is killed."""

LOOK_EVERY = 0.05
"""Seconds between two looks for the end of a process that a former broker left."""

AGAIN = Backoff(1.0, 30.0)
"""Pauses, in seconds, before a member that has ended is started again."""

STEADY = 60.0
"""Seconds after which a running member is no failed attempt any more."""


def command(config: Config, directory: str) -> list[str]:
    """Return the command line of this broker's member."""
    own = config.own_member()
    assert own is not None, "the configuration was checked"
    bind = own if is_address(own.host) else EtcdMember(own.name, "0.0.0.0", own.port)
    scheme = config.scheme
    options = {
        "name": own.name,
        "data-dir": directory,
        "listen-client-urls": f"{scheme}://{bind.place()}",
        "advertise-client-urls": f"{scheme}://{own.place()}",
        "listen-peer-urls": f"{scheme}://{bind.place(1)}",
        "initial-advertise-peer-urls": f"{scheme}://{own.place(1)}",
        "initial-cluster": ",".join(f"{each.name}={scheme}://{each.place(1)}" for each in config.etcd_members),
        "initial-cluster-token": f"elkobroker-{config.farm}",
        "initial-cluster-state": "existing" if config.etcd_joins else "new",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    if config.certificate is not None and config.key is not None and config.ca is not None:
        for prefix in ("", "peer-"):
            options |= {
                f"{prefix}cert-file": config.certificate,
                f"{prefix}key-file": config.key,
                f"{prefix}trusted-ca-file": config.ca,
                f"{prefix}client-cert-auth": "true",
            }
    return [config.etcd_program, *(f"--{name}={value}" for name, value in options.items())]


class EmbeddedEtcd:
    """The member of etcd of this broker. ``in_thread`` runs a function that may wait; ``state`` is the directory."""

    log = Logger()

    def __init__(
        self,
        config: Config,
        state: str,
        clock: IReactorTime,
        programs: Programs,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self._directory = os.path.join(state, DIRECTORY)
        self._command = command(config, self._directory)
        self._clock = clock
        self._programs = programs
        self._in_thread = in_thread
        self._child: Child | None = None
        self._attempts = 0
        self._started = 0.0
        self._again: IDelayedCall | None = None
        self._ending = False
        self._trouble = ""

    @inlineCallbacks
    def start(self) -> Any:
        """Start the member. Fires when it has been started, which does not mean that it serves."""
        self._again = None
        try:
            yield self._in_thread(prepare, self._directory)
        except OSError as error:
            self._failed(f"{self._directory} cannot be used: {error.strerror}")
        else:
            if not self._ending:
                self._spawn()

    def degradations(self) -> Iterator[NotReady]:
        """Yield the reason for which the member does not run."""
        if self._trouble:
            yield NotReady("etcd", f"the embedded etcd {self._trouble}")

    def stop(self) -> Deferred[None] | None:
        """End the member. Fires when it has ended; None if it does not run."""
        self._ending = True
        if self._again is not None:
            self._again.cancel()
            self._again = None
        return None if self._child is None else self._child.end(ENDS_WITHIN)

    def _spawn(self) -> None:
        self._started = self._clock.seconds()
        try:
            self._child = self._programs.keep("etcd", self._command, self._has_ended)
        except OSError as error:
            self._failed(f"cannot be run: {self._command[0]}: {error.strerror}")
            return
        self._trouble = ""
        self._in_thread(remember, self._directory, self._child.pid).addErrback(
            lambda failure: self.log.warn("the id of the embedded etcd is not kept: {why}", why=failure.value)
        )

    def _has_ended(self, how: str) -> None:
        self._child = None
        if self._clock.seconds() - self._started >= STEADY:
            self._attempts = 0
        if not self._ending:
            self._failed(f"ended {how}; its output is in the log, as program.etcd")

    def _failed(self, why: str) -> None:
        self._attempts += 1
        pause = AGAIN.after(self._attempts)
        self._trouble = why
        self.log.warn("the embedded etcd {why}; it is started again in {pause:.0f} s", why=why, pause=pause)
        if not self._ending:
            # With its preparation, which may have failed: a member that is left has to end first.
            self._again = self._clock.callLater(pause, self.start)


@blocking
def prepare(directory: str) -> None:
    """Create the directory, and end a member that a former broker left there. Raises OSError."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        pid = int(Path(directory).with_name(PID_FILE).read_text("ascii"))
    except (OSError, ValueError):
        return
    end = time.monotonic() + ENDS_WITHIN
    while _is_member(pid, directory):
        os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        time.sleep(LOOK_EVERY)


@blocking
def _is_member(pid: int, directory: str) -> bool:
    """Return True if a process is a member of etcd with these data."""
    try:
        return f"--data-dir={directory}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@blocking
def remember(directory: str, pid: int | None) -> None:
    """Keep the id of the process. Raises OSError."""
    Path(directory).with_name(PID_FILE).write_text(f"{pid}\n", "ascii")
