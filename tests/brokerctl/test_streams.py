"""Output of ``brokerctl`` into streams in any state and encoding: no traceback, and the exit code of what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.examples import sampled
from tests.integration.daemon import Daemon, environment
from tests.patience import PATIENCE

NAME = "bänk✓"
"""Name of a service that no encoding of 8 bits has."""

ENCODINGS = (
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "POSIX"},
)

COMMANDS = ("services", "services -o csv", f"why {NAME}")

FULL = "brokerctl: the output cannot be written: no space left on device\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("streams")) as running:
        body = json.dumps({"hostport": "h:1", "ttl": 600}).encode()
        path = f"/v1/services/{quote(NAME)}/1"
        with urlopen(Request(f"http://127.0.0.1:{running.http_port()}{path}", body, method="PUT")):
            yield running


def begun(daemon: Daemon, command: str, redirected: str = "", scheme: str = "http") -> list[str]:
    """The words of a command line, with redirections of a shell."""
    url = f"{scheme}://127.0.0.1:{daemon.http_port()}"
    ours = [sys.executable, "-m", "broker.brokerctl", "--url", url, *command.split()]
    return ["sh", "-c", f'exec "$@" {redirected}', "sh", *ours]


def done(
    daemon: Daemon, command: str, redirected: str = "", scheme: str = "http", **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        begun(daemon, command, redirected, scheme),
        capture_output=True,
        encoding="latin-1" if "latin" in str(env) else "utf-8",
        timeout=PATIENCE,
        env=environment(**env),
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_characters_that_an_encoding_lacks_are_escaped(daemon: Daemon, encoding: dict[str, str]) -> None:
    for command in COMMANDS:
        found = done(daemon, command, **encoding)
        assert (found.returncode, found.stderr) == (0, ""), command
    [row] = [
        row
        for row in json.loads(done(daemon, "services -o json", **encoding).stdout)["rows"]
        if row["hostport"] == "h:1"
    ]
    assert row["service"] == NAME
    refused = done(daemon, "why nöthing", **encoding)
    assert (refused.returncode, "Traceback" in refused.stderr) == (4, False)


@pytest.mark.parametrize("command", sampled(["services", "services -o json", "--help", "man"]))
def test_a_full_disk_is_a_failure_in_a_sentence(daemon: Daemon, command: str) -> None:
    found = done(daemon, command, ">/dev/full")
    assert (found.returncode, found.stderr) == (1, FULL)
    assert done(daemon, command, ">/dev/full 2>/dev/full").returncode == 1


@pytest.mark.parametrize("redirected", sampled(["<&- >&- 2>&-", ">&-", "<&- >&-", "2>&-"]))
def test_closed_streams_are_no_failure(daemon: Daemon, redirected: str) -> None:
    found = done(daemon, "services", redirected)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.long
def test_a_closed_pipe_ends_the_command_in_silence(daemon: Daemon) -> None:
    for command in ("services", "--help"):
        read, write = os.pipe()
        os.close(read)
        process = subprocess.Popen(
            begun(daemon, command), stdout=write, stderr=subprocess.PIPE, text=True, env=environment()
        )
        os.close(write)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (141, "")


def test_arguments_of_no_encoding_are_refused(daemon: Daemon) -> None:
    ours: list[str | bytes] = [sys.executable, "-m", "broker.brokerctl", "why", b"\xff"]
    found = subprocess.run(ours, capture_output=True, timeout=PATIENCE, env=environment(), check=False)
    assert (found.returncode, found.stderr) == (2, b"brokerctl: an argument is not UTF-8\n")


def test_tls_to_a_plain_port_is_answered_at_once(daemon: Daemon) -> None:
    found = done(daemon, "services", scheme="https")
    assert found.returncode == 3
    assert found.stderr.endswith(": the port speaks no TLS; use http://\n")


def test_a_terminal_is_not_needed(daemon: Daemon) -> None:
    found = done(daemon, "top", "</dev/null", TERM="")
    assert (found.returncode, "Traceback" in found.stderr) == (2, False)
