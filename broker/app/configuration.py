"""The configuration of this daemon: the schema with the sections of all wires, and the operations on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.app.wires import WIRES
from broker.config import load
from broker.config import load as validate
from broker.config import reload as reloading
from broker.config.key import Resolves
from broker.config.key_checks import Problem
from broker.config.load import Config as Config
from broker.config.load import Schema, resolves

SCHEMA = Schema.of(wire.section for wire in WIRES)
"""The sections of the configuration."""

if not TYPE_CHECKING:
    Config = SCHEMA.config


def read(path: str | Path, users: str | None = None) -> Config:
    """As `broker.config.load.read`."""
    return load.read(path, SCHEMA, users)


def parse(text: str, name: str) -> Config:
    """As `broker.config.load.parse`."""
    return load.parse(text, name, SCHEMA)


def found(config: Config) -> list[Problem]:
    """As `broker.config.load.found`."""
    return validate.found(config, SCHEMA)


def problems(config: Config) -> list[tuple[str, str]]:
    """As `broker.config.load.problems`."""
    return validate.problems(config, SCHEMA)


def report(config: Config, resolves: Resolves = resolves) -> str:
    """As `broker.config.load.report`."""
    return validate.report(config, SCHEMA, resolves)


def warnings(config: Config) -> list[str]:
    """As `broker.config.load.warnings`, without asking for host names: that blocks."""
    return validate.warnings(config, SCHEMA, lambda host: True)


def differences(old: Config, new: Config) -> list[reloading.Difference]:
    """As `broker.config.reload.differences`."""
    return reloading.differences(old, new, SCHEMA)


def merged(old: Config, new: Config) -> Config:
    """As `broker.config.reload.merged`."""
    return reloading.merged(old, new, SCHEMA)


def settings(config: Config) -> list[reloading.Setting]:
    """As `broker.config.reload.settings`."""
    return reloading.settings(config, SCHEMA)


def changes(old: Config, new: Config) -> list[str]:
    """As `broker.config.reload.changes`."""
    return reloading.changes(old, new, SCHEMA)


def refused(old: Config, new: Config) -> list[str]:
    """As `broker.config.reload.refused`."""
    return reloading.refused(old, new, SCHEMA)


def example() -> str:
    """As `broker.config.load.Schema.example`."""
    return SCHEMA.example()
