"""Modules that a program loads with the client: no global reactor, and nothing of the daemon but the codec of MTL."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.daemon import environment
from tests.patience import PATIENCE

SCRIPT = """
import sys
import broker.client.asyncio_client, broker.client.blocking, broker.client.mtl, broker.client.testing
from broker.client.profiles import queue, registry, service, test, topic
print(*sorted(sys.modules), sep="\\n")
"""


LATER = """
import broker.client.mtl
from twisted.internet import selectreactor
selectreactor.install()
from twisted.internet import reactor
import txzmq
connection = txzmq.ZmqPullConnection(txzmq.ZmqFactory())
print(connection in reactor.getReaders(), type(reactor).__name__)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_client_installs_no_reactor_and_brings_nothing_of_the_broker() -> None:
    done = run(SCRIPT)
    modules = done.stdout.split()
    assert "broker.client.blocking" in modules, done.stderr
    assert not {"twisted.internet.reactor", "sqlite3"} & set(modules)
    ours = {name.split(".")[1] for name in modules if name.startswith("broker.")}
    assert ours == {"address_faults", "backoff", "blocking", "client", "core", "wires"}
    assert [name for name in modules if name.startswith("broker.core.")] == ["broker.core.errors"]
    wires = [name for name in modules if name.startswith("broker.wires.")]
    assert [name for name in wires if not name.startswith("broker.wires.mtl.codec")] == ["broker.wires.mtl"]


def test_a_program_may_install_its_reactor_after_the_import_and_use_txzmq_with_it() -> None:
    done = run(LATER)
    assert done.stdout == "True SelectReactor\n", done.stderr
