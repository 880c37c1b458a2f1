"""The machine and its processes, as /proc tells of them (Linux only)."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from importlib.metadata import version
from pathlib import Path

_ALL_TIME = 2
"""The kernel's clock of a process is the inverse of its number, three bits up, and these say what counts: all that it
ran. /proc says the same, but only to a hundredth of a second."""

TICKS = os.sysconf("SC_CLK_TCK")
"""Ticks of a second in /proc."""

EACH = 0.1
"""Seconds between two looks at the processes of a session: what one does after its last look does not count."""

A_SECOND = 200
"""Ticks of two processors in a second: of less time, a share says nothing."""


def describe() -> dict[str, str]:
    """The environment of a measurement: processor, cores, versions, and how busy the machine is with other work."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "twisted": version("Twisted"),
        "msgspec": version("msgspec"),
        "load average": load_average(),
    }


def load_average() -> str:
    """Processes that ran or wanted to, over the last 1, 5 and 15 minutes; and the share of the processors' time that a
    hypervisor took since this module was imported: above a few percent, no share of answers in time can be trusted."""
    stolen, every = (now - start for now, start in zip(_processors(), _AT_START, strict=True))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{load}, {stolen / every:.0%} stolen" if every > A_SECOND else load


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads so far, the kernel's for it included."""
    return time.clock_gettime(~pid << 3 | _ALL_TIME)


class SessionTime:
    """CPU time of all processes of a session from now on, those that end included.

    They are read from /proc at intervals, since the daemon of Spark's Python workers ignores SIGCHLD: so no process has
    the times of these among those of its children.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._ticks: dict[tuple[str, str], int] = {}
        self._read()
        self._before = sum(self._ticks.values())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the seconds up to now, and read no more."""
        self._over.set()
        self._thread.join()
        self._read()
        return (sum(self._ticks.values()) - self._before) / TICKS

    def _run(self) -> None:
        while not self._over.wait(EACH):
            self._read()

    def _read(self) -> None:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == self._session:
                self._ticks[stat.parent.name, fields[19]] = int(fields[11]) + int(fields[12])


def waited_seconds(pid: int) -> float:
    """Time for which the main thread of a process could have run, but others had all the cores."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def resident(pid: int) -> int:
    """Bytes of memory that a process holds now."""
    return _status(pid, "VmRSS")


def peak_resident(pid: int) -> int:
    """The most that it held since it was started."""
    return _status(pid, "VmHWM")


def written(pid: int) -> int:
    """Bytes that a process has had written to disks so far, in whole pages."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def forget_peak(pid: int) -> None:
    """Let `peak_resident` count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as the system lets it have. Returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _processors() -> tuple[int, int]:
    """The ticks of all processors that were stolen, and all ticks, since the system was started."""
    ticks = [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _status(pid: int, name: str) -> int:
    return _number(pid, name) * 1024


def _number(pid: int, name: str) -> int:
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise LookupError(f"process {pid} has no {name}")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


_AT_START = _processors()
