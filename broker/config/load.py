"""Loading: a TOML file to the frozen configuration, or to all of its errors.

The file has a table for each section of the schema (`broker.config.schema`); the members of a table are the fields of
the section's values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from broker.config import files
from broker.config.dotted_keys import table
from broker.config.errors import BadConfig, ConfigError, Problem
from broker.config.files import BadFile
from broker.config.removed_keys import why_removed
from broker.config.schema import Config, Schema
from broker.config.structure import structure
from broker.config.toml_lines import line_of, lines
from broker.config.validate import found

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
