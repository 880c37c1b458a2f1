"""Health of the parts of a cluster: members of etcd with alarms, expected brokers, cut links; by real ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.brokers import Broker, Brokers
from tests.patience import until

EXPECTED = 'members = ["a=127.0.0.1:1", "b=127.0.0.1:3", "c=127.0.0.1:5"]\n'

NOTIFY = """[notify]
[[notify.rules]]
name = "told"
events = ["cluster-degraded", "cluster-restored"]
command = ["{python}", "-c", "import sys; open({file!r}, 'a').write(sys.stdin.read() + chr(10))"]
"""


def etcd(url: str, path: str, body: object) -> Any:
    """The answer of a member of etcd."""
    request = urllib.request.Request(f"{url}/v3/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def told(events: Path) -> list[tuple[str, str]]:
    """The events that were reported, with their names."""
    lines = events.read_text().splitlines() if events.exists() else []
    return [(each["event"], each["name"]) for each in map(json.loads, filter(None, lines))]


def gauge(broker: Broker, name: str) -> float:
    port = broker.http_port()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"elkobroker_cluster_{name} ")))


@pytest.mark.long
def test_the_parts_of_a_cluster_and_their_faults_are_seen(tmp_path: Path) -> None:
    events = tmp_path / "events"
    notify = NOTIFY.format(python=sys.executable, file=str(events))
    with Brokers(tmp_path, members=3) as farm:
        a = farm.start("a", config=EXPECTED + notify)
        farm.start("b", config=EXPECTED)
        until(lambda: [each["state"] for each in a.get("/v1/views/cluster/etcd")["rows"]] == ["healthy"] * 3, "etcd")
        until(lambda: list(a.degraded()) == ["broker c"], "c is missing")
        assert "is missing since" in a.degraded()["broker c"]
        assert "it has not been seen since this broker started" in a.degraded()["broker c"]
        assert (gauge(a, "missing"), gauge(a, "links_cut"), gauge(a, "etcd_unhealthy")) == (1, 0, 0)

        def rows() -> Any:
            return a.get("/v1/views/cluster/etcd")["rows"]

        until(lambda: [row["leases"] for row in rows()] == [2] * 3, "the leases")
        for row in rows():
            assert row["defragment"] is False
            assert abs(row["clock"]) < 10
        # An alarm is shown with its member, as etcd says it.
        url = farm.etcd.members[0].url
        id = etcd(url, "maintenance/status", {})["header"]["member_id"]
        etcd(url, "maintenance/alarm", {"action": "ACTIVATE", "memberID": id, "alarm": "NOSPACE"})
        until(lambda: f"etcd {url}" in a.degraded(), "the alarm")
        assert "is faulty since" in a.degraded()[f"etcd {url}"]
        assert "NOSPACE" in a.degraded()[f"etcd {url}"]
        assert gauge(a, "etcd_unhealthy") >= 1
        etcd(url, "maintenance/alarm", {"action": "DEACTIVATE", "memberID": id, "alarm": "NOSPACE"})
        until(lambda: list(a.degraded()) == ["broker c"], "the end of the alarm")
        # A broker that stands still is a cut link first, and missing after its lease.
        b = farm["b"]
        os.kill(b.process.pid, signal.SIGSTOP)
        until(lambda: "broker b" in a.degraded(), "b is missing")
        assert "it was stopped, or its lease has ended" in a.degraded()["broker b"]
        until(lambda: ("cluster-degraded", "broker b") in told(events), "the event")
        os.kill(b.process.pid, signal.SIGCONT)
        until(lambda: list(a.degraded()) == ["broker c"], "b is back")
        # All of that is told by events.
        until(lambda: ("cluster-restored", "broker b") in told(events), "the events")
        assert ("cluster-restored", f"etcd {url}") in told(events)
        assert not any("raceback" in line for line in [*a.log, *b.log])
