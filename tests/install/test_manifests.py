"""The manifests of containers: valid, with the ports and the files that `brokerctl cluster init` writes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.integration.daemon import Daemon, environment

FOLDER = Path(__file__).parents[2] / "etc/container"
PODS = ["elkobroker-0", "elkobroker-1", "elkobroker-2"]


def documents() -> dict[str, Any]:
    """The documents of kubernetes.yaml, by kind and name."""
    read = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return {f"{document['kind']} {document['metadata']['name']}": document for document in read}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the head of kubernetes.yaml has written."""
    out = tmp_path_factory.mktemp("init") / "cluster"
    names = [f"{pod}.elkobroker" for pod in PODS]
    command = [sys.executable, "-m", "broker.brokerctl", "cluster", "init", "--out", str(out), *names]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("name", documents())
def test_the_schemas_of_kubernetes_accept_each_document(name: str) -> None:
    kubernetes_validate.validate(documents()[name], kubernetes_validate.latest_version(), strict=True)


def test_each_pod_sees_the_files_of_its_own_broker(cluster: Path) -> None:
    pod = documents()["StatefulSet elkobroker"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {
        source["secret"]["name"]: {item["path"] for item in source["secret"]["items"]}
        for source in volumes["configuration"]["projected"]["sources"]
    }
    assert mounted == {name: {f"{name}/{path.name}" for path in (cluster / name).iterdir()} for name in PODS}


def test_ports_are_those_of_the_listeners(cluster: Path) -> None:
    all_documents = documents()
    pod = all_documents["StatefulSet elkobroker"]["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    clients = {port["name"]: port["port"] for port in all_documents["Service elkobroker-clients"]["spec"]["ports"]}
    members = {port["name"]: port["port"] for port in all_documents["Service elkobroker"]["spec"]["ports"]}
    read = tomllib.loads((cluster / PODS[0] / "elkobroker.toml").read_text())
    assert ports == clients == {"elko": 9000, "http": 9080, "mtl": 5975}
    assert read["elko"]["listeners"][0]["endpoint"] == "tcp:9000"
    assert read["http"]["endpoint"].startswith("tls:9080:certificate=/etc/elkobroker/")
    assert read["mtl"]["endpoint"] == "tcp://*:5975"
    assert read["cluster"]["link"] == f"tcp://*:{members['link']}"
    assert read["cluster"]["members"] == [f"{name}={name}.elkobroker" for name in PODS]
    assert (members["etcd"], members["etcd-peers"]) == (2379, 2380)


def test_compose_mounts_what_cluster_init_writes() -> None:
    read = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert set(read["services"]) == set(read["volumes"]) == {"broker-a", "broker-b", "broker-c"}
    for name, service in read["services"].items():
        assert service["hostname"] == name
        assert service["volumes"] == [f"./cluster/{name}:/etc/elkobroker:ro", f"{name}:/var/lib/elkobroker"]


def test_the_configuration_of_the_image_is_accepted() -> None:
    command = [sys.executable, "-m", "twisted", "elkobroker", "--config", str(FOLDER / "elkobroker.toml"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "listener main: bound to 0.0.0.0:9000" in done.stdout


def test_the_health_check_of_the_image_asks_no_proxy(tmp_path: Path) -> None:
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", "")
    [line] = [line for line in text.splitlines() if line.startswith("HEALTHCHECK ")]
    _, *arguments = json.loads(line.partition(" CMD ")[2])
    with Daemon(tmp_path) as daemon:
        url = f"http://127.0.0.1:{daemon.http_port()}/healthz"
        # Nothing listens on port 9.
        variables = environment(HEALTH_URL=url, http_proxy="http://127.0.0.1:9", no_proxy="")
        done = subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
