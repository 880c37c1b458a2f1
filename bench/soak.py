"""Mixed use of every listener for some minutes, and the resident memory of the daemon.

Run it as ``python -m bench.soak``. Threads connect, authenticate, offer, find, publish, queue and close, without a
pause. After the warm-up the memory is noted each ten seconds. The slope is the median of those of all pairs of samples
(Theil-Sen), with the confidence interval of Sen: some samples with a burst in progress do not move it.
"""

from __future__ import annotations

import sys
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection
from itertools import combinations, count
from pathlib import Path
from statistics import NormalDist, median
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

ENDS = 6
"""Samples of which the median is shown as the start and the end of a part: a minute."""

QUEUES = 100
"""Names of queues: all of them exist after the warm-up. An empty queue is kept for five minutes, and takes some
kilobytes: of 2,000 names more and more were in use for that long."""

FILLED = 4_200
"""Names and addresses of `fill`: more than the largest cache has entries."""

GOAL = 0.1
"""MiB a minute that the second half may rise at most, by the lower end of its confidence interval: 4 GiB in a month."""

CONFIDENCE = 0.95
"""Confidence of the interval of a slope."""


def fill(daemon: Daemon) -> None:
    """Fill the caches that keep a number of answers and of paths: with the visits they would grow for half an hour.

    One entry after another, so that what is free afterwards hides no slope.
    """
    with (
        connected(port(daemon, "elko")) as stream,
        closing(HTTPConnection("127.0.0.1", port(daemon, "http"))) as requests,
    ):
        stream.sendall(elko_message({"op": "auth"}))
        for number in range(FILLED):
            name = f"fill-{number}"
            for method, body in (("PUT", f'{{"hostport": "{name}:1", "ttl": 30}}'), ("DELETE", None)):
                requests.request(method, f"/v1/services/{name}/1", body, {"Content-Type": "application/json"})
                answer = requests.getresponse()
                assert answer.status < 300, answer.read()
                answer.read()
                answered(stream, elko_message({"op": "find", "service": name, "tag": "filled"}), b"filled")


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
    """An instance over HTTP. One of ten does not leave: it expires, with others, after up to five TTL in doubt."""
    path = f"/v1/services/http-{number % 300}/{number}"
    status = [ask(daemon, "PUT", path, {"hostport": f"h{number}:1", "ttl": 30})[0]]
    status += [ask(daemon, "GET", f"/v1/services/http-{number % 300}")[0]]
    if number % 10:
        status += [ask(daemon, "DELETE", path)[0]]
    assert max(status) < 300, status


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
    parser.add_argument("--samples", type=Path, help="file for the samples: minutes and MiB")
    options = parser.parse_args()
    with TemporaryDirectory() as directory, Daemon(Path(directory), *every_listener(Path(directory))) as daemon:
        for door in DOORS.values():
            door.port(daemon)
        start = resident(daemon.process.pid)
        fill(daemon)
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
        low, slope, high = theil_sen(part)
        first, last = (median(value for _, value in some) for some in (part[:ENDS], part[-ENDS:]))
        rows.append([name, f"{first:.1f}", f"{last:.1f}", f"{slope:+.3f}", f"{low:+.3f} to {high:+.3f}"])
    print("  \n".join(f"{name}: {value}" for name, value in describe().items()))
    print(f"\n{visits / samples[-1][0]:.0f} visits a minute, {dict(soak.done)}; {start / MIB:.1f} MiB at the start,")
    print(f"{after:.1f} MiB half a minute after the end.\n")
    print(table(["part", "MiB at its start", "at its end", "MiB a minute", f"{CONFIDENCE:.0%}"], rows))
    if options.samples:
        options.samples.write_text("".join(f"{at:.3f} {value:.3f}\n" for at, value in samples))
    return low > GOAL


def theil_sen(samples: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the slope of the line through samples, between the ends of its confidence interval.

    Samples are taken as independent. Those of a memory are not, so that the true interval is wider.
    """
    slopes = sorted((late - early) / (after - before) for (before, early), (after, late) in combinations(samples, 2))
    number = len(samples)
    spread = (number * (number - 1) * (2 * number + 5) / 18) ** 0.5 * NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    low = max(0, round((len(slopes) - spread) / 2))
    return slopes[low], median(slopes), slopes[-1 - low]


if __name__ == "__main__":
    raise SystemExit(main())
