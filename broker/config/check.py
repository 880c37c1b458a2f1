"""The report of ``--check``: the effect of a valid configuration, and warnings."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from broker import pem
from broker.blocking import blocking
from broker.config.checks import expiring
from broker.config.schema import Config, Schema
from broker.config.section import Resolves
from broker.config.validate import bindings


@blocking
def resolves(host: str) -> bool:
    """Report whether this machine knows an address of ``host``. Blocks while it asks."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _expiring(config: Config, schema: Schema) -> Iterator[str]:
    """Yield a sentence for each TLS certificate that has expired, or expires soon."""
    now = time.time()
    for binding in bindings(config, schema):
        files = pem.Files.of(binding.where)
        if files is not None:
            yield from expiring(binding.key, files.certificate, now)


def report(config: Config, schema: Schema, resolves: Resolves = resolves) -> str:
    """Return a line for each listener and each part of the daemon, then one for each warning.

    ``config`` must be valid. Blocks while published names are resolved. Shows no secret.
    """
    lines = [line for _, values in schema.values(config) for line in values.summary()]
    lines += [f"warning: {text}" for text in warnings(config, schema, resolves)]
    return "\n".join(lines)


def warnings(config: Config, schema: Schema, resolves: Resolves) -> list[str]:
    """Return what may surprise in a valid configuration, a sentence each."""
    own = [text for _, values in schema.values(config) for text in values.warnings(resolves)]
    return [*own, *_expiring(config, schema)]
