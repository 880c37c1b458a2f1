"""The broker with an MTL wire, and the server of `bench/mtl/reference.py`: started, and always ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.common import servers
from bench.common.servers import WireServer

LISTENS = re.compile(r"mtl on tcp://127\.0\.0\.1:(\d+) \(data tcp://127\.0\.0\.1:(\d+)")
"""The log line of an open wire."""

DURABLE = "durable"
"""A queue that is kept on the disk. All others are not."""

_CONFIG = f"""
[mtl]
endpoint = "tcp://127.0.0.1:0"
auth = "open"
{{curve}}
[[mtl.queues]]
queues = ["{DURABLE}"]
durable = true
messages = 10_000_000
size = 1_073_741_824

[[mtl.queues]]
messages = 10_000_000
size = 1_073_741_824
"""
"""Room in the queues for all that is sent while nobody reads; everything else is as it is by default."""

_CURVE = """
secret_key_file = "{file}"
any_key = true
"""


@attrs.frozen
class Keys:
    """A CURVE key pair, as Z85."""

    public: bytes
    secret: bytes


class MtlServer(WireServer):
    """A server whose ``port`` is that of its control flow. The reference server has none, and its own for data."""

    data = 0
    key: bytes | None = None
    """The public key that clients need, if it wants CURVE."""


@contextmanager
def broker(keys: Keys | None = None, checkout: Path | None = None) -> Iterator[MtlServer]:
    """A broker with a state directory of its own; with ``keys`` it wants CURVE, and lets any client key in.

    ``checkout`` is as in `bench.common.servers.broker_with`.
    """
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        curve = "" if keys is None else _CURVE.format(file=_secret_file(directory, keys))
        config = _CONFIG.format(curve=curve)
        with servers.broker_with(MtlServer, "mtl", config, LISTENS, directory, checkout=checkout) as (server, said):
            server.port, server.data = int(said[1]), int(said[2])
            server.key = None if keys is None else keys.public
            yield server


@contextmanager
def reference(keys: Keys | None = None) -> Iterator[MtlServer]:
    """The server of `bench/mtl/reference.py`."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        files = [] if keys is None else [str(_secret_file(directory, keys))]
        with servers.script(MtlServer, directory, "bench.mtl.reference", *files) as server:
            server.data = server.port
            server.key = None if keys is None else keys.public
            yield server


def _secret_file(directory: Path, keys: Keys) -> Path:
    file = directory / "mtl.secret"
    file.touch(mode=0o600)
    file.write_bytes(keys.secret + b"\n")
    return file
