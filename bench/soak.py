"""Mixed use of every listener for some minutes, and the resident memory of the daemon.

Run it as ``python -m bench.soak``. Threads connect, authenticate, offer, find, publish, queue and close, without a
pause. After the warm-up the memory is noted each ten seconds. The slope is that of the least-squares line; its standard
error says what is noise.
"""

from __future__ import annotations

import sys
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory

from bench.harness import MIB, table
from bench.machine import describe, resident
from broker.client.blocking import Client
from tests.contract.newcomers import DOORS, answered, connected, elko_message
from tests.contract.strangers import port
from tests.integration.configurations import every_listener
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask

EVERY = 10.0
"""Seconds between two samples."""

QUEUES = 100
"""Names of queues: all of them exist after the warm-up. An empty queue is kept for five minutes, and takes some
kilobytes: of 2,000 names more and more were in use for that long."""

GOAL = 0.1
"""MiB a minute that the line of the second half may rise at most, beyond twice its standard error: 4 GiB in a month."""


def offers(daemon: Daemon, number: int) -> None:
    """A server of Elko that offers, is found, reports loads and leaves."""
    name = f"soak-{number % 500}"
    with connected(port(daemon, "elko")) as stream:
        offer = {"service": name, "protocol": "tcp", "hostport": f"h{number}:1", "label": f"label {number}"}
        words = elko_message({"op": "auth"}) + elko_message({"op": "willserve", "services": [offer]})
        words += elko_message({"op": "load", "factor": number % 7}) + elko_message(
            {"op": "find", "service": name, "tag": "t"}
        )
        answered(stream, words, b"hostport")
        stream.sendall(elko_message({"op": "find", "service": f"nobody-{number}", "wait": -1}))


def puts(daemon: Daemon, number: int) -> None:
    """An instance over HTTP."""
    path = f"/v1/services/http-{number % 300}/{number}"
    status = [ask(daemon, "PUT", path, {"address": "h:1", "ttl": 30})[0]]
    status += [ask(daemon, "GET", f"/v1/services/http-{number % 300}")[0]]
    assert max(status) < 500, status


def plays(daemon: Daemon, number: int) -> None:
    """A Context Server with users, and a reservation."""
    with connected(port(daemon, "director")) as stream:
        name = f"c-{number}"
        provider: list[dict[str, object]] = [
            {"op": "auth"},
            {"op": "address", "protocol": "tcp", "hostport": f"h{number}:1"},
            {"op": "willserve", "context": "c", "capacity": 100},
            {"op": "context", "context": name, "open": True, "yours": False},
            *({"op": "user", "context": name, "user": f"u-{number}-{user}", "on": True} for user in range(20)),
            {"op": "reserve", "protocol": "tcp", "context": name, "user": "somebody"},
        ]
        answered(stream, b"".join(elko_message({"to": "provider", **each}) for each in provider), b"reserv")


def queues(daemon: Daemon, number: int) -> None:
    """A producer and a consumer of a queue of MTL."""
    with Client(f"tcp://127.0.0.1:{port(daemon, 'mtl')}") as client:
        name = f"queue-{number % QUEUES}"
        writer = client.write("queue", [name])
        for _ in range(20):
            writer.post(bytes(2_000))
        writer.flush()
        reader = client.read("queue", [name], confirm="full", window=10)
        for _ in range(20):
            reader.take(5.0).confirm()


WORK: Sequence[Callable[[Daemon, int], object]] = (
    *(lambda daemon, number, door=door: door.honest(daemon, door.port(daemon)) for door in DOORS.values()),
    *(offers, offers, puts, plays, queues),
)
"""The visits of each thread, in turn."""


class Soak:
    """Threads that use a daemon until `stop`."""

    def __init__(self, daemon: Daemon, threads: int) -> None:
        self.done: Counter[str] = Counter()
        self._daemon = daemon
        self._numbers = count()
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, first: int) -> None:
        turn = first
        while not self._ending.is_set():
            turn += 1
            try:
                WORK[turn % len(WORK)](self._daemon, next(self._numbers))
                self.done["visits"] += 1
            except (OSError, AssertionError, ValueError, RuntimeError, LookupError) as error:
                self.done[type(error).__name__] += 1
                if self.done[type(error).__name__] < 3:
                    print(f"{turn % len(WORK)}: {error!r}"[:300], file=sys.stderr)

    def stop(self) -> None:
        """End the threads."""
        self._ending.set()
        for thread in self._threads:
            thread.join()


def main() -> int:
    """Run, print Markdown, and return 1 if the goal was missed."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--warm-up", type=float, default=180.0, help="seconds [%(default)s]")
    parser.add_argument("--seconds", type=float, default=720.0, help="duration after the warm-up [%(default)s]")
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    with TemporaryDirectory() as directory, Daemon(Path(directory), *every_listener(Path(directory))) as daemon:
        for door in DOORS.values():
            door.port(daemon)
        start = resident(daemon.process.pid)
        soak = Soak(daemon, options.threads)
        samples: list[tuple[float, float]] = []
        try:
            time.sleep(options.warm_up)
            before, begin = soak.done["visits"], time.monotonic()
            while time.monotonic() < begin + options.seconds:
                samples.append(((time.monotonic() - begin) / 60, resident(daemon.process.pid) / MIB))
                time.sleep(EVERY)
            visits = soak.done["visits"] - before
        finally:
            soak.stop()
        time.sleep(30)
        after = resident(daemon.process.pid) / MIB
    rows = []
    for name, part in (("all", samples), ("second half", samples[len(samples) // 2 :])):
        slope, error = line(part)
        rows.append([name, f"{part[0][1]:.1f}", f"{part[-1][1]:.1f}", f"{slope:+.3f}", f"{error:.3f}"])
    print("  \n".join(f"{name}: {value}" for name, value in describe().items()))
    print(f"\n{visits / samples[-1][0]:.0f} visits a minute, {dict(soak.done)}; {start / MIB:.1f} MiB at the start,")
    print(f"{after:.1f} MiB half a minute after the end.\n")
    print(table(["part", "MiB at its begin", "at its end", "MiB a minute", "standard error"], rows))
    return slope - 2 * error > GOAL


def line(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of the line through samples, and its standard error."""
    times, values = zip(*samples, strict=True)
    fit = linear_regression(times, values)
    middle = sum(times) / len(times)
    spread = sum((each - middle) ** 2 for each in times)
    rest = sum((value - fit.slope * at - fit.intercept) ** 2 for at, value in samples)
    return fit.slope, (rest / max(1, len(samples) - 2) / spread) ** 0.5


if __name__ == "__main__":
    raise SystemExit(main())
