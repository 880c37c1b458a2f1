"""Three brokers are restarted one by one, with a drain or without, under servers that come back through another broker:
no find misses one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.brokers import Brokers
from tests.integration.daemon import Peer
from tests.patience import until

SERVERS = 12


class Server(threading.Thread):
    """An Elko server that lists all brokers: when its connection ends it registers at the next one."""

    def __init__(self, brokers: Brokers, number: int) -> None:
        super().__init__(daemon=True)
        self._brokers = brokers
        self.service, self.hostport = f"bank-{number}", f"10.0.0.{number}:80"
        self._next = number
        self._ending = threading.Event()
        self._peer: Peer | None = None
        self.registered = threading.Event()
        self.moves = -1

    def run(self) -> None:
        while not self._ending.is_set():
            self._next += 1
            names = sorted(self._brokers.running)
            try:
                broker = self._brokers.running[names[self._next % len(names)]]
                self._peer = broker.server(f"server of {self.service}", self.service, self.hostport)
                self.moves += 1
                self.registered.set()
                while True:
                    self._peer.receive()
            except (OSError, EOFError, AssertionError, KeyError, ValueError):
                self._ending.wait(0.05)

    def stop(self) -> None:
        self._ending.set()
        if self._peer is not None:
            self._peer.sock.close()


class Finder(threading.Thread):
    """Finds all services in turn at one of the running brokers, and notes those that are missing."""

    def __init__(self, brokers: Brokers, servers: Sequence[Server]) -> None:
        super().__init__(daemon=True)
        self._brokers = brokers
        self._servers = servers
        self._ending = threading.Event()
        self.finds = 0
        self.missing: list[tuple[str, str]] = []

    def run(self) -> None:
        while not self._ending.is_set():
            for name, broker in list(self._brokers.running.items()):
                for server in self._servers:
                    try:
                        status, answer = broker.call("GET", f"/v1/services/{server.service}")
                    except (OSError, AssertionError, ValueError):
                        break  # it stops
                    if status == 200 and server.hostport in [each["hostport"] for each in answer["services"]]:
                        self.finds += 1
                    elif status in (200, 404) and self._brokers.running.get(name) is broker:
                        self.missing.append((name, server.service))
            time.sleep(0.01)

    def stop(self) -> None:
        self._ending.set()
        self.join()


@pytest.mark.long
@pytest.mark.parametrize("drained", [False, True])
def test_a_restart_of_each_broker_loses_no_registration(tmp_path: Path, drained: bool) -> None:
    with Brokers(tmp_path, "a", "b", "c", ttl=10) as brokers, ExitStack() as threads:
        servers = [Server(brokers, number) for number in range(1, SERVERS + 1)]
        for server in servers:
            server.start()
            threads.callback(server.stop)
        for server in servers:
            assert server.registered.wait(60)
            brokers.see(server.service, server.hostport)
        finder = Finder(brokers, servers)
        finder.start()
        for name in "abc":
            stopped = brokers.running[name]
            if drained:
                brokers.drain(name)
            # Not asked any more: what a broker answers while it stops is its own affair.
            del brokers.running[name]
            stopped.process.terminate()
            assert stopped.ended() == -signal.SIGTERM
            fresh = brokers.launch(name)
            fresh.wait_for("console on")
            until(lambda fresh=fresh: len(fresh.members()) == 3, f"{name} is back")  # type: ignore[misc]
            brokers.running[name] = fresh
        for server in servers:
            brokers.see(server.service, server.hostport)
        finder.stop()
        assert finder.missing == []
        assert finder.finds > 10 * SERVERS
        # Each server has lost its broker at least once, and is found once all the same.
        assert all(server.moves >= 1 for server in servers)
