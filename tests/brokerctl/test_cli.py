"""The command as a whole: help, versions, the manual page, completion, signals, pipes, colours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from broker.brokerctl.cli import cli
from tests.brokerctl.server import Canned, Recorded, Server, ctl, page
from tests.integration.daemon import ROOT
from tests.packages import program
from tests.patience import PATIENCE

MANUAL = ROOT / "etc" / "man" / "brokerctl.1"


def all_commands(group: click.Group, *words: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found.append((*words, name))
        if isinstance(command, click.Group):
            found += all_commands(command, *words, name)
    return found


@pytest.mark.parametrize("words", all_commands(cli), ids=" ".join)
def test_each_command_has_help(words: tuple[str, ...]) -> None:
    result = ctl(*words, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: brokerctl {' '.join(words)} ")
    short = ctl(*words, "-h")
    assert short.stdout == result.stdout


def test_the_help_has_all_commands_by_section() -> None:
    text = ctl("--help").stdout
    named = [name for names in cli.sections.values() for name in names]
    assert sorted(named) == sorted(set(cli.list_commands(click.Context(cli))) - {"man"})
    assert all(f"\n  {name} " in text for name in named)


def test_version_has_the_libraries() -> None:
    result = ctl("--version")
    assert result.stdout.startswith("brokerctl ")
    assert "Twisted " in result.stdout


def test_man_prints_the_manual_page() -> None:
    assert ctl("man").stdout == MANUAL.read_text()


def test_the_manual_page_is_good_roff() -> None:
    made = subprocess.run(
        [program("groff"), "-man", "-Tutf8", "-ww", MANUAL],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert made.stderr == ""
    assert "brokerctl context add" in re.sub(".\b", "", made.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    result = ctl("completion", shell)
    assert result.exit_code == 0
    assert f"_BROKERCTL_COMPLETE={shell}_complete" in result.stdout
    subprocess.run([program(shell), "-n"], input=result.stdout, text=True, check=True, timeout=PATIENCE)


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "ELKOBROKER_CONTEXTS": "/nonexistent/contexts.toml", **extra}


def test_commands_and_contexts_are_completed(tmp_path: Path) -> None:
    def completed(*words: str, incomplete: str) -> list[str]:
        line = " ".join(("brokerctl", *words, incomplete))
        about = {
            "_BROKERCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)
        }  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-c", "from broker.brokerctl.cli import main; main()"],
            env=environment(**about, ELKOBROKER_CONTEXTS=str(tmp_path / "contexts.toml")),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return [each.partition(",")[2] for each in ended.stdout.split()]

    (tmp_path / "contexts.toml").write_text("[contexts.prod]\nurl = 'http://127.0.0.1:1'\n")
    assert completed(incomplete="pro") == ["providers"]
    assert completed("services", "--context", incomplete="") == ["local", "prod"]


def started(server: Server, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "broker.brokerctl", "--url", server.url, *words],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_in_order(server: Server, number: signal.Signals, code: int) -> None:
    asked, over = threading.Event(), threading.Event()

    def wait(request: Recorded, handler: object) -> None:
        asked.set()
        over.wait(PATIENCE)

    server.answer("/v1/services", wait)
    with started(server, "services") as process:
        assert asked.wait(PATIENCE)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    over.set()
    assert (process.returncode, stdout, stderr) == (code, "", "")


@pytest.mark.parametrize("format", ["table", "json", "csv"])
def test_a_closed_pipe_ends_a_command_quietly(server: Server, format: str) -> None:
    server.answer("/v1/services", page(*[{"service": "x" * 200}] * 2_000))
    with started(server, "services", "-n", "2000", "-o", format) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 141


def test_a_program_that_waited_ends_at_a_closed_pipe_as_any_other(server: Server) -> None:
    """Python ignores this signal, and a program keeps the signals that were ignored when it is started."""
    server.answer("/v1/services/bank", {"services": [{"hostport": "h:1"}]})
    with started(server, "wait", "bank", "--", "sh", "-c", "kill -s PIPE $$; echo it goes on") as process:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout, stderr) == (-signal.SIGPIPE, "", "")


def test_colours_are_for_terminals_unless_they_are_asked_for(server: Server) -> None:
    server.answer("/v1/services", page({"service": "a", "check": "failing"}))
    assert "\x1b[" not in ctl("--url", server.url, "services").stdout
    assert "\x1b[1;31mfailing" in ctl("--url", server.url, "services", "--color", "always").stdout
    assert "\x1b[" not in ctl("--url", server.url, "services", "--color", "never").stdout


READY = {"version": "1.2", "uptime": 90.0, "listeners": [{"wire": "mtl", "address": "h:1"}]}


def test_status_tells_what_is_not_ready(server: Server) -> None:
    server.answer("/v1/status", READY)
    server.answer("/readyz", {"ready": True, "reasons": []})
    result = ctl("--url", server.url, "status")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["version", "1.2"], ["uptime", "1m", "30s"], ["ready", "yes"], [], ["WIRE", "ADDRESS"], ["mtl", "h:1"]
    ]  # fmt: skip
    reasons = [{"what": "listener mtl", "reason": "taken"}]
    server.answer("/readyz", Canned({"ready": False, "reasons": reasons}, 503))
    result = ctl("--url", server.url, "status")
    assert result.exit_code == 1
    assert result.stdout.endswith("not ready: listener mtl: taken\n")
    assert ctl("--url", server.url, "status", "--json").exit_code == 1


def test_status_tells_why_a_ready_broker_is_degraded(server: Server) -> None:
    server.answer("/v1/status", READY)
    reasons = [{"what": "cluster", "reason": "etcd is away"}]
    server.answer("/readyz", {"ready": True, "reasons": [], "degraded": reasons})
    result = ctl("--url", server.url, "status")
    assert result.exit_code == 0
    assert result.stdout.endswith("degraded: cluster: etcd is away\n")
    assert json.loads(ctl("--url", server.url, "status", "--json").stdout)["degraded"] == reasons


MEMBERS = [
    {"member": "a", "here": True, "linked": False, "draining": False, "lag_ms": 12.3, "providers": 3, "services": 4},
    {"member": "b", "here": False, "linked": True, "draining": True, "providers": 0, "services": 0},
]


def test_the_cluster_is_shown_with_its_members_and_owners(server: Server) -> None:
    about = {"clustered": True, "name": "a", "farm": "default", "members": MEMBERS, "degraded": []}
    server.answer("/v1/cluster", about)
    claim = {"queue": "jobs", "space": "/", "owner": "b", "endpoint": "tcp://h:1"}
    server.answer("/v1/views/cluster/claims", page(claim))
    etcd = {"endpoint": "http://e:2379", "state": "away", "since": 3, "reason": "refused"}
    server.answer("/v1/views/cluster/etcd", page(etcd))
    result = ctl("--url", server.url, "cluster")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["a", "of", "the", "farm", "default"],
        ["MEMBER", "HERE", "LINKED", "DRAINING", "LAG", "MS", "PROVIDERS", "SERVICES"],
        ["a", "yes", "no", "no", "12.3", "3", "4"],
        ["b", "no", "yes", "yes", "-", "0", "0"],
        [],
        ["ENDPOINT", "STATE", "SINCE", "REASON"],
        ["http://e:2379", "away", "3", "refused"],
        [],
        ["QUEUE", "SPACE", "OWNER", "ENDPOINT"],
        ["jobs", "/", "b", "tcp://h:1"],
    ]
    assert json.loads(ctl("--url", server.url, "cluster", "--json").stdout)["queues"] == [claim]


def test_a_degraded_member_fails_the_command(server: Server) -> None:
    reasons = [{"what": "cluster", "reason": "etcd is away"}]
    about = {"clustered": True, "name": "a", "farm": "default", "members": MEMBERS, "degraded": reasons}
    server.answer("/v1/cluster", about)
    server.answer("/v1/views/cluster/claims", page())
    server.answer("/v1/views/cluster/etcd", page())
    result = ctl("--url", server.url, "cluster")
    assert result.exit_code == 1
    assert result.stdout.endswith("degraded: cluster: etcd is away\n")


def test_a_broker_that_runs_alone_has_no_members(server: Server) -> None:
    about = {"clustered": False, "name": "", "farm": "", "members": [], "degraded": []}
    server.answer("/v1/cluster", about)
    result = ctl("--url", server.url, "cluster")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "runs alone" in result.stderr


def test_why_has_the_sentences_of_each_entry(server: Server) -> None:
    entry = {"service": "bank", "hostport": "h:1", "wire": "mtl", "since": None, "heard": 61.0, "ends": "at the end"}
    server.answer("/v1/why/bank", {"name": "bank", "entries": [entry, entry]})
    result = ctl("--url", server.url, "why", "bank")
    once = ["bank  h:1", "wire   mtl", "since  -", "heard  1m 1s", "ends   at the end"]
    assert result.stdout.splitlines() == [*once, "", *once]


def test_the_plan_may_be_a_check(server: Server) -> None:
    row = {"name": "bank", "verdict": "enough", "days_until_short": None, "age": 3700.0}
    server.answer("/v1/plan", page(row))
    result = ctl("--url", server.url, "plan", "--check")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["bank", "enough", "-", "1h", "1m"]
    server.answer("/v1/plan", page(row | {"days_until_short": 3.5}))
    assert ctl("--url", server.url, "plan").exit_code == 0
    assert ctl("--url", server.url, "plan", "--check").exit_code == 1


@pytest.mark.parametrize("name", ["status", "services", "drain", "reload", "why"])
def test_a_command_of_single_requests_imports_no_twisted(name: str) -> None:
    """To import Twisted and treq takes three times as long as such a command."""
    code = (
        "import sys, click; from broker.brokerctl.cli import cli; from broker.brokerctl import plain_client;"
        f"assert cli.get_command(click.Context(cli), {name!r}) is not None;"
        "print(sorted({'twisted', 'treq', 'OpenSSL', 'cryptography', 'sqlite3', 'broker.core'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("ready", [{"ready": True, "reasons": 5}, {"ready": True, "degraded": ["x"]}])
def test_a_status_of_unknown_form_is_a_failure_in_a_sentence(server: Server, ready: object) -> None:
    server.answer("/v1/status", {})
    server.answer("/readyz", ready)
    result = ctl("--url", server.url, "status")
    assert (result.exit_code, result.stdout) == (6, "")
    assert result.stderr == "brokerctl: the form of the server's answer is unknown to this version of brokerctl\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--timeout", "NaN", "services"],
        ["top", "--interval", "nan"],
        ["wait", "bank", "--within", "nan"],
        ["wait", "bank", "--within", "inf"],
        ["offer", "bank", "h:1", "--load", "nan"],
        ["offer", "bank", "h:1", "--ttl", "nan"],
        ["token", "add", "ann", "ci", "--days", "inf"],
        ["bench", "find", "--seconds", "nan"],
        ["bench", "find", "--rate", "nan"],
    ],
)
def test_a_number_that_is_none_is_a_usage_error(server: Server, words: list[str]) -> None:
    result = ctl("--url", server.url, *words)
    assert (result.exit_code, server.requests) == (2, [])
    assert "is no finite number" in result.stderr


@pytest.mark.parametrize("command", ["find", "why", "sub", "bench find", "scale"])
def test_an_empty_name_is_a_usage_error(server: Server, command: str) -> None:
    result = ctl("--url", server.url, *command.split(), "")
    assert (result.exit_code, server.requests) == (2, [])
    assert result.stderr == "brokerctl: a name is empty\n"
