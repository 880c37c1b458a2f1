"""The answers that `docs/questions.md` prints, by the very commands, beside a broker in that state."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.config.certificates import certificate
from tests.console_blocks import printed, shows
from tests.integration.daemon import Daemon, environment, twistd
from tests.patience import until

COMMANDS = printed("docs/questions.md", "", "## One broker is gone")
"""The others are tried beside three brokers, by `test_console_blocks`."""
FULL = """
[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
[elko.listeners.limits]
connections = 1
"""
FOREIGN = """[http]
endpoint = "tls:0:interface=127.0.0.1:certificate={}:key={}"
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A broker with a full listener, a service and one that flaps; and the directory of another configuration."""
    directory = tmp_path_factory.mktemp("questions")
    (directory / "full.toml").write_text(FULL)
    (ours, _), (_, foreign) = certificate(directory, "ours"), certificate(directory, "foreign")
    (directory / "elkobroker.toml").write_text(FOREIGN.format(ours, foreign))
    options = ["--config", str(directory / "full.toml"), "--mc0-port", "0", "--dbp-port", "0"]
    with Daemon(directory, *options) as daemon, daemon.connect():
        client = http.client.HTTPConnection("127.0.0.1", daemon.http_port())
        for method, name, hostport in (
            ("PUT", "bank", "10.0.0.1:80"),
            ("PUT", "flap", "10.0.0.2:80"),
            ("DELETE", "flap", "10.0.0.2:80"),
            ("PUT", "flap", "10.0.0.2:80"),
        ):
            body = json.dumps({"hostport": hostport, "ttl": 600}) if method == "PUT" else None
            client.request(method, f"/v1/services/{name}/1", body)
            response = client.getresponse()
            assert response.status < 300, response.read()
            response.read()
        client.close()
        yield daemon, directory


@pytest.mark.parametrize(("command", "answer"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_of_the_page_prints_what_the_page_shows(farm: tuple[Daemon, Path], command: str, answer: str) -> None:
    daemon, directory = farm
    program, *words = shlex.split(command)
    commands = {
        "brokerctl": [sys.executable, "-m", "broker.brokerctl", "--url", f"http://127.0.0.1:{daemon.http_port()}"],
        "twistd": [twistd(), "-n", "--pidfile="],
    }

    def answered() -> bool:
        done = subprocess.run(
            [*commands[program], *words],
            cwd=directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout)
        return shows(answer, done.stdout)

    # A connection that gave way to the one of the farm may still be closing.
    until(answered)
