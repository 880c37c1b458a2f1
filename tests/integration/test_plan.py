"""The capacity plan in a running daemon: from the configured file to the console."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.core.plans import document, service
from tests.integration.daemon import Daemon
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
