"""The answers that `docs/questions.md` prints, by the very commands, beside a broker in that state."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.config.certificates import certificate
from tests.console_blocks import printed, shows
from tests.full_disk import small_disk
from tests.integration.daemon import Daemon, environment, twistd
from tests.integration.http_api import ask
from tests.patience import until

COMMANDS = [
    *printed("docs/questions.md", "", "## It is slow"),
    *printed("docs/questions.md", "## It is full", "## The disk"),
]
SLOW = printed("docs/questions.md", "## It is slow", "## It is full")
DISK = printed("docs/questions.md", "## The disk", "## One broker is gone")
"""The others are tried beside three brokers, by `test_console_blocks`."""
RIVALS = 2
"""Programs that share the processor with the slow broker: with each more, it waits a second longer for its turns."""
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
    # A connection that gave way to the one of the farm may still be closing.
    until(lambda: is_answered(daemon, directory, command, answer))


def is_answered(daemon: Daemon, directory: Path, command: str, answer: str) -> bool:
    """Return True if a command beside a broker prints an answer."""
    program, *words = shlex.split(command)
    programs = {
        "brokerctl": [sys.executable, "-m", "broker.brokerctl", "--url", f"http://127.0.0.1:{daemon.http_port()}"],
        "twistd": [twistd(), "-n", "--pidfile="],
    }
    done = subprocess.run(
        [*programs[program], *words],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    return shows(answer, done.stdout)


@pytest.mark.long
def test_a_broker_is_slow_that_gets_no_processor(tmp_path: Path) -> None:
    processor = min(os.sched_getaffinity(0))
    busy = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{processor}])\nwhile True: pass"]
    with Daemon(tmp_path) as daemon, ExitStack() as rivals:
        daemon.http_port()
        for _ in range(RIVALS):
            rivals.callback(rivals.enter_context(subprocess.Popen(busy)).kill)
        for thread in Path(f"/proc/{daemon.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), [processor])
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        for command, answer in SLOW:
            until(partial(is_answered, daemon, tmp_path, command, answer))


@pytest.mark.long
def test_a_disk_is_full(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with Daemon(tmp_path, runner=small_disk(state, 64)) as daemon:
        daemon.http_port()
        rest = Path(f"/proc/{daemon.process.pid}/root{state}/rest")
        numbers = count()

        def has_trouble() -> bool:
            # Once more each time: the broker gives up its reserve first.
            with suppress(OSError), rest.open("ab", buffering=0) as file:
                while file.write(bytes(4_096)):
                    pass
            assert (
                ask(daemon, "PUT", f"/v1/services/bank/{next(numbers)}", {"hostport": "10.0.0.1:80", "ttl": 600})[0]
                == 201
            )
            return any(each["what"] == "store" for each in ask(daemon, "GET", "/readyz")[1]["reasons"])

        until(has_trouble)
        for command, answer in DISK:
            until(partial(is_answered, daemon, tmp_path, command, answer))
