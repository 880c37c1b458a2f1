"""Directors of three real daemons with a real etcd, and Context Servers as in the recordings: one decides for all, and
its end loses no user."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.brokers import Broker, Brokers
from tests.cluster.context_servers import ContextServer
from tests.integration.daemon import Peer
from tests.patience import PATIENCE, until_equal

QUICK = "[broker]\ngrace = 2\n"
"""Directors claim after the grace period: a test can wait for it."""

RACES = 30


def director(broker: Broker) -> tuple[str, int]:
    return "127.0.0.1", int(broker.wait_for(r"director listener 'main' on \S+:(\d+) ").group(1))


def connect(broker: Broker, role: str) -> Peer:
    peer = Peer(socket.create_connection(director(broker), PATIENCE))
    peer.send(to=role, op="auth", label="tester")
    return peer


def counts(broker: Broker) -> dict[str, int]:
    rows = broker.get("/v1/views/broker/counters?limit=1000")["rows"]
    return {row["name"]: row["value"] for row in rows if row["name"].startswith("director.")}


def active(brokers: Brokers) -> list[str]:
    return [name for name, broker in brokers.running.items() if counts(broker)["director.active"]]


class Farm:
    """Three brokers with directors, and two Context Servers, each connected to one of the brokers."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.brokers = stack.enter_context(Brokers(directory))
        for name in "abc":
            self.start(name)
        self.servers = {
            hostport: stack.enter_context(ContextServer(self.brokers[name], label, hostport))
            for name, label, hostport in (("a", "context1", "127.9.9.1:19811"), ("b", "context2", "127.9.9.2:19811"))
        }
        self.warm("abc")
        until_equal(lambda: len(active(self.brokers)), 1)

    def start(self, name: str) -> Broker:
        return self.brokers.start(name, "--director-port", "0", "--mtl-port", "off", config=QUICK)

    def warm(self, names: str) -> None:
        """Wait until both servers are connected to these directors."""
        for name in names:
            with connect(self.brokers[name], "admin") as admin:
                self._connected(admin)

    def _connected(self, admin: Peer) -> None:
        until_equal(lambda: sorted(admin.ask(to="admin", op="listproviders")["providers"]), ["context1", "context2"])

    def reserve(self, name: str, context: str, user: str) -> dict[str, Any]:
        with connect(self.brokers[name], "director") as peer:
            answer = peer.ask(to="director", op="reserve", protocol="tcp", context=context, user=user)
            assert "reservation" in answer, answer
            return dict(answer)

    def enter(self, name: str, context: str, user: str) -> str:
        granted = self.reserve(name, context, user)
        return self.servers[granted["hostport"]].enter(granted)

    def all_present(self, name: str, users: list[str]) -> None:
        """Wait until this director lists exactly these users."""
        with connect(self.brokers[name], "admin") as admin:
            until_equal(lambda: sorted(admin.ask(to="admin", op="listusers")["users"]), sorted(users))


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with ExitStack() as stack:
        yield Farm(tmp_path, stack)


@pytest.mark.long
def test_one_director_decides_and_its_end_loses_no_user(farm: Farm) -> None:
    brokers, servers = farm.brokers, farm.servers
    # Each server has found all directors, at the one broker that it knows.
    assert [each.directors for each in servers.values()] == [3, 3]
    users = [farm.enter("abc"[number % 3], f"context-{number}", f"user-u{number}") for number in range(12)]
    for name in "abc":
        farm.all_present(name, users)
    assert sum(counts(brokers[name])["director.forwarded"] for name in "abc") == 8
    # Two users that ask at two directors at once for a context that is not open.
    answers: dict[tuple[int, str], dict[str, Any]] = {}

    def ask(race: int, name: str, together: threading.Barrier) -> None:
        with connect(brokers[name], "director") as peer:
            peer.done()
            together.wait(PATIENCE)
            answers[race, name] = peer.ask(
                to="director", op="reserve", protocol="tcp", context=f"context-r{race}", user=f"user-{name}{race}"
            )

    for race in range(RACES):
        names = "abc".replace("abc"[race % 3], "")
        together = threading.Barrier(2)
        threads = [threading.Thread(target=ask, args=(race, name, together)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        users += [servers[answers[race, name]["hostport"]].enter(answers[race, name]) for name in names]
    opened = [room for server in servers.values() for room in server.opened]
    assert len(opened) == len(set(opened)) == 12 + RACES
    for name in "abc":
        farm.all_present(name, users)
    # The active one is killed. The other two answer at once; nobody is disconnected or sent to a second server.
    [name] = active(brokers)
    left = "abc".replace(name, "")
    dying = brokers.running.pop(name)
    dying.process.send_signal(signal.SIGKILL)
    dying.process.wait()
    for number in range(12):
        users.append(farm.enter(left[number % 2], f"context-{number}", f"user-v{number}"))
    for each in left:
        farm.all_present(each, users)
    opened = [room for server in servers.values() for room in server.opened]
    assert len(opened) == len(set(opened)) == 12 + RACES
    until_equal(lambda: len(active(brokers)), 1)
    # It is back: the servers that still have a broker find it again; until then the others decide.
    farm.start(name)
    granted = farm.reserve(name, "context-0", "user-w")
    users.append(servers[granted["hostport"]].enter(granted))
    assert not any(server.duplicates for server in servers.values())
    assert not any("raceback" in line for each in brokers.running.values() for line in each.log)


def test_contexts_that_are_granted_and_not_open_are_opened_once_after_the_end_of_the_active_director(
    farm: Farm,
) -> None:
    brokers, servers = farm.brokers, farm.servers
    [name] = active(brokers)
    left = "abc".replace(name, "")
    # Some of the requests come by way of another director.
    granted = [farm.reserve(name if n % 3 else left[0], f"context-{n}", f"user-u{n}") for n in range(RACES)]
    assert len({each["hostport"] for each in granted}) == 2
    dying = brokers.running.pop(name)
    dying.process.send_signal(signal.SIGKILL)
    dying.process.wait()
    # In another order, in which a director that knows nothing of them would choose other servers.
    later = [farm.reserve(left[n % 2], f"context-{n}", f"user-v{n}") for n in reversed(range(RACES))]
    later.reverse()
    assert [each["hostport"] for each in later] == [each["hostport"] for each in granted]
    users = [servers[each["hostport"]].enter(each) for each in (*later, *granted)]
    opened = [room for server in servers.values() for room in server.opened]
    assert len(opened) == len(set(opened)) == RACES
    for each in left:
        farm.all_present(each, users)
    assert not any(server.duplicates for server in servers.values())
    assert not any("raceback" in line for each in brokers.running.values() for line in each.log)


@pytest.mark.long
def test_a_broker_that_stops_gives_the_claim_to_another(farm: Farm) -> None:
    brokers = farm.brokers
    [name] = active(brokers)
    left = "abc".replace(name, "")
    users = [farm.enter(name, "context-inn", "user-joe")]
    brokers.stop(name)
    until_equal(lambda: len(active(brokers)), 1)
    users += [farm.enter(each, "context-inn", f"user-{each}") for each in left]
    for each in left:
        farm.all_present(each, users)
    farm.start(name)
    assert name not in active(brokers)
