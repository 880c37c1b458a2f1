"""Checks of a whole configuration: each section by its own, and then listeners with the same address."""

from __future__ import annotations

from collections.abc import Iterator

from broker import pem
from broker.config.problem import Problem
from broker.config.schema import Config, Schema
from broker.config.section import Binding


def found(config: Config, schema: Schema) -> list[Problem]:
    """Return all problems. Reads the TLS files that endpoints name, and the names of key files."""
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
    if config.access.file is None:
        for section, values in schema.values(config):
            for key in section.wants_users(values):
                yield Problem(key, '"users" needs a users file: set access.file', "access.file")


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
