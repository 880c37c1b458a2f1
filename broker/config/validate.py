"""Checks of a whole configuration: its problems, by section and between sections; its warnings; and the report of
``--check``."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from broker import pem
from broker.blocking import blocking
from broker.config.checks import expiring
from broker.config.daemon_settings import OPEN_FILE
from broker.config.errors import Problem
from broker.config.schema import Config, Schema
from broker.config.section import Binding, Resolves

NEEDS_USERS = f"""\
can be reached from other machines: a users file must say who may do what. Write
    [access]
    file = "users.toml"  # 'brokerctl passwd NAME --add --file users.toml' makes it
or, where everybody may do everything,
    [access]
    file = "{OPEN_FILE}"  # as the option --open"""
"""The end of the error of a listener, with the lines that the operator has to write."""


def found(config: Config, schema: Schema) -> list[Problem]:
    """Return all problems. Reads the TLS files and the users file."""
    problems = [problem for section, values in schema.values(config) for problem in section.problems(values)]
    return [*problems, *_overlaps(config, schema), *_unusable(config, schema), *_without_users(config, schema)]


def problems(config: Config, schema: Schema) -> list[tuple[str, str]]:
    """As `found`, as pairs of dotted key and text."""
    return [(problem.key, problem.text) for problem in found(config, schema)]


def bindings(config: Config, schema: Schema) -> Iterator[Binding]:
    """Yield the sockets that the daemon listens on."""
    for section, values in schema.values(config):
        yield from section.bindings(values)


def _without_users(config: Config, schema: Schema) -> Iterator[Problem]:
    """Yield the listeners that other machines reach, if no users file says who may do what there."""
    if config.access.file is None:
        reached = (each for each in bindings(config, schema) if not each.where.loopback and not each.members)
        # Several sockets may have one key.
        for key, where in {each.key: each.where.where for each in reached}.items():
            yield Problem(key, f"{where} {NEEDS_USERS}", "access.file")


def _unusable(config: Config, schema: Schema) -> Iterator[Problem]:
    """Yield the problems of the TLS files of listeners."""
    for each in bindings(config, schema):
        files = pem.Files.of(each.where)
        try:
            if files is not None:
                files.read()
        except ValueError as error:
            yield Problem(each.key, str(error))


def _overlaps(config: Config, schema: Schema) -> Iterator[Problem]:
    taken: list[Binding] = []
    for each in bindings(config, schema):
        other = next((other for other in taken if each.overlaps(other)), None)
        if other is not None:
            yield Problem(each.key, f"{each.where.where} is taken by {other.key}", other.key)
        taken.append(each)


# The report of ``--check``.


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
