"""A broker that runs alone does without what a cluster needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.daemon import environment
from tests.patience import PATIENCE

PROGRAM = """
import json, sys
from twisted.internet import epollreactor
epollreactor.install()
from twisted.internet import reactor
from broker.tap import Options, makeService
options = Options()
options.parent = {"nodaemon": True}
options.parseOptions(sys.argv[1:])
service = makeService(options)
service.startService()
reactor.callLater(0.2, reactor.stop)
reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
reactor.run()
print("modules", json.dumps(sorted(sys.modules)))
"""


def modules(directory: Path, *options: str) -> set[str]:
    """The modules of a broker that was started and stopped in order."""
    ports = [f"--{wire}-port=0" for wire in ("mc0", "dbp", "mtl", "http", "console")]
    command = [sys.executable, "-c", PROGRAM, "--port=0", *ports, "--state", str(directory / "state"), *options]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True)
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("modules "))
    return set(json.loads(line.removeprefix("modules ")))


@pytest.mark.long
def test_a_broker_that_runs_alone_imports_nothing_of_the_cluster(tmp_path: Path) -> None:
    found = modules(tmp_path)
    assert "broker.core.cluster.cluster_interfaces" in found
    packages = {name.partition(".")[0] for name in found}
    assert not packages & {"treq", "psycopg", "psycopg_pool"}
    assert not {name for name in found if name.startswith(("broker.cluster", "broker.app.cluster_parts"))}
