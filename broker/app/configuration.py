"""The configuration of this daemon: the schema with the sections of all wires, and the operations on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from broker.app.wires import WIRES
from broker.config import load
from broker.config import reload as reloading
from broker.config.key import Resolves
from broker.config.load import Config as Config
from broker.config.load import Schema, resolves

SCHEMA = Schema.of(wire.section for wire in WIRES)
"""The sections of the configuration."""

if not TYPE_CHECKING:
    Config = SCHEMA.config


def read(path: str | Path, users: str | None = None) -> Config:
    """As `broker.config.load.read`."""
    return load.read(path, SCHEMA, users)


parse = partial(load.parse, schema=SCHEMA)
found = partial(load.found, schema=SCHEMA)
problems = partial(load.problems, schema=SCHEMA)


def report(config: Config, resolves: Resolves = resolves) -> str:
    """As `broker.config.load.report`."""
    return load.report(config, SCHEMA, resolves)


def warnings(config: Config) -> list[str]:
    """As `broker.config.load.warnings`, without a look-up of host names, which blocks."""
    return load.warnings(config, SCHEMA, lambda host: True)


differences = partial(reloading.differences, schema=SCHEMA)
merged = partial(reloading.merged, schema=SCHEMA)
settings = partial(reloading.settings, schema=SCHEMA)
changes = partial(reloading.changes, schema=SCHEMA)
refused = partial(reloading.refused, schema=SCHEMA)
example = SCHEMA.example
