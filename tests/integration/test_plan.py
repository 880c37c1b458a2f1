"""The capacity plan in a running daemon: from the configured file to the console."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import check_output
from typing import Any

from tests.console_blocks import as_shown, command_of
from tests.core.plans import document, service
from tests.integration.configurations import ROUTERS, listener
from tests.integration.daemon import Daemon, environment
from tests.integration.http_api import ask as http
from tests.integration.mc0_clients import console, counters
from tests.patience import until


def ask(daemon: Daemon, line: str) -> Any:
    return json.loads(console(daemon, line))


def test_a_plan_is_shown_and_outlives_a_bad_file(tmp_path: Path) -> None:
    file, config = tmp_path / "plan.json", tmp_path / "broker.toml"
    off = "".join(f"[{wire}]\nenabled = false\n" for wire in ("mc0", "dbp", "mtl"))
    config.write_text(f'{off}[plan]\nfile = "plan.json"\n[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        until(lambda: ask(daemon, "status")["plan"].get("problem") == "No such file or directory")
        file.write_bytes(document(service("bank"), service("shop", state="no N+1", add=2, need_now=6)))
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: [row["name"] for row in ask(daemon, "broker plan")] == ["shop", "bank"])
        [shop] = ask(daemon, "broker plan shop")
        assert (shop["verdict"], shop["days_until_short"], shop["add"]) == ("no N+1", 0.0, 2)
        assert counters(daemon)["plan_services.no_spare"] == 1

        aside = tmp_path / "aside"
        aside.write_text("[")
        os.replace(aside, file)
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: "no plan" in ask(daemon, "status")["plan"].get("problem", ""))
        assert len(ask(daemon, "broker plan")) == 2

        config.write_text(config.read_text().replace('file = "plan.json"', ""))
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: "plan" not in ask(daemon, "status"))
        assert ask(daemon, "broker plan") == []
        daemon.process.terminate()
        assert daemon.process.wait() in (0, -signal.SIGTERM)
        assert not any("Traceback" in line for line in daemon.log)


def test_an_autoscaler_and_scale_print_what_the_page_shows(tmp_path: Path) -> None:
    needed = service("bank", need_now=6, schedule=[6] * 168)
    (tmp_path / "plan.json").write_bytes(document(needed, issued=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
    launcher = f"""[[launchers.table]]\nname = "bank-worker"\nscript = "mktemp {tmp_path}/launched.XXX"\n"""
    (tmp_path / "broker.toml").write_text(listener("main") + ROUTERS + f'[plan]\nfile = "plan.json"\n{launcher}')
    with Daemon(tmp_path, "--config", "broker.toml") as daemon:
        url = f"http://127.0.0.1:{daemon.http_port()}"
        for number in range(4):
            offer = {"hostport": f"192.0.2.{number}:7000", "ttl": 600}
            assert http(daemon, "PUT", f"/v1/services/bank/{number}", offer)[0] == 201

        def ctl(shown: str) -> str:
            _, *words = shown.split()
            command = [sys.executable, "-m", "broker.brokerctl", "--url", url, *words]
            return check_output(command, text=True, env=environment())

        asked = command_of("docs/operations.md", "curl -s http://127.0.0.1:9080/v1/plan/bank/replicas")
        replicas = check_output(["sh", "-c", asked.replace("http://127.0.0.1:9080", url)], text=True)
        assert as_shown("docs/operations.md", "curl -s http://127.0.0.1:9080/v1/plan/bank/replicas", replicas)
        scaled = ctl(command_of("docs/operations.md", "brokerctl scale bank"))
        assert as_shown("docs/operations.md", "brokerctl scale bank", scaled)
        assert not [*tmp_path.glob("launched.*")]
        done = ctl(command_of("docs/operations.md", "brokerctl scale bank --launcher bank-worker --act"))
        assert done.endswith("launch bank-worker\n" * 2)
        until(lambda: len([*tmp_path.glob("launched.*")]) == 2)


def test_scale_withdraws_the_least_loaded_providers(tmp_path: Path) -> None:
    needed = service("bank", need_now=1, schedule=[1] * 168)
    (tmp_path / "plan.json").write_bytes(document(needed, issued=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
    (tmp_path / "broker.toml").write_text('[plan]\nfile = "plan.json"\n')
    with Daemon(tmp_path, "--config", "broker.toml") as daemon:
        providers = []
        for number, load in enumerate((0.9, 0.3, 0.6)):
            offer = {"hostport": f"192.0.2.{number}:7000", "ttl": 600, "load": load}
            providers.append(http(daemon, "PUT", f"/v1/services/bank/{number}", offer)[1]["provider"])
        url = f"http://127.0.0.1:{daemon.http_port()}"
        command = [sys.executable, "-m", "broker.brokerctl", "--url", url, "scale", "bank", "--scale-in", "--act"]
        lines = check_output(command, text=True, env=environment()).splitlines()
        assert lines[1:] == [f"withdraw bank of provider {providers[number]}" for number in (1, 2)]
        left = http(daemon, "GET", "/v1/services/bank")[1]["services"]
        assert [each["provider"] for each in left] == providers[:1]
