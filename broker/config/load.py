"""A TOML file to the frozen configuration, or to all that is wrong with it.

The shape of the file is that of `broker.config.values`: ``[broker]``, ``[log]``, ``[[elko.listeners]]`` with
``limits`` as a table or inline, ``[director]`` with ``[[director.listeners]]`` alike, ``[mc0]`` with ``[[mc0.rules]]``,
``[dbp]``, ``[mtl]`` with ``[[mtl.rules]]`` and ``[[mtl.queues]]``, ``[journal]`` with ``[[journal.full_load]]``,
``[console]``, ``[launchers]`` with ``[[launchers.table]]``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs

from broker.config import files
from broker.config.errors import BadConfig, ConfigError
from broker.config.files import BadFile
from broker.config.keys import table
from broker.config.structure import structure
from broker.config.toml_lines import line_of, lines
from broker.config.validate import Problem, found
from broker.config.values import Config, ElkoListener

_AnyListener = TypeVar("_AnyListener", bound=ElkoListener)

_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")


def read(path: str | Path) -> Config:
    """The configuration in a file. Raises `BadConfig` with all that is wrong with it, and nothing else."""
    try:
        text = files.text(Path(path))
    except BadFile as error:
        raise BadConfig(str(path), [ConfigError(None, "", str(error))]) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Config:
    """The configuration in a text. ``name`` is that of its file: files that it names are relative to it.

    Raises `BadConfig` with all that is wrong with it, and nothing else. Where a value is of the wrong type, or its key
    is unknown, the other values of the same table are not judged: they might be wrong only for the lack of it.
    """
    try:
        data = tomllib.loads(text)
    except RecursionError as error:
        raise BadConfig(name, [ConfigError(None, "", "is nested too deeply")]) from error
    except ValueError as error:
        raise BadConfig(name, [_syntax(text, error)]) from error
    config, wrong = structure(data)
    config, unreadable = _with_files(config, Path(name).parent)
    wrong += unreadable
    unjudged = {table(key) for key, _ in wrong}
    problems = [Problem(key, why) for key, why in wrong]
    problems += [each for each in found(config) if not unjudged.intersection(_around(each.key, each.other))]
    if problems:
        where = lines(text)
        raise BadConfig(name, [_located(each, where) for each in problems])
    return config


def _around(*keys: str) -> Iterable[str]:
    """The tables that keys are in; one that is a table itself counts too."""
    for key in filter(None, keys):
        yield key
        yield table(key)


def _located(problem: Problem, where: Mapping[str, int]) -> ConfigError:
    # a default that disagrees with what the file says has no line of its own
    line = line_of(where, problem.key) or line_of(where, problem.other)
    return ConfigError(line, problem.key, problem.text)


def _syntax(text: str, error: ValueError) -> ConfigError:
    message = str(error)
    place = _AT.search(message)
    if place is None:
        # an integer too long to be converted, from which the reader's own exception does not protect
        return ConfigError(None, "", f"is no TOML: {message}")
    line = int(place[1]) if place[1] else len(text.rstrip().split("\n"))
    message = message[: place.start()]
    return ConfigError(line, "", f"is no TOML: {message[:1].lower()}{message[1:]}")


def _with_files(config: Config, base: Path) -> tuple[Config, list[tuple[str, str]]]:
    """The configuration with the secrets that are kept in files, and what is wrong with those files.

    The path of a directory that is used later on is made absolute.
    """
    wrong: list[tuple[str, str]] = []

    def secret(key: str, given: str | None, path: str | None, read: Callable[[Path], str] = files.secret) -> str | None:
        if path is None:
            return given
        if given is not None:
            wrong.append((key, f"{key.rpartition('.')[2].removesuffix('_file')} is given too; give one of them"))
            return given
        try:
            return read(base / path)
        except BadFile as error:
            wrong.append((key, f"{base / path} {error}"))
            return None

    def with_codes(key: str, listeners: Iterable[_AnyListener]) -> tuple[_AnyListener, ...]:
        return tuple(
            attrs.evolve(each, code=secret(f"{key}[{index}].code_file", each.code, each.code_file))
            for index, each in enumerate(listeners)
        )

    listeners = with_codes("elko.listeners", config.elko.listeners)
    director = config.director
    director = attrs.evolve(director, listeners=with_codes("director.listeners", director.listeners))
    console = config.console
    password = secret("console.password_file", console.password, console.password_file)
    mc0 = config.mc0
    key = secret("mc0.secret_key_file", mc0.secret_key, mc0.secret_key_file, files.curve_secret)
    mtl = config.mtl
    mtl_key = secret("mtl.secret_key_file", mtl.secret_key, mtl.secret_key_file, files.curve_secret)
    mtl = attrs.evolve(mtl, secret_key=mtl_key, users=_absolute(base, mtl.users))
    journal = config.journal
    done = attrs.evolve(
        config,
        elko=attrs.evolve(config.elko, listeners=listeners),
        director=director,
        mc0=attrs.evolve(mc0, secret_key=key, client_keys=_absolute(base, mc0.client_keys)),
        mtl=attrs.evolve(mtl, client_keys=_absolute(base, mtl.client_keys)),
        journal=attrs.evolve(journal, directory=_absolute(base, journal.directory)),
        console=attrs.evolve(console, password=password),
    )
    return done, wrong


def _absolute(base: Path, path: str | None) -> str | None:
    # an empty path would come to mean the configuration's own directory
    return str((base / path).absolute()) if path else path
