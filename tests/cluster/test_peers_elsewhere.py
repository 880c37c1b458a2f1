"""Peers that come back through another of two real daemons, while the first one still holds them: found once."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.real_etcd import Etcd
from tests.integration.daemon import Daemon, Peer
from tests.integration.http_api import ask
from tests.patience import PATIENCE, until_equal

OPTIONS = ("--mc0-port", "off", "--mtl-port", "off", "--dbp-port", "off")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def brokers(tmp_path: Path, etcd: Etcd) -> Iterator[tuple[Daemon, Daemon]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Daemon(tmp_path / name, *OPTIONS, "--cluster", etcd.url, "--name", name))
    with made[0] as a, made[1] as b:
        yield a, b


def found(daemon: Daemon, service: str) -> list[str]:
    with daemon.connect() as client:
        answer = client.ask(to="broker", op="find", service=service)
        return [each["hostport"] for each in answer["desc"] if "hostport" in each]


def put(daemon: Daemon, hostport: str, instance: str = "one") -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{daemon.http_port()}/v1/services/bank/{instance}",
        json.dumps({"hostport": hostport, "ttl": 60}).encode(),
        {"content-type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return int(answer.status)


def offer(daemon: Daemon) -> Peer:
    client = daemon.connect()
    desc = {"type": "servicedesc", "service": "shop", "hostport": "shop:1", "protocol": "tcp"}
    client.send(to="client", op="willserve", services=[desc])
    return client


def test_an_http_instance(brokers: tuple[Daemon, Daemon]) -> None:
    a, b = brokers
    for one, hostport in ((a, "h:1"), (b, "h:2"), (a, "h:3")):
        assert put(one, hostport) == 201
        until_equal(lambda hostport=hostport: [found(each, "bank") for each in brokers], [[hostport]] * 2)  # type: ignore[misc]
    # The holder dies: within the time to live of its entries it is put at the other one, and never doubled.
    a.process.send_signal(signal.SIGKILL)
    a.process.wait()
    assert put(b, "h:3") == 201
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert found(b, "bank") == ["h:3"]
        time.sleep(0.1)


@pytest.mark.long
def test_an_elko_server_that_connects_to_the_other_broker(brokers: tuple[Daemon, Daemon]) -> None:
    a, b = brokers
    with offer(a):
        until_equal(lambda: [found(each, "shop") for each in brokers], [["shop:1"]] * 2)
        a.process.send_signal(signal.SIGKILL)
        a.process.wait()
    with offer(b):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert found(b, "shop") == ["shop:1"]
            time.sleep(0.1)


@pytest.mark.long
def test_a_consistent_find_at_one_broker_has_a_consistent_put_at_the_other(brokers: tuple[Daemon, Daemon]) -> None:
    a, b = brokers
    for number in range(10):
        status, answer = ask(a, "PUT", f"/v1/services/bank/{number}?consistent=true", {"hostport": f"h:{number}"})
        assert status == 201
        query = f"after={answer['revision']}" if number % 2 else "consistent=true"
        where = f"http://127.0.0.1:{b.http_port()}/v1/services/bank?{query}"
        with urllib.request.urlopen(where, timeout=PATIENCE) as answer:
            services = json.load(answer)["services"]
        assert f"h:{number}" in [each["hostport"] for each in services]
