"""A finding of an examination."""

from __future__ import annotations

from enum import StrEnum

import attrs


class Level(StrEnum):
    """The weight of a finding. An error needs a remedy; a warning will, or may under load."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@attrs.frozen
class Finding:
    """A finding: the thing examined, and a sentence with the remedy if there is one."""

    level: Level
    what: str
    text: str


def ok(what: str, text: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(Level.OK, what, text)


def warning(what: str, text: str) -> Finding:
    """Return a finding that may become a fault."""
    return Finding(Level.WARNING, what, text)


def error(what: str, text: str) -> Finding:
    """Return a fault."""
    return Finding(Level.ERROR, what, text)
