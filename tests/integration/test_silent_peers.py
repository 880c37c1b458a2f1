"""Peers that fall silent, in the real daemon: a server that hangs, and many instances without renewals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import Daemon
from tests.patience import PATIENCE, until

MANY = 12


def _ask(daemon: Daemon, path: str, method: str = "GET", **body: object) -> Any:
    data = json.dumps(body).encode() if body else None
    url = f"http://127.0.0.1:{daemon.http_port()}{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read() or b"null")


def _states(daemon: Daemon, name: str) -> list[str]:
    """The states of the services of a name, in the order of finds."""
    return [each.get("check", {}).get("state", "") for each in _ask(daemon, f"/v1/services/{name}")["services"]]


def test_instances_that_fall_silent_together_are_verified_by_real_connections(tmp_path: Path) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path))
        alive = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        free = stack.enter_context(socket.socket())
        free.bind(("127.0.0.1", 0))  # nothing listens there
        for number in range(MANY):
            server = alive[number] if number < len(alive) else free
            _ask(
                daemon,
                f"/v1/services/{'alive' if number < len(alive) else 'killed'}/{number}",
                "PUT",
                hostport=f"127.0.0.1:{server.getsockname()[1]}",
                ttl=2,
            )
        assert len(_states(daemon, "killed")) == MANY - len(alive)
        # Refused connections end the entries at once, accepted ones begin the lease again.
        until(lambda: not _states(daemon, "killed"))
        rows = _ask(daemon, "/v1/counters?pattern=silent_peers.*")["rows"]
        counters = {row["name"]: row["value"] for row in rows}
        # Those whose lease ends when most others are gone already end as single ones.
        assert counters["silent_peers.refused"] > 0
        assert counters["silent_peers.proved"] > 0


HUNG = '''
"""An Elko server that answers pings, as the original does."""
import json, socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n\\n")
send(to="broker", op="auth", label="hung")
send(to="broker", op="willserve", services=[{"type": "servicedesc", "service": "hung", "hostport": "h:1"}])
print("ready", flush=True)
for line in sock.makefile():
    if '"ping"' in line:
        send(to="broker", op="pong", tag=json.loads(line).get("tag"))
'''


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_that_hangs_is_marked_within_45_seconds(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path) as daemon,
        subprocess.Popen([sys.executable, "-c", HUNG, str(daemon.port())], stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            until(lambda: _states(daemon, "hung") == ["passing"])
            os.kill(server.pid, signal.SIGSTOP)
            began = time.monotonic()
            until(lambda: _states(daemon, "hung") == ["doubtful"])
            until(lambda: _states(daemon, "hung") == ["failing"])
            assert time.monotonic() - began < 45
        finally:
            server.kill()
