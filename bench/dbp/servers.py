"""The broker with a DBP wire, and the server of `bench/dbp/reference.py`: started, and always ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common import servers
from bench.common.servers import WireServer

LISTENS = re.compile(r"dbp on tcp://127\.0\.0\.1:(\d+) \(udp 127\.0\.0\.1:(\d+)")
"""The log line of an open wire."""

_CONFIG = """
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
services = 100_000
"""
"""No beacon: others on this machine may wait for one of theirs."""


class DbpServer(WireServer):
    """A server whose ``port`` is that of its ROUTER."""

    udp = 0


@contextmanager
def broker(checkout: Path | None = None) -> Iterator[DbpServer]:
    """A broker with a state directory of its own; ``checkout`` is as in `bench.common.servers.broker_with`."""
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        servers.broker_with(DbpServer, "dbp", _CONFIG, LISTENS, Path(directory), checkout=checkout) as (server, said),
    ):
        server.port, server.udp = int(said[1]), int(said[2])
        yield server


@contextmanager
def reference() -> Iterator[DbpServer]:
    """The server of `bench/dbp/reference.py`."""
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as directory,
        servers.script(DbpServer, Path(directory), "bench.dbp.reference") as server,
    ):
        yield server
