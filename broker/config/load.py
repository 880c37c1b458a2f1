"""Loading: a TOML file to the frozen configuration, or to all of its errors.

The file has a table for each section of the schema (`broker.config.load`); the members of a table are the fields of
the section's values.

The shape of the whole configuration: a section for the daemon's own parts, and one for each wire.

`Schema.config` is a frozen attrs class with an attribute for each section, so that `broker.config.load` reads it,
`broker.config.reload` compares it and `broker.config.load` checks it without knowing which sections there are.
`broker.app.configuration` has the schema of this daemon.

Checks of a whole configuration: its problems, by section and between sections; its warnings; and the report of
``--check``.
"""

from __future__ import annotations

import re
import socket
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from broker import pem
from broker.address_faults import address_fault
from broker.blocking import blocking
from broker.config import files
from broker.config.bridge_settings import Bridges
from broker.config.checks_settings import Checks
from broker.config.cluster_settings import Cluster
from broker.config.daemon_settings import AFTER, BEFORE, OPEN_FILE, Access, Broker, Console, Launchers, Log, Plan
from broker.config.files import BadFile
from broker.config.journal_settings import Journal
from broker.config.key import Binding, Resolves, Section
from broker.config.key_checks import BadConfig, ConfigError, Problem, expiring
from broker.config.removed_keys import why_removed
from broker.config.toml_values import line_of, lines, structure, table


@attrs.frozen(init=False, slots=False)
class Config:
    """A configuration: an attribute for each section. Made by `Schema.config`, which has those of the wires too."""

    broker: Broker
    log: Log
    checks: Checks
    journal: Journal
    console: Console
    launchers: Launchers
    cluster: Cluster
    bridges: Bridges
    access: Access
    plan: Plan

    def using(self, **sections: Any) -> Self:
        """Return a copy with other sections."""
        return attrs.evolve(self, **sections)

    if TYPE_CHECKING:

        def __init__(self, **sections: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


@attrs.frozen(eq=False)
class Schema:
    """The sections in their order: those of the daemon, with those of the wires between."""

    sections: tuple[Section[Any], ...]
    config: type[Config]
    """The class of the configuration."""

    @classmethod
    def of(cls, wires: Iterable[Section[Any]]) -> Schema:
        """Return the schema of a daemon with these wires."""
        sections: tuple[Section[Any], ...] = (*BEFORE, *wires, *AFTER)
        order = {section.name: number for number, section in enumerate(sections)}

        def ordered(made: type, fields: list[Any]) -> list[Any]:
            return sorted(fields, key=lambda field: order[field.name])

        members = {each.name: attrs.field(default=each.default, type=each.values) for each in sections}
        config = attrs.make_class("Config", members, bases=(Config,), frozen=True, field_transformer=ordered)
        return cls(sections, config)

    def values(self, config: Config) -> Iterator[tuple[Section[Any], Any]]:
        """Yield each section with its values in ``config``."""
        for section in self.sections:
            yield section, getattr(config, section.name)

    def example(self) -> str:
        """Return the example file: every key there is, with its default or a value that it may have."""
        from broker.config.document import HEAD, example

        return HEAD + "\n".join(example(each.name, each.default) for each in self.sections)


NEEDS_USERS = f"""\
can be reached from other machines: this needs a users file. Write
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
    """Yield the listeners that other machines reach, if there is no users file with their rights."""
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
    """Return True if this machine finds an address of ``host``. Blocks meanwhile."""
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

    ``config`` must be valid. Blocks while published names are resolved and bridges are tried. Shows no secret.
    """
    lines = [line for _, values in schema.values(config) for line in values.summary()]
    found = [*warnings(config, schema, resolves), *config.bridges.unanswered(address_fault)]
    lines += [f"warning: {text}" for text in found]
    return "\n".join(lines)


def warnings(config: Config, schema: Schema, resolves: Resolves) -> list[str]:
    """Return the warnings for a valid configuration, a sentence each."""
    own = [text for _, values in schema.values(config) for text in values.warnings(resolves)]
    return [*own, *_expiring(config, schema)]


_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")


def read(path: str | Path, schema: Schema, users: str | None = None) -> Config:
    """Return the configuration in a file. ``users`` is the users file if it names none.

    Raises `BadConfig` with all errors, and nothing else.
    """
    try:
        text = files.text(Path(path))
    except BadFile as error:
        raise BadConfig(str(path), [ConfigError(None, "", str(error))]) from error
    return parse(text, str(path), schema, users)


def parse(text: str, name: str, schema: Schema, users: str | None = None) -> Config:
    """Return the configuration in a text. ``name`` is that of its file: files named in it are relative to it.

    ``users`` is the users file if it names none.

    Raises `BadConfig` with all errors, and nothing else. If a value has the wrong type, or an unknown key, the
    other values of the same table are not checked: they may be wrong only because that value is missing.
    """
    try:
        data = tomllib.loads(text)
    except RecursionError as error:
        raise BadConfig(name, [ConfigError(None, "", "is nested too deeply")]) from error
    except ValueError as error:
        raise BadConfig(name, [_syntax(text, error)]) from error
    config, wrong = structure(data, schema.config, why_removed)
    config, unreadable = _with_files(config, Path(name).parent, schema)
    wrong += unreadable
    unjudged = {table(key) for key, _ in wrong}
    if users is not None and config.access.file is None:
        config = config.using(access=attrs.evolve(config.access, file=users))
    problems = [Problem(key, why) for key, why in wrong]
    problems += [each for each in found(config, schema) if not unjudged.intersection(_around(each.key, each.other))]
    if problems:
        where = lines(text)
        raise BadConfig(name, [_located(each, where) for each in problems])
    return config


def _around(*keys: str) -> Iterable[str]:
    """Yield the tables of keys; a key that is a table itself is yielded too."""
    for key in filter(None, keys):
        yield key
        yield table(key)


def _located(problem: Problem, where: Mapping[str, int]) -> ConfigError:
    # A default that disagrees with a value of the file has no line of its own.
    line = line_of(where, problem.key) or line_of(where, problem.other)
    return ConfigError(line, problem.key, problem.text)


def _syntax(text: str, error: ValueError) -> ConfigError:
    message = str(error)
    place = _AT.search(message)
    if place is None:
        # tomllib raises a bare ValueError, without a position, for an integer too long to be converted.
        return ConfigError(None, "", f"is no TOML: {message}")
    line = int(place[1]) if place[1] else len(text.rstrip().split("\n"))
    message = message[: place.start()]
    return ConfigError(line, "", f"is no TOML: {message[:1].lower()}{message[1:]}")


def _with_files(config: Config, base: Path, schema: Schema) -> tuple[Config, list[tuple[str, str]]]:
    """Return the configuration with the secrets of the files that it names, and the problems of those files.

    Paths that are used later become absolute.
    """
    named = files.Named(base)
    read = {section.name: section.read(values, named) for section, values in schema.values(config)}
    return config.using(**read), named.wrong
