"""The time of day is set while the broker runs: no time-out counts it, on no wire, and stamps follow it."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.configurations import listener
from tests.integration.daemon import Daemon
from tests.integration.dbp_nodes import Nodes
from tests.integration.http_api import ask
from tests.integration.mc0_clients import clients_of
from tests.packages import program
from tests.patience import until

CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long *step;

__attribute__((constructor)) static void begin(void) {
    step = mmap(0, sizeof *step, PROT_READ, MAP_SHARED, open(getenv("STEP_FILE"), O_RDONLY), 0);
}

int clock_gettime(clockid_t id, struct timespec *found) {
    int failed = syscall(SYS_clock_gettime, id, found);
    if (!failed && id == CLOCK_REALTIME) found->tv_sec += *step;
    return failed;
}
"""
"""A library that adds the seconds in a file to the time of day of a process, and leaves its monotonic clock."""

HOUR = 3_600

CONFIG = (
    listener("main")
    + listener("poll", 'transport = "http"')
    + listener("rtcp", 'transport = "rtcp"')
    + '[mc0]\nendpoint = "tcp://127.0.0.1:0"\n[dbp]\nendpoint = "tcp://127.0.0.1:0"\n'
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    compiler = program("cc")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c"], cwd=folder, check=True)
    return folder / "clock.so"


@pytest.mark.long
@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_time_of_day_ends_no_session_and_delays_no_timer(
    library: Path, tmp_path: Path, step: int
) -> None:
    offset = tmp_path / "step"
    offset.write_bytes(bytes(8))
    (tmp_path / "x.toml").write_text(CONFIG)
    env = {"LD_PRELOAD": str(library), "STEP_FILE": str(offset)}
    with (
        Daemon(tmp_path, "--config", "x.toml", env=env) as daemon,
        daemon.connect() as tcp,
        RtcpPeer(daemon.port("rtcp")) as rtcp,
        clients_of(daemon) as clients,
        Nodes(daemon) as nodes,
    ):
        polling = HttpPeer(daemon.port("poll"), "/")
        subscriber = clients.subscribed(b"one", "news")
        nodes.dealer().registered("rohan", heartbeat_ms=20_000)
        instance = "/v1/services/bank/1"
        assert ask(daemon, "PUT", instance, {"hostport": "h:1", "ttl": 600})[0] == 201

        with offset.open("r+b") as file:
            file.write(step.to_bytes(8, sys.byteorder, signed=True))

        def seen() -> bool:
            status, answer = ask(daemon, "POST", f"{instance}/renew", {})
            assert status == 200
            left = datetime.fromisoformat(answer["expires"]).timestamp() - time.time()
            return abs(left - 600 - step) < HOUR / 2

        until(seen)
        # A timer of a second runs after a second of any clock.
        assert ask(daemon, "GET", "/v1/services/nothing?wait=1")[0] == 404
        tcp.done()
        for peer in (polling, rtcp):
            peer.send(to="client", op="auth", label="after the step")
            peer.send(to="client", op="ping", tag="t")
            answers = peer.receive()
            assert "pong" in str(answers)
        assert subscriber.ask("PUT|TOPIC|news|ID|p||x")
        assert {row["service"] for row in ask(daemon, "GET", "/v1/services")[1]["rows"]} >= {"bank", "rohan"}
