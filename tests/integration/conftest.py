"""Fixtures that several files of tests share: a daemon with all wires, of which MTL admits any client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon import Daemon
from tests.integration.mtl_peers import Peers, configured, ends_in_order, peers_of

OTHERS = """
[mc0]
endpoint = "tcp://127.0.0.1:0"

[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []

"""

MTL = """
hosts = ["/", "elsewhere"]
max_message = 2_000_000

[[mtl.queues]]
queues = ["tiny-*"]
messages = 3

[[mtl.queues]]
queues = ["poison-*"]
deliveries = 2

[[mtl.queues]]
queues = ["durable-*"]
durable = true
"""


@pytest.fixture(scope="session")
def mtl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for many tests, which use names of their own; in the end it must have had no defect."""
    directory = tmp_path_factory.mktemp("mtl")
    with Daemon(directory, "--config", configured(directory, MTL, OTHERS)) as running:
        running.wait_for("mtl on ")
        yield running
        ends_in_order(running)


@pytest.fixture
def peers(mtl: Daemon) -> Iterator[Peers]:
    """Peers of it."""
    with peers_of(mtl) as peers:
        yield peers
