"""Registrations that a kill loses: the time before a ``kill -9`` up to which all answered ones are in the record.

Run it as ``python -m bench.loss``. Clients register instances over HTTP, one after the other, beside processes that
keep the processors busy. The broker is killed in the middle, and its record is read. The loss of a round is the time
from the answer to the oldest registration that is missing, to the kill.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common.machine import describe
from bench.common.report import table
from bench.common.servers import HOST, Server, Subject, await_log, free_port, spawn, twistd
from broker.core.store import DATABASE

CLIENTS = 4

PATIENCE = 30.0
"""Seconds within which an answer comes."""

CONFIG = """\
[http]
endpoint = "tcp:{http}:interface=127.0.0.1"
services = 100_000
services_per_user = 100_000
[mc0]
enabled = false
[dbp]
enabled = false
[mtl]
enabled = false
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
    port, elko = free_port(), free_port()
    (directory / "config.toml").write_text(CONFIG.format(http=port))
    log = directory / "log"
    command = twistd(
        f"--config={directory / 'config.toml'}", f"--port={elko}", "--console-port=off", f"--state={directory}"
    )
    load: list[subprocess.Popen[bytes]] = []
    server = Server(spawn(command, log), port, True, log)
    try:
        await_log(server, re.compile(r"http on \S+").search)
        load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        answered: dict[str, float] = {}
        clients = [threading.Thread(target=register, args=(port, each, answered)) for each in range(CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(seconds)
        killed = time.monotonic()
        server.kill()
        for client in clients:
            client.join()
    finally:
        for process in load:
            process.kill()
            process.wait()
        server.stop()
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        # The columns of a version are read by their content.
        texts = [
            next(each for each in row if isinstance(each, str) and "{" in each)
            for row in database.execute("SELECT * FROM provider")
        ]
    stored = {service["name"] for text in texts for service in json.loads(text)["services"]}
    lost = [at for name, at in answered.items() if name not in stored]
    return len(answered), len(lost), killed - min(lost, default=killed)


def main() -> None:
    """Measure with each number of busy processes, and print a table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 40], help="processes that keep processors busy")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--checkout", type=Path, help="a checkout of another version")
    given = parser.parse_args()
    if given.checkout is not None:
        Subject.checkout = given.checkout.resolve()
    print(describe())
    rows = []
    for busy in given.busy:
        with ExitStack() as stack:
            rounds = []
            for _ in range(given.rounds):
                directory = stack.enter_context(TemporaryDirectory(prefix="elkobroker-bench-"))
                rounds.append(kill_once(Path(directory), busy, random.uniform(3.0, 6.0)))
        losses = sorted(loss for _, _, loss in rounds)
        registered, lost = sum(each[0] for each in rounds), sum(each[1] for each in rounds)
        rows.append([str(busy), f"{registered:,}", f"{lost:,}", f"{losses[len(losses) // 2]:.2f}", f"{losses[-1]:.2f}"])
    print(table(("busy processes", "registered", "lost", "median loss, s", "longest loss, s"), rows))


if __name__ == "__main__":
    main()
