"""`brokerctl cluster adopt`: a broker by itself becomes a cluster, and what it has is found at all brokers at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.blocking import Client
from tests.cluster.brokers import Broker, Brokers
from tests.cluster.queue_load import QUICK
from tests.integration.daemon import environment
from tests.patience import PATIENCE, until

CONFIG = """
[broker]
grace = 600
[elko]
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[mtl]
endpoint = "tcp://127.0.0.1:0"
[[mtl.queues]]
queues = ["jobs"]
durable = true
"""

QUEUES = CONFIG.partition("[mtl]\n")[2]


def mtl(broker: Broker) -> str:
    return "tcp://127.0.0.1:" + broker.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+) ").group(1)


def adopt(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "broker.brokerctl", "cluster", "adopt", *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.long
def test_the_state_of_a_broker_alone_is_found_at_all_brokers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    config = tmp_path / "a" / "single.toml"
    config.write_text(CONFIG)
    alone = Broker(tmp_path / "a", "--config", str(config), "--mc0-port", "off", "--dbp-port", "off")
    with alone:
        alone.wait_for("console on")
        alone.offer("bank", "10.0.0.1:80")
        with Client(mtl(alone), settings=QUICK) as client:
            client.write("queue", ["jobs"]).send(b"before", timeout=PATIENCE)
        with alone.server("shop 1", "shop", "10.0.0.2:80"):
            alone.process.terminate()
            alone.ended()
    with Brokers(tmp_path) as farm:
        # Nobody takes a queue at the other one before the broker with its messages has claimed it.
        b = farm.running["b"] = farm.launch("b", config=f'adopts = "a"\n[mtl]\n{QUEUES}')
        b.wait_for("the broker a, which this cluster adopts, has not joined it yet")
        assert not any("console on" in line for line in b.log)
        a = farm.start("a", config=f"[mtl]\n{QUEUES}[broker]\ngrace = 600\n")
        b.wait_for("console on")
        # At once: nothing has come back by itself.
        for broker in (b, a):
            assert broker.found("bank") == ["10.0.0.1:80"]
            assert broker.found("shop") == ["10.0.0.2:80"]
        with Client(mtl(b), settings=QUICK) as client:
            content = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take(PATIENCE)
            assert content.body == b"before"
            content.confirm()
        # What comes back takes the place of its former entry, at either broker.
        with b.server("shop 1", "shop", "10.0.0.2:80"):
            a.offer("bank", "10.0.0.1:80")
            farm.see("shop", "10.0.0.2:80")
            until(lambda: [row["broker"] for row in a.get("/v1/services?pattern=shop")["rows"]] == ["b"], "b has it")
            farm.see("bank", "10.0.0.1:80")
        farm.see("shop")
        # At the second start it is a member that comes back, and nothing is written again.
        farm.stop("a")
        a = farm.start("a", config=f"[mtl]\n{QUEUES}[broker]\ngrace = 600\n")
        assert a.found("shop") == b.found("shop") == []
        assert not any("raceback" in line for line in [*a.log, *b.log])


def test_another_broker_with_the_same_service_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    alone = Broker(tmp_path / "a", "--mc0-port", "off", "--dbp-port", "off", "--mtl-port", "off")
    with alone:
        alone.wait_for("console on")
        alone.offer("bank", "10.0.0.1:80", instance="1")
        alone.offer("bank", "10.0.0.3:80", instance="3")
        alone.process.terminate()
        alone.ended()
    with Brokers(tmp_path) as farm:
        b = farm.start("b")
        b.offer("bank", "10.0.0.9:80", instance="1")
        farm.start("a")
        farm.see("bank", "10.0.0.9:80", "10.0.0.3:80")


@pytest.mark.long
def test_the_files_of_a_cluster_are_made_of_those_of_the_broker(tmp_path: Path) -> None:
    config = tmp_path / "elkobroker.toml"
    config.write_text(CONFIG)
    out = tmp_path / "cluster"
    machines = ("a=127.0.0.1", "b=127.0.0.2", "c=127.0.0.3")
    code, said = adopt(str(config), *machines, "--out", str(out))
    assert code == 0, said
    for name in "abc":
        text = (out / name / "elkobroker.toml").read_text()
        assert text.startswith(CONFIG)
        check = [sys.executable, "-m", "broker.brokerctl", "check", str(out / name / "elkobroker.toml")]
        ended = subprocess.run(check, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
        assert ended.returncode == 0, ended.stdout
        assert f"cluster: {name} of the farm default" in ended.stdout
        assert ('adopts = "a"' in text) is (name != "a")
    # Neither twice into one place, nor for a broker that is a member.
    assert adopt(str(config), *machines, "--out", str(out))[0] == 1
    code, said = adopt(str(out / "a" / "elkobroker.toml"), *machines, "--out", str(tmp_path / "other"))
    assert (code, "has a section [cluster] already" in said, (tmp_path / "other").exists()) == (1, True, False)
    config.write_text("[broker")
    assert adopt(str(config), *machines, "--out", str(tmp_path / "other"))[0] == 1
    until(lambda: not (tmp_path / "other").exists(), "nothing is left")
