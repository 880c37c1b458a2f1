"""The console blocks of the pages: each command is run by a test, and prints what the page shows.

``...`` and ``…`` in an output stand for any text, and ids, times and tokens for others of their kind.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.console_blocks import commands, credited, printed, shows
from tests.integration.configurations import DNS, ROUTERS, listener
from tests.integration.daemon import ROOT, Daemon, environment, twistd
from tests.integration.http_api import ask
from tests.packages import ALONE, need_namespaces, program
from tests.patience import PATIENCE, until
from tests.test_documentation import PAGES

RUN = ["README.md", "docs/http-api.md", "docs/protocols/http.md", "docs/protocols/dns.md", "docs/export.md"]
"""Pages whose commands this file runs, from top to bottom, beside a broker of their own."""

UNTRIED = {
    "docs/operations.md": [
        "echo net.core.rmem_max=4194304 > /etc/sysctl.d/elkobroker.conf",
        "sysctl -p /etc/sysctl.d/elkobroker.conf",
        "apt-get install openjdk-17-jre-headless",
    ],
    "docs/releasing.md": [
        "apt-get install dpkg-dev debhelper python3-venv gcc gpg reprotest diffoscope-minimal buildah mmdebstrap"
    ],
}
"""Commands that no test runs: they change the machine by its own programs alone."""

CONFIG = listener("main") + ROUTERS


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page.read_text())], ids=lambda page: page.name)
def test_each_command_of_a_page_is_run_by_a_test_which_compares_its_output(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    untried = UNTRIED.get(name, [])
    shown = commands(page.read_text())
    assert [each for each in untried if (each, "") not in shown] == []
    run = {*credited(name), *((each, "") for each in untried)}
    assert name in RUN or [each for each in shown if each not in run] == []


CHECKED = "$ twistd elkobroker --config"
"""The begin of a block below an example of a configuration: `config/test_shipped.py` compares both."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_with_commands_bears_the_name_by_which_tests_find_it(page: Path) -> None:
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    nameless = [text for name, text in blocks if not name.startswith(("console", "shell-session"))]
    assert [text for text in nameless if re.search(r"^\$ ", text, re.MULTILINE) and CHECKED not in text] == []


def prepared(daemon: Daemon, name: str) -> None:
    """Register or record what the page begins with."""
    if name == "docs/protocols/dns.md":
        for number, offer in enumerate(
            (
                {"hostport": "192.0.2.1:7000", "load": 0, "label": "ctx-1"},
                {"hostport": "db.example.com:7001", "load": 1},
            )
        ):
            assert ask(daemon, "PUT", f"/v1/services/bank/{number}", {**offer, "ttl": 600})[0] == 201
    elif name == "docs/export.md":
        hour = daemon.directory / "journal/segments/date=2024-05-01/hour=00"
        hour.mkdir(parents=True)
        with gzip.open(hour / "x.jsonl.gz", "wt") as segment:
            for event in ("load", "drop"):
                record = {"event": event, "service": "context-1", "ts": 1_714_521_600_000_000, "load": 0.5}
                segment.write(json.dumps(record) + "\n")


@pytest.mark.parametrize("name", RUN)
def test_each_command_prints_what_the_page_shows(tmp_path: Path, name: str) -> None:
    page = (ROOT / name).read_text()
    by_others = credited(name)
    ours = [each for each in commands(page) if each not in by_others]
    assert ours
    with_dns = "dig " in page
    if with_dns:
        program("dig")
    if "jq " in page:
        program("jq")
    (tmp_path / "broker.toml").write_text(CONFIG + (DNS if with_dns else ""))
    programs = tmp_path / "bin"
    programs.mkdir()
    for each, runs in (("brokerctl", f"{sys.executable} -m broker.brokerctl"), ("twistd", f"{twistd()} -n --pidfile=")):
        (programs / each).write_text(f'#!/bin/sh\nexec {runs} "$@"\n')
        (programs / each).chmod(0o755)
    with Daemon(tmp_path, "--config", "broker.toml") as daemon:
        port = daemon.http_port()
        prepared(daemon, name)
        places = {"127.0.0.1:9080": f"127.0.0.1:{port}", ".venv/bin/": "", "JOURNAL": str(tmp_path / "journal")}
        if with_dns:
            places["-p 9053"] = "-p " + daemon.wait_for(r"dns on 127\.0\.0\.1:(\d+)")[1]
        url, path = f"http://127.0.0.1:{port}", f"{programs}:{os.environ['PATH']}"
        variables = environment(ELKOBROKER_URL=url, PATH=path)
        for command, output in ours:
            for shown, real in places.items():
                command = command.replace(shown, real)
            if "/readyz" in command:  # a busy machine stalls the loop, which shows for ten seconds
                until(lambda: ask(daemon, "GET", "/readyz")[0] == 200, "the broker is ready")
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=tmp_path,
                env=variables,
                stdout=subprocess.PIPE,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            for kind, pattern in (("ID", r'"provider":(\d{16})'), ("TOKEN", r'"owner_token":"(.*?)"')):
                if (known := re.search(pattern, done.stdout)) and kind not in variables:
                    variables[kind] = known[1]
                    if kind == "ID" and (shown_id := re.search(r'"provider":(\d{16})', output)):
                        places[shown_id[1]] = known[1]
            assert done.returncode == 0, command
            if command.startswith("dig "):  # the records begin at a random one
                output, done.stdout = ("\n".join(sorted(text.splitlines())) for text in (output, done.stdout))
            if output:
                assert shows(output, done.stdout), f"{command}\n{done.stdout}"


