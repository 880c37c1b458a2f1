"""The status, version and gauges of the real daemon, on its console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.daemon import Daemon
from tests.integration.mc0_clients import clients_of, configured, console, counters
from tests.patience import until

ZMTP = [("mc0", ""), ("dbp", ""), ("mtl", ""), ("mtl", "data")]
"""The listeners of wires that speak ZMTP."""


def status(daemon: Daemon) -> Any:
    return json.loads(console(daemon, "status"))


def test_the_status_has_listeners_tables_and_the_health_of_files(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--director-port=0") as daemon, daemon.connect(label="bank") as peer:
        peer.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
        peer.send(to="client", op="find", service="none", wait=-1)
        peer.done()
        shown = status(daemon)
        assert shown["uptime"] < 600
        assert shown["version"] in console(daemon, "version")
        places = {(each["wire"], each.get("name", "")): each for each in shown["listeners"]}
        assert set(places) == {
            ("elko", "main"),
            ("director", "main"),
            ("console", "console"),
            ("mc0", ""),
            ("dbp", ""),
            ("dbp", "heartbeats"),
            ("mtl", ""),
            ("mtl", "data"),
            ("http", "http"),
        }
        elko = places["elko", "main"]
        assert elko == {
            "wire": "elko",
            "name": "main",
            "address": f"127.0.0.1:{daemon.port()}",
            "connections": 1,
            "full": False,
        }
        assert places["mc0", ""]["address"].endswith(f":{daemon.mc0_port()}")
        assert all((places[wire, name]["connections"], places[wire, name]["full"]) == (0, False) for wire, name in ZMTP)
        registry = shown["registry"]
        assert (registry["providers"], registry["waits"]) == (1, 1)
        assert registry["services"] > 1, "the broker's own are there too"
        assert shown["store"]["failures"] == 0
        assert shown["journal"]["failures"] == shown["journal"]["dropped"] == 0
        counted = counters(daemon)
        assert counted["elko_connections.open"] == counted["registry.providers"] == counted["registry.waits"] == 1
        assert counted["registry.services"] == registry["services"]


def test_a_zmtp_listener_that_has_no_room_is_full(tmp_path: Path) -> None:
    options = configured(tmp_path, "connections = 2")
    with Daemon(tmp_path, *options) as daemon, clients_of(daemon) as clients:
        for taken, full in ((1, False), (2, True)):
            assert clients.new().ask("NOOP|ID|x") == "OK|ID|x"
            [mc0] = [each for each in status(daemon)["listeners"] if each["wire"] == "mc0"]
            assert (mc0["connections"], mc0["full"]) == (taken, full)


def test_what_is_not_open_is_not_listed(tmp_path: Path) -> None:
    options = ("--mc0-port=off", "--dbp-port=off", "--mtl-port=off", "--http-port=off", "--port=0", "--director-port=0")
    with Daemon(tmp_path, *options) as daemon:
        assert console(daemon, "director shutdown director=true") == ""
        until(lambda: [each["wire"] for each in status(daemon)["listeners"]] == ["elko", "console"])
