"""Registrations that a kill loses: the time before a ``kill -9`` up to which all answered ones are in the record.

Clients register instances over HTTP, one after the other, beside processes that keep the processors busy. The broker is
killed in the middle, and its record is read. The loss of a round is the time from the answer to the oldest registration
that is missing, to the kill.
"""

from __future__ import annotations

import http.client
import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Figure, Scenario
from bench.servers import HOST, HTTP_LISTENS, WireServer, broker_with
from broker.core.store import DATABASE

CLIENTS = 4
ROUNDS = 10

PATIENCE = 30.0
"""Seconds within which an answer comes."""

CONFIG = """\
[http]
endpoint = "tcp:0:interface=127.0.0.1"
services = 100_000
services_per_user = 100_000
"""

BUSY = "while True: sum(range(10_000))"


def register(port: int, client: int, answered: dict[str, float]) -> None:
    """Register instances until the broker is gone. Each has a name of its own."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    number = 0
    try:
        while True:
            name = f"loss-{client}-{number}"
            number += 1
            body = json.dumps({"hostport": f"h:{number}", "ttl": 600})
            connection.request("PUT", f"/v1/services/{name}/one", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 201:
                answered[name] = time.monotonic()
    except (OSError, http.client.HTTPException):
        return


def kill_once(directory: Path, busy: int, seconds: float) -> tuple[int, int, float]:
    """Run one round beside so many busy processes. Returns the numbers of registrations and of lost ones, and the loss
    in seconds."""
    load: list[subprocess.Popen[bytes]] = []
    with broker_with(WireServer, "http", CONFIG, HTTP_LISTENS, directory) as (server, said):
        try:
            load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
            answered: dict[str, float] = {}
            port = int(said[1])
            clients = [threading.Thread(target=register, args=(port, each, answered)) for each in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(seconds)
            killed = time.monotonic()
            server.process.kill()
            server.process.wait()
            for client in clients:
                client.join()
        finally:
            for process in load:
                process.kill()
                process.wait()
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        # The columns of a version are read by their content.
        texts = [
            next(each for each in row if isinstance(each, str) and "{" in each)
            for row in database.execute("SELECT * FROM provider")
        ]
    stored = {service["name"] for text in texts for service in json.loads(text)["services"]}
    lost = [at for name, at in answered.items() if name not in stored]
    return len(answered), len(lost), killed - min(lost, default=killed)


def losses(busy: int) -> Callable[[float], list[Figure]]:
    """Return the measurement beside so many busy processes."""

    def run(seconds: float) -> list[Figure]:
        rounds = []
        for _ in range(ROUNDS):
            with TemporaryDirectory(prefix="elkobroker-bench-") as directory:
                rounds.append(kill_once(Path(directory), busy, random.uniform(seconds / 2, seconds)))
        lost = sorted(loss for _, _, loss in rounds)
        return [
            Figure("registered, and lost", f"{sum(each[0] for each in rounds):,}, {sum(each[1] for each in rounds):,}"),
            Figure("the loss in the median, and at most, s", f"{lost[len(lost) // 2]:.2f}, {lost[-1]:.2f}"),
        ]

    return run


ROWS = {
    "idle": Scenario("Registrations that a kill loses", 6.0, losses(0)),
    "busy": Scenario("Registrations that a kill loses, beside 40 busy processes", 6.0, losses(40)),
}
