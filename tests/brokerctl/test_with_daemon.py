"""The examples of docs/brokerctl.md, and the commands, against the real daemon."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokerctl.list_commands import LISTINGS
from tests.brokerctl.server import ctl
from tests.console_blocks import printed
from tests.integration.daemon import ROOT, Daemon

PAGE = (ROOT / "docs" / "brokerctl.md").read_text()
EXAMPLES = printed("docs/brokerctl.md")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The HTTP address of a daemon with one service."""
    with Daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        daemon.port()
        found = f"http://127.0.0.1:{daemon.http_port()}"
        offer = {"hostport": "127.0.0.1:7001", "ttl": 600, "load": 0.5}
        headers = {"Content-Type": "application/json"}
        body = json.dumps(offer).encode()
        request = urllib.request.Request(f"{found}/v1/services/bank/one", body, headers, method="PUT")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 201
        yield found


def pattern(expected: str) -> re.Pattern[str]:
    """Pattern of the output: dots stand for anything, and any spaces for any others."""
    words = (".*".join(map(re.escape, word.split("..."))) for word in expected.split())
    return re.compile(r"\s*" + r"\s+".join(words).replace(r"\s+.*", r"\s*.*") + r"\s*", re.DOTALL)


def test_the_first_page_of_the_tutorial_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    [block] = re.findall(r"^```shell-session\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    examples = re.findall(r"^\$ brokerctl (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(examples) == 9
    [provider] = set(re.findall(r"\d{16}", block))
    with Daemon(tmp_path) as daemon:
        daemon.wait_for("mtl on ")
        found = f"http://127.0.0.1:{daemon.http_port()}"
        real = provider
        for command, expected in examples:
            result = ctl(*shlex.split(command.replace(provider, real)), ELKOBROKER_URL=found)
            assert result.exit_code == 0, result.stderr
            real = next(iter(re.findall(r"provider (\d+)$", result.stdout.strip())), real)
            output = result.stdout + result.stderr
            assert pattern(expected.replace(provider, real)).fullmatch(output), output


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.mark.parametrize(("command", "expected"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_of_the_page_is_true(
    url: str, command: str, expected: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.getbasetemp() / "home"
    program, *words = shlex.split(command)
    assert program == "brokerctl"
    result = ctl(*words, ELKOBROKER_URL=url, XDG_CONFIG_HOME=str(home))
    assert result.exit_code == 0, result.stderr
    assert pattern(expected).fullmatch(result.stdout + result.stderr), result.stdout + result.stderr


@pytest.mark.parametrize("name", LISTINGS)
def test_each_list_is_answered(url: str, name: str) -> None:
    assert ctl("--url", url, name).exit_code == 0
    answer = json.loads(ctl("--url", url, name, "--all", "--json").stdout)
    assert answer["total"] == len(answer["rows"])


def test_each_view_is_answered(url: str) -> None:
    names = [row["name"] for row in json.loads(ctl("--url", url, "views", "--json").stdout)["rows"]]
    assert names
    for name in names:
        assert ctl("--url", url, "views", *name.split()).exit_code == 0


def test_a_watch_prints_what_the_page_shows(tmp_path: Path) -> None:
    [(command, shown)] = re.findall(r"^```console watch\n\$ brokerctl (.*)\n((?:\d.*\n)+)```", PAGE, re.MULTILINE)
    with Daemon(tmp_path) as daemon:
        url = f"http://127.0.0.1:{daemon.http_port()}"
        offered = ctl("--url", url, "offer", "bank", "10.0.0.7:7001", "--once", "--ttl", "600").stdout
        assert ctl("--url", url, "withdraw", offered.split()[-1], "bank", "--yes").exit_code == 0
        begin = f"{json.loads(ctl('--url', url, 'events', '--json').stdout)['epoch']}-0"
        printed = ctl("--url", url, *shlex.split(command), "--since", begin, "--count", "2").stdout
    times_and_numbers = r"\S+Z +\d+ |(?<=provider=)\d+"
    assert re.sub(times_and_numbers, "", printed) == re.sub(times_and_numbers, "", shown)


def test_the_past_is_watched_without_a_gap(url: str) -> None:
    past = json.loads(ctl("--url", url, "events", "--json").stdout)
    begin, count = f"{past['epoch']}-0", len(past["events"])
    result = ctl("--url", url, "watch", "--since", begin, "--count", count, "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == past["events"]


def test_the_daemon_is_controlled(url: str) -> None:
    assert ctl("--url", url, "log", "warn", "mtl=debug").exit_code == 0
    assert json.loads(ctl("--url", url, "log", "--json").stdout) == {"level": "warn", "modules": {"mtl": "debug"}}
    assert ctl("--url", url, "log", "info", "mtl=default").exit_code == 0
    assert ctl("--url", url, "trace", "10.1.2.3").exit_code == 0
    assert "10.1.2.3" in ctl("--url", url, "trace").stdout
    assert ctl("--url", url, "trace", "10.1.2.3", "--off").exit_code == 0
    assert ctl("--url", url, "trace", "10.1.2.3", "--off").exit_code == 4
    assert ctl("--url", url, "disconnect", "mtl", "nobody").exit_code == 4
    keys = json.loads(ctl("--url", url, "config", "broker.*", "--json").stdout)["keys"]
    assert {"broker.grace", "broker.state"} <= {row["key"] for row in keys}
    lines = ctl("--url", url, "config", "broker.*").stdout.splitlines()
    assert lines[0].split() == ["KEY", "RELOADABLE", "VALUE"]
    assert ["broker.grace", "yes", "60.0"] in [line.split() for line in lines]
    # The instance of the fixture has no connection, and so is no peer.
    drained = ctl("--url", url, "drain", "--yes", "--deadline", 1)
    assert (drained.exit_code, drained.stdout) == (0, "drained: all peers have left\n")
    assert json.loads(ctl("--url", url, "drain", "--state", "--json").stdout)["state"] == "drained"
    assert ctl("--url", url, "drain", "--undo").exit_code == 0
    # This daemon has no configuration file.
    assert ctl("--url", url, "reload").exit_code == 1
    planned = ctl("--url", url, "plan", "--check")
    assert (planned.exit_code, planned.stderr) == (1, "no capacity plan\nplan.file of the configuration names none\n")


def test_pings_of_a_real_listener_are_measured(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        where = f"127.0.0.1:{daemon.port()}"
        address = f"http://127.0.0.1:{daemon.http_port()}"
        result = ctl("--url", address, "bench", "ping", where, "--seconds", 0.3, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["errors"]) == (0, {})
    assert found["answered"] > 0
    assert found["broker_cpu"] is not None


def test_a_service_is_withdrawn_and_the_daemon_shut_down(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, daemon.connect() as peer:
        peer.send(to="client", op="willserve", services=[{"service": "inn", "hostport": "h:1"}])
        peer.send(to="client", op="ping")
        peer.receive()
        address = f"http://127.0.0.1:{daemon.http_port()}"
        [row] = json.loads(ctl("--url", address, "services", "inn", "--json").stdout)["rows"]
        result = ctl("--url", address, "withdraw", row["provider"], "inn", "--yes")
        assert result.exit_code == 0
        assert json.loads(ctl("--url", address, "services", "inn", "--json").stdout)["rows"] == []
        assert ctl("--url", address, "withdraw", row["provider"], "inn", "--yes").exit_code == 4
        assert ctl("--url", address, "shutdown", "--yes").exit_code == 0
        daemon.ended()
    assert ctl("--url", address, "status").exit_code == 3
