"""The alerts and the dashboard that are shipped: their queries name metrics that a daemon exports."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from broker.operate.metrics import cluster_metrics
from tests.core.plans import document, service
from tests.integration.daemon import Daemon
from tests.operate.members import two
from tests.packages import program
from tests.patience import PATIENCE

ETC = Path(__file__).parents[2] / "etc"
RULES = ETC / "prometheus" / "elkobroker.rules.yml"
CASES = ETC / "prometheus" / "elkobroker.rules.test.yml"
DASHBOARD = ETC / "grafana" / "elkobroker.json"
OPERATIONS = ETC.parent / "docs" / "operations.md"
METRICS = ETC.parent / "docs" / "metrics.md"

METRIC = re.compile(r"\b(?:elkobroker|process)_[a-z0-9_]+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the metrics that a daemon exports, and of those that only the member of a cluster has."""
    directory = tmp_path_factory.mktemp("monitoring")
    plan = directory / "plan.json"
    plan.write_bytes(document(service("bank")))
    file = directory / "plan.toml"
    file.write_text(f'[plan]\nfile = "{plan}"\n[elko]\n[mc0]\nendpoint = "tcp://127.0.0.1:0"\n')
    with Daemon(directory, "--config", str(file), "--port", "0", "--dbp-port", "0", "--http-port", "0") as daemon:
        daemon.wait_for("console on")
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port()}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
    return {*re.findall(r"^# HELP (\S+)", text, re.MULTILINE), *(metric.name for metric in cluster_metrics(two()))}


def named(text: str) -> set[str]:
    """The metrics in a query; a histogram goes by its name without the suffix."""
    return {name.removesuffix("_bucket") for name in METRIC.findall(text)}


def test_alerts_name_metrics_that_exist(exported: set[str]) -> None:
    expressions = re.findall(r"expr: (.*)", RULES.read_text())
    assert expressions
    assert named(" ".join(expressions)) <= exported


def test_panels_name_metrics_that_exist(exported: set[str]) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    assert named(" ".join(queries)) <= exported


def test_each_metric_is_on_the_page_of_metrics(exported: set[str]) -> None:
    described = {
        name.replace("KIND", "[a-z_]+") for name in re.findall(r"`(\w+)(?:\{[a-z,]*\})?`", METRICS.read_text())
    }
    described |= {"process_.*", "python_.*"}  # of the client library of Prometheus
    assert [name for name in sorted(exported) if not any(re.fullmatch(each, name) for each in described)] == []


def test_each_alert_is_described_and_has_a_case() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    assert len(alerts) == len(set(alerts)) > 10
    assert set(re.findall(r"^\| `(Elkobroker\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)) == set(alerts)
    assert set(re.findall(r"alertname: (\w+)", CASES.read_text())) == set(alerts)


@pytest.mark.long
def test_prometheus_agrees() -> None:
    promtool = program("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", CASES.name], cwd=CASES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