def in_network_of(process: subprocess.Popen[str], command: str, output: Path) -> subprocess.Popen[bytes]:
    """Run a command in the checkout, in the network of another process, with its output in a file."""
    enter = ["nsenter", "--target", str(process.pid), "--net", "sh", "-c", f"exec >{output}\n{command}"]
    return subprocess.Popen(enter, cwd=ROOT, env=environment(), start_new_session=True)


def is_done(beside: subprocess.Popen[str], command: str, output: Path) -> bool:
    return in_network_of(beside, command, output).wait(PATIENCE) == 0


def has(output: Path, expected: str) -> bool:
    return not expected or shows(expected, output.read_text())


def prints(beside: subprocess.Popen[str], command: str, output: Path, expected: str) -> bool:
    return is_done(beside, command, output) and has(output, expected)


PROBE = """curl -X PUT http://127.0.0.1:9280/v1/services/probe/{} -d '{{"hostport": "10.0.0.9:80", "ttl": 600}}'"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of one's own needs root")
def test_three_brokers_print_what_the_page_shows(tmp_path: Path) -> None:
    need_namespaces()
    program("etcd")
    program("curl")
    ours = printed("README.md", "## Three brokers", "## ")
    assert len(ours) == 7
    [(gone, degraded)] = printed("docs/questions.md", "## One broker is gone")
    # What `make cluster` runs after the set-up; its state is in /tmp unless TMPDIR has another place.
    command = [*ALONE, "sh", "etc/cluster.sh"]
    # A proxy, which has no way to addresses of this machine, is not asked for these.
    place = environment(TMPDIR=str(tmp_path), http_proxy="http://127.0.0.1:9")
    output, watched = tmp_path / "output", tmp_path / "watched"
    with (
        subprocess.Popen(command, cwd=ROOT, env=place, stdout=subprocess.PIPE, text=True) as cluster,
        ExitStack() as background,
    ):
        background.callback(cluster.terminate)
        assert cluster.stdout is not None
        shown = []
        while "Ctrl-C" not in (line := cluster.stdout.readline()):
            shown.append(line)
            assert line, "".join(shown)
        numbers = count()
        for command_line, expected in ours:
            real = command_line.replace("/tmp/", f"{tmp_path}/")
            if real.endswith("&"):
                watch = in_network_of(cluster, real.removesuffix("&"), watched)
                background.callback(os.killpg, watch.pid, signal.SIGTERM)
                # Changes, until the first of them is shown: then it follows.
                until(lambda: is_done(cluster, PROBE.format(next(numbers)), output) and watched.read_text())
            elif real.startswith("kill"):
                assert is_done(cluster, real, output)
                until(partial(has, watched, expected))
                # The same, by the page on questions: the status is 1.
                url = "ELKOBROKER_URL=http://127.0.0.1:9280"
                until(partial(prints, cluster, f"! {url} .venv/bin/{gone}", output, degraded))
            else:  # another broker knows a moment later
                until(partial(prints, cluster, real, output, expected))
        left = [int(file.read_text()) for file in tmp_path.glob("*/[bc]/pid")]
    # The end of the test closed the output of the script before it had ended.
    assert len(left) == 2
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
