"""The broker with an mc0 wire, and the servers of `bench/mc0/reference.py`: started, and always ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common import servers
from bench.common.servers import WireServer
from bench.zmtp.peer import Keys

LISTENS = re.compile(r"mc0 on tcp://127\.0\.0\.1:(\d+) \(")
"""The log line of an open wire."""

_CONFIG = """
[mc0]
endpoint = "tcp://127.0.0.1:0"
auth = "{auth}"
"""

_CURVE = """
secret_key_file = "{file}"
{clients}
"""

_ANY = "any_key = true"


class Mc0Server(WireServer):
    """A server with an mc0 wire."""

    key: bytes | None = None
    """The public key that clients need, if it wants CURVE."""
    allowed = Path()
    """The file with the one client key that is let in, if not every one is."""


SEALING = "ELKOBROKER_SEALING"
"""The variable that says which code encrypts: ``python``, or ``compiled`` for the helper in C."""


@contextmanager
def broker(
    keys: Keys | None = None,
    *,
    sealing: str | None = None,
    allowed: Keys | None = None,
    checkout: Path | None = None,
    descriptors: int | None = None,
    more: str = "",
) -> Iterator[Mc0Server]:
    """A broker with a state directory of its own; with ``keys`` it wants CURVE, and lets any client key in.

    With ``allowed`` it only lets that one in, from the file `Mc0Server.allowed`. ``sealing`` is the value of `SEALING`;
    ``checkout`` and ``descriptors`` are as in `bench.common.servers.broker_with`. ``more`` are further sections of the
    configuration.
    """
    variables = {} if sealing is None else {SEALING: sealing}
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        config = _CONFIG.format(auth="open" if keys is None else "curve")
        file = directory / "clients" / "allowed.public"
        if keys is not None:
            clients = _ANY
            if allowed is not None:
                file.parent.mkdir()
                file.write_bytes(allowed.public + b"\n")
                clients = f'client_keys = "{file.parent}"'
            config += _CURVE.format(file=_secret_file(directory, keys), clients=clients)
        with servers.broker_with(
            Mc0Server,
            "mc0",
            config + more,
            LISTENS,
            directory,
            checkout=checkout,
            variables=variables,
            descriptors=descriptors,
        ) as (server, said):
            server.port = int(said[1])
            server.allowed = file
            server.key = None if keys is None else keys.public
            yield server


@contextmanager
def reference(kind: str, keys: Keys | None = None) -> Iterator[Mc0Server]:
    """One of the servers of `bench/mc0/reference.py`."""
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        files = [] if keys is None else [str(_secret_file(directory, keys))]
        with servers.script(Mc0Server, directory, "bench.mc0.reference", kind, *files) as server:
            server.key = None if keys is None else keys.public
            yield server


@contextmanager
def bare(noop_every: float) -> Iterator[Mc0Server]:
    """The server of `bench/zmtp/reference.py`, which sends a NOOP every so many seconds to each connection."""
    with (
        TemporaryDirectory(prefix="elkobroker-bench-") as name,
        servers.script(Mc0Server, Path(name), "bench.zmtp.reference", str(noop_every)) as server,
    ):
        yield server


def _secret_file(directory: Path, keys: Keys) -> Path:
    file = directory / "mc0.secret"
    file.touch(mode=0o600)
    file.write_bytes(keys.secret + b"\n")
    return file
